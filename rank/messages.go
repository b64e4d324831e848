package rank

import (
	"fmt"
	"time"

	"octet/collective"
	"octet/model"
)

// Version is the version of the control protocol. It stands in the head of
// every frame and changes whenever a message does, because bodies carry fields
// by position.
const Version = 1

// Limits of what a message may say. Read and Write both hold messages to them.
const (
	RanksMax   = 64      // ranks of a group
	TextMax    = 4 << 10 // bytes of one name, address or reason
	OptionsMax = 256     // options of a HELLO
	SlotsMax   = 4096    // sequences that a rank holds at a time
	RowsMax    = 1 << 20 // rows of one plan, tokens of one STEPPED
	DigestsMax = 1 << 20 // digests of one answer
)

// Kind says which message a frame carries. It is the second byte of a frame.
type Kind uint8

// The messages of the control protocol, in the order of a rank's life.
const (
	KindHello Kind = iota + 1
	KindAssign
	KindRefuse
	KindReached
	KindStep
	KindStepped
	KindAbort
	KindApart
	KindDigestsAsk
	KindDigestsAnswer
	KindHeartbeat
	KindStop
	KindBye
)

// String is the message's name as the documents write it.
func (k Kind) String() string {
	names := [...]string{
		KindHello: "HELLO", KindAssign: "ASSIGN", KindRefuse: "REFUSE", KindReached: "PHASE",
		KindStep: "STEP", KindStepped: "STEPPED", KindAbort: "ABORT", KindApart: "APART",
		KindDigestsAsk: "DIGESTS?", KindDigestsAnswer: "DIGESTS", KindHeartbeat: "HEARTBEAT",
		KindStop: "STOP", KindBye: "BYE",
	}
	if int(k) >= len(names) || names[k] == "" {
		return fmt.Sprintf("message %d", uint8(k))
	}
	return names[k]
}

// Message is one of the pointer types below, *Hello to *Bye.
type Message interface {
	// Kind says which message this is.
	Kind() Kind
	// check names the first field that is out of range.
	check() error
}

// Hello goes rank -> master, once, as the first frame of a control connection.
// It is answered by ASSIGN or REFUSE.
type Hello struct {
	Build  string // what binary this is; all ranks run the same
	RunID  string
	Rank   int
	Size   int // ranks that this rank expects in the group
	PID    int // 0 for a rank that is a goroutine
	Host   string
	Mesh   string // where this rank listens for its peers' data and lanes
	Gossip string // where its memberlist listens; empty where there is none
	// Options holds what all ranks must agree on: the options of the model, the
	// number of ranks ("tp") and the fingerprints of the model directory
	// ("model.config", "model.weights", "model.tokenizer", ...).
	Options map[string]string
	Cores   int // cores that this process may use
}

// Assign goes master -> rank: this is the group of one epoch. The rank links to
// it, loads what it has not loaded yet and answers with PHASE up to ready.
// It is the answer to HELLO, and later to APART, then with a higher epoch.
type Assign struct {
	RunID     string
	Epoch     uint32 // from 1
	Rank      int
	Size      int
	Mesh      []string // by rank: where it listens for its peers
	Gossip    []string // by rank: where its memberlist listens; empty: no gossip
	Cores     int      // cores a host, the least of all hosts, agreed for schedules
	Slots     int      // sequences that the KV cache holds at a time
	Heartbeat time.Duration
	Dead      time.Duration // silence after which a peer or the master is lost
	Op        time.Duration // limit of one collective
}

// Refuse goes master -> rank and ends the connection: the rank may not join.
// Key names what differs, with the value of the rank and that of the group;
// all three are empty when the reason is not a difference of values.
type Refuse struct {
	Reason string
	Key    string
	Yours  string
	Ours   string
}

// Error is the refusal as one sentence, so that a *Refuse is the error of Run.
func (m *Refuse) Error() string {
	if m.Key == "" {
		return "refused by the master: " + m.Reason
	}
	return fmt.Sprintf("refused by the master: %s: %s is %q here and %q in the group",
		m.Reason, m.Key, m.Yours, m.Ours)
}

// Phase is how far a rank's start has come.
type Phase uint8

// The phases of a start, in order. Each is reported when it is done.
const (
	PhaseHandshake Phase = iota + 1 // the device is up
	PhaseLinked                     // every peer is connected
	PhaseLoaded                     // the shard is in memory
	PhaseReady                      // the engine waits for plans
)

// String is the phase's name.
func (p Phase) String() string {
	names := [...]string{PhaseHandshake: "handshake", PhaseLinked: "linked",
		PhaseLoaded: "loaded", PhaseReady: "ready"}
	if int(p) >= len(names) || names[p] == "" {
		return fmt.Sprintf("phase %d", uint8(p))
	}
	return names[p]
}

// Reached goes rank -> master: PHASE, this phase of the start is done. Fields
// that the phase does not know are zero.
type Reached struct {
	Epoch   uint32
	Phase   Phase
	Device  DeviceTimes // of handshake
	Bytes   int64       // of loaded: weights held
	Members int         // of ready: members that gossip sees, this rank included
}

// DeviceTimes is what the device's bring-up took, in virtual time.
type DeviceTimes struct {
	Broadcast time.Duration
	Boot      time.Duration
	Service   time.Duration
	Total     time.Duration
}

// Step goes master -> every rank: run this plan. It is answered by STEPPED, or
// by ABORT.
type Step struct {
	Plan model.Plan
}

// Stepped goes rank -> master: the plan has run here.
type Stepped struct {
	Epoch    uint32
	Step     uint64
	Counts   collective.Counts // of this step alone
	Decision model.Decision    // that this rank derived and ran
	Tokens   []model.Token     // from rank 0 only
}

// Abort goes both ways. rank -> master: this epoch is over here, and why.
// master -> rank: end this epoch, whatever runs. Both are answered by APART.
type Abort struct {
	Epoch uint32
	Cause collective.Cause
}

// Apart goes rank -> master: this rank has closed its communicator of the epoch
// and holds its weights, and can be assigned to a later epoch.
type Apart struct {
	Epoch uint32
}

// MemberName is the name of a rank in the gossip of an epoch.
func MemberName(rank int, epoch uint32) string {
	return fmt.Sprintf("rank%d.e%d", rank, epoch)
}

// DigestsAsk goes master -> rank: send the row digests of a request. It is
// answered by DIGESTS with the same ID.
type DigestsAsk struct {
	ID      uint64
	Request uint64
}

// DigestsAnswer goes rank -> master, as DIGESTS.
type DigestsAnswer struct {
	ID      uint64
	Request uint64
	Digests []model.Digest
	Refusal string // why there are none; empty: these are all
}

// Heartbeat goes both ways, from HELLO on: this side lives. The rank says what
// it does; a master leaves the fields zero.
type Heartbeat struct {
	Epoch uint32
	Step  uint64 // last step begun
	State string // the machine's state
}

// Stop goes master -> rank: end in order. It is answered by BYE.
type Stop struct {
	Reason string
}

// Bye goes rank -> master as the last frame: this process ends in order. Cause
// is empty after STOP, and else says why the rank gives up.
type Bye struct {
	Cause string
}

// Kind says which message this is.
func (*Hello) Kind() Kind { return KindHello }

// Kind says which message this is.
func (*Assign) Kind() Kind { return KindAssign }

// Kind says which message this is.
func (*Refuse) Kind() Kind { return KindRefuse }

// Kind says which message this is.
func (*Reached) Kind() Kind { return KindReached }

// Kind says which message this is.
func (*Step) Kind() Kind { return KindStep }

// Kind says which message this is.
func (*Stepped) Kind() Kind { return KindStepped }

// Kind says which message this is.
func (*Abort) Kind() Kind { return KindAbort }

// Kind says which message this is.
func (*Apart) Kind() Kind { return KindApart }

// Kind says which message this is.
func (*DigestsAsk) Kind() Kind { return KindDigestsAsk }

// Kind says which message this is.
func (*DigestsAnswer) Kind() Kind { return KindDigestsAnswer }

// Kind says which message this is.
func (*Heartbeat) Kind() Kind { return KindHeartbeat }

// Kind says which message this is.
func (*Stop) Kind() Kind { return KindStop }

// Kind says which message this is.
func (*Bye) Kind() Kind { return KindBye }

// blank is an empty message of a kind, or nil for a kind that does not exist.
func blank(k Kind) Message {
	switch k {
	case KindHello:
		return new(Hello)
	case KindAssign:
		return new(Assign)
	case KindRefuse:
		return new(Refuse)
	case KindReached:
		return new(Reached)
	case KindStep:
		return new(Step)
	case KindStepped:
		return new(Stepped)
	case KindAbort:
		return new(Abort)
	case KindApart:
		return new(Apart)
	case KindDigestsAsk:
		return new(DigestsAsk)
	case KindDigestsAnswer:
		return new(DigestsAnswer)
	case KindHeartbeat:
		return new(Heartbeat)
	case KindStop:
		return new(Stop)
	case KindBye:
		return new(Bye)
	}
	return nil
}

// String is the message in one line, for scripts and logs.
func (m *Assign) String() string {
	return fmt.Sprintf("ASSIGN epoch %d: rank %d of %d", m.Epoch, m.Rank, m.Size)
}

// String is the message in one line, for scripts and logs.
func (m *Refuse) String() string { return "REFUSE: " + m.Error() }

// String is the message in one line, for scripts and logs.
func (m *Reached) String() string { return fmt.Sprintf("PHASE epoch %d: %v", m.Epoch, m.Phase) }

// String is the message in one line, for scripts and logs.
func (m *Step) String() string { return fmt.Sprintf("STEP %d/%d", m.Plan.Epoch, m.Plan.Step) }

// String is the message in one line, for scripts and logs.
func (m *Stepped) String() string {
	return fmt.Sprintf("STEPPED %d/%d: %d tokens", m.Epoch, m.Step, len(m.Tokens))
}

// String is the message in one line, for scripts and logs.
func (m *Abort) String() string {
	return fmt.Sprintf("ABORT epoch %d: %s", m.Epoch, m.Cause.Detail)
}

// String is the message in one line, for scripts and logs.
func (m *Apart) String() string { return fmt.Sprintf("APART epoch %d", m.Epoch) }

// String is the message in one line, for scripts and logs.
func (m *DigestsAsk) String() string { return fmt.Sprintf("DIGESTS? %d", m.ID) }

// String is the message in one line, for scripts and logs.
func (m *DigestsAnswer) String() string {
	if m.Refusal != "" {
		return fmt.Sprintf("DIGESTS %d: none: %s", m.ID, m.Refusal)
	}
	return fmt.Sprintf("DIGESTS %d: %d", m.ID, len(m.Digests))
}

// String is the message in one line, for scripts and logs.
func (m *Heartbeat) String() string {
	return fmt.Sprintf("HEARTBEAT %d/%d: %s", m.Epoch, m.Step, m.State)
}

// String is the message in one line, for scripts and logs.
func (m *Bye) String() string {
	if m.Cause == "" {
		return "BYE"
	}
	return "BYE: " + m.Cause
}
