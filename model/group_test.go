package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/collective/mem"
)

// long says that the whole matrix of equality tests and the long prompts of the
// goldens are to be run, which takes many minutes:
//
//	OCTET_LONG=1 go test ./model -timeout 2h
func long() bool { return os.Getenv("OCTET_LONG") == "1" }

// stepWait is the deadline of one step of a group in a test. The longest prompt
// of the goldens takes some ten minutes of processor time.
func stepWait() time.Duration {
	if long() {
		return time.Hour
	}
	return 5 * time.Minute
}

// loaded is a model directory with its shards, read once a test.
type loaded struct {
	dir    string
	config *Config
	shards map[int][]*Shard
}

func open(t *testing.T, dir string) *loaded {
	t.Helper()
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	return &loaded{dir: dir, config: c, shards: map[int][]*Shard{}}
}

func (c *loaded) of(t *testing.T, tp int) []*Shard {
	t.Helper()
	if c.shards[tp] == nil {
		for rank := range tp {
			s, err := Load(c.dir, c.config, rank, tp)
			require.NoError(t, err)
			c.shards[tp] = append(c.shards[tp], s)
		}
	}
	return c.shards[tp]
}

// group is tp ranks over the in-memory network, and their planner.
type group struct {
	t       *testing.T
	config  *Config
	engines []*Engine
	planner *Planner
	results []*StepResult // of rank 0, by step
	facts   []Facts
}

// start makes a group. change, if given, changes one rank's engine config.
func start(t *testing.T, c *loaded, tp int, o Options, change func(e *EngineConfig)) *group {
	t.Helper()
	const slots = 20
	g := &group{t: t, config: c.config}
	network := mem.New(tp)
	for rank, shard := range c.of(t, tp) {
		data, lane := network.Rank(rank)
		comm, err := collective.New(collective.Config{RunID: t.Name(), Rank: rank, Size: tp,
			Epoch: 1, Timeouts: collective.Timeouts{Op: stepWait(), Dead: stepWait()}}, data, lane)
		require.NoError(t, err)
		t.Cleanup(func() { comm.Close() })
		cfg := EngineConfig{Config: c.config, Shard: shard, Comm: comm, Options: o, Epoch: 1,
			Slots: slots, Digest: true}
		if change != nil {
			change(&cfg)
		}
		e, err := NewEngine(cfg)
		require.NoError(t, err)
		g.engines = append(g.engines, e)
	}
	var err error
	g.planner, err = NewPlanner(PlannerConfig{Model: c.config, Options: o, TP: tp, Epoch: 1,
		Slots: slots})
	require.NoError(t, err)
	return g
}

// try runs a plan on all ranks and returns what each of them says.
func (g *group) try(p *Plan) ([]*StepResult, []error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepWait())
	defer cancel()
	results, errs := make([]*StepResult, len(g.engines)), make([]error, len(g.engines))
	var ranks sync.WaitGroup
	for i, e := range g.engines {
		ranks.Add(1)
		go func() { // ends with the step, which ctx bounds
			defer ranks.Done()
			results[i], errs[i] = e.Step(ctx, p)
		}()
	}
	ranks.Wait()
	return results, errs
}

// step runs a plan that must succeed, with the same tokens, decision and counts
// on every rank.
func (g *group) step(p *Plan) *StepResult {
	g.t.Helper()
	results, errs := g.try(p)
	for rank := range errs {
		require.NoError(g.t, errs[rank], "rank %d", rank)
		require.Equal(g.t, results[0].Tokens, results[rank].Tokens, "rank %d", rank)
		require.Equal(g.t, results[0].Decision, results[rank].Decision, "rank %d", rank)
		require.Equal(g.t, calls(results[0].Counts), calls(results[rank].Counts), "rank %d", rank)
	}
	g.results = append(g.results, results[0])
	g.facts = append(g.facts, p.Facts())
	return results[0]
}

// tally is the calls of a step.
type tally struct{ allReduce, reduceScatter, mmrs, sequence, embedding, head, others int }

func calls(c collective.Counts) tally {
	x := tally{
		allReduce:     int(c.Calls(collective.AllReduce)),
		reduceScatter: int(c.Calls(collective.ReduceScatter)),
		mmrs:          int(c.Calls(collective.MatmulReduceScatter)),
		sequence:      int(c.Calls(collective.AllGather, collective.Sequence)),
		embedding:     int(c.Calls(collective.AllGather, collective.Embedding)),
		head:          int(c.Calls(collective.AllGather, collective.Head)),
	}
	for _, e := range c {
		x.others += int(e.Calls)
	}
	x.others -= x.allReduce + x.reduceScatter + x.mmrs + x.sequence + x.embedding + x.head
	return x
}

// generate runs requests until all are done and returns their tokens.
func (g *group) generate(requests ...Request) map[uint64][]Token {
	g.t.Helper()
	for _, r := range requests {
		require.NoError(g.t, g.planner.Add(r))
	}
	tokens := map[uint64][]Token{}
	for {
		p, ok := g.planner.Next()
		if !ok {
			break
		}
		for _, e := range g.planner.Accept(p.Step, g.step(p).Tokens) {
			require.NoError(g.t, e.Err)
			tokens[e.Request] = append(tokens[e.Request], e.Token)
		}
	}
	require.True(g.t, g.planner.Idle())
	return tokens
}

// digests combines what the ranks have digested of a request.
func (g *group) digests(request uint64) map[DigestKey]uint64 {
	g.t.Helper()
	var perRank [][]Digest
	for _, e := range g.engines {
		perRank = append(perRank, e.Digests(request))
	}
	combined, err := CombineDigests(perRank)
	require.NoError(g.t, err)
	require.Len(g.t, combined, 3+5*g.config.Layers)
	return combined
}

// outcome is all that must be equal bit for bit between two runs of a request.
type outcome struct {
	Tokens  []Token
	Digests map[DigestKey]uint64
}

// outcome runs one request.
func (g *group) outcome(r Request) outcome {
	g.t.Helper()
	return outcome{g.generate(r)[r.ID], g.digests(r.ID)}
}

// same requires equal outcomes and says in which tensors they differ if not.
func same(t *testing.T, want, got outcome, what string, args ...any) {
	t.Helper()
	var differ []DigestKey
	for _, key := range slices.SortedFunc(maps.Keys(want.Digests), DigestKey.compare) {
		if want.Digests[key] != got.Digests[key] {
			differ = append(differ, key)
		}
	}
	require.Empty(t, differ, append([]any{what}, args...)...)
	require.Equal(t, want, got, append([]any{what}, args...)...)
}

// prompt is n token ids made from a seed that is the length.
func prompt(c *Config, n int) []int {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	ids := make([]int, n)
	for i := range ids {
		ids[i] = r.IntN(c.VocabSize)
	}
	return ids
}

// golden is what golden.json and golden.safetensors say.
type golden struct {
	TP      map[string]string
	Prompts []struct {
		IDs    []int
		Greedy []int
		Steps  []struct {
			Token   int
			Margin  float64
			Logprob float64
		}
	}
	tensors map[string][]float32
}

func readGolden(t *testing.T, dir string) *golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	g := &golden{tensors: map[string][]float32{}}
	require.NoError(t, json.Unmarshal(data, g))
	data, err = os.ReadFile(filepath.Join(dir, "golden.safetensors"))
	require.NoError(t, err)
	size := binary.LittleEndian.Uint64(data)
	header := map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(data[8:8+size], &header))
	for name, raw := range header {
		var entry struct {
			Dtype   string
			Offsets [2]int `json:"data_offsets"`
		}
		if name == "__metadata__" || json.Unmarshal(raw, &entry) != nil || entry.Dtype != "F32" {
			continue
		}
		body := data[8+int(size)+entry.Offsets[0] : 8+int(size)+entry.Offsets[1]]
		for ; len(body) > 0; body = body[4:] {
			v := math.Float32frombits(binary.LittleEndian.Uint32(body))
			g.tensors[name] = append(g.tensors[name], v)
		}
	}
	return g
}

// near requires got to be want up to a fraction of want's largest value.
func near(t *testing.T, want, got []float32, tolerance float64, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	var largest, worst float64
	for i, v := range want {
		largest = max(largest, math.Abs(float64(v)))
		worst = max(worst, math.Abs(float64(v)-float64(got[i])))
		require.False(t, math.IsNaN(float64(got[i])), what)
	}
	require.LessOrEqual(t, worst, tolerance*largest, what)
}
