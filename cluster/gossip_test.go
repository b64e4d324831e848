package cluster

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/rank"
)

// lookAgain is how often a test looks whether what it waits for has come.
const lookAgain = 5 * time.Millisecond

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// Four members that know one address see each other; a member of another run
// does not come in; one that leaves is a hint to the others.
func TestGossip(t *testing.T) {
	var members []*gossip
	for r := range 4 {
		g, err := openGossip(rank.MemberName(r, 1), "run1", quiet())
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.Close() })
		members = append(members, g)
	}
	for _, g := range members[1:] {
		seam := g.seam()
		require.NoError(t, seam.Start(context.Background(), "", []string{members[0].Addr()}))
	}
	stranger, err := openGossip(rank.MemberName(4, 1), "run2", quiet())
	require.NoError(t, err)
	t.Cleanup(func() { _ = stranger.Close() })
	require.Error(t, stranger.Join([]string{members[0].Addr()}))
	for r, g := range members {
		require.Eventually(t, func() bool { return g.Members() == 4 },
			10*time.Second, lookAgain, "member %d does not see 4", r)
	}

	require.NoError(t, members[3].Close())
	require.NoError(t, members[3].Close(), "it may be closed again")
	left := func() bool {
		for {
			select {
			case h := <-members[0].hints:
				if h == (hint{Member: "rank3.e1", Left: true}) {
					return true
				}
			default:
				return false
			}
		}
	}
	require.Eventually(t, left, 10*time.Second, lookAgain, "member 0 has heard nothing of rank3.e1")
}
