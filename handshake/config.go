package handshake

import (
	"fmt"
	"time"
)

// Policy is how the cores are shared among AICPU threads for the handshake.
type Policy uint8

// The policies. Whom a core belongs to afterwards does not depend on it.
const (
	Parallel Policy = iota // every thread shakes hands with its own slice of the cores
	Serial                 // the leader alone shakes hands with all, the others wait
)

func (p Policy) String() string {
	switch p {
	case Parallel:
		return "parallel"
	case Serial:
		return "serial"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// FaultKind is what is wrong with a core.
type FaultKind uint8

// The faults.
const (
	NeverBoots       FaultKind = iota + 1 // the core does not come up
	DiesAfterReport                       // it reports its id and is gone
	ReportsInvalidID                      // it reports Value, which no window has
	ReportsNullBase                       // it reports an id of a fused-off cluster
	ReportsDuplicate                      // it reports the id of worker Other
	IgnoresExit                           // it comes up and never leaves
)

func (k FaultKind) String() string {
	names := [...]string{NeverBoots: "never boots", DiesAfterReport: "dies after its report",
		ReportsInvalidID: "reports an invalid id", ReportsNullBase: "reports a fused-off id",
		ReportsDuplicate: "reports another's id", IgnoresExit: "ignores EXIT"}
	if int(k) >= len(names) || names[k] == "" {
		return fmt.Sprintf("fault %d", uint8(k))
	}
	return names[k]
}

// Fault is one fault of one worker.
type Fault struct {
	Kind   FaultKind
	Worker int
	Round  int    // the first round is 1; 0: every round
	Value  uint32 // of ReportsInvalidID; at least WindowsMax after masking with IDMask
	Other  int    // of ReportsDuplicate
}

// Limits bound every wait of an AICPU thread, in virtual time.
type Limits struct {
	Report time.Duration // from the end of a thread's broadcast to the last report of its slice
	Done   time.Duration // from the opening of a core's window to its done
	Exit   time.Duration // from the first EXIT to the last core's leaving, shared by all cores
	Phase  time.Duration // one thread's wait for another between phases
}

// Config is all that a device is told. Every field is used as given; Validate
// names the first wrong one.
type Config struct {
	Clusters int // 1 AIC and 2 AIV each, 1..Profile.ClustersMax
	Threads  int // AICPU threads, 1..ThreadsMax; the last is the orchestrator if there are more
	Policy   Policy
	Profile  Profile
	Limits   Limits
	Seed     uint64 // gives the places of the clusters on the die and the order of boots
	Faults   []Fault

	// Trace is called with every access, in the order of virtual time; nil:
	// nobody looks. It runs on the caller's goroutine and may not call the device.
	Trace func(Event)
	// Failpoint is called with handshake/setup:1, handshake/post:1 and
	// handshake/exit:1, the number being the round, and may return an error to be
	// taken for a fault of that step; nil: nowhere.
	Failpoint func(name string) error

	omit site // accesses that are left out, to see what they are good for; tests only
}

// ThreadsMax is the number of AICPU threads that a launch starts. The device
// uses up to 4 of them; 5 and 6 answer what would be if.
const ThreadsMax = 6

// Default is a whole a2a3 device with four threads that shake hands in parallel.
func Default() Config {
	return Config{
		Clusters: 24, Threads: 4, Policy: Parallel, Profile: A2A3(), Seed: 1,
		Limits: Limits{Report: 10 * time.Millisecond, Done: time.Millisecond,
			Exit: time.Second, Phase: 10 * time.Second},
	}
}

// Workers is the number of cores: three a cluster.
func (c *Config) Workers() int { return coresPerCluster * c.Clusters }

// Validate names the first wrong field. Too many cores for the schedulers are
// not found here but by the leader after the handshake, as on the device.
func (c *Config) Validate() error {
	if err := c.Profile.Validate(); err != nil {
		return fmt.Errorf("device config: %w", err)
	}
	switch l := c.Limits; {
	case c.Clusters < 1 || c.Clusters > c.Profile.ClustersMax:
		return fmt.Errorf("device config: %d clusters, 1 to %d allowed", c.Clusters,
			c.Profile.ClustersMax)
	case c.Threads < 1 || c.Threads > ThreadsMax:
		return fmt.Errorf("device config: %d threads, 1 to %d allowed", c.Threads, ThreadsMax)
	case c.Policy > Serial:
		return fmt.Errorf("device config: %v is unknown", c.Policy)
	case l.Report <= 0 || l.Done <= 0 || l.Exit <= 0 || l.Phase <= 0:
		return fmt.Errorf("device config: a limit is not positive: %+v", l)
	case max(l.Report, l.Done, l.Exit, l.Phase) > time.Hour:
		return fmt.Errorf("device config: a limit is longer than an hour: %+v", l)
	case l.Phase <= l.Report+time.Duration(c.Workers())*l.Done+l.Exit:
		return fmt.Errorf("device config: limit %v between phases is not longer than the phases: "+
			"report %v, done of %d workers %v each, exit %v", l.Phase, l.Report, c.Workers(),
			l.Done, l.Exit)
	}
	for i := range c.Faults {
		if err := c.Faults[i].validate(c); err != nil {
			return fmt.Errorf("device config: fault %d: %w", i, err)
		}
	}
	return nil
}

func (f *Fault) validate(c *Config) error {
	switch {
	case f.Kind < NeverBoots || f.Kind > IgnoresExit:
		return fmt.Errorf("%v is unknown", f.Kind)
	case f.Worker < 0 || f.Worker >= c.Workers():
		return fmt.Errorf("worker %d is not in 0..%d", f.Worker, c.Workers()-1)
	case f.Round < 0:
		return fmt.Errorf("round %d is negative", f.Round)
	case f.Kind == ReportsInvalidID && f.Value&IDMask < uint32(c.Profile.windows()):
		return fmt.Errorf("id %d has a window", f.Value&IDMask)
	case f.Kind == ReportsNullBase && c.Profile.SiliconClusters == c.Profile.ClustersMax:
		return fmt.Errorf("no cluster is fused off")
	case f.Kind == ReportsDuplicate && (f.Other < 0 || f.Other >= c.Workers()):
		return fmt.Errorf("other worker %d is not in 0..%d", f.Other, c.Workers()-1)
	case f.Kind == ReportsDuplicate && f.Other == f.Worker:
		return fmt.Errorf("worker %d cannot duplicate itself", f.Worker)
	}
	return nil
}
