package mem

import (
	"fmt"

	"octet/collective"
)

// lane is a node seen as a collective.Lane.
type lane node

// Send leaves a notice at peer. It waits only while this rank is frozen.
func (l *lane) Send(peer int, notice collective.Notice) error {
	n := (*node)(l)
	n.thawed()
	if n.dead() {
		return fmt.Errorf("notice to rank %d: %w", peer, errKilled)
	}
	notice.Cause.Culprits = append([]int(nil), notice.Cause.Culprits...)
	err := n.net.nodes[peer].deliver(collective.LaneEvent{Peer: n.rank, Notice: notice})
	if err != nil {
		return fmt.Errorf("notice to rank %d: %w", peer, err)
	}
	return nil
}

// Events delivers what the peers sent.
func (l *lane) Events() <-chan collective.LaneEvent { return l.events }

// Close ends this rank's lane at every peer.
func (l *lane) Close() error {
	n := (*node)(l)
	n.end(errClosed)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.shut {
		n.shut = true
		close(n.events)
	}
	return nil
}

// end tells every peer that this rank's lane ended.
func (n *node) end(err error) {
	for r, peer := range n.net.nodes {
		if r != n.rank {
			peer.endOf(n.rank, err)
		}
	}
}

// endOf delivers the end of a peer's lane, once.
func (n *node) endOf(peer int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended[peer] {
		return
	}
	n.ended[peer] = true
	if !n.shut {
		n.events <- collective.LaneEvent{Peer: peer, End: err} // deliver keeps room for it
	}
}

// deliver puts an event into the rank's queue, or says why it cannot.
func (n *node) deliver(e collective.LaneEvent) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ended[e.Peer]:
		return errCut
	case n.shut:
		return errClosed
	case len(n.events) >= cap(n.events)-len(n.ended): // room for each peer's end
		return errFull
	}
	n.events <- e
	return nil
}
