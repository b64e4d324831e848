package cluster

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes puts a rank into a process group of its own, so that what
// it starts dies with it, and has the kernel kill it when the thread that
// started it ends, which is when this process does.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitExitLeaves says whether waitExit can wait and leave the child unreaped.
const waitExitLeaves = true

// waitExit returns when pid has ended. It says whether pid is still unreaped, so
// that the number is taken and its process group can be killed without hitting
// somebody else.
func waitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
