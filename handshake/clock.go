package handshake

import "container/heap"

// event is something that happens at an instant of virtual time.
type event struct {
	at   Span
	seq  uint64 // events of one instant happen in the order in which they were planned
	run  func()
	void func() bool // nil, or whether the event has become void
}

// clock holds the events to come. Time is what the next event says; it never
// runs backwards and has nothing to do with the time of day.
type clock struct {
	now    Span
	seq    uint64
	events queue
}

func (c *clock) after(d Span, run func()) { c.plan(c.now+d, run, nil) }

func (c *clock) plan(at Span, run func(), void func() bool) {
	c.seq++
	heap.Push(&c.events, event{max(at, c.now), c.seq, run, void})
}

// next runs the next event; false: there is none.
func (c *clock) next() bool {
	for len(c.events) > 0 {
		e := heap.Pop(&c.events).(event)
		if e.void != nil && e.void() {
			continue
		}
		c.now = e.at
		e.run()
		return true
	}
	return false
}

// queue is a heap of events.
type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
