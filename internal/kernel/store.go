package kernel

import (
	"encoding/binary"
	"math"
)

// Widen reads len(dst) little-endian values of type t from src. Every stored
// value is a float32, so nothing is rounded.
func Widen(dst []float32, src []byte, t Type) {
	src = src[:len(dst)*t.Size()]
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = fromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// Narrow writes src to dst as little-endian values of type t, rounded to
// nearest even. A NaN stays a NaN, made quiet, with the upper bits of its payload.
func Narrow(dst []byte, src []float32, t Type) {
	dst = dst[:len(src)*t.Size()]
	switch t {
	case F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], toBF16(v))
		}
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], toF16(v))
		}
	}
}

// Round rounds x in place to the values that type t holds, as Narrow and then
// Widen would. F32 changes nothing.
func Round(x []float32, t Type) {
	switch t {
	case BF16:
		for i, v := range x {
			x[i] = fromBF16(toBF16(v))
		}
	case F16:
		for i, v := range x {
			x[i] = fromF16(toF16(v))
		}
	}
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func toBF16(v float32) uint16 {
	u := math.Float32bits(v)
	if v != v {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func fromF16(h uint16) float32 {
	// The half's exponent and fraction, put at the place of a float32's, are
	// its value times 2^-112, subnormals included; the product is exact.
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | uint32(h&0x3ff)<<13)
	}
	v := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	return math.Float32frombits(sign | math.Float32bits(v))
}

func toF16(v float32) uint16 {
	u := math.Float32bits(v)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case u < 0x38800000: // below 2^-14: a multiple of 2^-24
		// The last bit of 0.5 is 2^-24, so the sum rounds there, to even; a
		// carry into 2^-14 is the least normal half.
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	u += 0xfff + u>>13&1
	return sign | uint16((u-0x38000000)>>13)
}
