package collective

import (
	"errors"
	"fmt"
	"unsafe"
)

// Buffer is a typed view of the caller's memory, little endian. Making one
// copies nothing. A verb reads or writes it until it returns; then it is the
// caller's again. After an error the content of a destination is undefined.
type Buffer struct {
	Type DataType
	Data []byte
}

// Float32s returns a view of x.
func Float32s(x []float32) Buffer {
	start := (*byte)(unsafe.Pointer(unsafe.SliceData(x)))
	return Buffer{Type: FP32, Data: unsafe.Slice(start, 4*len(x))}
}

// Uint16s returns a view of x as elements of type t, which is BFP16, FP16,
// INT16 or UINT16.
func Uint16s(t DataType, x []uint16) Buffer {
	start := (*byte)(unsafe.Pointer(unsafe.SliceData(x)))
	return Buffer{Type: t, Data: unsafe.Slice(start, 2*len(x))}
}

// Bytes returns a view of x as elements of type t.
func Bytes(t DataType, x []byte) Buffer { return Buffer{Type: t, Data: x} }

// Count is the number of whole elements.
func (b Buffer) Count() int {
	if b.Type.Size() == 0 {
		return 0
	}
	return len(b.Data) / b.Type.Size()
}

// slice returns elements [from, to).
func (b Buffer) slice(from, to int) Buffer {
	n := b.Type.Size()
	return Buffer{Type: b.Type, Data: b.Data[from*n : to*n : to*n]}
}

// floats returns b, which is FP32 and aligned, as float32.
func (b Buffer) floats() []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b.Data))), len(b.Data)/4)
}

// check refuses a view that cannot hold elements of its type: an unknown type,
// a torn last element, or a misaligned start. The error names the buffer.
func (b Buffer) check(who string) error {
	size := b.Type.Size()
	switch {
	case size == 0:
		return fmt.Errorf("%s: data type %v does not exist", who, b.Type)
	case len(b.Data)%size != 0:
		return fmt.Errorf("%s: %d bytes are not whole elements of %v (%d bytes)",
			who, len(b.Data), b.Type, size)
	case len(b.Data) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b.Data)))%uintptr(size) != 0:
		return fmt.Errorf("%s: start is not aligned to %d bytes of %v", who, size, b.Type)
	}
	return nil
}

// checkCount refuses a view that does not hold exactly n elements.
func (b Buffer) checkCount(who string, n int) error {
	if err := b.check(who); err != nil {
		return err
	}
	if b.Count() != n {
		return fmt.Errorf("%s: %d elements, want %d", who, b.Count(), n)
	}
	return nil
}

// checkOverlap refuses memory that dst and src share, unless they are exactly
// in place: a, the part of one that may coincide with b, the other, does so, with
// the same start, length and type.
func checkOverlap(dst, src, a, b Buffer) error {
	if !overlap(dst.Data, src.Data) || (a.Type == b.Type && same(a.Data, b.Data)) {
		return nil
	}
	return errors.New("dst and src overlap but are not exactly in place")
}

// overlap reports whether a and b share a byte.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	x := uintptr(unsafe.Pointer(unsafe.SliceData(a)))
	y := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

// same reports whether a and b are the same memory.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || unsafe.SliceData(a) == unsafe.SliceData(b))
}
