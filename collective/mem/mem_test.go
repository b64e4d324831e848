package mem_test

import (
	"testing"

	"octet/collective/collectivetest"
	"octet/collective/mem"
)

func mesh(_ *testing.T, size int) []collectivetest.Endpoint {
	n := mem.New(size)
	out := make([]collectivetest.Endpoint, size)
	for r := range out {
		out[r].Transport, out[r].Lane = n.Rank(r)
	}
	return out
}

// Every size up to the limit gives the bits of the definition.
func TestOddSizes(t *testing.T) {
	for _, size := range []int{6, 64} {
		collectivetest.RunSize(t, mesh, size)
	}
}

// The in-memory network passes the conformance suite.
func TestConformance(t *testing.T) { collectivetest.Run(t, mesh) }
