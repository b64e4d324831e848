package model

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// planner makes a planner of a small vocabulary.
func planner(t *testing.T, slots int, change func(o *Options)) *Planner {
	t.Helper()
	o := DefaultOptions()
	o.MaxTokens = 8
	if change != nil {
		change(&o)
	}
	c := &Config{VocabSize: 100, MaxPositions: 40, Heads: 1, HeadDim: 1, IntermediateSize: 1}
	p, err := NewPlanner(PlannerConfig{Model: c, Options: o, TP: 2, Epoch: 3, Slots: slots,
		Queue: 4})
	require.NoError(t, err)
	return p
}

// ask adds a request with a prompt of n tokens: 10*id, 10*id+1, ...
func ask(t *testing.T, p *Planner, id uint64, n, maxNew int, stop ...int) {
	t.Helper()
	r := Request{ID: id, MaxNew: maxNew, StopIDs: stop}
	for i := range n {
		r.IDs = append(r.IDs, 10*int(id)+i)
	}
	require.NoError(t, p.Add(r))
}

// describe writes a plan as "request@slot:from-to" groups, "*" behind one with a
// sample and "+" behind one that decodes.
func describe(p *Plan) string {
	var groups []string
	for i := 0; i < len(p.Rows); {
		first, last := p.Rows[i], i
		for last+1 < len(p.Rows) && p.Rows[last+1].Request == first.Request {
			last++
		}
		g := fmt.Sprintf("%d@%d:%d-%d", first.Request, first.Slot, first.Pos, p.Rows[last].Pos)
		if first.Decode {
			g += "+"
		}
		for _, s := range p.Samples {
			if s.Row == last && s.Request == first.Request {
				g += "*"
			}
		}
		groups = append(groups, g)
		i = last + 1
	}
	return strings.Join(groups, " ")
}

// run takes the next plan, answers each sample with token 50 + its number in
// the step, and returns the plan and what the requests got.
func run(t *testing.T, p *Planner) (plan, events string) {
	t.Helper()
	next, ok := p.Next()
	if !ok {
		return "", ""
	}
	return describe(next), accept(p, next)
}

func accept(p *Planner, plan *Plan) string {
	var tokens []Token
	for i, s := range plan.Samples {
		tokens = append(tokens, Token{Request: s.Request, ID: 50 + i})
	}
	var got []string
	for _, e := range p.Accept(plan.Step, tokens) {
		event := fmt.Sprintf("%d=%d %s", e.Request, e.Token.ID, e.Finish)
		got = append(got, strings.TrimSpace(event))
	}
	return strings.Join(got, ", ")
}

func TestPlannerScripts(t *testing.T) {
	// Requests are served in order of arrival. Prompts go first, in chunks; then
	// decode rows of all requests share steps.
	for _, c := range []struct {
		name   string
		slots  int
		change func(o *Options)
		ask    func(p *Planner)
		want   []string
	}{
		{"one request", 2, nil, func(p *Planner) { ask(t, p, 1, 3, 3) }, []string{
			"1@0:0-2* > 1=50", "1@0:3-3+* > 1=50", "1@0:4-4+* > 1=50 length"}},
		{"a stop id ends a request", 2, nil, func(p *Planner) { ask(t, p, 1, 1, 9, 50) }, []string{
			"1@0:0-0* > 1=50 stop"}},
		{"chunks", 2, func(o *Options) { o.Chunk = 3 }, func(p *Planner) {
			ask(t, p, 1, 7, 1)
		}, []string{
			"1@0:0-2 > ", "1@0:3-5 > ", "1@0:6-6* > 1=50 length"}},
		{"prompts fill a step in order", 3, func(o *Options) { o.Chunk = 5 }, func(p *Planner) {
			ask(t, p, 1, 7, 2)
			ask(t, p, 2, 4, 2)
		}, []string{
			"1@0:0-4 2@1:0-2 > ", "1@0:5-6* 2@1:3-3* > 1=50, 2=51",
			"1@0:7-7+* 2@1:4-4+* > 1=50 length, 2=51 length"}},
		{"a slot is waited for", 1, nil, func(p *Planner) {
			ask(t, p, 1, 2, 1)
			ask(t, p, 2, 2, 1)
		}, []string{"1@0:0-1* > 1=50 length", "2@0:0-1* > 2=50 length"}},
		{"prompts before decode rows, never together", 2, func(o *Options) { o.Chunk = 2 },
			func(p *Planner) {
				ask(t, p, 1, 2, 3)
				ask(t, p, 2, 5, 1)
			}, []string{
				"1@0:0-1* 2@1:0-1 > 1=50", "2@1:2-3 > ", "2@1:4-4* > 2=50 length",
				"1@0:2-2+* > 1=50", "1@0:3-3+* > 1=50 length"}},
		{"mixed steps on request, decodes first", 2, func(o *Options) { o.Chunk, o.Mix = 2, true },
			func(p *Planner) {
				ask(t, p, 1, 2, 3)
				ask(t, p, 2, 5, 1)
			}, []string{
				"1@0:0-1* 2@1:0-1 > 1=50", "1@0:2-2+* 2@1:2-3 > 1=50",
				"1@0:3-3+* 2@1:4-4* > 1=50 length, 2=51 length"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planner(t, c.slots, c.change)
			c.ask(p)
			for i, want := range c.want {
				plan, events := run(t, p)
				require.Equal(t, want, plan+" > "+events, "step %d", i+1)
			}
			_, more := p.Next()
			require.False(t, more)
			require.True(t, p.Idle())
		})
	}
}

func TestPlansCarryWhatWasGiven(t *testing.T) {
	// A decode row's token is the one that the last step gave; epoch, step,
	// decision and sampling go with the plan.
	p := planner(t, 1, func(o *Options) { o.FlashComm1, o.MinPrefillTokens, o.MinTP = true, 1, 1 })
	params := Sampling{Temperature: 1, Seed: 7}
	require.NoError(t, p.Add(Request{ID: 9, IDs: []int{4, 5}, MaxNew: 2, Sampling: params}))
	first, ok := p.Next()
	require.True(t, ok)
	require.Equal(t, []Row{{9, 0, 0, 4, false}, {9, 0, 1, 5, false}}, first.Rows)
	require.Equal(t, []Sample{{1, 9, params}}, first.Samples)
	require.Equal(t, uint32(3), first.Epoch)
	require.True(t, first.Decision.FC1)
	_, again := p.Next()
	require.False(t, again, "a step is under way")
	p.Accept(1, []Token{{Request: 9, ID: 33}})
	second, ok := p.Next()
	require.True(t, ok)
	require.Equal(t, uint64(2), second.Step)
	require.Equal(t, []Row{{9, 0, 2, 33, true}}, second.Rows)
	require.Equal(t, ReasonDecode, second.Decision.Reason)
	require.Equal(t, Facts{Rows: 1, DecodeRows: 1}, second.Facts())
}

func TestCancelChangesTheNextPlanOnly(t *testing.T) {
	// The step under way keeps its rows; its token goes to nobody and the slot is
	// free afterwards.
	p := planner(t, 2, nil)
	ask(t, p, 1, 2, 5)
	ask(t, p, 2, 2, 2)
	ask(t, p, 3, 2, 1)
	plan, _ := p.Next()
	require.Equal(t, "1@0:0-1* 2@1:0-1*", describe(plan))
	require.True(t, p.Cancel(1))
	require.False(t, p.Cancel(1))
	require.Equal(t, "2=51", accept(p, plan))
	next, events := run(t, p)
	require.Equal(t, "3@0:0-1* > 3=50 length", next+" > "+events)
	ask(t, p, 4, 1, 1)
	require.True(t, p.Cancel(4), "while it waits")
	next, events = run(t, p)
	require.Equal(t, "2@1:2-2+* > 2=50 length", next+" > "+events)
	require.True(t, p.Idle())
}

func TestARequestCancelledAndAskedAnewGetsNoOldToken(t *testing.T) {
	// A number may come back while the step of its first life still runs.
	p := planner(t, 1, nil)
	ask(t, p, 1, 2, 5)
	plan, _ := p.Next()
	require.True(t, p.Cancel(1))
	ask(t, p, 1, 3, 1)
	require.Equal(t, "", accept(p, plan))
	next, events := run(t, p)
	require.Equal(t, "1@0:0-2* > 1=50 length", next+" > "+events)
}

func TestASampleWithoutATokenFailsItsRequestOnly(t *testing.T) {
	// A fault of one request's logits does not reach the others.
	p := planner(t, 2, nil)
	ask(t, p, 1, 1, 2)
	ask(t, p, 2, 1, 2)
	plan, _ := p.Next()
	events := p.Accept(plan.Step,
		[]Token{{Request: 1, ID: -1, Fault: "a NaN"}, {Request: 2, ID: 5}})
	require.Len(t, events, 2)
	require.Equal(t, FinishError, events[0].Finish)
	require.EqualError(t, events[0].Err, "sample request 1: a NaN")
	require.Equal(t, Event{Request: 2, Token: Token{Request: 2, ID: 5}}, events[1])
	plan, _ = p.Next()
	require.Equal(t, "2@1:1-1+*", describe(plan))
	events = p.Accept(plan.Step, nil)
	require.EqualError(t, events[0].Err, "sample request 2: the step gave no token")
	require.True(t, p.Idle())
	require.Panics(t, func() { p.Accept(plan.Step, nil) }, "nothing is under way")
}

func TestAddSaysWhyARequestCannotRun(t *testing.T) {
	// What could never run is refused at once, by its reason.
	p := planner(t, 1, nil)
	ask(t, p, 1, 1, 1)
	for want, r := range map[string]Request{
		"there is one with this id":     {ID: 1, IDs: []int{1}, MaxNew: 1},
		"the prompt has no token":       {ID: 2, MaxNew: 1},
		"0 tokens wanted":               {ID: 2, IDs: []int{1}},
		"exceed 40 positions":           {ID: 2, IDs: make([]int, 40), MaxNew: 1},
		"token 1 is id 100: vocabulary": {ID: 2, IDs: []int{1, 100}, MaxNew: 1},
		"token 0 is id -1: vocabulary":  {ID: 2, IDs: []int{-1}, MaxNew: 1},
		"top_k is -1": {ID: 2, IDs: []int{1}, MaxNew: 1,
			Sampling: Sampling{TopK: -1}},
		"temperature is -1: must be": {ID: 2, IDs: []int{1}, MaxNew: 1,
			Sampling: Sampling{Temperature: -1}},
		"add request 2: top_p is 2: mus": {ID: 2, IDs: []int{1}, MaxNew: 1,
			Sampling: Sampling{TopP: 2}},
	} {
		require.ErrorContains(t, p.Add(r), want)
	}
	for id := range uint64(3) {
		ask(t, p, 3+id, 1, 1)
	}
	require.ErrorContains(t, p.Add(Request{ID: 20, IDs: []int{1}, MaxNew: 1}), "4 requests wait")
	_, err := NewPlanner(PlannerConfig{Model: &Config{}, Options: p.cfg.Options, TP: 1, Slots: 9})
	require.ErrorContains(t, err, "9 slots")
}

func TestPlanHashCoversEverything(t *testing.T) {
	// Any difference of plan or of derived decision changes the hash.
	base := func() (*Plan, *Decision) {
		d := Decision{FC1: true, P: 32, L: 16, Fuse: Fuse{O: true, Down: true}}
		return &Plan{Epoch: 1, Step: 2, Rows: []Row{{1, 2, 3, 4, false}, {1, 2, 4, 4, false}},
			Samples: []Sample{{1, 1, Sampling{}}}, Decision: d}, &d
	}
	seen := map[uint64]string{}
	for name, change := range map[string]func(p *Plan, d *Decision){
		"nothing":        func(*Plan, *Decision) {},
		"epoch":          func(p *Plan, _ *Decision) { p.Epoch++ },
		"step":           func(p *Plan, _ *Decision) { p.Step++ },
		"request":        func(p *Plan, _ *Decision) { p.Rows[0].Request++ },
		"slot":           func(p *Plan, _ *Decision) { p.Rows[0].Slot++ },
		"pos":            func(p *Plan, _ *Decision) { p.Rows[1].Pos++ },
		"token":          func(p *Plan, _ *Decision) { p.Rows[1].Token++ },
		"decode":         func(p *Plan, _ *Decision) { p.Rows[1].Decode = true },
		"rows":           func(p *Plan, _ *Decision) { p.Rows = p.Rows[:1] },
		"sampled row":    func(p *Plan, _ *Decision) { p.Samples[0].Row = 0 },
		"sample request": func(p *Plan, _ *Decision) { p.Samples[0].Request++ },
		"temperature":    func(p *Plan, _ *Decision) { p.Samples[0].Params.Temperature = 1 },
		"top k":          func(p *Plan, _ *Decision) { p.Samples[0].Params.TopK = 1 },
		"top p":          func(p *Plan, _ *Decision) { p.Samples[0].Params.TopP = 1 },
		"seed":           func(p *Plan, _ *Decision) { p.Samples[0].Params.Seed = 1 },
		"samples":        func(p *Plan, _ *Decision) { p.Samples = nil },
		"planned":        func(p *Plan, _ *Decision) { p.Decision.FC1 = false },
		"derived":        func(_ *Plan, d *Decision) { d.FC1 = false },
		"reason":         func(_ *Plan, d *Decision) { d.Reason = ReasonFlag },
		"padded":         func(_ *Plan, d *Decision) { d.P++ },
		"local":          func(_ *Plan, d *Decision) { d.L++ },
		"fuse o":         func(_ *Plan, d *Decision) { d.Fuse.O = false },
		"fuse down":      func(_ *Plan, d *Decision) { d.Fuse.Down = false },
		"why not o":      func(_ *Plan, d *Decision) { d.FuseReason.O = "x" },
		"why not down":   func(_ *Plan, d *Decision) { d.FuseReason.Down = "x" },
		"mode":           func(_ *Plan, d *Decision) { d.Mode++ },
	} {
		p, d := base()
		change(p, d)
		h := p.Hash(*d)
		require.Empty(t, seen[h], "%s hashes like it", name)
		require.Equal(t, h, p.Hash(*d))
		seen[h] = name
	}
}
