package handshake

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheRecordFillsOneLine(t *testing.T) {
	// Fields lie aligned in 64 bytes, none over another, and hold what is put.
	var used [RecordBytes]bool
	var l line
	for f, at := range recordLayout {
		require.Zero(t, at.offset%at.size, at.name)
		for i := at.offset; i < at.offset+at.size; i++ {
			require.False(t, used[i], at.name)
			used[i] = true
		}
		l.put(field(f), uint64(f)+0x1234_5600)
	}
	for f, at := range recordLayout {
		require.Equal(t, uint64(f)+0x1234_5600, l.get(field(f)), at.name)
	}
}

func TestPhysicalIDsNameWindows(t *testing.T) {
	// 75 ids have 75 windows: cluster i's AIC has id i, its AIV 25+2i and 26+2i, at
	// i*8 MiB plus 0, 1 and 2 MiB.
	require.Equal(t, 75, A2A3().windows())
	bases := map[uint64]bool{}
	for id := range 75 {
		base := baseOf(id, 25)
		require.False(t, bases[base])
		bases[base] = true
		require.Equal(t, id, windowAt(base, 25))
	}
	for i := range 25 {
		at := uint64(mappedBase) + uint64(i)*8<<20
		require.Equal(t, at, baseOf(i, 25))
		require.Equal(t, at+1<<20, baseOf(25+2*i, 25))
		require.Equal(t, at+2<<20, baseOf(26+2*i, 25))
	}
}

func TestWorkersAreBlocked(t *testing.T) {
	// AIC come first, cluster c holds AIC c and AIV C+2c and C+2c+1, each with a
	// window of its own on one cluster of the die that is not fused off.
	for seed := range uint64(10) {
		for _, clusters := range []int{1, 3, 9, 24} {
			cfg := with(func(c *Config) { c.Clusters, c.Seed = clusters, seed })
			cores, table := cfg.cores(), cfg.baseTable()
			require.Len(t, cores, 3*clusters)
			ids := map[int]bool{}
			for c := range clusters {
				aic, aiv0, aiv1 := cores[c], cores[clusters+2*c], cores[clusters+2*c+1]
				require.Equal(t, []int{c, c, c}, []int{aic.Cluster, aiv0.Cluster, aiv1.Cluster})
				require.Equal(t, []CoreType{AIC, AIV, AIV},
					[]CoreType{aic.Type, aiv0.Type, aiv1.Type})
				require.Equal(t, []int{0, 0, 1}, []int{aic.Sub, aiv0.Sub, aiv1.Sub})
				place := aic.Physical
				require.Equal(t, 25+2*place, aiv0.Physical)
				require.Equal(t, 26+2*place, aiv1.Physical)
				for _, core := range []Core{aic, aiv0, aiv1} {
					require.False(t, ids[core.Physical], "seed %d", seed)
					ids[core.Physical] = true
					require.NotZero(t, table[core.Physical], "seed %d", seed)
				}
			}
			null := 0
			for _, base := range table {
				if base == 0 {
					null++
				}
			}
			require.Equal(t, 3, null, "one cluster is fused off")
			require.Zero(t, table[cfg.fusedID()])
		}
	}
}

func TestSlicesTileTheWorkers(t *testing.T) {
	// Slices follow each other without gaps, for any number of workers and threads.
	for _, tt := range []struct {
		workers, threads int
		lengths          []int
	}{{9, 4, []int{2, 2, 2, 3}}, {27, 4, []int{6, 7, 7, 7}}, {72, 4, []int{18, 18, 18, 18}},
		{3, 4, []int{0, 1, 1, 1}}, {72, 6, []int{12, 12, 12, 12, 12, 12}}} {
		cfg := with(func(c *Config) { c.Clusters, c.Threads = tt.workers/3, tt.threads })
		next := 0
		for i, want := range tt.lengths {
			b := cfg.slice(i)
			require.Equal(t, next, b.from)
			require.Equal(t, want, b.to-b.from)
			next = b.to
		}
		require.Equal(t, tt.workers, next)
	}
}

func TestListsDoNotDependOnThePolicy(t *testing.T) {
	// Serial and parallel give the same lists, ascending, and cluster c with all
	// its cores to scheduler c mod S.
	for clusters := 1; clusters <= 24; clusters++ {
		for threads := 1; threads <= ThreadsMax; threads++ {
			if clusters > 21 && threads <= 2 {
				continue
			}
			cfg := with(func(c *Config) { c.Clusters, c.Threads = clusters, threads })
			_, parallel := bringUp(t, cfg)
			cfg.Policy = Serial
			_, serial := bringUp(t, cfg)
			require.Equal(t, parallel.AIC, serial.AIC)
			require.Equal(t, parallel.AIV, serial.AIV)
			require.Equal(t, parallel.Assignment, serial.Assignment)
			s := max(1, threads-1)
			require.Len(t, parallel.Assignment, s)
			for c := range clusters {
				mine := parallel.Assignment[c%s][3*(c/s) : 3*(c/s)+3]
				require.Equal(t, []int{c, clusters + 2*c, clusters + 2*c + 1}, mine,
					fmt.Sprintf("cluster %d of %d, %d schedulers", c, clusters, s))
			}
		}
	}
}

func TestConfigNamesTheFirstWrongField(t *testing.T) {
	// Each wrong field is refused by name; the default is right.
	cfg := Default()
	require.NoError(t, cfg.Validate())
	for _, tt := range []struct {
		change func(c *Config)
		want   string
	}{
		{func(c *Config) { c.Clusters = 0 }, "0 clusters, 1 to 24 allowed"},
		{func(c *Config) { c.Clusters = 25 }, "25 clusters, 1 to 24 allowed"},
		{func(c *Config) { c.Threads = 0 }, "0 threads, 1 to 6 allowed"},
		{func(c *Config) { c.Threads = 7 }, "7 threads, 1 to 6 allowed"},
		{func(c *Config) { c.Policy = 2 }, "policy 2 is unknown"},
		{func(c *Config) { c.Limits.Exit = 0 }, "a limit is not positive"},
		{func(c *Config) { c.Limits.Exit = 2 * time.Hour }, "longer than an hour"},
		{func(c *Config) { c.Limits.Phase = time.Second }, "limit 1s between phases"},
		{func(c *Config) { c.Profile.Barrier.Time = -1 }, "barrier takes"},
		{func(c *Config) { c.Profile.WindowLoad.Time = 0 }, "window load takes no time"},
		{func(c *Config) { c.Profile.Dispatch.Time = 2 * Microsecond }, "longer than flight"},
		{func(c *Config) { c.Profile.BootSpread.Time = Millisecond }, "longer than boot"},
		{func(c *Config) { c.Profile.Anchor = 9 }, "anchor 9"},
		{func(c *Config) { c.Profile.SiliconClusters = 37 }, "37 clusters on the die"},
		{func(c *Config) { c.Profile.ClustersMax = 26 }, "26 clusters a launch"},
		{func(c *Config) { c.Faults = []Fault{{Kind: 0}} }, "fault 0: fault 0 is unknown"},
		{func(c *Config) { c.Faults = []Fault{{Kind: NeverBoots, Worker: 72}} }, "worker 72"},
		{func(c *Config) { c.Faults = []Fault{{Kind: NeverBoots, Round: -1}} }, "round -1"},
		{func(c *Config) { c.Faults = []Fault{{Kind: ReportsInvalidID, Value: 74}} },
			"id 74 has a window"},
		{func(c *Config) { c.Faults = []Fault{{Kind: ReportsDuplicate, Other: 72}} },
			"other worker 72"},
		{func(c *Config) { c.Faults = []Fault{{Kind: ReportsDuplicate}} }, "duplicate itself"},
		{func(c *Config) {
			c.Profile.SiliconClusters = 24
			c.Faults = []Fault{{Kind: ReportsNullBase}}
		}, "no cluster is fused off"},
	} {
		cfg := with(tt.change)
		require.ErrorContains(t, cfg.Validate(), tt.want)
		_, err := New(cfg)
		require.ErrorContains(t, err, tt.want)
	}
}
