package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// The shape of the loops: a panel is 8 neighbouring rows of the matrix, whose
// values stand side by side for each k. depth values of k at a time are widened
// for tile rows of x.
const (
	width = 8
	depth = 256
	tile  = 32
)

// Weights is a matrix (n, k) that products are taken with, as y = x W^T. It
// keeps the stored type and is packed for the loops; nobody writes to it after
// Pack, so any number of goroutines may use it at once.
type Weights struct {
	t    Type
	n, k int
	// Panel p, k, column c of the panel stand at (p*k_total + k)*width + c. The
	// last panel is filled up with zeros. One of the two is nil.
	half []uint16
	full []float32
	// grid[p] is an exponent e: all values of panel p are multiples of 2^e.
	grid []int
	// finite says that no value is an infinity or NaN.
	finite bool
}

// Pack copies the stored little-endian matrix raw (n, k), row-major, into
// Weights. The caller may release raw.
func Pack(raw []byte, t Type, n, k int) *Weights {
	if len(raw) != n*k*t.Size() {
		panic(fmt.Sprintf("kernel: pack %d bytes as (%d, %d) of %v", len(raw), n, k, t))
	}
	panels := (n + width - 1) / width
	w := &Weights{t: t, n: n, k: k, grid: make([]int, panels), finite: true}
	if t == F32 {
		w.full = make([]float32, panels*k*width)
	} else {
		w.half = make([]uint16, panels*k*width)
	}
	row := make([]float32, k)
	for p := range w.grid {
		w.grid[p] = exactZero
	}
	for r := range n {
		p, c := r/width, r%width
		src := raw[r*k*t.Size():]
		for i := range k {
			at := (p*k+i)*width + c
			if t == F32 {
				w.full[at] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
			} else {
				w.half[at] = binary.LittleEndian.Uint16(src[2*i:])
			}
		}
		Widen(row, src, t)
		w.grid[p] = min(w.grid[p], gridOf(row))
		for _, v := range row {
			w.finite = w.finite && v-v == 0
		}
	}
	return w
}

// Rows is n, the number of output columns.
func (w *Weights) Rows() int { return w.n }

// Cols is k, the length of a dot product.
func (w *Weights) Cols() int { return w.k }

// Bytes is the memory that the packed values take.
func (w *Weights) Bytes() int { return len(w.half)*2 + len(w.full)*4 }

// exactZero is the grid of values that are all zero: any power of two will do.
const exactZero = 1 << 20

// exactGrid is the lowest grid of products for which a sum below 2^-126, where
// float32 is coarser, is exact in float64 and so is rounded once: it is a
// multiple of the grid, or of 2^-149, that has at most 53 bits.
const exactGrid = -126 - 53

// gridOf returns the greatest e that it can tell cheaply such that every value
// of x is a multiple of 2^e, infinities and NaN apart.
func gridOf(x []float32) int {
	// The least magnitude that is not zero has the last bit that counts;
	// zero, less one, is the greatest number. Trailing zeros count as well.
	least, all := ^uint32(0), uint32(0)
	for _, v := range x {
		u := math.Float32bits(v)
		least = min(least, u<<1-1)
		all |= u
	}
	if least == ^uint32(0) {
		return exactZero
	}
	exponent := max(int((least+1)>>24), 1) // of a subnormal as of 2^-126
	return exponent - 150 + min(bits.TrailingZeros32(all), 23)
}

// widen writes depth or fewer values of k of panel p, from k on, to dst.
func (w *Weights) widen(dst [][width]float64, p, k int) {
	from := (p*w.k + k) * width
	to := from + len(dst)*width
	switch w.t {
	case F32:
		for i := range dst {
			widenF32(&dst[i], (*[width]float32)(w.full[from+i*width:to]))
		}
	case BF16:
		for i := range dst {
			widenBF16(&dst[i], (*[width]uint16)(w.half[from+i*width:to]))
		}
	case F16:
		if !w.finite {
			for i := range dst {
				for c, v := range w.half[from+i*width:][:width] {
					dst[i][c&7] = float64(fromF16(v))
				}
			}
			return
		}
		for i := range dst {
			widenF16(&dst[i], (*[width]uint16)(w.half[from+i*width:to]))
		}
	}
}

// Partial writes to y (m, n) the tree sum of the products over the K-segments
// [from, to) of segs equal ones: x (m, k) is the whole k, which segs divides.
// from 0, to 1, segs 1 is a plain product. The bits of an element depend on its
// row of x, its row of the matrix and the segments, on nothing else.
func (w *Weights) Partial(y, x []float32, m, segs, from, to int) {
	if segs < 1 || w.k%segs != 0 || from < 0 || from >= to || to > segs || to-from > PartsMax {
		panic(fmt.Sprintf("kernel: segments [%d, %d) of %d in %d columns", from, to, segs, w.k))
	}
	y, x = y[:m*w.n], x[:m*w.k]
	var s scratch
	for row := 0; row < m; row += tile {
		s.rows = min(tile, m-row)
		s.x = x[row*w.k : (row+s.rows)*w.k]
		for r := range s.rows {
			s.grid[r] = gridOf(s.x[r*w.k : (r+1)*w.k])
		}
		for p := range w.grid {
			s.segments(w, p, segs, from, to)
			cols := min(width, w.n-p*width)
			for r := range s.rows {
				copy(y[(row+r)*w.n+p*width:][:cols], s.level[0][r][:])
			}
		}
	}
}

// scratch is what one call of Partial needs on its stack.
type scratch struct {
	rows int
	x    []float32 // (rows, k)
	grid [tile]int // of each row of x
	wide [depth][width]float64
	// level[l] holds sums of 2^l neighbouring segments (rows, width), as in
	// carry; the last one is that of the segment under way.
	level [8][tile][width]float32
}

// segments leaves in level[0] the tree sum over the segments of panel p.
func (s *scratch) segments(w *Weights, p, segs, from, to int) {
	size := w.k / segs
	top := 0 // the level of the latest sum
	for i := range to - from {
		top = bits.TrailingZeros(uint(^i)) // that many levels are carried
		acc := &s.level[7]
		clear(acc[:s.rows])
		s.segment(w, p, (from+i)*size, (from+i+1)*size)
		for l := range top {
			addTile(acc, &s.level[l], acc, s.rows)
		}
		copy(s.level[top][:s.rows], acc[:s.rows])
	}
	// What is left over: the levels of the bits of the count, lowest first.
	acc := top
	for n := uint(to-from) >> (top + 1) << (top + 1); n != 0; n &= n - 1 {
		l := bits.TrailingZeros(n)
		addTile(&s.level[l], &s.level[l], &s.level[acc], s.rows)
		acc = l
	}
	if acc != 0 {
		copy(s.level[0][:s.rows], s.level[acc][:s.rows])
	}
}

// addTile writes a + b to dst, which may be either.
func addTile(dst, a, b *[tile][width]float32, rows int) {
	for r := range rows {
		for c := range width {
			dst[r][c] = a[r][c] + b[r][c]
		}
	}
}

// segment adds the products of panel p over k in [from, to) to level[7].
func (s *scratch) segment(w *Weights, p, from, to int) {
	for k := from; k < to; k += depth {
		n := min(depth, to-k)
		wide := s.wide[:n]
		w.widen(wide, p, k)
		for r := range s.rows {
			x := s.x[r*w.k+k:][:n]
			dot8(&s.level[7][r], x, wide, s.grid[r]+w.grid[p] >= exactGrid)
		}
	}
}
