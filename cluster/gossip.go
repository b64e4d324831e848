package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// This file alone knows memberlist. Gossip only hints: a member that leaves is
// a suspicion which Status shows, and no verdict rests on it.

// gossipEventsMax bounds the hints that wait for their reader. When the reader
// is behind, later hints are dropped: memberlist calls with its node lock held
// and must never wait.
const gossipEventsMax = 256

// gossipLeave bounds how long an orderly leave waits until it has been told.
const gossipLeave = 500 * time.Millisecond

// hint is what gossip says about one member.
type hint struct {
	Member string // "rank3.e1", "master"
	Left   bool   // it left or does not answer; else it joined
}

// gossip is one member of a run's gossip.
type gossip struct {
	list  *memberlist.Memberlist
	hints chan hint // memberlist -> whoever reads; dropped when full

	closing sync.Once
	closed  chan struct{}
}

// openGossip starts a member that listens on a free loopback port. Members of
// other runs do not hear it: the run id is the label of every packet.
func openGossip(name, runID string, logger *slog.Logger) (*gossip, error) {
	g := &gossip{hints: make(chan hint, gossipEventsMax), closed: make(chan struct{})}
	list, err := memberlist.Create(gossipConfig(name, runID, hints{g.hints}, logger))
	if err != nil {
		return nil, fmt.Errorf("start gossip of %s: %w", name, err)
	}
	g.list = list
	return g, nil
}

// gossipConfig is the tuned preset. On loopback a member that crashed is seen by
// all others within 1.2 to 1.8 s, and eight members converge in some 50 ms. A
// lower ProbeInterval sees crashes earlier and, on a busy host, crashes that
// did not happen.
func gossipConfig(name, runID string, events hints, logger *slog.Logger) *memberlist.Config {
	c := memberlist.DefaultLocalConfig()
	c.Name = name
	c.Label = runID
	c.BindAddr, c.BindPort = "127.0.0.1", 0
	c.AdvertiseAddr, c.AdvertisePort = "127.0.0.1", 0
	c.CIDRsAllowed = []net.IPNet{{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
	c.ProbeInterval, c.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	c.GossipInterval, c.GossipNodes = 20*time.Millisecond, 4
	c.PushPullInterval = 2 * time.Second
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 4, 2
	c.IndirectChecks = 3
	c.AwarenessMaxMultiplier = 4
	// With the local preset's 2, one of eight joins is lost now and then and
	// found 15 s later, by a full exchange.
	c.RetransmitMult = 4
	c.DeadNodeReclaimTime = 1
	c.EnableCompression = false
	c.TCPTimeout = 2 * time.Second
	c.Events = events
	c.Logger = log.New(slogLines{logger}, "", 0)
	return c
}

// Addr is where this member listens, as host:port.
func (g *gossip) Addr() string { return g.list.LocalNode().Address() }

// Join meets the members at addrs. Meeting one is enough, the rest is gossip.
func (g *gossip) Join(addrs []string) error {
	if _, err := g.list.Join(addrs); err != nil {
		return fmt.Errorf("join gossip at %v: %w", addrs, err)
	}
	return nil
}

// Members is how many members this one believes alive, itself included.
func (g *gossip) Members() int { return g.list.NumMembers() }

// Close tells the others and ends this member. It may be called again.
func (g *gossip) Close() error {
	var err error
	g.closing.Do(func() {
		// An untold leave costs the others a suspicion, nothing more.
		_ = g.list.Leave(gossipLeave)
		close(g.closed)
		if err = g.list.Shutdown(); err != nil {
			err = fmt.Errorf("end gossip: %w", err)
		}
	})
	return err
}

// hints is the delegate that memberlist calls with its node lock held.
type hints struct{ to chan hint }

func (h hints) NotifyJoin(n *memberlist.Node)   { h.tell(hint{Member: n.Name}) }
func (h hints) NotifyLeave(n *memberlist.Node)  { h.tell(hint{Member: n.Name, Left: true}) }
func (h hints) NotifyUpdate(n *memberlist.Node) {}

func (h hints) tell(e hint) {
	select {
	case h.to <- e:
	default: // see gossipEventsMax
	}
}

// slogLines turns memberlist's log lines into debug records.
type slogLines struct{ to *slog.Logger }

func (s slogLines) Write(line []byte) (int, error) {
	s.to.LogAttrs(context.Background(), slog.LevelDebug, string(bytes.TrimSpace(line)),
		slog.String("from", "memberlist"))
	return len(line), nil
}
