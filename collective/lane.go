package collective

import (
	"fmt"
	"time"
)

// report is evidence from this rank, with the error that the caller may unwrap.
type report struct {
	cause Cause
	err   error
	final bool // the verdict stands at once
}

// peerLane is what the lane has told about a peer.
type peerLane struct {
	heard time.Time // of its last notice
	bye   bool      // it closes in order
	ended bool
}

// lanes watches the lane: it beats, listens, judges silence and lets the jury
// decide. All of it is owned by the lane goroutine.
type lanes struct {
	c        *Comm
	peers    []peerLane
	jury     jury
	settle   *time.Timer // runs out at the jury's deadline
	lastTick time.Time
	err      error // of the first own report
}

// run is the lane goroutine. Close ends it.
func (c *Comm) run() {
	defer close(c.ended)
	now := time.Now()
	l := &lanes{c: c, peers: make([]peerLane, c.cfg.Size), lastTick: now,
		jury: jury{grace: c.times.Grace}}
	for i := range l.peers {
		l.peers[i].heard = now
	}
	tick := time.NewTicker(c.times.Heartbeat)
	defer tick.Stop()
	l.settle = time.NewTimer(time.Hour)
	l.settle.Stop()
	defer l.settle.Stop()
	events := c.lane.Events()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				l.hear(c.cause(Aborted, "own lane was closed", c.cfg.Rank), true)
				continue
			}
			l.event(e)
		case r := <-c.reports:
			if l.err == nil {
				l.err = r.err
			}
			l.hear(r.cause, r.final)
		case <-tick.C:
			l.tick(time.Now())
		case <-l.settle.C:
			l.decide()
		case <-c.closing:
			l.leave()
			return
		}
	}
}

// event takes what a peer's lane delivered.
func (l *lanes) event(e LaneEvent) {
	if e.Peer < 0 || e.Peer >= len(l.peers) || e.Peer == l.c.cfg.Rank {
		return
	}
	p := &l.peers[e.Peer]
	if e.End != nil {
		p.ended = true
		if !p.bye {
			l.hear(l.c.cause(Death, "lane ended: "+e.End.Error(), e.Peer), false)
		}
		return
	}
	p.heard = time.Now()
	if e.Notice.Epoch != l.c.cfg.Epoch {
		l.hear(l.c.cause(Corruption, fmt.Sprintf("notice of epoch %d, this is epoch %d",
			e.Notice.Epoch, l.c.cfg.Epoch), e.Peer), false)
		return
	}
	switch e.Notice.Kind {
	case Bye:
		p.bye = true
		for _, c := range l.jury.evidence { // a link may have ended before BYE was read
			l.hear(c, false)
		}
	case AbortNotice:
		l.hear(e.Notice.Cause, false)
	}
}

// tick beats and judges silence. A rank that was itself held up for long does
// not judge: what peers said meanwhile is still queued.
func (l *lanes) tick(now time.Time) {
	held := now.Sub(l.lastTick) > l.c.times.Dead/2
	l.lastTick = now
	l.tell(Notice{Kind: Heartbeat, Epoch: l.c.cfg.Epoch, Seq: l.c.seq.Load()})
	for r := range l.peers {
		p := &l.peers[r]
		switch {
		case r == l.c.cfg.Rank || p.bye || p.ended:
		case held:
			p.heard = now
		case now.Sub(p.heard) > l.c.times.Dead:
			l.hear(l.c.cause(Stall, fmt.Sprintf("no heartbeat for %v", l.c.times.Dead), r), false)
		}
	}
}

// hear gives evidence to the jury and to the others, and sets the time at which
// the verdict stands.
func (l *lanes) hear(cause Cause, final bool) {
	if l.c.abort.Load() != nil {
		return
	}
	now := time.Now()
	cause = l.explain(cause)
	if l.jury.hear(now, cause) {
		l.tell(Notice{Kind: AbortNotice, Epoch: l.c.cfg.Epoch, Seq: l.c.seq.Load(), Cause: cause})
	}
	if final {
		l.decide()
		return
	}
	l.settle.Reset(max(0, l.jury.deadline().Sub(now)))
}

// explain turns a link broken by a peer that left in order into what it is: the
// peer is gone while this rank still needs it. One that gave up has said why.
func (l *lanes) explain(c Cause) Cause {
	if c.Class != Link || c.Informer != l.c.cfg.Rank {
		return c
	}
	for _, r := range c.Culprits {
		if l.peers[r].bye && !gaveUp(r, l.jury.evidence) {
			c.Class, c.Culprits = Death, []int{r}
			c.Detail = "left in order while still needed: " + c.Detail
			return c
		}
	}
	return c
}

// decide spends the Comm with the verdict and tells everybody, so that those who
// have not settled hear all that this rank knows.
func (l *lanes) decide() {
	verdict, ok := Verdict(l.jury.evidence)
	if !ok || l.c.abort.Load() != nil {
		return
	}
	l.c.spend(&AbortError{Cause: verdict, err: l.err})
	l.tell(Notice{Kind: AbortNotice, Epoch: l.c.cfg.Epoch, Seq: l.c.seq.Load(), Cause: verdict})
}

// leave ends the lane in order: what evidence there is decides, then BYE.
func (l *lanes) leave() {
	l.decide()
	l.c.spend(&AbortError{Cause: l.c.cause(Aborted, "closed by this rank")})
	l.tell(Notice{Kind: Bye, Epoch: l.c.cfg.Epoch, Seq: l.c.seq.Load()})
}

// tell sends a notice to every peer that is still there. An error says nothing
// that the peer's end or silence does not say too.
func (l *lanes) tell(n Notice) {
	for r := range l.peers {
		if r != l.c.cfg.Rank && !l.peers[r].ended {
			_ = l.c.lane.Send(r, n)
		}
	}
}
