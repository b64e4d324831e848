package cluster

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"octet/collective"
	"octet/rank"
)

// This file holds the decisions of the master about the end of a group: whose
// fault it is, and how ranks are made to end.

// accuse weighs one piece of evidence. The first starts the grace.
func (m *master) accuse(epoch uint32, cause collective.Cause) {
	if epoch != m.epoch || m.state != starting && m.state != ready {
		return // of another epoch, or the group ends already
	}
	m.evidence = append(m.evidence, cause)
	if !m.weighing && !m.judged {
		m.weighing = true
		m.do(arm{timerGrace, grace})
	}
}

// aborted takes why a rank's part of the epoch is over. What others relay of its
// words is no confession.
func (m *master) aborted(r int, e *rank.Abort) {
	c := &e.Cause
	if e.Epoch == m.epoch && c.Informer == r && slices.Equal(c.Culprits, []int{r}) {
		m.ranks[r].confession = c
	}
	m.accuse(e.Epoch, e.Cause)
}

func (m *master) hungUp(r int, err error) {
	member := &m.ranks[r]
	member.state = "gone"
	if member.bye || member.exit != nil {
		return
	}
	m.accuse(m.epoch, died(m.epoch, r, fmt.Sprintf("control connection: %v", err)))
}

// exited takes the end of a rank that the group started.
func (m *master) exited(e exit) {
	r := &m.ranks[e.Rank]
	r.exit, r.state = &e, "gone"
	if m.state == stopping && !r.pressed && (e.Signal != "" || e.Code != 0) {
		m.fail(blame(died(m.epoch, e.Rank, r.byeFor), m.ranks, m.phase))
	}
	m.accuse(m.epoch, died(m.epoch, e.Rank, r.byeFor))
	if m.judged {
		m.conclude(false)
	}
	m.endIfGone()
}

// tick finds members that have been silent for too long. When the master itself
// was not running, nobody could be heard, and all get a new start.
func (m *master) tick(now time.Time) {
	if gap := now.Sub(m.now); gap > m.cfg.Limits.Dead/2 {
		for i := range m.ranks {
			m.ranks[i].heard = m.ranks[i].heard.Add(gap)
		}
	}
	m.now = now
	for i := range m.ranks {
		r := &m.ranks[i]
		if r.conn == 0 || r.bye || r.exit != nil {
			continue
		}
		m.do(send{i, &rank.Heartbeat{Epoch: m.epoch}})
		silence, limit := now.Sub(r.heard), m.cfg.Limits.Dead
		if !r.given {
			limit = max(limit, deadDefault) // it does not know the group's limit yet
		}
		if silence < limit {
			continue
		}
		m.accuse(m.epoch, collective.Cause{Class: collective.Stall, Epoch: m.epoch,
			Culprits: []int{i}, Informer: -1,
			Detail: fmt.Sprintf("not heard for %v", silence.Round(time.Millisecond))})
	}
}

// expired takes a deadline that has passed.
func (m *master) expired(t timer) {
	switch t {
	case timerJoin:
		m.joinExpired()
	case timerGrace:
		m.judge()
	case timerProof:
		m.conclude(true)
	case timerTerm:
		m.press(syscall.SIGTERM)
	case timerKill:
		m.killExpired()
	case timerStep:
		m.stepExpired()
	}
}

func (m *master) joinExpired() {
	if m.state != starting {
		return
	}
	ranks, text := missing(m.ranks)
	f := &Failure{Rank: -1, Exit: -1, Phase: "join",
		Detail: fmt.Sprintf("not ready after %v: %s", m.cfg.Limits.Join, text)}
	if len(ranks) == 1 {
		f.Rank, f.PID = ranks[0], m.ranks[ranks[0]].pid
		f.Phase = m.ranks[ranks[0]].stage()
	}
	f.Cause = collective.Cause{Class: collective.Stall, Epoch: m.epoch, Culprits: ranks,
		Informer: -1, Detail: f.Detail}
	m.fail(f)
}

func (m *master) stepExpired() {
	late := m.work.late()
	// The timer may have been for a step before this one.
	if m.state != ready || len(late) == 0 || m.now.Sub(m.work.since) < m.cfg.Limits.Step/2 {
		return
	}
	m.accuse(m.epoch, collective.Cause{Class: collective.Stall, Epoch: m.epoch, Culprits: late,
		Informer: -1, Detail: fmt.Sprintf("no STEPPED within %v", m.cfg.Limits.Step)})
}

// judge picks the culprit from what has been gathered.
func (m *master) judge() {
	m.weighing = false
	if m.state != starting && m.state != ready {
		return
	}
	m.judged = true
	m.do(arm{timerProof, proof})
	m.conclude(false)
}

// conclude makes the verdict final: at once when the culprit's end is known or
// no end is to be expected, and anyway when the wait for it is over.
func (m *master) conclude(waited bool) {
	if !m.judged || m.state != starting && m.state != ready {
		return
	}
	// An exit that has come in since is a death, and may be the better verdict.
	cause, _ := collective.Verdict(m.evidence)
	cause = m.confessed(cause)
	if !waited && slices.ContainsFunc(cause.Culprits, func(r int) bool {
		known := r >= 0 && r < len(m.ranks)
		return known && m.ranks[r].exit == nil &&
			(cause.Class == collective.Death || m.ranks[r].bye)
	}) {
		return
	}
	m.fail(blame(cause, m.ranks, m.phase))
	if cause.Class != collective.Stall {
		return
	}
	for _, r := range cause.Culprits { // it does not hear anything else
		if r >= 0 && r < len(m.ranks) && m.ranks[r].exit == nil {
			m.ranks[r].pressed = true
			m.do(press{r, syscall.SIGKILL})
		}
	}
}

// confessed replaces a verdict over one rank by what that rank says of itself.
// To its peers a rank that gives up may look dead, depending on which of its
// connections they look at; it alone knows why. A rank that ended without a
// word, or that speaks of others, changes nothing.
func (m *master) confessed(verdict collective.Cause) collective.Cause {
	for r := range m.ranks {
		if c := m.ranks[r].confession; c != nil && slices.Equal(c.Culprits, verdict.Culprits) {
			return *c
		}
	}
	return verdict
}

// fail makes f the reason why the group ends, unless there is one.
func (m *master) fail(f *Failure) {
	if m.failure != nil || m.state == over {
		return
	}
	m.failure = f
	wasStopping := m.state == stopping
	m.state = failing
	m.do(failed{f})
	if wasStopping {
		return // ranks have been told, and the timers run
	}
	for r := range m.ranks {
		if m.ranks[r].given { // before ASSIGN there is no epoch to abort
			m.do(send{r, &rank.Abort{Epoch: m.epoch, Cause: f.Cause}})
		}
	}
	m.end("the group failed")
}

// stop ends the group in order: a step that runs is let through first.
func (m *master) stop(reason string) {
	if m.state != starting && m.state != ready {
		return
	}
	if len(m.evidence) > 0 { // it fails, and has not said so yet
		m.judged = true
		m.conclude(true)
		return
	}
	m.state = stopping
	if m.work.idle() {
		m.end(reason)
		return
	}
	m.armEnd()
}

// end tells all ranks to end and starts the clock for those that do not.
func (m *master) end(reason string) {
	m.armEnd()
	m.sendStop(reason)
	m.endIfGone()
}

func (m *master) armEnd() {
	m.do(arm{timerTerm, m.cfg.Limits.Teardown / 2})
	m.do(arm{timerKill, m.cfg.Limits.Teardown})
}

// sendStop tells the members in words and the ranks that never joined by signal.
func (m *master) sendStop(reason string) {
	for r := range m.ranks {
		switch member := &m.ranks[r]; {
		case member.exit != nil:
		case member.conn != 0:
			m.do(send{r, &rank.Stop{Reason: reason}})
		default:
			member.pressed = true
			m.do(press{r, syscall.SIGTERM})
		}
	}
}

// press sends a signal to every rank that has not ended.
func (m *master) press(sig syscall.Signal) {
	for r := range m.ranks {
		if m.ranks[r].exit == nil {
			m.ranks[r].pressed = true
			m.do(press{r, sig})
		}
	}
}

// killExpired ends what did not end in order. In a stop that is a failure of
// the rank, and said so.
func (m *master) killExpired() {
	for r := range m.ranks {
		if m.state == stopping && m.ranks[r].exit == nil {
			detail := fmt.Sprintf("did not end within %v", m.cfg.Limits.Teardown)
			m.fail(blame(collective.Cause{Class: collective.Stall, Epoch: m.epoch,
				Culprits: []int{r}, Informer: -1, Detail: detail}, m.ranks, m.phase))
		}
	}
	m.press(syscall.SIGKILL)
}

func (m *master) endIfGone() {
	if m.state != stopping && m.state != failing {
		return
	}
	for i := range m.ranks {
		if m.ranks[i].exit == nil {
			return
		}
	}
	m.state = over
	m.do(isOver{})
}
