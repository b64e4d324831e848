package handshake

import "fmt"

// threadStep is where an AICPU thread stands: the access that it does next.
type threadStep uint8

const (
	atSetup threadStep = iota
	atSetupDone
	atSetupLook
	atBegin
	atTask
	atTaskBarrier
	atReady
	atClosing
	atReport
	atID
	atBase
	atOpen
	atIdle
	atWindowBarrier
	atRegs
	atRegsBarrier
	atDone
	atServed
	atArrive
	atArrived
	atCheck
	atEnd
	atVerdict
	atLead
	atHalt
)

// failure is what a thread found wrong with a worker.
type failure struct {
	worker int
	phase  Phase
	why    string
}

// threadMachine is one AICPU thread's side of the handshake: it is told how its
// last access ended and says what it does next. It knows neither time nor what
// other actors do except by its loads.
type threadMachine struct {
	// Set when made, never changed:
	index, threads int
	workers        int
	slice          bounds
	silicon        int  // clusters on the die, to read a base address
	windows        int  // entries of the register-base table
	refused        bool // leader: the setup has failed

	step     threadStep
	core     int // worker being served
	id       int // physical id that it reported
	window   int // its window
	base     uint64
	reported bool      // the first report of the slice is there
	failures []failure // of its slice; the leader adds those of the post phase
	lost     string    // what of the other threads did not come in time
	good     bool      // does not lead, and has found the round up
	lead     leader    // the leader's post phase
}

func (m *threadMachine) leads() bool { return m.index == 0 }

// next is one access. The first call's result is ignored.
func (m *threadMachine) next(r result) access {
	switch {
	case m.step < atTask:
		return m.setup(r)
	case m.step < atReport:
		return m.broadcast()
	case m.step < atArrive:
		return m.serve(r)
	}
	return m.finish(r)
}

// setup: the leader prepares and says so; the others wait for it and then look
// whether it went well, which they may because init_failed is stored first.
func (m *threadMachine) setup(r result) access {
	switch m.step {
	case atSetup:
		if !m.leads() {
			m.step = atSetupLook
			return poll(control(setupDone), wantSet, 0, limitPhase)
		}
		m.step = atSetupDone
		if m.refused {
			return store(control(initFailed), 1)
		}
		return m.setup(r)
	case atSetupDone:
		m.step = atSetupLook
		return access{op: opRelease, at: control(setupDone), value: 1, site: siteReleaseSetup}
	case atSetupLook:
		if r.late {
			return m.lose("the setup")
		}
		m.step = atBegin
		return load(control(initFailed))
	}
	if r.value != 0 || m.refused {
		return m.stop()
	}
	m.core, m.step = m.slice.from, atTask
	if m.slice.from == m.slice.to {
		m.step = atArrive
		return m.finish(r)
	}
	a := m.broadcast()
	a.mark = markBegin
	return a
}

// broadcast tells every core of the slice where its task is and that it may
// start.
func (m *threadMachine) broadcast() access {
	switch m.step {
	case atTask:
		m.step = atTaskBarrier
		return store(record(m.core, task), taskAddress(m.core))
	case atTaskBarrier:
		m.step = atReady
		return barrier(siteTask)
	case atReady:
		at := record(m.core, aicpuReady)
		m.core, m.step = m.core+1, atTask
		if m.core == m.slice.to {
			m.core, m.step = m.slice.from, atClosing
		}
		return store(at, 1)
	}
	m.step = atReport
	a := barrier(siteBroadcast)
	a.mark = markBroadcast
	return a
}

// serve waits for the cores of the slice, one after the other in ascending
// order, opens the window of each and waits until it is done.
func (m *threadMachine) serve(r result) access {
	at := m.step
	m.step++
	switch at {
	case atReport:
		a := poll(record(m.core, aicoreRegsReady), wantSet, 0, limitReport)
		if !m.reported {
			a.mark, m.reported = markReported, true
		}
		return a
	case atID:
		if r.late {
			return m.skip(PhaseReport, "never reported")
		}
		return load(record(m.core, physicalID))
	case atBase:
		if m.id = int(r.value & IDMask); m.id >= m.windows {
			return m.skip(PhaseWindow, "reported id %d, of %d windows", m.id, m.windows)
		}
		return load(place{in: inTable, of: m.id})
	case atOpen:
		if m.base = r.value; m.base == 0 {
			return m.skip(PhaseWindow, "reported id %d, whose cluster is fused off", m.id)
		}
		m.window = windowAt(m.base, m.silicon)
		return store(windowOf(m.window, regFastPath), fastPathOpen)
	case atIdle:
		return store(windowOf(m.window, regDMB), tokenIdle)
	case atWindowBarrier:
		return barrier(siteWindow)
	case atRegs:
		return store(record(m.core, aicpuRegsReady), regsOpen)
	case atRegsBarrier:
		return barrier(siteRegs)
	case atDone:
		return poll(record(m.core, aicoreDone), wantSet, 0, limitDone)
	}
	if want := uint64(m.core) + 1; r.late {
		m.fail(PhaseDone, "reported its id, but was never done")
	} else if r.value != want {
		m.fail(PhaseDone, "done is 0x%X, want 0x%X", r.value, want)
	}
	a := store(exec(m.core), m.base) // of a failed core too: its window must be closed
	if m.advance() {
		a.mark = markServed
	}
	return a
}

// skip gives up the core being served and goes on.
func (m *threadMachine) skip(p Phase, format string, args ...any) access {
	m.fail(p, format, args...)
	if m.advance() {
		a := m.finish(result{})
		a.mark = markServed
		return a
	}
	return m.serve(result{})
}

// advance goes on to the next core and reports whether there is none.
func (m *threadMachine) advance() bool {
	m.core, m.step = m.core+1, atReport
	if m.core == m.slice.to {
		m.step = atArrive
	}
	return m.core == m.slice.to
}

func (m *threadMachine) fail(p Phase, format string, args ...any) {
	m.failures = append(m.failures, failure{m.core, p, fmt.Sprintf(format, args...)})
}

// finish: every thread arrives; the leader waits for all and goes on alone, the
// others wait for its word.
func (m *threadMachine) finish(r result) access {
	switch m.step {
	case atArrive:
		m.step = atArrived
		if len(m.failures) > 0 {
			return store(control(handshakeFailed), 1)
		}
		return m.finish(r)
	case atArrived:
		m.step = atCheck
		if m.leads() {
			m.step = atLead
		}
		return access{op: opAdd, at: control(arrivals), value: 1, site: siteReleaseArrive}
	case atCheck:
		m.step = atEnd
		return poll(control(initDone), wantSet, 0, limitPhase)
	case atEnd:
		if r.late {
			return m.lose("the leader's post phase")
		}
		m.step = atVerdict
		return load(control(initFailed))
	case atVerdict:
		m.good = r.value == 0
		return m.stop()
	case atLead:
		return m.lead.next(m, r)
	}
	return m.stop()
}

func (m *threadMachine) lose(what string) access {
	m.lost = fmt.Sprintf("thread %d waited for %s in vain", m.index, what)
	return m.stop()
}

func (m *threadMachine) stop() access {
	m.step = atHalt
	return halt()
}
