package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// RMSNorm follows its order of operations, is close to float64, works in place,
// and gives the same row wherever the row stands.
func TestRMSNorm(t *testing.T) {
	const seed, eps = 21, 1e-6
	r := rand.New(rand.NewPCG(seed, seed))
	for _, cols := range []int{1, 7, 16, 64, 1000} {
		const rows = 3
		x, w := randomRow(r, rows*cols, F32), randomRow(r, cols, F32)
		out := make([]float32, rows*cols)
		RMSNorm(out, x, w, rows, cols, eps)
		for i := range rows {
			row := x[i*cols : (i+1)*cols]
			var squares, want []float32
			var sum float64
			for _, v := range row {
				squares = append(squares, float32(v*v))
				sum += float64(v) * float64(v)
			}
			mean := float32(laneSum(squares) / float32(cols))
			scale := 1 / float32(math.Sqrt(float64(mean+eps)))
			for j, v := range row {
				want = append(want, float32(w[j]*float32(v*scale)))
				near := float64(w[j]) * float64(v) / math.Sqrt(sum/float64(cols)+eps)
				require.InDelta(t, near, float64(want[j]), 1e-6*(1+math.Abs(near)))
			}
			requireBits(t, want, out[i*cols:(i+1)*cols], cols)
			alone := make([]float32, cols)
			RMSNorm(alone, row, w, 1, cols, eps)
			requireBits(t, want, alone, "alone")
		}
		RMSNorm(x, x, w, rows, cols, eps)
		requireBits(t, out, x, "in place")
	}
}

// A row of zeros stays one in RMSNorm, with and without eps.
func TestRMSNormZeroRow(t *testing.T) {
	for _, eps := range []float32{0, 1e-6} {
		out := []float32{7, 7}
		RMSNorm(out, []float32{0, 0}, []float32{3, -3}, 1, 2, eps)
		require.Equal(t, []float32{0, 0}, []float32{out[0], out[1]})
	}
}

// Rope turns the pairs (j, j+rot/2) of each head and leaves the rest.
func TestRope(t *testing.T) {
	const seed, heads, dim, rot = 22, 3, 8, 6
	r := rand.New(rand.NewPCG(seed, seed))
	x := randomRow(r, heads*dim, F32)
	was := append([]float32(nil), x...)
	c, s := []float32{0.5, 1, -0.25}, []float32{0.75, 0.1, 3}
	Rope(x, c, s, heads, dim, rot)
	for h := range heads {
		for j := range dim {
			at, want := h*dim+j, was[h*dim+j]
			switch {
			case j < rot/2:
				want = float32(was[at]*c[j]) - float32(was[at+rot/2]*s[j])
			case j < rot:
				k := j - rot/2
				want = float32(was[at]*c[k]) + float32(was[at-rot/2]*s[k])
			}
			requireBits(t, []float32{want}, x[at:at+1], h, j)
		}
	}
}

// SiluMul is gate/(1+e^-gate) * up, also where e^-gate overflows; Add is a sum.
func TestSiluMulAdd(t *testing.T) {
	gate := []float32{0, 1, -1, 20, -20, -100, 100, -3e38}
	up := []float32{5, 2, 2, 3, 3, 3, 3, 1}
	out := make([]float32, len(gate))
	SiluMul(out, gate, up)
	for i, u := range gate {
		want := float64(u) / (1 + math.Exp(-float64(u))) * float64(up[i])
		require.InDelta(t, want, float64(out[i]), 1e-6*math.Abs(want)+1e-37)
		require.True(t, finite(out[i]))
	}
	in := append([]float32(nil), gate...)
	SiluMul(in, in, up)
	requireBits(t, out, in, "in place")
	Add(in, gate, up)
	for i := range in {
		require.Equal(t, gate[i]+up[i], in[i])
	}
}
