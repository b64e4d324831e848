package kernel

import "math"

const maxFloat = math.MaxFloat32

// RMSNorm writes to out (rows, cols) each row of x (rows, cols) divided by the
// root of its mean square, times weight (cols): w * (x * (1/sqrt(mean + eps))).
// The squares are summed over 16 lanes. out may be x. A row of zeros gives one.
func RMSNorm(out, x, weight []float32, rows, cols int, eps float32) {
	weight = weight[:cols]
	for r := range rows {
		row := x[r*cols : (r+1)*cols]
		dst := out[r*cols : (r+1)*cols]
		var l lanes
		for i, v := range row {
			l[i%laneCount] += float32(v * v)
		}
		mean := l.sum()/float32(cols) + eps
		var scale float32 // stays 0 for a zero row with eps 0, which has no root to divide by
		if mean != 0 {
			// A float32 root of a float64 root is correctly rounded: 53 >= 2*24+2.
			scale = 1 / float32(math.Sqrt(float64(mean)))
		}
		for i, v := range row {
			dst[i] = float32(weight[i] * float32(v*scale))
		}
	}
}

// Rope turns the first rot dimensions of each head of x (heads, dim), one row,
// in place: the pairs are (j, j+rot/2), j < rot/2. cos, sin (rot/2).
func Rope(x, cos, sin []float32, heads, dim, rot int) {
	half := rot / 2
	cos, sin = cos[:half], sin[:half]
	for h := range heads {
		a := x[h*dim : h*dim+half]
		b := x[h*dim+half : h*dim+2*half]
		for j, c := range cos {
			s, u, v := sin[j], a[j], b[j]
			a[j] = float32(u*c) - float32(v*s)
			b[j] = float32(v*c) + float32(u*s)
		}
	}
}

// SiluMul writes silu(gate) * up to out, where silu(u) = u / (1 + Exp32(-u)).
// out may be gate or up.
func SiluMul(out, gate, up []float32) {
	gate, up = gate[:len(out)], up[:len(out)]
	for i, u := range gate {
		out[i] = float32(float32(u/(1+Exp32(-u))) * up[i])
	}
}

// Add writes a + b to dst, which may be either of them.
func Add(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v + b[i]
	}
}

// maximum is the greatest of x, -inf if there is none; a NaN is passed over.
func maximum(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}
