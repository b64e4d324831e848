package collectivetest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The suite's own rounding gives every value of a format back, and takes the
// even neighbour half way between two.
func TestRounding(t *testing.T) {
	for _, k := range []kind{bf16, fp16} {
		inf := uint32(1<<k.exponent-1) << k.fraction
		for bits := range inf {
			v := widen(bits, k.exponent, k.fraction)
			require.Equal(t, bits, roundTo(v, k.exponent, k.fraction), "%v %x", k, bits)
			next := float64(widen(bits+1, k.exponent, k.fraction))
			if bits+1 == inf {
				next = math.Ldexp(1, 1<<(k.exponent-1))
			}
			half := float32((float64(v) + next) / 2)
			if float64(half) != (float64(v)+next)/2 {
				continue // not a float32
			}
			even := bits + bits%2
			require.Equal(t, even, roundTo(half, k.exponent, k.fraction), "%v half of %x", k, bits)
			require.Equal(t, even|1<<15, roundTo(-half, k.exponent, k.fraction))
		}
	}
}

// The tree's left side is the largest power of two below the count.
func TestFold(t *testing.T) {
	v := []float32{1, 2, 3, 4, 5, 6, 7}
	minus := func(a, b float32) float32 { return a - b }
	require.Equal(t, float32(((1-2)-(3-4))-((5-6)-7)), fold(v, minus))
	require.Equal(t, float32((1-2)-3), fold(v[:3], minus))
}
