package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// digestRows is the digest of rows [from, to) and columns [left, right) of x
// (rows, cols).
func digestRows(op, layer uint64, x []float32, cols, from, to, left, right int) uint64 {
	var sum uint64
	for i := from; i < to; i++ {
		sum += Digest(op, layer, uint64(i)<<20, left, x[i*cols+left:i*cols+right])
	}
	return sum
}

// Digests of parts add up to that of the whole, however rows and columns are cut.
func TestDigestOfParts(t *testing.T) {
	const seed, rows, cols = 51, 9, 40
	r := rand.New(rand.NewPCG(seed, seed))
	x := randomRow(r, rows*cols, F32)
	whole := digestRows(1, 2, x, cols, 0, rows, 0, cols)
	for range 500 {
		i, j := r.IntN(rows+1), r.IntN(cols+1)
		sum := digestRows(1, 2, x, cols, 0, i, 0, j) + digestRows(1, 2, x, cols, 0, i, j, cols) +
			digestRows(1, 2, x, cols, i, rows, 0, cols)
		require.Equal(t, whole, sum, "cut at row %d, column %d", i, j)
	}
	require.Zero(t, Digest(1, 2, 3, 4, nil))
}

// One flipped bit, swapped rows, columns, layers or operations, a missing or a
// shifted part and a zero instead of nothing each change the digest.
func TestDigestSeesDifferences(t *testing.T) {
	const seed, rows, cols = 52, 4, 16
	r := rand.New(rand.NewPCG(seed, seed))
	x := randomRow(r, rows*cols, F32)
	whole := func(x []float32) uint64 { return digestRows(1, 2, x, cols, 0, rows, 0, cols) }
	changed := func(change func(x []float32)) {
		t.Helper()
		y := append([]float32(nil), x...)
		change(y)
		require.NotEqual(t, whole(x), whole(y))
	}
	for i := range x {
		for bit := range 32 {
			changed(func(x []float32) {
				x[i] = math.Float32frombits(math.Float32bits(x[i]) ^ 1<<bit)
			})
		}
	}
	changed(func(x []float32) { // rows 1 and 2
		for j := range cols {
			x[cols+j], x[2*cols+j] = x[2*cols+j], x[cols+j]
		}
	})
	changed(func(x []float32) { // columns 3 and 4 of all rows
		for i := range rows {
			x[i*cols+3], x[i*cols+4] = x[i*cols+4], x[i*cols+3]
		}
	})
	changed(func(x []float32) { x[5], x[6] = x[6], x[5] })
	one, two := x[:cols], x[cols:2*cols]
	require.NotEqual(t, Digest(1, 0, 5, 0, one)+Digest(1, 1, 5, 0, two),
		Digest(1, 1, 5, 0, one)+Digest(1, 0, 5, 0, two), "swapped layers")
	require.NotEqual(t, Digest(1, 2, 5, 0, one), Digest(2, 1, 5, 0, one), "operation and layer")
	require.NotEqual(t, Digest(1, 2, 5, 0, one), Digest(1, 5, 2, 0, one), "layer and row")
	require.NotEqual(t, Digest(1, 2, 5, 0, one), Digest(1, 2, 5, 1, one), "shifted")
	zero, minus := []float32{0}, []float32{float32(math.Copysign(0, -1))}
	require.NotZero(t, Digest(0, 0, 0, 0, zero))
	require.NotEqual(t, Digest(0, 0, 0, 0, zero), Digest(0, 0, 0, 0, minus))
	require.NotEqual(t, Digest(0, 0, 0, 0, zero), Digest(0, 0, 0, 1, zero))
}

// The digests of a million elements that differ little are all different.
func TestDigestSpreads(t *testing.T) {
	seen := make(map[uint64]bool)
	for op := range uint64(4) {
		for layer := range uint64(8) {
			for row := range uint64(32) {
				for col := range 32 {
					for bits := range uint32(32) {
						x := [1]float32{math.Float32frombits(bits << 20)}
						seen[Digest(op, layer, row, col, x[:])] = true
					}
				}
			}
		}
	}
	require.Len(t, seen, 4*8*32*32*32)
}
