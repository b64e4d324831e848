package collective

import (
	"fmt"
	"slices"

	"octet/internal/kernel"
)

// DataType is how an element is stored, with HCCL's numbers.
type DataType uint8

// HCCL's data types. All of them can be moved; FP32, FP16 and BFP16 can be
// reduced.
const (
	INT8   DataType = 0
	INT16  DataType = 1
	INT32  DataType = 2
	FP16   DataType = 3
	FP32   DataType = 4
	INT64  DataType = 5
	UINT64 DataType = 6
	UINT8  DataType = 7
	UINT16 DataType = 8
	UINT32 DataType = 9
	FP64   DataType = 10
	BFP16  DataType = 11
)

var typeNames = [...]string{"INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64",
	"UINT8", "UINT16", "UINT32", "FP64", "BFP16"}

var typeSizes = [...]int{1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2}

// Size is the bytes of one element, or 0 for a type that does not exist.
func (t DataType) Size() int {
	if int(t) >= len(typeSizes) {
		return 0
	}
	return typeSizes[t]
}

// String is HCCL's name.
func (t DataType) String() string { return name(typeNames[:], t) }

// stored returns the kernel's name of a type that reductions accept.
func (t DataType) stored() (kernel.Type, bool) {
	switch t {
	case FP32:
		return kernel.F32, true
	case BFP16:
		return kernel.BF16, true
	case FP16:
		return kernel.F16, true
	}
	return 0, false
}

// ReduceOp is what a reduction does with the ranks' elements, with HCCL's
// numbers. A NaN in any rank's element makes the result a NaN, for MAX and MIN
// too; MAX of a positive and a negative zero is the positive one, MIN the
// negative one, so the order of ranks never shows.
type ReduceOp uint8

// HCCL's reductions.
const (
	SUM  ReduceOp = 0
	PROD ReduceOp = 1
	MAX  ReduceOp = 2
	MIN  ReduceOp = 3
)

// String is the reduction's name in lower case.
func (o ReduceOp) String() string { return name([]string{"sum", "prod", "max", "min"}, o) }

// Verb is the kind of an operation, with the numbers of HCCL's command types.
type Verb uint8

// The verbs. MatmulReduceScatter has no number in HCCL; 200 is ours.
const (
	Broadcast           Verb = 1
	AllReduce           Verb = 2
	AllGather           Verb = 6
	ReduceScatter       Verb = 7
	Gather              Verb = 11
	Barrier             Verb = 103
	MatmulReduceScatter Verb = 200
)

// String is the verb's name in lower case, "none" for no operation.
func (v Verb) String() string {
	switch v {
	case 0:
		return "none"
	case Broadcast:
		return "broadcast"
	case AllReduce:
		return "allreduce"
	case AllGather:
		return "allgather"
	case ReduceScatter:
		return "reducescatter"
	case Gather:
		return "gather"
	case Barrier:
		return "barrier"
	case MatmulReduceScatter:
		return "matmulreducescatter"
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// Purpose says what an operation is for. Counters are keyed by it, and the
// descriptor carries it, so two ranks that mean different things find out.
type Purpose uint8

// The purposes. The zero Purpose is "none".
const (
	Sequence  Purpose = iota + 1 // hidden states between row- and column-parallel products
	Embedding                    // the embedding's columns
	Head                         // logits
	Selection                    // rows whose logits are wanted
	Control                      // anything that is not the model's data
)

// String is the purpose's name in lower case.
func (p Purpose) String() string {
	return name([]string{"none", "sequence", "embedding", "head", "selection", "control"}, p)
}

// CommMode is how MatmulReduceScatter interleaves product and traffic. Both
// modes give the same bits.
type CommMode uint8

// The modes, with the operator's names.
const (
	AICPU CommMode = iota // a whole destination's rows are computed, then sent
	AIV                   // tiles of rows are sent as soon as they are computed
)

// String is the operator's name of the mode: ai_cpu or aiv.
func (m CommMode) String() string { return name([]string{"ai_cpu", "aiv"}, m) }

// Call is what the caller says about an operation beside its data.
type Call struct {
	Purpose Purpose
	Plan    uint64 // hash of the step plan as this rank derived it; equal on every rank
}

// Fused is the shape of a MatmulReduceScatter: the padded product is (Rows,
// Cols) on every rank, and each rank keeps Rows/Size rows of the sum.
type Fused struct {
	Rows, Cols int
	Mode       CommMode
}

// name returns names[i], or the number where there is no name.
func name[T ~uint8](names []string, i T) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", uint8(i))
}

// Count is how often one verb was called for one purpose, and how many bytes of
// bodies this rank sent for it.
type Count struct {
	Verb    Verb
	Purpose Purpose
	Calls   uint64
	Bytes   uint64
}

// Counts has one Count for each (Verb, Purpose) that was called, ordered by
// both, so two Counts are equal when slices.Equal says so.
type Counts []Count

// Calls sums the calls of verb for the given purposes, or for all when none is
// given.
func (c Counts) Calls(v Verb, purposes ...Purpose) uint64 {
	var n uint64
	for _, e := range c {
		if e.Verb == v && (len(purposes) == 0 || slices.Contains(purposes, e.Purpose)) {
			n += e.Calls
		}
	}
	return n
}

// Sub returns what was counted since before, an earlier state of c. Entries
// without a call since then are left out.
func (c Counts) Sub(before Counts) Counts {
	var out Counts
	for _, e := range c {
		if i, ok := before.find(e.Verb, e.Purpose); ok {
			e.Calls -= before[i].Calls
			e.Bytes -= before[i].Bytes
		}
		if e.Calls != 0 {
			out = append(out, e)
		}
	}
	return out
}

// add counts one call.
func (c *Counts) add(v Verb, p Purpose, bytes uint64) {
	i, ok := c.find(v, p)
	if !ok {
		*c = slices.Insert(*c, i, Count{Verb: v, Purpose: p})
	}
	(*c)[i].Calls++
	(*c)[i].Bytes += bytes
}

// find returns where the entry is or belongs.
func (c Counts) find(v Verb, p Purpose) (int, bool) {
	return slices.BinarySearchFunc(c, Count{Verb: v, Purpose: p}, func(a, b Count) int {
		if a.Verb != b.Verb {
			return int(a.Verb) - int(b.Verb)
		}
		return int(a.Purpose) - int(b.Purpose)
	})
}
