package model

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestYarnGivesThePublishedVector(t *testing.T) {
	// Head 128, theta 1e6, factor 4, trained for 32768 positions.
	r := Rope{Type: RopeYarn, Theta: 1e6, Dim: 128, Factor: 4, Positions: 32768, Fast: 32, Slow: 1,
		Truncate: true, Scale: yarnScale(4, 1)}
	require.InDelta(t, 1.138629436, r.Scale, 1e-9)
	from, to := r.ramp()
	require.Equal(t, []float64{23, 40}, []float64{from, to})
	r.Truncate = false
	from, to = r.ramp()
	require.InDeltaSlice(t, []float64{23.596, 39.651}, []float64{from, to}, 1e-3)
	r.Truncate = true
	got := r.frequencies()
	require.Len(t, got, 64)
	for j, want := range map[int]float64{0: 1, 1: 8.058422208e-1, 23: 6.978305988e-3,
		24: 5.375321489e-3, 30: 1.064360957e-3, 36: 1.798411540e-4, 40: 4.445698505e-5,
		63: 3.102344408e-7} {
		require.InEpsilon(t, want, got[j], 1.2e-7, "frequency %d", j)
	}
}

func TestYarnBoundsStayWithinTheHead(t *testing.T) {
	for _, c := range []struct {
		positions, fast, slow float64
		from, to              float64
	}{
		{64, 32, 1, 0, 3},          // the fast bound would be -2
		{1 << 20, 32, 1e-3, 7, 15}, // the slow bound would be 17
		{3, 32, 1, 0, 0.001},       // the same bound twice would divide by zero
	} {
		r := Rope{Type: RopeYarn, Theta: 10000, Dim: 16, Factor: 2, Positions: c.positions,
			Fast: c.fast, Slow: c.slow, Truncate: true}
		from, to := r.ramp()
		require.Equal(t, []float64{c.from, c.to}, []float64{from, to}, "%+v", c)
	}
}

func TestYarnRoundsEachStepToFloat32(t *testing.T) {
	r := Rope{Type: RopeYarn, Theta: 10000, Dim: 32, Factor: 3, Positions: 256, Fast: 32, Slow: 1,
		Truncate: true}
	from, to := r.ramp()
	require.Equal(t, []float64{0, 7}, []float64{from, to})
	got := r.frequencies()
	for j := range got {
		p := float32(math.Pow(10000, float64(2*j)/32))
		product := 3 * p
		plain, slow := 1/p, 1/product
		ramp := min(float32(j)/7, 1)
		keep := 1 - ramp
		first := slow * float32(1-keep)
		second := plain * keep
		require.Equal(t, first+second, got[j], "pair %d", j)
	}
}

func TestFrequenciesRoundThePowerAndThenTheQuotient(t *testing.T) {
	// float64 has 29 bits to spare, so the twice rounded value follows from it
	// unless the power lies next to a tie, which none of these does.
	for _, dim := range []int{2, 16, 64, 96, 128, 256} {
		for _, theta := range []float64{10000, 1e6, 5e6, 1e7} {
			got := Rope{Type: RopeDefault, Theta: theta, Dim: dim}.frequencies()
			require.Len(t, got, dim/2)
			for j := range got {
				p := float32(math.Pow(theta, float64(float32(2*j)/float32(dim))))
				require.Equal(t, 1/p, got[j], "theta %g, dim %d, pair %d", theta, dim, j)
			}
		}
	}
}

func TestLinearDividesTheFrequencies(t *testing.T) {
	plain := Rope{Type: RopeDefault, Theta: 10000, Dim: 16}.frequencies()
	got := Rope{Type: RopeLinear, Theta: 10000, Dim: 16, Factor: 3}.frequencies()
	for j := range got {
		require.Equal(t, plain[j]/3, got[j])
	}
}

func TestSincosIsGoodToAFloat32(t *testing.T) {
	// Angles are float32 values below 2^20. The last is as near to a multiple of
	// a quarter turn as any of them, and math reduces it exactly.
	angles := []float32{0, 1e-30, 0.5, 1, math.Pi / 4, math.Pi / 2, math.Pi, 1e3, 8199.999,
		1<<20 - 1}
	for i := range 200_000 {
		angles = append(angles, float32(i)*float32(5.2429))
	}
	for _, a := range angles {
		sin, cos := sincos(float64(a))
		wantSin, wantCos := math.Sincos(float64(a))
		require.InDelta(t, wantSin, sin, 2e-15, "sin %v", a)
		require.InDelta(t, wantCos, cos, 2e-15, "cos %v", a)
	}
}

func TestLogarithm(t *testing.T) {
	for _, x := range []float64{1e-9, 0.3, 0.70710678, 0.9999, 1, 1.0001, 2, 4, 10, 1e6, 1e15} {
		require.InDelta(t, math.Log(x), ln(x), 1e-15*max(1, math.Abs(math.Log(x))), "ln %g", x)
	}
}

func TestRowTurnsByPositionTimesFrequency(t *testing.T) {
	r := NewRotation(Rope{Type: RopeDefault, Theta: 10000, Dim: 8, Scale: 1})
	require.Len(t, r.frequencies, 4)
	cos, sin := make([]float32, 4), make([]float32, 4)
	r.Row(cos, sin, 0)
	require.Equal(t, []float32{1, 1, 1, 1}, cos)
	require.Equal(t, []float32{0, 0, 0, 0}, sin)
	r.Row(cos, sin, 30)
	for j, f := range []float64{1, 0.1, 0.01, 0.001} {
		require.InDelta(t, math.Cos(30*f), cos[j], 2e-6)
		require.InDelta(t, math.Sin(30*f), sin[j], 2e-6)
	}
	scaled := NewRotation(Rope{Type: RopeDefault, Theta: 10000, Dim: 8, Scale: 1.5})
	other := make([]float32, 4)
	scaled.Row(other, sin, 30)
	for j := range cos {
		require.Equal(t, cos[j]*1.5, other[j])
	}
}
