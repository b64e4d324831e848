package model

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"path/filepath"
)

// fingerprintSample is how many bytes at each end of a tensor count.
const fingerprintSample = 4096

// Fingerprint is three short hashes of the checkpoint in dir, by which ranks
// that were given different ones notice before they load:
//
//   - config: config.json and generation_config.json, byte for byte;
//   - tokenizer: tokenizer.json and tokenizer_config.json, byte for byte;
//   - weights: the names and sizes of the files, each tensor's name, type, shape
//     and file, and the first and last 4 KiB of its bytes.
//
// The hash of the weights is a sample, not a proof: two checkpoints that differ
// only in the middle of large tensors have the same one.
func Fingerprint(dir string) (map[string]string, error) {
	out := map[string]string{}
	for key, names := range map[string][]string{
		"config":    {"config.json", "generation_config.json"},
		"tokenizer": {tokenizerFile, "tokenizer_config.json"},
	} {
		h := sha256.New()
		for _, name := range names {
			raw, err := readRegular(filepath.Join(dir, name), tokenizerBytes)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			fmt.Fprintf(h, "%s %d %v\n", name, len(raw), err == nil)
			h.Write(raw)
		}
		out[key] = shortHash(h)
	}
	weights, err := fingerprintWeights(dir)
	out["weights"] = weights
	return out, err
}

func fingerprintWeights(dir string) (string, error) {
	c, err := openCheckpoint(dir)
	if err != nil {
		return "", err
	}
	defer c.close()
	h := sha256.New()
	for _, f := range c.files {
		fmt.Fprintf(h, "file %q %d\n", f.name, f.size)
	}
	sample := make([]byte, fingerprintSample)
	for _, name := range sortedKeys(c.tensors) {
		t := c.tensors[name]
		fmt.Fprintf(h, "tensor %q %s %v %q\n", name, t.dtype, t.shape, t.file.name)
		n := min(t.to-t.from, fingerprintSample)
		for _, at := range []int64{t.from, t.to - n} {
			if got, err := t.file.data.ReadAt(sample[:n], at); int64(got) < n {
				return "", fmt.Errorf("read %s at byte %d: %w", t.where(), at, bareCause(err))
			}
			h.Write(sample[:n])
		}
	}
	return shortHash(h), nil
}

// shortHash is the first 16 hexadecimal digits.
func shortHash(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil))[:16] }
