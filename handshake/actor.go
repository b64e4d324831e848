package handshake

// machine is either side of the protocol.
type machine interface {
	next(r result) access
}

// actor is a machine at work: what it waits for, what it has stored and what its
// time went into.
type actor struct {
	name    string
	index   int  // thread, or worker
	core    bool // an AICore, else an AICPU thread
	machine machine
	halted  bool

	buffer buffer
	copy   *cached // of a core
	line   int     // of a thread: worker whose record line it holds in L1, -1 for none

	parked *access // the poll that it waits in
	since  Span    // when that poll began
	wait   int     // number of the wait, so that an old deadline is void

	meter meter // of a thread
}

// meter is what the time of one thread went into while it shook hands.
type meter struct {
	running bool

	begin, broadcast, reported, end Span // instants

	uses [classes]struct {
		count int
		time  Span
	}
}

func (m *meter) add(c Class, count int, time Span) {
	if m.running && c < classes {
		m.uses[c].count += count
		m.uses[c].time += time
	}
}

// report is what m has counted.
func (m *meter) report(thread int, b bounds) ThreadReport {
	r := ThreadReport{Thread: thread, From: b.from, To: b.to}
	if m.end == m.begin {
		return r
	}
	r.Broadcast = (m.broadcast - m.begin).Duration()
	r.Boot = (m.reported - m.broadcast).Duration()
	r.Total = (m.end - m.begin).Duration()
	r.Service = r.Total - r.Broadcast - r.Boot
	for c, use := range m.uses {
		r.ByClass[c] = Use{use.count, use.time.Duration()}
	}
	return r
}

// step does the next access of actor a, whose last one ended with r.
func (d *Device) step(a *actor, r result) {
	x := a.machine.next(r)
	d.judge(a, x)
	if x.mark == markBegin {
		a.meter.running, a.meter.begin = true, d.clock.now
	}
	switch x.op {
	case opHalt, opMisbehaves:
		now, late := a.buffer.drain(d.group)
		d.send(a, append(late, now...), 0)
		a.halted = true
		d.trace(a, x, 0, 0)
	case opPoll:
		a.parked, a.since = &x, d.clock.now
		d.arm(a)
		d.check(a)
	default:
		class, took := d.price(a, x.at, x.op)
		if x.site&d.cfg.omit != 0 && x.op == opBarrier {
			class, took = classes, 0
		}
		d.clock.after(took, func() {
			r, more := d.perform(a, x)
			d.clock.after(more, func() {
				a.meter.add(class, 1, took+more)
				d.end(a, x, r, took+more)
			})
		})
	}
}

// end closes access x of actor a and goes on.
func (d *Device) end(a *actor, x access, r result, took Span) {
	value := x.value
	if x.op == opLoad || x.op == opPoll {
		value = r.value
	}
	d.trace(a, x, value, took)
	d.note(a, x.mark)
	d.step(a, r)
}

// price is what one access costs a thread and into which class it falls. What a
// core does costs nothing by itself: it is part of the flights. The AICPU's own
// memory is free: the published split does not show it.
func (d *Device) price(a *actor, at place, o op) (Class, Span) {
	p := &d.cfg.Profile
	switch {
	case a.core:
		return classes, 0
	case o == opBarrier:
		return ClassBarrier, p.Barrier.Time
	case o == opStore && at.in == inRecord:
		return ClassStore, p.Store.Time
	case o == opStore && at.in == inWindow:
		return ClassWindowStore, p.WindowStore.Time
	case o == opStore || at.in == inExec || at.in == inControl:
		return classes, 0
	case at.in == inWindow:
		return ClassWindowLoad, p.WindowLoad.Time
	case at.in == inRecord && a.line == at.of:
		return ClassHit, p.Hit.Time
	case at.in == inRecord:
		a.line = at.of
	}
	return ClassLoad, p.Load.Time
}

// perform takes effect. more is how much longer the access lasts than its price.
func (d *Device) perform(a *actor, x access) (r result, more Span) {
	omitted := x.site&d.cfg.omit != 0
	switch x.op {
	case opStore:
		d.put(a, x)
	case opBarrier:
		if !omitted {
			return r, d.drain(a)
		}
	case opLoad:
		r.value = d.get(a, x.at)
	case opClean:
		if !omitted {
			d.drain(a)
			d.clean(a)
		}
	case opRelease, opAdd:
		now, late := a.buffer.drain(d.group)
		trail := Span(0)
		if omitted {
			trail = d.cfg.Profile.TrailStore.Time
		}
		d.send(a, append(now, late...), trail)
		d.clock.after(0, func() { // planned after the stores before it
			if x.op == opAdd {
				x.value += d.mem.control[x.at.word]
			}
			d.arrive(x.at, x.value)
		})
	}
	return r, 0
}

// put stores into the buffer of a; what a core stores to its window is posted.
func (d *Device) put(a *actor, x access) {
	if a.core && x.at.in == inWindow {
		d.send(a, []pending{{x.at, x.value}}, 0)
		return
	}
	if x.at.in == inWindow && x.at.reg == regFastPath && x.value == fastPathOpen {
		d.mem.windows[x.at.of].opening = true
	}
	a.buffer = append(a.buffer, pending{x.at, x.value})
}

// get loads what a sees: its own stores first, a core then its copy of the line.
func (d *Device) get(a *actor, at place) uint64 {
	if value, ok := a.buffer.find(at); ok {
		return value
	}
	if !a.core || at.in != inRecord {
		return d.mem.read(at)
	}
	d.fetch(a)
	return a.copy.line.get(at.field)
}

// fetch fills a core's copy of its line if it has none.
func (d *Device) fetch(a *actor) {
	if !a.copy.valid {
		a.copy.line, a.copy.valid = d.mem.records[a.index], true
	}
}

// drain lets the stores of a leave; more is how long the last of them takes.
func (d *Device) drain(a *actor) (more Span) {
	now, late := a.buffer.drain(d.group)
	d.send(a, now, 0)
	p := &d.cfg.Profile
	for _, s := range late {
		trail := p.TrailStore.Time
		if a.core {
			trail = p.TrailCore.Time
		} else if s.device() {
			trail = p.TrailWindow.Time
		}
		d.clock.after(trail, func() {
			d.send(a, []pending{s}, 0)
			if a.core { // the line leaves again by eviction
				d.clean(a)
			}
		})
		if !a.core {
			more = max(more, trail)
		}
	}
	return more
}

// send puts stores on their way: a core's to its copy of the line, a thread's to
// memory.
func (d *Device) send(a *actor, stores []pending, trail Span) {
	p := &d.cfg.Profile
	for _, s := range stores {
		if a.core && s.at.in == inRecord {
			d.fetch(a)
			a.copy.line.put(s.at.field, s.value)
			a.copy.dirty = true
			continue
		}
		way := trail
		switch {
		case s.at.in == inRecord:
			way += p.Flight.Time
		case s.at.in == inWindow && a.core:
			way += p.Cond.Time
		case s.at.in == inWindow:
			way += p.Dispatch.Time
		}
		d.clock.after(way, func() { d.arrive(s.at, s.value) })
	}
}

// clean writes a core's whole copy back, whoever wrote to the line meanwhile.
func (d *Device) clean(a *actor) {
	whole := a.copy.line
	a.copy.dirty = false
	d.clock.after(d.cfg.Profile.Flight.Time, func() {
		d.mem.records[a.index] = whole
		d.wake(place{in: inRecord, of: a.index})
	})
}

// arrive is the instant at which a store is in memory.
func (d *Device) arrive(at place, value uint64) {
	d.mem.write(at, value)
	d.wake(at)
}
