package collective

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func sample() header {
	return header{kind: kindData, from: 3, to: 63, run: 0x0123456789abcdef, epoch: 7, comm: 2,
		seq: 1 << 40, count: 99, plan: 0xfeed, verb: MatmulReduceScatter, src: FP32, dst: BFP16,
		op: MIN, root: 5, mode: AIV, purpose: Head}
}

// A head lies in memory as the table in the package comment says.
func TestFrameLayout(t *testing.T) {
	h := sample()
	h.size = 0x00030201
	b := make([]byte, HeadBytes)
	h.encode(b, 0)
	want := []byte{'O', 'C', 'T', '1', 2, 0, 3, 63,
		0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 7, 0, 0, 0, 2, 0, 0, 0,
		0, 0, 0, 0, 0, 1, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0xed, 0xfe, 0, 0, 0, 0, 0, 0,
		200, 4, 11, 3, 5, 1, 3, 0, 1, 2, 3, 0}
	require.Equal(t, want, b[:60])
}

// What encode writes decode reads, and any flipped bit of the head is found;
// of the body too when the checksum covers it.
func FuzzFrame(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint8(3), []byte("body"), uint16(77), true)
	f.Add(uint64(0), uint64(1)<<63, uint8(63), []byte{}, uint16(0), false)
	f.Fuzz(func(t *testing.T, seq, count uint64, from uint8, body []byte, flip uint16, summed bool) {
		if len(body) > BodyBytesMax {
			return
		}
		h := sample()
		h.seq, h.count, h.from, h.size, h.summed = seq, count, from, uint32(len(body)), summed
		b := make([]byte, HeadBytes)
		sum := uint32(0)
		if summed {
			sum = bodySum(body)
		}
		h.encode(b, sum)
		got, err := decode(b, body)
		require.NoError(t, err)
		require.Equal(t, h, got)

		bit := int(flip) % (8 * HeadBytes)
		b[bit/8] ^= 1 << (bit % 8)
		_, err = decode(b, body)
		require.Error(t, err, "bit %d", bit)
		b[bit/8] ^= 1 << (bit % 8)
		if len(body) > 0 && summed {
			bit = int(flip) % (8 * len(body))
			body = bytes.Clone(body)
			body[bit/8] ^= 1 << (bit % 8)
			_, err = decode(b, body)
			require.ErrorContains(t, err, "checksum", "bit %d", bit)
		}
	})
}

// No bytes make decode panic, and what it accepts it would write.
func FuzzDecode(f *testing.F) {
	b := make([]byte, HeadBytes)
	sample().encode(b, 0)
	f.Add(b, []byte{})
	f.Fuzz(func(t *testing.T, b, body []byte) {
		h, err := decode(b, body)
		if err != nil {
			return
		}
		sum := uint32(0)
		if h.summed {
			sum = bodySum(body)
		}
		again := make([]byte, HeadBytes)
		h.encode(again, sum)
		require.Equal(t, b, again)
	})
}

// A length beyond the limit is refused before anything is done with it.
func TestDecodeBoundsLength(t *testing.T) {
	h := sample()
	h.size = BodyBytesMax + 1
	b := make([]byte, HeadBytes)
	h.encode(b, 0)
	_, err := decode(b, nil)
	require.ErrorContains(t, err, "body of 262145 bytes, at most 262144")
}

// What AppendNotice writes ParseNotice reads; a long detail is cut.
func FuzzNotice(f *testing.F) {
	f.Add(uint8(2), uint8(1), uint32(4), uint64(9), []byte{1, 2}, "lane ended")
	f.Fuzz(func(t *testing.T, kind, class uint8, epoch uint32, seq uint64, who []byte, detail string) {
		n := Notice{Kind: NoticeKind(kind%3 + 1), Epoch: epoch, Seq: seq}
		n.Cause = Cause{Class: Class(class) % (Aborted + 1), Epoch: epoch + 1, Seq: seq + 1,
			Verb: Gather, Informer: 5, Detail: detail[:min(len(detail), 1500)]}
		for _, r := range who[:min(len(who), SizeMax)] {
			n.Cause.Culprits = append(n.Cause.Culprits, int(r%SizeMax))
		}
		b := AppendNotice([]byte("before"), n)[6:]
		got, err := ParseNotice(b)
		require.NoError(t, err)
		require.Equal(t, n, got)

		n.Cause.Detail = detail + string(make([]byte, NoticeBytesMax))
		require.Len(t, AppendNotice(nil, n), NoticeBytesMax)
		for cut := range min(len(b), 100) {
			if got, err := ParseNotice(b[:cut]); err == nil {
				require.Equal(t, n.Kind, got.Kind) // only the detail may be shorter
			}
		}
	})
}

// No bytes make ParseNotice panic.
func FuzzParseNotice(f *testing.F) {
	f.Add(AppendNotice(nil, Notice{Kind: Bye}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := ParseNotice(b); err == nil {
			require.Equal(t, b, AppendNotice(nil, n))
		}
	})
}
