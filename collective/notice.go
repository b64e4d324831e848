package collective

import (
	"encoding/binary"
	"fmt"
)

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
