package tcp

import (
	"errors"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yieldsMax is how many passes in a row may move nothing before Progress blocks
// in the kernel. There is no call here that gives the core to another process,
// so ranks that share cores have to block soon.
const yieldsMax = 5

// sender is what sending needs beside the vectors.
type sender struct{ scratch [][]byte }

// send moves what the kernel takes now; 0 when it takes nothing.
func (s *sender) send(fd int, vecs []unix.Iovec) (int, error) {
	s.scratch = asSlices(s.scratch[:0], vecs)
	n, err := unix.Writev(fd, s.scratch)
	clear(s.scratch)
	return result(n, err)
}

// recv moves what has arrived; 0 when nothing has. The end of the stream is
// io.EOF.
func recv(fd int, vecs []unix.Iovec) (int, error) {
	n, err := unix.Readv(fd, asSlices(nil, vecs))
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	return result(n, err)
}

func asSlices(to [][]byte, vecs []unix.Iovec) [][]byte {
	for _, v := range vecs {
		to = append(to, unsafe.Slice(v.Base, v.Len))
	}
	return to
}

func result(n int, err error) (int, error) {
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	}
	return 0, err
}

// yieldProcessor does nothing here: yield lets other goroutines run.
func yieldProcessor() {}

// tune makes a send to a peer that is gone an error and never a signal.
func tune(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NOSIGPIPE, 1) }

// acknowledged reports whether the peer's kernel has all bytes that were sent.
func acknowledged(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NWRITE)
	return err != nil || n == 0
}
