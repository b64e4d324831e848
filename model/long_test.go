package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// synthetic writes a checkpoint of one layer whose attention is as small as 8
// ranks allow and whose MLP is wide enough that down_proj fuses there.
func synthetic(t *testing.T) *loaded {
	t.Helper()
	const hidden, heads, dim, inter, vocab = 16, 8, 2, 2048, 64
	dir := t.TempDir()
	config := map[string]any{"model_type": "qwen3", "vocab_size": vocab, "hidden_size": hidden,
		"intermediate_size": inter, "num_hidden_layers": 1, "num_attention_heads": heads,
		"num_key_value_heads": 1, "head_dim": dim, "max_position_embeddings": 16384,
		"rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu",
		"attention_bias": false, "architectures": []string{"Qwen3ForCausalLM"}}
	writeJSON(t, dir, "config.json", config)
	writeFile(t, dir, singleFile, storeTensors(noise([]fixtureTensor{
		{name: "model.embed_tokens.weight", shape: []int{vocab, hidden}},
		{name: "lm_head.weight", shape: []int{vocab, hidden}},
		{name: "model.norm.weight", shape: []int{hidden}},
		{name: "model.layers.0.input_layernorm.weight", shape: []int{hidden}},
		{name: "model.layers.0.post_attention_layernorm.weight", shape: []int{hidden}},
		{name: "model.layers.0.self_attn.q_proj.weight", shape: []int{heads * dim, hidden}},
		{name: "model.layers.0.self_attn.k_proj.weight", shape: []int{dim, hidden}},
		{name: "model.layers.0.self_attn.v_proj.weight", shape: []int{dim, hidden}},
		{name: "model.layers.0.self_attn.o_proj.weight", shape: []int{hidden, heads * dim}},
		{name: "model.layers.0.self_attn.q_norm.weight", shape: []int{dim}},
		{name: "model.layers.0.self_attn.k_norm.weight", shape: []int{dim}},
		{name: "model.layers.0.mlp.gate_proj.weight", shape: []int{inter, hidden}},
		{name: "model.layers.0.mlp.up_proj.weight", shape: []int{inter, hidden}},
		{name: "model.layers.0.mlp.down_proj.weight", shape: []int{hidden, inter}},
	})))
	return open(t, dir)
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
	// 8,193 tokens at the default limits: FC1 is active, down_proj fuses, o_proj
	// is too narrow, and the bits are those of FC1 off. One token less than the
	// threshold leaves FC1 off.
	c := synthetic(t)
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
