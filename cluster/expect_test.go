package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/model"
)

// The number of collectives of a step follows from the shape, the flags and
// the rows; the numbers here were counted by hand from the description of FC1.
func TestExpect(t *testing.T) {
	const layers = 3
	narrow := Shape{Layers: layers, Heads: 8, HeadDim: 16, Intermediate: 96}
	wide := Shape{Layers: layers, Heads: 16, HeadDim: 128, Intermediate: 2048}
	biased := wide
	biased.Bias = true
	off := Flags{MinTokens: 1, MinTP: 2, Float32: true}
	on, fused := off, off
	on.FC1 = true
	fused.FC1, fused.MMRS = true, true
	device, strict, large := fused, fused, fused
	device.Float32 = false
	strict.MinTokens = 8192
	large.MinTP = 8

	plain := Counts{AllReduce: 6, Embedding: 1, Head: 1}
	sharded := Counts{ReduceScatter: 6, Sequence: 7, Embedding: 1, Head: 1}
	for _, c := range []struct {
		name  string
		shape Shape
		tp    int
		flags Flags
		step  StepFacts
		want  Counts
	}{
		{"a single rank is silent", narrow, 1, fused, StepFacts{17, 0, 1}, Counts{}},
		{"off", narrow, 8, off, StepFacts{17, 0, 1}, plain},
		{"on", narrow, 8, on, StepFacts{17, 0, 1}, sharded},
		{"no sample, no logits", narrow, 8, on, StepFacts{17, 0, 0},
			Counts{ReduceScatter: 6, Sequence: 7, Embedding: 1}},
		{"mmrs without fc1", wide, 8, Flags{MMRS: true, Float32: true}, StepFacts{17, 0, 1},
			plain},
		{"k too narrow to fuse", narrow, 8, fused, StepFacts{17, 0, 1}, sharded},
		{"both fuse", wide, 8, fused, StepFacts{17, 0, 1},
			Counts{MMRS: 6, Sequence: 7, Embedding: 1, Head: 1}},
		{"bias keeps the output projection apart", biased, 8, fused, StepFacts{17, 0, 1},
			Counts{ReduceScatter: 3, MMRS: 3, Sequence: 7, Embedding: 1, Head: 1}},
		{"the device refuses float32", wide, 8, device, StepFacts{17, 0, 1}, sharded},
		{"16 ranks never fuse", wide, 16, fused, StepFacts{17, 0, 1}, sharded},
		{"a decode row switches fc1 off", wide, 8, fused, StepFacts{18, 1, 1}, plain},
		{"one row below the threshold", wide, 8, strict, StepFacts{8191, 0, 1}, plain},
		{"the threshold", wide, 8, strict, StepFacts{8192, 0, 1},
			Counts{MMRS: 6, Sequence: 7, Embedding: 1, Head: 1}},
		{"too few ranks", wide, 4, large, StepFacts{17, 0, 1}, plain},
		{"k of 255", Shape{Layers: layers, Heads: 1, HeadDim: 510, Intermediate: 512}, 2, fused,
			StepFacts{17, 0, 1},
			Counts{ReduceScatter: 3, MMRS: 3, Sequence: 7, Embedding: 1, Head: 1}},
		{"k of 65535", Shape{Layers: layers, Heads: 1, HeadDim: 512, Intermediate: 131070}, 2,
			fused, StepFacts{17, 0, 1},
			Counts{ReduceScatter: 3, MMRS: 3, Sequence: 7, Embedding: 1, Head: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, Expect(c.shape, c.tp, c.flags, c.step))
		})
	}
}

// Check names the first rank and step that counted otherwise, a call of a kind
// that the formula does not know, and a record that is missing.
func TestCheckNamesTheDifference(t *testing.T) {
	shape := Shape{Layers: 1, Heads: 8, HeadDim: 16, Intermediate: 96}
	flags := Flags{MinTokens: 1, MinTP: 2, Float32: true}
	records := func() []StepRecord {
		var all []StepRecord
		for step := uint64(1); step <= 2; step++ {
			for r := range 2 {
				all = append(all, StepRecord{Rank: r, Step: step, Samples: 1,
					Facts: model.Facts{Rows: 5},
					Counts: collective.Counts{
						{Verb: collective.AllReduce, Purpose: collective.Sequence, Calls: 2},
						{Verb: collective.AllGather, Purpose: collective.Embedding, Calls: 1},
						{Verb: collective.AllGather, Purpose: collective.Head, Calls: 1},
					}})
			}
		}
		return all
	}
	require.NoError(t, Check(shape, 2, flags, records()))

	extra := records()
	extra[3].Counts[0].Calls = 3
	require.ErrorContains(t, Check(shape, 2, flags, extra), "rank 1, step 2 of 5 rows: counted")

	unknown := records()
	unknown[2].Counts = append(unknown[2].Counts,
		collective.Count{Verb: collective.Barrier, Purpose: collective.Control, Calls: 1})
	require.ErrorContains(t, Check(shape, 2, flags, unknown), "rank 0, step 2 of 5 rows: 5 calls")

	require.ErrorContains(t, Check(shape, 2, flags, records()[:3]),
		"step 2: 1 records from 2 ranks")

	flags.FC1 = true
	require.ErrorContains(t, Check(shape, 2, flags, records()), "rank 0, step 1 of 5 rows: counted")
}
