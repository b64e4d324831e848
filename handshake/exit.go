package handshake

import "fmt"

// exitStep is where a scheduler thread stands while it retires its cores.
type exitStep uint8

const (
	exitStart exitStep = iota
	exitSend
	exitJoin
	exitJoined
	exitClose
	exitHalt
)

// exitMachine retires the cores of one scheduler thread: EXIT to all of them,
// then it awaits each against one deadline that all threads share. A core that
// does not leave keeps its window, and the thread goes on.
type exitMachine struct {
	workers  []int // its cores, in the order of its list
	windows  []int // beside workers
	step     exitStep
	core     int // index into workers
	failures []failure
}

// next is one access. The first call's result is ignored.
func (m *exitMachine) next(r result) access {
	if len(m.workers) == 0 || m.core == len(m.workers) && m.step == exitJoin {
		m.step = exitHalt
	}
	switch m.step {
	case exitStart, exitSend:
		a := store(windowOf(m.windows[m.core], regDMB), tokenExit)
		if m.step == exitStart {
			a.mark = markExit
		}
		m.core, m.step = m.core+1, exitSend
		if m.core == len(m.workers) {
			m.core, m.step = 0, exitJoin
		}
		return a
	case exitJoin:
		m.step = exitJoined
		return poll(windowOf(m.windows[m.core], regCond), wantThis, condExited, limitExit)
	case exitJoined:
		if r.late {
			m.failures = append(m.failures, failure{m.workers[m.core], PhaseExit,
				fmt.Sprintf("did not leave, COND is 0x%X", r.value)})
			m.core, m.step = m.core+1, exitJoin
			return m.next(r)
		}
		m.step = exitClose
		return store(windowOf(m.windows[m.core], regDMB), tokenIdle)
	case exitClose:
		w := m.windows[m.core]
		m.core, m.step = m.core+1, exitJoin
		return store(windowOf(w, regFastPath), fastPathClose)
	}
	return halt()
}
