package rank

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"octet/collective"
	"octet/model"
)

// sample makes a message of each kind out of random values within the limits.
func sample(r *rand.Rand, k Kind) Message {
	text := func() string { return strings.Repeat("aé\x00", r.IntN(5)) }
	texts := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = text()
		}
		return list
	}
	epoch := 1 + r.Uint32N(math.MaxUint32)
	size := 1 + r.IntN(RanksMax)
	span := func() time.Duration { return time.Duration(r.Int64N(int64(limitMax))) }
	decision := model.Decision{FC1: r.IntN(2) == 0, Reason: text(), P: 1 << r.IntN(20), L: 1,
		Fuse: model.Fuse{O: true}, FuseReason: model.FuseReason{Down: text()}, Mode: collective.AIV}
	switch k {
	case KindHello:
		return &Hello{Build: text(), RunID: "r" + text(), Rank: r.IntN(size), Size: size,
			PID: r.IntN(1 << 22), Host: text(), Mesh: text(), Gossip: text(), Cores: 1 + r.IntN(99),
			Options: map[string]string{"b": text(), "a": text(), "é": text(), "": text()}}
	case KindAssign:
		beat := 1 + span()/4
		return &Assign{RunID: "r", Epoch: epoch, Rank: r.IntN(size), Size: size, Mesh: texts(size),
			Gossip: texts(size * r.IntN(2)), Cores: 1, Slots: 1 + r.IntN(SlotsMax),
			Heartbeat: beat, Dead: 2 * beat, Op: 3 * beat}
	case KindRefuse:
		return &Refuse{Reason: text(), Key: text(), Yours: text(), Ours: text()}
	case KindReached:
		return &Reached{Epoch: epoch, Phase: Phase(1 + r.IntN(4)), Bytes: r.Int64N(1 << 62),
			Device:  DeviceTimes{Broadcast: span(), Boot: span(), Service: span(), Total: span()},
			Members: r.IntN(70)}
	case KindStep:
		rows := make([]model.Row, 1+r.IntN(40))
		for i := range rows {
			rows[i] = model.Row{Request: r.Uint64(), Slot: r.IntN(SlotsMax), Pos: int(r.Int32()),
				Token: int(r.Int32()), Decode: r.IntN(2) == 0}
		}
		return &Step{Plan: model.Plan{Epoch: epoch, Step: r.Uint64(), Rows: rows,
			Decision: decision,
			Samples: []model.Sample{{Row: r.IntN(len(rows)), Request: r.Uint64(),
				Params: model.Sampling{Temperature: r.Float32(), TopP: r.Float32(), TopK: r.IntN(9),
					Seed: r.Uint64()}}}}}
	case KindStepped:
		return &Stepped{Epoch: epoch, Step: r.Uint64(), Decision: decision,
			Counts: collective.Counts{{Verb: collective.AllGather, Purpose: collective.Sequence,
				Calls: r.Uint64(), Bytes: r.Uint64()}},
			Tokens: []model.Token{{Request: r.Uint64(), ID: r.IntN(1 << 20), Logprob: -r.Float32(),
				Margin: float32(math.Inf(1)), Top: []model.IDLogprob{{ID: 3, Logprob: -1}}},
				{ID: -1, Fault: "the logit of token 7 is NaN"}}}
	case KindAbort:
		return &Abort{Epoch: epoch, Cause: collective.Cause{Class: collective.Stall, Epoch: epoch,
			Seq: r.Uint64(), Verb: collective.AllReduce, Culprits: []int{1, 3},
			Informer: r.IntN(3) - 1, Detail: text()}}
	case KindApart:
		return &Apart{Epoch: epoch}
	case KindDigestsAsk:
		return &DigestsAsk{ID: r.Uint64(), Request: r.Uint64()}
	case KindDigestsAnswer:
		return &DigestsAnswer{ID: r.Uint64(), Request: r.Uint64(), Refusal: text(),
			Digests: []model.Digest{{Request: r.Uint64(), Op: model.OpKey, Layer: 3,
				Whole: r.Uint64(), Part: r.Uint64()}}}
	case KindHeartbeat:
		return &Heartbeat{Epoch: r.Uint32(), Step: r.Uint64(), State: text()}
	case KindStop:
		return &Stop{Reason: text()}
	case KindBye:
		return &Bye{Cause: text()}
	}
	return nil
}

func FuzzRoundTrip(f *testing.F) {
	// Every message that is within the limits comes back equal, and is the only
	// message that its bytes stand for.
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := newRand(seed)
		for k := KindHello; k <= KindBye; k++ {
			m := sample(r, k)
			frame, err := encode(m)
			require.NoError(t, err, "%v, seed %d", k, seed)
			require.Equal(t, uint32(len(frame)-sizeBytes), binary.BigEndian.Uint32(frame))
			back, err := decode(frame[sizeBytes:])
			require.NoError(t, err, "%v, seed %d", k, seed)
			require.Equal(t, m, back, "seed %d", seed)
			cut := frame[sizeBytes : len(frame)-1]
			if len(cut) > headBytes {
				_, err = decode(cut)
				require.Error(t, err, "%v less its last byte, seed %d", k, seed)
			}
			_, err = decode(append(frame[sizeBytes:len(frame):len(frame)], 0xc0))
			require.ErrorIs(t, err, errTrailing, "%v, seed %d", k, seed)
		}
	})
}

func FuzzDecode(f *testing.F) {
	// Whatever a frame holds, decode returns an error, or a message whose frame
	// is that very frame.
	r := newRand(1)
	for k := KindHello; k <= KindBye; k++ {
		frame, err := encode(sample(r, k))
		require.NoError(f, err)
		f.Add(frame[sizeBytes:])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < headBytes {
			return // Read refuses these by their size
		}
		m, err := decode(frame)
		if err != nil {
			return
		}
		again, err := encode(m)
		require.NoError(t, err)
		require.Equal(t, frame, again[sizeBytes:])
	})
}

func FuzzGuard(f *testing.F) {
	// What the guard lets pass is one value that the decoder can read into
	// memory of the order of its bytes; and every value that the encoder writes
	// passes, but for extensions.
	for _, b := range [][]byte{{0xdd, 4, 0, 0, 0}, {0xc6, 4, 0, 0, 0}, {0xdf, 0, 0, 0, 1, 0xc0},
		{0x92, 0xc0, 0xa1, 'x'}, {0x81, 0xa1, 'k', 0xcb, 1, 2, 3, 4, 5, 6, 7, 8}} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if guard(b) != nil {
			return
		}
		raw, err := msgpack.NewDecoder(bytes.NewReader(b)).DecodeRaw()
		require.NoError(t, err)
		require.Equal(t, len(b), len(raw))
	})
}

func TestGuardRefuses(t *testing.T) {
	// Each way in which a body may lie has its own error.
	deep := append([]byte(strings.Repeat("\x91", depthMax)), 0xc0)
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"empty":             {nil, errCut},
		"array of 64 Mi":    {[]byte{0xdd, 4, 0, 0, 0}, errTooLong},
		"map of 64 Mi":      {[]byte{0xdf, 4, 0, 0, 0}, errTooLong},
		"map of half":       {[]byte{0x82, 0xc0, 0xc0, 0xc0}, errTooLong},
		"bytes of 64 Mi":    {[]byte{0xc6, 4, 0, 0, 0}, errTooLong},
		"string of 64 Mi":   {[]byte{0xdb, 4, 0, 0, 0}, errTooLong},
		"cut length":        {[]byte{0xdd, 4, 0}, errCut},
		"cut number":        {[]byte{0xcf, 1, 2}, errTooLong},
		"as deep as may be": {deep, nil},
		"too deep":          {append([]byte{0x91}, deep...), errTooDeep},
		"trailing":          {[]byte{0xc0, 0xc0}, errTrailing},
		"reserved":          {[]byte{0xc1}, errReserved},
		"extension":         {[]byte{0xd4, 1, 2}, errExtension},
		"too many": {append([]byte{0xdd, 0, 0x20, 0, 1},
			make([]byte, itemsMax+1)...), errTooMany},
	} {
		require.ErrorIs(t, guard(c.body), c.want, name)
	}
}

func TestDecodeRefuses(t *testing.T) {
	// A body that stands for a message only if one looks away is refused.
	body := func(v any) []byte {
		b, err := encodeBody(v)
		require.NoError(t, err)
		return b
	}
	for name, c := range map[string]struct {
		kind Kind
		body []byte
		want string
	}{
		"number that wraps":   {KindApart, body([]any{uint64(1) << 33}), "is not what this build"},
		"field too many":      {KindApart, body([]any{1, 2}), "number of fields"},
		"field too few":       {KindHeartbeat, body([]any{1, 2}), "number of fields"},
		"field by name":       {KindApart, body(map[string]any{"Epoch": 1}), "is not what"},
		"unknown field":       {KindApart, body(map[string]any{"Epoc": 1}), "unknown field"},
		"long form":           {KindApart, []byte{0x91, 0xcd, 0, 1}, "is not what"},
		"string for a number": {KindApart, body([]any{"1"}), "decoding"},
		"epoch 0":             {KindApart, body([]any{0}), "epoch is 0"},
		"phase 9":             {KindReached, body(&Reached{Epoch: 1, Phase: 9}), "phase is 9"},
		"culprit 64": {KindAbort, body(&Abort{1, collective.Cause{Class: collective.Death,
			Culprits: []int{64}}}), "culprit is 64"},
		"nil":        {KindApart, []byte{0xc0}, "is not what this build"},
		"no kind":    {0, body([]any{1}), "no such message"},
		"later kind": {KindBye + 1, body([]any{1}), "no such message"},
	} {
		_, err := decode(append([]byte{Version, byte(c.kind)}, c.body...))
		require.ErrorContains(t, err, c.want, name)
	}
	_, err := decode([]byte{Version + 1, byte(KindApart), 0x91, 1})
	version := (*VersionError)(nil)
	require.ErrorAs(t, err, &version)
	require.EqualValues(t, Version+1, version.Theirs)
}

func TestWriteRefuses(t *testing.T) {
	// A message out of range never leaves: the field is named.
	ours, _ := net.Pipe()
	c := NewConn(ours)
	for want, m := range map[string]Message{
		"rank is 3":      &Hello{RunID: "r", Rank: 3, Size: 3, Cores: 1},
		"mesh entries":   &Assign{RunID: "r", Epoch: 1, Size: 2, Mesh: []string{"a"}},
		"rows is 0":      &Step{Plan: model.Plan{Epoch: 1}},
		"cause has 5000": &Bye{Cause: strings.Repeat("x", 5000)},
		"limits do not": &Assign{RunID: "r", Epoch: 1, Size: 1, Mesh: []string{"a"}, Cores: 1,
			Slots: 1, Heartbeat: 3, Dead: 5, Op: 9},
		"digests has 104": &DigestsAnswer{Digests: make([]model.Digest, DigestsMax+1)},
	} {
		require.ErrorContains(t, c.Write(m, time.Time{}), want)
	}
}

func TestConnRefusesSizes(t *testing.T) {
	// A size out of bounds is refused before anything is reserved, and a frame
	// that is cut is no message.
	for name, c := range map[string]struct {
		sent string
		want string
	}{
		"an HTTP client":  {"GET / HTTP/1.1\r\n\r\n", "1195725856 bytes claimed"},
		"a TLS client":    {"\x16\x03\x01\x02\x00\x01", "bytes claimed"},
		"no head":         {"\x00\x00\x00\x01x", "1 bytes claimed"},
		"over the limit":  {"\x00\x01\x00\x01x", "65537 bytes claimed, 2 to 65536 allowed"},
		"cut in the size": {"\x00\x00", "unexpected EOF"},
		"cut in the body": {"\x00\x00\x00\x09abc", "unexpected EOF"},
		"nothing":         {"", "EOF"},
	} {
		ours, theirs := net.Pipe()
		go func() { // ends when all is written or the test closes ours
			_, _ = theirs.Write([]byte(c.sent))
			_ = theirs.Close()
		}()
		conn := NewConn(ours)
		conn.SetFrameMax(HelloBytesMax)
		_, err := conn.Read(time.Now().Add(5 * time.Second))
		require.ErrorContains(t, err, c.want, name)
		require.NoError(t, conn.Close())
		require.NoError(t, conn.Close(), "a second Close is no error")
	}
}

func TestConnDeadline(t *testing.T) {
	// A read and a write end at their deadline.
	ours, _ := net.Pipe()
	c := NewConn(ours)
	soon := time.Now().Add(10 * time.Millisecond)
	_, err := c.Read(soon)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, c.Write(&Stop{}, soon), os.ErrDeadlineExceeded)
}

// slicer writes a few bytes at a time, as a network may.
type slicer struct{ net.Conn }

func (s slicer) Write(b []byte) (int, error) {
	for from := 0; from < len(b); from += 3 {
		if n, err := s.Conn.Write(b[from:min(from+3, len(b))]); err != nil {
			return from + n, err
		}
	}
	return len(b), nil
}

func TestConnManyWriters(t *testing.T) {
	// Messages of eight writers arrive whole, those of each writer in order.
	const writers, each = 8, 200
	ours, theirs := net.Pipe()
	out, in := NewConn(slicer{ours}), NewConn(theirs)
	deadline := time.Now().Add(20 * time.Second)
	var all sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		all.Go(func() { // ends when its messages are written or the deadline passes
			for i := range each {
				m := &DigestsAsk{ID: uint64(w), Request: uint64(i)}
				errs[w] = errors.Join(errs[w], out.Write(m, deadline))
			}
		})
	}
	next := make([]uint64, writers)
	for range writers * each {
		m, err := in.Read(deadline)
		require.NoError(t, err)
		ask := m.(*DigestsAsk)
		require.Equal(t, next[ask.ID], ask.Request)
		next[ask.ID]++
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, out.Close())
	_, err := in.Read(deadline)
	require.Equal(t, io.EOF, err)
}

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 129, 8200} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			m := &Step{Plan: model.Plan{Epoch: 1, Step: 1, Rows: make([]model.Row, n)}}
			for i := range m.Plan.Rows {
				m.Plan.Rows[i] = model.Row{Request: 7, Slot: 3, Pos: i, Token: 151643}
			}
			for b.Loop() {
				frame, err := encode(m)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := decode(frame[sizeBytes:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
