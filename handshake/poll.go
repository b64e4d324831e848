package handshake

import (
	"fmt"
	"time"
)

// arm gives the poll that a waits in its deadline.
func (d *Device) arm(a *actor) {
	a.wait++
	until, ok := d.deadline(a, a.parked.limit)
	if !ok {
		return
	}
	wait := a.wait
	d.clock.plan(until, func() {
		x := *a.parked
		r := result{value: d.get(a, x.at), late: true}
		d.hint(a, x.at)
		d.finish(a, r, ClassLost, 1)
	}, func() bool { return a.parked == nil || a.wait != wait })
}

// deadline is the instant at which a wait of a ends; false: a core may spin for
// as long as the launch lasts.
func (d *Device) deadline(a *actor, l limit) (Span, bool) {
	limits := d.cfg.Limits
	switch l {
	case limitReport:
		return a.meter.broadcast + spanOf(limits.Report), true
	case limitDone:
		return d.clock.now + spanOf(limits.Done), true
	case limitExit:
		return d.exit + spanOf(limits.Exit), true
	case limitPhase:
		return d.clock.now + spanOf(limits.Phase), true
	}
	return 0, false
}

func spanOf(t time.Duration) Span { return Span(t) * Nanosecond }

// check looks whether the poll that a waits in has come to its end. A poll that
// has not looks again when something arrives at its line, window or word.
func (d *Device) check(a *actor) {
	x := *a.parked
	if !a.core && x.at.in == inWindow { // a load pushes the stores before it
		d.send(a, a.buffer.takeDevice(), 0)
	}
	if a.core && x.fresh && x.site&d.cfg.omit == 0 {
		a.copy.valid = false
	}
	if !x.holds(d.get(a, x.at)) {
		return
	}
	class, count := ClassBoot, 1
	if x.limit == limitDone {
		class, count = ClassFlight, 2
	}
	d.finish(a, result{value: d.get(a, x.at)}, class, count)
}

// finish ends the wait of a: what it waited belongs to class, the load that
// ended it has its own price.
func (d *Device) finish(a *actor, r result, class Class, count int) {
	x := *a.parked
	a.parked = nil
	if waited := d.clock.now - a.since; waited > 0 {
		a.meter.add(class, count, waited)
	}
	if x.mark == markReported {
		a.meter.reported = d.clock.now
	}
	class, took := d.price(a, x.at, opLoad)
	d.clock.after(took, func() {
		a.meter.add(class, 1, took)
		d.end(a, x, r, took)
	})
}

// wake lets those look again who wait for a place. A thread that polls a record
// in steps looks at its next step.
func (d *Device) wake(at place) {
	for _, a := range d.actors {
		if a.parked == nil || !a.parked.at.same(at) {
			continue
		}
		step := d.cfg.Profile.PollStep.Time
		off := Span(0)
		if !a.core && at.in == inRecord && step > 0 {
			off = (step - (d.clock.now-a.since)%step) % step
		}
		wait := a.wait
		void := func() bool { return a.parked == nil || a.wait != wait }
		if off == 0 {
			d.check(a)
			continue
		}
		d.clock.plan(d.clock.now+off, func() { d.check(a) }, void)
	}
}

// hint tells why a wait may have been in vain, where the model knows.
func (d *Device) hint(a *actor, at place) {
	if at.in != inRecord {
		return
	}
	for _, s := range a.buffer {
		if s.at.in == inRecord && s.at.of == at.of {
			d.hints[at.of] = fmt.Sprintf("%v=%d stands in the store buffer of %s", s.at.field,
				s.value, a.name)
			return
		}
	}
	core := d.core(at.of)
	if core == nil {
		return
	}
	switch {
	case core.copy.dirty:
		d.hints[at.of] = "its core has not cleaned its line"
	case core.parked != nil && core.parked.at.in == inRecord && core.parked.holds(
		d.mem.read(core.parked.at)):
		d.hints[at.of] = fmt.Sprintf("its core polls %v in a stale copy of its line",
			core.parked.at.field)
	}
}

// note keeps what a thread's mark says.
func (d *Device) note(a *actor, m mark) {
	switch m {
	case markBroadcast:
		a.meter.broadcast = d.clock.now
		if d.cfg.Profile.Anchor == AnchorBroadcast {
			d.boot(d.cfg.slice(a.index))
		}
	case markServed:
		a.meter.end, a.meter.running = d.clock.now, false
	case markExit:
		if d.exit == 0 {
			d.exit = d.clock.now
		}
	}
}
