package model

import (
	"context"
	"fmt"

	"octet/collective"
	"octet/internal/kernel"
)

// layout says which rows of a hidden state a rank holds. It is never inferred
// from the number of rows: T and L can be equal.
type layout uint8

const (
	full    layout = iota + 1 // all T rows, the same on every rank
	sharded                   // L rows of the padded sequence, this rank's own
)

func (l layout) String() string { return [...]string{"none", "full", "sharded"}[l] }

// hidden is a hidden state, or what is added to one.
//
// Invariant: rows [0, valid) stand for the rows [from, from+valid) of the step;
// any further row is padding. A full state has from 0 and no padding.
type hidden struct {
	layout layout
	x      []float32 // (rows, H)
	from   int
	valid  int
}

// must panics if h is not laid out as the caller needs it.
func (h hidden) must(l layout, what string) {
	if h.layout != l {
		panic(fmt.Sprintf("model: %s of a %v hidden state, must be %v", what, h.layout, l))
	}
}

// step is one step under way on one rank.
type step struct {
	*Engine
	ctx  context.Context
	plan *Plan
	d    Decision // derived here
	hash uint64   // of plan and d
}

func (s *step) call(p collective.Purpose) collective.Call {
	return collective.Call{Purpose: p, Plan: s.hash}
}

// rows is T.
func (s *step) rows() int { return len(s.plan.Rows) }

// width is H.
func (s *step) width() int { return s.config.HiddenSize }

// state makes a hidden state of the step's layout in the given memory. Rows
// without a token are padding already.
func (s *step) state(memory *[]float32) hidden {
	if !s.d.FC1 {
		return hidden{layout: full, x: grow(memory, s.rows()*s.width()), valid: s.rows()}
	}
	from := min(s.rank*s.d.L, s.rows())
	h := hidden{layout: sharded, x: grow(memory, s.d.L*s.width()), from: from}
	h.valid = min(s.d.L, s.rows()-from)
	s.pad(h.x[h.valid*s.width():])
	return h
}

// pad fills rows that no token has.
func (s *step) pad(x []float32) {
	for i := range x {
		x[i] = s.padding
	}
}

// forward is the whole model, from token ids to sampled tokens.
func (s *step) forward() ([]Token, error) {
	s.turns()
	residual, err := s.embed()
	if err != nil {
		return nil, fmt.Errorf("embedding: %w", err)
	}
	s.digest(OpEmbed, 0, residual)
	for l := range s.shard.Layers {
		if err := s.layer(l, residual); err != nil {
			return nil, fmt.Errorf("layer %d: %w", l, err)
		}
	}
	normed := s.norm(residual, s.shard.Norm)
	s.digest(OpFinalNorm, 0, normed)
	x, err := s.gather(normed)
	if err != nil {
		return nil, fmt.Errorf("final norm: %w", err)
	}
	return s.head(x)
}

// embed looks up this rank's columns of the embedding of every row and gathers
// the others. Each rank keeps the rows of its layout.
func (s *step) embed() (hidden, error) {
	h, cols := s.state(&s.work.residual), s.width()/s.size
	share := grow(&s.work.share, s.rows()*cols)
	for i, r := range s.plan.Rows {
		s.shard.Embed.Row(share[i*cols:(i+1)*cols], r.Token)
	}
	all, err := s.gatherColumns(collective.Embedding, share)
	if err != nil {
		return h, err
	}
	for i := range h.valid {
		joinColumns(h.x[i*s.width():(i+1)*s.width()], all, h.from+i, s.rows(), cols)
	}
	kernel.Round(h.x[:h.valid*s.width()], s.act)
	return h, nil
}

// gatherColumns returns (tp, rows, cols) of every rank's share (rows, cols).
func (s *step) gatherColumns(p collective.Purpose, share []float32) ([]float32, error) {
	if s.size == 1 {
		return share, nil
	}
	all := grow(&s.work.gathered, s.size*len(share))
	return all, s.comm.AllGather(s.ctx, s.call(p),
		collective.Float32s(all), collective.Float32s(share))
}

// joinColumns writes to dst row i of the matrix whose column blocks stand one
// after the other in all (blocks, rows, cols). The last block may be cut short.
func joinColumns(dst, all []float32, i, rows, cols int) {
	for b := 0; b*cols < len(dst); b++ {
		copy(dst[b*cols:min((b+1)*cols, len(dst))], all[(b*rows+i)*cols:])
	}
}

// layer adds attention and MLP of layer l to the residual stream.
func (s *step) layer(l int, residual hidden) error {
	w := &s.shard.Layers[l]
	x, err := s.gather(s.norm(residual, w.InputNorm))
	if err != nil {
		return fmt.Errorf("input norm: %w", err)
	}
	mixed := s.attention(l, w, x)
	y, err := s.rowParallel(w.O, w.OBias, mixed, s.d.Fuse.O)
	if err != nil {
		return fmt.Errorf("o_proj: %w", err)
	}
	s.digest(OpMixer, l, y)
	s.add(residual, y)

	x, err = s.gather(s.norm(residual, w.PostNorm))
	if err != nil {
		return fmt.Errorf("post-attention norm: %w", err)
	}
	y, err = s.rowParallel(w.Down, nil, s.mlp(w, x), s.d.Fuse.Down)
	if err != nil {
		return fmt.Errorf("down_proj: %w", err)
	}
	s.digest(OpMLP, l, y)
	s.add(residual, y)
	s.digest(OpResidual, l, residual)
	return nil
}

// norm is RMSNorm of the rows that this rank holds. Padding stays padding.
func (s *step) norm(h hidden, weight []float32) hidden {
	out := s.state(&s.work.normed)
	out.must(h.layout, "norm")
	n := h.valid * s.width()
	kernel.RMSNorm(out.x[:n], h.x[:n], weight, h.valid, s.width(), s.config.Eps)
	kernel.Round(out.x[:n], s.act)
	return out
}

// add adds y to the residual stream.
func (s *step) add(residual, y hidden) {
	y.must(residual.layout, "addition to the residual")
	n := residual.valid * s.width()
	kernel.Add(residual.x[:n], residual.x[:n], y.x[:n])
	kernel.Round(residual.x[:n], s.act)
}

// gather returns all T rows of h, (T, H). Of a sharded state it gathers the
// shards to the padded sequence and drops what is beyond T.
func (s *step) gather(h hidden) ([]float32, error) {
	if h.layout == full {
		return h.x, nil
	}
	all := grow(&s.work.wide, s.d.P*s.width())
	err := s.comm.AllGather(s.ctx, s.call(collective.Sequence),
		collective.Float32s(all), collective.Float32s(h.x))
	return all[:s.rows()*s.width()], err
}

// rowParallel is x (T, K) times the rank's columns of a weight, summed over
// ranks, plus the bias of the module. The result has the step's layout.
func (s *step) rowParallel(w *kernel.Weights, bias, x []float32, fuse bool) (hidden, error) {
	var y hidden
	var err error
	switch {
	case !s.d.FC1:
		y, err = s.allReduce(w, x)
	case fuse:
		y, err = s.matmulReduceScatter(w, x)
	default:
		y, err = s.reduceScatter(w, x)
	}
	if err != nil {
		return y, err
	}
	s.finish(y, bias)
	return y, nil
}

// finish adds the bias, on every rank in float32, and rounds. Both happen once
// and after the sum; padding stays what it is.
func (s *step) finish(y hidden, bias []float32) {
	for i := range y.valid {
		row := y.x[i*s.width() : (i+1)*s.width()]
		if bias != nil {
			kernel.Add(row, row, bias)
		}
		kernel.Round(row, s.act)
	}
}

// shares writes to y this rank's share of rows [from, to) of the padded
// product. Rows from T on are padding.
func (s *step) shares(y []float32, w *kernel.Weights, x []float32, from, to int) {
	n := max(0, min(to, s.rows())-from)
	if n > 0 {
		w.Partial(y[:n*w.Rows()], x[from*w.Cols():(from+n)*w.Cols()], n, s.segments, 0, s.segments)
	}
	s.pad(y[n*w.Rows() : (to-from)*w.Rows()])
}

// allReduce sums the shares of all T rows on every rank.
func (s *step) allReduce(w *kernel.Weights, x []float32) (hidden, error) {
	y := s.state(&s.work.wide)
	y.must(full, "all-reduce")
	s.shares(y.x, w, x, 0, s.rows())
	if s.size == 1 {
		return y, nil
	}
	sum := collective.Float32s(y.x)
	return y, s.comm.AllReduce(s.ctx, s.call(collective.Sequence), sum, sum, collective.SUM)
}

// reduceScatter sums the shares of P rows; each rank keeps its own L.
func (s *step) reduceScatter(w *kernel.Weights, x []float32) (hidden, error) {
	y := s.state(&s.work.normed) // the gathered copy of its content has been consumed
	y.must(sharded, "reduce-scatter")
	all := grow(&s.work.wide, s.d.P*s.width())
	s.shares(all, w, x, 0, s.d.P)
	return y, s.comm.ReduceScatter(s.ctx, s.call(collective.Sequence),
		collective.Float32s(y.x), collective.Float32s(all), collective.SUM)
}

// matmulReduceScatter is reduceScatter with the product computed as the sum
// needs it, so that no padded product exists.
func (s *step) matmulReduceScatter(w *kernel.Weights, x []float32) (hidden, error) {
	y := s.state(&s.work.normed)
	y.must(sharded, "matmul-reduce-scatter")
	f := collective.Fused{Rows: s.d.P, Cols: s.width(), Mode: s.d.Mode}
	return y, s.comm.MatmulReduceScatter(s.ctx, s.call(collective.Sequence), f,
		collective.Float32s(y.x), func(from, to int, partial []float32) {
			s.shares(partial, w, x, from, to)
		})
}

// digest notes the rows of h that this rank holds.
func (s *step) digest(op Op, layer int, h hidden) {
	if s.digests == nil && s.watch == nil {
		return
	}
	for i := range h.valid {
		x := h.x[i*s.width() : (i+1)*s.width()]
		s.note(op, layer, s.plan.Rows[h.from+i], 0, x, h.layout == full)
	}
}

// note digests columns from col0 on of one row of a tensor. They are whole if
// every rank holds them, else no other rank may note them.
func (s *step) note(op Op, layer int, r Row, col0 int, x []float32, whole bool) {
	if s.digests != nil {
		s.digests.add(op, layer, r, col0, x, whole)
	}
	if s.watch != nil {
		s.watch(op, layer, r, x)
	}
}

// tileRows is how many rows pass from qkv to attention, and from gate and up to
// their product, at a time. It bounds scratch, not results.
const tileRows = 128

// tiles calls f for the rows of x (n, H), tileRows or fewer at a time.
func (s *step) tiles(x []float32, f func(from, n int, x []float32)) {
	h := s.width()
	for from := 0; from*h < len(x); from += tileRows {
		n := min(tileRows, len(x)/h-from)
		f(from, n, x[from*h:(from+n)*h])
	}
}

// attention writes keys and values of x (T, H) to the cache and returns what
// this rank's query heads make of it, (T, heads * dim). Rows of a request are
// in order of position, so a row finds all it may see in the cache.
func (s *step) attention(l int, w *Layer, x []float32) []float32 {
	k, cols := w.O.Cols(), w.QKV.Rows()
	mixed := grow(&s.work.mixed, len(x)/s.width()*k)
	s.tiles(x, func(from, n int, x []float32) {
		qkv := grow(&s.work.tile, n*cols)
		w.QKV.Partial(qkv, x, n, 1, 0, 1)
		for i := range n {
			row, t := qkv[i*cols:(i+1)*cols], from+i
			if w.QKVBias != nil {
				kernel.Add(row, row, w.QKVBias)
			}
			kernel.Round(row, s.act)
			s.cacheRow(l, w, t, row[k:])
			s.turn(row[:k], w.QNorm, t)
		}
		for i := 0; i < n; {
			m := s.neighbours(from+i, n-i)
			s.attend(l, from+i, m, qkv[i*cols:(i+m)*cols], mixed[(from+i)*k:(from+i+m)*k])
			i += m
		}
	})
	return mixed
}

// turns computes cos and sin (T, rot/2) of every row's position.
func (s *step) turns() {
	half := s.config.Rope.Dim / 2
	cos, sin := grow(&s.work.cos, s.rows()*half), grow(&s.work.sin, s.rows()*half)
	for t, r := range s.plan.Rows {
		s.rope.Row(cos[t*half:(t+1)*half], sin[t*half:(t+1)*half], r.Pos)
	}
}

// turn norms the heads (n, dim) of row t and turns them to its position.
func (s *step) turn(x, weight []float32, t int) {
	dim, rot := s.config.HeadDim, s.config.Rope.Dim
	kernel.RMSNorm(x, x, weight, len(x)/dim, dim, s.config.Eps)
	at := t * rot / 2
	kernel.Rope(x, s.work.cos[at:at+rot/2], s.work.sin[at:at+rot/2], len(x)/dim, dim, rot)
	kernel.Round(x, s.act)
}

// cacheRow stores key and value of row t of the step: kv (2, heads, dim).
func (s *step) cacheRow(l int, w *Layer, t int, kv []float32) {
	row, dim := s.plan.Rows[t], s.config.HeadDim
	keys, values := kv[:len(kv)/2], kv[len(kv)/2:]
	s.turn(keys, w.KNorm, t)
	first, owner := s.kvHeads()
	for h := range s.cache.heads {
		key, value := keys[h*dim:(h+1)*dim], values[h*dim:(h+1)*dim]
		s.cache.store(row.Slot, l, h, row.Pos, key, value)
		if owner {
			s.note(OpKey, l, row, (first+h)*dim, key, false)
			s.note(OpValue, l, row, (first+h)*dim, value, false)
		}
	}
}

// kvHeads is the model's number of this rank's first kv head, and whether this
// rank answers for it: of ranks that hold the same one, the lowest does.
func (s *step) kvHeads() (first int, owner bool) {
	if s.config.KVHeads >= s.size {
		return s.rank * s.cache.heads, true
	}
	replicas := s.size / s.config.KVHeads
	return s.rank / replicas, s.rank%replicas == 0
}

// neighbours is how many of the n rows from t on are of row t's request, up to
// the first that is not.
func (s *step) neighbours(t, n int) int {
	m := 1
	for m < n && s.plan.Rows[t+m].Slot == s.plan.Rows[t].Slot {
		m++
	}
	return m
}

// heads are query heads that attend to the same keys and values.
type heads struct {
	out, q [][]float32 // (dim)
	seen   []int       // positions from 0 on
}

// attend writes to out (n, heads*dim) the attention of the queries of n rows of
// one request from t on, each over its own position and all before. The heads
// that share a kv head go together. rows is (n, qkv).
func (s *step) attend(l, t, n int, rows, out []float32) {
	dim, k, cols := s.config.HeadDim, len(out)/n, len(rows)/n
	group := k / dim / s.cache.heads
	scores := grow(&s.work.scores, kernel.AttendScores)
	for kv := range s.cache.heads {
		a := &s.work.heads
		a.out, a.q, a.seen = a.out[:0], a.q[:0], a.seen[:0]
		for i := range n {
			for h := kv * group; h < (kv+1)*group; h++ {
				a.out = append(a.out, out[i*k+h*dim:][:dim])
				a.q = append(a.q, rows[i*cols+h*dim:][:dim])
				a.seen = append(a.seen, s.plan.Rows[t+i].Pos+1)
			}
		}
		keys, values := s.cache.at(s.plan.Rows[t].Slot, l, kv)
		kernel.AttendRows(a.out, a.q, a.seen, keys, values, dim, s.scale, scores)
	}
	kernel.Round(out, s.act)
}

// mlp returns silu(gate(x)) * up(x) of this rank's columns, (T, I/tp).
func (s *step) mlp(w *Layer, x []float32) []float32 {
	k := w.Down.Cols()
	acted := grow(&s.work.acted, len(x)/s.width()*k)
	s.tiles(x, func(from, n int, x []float32) {
		both := grow(&s.work.tile, n*2*k) // (n, gate | up)
		w.GateUp.Partial(both, x, n, 1, 0, 1)
		kernel.Round(both, s.act)
		for i := range n {
			row, out := both[i*2*k:(i+1)*2*k], acted[(from+i)*k:(from+i+1)*k]
			kernel.SiluMul(out, row[:k], row[k:])
			kernel.Round(out, s.act)
		}
	})
	return acted
}

// head computes the logits of the sampled rows of x (T, H) and chooses their
// tokens. Every rank chooses all of them.
func (s *step) head(x []float32) ([]Token, error) {
	b := len(s.plan.Samples)
	if b == 0 {
		return nil, nil
	}
	picked := grow(&s.work.picked, b*s.width())
	for i, sample := range s.plan.Samples {
		copy(picked[i*s.width():], x[sample.Row*s.width():(sample.Row+1)*s.width()])
	}
	share, cols := s.logitShare(picked, b)
	all, err := s.gatherColumns(collective.Head, share)
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	logits := grow(&s.work.logits, s.config.VocabSize)
	tokens := make([]Token, b)
	for i, sample := range s.plan.Samples {
		row := s.plan.Rows[sample.Row]
		joinColumns(logits, all, i, b, cols)
		s.note(OpLogits, 0, row, 0, logits, true)
		tokens[i] = choose(logits, sample.Params, row.Pos+1)
		tokens[i].Request = sample.Request
	}
	return tokens, nil
}

// logitShare returns this rank's logits of x (b, H) as (b, cols). All ranks
// have the same cols, that of rank 0; where the vocabulary ends earlier the
// rest is padding, which joinColumns never reads.
func (s *step) logitShare(x []float32, b int) (share []float32, cols int) {
	_, cols = s.config.HeadRange(0, s.size)
	n := s.shard.HeadTo - s.shard.HeadFrom
	own := grow(&s.work.tile, b*n)
	if n > 0 {
		s.shard.Head.Partial(own, x, b, 1, 0, 1)
	}
	share = grow(&s.work.share, b*cols)
	for i := range b {
		copy(share[i*cols:], own[i*n:(i+1)*n])
		s.pad(share[i*cols+n : (i+1)*cols])
	}
	return share, cols
}
