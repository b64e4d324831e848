package model

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"octet/internal/kernel"
)

// fixture is a small checkpoint in memory that a test may spoil before it is
// written.
type fixture struct {
	config  map[string]any
	tensors []fixtureTensor
}

type fixtureTensor struct {
	name   string
	dtype  string
	shape  []int
	values []float32 // of the stored type
}

// newFixture is a whole model: 4 query heads, 2 key heads, a vocabulary that is
// no multiple of anything.
func newFixture(seed uint64, change map[string]any) *fixture {
	f := &fixture{config: map[string]any{
		"model_type": "qwen3", "vocab_size": 71, "hidden_size": 16, "intermediate_size": 24,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
		"rms_norm_eps": 1e-6, "max_position_embeddings": 64, "hidden_act": "silu",
		"rope_theta": 10000.0, "rope_scaling": nil, "use_sliding_window": false,
		"sliding_window": nil, "tie_word_embeddings": false, "eos_token_id": 70,
	}}
	maps.Copy(f.config, change)
	bias, _ := f.config["attention_bias"].(bool)
	tied, _ := f.config["tie_word_embeddings"].(bool)
	r := rand.New(rand.NewPCG(seed, 1))
	add := func(name string, shape ...int) {
		f.tensors = append(f.tensors, randomTensor(r, name, shape...))
	}
	const h, v, i, q, kv, d = 16, 71, 24, 24, 12, 6
	add("model.embed_tokens.weight", v, h)
	for _, layer := range []string{"model.layers.0.", "model.layers.1."} {
		add(layer+"input_layernorm.weight", h)
		add(layer+"post_attention_layernorm.weight", h)
		add(layer+"self_attn.q_norm.weight", d)
		add(layer+"self_attn.k_norm.weight", d)
		for name, rows := range map[string]int{"q": q, "k": kv, "v": kv} {
			add(layer+"self_attn."+name+"_proj.weight", rows, h)
			if bias {
				add(layer+"self_attn."+name+"_proj.bias", rows)
			}
		}
		add(layer+"self_attn.o_proj.weight", h, q)
		if bias {
			add(layer+"self_attn.o_proj.bias", h)
		}
		add(layer+"mlp.gate_proj.weight", i, h)
		add(layer+"mlp.up_proj.weight", i, h)
		add(layer+"mlp.down_proj.weight", h, i)
	}
	add("model.norm.weight", h)
	if !tied {
		add("lm_head.weight", v, h)
	}
	return f
}

// randomTensor has values that every stored type holds, and one of the types.
func randomTensor(r *rand.Rand, name string, shape ...int) fixtureTensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	t := fixtureTensor{name, kernel.Type(r.IntN(3)).String(), shape, make([]float32, n)}
	for i := range t.values {
		t.values[i] = float32(r.IntN(255)-127) / 64
	}
	return t
}

func (f *fixture) tensor(name string) *fixtureTensor {
	i := slices.IndexFunc(f.tensors, func(t fixtureTensor) bool { return t.name == name })
	if i < 0 {
		panic("no tensor " + name)
	}
	return &f.tensors[i]
}

func (f *fixture) drop(name string) {
	f.tensors = slices.DeleteFunc(f.tensors, func(t fixtureTensor) bool { return t.name == name })
}

// write makes the checkpoint's directory.
func (f *fixture) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeJSON(t, dir, "config.json", f.config)
	writeFile(t, dir, singleFile, storeTensors(f.tensors))
	return dir
}

// writeShards deals the tensors out to n files, with an index.
func (f *fixture) writeShards(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	writeJSON(t, dir, "config.json", f.config)
	index := map[string]string{}
	for i := range n {
		name := "model-" + string(rune('a'+i)) + ".safetensors"
		var part []fixtureTensor
		for j := i; j < len(f.tensors); j += n {
			part = append(part, f.tensors[j])
			index[f.tensors[j].name] = name
		}
		writeFile(t, dir, name, storeTensors(part))
	}
	writeJSON(t, dir, indexFile, map[string]any{"metadata": map[string]int{"total_size": 1},
		"weight_map": index})
	return dir
}

func writeJSON(t *testing.T, dir, name string, v any) {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	writeFile(t, dir, name, raw)
}

func writeFile(t *testing.T, dir, name string, raw []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o644))
}

// storeTensors is a safetensors file, its header padded to 8 bytes.
func storeTensors(tensors []fixtureTensor) []byte {
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for _, t := range tensors {
		from := len(data)
		for _, k := range []kernel.Type{kernel.F32, kernel.BF16, kernel.F16} {
			if k.String() == t.dtype {
				raw := make([]byte, len(t.values)*k.Size())
				kernel.Narrow(raw, t.values, k)
				data = append(data, raw...)
			}
		}
		header[t.name] = map[string]any{"dtype": t.dtype, "shape": t.shape,
			"data_offsets": []int{from, len(data)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return storeHeader(string(text), data)
}

// storeHeader is a file with any header and data.
func storeHeader(header string, data []byte) []byte {
	for len(header)%8 != 0 {
		header += " "
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

// plainTensors reads the tensors of a directory's safetensors files in the
// simplest way, apart from the code under test.
func plainTensors(t *testing.T, dir string) map[string]fixtureTensor {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
	require.NoError(t, err)
	out := map[string]fixtureTensor{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		n := 8 + binary.LittleEndian.Uint64(raw)
		var header map[string]struct {
			Dtype   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets []int  `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(raw[8:n], &header))
		delete(header, "__metadata__")
		for name, h := range header {
			data := raw[n:][h.Offsets[0]:h.Offsets[1]]
			kind := slices.Index([]string{"F32", "BF16", "F16"}, h.Dtype)
			k := kernel.Type(kind)
			values := make([]float32, len(data)/k.Size())
			kernel.Widen(values, data, k)
			out[name] = fixtureTensor{name, h.Dtype, h.Shape, values}
		}
	}
	return out
}

// qwen3Presets are the golden checkpoints of dense Qwen3.
var qwen3Presets = []string{"qwen3-bias", "qwen3-demo", "qwen3-kv8", "qwen3-linear",
	"qwen3-mmrs-bias",
	"qwen3-odd", "qwen3-tied", "qwen3-tp8", "qwen3-tp8-trained", "qwen3-yarn"}

// presetDir is the directory of a golden checkpoint; tests skip where the
// goldens are not beside the repository.
func presetDir(t *testing.T, preset string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "shared", "golden", preset)
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		t.Skipf("golden %s is not here: %v", preset, err)
	}
	return dir
}

// presetFacts are the parts of golden.json that concern loading.
type presetFacts struct {
	TP            map[int]string `json:"tp"`
	EosIDs        []int          `json:"eos_ids"`
	TokenizerSize int            `json:"tokenizer_size"`
	Cases         []struct {
		Text    string `json:"text"`
		IDs     []int  `json:"ids"`
		Decoded string `json:"decoded"`
	} `json:"tokenizer_cases"`
	Prompts []struct {
		IDs  []int   `json:"ids"`
		Text *string `json:"text"`
	} `json:"prompts"`
}

func readPresetFacts(t *testing.T, dir string) presetFacts {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var facts presetFacts
	require.NoError(t, json.Unmarshal(raw, &facts))
	return facts
}
