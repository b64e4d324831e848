package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// attendPlainly is Attend by its definition: one FMA32 after the other.
func attendPlainly(q []float32, keys, values [][]float32, n, dim int, scale float32) []float32 {
	out := make([]float32, dim)
	var top, sum float32
	for b := 0; b*KeyBlock < n; b++ {
		var s []float32
		next := float32(math.Inf(-1))
		for j := range min(KeyBlock, n-b*KeyBlock) {
			s = append(s, segment(q, keys[b][j*dim:(j+1)*dim])*scale)
			next = max(next, s[j])
		}
		if b == 0 {
			top = next
		} else if next > top {
			shrink := Exp32(top - next)
			sum = float32(sum * shrink)
			for d := range out {
				out[d] = float32(out[d] * shrink)
			}
			top = next
		}
		for j := range s {
			s[j] = Exp32(s[j] - top)
			for d := range out {
				out[d] = FMA32(s[j], values[b][j*dim+d], out[d])
			}
		}
		sum += laneSum(s)
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

// attendExactly is soft-max attention in float64.
func attendExactly(q []float32, keys, values [][]float32, n, dim int, scale float32) []float64 {
	out, sum := make([]float64, dim), 0.0
	for j := range n {
		var s float64
		for d, v := range q {
			s += float64(v) * float64(keys[j/KeyBlock][j%KeyBlock*dim+d])
		}
		e := math.Exp(s * float64(scale))
		sum += e
		for d := range out {
			out[d] += e * float64(values[j/KeyBlock][j%KeyBlock*dim+d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

// poison makes all positions from n on NaN.
func poison(blocks [][]float32, n, dim int) [][]float32 {
	for b := range blocks {
		for i := range blocks[b] {
			if b*KeyBlock+i/dim >= n {
				blocks[b][i] = float32(math.NaN())
			}
		}
	}
	return blocks
}

// Attend equals its definition bit for bit, is soft-max attention, and does not
// read what lies beyond n.
func TestAttend(t *testing.T) {
	const seed = 41
	r := rand.New(rand.NewPCG(seed, seed))
	for _, n := range []int{1, 2, 7, 8, 9, 63, 64, 65, 128, 200, 513} {
		for _, dim := range []int{1, 6, 8, 32, 100, depth + 24} {
			keys := poison(randomBlocks(r, n+70, dim), n, dim)
			values := poison(randomBlocks(r, n+70, dim), n, dim)
			q, out := randomRow(r, dim, F32), randomRow(r, dim, F32)
			scores := make([]float32, KeyBlock)
			for _, scale := range []float32{0.1, 30 / float32(dim)} {
				Attend(out, q, keys, values, n, dim, scale, scores)
				requireBits(t, attendPlainly(q, keys, values, n, dim, scale), out, n, dim)
				for d, v := range attendExactly(q, keys, values, n, dim, scale) {
					require.InDelta(t, v, float64(out[d]), 2e-5, "n %d dim %d", n, dim)
				}
			}
		}
	}
}

// Scores so far apart that weights are subnormal or zero change nothing in this.
func TestAttendPeaked(t *testing.T) {
	const seed, n, dim = 42, 150, 16
	r := rand.New(rand.NewPCG(seed, seed))
	keys, values := randomBlocks(r, n, dim), randomBlocks(r, n, dim)
	q, out, scores := randomRow(r, dim, F32), make([]float32, dim), make([]float32, KeyBlock)
	for _, scale := range []float32{5, 12, 20, 100} {
		Attend(out, q, keys, values, n, dim, scale, scores)
		requireBits(t, attendPlainly(q, keys, values, n, dim, scale), out, scale)
	}
}

// AttendRows gives each row the bits that Attend gives it alone, whatever the
// other rows are and see.
func TestAttendRows(t *testing.T) {
	const seed, n = 43, 300
	r := rand.New(rand.NewPCG(seed, seed))
	for _, rows := range []int{1, 3, 4, 32, 45} {
		for _, dim := range []int{12, 64} {
			scale := []float32{0.2, 8}[r.IntN(2)]
			var q, out [][]float32
			var seen []int
			most := 0
			for range rows {
				q, out = append(q, randomRow(r, dim, F32)), append(out, randomRow(r, dim, F32))
				seen = append(seen, 1+r.IntN(n))
				most = max(most, seen[len(seen)-1])
			}
			keys := poison(randomBlocks(r, n, dim), most, dim)
			values := poison(randomBlocks(r, n, dim), most, dim)
			scores := make([]float32, rows*KeyBlock)
			AttendRows(out, q, seen, keys, values, dim, scale, scores)
			for i := range rows {
				alone := make([]float32, dim)
				Attend(alone, q[i], keys, values, seen[i], dim, scale, scores)
				requireBits(t, alone, out[i], "seed", seed, "rows", rows, "row", i)
			}
		}
	}
}

// A weight times a value that comes to half of 2^-149, but for a difference that
// float64 loses beside a subnormal sum, is rounded as FMA32 does.
func TestAttendSubnormal(t *testing.T) {
	const dim, rows = 8, 5
	hard := 0
	for i := range 2000 {
		score := -30 - float32(i)/1024
		v := float32(0x1p-150 / float64(Exp32(score)))
		p := float64(v) * float64(Exp32(score))
		first := float32(0x1.00001p-127)
		if s := p + float64(first); p == 0x1p-150 || s != 0x1p-150+float64(first) {
			continue
		}
		hard++
		keys, values := make([]float32, KeyBlock*dim), make([]float32, KeyBlock*dim)
		keys[dim], values[3], values[dim+3] = score, first, v
		var q, out [][]float32
		for range rows {
			q, out = append(q, []float32{1, 0, 0, 0, 0, 0, 0, 0}), append(out, make([]float32, dim))
		}
		scores := make([]float32, rows*KeyBlock)
		k, vs := [][]float32{keys}, [][]float32{values}
		want := attendPlainly(q[0], k, vs, 2, dim, 1)
		AttendRows(out, q, []int{2, 2, 2, 2, 2}, k, vs, dim, 1, scores)
		for _, row := range out {
			requireBits(t, want, row, i)
		}
		Attend(out[0], q[0], k, vs, 2, dim, 1, scores)
		requireBits(t, want, out[0], i)
	}
	require.Greater(t, hard, 5)
}
