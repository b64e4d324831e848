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
