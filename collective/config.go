package collective

import (
	"fmt"
	"hash/fnv"
	"time"
)

// SizeMax is the largest number of ranks of a communicator.
const SizeMax = 64

// Config is one rank's membership in a communicator. All ranks have the same
// values but for Rank, Trace and Failpoint.
type Config struct {
	RunID string // of the group's run; its hash is in every frame
	Rank  int    // 0 <= Rank < Size
	Size  int    // 1..SizeMax
	Epoch uint32 // a frame of another epoch is refused
	Comm  uint32 // tells communicators of one run apart
	Cores int    // cores per host, agreed at join; 0 when not agreed

	Timeouts Timeouts

	// Checksum adds a CRC32C of the body to every frame that this rank sends.
	// Heads always have one.
	Checksum bool

	// Trace, if set, is told what happens, on the goroutine where it happens. It
	// must not wait.
	Trace func(Event)
	// Failpoint, if set, is asked at the start of the n'th operation with
	// "collective/op:n". An error spends the Comm and names this rank.
	Failpoint func(name string) error
}

// Timeouts are the waits of a Comm. Zero fields take the defaults; the order
// Grace < Heartbeat < Dead < Op must hold.
type Timeouts struct {
	// Op is the longest an operation may take before the peers whose frames are
	// missing are named as stalled. Default 60 s.
	Op time.Duration
	// Heartbeat is how often this rank says on the lane that it lives. Default
	// 500 ms.
	Heartbeat time.Duration
	// Dead is the silence on the lane after which a peer counts as stalled. It
	// should span many heartbeats: a busy host delays them. Default 5 s.
	Dead time.Duration
	// Grace is how long evidence is gathered after the first sign of trouble,
	// so that all survivors give the same verdict. Default 20 ms. A link error
	// alone waits ten times as long for the lane to say who died.
	Grace time.Duration
}

// withDefaults fills in what was left zero.
func (t Timeouts) withDefaults() Timeouts {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Op, 60 * time.Second},
		{&t.Heartbeat, 500 * time.Millisecond},
		{&t.Dead, 5 * time.Second},
		{&t.Grace, 20 * time.Millisecond},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return t
}

// Validate names the first wrong field.
func (c Config) Validate() error {
	t := c.Timeouts.withDefaults()
	switch {
	case c.Size < 1 || c.Size > SizeMax:
		return fmt.Errorf("size %d is not in 1..%d", c.Size, SizeMax)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("rank %d is not in 0..%d", c.Rank, c.Size-1)
	case c.Cores < 0:
		return fmt.Errorf("cores %d is negative", c.Cores)
	case t.Grace < 0 || t.Grace >= t.Heartbeat:
		return fmt.Errorf("grace %v is not below heartbeat %v", t.Grace, t.Heartbeat)
	case 2*t.Heartbeat > t.Dead:
		return fmt.Errorf("dead limit %v is not twice the heartbeat %v", t.Dead, t.Heartbeat)
	case t.Dead > t.Op:
		return fmt.Errorf("dead limit %v is above the operation limit %v", t.Dead, t.Op)
	}
	return nil
}

// run is the hash of RunID that frames carry.
func (c Config) run() uint64 {
	h := fnv.New64a()
	h.Write([]byte(c.RunID))
	return h.Sum64()
}

// EventKind is what an Event tells.
type EventKind uint8

// The events of a Comm.
const (
	OpBegin EventKind = iota + 1 // an operation has been entered
	OpEnd                        // it returned; Err says how
	Spent                        // the Comm was spent by Err
)

// Event is told to Config.Trace.
type Event struct {
	Kind    EventKind
	Seq     uint64 // number of the operation, the first is 1
	Verb    Verb
	Purpose Purpose
	Count   uint64 // elements, as in the descriptor
	Bytes   uint64 // of bodies sent, of OpEnd
	Err     error
}
