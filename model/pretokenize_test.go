package model

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func words(p splitter, s string) []string {
	var out []string
	for len(s) > 0 {
		n := p.next(s)
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func TestTextIsSplitByTheSevenBranches(t *testing.T) {
	letters, _ := newSplitter(patternLetters)
	marks, _ := newSplitter(patternMarks)
	for _, c := range []struct {
		text string
		want []string
	}{
		{"Hello world", []string{"Hello", " world"}},
		{"  Hello  world ", []string{" ", " Hello", " ", " world", " "}},
		{"it's I'LL we'RE don't", []string{"it", "'s", " I", "'LL", " we", "'RE", " don", "'t"}},
		{"'\u017fa", []string{"'\u017f", "a"}},
		{"'sam", []string{"'s", "am"}},
		{"'xam", []string{"'xam"}},
		{"'", []string{"'"}},
		{"'r", []string{"'r"}},
		{"a''s", []string{"a", "''", "s"}},
		{"1234", []string{"1", "2", "3", "4"}},
		{" 12", []string{" ", "1", "2"}},
		{"x²½Ⅷ", []string{"x", "²", "½", "Ⅷ"}},
		{"3.14!", []string{"3", ".", "1", "4", "!"}},
		{"foo_bar(baz)==0;//c", []string{"foo", "_bar", "(baz", ")==", "0", ";//", "c"}},
		{"a!\r\n\r\nb", []string{"a", "!\r\n\r\n", "b"}},
		{" !? ", []string{" !?", " "}},
		{"\n\n\n", []string{"\n\n\n"}},
		{"x\n\n  y", []string{"x", "\n\n", " ", " y"}},
		{"x \n \n", []string{"x", " \n \n"}},
		{"tab\tnew\nline", []string{"tab", "\tnew", "\n", "line"}},
		{"\t\tx", []string{"\t", "\tx"}},
		{"\t\t1", []string{"\t", "\t", "1"}},
		{"a\u00a0\u3000b", []string{"a", "\u00a0", "\u3000b"}},
		{"a\u200bb", []string{"a", "\u200bb"}}, // no white space by Unicode
		{"a\u0085b", []string{"a", "\u0085b"}},
		{"你好，世界！", []string{"你好", "，世界", "！"}},
		{"😀👨", []string{"😀👨"}},
	} {
		require.Equal(t, c.want, words(letters, c.text), "%q", c.text)
		require.Equal(t, c.want, words(marks, c.text), "%q, marks", c.text)
	}
	// A virama is a mark: it ends a word for one pattern only.
	require.Equal(t, []string{"नमस", "्त", "े"}, words(letters, "नमस्ते"))
	require.Equal(t, []string{"नमस्ते"}, words(marks, "नमस्ते"))
	require.Equal(t, []string{"!\u0301\n"}, words(letters, "!\u0301\n"))
	require.Equal(t, []string{"!\u0301", "\n"}, words(marks, "!\u0301\n"))
}

func TestOnlyTheTwoPatternsAreKnown(t *testing.T) {
	for _, p := range []string{"", `\p{L}+`, patternLetters + " ",
		strings.ToUpper(patternLetters)} {
		_, ok := newSplitter(p)
		require.False(t, ok, p)
	}
}

// regexpSplit splits by package regexp, with the look-ahead done by hand. It is
// slow and close to the text of the pattern.
func regexpSplit(pattern string) func(s string) []string {
	const space = `\s\x0b\x{85}\p{Z}`
	i := strings.Index(pattern, `|\s+(?!\S)`)
	first := strings.ReplaceAll(pattern[:i], `[^\s`, `[^`+space)
	first = strings.ReplaceAll(first, `\s*`, `[`+space+`]*`)
	branches := regexp.MustCompile(`^(?:` + first + `)`)
	run := regexp.MustCompile(`^[` + space + `]+`)
	return func(s string) (out []string) {
		for len(s) > 0 {
			word := branches.FindString(s)
			if word == "" {
				word = run.FindString(s)
				if chars := []rune(word); len(chars) > 1 && len(word) < len(s) {
					word = string(chars[:len(chars)-1])
				}
			}
			out = append(out, word)
			s = s[len(word):]
		}
		return out
	}
}

func TestTheScannerSplitsAsTheRegularExpression(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	alphabet := []rune(" \t\n\r\v'sStTrReEvVlLmMdD" +
		"xX019.,!_-²éßſK\u00a0\u2028\u3000\u0301\u200b्तم你😀")
	for _, pattern := range []string{patternLetters, patternMarks} {
		oracle := regexpSplit(pattern)
		p, ok := newSplitter(pattern)
		require.True(t, ok)
		for range 20_000 {
			text := make([]rune, r.IntN(12))
			for i := range text {
				text[i] = alphabet[r.IntN(len(alphabet))]
			}
			require.Equal(t, oracle(string(text)), words(p, string(text)), "seed %d: %q", seed,
				string(text))
		}
	}
}

func TestWordsOfPublishedVectorsEndWhereTokensDo(t *testing.T) {
	// No token crosses the end of a word. The vectors give the tokens of the
	// published tokenizer, so a split inside one of them is wrong.
	raw, err := os.ReadFile(filepath.Join("..", "..", "shared", "golden", "tokenizer-vectors.json"))
	if err != nil {
		t.Skipf("tokenizer-vectors.json is not here: %v", err)
	}
	var file struct {
		Cases []struct {
			Name   string   `json:"name"`
			NFC    string   `json:"nfc"`
			Tokens []string `json:"tokens"`
		} `json:"cases"`
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	p, _ := newSplitter(patternLetters)
	checked := 0
	for _, c := range file.Cases {
		ends, at := map[int]bool{}, 0
		var spelled []byte
		for _, token := range c.Tokens {
			spelled = append(spelled, spelledBytes(token)...)
			ends[len(spelled)] = true
		}
		if string(spelled) != c.NFC || strings.Contains(c.NFC, "<|") || strings.Contains(c.NFC,
			"<t") {
			continue // added tokens are cut out before words
		}
		checked++
		for _, word := range words(p, c.NFC) {
			at += len(word)
			require.True(t, ends[at], "%s: %q ends inside a token", c.Name, word)
		}
	}
	require.Greater(t, checked, 50)
}
