package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"octet/collective"
	"octet/rank"
)

// This file holds the decisions of the master as plain values: events go in,
// effects come out, and time is an event. The group in group.go is its driver.

const (
	// grace is how long evidence is gathered after the first of it, so that a
	// rank that only noticed is not taken for the one that failed.
	grace = 20 * time.Millisecond
	// proof is how long the end of a culprit's process is waited for, so that the
	// failure can name the signal or the exit status.
	proof = time.Second
)

// state is where a group is in its life.
type state uint8

const (
	starting state = iota // ranks join, bring up devices, link and load
	ready                 // plans run
	stopping              // asked to end; ranks end in order
	failing               // the verdict is out; ranks are made to end
	over                  // every rank has ended
)

// member is what the master knows about one rank.
type member struct {
	conn    int // the control connection that holds the slot; 0: none
	pid     int // of the process that the group started; 0 for a virtual rank
	host    string
	build   string
	mesh    string
	gossip  string
	cores   int
	phase   rank.Phase // the last one reached; 0 before the device is up
	given   bool       // ASSIGN has gone out
	bye     bool
	byeFor  string // why the rank gives up, by its own words
	pressed bool   // it was sent a signal by us, so its end proves nothing
	exit    *exit  // nil while it runs
	// confession is the trouble that the rank says it has itself; nil: none.
	confession *collective.Cause

	heard   time.Time
	state   string
	step    uint64
	bytes   int64
	device  time.Duration
	members int
	suspect bool // gossip lost it
}

// stage is the phase that the rank is in, by the last one that it finished.
func (m *member) stage() string {
	switch {
	case !m.given:
		return "join"
	case m.phase == 0:
		return "handshake"
	case m.phase == rank.PhaseHandshake:
		return "link"
	case m.phase == rank.PhaseLinked, m.phase == rank.PhaseLoaded:
		return "load"
	}
	return "ready"
}

// timer names what the master waits for.
type timer uint8

const (
	timerJoin  timer = iota // every rank READY
	timerGrace              // more evidence
	timerProof              // the end of the culprit's process
	timerTerm               // ranks that end by themselves
	timerKill               // ranks that end after SIGTERM
	timerStep               // STEPPED from every rank
)

// Events of the master.
type (
	started struct{ Rank, PID int } // a rank was started by the group
	hello   struct {
		Conn  int
		Hello *rank.Hello
	}
	said struct { // a member's message, other than HELLO
		Rank    int
		Message rank.Message
	}
	hungUp struct { // a member's control connection ended
		Rank int
		Err  error
	}
	exited  struct{ Exit exit }
	absent  struct{ Rank int } // a rank that will not be started
	expired struct{ Timer timer }
	tick    struct{ Now time.Time }
	hinted  struct{ Hint hint }
	askStop struct{ Reason string }
	broken  struct{ Err error } // the group itself cannot go on
)

// Effects of the master.
type (
	adopt struct{ Conn, Rank int } // the connection is this rank's from now on
	turn  struct {                 // refuse and close
		Conn   int
		Refuse *rank.Refuse
	}
	send struct {
		Rank    int
		Message rank.Message
	}
	arm struct {
		Timer timer
		After time.Duration
	}
	press struct { // a signal to a process group; a virtual rank's context ends
		Rank   int
		Signal syscall.Signal
	}
	progress struct {
		Stage    string
		Done, Of int
	}
	meet    struct{ Addrs []string } // join the gossip of the ranks
	isReady struct{}
	failed  struct{ Failure *Failure }
	isOver  struct{}
)

// masterConfig is what a master works from. Limits are complete.
type masterConfig struct {
	identity
	Limits    Limits
	Slots     int
	Heartbeat time.Duration
}

// master decides who is in the group, whether it lives, and why it ends. It
// does no I/O.
//
// Invariant: failure is set before state is failing, and never changes.
type master struct {
	cfg     masterConfig
	epoch   uint32
	state   state
	now     time.Time
	ranks   []member
	work    *work
	failure *Failure

	evidence []collective.Cause
	weighing bool // the grace runs
	judged   bool // the culprit's end is awaited
	reached  map[rank.Phase]int

	out []any // effects of the event at hand
}

func newMaster(cfg masterConfig, w *work, now time.Time) *master {
	m := &master{cfg: cfg, epoch: 1, now: now, work: w,
		ranks: make([]member, cfg.Size), reached: map[rank.Phase]int{}}
	m.do(arm{timerJoin, cfg.Limits.Join})
	return m
}

func (m *master) do(effect any) { m.out = append(m.out, effect) }

// Step takes one event and returns what is to be done, in order.
func (m *master) Step(event any) []any {
	switch e := event.(type) {
	case started:
		m.ranks[e.Rank].pid, m.ranks[e.Rank].state = e.PID, "started"
	case hello:
		m.hello(e.Conn, e.Hello)
	case said:
		m.ranks[e.Rank].heard = m.now
		m.said(e.Rank, e.Message)
	case hungUp:
		m.hungUp(e.Rank, e.Err)
	case exited:
		m.exited(e.Exit)
	case absent:
		m.ranks[e.Rank].exit = &exit{Rank: e.Rank, Code: -1}
		m.endIfGone()
	case expired:
		m.expired(e.Timer)
	case tick:
		m.tick(e.Now)
	case hinted:
		m.hinted(e.Hint)
	case askStop:
		m.stop(e.Reason)
	case broken:
		m.fail(&Failure{Rank: -1, Exit: -1, Phase: m.phase(-1), Detail: e.Err.Error()})
	default:
		panic(fmt.Sprintf("cluster: master takes no %T", event))
	}
	for _, e := range m.work.take() {
		m.do(emit{e})
	}
	return m.wake()
}

// wake returns what is to be done after work has been added.
func (m *master) wake() []any {
	m.pump()
	return m.take()
}

// take returns the effects so far.
func (m *master) take() []any {
	out := m.out
	m.out = nil
	return out
}

// hello lets a rank in, or says why not. A refusal fails the group when the
// rank is one of ours: it will not come back with other values.
func (m *master) hello(conn int, h *rank.Hello) {
	refusal := m.cfg.compare(h)
	started := m.startedAs(h.PID)
	ours := started >= 0 || refusal != nil && h.RunID == m.cfg.RunID
	switch {
	case refusal != nil:
	case started >= 0 && started != h.Rank:
		refusal = &rank.Refuse{Reason: fmt.Sprintf(
			"pid %d was started as rank %d and says it is %d", h.PID, started, h.Rank)}
	case m.ranks[h.Rank].conn != 0:
		holder := &m.ranks[h.Rank]
		refusal = &rank.Refuse{Reason: fmt.Sprintf("rank %d is held by pid %d on %s",
			h.Rank, holder.pid, holder.host)}
	case m.state != starting:
		refusal = &rank.Refuse{Reason: "the group is " + m.state.String()}
	}
	if refusal != nil {
		m.do(turn{conn, refusal})
		if ours && m.state == starting {
			m.refused(h, started, refusal)
		}
		return
	}
	r := &m.ranks[h.Rank]
	r.conn, r.heard, r.state = conn, m.now, "joined"
	r.host, r.build, r.mesh, r.gossip, r.cores = h.Host, h.Build, h.Mesh, h.Gossip, h.Cores
	if h.PID != 0 {
		r.pid = h.PID
	}
	m.do(adopt{conn, h.Rank})
	joined := 0
	for i := range m.ranks {
		if m.ranks[i].conn != 0 {
			joined++
		}
	}
	m.do(progress{"join", joined, m.cfg.Size})
	if joined == m.cfg.Size {
		m.assign()
	}
}

// startedAs is the rank that the group started as process pid, or -1. All ranks
// of a group run on the master's host.
func (m *master) startedAs(pid int) int {
	return slices.IndexFunc(m.ranks, func(r member) bool { return pid != 0 && r.pid == pid })
}

// refused fails the group over a rank that may not join. started is what the
// group started it as, or -1.
func (m *master) refused(h *rank.Hello, started int, refusal *rank.Refuse) {
	r := started
	if r < 0 {
		r = h.Rank
	}
	f := &Failure{Rank: r, PID: h.PID, Exit: -1, Phase: "join", Detail: difference(r, refusal)}
	f.Cause = collective.Cause{Class: collective.Mismatch, Epoch: m.epoch,
		Culprits: []int{r}, Informer: -1, Detail: f.Detail}
	m.fail(f)
}

// assign tells every rank the group of the epoch.
func (m *master) assign() {
	a := rank.Assign{RunID: m.cfg.RunID, Epoch: m.epoch, Size: m.cfg.Size,
		Slots: m.cfg.Slots, Heartbeat: m.cfg.Heartbeat,
		Dead: m.cfg.Limits.Dead, Op: m.cfg.Limits.op(), Cores: m.ranks[0].cores}
	for i := range m.ranks {
		a.Mesh = append(a.Mesh, m.ranks[i].mesh)
		if m.ranks[i].gossip != "" {
			a.Gossip = append(a.Gossip, m.ranks[i].gossip)
		}
		a.Cores = min(a.Cores, m.ranks[i].cores)
	}
	if len(a.Gossip) != m.cfg.Size {
		a.Gossip = nil
	} else {
		m.do(meet{a.Gossip})
	}
	for i := range m.ranks {
		to := a
		to.Rank = i
		m.ranks[i].given = true
		m.do(send{i, &to})
	}
}

// said takes a member's message.
func (m *master) said(r int, message rank.Message) {
	switch e := message.(type) {
	case *rank.Reached:
		m.phaseReached(r, e)
	case *rank.Heartbeat:
		m.ranks[r].state = e.State
		m.ranks[r].step = e.Step
	case *rank.Stepped:
		m.stepped(r, e)
	case *rank.Abort:
		m.aborted(r, e)
	case *rank.DigestsAnswer:
		if err := m.work.answered(r, e); err != nil {
			m.protest(r, err.Error())
		}
	case *rank.Bye:
		m.left(r, e.Cause)
	case *rank.Apart:
		m.ranks[r].state = "apart"
	default:
		m.protest(r, fmt.Sprintf("%v is not for a master", message.Kind()))
	}
}

// protest blames a rank for a message that it should not have sent.
func (m *master) protest(r int, detail string) {
	m.accuse(m.epoch, collective.Cause{Class: collective.Corruption, Epoch: m.epoch,
		Culprits: []int{r}, Informer: -1, Detail: detail})
}

// left takes a rank's BYE. Unasked it is a failure, and the weakest evidence of
// all: whatever made the rank give up comes before it.
func (m *master) left(r int, why string) {
	m.ranks[r].bye, m.ranks[r].byeFor = true, why
	if why == "" {
		why = "it left without being told to"
	}
	m.accuse(m.epoch, collective.Cause{Class: collective.Aborted, Epoch: m.epoch,
		Culprits: []int{r}, Informer: -1, Detail: why})
}

func (m *master) phaseReached(r int, e *rank.Reached) {
	member := &m.ranks[r]
	if e.Epoch != m.epoch || e.Phase <= member.phase {
		m.protest(r, fmt.Sprintf("PHASE %v of epoch %d after %v of epoch %d",
			e.Phase, e.Epoch, member.phase, m.epoch))
		return
	}
	member.phase = e.Phase
	member.state = e.Phase.String()
	switch e.Phase {
	case rank.PhaseHandshake:
		member.device = e.Device.Total
	case rank.PhaseLoaded:
		member.bytes = e.Bytes
	case rank.PhaseReady:
		member.members = e.Members
	}
	m.reached[e.Phase]++
	m.do(progress{e.Phase.String(), m.reached[e.Phase], m.cfg.Size})
	if m.reached[rank.PhaseReady] == m.cfg.Size && m.state == starting {
		m.state = ready
		m.do(isReady{})
	}
}

// stepped records what a rank counted; the last one ends the step.
func (m *master) stepped(r int, e *rank.Stepped) {
	m.ranks[r].step = e.Step
	if m.state != ready && m.state != stopping {
		return
	}
	if cause := m.work.stepped(m.epoch, r, e); cause != nil {
		m.accuse(m.epoch, *cause)
	}
	if m.state == stopping && m.work.idle() {
		m.sendStop("the group stops")
	}
}

// pump hands out the next plan when the last one has run everywhere.
func (m *master) pump() {
	if m.state != ready || m.weighing || m.judged {
		return
	}
	for _, message := range m.work.next(m.now) {
		if _, ok := message.(*rank.Step); ok {
			m.do(arm{timerStep, m.cfg.Limits.Step})
		}
		for r := range m.ranks {
			m.do(send{r, message})
		}
	}
}

func (m *master) hinted(h hint) {
	name, _, _ := strings.Cut(strings.TrimPrefix(h.Member, "rank"), ".")
	if r, err := strconv.Atoi(name); err == nil && r >= 0 && r < len(m.ranks) {
		m.ranks[r].suspect = h.Left
	}
}

// phase is where rank r is, or where the group is for r < 0.
func (m *master) phase(r int) string {
	switch {
	case m.state == stopping:
		return "stop"
	case m.work.running() != "":
		return m.work.running()
	case r >= 0 && r < len(m.ranks):
		return m.ranks[r].stage()
	case m.state == starting:
		return "join"
	}
	return "ready"
}

func (s state) String() string {
	return [...]string{"starting", "ready", "stopping", "failing", "over"}[s]
}
