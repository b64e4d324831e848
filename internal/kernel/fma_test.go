package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// exactFMA is x*y + z for finite values by exact arithmetic and one rounding.
func exactFMA(x, y, z float32) float32 {
	// 2^256 down to 2^-298, with room: nothing is rounded before Float32.
	const precision = 700
	value := func(v float32) *big.Float {
		return new(big.Float).SetPrec(precision).SetFloat64(float64(v))
	}
	p := value(x)
	p.Mul(p, value(y))
	p.Add(p, value(z))
	if p.Sign() == 0 {
		// The sign of an exact zero is that of IEEE addition, which float64 has.
		return float32(float64(x)*float64(y) + float64(z))
	}
	f, _ := p.Float32()
	return f
}

// requireFMA compares FMA32 with the oracle.
func requireFMA(t *testing.T, x, y, z float32) {
	t.Helper()
	want := exactFMA(x, y, z)
	if got := FMA32(x, y, z); math.Float32bits(got) != math.Float32bits(want) {
		require.Failf(t, "fma", "fma(%x, %x, %x) = %x, want %x", x, y, z, got, want)
	}
}

// crafted returns a finite float32 from a family in which ties, cancellation,
// subnormals, overflow and zeros are common.
func crafted(r *rand.Rand) float32 {
	sign := r.Uint32() & (1 << 31)
	exponent := []uint32{0, 0, 1, 2, 24, 63, 64, 65, 100, 103, 104, 126, 127, 128, 150, 151,
		190, 191, 253, 254}[r.IntN(20)]
	var fraction uint32
	switch r.IntN(6) {
	case 0:
		fraction = 0
	case 1:
		fraction = 1<<23 - 1
	case 2:
		fraction = 1 << r.IntN(23)
	case 3:
		fraction = (1<<23 - 1) &^ (1<<r.IntN(23) - 1)
	case 4:
		fraction = r.Uint32N(1<<23) &^ (1<<r.IntN(23) - 1)
	default:
		fraction = r.Uint32N(1 << 23)
	}
	return math.Float32frombits(sign | exponent<<23 | fraction)
}

func finite(v float32) bool { return v-v == 0 }

// FMA32 rounds the exact x*y + z once, in cases known to be hard.
func TestFMA32Cases(t *testing.T) {
	const least, normal, most = 0x1p-149, 0x1p-126, math.MaxFloat32
	minus := float32(math.Copysign(0, -1))
	for _, c := range []struct{ x, y, z, want float32 }{
		{24929, 673, 0x1p-30, 16777218}, // a tie but for z; twice rounded it is 16777216
		{24929, 673, -0x1p-30, 16777216},
		{24929, 673, 0, 16777216},
		{-24929, 673, -0x1p-30, -16777218},
		{-24929, 673, 0x1p-30, -16777216},
		{0x1p-75, 0x1p-75, 0, 0},                    // half of the least subnormal, to even
		{0x1p-75, 0x1p-75, least, 2 * least},        // one and a half of it, to even
		{0x1.8p-75, 0x1p-75, 0, least},              // three quarters
		{0x1p-140, 0x1p-149, least, least},          // far below
		{0x1p-75, -0x1p-75, normal, normal},         // a tie at the border, to even
		{0x1p-74, -0x1p-75, normal, normal - least}, // exact below the border
		{most, 1, 0x1p102, most},
		{most, 1, 0x1p103, float32(math.Inf(1))}, // a tie at the upper end
		{-most, 1, -0x1p103, float32(math.Inf(-1))},
		{0x1p64, 0x1p63, most, float32(math.Inf(1))},
		{most, most, -most, float32(math.Inf(1))},
		{minus, 1, 0, 0},
		{minus, 1, minus, minus},
		{minus, -1, minus, 0},
		{3, 5, -15, 0},
	} {
		require.Equal(t, math.Float32bits(c.want), math.Float32bits(FMA32(c.x, c.y, c.z)),
			"fma(%x, %x, %x)", c.x, c.y, c.z)
		requireFMA(t, c.x, c.y, c.z)
	}
}

// FMA32 with infinities and NaN gives what IEEE 754 says.
func TestFMA32NotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ x, y, z, want float32 }{
		{inf, 2, 1, inf}, {inf, -2, 1, -inf}, {1, 1, -inf, -inf}, {inf, 1, inf, inf},
	} {
		require.Equal(t, c.want, FMA32(c.x, c.y, c.z), "%v", c)
	}
	for _, c := range [][3]float32{{inf, 0, 1}, {inf, 1, -inf}, {nan, 1, 1}, {1, nan, 1},
		{1, 1, nan}, {nan, 0, inf}, {math.Float32frombits(0x7f800001), 1, 1}} {
		require.True(t, FMA32(c[0], c[1], c[2]) != FMA32(c[0], c[1], c[2]), "%v", c)
	}
}

// FMA32 equals exact arithmetic on random and crafted bit patterns, and near
// ties: z is then chosen a little off the half-way point of the product.
func TestFMA32Random(t *testing.T) {
	const seed = 7
	count := 1_500_000
	if testing.Short() {
		count /= 10
	}
	r := rand.New(rand.NewPCG(seed, seed))
	var ties, subnormals int // where rounding twice is wrong
	for i := range count {
		var x, y, z float32
		switch i % 5 {
		case 0:
			x, y, z = math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()),
				math.Float32frombits(r.Uint32())
		case 1:
			x, y, z = crafted(r), crafted(r), crafted(r)
		case 2: // the product of two 13-bit numbers often is a tie or next to one
			x, y = float32(1+r.IntN(1<<13)*2), float32(1+r.IntN(1<<12)*2)
			z = float32(math.Ldexp(float64(r.IntN(7)-3), -r.IntN(60)))
		case 3: // the same among the subnormals
			x = float32(math.Ldexp(float64(r.IntN(1<<13)), -80))
			y = float32(math.Ldexp(float64(r.IntN(1<<13)), -70-r.IntN(12)))
			z = math.Float32frombits(r.Uint32N(1<<24) | r.Uint32()&(1<<31))
		case 4: // a half of 2^-149, but for what float64 loses, onto a subnormal
			d := float32(math.Ldexp(1, -15-r.IntN(9)))
			x, y = (1+d)*0x1p-75, (1-d)*0x1p-75
			z = math.Float32frombits(r.Uint32N(1<<23) | r.Uint32()&(1<<31))
		}
		if !finite(x) || !finite(y) || !finite(z) {
			continue
		}
		s := float64(x)*float64(y) + float64(z)
		if want := exactFMA(x, y, z); float32(s) != want && want < 0x1p-126 && want > -0x1p-126 {
			subnormals++
		} else if float32(s) != want {
			ties++
		}
		requireFMA(t, x, y, z)
	}
	t.Logf("rounding twice is wrong in %d cases and %d subnormal ones", ties, subnormals)
	require.Greater(t, min(ties, subnormals), count/200)
}

// FuzzFMA32 looks for inputs that FMA32 rounds otherwise than exact arithmetic.
func FuzzFMA32(f *testing.F) {
	f.Add(math.Float32bits(24929), math.Float32bits(673), math.Float32bits(0x1p-30))
	f.Add(math.Float32bits(0x1p-75), math.Float32bits(0x1p-75), uint32(1))
	f.Fuzz(func(t *testing.T, a, b, c uint32) {
		x, y, z := math.Float32frombits(a), math.Float32frombits(b), math.Float32frombits(c)
		if finite(x) && finite(y) && finite(z) {
			requireFMA(t, x, y, z)
		}
	})
}
