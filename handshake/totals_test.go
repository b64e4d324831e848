package handshake

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bringUp makes a device and brings it up once; any error but a refusal of the
// assignment, which comes after the handshake, ends the test.
func bringUp(t *testing.T, cfg Config) (*Device, Report) {
	t.Helper()
	d, err := New(cfg)
	require.NoError(t, err)
	r, err := d.BringUp(t.Context())
	if full := (*CapacityError)(nil); !errors.As(err, &full) {
		require.NoError(t, err, "seed %d", cfg.Seed)
	}
	return d, r
}

func with(change func(c *Config)) Config {
	c := Default()
	change(&c)
	return c
}

func micros(us float64) time.Duration { return time.Duration(us * 1000) }

// near says that two spans differ by at most 50 ns, half of the last digit that
// is documented, or by what is given.
func near(t *testing.T, want float64, got time.Duration, within time.Duration, what string) {
	t.Helper()
	require.InDelta(t, micros(want), got, float64(within), "%s: want %v us, got %v",
		what, want, got)
}

func TestTotalsAreTheDocumentedOnes(t *testing.T) {
	// The access model gives the published totals for each number of threads:
	// within 60 ns of those of the counted accesses, within 0.7 us of the rounder
	// ones that leave the closing barrier and the load of done out.
	tests := []struct {
		threads                          int
		broadcast, boot, service, rounds float64 // us; rounds: the documented total
		within                           time.Duration
	}{
		{1, 34.99 + 0.386, 11, 217.224, 263.6, 60},
		{2, 17.496 + 0.386, 11, 108.612, 137, 700},
		{3, 11.664 + 0.386, 11, 72.408, 95, 700},
		{4, 8.748 + 0.386, 11, 54.31, 74.4, 60},
		{6, 5.832 + 0.386, 11, 36.204, 53, 700},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.threads), func(t *testing.T) {
			_, r := bringUp(t, with(func(c *Config) { c.Threads = tt.threads }))
			near(t, tt.broadcast, r.Broadcast, 10, "broadcast")
			near(t, tt.boot, r.Boot, 0, "boot")
			near(t, tt.service, r.Service, 10, "service")
			near(t, tt.rounds, r.Total, tt.within, "total")
			require.Equal(t, r.Total, r.Broadcast+r.Boot+r.Service)
		})
	}
}

func TestOneCoreASlice(t *testing.T) {
	// The least slice pays one broadcast, one boot and one service.
	_, r := bringUp(t, with(single))
	require.Equal(t, 486+386+11_000+3017*time.Nanosecond, r.Total)
	require.Equal(t, 3017*time.Nanosecond, r.Service)
}

func TestSerialAndParallelDifferByTheirThreads(t *testing.T) {
	// One of four threads that handshakes alone takes 263 us, all four 74 to 75.
	_, serial := bringUp(t, with(func(c *Config) { c.Policy = Serial }))
	require.Equal(t, 263*time.Microsecond, serial.Total.Truncate(time.Microsecond))
	require.Equal(t, 0, serial.Slowest)
	for _, idle := range serial.Threads[1:] {
		require.Zero(t, idle.Total)
	}
	_, parallel := bringUp(t, Default())
	require.Equal(t, 74*time.Microsecond, parallel.Total.Truncate(time.Microsecond))
	for _, own := range parallel.Threads {
		require.Equal(t, parallel.Total, own.Total, "slices are equal")
	}
}

func TestChargedPollsLengthenTheWaits(t *testing.T) {
	// With each failed poll at 41 ns the totals are the documented 74.9 and 265.3.
	for policy, want := range map[Policy]float64{Parallel: 74.9, Serial: 265.3} {
		_, r := bringUp(t, with(func(c *Config) {
			c.Policy = policy
			c.Profile.PollStep.Time = 41 * Nanosecond
		}))
		near(t, want, r.Total, 60, policy.String())
	}
}

func TestBootFromLaunchMissesOneOfTheTotals(t *testing.T) {
	// A boot counted from the launch that fits four threads gives 252 us for one,
	// and one that fits one thread gives 100 us for four.
	for _, tt := range []struct {
		boot             Span
		serial, parallel float64
	}{
		{20134 * Nanosecond, 252.6, 74.44},
		{46378 * Nanosecond, 263.6, 100.7},
	} {
		for policy, want := range map[Policy]float64{Serial: tt.serial, Parallel: tt.parallel} {
			_, r := bringUp(t, with(func(c *Config) {
				c.Policy = policy
				c.Profile.Anchor = AnchorLaunch
				c.Profile.Boot.Time = tt.boot
			}))
			near(t, want, r.Total, 50, fmt.Sprintf("%v, boot %v", policy, tt.boot))
		}
	}
}

func TestOneCostMovesTheTotalByItsCount(t *testing.T) {
	// A cost that grows by d moves the total by d times the accesses of one slice
	// that the protocol counts, and by nothing else.
	const d = 10 * Nanosecond
	tests := []struct {
		name           string
		cost           func(p *Profile) *Cost
		perCore, slice int
		class          Class
	}{
		{"store", func(p *Profile) *Cost { return &p.Store }, 3, 0, ClassStore},
		{"barrier", func(p *Profile) *Cost { return &p.Barrier }, 3, 1, ClassBarrier},
		{"load", func(p *Profile) *Cost { return &p.Load }, 2, 0, ClassLoad},
		{"hit", func(p *Profile) *Cost { return &p.Hit }, 2, 0, ClassHit},
		{"window store", func(p *Profile) *Cost { return &p.WindowStore }, 2, 0, ClassWindowStore},
		{"window load", func(p *Profile) *Cost { return &p.WindowLoad }, 0, 0, ClassWindowLoad},
		{"flight", func(p *Profile) *Cost { return &p.Flight }, 2, 0, ClassFlight},
		{"boot", func(p *Profile) *Cost { return &p.Boot }, 0, 1, ClassBoot},
		{"dispatch", func(p *Profile) *Cost { return &p.Dispatch }, 0, 0, classes},
		{"cond", func(p *Profile) *Cost { return &p.Cond }, 0, 0, classes},
		{"trail", func(p *Profile) *Cost { return &p.TrailStore }, 0, 0, classes},
	}
	for policy, n := range map[Policy]int{Parallel: 18, Serial: 72} {
		_, before := bringUp(t, with(func(c *Config) { c.Policy = policy }))
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%v/%s", policy, tt.name), func(t *testing.T) {
				_, after := bringUp(t, with(func(c *Config) {
					c.Policy = policy
					tt.cost(&c.Profile).Time += d
				}))
				moved := time.Duration(n*tt.perCore+tt.slice) * d.Duration()
				require.Equal(t, moved, after.Total-before.Total)
				for _, class := range Classes() {
					was, is := before.Threads[0].ByClass[class], after.Threads[0].ByClass[class]
					require.Equal(t, was.Count, is.Count, "%v", class)
					if class == tt.class {
						require.Equal(t, n*tt.perCore+tt.slice, is.Count, "%v", class)
						require.Equal(t, moved, is.Time-was.Time, "%v", class)
					} else {
						require.Equal(t, was.Time, is.Time, "%v", class)
					}
				}
			})
		}
	}
}

func TestTimeIsAttributedToTheLastNanosecond(t *testing.T) {
	// The classes of each thread add up to its total, for any device, and those of
	// the threads to the report's.
	for clusters := 1; clusters <= 24; clusters++ {
		for threads := 1; threads <= ThreadsMax; threads++ {
			_, r := bringUp(t, with(func(c *Config) { c.Clusters, c.Threads = clusters, threads }))
			var sum Uses
			for _, own := range r.Threads {
				// Each class is rounded on its own, so one nanosecond may be lost.
				require.InDelta(t, own.Total, own.ByClass.Total(), 1,
					"%d clusters, thread %d of %d", clusters, own.Thread, threads)
				for c, use := range own.ByClass {
					sum[c].Count += use.Count
					sum[c].Time += use.Time
				}
			}
			require.Equal(t, sum, r.ByClass)
			require.Zero(t, r.ByClass[ClassLost])
		}
	}
}

func TestBootsThatAreSpreadDelayNothing(t *testing.T) {
	// A slice whose cores boot earlier than the last is served no later than one
	// whose cores boot together.
	_, together := bringUp(t, Default())
	for seed := range uint64(20) {
		_, r := bringUp(t, with(func(c *Config) {
			c.Seed = seed
			c.Profile.BootSpread.Time = 4 * Microsecond
		}))
		require.LessOrEqual(t, r.Total, together.Total, "seed %d", seed)
		require.GreaterOrEqual(t, r.Total, together.Total-4*time.Microsecond, "seed %d", seed)
	}
}

func TestEveryCostHasASource(t *testing.T) {
	// A profile with a cost that nobody vouches for is refused.
	require.NoError(t, A2A3().Validate())
	p := A2A3()
	p.Cond.Source = ""
	require.ErrorContains(t, p.Validate(), "cond has no source")
}

func TestRoundsCostTheSame(t *testing.T) {
	// Cores leave at the end of each round, and the next takes as long as the first.
	d, first := bringUp(t, Default())
	for n := 2; n <= 4; n++ {
		r, err := d.Round(t.Context())
		require.NoError(t, err)
		require.Equal(t, n, r.Round)
		first.Round = n
		require.Equal(t, first, r)
	}
	require.NoError(t, d.Shutdown(t.Context()))
	for w, a := range d.aicores {
		require.True(t, a.halted, "worker %d has left", w)
	}
	for id, w := range d.mem.windows {
		require.NotEqual(t, uint64(fastPathOpen), w.fastPath, "window %d is closed", id)
	}
}

func TestADeviceIsUpOrDown(t *testing.T) {
	// What the state does not allow is refused; a context that has ended stops a
	// round, and the next starts anew.
	d, err := New(Default())
	require.NoError(t, err)
	require.ErrorIs(t, d.Shutdown(t.Context()), ErrNotUp)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.BringUp(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "bring up the device, round 1")
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
	_, err = d.BringUp(t.Context())
	require.ErrorIs(t, err, ErrUp)
	require.ErrorIs(t, d.Shutdown(ended), context.Canceled)
	require.ErrorIs(t, d.Shutdown(t.Context()), ErrNotUp)
	_, err = d.BringUp(t.Context())
	require.NoError(t, err)
}
