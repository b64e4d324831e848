package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"octet/model"
)

// ErrStopped is what requests get that a group in order of ending leaves
// unfinished, and what Submit returns then.
var ErrStopped = errors.New("the group has been stopped")

// Group is a set of ranks that work as one, and the master that drives them.
// All methods may be called from any goroutine.
type Group struct {
	// Set by Start, never changed:
	spec    Spec
	runID   string
	address string   // of the control port; empty in a virtual group
	events  chan any // sockets, children, timers, gossip, callers -> loop
	quit    chan struct{}
	done    chan struct{}
	ready   chan struct{} // closed when every rank is READY; never in a start that fails
	// condemned is closed when the group has a reason to end other than Stop.
	condemned chan struct{}
	control   *control
	running   sync.WaitGroup // goroutines that post, beside control's

	// Owned by loop:
	master  *master
	links   []*link // by rank; nil: no connection
	bodies  []body  // by rank; nil: never started
	streams map[uint64]*stream
	timers  map[timer]*time.Timer
	list    *gossip // nil in a virtual group
	cleanup []func()
	early   []any // effects from before the loop

	last atomic.Pointer[Status] // written as the last thing that loop does
	fail atomic.Pointer[Failure]
}

// body is what a rank runs in: a process or a goroutine.
type body interface{ Signal(syscall.Signal) }

// stream is where the events of a request go. It has room for all of them, so
// that the loop never waits for a client.
type stream struct {
	to      chan Event
	release func() bool // ends the watch over the client's context
}

// call is a function that runs in the loop, for a caller's sake.
type call struct{ Func func() }

// eventsMax bounds the events that wait for the loop. Who posts more waits.
const eventsMax = 1024

// loop owns the master and carries out what it decides. It returns when every
// rank has ended and every goroutine of the group with it.
func (g *Group) loop() {
	defer close(g.done)
	beat := time.NewTicker(g.master.cfg.Heartbeat)
	defer beat.Stop()
	g.carryOut(g.early)
	for g.master.state != over {
		select {
		case e := <-g.events:
			if c, ok := e.(call); ok {
				c.Func()
				g.carryOut(g.master.wake())
				continue
			}
			g.carryOut(g.master.Step(e))
		case now := <-beat.C:
			g.carryOut(g.master.Step(tick{now}))
		}
	}
	g.finish()
}

// finish closes everything. Callers that wait for the loop see quit.
func (g *Group) finish() {
	close(g.quit)
	for _, t := range g.timers {
		t.Stop()
	}
	g.master.work.abandon(g.reason())
	g.endStreams(g.reason())
	for _, l := range g.links {
		if l != nil {
			close(l.queue)
		}
	}
	for _, f := range slices.Backward(g.cleanup) {
		f()
	}
	g.control.close()
	g.running.Wait()
	status := g.status()
	g.last.Store(&status)
}

// carryOut does what the master decided, in order.
func (g *Group) carryOut(effects []any) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case adopt:
			g.adopted(e)
		case turn:
			g.control.turn(e.Conn, e.Refuse)
		case send:
			g.send(e)
		case arm:
			g.arm(e)
		case press:
			if b := g.bodies[e.Rank]; b != nil {
				b.Signal(e.Signal)
			}
		case progress:
			g.spec.Progress(e.Stage, e.Done, e.Of)
		case emit:
			g.emit(e.Event)
		case meet:
			g.meet(e.Addrs)
		case isReady:
			close(g.ready)
		case failed:
			g.failed(e.Failure)
		case isOver:
		default:
			panic(fmt.Sprintf("cluster: no way to carry out %T", effect))
		}
	}
}

func (g *Group) adopted(e adopt) {
	l := g.control.adopt(e.Conn, e.Rank)
	g.links[e.Rank] = l
	if l == nil { // it has ended between HELLO and now, and its reader with it
		g.carryOut(g.master.Step(hungUp{e.Rank, errors.New("ended after HELLO")}))
	}
}

// meet joins the master's gossip to that of the ranks. Without it Status lacks
// hints; that is worth a word in the log and no more.
func (g *Group) meet(addrs []string) {
	if g.list == nil {
		return
	}
	g.running.Go(func() { // ends when joined, or at memberlist's own limits
		if err := g.list.Join(addrs); err != nil {
			g.spec.Log.Warn("the master has no gossip", "error", err)
		}
	})
}

// send queues a message. A rank whose queue is full does not read; closing its
// connection makes that visible.
func (g *Group) send(e send) {
	l := g.links[e.Rank]
	if l == nil {
		return
	}
	select {
	case l.queue <- e.Message:
	default:
		_ = l.conn.Close()
	}
}

// arm starts a timer anew.
func (g *Group) arm(e arm) {
	if t := g.timers[e.Timer]; t != nil {
		t.Stop()
	}
	g.timers[e.Timer] = time.AfterFunc(e.After, func() { g.post(expired{e.Timer}) })
}

func (g *Group) failed(f *Failure) {
	g.fail.Store(f)
	close(g.condemned)
	g.spec.Log.Info("the group failed", "error", f.Error())
	g.master.work.abandon(f)
	g.endStreams(f)
}

// reason is why requests end without being finished.
func (g *Group) reason() error {
	if f := g.fail.Load(); f != nil {
		return f
	}
	return ErrStopped
}

// emit passes an event on to the client.
func (g *Group) emit(e model.Event) {
	s := g.streams[e.Request]
	if s == nil {
		return // cancelled, and the planner had not heard yet
	}
	s.to <- Event{Token: e.Token, Finish: e.Finish, Err: e.Err}
	if e.Finish != "" {
		g.closeStream(e.Request)
	}
}

func (g *Group) closeStream(request uint64) {
	s := g.streams[request]
	s.release()
	close(s.to)
	delete(g.streams, request)
}

func (g *Group) endStreams(err error) {
	for request := range g.streams {
		g.endStream(request, err)
	}
}

func (g *Group) endStream(request uint64, err error) {
	if s := g.streams[request]; s != nil {
		s.to <- Event{Finish: model.FinishError, Err: err}
		g.closeStream(request)
	}
}

// post hands an event to the loop; false: the loop has ended.
func (g *Group) post(event any) bool {
	select {
	case g.events <- event:
		return true
	case <-g.quit:
		return false
	}
}

// inLoop runs f in the loop and waits for it; false: the loop has ended.
func (g *Group) inLoop(f func()) bool {
	ran := make(chan struct{})
	if !g.post(call{func() { f(); close(ran) }}) {
		return false
	}
	select {
	case <-ran:
		return true
	case <-g.done:
		// The loop may have run f as its last act.
		select {
		case <-ran:
			return true
		default:
			return false
		}
	}
}

// Submit queues a request. Its tokens arrive on the channel, which has room for
// all of them and is closed after the event with a Finish. When ctx ends, the
// request leaves the plans from the next step on, and its last event carries
// the context's error.
func (g *Group) Submit(ctx context.Context, r Request) (<-chan Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var err error
	s := &stream{}
	ran := g.inLoop(func() {
		if err = g.refusal(); err != nil {
			return
		}
		err = g.master.work.planner.Add(model.Request{ID: r.ID, IDs: r.IDs, MaxNew: r.MaxNew,
			Sampling: r.Sampling, StopIDs: r.StopIDs})
		if err != nil {
			return
		}
		s.to = make(chan Event, r.MaxNew+1)
		g.streams[r.ID] = s
		s.release = context.AfterFunc(ctx, func() { // ends at once, or with the loop
			g.post(call{func() { g.cancel(r.ID, s, ctx.Err()) }})
		})
	})
	if !ran || err != nil {
		return nil, g.explain(ctx, err)
	}
	return s.to, nil
}

// errEnding says that the group is about to end and the reason is not known yet.
var errEnding = errors.New("the group is about to end")

// refusal says why the group takes no request.
func (g *Group) refusal() error {
	switch m := g.master; {
	case m.state == starting:
		return errors.New("the group is still starting")
	case m.weighing || m.judged:
		return errEnding
	case m.state == ready:
		return nil
	}
	return g.reason()
}

// explain turns the error of a call into the reason why the group takes none,
// and waits for the verdict where that is about to come.
func (g *Group) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return g.reason()
	case !errors.Is(err, errEnding):
		return err
	}
	select {
	case <-g.condemned:
	case <-g.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return g.reason()
}

// cancel ends a stream if it is still that of the request.
func (g *Group) cancel(request uint64, s *stream, err error) {
	if g.streams[request] == s {
		g.master.work.planner.Cancel(request)
		g.endStream(request, err)
	}
}

// Steps is what each rank counted, in order of steps: all of them, or in a long
// life the last thousands.
func (g *Group) Steps() []StepRecord {
	var records []StepRecord
	if !g.inLoop(func() { records = slices.Clone(g.master.work.records) }) {
		<-g.done
		records = slices.Clone(g.master.work.records)
	}
	return records
}

// Digests gathers the row digests of a request from all ranks, between steps.
// The group must have been started with Digests.
func (g *Group) Digests(ctx context.Context, request uint64) (map[model.DigestKey]uint64, error) {
	type result struct {
		perRank [][]model.Digest
		err     error
	}
	results := make(chan result, 1)
	var refusal error
	ran := g.inLoop(func() {
		if refusal = g.refusal(); refusal != nil {
			return
		}
		g.master.work.asks = append(g.master.work.asks, ask{request,
			func(perRank [][]model.Digest, err error) { results <- result{perRank, err} }})
	})
	if !ran || refusal != nil {
		return nil, g.explain(ctx, refusal)
	}
	select {
	case r := <-results:
		if r.err != nil {
			return nil, r.err
		}
		digests, err := model.CombineDigests(r.perRank)
		if err == nil && len(digests) == 0 {
			err = fmt.Errorf("gather digests of request %d: no rank has any", request)
		}
		return digests, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Status is the group as it is now.
func (g *Group) Status() Status {
	var s Status
	if !g.inLoop(func() { s = g.status() }) {
		<-g.done
		s = *g.last.Load()
	}
	return s
}

func (g *Group) status() Status {
	m := g.master
	s := Status{Epoch: m.epoch, TP: g.spec.TP, Model: g.spec.Model, Last: m.failure}
	switch {
	case m.failure != nil || m.weighing || m.judged:
		s.State = "failed" // or about to be: no request is taken any more
	case m.state == over:
		s.State = "stopped"
	default:
		s.State = m.state.String()
	}
	if g.list != nil {
		s.Members = g.list.Members()
	}
	for i := range m.ranks {
		r := &m.ranks[i]
		s.Ranks = append(s.Ranks, RankStatus{Rank: i, PID: r.pid, Host: r.host, State: r.state,
			Step: r.step, Bytes: r.bytes, Device: r.device, Members: r.members,
			Suspected: r.suspect})
	}
	return s
}

// Stop ends every rank in order: a step that runs is let through, ranks are told
// to end, and those that do not are made to within Limits.Teardown. Requests
// that are not finished end with ErrStopped. It returns when nothing of the
// group is left, with the *Failure if there was one, or when ctx ends. It may
// be called again.
func (g *Group) Stop(ctx context.Context) error {
	g.post(call{func() {
		g.carryOut(g.master.Step(askStop{"the group stops"}))
		g.endStreams(g.reason())
	}})
	select {
	case <-g.done:
		return g.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready is closed when every rank is READY, and never in a start that fails.
func (g *Group) Ready() <-chan struct{} { return g.ready }

// Done is closed when nothing of the group is left.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err is why the group ended, a *Failure, or nil while it lives and when it was
// stopped.
func (g *Group) Err() error {
	if f := g.fail.Load(); f != nil {
		return f
	}
	return nil
}
