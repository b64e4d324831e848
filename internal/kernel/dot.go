package kernel

import "math"

// A step of a dot product is acc = acc + x*w, rounded once to float32. The
// loops below hold x, w and acc, which are float32 values, in float64: the
// product is exact then, so the compiler may fuse it with a sum or not, and the
// conversions round the sum as FMA32 does, unless it is a tie that float64 made
// by rounding. At such a step the loops stop, and FMA32 takes it.
//
// Ties that are exact are common (one step in 200 with weights in bf16, one in
// 40 with both factors), the others are hardly ever met. So a tie is looked at
// where it stands: the sum s of p and acc is exact if s - p is acc and s - acc
// is p, for one of the two differences has no error (Dekker).
//
// The 8 chains are independent, which keeps the machine busy: each step waits a
// dozen cycles for the one before.

// dot8 adds to the 8 accumulators the products of x with each column of w,
// k ascending. exact says that all products are multiples of 2^exactGrid, so
// that only ties need a look.
func dot8(acc *[width]float32, x []float32, w [][width]float64, exact bool) {
	for len(x) > 0 {
		var k, c int
		if exact {
			k, c = run8(acc, x, w)
		} else {
			k, c = run8Subnormal(acc, x, w)
		}
		if k == len(x) {
			return
		}
		for ; c < width; c++ {
			acc[c] = FMA32(x[k], float32(w[k][c]), acc[c])
		}
		x, w = x[k+1:], w[k+1:]
	}
}

// run8 runs up to a tie at x[k], column c, that is not exact: this step and
// those of the later columns are not taken. k is len(x) if there was none.
func run8(acc *[width]float32, x []float32, w [][width]float64) (k, c int) {
	w = w[:len(x)]
	a0, a1, a2, a3 := float64(acc[0]), float64(acc[1]), float64(acc[2]), float64(acc[3])
	a4, a5, a6, a7 := float64(acc[4]), float64(acc[5]), float64(acc[6]), float64(acc[7])
	var s float64
	for ; k < len(x); k++ {
		v, w := float64(x[k]), &w[k]
		if s = a0 + v*w[0]; isTie(math.Float64bits(s)) && (s-a0 != v*w[0] || s-v*w[0] != a0) {
			c = 0
			break
		}
		a0 = float64(float32(s))
		if s = a1 + v*w[1]; isTie(math.Float64bits(s)) && (s-a1 != v*w[1] || s-v*w[1] != a1) {
			c = 1
			break
		}
		a1 = float64(float32(s))
		if s = a2 + v*w[2]; isTie(math.Float64bits(s)) && (s-a2 != v*w[2] || s-v*w[2] != a2) {
			c = 2
			break
		}
		a2 = float64(float32(s))
		if s = a3 + v*w[3]; isTie(math.Float64bits(s)) && (s-a3 != v*w[3] || s-v*w[3] != a3) {
			c = 3
			break
		}
		a3 = float64(float32(s))
		if s = a4 + v*w[4]; isTie(math.Float64bits(s)) && (s-a4 != v*w[4] || s-v*w[4] != a4) {
			c = 4
			break
		}
		a4 = float64(float32(s))
		if s = a5 + v*w[5]; isTie(math.Float64bits(s)) && (s-a5 != v*w[5] || s-v*w[5] != a5) {
			c = 5
			break
		}
		a5 = float64(float32(s))
		if s = a6 + v*w[6]; isTie(math.Float64bits(s)) && (s-a6 != v*w[6] || s-v*w[6] != a6) {
			c = 6
			break
		}
		a6 = float64(float32(s))
		if s = a7 + v*w[7]; isTie(math.Float64bits(s)) && (s-a7 != v*w[7] || s-v*w[7] != a7) {
			c = 7
			break
		}
		a7 = float64(float32(s))
	}
	acc[0], acc[1], acc[2], acc[3] = float32(a0), float32(a1), float32(a2), float32(a3)
	acc[4], acc[5], acc[6], acc[7] = float32(a4), float32(a5), float32(a6), float32(a7)
	return k, c
}

// run8Subnormal is run8 that stops at all ties and subnormal sums. (The body of
// isSubnormal is written out: inlined behind || it costs two more branches.)
func run8Subnormal(acc *[width]float32, x []float32, w [][width]float64) (k, c int) {
	w = w[:len(x)]
	a0, a1, a2, a3 := float64(acc[0]), float64(acc[1]), float64(acc[2]), float64(acc[3])
	a4, a5, a6, a7 := float64(acc[4]), float64(acc[5]), float64(acc[6]), float64(acc[7])
	var s float64
	for ; k < len(x); k++ {
		v, w := float64(x[k]), &w[k]
		s = a0 + v*w[0]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 0
			break
		}
		a0 = float64(float32(s))
		s = a1 + v*w[1]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 1
			break
		}
		a1 = float64(float32(s))
		s = a2 + v*w[2]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 2
			break
		}
		a2 = float64(float32(s))
		s = a3 + v*w[3]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 3
			break
		}
		a3 = float64(float32(s))
		s = a4 + v*w[4]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 4
			break
		}
		a4 = float64(float32(s))
		s = a5 + v*w[5]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 5
			break
		}
		a5 = float64(float32(s))
		s = a6 + v*w[6]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 6
			break
		}
		a6 = float64(float32(s))
		s = a7 + v*w[7]
		if u := math.Float64bits(s); isTie(u) || uint32(u>>32)<<1-1 < subnormalEnd-1 {
			c = 7
			break
		}
		a7 = float64(float32(s))
	}
	acc[0], acc[1], acc[2], acc[3] = float32(a0), float32(a1), float32(a2), float32(a3)
	acc[4], acc[5], acc[6], acc[7] = float32(a4), float32(a5), float32(a6), float32(a7)
	return k, c
}
