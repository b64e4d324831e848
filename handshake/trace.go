package handshake

import "time"

// Event is one access of one actor, told when it has ended.
type Event struct {
	Round int
	At    time.Duration // virtual time at which it ended, from the making of the device
	Took  time.Duration // without the wait before it
	Actor string        // "AICPU 0", "AICore 17"
	Op    string        // "store", "barrier", "poll", ...
	Where string        // "record 3 task"; "" where there is no place
	Value uint64        // stored, or seen
}

func (d *Device) trace(a *actor, x access, value uint64, took Span) {
	if d.cfg.Trace == nil {
		return
	}
	d.cfg.Trace(Event{Round: d.round, At: d.clock.now.Duration(), Took: took.Duration(),
		Actor: a.name, Op: x.op.String(), Where: x.at.String(), Value: value})
}
