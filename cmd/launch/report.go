package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"octet/cluster"
)

// schemaVersion is the version of every JSON object that launch prints.
const schemaVersion = 1

// verifyReport is the JSON object of verify.
type verifyReport struct {
	Schema    int              `json:"schema"`
	Equal     bool             `json:"equal"`
	Verdict   string           `json:"verdict"` // equal, different, near-tie or vacuous
	Advice    string           `json:"advice,omitempty"`
	TP        int              `json:"tp"`
	Model     string           `json:"model"`
	Transport string           `json:"transport"` // tcp or mem
	MinTokens int              `json:"flashcomm1_min_prefill_tokens"`
	MinTP     int              `json:"flashcomm1_min_tp"`
	Reference string           `json:"reference"` // name of the setting the others are held against
	Settings  []*settingReport `json:"settings"`

	exit   int
	advice string
}

// settingReport is one setting in the JSON object of verify. The four counts
// are calls of one rank over all steps; all_gather counts those of the
// sequence, as the formula does.
type settingReport struct {
	Name       string `json:"name"`
	Prompts    int    `json:"prompts"`
	Tokens     int    `json:"tokens"`
	Mismatches int    `json:"mismatches"`
	// MaxLogprobDiff is the largest float32 where a difference is no number.
	MaxLogprobDiff float64 `json:"max_logprob_diff"`
	HiddenBitEqual bool    `json:"hidden_bit_equal"`
	Steps          int     `json:"steps"`
	FC1Steps       int     `json:"fc1_steps"`
	fourCounts
	Expected fourCounts     `json:"expected"`
	Refusals map[string]int `json:"refusals"`
	Seconds  float64        `json:"seconds"`
	First    string         `json:"first_difference,omitempty"`
}

type fourCounts struct {
	AllReduce     int `json:"all_reduce"`
	ReduceScatter int `json:"reduce_scatter"`
	MMRS          int `json:"mmrs"`
	AllGather     int `json:"all_gather"`
}

func fourOf(c cluster.Counts) fourCounts {
	return fourCounts{c.AllReduce, c.ReduceScatter, c.MMRS, c.Sequence}
}

// report holds every outcome against the first.
func (v *verifier) report(all []*outcome) *verifyReport {
	r := &verifyReport{
		Schema: schemaVersion, TP: v.group.tp, Model: v.target.name, Transport: "tcp",
		MinTokens: v.group.options.MinPrefillTokens, MinTP: v.group.options.MinTP,
		Reference: all[0].setting.name,
	}
	if v.group.virtual {
		r.Transport = "mem"
	}
	tied, different := false, ""
	for _, o := range all {
		d := v.compare(all[0], o)
		r.Settings = append(r.Settings, v.settingReport(o, d))
		bad := d.mismatches > 0 || d.logprob != 0 || !d.states
		switch {
		case o.wrong != nil && different == "":
			different = o.setting.name + ": " + o.wrong.Error()
		case bad && d.mismatches > 0 && d.tied && d.logprob < nearLogprob:
			tied = true
			r.advice = o.setting.name + ": " + d.first
		case bad && different == "":
			different = o.setting.name + ": " + d.first
		}
	}
	r.conclude(different, tied, v.vacuous(all))
	return r
}

func (v *verifier) settingReport(o *outcome, d difference) *settingReport {
	return &settingReport{
		Name: o.setting.name, Prompts: len(v.prompts), Tokens: d.compared,
		Mismatches: d.mismatches, MaxLogprobDiff: d.logprob, HiddenBitEqual: d.states,
		Steps: o.counts.steps, FC1Steps: o.counts.fc1,
		fourCounts: fourOf(o.counts.got), Expected: fourOf(o.counts.expected),
		Refusals: o.counts.refusals, Seconds: o.seconds, First: d.first,
	}
}

// conclude sets the verdict: what is worst wins.
func (r *verifyReport) conclude(different string, tied bool, vacuous string) {
	switch {
	case different != "":
		r.Verdict, r.exit, r.advice = "different", exitDifferent, different
	case tied:
		r.Verdict, r.exit = "near-tie", exitNearTie
	case vacuous != "":
		r.Verdict, r.exit, r.advice = "vacuous", exitVacuous, vacuous
	default:
		r.Verdict, r.exit, r.Equal, r.advice = "equal", exitOK, true, ""
	}
	r.Advice = r.advice
}

// vacuous says why a run proved nothing and what to change, or "".
func (v *verifier) vacuous(all []*outcome) string {
	if v.group.tp == 1 {
		return "one rank has nothing to shard: give --tp 2 or more"
	}
	if len(all) == 1 {
		return "only the reference ran: leave --enable_flashcomm1 on"
	}
	for _, o := range all[1:] {
		if o.counts.fc1 == 0 {
			return fmt.Sprintf("FC1 was active in none of %d steps of %q (%s): lower "+
				"--flashcomm1_min_prefill_tokens or --flashcomm1_min_tp, or give longer prompts",
				o.counts.steps, o.setting.name, reasons(o.counts.refusals))
		}
		if o.setting.options.MMRS && o.counts.got.MMRS == 0 {
			return fmt.Sprintf("MMRS never ran in %q (%s): take a model or --tp whose projections "+
				"fuse, or verify FC1 alone with --enable_mmrs_fusion=false",
				o.setting.name, reasons(o.counts.refusals))
		}
	}
	return ""
}

// reasons lists refusals, the most frequent first.
func reasons(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%s x%d", k, m[k])
	}
	return strings.Join(keys, "; ")
}

func (r *verifyReport) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// writeTable prints the report as a person reads it.
func (r *verifyReport) writeTable(out io.Writer) error {
	w := &bytes.Buffer{}
	fmt.Fprintf(w, "%s, TP=%d over %s, flashcomm1_min_prefill_tokens %d, flashcomm1_min_tp %d\n",
		r.Model, r.TP, r.Transport, r.MinTokens, r.MinTP)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"setting", "prompts", "tokens\ncompared", "mis-\nmatches",
		"max |Δ|\nlogprob", "hidden\nand KV", "FC1\nsteps", "All-\nReduce", "Reduce-\nScatter",
		"MMRS", "All-\nGather", "seconds"})
	for i, s := range r.Settings {
		states := "bit-equal"
		if !s.HiddenBitEqual {
			states = "DIFFER"
		}
		if i == 0 {
			states = "reference"
		}
		t.AppendRow(table.Row{s.Name, s.Prompts, s.Tokens, s.Mismatches,
			fmt.Sprintf("%.3g", s.MaxLogprobDiff), states,
			fmt.Sprintf("%d/%d", s.FC1Steps, s.Steps),
			count(s.AllReduce, s.Expected.AllReduce),
			count(s.ReduceScatter, s.Expected.ReduceScatter),
			count(s.MMRS, s.Expected.MMRS),
			count(s.AllGather, s.Expected.AllGather), fmt.Sprintf("%.2f", s.Seconds)})
	}
	t.Render()
	fmt.Fprintln(w, "FC1 steps: active/all; counts: calls of one rank/calls by the formula, "+
		"AllGather that of the sequence")
	for _, s := range r.Settings {
		if len(s.Refusals) > 0 {
			fmt.Fprintf(w, "%s: not active: %s\n", s.Name, reasons(s.Refusals))
		}
	}
	fmt.Fprintln(w, "verdict:", r.Verdict)
	_, err := w.WriteTo(out)
	return err
}

func count(got, expected int) string { return fmt.Sprintf("%d/%d", got, expected) }
