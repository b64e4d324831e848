package rank

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"octet/collective/tcp"
	"octet/handshake"
	"octet/model"
)

// outMax bounds the messages that wait for the writer.
const outMax = 256

// Run lives the life of one rank. It blocks until STOP, and then returns nil;
// until the master refuses the rank, with a *Refuse; until the master is lost,
// with ErrMasterLost; until ctx ends, with its error; or until this rank cannot
// go on. What was started has ended by then, except for a load of weights and
// for a kernel that outlast Config.Grace: these end by themselves.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	d, err := newDriver(ctx, cfg)
	if err != nil {
		return err
	}
	defer d.release()
	return d.loop(ctx)
}

// driver carries out what a Machine wants.
//
// Its goroutines are the loop, which is Run itself; a reader and a writer of the
// control connection, which end when release closes it; and one for each effect
// under way, started by do alone.
type driver struct {
	// Set by newDriver, never changed:
	cfg     Config
	log     *slog.Logger
	mesh    MeshFunc
	addr    string        // of the mesh
	listen  *tcp.Listener // nil where the mesh is the caller's
	born    time.Time
	life    context.Context // ends with Run
	die     context.CancelFunc
	reports chan report   // reader, writer, effects -> loop
	out     chan Message  // loop -> writer
	gone    chan struct{} // closed by release: nobody takes reports any more
	written chan struct{} // closed by the writer at its end

	// Owned by loop:
	machine *Machine
	conn    *Conn // nil until dialled
	device  *handshake.Device
	config  *model.Config // with shard
	shard   *model.Shard  // nil until loaded
	epoch   *epoch        // nil before the first ASSIGN
	quit    error         // found while carrying out effects; the next event
	ended   bool
	end     error
}

// report is what a goroutine tells the loop.
type report struct {
	epoch *epoch // whose busy it counted in; nil: none
	event Event  // nil: nothing but the end of the goroutine
	take  func() // hands over what was made, before the event; may be nil
	drop  func() // releases it instead where there is no loop any more; may be nil
}

func newDriver(ctx context.Context, cfg Config) (*driver, error) {
	d := &driver{
		cfg: cfg, log: cfg.Log, mesh: cfg.Mesh, addr: cfg.MeshAddr, born: time.Now(),
		reports: make(chan report), out: make(chan Message, outMax),
		gone: make(chan struct{}), written: make(chan struct{}),
		machine: NewMachine(MachineConfig{RunID: cfg.RunID, Rank: cfg.Rank, Size: cfg.Size,
			Beat: cfg.beat(), Dead: cfg.dead(), Grace: cfg.grace()}),
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.mesh == nil {
		l, err := tcp.Listen(cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("%s is %q: %w", EnvListen, cfg.Listen, err)
		}
		d.listen, d.addr, d.mesh = l, l.Addr(), d.dialMesh
	}
	d.life, d.die = context.WithCancel(context.WithoutCancel(ctx))
	return d, nil
}

// loop owns everything until the machine says Finish.
func (d *driver) loop(ctx context.Context) error {
	ticks := time.NewTicker(d.cfg.beat() / 2)
	defer ticks.Stop()
	cancelled := ctx.Done()
	var suspicions <-chan string
	if d.cfg.Gossip != nil {
		suspicions = d.cfg.Gossip.Suspicions
	}
	d.step(Begin{})
	for !d.ended {
		select {
		case r := <-d.reports:
			d.settle(r)
		case <-ticks.C:
			d.step(Tick{time.Since(d.born)})
		case <-d.spent():
			d.commSpent()
		case <-cancelled:
			cancelled = nil
			d.step(Quit{ctx.Err()})
		case name, ok := <-suspicions:
			if !ok {
				suspicions = nil
				break
			}
			d.log.Info("gossip suspects a member", "member", name)
		}
	}
	return d.end
}

// step gives the machine an event and carries out what it wants. What goes
// wrong in that is the next event.
func (d *driver) step(e Event) {
	for e != nil && !d.ended {
		before := d.machine.State()
		effects, err := d.machine.Step(e)
		if err != nil {
			d.log.Error("illegal event", "err", err)
			d.quit = err
		}
		if after := d.machine.State(); after != before {
			d.log.Debug("state", "state", after.String(), "epoch", d.machine.Epoch())
		}
		for _, effect := range effects {
			d.apply(effect)
		}
		e = nil
		if d.quit != nil {
			e, d.quit = Quit{d.quit}, nil
		}
	}
}

// settle takes the report of a goroutine.
func (d *driver) settle(r report) {
	if r.take != nil {
		r.take()
	}
	if r.epoch != nil {
		r.epoch.busy--
	}
	if r.event != nil {
		d.step(r.event)
	}
	d.closeIfQuiet()
}

// apply begins one effect, or does it where it takes no time.
func (d *driver) apply(e Effect) {
	switch e := e.(type) {
	case Dial:
		d.do(nil, d.dial)
	case Send:
		d.send(e.Message)
	case Join:
		d.join(e)
	case BringUp:
		d.do(nil, d.bringUp)
	case LinkPeers:
		d.link(e)
	case LoadShard:
		d.do(nil, d.load)
	case OpenEngine:
		d.open(e)
	case RunPlan:
		d.run(e.Plan)
	case Answer:
		d.answer(e.Ask)
	case CloseEpoch:
		d.closeEpoch(e)
	case Ignore:
		d.log.Debug("ignored", "what", e.What, "why", e.Why)
	case Finish:
		d.ended, d.end = true, e.Err
	default:
		panic(fmt.Sprintf("rank: unknown effect %T", e))
	}
}

// do runs an effect in a goroutine of its own. With an epoch, ctx ends with it,
// and the epoch is not closed before the effect has ended; without, ctx ends
// with Run.
func (d *driver) do(ep *epoch, effect func(ctx context.Context) report) {
	ctx := d.life
	if ep != nil {
		ctx = ep.ctx
		ep.busy++
	}
	// Ends when the effect does, which minds ctx, and when loop has taken its
	// report or release has closed gone.
	go func() {
		r := effect(ctx)
		r.epoch = ep
		d.tell(r)
	}()
}

// tell hands a report to the loop and says whether there was one.
func (d *driver) tell(r report) bool {
	select {
	case d.reports <- r:
		return true
	case <-d.gone:
		if r.drop != nil {
			r.drop()
		}
		return false
	}
}

// send queues a message. A master that reads nothing is lost.
func (d *driver) send(m Message) {
	if d.conn == nil {
		return
	}
	select {
	case d.out <- m:
	default:
		d.quit = fmt.Errorf("%w: %d messages wait to be read", ErrMasterLost, outMax)
	}
}

// read runs until the control connection ends, which release brings about.
func (d *driver) read(conn *Conn) {
	for {
		m, err := conn.Read(time.Time{})
		if err != nil {
			d.tell(report{event: Quit{fmt.Errorf("%w: %w", ErrMasterLost, err)}})
			return
		}
		if !d.tell(report{event: Got{m}}) {
			return
		}
	}
}

// write runs until release closes out, or a write fails.
func (d *driver) write(conn *Conn) {
	defer close(d.written)
	for m := range d.out {
		if err := conn.Write(m, time.Now().Add(d.cfg.dead())); err != nil {
			d.tell(report{event: Quit{fmt.Errorf("%w: %w", ErrMasterLost, err)}})
			return
		}
	}
}

// release ends what Run started: the last messages go out, then connections
// close, and whatever still runs finds nobody to report to.
func (d *driver) release() {
	d.die()
	close(d.gone)
	close(d.out)
	grace, cancel := context.WithTimeout(context.Background(), d.cfg.grace())
	defer cancel()
	if d.conn != nil {
		select {
		case <-d.written:
		case <-grace.Done():
			d.log.Warn("the last messages were not read")
		}
		_ = d.conn.Close() // the master is told, or cannot be
	}
	if d.device != nil {
		if err := d.device.Shutdown(grace); err != nil {
			d.log.Warn("shut the device down", "err", err)
		}
	}
	if ep := d.epoch; ep != nil {
		ep.cancel()
		if ep.comm != nil && !ep.closed {
			go ep.comm.Close() // a step outlasted the grace; ends with the step at the latest
		}
	}
	if d.listen != nil {
		_ = d.listen.Close() // nothing is to be linked any more
	}
}
