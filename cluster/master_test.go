package cluster

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/model"
	"octet/rank"
)

// bench drives a master of two ranks by hand and keeps what it decides as text.
type bench struct {
	t *testing.T
	m *master
}

func newBench(t *testing.T) *bench {
	t.Helper()
	options := model.DefaultOptions()
	config := &model.Config{VocabSize: 320, MaxPositions: 512, Heads: 8, HeadDim: 16,
		IntermediateSize: 96, Layers: 3}
	planner, err := model.NewPlanner(model.PlannerConfig{Model: config, Options: options, TP: 2,
		Epoch: 1, Slots: 4})
	require.NoError(t, err)
	cfg := masterConfig{
		identity: identity{Build: "b1", RunID: "run", Size: 2, Options: options.Map()},
		Limits:   Limits{}.withDefaults(), Slots: 4, Heartbeat: time.Second}
	b := &bench{t, newMaster(cfg, newWork(planner, 2), time.Unix(0, 0))}
	b.step(started{0, 100})
	b.step(started{1, 101})
	return b
}

// step gives the master an event and returns its effects, one a line.
func (b *bench) step(event any) string {
	b.t.Helper()
	return text(b.m.Step(event))
}

func text(effects []any) string {
	var lines []string
	for _, effect := range effects {
		switch e := effect.(type) {
		case adopt:
			lines = append(lines, fmt.Sprintf("adopt %d as rank %d", e.Conn, e.Rank))
		case turn:
			lines = append(lines, fmt.Sprintf("turn %d: %s", e.Conn, difference(0, e.Refuse)))
		case send:
			lines = append(lines, fmt.Sprintf("send %v to %d", e.Message.Kind(), e.Rank))
		case arm:
			lines = append(lines, fmt.Sprintf("arm %d", e.Timer))
		case press:
			lines = append(lines, fmt.Sprintf("press %d: %v", e.Rank, e.Signal))
		case failed:
			lines = append(lines, "failed: "+e.Failure.Error())
		case emit:
			lines = append(lines, fmt.Sprintf("emit %d to %d %s", e.Event.Token.ID,
				e.Event.Request, e.Event.Finish))
		case isReady:
			lines = append(lines, "ready")
		case isOver:
			lines = append(lines, "over")
		}
	}
	return strings.Join(lines, "\n")
}

func (b *bench) hello(conn, r int) *rank.Hello {
	return &rank.Hello{Build: "b1", RunID: "run", Rank: r, Size: 2, PID: 100 + r, Host: "here",
		Mesh: fmt.Sprint("m", r), Options: maps.Clone(b.m.cfg.Options), Cores: 4 - r}
}

// ready brings both ranks to READY.
func (b *bench) ready() *bench {
	b.t.Helper()
	for r := range 2 {
		b.step(hello{r + 1, b.hello(r+1, r)})
	}
	for phase := rank.PhaseHandshake; phase <= rank.PhaseReady; phase++ {
		b.step(said{0, &rank.Reached{Epoch: 1, Phase: phase}})
		b.step(said{1, &rank.Reached{Epoch: 1, Phase: phase}})
	}
	require.Equal(b.t, ready, b.m.state)
	return b
}

// running starts a step.
func (b *bench) running() *bench {
	b.t.Helper()
	b.ready()
	require.NoError(b.t, b.m.work.planner.Add(model.Request{ID: 7, IDs: []int{1, 2}, MaxNew: 2}))
	require.Equal(b.t, "arm 5\nsend STEP to 0\nsend STEP to 1", text(b.m.wake()))
	return b
}

func (b *bench) stepped(r int, tokens ...model.Token) *rank.Stepped {
	return &rank.Stepped{Epoch: 1, Step: b.m.work.plan.Step, Decision: b.m.work.plan.Decision,
		Tokens: tokens}
}

// Ranks get the group when all have come, with the fewest cores of all, and the
// group is ready when each has reached every phase.
func TestMasterGathersAGroup(t *testing.T) {
	b := newBench(t)
	require.Equal(t, "adopt 1 as rank 0", b.step(hello{1, b.hello(1, 0)}))
	effects := b.m.Step(hello{2, b.hello(2, 1)})
	require.Equal(t, "adopt 2 as rank 1\nsend ASSIGN to 0\nsend ASSIGN to 1", text(effects))
	assign := effects[len(effects)-1].(send).Message.(*rank.Assign)
	require.Equal(t, 1, assign.Rank)
	require.Equal(t, []string{"m0", "m1"}, assign.Mesh)
	require.Equal(t, 3, assign.Cores)
	for phase := rank.PhaseHandshake; phase < rank.PhaseReady; phase++ {
		require.Empty(t, b.step(said{0, &rank.Reached{Epoch: 1, Phase: phase}}))
		require.Empty(t, b.step(said{1, &rank.Reached{Epoch: 1, Phase: phase}}))
	}
	require.Empty(t, b.step(said{1, &rank.Reached{Epoch: 1, Phase: rank.PhaseReady}}))
	require.Equal(t, "ready", b.step(said{0, &rank.Reached{Epoch: 1, Phase: rank.PhaseReady}}))
}

// A rank that differs in anything is refused with both values, and one that
// belongs to the run ends it.
func TestMasterRefusesWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(h *rank.Hello)
		want   string
		fails  bool
	}{
		{"option", func(h *rank.Hello) { h.Options["enable_flashcomm1"] = "true" },
			`enable_flashcomm1 is "true" there, "false" here`, true},
		{"option that the group has not", func(h *rank.Hello) { h.Options["new"] = "1" },
			`new is "1" there, "" here`, true},
		{"option that the rank has not", func(h *rank.Hello) { delete(h.Options, "chunk") },
			`chunk is "" there, "0" here`, true},
		{"size", func(h *rank.Hello) { h.Size = 4 }, `tp is "4" there, "2" here`, true},
		{"build", func(h *rank.Hello) { h.Build = "b2" }, `build is "b2" there, "b1" here`, true},
		{"rank", func(h *rank.Hello) { h.Rank = 2 }, "no rank 2 in a group of 2", true},
		{"our own process from another run", func(h *rank.Hello) { h.RunID = "old" },
			`run id is "old" there, "run" here`, true},
		{"one of ours in another's place", func(h *rank.Hello) { h.PID = 100 },
			"pid 100 was started as rank 0 and says it is 1", true},
		{"a stranger from another run", func(h *rank.Hello) { h.RunID, h.PID = "old", 9 },
			`run id is "old" there, "run" here`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			h := b.hello(1, 1)
			c.change(h)
			got := b.step(hello{1, h})
			require.Contains(t, got, "turn 1: rank 0: "+c.want)
			require.Equal(t, c.fails, b.m.failure != nil, got)
			if c.fails {
				require.Contains(t, b.m.failure.Error(), c.want)
				require.Equal(t, "join", b.m.failure.Phase)
			}
		})
	}
}

// The first process that says it is rank 1 keeps the place; the second is told
// who holds it, and the group lives.
func TestMasterKeepsTheHolder(t *testing.T) {
	b := newBench(t)
	b.step(hello{1, b.hello(1, 1)})
	second := b.hello(2, 1)
	second.PID = 999
	require.Equal(t, "turn 2: rank 0: rank 1 is held by pid 101 on here", b.step(hello{2, second}))
	require.Nil(t, b.m.failure)
}

// At the join deadline exactly those are named that never came.
func TestMasterNamesTheMissing(t *testing.T) {
	b := newBench(t)
	b.step(hello{1, b.hello(1, 0)})
	got := b.step(expired{timerJoin})
	require.Contains(t, got, "not ready after 1m0s: rank 1 (pid 101) never connected")
	require.NotContains(t, got, "rank 0 (pid")
	require.Contains(t, got, "send STOP to 0")
	require.Contains(t, got, "press 1: terminated")
	require.Equal(t, 1, b.m.failure.Rank)
}

// A death beats what its survivors saw of it, whatever comes first, and the
// failure waits for how the process ended.
func TestMasterBlamesTheDead(t *testing.T) {
	b := newBench(t).running()
	link := collective.Cause{Class: collective.Link, Epoch: 1, Seq: 3, Culprits: []int{0, 1},
		Informer: 0, Detail: "connection reset"}
	require.Equal(t, "arm 1", b.step(said{0, &rank.Abort{Epoch: 1, Cause: link}}))
	require.Empty(t, b.step(hungUp{1, fmt.Errorf("EOF")}))
	require.Equal(t, "arm 2", b.step(expired{timerGrace}), "a death waits for its proof")
	got := b.step(exited{exit{Rank: 1, PID: 101, Signal: "killed", Code: -1}})
	require.Contains(t, got,
		`failed: rank 1 (pid 101) was killed by signal "killed" in step 1 (prefill)`)
	require.Equal(t, []int{1}, b.m.failure.Cause.Culprits)
	require.Contains(t, got, "send ABORT to 0")
	require.Contains(t, got, "send STOP to 0")
	require.Equal(t, "over", b.step(exited{exit{Rank: 0, PID: 100}}))
}

// Two deaths are both in the cause, and the sentence names both.
func TestMasterNamesBothDead(t *testing.T) {
	b := newBench(t).running()
	b.step(exited{exit{Rank: 1, PID: 101, Signal: "killed", Code: -1}})
	b.step(exited{exit{Rank: 0, PID: 100, Code: 2, Detail: "out of memory"}})
	got := b.step(expired{timerGrace})
	require.Contains(t, got, "failed: rank 0 (pid 100) exited with status 2 in step 1 (prefill): "+
		"out of memory (with rank 1)")
	require.Equal(t, []int{0, 1}, b.m.failure.Cause.Culprits)
	require.Contains(t, got, "over")
}

// A rank that gives up is the weakest evidence: what made it give up comes
// first, and without anything else its own words stand.
func TestMasterTakesAFarewell(t *testing.T) {
	b := newBench(t).running()
	b.step(said{1, &rank.Bye{Cause: "master lost"}})
	b.step(expired{timerGrace})
	require.Contains(t, b.step(exited{exit{Rank: 1, PID: 101, Code: 1}}),
		"failed: rank 1 (pid 101) exited with status 1 in step 1 (prefill): master lost")

	b = newBench(t).running()
	b.step(said{1, &rank.Bye{Cause: "shaken"}})
	stall := collective.Cause{Class: collective.Stall, Epoch: 1, Culprits: []int{0}, Informer: 1,
		Detail: "no heartbeat"}
	b.step(said{1, &rank.Abort{Epoch: 1, Cause: stall}})
	got := b.step(expired{timerGrace})
	require.Contains(t, got, "failed: rank 0 (pid 100) stalled in step 1 (prefill): no heartbeat")
	require.Contains(t, got, "press 0: killed", "a stalled rank hears nothing else")
}

// What a rank says of itself beats what its peers took it for, so that the error
// names the reason and not its shadow.
func TestMasterHearsAConfession(t *testing.T) {
	b := newBench(t).running()
	b.step(said{0, &rank.Abort{Epoch: 1, Cause: collective.Cause{Class: collective.Death, Epoch: 1,
		Seq: 4, Culprits: []int{1}, Informer: 0, Detail: "left while needed"}}})
	b.step(said{1, &rank.Abort{Epoch: 1, Cause: collective.Cause{Class: collective.Aborted,
		Epoch: 1, Culprits: []int{1}, Informer: 1, Detail: "out of pages"}}})
	require.Contains(t, b.step(expired{timerGrace}),
		"failed: rank 1 (pid 101) failed in step 1 (prefill): out of pages")
}

// A stop that is asked for while evidence is weighed does not hide the failure.
func TestMasterStopAfterEvidence(t *testing.T) {
	b := newBench(t).ready()
	b.step(exited{exit{Rank: 1, PID: 101, Signal: "killed", Code: -1}})
	require.Contains(t, b.step(askStop{"enough"}), "failed: rank 1 (pid 101) was killed")
}

// Without a death the cause that ranks saw stands, after the grace alone.
func TestMasterTakesAMismatch(t *testing.T) {
	b := newBench(t).running()
	cause := collective.Cause{Class: collective.Mismatch, Epoch: 1, Seq: 2, Culprits: []int{1},
		Informer: 0, Detail: "plan 1 here, 2 there"}
	b.step(said{0, &rank.Abort{Epoch: 1, Cause: cause}})
	got := b.step(expired{timerGrace})
	require.Contains(t, got, "failed: rank 1 (pid 101) does not agree with the group "+
		"in step 1 (prefill): plan 1 here, 2 there")
}

// A rank whose decision is not the plan's is named even where no collective
// could have told.
func TestMasterComparesDecisions(t *testing.T) {
	b := newBench(t).running()
	e := b.stepped(1)
	e.Decision.FC1 = true
	require.Equal(t, "arm 1", b.step(said{1, e}))
	require.Contains(t, b.step(expired{timerGrace}), "rank 1 (pid 101) does not agree")
}

// The next plan waits until every rank has run this one, and rank 0's tokens
// become events.
func TestMasterStepsTogether(t *testing.T) {
	b := newBench(t).running()
	require.Empty(t, b.step(said{1, b.stepped(1)}))
	require.Equal(t, "emit 5 to 7 \narm 5\nsend STEP to 0\nsend STEP to 1",
		b.step(said{0, b.stepped(0, model.Token{Request: 7, ID: 5})}))
	require.Equal(t, "step 2 (decode)", b.m.phase(0))
	b.step(said{0, b.stepped(0, model.Token{Request: 7, ID: 6})})
	require.Equal(t, "emit 6 to 7 length", b.step(said{1, b.stepped(1)}))
	require.Len(t, b.m.work.records, 4)
	require.Contains(t, b.step(said{1, &rank.Stepped{Epoch: 1, Step: 2}}), "arm 1",
		"nobody awaits it")
}

// Silence is a stall. A gap in which the master itself did not run is nobody's.
func TestMasterHearsSilence(t *testing.T) {
	b := newBench(t).ready()
	at := time.Unix(0, 0)
	tickTo := func(d time.Duration) string { return b.step(tick{at.Add(d)}) }
	for d := time.Second; d < 5*time.Second; d += time.Second {
		require.Equal(t, "send HEARTBEAT to 0\nsend HEARTBEAT to 1", tickTo(d))
		b.step(said{0, &rank.Heartbeat{Epoch: 1, State: "ready"}})
	}
	require.Contains(t, tickTo(5*time.Second), "arm 1")
	require.Contains(t, b.step(expired{timerGrace}),
		"failed: rank 1 (pid 101) stalled while ready: not heard for 5s")

	b = newBench(t).ready()
	require.NotContains(t, tickTo(time.Hour), "arm")
	require.Nil(t, b.m.failure)
}

// A stop lets the step end, tells the ranks, and presses those that stay.
func TestMasterStops(t *testing.T) {
	b := newBench(t).running()
	require.Equal(t, "arm 3\narm 4", b.step(askStop{"enough"}))
	require.Empty(t, b.step(askStop{"enough"}), "once is enough")
	b.step(said{0, b.stepped(0, model.Token{Request: 7, ID: 5})})
	got := b.step(said{1, b.stepped(1)})
	require.Contains(t, got, "send STOP to 0\nsend STOP to 1")
	require.NotContains(t, got, "STEP to")
	b.step(said{0, &rank.Bye{}})
	b.step(hungUp{0, fmt.Errorf("EOF")})
	require.Empty(t, b.step(exited{exit{Rank: 0, PID: 100}}))
	require.Equal(t, "press 1: "+syscall.SIGTERM.String(), b.step(expired{timerTerm}))
	got = b.step(expired{timerKill})
	require.Contains(t, got, "failed: rank 1 (pid 101) stalled in stop: did not end within 3s")
	require.Contains(t, got, "press 1: killed")
	require.Equal(t, "over", b.step(exited{exit{Rank: 1, PID: 101, Signal: "killed", Code: -1}}))
}

// A rank that ends by itself while the group stops is a failure all the same.
func TestMasterSeesADeathInTheStop(t *testing.T) {
	b := newBench(t).ready()
	require.Contains(t, b.step(askStop{"enough"}), "send STOP to 1")
	require.Contains(t, b.step(exited{exit{Rank: 1, PID: 101, Signal: "killed", Code: -1}}),
		`failed: rank 1 (pid 101) was killed by signal "killed" in stop`)
}

// Evidence of another epoch is no evidence.
func TestMasterIgnoresAnotherEpoch(t *testing.T) {
	b := newBench(t).ready()
	require.Empty(t, b.step(said{0, &rank.Abort{Epoch: 7, Cause: collective.Cause{
		Class: collective.Death, Epoch: 7, Culprits: []int{1}}}}))
}

// Of a panic the sentence quotes the line that says so.
func TestFailureQuotesThePanic(t *testing.T) {
	f := &Failure{Rank: 3, PID: 42, Exit: 2, Phase: "load",
		Detail: "loading\npanic: no such tensor\n\ngoroutine 1 [running]:\nmain.main()"}
	require.Equal(t, "rank 3 (pid 42) exited with status 2 in load: panic: no such tensor",
		f.Error())
}
