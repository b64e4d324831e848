package model

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"octet/internal/kernel"
)

// rowsOf are the rows [from, to) of a plain matrix or vector.
func rowsOf(m fixtureTensor, from, to int) []float32 {
	cols := len(m.values) / m.shape[0]
	return m.values[from*cols : to*cols]
}

// columnsOf are the columns [from, to) of a plain matrix, row by row.
func columnsOf(m fixtureTensor, from, to int) []float32 {
	var out []float32
	cols := m.shape[1]
	for r := range m.shape[0] {
		out = append(out, m.values[r*cols+from:r*cols+to]...)
	}
	return out
}

// unpacked is the matrix in w, row by row: its product with the unit vectors.
func unpacked(w *kernel.Weights) []float32 {
	n, k := w.Rows(), w.Cols()
	units, columns := make([]float32, k*k), make([]float32, k*n)
	for i := range k {
		units[i*k+i] = 1
	}
	if n > 0 {
		w.Partial(columns, units, k, 1, 0, 1)
	}
	out := make([]float32, n*k)
	for i := range k {
		for j := range n {
			out[j*k+i] = columns[i*n+j]
		}
	}
	return out
}

// requireShard compares a shard with slices of the plain tensors, which are cut
// here by the published rules and not by the code under test.
func requireShard(t *testing.T, plain map[string]fixtureTensor, c *Config, s *Shard) {
	t.Helper()
	r, tp := s.Rank, s.Size
	part := func(n int) (int, int) { return r * n / tp, (r + 1) * n / tp }
	equal := func(want, got []float32, what string) {
		t.Helper()
		require.True(t, equalValues(want, got), "%s of rank %d of %d", what, r, tp)
	}
	from, to := part(c.HiddenSize)
	row := make([]float32, to-from)
	var embed []float32
	require.Equal(t, []int{c.VocabSize, to - from}, []int{s.Embed.Rows(), s.Embed.Cols()})
	for id := range c.VocabSize {
		s.Embed.Row(row, id)
		embed = append(embed, row...)
	}
	equal(columnsOf(plain["model.embed_tokens.weight"], from, to), embed, "embedding")
	equal(plain["model.norm.weight"].values, s.Norm, "norm")
	head := plain["lm_head.weight"]
	if c.Tied {
		head = plain["model.embed_tokens.weight"]
	}
	equal(rowsOf(head, s.HeadFrom, s.HeadTo), unpacked(s.Head), "head")
	require.Len(t, s.Layers, c.Layers)
	for i, layer := range s.Layers {
		at := func(name string) fixtureTensor {
			return plain[fmt.Sprintf("model.layers.%d.%s", i,
				name)]
		}
		equal(at("input_layernorm.weight").values, layer.InputNorm, "input norm")
		equal(at("post_attention_layernorm.weight").values, layer.PostNorm, "post norm")
		equal(at("self_attn.q_norm.weight").values, layer.QNorm, "q norm")
		equal(at("self_attn.k_norm.weight").values, layer.KNorm, "k norm")
		qFrom, qTo := part(c.Heads * c.HeadDim)
		kvFrom, kvTo := part(c.KVHeads * c.HeadDim)
		if c.KVHeads < tp {
			kvFrom = r * c.KVHeads / tp * c.HeadDim
			kvTo = kvFrom + c.HeadDim
		}
		fused := func(kind string) (all []float32) {
			all = append(all, rowsOf(at("self_attn.q_proj."+kind), qFrom, qTo)...)
			all = append(all, rowsOf(at("self_attn.k_proj."+kind), kvFrom, kvTo)...)
			return append(all, rowsOf(at("self_attn.v_proj."+kind), kvFrom, kvTo)...)
		}
		equal(fused("weight"), unpacked(layer.QKV), "qkv")
		if c.AttentionBias {
			equal(fused("bias"), layer.QKVBias, "qkv bias")
			equal(at("self_attn.o_proj.bias").values, layer.OBias, "o bias")
		} else {
			require.Nil(t, layer.QKVBias)
			require.Nil(t, layer.OBias)
		}
		equal(columnsOf(at("self_attn.o_proj.weight"), qFrom, qTo), unpacked(layer.O), "o")
		from, to := part(c.IntermediateSize)
		gateUp := append([]float32{}, rowsOf(at("mlp.gate_proj.weight"), from, to)...)
		gateUp = append(gateUp, rowsOf(at("mlp.up_proj.weight"), from, to)...)
		equal(gateUp, unpacked(layer.GateUp), "gate and up")
		equal(columnsOf(at("mlp.down_proj.weight"), from, to), unpacked(layer.Down), "down")
	}
}

// equalValues is element for element; zeros of both signs are equal.
func equalValues(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// shardBytes is what one rank should take of the checkpoint: its share of what
// is sharded, one key head's copies where there are fewer than ranks, and all
// of what is replicated.
func shardBytes(plain map[string]fixtureTensor, c *Config, tp, headRows int) int64 {
	var total int64
	for name, m := range plain {
		size := int64(len(m.values)) * int64(elementBytes[m.dtype])
		switch {
		case strings.HasSuffix(name, "norm.weight") || strings.HasSuffix(name, "o_proj.bias"):
			total += size
		case strings.Contains(name, "k_proj") || strings.Contains(name, "v_proj"):
			total += size / int64(min(tp, c.KVHeads))
		case name == "lm_head.weight":
			if !c.Tied {
				total += size / int64(c.VocabSize) * int64(headRows)
			}
		default:
			total += size / int64(tp)
			if c.Tied && strings.HasSuffix(name, "embed_tokens.weight") {
				total += size / int64(c.VocabSize) * int64(headRows)
			}
		}
	}
	return total
}

func requireAllRanks(t *testing.T, dir string, sizes ...int) {
	t.Helper()
	plain := plainTensors(t, dir)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	for _, tp := range sizes {
		for r := range tp {
			s, err := Load(dir, c, r, tp)
			require.NoError(t, err)
			requireShard(t, plain, c, s)
			require.Equal(t, shardBytes(plain, c, tp, s.HeadTo-s.HeadFrom), s.Bytes,
				"rank %d of %d", r, tp)
		}
	}
}

func TestEachRankHoldsItsSlices(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			plain := newFixture(seed, nil)
			requireAllRanks(t, plain.write(t), 1, 2, 4)
			requireAllRanks(t, plain.writeShards(t, 3), 1, 4)
			requireAllRanks(t, newFixture(seed, map[string]any{"attention_bias": true}).write(t),
				1, 2, 4)
			requireAllRanks(t, newFixture(seed,
				map[string]any{"tie_word_embeddings": true}).write(t), 1, 2, 4)
		})
	}
}

func TestGoldensLoadWhereTheRulesAllow(t *testing.T) {
	for _, preset := range qwen3Presets {
		t.Run(preset, func(t *testing.T) {
			dir := presetDir(t, preset)
			facts := readPresetFacts(t, dir)
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			require.Equal(t, facts.EosIDs, c.StopIDs)
			require.Len(t, facts.TP, 4)
			for tp, rule := range facts.TP {
				if rule != "ok" {
					_, err := Load(dir, c, 0, tp)
					require.ErrorContains(t, err, rule)
					continue
				}
				require.Zero(t, c.Segments()%tp, "ranks hold whole segments")
				if c.IntermediateSize < 1000 {
					requireAllRanks(t, dir, tp)
				}
				s, err := Load(dir, c, tp-1, tp)
				require.NoError(t, err)
				require.Equal(t, shardBytes(plainTensors(t, dir), c, tp, s.HeadTo-s.HeadFrom),
					s.Bytes)
			}
		})
	}
}

func TestTheHybridsAreRefusedByName(t *testing.T) {
	for preset, want := range map[string]string{"qwen3_next-tp8": "hybrid", "qwen3_5-tp8": "hybrid",
		"qwen3_5-text-only": "hybrid"} {
		_, err := ReadConfig(presetDir(t, preset))
		require.ErrorContains(t, err, want)
	}
}

func TestABadRankIsRefused(t *testing.T) {
	dir := newFixture(1, nil).write(t)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	for _, rank := range []int{-1, 2} {
		_, err := Load(dir, c, rank, 2)
		require.ErrorContains(t, err, fmt.Sprintf("rank %d of 2", rank))
	}
	_, err = Load(dir, c, 0, 8)
	require.ErrorContains(t, err, "num_attention_heads 4 % tp 8 != 0")
	_, err = Load(dir, c, 0, 0)
	require.ErrorContains(t, err, "tp 0")
}

func TestWhatDoesNotFitTheConfigIsNamed(t *testing.T) {
	const q, norm = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
	extra := func(name string) func(f *fixture) {
		return func(f *fixture) {
			f.tensors = append(f.tensors, fixtureTensor{name, "F32", []int{1}, []float32{1}})
		}
	}
	for name, c := range map[string]struct {
		spoil func(f *fixture)
		want  []string
	}{
		"missing": {func(f *fixture) { f.drop(q) },
			[]string{q, "[num_attention_heads*head_dim, hidden_size]", "missing in " + singleFile}},
		"missing embedding": {func(f *fixture) { f.drop("model.embed_tokens.weight") },
			[]string{"model.embed_tokens.weight", "missing"}},
		"head missing, not tied": {func(f *fixture) { f.drop("lm_head.weight") },
			[]string{"lm_head.weight", "missing"}},
		"bias missing": {func(f *fixture) { f.config["attention_bias"] = true },
			[]string{"model.layers.0.self_attn.q_proj.bias", "missing"}},
		"another shape": {func(f *fixture) { f.tensor(q).shape = []int{16, 24} },
			[]string{q, singleFile,
				"shape [16 24], but [num_attention_heads*head_dim, hidden_size] is [24 16]"}},
		"another rank": {func(f *fixture) { f.tensor(norm).shape = []int{16, 1} },
			[]string{norm, "shape [16 1], but [hidden_size] is [16]"}},
		"vocabulary of the file": {func(f *fixture) { f.config["vocab_size"] = 72 },
			[]string{"model.embed_tokens.weight", "[71 16]", "[72 16]"}},
		"more layers than stored": {func(f *fixture) { f.config["num_hidden_layers"] = 3 },
			[]string{"model.layers.2.input_layernorm.weight", "missing"}},
		"fewer layers than stored": {func(f *fixture) { f.config["num_hidden_layers"] = 1 },
			[]string{"model.layers.1.", singleFile, "left over"}},
		"bias not called for": {extra("model.layers.0.self_attn.q_proj.bias"),
			[]string{"model.layers.0.self_attn.q_proj.bias in " + singleFile,
				"attention_bias is false"}},
		"experts": {extra("model.layers.0.mlp.experts.0.up_proj.weight"),
			[]string{"routed experts"}},
		"router": {extra("model.layers.0.mlp.gate.weight"),
			[]string{"routed experts"}},
		"linear attention": {extra("model.layers.0.linear_attn.A_log"),
			[]string{"linear_attn.A_log", "left over"}},
		"two models": {extra("model.language_model.embed_tokens.weight"),
			[]string{"one text model is wanted"}},
		"name with more at the end": {extra(q + "x"), []string{q + "x", "left over"}},
	} {
		f := newFixture(1, nil)
		c.spoil(f)
		dir := f.write(t)
		config, err := ReadConfig(dir)
		require.NoError(t, err, name)
		for _, rank := range []int{0, 1} {
			_, err = Load(dir, config, rank, 2)
			for _, want := range c.want {
				require.ErrorContains(t, err, want, name)
			}
		}
	}
}

func TestAWeightOfAnotherTypeIsNamed(t *testing.T) {
	f := newFixture(1, nil)
	f.tensor("model.norm.weight").dtype = "F32"
	dir := f.write(t)
	file := filepath.Join(dir, singleFile)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	at := strings.Index(string(raw), `"model.norm.weight"`)
	swapped := string(raw[:at]) + strings.Replace(string(raw[at:]), `"F32"`, `"I32"`, 1)
	require.NotEqual(t, string(raw), swapped)
	writeFile(t, dir, singleFile, []byte(swapped))
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	_, err = Load(dir, c, 0, 1)
	require.ErrorContains(t, err,
		"model.norm.weight in model.safetensors: stored as I32: weights must be")
}

func TestTensorsOfOtherPartsAreIgnored(t *testing.T) {
	f := newFixture(1, nil)
	c, err := ReadConfig(f.write(t))
	require.NoError(t, err)
	want, err := Load(f.write(t), c, 1, 2)
	require.NoError(t, err)
	for _, name := range []string{"mtp.layers.0.mlp.gate_proj.weight", "model.visual.x", "visual.y",
		"vision_tower.z", "model.layers.0.self_attn.rotary_emb.inv_freq"} {
		f.tensors = append(f.tensors, fixtureTensor{name, "F16", []int{2}, []float32{1, 2}})
	}
	got, err := Load(f.write(t), c, 1, 2)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestOtherPrefixesNameTheSameModel(t *testing.T) {
	for _, n := range namings[1:] {
		f := newFixture(3, nil)
		want := f.write(t)
		for i := range f.tensors {
			name := &f.tensors[i].name
			if *name == "lm_head.weight" {
				*name = n.head
			} else {
				*name = n.prefix + strings.TrimPrefix(*name, "model.")
			}
		}
		dir := f.write(t)
		c, err := ReadConfig(dir)
		require.NoError(t, err)
		s, err := Load(dir, c, 1, 2)
		require.NoError(t, err)
		requireShard(t, plainTensors(t, want), c, s)
	}
}

func TestAHeadBesideATiedEmbeddingMustBeEqual(t *testing.T) {
	load := func(change func(head *fixtureTensor), rank int) error {
		f := newFixture(2, map[string]any{"tie_word_embeddings": true})
		head := *f.tensor("model.embed_tokens.weight")
		head.name = "lm_head.weight"
		head.values = append([]float32{}, head.values...)
		change(&head)
		f.tensors = append(f.tensors, head)
		dir := f.write(t)
		c, err := ReadConfig(dir)
		require.NoError(t, err)
		s, err := Load(dir, c, rank, 2)
		if err == nil {
			require.Equal(t, shardBytes(plainTensors(t, dir), c, 2, s.HeadTo-s.HeadFrom), s.Bytes)
		}
		return err
	}
	require.NoError(t, load(func(*fixtureTensor) {}, 0))
	require.NoError(t, load(func(h *fixtureTensor) { h.dtype = "F32" }, 0),
		"another type, the same values")
	// The vocabulary of 71 is split at 64: the last row is rank 1's to compare.
	change := func(h *fixtureTensor) { h.values[len(h.values)-1] += 1 }
	require.NoError(t, load(change, 0))
	require.ErrorContains(t, load(change, 1),
		"tensor lm_head.weight in model.safetensors: differs from "+
			"model.embed_tokens.weight in rows 64 to 71, though tie_word_embeddings is true")
	require.ErrorContains(t, load(func(h *fixtureTensor) {
		h.shape, h.values = []int{70, 16}, h.values[:70*16]
	}, 0), "shape [70 16]")
}

func TestAnUntiedHeadIsNotTheEmbedding(t *testing.T) {
	dir := newFixture(5, nil).write(t)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	plain := plainTensors(t, dir)
	s, err := Load(dir, c, 0, 2)
	require.NoError(t, err)
	require.False(t, equalValues(rowsOf(plain["model.embed_tokens.weight"], 0, 64),
		unpacked(s.Head)))
}

func TestARankWithoutVocabularyRowsLoads(t *testing.T) {
	// 71 ids are 128 padded: 32 for each of four ranks, so the last has none.
	dir := newFixture(1, nil).write(t)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	s, err := Load(dir, c, 3, 4)
	require.NoError(t, err)
	require.Equal(t, []int{71, 71, 0, 16}, []int{s.HeadFrom, s.HeadTo, s.Head.Rows(),
		s.Head.Cols()})
}

func TestShardsAndIndexMustAgree(t *testing.T) {
	const a, b = "model-a.safetensors", "model-b.safetensors"
	write := func(t *testing.T) (dir string, index map[string]string,
		parts map[string][]fixtureTensor) {
		f := newFixture(1, nil)
		dir, index, parts = f.writeShards(t, 2), map[string]string{}, map[string][]fixtureTensor{}
		for i, tensor := range f.tensors {
			name := []string{a, b}[i%2]
			index[tensor.name] = name
			parts[name] = append(parts[name], tensor)
		}
		return dir, index, parts
	}
	load := func(dir string) error {
		c, err := ReadConfig(dir)
		require.NoError(t, err)
		_, err = Load(dir, c, 0, 1)
		return err
	}
	save := func(dir string, index map[string]string) {
		writeJSON(t, dir, indexFile, map[string]any{"weight_map": index})
	}
	dir, index, parts := write(t)
	require.NoError(t, load(dir))
	const embed = "model.embed_tokens.weight"
	require.Equal(t, a, index[embed])

	index[embed] = b
	save(dir, index)
	require.ErrorContains(t, load(dir), "tensor "+embed+": "+indexFile+" says it is in "+b)
	delete(index, embed)
	save(dir, index)
	require.ErrorContains(t, load(dir), "tensor "+embed+" in "+a+": not in "+indexFile)
	index[embed] = "model-c.safetensors"
	save(dir, index)
	require.ErrorContains(t, load(dir), "model-c.safetensors: no such file")

	index[embed] = a
	save(dir, index)
	writeFile(t, dir, b, storeTensors(append(parts[b], parts[a][0])))
	require.ErrorContains(t, load(dir), "tensor "+embed+" in "+b+": "+a+" holds it, too")
	writeFile(t, dir, b, storeTensors(parts[b])[:400])
	require.ErrorContains(t, load(dir), b+": header of")
}

func TestWithoutWeightsBothNamesAreGiven(t *testing.T) {
	dir := t.TempDir()
	writeJSON(t, dir, "config.json", newFixture(1, nil).config)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	_, err = Load(dir, c, 0, 1)
	require.ErrorContains(t, err, "neither "+singleFile+" nor "+indexFile)
}

func TestAHostileConfigAllocatesNothingForIt(t *testing.T) {
	// The numbers are within bounds but the file is small: the shapes do not
	// match, and nothing is made in their size.
	f := newFixture(1, map[string]any{"vocab_size": vocabMax, "hidden_size": widthMax,
		"intermediate_size": widthMax, "num_hidden_layers": layersMax})
	dir := f.write(t)
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Load(dir, c, 0, 2)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "shape [71 16]")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
}
