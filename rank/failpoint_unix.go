//go:build unix

package rank

import "syscall"

// The three ways in which a failpoint takes the process away. They are the only
// place outside cmd that does, and they do it as a fault would: nothing is
// closed, flushed or told.

// killSelf does not return.
func killSelf() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// exitSelf does not return.
func exitSelf() { syscall.Exit(ExitFailpoint) }

// stopSelf returns when the process has been continued.
func stopSelf() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) }
