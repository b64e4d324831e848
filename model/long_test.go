package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// geometry is the shape of a checkpoint that a test makes.
type geometry struct {
	hidden, heads, kv, dim, inter, vocab, layers int

	bias, tied bool
}

// geometries are those of the golden checkpoints, by name.
var geometries = map[string]geometry{
	"qwen3-tp8":       {64, 8, 2, 16, 96, 320, 3, false, false},
	"qwen3-linear":    {64, 8, 2, 16, 96, 320, 3, false, false},
	"qwen3-yarn":      {64, 8, 2, 16, 96, 320, 3, false, false},
	"qwen3-kv8":       {64, 8, 8, 16, 96, 320, 3, false, false},
	"qwen3-bias":      {64, 8, 2, 16, 96, 320, 3, true, false},
	"qwen3-odd":       {40, 6, 2, 16, 50, 301, 3, false, false},
	"qwen3-tied":      {48, 4, 4, 16, 80, 279, 3, false, true},
	"qwen3-mmrs-bias": {64, 16, 8, 128, 2048, 320, 2, true, false},
}

// stored is a golden checkpoint; where the goldens are not beside the
// repository, the one that launch embeds, or noise of the same geometry.
func stored(t *testing.T, name string) *loaded {
	t.Helper()
	dir := filepath.Join("..", "..", "shared", "golden", name)
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
		return open(t, dir)
	}
	if name == "qwen3-demo" {
		return open(t, filepath.Join("..", "cmd", "launch", "demo"))
	}
	return synthetic(t, geometries[name])
}

// synthetic writes a checkpoint of noise.
func synthetic(t *testing.T, g geometry) *loaded {
	t.Helper()
	dir := t.TempDir()
	writeJSON(t, dir, "config.json", map[string]any{"model_type": "qwen3",
		"vocab_size": g.vocab, "hidden_size": g.hidden, "intermediate_size": g.inter,
		"num_hidden_layers": g.layers, "num_attention_heads": g.heads,
		"num_key_value_heads": g.kv, "head_dim": g.dim, "max_position_embeddings": 16384,
		"rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": g.tied,
		"hidden_act": "silu", "attention_bias": g.bias,
		"architectures": []string{"Qwen3ForCausalLM"}})
	tensors := []fixtureTensor{
		{name: "model.embed_tokens.weight", shape: []int{g.vocab, g.hidden}},
		{name: "model.norm.weight", shape: []int{g.hidden}},
	}
	if !g.tied {
		tensors = append(tensors,
			fixtureTensor{name: "lm_head.weight", shape: []int{g.vocab, g.hidden}})
	}
	for l := range g.layers {
		tensors = append(tensors, g.layer(fmt.Sprintf("model.layers.%d.", l))...)
	}
	writeFile(t, dir, singleFile, storeTensors(noise(tensors)))
	return open(t, dir)
}

// layer lists the tensors of one layer.
func (g geometry) layer(at string) []fixtureTensor {
	q, kv := g.heads*g.dim, g.kv*g.dim
	all := []fixtureTensor{
		{name: at + "input_layernorm.weight", shape: []int{g.hidden}},
		{name: at + "post_attention_layernorm.weight", shape: []int{g.hidden}},
		{name: at + "self_attn.q_norm.weight", shape: []int{g.dim}},
		{name: at + "self_attn.k_norm.weight", shape: []int{g.dim}},
		{name: at + "mlp.gate_proj.weight", shape: []int{g.inter, g.hidden}},
		{name: at + "mlp.up_proj.weight", shape: []int{g.inter, g.hidden}},
		{name: at + "mlp.down_proj.weight", shape: []int{g.hidden, g.inter}},
	}
	for _, p := range []struct {
		name    string
		out, in int
	}{{"q", q, g.hidden}, {"k", kv, g.hidden}, {"v", kv, g.hidden}, {"o", g.hidden, q}} {
		name := at + "self_attn." + p.name + "_proj."
		all = append(all, fixtureTensor{name: name + "weight", shape: []int{p.out, p.in}})
		if g.bias {
			all = append(all, fixtureTensor{name: name + "bias", shape: []int{p.out}})
		}
	}
	return all
}

// noise is tensors of float32 values from a fixed seed, each row of length
// about 1.
func noise(tensors []fixtureTensor) []fixtureTensor {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range tensors {
		x := &tensors[i]
		x.dtype = "F32"
		n := 1
		for _, d := range x.shape {
			n *= d
		}
		for range n {
			v := r.NormFloat64() / math.Sqrt(float64(x.shape[len(x.shape)-1]))
			x.values = append(x.values, float32(v))
		}
	}
	return tensors
}

func TestAPromptPastTheDefaultThresholdIsShardedAndFused(t *testing.T) {
	// One layer whose attention is as small as 8 ranks allow, with an MLP that is
	// wide enough to fuse. 8,193 tokens at the default limits: FC1 is active, down_proj fuses, o_proj
	// is too narrow, and the bits are those of FC1 off. One token less than the
	// threshold leaves FC1 off.
	c := synthetic(t, geometry{16, 8, 1, 2, 2048, 64, 1, false, false})
	r := Request{ID: 1, IDs: prompt(c.config, 8193), MaxNew: 1}
	off := DefaultOptions()
	on := off
	on.FlashComm1, on.MMRS = true, true
	require.Equal(t, ReasonRows, on.Decide(c.config, 8, Facts{Rows: 8191}).Reason)
	want := start(t, c, 8, off, nil).outcome(r)
	g := start(t, c, 8, on, nil)
	same(t, want, g.outcome(r), "8193 tokens")
	require.Len(t, g.results, 1)
	d := g.results[0].Decision
	require.Equal(t, Decision{FC1: true, P: 8320, L: 1040, Fuse: Fuse{Down: true},
		FuseReason: FuseReason{O: FuseReasonWidth}, Mode: d.Mode}, d)
	require.Equal(t, tally{reduceScatter: 1, mmrs: 1, sequence: 3, embedding: 1, head: 1},
		calls(g.results[0].Counts), fmt.Sprint(d))
}
