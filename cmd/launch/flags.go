package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"octet/cluster"
	"octet/model"
)

// groupFlags say what group a command is about.
type groupFlags struct {
	tp        int
	model     string
	virtual   bool
	onFailure string
	rankEnv   []string
	runDir    string
	join      time.Duration
	step      time.Duration
	logLevel  string
	json      bool
	options   model.Options
}

// register adds the flags of a group. The options start as defaults says.
func (g *groupFlags) register(f *pflag.FlagSet, defaults model.Options) {
	g.options = defaults
	o := &g.options
	f.IntVar(&g.tp, "tp", 8, "`RANKS` of the tensor-parallel group")
	f.StringVar(&g.model, "model", "", "checkpoint `DIR`, Hugging Face layout (default: the demo)")
	f.BoolVar(&g.virtual, "virtual", false, "ranks as goroutines over the in-memory transport")
	f.IntVar(&o.Chunk, "chunk", o.Chunk, "most tokens of a prompt in one step; 0: all of them")
	f.BoolVar(&o.FlashComm1, "enable_flashcomm1", o.FlashComm1, "FC1 sequence sharding")
	f.IntVar(&o.MinPrefillTokens, "flashcomm1_min_prefill_tokens", o.MinPrefillTokens,
		"least tokens of a step for FC1")
	f.IntVar(&o.MinTP, "flashcomm1_min_tp", o.MinTP, "least ranks for FC1")
	f.BoolVar(&o.MMRS, "enable_mmrs_fusion", o.MMRS, "fused Matmul-ReduceScatter under FC1")
	f.StringVar(&o.CommMode, "mmrs_comm_mode", o.CommMode, "`MODE` aiv, ai_cpu or none (= ai_cpu)")
	f.StringVar(&o.Contract, "mmrs_contract", o.Contract,
		"extended: float32 may fuse; device: as the operator")
	f.IntVar(&o.Positions, "max_positions", o.Positions,
		"most tokens of a sequence; 0: as the model says")
	f.StringVar(&g.onFailure, "on-failure", "stop", "what a dead rank does: stop")
	f.StringArrayVar(&g.rankEnv, "rank-env", nil, "`R:KEY=VALUE` for rank R only; repeatable")
	f.DurationVar(&g.join, "join-timeout", 60*time.Second, "until every rank is ready")
	f.DurationVar(&g.step, "step-timeout", 120*time.Second, "for one step of the whole group")
	registerRunDir(f, g)
}

// startFlags are the flags that say how a group is started, and nothing about
// what it is.
var startFlags = []string{"on-failure", "rank-env", "join-timeout", "step-timeout"}

// registerRunDir adds the flags that every command has.
func registerRunDir(f *pflag.FlagSet, g *groupFlags) {
	f.StringVar(&g.runDir, "run-dir", defaultRunDir(), "`DIR` of a group's socket and lock")
	f.StringVar(&g.logLevel, "log-level", "warn", "debug, info, warn or error, on stderr")
	f.BoolVar(&g.json, "json", false, "JSON on stdout")
}

// defaultRunDir is a directory of the user's, the same for every command.
func defaultRunDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "octet")
	}
	return filepath.Join(os.TempDir(), userDir())
}

// userDir names a directory of the user's where all users have theirs.
func userDir() string { return "octet-" + strconv.Itoa(os.Getuid()) }

// target is the checkpoint that a command is about.
type target struct {
	dir    string
	name   string
	config *model.Config
	tok    *model.Tokenizer // nil when the directory has no tokenizer.json

	positions int // of a sequence, at most
}

// open reads what the master needs of the checkpoint, and refuses what no rank
// could run.
func (g *groupFlags) open() (*target, error) {
	if _, err := newLogger(io.Discard, g.logLevel); err != nil {
		return nil, err
	}
	t := &target{dir: g.model, name: g.model}
	if g.model == "" {
		dir, err := unpackDemo()
		if err != nil {
			return nil, refusal{err}
		}
		t.dir, t.name = dir, demoName
	}
	dir, err := filepath.Abs(t.dir)
	if err != nil {
		return nil, refusal{err}
	}
	t.dir = dir
	if t.config, err = model.ReadConfig(dir); err != nil {
		return nil, refusal{err}
	}
	if g.tp < 1 {
		return nil, refuse("--tp is %d, want at least 1", g.tp)
	}
	if err := t.config.CheckTP(g.tp); err != nil {
		return nil, refuse("--tp: %w", err)
	}
	if err := g.options.Validate(); err != nil {
		return nil, refusal{err}
	}
	t.positions = g.options.MaxPositions(t.config)
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err == nil {
		if t.tok, err = model.ReadTokenizer(dir); err != nil {
			return nil, refusal{err}
		}
	}
	return t, nil
}

// spec is the group that the flags describe.
func (g *groupFlags) spec(t *target, opts model.Options, stderr io.Writer) (cluster.Spec, error) {
	switch g.onFailure {
	case "stop":
	case "restart":
		return cluster.Spec{}, refuse("--on-failure restart is not built yet: want stop")
	default:
		return cluster.Spec{}, refuse("--on-failure is %q, want stop", g.onFailure)
	}
	if g.join <= 0 || g.step <= 0 {
		return cluster.Spec{}, refuse("--join-timeout %v and --step-timeout %v: want more than 0",
			g.join, g.step)
	}
	env, err := parseRankEnv(g.rankEnv, g.tp)
	if err != nil {
		return cluster.Spec{}, err
	}
	if g.virtual && len(env) > 0 && g.needsProcess(env) {
		return cluster.Spec{}, refuse("--rank-env with --virtual takes OCTET_ names only")
	}
	log, err := newLogger(stderr, g.logLevel)
	if err != nil {
		return cluster.Spec{}, err
	}
	exe, err := os.Executable()
	if err != nil {
		return cluster.Spec{}, err
	}
	for r := range g.tp {
		env[r] = append([]string{envLogLevel + "=" + g.logLevel}, env[r]...)
	}
	return cluster.Spec{
		TP: g.tp, Model: t.dir, Options: opts, Virtual: g.virtual,
		Command: []string{exe, rankName}, RankEnv: env,
		Limits: cluster.Limits{Join: g.join, Step: g.step}, Log: log, Output: stderr,
	}, nil
}

// needsProcess reports whether env sets more than a virtual rank can take.
func (g *groupFlags) needsProcess(env map[int][]string) bool {
	for _, list := range env {
		for _, kv := range list {
			if !strings.HasPrefix(kv, "OCTET_") {
				return true
			}
		}
	}
	return false
}

func parseRankEnv(list []string, tp int) (map[int][]string, error) {
	env := map[int][]string{}
	known := append(cluster.RankVariables(), envLogLevel)
	for _, item := range list {
		rank, kv, ok := strings.Cut(item, ":")
		key, _, set := strings.Cut(kv, "=")
		n, err := strconv.Atoi(rank)
		if !ok || !set || key == "" || err != nil {
			return nil, refuse("--rank-env %q: want RANK:KEY=VALUE, such as 3:OCTET_CHUNK=64", item)
		}
		if n < 0 || n >= tp {
			return nil, refuse("--rank-env %q: rank %d is outside the group of %d", item, n, tp)
		}
		if strings.HasPrefix(key, "OCTET_") && !slices.Contains(known, key) {
			return nil, refuse("--rank-env %q: ranks read no %s, only %s", item, key,
				strings.Join(known, ", "))
		}
		env[n] = append(env[n], kv)
	}
	return env, nil
}

// generated is what a stream gave.
type generated struct {
	tokens []model.Token
	finish string
}

// collect reads a stream to its end. each, if not nil, sees every token.
func collect(ctx context.Context, stream <-chan cluster.Event,
	each func(model.Token)) (generated, error) {
	var g generated
	for {
		select {
		case e, ok := <-stream:
			if !ok {
				return g, nil
			}
			if e.Err != nil {
				return g, e.Err
			}
			g.tokens, g.finish = append(g.tokens, e.Token), e.Finish
			if each != nil {
				each(e.Token)
			}
		case <-ctx.Done():
			return g, context.Cause(ctx)
		}
	}
}

// addFlags is shared by the commands that start a group.
func addFlags(c *cobra.Command, g *groupFlags, p *promptFlags, defaults model.Options) {
	g.register(c.Flags(), defaults)
	if p != nil {
		p.register(c.Flags())
	}
}
