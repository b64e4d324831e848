package kernel

import "math"

// The functions below work in float64 and round once at the end. Each product
// that a sum takes is converted explicitly, so no compiler may fuse the two.

const (
	log2e = 1.44269504088896340735992468100189214
	ln2   = 0.693147180559945309417232121458176568
	// shifter pushes the fraction of a small float64 out of its 53 bits: adding
	// it rounds to an integer, which then stands in the low bits.
	shifter = 3 << 51
)

// Exp32 is e^x, within 1 ulp. Exp32(-inf) = 0, Exp32(+inf) = +inf; NaN stays.
func Exp32(x float32) float32 {
	switch {
	case x != x:
		return x
	case x > 89:
		return float32(math.Inf(1))
	case x < -104: // below half of the least subnormal
		return 0
	}
	// x = n*ln2 + r with |r| <= ln2/2, and e^r by its series to r^8.
	v := float64(x)
	t := float64(v*log2e) + shifter
	n := t - shifter
	r := v - float64(n*ln2)
	r2 := float64(r * r)
	r4 := float64(r2 * r2)
	low := float64(1+r) + float64(r2*(0.5+float64(r*(1.0/6))))
	high := (1.0/24 + float64(r*(1.0/120))) + float64(r2*(1.0/720+float64(r*(1.0/5040))))
	y := low + float64(r4*(high+float64(r4*(1.0/40320))))
	// 2^n is a normal float64: n is between -151 and 129.
	scale := math.Float64frombits((math.Float64bits(t) + 1023) << 52)
	return float32(float64(y * scale))
}

// Log32 is the natural logarithm of x, within 1 ulp. Log32(0) = -inf,
// Log32(+inf) = +inf; negative numbers and NaN give NaN.
func Log32(x float32) float32 {
	switch {
	case x != x || x > math.MaxFloat32:
		return x
	case x < 0:
		return float32(math.NaN())
	case x == 0:
		return float32(math.Inf(-1))
	}
	// x = 2^n * m with m in [sqrt(1/2), sqrt(2)). Every float32 is a normal
	// float64, so the exponent field is enough.
	const half = 0x3fe6a09e667f3bcd // the bits of sqrt(1/2)
	u := math.Float64bits(float64(x))
	n := int64(u-half) >> 52
	m := math.Float64frombits(u - uint64(n)<<52)
	// log m = 2 atanh f = 2 (f + f^3/3 + ... + f^15/15), |f| < 0.172.
	f := (m - 1) / (m + 1)
	z := float64(f * f)
	s := 1.0 / 15
	for _, c := range [...]float64{1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1} {
		s = c + float64(z*s)
	}
	return float32(float64(float64(n)*ln2) + float64(2*float64(f*s)))
}
