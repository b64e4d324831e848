package tcp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"octet/collective"
)

const lengthBytes = 2 // before a notice

// lane is a rank's end of all its lane connections.
type lane struct {
	// Set by newLane, never changed:
	peers  []*wire                   // by rank; nil for this one
	events chan collective.LaneEvent // readers -> caller
	closed chan struct{}             // closed by Close

	once    sync.Once
	readers sync.WaitGroup
}

// wire is the lane connection to one peer.
type wire struct {
	peer int
	conn *net.TCPConn

	mu  sync.Mutex // one notice at a time; guards err and buf
	err error      // the stream to the peer is broken
	buf []byte
}

// newLane takes over conns, by rank, and starts a reader for each.
func newLane(conns []net.Conn) *lane {
	l := &lane{peers: make([]*wire, len(conns)), closed: make(chan struct{}),
		events: make(chan collective.LaneEvent, 16*len(conns))}
	for r, c := range conns {
		if c == nil {
			continue
		}
		l.peers[r] = &wire{peer: r, conn: c.(*net.TCPConn)}
		l.readers.Go(func() { l.read(l.peers[r]) }) // ended by the peer's end, or by Close
	}
	return l
}

// Send writes one notice to peer, within writeWait.
func (l *lane) Send(peer int, n collective.Notice) error {
	if peer < 0 || peer >= len(l.peers) || l.peers[peer] == nil {
		return fmt.Errorf("notice to rank %d: no such peer", peer)
	}
	w := l.peers[peer]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.write(n)
	}
	if w.err != nil {
		return fmt.Errorf("notice to rank %d: %w", peer, w.err)
	}
	return nil
}

// write sends one notice. After an error the stream may end in half a notice.
func (w *wire) write(n collective.Notice) error {
	w.buf = collective.AppendNotice(append(w.buf[:0], 0, 0), n)
	size := len(w.buf) - lengthBytes
	binary.LittleEndian.PutUint16(w.buf, uint16(size))
	if size > collective.NoticeBytesMax {
		return fmt.Errorf("%d bytes, at most %d", size, collective.NoticeBytesMax)
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return err
	}
	_, err := w.conn.Write(w.buf)
	return err
}

// Events delivers what peers sent, and each peer's end.
func (l *lane) Events() <-chan collective.LaneEvent { return l.events }

// read delivers a peer's notices up to its end.
func (l *lane) read(w *wire) {
	buf := make([]byte, collective.NoticeBytesMax)
	for {
		n, err := readNotice(w.conn, buf)
		if err != nil {
			_ = w.conn.Close() // the peer, if it is closing, waits for this
			l.deliver(collective.LaneEvent{Peer: w.peer, End: err})
			return
		}
		l.deliver(collective.LaneEvent{Peer: w.peer, Notice: n})
	}
}

// deliver hands an event to the caller, who has lost interest after Close.
func (l *lane) deliver(e collective.LaneEvent) {
	select {
	case <-l.closed:
		return
	default:
	}
	select {
	case l.events <- e:
	case <-l.closed:
	}
}

// readNotice reads one notice; buf has NoticeBytesMax bytes. The end of the
// stream between two notices is io.EOF.
func readNotice(r io.Reader, buf []byte) (collective.Notice, error) {
	var length [lengthBytes]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return collective.Notice{}, err
	}
	size := int(binary.LittleEndian.Uint16(length[:]))
	if size > len(buf) {
		return collective.Notice{}, fmt.Errorf("notice of %d bytes, at most %d", size, len(buf))
	}
	if _, err := io.ReadFull(r, buf[:size]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return collective.Notice{}, err
	}
	return collective.ParseNotice(buf[:size])
}

// Close ends the lane. What was sent reaches the peers: each hears the end after
// it and closes its own side, which Close waits for, but not for long.
func (l *lane) Close() error {
	l.once.Do(func() {
		close(l.closed)
		limit := time.Now().Add(partWait)
		for _, w := range l.peers {
			if w != nil {
				_ = w.conn.CloseWrite()
				_ = w.conn.SetReadDeadline(limit)
			}
		}
		l.readers.Wait()
		close(l.events)
	})
	return nil
}
