package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/cluster"
	"octet/model"
)

const goldens = "../../../shared/golden"

// long says that prompts of more than 200 tokens are wanted, too. The one of
// 8,200 is 550 GFLOP, so it runs once, at TP=8, on virtual ranks:
//
//	OCTET_LONG=1 go test -timeout 2h -run 'TestGoldens/qwen3-demo' ./cmd/launch
var long = os.Getenv("OCTET_LONG") == "1"

// golden is what golden.json says of one checkpoint.
type golden struct {
	TP      map[string]string `json:"tp"`
	Prompts []struct {
		Name   string `json:"name"`
		IDs    []int  `json:"ids"`
		Greedy []int  `json:"greedy"`
		Steps  []struct {
			Token   int     `json:"token"`
			Margin  float64 `json:"margin"`
			Logprob float64 `json:"logprob"`
		} `json:"steps"`
	} `json:"prompts"`
}

func readGolden(t *testing.T, dir string) golden {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

// Every dense Qwen3 checkpoint gives the tokens and log-probabilities that
// Hugging Face gives, at every TP that it allows, on processes and on virtual
// ranks; and both have the same bits in every tensor.
func TestGoldens(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(goldens, "qwen3-*"))
	require.NoError(t, err)
	if len(dirs) == 0 {
		t.Skip("no goldens in ", goldens)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := readGolden(t, dir)
			for _, tp := range []int{1, 2, 4, 8} {
				if g.TP[strconv.Itoa(tp)] != "ok" {
					continue
				}
				t.Run(fmt.Sprintf("tp=%d", tp), func(t *testing.T) {
					virtual := runGolden(t, dir, g, tp, true)
					if tp == 8 || tp == 2 || long { // processes take longer to start
						require.Equal(t, virtual, runGolden(t, dir, g, tp, false))
					}
				})
			}
		})
	}
}

// wanted reports whether a prompt is to be run.
func wanted(n, tp int, virtual bool) bool {
	switch {
	case n <= 200:
		return true
	case n <= 2000:
		return long
	}
	return long && tp == 8 && virtual
}

// runGolden holds every wanted prompt against the golden and returns the
// digests of each.
func runGolden(t *testing.T, dir string, g golden, tp int,
	virtual bool) []map[model.DigestKey]uint64 {
	t.Helper()
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	limit := patience
	if long {
		limit = 50 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	group, err := cluster.Start(ctx, cluster.Spec{
		TP: tp, Model: dir, Options: model.DefaultOptions(), Virtual: virtual, Digests: true,
		Command: []string{exe, rankName}, Output: os.Stderr, Limits: cluster.Limits{Step: limit},
	})
	require.NoError(t, err)
	defer group.Stop(context.WithoutCancel(ctx))

	streams := make([]<-chan cluster.Event, len(g.Prompts))
	for i, p := range g.Prompts {
		if wanted(len(p.IDs), tp, virtual) {
			streams[i], err = group.Submit(ctx, cluster.Request{
				ID: uint64(i + 1), IDs: p.IDs, MaxNew: len(p.Greedy)})
			require.NoError(t, err)
		}
	}
	all := make([]map[model.DigestKey]uint64, len(g.Prompts))
	for i, p := range g.Prompts {
		if streams[i] == nil {
			continue
		}
		got, err := collect(ctx, streams[i], nil)
		require.NoError(t, err)
		require.Len(t, got.tokens, len(p.Greedy), p.Name)
		for k, want := range p.Steps {
			if want.Margin < nearTie {
				break // a near-tie: what follows is another text
			}
			require.Equal(t, want.Token, got.tokens[k].ID, "%s, token %d", p.Name, k)
			require.Less(t, math.Abs(want.Logprob-float64(got.tokens[k].Logprob)), 1e-4,
				"%s, token %d", p.Name, k)
		}
		if len(p.IDs) <= 2000 {
			all[i], err = group.Digests(ctx, uint64(i+1))
			require.NoError(t, err)
			require.NotEmpty(t, all[i])
		}
	}
	require.NoError(t, group.Stop(ctx))
	return all
}
