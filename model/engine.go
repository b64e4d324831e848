// Package model runs Qwen models, tensor-parallel over the ranks of a group. It
// reads a checkpoint directory in Hugging Face layout, plans steps, runs them,
// and chooses tokens. Ranks talk to each other through collective.Comm only.
//
// # A step
//
// T rows, of any requests, pass through the layers together:
//
//	embed     each rank looks up H/tp columns of T rows; gathered to (T, H)
//	layer     x = norm(residual)            residual += o_proj(attend(qkv(x)))
//	          x = norm(residual)            residual += down(silu(gate(x)) * up(x))
//	head      norm, then V/tp logits of the selected rows; gathered to (B, V)
//
// qkv, gate and up are column-parallel: each rank computes its own heads and
// columns of all T rows. o_proj and down are row-parallel: each rank holds a
// share of the sum. With FC1 off, shares are all-reduced, and residual and norm
// work on T rows on every rank. With FC1 on they work on this rank's L rows of
// the padded P = tp*L: shares are reduce-scattered, and norms gathered before
// the next column-parallel product, where the padding is dropped. Positions,
// keys, values and masks know nothing of it.
//
// # Equal bits
//
// A result does not depend on FC1, on fusion, on how a prompt is cut, on who
// shares a step, or on the number of ranks: products are computed row by row in
// one order (see package kernel), and every row-parallel sum is the same tree
// of the same K-segments, of which a rank holds a subtree.
//
// # Files
//
// gate.go decides how a step runs; plan.go makes steps of requests; engine.go
// and layer.go run them; state.go holds keys, values and digests; sampler.go
// chooses tokens. config.go, load.go and their neighbours read checkpoints.
package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"octet/collective"
	"octet/internal/kernel"
)

// EngineConfig is what an engine is made of. It lives as long as an epoch.
type EngineConfig struct {
	Config  *Config
	Shard   *Shard
	Comm    *collective.Comm // of Shard.Size ranks; nil is allowed for one rank
	Options Options
	Epoch   uint32
	Slots   int  // requests under way at a time
	Digest  bool // keep row digests
	// Failpoint, if set, is asked "model/plan" before each step. An error makes
	// this rank derive that FC1 is off, which the others find out.
	Failpoint func(name string) error
}

// Validate names the first wrong field.
func (c *EngineConfig) Validate() error {
	switch {
	case c.Config == nil || c.Shard == nil:
		return errors.New("config and shard must be given")
	case c.Slots < 1:
		return fmt.Errorf("slots is %d: must be at least 1", c.Slots)
	case c.Comm == nil && c.Shard.Size != 1:
		return fmt.Errorf("no communicator for %d ranks", c.Shard.Size)
	case c.Comm != nil && (c.Comm.Size() != c.Shard.Size || c.Comm.Rank() != c.Shard.Rank):
		return fmt.Errorf("shard of rank %d of %d on rank %d of %d",
			c.Shard.Rank, c.Shard.Size, c.Comm.Rank(), c.Comm.Size())
	}
	if err := c.Config.CheckTP(c.Shard.Size); err != nil {
		return err
	}
	return c.Options.Validate()
}

// Engine runs plans on one rank. One goroutine uses it.
//
// Invariant: it is spent by its first error, like its Comm: no step runs twice.
type Engine struct {
	// Set by NewEngine, never changed:
	config     *Config
	shard      *Shard
	comm       *collective.Comm // nil on one rank perhaps
	options    Options
	epoch      uint32
	failpoint  func(name string) error
	rank, size int
	act        kernel.Type // what activations are rounded to
	segments   int         // K-segments of a row-parallel product on this rank
	rope       *Rotation
	scale      float32 // of attention scores
	padding    float32 // what fills rows that no token has; only tests set it
	// watch, if set, sees what is digested: columns of one row of a tensor.
	watch func(op Op, layer int, r Row, x []float32)

	// Owned by Step:
	step    uint64
	err     error
	cache   *cache
	digests *digester
	work    scratch

	otherwise atomic.Pointer[PlanError] // set by Step, for readers outside
}

// StepResult is what a step gave on this rank.
type StepResult struct {
	Tokens   []Token           // one a sample, in order; the same on all ranks
	Counts   collective.Counts // of this step alone
	Decision Decision          // that this rank derived and ran
}

// NewEngine makes an engine with an empty cache.
func NewEngine(cfg EngineConfig) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, size := cfg.Config, cfg.Shard.Size
	e := &Engine{
		config:    c,
		shard:     cfg.Shard,
		comm:      cfg.Comm,
		options:   cfg.Options,
		epoch:     cfg.Epoch,
		failpoint: cfg.Failpoint,
		rank:      cfg.Shard.Rank,
		size:      size,
		act:       kernel.F32,
		segments:  c.SegmentsFor(size) / size,
		rope:      NewRotation(c.Rope),
		scale:     float32(1 / math.Sqrt(float64(c.HeadDim))),
		cache: newCache(c.Layers, max(1, c.KVHeads/size), c.HeadDim, cfg.Slots,
			cfg.Options.MaxPositions(c)),
	}
	if cfg.Digest {
		e.digests = newDigester()
	}
	return e, nil
}

// Digests lists what this rank has digested of a request, nothing if digests
// are off. Forgotten are the oldest of more than 1024 requests.
func (e *Engine) Digests(request uint64) []Digest {
	if e.digests == nil {
		return nil
	}
	return e.digests.of(request)
}

// Step runs a plan. Every rank of the group must run the same one; a rank that
// would run it otherwise makes the first collective fail on all of them.
func (e *Engine) Step(ctx context.Context, p *Plan) (*StepResult, error) {
	if e.err != nil {
		return nil, fmt.Errorf("run step %d: the engine is spent: %w", p.Step, e.err)
	}
	r, err := e.run(ctx, p)
	if err != nil {
		e.err = fmt.Errorf("run step %d: %w", p.Step, err)
		return nil, e.err
	}
	return r, nil
}

func (e *Engine) run(ctx context.Context, p *Plan) (*StepResult, error) {
	if err := e.admit(p); err != nil {
		return nil, err
	}
	before := e.counts()
	d := e.decide(p.Facts())
	s := &step{Engine: e, ctx: ctx, plan: p, d: d, hash: p.Hash(d)}
	r := &StepResult{Decision: d}
	if d != p.Decision {
		e.otherwise.Store(&PlanError{Plan: p.Decision, Derived: d})
	}
	if len(p.Rows) > 0 {
		var err error
		if r.Tokens, err = s.forward(); err != nil {
			return nil, err
		}
	}
	if other := e.otherwise.Load(); other != nil {
		return nil, other
	}
	r.Counts = e.counts().Sub(before)
	return r, nil
}

// PlanError says that a rank would run a step otherwise than the plan says.
type PlanError struct {
	Plan, Derived Decision
}

func (e *PlanError) Error() string {
	return fmt.Sprintf("this rank derives %v, the plan says %v", e.Derived, e.Plan)
}

// Otherwise is nil, or how this rank plans a step otherwise than its plan says.
// It may be called from any goroutine, also while that step waits for the others,
// who find out by the hash of the plan.
func (e *Engine) Otherwise() *PlanError { return e.otherwise.Load() }

// decide derives the decision from this rank's own options.
func (e *Engine) decide(f Facts) Decision {
	o := e.options
	if e.failpoint != nil && e.failpoint("model/plan") != nil {
		o.FlashComm1 = false
	}
	return o.Decide(e.config, e.size, f)
}

func (e *Engine) counts() collective.Counts {
	if e.comm == nil {
		return nil
	}
	return slices.Clone(e.comm.Counts())
}

// admit checks a plan against what this rank holds and reserves its rows in
// the cache.
func (e *Engine) admit(p *Plan) error {
	if p.Epoch != e.epoch || p.Step != e.step+1 {
		return fmt.Errorf("plan of step %d of epoch %d after step %d of epoch %d",
			p.Step, p.Epoch, e.step, e.epoch)
	}
	e.step = p.Step
	for i, r := range p.Rows {
		if r.Token < 0 || r.Token >= e.config.VocabSize {
			return fmt.Errorf("row %d: token %d of %d", i, r.Token, e.config.VocabSize)
		}
		if err := e.cache.reserve(r, p.Step); err != nil {
			return fmt.Errorf("row %d at position %d of request %d: %w", i, r.Pos, r.Request, err)
		}
		if r.Pos == 0 && e.digests != nil {
			e.digests.begin(r.Request)
		}
	}
	for i, s := range p.Samples {
		if s.Row < 0 || s.Row >= len(p.Rows) || p.Rows[s.Row].Request != s.Request {
			return fmt.Errorf("sample %d: row %d is not of request %d", i, s.Row, s.Request)
		}
		if i > 0 && s.Row <= p.Samples[i-1].Row {
			return fmt.Errorf("sample %d: row %d is not after row %d", i, s.Row, p.Samples[i-1].Row)
		}
	}
	return nil
}

// scratch is memory that steps take over from each other. Its content is
// nobody's between two uses.
type scratch struct {
	residual, normed []float32 // (T, H), or (L, H) sharded
	wide             []float32 // (T, H), or (P, H): gathered rows, or shares of a sum
	mixed            []float32 // (T, heads/tp * dim): output of attention
	acted            []float32 // (T, I/tp): silu(gate) * up
	tile             []float32 // (tileRows, columns of qkv or of gate and up)
	scores           []float32 // (kernel.AttendScores)
	heads            heads     // that attend together
	cos, sin         []float32 // (T, rot/2)
	picked           []float32 // (B, H): rows whose logits are wanted
	share            []float32 // (B, columns): this rank's columns of rows that are gathered
	gathered         []float32 // (tp, B, columns): of all ranks
	logits           []float32 // (V): of one row
}

// grow returns x with n elements of any content, from *x if it is long enough.
func grow(x *[]float32, n int) []float32 {
	if cap(*x) < n {
		*x = make([]float32, n)
	}
	*x = (*x)[:n]
	return *x
}
