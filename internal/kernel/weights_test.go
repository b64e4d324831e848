package kernel

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// hardRow is n values among which ties, cancellation, zeros and, with tiny, sums
// in the subnormal range are common. step is the binary orders by which some
// rows grow from value to value: with 54, a product of 25 bits, which is a tie,
// meets an earlier sum so small that float64 loses it. Some tiny rows take the sum
// to just below 2^-126 and then add half of 2^-149, less what float64 loses.
func hardRow(r *rand.Rand, n int, tiny bool, step int) []float32 {
	x := make([]float32, n)
	if tiny && r.IntN(2) == 0 {
		almost := 1 + float32(math.Copysign(0x1p-20, float64(step-1)))
		for i := range x {
			x[i] = almost * 0x1p-75 * float32(1-2*r.IntN(2))
		}
		x[0] = 0x1.8p-64
		if step > 0 {
			x[0] = 0x1.800006p-64 // the first sum is odd
		}
		return x
	}
	kind := r.IntN(6)
	for i := range x {
		switch kind {
		case 0: // padding
		case 1:
			x[i] = float32(r.NormFloat64())
		case 2: // few bits, many exponents: exact ties
			x[i] = float32(math.Ldexp(float64(r.IntN(255)-127), r.IntN(24)-12))
		default:
			bits := []int{8, 11}[r.IntN(2)]
			if step > 0 {
				bits = 25 - bits
			}
			odd := 1<<(bits-1) + 2*r.IntN(1<<(bits-2)) + 1
			x[i] = float32(math.Ldexp(float64(odd), i%4*step-2*step)) * float32(1-2*r.IntN(2))
		}
		if tiny {
			x[i] = float32(math.Ldexp(float64(x[i]), -70))
		}
	}
	return x
}

// segment is the dot product of x and w by FMA32, k ascending.
func segment(x, w []float32) float32 {
	var acc float32
	for k := range x {
		acc = FMA32(x[k], w[k], acc)
	}
	return acc
}

// product is Partial by its definition; w (n, k) is in float32.
func product(x, w []float32, m, n, k, segs, from, to int) []float32 {
	y := make([]float32, 0, m*n)
	size := k / segs
	for i := range m {
		for j := range n {
			var parts []float32
			for s := from; s < to; s++ {
				a, b := x[i*k+s*size:][:size], w[j*k+s*size:][:size]
				parts = append(parts, segment(a, b))
			}
			y = append(y, tree(parts))
		}
	}
	return y
}

// matrix is a stored matrix (n, k), its values and its packed form.
func matrix(r *rand.Rand, t Type, n, k int, tiny bool) ([]byte, []float32, *Weights) {
	var values []float32
	for range n {
		values = append(values, hardRow(r, k, tiny, 0)...)
	}
	raw := make([]byte, n*k*t.Size())
	Narrow(raw, values, t)
	Round(values, t)
	return raw, values, Pack(raw, t, n, k)
}

// Partial equals its definition bit for bit for random shapes, types, segments
// and values; so do each row alone, and each part of the columns alone.
func TestPartial(t *testing.T) {
	const seed = 31
	r := rand.New(rand.NewPCG(seed, seed))
	for round := range 250 {
		typ := []Type{F32, BF16, F16}[round%3]
		segs := 1 + r.IntN(8)
		m, n, k := 1+r.IntN(6), 1+r.IntN(30), segs*(1+r.IntN(60))
		if round%25 == 0 {
			m, n, k = tile+3, 19, segs*(depth+7)
		}
		from := r.IntN(segs)
		to := from + 1 + r.IntN(segs-from)
		tiny := typ != F16 && r.IntN(3) == 0
		raw, values, w := matrix(r, typ, n, k, tiny)
		require.Equal(t, []int{n, k}, []int{w.Rows(), w.Cols()})
		var x []float32
		for range m {
			x = append(x, hardRow(r, k, tiny, 54)...)
		}
		want := product(x, values, m, n, k, segs, from, to)
		y := make([]float32, m*n)
		w.Partial(y, x, m, segs, from, to)
		requireBits(t, want, y, "seed", seed, "round", round, typ, m, n, k, segs, from, to)

		for i := range m {
			row := make([]float32, n)
			w.Partial(row, x[i*k:(i+1)*k], 1, segs, from, to)
			requireBits(t, want[i*n:(i+1)*n], row, "one row", round)
		}
		first := r.IntN(n)
		some := 1 + r.IntN(n-first)
		size := k * typ.Size()
		part := Pack(raw[first*size:(first+some)*size], typ, some, k)
		cols := make([]float32, m*some)
		part.Partial(cols, x, m, segs, from, to)
		for i := range m {
			requireBits(t, want[i*n+first:][:some], cols[i*some:][:some], "columns", round)
		}
	}
}

// The random values of these tests do meet sums that rounding twice, or leaving
// out the look for subnormals, would get wrong.
func TestPartialMeetsHardSums(t *testing.T) {
	const seed = 32
	r := rand.New(rand.NewPCG(seed, seed))
	var ties, subnormals int
	for i := range 3000 {
		x, w := hardRow(r, 100, i%2 == 0, 54), hardRow(r, 100, i%2 == 0, 0)
		var acc float32
		for k := range x {
			s := float64(x[k])*float64(w[k]) + float64(acc)
			acc = FMA32(x[k], w[k], acc)
			if float32(s) != acc && math.Abs(s) >= 0x1p-126 {
				ties++
			} else if float32(s) != acc {
				subnormals++
			}
		}
	}
	t.Logf("%d ties, %d subnormals", ties, subnormals)
	require.Greater(t, ties, 100, "seed %d", seed)
	require.Greater(t, subnormals, 200, "seed %d", seed)
}

// All segments in one call equal the tree of one call a segment, and the tree
// over ranks that hold equal slices of K, for each number of ranks.
func TestPartialSegmentsAndRanks(t *testing.T) {
	const seed = 33
	r := rand.New(rand.NewPCG(seed, seed))
	for _, segs := range []int{1, 2, 4, 8, 16, 64} {
		m, n, k := 3, 11, segs*(5+r.IntN(20))
		raw, _, w := matrix(r, BF16, n, k, false)
		x := randomRow(r, m*k, F32)
		whole := make([]float32, m*n)
		w.Partial(whole, x, m, segs, 0, segs)

		var parts [][]float32
		for s := range segs {
			y := make([]float32, m*n)
			w.Partial(y, x, m, segs, s, s+1)
			parts = append(parts, y)
		}
		sum := make([]float32, m*n)
		SumTree(sum, parts)
		requireBits(t, whole, sum, "segments", segs)

		for tp := 1; tp <= segs; tp *= 2 {
			parts = parts[:0]
			for rank := range tp {
				y := make([]float32, m*n)
				slice, xs := columns(raw, x, n, k, rank*k/tp, (rank+1)*k/tp)
				Pack(slice, BF16, n, k/tp).Partial(y, xs, m, segs/tp, 0, segs/tp)
				parts = append(parts, y)
			}
			SumTree(sum, parts)
			requireBits(t, whole, sum, "ranks", tp, "segments", segs)
		}
	}
}

// columns cuts [from, to) of K out of the bf16 matrix raw (n, k) and of x (m, k).
func columns(raw []byte, x []float32, n, k, from, to int) ([]byte, []float32) {
	var slice []byte
	var xs []float32
	for j := range n {
		slice = append(slice, raw[2*(j*k+from):2*(j*k+to)]...)
	}
	for i := range len(x) / k {
		xs = append(xs, x[i*k+from:i*k+to]...)
	}
	return slice, xs
}

// A value that is not finite spoils the elements that it enters and no other.
func TestPartialNotFinite(t *testing.T) {
	for _, typ := range []Type{F32, BF16, F16} {
		partialNotFinite(t, typ)
	}
}

func partialNotFinite(t *testing.T, typ Type) {
	const seed, m, n, k = 34, 4, 12, 20
	r := rand.New(rand.NewPCG(seed, seed))
	values := randomRow(r, n*k, typ)
	values[5*k+3] = float32(math.Inf(1))
	x := randomRow(r, m*k, F32)
	x[2*k+7] = float32(math.NaN())
	raw := make([]byte, n*k*typ.Size())
	Narrow(raw, values, typ)
	w := Pack(raw, typ, n, k)
	clear(raw) // Pack has copied it
	y := make([]float32, m*n)
	w.Partial(y, x, m, 1, 0, 1)
	want := product(x, values, m, n, k, 1, 0, 1)
	for i := range m {
		for j := range n {
			got := y[i*n+j]
			require.Equal(t, i != 2 && j != 5, finite(got), "(%d, %d): %v", i, j, got)
			if finite(got) {
				require.Equal(t, math.Float32bits(want[i*n+j]), math.Float32bits(got))
			}
		}
	}
	require.Equal(t, typ.Size()*16*k, w.Bytes(), "12 columns take two panels of 8")
}

// Partial overflows to infinity as FMA32 does, and a row of zeros gives +0.
func TestPartialOverflowAndZero(t *testing.T) {
	raw := make([]byte, 2*4)
	Narrow(raw, []float32{0x1p127, -1, 0x1p127, -1}, BF16)
	w := Pack(raw, BF16, 1, 4)
	y := []float32{7}
	w.Partial(y, []float32{1, 1, 1, 1}, 1, 1, 0, 1)
	require.Equal(t, float32(math.Inf(1)), y[0])
	w.Partial(y, make([]float32, 4), 1, 1, 0, 1)
	require.Equal(t, uint32(0), math.Float32bits(y[0]))
}

// One Weights serves several goroutines at once.
func TestPartialConcurrently(t *testing.T) {
	const seed, m, n, k = 35, 5, 40, 300
	r := rand.New(rand.NewPCG(seed, seed))
	w, _ := randomWeights(r, BF16, n, k)
	x, want := randomRow(r, m*k, F32), make([]float32, m*n)
	w.Partial(want, x, m, 4, 0, 4)
	results := make([][]float32, 4)
	var wait sync.WaitGroup
	for i := range results {
		wait.Go(func() { // ends by itself
			for range 20 {
				results[i] = make([]float32, m*n)
				w.Partial(results[i], x, m, 4, 0, 4)
			}
		})
	}
	wait.Wait()
	for _, y := range results {
		requireBits(t, want, y)
	}
}

// gridOf is a power of two that divides all values.
func TestGridOf(t *testing.T) {
	require.Equal(t, exactZero, gridOf([]float32{0, float32(math.Copysign(0, -1))}))
	require.Equal(t, 0, gridOf([]float32{1, 0, 2, 4}))
	require.Equal(t, -23, gridOf([]float32{1, 0x1.000002p0}))
	require.Equal(t, -149, gridOf([]float32{1, 0x1p-149}))
	require.Equal(t, -140, gridOf([]float32{1, -0x1p-140}))
	const seed = 36
	r := rand.New(rand.NewPCG(seed, seed))
	for range 1000 {
		x := []float32{crafted(r), crafted(r), crafted(r)}
		g := gridOf(x)
		for _, v := range x {
			units := math.Ldexp(float64(v), -g)
			require.Equal(t, math.Trunc(units), units, "%x in 2^%d", v, g)
		}
	}
}
