package collectivetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// arrival checks that the order in which frames arrive from different peers
// does not show in the bits.
func arrival(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	for seed := uint64(1); seed <= 2; seed++ {
		ends := mesh(t, 4)
		for r := range ends {
			ends[r].Transport = Reorder(ends[r].Transport, len(ends), seed*8+uint64(r))
		}
		g := newGroup(t, ends, nil)
		for _, n := range []int{5, 1000, twoStep} {
			g.reduce(n, conversion{fp32, fp32}, collective.SUM, true)
			g.reduce(n, conversion{fp32, fp16}, collective.SUM, false)
			g.move(n, bf16)
		}
		g.fusedCase(200, 3, collective.AIV, bf16)
	}
}

// poll checks that a Progress whose deadline has passed still makes a pass.
func poll(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	ends := mesh(t, 2)
	head := make([]byte, collective.HeadBytes)
	land := make([]byte, collective.HeadBytes)
	for i := range head {
		head[i] = byte(i)
	}
	a, b := ends[0].Transport, ends[1].Transport
	a.Send(1, collective.Frame{Head: head})
	b.Recv(0, collective.Frame{Head: land})
	past := time.Now().Add(-time.Second)
	for end := time.Now().Add(patience); ; {
		_ = a.Progress(past)
		_ = b.Progress(past)
		sent, _ := a.Done(1)
		if _, received := b.Done(0); sent == 1 && received == 1 {
			break
		}
		require.True(t, time.Now().Before(end), "nothing moves")
	}
	require.Equal(t, head, land)
	for _, e := range ends {
		require.NoError(t, e.Lane.Close())
		require.NoError(t, e.Transport.Close())
	}
}

// mismatches checks that when one rank calls something else, every rank gets a
// mismatch that names it and prints both values, and none hangs or succeeds.
func mismatches(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	buffers := func(n int) (dst, src collective.Buffer) {
		return collective.Float32s(make([]float32, n)), collective.Float32s(make([]float32, n))
	}
	reduce := func(n int, p collective.Call, op collective.ReduceOp) operation {
		return func(ctx context.Context, c *collective.Comm) error {
			dst, src := buffers(n)
			return c.AllReduce(ctx, p, dst, src, op)
		}
	}
	broadcast := func(root int) operation {
		return func(ctx context.Context, c *collective.Comm) error {
			dst, _ := buffers(100)
			return c.Broadcast(ctx, call, dst, root)
		}
	}
	gather := func(ctx context.Context, c *collective.Comm) error {
		dst, _ := buffers(100 * c.Size())
		_, src := buffers(100)
		return c.AllGather(ctx, call, dst, src)
	}
	narrow := func(ctx context.Context, c *collective.Comm) error {
		_, src := buffers(100)
		dst := collective.Uint16s(collective.BFP16, make([]uint16, 100))
		return c.AllReduce(ctx, call, dst, src, collective.SUM)
	}
	mmrs := func(rows, cols int, mode collective.CommMode) operation {
		return func(ctx context.Context, c *collective.Comm) error {
			dst, _ := buffers(rows * cols)
			f := collective.Fused{Rows: rows * c.Size(), Cols: cols, Mode: mode}
			return c.MatmulReduceScatter(ctx, call, f, dst, func(int, int, []float32) {})
		}
	}
	usual := reduce(100, call, collective.SUM)
	plan, purpose := call, call
	plan.Plan, purpose.Purpose = 0xbeef, collective.Head
	for _, m := range []struct {
		name      string
		most, one operation
		values    [2]string
	}{
		{"count", usual, reduce(200, call, collective.SUM), [2]string{"100", "200"}},
		{"long count", reduce(200000, call, collective.SUM), usual, [2]string{"200000", "100"}},
		{"dst type", usual, narrow, [2]string{"FP32", "BFP16"}},
		{"verb", usual, gather, [2]string{"allreduce", "allgather"}},
		{"order", gather, usual, [2]string{"allgather", "allreduce"}},
		{"reduction", usual, reduce(100, call, collective.MAX), [2]string{"sum", "max"}},
		{"root", broadcast(0), broadcast(1), [2]string{"root: ", "0"}},
		{"plan hash", usual, reduce(100, plan, collective.SUM), [2]string{"feed", "beef"}},
		{"purpose", usual, reduce(100, purpose, collective.SUM), [2]string{"sequence", "head"}},
		{"barrier", usual, func(ctx context.Context, c *collective.Comm) error {
			return c.Barrier(ctx, call)
		}, [2]string{"allreduce", "barrier"}},
		{"shape", mmrs(6, 4, collective.AIV), mmrs(4, 6, collective.AIV), [2]string{"18x4", "12x6"}},
		{"mode", mmrs(6, 4, collective.AIV), mmrs(6, 4, collective.AICPU), [2]string{"aiv", "ai_cpu"}},
	} {
		t.Run(m.name, func(t *testing.T) { mismatch(t, mesh(t, 3), m.most, m.one, m.values) })
	}
	t.Run("two ranks", func(t *testing.T) {
		g := newGroup(t, mesh(t, 2), nil)
		errs := g.each("mismatch", func(ctx context.Context, r int, c *collective.Comm) error {
			return reduce(100+r, call, collective.SUM)(ctx, c)
		})
		for r, err := range errs {
			require.Equal(t, []int{0, 1}, abort(t, err, r).Culprits, "nobody is outvoted")
		}
	})
}

// operation is a call of a verb.
type operation func(ctx context.Context, c *collective.Comm) error

// mismatch runs one operation on rank 1 and another on the others.
func mismatch(t *testing.T, ends []Endpoint, most, one operation, values [2]string) {
	g := newGroup(t, ends, nil)
	run := func(ctx context.Context, r int, c *collective.Comm) error {
		if r == 1 {
			return one(ctx, c)
		}
		return most(ctx, c)
	}
	errs := g.each("mismatch", run)
	for r, err := range errs {
		a := abort(t, err, r)
		require.Equal(t, collective.Mismatch, a.Class, "rank %d: %v", r, err)
		require.Equal(t, []int{1}, a.Culprits, "rank %d: %v", r, err)
		require.Contains(t, a.Detail, values[0], "rank %d", r)
		require.Contains(t, a.Detail, values[1], "rank %d", r)
	}
	for r, err := range g.each("after it", run) {
		require.Equal(t, errs[r], err, "a spent Comm gives its error again")
	}
}

// refused checks that a rank which cannot enter an operation says so to all.
func refused(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	odd := newMemory(fp32, 9).data[1:33]
	g := newGroup(t, mesh(t, 3), nil)
	errs := g.each("refused", func(ctx context.Context, r int, c *collective.Comm) error {
		dst, src := newMemory(fp32, 8), newMemory(fp32, 8)
		to := dst.buffer()
		if r == 2 {
			to = collective.Bytes(collective.FP32, odd)
		}
		return c.AllReduce(ctx, call, to, src.buffer(), collective.SUM)
	})
	for r, err := range errs {
		a := abort(t, err, r)
		require.Equal(t, []int{2}, a.Culprits, "rank %d: %v", r, err)
		require.Contains(t, a.Detail, "dst: start is not aligned", "rank %d", r)
	}
}

// anotherEpoch checks that frames of another epoch are refused by name.
func anotherEpoch(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	g := newGroup(t, mesh(t, 3), func(c *collective.Config) {
		if c.Rank == 1 {
			c.Epoch = 7
		}
	})
	for r, err := range g.each("epoch", func(ctx context.Context, r int, c *collective.Comm) error {
		return c.Barrier(ctx, call)
	}) {
		a := abort(t, err, r)
		require.Equal(t, collective.Corruption, a.Class, "rank %d: %v", r, err)
		require.Contains(t, a.Detail, "of epoch", "rank %d", r)
	}
}

// killed checks that when ranks die, all survivors name exactly them, soon.
func killed(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	for _, dead := range [][]int{{2}, {0}, {1, 3}} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			// Both deaths must fall into one grace, on a busy host too.
			g := newGroup(t, mesh(t, 5), func(c *collective.Config) {
				c.Timeouts.Grace = 150 * time.Millisecond
			})
			var died time.Time
			knew := make([]time.Time, 5)
			errs := g.each("killed", func(ctx context.Context, r int, c *collective.Comm) error {
				defer func() { knew[r] = time.Now() }()
				for i := 0; ; i++ {
					if i == 50 && r == dead[0] {
						died = time.Now()
						var all sync.WaitGroup // at once: closing may wait for peers
						for _, d := range dead {
							all.Go(func() { _ = g.ends[d].Lane.Close() }) // ends when it is closed
						}
						all.Wait()
						return g.ends[r].Transport.Close()
					}
					buf := newMemory(fp32, 3000)
					err := c.AllReduce(ctx, call, buf.buffer(), buf.buffer(), collective.SUM)
					if err != nil {
						return err
					}
				}
			})
			for r, err := range errs {
				if slices.Contains(dead, r) {
					continue
				}
				a := abort(t, err, r)
				require.Equal(t, collective.Death, a.Class, "rank %d: %v", r, err)
				require.Equal(t, dead, a.Culprits, "rank %d: %v", r, err)
				require.Less(t, knew[r].Sub(died), time.Second, "rank %d", r)
			}
		})
	}
}

// absent checks that a rank that does not enter an operation is named when the
// others' time is up, and learns of it when it comes.
func absent(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	g := newGroup(t, mesh(t, 4), nil)
	errs := g.each("absent", func(ctx context.Context, r int, c *collective.Comm) error {
		if r == 2 {
			<-c.Done()
		} else {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, 200*time.Millisecond)
			defer stop()
		}
		buf := newMemory(fp32, 3000)
		return c.AllReduce(ctx, call, buf.buffer(), buf.buffer(), collective.SUM)
	})
	for r, err := range errs {
		a := abort(t, err, r)
		require.Equal(t, collective.Stall, a.Class, "rank %d: %v", r, err)
		require.Equal(t, []int{2}, a.Culprits, "rank %d: %v", r, err)
		if r != 2 {
			require.True(t, a.Informer != r || errors.Is(err, os.ErrDeadlineExceeded), "rank %d", r)
		}
	}
}

// cancelled checks that a context that is cancelled spends the Comm on all
// ranks, and names the rank whose it was.
func cancelled(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	g := newGroup(t, mesh(t, 3), nil)
	errs := g.each("cancelled", func(ctx context.Context, r int, c *collective.Comm) error {
		if r == 0 {
			<-c.Done()
			return c.Err()
		}
		if r == 1 {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			timer := time.AfterFunc(20*time.Millisecond, stop)
			defer timer.Stop()
			defer stop()
		}
		return c.Barrier(ctx, call)
	})
	for r, err := range errs {
		a := abort(t, err, r)
		require.Equal(t, collective.Aborted, a.Class, "rank %d: %v", r, err)
		require.Equal(t, []int{1}, a.Culprits, "rank %d: %v", r, err)
	}
	require.ErrorIs(t, errs[1], context.Canceled)
}

// gaveUp checks that a rank which gives up and leaves at once is named as having
// done that: the links that end with it are a consequence.
func gaveUp(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	for range 5 {
		g := newGroup(t, mesh(t, 4), nil)
		errs := g.each("gave up", func(ctx context.Context, r int, c *collective.Comm) error {
			for i := 0; ; i++ {
				if i == 20 && r == 2 {
					err := c.Abort(collective.Cause{Culprits: []int{2}, Detail: "no more"})
					return errors.Join(err, c.Close())
				}
				buf := newMemory(fp32, 3000)
				err := c.AllReduce(ctx, call, buf.buffer(), buf.buffer(), collective.SUM)
				if err != nil {
					return err
				}
			}
		})
		for r, err := range errs {
			a := abort(t, err, r)
			require.Equal(t, collective.Aborted, a.Class, "rank %d: %v", r, err)
			require.Equal(t, []int{2}, a.Culprits, "rank %d: %v", r, err)
			require.Contains(t, a.Detail, "no more", "rank %d", r)
		}
	}
}

// closedInOrder checks that a rank which closes after the last operation is not
// taken for dead, and that what it sent last arrives.
func closedInOrder(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	g := newGroup(t, mesh(t, 4), nil)
	bufs := make([]*memory, 4)
	for r := range bufs {
		bufs[r] = newMemory(fp32, 70000)
		bufs[r].fill(9, uint64(r))
	}
	errs := g.each("close", func(ctx context.Context, r int, c *collective.Comm) error {
		err := c.Broadcast(ctx, call, bufs[r].buffer(), 3)
		if r == 3 {
			return errors.Join(err, c.Close())
		}
		if err == nil && c.Err() != nil {
			return c.Err()
		}
		return err
	})
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
		checkBits(t, fmt.Sprintf("rank %d", r), fp32, bufs[r].data, bufs[3].was)
	}
}
