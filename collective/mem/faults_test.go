package mem_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/collective/mem"
)

// group is the Comms of one network, in a bubble.
type group struct {
	net   *mem.Network
	comms []*collective.Comm
}

func newGroup(t *testing.T, size int) *group {
	g := &group{net: mem.New(size)}
	for r := range size {
		data, lane := g.net.Rank(r)
		c, err := collective.New(collective.Config{RunID: "bubble", Rank: r, Size: size, Epoch: 3},
			data, lane)
		require.NoError(t, err)
		g.comms = append(g.comms, c)
		t.Cleanup(func() { _ = c.Close() })
	}
	return g
}

// reduce runs one AllReduce on every rank and returns errors and how long each
// rank took. before, if set, runs on each rank first.
func (g *group) reduce(before func(r int)) (errs []error, took []time.Duration) {
	errs, took = make([]error, len(g.comms)), make([]time.Duration, len(g.comms))
	var all sync.WaitGroup
	for r, c := range g.comms {
		all.Go(func() {
			start := time.Now()
			if before != nil {
				before(r)
			}
			buf := collective.Float32s(make([]float32, 20000))
			errs[r] = c.AllReduce(context.Background(), collective.Call{}, buf, buf, collective.SUM)
			took[r] = time.Since(start)
		})
	}
	all.Wait()
	return errs, took
}

// check requires that the given ranks failed for the same reason.
func check(t *testing.T, errs []error, class collective.Class, culprits []int, ranks ...int) {
	t.Helper()
	for _, r := range ranks {
		var a *collective.AbortError
		require.ErrorAs(t, errs[r], &a, "rank %d", r)
		require.Equal(t, class, a.Class, "rank %d: %v", r, a)
		require.Equal(t, culprits, a.Culprits, "rank %d: %v", r, a)
		require.EqualValues(t, 3, a.Epoch)
	}
}

// A frozen rank is a stall after the dead limit, and nobody else is named.
func TestFrozenRankStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 4)
		thaw := g.net.Freeze(2)
		var errs []error
		var took []time.Duration
		done := make(chan struct{})
		go func() { errs, took = g.reduce(nil); close(done) }() // ends when all ranks do
		time.Sleep(6 * time.Second)
		thaw()
		<-done
		check(t, errs, collective.Stall, []int{2}, 0, 1, 2, 3)
		for _, r := range []int{0, 1, 3} {
			require.Greater(t, took[r], 5*time.Second)
			require.Less(t, took[r], 5600*time.Millisecond)
		}
	})
}

// A rank that is frozen for less than the dead limit costs time and nothing else.
func TestShortFreezeIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 4)
		thaw := g.net.Freeze(2)
		time.AfterFunc(4*time.Second, thaw)
		errs, took := g.reduce(nil)
		for r, err := range errs {
			require.NoError(t, err)
			require.GreaterOrEqual(t, took[r], 4*time.Second)
		}
	})
}

// A rank that computes for long keeps beating, so nobody takes it for stalled
// until the operation's own limit, and then it is named.
func TestSlowRankBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 3)
		late := func(d time.Duration) func(int) {
			return func(r int) {
				if r == 1 {
					time.Sleep(d)
				}
			}
		}
		errs, _ := g.reduce(late(50 * time.Second))
		for _, err := range errs {
			require.NoError(t, err)
		}
		errs, took := g.reduce(late(70 * time.Second))
		check(t, errs, collective.Stall, []int{1}, 0, 1, 2)
		require.GreaterOrEqual(t, took[0], 60*time.Second)
		require.Less(t, took[0], 60*time.Second+50*time.Millisecond)
	})
}

// A death is known to every survivor within the grace, in an operation or not.
func TestKilledRankIsNamedWithinGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 8)
		time.AfterFunc(time.Second, func() { g.net.Kill(5); g.net.Kill(6) })
		errs, took := g.reduce(func(r int) {
			switch r {
			case 5, 6:
				time.Sleep(time.Hour) // it never enters
			case 7:
				<-g.comms[r].Done() // idle
			}
		})
		check(t, errs, collective.Death, []int{5, 6}, 0, 1, 2, 3, 4, 7)
		for _, r := range []int{0, 1, 2, 3, 4, 7} {
			require.Equal(t, time.Second+20*time.Millisecond, took[r], "rank %d", r)
		}
	})
}

// Evidence that comes within the grace counts: a mismatch seen first gives way
// to the death that is heard of 10 ms later, on every survivor.
func TestStrongerEvidenceWithinGrace(t *testing.T) {
	for _, after := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup(t, 4)
			time.AfterFunc(after, func() { g.net.Kill(3) })
			errs, _ := g.reduce(func(r int) {
				if r == 1 {
					_ = g.comms[r].Abort(collective.Cause{Detail: "master says so"})
				}
			})
			// Rank 1's own abort stands at once; the others wait out the grace.
			check(t, errs, collective.Aborted, nil, 1)
			if after < 20*time.Millisecond {
				check(t, errs, collective.Death, []int{3}, 0, 2)
			} else {
				check(t, errs, collective.Aborted, nil, 0, 2)
			}
		})
	}
}

// A rank that agreed and then stops sending is named at the operation's limit,
// and not those who wait for it too.
func TestSilentProducerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 4)
		errs := make([]error, 4)
		var all sync.WaitGroup
		for r, c := range g.comms {
			all.Go(func() {
				dst := collective.Float32s(make([]float32, 300*200))
				f := collective.Fused{Rows: 4 * 300, Cols: 200, Mode: collective.AIV}
				errs[r] = c.MatmulReduceScatter(t.Context(), collective.Call{}, f, dst,
					func(from, _ int, _ []float32) {
						if r == 2 && from%300 == 128 {
							time.Sleep(70 * time.Second)
						}
					})
			})
		}
		all.Wait()
		check(t, errs, collective.Stall, []int{2}, 0, 1, 2, 3)
		require.ErrorContains(t, errs[0], "data frames and no more")
	})
}

// A descriptor that comes 30 ms late still counts when ranks differ: with it
// the odd one is outvoted, without it nobody would be.
func TestLateDescriptorCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 3)
		g.net.Delay(func(from, to int) time.Duration {
			if from == 2 || to == 2 {
				return 30 * time.Millisecond
			}
			return 0
		})
		errs := make([]error, 3)
		var all sync.WaitGroup
		for r, c := range g.comms {
			all.Go(func() {
				errs[r] = c.Barrier(t.Context(), collective.Call{Plan: uint64(r % 2)})
			})
		}
		all.Wait()
		check(t, errs, collective.Mismatch, []int{1}, 0, 1, 2)
	})
}

// A cut data link names its two ends, everywhere, though both ranks live.
func TestCutLinkNamesThePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 5)
		g.net.Cut(1, 3)
		errs, took := g.reduce(nil)
		check(t, errs, collective.Link, []int{1, 3}, 0, 1, 2, 3, 4)
		for _, d := range took {
			require.LessOrEqual(t, d, 200*time.Millisecond)
		}
	})
}

// Two ranks whose lane is cut report each other dead; with a third to tell
// them, everybody names the pair.
func TestCutLaneNamesThePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 4)
		g.net.CutLane(0, 2)
		for _, c := range g.comms {
			<-c.Done()
		}
		errs, _ := g.reduce(nil)
		check(t, errs, collective.Link, []int{0, 2}, 0, 1, 2, 3)
	})
}

// A rank that left in order while the others still need it is named at once.
func TestLeftInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, 3)
		require.NoError(t, g.comms[2].Close())
		errs, took := g.reduce(nil)
		check(t, errs, collective.Death, []int{2}, 0, 1)
		require.Contains(t, errs[0].Error(), "left in order")
		require.LessOrEqual(t, took[0], 200*time.Millisecond)
		require.ErrorContains(t, errs[2], "closed by this rank")
	})
}

// Delays of any length per link change no result, only the time.
func TestDelayedLinks(t *testing.T) {
	for seed := range 5 {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup(t, 4)
			g.net.Delay(func(from, to int) time.Duration {
				return time.Duration((seed+3*from+5*to)%7) * 30 * time.Millisecond
			})
			errs, took := g.reduce(nil)
			for r, err := range errs {
				require.NoError(t, err, "seed %d rank %d", seed, r)
			}
			require.NotZero(t, took[0]+took[1], "seed %d", seed)
		})
	}
}

// A failpoint's error is this rank's, and reaches all.
func TestFailpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := mem.New(2)
		g := &group{net: net}
		for r := range 2 {
			data, lane := net.Rank(r)
			cfg := collective.Config{RunID: "bubble", Rank: r, Size: 2, Epoch: 3}
			if r == 1 {
				cfg.Failpoint = func(name string) error {
					if name == "collective/op:2" {
						return fmt.Errorf("told to fail")
					}
					return nil
				}
			}
			c, err := collective.New(cfg, data, lane)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			g.comms = append(g.comms, c)
		}
		errs, _ := g.reduce(nil)
		require.NoError(t, errs[0])
		errs, _ = g.reduce(nil)
		check(t, errs, collective.Aborted, []int{1}, 0, 1)
		require.ErrorContains(t, errs[0], "told to fail")
	})
}
