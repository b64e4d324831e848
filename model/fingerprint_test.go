package model

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFingerprintsTellCheckpointsApart(t *testing.T) {
	f := newFixture(1, nil)
	big := fixtureTensor{"mtp.big", "F32", []int{4096}, make([]float32, 4096)}
	f.tensors = append(f.tensors, big)
	write := func(change func(f *fixture, dir string)) map[string]string {
		g := &fixture{config: maps.Clone(f.config)}
		for _, tensor := range f.tensors {
			tensor.values = append([]float32{}, tensor.values...)
			g.tensors = append(g.tensors, tensor)
		}
		change(g, "")
		dir := g.write(t)
		writeFile(t, dir, tokenizerFile, []byte("{}"))
		change(g, dir)
		got, err := Fingerprint(dir)
		require.NoError(t, err)
		require.Len(t, got, 3)
		for key, hash := range got {
			require.Regexp(t, "^[0-9a-f]{16}$", hash, key)
		}
		return got
	}
	base := write(func(*fixture, string) {})
	require.Equal(t, base, write(func(*fixture, string) {}), "the same files elsewhere")
	for name, c := range map[string]struct {
		key    string
		change func(f *fixture, dir string)
	}{
		"config": {"config", func(f *fixture, _ string) { f.config["rms_norm_eps"] = 1e-5 }},
		"generation": {"config", func(_ *fixture, dir string) {
			if dir != "" {
				writeFile(t, dir, "generation_config.json", nil)
			}
		}},
		"tokenizer": {"tokenizer", func(_ *fixture, dir string) {
			if dir != "" {
				writeFile(t, dir, tokenizerFile, []byte("{ }"))
			}
		}},
		"one weight": {"weights", func(f *fixture,
			_ string) {
			f.tensor("model.norm.weight").values[3] += 1
		}},
		"first of many": {"weights", func(f *fixture,
			_ string) {
			f.tensor("mtp.big").values[0] = 1
		}},
		"last of many": {"weights", func(f *fixture,
			_ string) {
			f.tensor("mtp.big").values[4095] = 1
		}},
		"shape": {"weights", func(f *fixture,
			_ string) {
			f.tensor("mtp.big").shape = []int{64, 64}
		}},
		"name": {"weights", func(f *fixture,
			_ string) {
			f.tensors[len(f.tensors)-1].name = "mtp.bag"
		}},
	} {
		got := write(c.change)
		for key := range base {
			require.Equal(t, key != c.key, base[key] == got[key], "%s: %s", name, key)
		}
	}
	middle := write(func(f *fixture, _ string) { f.tensor("mtp.big").values[2000] = 1 })
	require.Equal(t, base, middle, "a sample, as the comment says")
}

func TestFingerprintsOfShardsAndOfNothing(t *testing.T) {
	got, err := Fingerprint(newFixture(1, nil).writeShards(t, 3))
	require.NoError(t, err)
	require.Len(t, got, 3)
	_, err = Fingerprint(t.TempDir())
	require.ErrorContains(t, err, "neither")
}
