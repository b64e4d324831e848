package handshake

import "fmt"

// leadStep is where the leader stands after the barrier of all threads.
type leadStep uint8

const (
	leadWait leadStep = iota
	leadLatch
	leadBase
	leadBaseSeen
	leadTypeSeen
	leadAbortBarrier
	leadAbort
	leadAborted
	leadExit
	leadJoin
	leadJoined
	leadClose
	leadFailed
	leadDone
	leadHalt
)

// leader is the post phase: it looks at what all threads have recorded, builds
// the lists and gives every cluster to a scheduler; or, if anything failed,
// shuts every core that can be shut. Whoever waits for init_done then finds out by
// init_failed.
type leader struct {
	types    []CoreType // by layout
	fail     func() error
	step     leadStep
	core     int
	bases    []uint64 // by worker, 0: no window recorded
	latched  bool
	failures []failure
	cause    error // what failed beyond single cores
	aic, aiv []int
	lists    [][]int
}

// next is one access of the leader m. The word of the caller's failpoint is asked
// for once, by fail.
func (l *leader) next(m *threadMachine, r result) access {
	switch l.step {
	case leadWait:
		l.step = leadLatch
		return poll(control(arrivals), wantThis, uint64(m.threads), limitPhase)
	case leadLatch:
		if r.late {
			l.cause = fmt.Errorf("wait for %d threads: %d arrived", m.threads, r.value)
		}
		l.step, l.bases = leadBase, make([]uint64, m.workers)
		return load(control(handshakeFailed))
	case leadBase:
		l.latched, l.step = r.value != 0, leadBaseSeen
		return load(exec(0))
	case leadBaseSeen:
		return l.baseSeen(m, r.value)
	case leadTypeSeen:
		return l.typeSeen(m, r.value)
	case leadFailed:
		l.step = leadDone
		return store(control(initFailed), 1)
	case leadDone:
		l.step = leadHalt
		return access{op: opRelease, at: control(initDone), value: 1, site: siteReleaseInit}
	case leadHalt:
		return m.stop()
	}
	return l.abort(m, r)
}

func (l *leader) baseSeen(m *threadMachine, base uint64) access {
	l.bases[l.core] = base
	if l.core++; l.core < m.workers {
		return load(exec(l.core))
	}
	l.core, l.step = 0, leadTypeSeen
	return load(record(0, coreType))
}

func (l *leader) typeSeen(m *threadMachine, typ uint64) access {
	switch {
	case l.latched || l.cause != nil: // named already; what else is missing follows from it
	case l.bases[l.core] == 0:
		l.blame("has no window recorded, though its thread has arrived")
	case typ == unset:
		l.blame("is done, but has no core type")
	case typ != uint64(l.types[l.core]):
		l.blame("reported core type %d, the layout says %v", typ, l.types[l.core])
	}
	if l.core++; l.core < m.workers {
		return load(record(l.core, coreType))
	}
	return l.judge(m)
}

func (l *leader) blame(format string, args ...any) {
	l.failures = append(l.failures, failure{l.core, PhasePost, fmt.Sprintf(format, args...)})
}

// judge is the decision over the round.
func (l *leader) judge(m *threadMachine) access {
	owners := map[uint64]int{}
	for l.core = range l.bases {
		base := l.bases[l.core]
		if first, twice := owners[base]; twice && base != 0 {
			l.blame("reported id %d, as did worker %d", windowAt(base, m.silicon), first)
			own := l.core
			l.core = first
			l.blame("reported id %d, as did worker %d", windowAt(base, m.silicon), own)
			l.core = own
			continue
		}
		owners[base] = l.core
	}
	failed := l.latched || l.cause != nil || len(l.failures) > 0
	if !failed {
		l.cause = l.fail()
		failed = l.cause != nil
	}
	if !failed {
		for w, typ := range l.types {
			if typ == AIC {
				l.aic = append(l.aic, w)
			} else {
				l.aiv = append(l.aiv, w)
			}
		}
		l.lists, l.cause = assign(l.aic, l.aiv, schedulers(m.threads))
		failed = l.cause != nil
	}
	l.core, l.step = 0, leadDone
	if failed {
		l.step = leadAbortBarrier
	}
	return l.next(m, result{})
}

// abort shuts every core: through its record, which also reaches a core whose
// window is closed, and through its window. All cores share one deadline.
func (l *leader) abort(m *threadMachine, r result) access {
	switch l.step {
	case leadAbortBarrier:
		l.step = leadAbort
		return barrier(0)
	case leadAbort:
		l.step = leadAbortBarrier
		at := record(l.core, aicpuRegsReady)
		if l.core++; l.core == m.workers {
			l.step = leadAborted
		}
		return store(at, regsAbort)
	case leadAborted:
		l.core, l.step = 0, leadExit
		a := barrier(0)
		a.mark = markExit
		return a
	case leadExit:
		if w := l.nextOpen(m); w >= 0 {
			return store(windowOf(w, regDMB), tokenExit)
		}
		l.core, l.step = 0, leadJoin
		return barrier(0)
	case leadJoin:
		if l.core == m.workers {
			l.step = leadFailed
			return l.next(m, r)
		}
		l.step = leadJoined
		return poll(record(l.core, aicoreDone), wantThis, doneLeft, limitExit)
	case leadJoined:
		if l.step = leadClose; r.late {
			l.failures = append(l.failures, failure{l.core, PhaseExit, "did not leave"})
		} else if w := l.open(m, l.core); w >= 0 {
			return store(windowOf(w, regDMB), tokenIdle)
		}
		l.core, l.step = l.core+1, leadJoin
		return l.abort(m, r)
	}
	w := l.open(m, l.core)
	l.core, l.step = l.core+1, leadJoin
	return store(windowOf(w, regFastPath), fastPathClose)
}

// nextOpen is the window of the next worker that owns one, or -1.
func (l *leader) nextOpen(m *threadMachine) int {
	for ; l.core < m.workers; l.core++ {
		if w := l.open(m, l.core); w >= 0 {
			l.core++
			return w
		}
	}
	return -1
}

// open is the window recorded for a worker; -1 if there is none, or if a worker
// with a lower id has recorded the same.
func (l *leader) open(m *threadMachine, worker int) int {
	base := l.bases[worker]
	for _, other := range l.bases[:worker] {
		if other == base {
			return -1
		}
	}
	if base == 0 {
		return -1
	}
	return windowAt(base, m.silicon)
}
