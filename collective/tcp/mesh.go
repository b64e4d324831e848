package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// mesh is the connections of one epoch while they come in.
type mesh struct {
	// Set by newMesh, never changed:
	l      *Listener
	self   hello // of this rank, without peer and purpose
	rank   int
	size   int
	addrs  []string
	full   chan struct{} // closed when all connections are there
	failed chan struct{} // closed when err is set

	// Guarded by l.mu:
	seats []seat // by rank
	count int    // connections that are there
	over  bool   // it is full, failed or out of time: nothing comes in any more
	err   error
}

// seat is a peer's place in the mesh.
type seat struct {
	instance uint64                // who holds it; 0: nobody
	conns    [forLane + 1]net.Conn // by purpose
	notes    [forLane + 1]string   // why the last attempt came to nothing
	calls    [forLane + 1]int      // hellos of the peer that were accepted
}

// newMesh prepares a mesh without any traffic.
func newMesh(l *Listener, cfg Config) (*mesh, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("mesh of rank %d: %w", cfg.Rank, err)
	}
	return &mesh{
		l: l, rank: cfg.Rank, size: cfg.Size, addrs: slices.Clone(cfg.Peers),
		self: hello{run: keyOf(cfg.RunID), epoch: cfg.Epoch, size: uint16(cfg.Size),
			from: uint16(cfg.Rank), instance: binary.LittleEndian.Uint64(random[:]) | 1},
		full: make(chan struct{}), failed: make(chan struct{}), seats: make([]seat, cfg.Size),
	}, nil
}

// judge decides whether a hello is for this mesh, and gives the seat to the
// first instance that asks rightly. The caller holds l.mu.
func (m *mesh) judge(h hello) (code, string) {
	no := func(format string, args ...any) (code, string) {
		return refused, fmt.Sprintf(format, args...)
	}
	switch {
	case h.run != m.self.run:
		return no("run id %q, want %q", h.run, m.self.run)
	case h.epoch > m.self.epoch:
		return notYet, fmt.Sprintf("epoch %d, this rank is in epoch %d", h.epoch, m.self.epoch)
	case h.epoch < m.self.epoch:
		return no("stale epoch %d, this rank is in epoch %d", h.epoch, m.self.epoch)
	case h.size != m.self.size:
		return no("size %d, want %d", h.size, m.self.size)
	case int(h.to) != m.rank:
		return no("looking for rank %d, this is rank %d", h.to, m.rank)
	case int(h.from) >= m.size:
		return no("rank %d, want one below %d", h.from, m.size)
	case int(h.from) <= m.rank:
		return no("rank %d dials rank %d, want a higher rank to dial", h.from, m.rank)
	}
	s := &m.seats[h.from]
	switch {
	case s.instance != 0 && s.instance != h.instance:
		return no("duplicate rank %d: instance %x, instance %x is here already",
			h.from, h.instance, s.instance)
	case m.over:
		return no("epoch %d is closed here, rank %d comes too late", h.epoch, h.from)
	}
	s.instance = h.instance
	return accepted, ""
}

// put seats a connection: one that was dialled, with call 0, or the one of the
// peer's call'th hello. A connection that the peer has given up is replaced by
// that of its later call, and never the other way round. It reports whether the
// mesh wanted it.
func (m *mesh) put(peer int, p purpose, conn net.Conn, call int) bool {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if m.over || m.l.shut {
		return false
	}
	s := &m.seats[peer]
	if call != s.calls[p] {
		return false
	}
	if old := s.conns[p]; old != nil {
		_ = old.Close()
		m.count--
	}
	s.conns[p] = conn
	m.count++
	m.close()
	return true
}

// close ends the mesh when it is full. The caller holds l.mu.
func (m *mesh) close() {
	if !m.over && m.count == 2*(m.size-1) {
		m.over = true
		close(m.full)
	}
}

// fail ends the mesh with err, unless it has ended. The caller holds l.mu.
func (m *mesh) fail(err error) {
	if !m.over {
		m.over, m.err = true, err
		close(m.failed)
	}
}

// note keeps why an attempt came to nothing. The caller holds l.mu.
func (m *mesh) note(peer int, p purpose, why string) { m.seats[peer].notes[p] = why }

// form dials the lower ranks and waits for the higher ones.
func (m *mesh) form(ctx context.Context) error {
	dialCtx, stop := context.WithCancel(ctx)
	var dials sync.WaitGroup
	for peer := range m.rank {
		for _, p := range []purpose{forData, forLane} {
			dials.Go(func() { m.dial(dialCtx, peer, p) }) // ends when form does
		}
	}
	m.l.mu.Lock()
	m.close() // a mesh of one is full
	m.l.mu.Unlock()
	select {
	case <-m.full:
	case <-m.failed:
	case <-ctx.Done():
	case <-m.l.closed:
	}
	stop()
	dials.Wait()
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if m.l.shut {
		m.fail(fmt.Errorf("listener: %w", net.ErrClosed))
	}
	m.fail(context.Cause(ctx))
	if m.err == nil {
		return nil
	}
	err := &MeshError{Rank: m.rank, Epoch: m.self.epoch, Missing: m.missing(), Err: m.err}
	m.shut()
	return err
}

// shut closes what is seated. The caller holds l.mu.
func (m *mesh) shut() {
	for r := range m.seats {
		for p, c := range m.seats[r].conns {
			if c != nil {
				_ = c.Close()
				m.seats[r].conns[p] = nil
			}
		}
	}
}

// drop is shut for who does not hold l.mu.
func (m *mesh) drop() {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	m.shut()
}

// take hands out the connections of a purpose, by rank.
func (m *mesh) take(p purpose) []net.Conn {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	conns := make([]net.Conn, m.size)
	for r := range m.seats {
		conns[r], m.seats[r].conns[p] = m.seats[r].conns[p], nil
	}
	return conns
}

// missing lists the peers that are not there. The caller holds l.mu.
func (m *mesh) missing() []Missing {
	var all []Missing
	for r := range m.seats {
		if r == m.rank {
			continue
		}
		s, miss := &m.seats[r], Missing{Rank: r, Dialled: r < m.rank, Addr: m.addrs[r]}
		for _, p := range []purpose{forData, forLane} {
			if s.conns[p] == nil {
				miss.Links = append(miss.Links, p.String())
				if miss.Why == "" {
					miss.Why = s.notes[p]
				}
			}
		}
		if len(miss.Links) > 0 {
			all = append(all, miss)
		}
	}
	return all
}

// dial connects to a lower rank, again and again until it is there, refuses, or
// ctx ends.
func (m *mesh) dial(ctx context.Context, peer int, p purpose) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for wait := redialMin; ; wait = min(2*wait, redialMax) {
		conn, final, err := m.attempt(ctx, peer, p)
		if err == nil {
			if !m.put(peer, p, conn, 0) {
				_ = conn.Close()
			}
			return
		}
		if m.missed(ctx, peer, p, err, final); final {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// missed keeps how an attempt ended, unless it ended only because ctx did.
func (m *mesh) missed(ctx context.Context, peer int, p purpose, err error, final bool) {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	if ctx.Err() == nil {
		m.note(peer, p, err.Error())
	}
	if final {
		m.fail(err)
	}
}

// attempt connects and says hello once. An error is final when trying again
// would not help.
func (m *mesh) attempt(ctx context.Context, peer int, p purpose) (
	_ net.Conn, final bool, err error) {
	dialer := net.Dialer{Timeout: connectWait}
	conn, err := dialer.DialContext(ctx, "tcp", m.addrs[peer])
	if err != nil {
		return nil, false, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	_ = conn.SetDeadline(time.Now().Add(answerWait))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	mine := m.self
	mine.to, mine.purpose = uint16(peer), p
	if _, err := conn.Write(mine.append(nil)); err != nil {
		return nil, false, fmt.Errorf("say hello: %w", err)
	}
	a, err := readAnswer(conn)
	if err != nil {
		var foreign *foreignError
		if errors.As(err, &foreign) {
			return nil, true, &RefusedError{Peer: peer, Addr: m.addrs[peer], Reason: err.Error()}
		}
		return nil, false, err
	}
	if a.code == notYet {
		return nil, false, fmt.Errorf("not yet: %s", a.reason)
	}
	if a.code == accepted {
		a.reason = m.doubt(a.hello, peer, p)
	}
	if a.code != accepted || a.reason != "" {
		return nil, true, &RefusedError{Peer: peer, Addr: m.addrs[peer], Reason: a.reason}
	}
	if !stop() {
		return nil, false, context.Cause(ctx)
	}
	return conn, false, conn.SetDeadline(time.Time{})
}

// doubt says why an acceptor is not the peer that was dialled, or nothing.
func (m *mesh) doubt(h hello, peer int, p purpose) string {
	want := m.self
	want.from, want.to, want.purpose, want.instance = uint16(peer), m.self.from, p, h.instance
	if h == want {
		return ""
	}
	return fmt.Sprintf("answer from rank %d to rank %d [run %q, epoch %d, size %d, %v], want "+
		"rank %d to rank %d [run %q, epoch %d, size %d, %v]", h.from, h.to, h.run, h.epoch,
		h.size, h.purpose, want.from, want.to, want.run, want.epoch, want.size, want.purpose)
}

// RefusedError says that a peer does not link with this rank, or is not what
// the table says it is.
type RefusedError struct {
	Peer   int
	Addr   string
	Reason string // both values that differ, those of the refused side first
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("rank %d at %s refuses: %s", e.Peer, e.Addr, e.Reason)
}

// MeshError says which peers a rank was not linked with, and why it gave up.
type MeshError struct {
	Rank    int
	Epoch   uint32
	Missing []Missing // by rank
	Err     error     // of the context, or a *RefusedError
}

// Missing is a peer that is not linked.
type Missing struct {
	Rank    int
	Dialled bool     // this rank dials it; otherwise it was to dial
	Addr    string   // from the table
	Links   []string // which are missing: "data", "lane"
	Why     string   // how the last attempt ended; empty when there was none
}

func (m Missing) String() string {
	s := fmt.Sprintf("rank %d has not dialled", m.Rank)
	if m.Dialled {
		s = fmt.Sprintf("rank %d at %s does not answer", m.Rank, m.Addr)
	}
	if len(m.Links) == 1 {
		s += " for " + m.Links[0]
	}
	if m.Why != "" {
		s += " (" + m.Why + ")"
	}
	return s
}

func (e *MeshError) Error() string {
	at := fmt.Sprintf("mesh of rank %d [epoch %d]: ", e.Rank, e.Epoch)
	var refusal *RefusedError
	if errors.As(e.Err, &refusal) || len(e.Missing) == 0 {
		return at + e.Err.Error()
	}
	parts := make([]string, len(e.Missing))
	for i, m := range e.Missing {
		parts[i] = m.String()
	}
	return at + strings.Join(parts, "; ") + ": " + e.Err.Error()
}

func (e *MeshError) Unwrap() error { return e.Err }
