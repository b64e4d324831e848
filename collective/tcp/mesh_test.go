package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// say sends b to a listener and returns the answer.
func say(t *testing.T, addr string, b []byte) (net.Conn, answer) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Write(b)
	require.NoError(t, err)
	a, err := readAnswer(conn)
	require.NoError(t, err)
	return conn, a
}

// waiting starts Mesh for rank 0 of 3 in epoch 5, which nobody joins.
func waiting(t *testing.T) (addr string) {
	g := newGroup(t, 3)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { // ends when ctx does
		_, _, err := g.listeners[0].Mesh(ctx, g.config(0, 5))
		done <- err
	}()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	require.Eventually(t, func() bool {
		l := g.listeners[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.mesh != nil
	}, patience, time.Millisecond)
	return g.peers[0]
}

// A hello that does not fit is answered with both values.
func TestRefusalsNameBothValues(t *testing.T) {
	addr := waiting(t)
	good := hello{run: keyOf("a run"), epoch: 5, size: 3, from: 1, purpose: forData, instance: 7}
	_, a := say(t, addr, good.append(nil))
	require.Equal(t, accepted, a.code)
	for _, c := range []struct {
		name   string
		change func(h *hello)
		code   code
		reason string
	}{
		{"run id", func(h *hello) { h.run = keyOf("other") }, refused, `run id "other", want "a run"`},
		{"old epoch", func(h *hello) { h.epoch = 4 }, refused, "stale epoch 4, this rank is in epoch 5"},
		{"new epoch", func(h *hello) { h.epoch = 6 }, notYet, "epoch 6, this rank is in epoch 5"},
		{"size", func(h *hello) { h.size = 4 }, refused, "size 4, want 3"},
		{"to", func(h *hello) { h.to = 2 }, refused, "looking for rank 2, this is rank 0"},
		{"too high", func(h *hello) { h.from = 3 }, refused, "rank 3, want one below 3"},
		{"self", func(h *hello) { h.from = 0 }, refused, "rank 0 dials rank 0, want a higher"},
		{"duplicate", func(h *hello) { h.instance = 8 }, refused,
			"duplicate rank 1: instance 8, instance 7 is here already"},
		{"purpose", func(h *hello) { h.purpose = 3 }, refused, "purpose 3, want data or lane"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good
			c.change(&h)
			conn, a := say(t, addr, h.append(nil))
			require.Equal(t, c.code, a.code)
			require.Contains(t, a.reason, c.reason)
			_, err := conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "the connection stays open")
		})
	}
	for _, c := range []struct {
		name   string
		at     int
		reason string
	}{
		{"magic", 0, `want "OTCP"`},
		{"version", 4, "protocol version 254, want 1"},
		{"length", 6, "hello of 203 bytes, want 52"},
		{"damage", 30, "hello with checksum"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := good.append(nil)
			b[c.at] ^= 0xff
			_, a := say(t, addr, b)
			require.Equal(t, refused, a.code)
			require.Contains(t, a.reason, c.reason)
		})
	}
}

// A rank that refuses ends the dialler's Mesh at once, and its error says why.
func TestRefusedDiallerGivesUpAtOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *Config)
		reason string
	}{
		{"run id", func(c *Config) { c.RunID = "other" }, `run id "other", want "a run"`},
		{"epoch", func(c *Config) { c.Epoch = 4 }, "stale epoch 4, this rank is in epoch 5"},
		{"size", func(c *Config) { c.Size, c.Peers = 2, c.Peers[:2] }, "size 2, want 3"},
		{"table", func(c *Config) { c.Rank = 2; c.Peers[1] = c.Peers[0] },
			"looking for rank 1, this is rank 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := waiting(t)
			l, err := Listen("")
			require.NoError(t, err)
			defer l.Close()
			cfg := Config{Hello: Hello{RunID: "a run", Epoch: 5, Rank: 1, Size: 3},
				Peers: []string{addr, l.Addr(), l.Addr()}}
			c.change(&cfg)
			ctx, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			_, _, err = l.Mesh(ctx, cfg)
			var refusal *RefusedError
			require.ErrorAs(t, err, &refusal)
			require.Contains(t, refusal.Reason, c.reason)
			require.NoError(t, ctx.Err(), "it waited for its deadline")
		})
	}
}

// A rank whose table leads to something that is not a rank says so at once.
func TestForeignAnswerIsNamed(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { // ended by Close
		for conn, err := other.Accept(); err == nil; conn, err = other.Accept() {
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			defer conn.Close()
		}
	})
	defer serving.Wait()
	defer other.Close()
	g := newGroup(t, 2)
	g.peers[0] = other.Addr().String()
	_, errs := g.mesh(t, patience, []int{1}, 1, nil)
	require.ErrorContains(t, errs[1], `answer with magic "HTTP", want "OTCA"`)
}

// Strangers take no place and delay nobody: a mesh forms beside them, and all
// of them are closed within two seconds.
func TestStrangersBesideAMesh(t *testing.T) {
	g := newGroup(t, 3)
	var strangers sync.WaitGroup
	begun := time.Now()
	silent := guestsMax / 4
	closed := make(chan time.Duration, 3*silent+9)
	visit := func(addr string, b []byte) {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write(b)
		strangers.Go(func() { // ends when the listener closes the connection
			defer conn.Close()
			_, err := io.Copy(io.Discard, conn)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				closed <- time.Since(begun)
			}
		})
	}
	for _, addr := range g.peers {
		visit(addr, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		visit(addr, []byte(strings.Repeat("garbage ", 10000)))
		visit(addr, hello{run: keyOf("a run")}.append(nil)[:20])
		for range silent {
			visit(addr, nil)
		}
		strangers.Go(func() { // ends when the listener closes the connection
			conn, err := net.DialTimeout("tcp", addr, patience)
			if err == nil {
				_ = conn.SetDeadline(time.Now().Add(patience))
				_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
				_ = conn.Close()
			}
		})
	}
	ends := g.formed(t, 1, nil)
	formed := time.Since(begun)
	exchange(t, ends[0].data, ends[2].data, 0, 2, 1, 100)
	strangers.Wait()
	require.Len(t, closed, cap(closed), "a stranger was kept")
	close(closed)
	for d := range closed {
		require.Less(t, d, 2*time.Second+formed, "a stranger was kept for long")
	}
	require.Less(t, formed, helloWait, "the mesh waited for strangers")
}

// At the deadline every rank names exactly the ranks that are missing, and who
// was to dial.
func TestMissingRanksAreNamed(t *testing.T) {
	g := newGroup(t, 5)
	require.NoError(t, g.listeners[1].Close())
	require.NoError(t, g.listeners[3].Close())
	begun := time.Now()
	_, errs := g.mesh(t, 300*time.Millisecond, []int{0, 2, 4}, 1, nil)
	require.Less(t, time.Since(begun), 5*time.Second)
	for _, r := range []int{0, 2, 4} {
		var e *MeshError
		require.ErrorAs(t, errs[r], &e, "rank %d", r)
		require.ErrorIs(t, e, context.DeadlineExceeded)
		require.Len(t, e.Missing, 2, "%v", e)
		for i, who := range []int{1, 3} {
			require.Equal(t, who, e.Missing[i].Rank, "%v", e)
			require.Equal(t, who < r, e.Missing[i].Dialled, "%v", e)
			require.Equal(t, []string{"data", "lane"}, e.Missing[i].Links)
		}
	}
	require.ErrorContains(t, errs[0], "rank 1 has not dialled; rank 3 has not dialled")
	require.ErrorContains(t, errs[2], "rank 1 at "+g.peers[1]+" does not answer (dial tcp")
	require.ErrorContains(t, errs[2], "rank 3 has not dialled")
}

// A rank that has listened, but has not come to the epoch, is named as such.
func TestRankThatIsNotThereYetIsNamed(t *testing.T) {
	g := newGroup(t, 2)
	_, errs := g.mesh(t, 200*time.Millisecond, []int{1}, 3, nil)
	require.ErrorContains(t, errs[1], "not yet: no epoch has begun here")
}

// The listeners live across epochs: a rank that is an epoch ahead is not lost.
func TestNextEpochOnTheSameListeners(t *testing.T) {
	g := newGroup(t, 3)
	first := g.formed(t, 1, nil)
	exchange(t, first[0].data, first[1].data, 0, 1, 1, 100)
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	var early end
	ahead := make(chan error, 1)
	go func() { // ends with ctx at the latest
		var err error
		early.data, early.lane, err = g.listeners[2].Mesh(ctx, g.config(2, 2))
		ahead <- err
	}()
	l := g.listeners[2]
	require.Eventually(t, func() bool { // rank 2 has been told to wait by both others
		l.mu.Lock()
		defer l.mu.Unlock()
		m := l.mesh
		return m.self.epoch == 2 && strings.Contains(m.seats[0].notes[forData], "not yet") &&
			strings.Contains(m.seats[1].notes[forLane], "not yet")
	}, patience, time.Millisecond)
	closeAll(first)
	ends, errs := g.mesh(t, patience, []int{0, 1}, 2, nil)
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, <-ahead)
	ends[2] = early
	t.Cleanup(func() { closeAll(ends[2:]) })
	exchange(t, ends[2].data, ends[0].data, 2, 0, 1, 100)
	exchange(t, ends[1].data, ends[2].data, 1, 2, 1, 100)
	_, _, err := g.listeners[0].Mesh(ctx, g.config(0, 2))
	require.ErrorContains(t, err, "epoch 2 is not above epoch 2")
}

// A dialler that lost its connection takes its place again; another instance of
// the same rank does not.
func TestSameInstanceMayDialAgain(t *testing.T) {
	addr := waiting(t)
	h := hello{run: keyOf("a run"), epoch: 5, size: 3, from: 2, purpose: forLane, instance: 7}
	first, a := say(t, addr, h.append(nil))
	require.Equal(t, accepted, a.code)
	_, a = say(t, addr, h.append(nil))
	require.Equal(t, accepted, a.code)
	_, err := first.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the first connection stays open")
}

// Of two connections of one instance the one that said hello last stays, in
// whatever order they are seated.
func TestTheLaterHelloKeepsTheSeat(t *testing.T) {
	g := newGroup(t, 3)
	l := g.listeners[0]
	m, err := l.begin(g.config(0, 5))
	require.NoError(t, err)
	h := hello{run: m.self.run, epoch: 5, size: 3, from: 2, purpose: forLane, instance: 7}
	_, first, a := l.judge(h)
	require.Equal(t, accepted, a.code)
	_, second, a := l.judge(h)
	require.Equal(t, accepted, a.code)
	here, there := net.Pipe()
	defer there.Close()
	require.True(t, m.put(2, forLane, here, second))
	stale, other := net.Pipe()
	defer other.Close()
	require.False(t, m.put(2, forLane, stale, first), "the earlier hello takes the seat")
	require.Equal(t, here, m.seats[2].conns[forLane])
	m.drop()
}

// Closing the listener ends a Mesh, and a later epoch ends an earlier one.
func TestMeshEndsWithListenerAndWithNextEpoch(t *testing.T) {
	for _, next := range []bool{false, true} {
		g := newGroup(t, 2)
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		done := make(chan error, 2)
		begin := func(epoch uint32) {
			_, _, err := g.listeners[0].Mesh(ctx, g.config(0, epoch))
			done <- err
		}
		go begin(1) // ends with ctx at the latest
		require.Eventually(t, func() bool {
			l := g.listeners[0]
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.mesh != nil
		}, patience, time.Millisecond)
		if next {
			go begin(2) // ends with ctx at the latest
			require.ErrorContains(t, <-done, "epoch 2 has begun")
		}
		require.NoError(t, g.listeners[0].Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
	}
}

// A mesh forms over IPv6.
func TestIPv6(t *testing.T) {
	g := &group{}
	for range 2 {
		l, err := Listen("[::1]:0")
		if err != nil {
			t.Skip("this host has no IPv6 loopback")
		}
		t.Cleanup(func() { _ = l.Close() })
		g.listeners, g.peers = append(g.listeners, l), append(g.peers, l.Addr())
	}
	ends := g.formed(t, 1, nil)
	exchange(t, ends[0].data, ends[1].data, 0, 1, 1, 100)
}

// Validate names the field.
func TestConfigValidate(t *testing.T) {
	for what, change := range map[string]func(c *Config){
		"run id is empty":             func(c *Config) { c.RunID = "" },
		"size 0":                      func(c *Config) { c.Size = 0 },
		"size 65":                     func(c *Config) { c.Size = 65 },
		"rank 2 is not":               func(c *Config) { c.Rank = 2 },
		"rank -1 is not":              func(c *Config) { c.Rank = -1 },
		"1 peers given for size 2":    func(c *Config) { c.Peers = c.Peers[:1] },
		"address of rank 1 is empty":  func(c *Config) { c.Peers[1] = "" },
		"socket bytes -1 is negative": func(c *Config) { c.SocketBytes = -1 },
	} {
		c := Config{Hello: Hello{RunID: "r", Rank: 0, Size: 2}, Peers: []string{"", "x"}}
		require.NoError(t, c.Validate())
		change(&c)
		require.ErrorContains(t, c.Validate(), what)
	}
}

// Long run ids that differ stay different on the wire.
func TestLongRunIDs(t *testing.T) {
	require.Equal(t, "0123456789abcdef", keyOf("0123456789abcdef").String())
	require.NotEqual(t, keyOf("0123456789abcdef-1"), keyOf("0123456789abcdef-2"))
}
