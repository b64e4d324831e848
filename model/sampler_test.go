package model

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGreedyTakesTheLargestAndTheLowestOfEqualIDs(t *testing.T) {
	// Ties go to the lowest id, in the token as in the list of alternatives.
	x := choose([]float32{1, 3, 2, 3, -1, 2, 0}, Sampling{}, 5)
	require.Equal(t, 1, x.ID)
	require.Zero(t, x.Margin)
	var ids []int
	for _, top := range x.Top {
		ids = append(ids, top.ID)
	}
	require.Equal(t, []int{1, 3, 2, 5, 0}, ids)
	require.Equal(t, x.Top[0].Logprob, x.Logprob)

	x = choose([]float32{-5, -2, -9}, Sampling{}, 0)
	require.Equal(t, 1, x.ID)
	require.Equal(t, float32(3), x.Margin)
	require.Len(t, x.Top, 3)

	x = choose([]float32{7}, Sampling{}, 0)
	require.Equal(t, float32(0), x.Logprob)
	require.True(t, math.IsInf(float64(x.Margin), 1))
}

func TestLogprobIsOfTheRawLogits(t *testing.T) {
	// Temperature and filters change the choice, not the reported probability.
	logits := []float32{0.5, -1.25, 2, 0}
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	for _, params := range []Sampling{{}, {Temperature: 3, Seed: 1},
		{Temperature: 3, TopK: 1, Seed: 2}} {
		x := choose(logits, params, 3)
		require.InDelta(t, float64(logits[x.ID])-math.Log(sum), x.Logprob, 1e-6)
	}
}

func TestALogitThatIsNoNumberIsAFault(t *testing.T) {
	// NaN and +inf give no token; -inf is a logit like any other.
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range []float32{nan, inf} {
		for at := range 3 {
			logits := []float32{1, 2, 3}
			logits[at] = bad
			for _, params := range []Sampling{{}, {Temperature: 1}} {
				x := choose(logits, params, 0)
				require.NotEmpty(t, x.Fault)
				require.Equal(t, -1, x.ID)
			}
		}
	}
	require.Equal(t, 1, choose([]float32{-inf, 1, -inf}, Sampling{Temperature: 1}, 0).ID)
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	// Over many positions, frequencies are the soft-max of logit / temperature.
	logits := []float32{0, 1, 2, -1}
	for _, temperature := range []float32{0.7, 1, 2} {
		const draws = 40000
		counts := make([]float64, len(logits))
		for pos := range draws {
			counts[choose(logits, Sampling{Temperature: temperature, Seed: 42}, pos).ID]++
		}
		var sum float64
		for _, v := range logits {
			sum += math.Exp(float64(v / temperature))
		}
		for id, v := range logits {
			want := math.Exp(float64(v/temperature)) / sum
			sigma := math.Sqrt(want * (1 - want) / draws)
			require.InDelta(t, want, counts[id]/draws, 4.5*sigma, "token %d at %v", id, temperature)
		}
	}
}

func TestADrawDependsOnSeedPositionAndIDOnly(t *testing.T) {
	// The same arguments give the same token; seed and position change the noise.
	logits := make([]float32, 1000)
	first := choose(logits, Sampling{Temperature: 1, Seed: 3}, 17)
	require.Equal(t, first, choose(logits, Sampling{Temperature: 1, Seed: 3}, 17))
	require.NotEqual(t, first.ID, choose(logits, Sampling{Temperature: 1, Seed: 4}, 17).ID)
	require.NotEqual(t, first.ID, choose(logits, Sampling{Temperature: 1, Seed: 3}, 18).ID)
	// The noise of a token is its own: that others are filtered out before it
	// does not change which of the rest is drawn.
	for id := range 500 {
		logits[id] = -100
	}
	for pos := range 20 {
		all := choose(logits, Sampling{Temperature: 1, Seed: 3}, pos)
		few := choose(logits, Sampling{Temperature: 1, Seed: 3, TopK: 1}, pos)
		require.GreaterOrEqual(t, all.ID, 500)
		require.Equal(t, all.ID, few.ID)
	}
}

func TestFiltersKeepTheMostLikely(t *testing.T) {
	// Top-k keeps ties with the k'th; top-p drops the unlikely tail and always
	// keeps the best; both together go in that order.
	logits := []float32{2, 0, 2, 1, -3}
	for _, c := range []struct {
		params Sampling
		want   []int
	}{
		{Sampling{Temperature: 1}, []int{0, 1, 2, 3, 4}},
		{Sampling{Temperature: 1, TopK: 1}, []int{0, 2}},
		{Sampling{Temperature: 1, TopK: 3}, []int{0, 2, 3}},
		{Sampling{Temperature: 1, TopK: 9}, []int{0, 1, 2, 3, 4}},
		{Sampling{Temperature: 1, TopP: 1}, []int{0, 1, 2, 3, 4}},
		{Sampling{Temperature: 1, TopP: 0.99}, []int{0, 1, 2, 3}},
		{Sampling{Temperature: 1, TopP: 0.6}, []int{0, 2}},
		{Sampling{Temperature: 1, TopP: 0.3}, []int{0}},
		{Sampling{Temperature: 1, TopP: 1e-9}, []int{0}},
		{Sampling{Temperature: 1, TopK: 3, TopP: 0.7}, []int{0, 2}},
		{Sampling{Temperature: 100, TopP: 0.7}, []int{0, 1, 2, 3}},
	} {
		require.Equal(t, c.want, filter(logits, c.params), "%+v", c.params)
	}
}

func TestExponentialIsPositiveAndHasItsMean(t *testing.T) {
	// The mean of Exp(1) is 1, and no draw is zero, negative or infinite.
	var sum float64
	const draws = 100000
	for i := range draws {
		x := exponential(uint64(i%7), i, i/3)
		require.True(t, x > 0 && x < 20, "%v", x)
		sum += float64(x)
	}
	require.InDelta(t, 1, sum/draws, 0.02)
}
