package tcp

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yieldsMax is how many passes in a row may move nothing before Progress blocks
// in the kernel. Fewer cost latency when ranks share cores, more cost nothing
// but processor time.
const yieldsMax = 200

// The calls of this file that cannot block go round the Go scheduler: telling
// it costs more than the call.

// sender is what sending needs beside the vectors.
type sender struct{ head unix.Msghdr }

// send moves what the kernel takes now; 0 when it takes nothing. A peer that is
// gone is an error and never a signal.
func (s *sender) send(fd int, vecs []unix.Iovec) (int, error) {
	s.head.Iov = &vecs[0]
	s.head.SetIovlen(len(vecs))
	n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&s.head)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	s.head.Iov = nil
	return result(n, errno)
}

// recv moves what has arrived; 0 when nothing has. The end of the stream is
// io.EOF.
func recv(fd int, vecs []unix.Iovec) (int, error) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READV, uintptr(fd),
		uintptr(unsafe.Pointer(&vecs[0])), uintptr(len(vecs)))
	if errno == 0 && n == 0 {
		return 0, io.EOF
	}
	return result(n, errno)
}

func result(n uintptr, errno syscall.Errno) (int, error) {
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	}
	return 0, errno
}

// yieldProcessor lets another thread of this host run.
func yieldProcessor() {
	_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// tune asks for what suits data links, as far as the system has it: reno beats
// the common defaults between processes of one host.
func tune(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
}

// acknowledged reports whether the peer's kernel has all bytes that were sent,
// after the sending side was shut down. The end of the stream counts as one byte,
// whose acknowledgement may be late and is of no interest.
func acknowledged(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err != nil || n <= 1
}
