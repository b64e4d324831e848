package collectivetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

var call = collective.Call{Purpose: collective.Sequence, Plan: 0xfeed}

// conversion is the types of a reduction.
type conversion struct{ in, out kind }

var conversions = []conversion{{fp32, fp32}, {fp32, bf16}, {fp32, fp16}, {bf16, bf16}, {fp16, fp16}}

var lengths = []int{0, 1, 3, 8, 1000}

// twoStep is a length at which an AllReduce of any size takes two steps.
const twoStep = 40000

// long is the length that takes many chunks. With -short no case has it.
const long = 300000

// bits checks that every verb gives, on every rank, the bits of its definition,
// in place and not, and touches no other memory.
func bits(t *testing.T, mesh func(t *testing.T, size int) []Endpoint, size int) {
	g := newGroup(t, mesh(t, size), func(c *collective.Config) { c.Checksum = size%2 == 1 })
	if size > 8 { // frames grow with the square of the ranks
		g.reduce(3, conversions[0], collective.SUM, true)
		g.reduce(1000, conversions[1], collective.SUM, false)
		g.move(3, bf16)
		return
	}
	for _, n := range lengths {
		g.sums(n)
	}
	for _, op := range []collective.ReduceOp{collective.PROD, collective.MAX, collective.MIN} {
		for _, v := range conversions {
			g.reduce(37, v, op, false)
		}
		g.reduce(37, conversions[0], op, true)
	}
	if size > 1 {
		g.reduce(twoStep, conversions[0], collective.SUM, true)
		g.reduce(twoStep, conversions[1], collective.SUM, false)
		g.reduce(twoStep, conversions[4], collective.SUM, true)
	}
	if !testing.Short() { // the long length takes most of the time
		g.sums(long)
	}
	for r, err := range g.each("barrier", func(ctx context.Context, r int, c *collective.Comm) error {
		return c.Barrier(ctx, call)
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	g.sameCounts()
}

// sums checks sums and moves of n elements, of all types, in place and not.
func (g *group) sums(n int) {
	for _, v := range conversions {
		for _, inPlace := range []bool{false, true} {
			if !inPlace || v.in == v.out {
				g.reduce(n, v, collective.SUM, inPlace)
			}
		}
	}
	for _, k := range []kind{fp32, bf16, fp16} {
		g.move(n, k)
	}
}

// sameCounts checks that all ranks counted the same calls.
func (g *group) sameCounts() {
	var first collective.Counts
	for r, c := range g.comms {
		counts := c.Counts()
		for i := range counts {
			counts[i].Bytes = 0 // a root sends more than the others
		}
		if r == 0 {
			first = counts
		}
		require.True(g.t, slices.Equal(first, counts), "rank %d counted %v, rank 0 %v", r, counts, first)
	}
	require.EqualValues(g.t, 1, first.Calls(collective.Barrier, collective.Sequence))
}

// reduce runs AllReduce and ReduceScatter of n elements, the latter with
// n/size+1 elements a rank.
func (g *group) reduce(n int, v conversion, op collective.ReduceOp, inPlace bool) {
	size := len(g.comms)
	what := fmt.Sprintf("%v n=%d %v to %v in place=%v", op, n, v.in, v.out, inPlace)
	seed := uint64(n*31 + int(op))

	g.reduceCase("allreduce "+what, v, op, inPlace, n, seed, func(r int) (int, int) { return 0, n },
		func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error {
			return c.AllReduce(ctx, call, dst, src, op)
		})
	each := n/size + 1
	if n == 0 {
		each = 0
	}
	g.reduceCase("reducescatter "+what, v, op, inPlace, each*size, seed+1,
		func(r int) (int, int) { return r * each, each },
		func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error {
			return c.ReduceScatter(ctx, call, dst, src, op)
		})
}

// reduceCase runs one reduction of n elements on every rank, of which rank r
// keeps those that keep says, and checks bits, guards and sources.
func (g *group) reduceCase(what string, v conversion, op collective.ReduceOp, inPlace bool, n int,
	seed uint64, keep func(r int) (from, count int),
	run func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error) {
	g.t.Helper()
	size := len(g.comms)
	src, dst := make([]*memory, size), make([]*memory, size)
	values := make([][]float32, size)
	for r := range size {
		src[r] = newMemory(v.in, n)
		values[r] = src[r].fill(seed, uint64(r))
		_, count := keep(r)
		dst[r] = newMemory(v.out, count)
	}
	errs := g.each(what, func(ctx context.Context, r int, c *collective.Comm) error {
		if inPlace {
			return run(ctx, c, src[r].part(keep(r)), src[r].buffer())
		}
		return run(ctx, c, dst[r].buffer(), src[r].buffer())
	})
	want := reduced(v.out, values, op)
	for r, err := range errs {
		who := fmt.Sprintf("%s seed=%d rank=%d", what, seed, r)
		require.NoError(g.t, err, who)
		from, count := keep(r)
		s := v.out.Size()
		part := want[from*s : (from+count)*s]
		if inPlace {
			checkBits(g.t, who, v.out, src[r].part(from, count).Data, part)
		} else {
			checkBits(g.t, who, v.out, dst[r].data, part)
			checkBits(g.t, who+" src", v.in, src[r].data, src[r].was)
		}
		src[r].checkGuards(g.t, who)
		dst[r].checkGuards(g.t, who)
	}
}

// move runs AllGather, Gather and Broadcast of n elements.
func (g *group) move(n int, k kind) {
	size := len(g.comms)
	root := size / 2
	for _, inPlace := range []bool{false, true} {
		what := fmt.Sprintf("n=%d %v in place=%v", n, k, inPlace)
		g.gatherCase("allgather "+what, n, k, inPlace, func(int) bool { return true },
			func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error {
				return c.AllGather(ctx, call, dst, src)
			})
		g.gatherCase("gather "+what, n, k, inPlace, func(r int) bool { return r == root },
			func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error {
				return c.Gather(ctx, call, dst, src, root)
			})
	}
	buf := make([]*memory, size)
	for r := range size {
		buf[r] = newMemory(k, n)
		buf[r].fill(uint64(n), uint64(r))
	}
	what := fmt.Sprintf("broadcast n=%d %v", n, k)
	errs := g.each(what, func(ctx context.Context, r int, c *collective.Comm) error {
		return c.Broadcast(ctx, call, buf[r].buffer(), root)
	})
	for r, err := range errs {
		require.NoError(g.t, err, "%s rank=%d", what, r)
		checkBits(g.t, fmt.Sprintf("%s rank=%d", what, r), k, buf[r].data, buf[root].was)
		buf[r].checkGuards(g.t, what)
	}
}

// gatherCase runs one gather of n elements a rank; gets says who receives.
func (g *group) gatherCase(what string, n int, k kind, inPlace bool, gets func(r int) bool,
	run func(ctx context.Context, c *collective.Comm, dst, src collective.Buffer) error) {
	g.t.Helper()
	size := len(g.comms)
	src, dst := make([]*memory, size), make([]*memory, size)
	var want []byte
	for r := range size {
		src[r] = newMemory(k, n)
		src[r].fill(uint64(n)+7, uint64(r))
		want = append(want, src[r].was...)
		dst[r] = newMemory(k, n*size)
		if inPlace {
			copy(dst[r].part(r*n, n).Data, src[r].data)
		}
		dst[r].was = slices.Clone(dst[r].data)
	}
	errs := g.each(what, func(ctx context.Context, r int, c *collective.Comm) error {
		if inPlace {
			return run(ctx, c, dst[r].buffer(), dst[r].part(r*n, n))
		}
		return run(ctx, c, dst[r].buffer(), src[r].buffer())
	})
	for r, err := range errs {
		who := fmt.Sprintf("%s rank=%d", what, r)
		require.NoError(g.t, err, who)
		if gets(r) {
			checkBits(g.t, who, k, dst[r].data, want)
		} else {
			checkBits(g.t, who, k, dst[r].data, dst[r].was)
		}
		checkBits(g.t, who+" src", k, src[r].data, src[r].was)
		src[r].checkGuards(g.t, who)
		dst[r].checkGuards(g.t, who)
	}
}
