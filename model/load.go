package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Load reads what rank of size ranks needs of the checkpoint in dir, and no
// other bytes of its weights. A tensor that is missing, of another shape or
// type than c calls for, stored twice, or left over is refused by its name, its
// file and the rule.
func Load(dir string, c *Config, rank, size int) (*Shard, error) {
	if err := c.CheckTP(size); err != nil {
		return nil, fmt.Errorf("load %s: %w", dir, err)
	}
	if rank < 0 || rank >= size {
		return nil, fmt.Errorf("load %s: rank %d of %d", dir, rank, size)
	}
	stored, err := openCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	defer stored.close()
	names, err := stored.check(c)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", dir, err)
	}
	k := &cutter{config: c, tensors: stored.tensors, names: names, rank: rank, size: size}
	s := k.shard()
	if k.err != nil {
		return nil, fmt.Errorf("load %s: %w", dir, k.err)
	}
	return s, nil
}

// tensorNames is how a checkpoint names what does not repeat in each layer.
type tensorNames struct {
	prefix string // of everything but the head
	head   string
}

// namings are the layouts that checkpoints of these models come in. Where the
// embedding is tells which.
var namings = []tensorNames{
	{"model.", "lm_head.weight"},
	{"model.language_model.", "lm_head.weight"},
	{"language_model.model.", "language_model.lm_head.weight"},
}

func (n tensorNames) embed() string { return n.prefix + "embed_tokens.weight" }
func (n tensorNames) norm() string  { return n.prefix + "norm.weight" }

func (n tensorNames) layer(i int, name string) string {
	return fmt.Sprintf("%slayers.%d.%s", n.prefix, i, name)
}

// ignored are tensors that the text model has no use for.
var ignored = regexp.MustCompile(
	`^(mtp|model\.visual|visual|vision_tower)\.|\.rotary_emb\.inv_freq$`)

// experts are tensors of models with routed experts.
var experts = regexp.MustCompile(`\.mlp\.(experts\.|gate\.weight$|shared_expert)`)

// wanted is a tensor that the config calls for.
type wanted struct {
	name  string
	shape []int
	rule  string // the shape in the config's words
}

// check compares the tensors with those that c calls for.
func (s *checkpoint) check(c *Config) (tensorNames, error) {
	names, err := s.naming()
	if err != nil {
		return names, err
	}
	known := map[string]bool{}
	for _, w := range c.tensors(names) {
		t := s.tensors[w.name]
		if t == nil {
			if c.Tied && w.name == names.head {
				continue
			}
			return names, fmt.Errorf("tensor %s %s: missing in %s", w.name, w.rule, s.source)
		}
		if !slices.Equal(t.shape, w.shape) {
			return names, fmt.Errorf("%s: shape %v, but %s is %v", t.where(), t.shape, w.rule,
				w.shape)
		}
		if _, err := t.kind(); err != nil {
			return names, err
		}
		known[w.name] = true
	}
	for _, name := range sortedKeys(s.tensors) {
		switch {
		case known[name] || ignored.MatchString(name):
		case experts.MatchString(name):
			return names, fmt.Errorf("%s: routed experts are not supported",
				s.tensors[name].where())
		case strings.HasSuffix(name, "_proj.bias"):
			return names, fmt.Errorf("%s: left over (attention_bias is %v, MLPs have no bias)",
				s.tensors[name].where(), c.AttentionBias)
		default:
			return names, fmt.Errorf("%s: left over, config.json does not call for it",
				s.tensors[name].where())
		}
	}
	return names, nil
}

// naming finds the one layout that the checkpoint has.
func (s *checkpoint) naming() (tensorNames, error) {
	var found []tensorNames
	for _, n := range namings {
		if s.tensors[n.embed()] != nil {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return tensorNames{}, fmt.Errorf("tensor %s [vocab_size, hidden_size]: missing in %s",
			namings[0].embed(), s.source)
	case 1:
		return found[0], nil
	}
	return tensorNames{}, fmt.Errorf("tensors %s and %s: one text model is wanted",
		found[0].embed(), found[1].embed())
}

// tensors lists what the config calls for, the head even where it is tied.
func (c *Config) tensors(n tensorNames) []wanted {
	h, d, q, kv := c.HiddenSize, c.HeadDim, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	const (
		hidden = "[hidden_size]"
		head   = "[head_dim]"
		query  = "num_attention_heads*head_dim"
		keys   = "num_key_value_heads*head_dim"
		vocab  = "[vocab_size, hidden_size]"
	)
	all := []wanted{
		{n.embed(), []int{c.VocabSize, h}, vocab},
		{n.norm(), []int{h}, hidden},
		{n.head, []int{c.VocabSize, h}, vocab},
	}
	for i := range c.Layers {
		add := func(name, rule string, shape ...int) {
			all = append(all, wanted{n.layer(i, name), shape, rule})
		}
		add("input_layernorm.weight", hidden, h)
		add("post_attention_layernorm.weight", hidden, h)
		add("self_attn.q_norm.weight", head, d)
		add("self_attn.k_norm.weight", head, d)
		add("self_attn.q_proj.weight", "["+query+", hidden_size]", q, h)
		add("self_attn.k_proj.weight", "["+keys+", hidden_size]", kv, h)
		add("self_attn.v_proj.weight", "["+keys+", hidden_size]", kv, h)
		add("self_attn.o_proj.weight", "[hidden_size, "+query+"]", h, q)
		if c.AttentionBias {
			add("self_attn.q_proj.bias", "["+query+"]", q)
			add("self_attn.k_proj.bias", "["+keys+"]", kv)
			add("self_attn.v_proj.bias", "["+keys+"]", kv)
			add("self_attn.o_proj.bias", hidden, h)
		}
		add("mlp.gate_proj.weight", "[intermediate_size, hidden_size]", c.IntermediateSize, h)
		add("mlp.up_proj.weight", "[intermediate_size, hidden_size]", c.IntermediateSize, h)
		add("mlp.down_proj.weight", "[hidden_size, intermediate_size]", h, c.IntermediateSize)
	}
	return all
}
