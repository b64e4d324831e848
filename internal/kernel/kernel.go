// Package kernel is arithmetic on slices: products with packed weights, norms,
// soft-max attention, reductions and the few functions whose bits count. It
// knows nothing of ranks, layers or tensors' names and imports nothing of ours.
//
// Every function here has one result, bit for bit, whatever the machine, the
// number of rows in the call and their position in it:
//
//   - a dot product is acc = FMA32(x[k], w[k], acc), k ascending, one
//     accumulator an output element, starting at +0;
//   - the products of K-segments, like the contributions of ranks, are added in
//     one tree: the left subtree is the largest power of two below the count
//     ([SumTree]);
//   - sums over a row (norms, soft-max) run over 16 virtual lanes, element i in
//     lane i mod 16, which are then added in the tree of [SumTree];
//   - no call goes to math.Exp, Log or Pow, which choose their instructions at
//     run time; explicit float32 conversions keep the compiler from fusing.
package kernel

// Type is how a value is stored. Arithmetic is float32 for all of them.
type Type uint8

// The stored types, with the dtype names that safetensors gives them.
const (
	F32 Type = iota
	BF16
	F16
)

// Size is the bytes of one stored element.
func (t Type) Size() int {
	if t == F32 {
		return 4
	}
	return 2
}

// String is the safetensors name: F32, BF16 or F16.
func (t Type) String() string { return [...]string{"F32", "BF16", "F16"}[t] }
