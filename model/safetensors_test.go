package model

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// headerOf is a header with the given entries, each `"name":{...}`.
func headerOf(entries ...string) string { return "{" + strings.Join(entries, ",") + "}" }

// entryOf is one entry of a header.
func entryOf(name, dtype, shape string, from, to int) string {
	return fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape,
		from, to)
}

func TestHeadersThatTileTheDataAreRead(t *testing.T) {
	for name, header := range map[string]string{
		"none":       `{}`,
		"metadata":   `{"__metadata__":{"format":"pt"}}`,
		"padded":     "{}   \n ",
		"one":        headerOf(entryOf("a", "F32", "[2,1]", 0, 8)),
		"not sorted": headerOf(entryOf("b", "BF16", "[2]", 4, 8), entryOf("a", "F32", "[]", 0, 4)),
		"empty": headerOf(entryOf("e", "F16", "[0,7]", 4, 4), entryOf("a", "F32", "[1]", 0,
			4)),
		"skipped":   headerOf(entryOf("a", "I64", "[1]", 0, 8), entryOf("b", "U8", "[3]", 8, 11)),
		"key order": `{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}`,
	} {
		size := map[string]int64{"one": 8, "not sorted": 8, "empty": 4, "skipped": 11,
			"key order": 4}[name]
		got, err := parseHeader([]byte(header), size)
		require.NoError(t, err, name)
		inOrder := func(a, b *storedTensor) int { return int(a.from - b.from) }
		require.True(t, slices.IsSortedFunc(got, inOrder))
	}
}

func TestHostileHeadersAreRefused(t *testing.T) {
	a := entryOf("a", "F32", "[1]", 0, 4)
	for name, c := range map[string]struct {
		header string
		want   string
	}{
		"not JSON":       {`x`, "does not start with {"},
		"nothing":        {``, "does not start with {"},
		"leading space":  {` {}`, "does not start with {"},
		"cut off":        {`{"a":`, "EOF"},
		"two objects":    {headerOf(a) + "{}", "more than an object"},
		"rubbish after":  {headerOf(a) + "x", "more than an object"},
		"duplicate name": {headerOf(a, a), `key "a" comes twice`},
		"duplicate escaped": {headerOf(a, strings.Replace(a, `"a"`, `"\u0061"`, 1)),
			`key "a" comes twice`},
		"duplicate field": {`{"a":{"dtype":"F32","dtype":"F32","data_offsets":[0,4]}}`,
			`key "dtype" comes twice`},
		"field missing": {`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, "wanted"},
		"field unknown": {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}`,
			"x: unknown"},
		"field in capitals": {`{"a":{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}}`,
			"DTYPE: unknown"},
		"entry no object":    {`{"a":[1]}`, "an object is wanted"},
		"metadata no object": {`{"__metadata__":3}`, "header"},
		"metadata numbers":   {`{"__metadata__":{"a":3}}`, "header"},
		"dtype unknown": {headerOf(entryOf("a", "F31", "[1]", 0, 4)),
			`dtype "F31" is unknown`},
		"dtype null": {`{"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}}`,
			`dtype "" is unknown`},
		"shape negative": {headerOf(entryOf("a", "F32", "[-1]", 0, 4)),
			"-1 is not a whole number"},
		"shape fraction": {headerOf(entryOf("a", "F32", "[1.0]", 0, 4)),
			"1.0 is not a whole number"},
		"shape exponent": {headerOf(entryOf("a", "F32", "[1e0]", 0, 4)),
			"1e0 is not a whole number"},
		"shape text": {headerOf(entryOf("a", "F32", `["1"]`, 0, 4)),
			"1 is not a whole number"},
		"shape null": {headerOf(entryOf("a", "F32", "null", 0, 4)), "a list is wanted"},
		"shape holds null": {headerOf(entryOf("a", "F32", "[null]", 0, 4)),
			"is not a whole number"},
		"shape huge": {headerOf(entryOf("a", "F32", "[99999999999999999999]", 0, 4)),
			"is not a whole number"},
		"shape overflows": {headerOf(entryOf("a", "F32", "[4294967296,4294967296]", 0, 0)),
			"overflows"},
		"shape wraps to 4": {headerOf(entryOf("a", "F32", "[4611686018427387903,4]", 0, 4)),
			"overflows"},
		"many dimensions": {headerOf(entryOf("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4)),
			"9 dimensions"},
		"size too small": {headerOf(entryOf("a", "F32", "[2]", 0, 4)),
			"is 8 bytes, data_offsets have 4"},
		"size too large": {headerOf(entryOf("a", "F16", "[1]", 0, 4)),
			"is 2 bytes, data_offsets have 4"},
		"offsets swapped": {headerOf(entryOf("a", "F32", "[1]", 4, 0)), "are not a range"},
		"offsets negative": {headerOf(entryOf("a", "F32", "[1]", -4, 0)),
			"is not a whole number"},
		"offsets one": {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}}`,
			"are not a range"},
		"deep": {`{"a":` + strings.Repeat("[", 20000), "header"},
	} {
		_, err := parseHeader([]byte(c.header), 4)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestTensorsMustTileTheData(t *testing.T) {
	a := entryOf("a", "F32", "[1]", 0, 4)
	for name, c := range map[string]struct {
		header string
		want   string
	}{
		"overlap": {headerOf(a, entryOf("b", "F16", "[1]", 2, 4)),
			"b: starts at byte 2 inside"},
		"same bytes": {headerOf(a, entryOf("b", "F32", "[1]", 0, 4)),
			"b: starts at byte 0 inside"},
		"hole": {headerOf(entryOf("a", "F16", "[1]", 0, 2), entryOf("b", "U8", "[1]",
			3, 4)), "after a hole from 2"},
		"hole at the start": {headerOf(entryOf("a", "F16", "[1]", 2, 4)), "after a hole from 0"},
		"past the end":      {headerOf(entryOf("a", "F32", "[2]", 0, 8)), "ends at byte 8 of 4"},
		"trailing bytes": {headerOf(entryOf("a", "F16", "[1]", 0, 2)),
			"2 bytes after the last tensor"},
		"all trailing": {`{}`, "4 bytes after the last tensor"},
	} {
		_, err := parseHeader([]byte(c.header), 4)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestHeaderLengthIsBoundedByTheFile(t *testing.T) {
	length := func(n uint64, rest string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":        {nil, "length of its header: EOF"},
		"seven bytes":  {make([]byte, 7), "length of its header: EOF"},
		"length 0":     {length(0, ""), "does not start with {"},
		"past the end": {length(3, "{}"), "header of 3 bytes in a file of 10"},
		"huge":         {length(1<<40, "{}"), "header of 1099511627776 bytes"},
		"all bits":     {length(1<<64-1, "{}"), "header of 18446744073709551615 bytes"},
		"pointer of LFS": {[]byte("version https://git-lfs.github.com/spec/v1\n"),
			"pointer of Git LFS"},
		"cut after header": {storeHeader(headerOf(entryOf("a", "F32", "[2]", 0, 8)), make([]byte,
			7)),
			"ends at byte 8 of 7"},
	} {
		f := &storedFile{name: "x", size: int64(len(c.file)), data: bytes.NewReader(c.file)}
		_, err := readHeader(f)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestOnlyTheWantedBytesAreRead(t *testing.T) {
	// A block of the middle columns of the middle rows, from a reader that notes
	// what is asked of it.
	const rows, cols = 5, 7
	tensor := randomMatrix(rows, cols)
	file := storeTensors([]fixtureTensor{randomMatrix(3, 1), tensor})
	notes := &notingReader{data: file}
	f := &storedFile{name: "x", size: int64(len(file)), data: notes}
	all, err := readHeader(f)
	require.NoError(t, err)
	last := all[1]
	notes.ranges = nil
	raw, err := last.block(1, 4, 2, 5)
	require.NoError(t, err)
	require.Len(t, raw, 3*3*4)
	var want [][2]int64
	for r := int64(1); r < 4; r++ {
		at := last.from + (r*cols+2)*4
		want = append(want, [2]int64{at, at + 12})
	}
	require.Equal(t, want, notes.ranges)
	notes.ranges = nil
	_, err = last.block(1, 4, 0, cols)
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{last.from + cols*4, last.from + 4*cols*4}}, notes.ranges,
		"whole rows in one read")
}

func randomMatrix(rows, cols int) fixtureTensor {
	t := fixtureTensor{fmt.Sprintf("m%d", rows), "F32", []int{rows, cols}, make([]float32,
		rows*cols)}
	for i := range t.values {
		t.values[i] = float32(i)
	}
	return t
}

// notingReader is a ReaderAt that notes the ranges.
type notingReader struct {
	data   []byte
	ranges [][2]int64
}

func (r *notingReader) ReadAt(p []byte, at int64) (int, error) {
	r.ranges = append(r.ranges, [2]int64{at, at + int64(len(p))})
	return bytes.NewReader(r.data).ReadAt(p, at)
}

func TestAHostileIndexIsRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{`, "EOF"},
		{`[]`, "an object is wanted"},
		{`{"metadata":{}}`, "weight_map names no tensor"},
		{`{"weight_map":{}}`, "weight_map names no tensor"},
		{`{"weight_map":{"a":"x","a":"y"}}`, `key "a" comes twice`},
		{`{"weight_map":{"a":3}}`, "number"},
		{`{"weight_map":{"a":""}}`, "must be a file name"},
		{`{"weight_map":{"a":"../x"}}`, "must be a file name"},
		{`{"weight_map":{"a":"/etc/passwd"}}`, "must be a file name"},
		{`{"weight_map":{"a":"sub/x"}}`, "must be a file name"},
		{`{"weight_map":{"a":".."}}`, "must be a file name"},
	} {
		_, err := parseIndex([]byte(c.text))
		require.ErrorContains(t, err, c.want, c.text)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte(headerOf(entryOf("a", "F32", "[1]", 0, 4), entryOf("b", "BF16", "[2,1]", 4, 8))),
		int64(8))
	f.Add([]byte(headerOf(`"__metadata__":{"a":"b"}`, entryOf("x", "U8", "[0]", 0, 0))+" "),
		int64(0))
	f.Add([]byte(`{"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,8]}}`),
		int64(8))
	f.Fuzz(func(t *testing.T, raw []byte, size int64) {
		tensors, err := parseHeader(raw, size)
		if err != nil {
			return
		}
		// What is believed tiles the data, and each shape fits its bytes.
		var at int64
		names := map[string]bool{}
		for _, tensor := range tensors {
			require.Equal(t, at, tensor.from)
			count := int64(1)
			for _, n := range tensor.shape {
				count *= int64(n)
			}
			require.Equal(t, tensor.to-tensor.from, count*int64(elementBytes[tensor.dtype]))
			require.False(t, names[tensor.name])
			names[tensor.name] = true
			at = tensor.to
		}
		require.Equal(t, size, at)
	})
}
