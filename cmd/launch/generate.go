package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"octet/cluster"
	"octet/model"
)

func generateCommand() *cobra.Command {
	var g groupFlags
	var p promptFlags
	var s model.Sampling
	c := &cobra.Command{
		Use:   "generate",
		Short: "prompts in, tokens out, streamed as they come",
		Long: "Generate answers prompts: text with text, ids with ids. It uses the group that is\n" +
			"up in --run-dir, or else starts one for itself.\n\n" + exitTable,
		Args: noArgs,
	}
	addFlags(c, &g, &p, model.DefaultOptions())
	f := c.Flags()
	f.Float32Var(&s.Temperature, "temperature", 0, "0: greedy")
	f.IntVar(&s.TopK, "top-k", 0, "draw from the k best; 0: all")
	f.Float32Var(&s.TopP, "top-p", 1, "draw from the best that make up p of the probability")
	f.Uint64Var(&s.Seed, "seed", 0, "of the draws")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := s.Validate(); err != nil {
			return refusal{err}
		}
		if !f.Changed("temperature") && (f.Changed("top-k") || f.Changed("top-p") || f.Changed("seed")) {
			s.Temperature = 1
		}
		w := &writer{group: &g, sampling: s, maxNew: p.maxNew, out: c.OutOrStdout()}
		return w.run(c.Context(), &p, f, c.ErrOrStderr())
	}
	return c
}

// source answers one prompt; each sees the tokens as they come.
type source func(ctx context.Context, r generateRequest, each func(model.Token)) (generated, error)

// writer prints what a group generates.
type writer struct {
	group    *groupFlags
	target   *target
	sampling model.Sampling
	maxNew   int
	out      io.Writer
}

func (w *writer) run(ctx context.Context, p *promptFlags, f *pflag.FlagSet,
	stderr io.Writer) error {
	up := newClient(w.group.runDir)
	status, err := up.status(ctx)
	switch {
	case err == nil:
		if err := w.adopt(f, status); err != nil {
			return err
		}
	case !errors.Is(err, errNoGroup):
		return err
	}
	if w.target, err = w.group.open(); err != nil {
		return err
	}
	prompts, err := p.read(w.target)
	if err != nil {
		return err
	}
	if len(prompts) == 0 {
		return refuse("generate: no prompt: give --prompt TEXT, --ids 1,2,3 or --prompt-file FILE")
	}
	if status != nil {
		return w.all(ctx, prompts, up.generate)
	}
	spec, err := w.group.spec(w.target, w.group.options, stderr)
	if err != nil {
		return err
	}
	g, err := cluster.Start(ctx, spec)
	if err != nil {
		return err
	}
	defer g.Stop(context.WithoutCancel(ctx))
	if err := w.all(ctx, prompts, newServer(g, nil, w.target).answer); err != nil {
		return err
	}
	return g.Stop(ctx)
}

// adopt takes the settings of the group that is up. A flag that was given and
// says otherwise is refused.
func (w *writer) adopt(f *pflag.FlagSet, s *statusReport) error {
	mine, err := w.group.open()
	if err != nil {
		return err
	}
	for _, name := range startFlags {
		if f.Changed(name) {
			return refuse("--%s is for the start of a group, but one is up in %s: stop it, or give "+
				"another --run-dir", name, w.group.runDir)
		}
	}
	for name, value := range w.group.flags(mine) {
		flag := f.Lookup(name)
		theirs := fmt.Sprint(s.Flags[name])
		if flag != nil && flag.Changed && fmt.Sprint(value) != theirs {
			return refuse("--%s is %v, but the group that is up in %s has %s: stop it, or give "+
				"another --run-dir", name, value, w.group.runDir, theirs)
		}
	}
	dir, ok := s.Flags["model"].(string)
	if !ok {
		return refuse("the group in %s does not say what model it serves", w.group.runDir)
	}
	w.group.model, w.group.tp = dir, s.TP
	for name := range w.group.options.Map() {
		if err := w.group.options.Set(name, fmt.Sprint(s.Flags[name])); err != nil {
			return refuse("the group in %s: %w", w.group.runDir, err)
		}
	}
	return nil
}

func (w *writer) all(ctx context.Context, prompts []prompt, from source) error {
	for _, p := range prompts {
		if err := w.one(ctx, p, from); err != nil {
			return err
		}
	}
	return nil
}

// answered is the JSON object of one prompt.
type answered struct {
	Schema       int       `json:"schema"`
	PromptIDs    []int     `json:"prompt_ids"`
	IDs          []int     `json:"ids"`
	Logprobs     []float32 `json:"logprobs"`
	Text         string    `json:"text"`
	FinishReason string    `json:"finish_reason"`
}

func (w *writer) one(ctx context.Context, p prompt, from source) error {
	r := generateRequest{IDs: p.ids, MaxNew: w.maxNew, Sampling: w.sampling}
	if w.group.json {
		got, err := from(ctx, r, nil)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(w.out).Encode(w.answer(p, got)); err != nil {
			return refuse("write the answer: %w", err)
		}
		return nil
	}
	show := w.showText()
	if p.text == "" {
		show = w.showIDs()
	}
	var unwritten error
	write := func(s string) {
		if _, err := io.WriteString(w.out, s); err != nil && unwritten == nil {
			unwritten = refuse("write the answer: %w", err)
		}
	}
	got, err := from(ctx, r, func(t model.Token) { write(show(&t)) })
	write(show(nil) + "\n")
	if err == nil && got.finish == "error" {
		err = errors.New("the stream ended without a reason")
	}
	return errors.Join(err, unwritten)
}

func (w *writer) answer(p prompt, got generated) answered {
	a := answered{
		Schema: schemaVersion, PromptIDs: p.ids, FinishReason: got.finish,
		IDs: []int{}, Logprobs: []float32{},
	}
	for _, t := range got.tokens {
		a.IDs = append(a.IDs, t.ID)
		a.Logprobs = append(a.Logprobs, t.Logprob)
	}
	if w.target.tok != nil {
		show := w.showText()
		for _, t := range got.tokens {
			a.Text += show(&t)
		}
		a.Text += show(nil)
	}
	return a
}

// showText gives the text that each token completes; nil gives the rest.
// Special tokens, such as <|im_end|>, are no text.
func (w *writer) showText() func(*model.Token) string {
	stream := w.target.tok.Stream()
	return func(t *model.Token) string {
		switch {
		case t == nil:
			return stream.Rest()
		case w.target.tok.Special(t.ID):
			return ""
		}
		return stream.Next(t.ID)
	}
}

// showIDs gives ids with commas between them.
func (w *writer) showIDs() func(*model.Token) string {
	before := ""
	return func(t *model.Token) string {
		if t == nil {
			return ""
		}
		s := before + strconv.Itoa(t.ID)
		before = ","
		return s
	}
}

// answer runs one prompt on the server's own group.
func (s *server) answer(ctx context.Context, r generateRequest,
	each func(model.Token)) (generated, error) {
	stream, err := s.group.Submit(ctx, cluster.Request{
		ID: s.next.Add(1), IDs: r.IDs, MaxNew: r.MaxNew, Sampling: r.Sampling,
		StopIDs: s.target.config.StopIDs,
	})
	if err != nil {
		return generated{}, err
	}
	return collect(ctx, stream, each)
}

// generate runs one prompt on the group that is up.
func (c *client) generate(ctx context.Context, r generateRequest,
	each func(model.Token)) (generated, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return generated{}, err
	}
	resp, err := c.do(ctx, "POST", "/generate", bytes.NewReader(body))
	if err != nil {
		return generated{}, err
	}
	defer resp.Body.Close()
	var got generated
	for lines := json.NewDecoder(resp.Body); ; {
		var e generateEvent
		if err := lines.Decode(&e); err != nil {
			return got, fmt.Errorf("read from the group in %s: %w", c.dir, err)
		}
		if e.Token != nil {
			got.tokens = append(got.tokens, *e.Token)
			if each != nil {
				each(*e.Token)
			}
		}
		if e.Error != "" {
			return got, exitError{exitGroup, e.Error}
		}
		if e.Finish != "" {
			got.finish = e.Finish
			return got, nil
		}
	}
}
