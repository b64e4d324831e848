// Package collectivetest is the conformance suite of a collective.Transport
// with its Lane. A transport that passes Run gives the same bits as every other
// one, refuses ranks that disagree, names the dead and never hangs.
package collectivetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// Endpoint is one rank's two ends of a mesh.
type Endpoint struct {
	Transport collective.Transport
	Lane      collective.Lane
}

// patience bounds every wait of the suite; reaching it is a failure.
const patience = 60 * time.Second

// Run checks the meshes that mesh makes. It gives the endpoints of ranks 0 to
// size-1, all linked; the suite closes them, some of them twice.
func Run(t *testing.T, mesh func(t *testing.T, size int) []Endpoint) {
	for _, size := range []int{1, 2, 3, 4, 7, 8} {
		RunSize(t, mesh, size)
	}
	t.Run("arrival order", func(t *testing.T) { arrival(t, mesh) })
	t.Run("poll", func(t *testing.T) { poll(t, mesh) })
	t.Run("mismatch", func(t *testing.T) { mismatches(t, mesh) })
	t.Run("refused argument", func(t *testing.T) { refused(t, mesh) })
	t.Run("another epoch", func(t *testing.T) { anotherEpoch(t, mesh) })
	t.Run("killed", func(t *testing.T) { killed(t, mesh) })
	t.Run("absent", func(t *testing.T) { absent(t, mesh) })
	t.Run("cancelled", func(t *testing.T) { cancelled(t, mesh) })
	t.Run("gave up", func(t *testing.T) { gaveUp(t, mesh) })
	t.Run("closed in order", func(t *testing.T) { closedInOrder(t, mesh) })
}

// RunSize checks only the bits of every verb, for one number of ranks.
func RunSize(t *testing.T, mesh func(t *testing.T, size int) []Endpoint, size int) {
	t.Run(fmt.Sprintf("bits/size=%d", size), func(t *testing.T) { bits(t, mesh, size) })
	t.Run(fmt.Sprintf("fused/size=%d", size), func(t *testing.T) { fused(t, mesh, size) })
}

// group is the Comms of one mesh.
type group struct {
	t     *testing.T
	ends  []Endpoint
	comms []*collective.Comm
}

// newGroup makes a Comm for every endpoint; tweak may change a configuration.
func newGroup(t *testing.T, ends []Endpoint, tweak func(c *collective.Config)) *group {
	g := &group{t: t, ends: ends}
	for r, e := range ends {
		cfg := collective.Config{RunID: "conformance", Rank: r, Size: len(ends), Epoch: 1}
		if tweak != nil {
			tweak(&cfg)
		}
		c, err := collective.New(cfg, e.Transport, e.Lane)
		require.NoError(t, err)
		g.comms = append(g.comms, c)
	}
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, c := range g.comms {
			all.Go(func() { _ = c.Close() }) // ends when it is closed
		}
		g.wait(&all, "close")
	})
	return g
}

// each runs f for every rank at once and returns the errors by rank.
func (g *group) each(what string,
	f func(ctx context.Context, r int, c *collective.Comm) error) []error {
	g.t.Helper()
	errs := make([]error, len(g.comms))
	var all sync.WaitGroup
	for r, c := range g.comms {
		all.Go(func() { errs[r] = f(context.Background(), r, c) }) // ends with f, or fails the test
	}
	g.wait(&all, what)
	return errs
}

// wait fails the test when the ranks are not done in time.
func (g *group) wait(all *sync.WaitGroup, what string) {
	g.t.Helper()
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }() // ends with the ranks
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		g.t.Fatalf("%s: ranks hang for %v", what, patience)
	}
}

// abort is the AbortError that err must be.
func abort(t *testing.T, err error, rank int) *collective.AbortError {
	t.Helper()
	var a *collective.AbortError
	require.ErrorAs(t, err, &a, "rank %d", rank)
	return a
}
