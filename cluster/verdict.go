package cluster

import (
	"fmt"
	"slices"
	"strings"

	"octet/collective"
)

// died is what the end of a rank says about the cause. It carries no sequence
// number and is a death, so it comes before everything that other ranks saw as
// a consequence. The informer is the master, which is no rank.
func died(epoch uint32, r int, detail string) collective.Cause {
	return collective.Cause{Class: collective.Death, Epoch: epoch, Culprits: []int{r},
		Informer: -1, Detail: detail}
}

// blame turns a verdict and how the ranks ended into the failure that people
// read. exits holds the ranks that have ended, phase is where the culprit was.
func blame(cause collective.Cause, members []member, phase func(r int) string) *Failure {
	f := &Failure{Rank: -1, Exit: -1, Cause: cause, Detail: cause.Detail}
	if len(cause.Culprits) == 0 {
		f.Phase = phase(-1)
		return f
	}
	if len(cause.Culprits) == 1 {
		f.Rank = cause.Culprits[0]
	}
	// With several culprits a rank that is known to have ended is the best name.
	for _, r := range cause.Culprits {
		if r >= 0 && r < len(members) && members[r].exit != nil {
			f.Rank = r
			break
		}
	}
	f.Phase = phase(f.Rank)
	if f.Rank < 0 || f.Rank >= len(members) {
		f.Rank = -1
		return f
	}
	m := &members[f.Rank]
	f.PID = m.pid
	if e := m.exit; e != nil {
		f.Signal, f.Exit = e.Signal, e.Code
		if e.Detail != "" {
			f.Detail = e.Detail
		}
		f.Cause.Class = collective.Death
	}
	return f
}

// Error is the failure as one sentence.
func (f *Failure) Error() string {
	what := f.verb() + " " + f.where()
	if line := f.line(); line != "" {
		what += ": " + line
	}
	if others := f.others(); others != "" {
		what += " (with " + others + ")"
	}
	return what
}

// verb is who did what.
func (f *Failure) verb() string {
	who := "the group"
	if f.Rank >= 0 {
		who = fmt.Sprintf("rank %d", f.Rank)
		if f.PID != 0 {
			who += fmt.Sprintf(" (pid %d)", f.PID)
		}
	}
	switch {
	case f.Signal != "":
		return fmt.Sprintf("%s was killed by signal %q", who, f.Signal)
	case f.Exit >= 0 && f.PID == 0:
		return who + " ended"
	case f.Exit >= 0:
		return fmt.Sprintf("%s exited with status %d", who, f.Exit)
	case f.Rank < 0 && len(f.Cause.Culprits) > 1:
		list := strings.Trim(strings.ReplaceAll(fmt.Sprint(f.Cause.Culprits), " ", ", "), "[]")
		return fmt.Sprintf("ranks %s failed (%v)", list, f.Cause.Class)
	case f.Rank < 0:
		return who + " failed"
	}
	switch f.Cause.Class {
	case collective.Death:
		return who + " was lost"
	case collective.Corruption:
		return who + " sent data that is not intact"
	case collective.Mismatch:
		return who + " does not agree with the group"
	case collective.Stall:
		return who + " stalled"
	}
	return who + " failed"
}

// where is the phase with the word that goes before it.
func (f *Failure) where() string {
	if f.Phase == "" {
		return "at an unknown time"
	}
	if f.Phase == "ready" {
		return "while ready"
	}
	return "in " + f.Phase
}

// others names further culprits.
func (f *Failure) others() string {
	var rest []string
	for _, r := range f.Cause.Culprits {
		if r != f.Rank && f.Rank >= 0 {
			rest = append(rest, fmt.Sprintf("rank %d", r))
		}
	}
	return strings.Join(slices.Compact(rest), ", ")
}

// line is the one line of Detail that says most: where a Go program panicked,
// or else the last thing it said.
func (f *Failure) line() string {
	var last string
	for line := range strings.Lines(f.Detail) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
		if line != "" {
			last = line
		}
	}
	return last
}
