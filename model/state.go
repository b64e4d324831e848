package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"octet/internal/kernel"
)

// cache is the keys and values of this rank's kv heads. A slot grows by blocks
// of kernel.KeyBlock positions, which it gives back when a new request takes it.
type cache struct {
	layers, heads, dim int
	positions          int // that a slot holds, at most
	slots              []slot
	free               [][]float32 // blocks that nobody holds
}

// slot is one sequence in the cache.
//
// Invariant: what lies at and beyond length is never read. A request that
// starts at position 0 begins with length 0, whatever the slot held.
type slot struct {
	request uint64
	step    uint64 // the last step that wrote here
	length  int    // positions that hold keys and values, in all layers
	// keys[layer*heads+head][b] is (KeyBlock, dim), at positions from b*KeyBlock;
	// values likewise.
	keys, values [][][]float32
}

func newCache(layers, heads, dim, slots, positions int) *cache {
	c := &cache{layers: layers, heads: heads, dim: dim, positions: positions}
	c.slots = make([]slot, slots)
	for i := range c.slots {
		c.slots[i].keys = make([][][]float32, layers*heads)
		c.slots[i].values = make([][][]float32, layers*heads)
	}
	return c
}

// reserve makes room for one row, whose position must be the next of its slot
// or 0, and says otherwise what is wrong. Called for all rows of a step, in
// order, before any of them is computed.
func (c *cache) reserve(r Row, step uint64) error {
	if r.Slot < 0 || r.Slot >= len(c.slots) {
		return fmt.Errorf("slot %d of %d", r.Slot, len(c.slots))
	}
	s := &c.slots[r.Slot]
	if r.Pos == 0 && s.step != step {
		c.reset(s, r.Request)
	}
	switch {
	case r.Request != s.request || r.Pos != s.length:
		return fmt.Errorf("slot %d stands at position %d of request %d",
			r.Slot, s.length, s.request)
	case r.Pos >= c.positions:
		return fmt.Errorf("slot %d holds %d positions", r.Slot, c.positions)
	}
	s.step = step
	if s.length%kernel.KeyBlock == 0 {
		for i := range s.keys {
			s.keys[i] = append(s.keys[i], c.block())
			s.values[i] = append(s.values[i], c.block())
		}
	}
	s.length++
	return nil
}

// reset empties a slot for a request. Whatever a layer carries from token to
// token starts anew here.
func (c *cache) reset(s *slot, request uint64) {
	for i := range s.keys {
		c.free = append(c.free, s.keys[i]...)
		c.free = append(c.free, s.values[i]...)
		s.keys[i], s.values[i] = s.keys[i][:0], s.values[i][:0]
	}
	s.request, s.length = request, 0
}

// block returns a block with any content.
func (c *cache) block() []float32 {
	if n := len(c.free); n > 0 {
		b := c.free[n-1]
		c.free = c.free[:n-1]
		return b
	}
	return make([]float32, kernel.KeyBlock*c.dim)
}

// at returns the keys and values of one head of one layer in a slot, by block.
func (c *cache) at(slot, layer, head int) (keys, values [][]float32) {
	s := &c.slots[slot]
	return s.keys[layer*c.heads+head], s.values[layer*c.heads+head]
}

// store writes the key and value (dim) of one head at a reserved position.
func (c *cache) store(slot, layer, head, pos int, key, value []float32) {
	keys, values := c.at(slot, layer, head)
	b, from := pos/kernel.KeyBlock, pos%kernel.KeyBlock*c.dim
	copy(keys[b][from:from+c.dim], key)
	copy(values[b][from:from+c.dim], value)
}

// Op names a tensor of the forward pass that is digested.
type Op uint64

// The digested tensors, in the order in which the forward pass makes them.
const (
	OpEmbed     Op = iota + 1 // embedding, layer 0
	OpKey                     // key as cached, after norm and rope
	OpValue                   // value as cached
	OpMixer                   // output of attention, after o_proj's sum and bias
	OpMLP                     // output of the MLP, after down_proj's sum
	OpResidual                // residual stream after the layer
	OpFinalNorm               // output of the last norm, layer 0
	OpLogits                  // logits of sampled rows, layer 0
)

// String is the name of the tensor in reports.
func (o Op) String() string {
	names := [...]string{OpEmbed: "embed", OpKey: "key", OpValue: "value", OpMixer: "mixer",
		OpMLP: "mlp", OpResidual: "residual", OpFinalNorm: "final_norm", OpLogits: "logits"}
	if o >= Op(len(names)) || names[o] == "" {
		return fmt.Sprintf("op %d", uint64(o))
	}
	return names[o]
}

// Digest is what one rank has seen of one tensor of one request, summed over
// all its steps. The keys of rows are absolute positions, so a digest does not
// depend on how a prompt was cut, nor on who shared its steps.
type Digest struct {
	Request uint64
	Op      Op
	Layer   uint64
	Whole   uint64 // of rows that every rank holds
	Part    uint64 // of rows or columns that this rank alone answers for
}

// DigestKey names a digested tensor of a request.
type DigestKey struct {
	Op    Op
	Layer uint64
}

// CombineDigests makes one number for each tensor of one request of what the
// ranks have: the Whole that they all agree on plus the sum of their Parts. A
// rank that lists no digest of a tensor saw none of its rows. It is an error, a
// *ReplicaError, if ranks hold different bits in rows that they all hold.
func CombineDigests(perRank [][]Digest) (map[DigestKey]uint64, error) {
	combined := map[DigestKey]uint64{}
	wholes := make([]map[DigestKey]uint64, len(perRank))
	var of *uint64
	for rank, digests := range perRank {
		wholes[rank] = map[DigestKey]uint64{}
		for _, d := range digests {
			key := DigestKey{d.Op, d.Layer}
			if _, again := wholes[rank][key]; again {
				return nil, fmt.Errorf("combine digests: rank %d has %v of layer %d twice",
					rank, d.Op, d.Layer)
			}
			if of == nil {
				of = &d.Request
			}
			if d.Request != *of {
				return nil, fmt.Errorf("combine digests: of requests %d and %d", *of, d.Request)
			}
			wholes[rank][key] = d.Whole
			combined[key] += d.Part
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(combined), DigestKey.compare) {
		for rank := range wholes {
			if wholes[rank][key] != wholes[0][key] {
				return nil, &ReplicaError{Rank: rank, Request: *of, Op: key.Op, Layer: key.Layer}
			}
		}
		combined[key] += wholes[0][key]
	}
	return combined, nil
}

// compare orders tensors as the forward pass makes them, but for what stands
// before and after all layers, which counts as layer 0.
func (k DigestKey) compare(other DigestKey) int {
	return cmp.Or(cmp.Compare(k.Layer, other.Layer), cmp.Compare(k.Op, other.Op))
}

// ReplicaError says that a rank holds other bits than rank 0 where all ranks
// should hold the same.
type ReplicaError struct {
	Rank    int
	Request uint64
	Op      Op
	Layer   uint64
}

func (e *ReplicaError) Error() string {
	return fmt.Sprintf("combine digests of request %d: "+
		"rank %d and rank 0 hold different replicas of %v of layer %d",
		e.Request, e.Rank, e.Op, e.Layer)
}

// digestRequests is how many requests an engine keeps digests of. The oldest
// goes first.
const digestRequests = 1024

// digester sums digests by request.
type digester struct {
	order []uint64 // of arrival
	sums  map[uint64]map[DigestKey]*Digest
}

func newDigester() *digester { return &digester{sums: map[uint64]map[DigestKey]*Digest{}} }

// begin forgets what an earlier request of this number left.
func (d *digester) begin(request uint64) {
	d.order = slices.DeleteFunc(d.order, func(r uint64) bool { return r == request })
	if len(d.order) == digestRequests {
		delete(d.sums, d.order[0])
		d.order = d.order[1:]
	}
	d.order = append(d.order, request)
	d.sums[request] = map[DigestKey]*Digest{}
}

// add adds columns from col0 on of a row, which every rank holds if whole.
func (d *digester) add(op Op, layer int, r Row, col0 int, x []float32, whole bool) {
	sums, ok := d.sums[r.Request]
	if !ok {
		return // forgotten while it runs: there are too many
	}
	key := DigestKey{op, uint64(layer)}
	s := sums[key]
	if s == nil {
		s = &Digest{Request: r.Request, Op: op, Layer: uint64(layer)}
		sums[key] = s
	}
	sum := kernel.Digest(uint64(op), uint64(layer), uint64(r.Pos), col0, x)
	if whole {
		s.Whole += sum
	} else {
		s.Part += sum
	}
}

// of lists the digests of a request by operation and layer.
func (d *digester) of(request uint64) []Digest {
	var all []Digest
	for _, s := range d.sums[request] {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Digest) int {
		return DigestKey{a.Op, a.Layer}.compare(DigestKey{b.Op, b.Layer})
	})
	return all
}
