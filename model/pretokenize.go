package model

import (
	"unicode"
	"unicode/utf8"
)

// The patterns that tokenizer.json may split text by. They are recognised as
// texts and scanned by hand: the look-ahead in them is not for package regexp.
const (
	patternLetters = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` +
		`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternMarks = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}` +
		`| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitter cuts text into the words that merges do not cross.
type splitter struct {
	marks bool // combining marks are part of words, as patternMarks has it
}

// newSplitter returns the splitter of a pattern, if it is one of the two.
func newSplitter(pattern string) (splitter, bool) {
	return splitter{marks: pattern == patternMarks},
		pattern == patternMarks || pattern == patternLetters
}

func (p splitter) letter(r rune) bool { return unicode.IsLetter(r) || p.marks && unicode.IsMark(r) }

// symbol is what neither letters, digits nor white space are.
func (p splitter) symbol(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsNumber(r) && !p.letter(r)
}

func newline(r rune) bool { return r == '\r' || r == '\n' }

// next is the length in bytes of the first word of s, which is valid UTF-8 and
// not empty. The branches stand in the order of the pattern: the first that
// matches wins, however short its match.
func (p splitter) next(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	first, size := utf8.DecodeRuneInString(s)
	if p.letter(first) {
		return runLength(s, p.letter)
	}
	number := unicode.IsNumber(first)
	if !newline(first) && !number {
		if n := runLength(s[size:], p.letter); n > 0 {
			return size + n
		}
	}
	if number {
		return size
	}
	blank := 0
	if first == ' ' {
		blank = 1
	}
	if n := runLength(s[blank:], p.symbol); n > 0 {
		n += blank
		return n + runLength(s[n:], newline)
	}
	return whiteSpace(s)
}

// contraction is the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of
// s, in either case, else 0. A long s folds to s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	if s[1:3] == "\u017f" {
		return 3
	}
	switch string([]byte{s[1] | 0x20, s[2] | 0x20}) {
	case "re", "ve", "ll":
		return 3
	}
	return 0
}

// whiteSpace is the length of the word that white space at the start of s
// makes: up to the last line end of the run; else the run without its last
// character, which goes with what follows, unless nothing follows.
func whiteSpace(s string) int {
	run := runLength(s, unicode.IsSpace)
	for i := run; i > 0; i-- {
		if newline(rune(s[i-1])) {
			return i
		}
	}
	_, last := utf8.DecodeLastRuneInString(s[:run])
	if run == len(s) || run == last {
		return run
	}
	return run - last
}

// runLength is the length in bytes of the characters at the start of s that
// are in a class.
func runLength(s string, class func(rune) bool) int {
	for i, r := range s {
		if !class(r) {
			return i
		}
	}
	return len(s)
}
