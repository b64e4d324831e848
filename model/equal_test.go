package model

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// setting is one way to run the same requests.
type setting struct {
	tp    int
	fc1   bool
	mmrs  string // a comm mode, or "": not fused
	chunk int    // 0: whole
}

func (s setting) String() string {
	return fmt.Sprintf("tp %d, fc1 %v, mmrs %q, chunk %d", s.tp, s.fc1, s.mmrs, s.chunk)
}

func (s setting) options() Options {
	o := DefaultOptions()
	o.MinPrefillTokens, o.MinTP = 1, 2
	o.FlashComm1, o.MMRS, o.Chunk = s.fc1, s.mmrs != "", s.chunk
	o.Positions = 2048 // some presets say 512
	if o.MMRS {
		o.CommMode = s.mmrs
	}
	return o
}

// runs gives the outcome of one prompt under a setting, and checks that the
// setting was really in force.
func (s setting) runs(t *testing.T, c *loaded, r Request) (got outcome) {
	t.Helper()
	ran := t.Run(s.String(), func(t *testing.T) { // whose end releases the group
		g := start(t, c, s.tp, s.options(), nil)
		got = g.outcome(r)
		g.proves(s)
	})
	require.True(t, ran, "%v", s)
	return got
}

// proves requires of each step the collectives of its decision, and that FC1
// was active in every prefill step and in no other, if it is on.
func (g *group) proves(s setting) {
	g.t.Helper()
	prefills := 0
	for i, r := range g.results {
		prefill := g.facts[i].DecodeRows == 0
		require.Equal(g.t, s.fc1 && prefill, r.Decision.FC1, "%v: %s", s, r.Decision.Reason)
		want := tally{embedding: 1, head: min(1, len(r.Tokens)), allReduce: 2 * g.config.Layers}
		if r.Decision.FC1 {
			want.allReduce, want.sequence = 0, 2*g.config.Layers+1
			for _, fused := range []bool{r.Decision.Fuse.O, r.Decision.Fuse.Down} {
				if fused {
					want.mmrs += g.config.Layers
				} else {
					want.reduceScatter += g.config.Layers
				}
			}
		}
		if s.tp == 1 {
			want = tally{}
		}
		require.Equal(g.t, want, calls(r.Counts), "%v, step %d", s, i+1)
		if prefill {
			prefills++
		}
	}
	require.NotZero(g.t, prefills)
}

// lengths are the prompt lengths of the equality tests: around the alignment of
// 16 rows, of 128 at 8 ranks, and where whole ranks are padding or stop to be.
var lengths = [...]int{1, 15, 16, 17, 127, 128, 129, 200, 257, 769, 785, 897, 1024}

func chunks(n int) []int {
	if n <= 257 {
		return []int{0, 17, 128, 4096, 1}
	}
	return []int{0, 17, 128, 4096}
}

// settings are the ways in which a prompt of n tokens, the i'th length, is run
// beside one rank and the whole prompt: all, or with -short a choice in which
// every number of ranks and every chunk has its turn.
func settings(i, n int) []setting {
	all := []setting{}
	for _, tp := range []int{1, 2, 4, 8} {
		for _, fc1 := range []bool{false, true} {
			for _, chunk := range chunks(n) {
				if tp > 1 || !fc1 && chunk != 0 {
					all = append(all, setting{tp: tp, fc1: fc1, chunk: chunk})
				}
			}
		}
	}
	if !testing.Short() {
		return all
	}
	c := chunks(n)
	some := []setting{{tp: 8, fc1: true, chunk: c[i%len(c)]}}
	if n < 200 {
		some = append(some,
			setting{tp: 2 << (i % 2), fc1: true, chunk: c[(i+1)%len(c)]},
			setting{tp: 8 >> (i % 3), chunk: c[(i+2)%len(c)]})
	} else {
		some = append(some, setting{tp: 2 << (i % 3), fc1: i%2 == 0, chunk: c[(i+1)%len(c)]})
	}
	return some
}

func TestBitsDoNotDependOnFC1ChunksOrRanks(t *testing.T) {
	// Tokens, log-probabilities, keys, values and hidden states of one rank and
	// the whole prompt are those of 2, 4 and 8 ranks, FC1 off and on, in chunks.
	presets := []string{"qwen3-tp8"}
	if long() {
		presets = append(presets, "qwen3-kv8", "qwen3-bias", "qwen3-linear", "qwen3-yarn",
			"qwen3-tied", "qwen3-odd")
	}
	for _, name := range presets {
		c := stored(t, name)
		for i, n := range lengths {
			r := Request{ID: 1, IDs: prompt(c.config, n), MaxNew: 3}
			want := setting{tp: 1}.runs(t, c, r)
			for _, s := range settings(i, n) {
				if c.config.CheckTP(s.tp) == nil {
					same(t, want, s.runs(t, c, r), "%s, length %d, %v", name, n, s)
				}
			}
		}
	}
}

func TestBitsDoNotDependOnFusion(t *testing.T) {
	// Fused or not, by tiles or by whole shares, qwen3-demo gives the same bits.
	c := stored(t, "qwen3-demo")
	for _, n := range []int{17, 129, 785} {
		r := Request{ID: 1, IDs: prompt(c.config, n), MaxNew: 2}
		some := []setting{
			{tp: 8}, {tp: 8, fc1: true},
			{tp: 8, fc1: true, mmrs: "aiv"}, {tp: 8, fc1: true, mmrs: "ai_cpu", chunk: 128},
			{tp: 8, fc1: true, mmrs: "ai_cpu"}, {tp: 8, fc1: true, mmrs: "aiv", chunk: 128},
			{tp: 2, fc1: true, mmrs: "aiv"}, {tp: 4, fc1: true, mmrs: "none"}, {tp: 1},
		}
		if n == 785 && testing.Short() {
			some = []setting{some[1], some[2], some[3]}
		}
		want := some[0].runs(t, c, r)
		for _, s := range some[1:] {
			d := s.options().Decide(c.config, s.tp, Facts{Rows: n})
			require.Equal(t, Fuse{s.mmrs != "", s.mmrs != ""}, d.Fuse, "%v", s)
			same(t, want, s.runs(t, c, r), "length %d, %v", n, s)
		}
	}
}

func TestABiasKeepsItsProjectionOutOfFusionOnly(t *testing.T) {
	// qwen3-mmrs-bias: o_proj is refused by name, down_proj fuses, bits are equal.
	c := stored(t, "qwen3-mmrs-bias")
	r := Request{ID: 1, IDs: prompt(c.config, 33), MaxNew: 2}
	want := setting{tp: 1}.runs(t, c, r)
	for _, s := range []setting{{tp: 8}, {tp: 8, fc1: true}, {tp: 8, fc1: true, mmrs: "aiv"},
		{tp: 8, fc1: true, mmrs: "ai_cpu", chunk: 17}, {tp: 2, fc1: true, mmrs: "aiv"}} {
		d := s.options().Decide(c.config, s.tp, Facts{Rows: 33})
		if s.mmrs != "" {
			require.Equal(t, FuseReason{O: FuseReasonBias}, d.FuseReason)
			require.Equal(t, Fuse{Down: true}, d.Fuse)
		}
		same(t, want, s.runs(t, c, r), "%v", s)
	}
}

func TestBitsDoNotDependOnTheBatch(t *testing.T) {
	// A request alone and beside others, in prefill, decode and mixed steps, has
	// the same bits, and a slot that was used before does not show.
	for _, name := range []string{"qwen3-tp8", "qwen3-bias", "qwen3-kv8"} {
		c := stored(t, name)
		var requests []Request
		alone := map[uint64]outcome{}
		for i, n := range []int{70, 3, 1, 40, 16, 129} {
			r := Request{ID: uint64(100 + i), IDs: prompt(c.config, n), MaxNew: 4 + i}
			if i%2 == 1 {
				r.Sampling = Sampling{Temperature: 0.9, TopK: 50, TopP: 0.95, Seed: uint64(i)}
			}
			requests = append(requests, r)
			alone[r.ID] = setting{tp: 1}.runs(t, c, r)
		}
		for _, mix := range []bool{false, true} {
			for _, s := range []setting{{tp: 1}, {tp: 4}, {tp: 8, fc1: true},
				{tp: 2, fc1: true, chunk: 20}} {
				o := s.options()
				o.Mix, o.MaxTokens = mix, 64
				g := start(t, c, s.tp, o, nil)
				for round := range 2 { // the second finds every slot used
					tokens := g.generate(requests...)
					for _, r := range requests {
						same(t, alone[r.ID], outcome{tokens[r.ID], g.digests(r.ID)},
							"%s, %v, mix %v, round %d, request %d", name, s, mix, round, r.ID)
					}
				}
			}
		}
	}
}

func TestASampledTokenIsThatOfItsLogitsAndPosition(t *testing.T) {
	// The noise is that of the position which the token takes, in prefill as in
	// decode, so that a sequence that is computed anew draws the same again.
	c := stored(t, "qwen3-tp8")
	g := start(t, c, 2, setting{}.options(), nil)
	params := Sampling{Temperature: 2, Seed: 11}
	var want []int
	g.engines[1].watch = func(op Op, _ int, r Row, x []float32) {
		if op == OpLogits {
			want = append(want, choose(x, params, 20+len(want)).ID)
		}
	}
	r := Request{ID: 1, IDs: prompt(c.config, 20), MaxNew: 12, Sampling: params}
	var got []int
	for _, token := range g.generate(r)[1] {
		got = append(got, token.ID)
	}
	require.Equal(t, want, got)
	again := Request{ID: 2, IDs: append(r.IDs, got[:7]...), MaxNew: 5, Sampling: params}
	g.engines[1].watch = nil
	for i, token := range g.generate(again)[2] {
		require.Equal(t, got[7+i], token.ID)
	}
}

func TestPaddingNeverReachesAResult(t *testing.T) {
	// Rows of no token and ids past the vocabulary are NaN here, and nothing that
	// comes out is: outputs, keys and values have the bits of zero padding.
	for _, x := range []struct {
		preset string
		s      setting
	}{
		{"qwen3-tp8", setting{tp: 8, fc1: true}},
		{"qwen3-tp8", setting{tp: 4, fc1: true, chunk: 17}},
		{"qwen3-odd", setting{tp: 2, fc1: true}}, {"qwen3-tied", setting{tp: 4, fc1: true}},
		{"qwen3-bias", setting{tp: 8, fc1: true}},
		{"qwen3-demo", setting{tp: 8, fc1: true, mmrs: "aiv"}},
		{"qwen3-demo", setting{tp: 8, fc1: true, mmrs: "ai_cpu"}},
	} {
		c := stored(t, x.preset)
		for _, n := range []int{1, 17, 129} {
			r := Request{ID: 1, IDs: prompt(c.config, n), MaxNew: 3}
			want := setting{tp: 1}.runs(t, c, r)
			g := start(t, c, x.s.tp, x.s.options(), nil)
			for _, e := range g.engines {
				e.padding = float32(math.NaN())
			}
			same(t, want, g.outcome(r), "%s, length %d, %v", x.preset, n, x.s)
			g.proves(x.s)
		}
	}
}

func TestPaddingIsZeroEvenInUsedMemory(t *testing.T) {
	// After a longer step the same memory holds rows of tokens. The next step's
	// padding is zero all the same, in each shard and in what is gathered.
	c := stored(t, "qwen3-bias")
	s := setting{tp: 8, fc1: true}
	g := start(t, c, s.tp, s.options(), nil)
	for id, n := range []int{257, 17} {
		g.generate(Request{ID: uint64(id), IDs: prompt(c.config, n), MaxNew: 1})
	}
	h := c.config.HiddenSize
	for rank, e := range g.engines {
		valid := []int{16, 1, 0, 0, 0, 0, 0, 0}[rank] * h
		require.NotContains(t, e.work.residual[:valid], float32(0))
		require.Equal(t, make([]float32, 16*h-valid), e.work.residual[valid:])
		require.Equal(t, make([]float32, 16*h-valid), e.work.normed[valid:])
		require.Equal(t, make([]float32, (128-17)*h), e.work.wide[17*h:])
	}
}

func TestARankThatWouldPlanOtherwiseIsNamed(t *testing.T) {
	// One rank derives that FC1 is off. The first collective fails on every rank
	// and names that rank; the engine is spent.
	c := stored(t, "qwen3-tp8")
	g := start(t, c, 4, setting{tp: 4, fc1: true}.options(), func(e *EngineConfig) {
		if e.Shard.Rank == 2 {
			e.Failpoint = func(name string) error {
				require.Equal(t, "model/plan", name)
				return errors.New("told to")
			}
		}
	})
	require.NoError(t, g.planner.Add(Request{ID: 1, IDs: prompt(c.config, 20), MaxNew: 1}))
	p, ok := g.planner.Next()
	require.True(t, ok)
	_, errs := g.try(p)
	for rank, err := range errs {
		var abort *collective.AbortError
		require.ErrorAs(t, err, &abort, "rank %d", rank)
		require.Equal(t, collective.Mismatch, abort.Class, "rank %d", rank)
		require.Equal(t, []int{2}, abort.Culprits, "rank %d", rank)
	}
	_, errs = g.try(p)
	require.ErrorContains(t, errs[0], "the engine is spent")
}

func TestAGroupThatDerivesOtherThanThePlanSaysSo(t *testing.T) {
	// All ranks agree among themselves but not with the master.
	c := stored(t, "qwen3-tp8")
	g := start(t, c, 2, DefaultOptions(), nil)
	p := &Plan{Epoch: 1, Step: 1, Rows: []Row{{Request: 1, Token: 3}}}
	p.Decision = eager().Decide(c.config, 2, p.Facts())
	_, errs := g.try(p)
	for _, err := range errs {
		require.ErrorContains(t, err, "this rank derives fc1 off")
	}
}

func TestPlansThatDoNotFitAreRefused(t *testing.T) {
	// A plan is checked before any collective, and by the same rule on all ranks.
	c := stored(t, "qwen3-tp8")
	for want, p := range map[string]*Plan{
		"plan of step 2 of epoch 1 after step 0": {Epoch: 1, Step: 2},
		"plan of step 1 of epoch 2":              {Epoch: 2, Step: 1},
		"row 0: token 320 of 320":                {Epoch: 1, Step: 1, Rows: []Row{{Token: 320}}},
		"row 0: token -1 of 320":                 {Epoch: 1, Step: 1, Rows: []Row{{Token: -1}}},
		"row 0 at position 1 of request 7: slot": {Epoch: 1, Step: 1,
			Rows: []Row{{Request: 7, Pos: 1}}},
		"slot -1 of 20": {Epoch: 1, Step: 1, Rows: []Row{{Slot: -1}}},
		"sample 0: row 1 is not of request 0": {Epoch: 1, Step: 1, Rows: []Row{{}},
			Samples: []Sample{{Row: 1}}},
		"sample 0: row 0 is not of request 3": {Epoch: 1, Step: 1, Rows: []Row{{}},
			Samples: []Sample{{Row: 0, Request: 3}}},
		"sample 1: row 0 is not after row 0": {Epoch: 1, Step: 1, Rows: []Row{{}},
			Samples: []Sample{{Row: 0}, {Row: 0}}},
	} {
		g := start(t, c, 1, DefaultOptions(), nil)
		_, errs := g.try(p)
		require.ErrorContains(t, errs[0], want)
	}
}

func TestAStepWithoutRowsDoesNothing(t *testing.T) {
	// An empty step is no error, and no collective.
	c := stored(t, "qwen3-tp8")
	g := start(t, c, 2, eager(), nil)
	p := &Plan{Epoch: 1, Step: 1, Decision: eager().Decide(c.config, 2, Facts{})}
	r := g.step(p)
	require.Equal(t, ReasonEmpty, r.Decision.Reason)
	require.Empty(t, r.Tokens)
	require.Empty(t, r.Counts)
}

func TestALayoutIsNeverMistaken(t *testing.T) {
	// With T = L = 16 rows on each side only the tag tells full from sharded: an
	// all-reduce of a shard, a scatter of a full state and a sum of both panic.
	c := stored(t, "qwen3-tp8")
	e := start(t, c, 8, eager(), nil).engines[0]
	p := &Plan{Rows: make([]Row, 16)}
	off := &step{Engine: e, plan: p}
	on := &step{Engine: e, plan: p, d: eager().Decide(c.config, 8, p.Facts())}
	require.Equal(t, 16, on.d.L)
	w := e.shard.Layers[0].O
	x := make([]float32, 16*w.Cols())
	require.PanicsWithValue(t, "model: all-reduce of a sharded hidden state, must be full",
		func() { on.allReduce(w, x) })
	require.PanicsWithValue(t, "model: reduce-scatter of a full hidden state, must be sharded",
		func() { off.reduceScatter(w, x) })
	require.PanicsWithValue(t,
		"model: matmul-reduce-scatter of a full hidden state, must be sharded",
		func() { off.matmulReduceScatter(w, x) })
	var a, b []float32
	require.Panics(t, func() { on.add(on.state(&a), off.state(&b)) })
	require.Panics(t, func() { on.norm(off.state(&a), e.shard.Norm) })
}

func TestNewEngineNamesWhatIsWrong(t *testing.T) {
	// A config that cannot run is refused before the first step.
	c := stored(t, "qwen3-tp8")
	good := EngineConfig{Config: c.config, Shard: c.of(t, 1)[0], Options: DefaultOptions(),
		Slots: 1}
	_, err := NewEngine(good)
	require.NoError(t, err)
	for want, change := range map[string]func(e *EngineConfig){
		"config and shard must be given": func(e *EngineConfig) { e.Shard = nil },
		"slots is 0":                     func(e *EngineConfig) { e.Slots = 0 },
		"option max_positions is -1":     func(e *EngineConfig) { e.Options.Positions = -1 },
		"no communicator for 2 ranks":    func(e *EngineConfig) { e.Shard = c.of(t, 2)[0] },
		"option mmrs_comm_mode":          func(e *EngineConfig) { e.Options.CommMode = "x" },
	} {
		bad := good
		change(&bad)
		_, err := NewEngine(bad)
		require.ErrorContains(t, err, want)
	}
}
