package rank

import "math/rand/v2"

// newRand is a source of its own for one seed.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x0c7e7)) }
