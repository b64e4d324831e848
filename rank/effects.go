package rank

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"octet/collective"
	"octet/collective/tcp"
	"octet/handshake"
	"octet/model"
)

// epoch is what a driver holds of one epoch.
type epoch struct {
	number uint32
	assign *Assign
	ctx    context.Context // ends when the epoch is closed
	cancel context.CancelFunc

	// Owned by loop:
	busy    int // effects of this epoch under way
	comm    *collective.Comm
	spent   <-chan struct{} // the Comm's, until it has been seen
	engine  *model.Engine
	closing bool
	closed  bool // Comm.Close has been called
}

// failpoint asks the Config what is to go wrong at a place.
func (d *driver) failpoint(name string) error {
	if d.cfg.Failpoint == nil {
		return nil
	}
	return d.cfg.Failpoint(name)
}

// failed is the report of an effect that went wrong in an epoch, 0 for none.
func (d *driver) failed(epoch uint32, err error) report {
	return report{event: Failed{epoch, err, causeOf(err, d.cfg.Rank, epoch)}}
}

// failedIn is failed for what happens while an engine is open. A rank that knows
// itself to be the one who plans otherwise says so: the others saw only a hash.
func (d *driver) failedIn(engine *model.Engine, epoch uint32, err error) report {
	cause := causeOf(err, d.cfg.Rank, epoch)
	if engine != nil && cause.Class == collective.Mismatch {
		if other := engine.Otherwise(); other != nil {
			cause.Culprits, cause.Informer = []int{d.cfg.Rank}, d.cfg.Rank
			cause.Detail = clip(other.Error())
		}
	}
	return report{event: Failed{epoch, err, cause}}
}

// causeOf puts an error into the words of the group. What the Comm found stands;
// a broken link names both its ends; all else is this rank's own trouble.
func causeOf(err error, rank int, epoch uint32) collective.Cause {
	if spent := (*collective.AbortError)(nil); errors.As(err, &spent) {
		cause := spent.Cause
		cause.Detail = clip(cause.Detail)
		return cause
	}
	cause := collective.Cause{Class: collective.Aborted, Epoch: epoch,
		Culprits: []int{rank}, Informer: rank, Detail: clip(err.Error())}
	if link := (*collective.LinkError)(nil); errors.As(err, &link) && link.Peer != rank {
		cause.Class = collective.Link
		cause.Culprits = []int{min(rank, link.Peer), max(rank, link.Peer)}
	}
	return cause
}

// dial prepares HELLO and connects. A rank whose model directory is no good
// says so in HELLO, where the master looks for differences, and then gives up.
func (d *driver) dial(ctx context.Context) report {
	if err := d.failpoint("rank/hello"); err != nil {
		return d.failed(0, err)
	}
	hello, problem := d.hello()
	ctx, cancel := context.WithTimeout(ctx, d.cfg.dead())
	defer cancel()
	raw, err := d.cfg.Dial(ctx)
	if err != nil {
		return d.failed(0, fmt.Errorf("dial the master: %w", err))
	}
	return report{
		event: Connected{hello},
		take: func() {
			d.conn, d.quit = NewConn(raw), problem
			go d.read(d.conn)  // ends when release closes the connection
			go d.write(d.conn) // ends when release closes out
		},
		drop: func() { _ = raw.Close() }, // nobody needs it
	}
}

func (d *driver) hello() (*Hello, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	h := &Hello{Build: d.cfg.Build, RunID: d.cfg.RunID, Rank: d.cfg.Rank, Size: d.cfg.Size,
		PID: d.cfg.PID, Host: clip(host), Mesh: d.addr, Cores: runtime.GOMAXPROCS(0)}
	if d.cfg.Gossip != nil {
		h.Gossip = d.cfg.Gossip.Addr
	}
	id, err := Identity(d.cfg.Model, d.cfg.Size, d.cfg.Options)
	if err != nil {
		id = unknownIdentity(d.cfg.Size, d.cfg.Options, err)
	}
	h.Options = id
	return h, err
}

// join meets the other members of the gossip, where there is one.
func (d *driver) join(e Join) {
	a := e.Assign
	ep := &epoch{number: a.Epoch, assign: a}
	ep.ctx, ep.cancel = context.WithCancel(d.life)
	d.epoch = ep
	d.do(ep, func(ctx context.Context) report {
		err := d.failpoint("rank/assigned")
		if g := d.cfg.Gossip; err == nil && g != nil && len(a.Gossip) > 0 {
			err = g.Start(ctx, MemberName(d.cfg.Rank, a.Epoch), a.Gossip)
		}
		if err != nil {
			return d.failed(a.Epoch, fmt.Errorf("join the gossip: %w", err))
		}
		return report{event: Joined{a.Epoch}}
	})
}

func (d *driver) bringUp(ctx context.Context) report {
	if err := d.failpoint("rank/handshake"); err != nil {
		return d.failed(0, fmt.Errorf("bring up the device: %w", err))
	}
	cfg := d.cfg.Device
	cfg.Failpoint = d.cfg.Failpoint
	device, err := handshake.New(cfg)
	if err != nil {
		return d.failed(0, fmt.Errorf("bring up the device: %w", err))
	}
	up, err := device.BringUp(ctx)
	if err != nil {
		return d.failed(0, fmt.Errorf("bring up the device: %w", err))
	}
	times := DeviceTimes{Broadcast: up.Broadcast, Boot: up.Boot, Service: up.Service,
		Total: up.Total}
	// Where nobody takes it any more, it is left as it is: no core has work.
	return report{event: DeviceUp{times}, take: func() { d.device = device }}
}

// link dials the mesh and makes the Comm of the epoch.
func (d *driver) link(e LinkPeers) {
	ep := d.epoch
	d.do(ep, func(ctx context.Context) report {
		comm, err := d.makeComm(ctx, ep, e.Table)
		if err != nil {
			return d.failed(e.Epoch, fmt.Errorf("link to the peers: %w", err))
		}
		return report{
			event: Linked{e.Epoch},
			take:  func() { ep.comm, ep.spent = comm, comm.Done() },
			drop:  func() { _ = comm.Close() }, // nobody needs it
		}
	})
}

func (d *driver) makeComm(ctx context.Context, ep *epoch, table []string) (
	*collective.Comm, error) {
	data, lane, err := d.mesh(ctx, ep.number, table)
	if err != nil {
		return nil, err
	}
	comm, err := collective.New(collective.Config{
		RunID: d.cfg.RunID, Rank: d.cfg.Rank, Size: d.cfg.Size,
		Epoch: ep.number, Cores: ep.assign.Cores,
		Timeouts: collective.Timeouts{Op: ep.assign.Op, Heartbeat: ep.assign.Heartbeat,
			Dead: ep.assign.Dead},
		Failpoint: d.cfg.Failpoint,
	}, data, lane)
	if err != nil {
		return nil, errors.Join(err, data.Close(), lane.Close())
	}
	if err := d.failpoint("rank/linked"); err != nil {
		return nil, errors.Join(err, comm.Close())
	}
	return comm, nil
}

// dialMesh links over TCP.
func (d *driver) dialMesh(ctx context.Context, epoch uint32, table []string) (
	collective.Transport, collective.Lane, error) {
	return d.listen.Mesh(ctx, tcp.Config{
		Hello: tcp.Hello{RunID: d.cfg.RunID, Epoch: epoch, Rank: d.cfg.Rank, Size: d.cfg.Size},
		Peers: table,
	})
}

// load reads this rank's share of the weights. It cannot be interrupted.
func (d *driver) load(context.Context) report {
	config, err := model.ReadConfig(d.cfg.Model)
	if err != nil {
		return d.failed(0, fmt.Errorf("load the shard: %w", err))
	}
	shard, err := model.Load(d.cfg.Model, config, d.cfg.Rank, d.cfg.Size)
	if err == nil {
		err = d.failpoint("rank/loaded")
	}
	if err != nil {
		return d.failed(0, fmt.Errorf("load the shard: %w", err))
	}
	return report{event: Loaded{shard.Bytes}, take: func() { d.config, d.shard = config, shard }}
}

// open makes the engine of the epoch, with empty slots.
func (d *driver) open(e OpenEngine) {
	ep := d.epoch
	cfg := model.EngineConfig{Config: d.config, Shard: d.shard, Comm: ep.comm,
		Options: d.cfg.Options, Epoch: e.Epoch, Slots: e.Slots, Digest: d.cfg.Digests,
		Failpoint: d.cfg.Failpoint}
	d.do(ep, func(context.Context) report {
		engine, err := model.NewEngine(cfg)
		if err == nil {
			err = d.failpoint("rank/ready")
		}
		if err != nil {
			return d.failed(e.Epoch, fmt.Errorf("make the engine: %w", err))
		}
		members := 0
		if d.cfg.Gossip != nil {
			members = d.cfg.Gossip.Members()
		}
		return report{event: Opened{e.Epoch, members}, take: func() { ep.engine = engine }}
	})
}

// run runs one plan.
func (d *driver) run(p *model.Plan) {
	engine := d.epoch.engine
	d.do(d.epoch, func(ctx context.Context) report {
		if err := d.failpoint(fmt.Sprintf("rank/step:%d", p.Step)); err != nil {
			return d.failed(p.Epoch, fmt.Errorf("step %d: %w", p.Step, err))
		}
		result, err := engine.Step(ctx, p)
		if err != nil {
			return d.failedIn(engine, p.Epoch, fmt.Errorf("step %d: %w", p.Step, err))
		}
		return report{event: Ran{&Stepped{Epoch: p.Epoch, Step: p.Step, Counts: result.Counts,
			Decision: result.Decision, Tokens: result.Tokens}}}
	})
}

// answer sends digests. The machine asks only while no step runs, so the engine
// is the loop's.
func (d *driver) answer(ask *DigestsAsk) {
	digests := d.epoch.engine.Digests(ask.Request)
	d.send(&DigestsAnswer{ID: ask.ID, Request: ask.Request, Digests: slices.Clone(digests)})
}

// spent is closed when the Comm of the epoch is spent; nil where there is none.
func (d *driver) spent() <-chan struct{} {
	if d.epoch == nil {
		return nil
	}
	return d.epoch.spent
}

// commSpent notices a Comm that was spent while no verb runs, or before the
// step that runs has returned the same.
func (d *driver) commSpent() {
	ep := d.epoch
	ep.spent = nil
	if err := ep.comm.Err(); err != nil && !ep.closing {
		d.settle(d.failedIn(ep.engine, ep.number, err))
	}
}

// closeEpoch ends what runs in the epoch; closeIfQuiet goes on when it has.
func (d *driver) closeEpoch(e CloseEpoch) {
	ep := d.epoch
	ep.closing = true
	if ep.comm == nil || e.Cause == nil {
		ep.cancel()
		d.closeIfQuiet()
		return
	}
	cause, comm := *e.Cause, ep.comm
	d.do(ep, func(context.Context) report {
		_ = comm.Abort(cause) // returns what spent it, which may be an earlier cause
		ep.cancel()
		return report{}
	})
}

// closeIfQuiet closes the Comm of a closing epoch when nothing uses it.
func (d *driver) closeIfQuiet() {
	ep := d.epoch
	if ep == nil || !ep.closing || ep.closed || ep.busy > 0 {
		return
	}
	ep.closed = true
	comm := ep.comm
	ep.engine = nil
	d.do(nil, func(context.Context) report {
		if comm != nil {
			if err := comm.Close(); err != nil {
				d.log.Debug("close the communicator", "err", err)
			}
		}
		return report{event: Closed{ep.number}}
	})
}
