package handshake

import (
	"fmt"
	"time"
)

// Span is a length of virtual time in picoseconds, or an instant counted from
// the making of the device. One documented cost is half a nanosecond off the
// grid of time.Duration, hence the finer unit.
type Span int64

// Units of virtual time.
const (
	Nanosecond  Span = 1000
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
)

// Duration is s to the nearest nanosecond, halves up.
func (s Span) Duration() time.Duration { return time.Duration((s + Nanosecond/2) / Nanosecond) }

func (s Span) String() string { return s.Duration().String() }

// Cost is the time that one access takes, and where the number comes from.
type Cost struct {
	Time   Span
	Source string
}

// Anchor says from where the boot of a core is counted.
type Anchor uint8

// The anchors. Published totals of one and four threads agree with the first
// only: a boot counted from the launch fits one of the two and misses the other
// by 11 us or 26 us.
const (
	AnchorBroadcast Anchor = iota // the closing barrier of the slice that holds the core
	AnchorLaunch                  // the launch of the round
)

func (a Anchor) String() string {
	if a == AnchorLaunch {
		return "launch"
	}
	return "broadcast"
}

// Profile is what a device costs and how large it is. A profile is data: copy
// one and change a field to ask what would be if.
type Profile struct {
	Name string

	// What an AICPU thread pays. Hit is a load from the record line that the
	// thread is serving; every other load is from a line that rotates.
	Store       Cost // GM store
	Barrier     Cost // store barrier
	Load        Cost // GM load
	Hit         Cost // GM load that hits L1
	WindowStore Cost // MMIO store, posted
	WindowLoad  Cost // MMIO load
	// PollStep is what a failed poll of a record costs. 0: a poll that fails
	// costs nothing beyond what it waits for. Otherwise a wait ends at the first
	// multiple of PollStep at which the flag is there.
	PollStep Cost

	// How long a write is on its way, after the barrier or clean that sent it.
	// Flight is one way through GM in either direction; the reader's invalidate,
	// stores and clean are part of it. Dispatch is a window store on its way to
	// the core, Cond a core's COND on its way to the AICPU.
	Flight   Cost
	Dispatch Cost
	Cond     Cost

	// Boot is from Anchor until a core's report can be read by the AICPU, so the
	// core itself starts one Flight earlier. Boots lie evenly in
	// [Boot-BootSpread, Boot], in an order that the seed gives.
	Boot       Cost
	BootSpread Cost
	Anchor     Anchor

	// How long a store trails a younger one of the same actor for the same core
	// when no barrier stands between them.
	TrailStore  Cost // GM store of an AICPU thread
	TrailWindow Cost // window store of an AICPU thread behind a GM store
	TrailCore   Cost // store of a core

	ClustersMax     int // clusters that a launch may ask for
	SiliconClusters int // clusters on the die; those beyond ClustersMax are fused off
}

// A2A3 is the profile of the a2a3 generation.
func A2A3() Profile {
	const (
		mmio   = "docs/hardware/mmio-performance.md, investigations of 2026-06"
		solved = "solved for the published split of 9 + 11 + 55 us at 4 threads, 263 us at 1"
		chosen = "chosen as the worst order that the protocol without that barrier allows"
	)
	return Profile{
		Name:        "a2a3",
		Store:       Cost{50 * Nanosecond, "store-through to an HBM member, simpler #1323"},
		Barrier:     Cost{386 * Nanosecond, solved + ": 35 us / 72 cores less two stores"},
		Load:        Cost{41 * Nanosecond, mmio + ": rotating lines"},
		Hit:         Cost{3 * Nanosecond, mmio + ": L1 hit"},
		WindowStore: Cost{20 * Nanosecond, mmio + ": posted store, alone"},
		WindowLoad:  Cost{95 * Nanosecond, mmio + ": 95 to 105 ns"},
		PollStep:    Cost{0, "failed polls overlap the flight that they wait for"},
		Flight: Cost{1033*Nanosecond + Nanosecond/2,
			solved + "; documented core to AICPU average 1040 ns"},
		Dispatch:    Cost{140 * Nanosecond, mmio + ": DMB write until the core sees it"},
		Cond:        Cost{600 * Nanosecond, mmio + ": COND write until AICPU sees it, average"},
		Boot:        Cost{11 * Microsecond, "simpler #1279: end of broadcast to first report"},
		BootSpread:  Cost{0, "not published; all cores of a slice boot together"},
		TrailStore:  Cost{500 * Nanosecond, chosen + ": within one flight"},
		TrailWindow: Cost{2500 * Nanosecond, chosen + ": longer than a flight"},
		TrailCore:   Cost{5 * Microsecond, chosen + ": the line leaves again by eviction"},
		ClustersMax: 24, SiliconClusters: 25,
	}
}

// Entry is one line of a cost table.
type Entry struct {
	Name string
	Cost
}

// Costs lists every cost of p by name, for tables and checks.
func (p Profile) Costs() []Entry {
	return []Entry{
		{"store", p.Store}, {"barrier", p.Barrier}, {"load", p.Load}, {"hit", p.Hit},
		{"window store", p.WindowStore}, {"window load", p.WindowLoad},
		{"poll step", p.PollStep}, {"flight", p.Flight}, {"dispatch", p.Dispatch},
		{"cond", p.Cond}, {"boot", p.Boot}, {"boot spread", p.BootSpread},
		{"trail of a store", p.TrailStore}, {"trail of a window store", p.TrailWindow},
		{"trail of a core's store", p.TrailCore},
	}
}

// Validate names the first wrong field.
func (p Profile) Validate() error {
	for _, e := range p.Costs() {
		if e.Time < 0 || e.Time > Second {
			return fmt.Errorf("profile %q: %s takes %v, 0 to 1s allowed", p.Name, e.Name, e.Time)
		}
		if e.Source == "" {
			return fmt.Errorf("profile %q: %s has no source", p.Name, e.Name)
		}
	}
	silicon := WindowsMax / coresPerCluster
	switch {
	case p.WindowLoad.Time == 0:
		return fmt.Errorf("profile %q: a window load takes no time", p.Name)
	case p.BootSpread.Time > p.Boot.Time:
		return fmt.Errorf("profile %q: boots spread over %v, longer than boot %v", p.Name,
			p.BootSpread.Time, p.Boot.Time)
	case p.Dispatch.Time > p.Flight.Time:
		return fmt.Errorf("profile %q: a window store takes %v to its core, longer than flight %v",
			p.Name, p.Dispatch.Time, p.Flight.Time)
	case p.Anchor > AnchorLaunch:
		return fmt.Errorf("profile %q: boot anchor %d is unknown", p.Name, p.Anchor)
	case p.SiliconClusters < 1 || p.SiliconClusters > silicon:
		return fmt.Errorf("profile %q: %d clusters on the die, 1 to %d allowed", p.Name,
			p.SiliconClusters, silicon)
	case p.ClustersMax < 1 || p.ClustersMax > p.SiliconClusters:
		return fmt.Errorf("profile %q: %d clusters a launch, 1 to %d allowed", p.Name,
			p.ClustersMax, p.SiliconClusters)
	}
	return nil
}
