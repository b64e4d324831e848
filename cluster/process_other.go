//go:build !linux

package cluster

import "syscall"

// processAttributes puts a rank into a process group of its own, so that what
// it starts dies with it. Here no signal follows the death of this process: the
// rank sees its control connection end.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// waitExitLeaves says whether waitExit can wait and leave the child unreaped.
const waitExitLeaves = false

// waitExit says no at once: here a child can't be waited for without being
// reaped, and then its number may be somebody else's.
func waitExit(int) bool { return false }
