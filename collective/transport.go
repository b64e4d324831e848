package collective

import (
	"strconv"
	"time"
)

// HeadBytes is the length of every frame's head on every transport. The codec
// in this package writes and checks it; a transport only moves it.
const HeadBytes = 64

// A Frame is one unit on a data link: a head of HeadBytes and a body of a
// length that both sides know beforehand. The memory belongs to the caller, who
// leaves it alone until the transport says that the frame is done.
type Frame struct {
	Head []byte
	Body []byte // may be empty
}

// Transport moves frames between this rank and its peers, in order on each link
// and in no order between links. The caller makes progress: nothing moves
// unless Progress runs, and a transport has no goroutine per peer. One goroutine
// drives it; only Abort may be called from others.
//
// Invariant: sends and receives of all peers always progress together, so two
// ranks that each send before they receive cannot deadlock.
type Transport interface {
	// Send appends a frame to peer's send queue.
	Send(peer int, f Frame)
	// Recv appends an exact-length landing place to peer's receive queue. Head
	// and body land in place and are to be believed only after the caller
	// checked the head.
	Recv(peer int, f Frame)
	// Done counts the frames of peer's queues that are finished since the
	// transport was made.
	Done(peer int) (sent, received int)
	// Progress moves what can move and returns when at least one frame has been
	// finished, with nil when nothing is queued, or with an error: os.ErrDeadlineExceeded
	// at the deadline, the error given to Abort, or a *LinkError. How it idles
	// is its own affair, but it never spins without yielding. A deadline that
	// has passed asks for one pass over the links without waiting.
	Progress(deadline time.Time) error
	// Abort makes the Progress that runs, and every later one, return err. The
	// first error stays.
	Abort(err error)
	// Close frees the links. Frames that were done are delivered.
	Close() error
}

// LinkError says that the data link to a peer is unusable. It is evidence about
// the link, not about the peer: the lane tells whether the peer died.
type LinkError struct {
	Op   string // "send" or "recv"
	Peer int
	Err  error
}

func (e *LinkError) Error() string {
	return e.Op + " rank " + strconv.Itoa(e.Peer) + ": " + e.Err.Error()
}

func (e *LinkError) Unwrap() error { return e.Err }

// Lane carries what must not wait behind data: heartbeats, ABORT and BYE, on a
// connection of its own to each peer. All methods may be called from any
// goroutine.
type Lane interface {
	// Send writes one notice to peer. It never waits longer than the lane's
	// write limit; a peer that does not read is an error.
	Send(peer int, n Notice) error
	// Events delivers what peers sent, and each peer's end, in order per peer.
	// It is closed after Close.
	Events() <-chan LaneEvent
	Close() error
}

// NoticeKind is what a Notice says.
type NoticeKind uint8

// The notices of the lane.
const (
	Heartbeat   NoticeKind = iota + 1 // I am alive; Seq is the operation I am in
	AbortNotice                       // the communicator is spent; Cause says why
	Bye                               // I close in order; my end that follows is no death
)

// Notice is one message of the lane.
type Notice struct {
	Kind  NoticeKind
	Epoch uint32
	Seq   uint64
	Cause Cause // of AbortNotice
}

// LaneEvent is a notice from a peer, or the end of a peer's lane.
type LaneEvent struct {
	Peer   int
	Notice Notice
	End    error // nil for a notice; io.EOF or the network's error for the end
}
