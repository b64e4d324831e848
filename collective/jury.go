package collective

import (
	"slices"
	"time"
)

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
