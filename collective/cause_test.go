package collective

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func seen(class Class, informer int, seq uint64, culprits ...int) Cause {
	return Cause{Class: class, Informer: informer, Seq: seq, Culprits: culprits, Verb: AllReduce,
		Epoch: 2, Detail: "seen"}
}

// The verdict is the strongest cause, and does not depend on the order of the
// evidence.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name     string
		evidence []Cause
		class    Class
		culprits []int
		seq      uint64
	}{
		{"a death explains what follows from it", []Cause{seen(Stall, 1, 3, 2), seen(Link, 1, 4, 1, 3),
			seen(Death, 0, 9, 3), seen(Corruption, 2, 1, 1)}, Death, []int{3}, 9},
		{"corruption before mismatch", []Cause{seen(Mismatch, 1, 3, 2), seen(Corruption, 2, 4, 1)},
			Corruption, []int{1}, 4},
		{"stall before somebody gave up", []Cause{seen(Aborted, 1, 3), seen(Stall, 2, 4, 1)},
			Stall, []int{1}, 4},
		{"least sequence", []Cause{seen(Stall, 1, 5, 2), seen(Stall, 0, 4, 3)}, Stall, []int{3}, 4},
		{"fewest culprits", []Cause{seen(Mismatch, 1, 5, 1, 2), seen(Mismatch, 0, 5, 2)},
			Mismatch, []int{2}, 5},
		{"a link ends at a rank that gave up", []Cause{{Class: Aborted, Informer: 3, Seq: 6,
			Culprits: []int{3}}, seen(Link, 1, 5, 1, 3), seen(Link, 0, 5, 0, 3)}, Aborted, []int{3}, 6},
		{"a link ends elsewhere", []Cause{{Class: Aborted, Informer: 3, Seq: 6, Culprits: []int{3}},
			seen(Link, 1, 5, 1, 2)}, Link, []int{1, 2}, 5},
		{"two deaths: both", []Cause{seen(Death, 0, 5, 2), seen(Death, 1, 5, 2), seen(Death, 1, 6, 4)},
			Death, []int{2, 4}, 5},
		{"cut link: the pair", []Cause{seen(Death, 3, 5, 1), seen(Death, 1, 5, 3)},
			Link, []int{1, 3}, 5},
		{"a third rank saw the death", []Cause{seen(Death, 3, 5, 1), seen(Death, 1, 5, 3),
			seen(Death, 0, 5, 1)}, Death, []int{1, 3}, 5},
		{"another rank's death beside a cut link", []Cause{seen(Death, 3, 5, 1), seen(Death, 1, 5, 3),
			seen(Death, 0, 6, 2)}, Death, []int{2}, 6},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			rng.Shuffle(len(c.evidence), func(i, j int) {
				c.evidence[i], c.evidence[j] = c.evidence[j], c.evidence[i]
			})
			before := slices.Clone(c.evidence)
			v, ok := Verdict(c.evidence)
			require.True(t, ok, c.name)
			require.Equal(t, c.class, v.Class, c.name)
			require.Equal(t, c.culprits, v.Culprits, c.name)
			require.Equal(t, c.seq, v.Seq, c.name)
			require.Equal(t, before, c.evidence, "evidence is only read")
		}
	}
	_, ok := Verdict(nil)
	require.False(t, ok)
}

// The error is one sentence that says what, where, who, why and who saw it.
func TestAbortErrorText(t *testing.T) {
	e := &AbortError{Cause: Cause{Class: Death, Epoch: 2, Seq: 17, Verb: AllReduce,
		Culprits: []int{3}, Informer: 1, Detail: "lane ended: EOF"}}
	require.EqualError(t, e, "allreduce #17 [epoch 2]: rank 3 died: lane ended: EOF, seen by rank 1")
	e.Class, e.Culprits, e.Detail = Mismatch, []int{0, 1}, "count: local 100, remote 200 (rank 1)"
	require.EqualError(t, e,
		"allreduce #17 [epoch 2]: mismatch of ranks 0, 1: count: local 100, remote 200 (rank 1), "+
			"seen by rank 1")
}

// A jury floods what changes the verdict, waits a grace, and longer for a link.
func TestJury(t *testing.T) {
	now := time.Unix(100, 0)
	j := jury{grace: 20 * time.Millisecond}
	require.True(t, j.hear(now, seen(Link, 0, 5, 0, 3)))
	require.Equal(t, now.Add(200*time.Millisecond), j.deadline())
	require.False(t, j.hear(now, seen(Link, 0, 5, 0, 3)), "the same again")
	later := now.Add(5 * time.Millisecond)
	require.True(t, j.hear(later, seen(Death, 0, 5, 3)))
	require.Equal(t, now.Add(20*time.Millisecond), j.deadline(), "from the first evidence on")
	require.False(t, j.hear(later, seen(Death, 1, 5, 3)), "nobody else is blamed")
	require.True(t, j.hear(later, seen(Death, 1, 5, 2)))
	require.Equal(t, []int{2, 3}, j.verdict.Culprits)
	for i := range 10 * evidenceMax {
		j.hear(later, seen(Stall, 1, uint64(i), 2))
	}
	require.Len(t, j.evidence, evidenceMax)
}

// The minority is named; without one, everybody.
func TestOutvoted(t *testing.T) {
	a, b, c := terms{count: 1}, terms{count: 2}, terms{count: 3}
	p, q := terms{plan: 7, count: 1}, terms{plan: 7, count: 2}
	for _, x := range []struct {
		said map[int]terms
		want []int
	}{
		{map[int]terms{0: a, 1: a, 2: b}, []int{2}},
		{map[int]terms{0: a, 1: b}, []int{0, 1}},
		{map[int]terms{0: a, 1: b, 2: b, 3: a}, []int{0, 1, 2, 3}},
		{map[int]terms{0: a, 1: b, 2: b, 3: c}, []int{0, 3}},
		{map[int]terms{0: a, 1: p, 2: q, 3: q}, []int{0}}, // the plan hash goes first
		{map[int]terms{0: p, 1: q, 2: q}, []int{0}},
		{map[int]terms{0: a, 1: a}, nil},
	} {
		require.Equal(t, x.want, outvoted(x.said), "%v", x.said)
	}
}

// A frame of another run, epoch or operation is foreign, and says which.
func TestForeign(t *testing.T) {
	due := sample()
	for want, change := range map[string]func(h *header){
		"":                                   func(h *header) { h.plan, h.summed = 1, true },
		"frame of epoch 6, this is epoch 7":  func(h *header) { h.epoch = 6 },
		"frame of communicator 1, this is 2": func(h *header) { h.comm = 1 },
		"frame of run 0000000000000001, this is run 0123456789abcdef": func(h *header) { h.run = 1 },
		"frame from rank 4 to rank 63 on the link from 3 to 63":       func(h *header) { h.from = 4 },
		"frame of operation 5, this is operation 1099511627776":       func(h *header) { h.seq = 5 },
		"frame of kind 1, due is kind 2":                              func(h *header) { h.kind = 1 },
		"data frame 98 of matmulreducescatter, due is 99 of matmulreducescatter": func(h *header) {
			h.count = 98
		},
	} {
		got := due
		change(&got)
		require.Equal(t, want, foreign(got, due))
	}
}
