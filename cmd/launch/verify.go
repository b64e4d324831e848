package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"octet/cluster"
	"octet/model"
)

// verifyDefaults are the options that verify starts from: everything on, and
// both minima low enough that a short prompt is sharded.
func verifyDefaults() model.Options {
	o := model.DefaultOptions()
	o.FlashComm1, o.MMRS = true, true
	o.MinPrefillTokens, o.MinTP = 1, 2
	return o
}

func verifyCommand() *cobra.Command {
	var g groupFlags
	var p promptFlags
	c := &cobra.Command{
		Use:   "verify",
		Short: "check that FC1 and MMRS change no bit",
		Long: "Verify runs prompts with FC1 off, FC1 on, FC1+MMRS aiv and FC1+MMRS ai_cpu, each\n" +
			"on a fresh group, and compares tokens, log-probabilities, the KV cache and the\n" +
			"hidden states of every layer, and the counts of collectives with the formula.\n" +
			"--enable_flashcomm1=false, --enable_mmrs_fusion=false and --mmrs_comm_mode leave\n" +
			"settings out.\n\n" + exitTable,
		Args: noArgs,
	}
	addFlags(c, &g, &p, verifyDefaults())
	c.RunE = func(c *cobra.Command, _ []string) error {
		v := &verifier{group: &g, stdout: c.OutOrStdout(), stderr: c.ErrOrStderr()}
		return v.run(c.Context(), &p, settingsOf(c.Flags(), g.options))
	}
	return c
}

// setting is one way to run the prompts.
type setting struct {
	name    string
	options model.Options
}

// settingsOf lists the settings that the flags leave: the reference first.
func settingsOf(f *pflag.FlagSet, o model.Options) []setting {
	off := o
	off.FlashComm1, off.MMRS = false, false
	all := []setting{{"fc1 off", off}}
	if !o.FlashComm1 {
		return all
	}
	on := o
	on.MMRS = false
	all = append(all, setting{"fc1", on})
	if !o.MMRS {
		return all
	}
	modes := []string{"aiv", "ai_cpu"}
	if f.Changed("mmrs-comm-mode") {
		modes = []string{o.CommMode}
	}
	for _, mode := range modes {
		fused := o
		fused.CommMode = mode
		all = append(all, setting{"fc1+mmrs " + mode, fused})
	}
	return all
}

// outcome is what one setting gave.
type outcome struct {
	setting setting
	tokens  [][]model.Token // of each prompt
	digests []map[model.DigestKey]uint64
	steps   []cluster.StepRecord
	counts  counted
	wrong   error // counts that differ from the formula on some rank and step
	seconds float64
}

// verifier is one run of verify.
type verifier struct {
	group          *groupFlags
	stdout, stderr io.Writer

	target  *target
	shape   cluster.Shape
	prompts []prompt
	maxNew  int
	bar     *progress
}

func (v *verifier) run(ctx context.Context, p *promptFlags, settings []setting) error {
	if err := v.prepare(p); err != nil {
		return err
	}
	v.bar = newProgress(v.stderr, len(settings)*len(v.prompts)*v.maxNew)
	var all []*outcome
	for _, s := range settings {
		o, err := v.one(ctx, s)
		if err != nil {
			v.bar.abandon()
			return fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, o)
	}
	v.bar.finish()
	r := v.report(all)
	write := r.writeTable
	if v.group.json {
		write = r.writeJSON
	}
	if err := write(v.stdout); err != nil {
		return refuse("write the report: %w", err)
	}
	if r.exit != exitOK {
		return exitError{r.exit, r.Verdict + ": " + r.advice}
	}
	return nil
}

func (v *verifier) prepare(p *promptFlags) error {
	var err error
	if v.target, err = v.group.open(); err != nil {
		return err
	}
	if v.shape, err = cluster.ReadShape(v.target.dir); err != nil {
		return refusal{err}
	}
	if v.prompts, err = p.read(v.target); err != nil {
		return err
	}
	if len(v.prompts) == 0 {
		v.prompts, err = defaultPrompts(v.target.tok)
	}
	if err != nil {
		return err
	}
	v.maxNew = p.maxNew
	_, err = v.group.spec(v.target, v.group.options, v.stderr) // refused before anything runs
	return err
}

// one runs every prompt, one after the other, on a fresh group.
func (v *verifier) one(ctx context.Context, s setting) (*outcome, error) {
	start := time.Now()
	v.bar.setting(s.name)
	spec, err := v.group.spec(v.target, s.options, v.stderr)
	if err != nil {
		return nil, err
	}
	spec.Digests = true
	spec.Progress = v.bar.stage
	g, err := cluster.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer g.Stop(context.WithoutCancel(ctx))
	o := &outcome{setting: s}
	for i, p := range v.prompts {
		id := uint64(i + 1)
		stream, err := g.Submit(ctx, cluster.Request{ID: id, IDs: p.ids, MaxNew: v.maxNew})
		if err != nil {
			return nil, err
		}
		got, err := collect(ctx, stream, func(model.Token) { v.bar.token() })
		if err != nil {
			return nil, err
		}
		digests, err := g.Digests(ctx, id)
		if err != nil {
			return nil, err
		}
		o.tokens = append(o.tokens, got.tokens)
		o.digests = append(o.digests, digests)
	}
	o.steps = g.Steps()
	if err := g.Stop(ctx); err != nil {
		return nil, err
	}
	o.counts, o.wrong = v.count(s, o.steps)
	o.seconds = time.Since(start).Seconds()
	return o, nil
}

// counted is what rank 0 counted over all steps, and what the formula gives.
type counted struct {
	steps, fc1    int
	got, expected cluster.Counts
	refusals      map[string]int
}

// count adds up the records of rank 0 and holds every rank's every step against
// the formula.
func (v *verifier) count(s setting, records []cluster.StepRecord) (counted, error) {
	c := counted{refusals: map[string]int{}}
	flags := flagsOf(s.options)
	for _, r := range records {
		if r.Rank != 0 {
			continue
		}
		c.steps++
		c.got = addCounts(c.got, cluster.Counted(r.Counts))
		c.expected = addCounts(c.expected, cluster.Expect(v.shape, v.group.tp, flags, factsOf(r)))
		if r.Decision.FC1 {
			c.fc1++
		} else if s.options.FlashComm1 {
			c.refusals["fc1: "+r.Decision.Reason]++
		}
		if !r.Decision.FC1 || !s.options.MMRS {
			continue
		}
		if why := r.Decision.FuseReason.O; why != "" {
			c.refusals["mmrs o_proj: "+why]++
		}
		if why := r.Decision.FuseReason.Down; why != "" {
			c.refusals["mmrs down_proj: "+why]++
		}
	}
	return c, cluster.Check(v.shape, v.group.tp, flags, records)
}

// flagsOf is what the formula takes of the options.
func flagsOf(o model.Options) cluster.Flags {
	return cluster.Flags{
		FC1: o.FlashComm1, MinTokens: o.MinPrefillTokens, MinTP: o.MinTP, MMRS: o.MMRS,
		Float32: o.Contract == model.ContractExtended,
	}
}

// factsOf is what the formula takes of a step.
func factsOf(r cluster.StepRecord) cluster.StepFacts {
	return cluster.StepFacts{Rows: r.Facts.Rows, Decodes: r.Facts.DecodeRows, Samples: r.Samples}
}

func addCounts(a, b cluster.Counts) cluster.Counts {
	return cluster.Counts{
		AllReduce: a.AllReduce + b.AllReduce, ReduceScatter: a.ReduceScatter + b.ReduceScatter,
		MMRS: a.MMRS + b.MMRS, Sequence: a.Sequence + b.Sequence,
		Embedding: a.Embedding + b.Embedding, Head: a.Head + b.Head,
		Selection: a.Selection + b.Selection,
	}
}

// difference is what separates an outcome from the reference.
type difference struct {
	compared, mismatches int
	logprob              float64 // largest difference of a token's log-probability
	tied                 bool    // every first mismatch has a margin below nearTie
	states               bool    // every digest equal
	first                string  // the first thing that differs, in words
}

// nearTie is the margin between the two best logits below which a token that
// differs is no fault of a setting whose arithmetic may round otherwise.
const nearTie = 0.01

// nearLogprob is how far log-probabilities before a near-tie may be apart: the
// bound that xLLM publishes for its fused operator beside the unfused one.
const nearLogprob = 0.03

// apart is how far two log-probabilities are from each other; where one is no
// number it is the largest float32, which JSON can hold.
func apart(a, b float32) float64 {
	d := math.Abs(float64(a) - float64(b))
	if math.IsNaN(d) {
		return math.MaxFloat32
	}
	return min(d, math.MaxFloat32)
}

// compare holds an outcome against the reference. Tokens after a first
// mismatch are not compared: they continue another text.
func (v *verifier) compare(ref, o *outcome) difference {
	d := difference{tied: true, states: true}
	for i := range ref.tokens {
		a, b := ref.tokens[i], o.tokens[i]
		if len(a) != len(b) {
			d.mismatches++
			d.tied = false
			d.note("prompt %q: %d tokens, %d in the reference", v.prompts[i].name, len(b), len(a))
		}
		for k := range min(len(a), len(b)) {
			d.compared++
			if a[k].ID != b[k].ID {
				d.mismatches++
				d.tied = d.tied && a[k].Margin < nearTie
				d.note("prompt %q, token %d: %d, %d in the reference (margin %.4f)",
					v.prompts[i].name, k, b[k].ID, a[k].ID, a[k].Margin)
				break
			}
			d.logprob = max(d.logprob, apart(a[k].Logprob, b[k].Logprob))
		}
		if key, equal := firstDigest(ref.digests[i], o.digests[i]); !equal {
			d.states = false
			d.note("prompt %q: %s of layer %d differs", v.prompts[i].name, key.Op, key.Layer)
		}
	}
	if d.mismatches == 0 && d.logprob != 0 {
		d.note("log-probabilities differ by up to %g", d.logprob)
	}
	return d
}

func (d *difference) note(format string, args ...any) {
	if d.first == "" {
		d.first = fmt.Sprintf(format, args...)
	}
}

// firstDigest finds the first difference in the order of the forward pass.
func firstDigest(a, b map[model.DigestKey]uint64) (first model.DigestKey, equal bool) {
	equal = true
	for key, value := range a {
		if other, ok := b[key]; ok && other == value {
			continue
		}
		if equal || before(key, first) {
			first, equal = key, false
		}
	}
	for key := range b {
		if _, ok := a[key]; !ok && (equal || before(key, first)) {
			first, equal = key, false
		}
	}
	return first, equal
}

// before reports whether the forward pass makes a before b.
func before(a, b model.DigestKey) bool {
	return a.Layer < b.Layer || a.Layer == b.Layer && a.Op < b.Op
}
