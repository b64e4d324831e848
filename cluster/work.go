package cluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"octet/collective"
	"octet/model"
	"octet/rank"
)

// recordSteps bounds the step records that are kept: those of the last steps,
// and at least half as many.
const recordSteps = 1 << 14

// work is what ranks are given to do: one plan at a time, and questions about
// digests between plans. It is part of the master's plain values.
type work struct {
	planner *model.Planner
	size    int
	plan    *model.Plan // under way; nil between steps
	since   time.Time   // when it went out
	waiting map[int]bool
	tokens  []model.Token // rank 0's

	records []StepRecord
	events  []model.Event // for clients, not taken yet

	asks    []ask // the first one is under way when asking
	asking  bool
	answers [][]model.Digest
	refusal string
	left    int // answers that are missing
	asked   uint64
}

// ask is a question about the digests of a request.
type ask struct {
	request uint64
	// answer is called once, with one list a rank or an error. It must not wait.
	answer func(perRank [][]model.Digest, err error)
}

// emit is the effect that hands an event to the client of a request.
type emit struct{ Event model.Event }

func newWork(p *model.Planner, size int) *work {
	return &work{planner: p, size: size, waiting: map[int]bool{}}
}

// idle says whether no plan is under way.
func (w *work) idle() bool { return w.plan == nil }

// running is the step under way as a phase, or nothing.
func (w *work) running() string {
	if w.plan == nil {
		return ""
	}
	kind := "prefill"
	if w.plan.Facts().DecodeRows > 0 {
		kind = "decode"
	}
	return fmt.Sprintf("step %d (%s)", w.plan.Step, kind)
}

// late lists the ranks whose STEPPED is missing.
func (w *work) late() []int { return slices.Sorted(maps.Keys(w.waiting)) }

// next returns what every rank is to be sent now, if anything.
func (w *work) next(now time.Time) []rank.Message {
	if w.plan != nil || w.asking {
		return nil
	}
	if len(w.asks) > 0 {
		w.asking, w.asked, w.left = true, w.asked+1, w.size
		w.answers, w.refusal = make([][]model.Digest, w.size), ""
		return []rank.Message{&rank.DigestsAsk{ID: w.asked, Request: w.asks[0].request}}
	}
	plan, ok := w.planner.Next()
	if !ok {
		return nil
	}
	w.plan, w.since, w.tokens = plan, now, nil
	for r := range w.size {
		w.waiting[r] = true
	}
	return []rank.Message{&rank.Step{Plan: *plan}}
}

// stepped takes a rank's STEPPED. The last one turns tokens into events.
func (w *work) stepped(epoch uint32, r int, e *rank.Stepped) *collective.Cause {
	wrong := func(class collective.Class, format string, args ...any) *collective.Cause {
		return &collective.Cause{Class: class, Epoch: epoch, Culprits: []int{r}, Informer: -1,
			Detail: fmt.Sprintf(format, args...)}
	}
	if w.plan == nil || e.Epoch != epoch || e.Step != w.plan.Step || !w.waiting[r] {
		return wrong(collective.Corruption, "STEPPED %d of epoch %d, which is not awaited",
			e.Step, e.Epoch)
	}
	// Ranks find this out among themselves before any data moves, unless there is
	// only one.
	if e.Decision != w.plan.Decision {
		return wrong(collective.Mismatch, "step %d: derived %+v, the plan is %+v",
			e.Step, e.Decision, w.plan.Decision)
	}
	delete(w.waiting, r)
	w.record(StepRecord{Rank: r, Step: e.Step, Facts: w.plan.Facts(),
		Samples: len(w.plan.Samples), Decision: e.Decision, Counts: e.Counts})
	if r == 0 {
		w.tokens = e.Tokens
	}
	if len(w.waiting) == 0 {
		w.plan = nil
		w.events = append(w.events, w.planner.Accept(e.Step, w.tokens)...)
	}
	return nil
}

func (w *work) record(r StepRecord) {
	if limit := recordSteps * w.size; len(w.records) >= limit {
		w.records = slices.Clone(w.records[limit/2:])
	}
	w.records = append(w.records, r)
}

// answered takes a rank's digests. The last one answers the question.
func (w *work) answered(r int, e *rank.DigestsAnswer) error {
	if !w.asking || e.ID != w.asked || w.answers[r] != nil {
		return fmt.Errorf("DIGESTS %d, which is not awaited", e.ID)
	}
	w.answers[r] = e.Digests
	if w.answers[r] == nil {
		w.answers[r] = []model.Digest{}
	}
	if e.Refusal != "" && w.refusal == "" {
		w.refusal = fmt.Sprintf("rank %d: %s", r, e.Refusal)
	}
	if w.left--; w.left > 0 {
		return nil
	}
	question := w.asks[0]
	w.asks, w.asking = w.asks[1:], false
	var err error
	if w.refusal != "" {
		err = fmt.Errorf("gather digests of request %d: %s", question.request, w.refusal)
	}
	question.answer(w.answers, err)
	return nil
}

// abandon answers every question with err.
func (w *work) abandon(err error) {
	for _, question := range w.asks {
		question.answer(nil, err)
	}
	w.asks, w.asking = nil, false
}

// take hands over the events since the last take.
func (w *work) take() []model.Event {
	events := w.events
	w.events = nil
	return events
}
