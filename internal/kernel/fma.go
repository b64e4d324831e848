package kernel

import "math"

// A float64 has 29 fraction bits below the last bit of a float32. A float64 sum
// whose low bits are exactly the upper one of them lies half-way between two
// float32 values.
const (
	tieMask = 1<<29 - 1
	tieHalf = 1 << 28
)

// subnormalEnd is the upper half of the bits of the float64 2^-126, without the
// sign: below it float32 has fewer than 24 bits and ties stand elsewhere.
const subnormalEnd = uint32(1023-126) << 21

// FMA32 is x*y + z rounded once to float32, for every input. Which NaN comes
// out of a NaN or of an invalid operation is the machine's choice.
func FMA32(x, y, z float32) float32 {
	// The float64 product of two float32 is exact (48 bits, exponent -298 to
	// 256), so a compiler that fuses it with the sum changes nothing.
	p, a := float64(x)*float64(y), float64(z)
	s := p + a
	if u := math.Float64bits(s); isTie(u) || isSubnormal(u) {
		s = toOdd(p, a, s)
	}
	return float32(s)
}

// isTie says whether the float64 with bits u is half-way between two normal
// float32 values (the last one and infinity included).
func isTie(u uint64) bool { return (uint32(u)+tieHalf)&tieMask == 0 }

// isSubnormal says whether the float64 with bits u is below the normal float32
// values and not zero. A float64 sum is zero only if the exact sum is, and else at
// least 2^-298, so the upper half tells: less one, it is the greatest number for
// zero. Zeros are too common for the slow path.
func isSubnormal(u uint64) bool { return uint32(u>>32)<<1-1 < subnormalEnd-1 }

// toOdd turns s, the float64 sum of p and a, into the exact sum rounded to odd:
// of the two float64 round it the one whose last bit is 1, unless the sum is
// exact. Rounding that to float32 gives what one rounding of the exact sum
// does, at every precision below 52 bits. s is finite.
//
//go:noinline
func toOdd(p, a, s float64) float64 {
	// Knuth's two-sum: e is exactly p + a - s. These are sums only; where p is
	// itself an exact product, fusing it into one of them changes nothing.
	b := s - p
	e := (p - (s - b)) + (a - b)
	u := math.Float64bits(s)
	if e == 0 || u&1 == 1 {
		return s
	}
	if (e > 0) == (s > 0) {
		u++
	} else {
		u--
	}
	return math.Float64frombits(u)
}
