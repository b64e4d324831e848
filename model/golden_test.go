package model

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Tolerances of the goldens: of tensors relative to their largest value, of
// log-probabilities absolute. At and after a near tie tokens may differ.
const (
	tensorTolerance  = 1e-5
	logprobTolerance = 1e-4
	nearTie          = 0.01
)

func TestGreedyTokensAreTheGoldens(t *testing.T) {
	// Every dense preset at every number of ranks that it allows gives the
	// reference's tokens, log-probabilities and last logits, its prompts all in
	// one batch. Prompts over 200 tokens need OCTET_LONG=1, see long; without it
	// wide models run their short prompts only on 2 and 4 ranks.
	for _, name := range qwen3Presets {
		t.Run(name, func(t *testing.T) {
			dir := presetDir(t, name)
			c, want := open(t, dir), readGolden(t, dir)
			for _, tp := range []int{1, 2, 4, 8} {
				if want.TP[fmt.Sprint(tp)] != "ok" {
					require.Error(t, c.config.CheckTP(tp))
					continue
				}
				checkGolden(t, c, want, tp)
			}
		})
	}
}

func checkGolden(t *testing.T, c *loaded, want *golden, tp int) {
	g := start(t, c, tp, DefaultOptions(), nil)
	tails := map[uint64][]float32{}
	g.engines[0].watch = func(op Op, _ int, r Row, x []float32) {
		if op == OpLogits && r.Pos == len(want.Prompts[r.Request].IDs)-1 {
			tails[r.Request] = append([]float32{}, x...)
		}
	}
	var requests []Request
	for i, p := range want.Prompts {
		most := 200
		switch wide := c.config.IntermediateSize >= 1024; {
		case long():
			most = map[bool]int{false: 2000, true: 10000}[tp == 8]
		case wide && (tp == 2 || tp == 4):
			most = 17
		}
		if len(p.IDs) <= most {
			requests = append(requests, Request{ID: uint64(i), IDs: p.IDs, MaxNew: len(p.Greedy)})
		}
	}
	tokens := g.generate(requests...)
	for _, r := range requests {
		p, name := want.Prompts[r.ID], fmt.Sprintf("tp %d, prompt %d", tp, r.ID)
		tail := want.tensors[fmt.Sprintf("p%d.logits_tail", r.ID)]
		near(t, tail[len(tail)-c.config.VocabSize:], tails[r.ID], tensorTolerance, name)
		require.Len(t, tokens[r.ID], len(p.Steps), name)
		for i, s := range p.Steps {
			if s.Margin < nearTie {
				break
			}
			got := tokens[r.ID][i]
			require.Equal(t, s.Token, got.ID, "%s, token %d", name, i)
			require.InDelta(t, s.Logprob, got.Logprob, logprobTolerance, "%s, token %d", name, i)
			require.InDelta(t, s.Margin, got.Margin, 2*logprobTolerance, "%s, token %d", name, i)
		}
	}
}

func TestTensorsOnTheWayAreTheGoldens(t *testing.T) {
	// Embedding, mixer, MLP, residual of every layer, final norm and the logits
	// of every position are the reference's, on one rank and on the most.
	for _, name := range qwen3Presets {
		t.Run(name, func(t *testing.T) {
			dir := presetDir(t, name)
			c, want := open(t, dir), readGolden(t, dir)
			most := 1
			for _, tp := range []int{2, 4, 8} {
				if want.TP[fmt.Sprint(tp)] == "ok" {
					most = tp
				}
			}
			for _, tp := range []int{1, most} {
				for i, p := range want.Prompts {
					if want.tensors[fmt.Sprintf("p%d.embed", i)] != nil {
						checkTensors(t, c, want, tp, i, p.IDs)
					}
				}
			}
		})
	}
}

// checkTensors runs prompt i in one step that samples every row.
func checkTensors(t *testing.T, c *loaded, want *golden, tp, i int, ids []int) {
	g := start(t, c, tp, DefaultOptions(), nil)
	got := map[string][]float32{}
	g.engines[0].watch = func(op Op, layer int, _ Row, x []float32) {
		name := map[Op]string{
			OpEmbed: "embed", OpFinalNorm: "final_norm", OpLogits: "logits",
			OpMixer:    fmt.Sprintf("layer%d.mixer", layer),
			OpMLP:      fmt.Sprintf("layer%d.mlp", layer),
			OpResidual: fmt.Sprintf("layer%d", layer),
		}[op]
		got[name] = append(got[name], x...)
	}
	p := &Plan{Epoch: 1, Step: 1}
	for pos, id := range ids {
		p.Rows = append(p.Rows, Row{Request: 1, Pos: pos, Token: id})
		p.Samples = append(p.Samples, Sample{Row: pos, Request: 1})
	}
	p.Decision = DefaultOptions().Decide(c.config, tp, p.Facts())
	g.step(p)
	delete(got, "") // keys and values
	require.Len(t, got, 3+3*c.config.Layers)
	for name, x := range got {
		full := fmt.Sprintf("p%d.%s", i, name)
		require.NotNil(t, want.tensors[full], full)
		near(t, want.tensors[full], x, tensorTolerance, fmt.Sprintf("tp %d, %s", tp, full))
	}
}
