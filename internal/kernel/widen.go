package kernel

import "math"

// The functions below widen 8 values at a time, written out: with one row of x,
// as in decoding, they are a third of the work of a product.

func widenF32(d *[width]float64, s *[width]float32) {
	d[0], d[1] = float64(s[0]), float64(s[1])
	d[2], d[3] = float64(s[2]), float64(s[3])
	d[4], d[5] = float64(s[4]), float64(s[5])
	d[6], d[7] = float64(s[6]), float64(s[7])
}

func widenBF16(d *[width]float64, s *[width]uint16) {
	d[0], d[1] = float64(fromBF16(s[0])), float64(fromBF16(s[1]))
	d[2], d[3] = float64(fromBF16(s[2])), float64(fromBF16(s[3]))
	d[4], d[5] = float64(fromBF16(s[4])), float64(fromBF16(s[5]))
	d[6], d[7] = float64(fromBF16(s[6])), float64(fromBF16(s[7]))
}

func widenF16(d *[width]float64, s *[width]uint16) {
	d[0], d[1] = f16Float64(s[0]), f16Float64(s[1])
	d[2], d[3] = f16Float64(s[2]), f16Float64(s[3])
	d[4], d[5] = f16Float64(s[4]), f16Float64(s[5])
	d[6], d[7] = f16Float64(s[6]), f16Float64(s[7])
}

// f16Float64 is float64(fromF16(h)) for finite h, by the same idea: the bits of
// the half, put at the place of a float64's, are its value times 2^-1008.
func f16Float64(h uint16) float64 {
	return math.Float64frombits(uint64(h&0x8000)<<48|uint64(h&0x7fff)<<42) * 0x1p1008
}

// widenColumns writes to dst[i][c] the i'th value of row c of src, whose rows
// are stride apart, and 0 for c from cols on.
func widenColumns(dst [][width]float64, src []float32, stride, cols int) {
	if cols < width {
		clear(dst)
	}
	for c := range cols {
		c, row := c&7, src[c*stride:][:len(dst)]
		for i, v := range row {
			dst[i][c] = float64(v)
		}
	}
}

// widenRows writes to dst[i] the first cols values of row i of src, whose rows
// are stride apart, and 0 for the rest.
func widenRows(dst [][width]float64, src []float32, stride, cols int) {
	for i := range dst {
		row := src[i*stride:]
		if cols == width {
			widenF32(&dst[i], (*[width]float32)(row))
			continue
		}
		dst[i] = [width]float64{}
		for c, v := range row[:cols] {
			dst[i][c&7] = float64(v)
		}
	}
}
