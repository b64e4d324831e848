package collective

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Class is what kind of trouble spent a communicator. The lower the class, the
// more it explains: a death makes links break and operations stall, so it is
// named before them.
type Class uint8

// The classes, strongest first.
const (
	Death      Class = iota + 1 // the rank's lane ended without BYE
	Corruption                  // a frame that cannot be: damaged, stale, misdirected
	Mismatch                    // the ranks do not call the same operation
	Link                        // the data link between two live ranks broke
	Stall                       // frames or heartbeats did not come in time
	Aborted                     // somebody gave up: the caller, its context, the master
)

// String is the class in lower case.
func (c Class) String() string {
	return name([]string{"none", "death", "corruption", "mismatch", "link", "stall", "aborted"}, c)
}

// Cause says why a communicator is spent. As evidence it is what one rank saw;
// as a verdict it is what the evidence comes to.
type Cause struct {
	Class    Class
	Epoch    uint32
	Seq      uint64 // operation of the informer; 0 before the first
	Verb     Verb   // of that operation
	Culprits []int  // ascending; empty when nobody is to blame
	Informer int    // the rank that saw it
	Detail   string // what was seen, both values for a mismatch
}

// String is one line: what, where, who, why, seen by whom.
func (c Cause) String() string {
	return fmt.Sprintf("%v #%d [epoch %d]: %s: %s, seen by rank %d",
		c.Verb, c.Seq, c.Epoch, c.blame(), c.Detail, c.Informer)
}

// blame is the sentence about the culprits.
func (c Cause) blame() string {
	who := ranks(c.Culprits)
	switch c.Class {
	case Death:
		return who + " died"
	case Corruption:
		return "corrupt frame from " + who
	case Mismatch:
		return "mismatch of " + who
	case Link:
		return "link between " + who + " broke"
	case Stall:
		return who + " stalled"
	}
	if len(c.Culprits) == 0 {
		return "aborted"
	}
	return "aborted by " + who
}

// ranks prints "rank 3" or "ranks 1, 3".
func ranks(r []int) string {
	if len(r) == 0 {
		return "nobody"
	}
	s := strings.Trim(strings.ReplaceAll(fmt.Sprint(r), " ", ", "), "[]")
	if len(r) == 1 {
		return "rank " + s
	}
	return "ranks " + s
}

// AbortError is the error of every operation on a spent Comm.
type AbortError struct {
	Cause
	err error // what the caller's context or hook returned, if that was it
}

func (e *AbortError) Error() string { return e.Cause.String() }

// Unwrap returns the error of the context, the failpoint or the producer that
// this rank gave up with, if it was that.
func (e *AbortError) Unwrap() error { return e.err }

// Verdict is what the evidence comes to; ok is false without evidence. It is
// the same for the same set in any order, so ranks that gathered the same
// evidence name the same culprits.
//
// The strongest class decides, then the least sequence, the fewest culprits,
// the least culprit and the least informer. A link that ended at a rank which
// gave up says nothing. All deaths are named together, with one exception: two
// ranks that report each other dead, and that nobody else reports, live on
// either side of a cut link.
func Verdict(evidence []Cause) (verdict Cause, ok bool) {
	if len(evidence) == 0 {
		return Cause{}, false
	}
	ev := slices.Clone(evidence)
	for i := range ev {
		ev[i] = relabelCut(ev[i], evidence)
	}
	ev = slices.DeleteFunc(ev, func(c Cause) bool {
		return c.Class == Link && slices.ContainsFunc(c.Culprits, func(r int) bool {
			return gaveUp(r, evidence)
		})
	})
	best := slices.MinFunc(ev, compareCauses)
	best.Culprits = slices.Clone(best.Culprits)
	if best.Class == Death {
		for _, c := range ev {
			if c.Class == Death {
				best.Culprits = append(best.Culprits, c.Culprits...)
			}
		}
	}
	slices.Sort(best.Culprits)
	best.Culprits = slices.Compact(best.Culprits)
	return best, true
}

// gaveUp reports whether rank r said of itself that it gives up.
func gaveUp(r int, evidence []Cause) bool {
	return slices.ContainsFunc(evidence, func(c Cause) bool {
		return c.Class == Aborted && c.Informer == r && slices.Equal(c.Culprits, []int{r})
	})
}

// relabelCut turns the report of a death into that of a cut link when the one
// reported dead reports the informer dead, and no third rank reports either.
func relabelCut(c Cause, all []Cause) Cause {
	if c.Class != Death || len(c.Culprits) != 1 {
		return c
	}
	a, b := c.Informer, c.Culprits[0]
	back := false
	for _, o := range all {
		if o.Class != Death {
			continue
		}
		switch {
		case o.Informer == b && slices.Contains(o.Culprits, a):
			back = true
		case o.Informer != a && o.Informer != b &&
			(slices.Contains(o.Culprits, a) || slices.Contains(o.Culprits, b)):
			return c
		}
	}
	if !back {
		return c
	}
	c.Class = Link
	c.Culprits = []int{min(a, b), max(a, b)}
	c.Detail = "each reports the other's lane as ended: " + c.Detail
	return c
}

// compareCauses orders evidence, the deciding piece first.
func compareCauses(a, b Cause) int {
	for _, d := range []int{
		int(a.Class) - int(b.Class),
		compare(a.Seq, b.Seq),
		len(a.Culprits) - len(b.Culprits),
		slices.Compare(a.Culprits, b.Culprits),
		a.Informer - b.Informer,
	} {
		if d != 0 {
			return d
		}
	}
	return strings.Compare(a.Detail, b.Detail)
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// evidenceMax bounds what a jury keeps; a rank that floods more is not heard.
const evidenceMax = 4 * SizeMax

// linkPatience is how many graces a broken link alone waits for the lane to say
// who died, for a loaded host delivers the end of two connections far apart.
const linkPatience = 10

// jury gathers evidence until its deadline and then stands by its verdict. It
// is plain values: time comes in as an argument.
type jury struct {
	grace    time.Duration
	evidence []Cause
	first    time.Time // of the first evidence
	verdict  Cause     // so far
}

// hear takes a piece of evidence and reports whether it changes who is to
// blame, in which case the others should hear it too.
func (j *jury) hear(now time.Time, c Cause) (changed bool) {
	if len(j.evidence) >= evidenceMax || slices.ContainsFunc(j.evidence, c.equal) {
		return false
	}
	if len(j.evidence) == 0 {
		j.first = now
	}
	j.evidence = append(j.evidence, c)
	old := j.verdict
	j.verdict, _ = Verdict(j.evidence)
	return old.Class != j.verdict.Class || !slices.Equal(old.Culprits, j.verdict.Culprits)
}

// deadline is when the verdict stands, given the evidence so far.
func (j *jury) deadline() time.Time {
	if j.verdict.Class == Link {
		return j.first.Add(linkPatience * j.grace)
	}
	return j.first.Add(j.grace)
}

func (c Cause) equal(o Cause) bool {
	return c.Class == o.Class && c.Epoch == o.Epoch && c.Seq == o.Seq && c.Verb == o.Verb &&
		slices.Equal(c.Culprits, o.Culprits) && c.Informer == o.Informer && c.Detail == o.Detail
}
