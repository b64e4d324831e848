package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"octet/collective"
)

// This file is the second opinion on how many collectives a step takes. It
// works from the numbers of config.json, the flags and the facts of the step,
// and shares no code with the gate, the planner or the forward pass, so that a
// mistake made there is not made here too.

// Shape is what the number of collectives depends on in a model.
type Shape struct {
	Layers       int
	Heads        int // query heads
	HeadDim      int
	Intermediate int
	Bias         bool // the output projection of attention has a bias
}

// Flags is what the number of collectives depends on in the settings.
type Flags struct {
	FC1       bool
	MinTokens int // rows that a step needs, at least
	MinTP     int // ranks that a group needs, at least
	MMRS      bool
	// Float32 says that the fused operator is offered float32 values, which is
	// what activations are. The operator of the device refuses them, so a
	// group that keeps to the device's contract never fuses.
	Float32 bool
}

// StepFacts is what the number of collectives depends on in a step.
type StepFacts struct {
	Rows    int // tokens computed in the step
	Decodes int // of which continue a sequence whose prompt is complete
	Samples int // rows whose logits are wanted
}

// Counts is the number of collective calls that one rank makes in one step.
// Gathers are told apart by what they are for.
type Counts struct {
	AllReduce, ReduceScatter, MMRS int

	Sequence, Embedding, Head, Selection int // AllGather
}

// AllGather is the sum over purposes.
func (c Counts) AllGather() int { return c.Sequence + c.Embedding + c.Head + c.Selection }

// Limits of the fused operator on K, the columns of one rank's activation.
const (
	fusedKMin = 256
	fusedKEnd = 65535 // the first that is too many
)

// Expect derives what each rank of tp counts in a step.
//
// Without sequence sharding a layer all-reduces twice: after the output
// projection of attention and after the down projection. With it each of the
// two is a reduce-scatter, fused or not, and is answered by a gather before the
// next column-parallel product; one more gather restores all rows at the end.
// Every step gathers the embedding, whose columns are sharded, and the logits of
// the rows that were asked for. A single rank has nobody to talk to.
func Expect(s Shape, tp int, f Flags, step StepFacts) Counts {
	if tp < 2 || step.Rows == 0 {
		return Counts{}
	}
	c := Counts{Embedding: 1}
	if step.Samples > 0 {
		c.Head = 1
	}
	if !sharded(tp, f, step) {
		c.AllReduce = 2 * s.Layers
		return c
	}
	c.Sequence = 2*s.Layers + 1
	for _, projection := range []struct {
		k    int
		bias bool
	}{{s.Heads * s.HeadDim / tp, s.Bias}, {s.Intermediate / tp, false}} {
		if fuses(projection.k, projection.bias, tp, f) {
			c.MMRS += s.Layers
		} else {
			c.ReduceScatter += s.Layers
		}
	}
	return c
}

// sharded says whether FlashComm1 is active: switched on, no decode row in the
// step, enough rows and enough ranks.
func sharded(tp int, f Flags, step StepFacts) bool {
	return f.FC1 && step.Decodes == 0 && step.Rows >= f.MinTokens && tp >= f.MinTP
}

// fuses says whether the fused operator takes a projection with k columns of
// activation on each rank.
func fuses(k int, bias bool, tp int, f Flags) bool {
	sizes := tp == 2 || tp == 4 || tp == 8
	return f.MMRS && f.Float32 && sizes && !bias && k >= fusedKMin && k < fusedKEnd
}

// ReadShape reads the numbers that Expect needs from config.json of a
// checkpoint directory. Missing keys take the defaults of the Qwen3 family.
func ReadShape(dir string) (Shape, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return Shape{}, fmt.Errorf("read the shape of %s: %w", dir, err)
	}
	var keys struct {
		Layers       int  `json:"num_hidden_layers"`
		Heads        int  `json:"num_attention_heads"`
		HeadDim      int  `json:"head_dim"`
		Intermediate int  `json:"intermediate_size"`
		Bias         bool `json:"attention_bias"`
	}
	keys.Layers, keys.Heads, keys.HeadDim, keys.Intermediate = 32, 32, 128, 22016
	if err := json.Unmarshal(data, &keys); err != nil {
		return Shape{}, fmt.Errorf("read the shape of %s: config.json: %w", dir, err)
	}
	return Shape{
		Layers: keys.Layers, Heads: keys.Heads, HeadDim: keys.HeadDim,
		Intermediate: keys.Intermediate, Bias: keys.Bias,
	}, nil
}

// Counted turns what a rank's communicator counted into the form of Expect.
func Counted(c collective.Counts) Counts {
	return Counts{
		AllReduce:     int(c.Calls(collective.AllReduce)),
		ReduceScatter: int(c.Calls(collective.ReduceScatter)),
		MMRS:          int(c.Calls(collective.MatmulReduceScatter)),
		Sequence:      int(c.Calls(collective.AllGather, collective.Sequence)),
		Embedding:     int(c.Calls(collective.AllGather, collective.Embedding)),
		Head:          int(c.Calls(collective.AllGather, collective.Head)),
		Selection:     int(c.Calls(collective.AllGather, collective.Selection)),
	}
}

// Check compares what every rank counted in every step with the formula, and
// names the first difference. Each step must have a record of each rank.
func Check(s Shape, tp int, f Flags, records []StepRecord) error {
	seen := map[uint64]int{}
	for i := range records {
		r := &records[i]
		seen[r.Step]++
		want := Expect(s, tp, f, StepFacts{Rows: r.Facts.Rows, Decodes: r.Facts.DecodeRows,
			Samples: r.Samples})
		if got := Counted(r.Counts); got != want {
			return fmt.Errorf("rank %d, step %d of %d rows: counted %+v, the formula says %+v",
				r.Rank, r.Step, r.Facts.Rows, got, want)
		}
		if all, known := calls(r.Counts), want.total(); all != known {
			return fmt.Errorf("rank %d, step %d of %d rows: %d calls, the formula says %d: %v",
				r.Rank, r.Step, r.Facts.Rows, all, known, r.Counts)
		}
	}
	for _, step := range slices.Sorted(maps.Keys(seen)) {
		if seen[step] != tp {
			return fmt.Errorf("step %d: %d records from %d ranks", step, seen[step], tp)
		}
	}
	return nil
}

// total is the number of calls.
func (c Counts) total() int { return c.AllReduce + c.ReduceScatter + c.MMRS + c.AllGather() }

// calls is the number of calls of any kind.
func calls(c collective.Counts) int {
	n := 0
	for _, e := range c {
		n += int(e.Calls)
	}
	return n
}
