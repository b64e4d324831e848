package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/kernel"
)

func TestASlotStartsCleanForEachRequest(t *testing.T) {
	// A request begins at position 0 and goes on without gaps; blocks of an
	// earlier one are used again.
	c := newCache(2, 1, 4, 2, 200)
	for pos := range 130 {
		require.NoError(t, c.reserve(Row{Request: 1, Slot: 1, Pos: pos}, 1))
	}
	keys, values := c.at(1, 1, 0)
	require.Len(t, keys, 3)
	require.Len(t, values, 3)
	for _, r := range []Row{{Request: 1, Slot: 1, Pos: 131}, {Request: 2, Slot: 1, Pos: 130},
		{Request: 2, Slot: 1, Pos: 1}} {
		require.ErrorContains(t, c.reserve(r, 2), "position 130 of request 1")
	}
	require.ErrorContains(t, c.reserve(Row{Request: 2, Slot: 2}, 2), "slot 2 of 2")

	require.NoError(t, c.reserve(Row{Request: 2, Slot: 1, Pos: 0}, 2))
	require.Len(t, c.free, 2*2*3-2*2)
	require.ErrorContains(t, c.reserve(Row{Request: 2, Slot: 1}, 2), "position 1 of request 2")
	for pos := 1; pos < 200; pos++ {
		require.NoError(t, c.reserve(Row{Request: 2, Slot: 1, Pos: pos}, 3))
	}
	end := c.reserve(Row{Request: 2, Slot: 1, Pos: 200}, 4)
	require.ErrorContains(t, end, "holds 200 positions")
	require.Empty(t, c.free)
}

func TestStoredKeysStandAtTheirPosition(t *testing.T) {
	// Position p of a head is row p mod 64 of block p / 64, in its layer only.
	c := newCache(2, 2, 2, 1, 100)
	for pos := range 70 {
		require.NoError(t, c.reserve(Row{Request: 1, Pos: pos}, 1))
		for layer := range 2 {
			for head := range 2 {
				at := float32(pos + 1000*layer + 100*head)
				c.store(0, layer, head, pos, []float32{at, 1}, []float32{-at, 2})
			}
		}
	}
	keys, values := c.at(0, 1, 1)
	require.Equal(t, []float32{1165, 1}, keys[1][2:4])
	require.Equal(t, []float32{-1165, 2}, values[1][2:4])
	require.Len(t, keys[0], kernel.KeyBlock*2)
}

func TestDigestsOfPartsAddUpToTheWhole(t *testing.T) {
	// However rows and columns are shared out, the combined digest is the same,
	// and a changed bit, a swapped row or a missing part changes it.
	rows := [][]float32{{1, 2, 3, 4}, {5, 6, 7, 8}}
	at := func(pos int) Row { return Row{Request: 9, Pos: pos} }
	noted := func(note func(rank int, d *digester)) [][]Digest {
		var all [][]Digest
		for rank := range 2 {
			d := newDigester()
			d.begin(9)
			note(rank, d)
			all = append(all, d.of(9))
		}
		return all
	}
	whole := noted(func(_ int, d *digester) {
		for pos, x := range rows {
			d.add(OpKey, 3, at(pos), 0, x, true)
		}
	})
	want, err := CombineDigests(whole)
	require.NoError(t, err)
	require.NotZero(t, want[DigestKey{OpKey, 3}])

	byRow := noted(func(rank int, d *digester) { d.add(OpKey, 3, at(rank), 0, rows[rank], false) })
	byColumn := noted(func(rank int, d *digester) {
		for pos, x := range rows {
			d.add(OpKey, 3, at(pos), 2*rank, x[2*rank:2*rank+2], false)
		}
	})
	both := noted(func(rank int, d *digester) {
		d.add(OpKey, 3, at(0), 0, rows[0], true)
		if rank == 1 {
			d.add(OpKey, 3, at(1), 0, rows[1], false)
		}
	})
	for _, digests := range [][][]Digest{byRow, byColumn, both} {
		got, err := CombineDigests(digests)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	swapped, err := CombineDigests(noted(func(rank int, d *digester) {
		d.add(OpKey, 3, at(1-rank), 0, rows[rank], false)
	}))
	require.NoError(t, err)
	require.NotEqual(t, want, swapped)
	short, err := CombineDigests(byRow[:1])
	require.NoError(t, err)
	require.NotEqual(t, want, short)
}

func TestReplicasThatDifferAreNamed(t *testing.T) {
	// The first layer and tensor where a rank holds other bits is in the error.
	perRank := [][]Digest{
		{{9, OpMixer, 1, 5, 0}, {9, OpMLP, 1, 6, 0}, {9, OpMLP, 0, 7, 0}},
		{{9, OpMixer, 1, 5, 0}, {9, OpMLP, 1, 6, 0}, {9, OpMLP, 0, 7, 0}},
		{{9, OpMixer, 1, 4, 0}, {9, OpMLP, 1, 5, 0}, {9, OpMLP, 0, 7, 0}},
	}
	_, err := CombineDigests(perRank)
	var differ *ReplicaError
	require.ErrorAs(t, err, &differ)
	require.Equal(t, ReplicaError{Rank: 2, Request: 9, Op: OpMixer, Layer: 1}, *differ)
	require.ErrorContains(t, err, "rank 2 and rank 0 hold different replicas of mixer of layer 1")

	_, err = CombineDigests([][]Digest{{{9, OpMLP, 0, 7, 0}}, {{8, OpMLP, 0, 7, 0}}})
	require.ErrorContains(t, err, "requests 9 and 8")
	_, err = CombineDigests([][]Digest{{{9, OpMLP, 0, 7, 0}, {9, OpMLP, 0, 7, 0}}})
	require.ErrorContains(t, err, "twice")
}

func TestTheDigesterForgetsTheOldestRequest(t *testing.T) {
	// Memory is bounded; a number that comes again starts anew.
	d := newDigester()
	for r := range uint64(digestRequests + 1) {
		d.begin(r)
		d.add(OpEmbed, 0, Row{Request: r}, 0, []float32{1}, true)
	}
	require.Len(t, d.sums, digestRequests)
	require.Empty(t, d.of(0))
	require.Len(t, d.of(1), 1)
	before := d.of(5)
	d.begin(5)
	require.Empty(t, d.of(5))
	d.add(OpEmbed, 0, Row{Request: 5}, 0, []float32{1}, true)
	require.Equal(t, before, d.of(5))
	require.Len(t, d.sums, digestRequests)
	d.add(OpEmbed, 0, Row{Request: 0}, 0, []float32{1}, true) // forgotten while it ran
	require.Empty(t, d.of(0))
}
