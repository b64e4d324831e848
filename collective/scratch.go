package collective

// arena hands out heads that live until the operation is over.
type arena struct {
	blocks [][]byte
	used   int // heads
}

const arenaBlock = 128 // heads in a block

func (a *arena) reset() { a.used = 0 }

// head returns a head of HeadBytes, with old content.
func (a *arena) head() []byte {
	b, i := a.used/arenaBlock, a.used%arenaBlock*HeadBytes
	if b == len(a.blocks) {
		a.blocks = append(a.blocks, make([]byte, arenaBlock*HeadBytes))
	}
	a.used++
	return a.blocks[b][i : i+HeadBytes : i+HeadBytes]
}

// scratch is memory of reductions, kept from one operation to the next.
type scratch struct {
	land  [][]float32 // where peers' chunks land: [slot*Size+rank]
	wide  [][]float32 // parts as float32, where they have to be copied: [rank]
	tile  [][]float32 // tiles of a fused product: [slot*Size+destination]
	parts [][]float32 // the parts of the sum under way: [rank]
	acc   []float32   // their sum
}

// row returns the i'th row of rows with length n, with old content.
func row(rows *[][]float32, i, n int) []float32 {
	for len(*rows) <= i {
		*rows = append(*rows, nil)
	}
	if cap((*rows)[i]) < n {
		(*rows)[i] = make([]float32, n)
	}
	return (*rows)[i][:n]
}

// span is the elements [from, to) of something.
type span struct{ from, to int }

func (s span) count() int { return s.to - s.from }

// split returns the i'th of n nearly equal parts of count elements. The parts
// tile the elements in order; their lengths differ by at most one, the longer
// ones first.
func split(count, n, i int) span {
	each, more := count/n, count%n
	from := i*each + min(i, more)
	to := from + each
	if i < more {
		to++
	}
	return span{from, to}
}

// cut returns the chunks of count elements, in order: none crosses a multiple of
// tile, and none is longer than most.
func cut(count, tile, most int) []span {
	var out []span
	for from := 0; from < count; {
		end := min(count, from/tile*tile+tile)
		to := min(end, from+most)
		out = append(out, span{from, to})
		from = to
	}
	return out
}
