package model

import (
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"octet/internal/kernel"
)

// Shard is what one rank of a group holds of a checkpoint. It does not change
// after Load, so goroutines may share it.
type Shard struct {
	Rank, Size int

	Embed  *Table          // (vocabulary, hidden/Size): columns [Rank*hidden/Size, ...)
	Layers []Layer         // in order
	Norm   []float32       // (hidden), the final norm
	Head   *kernel.Weights // (HeadTo-HeadFrom, hidden); perhaps no row at all

	// HeadFrom and HeadTo bound the vocabulary rows of Head, as
	// Config.HeadRange gives them. Rows past the vocabulary do not exist.
	HeadFrom, HeadTo int

	// Bytes is what this rank took from the checkpoint, in the stored types.
	// Summed over ranks it counts replicated tensors Size times, and a tied
	// head once more than the file does.
	Bytes int64
}

// Layer is one rank's part of a transformer layer. Fused matrices are fused
// after slicing: their rows are this rank's q, then its k, then its v (gate,
// then up).
type Layer struct {
	InputNorm, PostNorm []float32 // (hidden)
	QNorm, KNorm        []float32 // (head), one vector for all heads

	QKV     *kernel.Weights // ((heads + 2 kvHeads of this rank) * head, hidden)
	QKVBias []float32       // one a row of QKV, or nil
	O       *kernel.Weights // (hidden, heads/Size * head)
	OBias   []float32       // (hidden) on every rank, or nil: added once, after the sum
	GateUp  *kernel.Weights // (2 * intermediate/Size, hidden)
	Down    *kernel.Weights // (hidden, intermediate/Size)
}

// Table is a matrix of which single rows are read, kept as it is stored.
type Table struct {
	raw  []byte // (rows, cols), row-major, little endian
	kind kernel.Type
	rows int
	cols int
}

// Rows is the number of rows.
func (t *Table) Rows() int { return t.rows }

// Cols is the width of a row.
func (t *Table) Cols() int { return t.cols }

// Row writes row id, 0 <= id < Rows, to dst (cols).
func (t *Table) Row(dst []float32, id int) {
	size := t.cols * t.kind.Size()
	kernel.Widen(dst[:t.cols], t.raw[id*size:(id+1)*size], t.kind)
}

// cutter cuts one rank's shard out of a checkpoint that has been checked
// against its config. The first fault stays in err; all that is cut after it is
// empty.
type cutter struct {
	config     *Config
	tensors    map[string]*storedTensor
	names      tensorNames
	rank, size int

	taken int64 // bytes of the shard so far
	err   error
}

// piece is a part of a tensor, as it is stored.
type piece struct {
	raw        []byte
	kind       kernel.Type
	rows, cols int
}

// shard cuts everything, in the order in which it is used.
func (k *cutter) shard() *Shard {
	c := k.config
	s := &Shard{Rank: k.rank, Size: k.size}
	embed := k.columns(k.names.embed())
	s.Embed = &Table{raw: embed.raw, kind: embed.kind, rows: embed.rows, cols: embed.cols}
	if s.Layers = k.layers(c.Layers); k.err != nil {
		return nil
	}
	s.Norm = k.vector(k.names.norm())
	s.HeadFrom, s.HeadTo = c.HeadRange(k.rank, k.size)
	s.Head = k.head(s.HeadFrom, s.HeadTo)
	s.Bytes = k.taken
	return s
}

// layers cuts n layers, some at a time: reading waits for the disk while packing
// takes a core.
func (k *cutter) layers(n int) []Layer {
	var cuts errgroup.Group
	cuts.SetLimit(runtime.GOMAXPROCS(0)) // what each reads is held until it is packed
	all, taken := make([]Layer, n), make([]int64, n)
	for i := range n {
		cuts.Go(func() error { // ends when the layer is cut
			own := *k
			own.taken = 0
			all[i] = own.layer(i)
			taken[i] = own.taken
			return own.err
		})
	}
	if err := cuts.Wait(); k.err == nil {
		k.err = err
	}
	for _, bytes := range taken {
		k.taken += bytes
	}
	return all
}

func (k *cutter) layer(i int) Layer {
	c := k.config
	at := func(name string) string { return k.names.layer(i, name) }
	q := c.Heads * c.HeadDim / k.size
	kvFrom, kvTo := c.kvRange(k.rank, k.size)
	kvFrom, kvTo = kvFrom*c.HeadDim, kvTo*c.HeadDim
	qkv := func(kind string) []piece {
		return []piece{
			k.rows(at("self_attn.q_proj."+kind), k.rank*q, (k.rank+1)*q),
			k.rows(at("self_attn.k_proj."+kind), kvFrom, kvTo),
			k.rows(at("self_attn.v_proj."+kind), kvFrom, kvTo),
		}
	}
	wide := c.IntermediateSize / k.size
	layer := Layer{
		InputNorm: k.vector(at("input_layernorm.weight")),
		PostNorm:  k.vector(at("post_attention_layernorm.weight")),
		QNorm:     k.vector(at("self_attn.q_norm.weight")),
		KNorm:     k.vector(at("self_attn.k_norm.weight")),
		QKV:       k.pack(qkv("weight")...),
		O:         k.pack(k.columns(at("self_attn.o_proj.weight"))),
		GateUp: k.pack(
			k.rows(at("mlp.gate_proj.weight"), k.rank*wide, (k.rank+1)*wide),
			k.rows(at("mlp.up_proj.weight"), k.rank*wide, (k.rank+1)*wide)),
		Down: k.pack(k.columns(at("mlp.down_proj.weight"))),
	}
	if c.AttentionBias {
		for _, p := range qkv("bias") {
			layer.QKVBias = append(layer.QKVBias, p.floats()...)
		}
		layer.OBias = k.vector(at("self_attn.o_proj.bias"))
	}
	return layer
}

// head cuts rows [from, to) of the head. Where it is tied, they are those of
// the embedding, and a head that is stored all the same has to be equal to it.
// Each rank compares its own rows, so that the group compares all of them.
func (k *cutter) head(from, to int) *kernel.Weights {
	if !k.config.Tied {
		return k.pack(k.rows(k.names.head, from, to))
	}
	p := k.rows(k.names.embed(), from, to)
	if t := k.tensors[k.names.head]; t != nil {
		taken := k.taken
		stored := k.rows(k.names.head, from, to)
		k.taken = taken // compared, not kept
		if k.err == nil && !slices.Equal(bitsOf(stored.floats()), bitsOf(p.floats())) {
			k.err = fmt.Errorf("%s: differs from %s in rows %d to %d, though "+
				"tie_word_embeddings is true", t.where(), k.names.embed(), from, to)
		}
	}
	return k.pack(p)
}

// vector is a whole tensor of one dimension.
func (k *cutter) vector(name string) []float32 {
	p := k.rows(name, 0, k.tensors[name].shape[0])
	return p.floats()
}

// rows cuts rows [from, to) of a matrix or a vector.
func (k *cutter) rows(name string, from, to int) piece {
	cols := 1
	if shape := k.tensors[name].shape; len(shape) > 1 {
		cols = shape[1]
	}
	return k.cut(name, from, to, 0, cols)
}

// columns cuts this rank's share of the columns of a matrix.
func (k *cutter) columns(name string) piece {
	shape := k.tensors[name].shape
	n := shape[1] / k.size
	return k.cut(name, 0, shape[0], k.rank*n, (k.rank+1)*n)
}

func (k *cutter) cut(name string, fromRow, toRow, fromCol, toCol int) piece {
	if k.err != nil {
		return piece{}
	}
	t := k.tensors[name]
	p := piece{rows: toRow - fromRow, cols: toCol - fromCol}
	if p.kind, k.err = t.kind(); k.err != nil {
		return piece{}
	}
	if p.raw, k.err = t.block(fromRow, toRow, fromCol, toCol); k.err != nil {
		return piece{}
	}
	k.taken += int64(len(p.raw))
	return p
}

// pack puts pieces of one width under each other. Pieces of different types are
// widened, which changes no value.
func (k *cutter) pack(pieces ...piece) *kernel.Weights {
	all := pieces[0]
	for _, p := range pieces[1:] {
		if p.kind != all.kind {
			all, p = all.widened(), p.widened()
		}
		all.raw = append(all.raw, p.raw...)
		all.rows += p.rows
	}
	return kernel.Pack(all.raw, all.kind, all.rows, all.cols)
}

// floats are the values of a piece.
func (p piece) floats() []float32 {
	out := make([]float32, p.rows*p.cols)
	kernel.Widen(out, p.raw, p.kind)
	return out
}

// widened is the piece stored as F32.
func (p piece) widened() piece {
	values := p.floats()
	p.kind, p.raw = kernel.F32, make([]byte, len(values)*kernel.F32.Size())
	kernel.Narrow(p.raw, values, kernel.F32)
	return p
}

func bitsOf(values []float32) []uint32 {
	out := make([]uint32, len(values))
	for i, v := range values {
		out[i] = math.Float32bits(v)
	}
	return out
}
