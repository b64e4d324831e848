package tcp

import (
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"octet/collective"
)

// link is the data connection to one peer. Its descriptor is not known to Go's
// poller, which would wake for every segment that arrives.
type link struct {
	peer int
	fd   int
	send queue
	recv queue
	out  sender
}

// newLink takes the descriptor out of conn, which is closed in any case.
func newLink(peer int, conn net.Conn, socketBytes int) (*link, error) {
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("data link to rank %d: %w", peer, err)
	}
	l := &link{peer: peer}
	var dup error
	err = raw.Control(func(fd uintptr) {
		l.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dup
	}
	if err != nil {
		return nil, fmt.Errorf("data link to rank %d: duplicate the descriptor: %w", peer, err)
	}
	if socketBytes > 0 {
		_ = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBytes)
		_ = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes)
	}
	tune(l.fd)
	return l, nil
}

// pass tries both directions once. It reports how many frames were finished and
// whether any byte moved.
func (l *link) pass() (finished int, moved bool, err error) {
	if l.send.pending() {
		n := 0
		if l.send.err == nil {
			n, l.send.err = l.out.send(l.fd, l.send.batch())
			finished += l.send.advance(n)
		}
		moved = n > 0
		err = l.failure("send", l.send.err)
	}
	if l.recv.pending() {
		n := 0
		if l.recv.err == nil {
			n, l.recv.err = recv(l.fd, l.recv.batch())
			finished += l.recv.advance(n)
		}
		moved = moved || n > 0
		if err == nil {
			err = l.failure("recv", l.recv.err)
		}
	}
	return finished, moved, err
}

// failure wraps what ended a direction of the link.
func (l *link) failure(op string, err error) error {
	if err == nil {
		return nil
	}
	return &collective.LinkError{Op: op, Peer: l.peer, Err: err}
}

// events is what the link waits for.
func (l *link) events() (ev int16) {
	if l.recv.pending() {
		ev |= unix.POLLIN
	}
	if l.send.pending() {
		ev |= unix.POLLOUT
	}
	return ev
}

// yield lets whoever else has work run: goroutines of this process first, then
// other processes of this host, among them the ranks that this one waits for.
func yield() {
	runtime.Gosched()
	yieldProcessor()
}

// after is p moved by n bytes within the same piece of memory.
func after(p *byte, n int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
