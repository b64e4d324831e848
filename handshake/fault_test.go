package handshake

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFaultsAreBoundedAndNamed(t *testing.T) {
	// Each fault ends in virtual time within its limits, names its core with
	// cluster, physical id, thread and phase, and the next round works.
	const w = 40 // AIV of cluster 8, served by thread 2
	limits := Default().Limits
	reports, done, exit := limits.Report, limits.Done, limits.Exit
	tests := []struct {
		fault    Fault
		phases   []Phase       // of worker w
		why      string        // of the first of them
		clusters int           // 0: all
		within   time.Duration // from the start of the round, beyond an undisturbed one
	}{
		{Fault{Kind: NeverBoots}, []Phase{PhaseReport, PhaseExit}, "never reported", 0,
			reports + exit},
		{Fault{Kind: DiesAfterReport}, []Phase{PhaseDone, PhaseExit},
			"reported its id, but was never done", 0, done + exit},
		{Fault{Kind: ReportsInvalidID, Value: 75}, []Phase{PhaseWindow},
			"reported id 75, of 75 windows", 0, 0},
		{Fault{Kind: ReportsInvalidID, Value: 0xFFFFFFFF}, []Phase{PhaseWindow},
			"reported id 4095, of 75 windows", 0, 0},
		{Fault{Kind: ReportsNullBase}, []Phase{PhaseWindow}, "whose cluster is fused off", 0, 0},
		{Fault{Kind: ReportsDuplicate, Other: 3}, []Phase{PhasePost}, "as did worker 3", 0, 0},
		{Fault{Kind: ReportsDuplicate, Other: 71}, []Phase{PhasePost}, "as did worker 71", 0, 0},
	}
	for _, policy := range []Policy{Parallel, Serial} {
		for _, tt := range tests {
			name := fmt.Sprintf("%v/%v %d", policy, tt.fault.Kind, tt.fault.Other)
			t.Run(name, func(t *testing.T) {
				tt.fault.Worker, tt.fault.Round = w, 1
				d, err := New(with(func(c *Config) {
					c.Policy, c.Faults = policy, []Fault{tt.fault}
				}))
				require.NoError(t, err)
				r, err := d.BringUp(t.Context())
				failed := (*RoundError)(nil)
				require.ErrorAs(t, err, &failed)
				var phases []Phase
				for _, c := range failed.Cores {
					if c.Worker == tt.fault.Other && tt.fault.Kind == ReportsDuplicate {
						require.Contains(t, c.Why, "as did worker 40")
						continue
					}
					require.Equal(t, w, c.Worker)
					require.Equal(t, 8, c.Cluster)
					require.Equal(t, d.cores[w].Physical, c.Physical)
					require.Equal(t, 2*(1-int(policy)), c.Thread)
					phases = append(phases, c.Phase)
				}
				require.Equal(t, tt.phases, phases)
				require.ErrorContains(t, err, tt.why)
				require.ErrorContains(t, err, fmt.Sprintf("worker 40 (AIV of cluster 8, physical "+
					"id %d, thread %d) [%v]", d.cores[w].Physical, 2*(1-int(policy)), tt.phases[0]))
				require.Less(t, d.Now(), r.Total+tt.within+100*time.Microsecond)
				require.Nil(t, r.Assignment)
				requireOthersShut(t, d, failed)

				r, err = d.BringUp(t.Context())
				require.NoError(t, err, "the next round works")
				require.Equal(t, 2, r.Round)
				require.NoError(t, d.Shutdown(t.Context()))
			})
		}
	}
}

// requireOthersShut says that after a failed round only the named cores have not
// left, and only their windows are open.
func requireOthersShut(t *testing.T, d *Device, failed *RoundError) {
	t.Helper()
	stays := map[int]bool{}
	for _, c := range failed.Cores {
		if c.Phase == PhaseExit {
			stays[c.Worker] = true
		}
	}
	for w, a := range d.aicores {
		left := a.halted && d.mem.records[w].get(aicoreDone) == doneLeft
		require.Equal(t, !stays[w], left, "worker %d has left", w)
		if !stays[w] {
			require.NotEqual(t, uint64(fastPathOpen), d.mem.windows[d.cores[w].Physical].fastPath)
		}
	}
}

func TestOtherSlicesAreNotHeldUp(t *testing.T) {
	// A core that never boots costs its own thread the limit, no other a nanosecond.
	_, sound := bringUp(t, Default())
	d, err := New(with(func(c *Config) { c.Faults = []Fault{{Kind: NeverBoots, Worker: 20}} }))
	require.NoError(t, err)
	r, err := d.BringUp(t.Context())
	require.Error(t, err)
	for i, own := range r.Threads {
		if i != 1 {
			require.Equal(t, sound.Threads[i], own)
			continue
		}
		require.Greater(t, own.Total, d.cfg.Limits.Report)
		require.Equal(t, 1, own.ByClass[ClassLost].Count)
		require.InDelta(t, own.Total, own.ByClass.Total(), 1)
	}
	for w, c := range r.Cores {
		require.Equal(t, w != 20, c.Done, "worker %d", w)
	}
}

func TestManyDeadCoresShareTheLimits(t *testing.T) {
	// A device without one living core is given up after one limit for reports and
	// one for exits, not one a core; all are named.
	var faults []Fault
	for w := range 72 {
		faults = append(faults, Fault{Kind: NeverBoots, Worker: w})
	}
	d, err := New(with(func(c *Config) { c.Faults = faults }))
	require.NoError(t, err)
	for round := 1; round <= 2; round++ { // a fault without a round stays
		start := d.Now()
		_, err = d.BringUp(t.Context())
		failed := (*RoundError)(nil)
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Cores, 2*72)
		require.ErrorContains(t, err, "and 140 more")
		require.Less(t, d.Now()-start,
			d.cfg.Limits.Report+d.cfg.Limits.Exit+100*time.Microsecond)
	}
}

func TestACoreThatIgnoresExitIsNamed(t *testing.T) {
	// Shutdown names each core that stays, with its COND, after one limit that all
	// share, retires the others, and the next round works.
	d, err := New(with(func(c *Config) {
		for _, w := range []int{0, 3, 30, 71} {
			c.Faults = append(c.Faults, Fault{Kind: IgnoresExit, Worker: w, Round: 1})
		}
	}))
	require.NoError(t, err)
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
	start := d.Now()
	err = d.Shutdown(t.Context())
	failed := (*RoundError)(nil)
	require.ErrorAs(t, err, &failed)
	var stay []int
	for _, c := range failed.Cores {
		stay = append(stay, c.Worker)
		require.Equal(t, PhaseExit, c.Phase)
		require.Equal(t, "did not leave, COND is 0xFFFFFFFF", c.Why)
	}
	slices.Sort(stay)
	require.Equal(t, []int{0, 3, 30, 71}, stay)
	took := d.Now() - start
	require.Less(t, took, d.cfg.Limits.Exit+100*time.Microsecond)
	require.Greater(t, took, d.cfg.Limits.Exit)
	for w, a := range d.aicores {
		exited := d.mem.windows[d.cores[w].Physical].cond == condExited
		require.Equal(t, !slices.Contains(stay, w), exited, "worker %d", w)
		require.True(t, a.halted)
	}
	_, err = d.Round(t.Context())
	require.NoError(t, err)
	require.NoError(t, d.Shutdown(t.Context()))
}

func TestAFailedSetupIsSeenByAllThreads(t *testing.T) {
	// When the setup fails no record is touched, all threads return, and the next
	// round works.
	stores := 0
	d, err := New(with(func(c *Config) {
		c.Failpoint = func(name string) error {
			if name == "handshake/setup:1" {
				return errors.New("no memory")
			}
			return nil
		}
		c.Trace = func(e Event) {
			if e.Round == 1 && e.Op == "store" && e.Where != "init_failed" {
				stores++
			}
		}
	}))
	require.NoError(t, err)
	_, err = d.BringUp(t.Context())
	require.EqualError(t, err, "device round 1: set up: no memory")
	require.Zero(t, stores)
	require.Zero(t, d.Now(), "nobody waits for anything")
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
}

func TestFailpointsOfPostAndExit(t *testing.T) {
	// A fault of the post phase shuts all cores; one of the exit is told, and the
	// cores have left all the same.
	fail := "handshake/post:1"
	d, err := New(with(func(c *Config) {
		c.Failpoint = func(name string) error {
			if name == fail {
				return errors.New("out of order")
			}
			return nil
		}
	}))
	require.NoError(t, err)
	_, err = d.BringUp(t.Context())
	require.EqualError(t, err, "device round 1: out of order")
	requireOthersShut(t, d, &RoundError{})
	fail = "handshake/exit:2"
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
	require.EqualError(t, d.Shutdown(t.Context()), "device round 2: out of order")
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
}

func TestTooManyCoresForOneScheduler(t *testing.T) {
	// A scheduler takes 21 clusters; with 22 and more on one the handshake is
	// measured, the assignment refused, and every core shut.
	for clusters := 1; clusters <= 24; clusters++ {
		for threads := 1; threads <= ThreadsMax; threads++ {
			d, err := New(with(func(c *Config) { c.Clusters, c.Threads = clusters, threads }))
			require.NoError(t, err)
			r, err := d.BringUp(t.Context())
			require.Positive(t, r.Total)
			if clusters <= 21 || threads > 2 {
				require.NoError(t, err, "%d clusters, %d threads", clusters, threads)
				continue
			}
			full := (*CapacityError)(nil)
			require.ErrorAs(t, err, &full)
			require.EqualError(t, full, fmt.Sprintf("assign %d clusters to 1 scheduler threads: "+
				"%d cores on one, limit 63", clusters, 3*clusters))
			requireOthersShut(t, d, &RoundError{})
		}
	}
}

func TestFaultsOfManyCoresAtOnce(t *testing.T) {
	// Whatever is wrong with whichever cores, a round ends in time, names the faulty
	// cores and no sound one but the owner of an id that came twice, and the next
	// round works.
	for seed := range uint64(150) {
		cfg, faulty, sound := randomFaults(seed)
		d, err := New(cfg)
		require.NoError(t, err, "seed %d", seed)
		_, err = d.BringUp(t.Context())
		if err == nil {
			err = d.Shutdown(t.Context())
		}
		failed := (*RoundError)(nil)
		require.ErrorAs(t, err, &failed, "seed %d: %v", seed, cfg.Faults)
		require.NoError(t, failed.Cause, "seed %d: %v", seed, cfg.Faults)
		named := map[int]bool{}
		for _, c := range failed.Cores {
			require.True(t, faulty[c.Worker] || sound[c.Worker], "seed %d: %v", seed, c)
			named[c.Worker] = true
		}
		for w := range faulty {
			require.True(t, named[w], "seed %d: worker %d of %v", seed, w, cfg.Faults)
		}
		l := cfg.Limits
		require.Less(t, d.Now(), l.Report+time.Duration(len(faulty))*l.Done+l.Exit+time.Millisecond,
			"seed %d: %v", seed, cfg.Faults)
		requireOthersShut(t, d, failed)
		_, err = d.Round(t.Context())
		require.NoError(t, err, "seed %d: %v", seed, cfg.Faults)
	}
}

// randomFaults is a device with faults in its first round: which workers have
// one, and which sound ones another claims to be.
func randomFaults(seed uint64) (cfg Config, faulty, sound map[int]bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg = Default()
	cfg.Seed, cfg.Policy = seed, Policy(rng.IntN(2))
	cfg.Clusters, cfg.Threads = 2+rng.IntN(20), 1+rng.IntN(ThreadsMax)
	if rng.IntN(2) == 0 {
		cfg.Profile.Anchor = AnchorLaunch
		cfg.Profile.BootSpread.Time = Span(rng.Int64N(int64(cfg.Profile.Boot.Time)))
	}
	faulty, sound = map[int]bool{}, map[int]bool{}
	order := rng.Perm(cfg.Workers())
	n := 1 + rng.IntN(cfg.Workers()/2)
	for i := range n {
		f := Fault{Worker: order[i], Round: 1, Kind: NeverBoots + FaultKind(rng.IntN(6)),
			Value: 100, Other: order[n+i%(len(order)-n)]}
		faulty[f.Worker] = true
		if f.Kind == ReportsDuplicate {
			sound[f.Other] = true
		}
		cfg.Faults = append(cfg.Faults, f)
	}
	return cfg, faulty, sound
}
