package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"octet/model"
	"octet/rank"
)

// Defaults of Limits.
const (
	joinDefault     = 60 * time.Second
	deadDefault     = 5 * time.Second
	stepDefault     = 120 * time.Second
	teardownDefault = 3 * time.Second
)

// slotsMax is how many sequences a group works on at a time, where
// Options.MaxTokens does not say fewer.
const slotsMax = 64

// withDefaults fills in what was left zero.
func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&l.Join, joinDefault}, {&l.Dead, deadDefault},
		{&l.Step, stepDefault}, {&l.Teardown, teardownDefault},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return l
}

// heartbeat is how often master and ranks say that they live: often enough that
// a busy host loses several without a verdict.
func (l Limits) heartbeat() time.Duration {
	return min(max(l.Dead/10, 50*time.Millisecond), 500*time.Millisecond)
}

// op is the limit of one collective: below that of the step that holds it, so
// that ranks can say what they waited for.
func (l Limits) op() time.Duration { return l.Step / 2 }

func (l Limits) validate() error {
	l = l.withDefaults()
	switch {
	case l.Join < 0 || l.Dead < 0 || l.Step < 0 || l.Teardown < 0:
		return fmt.Errorf("a limit is negative: %+v", l)
	case l.Dead < 2*l.heartbeat():
		return fmt.Errorf("limit of silence %v is below two heartbeats of %v",
			l.Dead, l.heartbeat())
	case l.op() < l.Dead:
		return fmt.Errorf("limit of a step %v is below twice the limit of silence %v",
			l.Step, l.Dead)
	}
	return nil
}

// Validate names the first wrong field.
func (s *Spec) Validate() error {
	switch {
	case s.TP < 1 || s.TP > rank.RanksMax:
		return fmt.Errorf("group of %d ranks: must be 1 to %d", s.TP, rank.RanksMax)
	case s.Model == "":
		return fmt.Errorf("no model directory")
	case !s.Virtual && (len(s.Command) == 0 || s.Command[0] == ""):
		return fmt.Errorf("no command that starts a rank")
	}
	for r := range s.RankEnv {
		if r < 0 || r >= s.TP {
			return fmt.Errorf("environment for rank %d: ranks are 0 to %d", r, s.TP-1)
		}
	}
	if err := s.Options.Validate(); err != nil {
		return err
	}
	return s.Limits.validate()
}

// InputError is a Spec, or the environment of a rank, that cannot be used. It is
// no failure of a group: there was none.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap gives what is wrong.
func (e *InputError) Unwrap() error { return e.Err }

// Start is Begin, and returns when every rank is READY. When that does not come
// about, it returns the *Failure, an *InputError or the error of ctx, and
// nothing is left. Afterwards ctx means nothing to the group: Stop ends it.
func Start(ctx context.Context, s Spec) (*Group, error) {
	g, err := Begin(s)
	if err != nil {
		return nil, err
	}
	select {
	case <-g.ready:
		return g, nil
	case <-g.done:
		return nil, g.reason()
	case <-ctx.Done():
		if err := g.Stop(context.WithoutCancel(ctx)); err != nil {
			return nil, fmt.Errorf("%w, and then: %w", ctx.Err(), err)
		}
		return nil, ctx.Err()
	}
}

// Begin starts a group and returns it at once: Ready tells when every rank is
// READY, and Done when none is left. Spec.Progress runs in the group's loop, so
// it must not wait and must not call the group.
func Begin(s Spec) (*Group, error) {
	g, err := newGroup(s)
	if err != nil {
		return nil, fmt.Errorf("start a group: %w", err)
	}
	g.launch()
	go g.loop() // ends when every rank has ended, see Stop and failed
	return g, nil
}

// newGroup prepares a group: everything but the ranks.
func newGroup(s Spec) (*Group, error) {
	if err := s.Validate(); err != nil {
		return nil, &InputError{err}
	}
	s.Limits = s.Limits.withDefaults()
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Progress == nil {
		s.Progress = func(string, int, int) {}
	}
	runID, err := newRunID()
	if err != nil {
		return nil, err
	}
	id, config, err := optionsIdentity(&s, runID)
	if err != nil {
		return nil, &InputError{err}
	}
	slots := min(slotsMax, s.Options.MaxTokens)
	planner, err := model.NewPlanner(model.PlannerConfig{Model: config, Options: s.Options,
		TP: s.TP, Epoch: 1, Slots: slots})
	if err != nil {
		return nil, &InputError{err}
	}
	g := &Group{
		spec: s, runID: runID,
		events: make(chan any, eventsMax), quit: make(chan struct{}),
		done: make(chan struct{}), ready: make(chan struct{}),
		condemned: make(chan struct{}),
		links:     make([]*link, s.TP), bodies: make([]body, s.TP),
		streams: map[uint64]*stream{}, timers: map[timer]*time.Timer{},
	}
	g.control = newControl(g.post, s.Limits.Dead, s.Log.Debug)
	g.master = newMaster(masterConfig{identity: id, Limits: s.Limits, Slots: slots,
		Heartbeat: s.Limits.heartbeat()}, newWork(planner, s.TP), time.Now())
	if !s.Virtual {
		if err := g.listen(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func newRunID() (string, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("make a run id: %w", err)
	}
	return hex.EncodeToString(random[:]), nil
}

// listen opens the control port and the master's gossip.
func (g *Group) listen() error {
	list, err := openGossip("master", g.runID, g.spec.Log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = list.Close()
		return fmt.Errorf("listen for ranks: %w", err)
	}
	g.list, g.address = list, listener.Addr().String()
	g.running.Go(func() { g.control.accept(listener) }) // ends when the listener is closed
	g.running.Go(func() {                               // ends with the loop
		for {
			select {
			case h := <-list.hints:
				g.post(hinted{h})
			case <-g.quit:
				return
			}
		}
	})
	g.cleanup = append(g.cleanup, func() { _ = list.Close() }, func() { _ = listener.Close() })
	return nil
}

// launch starts every rank, before the loop runs. A rank that can't be started
// ends the group.
func (g *Group) launch() {
	start := g.starter()
	for r := range g.spec.TP {
		b, pid, wait, err := start(r)
		if err != nil {
			for left := r; left < g.spec.TP; left++ {
				g.early = append(g.early, g.master.Step(absent{left})...)
			}
			g.early = append(g.early, g.master.Step(broken{err})...)
			return
		}
		g.bodies[r] = b
		g.early = append(g.early, g.master.Step(started{r, pid})...)
		g.running.Go(func() { g.post(exited{wait()}) }) // ends when the rank does
	}
}

// starter returns what starts one rank: its body, its process id and what waits
// for its end.
func (g *Group) starter() func(r int) (body, int, func() exit, error) {
	s := &g.spec
	if s.Virtual {
		h := newHub(s.TP, g.control.greet)
		return func(r int) (body, int, func() exit, error) {
			cfg, err := virtualConfig(s, g.runID, r, h)
			if err != nil {
				return nil, 0, nil, err
			}
			v, wait := startVirtual(cfg)
			return v, 0, wait, nil
		}
	}
	f, out := newForker(), &output{w: s.Output}
	g.cleanup = append(g.cleanup, f.Close)
	parent := os.Environ()
	return func(r int) (body, int, func() exit, error) {
		env := environ(s, g.runID, g.address, r, parent)
		p, err := startProcess(f, r, s.Command, env, out)
		if err != nil {
			return nil, 0, nil, err
		}
		return p, p.pid, p.Wait, nil
	}
}
