package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"octet/model"
)

// prompt is one prompt as the user gave it and as the model takes it.
type prompt struct {
	name string // how reports call it
	text string // "" when it was given as ids
	ids  []int
}

// promptFlags are the prompts of a command line.
type promptFlags struct {
	texts  []string
	ids    []string
	files  []string
	maxNew int
}

func (p *promptFlags) register(f *pflag.FlagSet) {
	f.StringArrayVar(&p.texts, "prompt", nil, "prompt `TEXT`; may be repeated")
	f.StringArrayVar(&p.ids, "ids", nil, "prompt as token `IDS`, 1,2,3; may be repeated")
	f.StringArrayVar(&p.files, "prompt-file", nil, "`FILE` with a prompt a line; may be repeated")
	f.IntVar(&p.maxNew, "max-new-tokens", 16, "tokens to generate for each prompt, at least 1")
}

// read gives the prompts in the order texts, files, ids; empty when none were
// given.
func (p *promptFlags) read(t *target) ([]prompt, error) {
	if p.maxNew < 1 {
		return nil, refuse("--max-new-tokens is %d, want at least 1", p.maxNew)
	}
	texts, err := p.allTexts()
	if err != nil {
		return nil, err
	}
	var all []prompt
	for _, text := range texts {
		if t.tok == nil {
			return nil, refuse("the model has no tokenizer.json: give prompts as --ids")
		}
		all = append(all, prompt{name: clip(text), text: text, ids: t.tok.Encode(text)})
	}
	for _, list := range p.ids {
		ids, err := parseIDs(list)
		if err != nil {
			return nil, err
		}
		all = append(all, prompt{name: "ids " + clip(list), ids: ids})
	}
	for _, one := range all {
		if err := checkPrompt(one, t, p.maxNew); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (p *promptFlags) allTexts() ([]string, error) {
	texts := append([]string(nil), p.texts...)
	for _, name := range p.files {
		f, err := os.Open(name)
		if err != nil {
			return nil, refuse("--prompt-file: %w", err)
		}
		lines, err := readLines(f)
		f.Close()
		if err != nil {
			return nil, refuse("--prompt-file %s: %w", name, err)
		}
		if len(lines) == 0 {
			return nil, refuse("--prompt-file %s has no prompt: want one a line", name)
		}
		texts = append(texts, lines...)
	}
	return texts, nil
}

// lineBytesMax bounds a line of a prompt file.
const lineBytesMax = 16 << 20

// readLines gives the lines that hold more than white space. A byte order mark
// at the beginning is no text.
func readLines(r io.Reader) ([]string, error) {
	var texts []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, lineBytesMax)
	n := 0
	for lines.Scan() {
		n++
		text := lines.Text()
		if n == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("line %d is not UTF-8 text", n)
		}
		if strings.TrimSpace(text) != "" {
			texts = append(texts, text)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d has more than %d bytes", n+1, lineBytesMax)
	}
	return texts, lines.Err()
}

func parseIDs(list string) ([]int, error) {
	var ids []int
	for field := range strings.SplitSeq(list, ",") {
		id, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, refuse("--ids %q: %q is not a token id (want 1,2,3)", clip(list), field)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func checkPrompt(p prompt, t *target, maxNew int) error {
	if len(p.ids) == 0 {
		return refuse("prompt %q has no tokens", p.name)
	}
	for _, id := range p.ids {
		if id < 0 || id >= t.config.VocabSize {
			return refuse("prompt %q: token id %d is outside the vocabulary of %d",
				p.name, id, t.config.VocabSize)
		}
	}
	if maxNew < 1 {
		return refuse("prompt %q: %d tokens wanted, want at least 1", p.name, maxNew)
	}
	if maxNew > t.positions-len(p.ids) {
		return refuse("prompt %q: %d tokens and %d new ones pass the %d positions of a sequence "+
			"(max_position_embeddings, or --max_positions)", p.name, len(p.ids), maxNew, t.positions)
	}
	return nil
}

// verifyLengths are the prompt lengths of a verify run without prompts: below,
// at and past a row alignment of 16 and a padding of 16 * 8.
var verifyLengths = []int{16, 17, 128, 129, 200}

// defaultPrompts cuts prompts of verifyLengths from one generated story.
func defaultPrompts(tok *model.Tokenizer) ([]prompt, error) {
	if tok == nil {
		return nil, refuse("the model has no tokenizer.json: give prompts as --ids")
	}
	var ids []int
	total := 0
	for _, n := range verifyLengths {
		total += n
	}
	for i := 0; len(ids) < total; i++ {
		ids = append(ids, tok.Encode(storyLine(i)+"\n")...)
	}
	var all []prompt
	for _, n := range verifyLengths {
		all = append(all, prompt{name: fmt.Sprintf("%d tokens", n), ids: ids[:n]})
		ids = ids[n:]
	}
	return all, nil
}

// storyLine is the i'th line of the story: sums, counts and animals.
func storyLine(i int) string {
	animals := []string{"fox", "cat", "dog", "cow", "bee", "owl"}
	food := []string{"berries", "fish", "bones", "grass", "pollen", "mice"}
	k := i * 5 % len(animals)
	switch i % 3 {
	case 0:
		return fmt.Sprintf("What does the %s eat? The %s eats %s.", animals[k], animals[k], food[k])
	case 1:
		return fmt.Sprintf("%d plus %d is %d.", i%10, i*7%10, i%10+i*7%10)
	}
	return fmt.Sprintf("count: %d %d %d %d.", i, i+1, i+2, i+3)
}

// clip shortens a name for a report.
func clip(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}
