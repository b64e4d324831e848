package rank

import (
	"fmt"
	"slices"
	"time"

	"octet/collective"
	"octet/model"
)

// limitMax bounds every duration that a message carries.
const limitMax = 24 * time.Hour

// bounds collects range checks and keeps the first that fails.
type bounds struct {
	err error
}

func (b *bounds) number(name string, n, from, to int64) {
	if b.err == nil && (n < from || n > to) {
		b.err = fmt.Errorf("field %s is %d, %d to %d allowed", name, n, from, to)
	}
}

func (b *bounds) count(name string, n, most int) {
	if b.err == nil && n > most {
		b.err = fmt.Errorf("field %s has %d entries, at most %d allowed", name, n, most)
	}
}

func (b *bounds) text(name, s string) {
	if b.err == nil && len(s) > TextMax {
		b.err = fmt.Errorf("field %s has %d bytes, at most %d allowed", name, len(s), TextMax)
	}
}

func (b *bounds) texts(name string, list []string, most int) {
	b.count(name, len(list), most)
	for _, s := range list {
		b.text(name, s)
	}
}

func (b *bounds) limit(name string, d time.Duration) {
	b.number(name, int64(d), 1, int64(limitMax))
}

func (b *bounds) span(name string, d time.Duration) {
	b.number(name, int64(d), 0, int64(limitMax))
}

func (m *Hello) check() error {
	var b bounds
	b.text("build", m.Build)
	b.number("run id bytes", int64(len(m.RunID)), 1, TextMax)
	b.number("size", int64(m.Size), 1, RanksMax)
	b.number("rank", int64(m.Rank), 0, int64(m.Size)-1)
	b.number("pid", int64(m.PID), 0, 1<<31-1)
	b.text("host", m.Host)
	b.text("mesh", m.Mesh)
	b.text("gossip", m.Gossip)
	b.count("options", len(m.Options), OptionsMax)
	for name, value := range m.Options {
		b.text("options", name)
		b.text("options", value)
	}
	b.number("cores", int64(m.Cores), 1, 1<<20)
	return b.err
}

func (m *Assign) check() error {
	var b bounds
	b.number("run id bytes", int64(len(m.RunID)), 1, TextMax)
	b.number("epoch", int64(m.Epoch), 1, 1<<32-1)
	b.number("size", int64(m.Size), 1, RanksMax)
	b.number("rank", int64(m.Rank), 0, int64(m.Size)-1)
	b.number("mesh entries", int64(len(m.Mesh)), int64(m.Size), int64(m.Size))
	b.texts("mesh", m.Mesh, RanksMax)
	if len(m.Gossip) != 0 {
		b.number("gossip entries", int64(len(m.Gossip)), int64(m.Size), int64(m.Size))
	}
	b.texts("gossip", m.Gossip, RanksMax)
	b.number("cores", int64(m.Cores), 1, 1<<20)
	b.number("slots", int64(m.Slots), 1, SlotsMax)
	b.limit("heartbeat", m.Heartbeat)
	b.limit("dead", m.Dead)
	b.limit("op", m.Op)
	if b.err == nil && !(2*m.Heartbeat <= m.Dead && m.Dead <= m.Op) {
		b.err = fmt.Errorf("limits do not rise: twice heartbeat %v, dead %v, op %v",
			m.Heartbeat, m.Dead, m.Op)
	}
	return b.err
}

func (m *Refuse) check() error {
	var b bounds
	b.texts("reason", []string{m.Reason, m.Key, m.Yours, m.Ours}, 4)
	return b.err
}

func (m *Reached) check() error {
	var b bounds
	b.number("epoch", int64(m.Epoch), 1, 1<<32-1)
	b.number("phase", int64(m.Phase), int64(PhaseHandshake), int64(PhaseReady))
	d := m.Device
	for _, t := range []time.Duration{d.Broadcast, d.Boot, d.Service, d.Total} {
		b.span("device", t)
	}
	b.number("bytes", m.Bytes, 0, 1<<62)
	b.number("members", int64(m.Members), 0, 1<<20)
	return b.err
}

func (m *Step) check() error {
	var b bounds
	p := &m.Plan
	b.number("epoch", int64(p.Epoch), 1, 1<<32-1)
	b.number("rows", int64(len(p.Rows)), 1, RowsMax)
	for _, r := range p.Rows {
		b.number("row slot", int64(r.Slot), 0, SlotsMax-1)
		b.number("row position", int64(r.Pos), 0, 1<<31-1)
		b.number("row token", int64(r.Token), 0, 1<<31-1)
	}
	b.count("samples", len(p.Samples), len(p.Rows))
	for _, s := range p.Samples {
		b.number("sample row", int64(s.Row), 0, int64(len(p.Rows))-1)
	}
	b.decision(&p.Decision)
	return b.err
}

func (m *Stepped) check() error {
	var b bounds
	b.number("epoch", int64(m.Epoch), 1, 1<<32-1)
	b.count("counts", len(m.Counts), 1<<10)
	b.decision(&m.Decision)
	b.count("tokens", len(m.Tokens), RowsMax)
	for i := range m.Tokens {
		b.token(&m.Tokens[i])
	}
	return b.err
}

func (b *bounds) token(t *model.Token) {
	b.number("token", int64(t.ID), -1, 1<<31-1) // -1: with a fault
	b.count("top", len(t.Top), model.TopIDs)
	b.text("fault", t.Fault)
}

func (b *bounds) decision(d *model.Decision) {
	b.number("p", int64(d.P), 0, 1<<31-1)
	b.number("l", int64(d.L), 0, int64(d.P))
	b.number("mode", int64(d.Mode), 0, int64(collective.AIV))
	b.texts("reason", []string{d.Reason, d.FuseReason.O, d.FuseReason.Down}, 3)
}

func (m *Abort) check() error {
	var b bounds
	c := &m.Cause
	b.number("epoch", int64(m.Epoch), 1, 1<<32-1)
	b.number("class", int64(c.Class), int64(collective.Death), int64(collective.Aborted))
	b.count("culprits", len(c.Culprits), RanksMax)
	for _, r := range c.Culprits {
		b.number("culprit", int64(r), 0, RanksMax-1)
	}
	if b.err == nil && !slices.IsSorted(c.Culprits) {
		b.err = fmt.Errorf("culprits %v do not ascend", c.Culprits)
	}
	b.number("informer", int64(c.Informer), -1, RanksMax-1) // -1: the master
	b.text("detail", c.Detail)
	return b.err
}

func (m *Apart) check() error {
	var b bounds
	b.number("epoch", int64(m.Epoch), 1, 1<<32-1)
	return b.err
}

func (m *DigestsAsk) check() error { return nil }

func (m *DigestsAnswer) check() error {
	var b bounds
	b.count("digests", len(m.Digests), DigestsMax)
	b.text("refusal", m.Refusal)
	return b.err
}

func (m *Heartbeat) check() error {
	var b bounds
	b.text("state", m.State)
	return b.err
}

func (m *Stop) check() error {
	var b bounds
	b.text("reason", m.Reason)
	return b.err
}

func (m *Bye) check() error {
	var b bounds
	b.text("cause", m.Cause)
	return b.err
}
