// Package rank is the life of one rank of a tensor-parallel group: it joins the
// group through the master, brings up its device, links to its peers, loads its
// shard, runs the plans that the master sends and survives the end of an epoch.
//
// Machine decides and does nothing else: events go in, effects come out, and
// time is one of the events. Run is the driver round it: one loop goroutine owns
// the machine and everything that lives for an epoch; effects that take time run
// in goroutines of their own and report back as events.
//
// # The control connection
//
// A rank dials the master and both send frames. A frame is
//
//	size    uint32  // big endian: bytes that follow it, 2 .. FrameBytesMax
//	version uint8   // Version of the sender
//	kind    uint8   // which message, see Kind
//	body    []byte  // msgpack, structs as arrays of their fields in order
//
// A frame of another version, of an unknown kind or longer than the limit ends
// the connection, and so does a body that is not exactly what this build would
// write for the message it holds: that refuses fields too many or too few,
// numbers that do not fit, duplicate keys and trailing bytes alike. Before a
// body is decoded the guard has walked it, so a length inside it can never make
// the decoder reserve more than the body could fill.
package rank

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Sizes of a frame.
const (
	FrameBytesMax = 64 << 20 // of version, kind and body
	HelloBytesMax = 64 << 10 // the same, for the frame of a stranger: see SetFrameMax

	sizeBytes = 4
	headBytes = 2       // version and kind, which size counts
	growBytes = 1 << 20 // read at a time, so that a size alone reserves little
)

// VersionError says that the other side speaks another version of the protocol.
type VersionError struct {
	Theirs, Ours uint8
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("control protocol: the other side speaks version %d, this build speaks %d",
		e.Theirs, e.Ours)
}

// Conn carries control messages over a connection. One goroutine reads; any
// number write. An error of Read or Write, a deadline included, leaves the
// stream inside a frame: close the Conn then.
type Conn struct {
	// Set by NewConn, never changed:
	raw net.Conn

	// Owned by the reader:
	frameMax int

	mu sync.Mutex // one Write at a time
}

// NewConn makes a Conn of a connection and owns it from then on.
func NewConn(raw net.Conn) *Conn {
	return &Conn{raw: raw, frameMax: FrameBytesMax}
}

// SetFrameMax bounds what Read takes, up to FrameBytesMax. A master holds a
// connection to HelloBytesMax until it knows who is there. Only the reader may
// call it.
func (c *Conn) SetFrameMax(size int) {
	c.frameMax = min(max(size, headBytes), FrameBytesMax)
}

// Read returns the next message. A zero deadline waits for ever; the deadline is
// for the whole frame. io.EOF means that the other side closed between frames.
func (c *Conn) Read(deadline time.Time) (Message, error) {
	// A pipe whose other end is closed takes no deadline; reading says EOF then.
	err := c.raw.SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return nil, fmt.Errorf("read control frame: %w", err)
	}
	var head [sizeBytes]byte
	if _, err := io.ReadFull(c.raw, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF // between frames; a cut size is ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read control frame [size]: %w", err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < headBytes || size > uint32(c.frameMax) {
		return nil, fmt.Errorf("read control frame [size]: %d bytes claimed, %d to %d allowed",
			size, headBytes, c.frameMax)
	}
	frame, err := readGrowing(c.raw, int(size))
	if err != nil {
		return nil, fmt.Errorf("read control frame [body of %d bytes]: %w", size, err)
	}
	return decode(frame)
}

// Write sends one message. A zero deadline waits for ever. Messages of several
// writers go out whole, one after the other.
func (c *Conn) Write(m Message, deadline time.Time) error {
	frame, err := encode(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.raw.SetWriteDeadline(deadline); err != nil {
		return fmt.Errorf("write %v: %w", m.Kind(), err)
	}
	if _, err := c.raw.Write(frame); err != nil {
		return fmt.Errorf("write %v: %w", m.Kind(), err)
	}
	return nil
}

// Close ends the connection; a Read or Write under way returns an error. Any
// goroutine may call it, more than once.
func (c *Conn) Close() error {
	err := c.raw.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Remote is the address of the other side, for messages to people.
func (c *Conn) Remote() string {
	if a := c.raw.RemoteAddr(); a != nil {
		return a.String()
	}
	return "unknown"
}

// readGrowing reads size bytes and reserves memory only as they arrive.
func readGrowing(r io.Reader, size int) ([]byte, error) {
	b := make([]byte, 0, min(size, growBytes))
	for len(b) < size {
		n := min(size-len(b), growBytes)
		at := len(b)
		b = append(b, make([]byte, n)...)
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}
