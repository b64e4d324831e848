package tcp

import (
	"golang.org/x/sys/unix"

	"octet/collective"
)

const (
	batchBytes = 64 << 10 // a system call takes no further frame once it has this much
	batchVecs  = 64       // and never more pieces of memory
	spareVecs  = 4096     // a drained queue that grew beyond this is let go
)

// queue is one direction of a link: the pieces of memory that the kernel has
// not moved yet, frame after frame. The pointers in vecs keep the caller's
// memory reachable until a frame is done.
//
// Invariant: no piece is empty, and the last piece of every frame is marked.
type queue struct {
	vecs []unix.Iovec
	last []bool // by vector: it ends a frame
	next int    // first vector that is not done
	done int    // frames since the queue was made
	err  error  // nothing will move any more
}

// push appends a frame.
func (q *queue) push(f collective.Frame) {
	if len(f.Head) != collective.HeadBytes {
		panic("tcp: a frame's head does not have collective.HeadBytes bytes")
	}
	if q.next > batchVecs && len(q.vecs)+2 > cap(q.vecs) {
		n := copy(q.vecs, q.vecs[q.next:])
		copy(q.last, q.last[q.next:])
		clear(q.vecs[n:])
		q.vecs, q.last, q.next = q.vecs[:n], q.last[:n], 0
	}
	q.add(f.Head, len(f.Body) == 0)
	if len(f.Body) > 0 {
		q.add(f.Body, true)
	}
}

func (q *queue) add(b []byte, last bool) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	q.vecs = append(q.vecs, v)
	q.last = append(q.last, last)
}

// pending reports whether a frame is unfinished.
func (q *queue) pending() bool { return q.next < len(q.vecs) }

// batch is what the next system call should move.
func (q *queue) batch() []unix.Iovec {
	end := min(len(q.vecs), q.next+batchVecs)
	size := 0
	for i := q.next; i < end; i++ {
		size += int(q.vecs[i].Len)
		if q.last[i] && size >= batchBytes {
			return q.vecs[q.next : i+1]
		}
	}
	return q.vecs[q.next:end]
}

// advance takes n bytes off the front and returns how many frames that
// finished.
func (q *queue) advance(n int) (frames int) {
	for n > 0 {
		v := &q.vecs[q.next]
		if size := int(v.Len); n < size {
			v.Base = after(v.Base, n)
			v.SetLen(size - n)
			break
		}
		n -= int(v.Len)
		*v = unix.Iovec{}
		if q.last[q.next] {
			frames++
		}
		q.next++
	}
	q.done += frames
	if q.next == len(q.vecs) {
		q.vecs, q.last, q.next = q.vecs[:0], q.last[:0], 0
		if cap(q.vecs) > spareVecs {
			q.vecs, q.last = nil, nil
		}
	}
	return frames
}

// forget lets go of the caller's memory. The count of finished frames stays.
func (q *queue) forget() { q.vecs, q.last, q.next = nil, nil, 0 }
