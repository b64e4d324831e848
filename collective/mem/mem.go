// Package mem is a network of ranks in one process, for virtual ranks and for
// tests. All waits are on channels, so it works in a testing/synctest bubble
// with virtual time.
//
// Each ordered pair of ranks has a data link: a channel of packets, one a frame.
// A packet is a copy of the frame, made when the sender's Progress hands it
// over, so no memory is shared once a frame is done. The receiver sees a link as
// a stream of bytes, as on TCP: a landing takes the bytes it asks for, wherever
// frames begin.
//
// Kill, Cut, CutLane, Freeze and Delay are the faults of a real network and of
// real processes.
package mem

import (
	"errors"
	"io"
	"sync"
	"time"

	"octet/collective"
)

const (
	// linkPackets is how many packets a data link holds.
	linkPackets = 8
	// lanePackets is how many events each peer may leave unread at a rank.
	lanePackets = 256
)

var (
	errKilled = errors.New("this rank was killed")
	errCut    = errors.New("link was cut")
	errClosed = errors.New("closed")
	errFull   = errors.New("peer does not read")
)

// Network is the wires between the ranks.
type Network struct {
	nodes []*node
	links [][]*link // [from][to]

	mu    sync.Mutex // guards delay
	delay func(from, to int) time.Duration
}

// New makes a network of size ranks, all linked.
func New(size int) *Network {
	n := &Network{nodes: make([]*node, size), links: make([][]*link, size)}
	for r := range n.nodes {
		n.nodes[r] = newNode(n, r, size)
		n.links[r] = make([]*link, size)
		for to := range n.links[r] {
			n.links[r][to] = &link{
				packets: make(chan packet, linkPackets),
				spare:   make(chan []byte, linkPackets),
				cut:     make(chan struct{}),
			}
		}
	}
	return n
}

// Rank returns the two ends of one rank.
func (n *Network) Rank(r int) (collective.Transport, collective.Lane) {
	return n.nodes[r].transport(), (*lane)(n.nodes[r])
}

// Kill ends a rank as SIGKILL would: its lane ends without BYE, its links end,
// and what was on the way from it is gone.
func (n *Network) Kill(rank int) {
	n.nodes[rank].kill.Do(func() { close(n.nodes[rank].killed) })
	n.nodes[rank].end(io.EOF)
	n.wakeAll()
}

// Cut breaks the data link between two ranks, both ways. Their lanes live.
func (n *Network) Cut(a, b int) {
	n.links[a][b].once.Do(func() { close(n.links[a][b].cut) })
	n.links[b][a].once.Do(func() { close(n.links[b][a].cut) })
	n.wakeAll()
}

// CutLane breaks the lane between two ranks, both ways.
func (n *Network) CutLane(a, b int) {
	n.nodes[a].endOf(b, errCut)
	n.nodes[b].endOf(a, errCut)
}

// Freeze stops a rank as SIGSTOP would: its Progress and its lane's Send wait
// until the returned function thaws it.
func (n *Network) Freeze(rank int) (thaw func()) {
	ice := make(chan struct{})
	n.nodes[rank].setIce(ice)
	n.nodes[rank].wake()
	return sync.OnceFunc(func() { close(ice) })
}

// Delay makes every packet that is sent from now on wait on its way for what f
// says. Packets of one link stay in order.
func (n *Network) Delay(f func(from, to int) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = f
}

// due is when a packet that leaves now arrives; zero is at once.
func (n *Network) due(from, to int) time.Time {
	n.mu.Lock()
	f := n.delay
	n.mu.Unlock()
	if f == nil {
		return time.Time{}
	}
	return time.Now().Add(f(from, to))
}

func (n *Network) wakeAll() {
	for _, x := range n.nodes {
		x.wake()
	}
}

// link is one direction of a pair.
type link struct {
	packets chan packet // from -> to
	spare   chan []byte // to -> from, memory to use again
	cut     chan struct{}
	once    sync.Once
}

// packet is a frame on its way: a copy of head and body.
type packet struct {
	bytes []byte
	due   time.Time
}

// node is what a rank's two ends share.
type node struct {
	// Set by New, never changed:
	net    *Network
	rank   int
	wakes  chan struct{} // peers -> Progress: something changed on a link
	killed chan struct{} // closed by Kill
	kill   sync.Once
	closed chan struct{} // closed by the transport's Close
	close  sync.Once

	mu     sync.Mutex // guards what follows
	events chan collective.LaneEvent
	shut   bool   // events is closed
	ended  []bool // peers whose end was delivered
	ice    chan struct{}
}

func newNode(n *Network, r, size int) *node {
	return &node{net: n, rank: r, wakes: make(chan struct{}, 1), killed: make(chan struct{}),
		closed: make(chan struct{}),
		events: make(chan collective.LaneEvent, (lanePackets+1)*size), ended: make([]bool, size)}
}

// wake makes the Progress that waits look again, or the next one not wait.
func (n *node) wake() {
	select {
	case n.wakes <- struct{}{}:
	default:
	}
}

func (n *node) dead() bool { return isClosed(n.killed) }

func (n *node) setIce(ice chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ice = ice
}

// thawed waits while the rank is frozen.
func (n *node) thawed() {
	n.mu.Lock()
	ice := n.ice
	n.mu.Unlock()
	if ice == nil {
		return
	}
	select {
	case <-ice:
	case <-n.killed:
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
