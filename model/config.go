package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Config is what the checkpoint says about the model.
type Config struct {
	ModelType        string // qwen3
	VocabSize        int    // rows of the embedding, whatever the tokenizer knows
	HiddenSize       int
	IntermediateSize int
	Layers           int
	Heads            int // query heads
	KVHeads          int // divides Heads
	HeadDim          int // even; a key of its own, not HiddenSize/Heads
	MaxPositions     int
	Eps              float32 // of every norm
	Tied             bool    // the head is the embedding
	AttentionBias    bool    // q, k, v and o have one
	Rope             Rope
	StopIDs          []int // any of them ends a text; each once
}

// Bounds of the numbers in a config. They are far above published models and
// low enough that no product of three of them overflows.
const (
	vocabMax     = 1 << 22
	widthMax     = 1 << 20 // hidden, intermediate, heads times head
	layersMax    = 1 << 10
	headDimMax   = 1 << 10
	positionsMax = 1 << 20 // sincos is exact below
	factorMax    = 1 << 20
	configBytes  = 16 << 20 // of a JSON file other than the tokenizer
	ranksMax     = 64
)

// ReadConfig reads config.json in dir and, where they exist, the stop ids of
// generation_config.json and tokenizer_config.json. It refuses, by the name of
// the key, whatever the forward pass does not do.
func ReadConfig(dir string) (*Config, error) {
	k, err := readKeys(dir, "config.json")
	if err != nil {
		return nil, err
	}
	c := &Config{ModelType: k.text("model_type", "")}
	k.refuseModel(c.ModelType)
	k.refuseVariants()
	c.VocabSize = k.whole("vocab_size", 1, vocabMax, required)
	c.HiddenSize = k.whole("hidden_size", 1, widthMax, required)
	c.IntermediateSize = k.whole("intermediate_size", 1, widthMax, required)
	c.Layers = k.whole("num_hidden_layers", 1, layersMax, required)
	c.Heads = k.whole("num_attention_heads", 1, widthMax, required)
	c.HeadDim = k.whole("head_dim", 2, headDimMax, required)
	c.KVHeads = c.Heads
	if !k.null("num_key_value_heads") {
		c.KVHeads = k.whole("num_key_value_heads", 1, widthMax, required)
	}
	c.MaxPositions = k.whole("max_position_embeddings", 1, positionsMax, 32768)
	c.Eps = float32(k.number("rms_norm_eps", 1e-12, 1, 1e-6))
	c.Tied = k.flag("tie_word_embeddings")
	c.AttentionBias = k.flag("attention_bias")
	k.layerTypes(c.Layers)
	if k.err != nil {
		return nil, k.err
	}
	if err := c.checkHeads(); err != nil {
		return nil, k.refusal(err)
	}
	if c.Rope = k.rope(c); k.err != nil {
		return nil, k.err
	}
	if c.StopIDs, err = stopIDs(dir, k, c.VocabSize); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) checkHeads() error {
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d %% num_key_value_heads %d != 0", c.Heads,
			c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim %d is odd: rope turns pairs", c.HeadDim)
	case c.Heads*c.HeadDim > widthMax:
		return fmt.Errorf("num_attention_heads %d * head_dim %d exceeds %d", c.Heads, c.HeadDim,
			widthMax)
	}
	return nil
}

// CheckTP says which rule forbids a group of tp ranks, with the key and both
// numbers, and which sizes the model allows.
func (c *Config) CheckTP(tp int) error {
	err := c.refuseTP(tp)
	if err == nil {
		return nil
	}
	var sizes []string
	for n := 1; n <= ranksMax; n++ {
		if c.refuseTP(n) == nil {
			sizes = append(sizes, strconv.Itoa(n))
		}
	}
	return fmt.Errorf("%w (this model allows tp %s)", err, strings.Join(sizes, ", "))
}

func (c *Config) refuseTP(tp int) error {
	switch {
	case tp < 1 || tp > ranksMax:
		return fmt.Errorf("tp %d: must be 1 to %d", tp, ranksMax)
	case c.Heads%tp != 0:
		return fmt.Errorf("num_attention_heads %d %% tp %d != 0", c.Heads, tp)
	case c.KVHeads >= tp && c.KVHeads%tp != 0:
		return fmt.Errorf("num_key_value_heads %d %% tp %d != 0", c.KVHeads, tp)
	case c.KVHeads < tp && tp%c.KVHeads != 0:
		return fmt.Errorf("tp %d %% num_key_value_heads %d != 0", tp, c.KVHeads)
	case c.IntermediateSize%tp != 0:
		return fmt.Errorf("intermediate_size %d %% tp %d != 0", c.IntermediateSize, tp)
	case c.HiddenSize%tp != 0:
		return fmt.Errorf("hidden_size %d %% tp %d != 0", c.HiddenSize, tp)
	}
	return nil
}

// Segments is S, the number of K-segments of a row-parallel product: the
// largest of 8, 4, 2 and 1 that divides the query heads and the MLP's width.
// A group of tp ranks, tp dividing S, computes S/tp of them on each; a group
// that does not divide S takes one segment a rank (SegmentsFor).
func (c *Config) Segments() int {
	for _, s := range []int{8, 4, 2} {
		if c.Heads%s == 0 && c.IntermediateSize%s == 0 {
			return s
		}
	}
	return 1
}

// SegmentsFor is the number of K-segments in a group of tp ranks: Segments
// where tp divides it, so that all such groups have equal bits, else tp.
func (c *Config) SegmentsFor(tp int) int {
	if s := c.Segments(); s%tp == 0 {
		return s
	}
	return tp
}

// vocabAlign is what the vocabulary is padded to before it is split.
const vocabAlign = 64

// HeadRows is the number of vocabulary rows of each rank when the padded
// vocabulary is split evenly; padded rows are counted though nobody holds them.
func (c *Config) HeadRows(tp int) int {
	padded := (c.VocabSize + vocabAlign - 1) / vocabAlign * vocabAlign
	return (padded + tp - 1) / tp
}

// HeadRange is the vocabulary rows [from, to) that a rank has in its head. A
// rank whose share is all padding has none.
func (c *Config) HeadRange(rank, tp int) (from, to int) {
	rows := c.HeadRows(tp)
	return min(rank*rows, c.VocabSize), min((rank+1)*rows, c.VocabSize)
}

// kvRange is the key and value heads [from, to) of a rank. With fewer heads
// than ranks, neighbouring ranks hold copies of one head.
func (c *Config) kvRange(rank, tp int) (from, to int) {
	if c.KVHeads >= tp {
		n := c.KVHeads / tp
		return rank * n, (rank + 1) * n
	}
	head := rank / (tp / c.KVHeads)
	return head, head + 1
}

// configKeys is a JSON object whose keys are read one by one. The first fault
// stays in err; values read after it mean nothing.
type configKeys struct {
	file   string
	values map[string]json.RawMessage
	err    error
}

func readKeys(dir, name string) (*configKeys, error) {
	file := filepath.Join(dir, name)
	raw, err := readRegular(file, configBytes)
	if err != nil {
		return nil, err
	}
	k := &configKeys{file: file}
	if err := json.Unmarshal(raw, &k.values); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if k.values == nil {
		return nil, fmt.Errorf("read %s: not an object", file)
	}
	return k, nil
}

// readRegular reads a file of at most limit bytes. Pipes and devices, which
// might never end, are refused.
func readRegular(file string, limit int64) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file, bareCause(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: not a regular file", file)
	case info.Size() > limit:
		return nil, fmt.Errorf("read %s: %d bytes, limit %d", file, info.Size(), limit)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, bareCause(err))
	}
	return raw, nil
}

// bareCause leaves out the path that an error of package os repeats.
func bareCause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (k *configKeys) refusal(err error) error { return fmt.Errorf("refuse %s: %w", k.file, err) }

func (k *configKeys) refuse(format string, args ...any) {
	if k.err == nil {
		k.err = k.refusal(fmt.Errorf(format, args...))
	}
}

// null reports whether a key is there with the value null.
func (k *configKeys) null(key string) bool { return string(k.values[key]) == "null" }

func (k *configKeys) has(key string) bool { return len(k.values[key]) > 0 && !k.null(key) }

// read decodes the value of a key and reports whether it has one.
func (k *configKeys) read(key string, into any) bool {
	if !k.has(key) {
		return false
	}
	if err := json.Unmarshal(k.values[key], into); err != nil {
		k.refuse("%s is %.40s: %s wanted", key, k.values[key], kindOf(into))
		return false
	}
	return true
}

func kindOf(v any) string {
	switch v.(type) {
	case *int:
		return "a whole number"
	case *float64:
		return "a number"
	case *bool:
		return "true or false"
	case *string:
		return "a string"
	case *[]string:
		return "a list of strings"
	}
	return "an object"
}

// required instead of a default: the key must be there.
const required = -1

func (k *configKeys) whole(key string, low, high, fallback int) int {
	v := fallback
	if !k.read(key, &v) && fallback == required {
		k.refuse("%s is missing", key)
	}
	if v < low || v > high {
		k.refuse("%s %d: must be %d to %d", key, v, low, high)
	}
	return v
}

func (k *configKeys) number(key string, low, high, fallback float64) float64 {
	v := fallback
	k.read(key, &v)
	if !(v >= low && v <= high) {
		k.refuse("%s %g: must be %g to %g", key, v, low, high)
	}
	return v
}

func (k *configKeys) flag(key string) bool {
	var v bool
	k.read(key, &v)
	return v
}

func (k *configKeys) text(key, fallback string) string {
	v := fallback
	k.read(key, &v)
	return v
}

// refuseModel names why a model type is none of ours.
func (k *configKeys) refuseModel(kind string) {
	switch {
	case kind == "qwen3":
	case strings.HasSuffix(kind, "_moe") || strings.HasSuffix(kind, "_moe_text"):
		k.refuse("model_type %q: routed experts are not supported", kind)
	case slices.Contains([]string{"qwen3_next", "qwen3_5", "qwen3_5_text"}, kind):
		k.refuse("model_type %q: hybrid models are not supported yet", kind)
	case kind == "":
		k.refuse("model_type is missing")
	default:
		k.refuse("model_type %q is not supported: qwen3 is", kind)
	}
}

// refuseVariants names settings that would change the forward pass.
func (k *configKeys) refuseVariants() {
	if k.has("text_config") {
		k.refuse("text_config: nested configs are not supported yet")
	}
	if k.has("quantization_config") {
		k.refuse("quantization_config: quantised weights are not supported")
	}
	if act := k.text("hidden_act", "silu"); act != "silu" {
		k.refuse("hidden_act %q is not supported: silu is", act)
	}
	if k.flag("use_sliding_window") {
		k.refuse("use_sliding_window true: sliding windows are not supported")
	}
	if k.whole("num_experts", 0, vocabMax, 0) > 0 {
		k.refuse("num_experts: routed experts are not supported")
	}
	for _, key := range []string{"layer_scale", "attn_output_gate", "mlp_bias"} {
		if k.flag(key) {
			k.refuse("%s true is not supported", key)
		}
	}
}

// layerTypes checks the list that a config may give of its layers.
func (k *configKeys) layerTypes(layers int) {
	var kinds []string
	if !k.read("layer_types", &kinds) {
		return
	}
	if len(kinds) != layers {
		k.refuse("layer_types has %d entries, num_hidden_layers is %d", len(kinds), layers)
	}
	for i, kind := range kinds {
		if kind != "full_attention" {
			k.refuse("layer_types[%d] %q is not supported: full_attention is", i, kind)
		}
	}
}

// stopIDs are the ids that end a text, from every file that names one: chat
// models often have the end of a turn in generation_config.json only.
func stopIDs(dir string, config *configKeys, vocab int) ([]int, error) {
	var ids []int
	for _, k := range []*configKeys{readOptional(dir, "generation_config.json"), config} {
		ids = append(ids, k.eosIDs()...)
		if k.err != nil {
			return nil, k.err
		}
	}
	k := readOptional(dir, "tokenizer_config.json")
	id, ok, err := k.eosToken(dir)
	if err != nil {
		return nil, err
	}
	if ok {
		ids = append(ids, id)
	}
	var out []int
	for _, id := range ids {
		if id < 0 || id >= vocab {
			return nil, config.refusal(fmt.Errorf("eos token id %d: vocab_size is %d", id, vocab))
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out, nil
}

// readOptional is readKeys where a missing file is an empty one.
func readOptional(dir, name string) *configKeys {
	k, err := readKeys(dir, name)
	if err != nil {
		k = &configKeys{file: filepath.Join(dir, name)}
		if !errors.Is(err, fs.ErrNotExist) {
			k.err = err
		}
	}
	return k
}

// eosIDs reads eos_token_id, which is an id or a list of them.
func (k *configKeys) eosIDs() []int {
	const key = "eos_token_id"
	if !k.has(key) {
		return nil
	}
	var one int
	var list []int
	switch {
	case json.Unmarshal(k.values[key], &one) == nil:
		return []int{one}
	case json.Unmarshal(k.values[key], &list) != nil:
		k.refuse("%s is %.40s: an id or a list of ids wanted", key, k.values[key])
	}
	return list
}

// eosToken looks up the id of tokenizer_config's eos_token, which is the token
// or an object with its content: in that file, else in tokenizer.json.
func (k *configKeys) eosToken(dir string) (id int, ok bool, err error) {
	if k.err != nil || !k.has("eos_token") {
		return 0, false, k.err
	}
	type token struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
	}
	var eos token
	if json.Unmarshal(k.values["eos_token"], &eos.Content) != nil {
		k.read("eos_token", &eos)
	}
	var own map[string]token
	k.read("added_tokens_decoder", &own)
	for key, t := range own {
		if id, err := strconv.Atoi(key); err == nil && t.Content == eos.Content {
			return id, true, k.err
		}
	}
	raw, err := readRegular(filepath.Join(dir, tokenizerFile), tokenizerBytes)
	if errors.Is(err, fs.ErrNotExist) || k.err != nil {
		return 0, false, k.err
	}
	var file struct {
		Added []token `json:"added_tokens"`
		Model struct {
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &file)
	}
	if err != nil {
		return 0, false, fmt.Errorf("look up eos_token: %w", err)
	}
	for _, t := range file.Added {
		if t.Content == eos.Content {
			return t.ID, true, nil
		}
	}
	id, ok = file.Model.Vocab[eos.Content]
	if !ok {
		k.refuse("eos_token %q has no id in %s", eos.Content, tokenizerFile)
	}
	return id, ok, k.err
}
