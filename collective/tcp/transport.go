package tcp

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"octet/collective"
)

// transport is a rank's end of all its data links. It has no goroutine.
type transport struct {
	// Set by newTransport, never changed:
	order []*link // the other ranks, the next one first
	links []*link // by rank; nil for this one
	waker *os.File
	woken *os.File
	wakeF int32 // descriptor of woken

	aborted atomic.Pointer[error] // set once

	driving sync.Mutex // held by Progress and Close; guards what follows
	closed  bool
	fds     []unix.PollFd // scratch of block
}

// newTransport takes over conns, by rank, also when it fails.
func newTransport(cfg Config, conns []net.Conn) (*transport, error) {
	t := &transport{links: make([]*link, cfg.Size)}
	var first error
	for i := 1; i < cfg.Size; i++ {
		r := (cfg.Rank + i) % cfg.Size
		l, err := newLink(r, conns[r], cfg.SocketBytes)
		if err != nil {
			first = err
			continue
		}
		t.links[r] = l
		t.order = append(t.order, l)
	}
	if first == nil {
		first = t.openWaker()
	}
	if first != nil {
		for _, l := range t.order {
			_ = unix.Close(l.fd)
		}
		return nil, first
	}
	return t, nil
}

// openWaker makes the pipe by which Abort ends a Progress that blocks.
func (t *transport) openWaker() error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("data links: pipe: %w", err)
	}
	t.woken, t.waker = r, w
	raw, err := r.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { t.wakeF = int32(fd) })
	}
	if err != nil {
		_ = r.Close()
		_ = w.Close()
		return fmt.Errorf("data links: pipe: %w", err)
	}
	return nil
}

// Send appends a frame to peer's send queue.
func (t *transport) Send(peer int, f collective.Frame) { t.links[peer].send.push(f) }

// Recv appends a landing place to peer's receive queue.
func (t *transport) Recv(peer int, f collective.Frame) { t.links[peer].recv.push(f) }

// Done counts the finished frames of peer's queues.
func (t *transport) Done(peer int) (sent, received int) {
	l := t.links[peer]
	if l == nil {
		return 0, 0
	}
	return l.send.done, l.recv.done
}

// Progress passes over the links until a frame is finished. After a pass that
// moved nothing it yields at once, since the rank it waits for may need this
// core; after yieldsMax of them it blocks. The clock is read only after a pass
// that moved nothing.
func (t *transport) Progress(deadline time.Time) error {
	t.driving.Lock()
	defer t.driving.Unlock()
	for idle := 0; ; {
		if err := t.aborted.Load(); err != nil {
			return *err
		}
		if t.closed {
			return net.ErrClosed
		}
		finished, moved, queued, err := t.pass()
		switch {
		case finished > 0:
			return nil // an error that stays is met again
		case err != nil || !queued:
			return err
		case moved:
			idle = 0
			continue
		}
		now := time.Now()
		if !now.Before(deadline) {
			return os.ErrDeadlineExceeded
		}
		if idle++; idle <= yieldsMax {
			yield()
		} else if t.block(deadline.Sub(now)) {
			idle = 0
		}
	}
}

// pass tries every link once.
func (t *transport) pass() (finished int, moved, queued bool, err error) {
	for _, l := range t.order {
		if l.events() == 0 {
			continue
		}
		queued = true
		n, some, failure := l.pass()
		finished += n
		moved = moved || some
		if err == nil {
			err = failure
		}
	}
	return finished, moved, queued, err
}

// block waits in the kernel for a link that can move, Abort, or a while that
// ends with limit. It reports whether something happened.
func (t *transport) block(limit time.Duration) bool {
	t.fds = append(t.fds[:0], unix.PollFd{Fd: t.wakeF, Events: unix.POLLIN})
	for _, l := range t.order {
		if ev := l.events(); ev != 0 {
			t.fds = append(t.fds, unix.PollFd{Fd: int32(l.fd), Events: ev})
		}
	}
	wait := min(limit, blockMax) + time.Millisecond - 1 // poll counts whole ones
	n, err := unix.Poll(t.fds, int(wait/time.Millisecond))
	return n > 0 || err != nil
}

// Abort makes every Progress return err, also one that blocks. The first error
// stays.
func (t *transport) Abort(err error) {
	if t.aborted.CompareAndSwap(nil, &err) {
		_, _ = t.waker.Write([]byte{0}) // after Close there is nobody to wake
	}
}

// Close ends the links. It waits a while for the peers' kernels to have what
// was finished.
func (t *transport) Close() error {
	t.Abort(net.ErrClosed)
	t.driving.Lock()
	defer t.driving.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	_ = t.waker.Close()
	_ = t.woken.Close()
	left := make([]*link, 0, len(t.order))
	for _, l := range t.order {
		_ = unix.Shutdown(l.fd, unix.SHUT_WR)
		left = append(left, l)
	}
	waste := make([]byte, batchBytes)
	for end := time.Now().Add(drainWait); len(left) > 0; {
		late := !time.Now().Before(end)
		keep := left[:0]
		for _, l := range left {
			if l.delivered(waste) || late {
				_ = unix.Close(l.fd)
			} else {
				keep = append(keep, l)
			}
		}
		if left = keep; len(left) > 0 {
			pause(left)
		}
	}
	for _, l := range t.order {
		l.send.forget()
		l.recv.forget()
	}
	return nil
}

// delivered throws away what has arrived, because closing a socket that holds
// unread bytes resets the connection, and reports whether the peer has all that
// was sent.
func (l *link) delivered(waste []byte) bool {
	for range 64 { // a peer that goes on sending is not waited for
		n, err := unix.Read(l.fd, waste)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
	}
	return l.send.err != nil || acknowledged(l.fd)
}

// pause waits a millisecond, or less when a peer says something. There is no
// event for the last acknowledgement.
func pause(left []*link) {
	fds := make([]unix.PollFd, len(left))
	for i, l := range left {
		fds[i] = unix.PollFd{Fd: int32(l.fd)}
	}
	_, _ = unix.Poll(fds, 1)
}
