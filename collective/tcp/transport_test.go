package tcp

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// filled returns a frame of random bytes.
func filled(rng *rand.Rand, body int) collective.Frame {
	f := blank(body)
	for _, b := range [][]byte{f.Head, f.Body} {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
	return f
}

func blank(body int) collective.Frame {
	return collective.Frame{Head: make([]byte, collective.HeadBytes), Body: make([]byte, body)}
}

// until drives a transport until so many frames of peer are done.
func until(tr collective.Transport, peer, sent, received int) error {
	for end := time.Now().Add(patience); ; {
		s, r := tr.Done(peer)
		if s >= sent && r >= received {
			return nil
		}
		if err := tr.Progress(end); err != nil {
			return err
		}
	}
}

// exchange sends count frames both ways at the same time, each rank posting all
// its sends before its receives, and checks what arrives.
func exchange(t *testing.T, a, b collective.Transport, rankA, rankB, count, body int) {
	t.Helper()
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, uint64(body)))
	ends, peers := []collective.Transport{a, b}, []int{rankB, rankA}
	var out, in [2][]collective.Frame
	for i := range ends {
		for range count {
			out[i] = append(out[i], filled(rng, rng.IntN(body+1)))
		}
	}
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, tr := range ends {
		both.Go(func() {
			sent, received := tr.Done(peers[i])
			for _, f := range out[i] {
				tr.Send(peers[i], f)
			}
			for _, f := range out[1-i] {
				land := blank(len(f.Body))
				in[i] = append(in[i], land)
				tr.Recv(peers[i], land)
			}
			errs[i] = until(tr, peers[i], sent+count, received+count)
		})
	}
	both.Wait()
	require.NoError(t, errors.Join(errs...))
	for i := range ends {
		require.Equal(t, out[1-i], in[i], "seed %d", seed)
	}
}

// pair is a mesh of two ranks.
func pair(t *testing.T, tweak func(c *Config)) []end { return newGroup(t, 2).formed(t, 1, tweak) }

// Frames of all lengths arrive as they were sent, through wide sockets and
// through sockets that hold a fraction of a frame.
func TestFramesBothWays(t *testing.T) {
	for _, socket := range []int{0, 16 << 10} {
		ends := pair(t, func(c *Config) { c.SocketBytes = socket })
		for _, body := range []int{0, 1, 100, 70000} {
			exchange(t, ends[0].data, ends[1].data, 0, 1, 100, body)
		}
		exchange(t, ends[0].data, ends[1].data, 0, 1, 3, 4<<20)
	}
}

// All ranks send large frames to all others before anybody receives.
func TestEverybodySendsFirst(t *testing.T) {
	const size, body = 4, 1 << 20
	ends := newGroup(t, size).formed(t, 1, func(c *Config) { c.SocketBytes = 16 << 10 })
	errs := make([]error, size)
	var all sync.WaitGroup
	for r, e := range ends {
		all.Go(func() {
			for p := range size {
				if p != r {
					e.data.Send(p, blank(body))
				}
			}
			for p := range size {
				if p != r {
					e.data.Recv(p, blank(body))
				}
			}
			for p := range size {
				if p != r {
					errs[r] = errors.Join(errs[r], until(e.data, p, 1, 1))
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}

// Progress with nothing queued returns at once, and one that waits returns at
// its deadline.
func TestProgressKeepsItsDeadline(t *testing.T) {
	tr := pair(t, nil)[0].data
	require.NoError(t, tr.Progress(time.Now().Add(patience)))
	tr.Recv(1, blank(8))
	for _, ms := range []time.Duration{-1000, 0, 5, 80} {
		wait := ms * time.Millisecond
		begun := time.Now()
		require.ErrorIs(t, tr.Progress(begun.Add(wait)), os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(begun), wait)
		require.Less(t, time.Since(begun), wait+2*time.Second)
	}
}

// isDriven reports whether a goroutine is in Progress.
func (t *transport) isDriven() bool {
	if t.driving.TryLock() {
		t.driving.Unlock()
		return false
	}
	return true
}

// Abort from another goroutine ends a Progress that blocks in the kernel, and
// every later one; the first error stays.
func TestAbortWakesProgress(t *testing.T) {
	tr := pair(t, nil)[0].data.(*transport)
	tr.Recv(1, blank(8))
	first := errors.New("first")
	done := make(chan error, 1)
	go func() { done <- tr.Progress(time.Now().Add(patience)) }() // ended by Abort
	require.Eventually(t, tr.isDriven, patience, time.Millisecond)
	tr.Abort(first)
	tr.Abort(errors.New("second"))
	select {
	case err := <-done:
		require.Equal(t, first, err)
	case <-time.After(patience / 2):
		t.Fatal("Progress still blocks")
	}
	require.Equal(t, first, tr.Progress(time.Now().Add(patience)))
}

// A single wait in the kernel ends when Abort is called: nothing else can end
// it before its limit.
func TestAbortEndsOneBlock(t *testing.T) {
	tr := pair(t, nil)[0].data.(*transport)
	tr.Recv(1, blank(8))
	require.False(t, tr.block(time.Millisecond), "woken by nothing")
	tr.Abort(errors.New("enough"))
	require.True(t, tr.block(time.Millisecond), "Abort does not wake")
}

// Close while another goroutine is in Progress ends that one.
func TestCloseEndsProgress(t *testing.T) {
	tr := pair(t, nil)[0].data.(*transport)
	tr.Recv(1, blank(8))
	done := make(chan error, 1)
	go func() { done <- tr.Progress(time.Now().Add(patience)) }() // ended by Close
	require.Eventually(t, tr.isDriven, patience, time.Millisecond)
	require.NoError(t, tr.Close())
	require.Error(t, <-done)
	require.NoError(t, tr.Close(), "a second Close is harmless")
}

// Frames that were done when a rank closes reach the peer, although its kernel
// has no room for them yet and it sent something that the rank never read.
func TestCloseDeliversWhatWasDone(t *testing.T) {
	ends := pair(t, func(c *Config) { c.SocketBytes = c.Rank * (16 << 10) })
	rng := rand.New(rand.NewPCG(5, 5))
	ends[1].data.Send(0, filled(rng, 50000))
	require.NoError(t, until(ends[1].data, 0, 1, 0))
	const count = 20
	var want, got []collective.Frame
	for range count {
		want = append(want, filled(rng, 5000))
		ends[0].data.Send(1, want[len(want)-1])
	}
	require.NoError(t, until(ends[0].data, 1, count, 0))
	closed := make(chan error, 1)
	go func() { closed <- ends[0].data.Close() }() // ends within drainWait
	require.Eventually(t, func() bool {
		select {
		case err := <-closed:
			closed <- err
			return true
		default:
			return ends[0].data.(*transport).isDriven()
		}
	}, patience, time.Millisecond)
	for range count {
		got = append(got, blank(5000))
		ends[1].data.Recv(0, got[len(got)-1])
	}
	require.NoError(t, until(ends[1].data, 0, 1, count))
	require.NoError(t, <-closed)
	require.Equal(t, want, got)
	ends[1].data.Recv(0, blank(0))
	err := ends[1].data.Progress(time.Now().Add(patience))
	var link *collective.LinkError
	require.ErrorAs(t, err, &link)
	require.Equal(t, collective.LinkError{Op: "recv", Peer: 0, Err: io.EOF}, *link)
}

// Sending to a peer that has closed is a LinkError and raises no signal.
func TestSendToClosedPeerRaisesNoSignal(t *testing.T) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGPIPE, syscall.SIGCONT)
	defer signal.Stop(signals)
	ends := pair(t, nil)
	require.NoError(t, ends[1].data.Close())
	var err error
	for range 1000 {
		ends[0].data.Send(1, blank(1000))
		if err = ends[0].data.Progress(time.Now().Add(patience)); err != nil {
			break
		}
	}
	var link *collective.LinkError
	require.ErrorAs(t, err, &link)
	require.Equal(t, "send", link.Op)
	require.Equal(t, 1, link.Peer)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGCONT))
	select { // signals that are raised come in order, those of one instant by number
	case s := <-signals:
		require.Equal(t, syscall.SIGCONT, s)
	case <-time.After(patience):
		t.Fatal("no signal comes")
	}
	require.Error(t, ends[0].data.Progress(time.Now().Add(patience)), "the error is gone")
}

// A broken link that nobody waits for does not stop the others.
func TestOtherLinksGoOn(t *testing.T) {
	ends := newGroup(t, 3).formed(t, 1, nil)
	require.NoError(t, ends[2].data.Close())
	exchange(t, ends[0].data, ends[1].data, 0, 1, 10, 5000)
	ends[0].data.Recv(2, blank(8))
	require.ErrorIs(t, ends[0].data.Progress(time.Now().Add(patience)), io.EOF)
}

// A drained queue does not keep the memory of a burst.
func TestQueueLetsGoOfABurst(t *testing.T) {
	var q queue
	for range spareVecs {
		q.push(blank(3))
	}
	n := spareVecs * (collective.HeadBytes + 3)
	for step := 1; n > 0; step = step%997 + 1 {
		require.NotEmpty(t, q.batch())
		k := min(step, n)
		q.advance(k)
		n -= k
	}
	require.Equal(t, spareVecs, q.done)
	require.False(t, q.pending())
	require.Zero(t, cap(q.vecs))
	for range 10 * batchVecs { // never empty, yet bounded
		q.push(blank(0))
		q.push(blank(0))
		q.advance(collective.HeadBytes)
		q.push(blank(1))
		q.advance(2*collective.HeadBytes + 1)
	}
	require.LessOrEqual(t, cap(q.vecs), 16*batchVecs)
}

const childEnv = "OCTET_TCP_TEST_PEERS"

// TestChildRank is rank 1 of the test below, in a process of its own.
func TestChildRank(t *testing.T) {
	peers := strings.Split(os.Getenv(childEnv), ",")
	if len(peers) != 2 {
		t.Skip("only run as a child")
	}
	l, err := Listen("")
	require.NoError(t, err)
	g := &group{listeners: []*Listener{nil, l}, peers: peers}
	ends, errs := g.mesh(t, patience, []int{1}, 1, nil)
	require.NoError(t, errs[1])
	ends[1].data.Send(0, blank(100))
	ends[1].data.Recv(0, blank(100))
	_ = until(ends[1].data, 0, 1, 1) // killed meanwhile
}

// When a peer's process is killed, its data link is a LinkError and its lane
// ends.
func TestPeerProcessIsKilled(t *testing.T) {
	g := newGroup(t, 2)
	child := exec.Command(os.Args[0], "-test.run=^TestChildRank$")
	child.Env = append(os.Environ(), childEnv+"="+strings.Join(g.peers, ","))
	require.NoError(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	ends, errs := g.mesh(t, patience, []int{0}, 1, nil)
	require.NoError(t, errs[0])
	ends[0].data.Recv(1, blank(100))
	require.NoError(t, until(ends[0].data, 1, 0, 1))
	require.NoError(t, child.Process.Kill())
	ends[0].data.Recv(1, blank(100))
	err := ends[0].data.Progress(time.Now().Add(patience))
	var link *collective.LinkError
	require.ErrorAs(t, err, &link)
	require.Equal(t, "recv", link.Op)
	require.Equal(t, 1, link.Peer)
	select {
	case e := <-ends[0].lane.Events():
		require.Equal(t, 1, e.Peer)
		require.Error(t, e.End)
	case <-time.After(patience):
		t.Fatal("the lane does not end")
	}
}
