package model

import (
	"unicode/utf8"
)

// Decode returns the text of ids. Bytes that are no UTF-8 become U+FFFD, one
// for each longest start of a character, and ids that the tokenizer does not
// know become nothing: a model may have more rows than its tokenizer has tokens.
func (t *Tokenizer) Decode(ids []int) string {
	s := t.Stream()
	var text []byte
	for _, id := range ids {
		text = s.append(text, id)
	}
	return string(append(text, s.Rest()...))
}

// Stream turns tokens into text as they come. The pieces that it returns are
// whole characters, and put together they are the Decode of all tokens.
type Stream struct {
	tokens *Tokenizer
	begun  []byte // the start of a character, at most three bytes
}

// Stream begins a text.
func (t *Tokenizer) Stream() *Stream { return &Stream{tokens: t} }

// Next takes a token and returns the characters that it completes.
func (s *Stream) Next(id int) string { return string(s.append(nil, id)) }

// Rest ends the text: what is left of an incomplete character becomes U+FFFD.
func (s *Stream) Rest() string {
	if len(s.begun) == 0 {
		return ""
	}
	s.begun = nil
	return string(utf8.RuneError)
}

func (s *Stream) append(text []byte, id int) []byte {
	s.begun = append(s.begun, s.tokens.token(id)...)
	text, n := appendWhole(text, s.begun)
	s.begun = s.begun[:copy(s.begun, s.begun[n:])]
	return text
}

// appendWhole appends the characters of b to text, U+FFFD for what is none, and
// returns how many bytes it took: all but the start of a character at the end.
func appendWhole(text, b []byte) ([]byte, int) {
	n := 0
	for n < len(b) && utf8.FullRune(b[n:]) {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			size = brokenLength(b[n:])
		}
		text = utf8.AppendRune(text, r)
		n += size
	}
	return text, n
}

// brokenLength is the length of the longest start of a character that b, which
// does not begin with a whole one, begins with; 1 if it begins with none.
func brokenLength(b []byte) int {
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n]) {
		n++
	}
	if n > 1 && utf8.FullRune(b[:n]) {
		n--
	}
	return n
}

// validText is s with U+FFFD for what is no UTF-8.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	text, n := appendWhole(nil, []byte(s))
	if n < len(s) {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	return string(text)
}
