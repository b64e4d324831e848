package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// Row is one token to compute: its place in a request and the KV slot that the
// request owns.
type Row struct {
	Request uint64
	Slot    int
	Pos     int  // absolute position in the sequence, from 0
	Token   int  // input token id
	Decode  bool // the prompt was complete before this step
}

// Sample asks for the token that follows a row.
type Sample struct {
	Row     int // index into Plan.Rows
	Request uint64
	Params  Sampling
}

// Plan is one step of the whole group, the same on every rank.
//
// Invariant: the rows of a request stand together, at ascending positions
// without gaps that continue what its slot holds, or start at 0. Samples are in
// order of rows, at most one a request.
type Plan struct {
	Epoch    uint32
	Step     uint64 // from 1 within an epoch
	Rows     []Row
	Samples  []Sample
	Decision Decision // of the master; ranks derive their own
}

// Facts are what the gate looks at.
func (p *Plan) Facts() Facts {
	f := Facts{Rows: len(p.Rows)}
	for _, r := range p.Rows {
		if r.Decode {
			f.DecodeRows++
		}
	}
	return f
}

// Hash is of everything in the plan and of the decision d that this rank
// derived from its own options. Ranks that would run different steps have
// different hashes.
func (p *Plan) Hash(d Decision) uint64 {
	h := fnv.New64a()
	b := binary.LittleEndian.AppendUint32(nil, p.Epoch)
	b = binary.LittleEndian.AppendUint64(b, p.Step)
	b = appendInts(b, len(p.Rows))
	for _, r := range p.Rows {
		b = binary.LittleEndian.AppendUint64(b, r.Request)
		b = appendBool(appendInts(b, r.Slot, r.Pos, r.Token), r.Decode)
	}
	b = appendInts(b, len(p.Samples))
	for _, s := range p.Samples {
		b = binary.LittleEndian.AppendUint64(appendInts(b, s.Row), s.Request)
		b = s.Params.append(b)
	}
	b = p.Decision.append(b)
	b = d.append(b)
	h.Write(b)
	return h.Sum64()
}

func (d Decision) append(b []byte) []byte {
	b = appendBool(b, d.FC1, d.Fuse.O, d.Fuse.Down)
	b = appendInts(b, d.P, d.L, int(d.Mode))
	for _, s := range []string{d.Reason, d.FuseReason.O, d.FuseReason.Down} {
		b = append(appendInts(b, len(s)), s...)
	}
	return b
}

func appendInts(b []byte, vs ...int) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func appendBool(b []byte, vs ...bool) []byte {
	for _, v := range vs {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// Request is one prompt and what to do with it.
type Request struct {
	ID       uint64 // unique among the requests that a planner holds
	IDs      []int  // prompt token ids, at least one
	MaxNew   int    // tokens to generate, at least one
	Sampling Sampling
	StopIDs  []int // ends the request after one of them; empty: none
}

// How a request ends.
const (
	FinishLength = "length" // MaxNew tokens are given
	FinishStop   = "stop"   // one of StopIDs is given
	FinishError  = "error"  // Event.Err says why
)

// Event is one token of a request, or its failure. The event with a Finish is
// the last of its request.
type Event struct {
	Request uint64
	Token   Token // zero when Finish is FinishError
	Finish  string
	Err     error
}

// PlannerConfig is what a planner works from.
type PlannerConfig struct {
	Model   *Config
	Options Options
	TP      int
	Epoch   uint32
	Slots   int // requests under way at a time; at most Options.MaxTokens
	Queue   int // requests that may wait for a slot; 0: 1024
}

// Planner turns requests into step plans and sampled tokens into events. It is
// a plain value without I/O: the same calls give the same plans. Requests are
// served first come, first served. While a prompt is incomplete, steps carry
// prompt rows only; decode rows of all requests share the steps between, unless
// Options.Mix lets both into one step, decode rows first.
type Planner struct {
	cfg     PlannerConfig
	step    uint64
	waiting []*sequence // without a slot, in order of arrival
	running []*sequence // with a slot, in order of arrival
	free    []int       // slots, the next one last
	pending *Plan       // handed out by Next, not yet accepted
}

// sequence is the state of one request.
type sequence struct {
	Request
	slot     int
	computed int   // rows whose K and V are in the cache, once pending is accepted
	given    []int // generated tokens
	done     bool  // cancelled or finished: release takes its slot
}

// token is the input at a position of the sequence.
func (s *sequence) token(pos int) int {
	if pos < len(s.IDs) {
		return s.IDs[pos]
	}
	return s.given[pos-len(s.IDs)]
}

// prompt says how many prompt rows are still to be computed.
func (s *sequence) prompt() int { return max(0, len(s.IDs)-s.computed) }

// queueDefault is PlannerConfig.Queue where that is 0.
const queueDefault = 1024

// NewPlanner makes a planner without requests.
func NewPlanner(cfg PlannerConfig) (*Planner, error) {
	if err := cfg.Options.Validate(); err != nil {
		return nil, err
	}
	if cfg.Queue == 0 {
		cfg.Queue = queueDefault
	}
	switch {
	case cfg.TP < 1:
		return nil, fmt.Errorf("plan for %d ranks: must be at least 1", cfg.TP)
	case cfg.Slots < 1 || cfg.Slots > cfg.Options.MaxTokens:
		return nil, fmt.Errorf("plan with %d slots: must be 1 to %s %d", cfg.Slots,
			nameMaxTokens, cfg.Options.MaxTokens)
	}
	p := &Planner{cfg: cfg}
	for slot := cfg.Slots - 1; slot >= 0; slot-- {
		p.free = append(p.free, slot)
	}
	return p, nil
}

// Add queues a request, or says why it can never run.
func (p *Planner) Add(r Request) error {
	if err := p.check(r); err != nil {
		return fmt.Errorf("add request %d: %w", r.ID, err)
	}
	r.IDs, r.StopIDs = slices.Clone(r.IDs), slices.Clone(r.StopIDs)
	p.waiting = append(p.waiting, &sequence{Request: r, slot: -1})
	return nil
}

func (p *Planner) check(r Request) error {
	switch {
	case len(p.waiting) >= p.cfg.Queue:
		return fmt.Errorf("%d requests wait already", len(p.waiting))
	case p.find(r.ID) != nil:
		return errors.New("there is one with this id")
	case len(r.IDs) == 0:
		return errors.New("the prompt has no token")
	case r.MaxNew < 1:
		return fmt.Errorf("%d tokens wanted: must be at least 1", r.MaxNew)
	case r.MaxNew > p.cfg.Options.MaxPositions(p.cfg.Model)-len(r.IDs):
		return fmt.Errorf("%d prompt and %d new tokens exceed %d positions (%s)",
			len(r.IDs), r.MaxNew, p.cfg.Options.MaxPositions(p.cfg.Model), namePositions)
	}
	for i, id := range r.IDs {
		if id < 0 || id >= p.cfg.Model.VocabSize {
			return fmt.Errorf("token %d is id %d: vocabulary ends at %d", i, id,
				p.cfg.Model.VocabSize)
		}
	}
	return r.Sampling.Validate()
}

func (p *Planner) find(id uint64) *sequence {
	for _, list := range [][]*sequence{p.running, p.waiting} {
		for _, s := range list {
			if s.ID == id && !s.done {
				return s
			}
		}
	}
	return nil
}

// Cancel drops a request and says whether there was one. A step under way is
// not touched: only later plans lack its rows, and no more events come of it.
func (p *Planner) Cancel(id uint64) bool {
	s := p.find(id)
	if s == nil {
		return false
	}
	s.done = true
	p.waiting = slices.DeleteFunc(p.waiting, func(w *sequence) bool { return w == s })
	p.release() // the slot waits for the next plan, so for the end of this step
	return true
}

// release gives back the slots of requests that are done.
func (p *Planner) release() {
	p.running = slices.DeleteFunc(p.running, func(s *sequence) bool {
		if s.done {
			p.free = append(p.free, s.slot)
		}
		return s.done
	})
}

// Idle reports whether no request is left.
func (p *Planner) Idle() bool { return len(p.waiting) == 0 && len(p.running) == 0 }

// Next makes the plan of the next step. It returns false when there is nothing
// to compute, or while the last plan has not been accepted.
func (p *Planner) Next() (*Plan, bool) {
	if p.pending != nil {
		return nil, false
	}
	p.admit()
	plan := &Plan{Epoch: p.cfg.Epoch, Step: p.step + 1}
	if p.cfg.Options.Mix {
		p.addDecodes(plan)
	}
	p.addPrompts(plan)
	if len(plan.Rows) == 0 {
		p.addDecodes(plan)
	}
	if len(plan.Rows) == 0 {
		return nil, false
	}
	plan.Decision = p.cfg.Options.Decide(p.cfg.Model, p.cfg.TP, plan.Facts())
	p.step, p.pending = plan.Step, plan
	return plan, true
}

// admit gives free slots to those who wait longest.
func (p *Planner) admit() {
	for len(p.waiting) > 0 && len(p.free) > 0 {
		s := p.waiting[0]
		s.slot = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.waiting = p.waiting[1:]
		p.running = append(p.running, s)
	}
}

// addPrompts fills the step with chunks of incomplete prompts.
func (p *Planner) addPrompts(plan *Plan) {
	chunk := p.cfg.Options.Chunk
	if chunk == 0 {
		chunk = p.cfg.Options.MaxTokens
	}
	for _, s := range p.running {
		room := p.cfg.Options.MaxTokens - len(plan.Rows)
		if n := min(s.prompt(), chunk, room); n > 0 {
			plan.add(s, n, false)
		}
	}
}

// addDecodes adds one row of each request whose prompt is complete. They fit:
// there are no more slots than rows in a step.
func (p *Planner) addDecodes(plan *Plan) {
	for _, s := range p.running {
		if s.prompt() == 0 {
			plan.add(s, 1, true)
		}
	}
}

// add appends the next n rows of s, and a sample if the last of them is the
// last that s has.
func (p *Plan) add(s *sequence, n int, decode bool) {
	for range n {
		p.Rows = append(p.Rows, Row{Request: s.ID, Slot: s.slot, Pos: s.computed,
			Token: s.token(s.computed), Decode: decode})
		s.computed++
	}
	if s.computed == len(s.IDs)+len(s.given) {
		p.Samples = append(p.Samples,
			Sample{Row: len(p.Rows) - 1, Request: s.ID, Params: s.Sampling})
	}
}

// Accept takes the tokens that the samples of a step gave and returns what the
// requests get of it, in order of samples. A sample without a token fails its
// request; tokens that nobody asked for are dropped. The step must be the one
// that Next gave last.
func (p *Planner) Accept(step uint64, tokens []Token) []Event {
	if p.pending == nil || p.pending.Step != step {
		panic(fmt.Sprintf("model: accept of step %d, which is not under way", step))
	}
	byRequest := make(map[uint64]Token, len(tokens))
	for _, t := range tokens {
		byRequest[t.Request] = t
	}
	var events []Event
	for _, sample := range p.pending.Samples {
		s := p.find(sample.Request)
		if s == nil || s.slot != p.pending.Rows[sample.Row].Slot {
			continue // cancelled while the step ran, and perhaps asked for anew
		}
		t, ok := byRequest[s.ID]
		if !ok {
			t.Fault = "the step gave no token"
		}
		events = append(events, s.take(t))
	}
	p.pending = nil
	p.release()
	return events
}

// take appends a sampled token and says whether it was the last.
func (s *sequence) take(t Token) Event {
	e := Event{Request: s.ID, Token: t}
	if t.Fault != "" {
		e = Event{Request: s.ID, Finish: FinishError,
			Err: fmt.Errorf("sample request %d: %s", s.ID, t.Fault)}
		s.done = true
		return e
	}
	s.given = append(s.given, t.ID)
	switch {
	case slices.Contains(s.StopIDs, t.ID):
		e.Finish = FinishStop
	case len(s.given) == s.MaxNew:
		e.Finish = FinishLength
	}
	s.done = e.Finish != ""
	return e
}
