package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// hear returns the next event of a lane.
func hear(t *testing.T, l collective.Lane) (collective.LaneEvent, bool) {
	t.Helper()
	select {
	case e, ok := <-l.Events():
		return e, ok
	case <-time.After(patience):
		t.Fatal("nothing on the lane")
		panic("not reached")
	}
}

func causeOf(detail string) collective.Cause {
	return collective.Cause{Class: collective.Death, Epoch: 3, Seq: 17, Verb: collective.AllReduce,
		Culprits: []int{1, 63}, Informer: 2, Detail: detail}
}

// Notices arrive in order with all they say, then the end as io.EOF.
func TestLaneDeliversInOrder(t *testing.T) {
	ends := pair(t, nil)
	sent := []collective.Notice{
		{Kind: collective.Heartbeat, Epoch: 1, Seq: 4},
		{Kind: collective.AbortNotice, Epoch: 1, Seq: 5, Cause: causeOf("it is dead")},
		{Kind: collective.Bye, Epoch: 1, Seq: 6},
	}
	for _, n := range sent {
		require.NoError(t, ends[0].lane.Send(1, n))
	}
	require.NoError(t, ends[0].lane.Close())
	for _, n := range sent {
		e, ok := hear(t, ends[1].lane)
		require.True(t, ok)
		require.Equal(t, collective.LaneEvent{Peer: 0, Notice: n}, e)
	}
	e, ok := hear(t, ends[1].lane)
	require.True(t, ok)
	require.Equal(t, collective.LaneEvent{Peer: 0, End: io.EOF}, e)
	require.Error(t, ends[1].lane.Send(0, sent[0]), "the peer is gone")
	_, ok = hear(t, ends[0].lane)
	require.False(t, ok, "events are closed after Close")
	require.Error(t, ends[0].lane.Send(1, sent[0]))
	require.NoError(t, ends[0].lane.Close(), "a second Close is harmless")
}

// A notice as long as it may be arrives; what is too long is cut.
func TestLaneBoundsNotices(t *testing.T) {
	ends := pair(t, nil)
	n := collective.Notice{Kind: collective.AbortNotice, Cause: causeOf(strings.Repeat("long ", 5000))}
	require.NoError(t, ends[0].lane.Send(1, n))
	e, _ := hear(t, ends[1].lane)
	require.NoError(t, e.End)
	require.Len(t, collective.AppendNotice(nil, e.Notice), collective.NoticeBytesMax)
	require.True(t, strings.HasPrefix(n.Cause.Detail, e.Notice.Cause.Detail))
}

// Send to a peer that does not read gives up after the write limit, and at once
// from then on.
func TestLaneSendNeverBlocksLong(t *testing.T) {
	near, far := connected(t)
	require.NoError(t, near.SetWriteBuffer(4096))
	require.NoError(t, far.SetReadBuffer(4096))
	l := newLane([]net.Conn{nil, near})
	n := collective.Notice{Kind: collective.AbortNotice, Cause: causeOf(strings.Repeat("x", 2000))}
	var err error
	begun := time.Now()
	for range 10000 {
		begun = time.Now()
		if err = l.Send(1, n); err != nil {
			break
		}
	}
	require.Error(t, err, "a peer that does not read takes everything")
	require.Less(t, time.Since(begun), writeWait+2*time.Second)
	begun = time.Now()
	require.Error(t, l.Send(1, n))
	require.Less(t, time.Since(begun), writeWait/2)
	require.Error(t, l.Send(0, n), "no lane to oneself")
	require.Error(t, l.Send(2, n))
	_ = far.Close()
	require.NoError(t, l.Close())
}

// connected returns both ends of a TCP connection.
func connected(t *testing.T) (near, far *net.TCPConn) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer socket.Close()
	a, err := net.Dial("tcp", socket.Addr().String())
	require.NoError(t, err)
	b, err := socket.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// A peer that does not speak the lane's language has reached its end.
func TestLaneEndsOnNonsense(t *testing.T) {
	for _, nonsense := range []string{"\xff\xff rest", "\x05\x00 1234567", "\x40\x00\x01\x00"} {
		near, far := connected(t)
		l := newLane([]net.Conn{nil, near})
		_, err := far.Write([]byte(nonsense))
		require.NoError(t, err)
		_ = far.CloseWrite() // the lane may have closed first
		e, _ := hear(t, l)
		require.Error(t, e.End)
		require.NotErrorIs(t, e.End, io.EOF)
		require.NoError(t, l.Close())
	}
}

// Close returns soon although a peer does not close its side.
func TestLaneCloseDoesNotWaitForAFrozenPeer(t *testing.T) {
	near, _ := connected(t)
	l := newLane([]net.Conn{nil, near})
	begun := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(begun), partWait+2*time.Second)
}

// What was encoded is decoded, and nothing else makes the decoder fail badly.
func FuzzHello(f *testing.F) {
	h := hello{run: keyOf("run"), epoch: 1, size: 8, from: 7, purpose: forLane, instance: 9}
	f.Add(h.append(nil))
	f.Add(h.append(nil)[:30])
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything at all\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err == nil {
			require.Equal(t, b[:helloBytes], h.append(nil))
			return
		}
		a := answer{code: refused, reason: err.Error()}
		back, err := readAnswer(bytes.NewReader(a.append(nil)))
		require.NoError(t, err)
		require.Equal(t, refused, back.code)
		require.LessOrEqual(t, len(back.reason), 3*reasonMax)
	})
}

// An answer is decoded as it was encoded, or is an error.
func FuzzAnswer(f *testing.F) {
	h := hello{run: keyOf("run"), epoch: 1, size: 8, from: 7, purpose: forData, instance: 9}
	f.Add(answer{code: accepted, hello: h}.append(nil))
	f.Add(answer{code: notYet, reason: "wait"}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAnswer(bytes.NewReader(b))
		if err == nil && a.code == accepted {
			require.Equal(t, b[8:answerBytes], a.hello.append(nil))
		}
	})
}

// A lane's stream is decoded into notices that encode to the same bytes, up to
// its end or the first error.
func FuzzNotice(f *testing.F) {
	n := collective.AppendNotice([]byte{0, 0}, collective.Notice{Kind: collective.AbortNotice,
		Epoch: 1, Seq: 2, Cause: causeOf("why")})
	n[0] = byte(len(n) - lengthBytes)
	f.Add(append(n, n...))
	f.Add(n[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, buf := bytes.NewReader(b), make([]byte, collective.NoticeBytesMax)
		for {
			at := len(b) - r.Len()
			n, err := readNotice(r, buf)
			if err != nil {
				require.Equal(t, at == len(b), errors.Is(err, io.EOF), "%v", err)
				return
			}
			end := len(b) - r.Len()
			require.Equal(t, b[at+lengthBytes:end], collective.AppendNotice(nil, n))
		}
	})
}
