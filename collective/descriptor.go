package collective

import (
	"fmt"
	"slices"
	"strings"
)

// terms is what two ranks must agree on to be in the same operation. It is the
// comparable part of a descriptor.
type terms struct {
	plan     uint64
	verb     Verb
	purpose  Purpose
	count    uint64
	src, dst DataType
	op       ReduceOp
	root     uint8
	mode     CommMode
}

func (h header) terms() terms {
	return terms{h.plan, h.verb, h.purpose, h.count, h.src, h.dst, h.op, h.root, h.mode}
}

// fields prints the values in the order in which a difference is reported.
func (t terms) fields() [][2]string {
	return [][2]string{
		{"plan hash", fmt.Sprintf("%016x", t.plan)},
		{"verb", t.verb.String()},
		{"purpose", t.purpose.String()},
		{"count", t.size()},
		{"src type", t.src.String()},
		{"dst type", t.dst.String()},
		{"reduction", t.op.String()},
		{"root", fmt.Sprint(t.root)},
		{"mode", t.mode.String()},
	}
}

// size prints the count, or the shape of a fused product.
func (t terms) size() string {
	if t.verb == MatmulReduceScatter {
		return fmt.Sprintf("%dx%d", t.count>>32, uint32(t.count))
	}
	return fmt.Sprint(t.count)
}

// difference prints every field that differs, with both values.
func difference(local, remote terms, rank int) string {
	var out []string
	theirs := remote.fields()
	for i, f := range local.fields() {
		if f[1] != theirs[i][1] {
			out = append(out, fmt.Sprintf("%s: local %s, remote %s", f[0], f[1], theirs[i][1]))
		}
	}
	return fmt.Sprintf("%s (rank %d)", strings.Join(out, "; "), rank)
}

// foreign says which part of a frame's identity is not the one that is due, or
// "". A frame of another run, epoch or operation is damaged, misdirected or
// stale, whoever sent it; it is never compared as a descriptor.
func foreign(got, due header) string {
	switch {
	case got.run != due.run:
		return fmt.Sprintf("frame of run %016x, this is run %016x", got.run, due.run)
	case got.epoch != due.epoch:
		return fmt.Sprintf("frame of epoch %d, this is epoch %d", got.epoch, due.epoch)
	case got.comm != due.comm:
		return fmt.Sprintf("frame of communicator %d, this is %d", got.comm, due.comm)
	case got.from != due.from || got.to != due.to:
		return fmt.Sprintf("frame from rank %d to rank %d on the link from %d to %d",
			got.from, got.to, due.from, due.to)
	case got.seq != due.seq:
		return fmt.Sprintf("frame of operation %d, this is operation %d", got.seq, due.seq)
	case got.kind != due.kind:
		return fmt.Sprintf("frame of kind %d, due is kind %d", got.kind, due.kind)
	case got.kind == kindData && (got.count != due.count || got.verb != due.verb):
		return fmt.Sprintf("data frame %d of %v, due is %d of %v",
			got.count, got.verb, due.count, due.verb)
	}
	return ""
}

// outvoted returns the ranks to name in a mismatch, given what each known rank
// said: those against the most common plan hash; if the hashes are equal, those
// against the most common terms; where no one value is the most common, all.
func outvoted(said map[int]terms) []int {
	plan := func(t terms) terms { return terms{plan: t.plan} }
	all := func(t terms) terms { return t }
	if losers := minority(said, plan); len(losers) > 0 {
		return losers
	}
	return minority(said, all)
}

// minority returns, ascending, the ranks whose key is not the most common one:
// nobody when all are equal, everybody when two keys are equally common.
func minority(said map[int]terms, key func(terms) terms) []int {
	votes := map[terms]int{}
	for _, t := range said {
		votes[key(t)]++
	}
	if len(votes) < 2 {
		return nil
	}
	most, tie := 0, false
	for _, n := range votes {
		tie = n == most || tie && n < most
		most = max(most, n)
	}
	var out []int
	for r, t := range said {
		if tie || votes[key(t)] < most {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out
}
