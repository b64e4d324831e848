package kernel

import "math/bits"

// PartsMax is the most parts that one tree sum takes.
const PartsMax = 64

// SumTree writes to dst the sum of parts, element by element, in one tree: the
// left subtree is the largest power of two below the count, as in (0+1)+2 and
// (0+1)+(2+3). There are 1 to PartsMax parts, each at least as long as dst,
// which may alias parts[0] and no other.
func SumTree(dst []float32, parts [][]float32) {
	if len(parts) < 1 || len(parts) > PartsMax {
		panic("kernel: tree sum of no parts or more than PartsMax")
	}
	var c carry
	for from := 0; from < len(dst); from += carryBlock {
		to := min(from+carryBlock, len(dst))
		for i, p := range parts {
			c.push(i, p[from:to])
		}
		c.sum(dst[from:to], len(parts))
	}
}

const carryBlock = 256 // elements at a time: all levels stay in the first cache

// carry adds rows that come in order in the tree of SumTree, like a binary
// counter. Invariant: after count rows, level[l] holds the sum of 2^l
// neighbours if bit l of count is set; higher levels are older.
type carry struct {
	level [7][carryBlock]float32
}

// push adds row x, the i'th.
func (c *carry) push(i int, x []float32) {
	n := len(x)
	l := bits.TrailingZeros(uint(^i)) // that many levels are carried
	if l == 0 {
		copy(c.level[0][:n], x)
		return
	}
	Add(c.level[0][:n], c.level[0][:n], x)
	for j := 1; j < l; j++ {
		Add(c.level[j][:n], c.level[j][:n], c.level[j-1][:n])
	}
	copy(c.level[l][:n], c.level[l-1][:n])
}

// sum writes to dst the sum of the count rows so far, which are used up.
func (c *carry) sum(dst []float32, count int) {
	n := len(dst)
	rest := uint(count)
	sum := &c.level[bits.TrailingZeros(rest)]
	for rest &= rest - 1; rest != 0; rest &= rest - 1 {
		l := &c.level[bits.TrailingZeros(rest)]
		Add(l[:n], l[:n], sum[:n])
		sum = l
	}
	copy(dst, sum[:n])
}

// laneCount is the virtual lanes of a sum over a row.
const laneCount = 16

// lanes is a sum over a row: element i is added to lane i mod 16.
type lanes [laneCount]float32

// sum is the tree sum of the lanes.
func (l *lanes) sum() float32 {
	for d := 1; d < laneCount; d *= 2 {
		for i := 0; i < laneCount; i += 2 * d {
			l[i] += l[i+d]
		}
	}
	return l[0]
}

// LogSumExp is log(sum(e^x)), with the greatest x taken out of the sum: the
// maximum, then the 16-lane sum of Exp32(x - max), then Log32. Of nothing, or
// of -inf alone, it is -inf; with +inf or a NaN among x it is NaN.
func LogSumExp(x []float32) float32 {
	top := maximum(x)
	if top < -maxFloat {
		return top
	}
	var l lanes
	for i, v := range x {
		l[i%laneCount] += Exp32(v - top)
	}
	return top + Log32(l.sum())
}
