package rank

import (
	"fmt"

	"octet/collective"
)

// This file is how a rank's life ends, and what time does to it.

func (m *Machine) gotStop() ([]Effect, error) { return m.part(nil, nil), nil }

// quit is the end for a reason outside the machine: the master is lost, the
// caller gave up, or an event was illegal.
func (m *Machine) quit(e Quit) ([]Effect, error) {
	if m.state == StateStopped {
		return m.ignore(e, "this rank has stopped")
	}
	return m.part(e.Err, nil), nil
}

// part begins the end: Run will return end. What the rank holds of the epoch is
// closed first, with the cause if there is one, and else in order; a step that
// runs makes that an abort, or the peers would wait for this rank.
func (m *Machine) part(end error, cause *collective.Cause) []Effect {
	if cause == nil && m.state == StateRunning {
		cause = &collective.Cause{Class: collective.Aborted, Epoch: m.epoch,
			Informer: m.cfg.Rank, Detail: fmt.Sprintf("stopped while step %d ran", m.step)}
	}
	m.state, m.end, m.parted = StateStopped, end, m.now
	switch {
	case m.closing:
		return nil
	case m.open:
		m.closing = true
		return []Effect{CloseEpoch{m.epoch, cause}}
	}
	return m.farewell()
}

// farewell says BYE and ends Run.
func (m *Machine) farewell() []Effect {
	m.gone = true
	bye := &Bye{}
	if m.end != nil {
		bye.Cause = clip(m.end.Error())
	}
	return []Effect{Send{bye}, Finish{m.end}}
}

// tick moves the time: heartbeats go out, and silence is noticed.
func (m *Machine) tick(e Tick) ([]Effect, error) {
	if e.Now < m.now {
		return nil, m.illegal(e, fmt.Sprintf("time was %v", m.now))
	}
	// A gap means that this process did not run, so nobody could be heard.
	if gap := e.Now - m.now; gap > m.dead/2 {
		m.heard += gap
	}
	m.now = e.Now
	switch {
	case m.state == StateStart || m.gone:
		return nil, nil
	case m.state == StateStopped:
		if m.now-m.parted < m.cfg.Grace {
			return nil, nil
		}
		return m.farewell(), nil
	case m.now-m.heard > m.dead:
		return m.part(fmt.Errorf("%w: silent for %v", ErrMasterLost, m.now-m.heard), nil), nil
	case m.now-m.beaten < m.beat:
		return nil, nil
	}
	m.beaten = m.now
	return []Effect{Send{&Heartbeat{Epoch: m.epoch, Step: m.step, State: m.state.String()}}}, nil
}

// clip makes a text fit into a message.
func clip(s string) string {
	return s[:min(len(s), TextMax)]
}
