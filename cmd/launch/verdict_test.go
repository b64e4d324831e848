package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/cluster"
	"octet/model"
)

// made is an outcome that no group gave: two tokens of one prompt, two tensors,
// and the counts of a setting in which FC1 and MMRS ran.
func made(name string, fused bool) *outcome {
	o := &outcome{
		setting: setting{name: name, options: verifyDefaults()},
		tokens: [][]model.Token{{
			{ID: 5, Logprob: -0.5, Margin: 0.2}, {ID: 7, Logprob: -1.25, Margin: 0.004},
		}},
		digests: []map[model.DigestKey]uint64{{
			{Op: model.OpKey, Layer: 0}: 11, {Op: model.OpResidual, Layer: 1}: 12,
		}},
		counts: counted{steps: 2, fc1: 1, refusals: map[string]int{}},
	}
	if fused {
		o.counts.got.MMRS = 4
		o.counts.expected.MMRS = 4
	}
	return o
}

// Exit code 0 is for outcomes that are equal in every token, log-probability,
// state and count, and in which FC1 and MMRS ran; what is worst decides.
func TestVerdictOfEveryDifference(t *testing.T) {
	differ := func(o *outcome, op model.Op, layer, value uint64) {
		o.digests[0] = maps.Clone(o.digests[0])
		o.digests[0][model.DigestKey{Op: op, Layer: layer}] = value
	}
	for _, c := range []struct {
		name    string
		change  func(o *outcome)
		verdict string
		exit    int
		advice  string
	}{
		{"equal", func(*outcome) {}, "equal", exitOK, ""},
		{"a token", func(o *outcome) { o.tokens[0][0].ID = 6 },
			"different", exitDifferent, "token 0: 6, 5 in the reference (margin 0.2000)"},
		{"a near-tie", func(o *outcome) { o.tokens[0][1].ID = 8 },
			"near-tie", exitNearTie, "token 1: 8, 7 in the reference (margin 0.0040)"},
		{"a near-tie after log-probabilities that differ much", func(o *outcome) {
			o.tokens[0][0].Logprob = -0.55
			o.tokens[0][1].ID = 8
		}, "different", exitDifferent, "token 1"},
		{"the last bit of a log-probability", func(o *outcome) {
			o.tokens[0][1].Logprob = math.Nextafter32(-1.25, 0)
		}, "different", exitDifferent, "log-probabilities differ"},
		{"a log-probability that is no number", func(o *outcome) {
			o.tokens[0][1].Logprob = float32(math.NaN())
		}, "different", exitDifferent, "log-probabilities differ"},
		{"a log-probability without bound", func(o *outcome) {
			o.tokens[0][0].Logprob = float32(math.Inf(-1))
			o.tokens[0][1].ID = 8
		}, "different", exitDifferent, "token 1"},
		{"the number of tokens", func(o *outcome) { o.tokens[0] = o.tokens[0][:1] },
			"different", exitDifferent, "1 tokens, 2 in the reference"},
		{"a state", func(o *outcome) { differ(o, model.OpKey, 0, 99) },
			"different", exitDifferent, "key of layer 0 differs"},
		{"a state that is not there", func(o *outcome) { o.digests[0] = nil },
			"different", exitDifferent, "key of layer 0 differs"},
		{"a state too many", func(o *outcome) { differ(o, model.OpLogits, 0, 1) },
			"different", exitDifferent, "logits of layer 0 differs"},
		{"counts", func(o *outcome) { o.wrong = errors.New("rank 3, step 1: 2 too many") },
			"different", exitDifferent, "rank 3, step 1"},
		{"FC1 never ran", func(o *outcome) {
			o.counts.fc1 = 0
			o.counts.refusals["fc1: decode row in step"] = 2
		}, "vacuous", exitVacuous, "fc1: decode row in step x2"},
		{"MMRS never ran", func(o *outcome) { o.counts.got = cluster.Counts{} },
			"vacuous", exitVacuous, "MMRS never ran"},
		{"all at once", func(o *outcome) {
			o.tokens[0][1].ID, o.counts.fc1 = 8, 0
			o.wrong = errors.New("miscounted")
		}, "different", exitDifferent, "miscounted"},
		{"a near-tie where FC1 never ran", func(o *outcome) {
			o.tokens[0][1].ID, o.counts.fc1 = 8, 0
		}, "near-tie", exitNearTie, "token 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reportOf(t, c.change)
			require.Equal(t, c.verdict, r.Verdict, r.advice)
			require.Equal(t, c.exit, r.exit)
			require.Equal(t, c.exit == exitOK, r.Equal)
			require.Contains(t, r.Advice, c.advice)
		})
	}
}

// reportOf holds an outcome that was changed against one that was not. The
// report can be written as JSON whatever it says.
func reportOf(t *testing.T, change func(o *outcome)) *verifyReport {
	t.Helper()
	v := &verifier{group: &groupFlags{tp: 8}, target: &target{name: "a model"},
		prompts: []prompt{{name: "one"}}}
	ref, other := made("fc1 off", true), made("fc1+mmrs aiv", true)
	change(other)
	r := v.report([]*outcome{ref, other})
	var out bytes.Buffer
	require.NoError(t, r.writeJSON(&out))
	var back map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, r.Verdict, back["verdict"])
	require.Len(t, back["settings"], 2)
	return r
}

// A difference that is no number is the largest float32 in JSON, which has
// neither NaN nor infinities.
func TestDifferencesThatAreNoNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, c := range [][2]float32{{-1, nan}, {nan, -1}, {nan, nan}, {inf, -1}, {inf, inf}} {
		require.InDelta(t, math.MaxFloat32, apart(c[0], c[1]), 0, c)
	}
	require.Zero(t, apart(-1, -1))
	require.InDelta(t, 0.5, apart(-1, -1.5), 0)
}

// One rank has nothing to shard, and says so whatever else did not run.
func TestVerdictOfOneRank(t *testing.T) {
	v := &verifier{group: &groupFlags{tp: 1}, target: &target{name: "a model"},
		prompts: []prompt{{name: "one"}}}
	r := v.report([]*outcome{made("fc1 off", false), made("fc1", false)})
	require.Equal(t, "vacuous", r.Verdict)
	require.Equal(t, exitVacuous, r.exit)
	require.False(t, r.Equal)
	require.Equal(t, "one rank has nothing to shard: give --tp 2 or more", r.Advice)
}
