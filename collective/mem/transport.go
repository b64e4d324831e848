package mem

import (
	"io"
	"os"
	"sync"
	"time"

	"octet/collective"
)

// transport is a rank's end of all its data links.
type transport struct {
	// Set by New, never changed:
	*node
	aborted chan struct{} // closed when err is set

	// Owned by the goroutine that drives the transport:
	peers []peer

	errMu sync.Mutex // guards err
	err   error
}

// peer is the queues of one peer.
type peer struct {
	sends          []collective.Frame
	recvs          []collective.Frame
	landed         int    // bytes of recvs[0] that have landed
	rest           []byte // of the packet that is being taken apart
	whole          []byte // that packet
	late           packet // taken off the link, but not due yet
	sent, received int
}

func (n *node) transport() *transport {
	return &transport{node: n, aborted: make(chan struct{}),
		peers: make([]peer, len(n.net.nodes))}
}

// Send appends a frame to peer's send queue.
func (t *transport) Send(p int, f collective.Frame) {
	t.peers[p].sends = append(t.peers[p].sends, f)
}

// Recv appends a landing place to peer's receive queue.
func (t *transport) Recv(p int, f collective.Frame) {
	t.peers[p].recvs = append(t.peers[p].recvs, f)
}

// Done counts the finished frames of peer's queues.
func (t *transport) Done(p int) (sent, received int) {
	return t.peers[p].sent, t.peers[p].received
}

// Progress moves frames until one is finished. It waits on a channel and never
// spins.
func (t *transport) Progress(deadline time.Time) error {
	var timer *time.Timer
	for {
		t.thawed()
		if err := t.failed(); err != nil {
			return err
		}
		moved, idle, next, err := t.pass()
		if moved || err != nil || idle {
			return err
		}
		now := time.Now()
		if !now.Before(deadline) {
			return os.ErrDeadlineExceeded
		}
		until := deadline.Sub(now)
		if !next.IsZero() {
			until = min(until, max(0, next.Sub(now)))
		}
		if timer == nil {
			timer = time.NewTimer(until)
			defer timer.Stop()
		} else {
			timer.Reset(until)
		}
		select {
		case <-t.wakes:
		case <-t.aborted:
		case <-t.killed:
		case <-timer.C:
		}
	}
}

// pass tries every queue once. It reports whether a frame was finished, whether
// nothing is queued, and when the first delayed packet is due.
func (t *transport) pass() (moved, idle bool, next time.Time, err error) {
	idle = true
	for r := range t.peers {
		p := &t.peers[r]
		if len(p.sends) > 0 {
			idle = false
			n, e := t.pushAll(r)
			moved = moved || n > 0
			err = first(err, e)
		}
		if len(p.recvs) > 0 {
			idle = false
			n, due, e := t.pullAll(r)
			moved = moved || n > 0
			err = first(err, e)
			if !due.IsZero() && (next.IsZero() || due.Before(next)) {
				next = due
			}
		}
	}
	if moved {
		return true, false, next, nil // an error that stays is met again
	}
	return moved, idle, next, err
}

// pushAll hands frames to the link until it is full.
func (t *transport) pushAll(r int) (n int, err error) {
	p, l := &t.peers[r], t.net.links[t.rank][r]
	for len(p.sends) > 0 {
		if isClosed(l.cut) || t.net.nodes[r].dead() || isClosed(t.net.nodes[r].closed) {
			return n, &collective.LinkError{Op: "send", Peer: r, Err: io.ErrClosedPipe}
		}
		if len(l.packets) == cap(l.packets) { // only this goroutine fills it
			break
		}
		f := p.sends[0]
		l.packets <- packet{bytes: l.copyOf(f), due: t.net.due(t.rank, r)}
		p.sends[0] = collective.Frame{}
		p.sends = p.sends[1:]
		p.sent++
		n++
	}
	if n > 0 {
		t.net.nodes[r].wake()
	}
	return n, nil
}

// copyOf returns head and body in one piece of memory of the link's own.
func (l *link) copyOf(f collective.Frame) []byte {
	var b []byte
	select {
	case b = <-l.spare:
	default:
	}
	return append(append(b[:0], f.Head...), f.Body...)
}

// pullAll lands what has arrived, and says when the next packet is due.
func (t *transport) pullAll(r int) (n int, due time.Time, err error) {
	p, l := &t.peers[r], t.net.links[r][t.rank]
	for len(p.recvs) > 0 {
		if isClosed(l.cut) || t.net.nodes[r].dead() {
			return n, due, &collective.LinkError{Op: "recv", Peer: r, Err: io.EOF}
		}
		if len(p.rest) == 0 {
			closed := isClosed(t.net.nodes[r].closed) // before the last look
			due = t.take(r)
			if len(p.rest) == 0 && due.IsZero() && closed {
				return n, due, &collective.LinkError{Op: "recv", Peer: r, Err: io.EOF}
			}
			if len(p.rest) == 0 {
				break
			}
		}
		if p.land() {
			n++
		}
	}
	return n, due, err
}

// take takes the next packet off the link, unless none is there or it is not
// due yet.
func (t *transport) take(r int) (due time.Time) {
	p, l := &t.peers[r], t.net.links[r][t.rank]
	if p.whole != nil {
		select {
		case l.spare <- p.whole:
		default:
		}
		p.whole = nil
	}
	if p.late.bytes == nil {
		select {
		case p.late = <-l.packets:
			t.net.nodes[r].wake() // there is room again
		default:
			return time.Time{}
		}
	}
	if !p.late.due.IsZero() && time.Now().Before(p.late.due) {
		return p.late.due
	}
	p.whole, p.rest, p.late = p.late.bytes, p.late.bytes, packet{}
	return time.Time{}
}

// land copies from the packet to the first landing place and reports whether
// that is full.
func (p *peer) land() bool {
	f := p.recvs[0]
	if h := len(f.Head); p.landed < h {
		p.move(f.Head[p.landed:])
	}
	if h := len(f.Head); p.landed >= h {
		p.move(f.Body[p.landed-h:])
	}
	if p.landed < len(f.Head)+len(f.Body) {
		return false
	}
	p.landed = 0
	p.recvs[0] = collective.Frame{}
	p.recvs = p.recvs[1:]
	p.received++
	return true
}

func (p *peer) move(dst []byte) {
	n := copy(dst, p.rest)
	p.rest = p.rest[n:]
	p.landed += n
}

// failed is the error of everything from now on, or nil.
func (t *transport) failed() error {
	if t.dead() {
		return errKilled
	}
	if isClosed(t.closed) {
		return errClosed
	}
	t.errMu.Lock()
	defer t.errMu.Unlock()
	return t.err
}

// Abort makes every Progress return err. The first error stays.
func (t *transport) Abort(err error) {
	t.errMu.Lock()
	defer t.errMu.Unlock()
	if t.err == nil {
		t.err = err
		close(t.aborted)
	}
}

// Close ends the links. What was done is with the peer already, or on the link.
func (t *transport) Close() error {
	t.close.Do(func() { close(t.closed) })
	t.net.wakeAll()
	return nil
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
