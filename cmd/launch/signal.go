package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signalError is why a command ended: the user's signal.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return fmt.Sprintf("stopped by %v", e.sig) }

func (e signalError) code() int { return 128 + int(e.sig) }

// withSignals gives a context that the first SIGINT, SIGTERM or SIGHUP cancels
// with a signalError as its cause. The second ends the process at once; rank
// processes die with their parent.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // ends with the process, or when stop closes the channel
		n := 0
		for s := range c {
			why := signalError{s.(syscall.Signal)}
			if n++; n > 1 {
				os.Exit(why.code())
			}
			cancel(why)
		}
	}()
	return ctx, func() { signal.Stop(c); close(c); cancel(nil) }
}
