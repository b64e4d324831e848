package collectivetest

import (
	"encoding/binary"
	"math"

	"octet/collective"
)

// kind is an element type of the suite. Its rounding is written here once more
// and not taken from the code under test.
type kind struct {
	collective.DataType
	exponent, fraction int // bits of the format
}

var (
	fp32 = kind{collective.FP32, 8, 23}
	bf16 = kind{collective.BFP16, 8, 7}
	fp16 = kind{collective.FP16, 5, 10}
)

// put stores x, rounded to nearest even, as the i'th element of b.
func (k kind) put(b []byte, i int, x float32) {
	if k == fp32 {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
		return
	}
	binary.LittleEndian.PutUint16(b[2*i:], uint16(roundTo(x, k.exponent, k.fraction)))
}

// get reads the i'th element of b.
func (k kind) get(b []byte, i int) float32 {
	if k == fp32 {
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return widen(uint32(binary.LittleEndian.Uint16(b[2*i:])), k.exponent, k.fraction)
}

// fold is the definition of the tree: the left subtree is the largest power of
// two below the number of values.
func fold(v []float32, f func(a, b float32) float32) float32 {
	if len(v) == 1 {
		return v[0]
	}
	left := 1
	for left*2 < len(v) {
		left *= 2
	}
	return f(fold(v[:left], f), fold(v[left:], f))
}

// roundTo rounds x to a binary format with the given exponent and fraction bits:
// it counts x in units of the format's last place, rounds that to an integer,
// ties to even, and counts the result's place among the format's values.
func roundTo(x float32, exponent, fraction int) uint32 {
	sign := uint32(0)
	if math.Signbit(float64(x)) {
		sign = 1 << (exponent + fraction)
	}
	inf := uint32(1<<exponent-1) << fraction
	v := math.Abs(float64(x))
	switch {
	case math.IsNaN(v):
		return inf | 1<<(fraction-1) // any NaN; the suite compares NaNs as NaNs
	case math.IsInf(v, 0):
		return sign | inf
	case v == 0:
		return sign
	}
	bias := 1<<(exponent-1) - 1
	_, e := math.Frexp(v) // v is in [2^(e-1), 2^e)
	low := max(e-1, 1-bias)
	units := uint32(math.RoundToEven(math.Ldexp(v, fraction-low)))
	// Below the normal values, units are the bits. Above, each binade has
	// 2^fraction values, and one that was rounded up to 2^e is the next one's first.
	bits := units + uint32(low-(1-bias))<<fraction
	return sign | min(bits, inf)
}

// widen is the float32 of stored bits.
func widen(bits uint32, exponent, fraction int) float32 {
	bias := 1<<(exponent-1) - 1
	e, f := int(bits>>fraction)&(1<<exponent-1), float64(bits&(1<<fraction-1))
	var v float64
	switch {
	case e == 1<<exponent-1 && f == 0:
		v = math.Inf(1)
	case e == 1<<exponent-1:
		v = math.NaN()
	case e == 0:
		v = math.Ldexp(f, 1-bias-fraction)
	default:
		v = math.Ldexp(f+float64(int(1)<<fraction), e-bias-fraction)
	}
	if bits>>(exponent+fraction) != 0 {
		v = -v
	}
	return float32(v)
}
