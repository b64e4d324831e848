package rank

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of a body, whatever its message: how deep containers may nest, and how
// many elements one may have. The second bounds what a length can make the
// decoder reserve, as an element in memory is larger than its least encoding.
const (
	depthMax = 16
	itemsMax = 1 << 21
)

var (
	errTooDeep   = fmt.Errorf("msgpack nests more than %d deep", depthMax)
	errTooLong   = errors.New("msgpack length claims more than the body holds")
	errCut       = errors.New("msgpack ends inside a value")
	errTooMany   = fmt.Errorf("msgpack container has more than %d values", itemsMax)
	errReserved  = errors.New("msgpack byte 0xc1 is never used")
	errTrailing  = errors.New("bytes follow the msgpack value")
	errExtension = errors.New("msgpack extension types are not part of the protocol")
)

// guard walks a body once and makes sure that it is exactly one msgpack value
// whose every length is covered by bytes that are really there. It allocates
// nothing and takes time linear in the body. The decoder of msgpack v5.4.1 must
// not see a body before: five bytes make it reserve gigabytes, and it nests as
// deep as it is told.
func guard(b []byte) error {
	rest, err := skipValue(b, depthMax)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes", errTrailing, len(rest))
	}
	return nil
}

// skipValue returns what follows the first value of b. depth is how many
// containers may still be opened.
func skipValue(b []byte, depth int) ([]byte, error) {
	if len(b) == 0 {
		return nil, errCut
	}
	c, b := b[0], b[1:]
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small number, nil, bool
		return b, nil
	case c <= 0x8f:
		return skipItems(b, 2*uint64(c&0x0f), depth)
	case c <= 0x9f:
		return skipItems(b, uint64(c&0x0f), depth)
	case c <= 0xbf:
		return skipBytes(b, uint64(c&0x1f))
	case c >= 0xc4 && c <= 0xc6: // bin 8, 16, 32
		return skipSized(b, 1<<(c-0xc4))
	case c >= 0xd9 && c <= 0xdb: // str 8, 16, 32
		return skipSized(b, 1<<(c-0xd9))
	case c == 0xca:
		return skipBytes(b, 4)
	case c == 0xcb:
		return skipBytes(b, 8)
	case c >= 0xcc && c <= 0xcf: // uint 8, 16, 32, 64
		return skipBytes(b, 1<<(c-0xcc))
	case c >= 0xd0 && c <= 0xd3: // int 8, 16, 32, 64
		return skipBytes(b, 1<<(c-0xd0))
	case c == 0xdc, c == 0xdd: // array 16, 32
		return skipCounted(b, 2<<(c-0xdc), 1, depth)
	case c == 0xde, c == 0xdf: // map 16, 32
		return skipCounted(b, 2<<(c-0xde), 2, depth)
	case c == 0xc1:
		return nil, errReserved
	}
	return nil, errExtension // 0xc7..0xc9, 0xd4..0xd8
}

// skipCounted skips a container whose count takes width bytes; each counted
// element is per values.
func skipCounted(b []byte, width int, per uint64, depth int) ([]byte, error) {
	n, b, err := length(b, width)
	if err != nil {
		return nil, err
	}
	return skipItems(b, per*n, depth)
}

// skipItems skips n values inside a container.
func skipItems(b []byte, n uint64, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, errTooDeep
	}
	if n > uint64(len(b)) { // every value takes a byte at least
		return nil, errTooLong
	}
	if n > itemsMax {
		return nil, errTooMany
	}
	var err error
	for ; n > 0; n-- {
		if b, err = skipValue(b, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// skipSized skips a string or byte string whose length takes width bytes.
func skipSized(b []byte, width int) ([]byte, error) {
	n, b, err := length(b, width)
	if err != nil {
		return nil, err
	}
	return skipBytes(b, n)
}

func skipBytes(b []byte, n uint64) ([]byte, error) {
	if n > uint64(len(b)) {
		return nil, errTooLong
	}
	return b[n:], nil
}

// length reads a big-endian length of 1, 2 or 4 bytes.
func length(b []byte, width int) (uint64, []byte, error) {
	if len(b) < width {
		return 0, nil, errCut
	}
	switch width {
	case 1:
		return uint64(b[0]), b[1:], nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), b[2:], nil
	}
	return uint64(binary.BigEndian.Uint32(b)), b[4:], nil
}
