package collectivetest

import (
	"math/rand/v2"
	"time"

	"octet/collective"
)

// Reorder wraps a transport so that it does what any transport may do at any
// time: finished receives show in an order between links that seed picks, one
// frame at a time, and sends to some peers leave only when nothing else moves.
func Reorder(inner collective.Transport, size int, seed uint64) collective.Transport {
	return &reorder{Transport: inner, shown: make([]int, size),
		held: make([][]collective.Frame, size), rng: rand.New(rand.NewPCG(seed, seed))}
}

type reorder struct {
	collective.Transport
	shown []int                // receives that were shown, by peer
	held  [][]collective.Frame // sends that have not left, by peer
	rng   *rand.Rand
}

// Send holds the frame back, or not; frames to one peer stay in order.
func (r *reorder) Send(peer int, f collective.Frame) {
	if len(r.held[peer]) > 0 || r.rng.IntN(2) == 0 {
		r.held[peer] = append(r.held[peer], f)
		return
	}
	r.Transport.Send(peer, f)
}

// Done shows every send and those receives that were let through.
func (r *reorder) Done(peer int) (sent, received int) {
	sent, _ = r.Transport.Done(peer)
	return sent, r.shown[peer]
}

// Progress lets one more receive through, of a random peer among those that
// have one. When there is none, what was held back leaves.
func (r *reorder) Progress(deadline time.Time) error {
	_ = r.Transport.Progress(time.Now().Add(-time.Second)) // an error is met again
	if r.show() {
		return nil
	}
	for p, frames := range r.held {
		for _, f := range frames {
			r.Transport.Send(p, f)
		}
		r.held[p] = frames[:0]
	}
	err := r.Transport.Progress(deadline)
	r.show()
	return err
}

// show lets a receive through and reports whether there was one.
func (r *reorder) show() bool {
	var ready []int
	for p := range r.shown {
		if _, n := r.Transport.Done(p); n > r.shown[p] {
			ready = append(ready, p)
		}
	}
	if len(ready) == 0 {
		return false
	}
	r.shown[ready[r.rng.IntN(len(ready))]]++
	return true
}
