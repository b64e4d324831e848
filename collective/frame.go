package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// BodyBytesMax bounds the body of a frame. The schedules here stay below
// chunkBytes.
const BodyBytesMax = 256 << 10

const (
	frameMagic = 0x3154434f // "OCT1" in little endian

	kindDescriptor = 1
	kindData       = 2

	flagBodySummed = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is a frame's head. The package comment has its layout.
type header struct {
	kind     uint8
	summed   bool // the checksum covers the body
	from, to uint8
	run      uint64
	epoch    uint32
	comm     uint32
	seq      uint64
	count    uint64 // elements; of a data frame its number
	plan     uint64
	verb     Verb
	src, dst DataType
	op       ReduceOp
	root     uint8
	mode     CommMode
	purpose  Purpose
	size     uint32
}

// encode writes the head to b, HeadBytes long. body is the checksum of the body
// when h.summed, else 0.
func (h header) encode(b []byte, body uint32) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	b[4], b[5], b[6], b[7] = h.kind, 0, h.from, h.to
	if h.summed {
		b[5] = flagBodySummed
	}
	le.PutUint64(b[8:], h.run)
	le.PutUint32(b[16:], h.epoch)
	le.PutUint32(b[20:], h.comm)
	le.PutUint64(b[24:], h.seq)
	le.PutUint64(b[32:], h.count)
	le.PutUint64(b[40:], h.plan)
	b[48], b[49], b[50], b[51] = uint8(h.verb), uint8(h.src), uint8(h.dst), uint8(h.op)
	b[52], b[53], b[54], b[55] = h.root, uint8(h.mode), uint8(h.purpose), 0
	le.PutUint32(b[56:], h.size)
	le.PutUint32(b[60:], crc32.Update(body, castagnoli, b[:60]))
}

// decode reads a head and checks its checksum, continued from the body that
// came with it. It refuses what no encode writes.
func decode(b, body []byte) (header, error) {
	le := binary.LittleEndian
	if len(b) != HeadBytes {
		return header{}, fmt.Errorf("head of %d bytes, want %d", len(b), HeadBytes)
	}
	if m := le.Uint32(b[0:]); m != frameMagic {
		return header{}, fmt.Errorf("magic %08x, want %08x", m, frameMagic)
	}
	h := header{
		kind: b[4], summed: b[5] == flagBodySummed, from: b[6], to: b[7],
		run: le.Uint64(b[8:]), epoch: le.Uint32(b[16:]), comm: le.Uint32(b[20:]),
		seq: le.Uint64(b[24:]), count: le.Uint64(b[32:]), plan: le.Uint64(b[40:]),
		verb: Verb(b[48]), src: DataType(b[49]), dst: DataType(b[50]), op: ReduceOp(b[51]),
		root: b[52], mode: CommMode(b[53]), purpose: Purpose(b[54]),
		size: le.Uint32(b[56:]),
	}
	switch {
	case h.kind != kindDescriptor && h.kind != kindData:
		return header{}, fmt.Errorf("kind %d does not exist", h.kind)
	case b[5]&^flagBodySummed != 0 || b[55] != 0:
		return header{}, errors.New("reserved bits are set")
	case h.size > BodyBytesMax:
		return header{}, fmt.Errorf("body of %d bytes, at most %d", h.size, BodyBytesMax)
	case int(h.size) != len(body):
		return header{}, fmt.Errorf("body of %d bytes, want %d", h.size, len(body))
	}
	sum := uint32(0)
	if h.summed {
		sum = bodySum(body)
	}
	want := crc32.Update(sum, castagnoli, b[:60])
	if got := le.Uint32(b[60:]); got != want {
		return header{}, fmt.Errorf("checksum %08x, want %08x", got, want)
	}
	return h, nil
}

// bodySum is the checksum of a body; it may serve frames to many peers.
func bodySum(body []byte) uint32 { return crc32.Checksum(body, castagnoli) }

// NoticeBytesMax bounds an encoded notice: a longer Detail is cut.
const NoticeBytesMax = 2048

// noticeHeadBytes is the part of a notice before culprits and detail.
const noticeHeadBytes = 28

// AppendNotice appends n to b, for lanes that are streams of bytes. The length
// of a notice is not in it. It is, little endian,
//
//	kind uint8, class uint8, verb uint8, culprits uint8 // how many
//	epoch uint32, seq uint64                             // of the notice
//	cause epoch uint32, cause seq uint64
//	informer uint8 after culprits [culprits]uint8
//	detail, the rest
func AppendNotice(b []byte, n Notice) []byte {
	le := binary.LittleEndian
	start, c := len(b), n.Cause
	b = append(b, uint8(n.Kind), uint8(c.Class), uint8(c.Verb), uint8(len(c.Culprits)))
	b = le.AppendUint32(b, n.Epoch)
	b = le.AppendUint64(b, n.Seq)
	b = le.AppendUint32(b, c.Epoch)
	b = le.AppendUint64(b, c.Seq)
	for _, r := range c.Culprits {
		b = append(b, uint8(r))
	}
	b = append(b, uint8(c.Informer))
	room := NoticeBytesMax - (len(b) - start)
	return append(b, c.Detail[:min(len(c.Detail), room)]...)
}

// ParseNotice reads what AppendNotice wrote.
func ParseNotice(b []byte) (Notice, error) {
	le := binary.LittleEndian
	if len(b) <= noticeHeadBytes || len(b) > NoticeBytesMax {
		return Notice{}, fmt.Errorf("notice of %d bytes, want %d to %d",
			len(b), noticeHeadBytes+1, NoticeBytesMax)
	}
	n := Notice{Kind: NoticeKind(b[0]), Epoch: le.Uint32(b[4:]), Seq: le.Uint64(b[8:])}
	n.Cause = Cause{Class: Class(b[1]), Verb: Verb(b[2]),
		Epoch: le.Uint32(b[16:]), Seq: le.Uint64(b[20:])}
	culprits, rest := int(b[3]), b[noticeHeadBytes:]
	switch {
	case n.Kind < Heartbeat || n.Kind > Bye:
		return Notice{}, fmt.Errorf("notice of kind %d, which does not exist", n.Kind)
	case n.Cause.Class > Aborted:
		return Notice{}, fmt.Errorf("notice with class %d, which does not exist", n.Cause.Class)
	case culprits > SizeMax || culprits+1 > len(rest):
		return Notice{}, fmt.Errorf("notice with %d culprits in %d bytes", culprits, len(rest))
	}
	for _, r := range rest[:culprits] {
		if r >= SizeMax {
			return Notice{}, fmt.Errorf("notice with culprit %d, at most %d", r, SizeMax-1)
		}
		n.Cause.Culprits = append(n.Cause.Culprits, int(r))
	}
	n.Cause.Informer = int(rest[culprits])
	n.Cause.Detail = string(rest[culprits+1:])
	return n, nil
}
