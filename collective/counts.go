package collective

import "slices"

// Count is how often one verb was called for one purpose, and how many bytes of
// bodies this rank sent for it.
type Count struct {
	Verb    Verb
	Purpose Purpose
	Calls   uint64
	Bytes   uint64
}

// Counts has one Count for each (Verb, Purpose) that was called, ordered by
// both, so two Counts are equal when slices.Equal says so.
type Counts []Count

// Calls sums the calls of verb for the given purposes, or for all when none is
// given.
func (c Counts) Calls(v Verb, purposes ...Purpose) uint64 {
	var n uint64
	for _, e := range c {
		if e.Verb == v && (len(purposes) == 0 || slices.Contains(purposes, e.Purpose)) {
			n += e.Calls
		}
	}
	return n
}

// Sub returns what was counted since before, an earlier state of c. Entries
// without a call since then are left out.
func (c Counts) Sub(before Counts) Counts {
	var out Counts
	for _, e := range c {
		if i, ok := before.find(e.Verb, e.Purpose); ok {
			e.Calls -= before[i].Calls
			e.Bytes -= before[i].Bytes
		}
		if e.Calls != 0 {
			out = append(out, e)
		}
	}
	return out
}

// add counts one call.
func (c *Counts) add(v Verb, p Purpose, bytes uint64) {
	i, ok := c.find(v, p)
	if !ok {
		*c = slices.Insert(*c, i, Count{Verb: v, Purpose: p})
	}
	(*c)[i].Calls++
	(*c)[i].Bytes += bytes
}

// find returns where the entry is or belongs.
func (c Counts) find(v Verb, p Purpose) (int, bool) {
	return slices.BinarySearchFunc(c, Count{Verb: v, Purpose: p}, func(a, b Count) int {
		if a.Verb != b.Verb {
			return int(a.Verb) - int(b.Verb)
		}
		return int(a.Purpose) - int(b.Purpose)
	})
}
