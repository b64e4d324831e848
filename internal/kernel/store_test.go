package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

// halfValue is what the 16 bits h say, by the definition of the format.
func halfValue(h uint16, t Type) float64 {
	fraction, bias := 7, 127
	if t == F16 {
		fraction, bias = 10, 15
	}
	exponent := int(h&0x7fff) >> fraction
	f := float64(h & (1<<fraction - 1))
	v := math.Ldexp(f+math.Ldexp(1, fraction), exponent-bias-fraction)
	if exponent == 0 {
		v = math.Ldexp(f, 1-bias-fraction)
	}
	if h>>15 == 1 {
		return -v
	}
	return v
}

// infinity is the bits of +inf, one above the greatest finite value.
func infinity(t Type) int { return map[Type]int{BF16: 0x7f80, F16: 0x7c00}[t] }

// Widen reads each of the 65536 half values as its format defines, and Narrow
// gives the same bits back.
func TestWidenNarrowEveryHalf(t *testing.T) {
	for _, typ := range []Type{BF16, F16} {
		raw, back := make([]byte, 2<<16), make([]byte, 2<<16)
		for h := range 1 << 16 {
			binary.LittleEndian.PutUint16(raw[2*h:], uint16(h))
		}
		x := make([]float32, 1<<16)
		Widen(x, raw, typ)
		Narrow(back, x, typ)
		for h, v := range x {
			magnitude, want := h&0x7fff, h
			switch {
			case magnitude > infinity(typ):
				require.True(t, v != v, "%v %#x", typ, h)
				want |= 1 << (map[Type]int{BF16: 6, F16: 9}[typ]) // made quiet
			case magnitude == infinity(typ):
				require.True(t, math.IsInf(float64(v), 1-h>>15*2), "%v %#x", typ, h)
			default:
				require.Equal(t, math.Float64bits(halfValue(uint16(h), typ)),
					math.Float64bits(float64(v)), "%v %#x", typ, h)
			}
			require.Equal(t, uint16(want), binary.LittleEndian.Uint16(back[2*h:]), "%v", typ)
		}
	}
}

// nearest is the half that v rounds to, by search among all of them.
func nearest(v float32, t Type) uint16 {
	a := math.Abs(float64(v))
	// The value in infinity's place is what the format would have next.
	up := sort.Search(infinity(t), func(h int) bool { return halfValue(uint16(h), t) >= a })
	h := up
	if up > 0 {
		below, above := a-halfValue(uint16(up-1), t), halfValue(uint16(up), t)-a
		if below < above || below == above && up%2 == 1 {
			h = up - 1
		}
	}
	return uint16(math.Float32bits(v)>>31<<15) | uint16(h)
}

// Narrow rounds to nearest even, half-way cases and overflow included; Round is
// Narrow and Widen; float32 passes unchanged.
func TestNarrowRounds(t *testing.T) {
	const seed = 3
	r := rand.New(rand.NewPCG(seed, seed))
	for _, typ := range []Type{BF16, F16} {
		for range 100_000 {
			h := uint16(r.UintN(uint(infinity(typ))))
			x := float32((halfValue(h, typ) + halfValue(h+1, typ)) / 2) // exact: a tie
			switch r.IntN(5) {
			case 0:
				x = math.Nextafter32(x, 0)
			case 1:
				x = -math.Nextafter32(x, math.MaxFloat32)
			case 2:
				x = math.Float32frombits(r.Uint32())
			case 3:
				x = float32(halfValue(h, typ))
			}
			if !finite(x) {
				continue
			}
			var raw [2]byte
			Narrow(raw[:], []float32{x}, typ)
			require.Equal(t, nearest(x, typ), binary.LittleEndian.Uint16(raw[:]), "%v %x", typ, x)
			rounded, wide := []float32{x}, []float32{0}
			Round(rounded, typ)
			Widen(wide, raw[:], typ)
			require.Equal(t, wide, rounded)
		}
	}
	bits := []uint32{0, 1 << 31, 1, 0x7f800001, 0xffffffff, 0x3f800001}
	x, back := make([]float32, len(bits)), make([]float32, len(bits))
	raw := make([]byte, 4*len(bits))
	for i, u := range bits {
		x[i] = math.Float32frombits(u)
	}
	Narrow(raw, x, F32)
	Widen(back, raw, F32)
	Round(back, F32)
	for i, u := range bits {
		require.Equal(t, u, math.Float32bits(back[i]))
	}
}
