package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Comm is one rank's end of a communicator. One goroutine at a time calls its
// verbs, in the same order on every rank; the other methods may be called from
// any goroutine. The first error spends it: every later call returns the same
// *AbortError. A context that is cancelled during a verb spends it too, on all
// ranks; a context's deadline bounds the verb as Timeouts.Op does.
type Comm struct {
	// Set by New, never changed:
	cfg     Config
	times   Timeouts
	runHash uint64
	peers   []int // the other ranks, the next one first
	data    Transport
	lane    Lane
	reports chan report   // any goroutine -> lane goroutine
	spent   chan struct{} // closed when the Comm is spent
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed when the lane goroutine has ended

	seq   atomic.Uint64              // operation under way, or the last one
	verb  atomic.Uint32              // of that operation
	abort atomic.Pointer[AbortError] // set once, by the lane goroutine
	busy  atomic.Bool                // a verb is running
	once  sync.Once                  // of Close

	// Owned by the goroutine that runs a verb:
	flows   []flow // one a peer
	heads   arena
	scratch scratch

	mu     sync.Mutex // guards counts
	counts Counts
}

// New makes a Comm over a transport and a lane that are linked to all peers,
// and owns both from then on. It returns at once and starts one goroutine, the
// lane's, which Close ends.
func New(cfg Config, data Transport, lane Lane) (*Comm, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("communicator: %w", err)
	}
	if data == nil || lane == nil {
		return nil, errors.New("communicator: no transport or no lane")
	}
	c := &Comm{
		cfg: cfg, times: cfg.Timeouts.withDefaults(), runHash: cfg.run(), data: data, lane: lane,
		reports: make(chan report), spent: make(chan struct{}),
		closing: make(chan struct{}), ended: make(chan struct{}),
		flows: make([]flow, cfg.Size),
	}
	for i := 1; i < cfg.Size; i++ {
		r := (cfg.Rank + i) % cfg.Size
		c.peers = append(c.peers, r)
		c.flows[r].sent, c.flows[r].checked = data.Done(r)
	}
	go c.run() // ended by Close
	return c, nil
}

// Rank is this rank's number, 0 <= Rank < Size.
func (c *Comm) Rank() int { return c.cfg.Rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.cfg.Size }

// Counts returns what was counted so far: each completed call once.
func (c *Comm) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(Counts(nil), c.counts...)
}

// Err is nil while the Comm is usable, and then the *AbortError that spent it.
// Close spends it too.
func (c *Comm) Err() error {
	if e := c.abort.Load(); e != nil {
		return e
	}
	return nil
}

// Done is closed when the Comm is spent, also when no verb is running.
func (c *Comm) Done() <-chan struct{} { return c.spent }

// Abort spends the Comm with cause, unless it is spent already, and tells every
// peer. Empty fields of the cause are filled in: the class becomes Aborted, the
// informer this rank. It returns what spent the Comm.
func (c *Comm) Abort(cause Cause) error {
	full := c.cause(Aborted, cause.Detail, cause.Culprits...)
	if cause.Class != 0 {
		full.Class = cause.Class
	}
	if cause.Verb != 0 {
		full.Verb, full.Seq = cause.Verb, cause.Seq
	}
	return c.fail(report{cause: full, final: true})
}

// Close leaves in order: BYE to every peer, then both connections are closed.
// What verbs have sent is delivered. A verb that runs meanwhile fails, here and
// on the peers.
func (c *Comm) Close() error {
	var err error
	c.once.Do(func() {
		close(c.closing)
		<-c.ended
		err = errors.Join(c.data.Close(), c.lane.Close())
	})
	return err
}

// cause is evidence that this rank saw during its current operation.
func (c *Comm) cause(class Class, detail string, culprits ...int) Cause {
	return Cause{Class: class, Epoch: c.cfg.Epoch, Seq: c.seq.Load(), Verb: Verb(c.verb.Load()),
		Culprits: culprits, Informer: c.cfg.Rank, Detail: detail}
}

// fail gives evidence, waits for the verdict and returns it. It may be called
// from any goroutine but the lane's.
func (c *Comm) fail(r report) error {
	select {
	case c.reports <- r:
	case <-c.spent:
	case <-c.ended:
	}
	<-c.spent
	return c.Err()
}

// spend makes err the error of everything from now on. The first one stays.
// Called by the lane goroutine only.
func (c *Comm) spend(err *AbortError) {
	if !c.abort.CompareAndSwap(nil, err) {
		return
	}
	c.data.Abort(err)
	close(c.spent)
	c.trace(Event{Kind: Spent, Seq: err.Seq, Verb: err.Verb, Err: err})
}

// others returns the other ranks, the next one first, so that not all ranks
// send to the same one first.
func (c *Comm) others() []int { return c.peers }

func (c *Comm) trace(e Event) {
	if c.cfg.Trace != nil {
		c.cfg.Trace(e)
	}
}

// do runs one operation: it enters it, checks what the caller gave, exchanges
// descriptors together with what schedule moves, and leaves when all frames are
// done both ways. A refused argument spends the Comm like any other error, for
// the peers are in the operation already.
func (c *Comm) do(ctx context.Context, call Call, d header, args error,
	schedule func(o *operation) error) (err error) {
	if err := c.Err(); err != nil {
		return err
	}
	if !c.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("%v: another goroutine is in an operation of this communicator", d.verb)
	}
	defer c.busy.Store(false)
	seq := c.seq.Add(1)
	c.verb.Store(uint32(d.verb))
	event := Event{Kind: OpBegin, Seq: seq, Verb: d.verb, Purpose: call.Purpose, Count: d.count}
	c.trace(event)
	o := c.open(ctx, call, d)
	defer func() {
		event.Kind, event.Bytes, event.Err = OpEnd, o.bytes, err
		c.trace(event)
	}()
	if err := c.admit(ctx, seq, args); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.cancelled(ctx) }) // ends when the Comm is spent
	defer stop()
	o.begin()
	if err := schedule(o); err != nil {
		return err
	}
	if err := o.finish(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.add(d.verb, call.Purpose, o.bytes)
	return nil
}

// admit refuses to enter an operation, and spends the Comm if it does.
func (c *Comm) admit(ctx context.Context, seq uint64, args error) error {
	if c.cfg.Failpoint != nil {
		if err := c.cfg.Failpoint(fmt.Sprintf("collective/op:%d", seq)); err != nil {
			return c.giveUp("failpoint", err)
		}
	}
	if args != nil {
		return c.fail(report{cause: c.cause(Mismatch, "refused: "+args.Error(), c.cfg.Rank), err: args})
	}
	if err := ctx.Err(); err != nil {
		return c.giveUp("context", err)
	}
	return nil
}

// giveUp spends the Comm because this rank cannot go on.
func (c *Comm) giveUp(what string, err error) error {
	return c.fail(report{cause: c.cause(Aborted, what+": "+err.Error(), c.cfg.Rank), err: err})
}

// cancelled is called when the context of a running verb is done. Its deadline
// is the verb's own business, which can say whose frames are missing.
func (c *Comm) cancelled(ctx context.Context) {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		_ = c.giveUp("context", context.Cause(ctx))
	}
}

// deadline is when an operation that starts now has taken too long.
func (c *Comm) deadline(ctx context.Context) time.Time {
	t := time.Now().Add(c.times.Op)
	if d, ok := ctx.Deadline(); ok && d.Before(t) {
		return d
	}
	return t
}
