// Package cluster makes N ranks one group and keeps it one: it starts them, as
// processes or as goroutines, decides who is which rank in which epoch, watches
// who is alive, and turns requests into step plans and plans into tokens.
package cluster

import (
	"io"
	"log/slog"
	"time"

	"octet/collective"
	"octet/model"
)

// Spec says what group to start. Every field is used as given; Validate names
// the first wrong one.
type Spec struct {
	TP      int           // ranks of the tensor-parallel group, 1..64
	Model   string        // checkpoint directory, Hugging Face layout
	Options model.Options // FC1, MMRS and chunking, the same on every rank
	Virtual bool          // ranks are goroutines over the in-memory transport
	Digests bool          // keep row digests for comparison

	// Command starts one rank process: argv of a binary that ends in rank.Run.
	// Command[0] becomes argv[0] of the rank too, so that ps shows it. Unused
	// when Virtual.
	Command []string
	RankEnv map[int][]string // KEY=VALUE, for one rank only

	Limits Limits
	Log    *slog.Logger
	Output io.Writer // what ranks print, tagged with the rank
	// Progress is told what the group does while it starts; may be nil.
	Progress func(stage string, done, of int)
}

// Limits are the deadlines of a group. Zero fields take the defaults.
type Limits struct {
	Join     time.Duration // from start until every rank is READY, one absolute budget: 60 s
	Dead     time.Duration // silence after which a rank counts as stalled: 5 s
	Step     time.Duration // one step of the whole group: 120 s
	Teardown time.Duration // from stop until SIGKILL: 3 s
}

// Request is one prompt and what to do with it.
type Request struct {
	ID       uint64 // unique within the group, chosen by the caller
	IDs      []int  // prompt token ids, at least one
	MaxNew   int
	Sampling model.Sampling
	StopIDs  []int // ends the stream after one of them; empty: none
}

// Event is one step of a request's stream. Exactly one event with a Finish ends
// each stream, and then its channel is closed.
type Event struct {
	Token  model.Token
	Finish string // "", "length", "stop", "error"
	Err    error  // with Finish "error": a *Failure, or the context's error
}

// Failure is why a group ended: the root cause, named.
type Failure struct {
	Rank   int    // -1 when no single rank is to blame
	PID    int    // 0 for a virtual rank
	Signal string // "killed", "segmentation fault", ...; "" when it exited
	Exit   int    // exit status when it exited, else -1
	Phase  string // "join", "handshake", "link", "load", "ready", "step 12 (prefill)", "stop"
	Cause  collective.Cause
	Detail string
}

// StepRecord is what one rank counted in one step.
type StepRecord struct {
	Rank     int
	Step     uint64
	Facts    model.Facts
	Samples  int // rows whose logits were asked for
	Decision model.Decision
	Counts   collective.Counts
}

// Status is the group as it is now.
type Status struct {
	State string // "starting", "ready", "stopping", "failed", "stopped"
	Epoch uint32
	TP    int
	Model string
	Ranks []RankStatus
	Last  *Failure
	// Members is how many members the master's gossip sees, itself included; 0
	// in a virtual group, which has no gossip.
	Members int
}

// RankStatus is one rank as the master sees it.
type RankStatus struct {
	Rank    int
	PID     int
	Host    string
	State   string // the rank machine's state
	Step    uint64
	Bytes   int64         // of weights held
	Device  time.Duration // virtual time of the device's bring-up
	Members int           // how many members its gossip saw when it was ready
	// Suspected says that gossip lost this rank. It is a hint and no verdict.
	Suspected bool
}
