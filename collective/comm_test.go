package collective_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/collective/mem"
)

// damaged is a transport that changes what it is given to send.
type damaged struct {
	collective.Transport
	change func(peer int, f collective.Frame) []collective.Frame
}

func (d *damaged) Send(peer int, f collective.Frame) {
	for _, f := range d.change(peer, f) {
		d.Transport.Send(peer, f)
	}
}

// run makes a group of three whose rank 1 sends through change, and runs
// AllReduce until it fails.
func run(t *testing.T, change func(peer int, f collective.Frame) []collective.Frame) []error {
	net, errs := mem.New(3), make([]error, 3)
	var all sync.WaitGroup
	for r := range errs {
		data, lane := net.Rank(r)
		if r == 1 {
			data = &damaged{data, change}
		}
		cfg := collective.Config{RunID: "damaged", Rank: r, Size: 3, Checksum: true}
		c, err := collective.New(cfg, data, lane)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		all.Go(func() {
			for range 4 { // a sender may succeed once more before it hears
				buf := collective.Float32s(make([]float32, 100))
				errs[r] = c.AllReduce(t.Context(), collective.Call{}, buf, buf, collective.SUM)
				if errs[r] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errs
}

// A damaged frame of one rank is a corruption that names it, on every rank.
func TestDamagedFrame(t *testing.T) {
	flip := func(b []byte, i int) []byte {
		b = append([]byte(nil), b...)
		b[i] ^= 4
		return b
	}
	var old []byte
	for name, change := range map[string]func(peer int, f collective.Frame) []collective.Frame{
		"bit of a body": func(peer int, f collective.Frame) []collective.Frame {
			if peer == 2 && len(f.Body) > 0 {
				f.Body = flip(f.Body, 17)
			}
			return []collective.Frame{f}
		},
		"bit of a head": func(peer int, f collective.Frame) []collective.Frame {
			if peer == 2 {
				f.Head = flip(f.Head, 33)
			}
			return []collective.Frame{f}
		},
		"a frame of the last operation again": func(peer int, f collective.Frame) []collective.Frame {
			if peer == 0 && len(f.Body) == 0 {
				if old != nil {
					f.Head = old
				}
				old = append([]byte(nil), f.Head...)
			}
			return []collective.Frame{f}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for r, err := range run(t, change) {
				var a *collective.AbortError
				require.ErrorAs(t, err, &a, "rank %d", r)
				require.Equal(t, collective.Corruption, a.Class, "rank %d: %v", r, a)
				require.Equal(t, []int{1}, a.Culprits, "rank %d: %v", r, a)
			}
		})
	}
}

// One call is traced as a begin and an end, with what it sent, and counted; a
// second goroutine in the same Comm is told so.
func TestTraceAndCounts(t *testing.T) {
	data, lane := mem.New(1).Rank(0)
	var events []collective.Event
	busy := make(chan struct{})
	var c *collective.Comm
	cfg := collective.Config{RunID: "trace", Size: 1, Trace: func(e collective.Event) {
		if e.Kind != collective.Spent {
			events = append(events, e)
		}
	}}
	c, err := collective.New(cfg, data, lane)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	call := collective.Call{Purpose: collective.Sequence}
	dst := collective.Float32s(make([]float32, 6))
	f := collective.Fused{Rows: 2, Cols: 3, Mode: collective.AIV}
	err = c.MatmulReduceScatter(context.Background(), call, f, dst, func(int, int, []float32) {
		go func() { // ends when it was refused
			defer close(busy)
			require.ErrorContains(t, c.Barrier(context.Background(), call), "another goroutine")
		}()
		<-busy
	})
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, collective.OpBegin, events[0].Kind)
	require.Equal(t, collective.OpEnd, events[1].Kind)
	require.Equal(t, collective.Counts{{Verb: collective.MatmulReduceScatter,
		Purpose: collective.Sequence, Calls: 1}}, c.Counts())
	require.NoError(t, c.Err())
}
