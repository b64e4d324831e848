package collective

import (
	"context"
	"errors"
	"fmt"
)

// tileRows is how many rows of a product aiv computes before it sends them.
const tileRows = 128

// tileSlots is how many tiles of each destination a rank holds: one is sent
// while the other is computed.
const tileSlots = 2

// MatmulReduceScatter is a product whose rows are reduced over the ranks as they
// are computed: dst gets rows [Rank*n, (Rank+1)*n) of the sum over ranks, where
// n is f.Rows/Size. produce computes rows [from, to) of this rank's partial
// product into partial, (to-from, f.Cols) in float32, on the caller's goroutine.
// Rows must not depend on how they are divided into calls; then the result has
// the bits of the whole product followed by a ReduceScatter.
//
// With AIV, tiles of at most tileRows rows go round the destinations, the
// farthest first and this rank last, and each is sent when it is computed, while
// receives progress. With AICPU a destination's rows are one tile.
//
// Cost: one step and n*f.Cols*(p-1) elements sent.
func (c *Comm) MatmulReduceScatter(ctx context.Context, call Call, f Fused, dst Buffer,
	produce func(from, to int, partial []float32)) error {
	d := header{verb: MatmulReduceScatter, src: FP32, dst: dst.Type, mode: f.Mode,
		count: uint64(f.Rows)<<32 | uint64(uint32(f.Cols))}
	args := c.checkFused(f, dst)
	if args == nil && produce == nil {
		args = errors.New("produce is nil")
	}
	return c.do(ctx, call, d, args, func(o *operation) error {
		return o.newProduct(f, dst, produce).run()
	})
}

// product is a fused operation under way.
type product struct {
	o           *operation
	in          *intake
	produce     func(from, to int, partial []float32)
	rows, cols  int // of one destination
	tile, slots int // rows of a tile; tiles of a destination that are held
	own         int // tiles of this rank's own rows that are computed
	sent        [tileSlots][SizeMax]int
}

func (o *operation) newProduct(f Fused, dst Buffer, produce func(int, int, []float32)) *product {
	m := &product{o: o, produce: produce, rows: f.Rows / o.c.cfg.Size, cols: f.Cols, slots: 1}
	m.tile = max(1, m.rows)
	if f.Mode == AIV {
		m.tile, m.slots = min(m.tile, tileRows), tileSlots
	}
	chunks := cut(m.rows*m.cols, m.tile*m.cols, chunkFloats(o.c.cfg.Size))
	m.in = o.intake(dst, FP32, SUM, chunks)
	m.in.own = m.ownPart
	return m
}

// run computes and sends tile after tile, and takes in what the peers send.
//
// A rank waits only for tiles that lie tileSlots behind its own, and every rank
// has computed those before it waits itself, so the slowest rank never waits in
// vain.
func (m *product) run() error {
	m.in.post()
	for t := 0; t*m.tile < m.rows && m.cols > 0; t++ {
		if err := m.o.until(func() bool { return m.free(t) }); err != nil {
			return err
		}
		p := m.o.c.cfg.Size
		for i := p - 1; i >= 0; i-- {
			m.compute(t, (m.o.c.cfg.Rank+i)%p)
			if err := m.o.poll(); err != nil {
				return err
			}
			m.in.advance()
		}
	}
	return m.o.until(m.in.done)
}

// compute produces tile t of a destination's rows and queues it.
func (m *product) compute(t, to int) {
	first, last := t*m.tile, min(m.rows, (t+1)*m.tile)
	part := m.buffer(t, to)[:(last-first)*m.cols]
	m.produce(to*m.rows+first, to*m.rows+last, part)
	if to == m.o.c.cfg.Rank {
		m.own = t + 1
		return
	}
	m.o.sendChunks(to, Float32s(part), cut(len(part), len(part), chunkFloats(m.o.c.cfg.Size)))
	m.sent[t%m.slots][to] = m.o.c.flows[to].sent
}

// buffer is where tile t of a destination's rows is held.
func (m *product) buffer(t, to int) []float32 {
	return row(&m.o.c.scratch.tile, t%m.slots*m.o.c.cfg.Size+to, m.tile*m.cols)
}

// free reports whether the places of tile t are free: the tiles that were there
// have left, and this rank's own has been added.
func (m *product) free(t int) bool {
	m.in.advance()
	if t < m.slots {
		return true
	}
	for _, r := range m.o.c.others() {
		if done, _ := m.o.c.data.Done(r); done < m.sent[t%m.slots][r] {
			return false
		}
	}
	return m.in.next == len(m.in.chunks) ||
		m.in.chunks[m.in.next].from >= (t-m.slots+1)*m.tile*m.cols
}

// ownPart is this rank's own product, as far as it is computed.
func (m *product) ownPart(s span) (Buffer, bool) {
	t := s.from / (m.tile * m.cols)
	if t >= m.own {
		return Buffer{}, false
	}
	base := t * m.tile * m.cols
	return Float32s(m.buffer(t, m.o.c.cfg.Rank)[s.from-base : s.to-base]), true
}

// checkFused refuses shapes that the ranks cannot share out.
func (c *Comm) checkFused(f Fused, dst Buffer) error {
	const most = 1<<32 - 1
	switch {
	case f.Rows < 0 || f.Rows > most || f.Cols < 0 || f.Cols > most:
		return fmt.Errorf("product of %dx%d is out of range", f.Rows, f.Cols)
	case f.Rows%c.cfg.Size != 0:
		return fmt.Errorf("%d rows do not divide among %d ranks", f.Rows, c.cfg.Size)
	case f.Mode > AIV:
		return fmt.Errorf("mode %v does not exist", f.Mode)
	}
	if _, ok := dst.Type.stored(); !ok {
		return fmt.Errorf("dst %v: only FP32, FP16 and BFP16 can be reduced", dst.Type)
	}
	return dst.checkCount("dst", f.Rows/c.cfg.Size*f.Cols)
}
