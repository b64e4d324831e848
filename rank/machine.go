package rank

import (
	"errors"
	"fmt"
	"time"

	"octet/collective"
)

// State is where a rank stands in its life.
type State uint8

// The states, in the order of an undisturbed life.
const (
	StateStart     State = iota // dials the master
	StateHello                  // has said HELLO, waits for ASSIGN
	StateAssigned               // has a place in an epoch, joins the gossip
	StateHandshake              // brings up its device
	StateLink                   // dials its peers
	StateLoad                   // loads its shard, then makes the engine
	StateReady                  // waits for a plan
	StateRunning                // runs a plan
	StateApart                  // the epoch is over; waits for the next
	StateStopped                // says farewell, or is gone
)

// String is the state's name.
func (s State) String() string {
	names := [...]string{"start", "hello", "assigned", "handshake", "link", "load", "ready",
		"running", "apart", "stopped"}
	if int(s) >= len(names) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return names[s]
}

// ErrMasterLost is why Run returns when the control connection ended or fell
// silent without STOP.
var ErrMasterLost = errors.New("master lost")

// IllegalError is an event that the machine's state does not allow. It is the
// master's fault, or the driver's; the rank gives up.
type IllegalError struct {
	State State
	Epoch uint32
	Event string
	Why   string
}

func (e *IllegalError) Error() string {
	return fmt.Sprintf("%s in state %v of epoch %d: %s", e.Event, e.State, e.Epoch, e.Why)
}

// MachineConfig is what a machine knows from the start.
type MachineConfig struct {
	RunID string
	Rank  int
	Size  int
	Beat  time.Duration // between heartbeats, until ASSIGN says otherwise
	Dead  time.Duration // silence of the master that is too long, likewise
	Grace time.Duration // longest farewell
}

// Machine decides what a rank does. It does no I/O, has no goroutine and reads
// no clock: Step takes an event and returns the effects that the driver is to
// carry out, in order.
//
// Invariant: open says whether the driver may hold anything of the epoch, from
// ASSIGN on; from CloseEpoch until Closed closing is set too, and nothing of a
// later epoch begins.
// Invariant: the device and the shard are brought up at most once.
type Machine struct {
	// Set by NewMachine, never changed:
	cfg MachineConfig

	begun bool
	state State
	epoch uint32 // of the last ASSIGN; 0 before
	last  *Assign

	// Live as long as the process:
	device progress
	times  DeviceTimes
	shard  progress
	bytes  int64

	// Live for an epoch:
	open    bool
	closing bool
	step    uint64        // last one begun
	asks    []*DigestsAsk // wait for the end of the step

	// Time, as ticks bring it:
	beat, dead time.Duration
	now        time.Duration
	heard      time.Duration // when the master last said something
	beaten     time.Duration // when we did

	// Of StateStopped:
	parted time.Duration // when it began
	end    error         // what Finish will say
	gone   bool          // Finish is said
}

// progress of something that is made once.
type progress uint8

const (
	none progress = iota
	busy
	done
)

// asksMax bounds the questions that wait for the end of a step.
const asksMax = 64

// NewMachine is a rank at the start of its life.
func NewMachine(cfg MachineConfig) *Machine {
	return &Machine{cfg: cfg, beat: cfg.Beat, dead: cfg.Dead}
}

// State is where the machine stands.
func (m *Machine) State() State { return m.state }

// Epoch is that of the last ASSIGN, or 0.
func (m *Machine) Epoch() uint32 { return m.epoch }

// Step takes one event and returns what is to be done about it. An
// *IllegalError changes nothing in the machine.
func (m *Machine) Step(e Event) ([]Effect, error) {
	switch e := e.(type) {
	case Begin:
		return m.begin(e)
	case Connected:
		return m.connected(e)
	case Got:
		m.heard = m.now
		return m.got(e.Message)
	case Joined:
		return m.joined(e)
	case DeviceUp:
		return m.deviceUp(e)
	case Linked:
		return m.linked(e)
	case Loaded:
		return m.loaded(e)
	case Opened:
		return m.opened(e)
	case Ran:
		return m.ran(e)
	case Failed:
		return m.failed(e)
	case Closed:
		return m.closed(e)
	case Quit:
		return m.quit(e)
	case Tick:
		return m.tick(e)
	}
	panic(fmt.Sprintf("rank: unknown event %T", e))
}

// got dispatches what the master said.
func (m *Machine) got(msg Message) ([]Effect, error) {
	if m.state == StateStopped {
		return m.ignore(Got{msg}, "this rank has stopped")
	}
	switch msg := msg.(type) {
	case *Assign:
		return m.gotAssign(msg)
	case *Refuse:
		return m.part(msg, nil), nil
	case *Step:
		return m.gotStep(msg)
	case *Abort:
		return m.gotAbort(msg)
	case *DigestsAsk:
		return m.gotAsk(msg)
	case *Heartbeat:
		return nil, nil
	case *Stop:
		return m.gotStop()
	}
	return nil, m.illegal(Got{msg}, "a master does not send this")
}

func (m *Machine) illegal(e Event, why string) error {
	return &IllegalError{State: m.state, Epoch: m.epoch, Event: e.String(), Why: why}
}

func (m *Machine) ignore(what fmt.Stringer, why string) ([]Effect, error) {
	return []Effect{Ignore{What: what.String(), Why: why}}, nil
}

// stale is for an event that belongs to an epoch which is over.
func (m *Machine) stale(what fmt.Stringer) ([]Effect, error) {
	if m.closing || m.state == StateApart {
		return m.ignore(what, fmt.Sprintf("epoch %d is over", m.epoch))
	}
	return m.ignore(what, fmt.Sprintf("now in epoch %d", m.epoch))
}

// past says whether something of epoch n comes too late to matter.
func (m *Machine) past(n uint32) bool {
	over := m.closing || m.state == StateApart || m.state == StateStopped
	return n < m.epoch || n == m.epoch && over
}

func (m *Machine) begin(e Begin) ([]Effect, error) {
	if m.begun {
		return nil, m.illegal(e, "a life begins once")
	}
	m.begun = true
	return []Effect{Dial{}}, nil
}

func (m *Machine) connected(e Connected) ([]Effect, error) {
	if !m.begun || m.state != StateStart {
		return nil, m.illegal(e, "not asked for")
	}
	m.state, m.heard, m.beaten = StateHello, m.now, m.now
	return []Effect{Send{e.Hello}}, nil
}

// gotAssign enters an epoch: from HELLO the first, from Apart a later one.
func (m *Machine) gotAssign(a *Assign) ([]Effect, error) {
	switch {
	case a.RunID != m.cfg.RunID:
		return nil, m.illegal(Got{a}, fmt.Sprintf("run %q, not %q", a.RunID, m.cfg.RunID))
	case a.Rank != m.cfg.Rank || a.Size != m.cfg.Size:
		return nil, m.illegal(Got{a}, fmt.Sprintf("this is rank %d of %d", m.cfg.Rank, m.cfg.Size))
	case a.Epoch <= m.epoch:
		return m.stale(a)
	case m.closing:
		return nil, m.illegal(Got{a}, "this rank has not said APART yet")
	case m.state != StateHello && m.state != StateApart:
		return nil, m.illegal(Got{a}, "the epoch is not over")
	}
	m.state, m.epoch, m.last, m.step, m.open = StateAssigned, a.Epoch, a, 0, true
	m.beat, m.dead = a.Heartbeat, a.Dead
	return []Effect{Join{a}}, nil
}

func (m *Machine) joined(e Joined) ([]Effect, error) {
	switch {
	case m.past(e.Epoch):
		return m.stale(e)
	case m.state != StateAssigned || e.Epoch != m.epoch:
		return nil, m.illegal(e, "not asked for")
	}
	m.state = StateHandshake
	switch m.device {
	case none:
		m.device = busy
		return []Effect{BringUp{}}, nil
	case busy:
		return nil, nil // began in an epoch that is over
	}
	return m.link()
}

// deviceUp counts in whatever epoch it comes: the device belongs to the process.
func (m *Machine) deviceUp(e DeviceUp) ([]Effect, error) {
	if m.device != busy {
		return nil, m.illegal(e, "not asked for")
	}
	m.device, m.times = done, e.Times
	if m.state != StateHandshake {
		return m.ignore(e, fmt.Sprintf("kept for the next epoch, state is %v", m.state))
	}
	return m.link()
}

// link tells the device's times, in every epoch, and dials the peers.
func (m *Machine) link() ([]Effect, error) {
	m.state = StateLink
	return []Effect{
		Send{&Reached{Epoch: m.epoch, Phase: PhaseHandshake, Device: m.times}},
		LinkPeers{m.epoch, m.last.Mesh},
	}, nil
}

func (m *Machine) linked(e Linked) ([]Effect, error) {
	switch {
	case m.past(e.Epoch):
		return m.stale(e)
	case m.state != StateLink || e.Epoch != m.epoch:
		return nil, m.illegal(e, "not asked for")
	}
	m.state = StateLoad
	effects := []Effect{Send{&Reached{Epoch: m.epoch, Phase: PhaseLinked}}}
	switch m.shard {
	case none:
		m.shard = busy
		return append(effects, LoadShard{}), nil
	case busy:
		return effects, nil // began in an epoch that is over
	}
	return append(effects, m.openEngine()...), nil
}

// loaded counts in whatever epoch it comes: the weights belong to the process.
func (m *Machine) loaded(e Loaded) ([]Effect, error) {
	if m.shard != busy {
		return nil, m.illegal(e, "not asked for")
	}
	m.shard, m.bytes = done, e.Bytes
	if m.state != StateLoad {
		return m.ignore(e, fmt.Sprintf("kept for the next epoch, state is %v", m.state))
	}
	return m.openEngine(), nil
}

func (m *Machine) openEngine() []Effect {
	return []Effect{
		Send{&Reached{Epoch: m.epoch, Phase: PhaseLoaded, Bytes: m.bytes}},
		OpenEngine{m.epoch, m.last.Slots},
	}
}

func (m *Machine) opened(e Opened) ([]Effect, error) {
	switch {
	case m.past(e.Epoch):
		return m.stale(e)
	case m.state != StateLoad || e.Epoch != m.epoch:
		return nil, m.illegal(e, "not asked for")
	}
	m.state = StateReady
	ready := &Reached{Epoch: m.epoch, Phase: PhaseReady, Bytes: m.bytes, Members: e.Members}
	return []Effect{Send{ready}}, nil
}

func (m *Machine) gotStep(s *Step) ([]Effect, error) {
	p := &s.Plan
	switch {
	case m.past(p.Epoch):
		return m.stale(s)
	case p.Epoch > m.epoch:
		return nil, m.illegal(Got{s}, "this rank was never assigned to that epoch")
	case m.state == StateRunning:
		return nil, m.illegal(Got{s}, fmt.Sprintf("step %d runs", m.step))
	case m.state != StateReady:
		return nil, m.illegal(Got{s}, "not ready")
	case p.Step != m.step+1:
		return nil, m.illegal(Got{s}, fmt.Sprintf("step %d comes next", m.step+1))
	}
	m.state, m.step = StateRunning, p.Step
	return []Effect{RunPlan{p}}, nil
}

func (m *Machine) ran(e Ran) ([]Effect, error) {
	s := e.Stepped
	switch {
	case m.past(s.Epoch):
		return m.stale(e)
	case m.state != StateRunning || s.Epoch != m.epoch || s.Step != m.step:
		return nil, m.illegal(e, "not asked for")
	}
	m.state = StateReady
	if m.cfg.Rank != 0 {
		s.Tokens = nil // all ranks have them; one tells
	}
	effects := []Effect{Send{s}}
	for _, ask := range m.asks {
		effects = append(effects, Answer{ask})
	}
	m.asks = nil
	return effects, nil
}

func (m *Machine) gotAsk(a *DigestsAsk) ([]Effect, error) {
	switch m.state {
	case StateReady:
		return []Effect{Answer{a}}, nil
	case StateRunning:
		if len(m.asks) == asksMax {
			return nil, m.illegal(Got{a}, fmt.Sprintf("%d of these wait already", asksMax))
		}
		m.asks = append(m.asks, a)
		return nil, nil
	}
	return []Effect{refuseAsk(a, m.state)}, nil
}

func refuseAsk(a *DigestsAsk, s State) Effect {
	return Send{&DigestsAnswer{ID: a.ID, Request: a.Request,
		Refusal: fmt.Sprintf("the rank has no engine in state %v", s)}}
}

func (m *Machine) gotAbort(a *Abort) ([]Effect, error) {
	switch {
	case m.past(a.Epoch):
		return m.stale(a)
	case a.Epoch > m.epoch || m.epoch == 0:
		return nil, m.illegal(Got{a}, "this rank was never assigned to that epoch")
	}
	return m.leave(a.Cause), nil
}

// failed is an effect that went wrong. Before the first ASSIGN, and where what
// belongs to the process cannot be had, the rank gives up; else it leaves the
// epoch and tells why.
func (m *Machine) failed(e Failed) ([]Effect, error) {
	switch {
	case m.state == StateStopped:
		return m.ignore(e, "this rank has stopped")
	case m.epoch == 0:
		return m.part(e.Err, nil), nil
	case e.Epoch == 0: // device or shard: no epoch can do without
		cause := e.Cause
		cause.Epoch = m.epoch
		tell := Send{&Abort{m.epoch, cause}}
		return append([]Effect{tell}, m.part(e.Err, &cause)...), nil
	case m.past(e.Epoch):
		return m.stale(e)
	case e.Epoch > m.epoch:
		return nil, m.illegal(e, "not asked for")
	}
	return append([]Effect{Send{&Abort{m.epoch, e.Cause}}}, m.leave(e.Cause)...), nil
}

// leave ends the epoch here. APART follows when all of it is closed.
func (m *Machine) leave(cause collective.Cause) []Effect {
	var effects []Effect
	for _, ask := range m.asks {
		effects = append(effects, refuseAsk(ask, StateApart))
	}
	m.asks, m.state = nil, StateApart
	m.closing = true
	return append(effects, CloseEpoch{m.epoch, &cause})
}

func (m *Machine) closed(e Closed) ([]Effect, error) {
	switch {
	case m.gone:
		return m.ignore(e, "this rank is gone")
	case !m.closing || e.Epoch != m.epoch:
		return nil, m.illegal(e, "not asked for")
	}
	m.open, m.closing = false, false
	if m.state == StateStopped {
		return m.farewell(), nil
	}
	return []Effect{Send{&Apart{m.epoch}}}, nil
}
