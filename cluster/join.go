package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"octet/rank"
)

// identity is what every rank of a group has in common, as the master has it.
type identity struct {
	Build   string
	RunID   string
	Size    int
	Options map[string]string // of the model, its files and the number of ranks
}

// compare looks for the first thing that makes a rank no member of the group:
// another run, build or size, and then options by name. Nil: there is none.
func (id identity) compare(h *rank.Hello) *rank.Refuse {
	different := func(key, theirs, ours string) *rank.Refuse {
		return &rank.Refuse{Reason: "not of this group", Key: key, Yours: theirs, Ours: ours}
	}
	switch {
	case h.RunID != id.RunID:
		return different("run id", h.RunID, id.RunID)
	case h.Build != id.Build:
		return different("build", h.Build, id.Build)
	case h.Size != id.Size:
		return different("tp", strconv.Itoa(h.Size), strconv.Itoa(id.Size))
	case h.Rank < 0 || h.Rank >= id.Size:
		return &rank.Refuse{Reason: fmt.Sprintf("no rank %d in a group of %d", h.Rank, id.Size)}
	}
	keys := slices.Sorted(maps.Keys(id.Options))
	for key := range h.Options {
		if _, ok := id.Options[key]; !ok {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		if theirs, ours := h.Options[key], id.Options[key]; theirs != ours {
			return different(key, theirs, ours)
		}
	}
	return nil
}

// difference says what a refusal found, from the group's side:
// `rank 3: enable_flashcomm1 is "false" there, "true" here`.
func difference(r int, refusal *rank.Refuse) string {
	if refusal.Key == "" {
		return fmt.Sprintf("rank %d: %s", r, refusal.Reason)
	}
	return fmt.Sprintf("rank %d: %s is %q there, %q here",
		r, refusal.Key, refusal.Yours, refusal.Ours)
}

// missing describes the ranks that are not ready, and how far each has come.
func missing(members []member) (ranks []int, text string) {
	var parts []string
	for i := range members {
		m := &members[i]
		if m.phase == rank.PhaseReady {
			continue
		}
		ranks = append(ranks, i)
		who := fmt.Sprintf("rank %d", i)
		if m.pid != 0 {
			who += fmt.Sprintf(" (pid %d)", m.pid)
		}
		if m.conn == 0 {
			parts = append(parts, who+" never connected")
		} else {
			parts = append(parts, fmt.Sprintf("%s is in %s", who, m.stage()))
		}
	}
	// Ranks that wait for one that never connected are not missing themselves.
	if slices.ContainsFunc(ranks, func(r int) bool { return members[r].conn == 0 }) {
		var absent []int
		var named []string
		for i, r := range ranks {
			if members[r].conn == 0 {
				absent, named = append(absent, r), append(named, parts[i])
			}
		}
		ranks, parts = absent, named
	}
	return ranks, strings.Join(parts, ", ")
}
