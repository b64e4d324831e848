package handshake

import (
	"fmt"
	"strings"
	"time"
)

// Class is what the time of an AICPU thread goes into.
type Class uint8

// The classes. While a thread waits for a record, its time belongs to what it
// waits for: the boot of a core, or the flights to a core and back.
const (
	ClassStore       Class = iota // GM stores
	ClassBarrier                  // store barriers
	ClassLoad                     // GM loads
	ClassHit                      // GM loads that hit L1
	ClassWindowStore              // MMIO stores
	ClassWindowLoad               // MMIO loads
	ClassFlight                   // flags on their way
	ClassBoot                     // cores coming up
	ClassLost                     // waits that ended at a limit
	classes
)

func (c Class) String() string {
	names := [classes]string{"store", "barrier", "load", "hit", "window store", "window load",
		"flight", "boot", "lost"}
	if c >= classes {
		return fmt.Sprintf("class %d", uint8(c))
	}
	return names[c]
}

// Classes lists all classes, in order.
func Classes() []Class {
	all := make([]Class, classes)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}

// Use is how often a class was used and how long it took in all. A wait for
// done counts two flights, there and back.
type Use struct {
	Count int
	Time  time.Duration
}

// Uses is the use of each class, indexed by Class.
type Uses [classes]Use

// Total is the time of all classes.
func (u *Uses) Total() time.Duration {
	var sum time.Duration
	for _, use := range u {
		sum += use.Time
	}
	return sum
}

// ThreadReport is one AICPU thread's share of the handshake. Broadcast ends with
// the closing barrier, Boot with the first report of the slice, Service with the
// last done. They add up to Total, and so does ByClass.
type ThreadReport struct {
	Thread    int
	From, To  int // its slice of the workers, [From, To)
	Broadcast time.Duration
	Boot      time.Duration
	Service   time.Duration
	Total     time.Duration
	ByClass   Uses
}

// Core is what a device knows of one worker.
type Core struct {
	Worker   int
	Cluster  int
	Type     CoreType
	Sub      int // 0 for the first AIV of a cluster, 1 for the second; 0 for an AIC
	Physical int // id of its register window
	Thread   int // AICPU thread that shook hands with it
	Done     bool
}

func (c Core) String() string {
	return fmt.Sprintf("worker %d (%v of cluster %d, physical id %d, thread %d)", c.Worker,
		c.Type, c.Cluster, c.Physical, c.Thread)
}

// Report is what a bring-up took, in virtual time. The four durations are those
// of the slowest thread, so they add up. A Report that comes with an error tells
// how far the round came.
type Report struct {
	Round     int
	Policy    Policy
	Broadcast time.Duration
	Boot      time.Duration
	Service   time.Duration
	Total     time.Duration
	Slowest   int // thread
	Threads   []ThreadReport
	ByClass   Uses // summed over threads
	Cores     []Core
	AIC, AIV  []int // worker ids, ascending

	// Assignment holds the workers of each scheduler thread, cluster by cluster;
	// nil when the round failed.
	Assignment [][]int
}

// Phase is the step of the handshake in which a core failed.
type Phase uint8

// The phases, in order.
const (
	PhaseSetup  Phase = iota + 1 // the leader alone, before any core is addressed
	PhaseReport                  // awaiting a core's report of its id
	PhaseWindow                  // looking up and opening its window
	PhaseDone                    // awaiting its done
	PhaseCore                    // on the core: what only the model can see
	PhasePost                    // the leader's look at all cores
	PhaseExit                    // awaiting its leaving
)

func (p Phase) String() string {
	names := [...]string{PhaseSetup: "setup", PhaseReport: "awaiting report",
		PhaseWindow: "opening window", PhaseDone: "awaiting done",
		PhaseCore: "on the core", PhasePost: "post",
		PhaseExit: "awaiting exit"}
	if int(p) >= len(names) || names[p] == "" {
		return fmt.Sprintf("phase %d", uint8(p))
	}
	return names[p]
}

// CoreError is one core's failure.
type CoreError struct {
	Core
	Phase Phase
	Why   string
}

func (e *CoreError) Error() string {
	return fmt.Sprintf("%v [%v]: %s", e.Core, e.Phase, e.Why)
}

// RoundError is why a round failed. Cores holds all that failed, by worker and
// then phase; Cause is what failed beyond single cores, or nil. The device has
// been shut and can start its next round.
type RoundError struct {
	Round int
	Cause error
	Cores []*CoreError
}

// coresNamed is how many cores an error text names; Cores has them all.
const coresNamed = 4

func (e *RoundError) Error() string {
	var parts []string
	if e.Cause != nil {
		parts = append(parts, e.Cause.Error())
	}
	for i, c := range e.Cores {
		if i == coresNamed {
			parts = append(parts, fmt.Sprintf("and %d more", len(e.Cores)-i))
			break
		}
		parts = append(parts, c.Error())
	}
	return fmt.Sprintf("device round %d: %s", e.Round, strings.Join(parts, "; "))
}

func (e *RoundError) Unwrap() []error {
	all := make([]error, 0, 1+len(e.Cores))
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	for _, c := range e.Cores {
		all = append(all, c)
	}
	return all
}

// CapacityError says that a scheduler thread would own more cores than its
// tracker has bits.
type CapacityError struct {
	Clusters, Schedulers int
}

func (e *CapacityError) Error() string {
	most := (e.Clusters + e.Schedulers - 1) / e.Schedulers * coresPerCluster
	return fmt.Sprintf("assign %d clusters to %d scheduler threads: %d cores on one, limit %d",
		e.Clusters, e.Schedulers, most, CoresPerSchedulerMax)
}

// Event is one access of one actor, told when it has ended.
type Event struct {
	Round int
	At    time.Duration // virtual time at which it ended, from the making of the device
	Took  time.Duration // without the wait before it
	Actor string        // "AICPU 0", "AICore 17"
	Op    string        // "store", "barrier", "poll", ...
	Where string        // "record 3 task"; "" where there is no place
	Value uint64        // stored, or seen
}

func (d *Device) trace(a *actor, x access, value uint64, took Span) {
	if d.cfg.Trace == nil {
		return
	}
	d.cfg.Trace(Event{Round: d.round, At: d.clock.now.Duration(), Took: took.Duration(),
		Actor: a.name, Op: x.op.String(), Where: x.at.String(), Value: value})
}
