package collective

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A view is the caller's memory, and one that cannot hold its elements is
// refused by name.
func TestBuffer(t *testing.T) {
	x := []float32{1, 2, 3}
	b := Float32s(x)
	b.floats()[1] = 9
	require.Equal(t, []float32{1, 9, 3}, x)
	require.Equal(t, 3, b.Count())
	require.NoError(t, Float32s(nil).check("dst"))

	require.EqualError(t, Bytes(FP32, b.Data[:7]).check("dst"),
		"dst: 7 bytes are not whole elements of FP32 (4 bytes)")
	require.EqualError(t, Bytes(FP32, b.Data[2:10]).check("src"),
		"src: start is not aligned to 4 bytes of FP32")
	require.NoError(t, Bytes(BFP16, b.Data[2:10]).check("src"))
	require.ErrorContains(t, Bytes(DataType(12), b.Data).check("src"), "does not exist")
	require.EqualError(t, b.checkCount("dst", 4), "dst: 3 elements, want 4")
}

// Shared memory is refused unless it is exactly in place.
func TestOverlap(t *testing.T) {
	x := Float32s(make([]float32, 8))
	half := x.slice(0, 4)
	require.NoError(t, checkOverlap(half, x.slice(4, 8), half, x))
	require.NoError(t, checkOverlap(half, x, half, x.slice(0, 4)))
	require.Error(t, checkOverlap(half, x, half, x.slice(2, 6)))
	require.Error(t, checkOverlap(x.slice(1, 5), half, x.slice(1, 5), half))
	require.Error(t, checkOverlap(Bytes(BFP16, half.Data), half, Bytes(BFP16, half.Data), half),
		"another type is not in place")
}

// Parts tile the elements in order, the longer ones first.
func TestSplitAndCut(t *testing.T) {
	for count := range 40 {
		for n := 1; n <= 9; n++ {
			at := 0
			for i := range n {
				s := split(count, n, i)
				require.Equal(t, at, s.from)
				require.Contains(t, []int{count / n, count/n + 1}, s.count())
				at = s.to
			}
			require.Equal(t, count, at)
		}
	}
	require.Equal(t, []span{{0, 4}, {4, 6}, {6, 10}, {10, 11}}, cut(11, 6, 4))
	require.Empty(t, cut(0, 0, 4))
}

// A NaN in any rank's element makes the result a NaN, and zeros are ordered, so
// the order of ranks never shows in a maximum or minimum.
func TestCombine(t *testing.T) {
	nan, zero := float32(math.NaN()), float32(math.Copysign(0, -1))
	for _, c := range []struct {
		parts    []float32
		max, min float32
	}{
		{[]float32{1, 3, 2}, 3, 1},
		{[]float32{0, zero, zero}, 0, zero},
		{[]float32{zero, zero, 0}, 0, zero},
		{[]float32{1, nan, 2}, nan, nan},
		{[]float32{nan, 1, 2, 3, 4}, nan, nan},
		{[]float32{1, 2, 3, 4, nan}, nan, nan},
	} {
		for op, want := range map[ReduceOp]float32{MAX: c.max, MIN: c.min} {
			var parts [][]float32
			for _, v := range c.parts {
				parts = append(parts, []float32{v})
			}
			got := make([]float32, 1)
			combine(got, parts, op)
			if want != want {
				require.True(t, got[0] != got[0], "%v of %v is %v", op, c.parts, got[0])
				continue
			}
			require.Equal(t, math.Float32bits(want), math.Float32bits(got[0]), "%v of %v", op, c.parts)
		}
	}
}

// Counts are ordered, and a difference leaves out what was not called.
func TestCounts(t *testing.T) {
	var c Counts
	c.add(Gather, Head, 5)
	c.add(AllReduce, Sequence, 1)
	before := slices.Clone(c)
	c.add(AllReduce, Head, 2)
	c.add(AllReduce, Sequence, 4)
	require.Equal(t, Counts{{AllReduce, Sequence, 2, 5}, {AllReduce, Head, 1, 2},
		{Gather, Head, 1, 5}}, c)
	require.Equal(t, Counts{{AllReduce, Sequence, 1, 4}, {AllReduce, Head, 1, 2}}, c.Sub(before))
	require.EqualValues(t, 3, c.Calls(AllReduce))
	require.EqualValues(t, 2, c.Calls(AllReduce, Sequence))
}

// A configuration's first wrong field is named.
func TestConfigValidate(t *testing.T) {
	good := Config{RunID: "x", Size: 2}
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(c *Config){
		"size 65 is not in 1..64":                           func(c *Config) { c.Size = 65 },
		"rank 2 is not in 0..1":                             func(c *Config) { c.Rank = 2 },
		"grace 1s is not below heartbeat 500ms":             func(c *Config) { c.Timeouts.Grace = 1e9 },
		"dead limit 900ms is not twice the heartbeat 500ms": func(c *Config) { c.Timeouts.Dead = 9e8 },
		"dead limit 5s is above the operation limit 1s":     func(c *Config) { c.Timeouts.Op = 1e9 },
	} {
		c := good
		change(&c)
		require.EqualError(t, c.Validate(), want)
	}
}
