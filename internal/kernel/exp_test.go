package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps is how far got is from want, in units of the last place of float32 at want.
func ulps(got float32, want float64) float64 {
	near := math.Abs(float64(float32(want)))
	unit := math.Max(math.Ldexp(1, math.Ilogb(math.Max(near, 0x1p-126))-23), 0x1p-149)
	return math.Abs(float64(got)-want) / unit
}

// sweep calls f with float32 values over all bit patterns, some 1.4 million.
func sweep(f func(x float32)) {
	const stride = 3001 // a prime: all low bits come up
	for u := uint64(0); u < 1<<32; u += stride {
		f(math.Float32frombits(uint32(u)))
	}
}

// Exp32 is within 1 ulp of e^x for every x, the subnormal results included.
func TestExp32(t *testing.T) {
	var worst float64
	check := func(x float32) {
		want := math.Exp(float64(x))
		got := Exp32(x)
		if math.IsInf(float64(float32(want)), 0) || x != x {
			require.Equal(t, math.Float32bits(float32(want))&0x7f800000,
				math.Float32bits(got)&0x7f800000, "%x", x)
			return
		}
		worst = max(worst, ulps(got, want))
	}
	sweep(check)
	for i := -120 * 4096; i < 120*4096; i++ {
		check(float32(i) / 4096)
	}
	t.Logf("worst: %.4f ulp", worst)
	require.Less(t, worst, 1.0)
}

// Exp32 and Log32 at their edges.
func TestExp32Log32Edges(t *testing.T) {
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	require.Equal(t, uint32(0), math.Float32bits(Exp32(-inf)))
	require.Equal(t, inf, Exp32(inf))
	require.Equal(t, float32(1), Exp32(0))
	require.Equal(t, float32(1), Exp32(float32(math.Copysign(0, -1))))
	require.Equal(t, inf, Exp32(88.73))
	require.Less(t, Exp32(88.72), inf)
	require.Equal(t, float32(0x1p-149), Exp32(-103.5))
	require.Equal(t, float32(0), Exp32(-104))
	require.True(t, Exp32(nan) != Exp32(nan))
	require.Equal(t, -inf, Log32(0))
	require.Equal(t, -inf, Log32(float32(math.Copysign(0, -1))))
	require.Equal(t, inf, Log32(inf))
	require.Equal(t, uint32(0), math.Float32bits(Log32(1)))
	require.True(t, Log32(-1) != Log32(-1))
	require.True(t, Log32(-inf) != Log32(-inf))
	require.True(t, Log32(nan) != Log32(nan))
}

// Log32 is within 1 ulp of log x for every positive x, near 1 as well.
func TestLog32(t *testing.T) {
	var worst float64
	check := func(x float32) {
		if x > 0 && finite(x) && x != 1 {
			worst = max(worst, ulps(Log32(x), math.Log(float64(x))))
		}
	}
	sweep(check)
	for u := uint32(0x3f7f0000); u < 0x3f810000; u++ {
		check(math.Float32frombits(u))
	}
	t.Logf("worst: %.4f ulp", worst)
	require.Less(t, worst, 1.0)
}
