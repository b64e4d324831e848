package kernel

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree is the sum by its definition: left subtree of the largest power of two
// below the count.
func tree(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	left := 1 << (bits.Len(uint(len(x)-1)) - 1)
	return tree(x[:left]) + tree(x[left:])
}

// requireBits compares bit for bit.
func requireBits(t *testing.T, want, got []float32, msg ...any) {
	t.Helper()
	require.Equal(t, len(want), len(got), msg...)
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "bits", "element %d: %x, want %x; %v", i, got[i], want[i], msg)
		}
	}
}

// SumTree adds in the tree of its definition for 1 to 64 parts, in place as well.
func TestSumTree(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, seed))
	for count := 1; count <= PartsMax; count++ {
		n := []int{0, 1, 37, carryBlock, carryBlock + 5}[count%5]
		parts := make([][]float32, count)
		for p := range parts {
			parts[p] = randomRow(r, n, F32)
		}
		want := make([]float32, n)
		for i := range want {
			var x []float32
			for p := range parts {
				x = append(x, parts[p][i])
			}
			want[i] = tree(x)
		}
		dst := make([]float32, n)
		SumTree(dst, parts)
		requireBits(t, want, dst, count)
		SumTree(parts[0], parts)
		requireBits(t, want, parts[0], count, "in place")
	}
}

// laneSum is the 16-lane sum by its definition.
func laneSum(x []float32) float32 {
	lanes := make([]float32, 16)
	for i, v := range x {
		lanes[i%16] += v
	}
	return tree(lanes)
}

// LogSumExp follows its order of addition and is the logarithm of the sum.
func TestLogSumExp(t *testing.T) {
	const seed = 12
	r := rand.New(rand.NewPCG(seed, seed))
	for _, n := range []int{1, 2, 15, 16, 17, 1000, 4001} {
		x := randomRow(r, n, F32)
		top, sum := x[0], 0.0
		for _, v := range x {
			top = max(top, v)
			sum += math.Exp(float64(v))
		}
		var e []float32
		for _, v := range x {
			e = append(e, Exp32(v-top))
		}
		requireBits(t, []float32{top + Log32(laneSum(e))}, []float32{LogSumExp(x)}, n)
		require.InDelta(t, math.Log(sum), float64(LogSumExp(x)), 2e-6*float64(8+top))
	}
	inf := float32(math.Inf(1))
	require.Equal(t, -inf, LogSumExp(nil))
	require.Equal(t, -inf, LogSumExp([]float32{-inf, -inf}))
	require.Equal(t, float32(3), LogSumExp([]float32{-inf, 3}))
	for _, x := range [][]float32{{inf, 0}, {float32(math.NaN()), 1}} {
		require.True(t, LogSumExp(x) != LogSumExp(x), "%v", x)
	}
}
