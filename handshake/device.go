package handshake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// eventsMax bounds the events of one bring-up or shutdown; a whole device with a
// fault in every core stays below a hundredth of it.
const eventsMax = 1 << 22

// ErrNotUp is why a device cannot end a round: none runs.
var ErrNotUp = errors.New("device is not up")

// ErrUp is why a device cannot be brought up: a round runs.
var ErrUp = errors.New("device is up already")

// Device is an emulated NPU: its cores, its AICPU threads, its memory and its
// clock. It is not safe for concurrent use; each rank has its own.
//
// Invariant: between calls either a round runs and every core of it is in its
// loop, or no round runs and the next launch finds nothing of the last one but
// what the cores have in their caches.
type Device struct {
	// Set by New, never changed:
	cfg      Config
	cores    []Core
	workerOf []int // by physical id; -1: no worker of the launch

	// Set by launch, changed by the events of a round:
	clock   clock
	mem     shared
	actors  []*actor // of the step under way: threads, then cores
	threads []*actor
	aicores []*actor
	exit    Span // when the deadline of all exits began; 0: not yet
	hints   map[int]string
	wrong   []*CoreError // what the model saw that the protocol cannot see
	cause   error        // the same beyond single cores

	copies []cached // by worker; they outlive the rounds
	round  int
	up     bool
	lists  [][]int
}

// New makes a device. Nothing runs yet.
func New(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Faults = slices.Clone(cfg.Faults)
	d := &Device{cfg: cfg, cores: cfg.cores(), copies: make([]cached, cfg.Workers())}
	d.workerOf = make([]int, cfg.Profile.windows())
	for id := range d.workerOf {
		d.workerOf[id] = -1
	}
	for _, c := range d.cores {
		d.workerOf[c.Physical] = c.Worker
	}
	return d, nil
}

// BringUp launches a round: every core shakes hands with its AICPU thread and
// then waits in its loop. When it returns an error, a *RoundError unless ctx has
// ended, the round is over, the cores have been shut as far as they obey, and
// the next BringUp starts anew; the report tells how far it came.
func (d *Device) BringUp(ctx context.Context) (Report, error) {
	if d.up {
		return Report{}, ErrUp
	}
	setup := d.launch()
	if err := d.run(ctx); err != nil {
		return d.report(), fmt.Errorf("bring up the device, round %d: %w", d.round, err)
	}
	r := d.report()
	if err := d.verdict(setup); err != nil {
		return r, err
	}
	lead := &d.threads[0].machine.(*threadMachine).lead
	d.lists = lead.lists
	r.AIC, r.AIV = slices.Clone(lead.aic), slices.Clone(lead.aiv)
	for _, list := range lead.lists {
		r.Assignment = append(r.Assignment, slices.Clone(list))
	}
	d.up = true
	return r, nil
}

// Round ends the round that runs, if one does, and brings up the next.
func (d *Device) Round(ctx context.Context) (Report, error) {
	if d.up {
		if err := d.Shutdown(ctx); err != nil {
			return Report{}, err
		}
	}
	return d.BringUp(ctx)
}

// Shutdown ends the round that runs: every scheduler thread retires its cores,
// all against one deadline. The device is down afterwards, also when an error, a
// *RoundError, names cores that did not leave.
func (d *Device) Shutdown(ctx context.Context) error {
	if !d.up {
		return ErrNotUp
	}
	d.up, d.exit, d.wrong, d.hints = false, 0, nil, map[int]string{}
	exits := make([]*exitMachine, d.cfg.Threads)
	for t, a := range d.threads {
		exits[t] = &exitMachine{}
		if t < len(d.lists) {
			exits[t].workers = d.lists[t]
		}
		for _, w := range exits[t].workers {
			exits[t].windows = append(exits[t].windows, d.cores[w].Physical)
		}
		a.machine, a.halted = exits[t], false
		d.clock.after(0, func() { d.step(a, result{}) })
	}
	d.lists = nil
	err := &RoundError{Round: d.round, Cause: d.failpoint("exit")}
	if stop := d.run(ctx); stop != nil {
		return fmt.Errorf("shut the device, round %d: %w", d.round, stop)
	}
	for _, m := range exits {
		for _, f := range m.failures {
			err.Cores = append(err.Cores, d.blame(f))
		}
	}
	return orNil(err)
}

// launch starts a round: the host resets the records, the launch resets the
// windows, threads start at once, cores as the profile says. The result is the
// leader's word on the setup.
func (d *Device) launch() error {
	d.round++
	d.clock.events = nil
	d.exit, d.wrong, d.cause, d.hints = 0, nil, nil, map[int]string{}
	n, old := d.cfg.Workers(), d.mem.records
	d.mem = shared{records: make([]line, n), windows: make([]window, d.cfg.Profile.windows()),
		table: d.cfg.baseTable(), exec: make([]uint64, n), ready: make([]bool, n)}
	for w := range d.mem.records {
		d.mem.records[w] = reset()
	}
	if d.cfg.omit&siteReset != 0 && old != nil {
		d.mem.records = old
	}
	setup := d.failpoint("setup")
	d.startThreads(setup)
	d.makeCores()
	d.actors = slices.Concat(d.threads, d.aicores)
	if d.cfg.Profile.Anchor == AnchorLaunch {
		d.boot(bounds{0, n})
	}
	return setup
}

func (d *Device) startThreads(setup error) {
	d.threads = nil
	for t := range d.cfg.Threads {
		m := &threadMachine{index: t, threads: d.cfg.Threads, workers: d.cfg.Workers(),
			slice: d.cfg.slice(t), silicon: d.cfg.Profile.SiliconClusters,
			windows: d.cfg.Profile.windows(), refused: t == 0 && setup != nil}
		for _, c := range d.cores {
			m.lead.types = append(m.lead.types, c.Type)
		}
		m.lead.fail = func() error { return d.failpoint("post") }
		a := &actor{name: fmt.Sprintf("AICPU %d", t), index: t, machine: m, line: -1}
		d.threads = append(d.threads, a)
		d.clock.after(0, func() { d.step(a, result{}) })
	}
}

func (d *Device) makeCores() {
	d.aicores = nil
	for w, c := range d.cores {
		m := &coreMachine{worker: w, typ: c.Type, window: c.Physical,
			reported: uint32(c.Physical)}
		for _, f := range d.cfg.Faults {
			if f.Worker == w && (f.Round == 0 || f.Round == d.round) {
				d.strike(m, f)
			}
		}
		d.aicores = append(d.aicores, &actor{name: fmt.Sprintf("AICore %d", w), index: w,
			core: true, machine: m, copy: &d.copies[w]})
	}
}

// strike makes a core faulty.
func (d *Device) strike(m *coreMachine, f Fault) {
	m.fault = f.Kind
	switch f.Kind {
	case ReportsInvalidID:
		m.reported = f.Value
	case ReportsNullBase:
		m.reported = d.cfg.fusedID()
	case ReportsDuplicate:
		m.reported = uint32(d.cores[f.Other].Physical)
	}
}

// boot starts the cores of a slice, spread as the profile says.
func (d *Device) boot(b bounds) {
	p := &d.cfg.Profile
	rng := rand.New(rand.NewPCG(d.cfg.Seed, uint64(d.round)<<32|uint64(b.from)))
	for i, place := range rng.Perm(b.to - b.from) {
		a := d.aicores[b.from+i]
		if a.machine.(*coreMachine).fault == NeverBoots {
			continue
		}
		early := Span(0)
		if last := Span(b.to - b.from - 1); last > 0 {
			early = p.BootSpread.Time * Span(place) / last
		}
		start := p.Boot.Time - early - p.Flight.Time
		d.clock.after(max(0, start), func() { d.step(a, result{}) })
	}
}

// run lets time pass until every thread has returned, and then until nothing is
// on its way any more. When ctx ends, the round is lost.
func (d *Device) run(ctx context.Context) error {
	for n := 0; d.clock.next(); n++ {
		if n == eventsMax {
			d.up = false
			return fmt.Errorf("%d events in one step", eventsMax)
		}
		if n%256 == 0 && ctx.Err() != nil {
			d.up = false
			return context.Cause(ctx)
		}
	}
	for _, a := range d.threads {
		if !a.halted {
			panic("handshake: " + a.name + " waits without a deadline")
		}
	}
	return nil
}

func (d *Device) failpoint(name string) error {
	if d.cfg.Failpoint == nil {
		return nil
	}
	return d.cfg.Failpoint(fmt.Sprintf("handshake/%s:%d", name, d.round))
}

// Now is the virtual time since the device was made.
func (d *Device) Now() time.Duration { return d.clock.now.Duration() }

func (d *Device) core(worker int) *actor { return d.aicores[worker] }

// blame names the core of a failure.
func (d *Device) blame(f failure) *CoreError {
	e := &CoreError{Core: d.cores[f.worker], Phase: f.phase, Why: f.why}
	if hint := d.hints[f.worker]; hint != "" && f.phase < PhasePost {
		e.Why += ": " + hint
	}
	return e
}

// verdict is why the round failed; nil if it did not.
func (d *Device) verdict(setup error) error {
	err := &RoundError{Round: d.round, Cause: d.cause, Cores: d.wrong}
	if setup != nil {
		err.Cause = errors.Join(fmt.Errorf("set up: %w", setup), err.Cause)
	}
	for _, a := range d.threads {
		m := a.machine.(*threadMachine)
		for _, f := range slices.Concat(m.failures, m.lead.failures) {
			err.Cores = append(err.Cores, d.blame(f))
		}
		err.Cause = cmp.Or(err.Cause, m.lead.cause)
		if m.lost != "" {
			err.Cause = cmp.Or(err.Cause, errors.New(m.lost))
		}
	}
	if m := d.deceived(); m != nil {
		err.Cause = errors.Join(err.Cause,
			fmt.Errorf("thread %d took the round for a good one", m.index))
	}
	slices.SortStableFunc(err.Cores, func(a, b *CoreError) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Phase, b.Phase))
	})
	return orNil(err)
}

// deceived is the first thread that believes in a round which the leader has given
// up; nil: there is none.
func (d *Device) deceived() *threadMachine {
	for _, a := range d.threads {
		if m := a.machine.(*threadMachine); m.good && d.mem.control[initFailed] != 0 {
			return m
		}
	}
	return nil
}

func orNil(err *RoundError) error {
	if err.Cause == nil && len(err.Cores) == 0 {
		return nil
	}
	return err
}

// report is what the threads' meters say.
func (d *Device) report() Report {
	r := Report{Round: d.round, Policy: d.cfg.Policy, Cores: slices.Clone(d.cores)}
	for t, a := range d.threads {
		own := a.meter.report(t, d.cfg.slice(t))
		r.Threads = append(r.Threads, own)
		for c, use := range own.ByClass {
			r.ByClass[c].Count += use.Count
			r.ByClass[c].Time += use.Time
		}
		if own.Total > r.Threads[r.Slowest].Total {
			r.Slowest = t
		}
	}
	slow := r.Threads[r.Slowest]
	r.Broadcast, r.Boot, r.Service, r.Total = slow.Broadcast, slow.Boot, slow.Service, slow.Total
	for w := range r.Cores {
		r.Cores[w].Done = d.mem.exec[w] != 0
	}
	for _, a := range d.threads {
		for _, f := range a.machine.(*threadMachine).failures {
			r.Cores[f.worker].Done = false
		}
	}
	return r
}

// judge is the model's eye on what the protocol cannot notice itself.
func (d *Device) judge(a *actor, x access) {
	switch {
	case x.mark == markBegin && d.threads[0].machine.(*threadMachine).refused:
		d.cause = cmp.Or(d.cause, fmt.Errorf("thread %d went on although the setup had failed",
			a.index))
	case x.op == opMisbehaves:
		d.condemn(a, x.why)
	case a.core && x.op == opStore && x.at == record(a.index, physicalID) && !d.mem.ready[a.index]:
		d.condemn(a, "started on aicpu_ready of an earlier round")
	case a.core && x.op == opStore && x.at.reg == regCond && x.value == condIdle:
		w := &d.mem.windows[x.at.of]
		if w.opening && w.fastPath != fastPathOpen {
			d.condemn(a, "touched its window before the stores that open it had arrived")
		}
	}
}

func (d *Device) condemn(a *actor, why string) {
	d.wrong = append(d.wrong, &CoreError{Core: d.cores[a.index], Phase: PhaseCore, Why: why})
}
