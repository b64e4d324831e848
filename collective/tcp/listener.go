package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"octet/collective"
)

// Listener is where a rank's peers find it. It outlives epochs: Mesh may be
// called again with a higher one.
type Listener struct {
	// Set by Listen, never changed:
	socket net.Listener
	closed chan struct{} // closed by Close

	running sync.WaitGroup // the goroutines that accept and greet

	mu     sync.Mutex // guards what follows, and every mesh
	shut   bool
	mesh   *mesh // the last one that was begun; nil before the first
	guests map[net.Conn]bool
}

// Listen opens a rank's port. An empty address means a port of the system's
// choice on the loopback; port 0 means the system's choice.
func Listen(addr string) (*Listener, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for peers: %w", err)
	}
	l := &Listener{socket: socket, closed: make(chan struct{}), guests: map[net.Conn]bool{}}
	l.running.Go(l.accept) // ended by Close
	return l, nil
}

// Addr is the address that peers dial, with the port that was chosen. A host
// that was left out or unspecified is for the caller to fill in.
func (l *Listener) Addr() string { return l.socket.Addr().String() }

// Close ends the Listener and a Mesh that is under way. Links that are formed
// stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.shut {
		l.mu.Unlock()
		return nil
	}
	l.shut = true
	close(l.closed)
	for c := range l.guests {
		_ = c.Close()
	}
	l.mu.Unlock()
	err := l.socket.Close()
	l.running.Wait()
	return err
}

// Mesh links this rank with all peers, or fails when ctx ends with a *MeshError
// that names the peers that are missing. A peer that refuses this rank ends it
// at once. The caller closes both results.
func (l *Listener) Mesh(ctx context.Context, cfg Config) (
	collective.Transport, collective.Lane, error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, fmt.Errorf("mesh: %w", err)
	}
	m, err := l.begin(cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := m.form(ctx); err != nil {
		return nil, nil, err
	}
	data, err := newTransport(cfg, m.take(forData))
	if err != nil {
		m.drop()
		return nil, nil, fmt.Errorf("mesh of rank %d [epoch %d]: %w", cfg.Rank, cfg.Epoch, err)
	}
	return data, newLane(m.take(forLane)), nil
}

// accept greets whoever connects, each in a goroutine of its own.
func (l *Listener) accept() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		conn, err := l.socket.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, or a connection that is gone again
			pause.Reset(10 * time.Millisecond)
			select {
			case <-pause.C:
			case <-l.closed:
				return
			}
		case !l.admit(conn):
			_ = conn.Close() // a peer dials again
		default:
			l.running.Go(func() { l.greet(conn) }) // ends within helloWait, or by Close
		}
	}
}

// admit counts a guest, unless there are too many.
func (l *Listener) admit(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut || len(l.guests) >= guestsMax {
		return false
	}
	l.guests[conn] = true
	return true
}

// greet hears a hello, answers it and hands the connection to the mesh.
func (l *Listener) greet(conn net.Conn) {
	kept := false
	defer func() {
		if !kept {
			_ = conn.Close()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.guests, conn)
	}()
	_ = conn.SetDeadline(time.Now().Add(helloWait))
	h, err := readHello(conn)
	if err != nil {
		turnAway(conn, answer{code: refused, reason: err.Error()})
		return
	}
	m, call, a := l.judge(h)
	if a.code != accepted {
		turnAway(conn, a)
		return
	}
	if _, err := conn.Write(a.append(nil)); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	kept = m.put(int(h.from), h.purpose, conn, call)
}

// turnAway says why, and waits until the other side has gone or helloWait is
// over: a close with unread bytes would take the reason along.
func turnAway(conn net.Conn, a answer) {
	if _, err := conn.Write(a.append(nil)); err != nil {
		return
	}
	if c, ok := conn.(*net.TCPConn); ok && c.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<16))
	}
}

// judge decides about a hello. An accepted one has the number of the call with
// which its connection asks for the seat.
func (l *Listener) judge(h hello) (m *mesh, call int, a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m = l.mesh
	if m == nil {
		return nil, 0, answer{code: notYet, reason: "no epoch has begun here"}
	}
	if c, reason := m.judge(h); c != accepted {
		if c == refused && h.run == m.self.run && int(h.from) < m.size {
			m.note(int(h.from), h.purpose, "refused: "+reason)
		}
		return nil, 0, answer{code: c, reason: reason}
	}
	self := m.self
	self.to, self.purpose = h.from, h.purpose
	s := &m.seats[h.from]
	s.calls[h.purpose]++
	return m, s.calls[h.purpose], answer{code: accepted, hello: self}
}

// begin makes the mesh of a new epoch the one that guests are for.
func (l *Listener) begin(cfg Config) (*mesh, error) {
	m, err := newMesh(l, cfg)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.mesh
	switch {
	case l.shut:
		return nil, fmt.Errorf("mesh of rank %d: listener: %w", cfg.Rank, net.ErrClosed)
	case old != nil && old.self.epoch >= cfg.Epoch:
		return nil, fmt.Errorf("mesh of rank %d: epoch %d is not above epoch %d, the last one",
			cfg.Rank, cfg.Epoch, old.self.epoch)
	case old != nil:
		old.fail(fmt.Errorf("epoch %d has begun", cfg.Epoch))
	}
	l.mesh = m
	return m, nil
}
