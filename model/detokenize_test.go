package model

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestBytesThatAreNoCharacterAreReplacedOnceAStart(t *testing.T) {
	// One U+FFFD for each longest start of a character, as Unicode recommends
	// and the reference library does.
	for text, want := range map[string]string{
		"":                     "",
		"a\xff\xffb":           "a\ufffd\ufffdb",
		"\xe4\xbd\xa0":         "你",
		"\xe4\xbda":            "\ufffda",
		"\xe4\xe4\xbd\xa0":     "\ufffd你",
		"\xf0\x9f\x98":         "\ufffd",
		"\xf0\x9f\x98x":        "\ufffdx",
		"\xf0\x9f\x98\x80":     "😀",
		"\xf0\x80\x80":         "\ufffd\ufffd\ufffd", // too long a form
		"\xed\xa0\x80":         "\ufffd\ufffd\ufffd", // a surrogate
		"\xf4\x90\x80\x80":     "\ufffd\ufffd\ufffd\ufffd",
		"\xc0\xaf":             "\ufffd\ufffd",
		"\x80":                 "\ufffd",
		"\ufffd":               "\ufffd",
		"\xe4\xbd\xf0\x9f\xff": "\ufffd\ufffd\ufffd",
	} {
		require.Equal(t, want, validText(text), "%q", text)
		tok := byteTokenizer(t)
		ids := make([]int, len(text))
		for i := range len(text) {
			ids[i] = tok.bytes[text[i]]
		}
		require.Equal(t, want, tok.Decode(ids), "%q", text)
	}
}

func TestAStreamNeverSplitsACharacter(t *testing.T) {
	tok := byteTokenizer(t)
	s := tok.Stream()
	var pieces []string
	for _, b := range []byte("é你😀!") {
		pieces = append(pieces, s.Next(tok.bytes[b]))
	}
	require.Equal(t, []string{"", "é", "", "", "你", "", "", "", "😀", "!"}, pieces)
	require.Empty(t, s.Rest())

	require.Empty(t, s.Next(tok.bytes[0xf0]))
	require.Equal(t, "\ufffda", s.Next(tok.bytes['a']), "a start that is not gone on with")
	require.Empty(t, s.Next(tok.bytes[0xe4]))
	require.Equal(t, "\ufffd", s.Rest())
	require.Empty(t, s.Rest(), "only once")
}

func TestUnknownIDsAreNothing(t *testing.T) {
	tok := byteTokenizer(t)
	require.Equal(t, "ab", tok.Decode([]int{-1, tok.bytes['a'], tok.Size(), 1 << 40,
		tok.bytes['b']}))
	s := tok.Stream()
	require.Empty(t, s.Next(tok.bytes[0xc3]))
	require.Empty(t, s.Next(tok.Size()), "also inside a character")
	require.Equal(t, "é", s.Next(tok.bytes[0xa9]))
}

func FuzzStreamIsDecode(f *testing.F) {
	tok := byteTokenizer(f)
	f.Add([]byte("é你😀\xf0\x9f\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := tok.Stream()
		var text strings.Builder
		ids := make([]int, len(raw))
		for i, b := range raw {
			ids[i] = tok.bytes[b]
			piece := s.Next(ids[i])
			require.True(t, utf8.ValidString(piece))
			text.WriteString(piece)
		}
		text.WriteString(s.Rest())
		require.Equal(t, tok.Decode(ids), text.String())
		require.Equal(t, string([]rune(string(raw))) == string(raw), text.String() == string(raw))
	})
}
