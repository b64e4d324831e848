package model

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// readChanged reads the fixture's config with some keys changed.
func readChanged(t *testing.T, change map[string]any) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	writeJSON(t, dir, "config.json", newFixture(1, change).config)
	return ReadConfig(dir)
}

func TestConfigIsReadAsItStands(t *testing.T) {
	c, err := readChanged(t, map[string]any{"attention_bias": true, "rms_norm_eps": 1e-5})
	require.NoError(t, err)
	require.Equal(t, &Config{ModelType: "qwen3", VocabSize: 71, HiddenSize: 16,
		IntermediateSize: 24,
		Layers:           2, Heads: 4, KVHeads: 2, HeadDim: 6, MaxPositions: 64, Eps: 1e-5,
		AttentionBias: true, StopIDs: []int{70},
		Rope: Rope{Type: RopeDefault, Theta: 10000, Dim: 6, Factor: 1, Scale: 1}}, c)
	c, err = readChanged(t, map[string]any{"num_key_value_heads": nil})
	require.NoError(t, err)
	require.Equal(t, 4, c.KVHeads, "null means as many as query heads")
}

func TestConfigRefusesByName(t *testing.T) {
	type dict = map[string]any
	for _, c := range []struct {
		change dict
		want   string
	}{
		{dict{"model_type": "qwen3_moe"}, `model_type "qwen3_moe": routed experts`},
		{dict{"model_type": "qwen3_5_moe_text"}, `routed experts`},
		{dict{"model_type": "qwen3_next"}, `model_type "qwen3_next": hybrid`},
		{dict{"model_type": "qwen3_5"}, `hybrid`},
		{dict{"model_type": "llama"}, `model_type "llama" is not supported`},
		{dict{"model_type": nil}, `model_type is missing`},
		{dict{"model_type": 3}, `model_type is 3: a string wanted`},
		{dict{"text_config": dict{}}, `text_config`},
		{dict{"quantization_config": dict{"bits": 4}}, `quantization_config`},
		{dict{"hidden_act": "gelu"}, `hidden_act "gelu"`},
		{dict{"use_sliding_window": true}, `use_sliding_window`},
		{dict{"num_experts": 8}, `num_experts`},
		{dict{"layer_types": []string{"full_attention"}},
			`layer_types has 1 entries, num_hidden_layers is 2`},
		{dict{"layer_types": []string{"full_attention", "sliding_attention"}},
			`layer_types[1] "sliding_attention"`},
		{dict{"head_dim": nil}, `head_dim is missing`},
		{dict{"head_dim": 7}, `head_dim 7 is odd`},
		{dict{"head_dim": 0}, `head_dim 0: must be`},
		{dict{"num_attention_heads": 0}, `num_attention_heads 0: must be`},
		{dict{"num_attention_heads": 5}, `num_attention_heads 5 % num_key_value_heads 2 != 0`},
		{dict{"num_key_value_heads": 0}, `num_key_value_heads 0: must be`},
		{dict{"num_key_value_heads": -1}, `num_key_value_heads -1: must be`},
		{dict{"hidden_size": -1}, `hidden_size -1: must be`},
		{dict{"hidden_size": 1 << 40}, `hidden_size 1099511627776: must be`},
		{dict{"hidden_size": 1.5}, `hidden_size is 1.5: a whole number wanted`},
		{dict{"hidden_size": "64"}, `hidden_size is "64": a whole number wanted`},
		{dict{"vocab_size": 1 << 30}, `vocab_size`},
		{dict{"num_hidden_layers": 1 << 20}, `num_hidden_layers`},
		{dict{"num_attention_heads": 1 << 20, "head_dim": 1024}, `exceeds`},
		{dict{"rms_norm_eps": 0}, `rms_norm_eps 0: must be`},
		{dict{"tie_word_embeddings": "yes"}, `tie_word_embeddings is "yes": true or false wanted`},
		{dict{"rope_scaling": dict{"rope_type": "dynamic"}}, `rope type "dynamic"`},
		{dict{"rope_scaling": dict{"type": "longrope"}}, `rope type "longrope"`},
		{dict{"rope_scaling": dict{"rope_type": "linear"}}, `rope factor is missing`},
		{dict{"rope_scaling": dict{"rope_type": "linear", "factor": 0}}, `factor 0: must be`},
		{dict{"rope_theta": 0}, `rope_theta 0: must be`},
		{dict{"rope_scaling": dict{"rope_type": "yarn", "factor": 4, "beta_fast": 1,
			"beta_slow": 2}},
			`beta_fast 1 is below beta_slow 2`},
		{dict{"rope_parameters": dict{"full_attention": dict{}}}, `rope settings by layer type`},
		{dict{"rope_parameters": dict{"rope_type": "default"},
			"rope_scaling": dict{"rope_type": "linear",
				"factor": 2}}, `differ`},
		{dict{"partial_rotary_factor": 0.1}, `partial_rotary_factor turns 0 of head_dim 6`},
		{dict{"partial_rotary_factor": 0.5}, `partial_rotary_factor turns 3 of head_dim 6`},
		{dict{"eos_token_id": 71}, `eos token id 71: vocab_size is 71`},
		{dict{"eos_token_id": "x"}, `eos_token_id is "x"`},
	} {
		_, err := readChanged(t, c.change)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "config.json")
	}
}

func TestConfigIsAnObjectInARegularFile(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadConfig(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, text := range []string{"", "null", "[]", "{", `{"a":1}x`} {
		writeFile(t, dir, "config.json", []byte(text))
		_, err := ReadConfig(dir)
		require.ErrorContains(t, err, "config.json", "%q", text)
	}
	pipe := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(pipe, "config.json"), 0o600))
	_, err = ReadConfig(pipe)
	require.ErrorContains(t, err, "not a regular file", "a pipe would be waited for")
}

func TestRopeIsReadInEveryForm(t *testing.T) {
	type dict = map[string]any
	plain := Rope{Type: RopeDefault, Theta: 10000, Dim: 6, Factor: 1, Scale: 1}
	with := func(change func(*Rope)) Rope {
		r := plain
		change(&r)
		return r
	}
	yarn := func(positions, factor float64) Rope {
		return Rope{Type: RopeYarn, Theta: 10000, Dim: 6, Factor: factor, Positions: positions,
			Fast: 32, Slow: 1, Truncate: true, Scale: yarnScale(factor, 1)}
	}
	for name, c := range map[string]struct {
		change dict
		want   Rope
	}{
		"top level": {dict{"rope_theta": 5e6}, with(func(r *Rope) { r.Theta = 5e6 })},
		"parameters": {dict{"rope_theta": nil, "rope_parameters": dict{"rope_theta": 1e6}},
			with(func(r *Rope) { r.Theta = 1e6 })},
		"both thetas": {dict{"rope_parameters": dict{"rope_type": "default", "rope_theta": 1e6}},
			with(func(r *Rope) { r.Theta = 1e6 })},
		"no theta": {dict{"rope_theta": nil}, plain},
		"old type": {dict{"rope_scaling": dict{"type": "linear", "factor": 2.5}},
			with(func(r *Rope) { r.Type, r.Factor = RopeLinear, 2.5 })},
		"twins": {dict{"rope_scaling": dict{"type": "linear", "factor": 2},
			"rope_parameters": dict{"type": "linear", "factor": 2}},
			with(func(r *Rope) { r.Type, r.Factor = RopeLinear, 2 })},
		"mrope": {dict{"rope_scaling": dict{"type": "mrope", "mrope_section": []int{1, 1,
			1}}}, plain},
		"partial": {dict{"head_dim": 16, "partial_rotary_factor": 0.25},
			with(func(r *Rope) { r.Dim = 4 })},
		"partial inside": {dict{"head_dim": 16,
			"rope_parameters": dict{"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.25},
			with(func(r *Rope) { r.Dim = 8 })},
		"yarn": {dict{"rope_scaling": dict{"rope_type": "yarn", "factor": 4,
			"original_max_position_embeddings": 16}}, yarn(16, 4)},
		"yarn defaults": {dict{"rope_scaling": dict{"rope_type": "yarn", "factor": 4}}, yarn(64,
			4)},
		"yarn top level": {dict{"original_max_position_embeddings": 8,
			"rope_scaling": dict{"rope_type": "yarn", "factor": 2,
				"original_max_position_embeddings": 16}}, yarn(8, 2)},
		"yarn null": {dict{"rope_scaling": dict{"rope_type": "yarn", "factor": nil,
			"original_max_position_embeddings": 16}}, yarn(16, 4)},
	} {
		got, err := readChanged(t, c.change)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.Rope, name)
	}
	got, err := readChanged(t, dict{"rope_scaling": dict{"rope_type": "yarn", "factor": 4,
		"mscale": 1, "mscale_all_dim": 0.5, "truncate": false, "beta_fast": 16, "beta_slow": 2}})
	require.NoError(t, err)
	require.InDelta(t, 1.138629436/1.069314718, got.Rope.Scale, 1e-9)
	require.Equal(t, []any{16.0, 2.0, false}, []any{got.Rope.Fast, got.Rope.Slow,
		got.Rope.Truncate})
	got, err = readChanged(t, dict{"rope_scaling": dict{"rope_type": "yarn", "factor": 4,
		"mscale": 1, "mscale_all_dim": 0.5, "attention_factor": 1.25}})
	require.NoError(t, err)
	require.Equal(t, 1.25, got.Rope.Scale, "attention_factor wins")
}

func TestTPRulesNameTheKeyAndBothNumbers(t *testing.T) {
	for _, c := range []struct {
		heads, kv, wide, hidden, tp int
		want                        string
	}{
		{8, 2, 96, 64, 8, ""}, {8, 8, 96, 64, 8, ""}, {24, 4, 96, 64, 8, ""}, {6, 2, 48, 12, 3,
			"tp 3 % num_key_value_heads 2 != 0"},
		{28, 4, 96, 64, 8, "num_attention_heads 28 % tp 8 != 0 (this model allows tp 1, 2, 4)"},
		{24, 3, 96, 64, 8, "tp 8 % num_key_value_heads 3 != 0"},
		{24, 12, 96, 64, 8, "num_key_value_heads 12 % tp 8 != 0"},
		{8, 2, 100, 64, 8, "intermediate_size 100 % tp 8 != 0"},
		{8, 2, 96, 60, 8, "hidden_size 60 % tp 8 != 0"},
		{8, 2, 96, 64, 0, "tp 0: must be 1 to 64"}, {8, 2, 96, 64, 128, "tp 128: must be"},
	} {
		m := &Config{Heads: c.heads, KVHeads: c.kv, IntermediateSize: c.wide, HiddenSize: c.hidden}
		err := m.CheckTP(c.tp)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
}

func TestSegmentsDivideHeadsAndWidth(t *testing.T) {
	for _, c := range []struct{ heads, wide, want, forThree int }{
		{8, 96, 8, 3}, {24, 96, 8, 3}, {6, 50, 2, 3}, {4, 80, 4, 3}, {12, 24, 4, 3}, {9, 9, 1, 3},
		{8, 50, 2, 3},
	} {
		m := &Config{Heads: c.heads, IntermediateSize: c.wide}
		require.Equal(t, c.want, m.Segments(), "%+v", c)
		require.Equal(t, c.forThree, m.SegmentsFor(3))
		require.Equal(t, c.want, m.SegmentsFor(1))
	}
	require.Equal(t, 16, (&Config{Heads: 16, IntermediateSize: 32}).SegmentsFor(16))
}

func TestHeadRangesTileTheVocabulary(t *testing.T) {
	// Shares are those of the vocabulary padded to 64: 65 ids are 128 padded, 16
	// for each of 8 ranks, so the ranks from 5 on have none.
	for _, v := range []int{1, 63, 64, 65, 71, 279, 301, 320, 151936, 151937} {
		for _, tp := range []int{1, 2, 3, 4, 8, 16, 64} {
			c, at := &Config{VocabSize: v}, 0
			for r := range tp {
				from, to := c.HeadRange(r, tp)
				require.Equal(t, at, from, "vocabulary %d, rank %d of %d", v, r, tp)
				require.LessOrEqual(t, to-from, c.HeadRows(tp))
				at = to
			}
			require.Equal(t, v, at, "vocabulary %d over %d ranks", v, tp)
		}
	}
	c := &Config{VocabSize: 65}
	require.Equal(t, 16, c.HeadRows(8))
	from, to := c.HeadRange(4, 8)
	require.Equal(t, []int{64, 65}, []int{from, to})
	from, to = c.HeadRange(7, 8)
	require.Equal(t, from, to)
}

func TestKeyHeadsGoToTheRanksOfTheirQueries(t *testing.T) {
	// Query head j uses key head j/(heads/keyHeads); all queries of a rank find
	// theirs on it. With r%keyHeads instead of blocks they would not.
	for _, m := range []Config{{Heads: 8, KVHeads: 2}, {Heads: 8, KVHeads: 8}, {Heads: 24,
		KVHeads: 4}, {Heads: 8, KVHeads: 1}} {
		for _, tp := range []int{1, 2, 4, 8} {
			for r := range tp {
				from, to := m.kvRange(r, tp)
				n := m.Heads / tp
				for j := r * n; j < (r+1)*n; j++ {
					head := j / (m.Heads / m.KVHeads)
					require.True(t, from <= head && head < to,
						"%d/%d heads, rank %d of %d: query %d",
						m.Heads, m.KVHeads, r, tp, j)
				}
				require.Equal(t, max(1, m.KVHeads/tp), to-from)
			}
		}
	}
}

func TestStopIDsComeFromAllFiles(t *testing.T) {
	type dict = map[string]any
	for name, c := range map[string]struct {
		config, generation any
		tokens             dict
		vocabulary         dict
		want               []int
	}{
		"none":             {},
		"config":           {config: 5, want: []int{5}},
		"list":             {config: []int{5, 6}, want: []int{5, 6}},
		"union, each once": {config: 5, generation: []int{6, 5}, want: []int{6, 5}},
		"tokenizer, own": {config: 5, tokens: dict{"eos_token": "E",
			"added_tokens_decoder": dict{"9": dict{"content": "E"}}}, want: []int{5, 9}},
		"tokenizer, object": {tokens: dict{"eos_token": dict{"content": "E"},
			"added_tokens_decoder": dict{"9": dict{"content": "E"}}}, want: []int{9}},
		"tokenizer.json": {tokens: dict{"eos_token": "E"},
			vocabulary: dict{"added_tokens": []dict{{"id": 8, "content": "E"}}}, want: []int{8}},
		"vocabulary": {tokens: dict{"eos_token": "E"},
			vocabulary: dict{"model": dict{"vocab": dict{"E": 7}}}, want: []int{7}},
		"no tokenizer.json": {config: 5, tokens: dict{"eos_token": "E"}, want: []int{5}},
	} {
		f := newFixture(1, dict{"eos_token_id": c.config})
		dir := t.TempDir()
		writeJSON(t, dir, "config.json", f.config)
		if c.generation != nil {
			writeJSON(t, dir, "generation_config.json", dict{"eos_token_id": c.generation})
		}
		if c.tokens != nil {
			writeJSON(t, dir, "tokenizer_config.json", c.tokens)
		}
		if c.vocabulary != nil {
			writeJSON(t, dir, tokenizerFile, c.vocabulary)
		}
		got, err := ReadConfig(dir)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.StopIDs, name)
	}
}

func TestABrokenFileOfStopIDsIsNamed(t *testing.T) {
	for file, text := range map[string]string{
		"generation_config.json": `{"eos_token_id": [1, "x"]}`,
		"tokenizer_config.json":  `{"eos_token": 3}`,
	} {
		dir := t.TempDir()
		writeJSON(t, dir, "config.json", newFixture(1, nil).config)
		writeFile(t, dir, file, []byte(text))
		_, err := ReadConfig(dir)
		require.ErrorContains(t, err, file)
		writeFile(t, dir, file, []byte("{"))
		_, err = ReadConfig(dir)
		require.ErrorContains(t, err, file)
	}
}
