package handshake

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Sizes and limits of the device.
const (
	RecordBytes          = 64     // one handshake record, one cache line
	IDMask               = 0x0FFF // of a reported physical id
	WindowsMax           = 108    // register windows of any generation
	CoresPerSchedulerMax = 63     // bits of a scheduler's tracker
	coresPerCluster      = 3
	mappedBase           = 0x4_0000_0000 // where the windows are mapped; never a null base
	clusterStride        = 8 << 20
	coreStride           = 1 << 20
	taskBase             = 0x2_0000_0000 // payload slots of worker 0
	taskStride           = 2 * 512       // two slots a worker
)

// Values that registers and flags carry.
const (
	fastPathOpen  = 0xE
	fastPathClose = 0xF
	tokenExit     = 0x7FFFFFF0 // DMB: leave
	tokenIdle     = 0x7FFFFFFD // DMB: the AICPU has nothing for the core
	condIdle      = 0xFFFFFFFF // COND: FIN of the idle token
	condExited    = 0xFFFFFFFE // COND: FIN of the exited token
	regsOpen      = 1          // aicpu_regs_ready: the window is open
	regsAbort     = 2          // aicpu_regs_ready: leave, the round is over
	doneLeft      = 0xFFFFFFFF // aicore_done: the core has left
	unset         = 0xFFFFFFFF // a field of a record that only its core fills in
)

// CoreType is the kind of a core.
type CoreType uint8

// The kinds of cores.
const (
	AIC CoreType = iota // matrix
	AIV                 // vector
)

func (t CoreType) String() string {
	if t == AIC {
		return "AIC"
	}
	return "AIV"
}

// field is a field of a record; see recordLayout.
type field uint8

const (
	aicpuReady field = iota
	aicoreDone
	task
	coreType
	physicalID
	aicpuRegsReady
	aicoreRegsReady
)

// recordLayout is the record as it lies in its line; the rest of the line is
// zero.
var recordLayout = [...]struct {
	name         string
	offset, size int
}{
	aicpuReady:      {"aicpu_ready", 0, 4},
	aicoreDone:      {"aicore_done", 4, 4},
	task:            {"task", 8, 8},
	coreType:        {"core_type", 16, 4},
	physicalID:      {"physical_core_id", 20, 4},
	aicpuRegsReady:  {"aicpu_regs_ready", 24, 4},
	aicoreRegsReady: {"aicore_regs_ready", 28, 4},
}

func (f field) String() string { return recordLayout[f].name }

// line is one cache line that holds a record, little endian.
type line [RecordBytes]byte

func (l *line) get(f field) uint64 {
	at := recordLayout[f]
	if at.size == 8 {
		return binary.LittleEndian.Uint64(l[at.offset:])
	}
	return uint64(binary.LittleEndian.Uint32(l[at.offset:]))
}

func (l *line) put(f field, value uint64) {
	at := recordLayout[f]
	if at.size == 8 {
		binary.LittleEndian.PutUint64(l[at.offset:], value)
		return
	}
	binary.LittleEndian.PutUint32(l[at.offset:], uint32(value))
}

// reset is a record as the host leaves it before a launch. What only the core
// fills in is unset, not zero: an id that has not arrived must not pass for id 0.
func reset() line {
	var l line
	l.put(coreType, unset)
	l.put(physicalID, unset)
	return l
}

// register is an offset in a window.
type register uint16

const (
	regFastPath register = 0x18
	regDMB      register = 0xA0
	regCond     register = 0x4C8
)

func (r register) String() string {
	switch r {
	case regFastPath:
		return "FAST_PATH_ENABLE"
	case regDMB:
		return "DATA_MAIN_BASE"
	case regCond:
		return "COND"
	}
	return fmt.Sprintf("0x%X", uint16(r))
}

// window is the register window of one core.
type window struct {
	fastPath, dmb, cond uint64
	opening             bool // an AICPU thread has stored FAST_PATH_ENABLE=open this round
}

func (w *window) register(r register) *uint64 {
	switch r {
	case regFastPath:
		return &w.fastPath
	case regDMB:
		return &w.dmb
	case regCond:
		return &w.cond
	}
	panic(fmt.Sprintf("handshake: no register at 0x%X", uint16(r)))
}

// windows is the number of entries of the register-base table.
func (p Profile) windows() int { return coresPerCluster * p.SiliconClusters }

// baseOf is the base address of the window with physical id id.
func baseOf(id, silicon int) uint64 {
	cluster, core := id, 0
	if id >= silicon {
		cluster, core = (id-silicon)/2, 1+(id-silicon)%2
	}
	return mappedBase + uint64(cluster)*clusterStride + uint64(core)*coreStride
}

// windowAt is the physical id whose window lies at base; it undoes baseOf.
func windowAt(base uint64, silicon int) int {
	off := base - mappedBase
	cluster, core := int(off/clusterStride), int(off%clusterStride/coreStride)
	if core == 0 {
		return cluster
	}
	return silicon + 2*cluster + core - 1
}

// places holds where on the die each cluster lies, first those of the launch;
// those from ClustersMax on are fused off. The seed gives the order.
func (c *Config) places() []int {
	return rand.New(rand.NewPCG(c.Seed, 0x64696573)).Perm(c.Profile.SiliconClusters)
}

// cores lists the workers of a device: all AIC, then all AIV.
func (c *Config) cores() []Core {
	places, silicon := c.places(), c.Profile.SiliconClusters
	all := make([]Core, c.Workers())
	for w := range all {
		core := Core{Worker: w, Cluster: w, Type: AIC}
		if w >= c.Clusters {
			core.Type = AIV
			core.Cluster, core.Sub = (w-c.Clusters)/2, (w-c.Clusters)%2
		}
		core.Physical = places[core.Cluster]
		if core.Type == AIV {
			core.Physical = silicon + 2*places[core.Cluster] + core.Sub
		}
		all[w] = core
	}
	for t := range c.Threads {
		for w := c.slice(t).from; w < c.slice(t).to; w++ {
			all[w].Thread = t
		}
	}
	return all
}

// baseTable is the register-base table, by physical id; the entries of fused-off
// clusters are null.
func (c *Config) baseTable() []uint64 {
	silicon := c.Profile.SiliconClusters
	table := make([]uint64, c.Profile.windows())
	for id := range table {
		table[id] = baseOf(id, silicon)
	}
	for _, place := range c.places()[c.Profile.ClustersMax:] {
		table[place], table[silicon+2*place], table[silicon+2*place+1] = 0, 0, 0
	}
	return table
}

// fusedID is the physical id of an AIC that is fused off.
func (c *Config) fusedID() uint32 { return uint32(c.places()[c.Profile.ClustersMax]) }

// bounds is the half-open range [from, to) of workers.
type bounds struct{ from, to int }

// slice is the range of workers that thread t shakes hands with. The slices of
// all threads tile the workers.
func (c *Config) slice(t int) bounds {
	n := c.Workers()
	if c.Policy == Serial {
		if t == 0 {
			return bounds{0, n}
		}
		return bounds{n, n}
	}
	return bounds{t * n / c.Threads, (t + 1) * n / c.Threads}
}

// schedulers is the number of scheduler threads: all but the orchestrator.
func schedulers(threads int) int { return max(1, threads-1) }

// assign gives cluster c to scheduler c mod s, in order, its three cores
// together: AIC, AIV, AIV. The lists ascend; aiv is twice as long as aic.
func assign(aic, aiv []int, s int) ([][]int, error) {
	if (len(aic)+s-1)/s*coresPerCluster > CoresPerSchedulerMax {
		return nil, &CapacityError{Clusters: len(aic), Schedulers: s}
	}
	lists := make([][]int, s)
	for c := range aic {
		lists[c%s] = append(lists[c%s], aic[c], aiv[2*c], aiv[2*c+1])
	}
	return lists, nil
}
