package collectivetest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// guardBytes lie on either side of every buffer and must stay as they are.
const guardBytes = 64

// memory is a buffer between guards.
type memory struct {
	all, data []byte
	kind      kind
	was       []byte // data as it was filled
}

// newMemory returns count elements of kind k, aligned, between guards.
func newMemory(k kind, count int) *memory {
	size := count * k.Size()
	words := make([]uint64, (size+2*guardBytes)/8+1)
	all := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
	copy(all, bytes.Repeat([]byte{0xA5}, len(all)))
	return &memory{all: all, data: all[guardBytes : guardBytes+size : guardBytes+size], kind: k}
}

// fill stores values that no order of addition but one sums to the same bits,
// and returns them as they are stored.
func (m *memory) fill(seed, rank uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, rank+1))
	out := make([]float32, m.count())
	for i := range out {
		x := float32(math.Ldexp(rng.Float64()*2-1, rng.IntN(12)-4))
		m.kind.put(m.data, i, x)
		out[i] = m.kind.get(m.data, i)
	}
	m.was = bytes.Clone(m.data)
	return out
}

func (m *memory) count() int { return len(m.data) / m.kind.Size() }

func (m *memory) buffer() collective.Buffer {
	return collective.Bytes(m.kind.DataType, m.data)
}

// part is elements [from, from+n).
func (m *memory) part(from, n int) collective.Buffer {
	s := m.kind.Size()
	return collective.Bytes(m.kind.DataType, m.data[from*s:(from+n)*s])
}

// checkGuards fails the test if a byte outside the buffer was written.
func (m *memory) checkGuards(t *testing.T, what string) {
	t.Helper()
	for _, guard := range [][]byte{m.all[:guardBytes], m.all[guardBytes+len(m.data):]} {
		if n := bytes.Count(guard, []byte{0xA5}); n != len(guard) {
			require.FailNow(t, "memory outside the buffer was written", "%s: %d bytes", what,
				len(guard)-n)
		}
	}
}

// checkBits fails the test at the first element that is not want, bit for bit; a
// NaN must be a NaN.
func checkBits(t *testing.T, what string, k kind, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	require.Len(t, got, len(want), what)
	for i := range len(want) / k.Size() {
		a, b := k.get(got, i), k.get(want, i)
		s := k.Size()
		if bytes.Equal(got[i*s:(i+1)*s], want[i*s:(i+1)*s]) || (a != a && b != b) {
			continue
		}
		require.FailNow(t, "bits differ", "%s: element %d of %d is %v, want %v (%x, %x)", what, i,
			len(want)/s, a, b, got[i*s:(i+1)*s], want[i*s:(i+1)*s])
	}
}

// reduced is the definition of a reduction: each element over the ranks in the
// tree, rounded once to k.
func reduced(k kind, values [][]float32, op collective.ReduceOp) []byte {
	n := len(values[0])
	out := make([]byte, n*k.Size())
	column := make([]float32, len(values))
	f := operator(op)
	for i := range n {
		for r := range values {
			column[r] = values[r][i]
		}
		k.put(out, i, fold(column, f))
	}
	return out
}

func operator(op collective.ReduceOp) func(a, b float32) float32 {
	switch op {
	case collective.PROD:
		return func(a, b float32) float32 { return a * b }
	case collective.MAX:
		return func(a, b float32) float32 { return float32(math.Max(float64(a), float64(b))) }
	case collective.MIN:
		return func(a, b float32) float32 { return float32(math.Min(float64(a), float64(b))) }
	}
	return func(a, b float32) float32 { return a + b }
}
