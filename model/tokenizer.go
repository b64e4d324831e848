package model

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

const (
	tokenizerFile  = "tokenizer.json"
	tokenizerBytes = 256 << 20
	tokensMax      = 1 << 22
	wordBytes      = 32 // words up to this length are remembered while a text is encoded
)

// Tokenizer is a byte-level BPE tokenizer as Qwen's tokenizer.json describes
// it. It does not change, so goroutines may share it.
type Tokenizer struct {
	split   splitter
	compose bool                 // text is brought to NFC
	bytes   [256]int             // ids of single bytes
	merges  map[[2]int]mergeRule // by the ids of the two halves
	tokens  [][]byte             // by id; nil where there is none
	special map[int]bool

	// Added tokens, which are cut out before and after text is brought to NFC.
	before, after addedTokens
}

// mergeRule joins two neighbours; the least rank goes first.
type mergeRule struct{ rank, id int }

// addedToken is a text that is always one token.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// addedTokens finds them by their first byte, the longest first.
type addedTokens map[byte][]addedToken

// ReadTokenizer reads tokenizer.json in dir. It refuses by name whatever would
// split or join text in another way than this package does.
func ReadTokenizer(dir string) (*Tokenizer, error) {
	file := filepath.Join(dir, tokenizerFile)
	raw, err := readRegular(file, tokenizerBytes)
	if err != nil {
		return nil, err
	}
	t, err := parseTokenizer(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return t, nil
}

// tokenizerJSON is the part of the file that matters.
type tokenizerJSON struct {
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    *tokenizerPart  `json:"normalizer"`
	PreTokenizer  *tokenizerPart  `json:"pre_tokenizer"`
	PostProcessor *tokenizerPart  `json:"post_processor"`
	Decoder       *tokenizerPart  `json:"decoder"`
	Model         struct {
		Type         string          `json:"type"`
		Dropout      float64         `json:"dropout"`
		Prefix       string          `json:"continuing_subword_prefix"`
		Suffix       string          `json:"end_of_word_suffix"`
		ByteFallback bool            `json:"byte_fallback"`
		IgnoreMerges bool            `json:"ignore_merges"`
		Vocab        map[string]int  `json:"vocab"`
		Merges       json.RawMessage `json:"merges"`
	} `json:"model"`
}

// tokenizerPart is a step of the pipeline.
type tokenizerPart struct {
	Type          string          `json:"type"`
	Normalizers   []tokenizerPart `json:"normalizers"`
	Pretokenizers []tokenizerPart `json:"pretokenizers"`
	Pattern       struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Behavior       string `json:"behavior"`
	Invert         bool   `json:"invert"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	UseRegex       *bool  `json:"use_regex"` // true when it is missing
}

func parseTokenizer(raw []byte) (*Tokenizer, error) {
	var file tokenizerJSON
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, err
	}
	t := &Tokenizer{special: map[int]bool{}}
	for _, read := range []func(*tokenizerJSON) error{
		t.readPipeline, t.readVocabulary, t.readMerges, t.readAdded} {
		if err := read(&file); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// readPipeline checks all that happens round the merges.
func (t *Tokenizer) readPipeline(file *tokenizerJSON) error {
	for name, v := range map[string]json.RawMessage{
		"truncation": file.Truncation, "padding": file.Padding} {
		if len(v) > 0 && string(v) != "null" {
			return fmt.Errorf("%s is set: not supported", name)
		}
	}
	switch n := file.Normalizer; {
	case n == nil:
	case n.Type == "NFC" || n.Type == "Sequence" && len(n.Normalizers) == 1 &&
		n.Normalizers[0].Type == "NFC":
		t.compose = true
	default:
		return fmt.Errorf("normalizer %q is not supported: NFC is", n.Type)
	}
	if p := file.PostProcessor; p != nil && p.Type != "ByteLevel" {
		return fmt.Errorf("post_processor %q is not supported: ByteLevel is", p.Type)
	}
	if d := file.Decoder; d == nil || d.Type != "ByteLevel" {
		return errors.New("decoder is not ByteLevel")
	}
	p := file.PreTokenizer
	if p == nil || p.Type != "Sequence" || len(p.Pretokenizers) != 2 ||
		p.Pretokenizers[0].Type != "Split" || p.Pretokenizers[1].Type != "ByteLevel" {
		return errors.New("pre_tokenizer is not a Sequence of Split and ByteLevel")
	}
	cut, level := p.Pretokenizers[0], p.Pretokenizers[1]
	var ok bool
	if t.split, ok = newSplitter(cut.Pattern.Regex); !ok {
		return fmt.Errorf("split pattern %q is not supported: those of Qwen3 and Qwen3.5 are",
			cut.Pattern.Regex)
	}
	if cut.Behavior != "Isolated" || cut.Invert {
		return fmt.Errorf("split behaviour %q (invert %v) is not supported: Isolated is",
			cut.Behavior, cut.Invert)
	}
	if level.AddPrefixSpace || level.UseRegex == nil || *level.UseRegex {
		return errors.New("ByteLevel with add_prefix_space or use_regex is not supported")
	}
	switch m := file.Model; {
	case m.Type != "BPE" && m.Type != "":
		return fmt.Errorf("model type %q is not supported: BPE is", m.Type)
	case m.Dropout != 0 || m.Prefix != "" || m.Suffix != "" || m.ByteFallback || m.IgnoreMerges:
		return errors.New("model with dropout, continuing_subword_prefix, end_of_word_suffix, " +
			"byte_fallback or ignore_merges is not supported")
	}
	return nil
}

// readVocabulary fills tokens and bytes.
func (t *Tokenizer) readVocabulary(file *tokenizerJSON) error {
	for text, id := range file.Model.Vocab {
		if err := t.place(id, text, spelledBytes(text)); err != nil {
			return err
		}
	}
	for b, r := range byteLetters() {
		id, ok := file.Model.Vocab[string(r)]
		if !ok {
			return fmt.Errorf("vocabulary has no token for byte 0x%02x", b)
		}
		t.bytes[b] = id
	}
	return nil
}

// place gives the id of a token its bytes.
func (t *Tokenizer) place(id int, text string, b []byte) error {
	switch {
	case id < 0 || id >= tokensMax:
		return fmt.Errorf("token %q has id %d: must be below %d", text, id, tokensMax)
	case text == "":
		return fmt.Errorf("token %d is empty", id)
	}
	if id >= len(t.tokens) {
		t.tokens = append(t.tokens, make([][]byte, id+1-len(t.tokens))...)
	}
	if was := t.tokens[id]; was != nil && string(was) != string(b) {
		return fmt.Errorf("tokens %q and %q have the id %d", was, b, id)
	}
	t.tokens[id] = b
	return nil
}

// byteLetters is the character that spells each byte in the vocabulary: itself
// if it is printable, else one of those from U+0100 on.
func byteLetters() [256]rune {
	var letters [256]rune
	next := rune(0x100)
	for b := range letters {
		if b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad {
			letters[b] = rune(b)
		} else {
			letters[b], next = next, next+1
		}
	}
	return letters
}

// letterBytes is byteLetters turned round.
var letterBytes = func() map[rune]byte {
	m := map[rune]byte{}
	for b, r := range byteLetters() {
		m[r] = byte(b)
	}
	return m
}()

// spelledBytes are the bytes that text spells. A text with a character that
// spells none stands for itself.
func spelledBytes(text string) []byte {
	b := make([]byte, 0, len(text))
	for _, r := range text {
		v, ok := letterBytes[r]
		if !ok {
			return []byte(text)
		}
		b = append(b, v)
	}
	return b
}

// readMerges takes both forms, "a b" and ["a", "b"].
func (t *Tokenizer) readMerges(file *tokenizerJSON) error {
	merges, err := mergeHalves(file.Model.Merges)
	if err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	t.merges = make(map[[2]int]mergeRule, len(merges))
	for rank, halves := range merges {
		if len(halves) != 2 {
			return fmt.Errorf("merge %d %.60q: two tokens wanted", rank, halves)
		}
		var ids [3]int
		for i, s := range []string{halves[0], halves[1], halves[0] + halves[1]} {
			id, ok := file.Model.Vocab[s]
			if !ok {
				return fmt.Errorf("merge %d %.60q: the vocabulary has no %.60q", rank, halves, s)
			}
			ids[i] = id
		}
		t.merges[[2]int{ids[0], ids[1]}] = mergeRule{rank, ids[2]}
	}
	return nil
}

// mergeHalves is the list of merges as pairs, if nothing is wrong with it.
func mergeHalves(raw json.RawMessage) (pairs [][]string, err error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var joined []string
	if json.Unmarshal(raw, &joined) != nil {
		return pairs, json.Unmarshal(raw, &pairs)
	}
	for _, text := range joined {
		pairs = append(pairs, strings.Split(text, " "))
	}
	return pairs, nil
}

// readAdded sorts the added tokens by when they are cut out.
func (t *Tokenizer) readAdded(file *tokenizerJSON) error {
	t.before, t.after = addedTokens{}, addedTokens{}
	for _, a := range file.AddedTokens {
		if a.SingleWord || a.LStrip || a.RStrip {
			return fmt.Errorf("added token %q with single_word, lstrip or rstrip is not supported",
				a.Content)
		}
		if err := t.place(a.ID, a.Content, []byte(a.Content)); err != nil {
			return err
		}
		t.special[a.ID] = a.Special
		list := t.before
		if a.Normalized && t.compose {
			list, a.Content = t.after, norm.NFC.String(a.Content)
		}
		list[a.Content[0]] = append(list[a.Content[0]], a)
	}
	for _, list := range []addedTokens{t.before, t.after} {
		for _, same := range list {
			slices.SortFunc(same, func(a, b addedToken) int {
				return cmp.Compare(len(b.Content), len(a.Content))
			})
		}
	}
	return nil
}

// Size is one more than the largest id.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// Special reports whether id is a control token, such as the end of a turn,
// that readers of the text do not want to see.
func (t *Tokenizer) Special(id int) bool { return t.special[id] }

// token is the bytes of an id, none for an id that is not known.
func (t *Tokenizer) token(id int) []byte {
	if id < 0 || id >= len(t.tokens) {
		return nil
	}
	return t.tokens[id]
}

// Encode returns the ids of text. Added tokens are cut out wherever they stand,
// the longest at the leftmost place; nothing is put in front. What is no UTF-8
// counts as U+FFFD.
func (t *Tokenizer) Encode(text string) []int {
	e := &encoder{Tokenizer: t, words: map[string][]int{}}
	t.before.cut(validText(text), e.add, func(part string) {
		if t.compose {
			part = norm.NFC.String(part)
		}
		t.after.cut(part, e.add, e.text)
	})
	return e.ids
}

// cut gives added tokens to found and the text between them to rest, in order.
func (a addedTokens) cut(text string, found func(id int), rest func(text string)) {
	from := 0
	for i := 0; i < len(text); {
		token, ok := a.at(text[i:])
		if !ok {
			i++
			continue
		}
		rest(text[from:i])
		found(token.ID)
		i += len(token.Content)
		from = i
	}
	rest(text[from:])
}

func (a addedTokens) at(text string) (addedToken, bool) {
	for _, token := range a[text[0]] {
		if strings.HasPrefix(text, token.Content) {
			return token, true
		}
	}
	return addedToken{}, false
}

// encoder is one call of Encode.
type encoder struct {
	*Tokenizer
	ids   []int
	words map[string][]int // short words that came before
}

func (e *encoder) add(id int) { e.ids = append(e.ids, id) }

func (e *encoder) text(s string) {
	for len(s) > 0 {
		n := e.split.next(s)
		word := s[:n]
		s = s[n:]
		ids, ok := e.words[word]
		if !ok {
			ids = e.merge(word)
			if n <= wordBytes {
				e.words[word] = ids
			}
		}
		e.ids = append(e.ids, ids...)
	}
}

// merge joins the bytes of a word, always the pair of least rank, the leftmost
// of equals. Pairs wait in a heap, so a long word costs n log n.
func (t *Tokenizer) merge(word string) []int {
	w := mergeWord{ids: make([]int, len(word)), next: make([]int, len(word)), prev: make([]int,
		len(word))}
	for i := range len(word) {
		w.ids[i], w.next[i], w.prev[i] = t.bytes[word[i]], i+1, i-1
	}
	for i := range len(word) {
		w.push(t, i)
	}
	for len(w.pairs) > 0 {
		p := heap.Pop(&w.pairs).(mergePair)
		right := w.next[p.at]
		if right == len(word) || w.ids[p.at] != p.left || w.ids[right] != p.right {
			continue // one of the two has been joined since
		}
		w.ids[p.at], w.ids[right] = p.id, -1
		w.next[p.at] = w.next[right]
		if after := w.next[right]; after < len(word) {
			w.prev[after] = p.at
		}
		if w.prev[p.at] >= 0 {
			w.push(t, w.prev[p.at])
		}
		w.push(t, p.at)
	}
	return slices.DeleteFunc(w.ids, func(id int) bool { return id < 0 })
}

// mergeWord is a word on the way: a list of ids, linked by their first bytes.
// An id that its left neighbour has taken in is -1.
type mergeWord struct {
	ids, next, prev []int
	pairs           mergePairs
}

// push offers the pair that starts at byte i, if there is a rule for it.
func (w *mergeWord) push(t *Tokenizer, i int) {
	if w.next[i] == len(w.ids) {
		return
	}
	left, right := w.ids[i], w.ids[w.next[i]]
	if rule, ok := t.merges[[2]int{left, right}]; ok {
		heap.Push(&w.pairs, mergePair{rule, i, left, right})
	}
}

// mergePair is a rule that applies at a byte, as long as left and right stand
// there.
type mergePair struct {
	mergeRule
	at, left, right int
}

// mergePairs is a heap, least rank first, then leftmost.
type mergePairs []mergePair

func (m mergePairs) Len() int      { return len(m) }
func (m mergePairs) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m mergePairs) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(m[i].rank, m[j].rank), cmp.Compare(m[i].at, m[j].at)) < 0
}

// Push is for package heap.
func (m *mergePairs) Push(p any) { *m = append(*m, p.(mergePair)) }

// Pop is for package heap.
func (m *mergePairs) Pop() any {
	last := len(*m) - 1
	p := (*m)[last]
	*m = (*m)[:last]
	return p
}
