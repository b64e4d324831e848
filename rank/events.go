package rank

import (
	"fmt"
	"time"

	"octet/collective"
	"octet/model"
)

// Event is what a Machine is told: one of the types below. Its String is the
// event as scripts and logs write it.
type Event interface {
	fmt.Stringer
	event()
}

// The events. Those that belong to an epoch carry it, because they may come
// when it is over.
type (
	// Begin starts the life.
	Begin struct{}
	// Connected ends Dial: the control connection stands and Hello is ready.
	Connected struct{ Hello *Hello }
	// Got is a message from the master.
	Got struct{ Message Message }
	// Joined ends Join.
	Joined struct{ Epoch uint32 }
	// DeviceUp ends BringUp.
	DeviceUp struct{ Times DeviceTimes }
	// Linked ends LinkPeers.
	Linked struct{ Epoch uint32 }
	// Loaded ends LoadShard.
	Loaded struct{ Bytes int64 }
	// Opened ends OpenEngine. Members is what the gossip sees now.
	Opened struct {
		Epoch   uint32
		Members int
	}
	// Ran ends RunPlan.
	Ran struct{ Stepped *Stepped }
	// Failed ends any other effect but CloseEpoch with an error, or says that
	// the Comm of the epoch is spent. Epoch is 0 for the effects of the process:
	// Dial, BringUp and LoadShard.
	Failed struct {
		Epoch uint32
		Err   error
		Cause collective.Cause // the same, as the group will hear it
	}
	// Closed ends CloseEpoch: nothing of the epoch is left.
	Closed struct{ Epoch uint32 }
	// Quit ends the life from outside.
	Quit struct{ Err error }
	// Tick says what time it is, since the start of the life.
	Tick struct{ Now time.Duration }
)

func (Begin) event()     {}
func (Connected) event() {}
func (Got) event()       {}
func (Joined) event()    {}
func (DeviceUp) event()  {}
func (Linked) event()    {}
func (Loaded) event()    {}
func (Opened) event()    {}
func (Ran) event()       {}
func (Failed) event()    {}
func (Closed) event()    {}
func (Quit) event()      {}
func (Tick) event()      {}

func (Begin) String() string      { return "begin" }
func (Connected) String() string  { return "connected" }
func (e Got) String() string      { return "got " + describe(e.Message) }
func (e Joined) String() string   { return in("joined", e.Epoch) }
func (e DeviceUp) String() string { return fmt.Sprintf("device up in %v", e.Times.Total) }
func (e Linked) String() string   { return in("linked", e.Epoch) }
func (e Loaded) String() string   { return fmt.Sprintf("loaded %d bytes", e.Bytes) }
func (e Opened) String() string   { return in("opened", e.Epoch) }
func (e Ran) String() string      { return at("ran", e.Stepped.Epoch, e.Stepped.Step) }
func (e Failed) String() string   { return fmt.Sprintf("failed, epoch %d: %v", e.Epoch, e.Err) }
func (e Closed) String() string   { return in("closed", e.Epoch) }
func (e Quit) String() string     { return fmt.Sprintf("quit: %v", e.Err) }
func (e Tick) String() string     { return fmt.Sprintf("tick %v", e.Now) }

// Effect is what a Machine wants done: one of the types below. Its String is
// the effect as scripts and logs write it.
type Effect interface {
	fmt.Stringer
	effect()
}

// The effects. Each comment says which event ends it; the others end at once.
type (
	// Dial connects to the master and prepares HELLO: Connected or Failed.
	Dial struct{}
	// Send writes a message to the master.
	Send struct{ Message Message }
	// Join joins the gossip, if there is one: Joined or Failed.
	Join struct{ Assign *Assign }
	// BringUp brings up the device: DeviceUp or Failed.
	BringUp struct{}
	// LinkPeers links to the mesh and makes the Comm: Linked or Failed.
	LinkPeers struct {
		Epoch uint32
		Table []string
	}
	// LoadShard loads the weights: Loaded or Failed.
	LoadShard struct{}
	// OpenEngine makes the engine with empty slots: Opened or Failed.
	OpenEngine struct {
		Epoch uint32
		Slots int
	}
	// RunPlan runs a step: Ran or Failed.
	RunPlan struct{ Plan *model.Plan }
	// Answer sends the digests that were asked for.
	Answer struct{ Ask *DigestsAsk }
	// CloseEpoch ends what runs and closes all that the epoch has: Closed. With
	// a cause the Comm is aborted, so that peers hear of it; without, it says
	// BYE.
	CloseEpoch struct {
		Epoch uint32
		Cause *collective.Cause
	}
	// Ignore is for the log: an event had no effect, and why.
	Ignore struct{ What, Why string }
	// Finish is the last effect: Run returns Err.
	Finish struct{ Err error }
)

func (Dial) effect()       {}
func (Send) effect()       {}
func (Join) effect()       {}
func (BringUp) effect()    {}
func (LinkPeers) effect()  {}
func (LoadShard) effect()  {}
func (OpenEngine) effect() {}
func (RunPlan) effect()    {}
func (Answer) effect()     {}
func (CloseEpoch) effect() {}
func (Ignore) effect()     {}
func (Finish) effect()     {}

func (Dial) String() string         { return "dial the master" }
func (e Send) String() string       { return "send " + describe(e.Message) }
func (e Join) String() string       { return in("join the gossip", e.Assign.Epoch) }
func (BringUp) String() string      { return "bring up the device" }
func (e LinkPeers) String() string  { return fmt.Sprintf("link epoch %d", e.Epoch) }
func (LoadShard) String() string    { return "load the shard" }
func (e OpenEngine) String() string { return in("open the engine", e.Epoch) }
func (e RunPlan) String() string    { return at("run", e.Plan.Epoch, e.Plan.Step) }
func (e Answer) String() string     { return fmt.Sprintf("answer %d", e.Ask.ID) }
func (e Ignore) String() string     { return fmt.Sprintf("ignore %s: %s", e.What, e.Why) }

func (e CloseEpoch) String() string {
	if e.Cause == nil {
		return fmt.Sprintf("close epoch %d", e.Epoch)
	}
	return fmt.Sprintf("abort epoch %d: %s", e.Epoch, e.Cause.Detail)
}

func (e Finish) String() string {
	if e.Err == nil {
		return "finish"
	}
	return "finish: " + e.Err.Error()
}

// describe is a message in one line.
func describe(m Message) string {
	if s, ok := m.(fmt.Stringer); ok {
		return s.String()
	}
	return m.Kind().String()
}

func in(what string, epoch uint32) string { return fmt.Sprintf("%s, epoch %d", what, epoch) }

func at(what string, epoch uint32, step uint64) string {
	return fmt.Sprintf("%s %d/%d", what, epoch, step)
}
