package main

import (
	"errors"
	"fmt"

	"octet/cluster"
)

// The exit codes of every command. After a signal it is 128 and the signal's
// number, as in a shell: 129 SIGHUP, 130 SIGINT, 143 SIGTERM.
const (
	exitOK        = 0 // done; for verify: all settings equal, and the counters prove that they ran
	exitDifferent = 1 // tokens, log-probabilities, states or counts differ
	exitRefused   = 2 // flags, files or settings that cannot be used
	exitVacuous   = 3 // FC1 or MMRS never ran, so nothing was proved
	exitNearTie   = 4 // tokens differ only where the two best logits are nearly equal
	exitGroup     = 5 // a rank died, stalled or disagreed
	exitInterrupt = 130
	exitTerminate = 143
)

const exitTable = `Exit codes: 0 done, equal; 1 different; 2 refused input; 3 vacuous (FC1 or MMRS
never ran); 4 near-tie; 5 group failure; 129 after SIGHUP, 130 after Ctrl-C, 143
after SIGTERM.`

// refusal is an error in what the user gave.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// exitError carries an exit code for a run that ended in order.
type exitError struct {
	code int
	text string
}

func (e exitError) Error() string { return e.text }

// exitCode gives the code for what a command returned.
func exitCode(err error) int {
	var stop signalError
	var code exitError
	var failure *cluster.Failure
	var input *cluster.InputError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &stop):
		return stop.code()
	case errors.As(err, &code):
		return code.code
	case errors.As(err, &failure):
		return exitGroup
	case errors.As(err, &refusal{}), errors.As(err, &input):
		return exitRefused
	}
	return exitGroup
}
