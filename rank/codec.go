package rank

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

var errNotOurs = errors.New("is not what this build would write")

// encode is the whole frame of a message, its size included.
func encode(m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("write %v: %w", m.Kind(), err)
	}
	frame := append(make([]byte, sizeBytes, 256), Version, byte(m.Kind()))
	body, err := encodeBody(m)
	if err != nil {
		return nil, fmt.Errorf("write %v: %w", m.Kind(), err)
	}
	frame = append(frame, body...)
	size := len(frame) - sizeBytes
	if size > FrameBytesMax {
		return nil, fmt.Errorf("write %v: %d bytes, at most %d allowed",
			m.Kind(), size, FrameBytesMax)
	}
	binary.BigEndian.PutUint32(frame, uint32(size))
	return frame, nil
}

// decode is the message of a frame, without its size. It believes nothing: see
// the package comment for what is refused.
func decode(frame []byte) (Message, error) {
	if frame[0] != Version {
		return nil, &VersionError{Theirs: frame[0], Ours: Version}
	}
	kind, body := Kind(frame[1]), frame[headBytes:]
	m := blank(kind)
	if m == nil {
		return nil, fmt.Errorf("read %v: no such message", kind)
	}
	if err := guard(body); err != nil {
		return nil, fmt.Errorf("read %v: %w", kind, err)
	}
	if err := decodeBody(body, m); err != nil {
		return nil, fmt.Errorf("read %v: %w", kind, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("read %v: %w", kind, err)
	}
	return m, nil
}

// encodeBody writes a value so that equal values give equal bytes: structs as
// arrays, numbers as short as they go, map keys sorted.
func encodeBody(v any) ([]byte, error) {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseArrayEncodedStructs(true)
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decodeBody reads a guarded body into m. The decoder drops what it does not
// know and wraps numbers that do not fit without a word; writing the result
// again and comparing shows every such loss.
func decodeBody(body []byte, m Message) error {
	d := msgpack.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields(true)
	if err := d.Decode(m); err != nil {
		return err
	}
	again, err := encodeBody(m)
	if err != nil {
		return err
	}
	if !bytes.Equal(body, again) {
		return fmt.Errorf("body of %d bytes %w (%d bytes)", len(body), errNotOurs, len(again))
	}
	return nil
}
