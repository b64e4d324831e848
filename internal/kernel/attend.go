package kernel

// KeyBlock is the positions of one block of keys and values.
const KeyBlock = 64

// AttendScores is the scratch that AttendRows needs for any number of rows.
const AttendScores = tile * KeyBlock

// Attend writes to out (dim) the attention of one query row q (dim) of one head
// over the first n keys, n > 0. keys[b] and values[b] hold the positions
// [64b, 64b+64) as (64, dim); what lies beyond n is not read. scores (64) is
// scratch. There is one running maximum and one running sum, and the blocks are
// merged in order: out and sum are scaled when the maximum grows.
func Attend(out, q []float32, keys, values [][]float32, n, dim int, scale float32,
	scores []float32) {
	AttendRows([][]float32{out}, [][]float32{q}, []int{n}, keys, values, dim, scale, scores)
}

// AttendRows is Attend for several query rows that read the same keys and
// values, like the heads of a group or a prompt's positions: row i sees the
// first n[i] keys. The bits are those of Attend row by row; what is saved is
// the work on keys and values that rows share, which halves the time for 32 rows.
// scores (rows, 64) is scratch; AttendScores will always do.
func AttendRows(out, q [][]float32, n []int, keys, values [][]float32, dim int,
	scale float32, scores []float32) {
	var a attention
	for from := 0; from < len(q); from += tile {
		to := min(from+tile, len(q))
		a.tile(out[from:to], q[from:to], n[from:to], keys, values, dim, scale, scores)
	}
}

// attention is what one call of AttendRows needs on its stack.
type attention struct {
	wide     [depth][width]float64
	top, sum [tile]float32 // the running maximum and sum of each row
	grid     [tile]int     // of each row of q
	seen     [tile]int     // keys of the block under way that each row sees
}

// rowsToScan is the least number of rows for which looking for the grid of keys
// and values costs less than the loops that do without it.
const rowsToScan = 4

func (a *attention) tile(out, q [][]float32, n []int, keys, values [][]float32, dim int,
	scale float32, scores []float32) {
	last := 0
	for r := range q {
		clear(out[r][:dim])
		a.sum[r], a.grid[r] = 0, gridOf(q[r][:dim])
		last = max(last, n[r])
	}
	for b := 0; b*KeyBlock < last; b++ {
		count := min(KeyBlock, last-b*KeyBlock)
		for r := range q {
			a.seen[r] = min(max(n[r]-b*KeyBlock, 0), KeyBlock)
		}
		a.scoreKeys(scores, q, keys[b][:count*dim], dim, scale)
		for r := range q {
			if a.seen[r] > 0 {
				a.softmax(r, out[r][:dim], scores[r*KeyBlock:][:a.seen[r]], b == 0)
			}
		}
		a.addValues(out, scores, values[b][:count*dim], dim)
	}
	for r := range q {
		for i, v := range out[r][:dim] {
			out[r][i] = v / a.sum[r]
		}
	}
}

// scoreKeys writes to scores (rows, 64) the scaled dot products of each row of
// q with the keys (count, dim) that it sees.
func (a *attention) scoreKeys(scores []float32, q [][]float32, keys []float32, dim int,
	scale float32) {
	grid := a.gridOf(keys, len(q))
	count := len(keys) / dim
	for j := 0; j < count; j += width {
		cols := min(width, count-j)
		for d := 0; d < dim; d += depth {
			wide := a.wide[:min(depth, dim-d)]
			widenColumns(wide, keys[j*dim+d:], dim, cols)
			for r := range q {
				if a.seen[r] <= j {
					continue
				}
				var acc [width]float32
				s := scores[r*KeyBlock+j:][:width]
				if d > 0 {
					copy(acc[:], s)
				}
				dot8(&acc, q[r][d:d+len(wide)], wide, a.grid[r]+grid >= exactGrid)
				copy(s, acc[:])
			}
		}
	}
	for r := range q {
		s := scores[r*KeyBlock:][:a.seen[r]]
		for j, v := range s {
			s[j] = float32(v * scale)
		}
	}
}

// softmax turns the scores s of row r into weights e^(s - top), after it has
// made the maximum and the sum, and with them out, those of the blocks so far.
func (a *attention) softmax(r int, out, s []float32, first bool) {
	if next := maximum(s); first {
		a.top[r] = next
	} else if next > a.top[r] {
		shrink := Exp32(a.top[r] - next)
		a.sum[r] = float32(a.sum[r] * shrink)
		for i, v := range out {
			out[i] = float32(v * shrink)
		}
		a.top[r] = next
	}
	var l lanes
	for i, v := range s {
		s[i] = Exp32(v - a.top[r])
		l[i%laneCount] += s[i]
	}
	a.sum[r] += l.sum()
}

// addValues adds to each row of out the values (count, dim) that it sees, each
// times its weight in scores (rows, 64), in order of position.
func (a *attention) addValues(out [][]float32, scores, values []float32, dim int) {
	grid := a.gridOf(values, len(out))
	var exact [tile]bool
	for r := range out {
		exact[r] = grid+gridOf(scores[r*KeyBlock:][:a.seen[r]]) >= exactGrid
	}
	count := len(values) / dim
	for d := 0; d < dim; d += width {
		cols := min(width, dim-d)
		widenRows(a.wide[:count], values[d:], dim, cols)
		for r := range out {
			seen := a.seen[r]
			var acc [width]float32
			copy(acc[:], out[r][d:d+cols])
			dot8(&acc, scores[r*KeyBlock:][:seen], a.wide[:seen], exact[r])
			copy(out[r][d:d+cols], acc[:])
		}
	}
}

// gridOf is the grid of x if rows are enough to pay for it, else the lowest.
func (a *attention) gridOf(x []float32, rows int) int {
	if rows < rowsToScan {
		return -1 << 20
	}
	return gridOf(x)
}
