package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"octet/collective"
	"octet/collective/collectivetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; reaching it is a failure.
const patience = 20 * time.Second

// end is one rank's ends of a mesh.
type end struct {
	data collective.Transport
	lane collective.Lane
}

// group is listeners, one a rank, that form meshes.
type group struct {
	listeners []*Listener
	peers     []string
}

func newGroup(t testing.TB, size int) *group {
	g := &group{}
	for range size {
		l, err := Listen("")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		g.listeners = append(g.listeners, l)
		g.peers = append(g.peers, l.Addr())
	}
	return g
}

// config is what rank r gives to Mesh in an epoch.
func (g *group) config(r int, epoch uint32) Config {
	return Config{Hello: Hello{RunID: "a run", Epoch: epoch, Rank: r, Size: len(g.peers)},
		Peers: g.peers}
}

// mesh runs Mesh on some ranks at once and returns results and errors by rank.
func (g *group) mesh(t testing.TB, limit time.Duration, ranks []int, epoch uint32,
	tweak func(c *Config)) ([]end, []error) {
	t.Helper()
	ends, errs := make([]end, len(g.peers)), make([]error, len(g.peers))
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	var all sync.WaitGroup
	for _, r := range ranks {
		cfg := g.config(r, epoch)
		if tweak != nil {
			tweak(&cfg)
		}
		all.Go(func() { ends[r].data, ends[r].lane, errs[r] = g.listeners[r].Mesh(ctx, cfg) })
	}
	all.Wait()
	t.Cleanup(func() { closeAll(ends) })
	return ends, errs
}

// formed is mesh of all ranks, which must succeed.
func (g *group) formed(t testing.TB, epoch uint32, tweak func(c *Config)) []end {
	t.Helper()
	ends, errs := g.mesh(t, patience, upTo(len(g.peers)), epoch, tweak)
	require.NoError(t, errors.Join(errs...))
	return ends
}

func closeAll(ends []end) {
	var all sync.WaitGroup
	for _, e := range ends {
		if e.data != nil {
			all.Go(func() { _ = e.lane.Close(); _ = e.data.Close() })
		}
	}
	all.Wait()
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TCP passes the conformance suite.
func TestConformance(t *testing.T) {
	collectivetest.Run(t, func(t *testing.T, size int) []collectivetest.Endpoint {
		out := make([]collectivetest.Endpoint, size)
		for r, e := range newGroup(t, size).formed(t, 1, nil) {
			out[r] = collectivetest.Endpoint{Transport: e.data, Lane: e.lane}
		}
		return out
	})
}

// BenchmarkAllReduce is the time of one all-reduce of float32, all ranks being
// goroutines of one process.
func BenchmarkAllReduce(b *testing.B) {
	for _, size := range []int{2, 8} {
		for _, bytes := range []int{8, 1 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/bytes=%d", size, bytes), func(b *testing.B) {
				allReduce(b, size, bytes)
			})
		}
	}
}

func allReduce(b *testing.B, size, bytes int) {
	ends := newGroup(b, size).formed(b, 1, nil)
	comms := make([]*collective.Comm, size)
	for r, e := range ends {
		c, err := collective.New(collective.Config{RunID: "bench", Rank: r, Size: size, Epoch: 1},
			e.data, e.lane)
		require.NoError(b, err)
		comms[r] = c
	}
	b.SetBytes(int64(bytes))
	b.ResetTimer()
	errs := make([]error, size)
	var all sync.WaitGroup
	for r, c := range comms {
		all.Go(func() {
			src, dst := make([]float32, bytes/4), make([]float32, bytes/4)
			for range b.N {
				if errs[r] == nil {
					errs[r] = c.AllReduce(context.Background(), collective.Call{},
						collective.Float32s(dst), collective.Float32s(src), collective.SUM)
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	require.NoError(b, errors.Join(errs...))
	for _, c := range comms {
		all.Go(func() { _ = c.Close() })
	}
	all.Wait()
}
