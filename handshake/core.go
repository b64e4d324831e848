package handshake

import "fmt"

// coreStep is where an AICore stands: the access that it does next.
type coreStep uint8

const (
	coreReady coreStep = iota
	coreID
	coreIDBarrier
	coreReported
	coreReportClean
	coreRegs
	coreCond
	coreTypeStore
	coreTypeBarrier
	coreDone
	coreDoneClean
	coreTask
	coreTaskSeen
	coreLoop
	coreToken
	coreClosed
	coreLeft
	coreLeftClean
	coreHalt
)

// coreMachine is the AICore's side of the handshake: it is told how its last
// access ended and says what it does next. It has no clock and no memory but
// its step.
type coreMachine struct {
	worker   int
	typ      CoreType
	window   int       // its own window
	reported uint32    // id that it reports; its window's, unless it is faulty
	fault    FaultKind // 0: none
	step     coreStep
}

// next is one access. The first call's result is ignored.
func (m *coreMachine) next(r result) access {
	at := m.step
	m.step++
	switch at {
	case coreReady:
		return m.spin(aicpuReady, wantSet, siteFreshReady)
	case coreID:
		return store(record(m.worker, physicalID), uint64(m.reported))
	case coreIDBarrier:
		return barrier(siteCoreID)
	case coreReported:
		return store(record(m.worker, aicoreRegsReady), 1)
	case coreReportClean:
		return access{op: opClean, at: record(m.worker, aicoreRegsReady), site: siteCleanReport}
	case coreRegs:
		if m.fault == DiesAfterReport {
			return m.stop()
		}
		return m.spin(aicpuRegsReady, wantSet, siteFreshRegs)
	case coreCond:
		if r.value == regsAbort {
			return m.leave()
		}
		return store(windowOf(m.window, regCond), condIdle)
	case coreTypeStore:
		return store(record(m.worker, coreType), uint64(m.typ))
	case coreTypeBarrier:
		return barrier(siteCoreDone)
	case coreDone:
		return store(record(m.worker, aicoreDone), uint64(m.worker)+1)
	case coreDoneClean:
		return access{op: opClean, at: record(m.worker, aicoreDone), site: siteCleanDone}
	case coreTask:
		return load(record(m.worker, task))
	case coreTaskSeen:
		if r.value != taskAddress(m.worker) {
			return m.misbehave("the task address is 0x%X, want 0x%X", r.value,
				taskAddress(m.worker))
		}
		return m.next(result{value: tokenIdle})
	case coreLoop:
		return poll(windowOf(m.window, regDMB), wantNews, tokenIdle, unlimited)
	case coreToken:
		return m.token(r.value)
	case coreClosed: // only an abort ends the wait of a core whose window is closed
		return m.leave()
	case coreLeft:
		return store(record(m.worker, aicoreDone), doneLeft)
	case coreLeftClean:
		return access{op: opClean, at: record(m.worker, aicoreDone)}
	}
	return m.stop()
}

// token obeys what DATA_MAIN_BASE holds. Zero is a window that nobody has
// opened, not token 0: the core then listens to its record.
func (m *coreMachine) token(token uint64) access {
	switch {
	case token == tokenExit && m.fault == IgnoresExit:
		return m.stop()
	case token == tokenExit:
		m.step = coreLeft
		return store(windowOf(m.window, regCond), condExited)
	case token == 0:
		m.step = coreClosed
		a := m.spin(aicpuRegsReady, wantThis, siteFreshRegs)
		a.value = regsAbort
		return a
	}
	return m.misbehave("dispatch token 0x%X has no kernel", token)
}

// leave is the way out of a core whose window may be closed: it tells its record
// only.
func (m *coreMachine) leave() access {
	if m.fault == IgnoresExit {
		return m.stop()
	}
	m.step = coreLeftClean
	return store(record(m.worker, aicoreDone), doneLeft)
}

func (m *coreMachine) spin(f field, w want, s site) access {
	a := poll(record(m.worker, f), w, 0, unlimited)
	a.fresh, a.site = true, s
	return a
}

func (m *coreMachine) stop() access {
	m.step = coreHalt
	return halt()
}

func (m *coreMachine) misbehave(format string, args ...any) access {
	m.step = coreHalt
	return access{op: opMisbehaves, why: fmt.Sprintf(format, args...)}
}

// taskAddress is where the payload slots of a worker lie.
func taskAddress(worker int) uint64 { return taskBase + uint64(worker)*taskStride }
