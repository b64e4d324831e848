package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode"
)

const (
	helloMagic  = 0x5043544f // "OTCP"
	answerMagic = 0x4143544f // "OTCA"
	version     = 1

	prefixBytes = 8 // of a hello: enough to tell a peer from a stranger
	helloBytes  = 52
	answerBytes = 8 + helloBytes // without the reason
	reasonMax   = 255
)

// purpose is what a connection is for.
type purpose uint8

const (
	forData purpose = iota + 1
	forLane
)

func (p purpose) String() string {
	switch p {
	case forData:
		return "data"
	case forLane:
		return "lane"
	}
	return fmt.Sprintf("purpose %d", uint8(p))
}

// code is the gist of an answer.
type code uint8

const (
	accepted code = iota + 1
	notYet
	refused
)

// hello is what both sides of a connection say of themselves.
type hello struct {
	run      runKey
	epoch    uint32
	size     uint16
	from, to uint16
	purpose  purpose
	instance uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// append writes h behind b.
func (h hello) append(b []byte) []byte {
	le, start := binary.LittleEndian, len(b)
	b = le.AppendUint32(b, helloMagic)
	b = le.AppendUint16(b, version)
	b = le.AppendUint16(b, helloBytes)
	b = append(b, h.run[:]...)
	b = le.AppendUint32(b, h.epoch)
	b = le.AppendUint16(b, h.size)
	b = le.AppendUint16(b, h.from)
	b = le.AppendUint16(b, h.to)
	b = append(b, byte(h.purpose), 0, 0, 0, 0, 0)
	b = le.AppendUint64(b, h.instance)
	return le.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// checkPrefix says why the first prefixBytes of a hello are not ours.
func checkPrefix(b []byte) error {
	le := binary.LittleEndian
	switch {
	case le.Uint32(b) != helloMagic:
		return fmt.Errorf("magic %q, want %q", b[:4], "OTCP")
	case le.Uint16(b[4:]) != version:
		return fmt.Errorf("protocol version %d, want %d", le.Uint16(b[4:]), version)
	case le.Uint16(b[6:]) != helloBytes:
		return fmt.Errorf("hello of %d bytes, want %d", le.Uint16(b[6:]), helloBytes)
	}
	return nil
}

// parseHello reads what append wrote; b has helloBytes bytes.
func parseHello(b []byte) (h hello, err error) {
	if err := checkPrefix(b); err != nil {
		return h, err
	}
	le := binary.LittleEndian
	if got, want := le.Uint32(b[48:]), crc32.Checksum(b[:48], castagnoli); got != want {
		return h, fmt.Errorf("hello with checksum %08x, want %08x", got, want)
	}
	if !bytes.Equal(b[35:40], make([]byte, 5)) {
		return h, fmt.Errorf("hello with reserved bytes % x, want zero", b[35:40])
	}
	h = hello{epoch: le.Uint32(b[24:]), size: le.Uint16(b[28:]), from: le.Uint16(b[30:]),
		to: le.Uint16(b[32:]), purpose: purpose(b[34]), instance: le.Uint64(b[40:])}
	copy(h.run[:], b[8:])
	if h.purpose != forData && h.purpose != forLane {
		return h, fmt.Errorf("%v, want data or lane", h.purpose)
	}
	return h, nil
}

// readHello reads a hello and not a byte more. A stranger is known by the first
// prefixBytes.
func readHello(r io.Reader) (hello, error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:prefixBytes]); err != nil {
		return hello{}, fmt.Errorf("no hello: %w", err)
	}
	if err := checkPrefix(b[:]); err != nil {
		return hello{}, err
	}
	if _, err := io.ReadFull(r, b[prefixBytes:]); err != nil {
		return hello{}, fmt.Errorf("half a hello: %w", err)
	}
	return parseHello(b[:])
}

// answer is what the acceptor says to a hello.
type answer struct {
	code   code
	hello  hello // of the acceptor; zero unless it accepts
	reason string
}

// append writes a behind b; a longer reason is cut.
func (a answer) append(b []byte) []byte {
	reason := a.reason[:min(len(a.reason), reasonMax)]
	b = binary.LittleEndian.AppendUint32(b, answerMagic)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = append(b, byte(a.code), byte(len(reason)))
	b = a.hello.append(b)
	return append(b, reason...)
}

// foreignError is an answer that no rank of ours gives.
type foreignError struct{ what string }

func (e *foreignError) Error() string { return e.what }

// readAnswer reads an answer. Its error is a *foreignError when the other side
// is not one of ours, and otherwise the network's.
func readAnswer(r io.Reader) (a answer, err error) {
	var b [answerBytes]byte
	le := binary.LittleEndian
	if _, err := io.ReadFull(r, b[:8]); err != nil {
		return a, fmt.Errorf("no answer: %w", err)
	}
	a.code = code(b[6])
	switch {
	case le.Uint32(b[:]) != answerMagic:
		return a, &foreignError{fmt.Sprintf("answer with magic %q, want %q", b[:4], "OTCA")}
	case le.Uint16(b[4:]) != version:
		return a, &foreignError{fmt.Sprintf("answer of protocol version %d, want %d",
			le.Uint16(b[4:]), version)}
	case a.code < accepted || a.code > refused:
		return a, &foreignError{fmt.Sprintf("answer with code %d", a.code)}
	}
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return a, fmt.Errorf("half an answer: %w", err)
	}
	reason := make([]byte, b[7])
	if _, err := io.ReadFull(r, reason); err != nil {
		return a, fmt.Errorf("half an answer: %w", err)
	}
	a.reason = printable(string(reason))
	if a.code != accepted {
		return a, nil
	}
	if a.hello, err = parseHello(b[8:]); err != nil {
		return a, &foreignError{"answer: " + err.Error()}
	}
	return a, nil
}

// printable replaces what a terminal might take for a command.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func (k runKey) String() string { return printable(strings.TrimRight(string(k[:]), "\x00")) }
