package model

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// tokenizerFixture is a tokenizer.json with the 256 bytes, some merges of the
// form "a b" or ["a", "b"], and added tokens.
func tokenizerFixture(merges [][2]string, lists bool) map[string]any {
	type dict = map[string]any
	vocab := map[string]int{}
	for b, r := range byteLetters() {
		vocab[string(r)] = b
	}
	var rules []any
	for _, m := range merges {
		if _, ok := vocab[m[0]+m[1]]; !ok {
			vocab[m[0]+m[1]] = len(vocab)
		}
		if lists {
			rules = append(rules, m)
		} else {
			rules = append(rules, m[0]+" "+m[1])
		}
	}
	next := len(vocab)
	return dict{
		"added_tokens": []dict{
			{"id": next, "content": "<|end|>", "special": true},
			{"id": next + 1, "content": "<|end|>>", "special": false},
			{"id": next + 3, "content": "\u00e9\u00e9", "special": false, "normalized": true},
		},
		"normalizer": dict{"type": "NFC"},
		"pre_tokenizer": dict{"type": "Sequence", "pretokenizers": []dict{
			{"type": "Split", "pattern": dict{"Regex": patternLetters}, "behavior": "Isolated"},
			{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}},
		"decoder": dict{"type": "ByteLevel"},
		"model":   dict{"type": "BPE", "vocab": vocab, "merges": rules},
	}
}

func parsed(t testing.TB, file map[string]any) *Tokenizer {
	t.Helper()
	raw, err := json.Marshal(file)
	require.NoError(t, err)
	tok, err := parseTokenizer(raw)
	require.NoError(t, err)
	return tok
}

// byteTokenizer has no merges.
func byteTokenizer(t testing.TB) *Tokenizer { return parsed(t, tokenizerFixture(nil, false)) }

func TestTokenizersOfTheGoldensAreExact(t *testing.T) {
	presets := append([]string{"qwen3_5-tp8", "qwen3_next-tp8"}, qwen3Presets...)
	for _, preset := range presets {
		t.Run(preset, func(t *testing.T) {
			dir := presetDir(t, preset)
			tok, err := ReadTokenizer(dir)
			require.NoError(t, err)
			facts := readPresetFacts(t, dir)
			require.Equal(t, facts.TokenizerSize, tok.Size())
			require.NotEmpty(t, facts.Cases)
			for _, c := range facts.Cases {
				ids := tok.Encode(c.Text)
				require.Equal(t, len(c.IDs), len(ids), "%q", c.Text)
				for i := range ids {
					require.Equal(t, c.IDs[i], ids[i], "%q, token %d", c.Text, i)
				}
				require.Equal(t, c.Decoded, tok.Decode(ids), "%q", c.Text)
			}
			for _, p := range facts.Prompts {
				if p.Text != nil {
					require.Equal(t, p.IDs, tok.Encode(*p.Text), "%q", *p.Text)
				}
			}
			for _, id := range facts.EosIDs {
				require.True(t, tok.Special(id))
			}
			require.False(t, tok.Special(tok.Size()-1), "</think> is text")
		})
	}
}

func TestAddedTokensAreCutOutBeforeAllElse(t *testing.T) {
	tok := byteTokenizer(t)
	const end, longer, accents = 256, 257, 259
	bytesOf := func(s string) (ids []int) {
		for _, b := range []byte(s) {
			ids = append(ids, int(b))
		}
		return ids
	}
	join := func(parts ...any) (ids []int) {
		for _, p := range parts {
			switch p := p.(type) {
			case string:
				ids = append(ids, bytesOf(p)...)
			case int:
				ids = append(ids, p)
			}
		}
		return ids
	}
	for text, want := range map[string][]int{
		"a<|end|>b":           join("a", end, "b"),
		"<|end|>>":            join(longer),
		"<|end|><|end|>>x":    join(end, longer, "x"),
		"<|end":               join("<|end"),
		"<|end|":              join("<|end|"),
		"<<|end|>":            join("<", end),
		"e\u0301":             join("\u00e9"),
		"e<|end|>\u0301":      join("e", end, "\u0301"), // composed between them only
		"e\u0301e\u0301e":     join(accents, "e"),       // found after composing
		"\u00e9\u00e9\u0301?": join(accents, "\u0301?"), // the accent stays apart
		"a\xff\xe4\xbdb":      join("a\ufffd\ufffdb"),
	} {
		require.Equal(t, want, tok.Encode(text), "%q", text)
	}
	require.True(t, tok.Special(end))
	require.False(t, tok.Special(longer))
	require.False(t, tok.Special(-1))
	require.Equal(t, 260, tok.Size())
	require.Equal(t, "<|end|>", tok.Decode([]int{end, 258}), "258 is a hole")
	require.Equal(t, "\u00e9\u00e9", tok.Decode([]int{accents}),
		"itself, not the bytes it may spell")
}

func TestBothFormsOfMergesAreRead(t *testing.T) {
	merges := [][2]string{{"a", "b"}, {"Ġ", "ab"}, {"ab", "ab"}}
	for _, lists := range []bool{false, true} {
		tok := parsed(t, tokenizerFixture(merges, lists))
		require.Equal(t, []int{258, 257}, tok.Encode("abab ab"))
		require.Equal(t, []int{258, 256}, tok.Encode("ababab"))
		require.Equal(t, "ababab", tok.Decode([]int{258, 256}))
	}
}

// plainMerge is the definition: again and again the leftmost pair of least rank.
func plainMerge(tok *Tokenizer, word string) []int {
	var ids []int
	for i := range len(word) {
		ids = append(ids, tok.bytes[word[i]])
	}
	for {
		best, at := mergeRule{rank: 1 << 60}, -1
		for i := 0; i+1 < len(ids); i++ {
			if rule, ok := tok.merges[[2]int{ids[i], ids[i+1]}]; ok && rule.rank < best.rank {
				best, at = rule, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = append(append(ids[:at:at], best.id), ids[at+2:]...)
	}
}

func TestMergesFollowTheirRanks(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		pool := []string{"a", "b", "c"}
		var merges [][2]string
		known := map[string]bool{"a": true, "b": true, "c": true}
		for len(merges) < 30 {
			m := [2]string{pool[r.IntN(len(pool))], pool[r.IntN(len(pool))]}
			if text := m[0] + m[1]; len(text) < 9 && !known[text] {
				known[text] = true
				pool = append(pool, text)
				merges = append(merges, m)
			}
		}
		r.Shuffle(len(merges), func(i, j int) { merges[i], merges[j] = merges[j], merges[i] })
		tok := parsed(t, tokenizerFixture(merges, true))
		for range 50 {
			word := make([]byte, 1+r.IntN(60))
			for i := range word {
				word[i] = "abc"[r.IntN(3)]
			}
			require.Equal(t, plainMerge(tok, string(word)), tok.merge(string(word)), "seed %d: %s",
				seed, word)
		}
	}
}

func TestALongWordIsQuick(t *testing.T) {
	// 200 000 letters: n squared would take minutes.
	tok := parsed(t, tokenizerFixture([][2]string{{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}},
		false))
	require.Len(t, tok.Encode(strings.Repeat("a", 200_000)), 25_000)
}

func TestTokenizersOfOtherKindsAreRefusedByName(t *testing.T) {
	type dict = map[string]any
	part := func(file dict,
		i int) dict {
		return file["pre_tokenizer"].(dict)["pretokenizers"].([]dict)[i]
	}
	for _, c := range []struct {
		spoil func(f dict)
		want  string
	}{
		{func(f dict) { f["truncation"] = dict{"max_length": 3} }, "truncation is set"},
		{func(f dict) { f["padding"] = dict{} }, "padding is set"},
		{func(f dict) { f["normalizer"] = dict{"type": "NFKC"} }, `normalizer "NFKC"`},
		{func(f dict) { f["post_processor"] = dict{"type": "TemplateProcessing"} },
			`post_processor "TemplateProcessing"`},
		{func(f dict) { delete(f, "decoder") }, "decoder is not ByteLevel"},
		{func(f dict) { delete(f, "pre_tokenizer") }, "pre_tokenizer is not"},
		{func(f dict) { part(f, 0)["pattern"] = dict{"Regex": `\w+`} },
			`split pattern "\\w+" is not supported`},
		{func(f dict) { part(f, 0)["behavior"] = "Removed" }, `split behaviour "Removed"`},
		{func(f dict) { part(f, 0)["invert"] = true }, "invert true"},
		{func(f dict) { part(f, 1)["use_regex"] = true }, "use_regex"},
		{func(f dict) { delete(part(f, 1), "use_regex") }, "use_regex"},
		{func(f dict) { part(f, 1)["add_prefix_space"] = true }, "add_prefix_space"},
		{func(f dict) { f["model"].(dict)["type"] = "Unigram" }, `model type "Unigram"`},
		{func(f dict) { f["model"].(dict)["ignore_merges"] = true }, "ignore_merges"},
		{func(f dict) { f["model"].(dict)["byte_fallback"] = true }, "byte_fallback"},
		{func(f dict) { delete(f["model"].(dict)["vocab"].(map[string]int), "A") },
			"no token for byte 0x41"},
		{func(f dict) { f["model"].(dict)["vocab"].(map[string]int)["xx"] = 1 << 40 },
			`token "xx" has id`},
		{func(f dict) { f["model"].(dict)["vocab"].(map[string]int)["xx"] = -1 },
			`token "xx" has id -1`},
		{func(f dict) { f["model"].(dict)["vocab"].(map[string]int)["xx"] = 65 }, "have the id 65"},
		{func(f dict) { f["model"].(dict)["merges"] = []string{"a zz"} }, `no "zz"`},
		{func(f dict) { f["model"].(dict)["merges"] = []string{"a"} }, "merge 0"},
		{func(f dict) { f["model"].(dict)["merges"] = []any{[]string{"a", "b", "c"}} },
			"two tokens wanted"},
		{func(f dict) { f["model"].(dict)["merges"] = []int{3} }, "merges: json"},
		{func(f dict) { f["added_tokens"] = []dict{{"id": 300, "content": "x", "lstrip": true}} },
			"lstrip"},
		{func(f dict) { f["added_tokens"] = []dict{{"id": 300, "content": ""}} },
			"token 300 is empty"},
		{func(f dict) { f["added_tokens"] = []dict{{"id": 65, "content": "x"}} }, "have the id 65"},
	} {
		file := tokenizerFixture(nil, false)
		c.spoil(file)
		dir := t.TempDir()
		writeJSON(t, dir, tokenizerFile, file)
		_, err := ReadTokenizer(dir)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, filepath.Join(dir, tokenizerFile))
	}
	_, err := ReadTokenizer(t.TempDir())
	require.ErrorContains(t, err, tokenizerFile+": no such file")
}

func FuzzTokenizerRoundTrip(f *testing.F) {
	tok := parsed(f, tokenizerFixture([][2]string{{"t", "h"}, {"th", "e"}, {"Ġ", "the"}, {"Ã", "©"},
		{"e", "r"}, {"Ġ", "Ġ"}, {"ĠĠ", "ĠĠ"}, {"Ċ", "Ċ"}}, true))
	for _, s := range []string{"the other  they're\n\n x", "caf\u00e9 e\u0301\u0301",
		"a<|end|>>\xff", "    \r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text)
		again := tok.Decode(ids)
		valid := validText(text)
		if !strings.Contains(valid, "<|end|>") && !strings.Contains(norm.NFC.String(valid), "éé") {
			require.Equal(t, norm.NFC.String(valid), again)
		}
		for _, id := range ids {
			require.Less(t, id, tok.Size(), fmt.Sprint(ids))
		}
		var merged []int
		for _, word := range words(tok.split, again) {
			merged = append(merged, plainMerge(tok, word)...)
		}
		if !strings.Contains(again, "<|end|>") && !strings.Contains(again, "éé") {
			require.Equal(t, merged, ids)
		}
	})
}
