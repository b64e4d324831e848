package collective

import (
	"context"
	"fmt"
	"math"

	"octet/internal/kernel"
)

const (
	// chunkBytes is the longest body that the schedules send.
	chunkBytes = 128 << 10
	// window is how many chunks of each peer have a place to land: one is added
	// while the other arrives.
	window = 2
	// oneShotBytes bounds what a rank receives in a one-shot AllReduce.
	oneShotBytes = 128 << 10
)

// chunkFloats is the elements of a chunk of a reduction. With many ranks chunks
// are shorter, so that landing places stay within a few MiB.
func chunkFloats(size int) int { return chunkBytes / 4 * 8 / max(size, 8) }

// AllReduce writes to dst on every rank the reduction of all ranks' src, n
// elements each. src is float32 partials and dst any type that can be reduced,
// or both have the same type; src may be dst.
//
// Cost: one step and (p-1)n elements sent while p*n is at most oneShotBytes,
// else two steps and 2n(p-1)/p.
func (c *Comm) AllReduce(ctx context.Context, call Call, dst, src Buffer, op ReduceOp) error {
	args := checkReduction(dst, src, op, 1)
	if args == nil {
		args = checkOverlap(dst, src, dst, src)
	}
	d := header{verb: AllReduce, src: src.Type, dst: dst.Type, op: op, count: uint64(src.Count())}
	return c.do(ctx, call, d, args, func(o *operation) error {
		if len(src.Data)*c.cfg.Size <= oneShotBytes {
			return o.oneShot(dst, src, op)
		}
		return o.twoShot(dst, src, op)
	})
}

// ReduceScatter writes to dst the reduction of the slices that all ranks have
// for this one: elements [Rank*n, (Rank+1)*n) of each src, where n is
// dst.Count(). Types are as for AllReduce. dst may be this rank's slice of src.
//
// Cost: one step and n(p-1) elements sent.
func (c *Comm) ReduceScatter(ctx context.Context, call Call, dst, src Buffer, op ReduceOp) error {
	n, p := dst.Count(), c.cfg.Size
	args := checkReduction(dst, src, op, p)
	if args == nil {
		args = checkOverlap(dst, src, dst, src.slice(c.cfg.Rank*n, (c.cfg.Rank+1)*n))
	}
	d := header{verb: ReduceScatter, src: src.Type, dst: dst.Type, op: op, count: uint64(n)}
	return c.do(ctx, call, d, args, func(o *operation) error {
		most := chunkFloats(p)
		in := o.intake(dst, src.Type, op, cut(n, n, most))
		in.own = ownPart(src.slice(c.cfg.Rank*n, (c.cfg.Rank+1)*n))
		for _, r := range c.others() {
			o.sendChunks(r, src.slice(r*n, (r+1)*n), cut(n, n, most))
		}
		in.post()
		return o.until(in.done)
	})
}

// oneShot sends all of src to everybody; each rank adds for itself.
func (o *operation) oneShot(dst, src Buffer, op ReduceOp) error {
	n := src.Count()
	spans := cut(n, n, chunkFloats(o.c.cfg.Size))
	// dst may be src, and chunks of src may leave after dst is written.
	copied := Float32s(row(&o.c.scratch.tile, 0, (len(src.Data)+3)/4)).Data[:len(src.Data)]
	copy(copied, src.Data)
	src = Buffer{Type: src.Type, Data: copied}
	in := o.intake(dst, src.Type, op, spans)
	in.own = ownPart(src)
	o.sendAll(src, spans)
	in.post()
	return o.until(in.done)
}

// twoShot reduces each rank's slice at its owner, who sends the rounded chunks
// on as soon as they are added. On each link the chunks of the reduction come
// first, then those of the result.
func (o *operation) twoShot(dst, src Buffer, op ReduceOp) error {
	n, p, most := src.Count(), o.c.cfg.Size, chunkFloats(o.c.cfg.Size)
	chunks := func(r int) []span { s := split(n, p, r); return cut(s.count(), s.count(), most) }
	part := func(b Buffer, r int) Buffer { s := split(n, p, r); return b.slice(s.from, s.to) }

	mine := part(dst, o.c.cfg.Rank)
	in := o.intake(mine, src.Type, op, chunks(o.c.cfg.Rank))
	in.own = ownPart(part(src, o.c.cfg.Rank))
	in.added = func(s span) { o.sendAll(mine, []span{s}) }
	in.posted = func() {
		for _, r := range o.c.others() {
			for _, s := range chunks(r) {
				o.recv(r, part(dst, r).slice(s.from, s.to).Data)
			}
		}
	}
	for _, r := range o.c.others() {
		o.sendChunks(r, part(src, r), chunks(r))
	}
	in.post()
	return o.until(in.done)
}

// sendChunks queues the chunks of b for one peer.
func (o *operation) sendChunks(peer int, b Buffer, chunks []span) {
	for _, s := range chunks {
		body := b.slice(s.from, s.to).Data
		o.send(peer, body, o.sum(body))
	}
}

// sendAll queues the chunks of b for every peer; each is summed once.
func (o *operation) sendAll(b Buffer, chunks []span) {
	for _, s := range chunks {
		body := b.slice(s.from, s.to).Data
		sum := o.sum(body)
		for _, r := range o.c.others() {
			o.send(r, body, sum)
		}
	}
}

// intake is the owner's side of a reduction: it takes every peer's copy of the
// owned slice chunk by chunk, in the first data frames of each link, and adds a
// chunk when all copies of it are there.
//
// Invariant: chunks [next, next+window) are posted, as far as there are any.
type intake struct {
	o      *operation
	dst    Buffer // the owned slice
	in     DataType
	op     ReduceOp
	chunks []span // of dst
	own    func(s span) (part Buffer, ready bool)
	added  func(s span) // told of each chunk when dst has it; may be nil
	posted func()       // told once when all landings are posted; may be nil

	next, up int // chunks added, chunks posted
	told     bool
}

func (o *operation) intake(dst Buffer, in DataType, op ReduceOp, chunks []span) *intake {
	return &intake{o: o, dst: dst, in: in, op: op, chunks: chunks}
}

// ownPart says that this rank's part is all there.
func ownPart(b Buffer) func(span) (Buffer, bool) {
	return func(s span) (Buffer, bool) { return b.slice(s.from, s.to), true }
}

// post gives the next chunks a place to land.
func (in *intake) post() {
	for ; in.up < len(in.chunks) && in.up < in.next+window; in.up++ {
		for _, r := range in.o.c.others() {
			in.o.recv(r, in.landing(in.up, r))
		}
	}
	if in.up == len(in.chunks) && !in.told && in.posted != nil {
		in.told = true
		in.posted()
	}
}

// landing is where chunk i of rank r lands.
func (in *intake) landing(i, r int) []byte {
	p := in.o.c.cfg.Size
	n := min(chunkFloats(p), in.dst.Count())
	place := Float32s(row(&in.o.c.scratch.land, i%window*p+r, n))
	return place.Data[:in.chunks[i].count()*in.in.Size()]
}

// advance adds every chunk that is complete.
func (in *intake) advance() {
	for in.next < len(in.chunks) && in.arrived(in.next) {
		own, ready := in.own(in.chunks[in.next])
		if !ready {
			return
		}
		in.add(in.next, own)
		if in.added != nil {
			in.added(in.chunks[in.next])
		}
		in.next++
		in.post()
	}
}

// done adds what is complete and reports whether that was all.
func (in *intake) done() bool {
	in.advance()
	return in.next == len(in.chunks)
}

// arrived reports whether chunk i of every peer was checked.
func (in *intake) arrived(i int) bool {
	for _, r := range in.o.c.others() {
		if in.o.c.flows[r].got <= uint64(i) {
			return false
		}
	}
	return true
}

// add reduces chunk i over the ranks, in rank order, and rounds it once to dst.
func (in *intake) add(i int, own Buffer) {
	s, sc, p := in.chunks[i], &in.o.c.scratch, in.o.c.cfg.Size
	n := s.count()
	sc.parts = sc.parts[:0]
	for r := range p {
		b := own
		if r != in.o.c.cfg.Rank {
			b = Buffer{Type: in.in, Data: in.landing(i, r)}
		}
		// Only a sum leaves the parts as they are.
		if in.in != FP32 || (in.op != SUM && r == in.o.c.cfg.Rank) {
			wide := row(&sc.wide, r, n)
			stored, _ := in.in.stored()
			kernel.Widen(wide, b.Data, stored)
			b = Float32s(wide)
		}
		sc.parts = append(sc.parts, b.floats())
	}
	if cap(sc.acc) < n {
		sc.acc = make([]float32, chunkFloats(p))
	}
	combine(sc.acc[:n], sc.parts, in.op)
	stored, _ := in.dst.Type.stored()
	kernel.Narrow(in.dst.slice(s.from, s.to).Data, sc.acc[:n], stored)
}

// combine writes to dst the reduction of parts in the tree of kernel.SumTree.
// All but SUM use parts as scratch.
func combine(dst []float32, parts [][]float32, op ReduceOp) {
	if op == SUM {
		kernel.SumTree(dst, parts)
		return
	}
	f := func(a, b float32) float32 { return a * b }
	switch op {
	case MAX:
		f = larger
	case MIN:
		f = func(a, b float32) float32 { return -larger(-a, -b) }
	}
	for d := 1; d < len(parts); d *= 2 {
		for i := 0; i+d < len(parts); i += 2 * d {
			a, b := parts[i], parts[i+d]
			for k := range a {
				a[k] = f(a[k], b[k])
			}
		}
	}
	copy(dst, parts[0])
}

// larger is the maximum of a and b: a NaN if either is one, and +0 above -0.
func larger(a, b float32) float32 {
	switch {
	case a != a || a > b:
		return a
	case a == b && !math.Signbit(float64(a)):
		return a
	}
	return b
}

// checkReduction refuses what cannot be reduced: src must hold factor times the
// elements of dst.
func checkReduction(dst, src Buffer, op ReduceOp, factor int) error {
	if err := src.check("src"); err != nil {
		return err
	}
	if err := dst.check("dst"); err != nil {
		return err
	}
	_, in := src.Type.stored()
	_, out := dst.Type.stored()
	switch {
	case op > MIN:
		return fmt.Errorf("reduction %v does not exist", op)
	case !in || !out:
		return fmt.Errorf("src %v to dst %v: only FP32, FP16 and BFP16 can be reduced",
			src.Type, dst.Type)
	case src.Type != dst.Type && src.Type != FP32:
		return fmt.Errorf("src %v to dst %v: src must be FP32 or the type of dst", src.Type, dst.Type)
	case src.Count() != factor*dst.Count():
		return fmt.Errorf("src has %d elements and dst %d, want %d and %d",
			src.Count(), dst.Count(), factor*dst.Count(), dst.Count())
	}
	return nil
}
