package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// flow is the traffic with one peer. Frames are counted since the transport was
// made, like its Done.
type flow struct {
	sent     int       // frames handed to the transport
	checked  int       // received frames that were checked
	posted   []landing // of this operation, in order
	taken    int       // how many of them were checked
	out, in  uint64    // data frames handed over and posted in this operation
	got      uint64    // data frames of this operation that were checked
	agreed   bool      // the peer's descriptor of this operation was checked
	disputed bool      // it differs: what follows on the link means nothing
}

// due reports whether frames are still to come.
func (f *flow) due() bool { return f.taken < len(f.posted) }

// landing is a frame that is to come: where it lands, and the head that is due.
type landing struct {
	head, body []byte
	want       header
}

// operation is one call of a verb under way, owned by the goroutine that called the verb.
type operation struct {
	c        *Comm
	desc     header // this rank's descriptor, from and to unset
	deadline time.Time
	bytes    uint64        // of bodies sent
	said     map[int]terms // descriptors that were seen, once one differs
}

// errDisputed says inside an operation that a descriptor differs.
var errDisputed = errors.New("descriptors differ")

// open starts an operation with descriptor d, without any traffic.
func (c *Comm) open(ctx context.Context, call Call, d header) *operation {
	d.kind = kindDescriptor
	d.run, d.epoch, d.comm, d.seq = c.runHash, c.cfg.Epoch, c.cfg.Comm, c.seq.Load()
	d.plan, d.purpose = call.Plan, call.Purpose
	c.heads.reset()
	for r := range c.flows {
		f := &c.flows[r]
		*f = flow{sent: f.sent, checked: f.checked, posted: f.posted[:0]}
	}
	return &operation{c: c, desc: d, deadline: c.deadline(ctx)}
}

// begin posts the descriptors, both ways. Nothing moves until the schedule asks
// for progress, so small payloads leave in the same batch.
func (o *operation) begin() {
	for _, r := range o.c.others() {
		f := &o.c.flows[r]
		h := o.desc
		h.from, h.to = uint8(o.c.cfg.Rank), uint8(r)
		head := o.c.heads.head()
		h.encode(head, 0)
		o.c.data.Send(r, Frame{Head: head})
		f.sent++
		h.from, h.to = h.to, h.from
		land := landing{head: o.c.heads.head(), want: h}
		o.c.data.Recv(r, Frame{Head: land.head})
		f.posted = append(f.posted, land)
	}
}

// sum is the checksum of a body that is to be sent, or 0 when they are off.
func (o *operation) sum(body []byte) uint32 {
	if !o.c.cfg.Checksum {
		return 0
	}
	return bodySum(body)
}

// send queues a data frame; sum is o.sum(body). The body must stay as it is
// until the frame is done. An empty body is no frame.
func (o *operation) send(peer int, body []byte, sum uint32) {
	if len(body) == 0 {
		return
	}
	f := &o.c.flows[peer]
	h := o.desc
	h.kind, h.count, h.size = kindData, f.out, uint32(len(body))
	h.from, h.to, h.summed = uint8(o.c.cfg.Rank), uint8(peer), o.c.cfg.Checksum
	head := o.c.heads.head()
	h.encode(head, sum)
	o.c.data.Send(peer, Frame{Head: head, Body: body})
	f.sent++
	f.out++
	o.bytes += uint64(len(body))
}

// recv queues the landing of the next data frame from peer.
func (o *operation) recv(peer int, body []byte) {
	if len(body) == 0 {
		return
	}
	f := &o.c.flows[peer]
	h := o.desc
	h.kind, h.count, h.size = kindData, f.in, uint32(len(body))
	h.from, h.to = uint8(peer), uint8(o.c.cfg.Rank)
	land := landing{head: o.c.heads.head(), body: body, want: h}
	o.c.data.Recv(peer, Frame{Head: land.head, Body: body})
	f.posted = append(f.posted, land)
	f.in++
}

// until makes progress until ready says so. A failure is final: the Comm is
// spent when it returns an error.
func (o *operation) until(ready func() bool) error {
	for !ready() {
		if err := o.step(o.deadline); err != nil {
			return o.fail(err)
		}
	}
	return nil
}

// poll makes one pass without waiting.
func (o *operation) poll() error {
	err := o.step(time.Now().Add(-time.Second))
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return o.fail(err)
}

// finish waits until everything that was posted is done, both ways. With the
// descriptors of all peers checked, the operation may succeed.
func (o *operation) finish() error {
	return o.until(func() bool {
		for _, r := range o.c.others() {
			if f := &o.c.flows[r]; f.due() || o.unsent(r) > 0 {
				return false
			}
		}
		return true
	})
}

// unsent is how many frames the transport still holds for peer.
func (o *operation) unsent(peer int) int {
	sent, _ := o.c.data.Done(peer)
	return o.c.flows[peer].sent - sent
}

// step lets the transport progress and checks what has landed, also when the
// transport fails: what a peer said before it died counts.
func (o *operation) step(deadline time.Time) error {
	failed := o.c.data.Progress(deadline)
	var wrong error
	for _, r := range o.c.others() {
		if err := o.check(r); wrong == nil {
			wrong = err
		}
	}
	if wrong != nil {
		return wrong
	}
	return failed
}

// check takes the frames that landed from peer in order and compares each with
// the one that is due.
func (o *operation) check(peer int) error {
	f := &o.c.flows[peer]
	_, landed := o.c.data.Done(peer)
	for f.checked < landed && f.due() && !f.disputed {
		land := f.posted[f.taken]
		got, err := decode(land.head, land.body)
		if err != nil {
			return &frameError{peer, err.Error()}
		}
		if what := foreign(got, land.want); what != "" {
			return &frameError{peer, what}
		}
		f.checked++
		f.taken++
		if got.kind == kindData {
			f.got++
			continue
		}
		f.agreed = true
		if o.said != nil {
			o.said[peer] = got.terms()
		}
		if got.terms() != o.desc.terms() {
			f.disputed = true
			if o.said == nil {
				o.said = map[int]terms{o.c.cfg.Rank: o.desc.terms(), peer: got.terms()}
			}
			return errDisputed
		}
	}
	return nil
}

// frameError is a frame that cannot be.
type frameError struct {
	peer int
	what string
}

func (e *frameError) Error() string { return fmt.Sprintf("frame from rank %d: %s", e.peer, e.what) }

// fail turns what went wrong into evidence and returns the verdict.
func (o *operation) fail(err error) error {
	var frame *frameError
	var link *LinkError
	c := o.c
	switch {
	case c.Err() != nil:
		return c.Err()
	case errors.As(err, &frame):
		return c.fail(report{cause: c.cause(Corruption, frame.what, frame.peer)})
	case errors.Is(err, errDisputed):
		return c.fail(report{cause: o.dispute()})
	case errors.As(err, &link):
		pair := []int{min(link.Peer, c.cfg.Rank), max(link.Peer, c.cfg.Rank)}
		return c.fail(report{cause: c.cause(Link, link.Error(), pair...)})
	case errors.Is(err, os.ErrDeadlineExceeded):
		late, what := o.missing()
		return c.fail(report{cause: c.cause(Stall, what, late...), err: err})
	}
	return c.giveUp("transport", err)
}

// dispute hears the descriptors that are still out, for a grace at most, and
// says who is outvoted.
func (o *operation) dispute() Cause {
	for _, r := range o.c.others() {
		if f := &o.c.flows[r]; f.agreed && !f.disputed {
			o.said[r] = o.desc.terms()
		}
	}
	end := time.Now().Add(o.c.times.Grace)
	for len(o.said) < o.c.cfg.Size {
		if err := o.step(end); err != nil && !errors.Is(err, errDisputed) {
			break
		}
	}
	culprits := outvoted(o.said)
	return o.c.cause(Mismatch, o.explain(culprits), culprits...)
}

// explain prints the difference between this rank and the first rank that says
// something else, a culprit if there is one.
func (o *operation) explain(culprits []int) string {
	mine := o.desc.terms()
	for _, r := range slices.Concat(culprits, o.c.others()) {
		if t, ok := o.said[r]; ok && t != mine {
			return difference(mine, t, r)
		}
	}
	return "descriptors differ"
}

// missing names the peers that an overdue operation waits for: those without a
// descriptor, else those that are behind the most with data, else those that do
// not take what is sent.
func (o *operation) missing() ([]int, string) {
	var silent, behind, deaf []int
	least := ^uint64(0)
	for _, r := range o.c.others() {
		f := &o.c.flows[r]
		switch {
		case !f.agreed:
			silent = append(silent, r)
		case f.due() && f.got < least:
			least, behind = f.got, []int{r}
		case f.due() && f.got == least:
			behind = append(behind, r)
		case o.unsent(r) > 0:
			deaf = append(deaf, r)
		}
	}
	switch {
	case len(silent) > 0:
		return silent, "has not entered the operation in time"
	case len(behind) > 0:
		return behind, fmt.Sprintf("sent %d data frames and no more in time", least)
	}
	return deaf, "does not take what is sent to it"
}
