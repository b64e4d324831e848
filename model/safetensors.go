package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"octet/internal/kernel"
)

// Names and limits of a checkpoint's files.
const (
	singleFile  = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
	headerBytes = 32 << 20 // some 200 000 tensors
	filesMax    = 4096
	rankMax     = 8 // dimensions of a tensor
)

// elementBytes is the stored size of one element of each type that a file may
// hold. Weights have to be F32, BF16 or F16; the others may only be skipped.
var elementBytes = map[string]uint64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
	"U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4,
	"U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

// storedTensor is a tensor of a file: what it is, and where its bytes are.
type storedTensor struct {
	name     string
	dtype    string
	shape    []int
	from, to int64 // bytes [from, to) of the file

	file *storedFile
}

// storedFile is an open file of a checkpoint.
type storedFile struct {
	name string // within the checkpoint's directory
	size int64
	data io.ReaderAt
}

// where names the tensor and its file for an error.
func (t *storedTensor) where() string { return fmt.Sprintf("tensor %s in %s", t.name, t.file.name) }

// kind is the type of a weight.
func (t *storedTensor) kind() (kernel.Type, error) {
	for _, k := range []kernel.Type{kernel.F32, kernel.BF16, kernel.F16} {
		if k.String() == t.dtype {
			return k, nil
		}
	}
	return 0, fmt.Errorf("%s: stored as %s: weights must be F32, BF16 or F16", t.where(), t.dtype)
}

// block reads rows [fromRow, toRow) and of each the columns [fromCol, toCol).
// A vector is a matrix of one column. No other byte is read.
func (t *storedTensor) block(fromRow, toRow, fromCol, toCol int) ([]byte, error) {
	size := int(elementBytes[t.dtype])
	cols := 1
	if len(t.shape) > 1 {
		cols = t.shape[1]
	}
	rows, run := toRow-fromRow, (toCol-fromCol)*size
	if run == cols*size { // whole rows are one run
		rows, run = 1, rows*run
	}
	out := make([]byte, rows*run)
	for i := range rows {
		at := t.from + int64((fromRow+i)*cols+fromCol)*int64(size)
		if n, err := t.file.data.ReadAt(out[i*run:(i+1)*run], at); n < run {
			return nil, fmt.Errorf("read %s at byte %d: %w", t.where(), at, bareCause(err))
		}
	}
	return out, nil
}

// checkpoint is the open files of a directory and the tensors in them.
type checkpoint struct {
	dir     string
	source  string // the file that says which tensors there are
	files   []*storedFile
	tensors map[string]*storedTensor
	opened  []*os.File
}

// openCheckpoint reads the headers of model.safetensors, or of every file that
// the index names, and holds the files open.
func openCheckpoint(dir string) (*checkpoint, error) {
	c := &checkpoint{dir: dir, source: singleFile, tensors: map[string]*storedTensor{}}
	err := c.open()
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open checkpoint %s: %w", dir, err)
	}
	return c, nil
}

func (c *checkpoint) open() error {
	err := c.add(singleFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	raw, err := readRegular(filepath.Join(c.dir, indexFile), configBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is neither %s nor %s", singleFile, indexFile)
	}
	if err != nil {
		return err
	}
	c.source = indexFile
	index, err := parseIndex(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", indexFile, err)
	}
	var names []string
	for _, name := range index {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := c.add(name); err != nil {
			return err
		}
	}
	return c.match(index)
}

// match checks that each tensor is where the index says, and no other is.
func (c *checkpoint) match(index map[string]string) error {
	for _, name := range sortedKeys(index) {
		if t := c.tensors[name]; t == nil || t.file.name != index[name] {
			return fmt.Errorf("tensor %s: %s says it is in %s, which does not hold it",
				name, indexFile, index[name])
		}
	}
	for _, name := range sortedKeys(c.tensors) {
		if _, ok := index[name]; !ok {
			return fmt.Errorf("%s: not in %s", c.tensors[name].where(), indexFile)
		}
	}
	return nil
}

// add opens one file and takes the tensors of its header.
func (c *checkpoint) add(name string) error {
	path := filepath.Join(c.dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s: %w", name, bareCause(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", name, bareCause(err))
	}
	c.opened = append(c.opened, f)
	file := &storedFile{name: name, size: info.Size(), data: f}
	c.files = append(c.files, file)
	tensors, err := readHeader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, t := range tensors {
		if twin := c.tensors[t.name]; twin != nil {
			return fmt.Errorf("%s: %s holds it, too", t.where(), twin.file.name)
		}
		c.tensors[t.name] = t
	}
	return nil
}

func (c *checkpoint) close() {
	for _, f := range c.opened {
		f.Close() // only read from
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// parseIndex returns the file of each tensor. Files stand in the directory of
// the index itself.
func parseIndex(raw []byte) (map[string]string, error) {
	index := map[string]string{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	files := map[string]bool{}
	err := eachKey(dec, func(key string) error {
		if key != "weight_map" {
			var skip json.RawMessage
			return dec.Decode(&skip)
		}
		return eachKey(dec, func(tensor string) error {
			var file string
			if err := dec.Decode(&file); err != nil {
				return err
			}
			if file == "" || filepath.Base(file) != file || file == "." || file == ".." {
				return fmt.Errorf("tensor %s is in %q: must be a file name", tensor, file)
			}
			index[tensor], files[file] = file, true
			return nil
		})
	})
	switch {
	case err != nil:
		return nil, err
	case len(index) == 0:
		return nil, errors.New("weight_map names no tensor")
	case len(files) > filesMax:
		return nil, fmt.Errorf("weight_map names %d files, limit %d", len(files), filesMax)
	}
	return index, nil
}

// readHeader reads the header of a file: its length as 8 bytes, little endian,
// then JSON, padded with spaces. The rest is data.
func readHeader(f *storedFile) ([]*storedTensor, error) {
	var head [8]byte
	if n, err := f.data.ReadAt(head[:], 0); n < len(head) {
		return nil, fmt.Errorf("read the length of its header: %w", bareCause(err))
	}
	if string(head[:]) == "version " {
		return nil, errors.New("this is a pointer of Git LFS, not the file itself")
	}
	size := binary.LittleEndian.Uint64(head[:])
	if size > headerBytes || int64(size) > f.size-8 {
		return nil, fmt.Errorf("header of %d bytes in a file of %d, limit %d", size, f.size,
			headerBytes)
	}
	raw := make([]byte, size)
	if n, err := f.data.ReadAt(raw, 8); n < len(raw) {
		return nil, fmt.Errorf("read its header: %w", bareCause(err))
	}
	tensors, err := parseHeader(raw, f.size-8-int64(size))
	for _, t := range tensors {
		t.file = f
		t.from += 8 + int64(size)
		t.to += 8 + int64(size)
	}
	return tensors, err
}

// parseHeader reads a header before size bytes of data and checks that its
// tensors tile the data: each byte belongs to exactly one. Offsets are from the
// start of the data; tensors come in their order there.
func parseHeader(raw []byte, size int64) ([]*storedTensor, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errors.New("header does not start with {")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var all []*storedTensor
	err := eachKey(dec, func(name string) error {
		if name == "__metadata__" {
			var skip map[string]string
			return dec.Decode(&skip)
		}
		t, err := parseTensor(dec, name)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		all = append(all, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("header: more than an object")
	}
	slices.SortStableFunc(all, func(a, b *storedTensor) int {
		if a.from != b.from {
			return int(min(max(a.from-b.from, -1), 1))
		}
		return int(min(max(a.to-b.to, -1), 1)) // the empty ones first
	})
	var at int64
	for _, t := range all {
		switch {
		case t.from < at:
			return nil, fmt.Errorf("tensor %s: starts at byte %d inside the one before", t.name,
				t.from)
		case t.from > at:
			return nil, fmt.Errorf("tensor %s: starts at byte %d after a hole from %d", t.name,
				t.from, at)
		case t.to > size:
			return nil, fmt.Errorf("tensor %s: ends at byte %d of %d", t.name, t.to, size)
		}
		at = t.to
	}
	if at != size {
		return nil, fmt.Errorf("%d bytes after the last tensor", size-at)
	}
	return all, nil
}

// parseTensor reads one entry of a header.
func parseTensor(dec *json.Decoder, name string) (*storedTensor, error) {
	t := &storedTensor{name: name}
	var offsets []int
	var parts int
	err := eachKey(dec, func(key string) (err error) {
		parts++
		switch key {
		case "dtype":
			err = dec.Decode(&t.dtype)
		case "shape":
			t.shape, err = wholeNumbers(dec)
		case "data_offsets":
			offsets, err = wholeNumbers(dec)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case parts != 3:
		return nil, errors.New("dtype, shape and data_offsets are wanted")
	case len(t.shape) > rankMax:
		return nil, fmt.Errorf("%d dimensions, limit %d", len(t.shape), rankMax)
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return nil, fmt.Errorf("data_offsets %v are not a range", offsets)
	}
	t.from, t.to = int64(offsets[0]), int64(offsets[1])
	size, err := t.bytes()
	if err == nil && size != uint64(t.to-t.from) {
		err = fmt.Errorf("%s %v is %d bytes, data_offsets have %d", t.dtype, t.shape, size,
			t.to-t.from)
	}
	return t, err
}

// bytes is the size that type and shape call for.
func (t *storedTensor) bytes() (uint64, error) {
	size, ok := elementBytes[t.dtype]
	if !ok {
		return 0, fmt.Errorf("dtype %q is unknown", t.dtype)
	}
	for _, n := range t.shape {
		high, low := bits.Mul64(size, uint64(n))
		if high != 0 || low>>62 != 0 {
			return 0, fmt.Errorf("shape %v overflows", t.shape)
		}
		size = low
	}
	return size, nil
}

// wholeNumbers reads a list of numbers from 0, none of them written otherwise
// than as digits.
func wholeNumbers(dec *json.Decoder) ([]int, error) {
	var list []any
	if err := dec.Decode(&list); err != nil {
		return nil, err
	}
	if list == nil {
		return nil, errors.New("a list is wanted")
	}
	out := make([]int, len(list))
	for i, v := range list {
		digits, _ := v.(json.Number)
		n, err := strconv.ParseUint(string(digits), 10, 62)
		if err != nil {
			return nil, fmt.Errorf("%v is not a whole number from 0", v)
		}
		out[i] = int(n)
	}
	return out, nil
}

// eachKey reads an object and calls value for each of its keys, with dec before
// the value, which it has to read. A key that comes twice is refused: readers
// do not agree which of the two counts.
func eachKey(dec *json.Decoder, value func(key string) error) error {
	open, err := dec.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('{') {
		return errors.New("an object is wanted")
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if seen[key] {
			return fmt.Errorf("key %q comes twice", key)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
