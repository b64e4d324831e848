// Package handshake brings up an NPU: the AICPU threads of a device shake hands
// with its AICore cores until every core waits in its loop for work. The device
// is an emulator with a clock of its own. Both sides of the protocol are pure
// machines, memory is modelled with its store buffers and caches, and time is
// the sum of counted accesses, so a missing barrier is a bug that shows every
// time and a saved access is a number.
//
// # The device
//
// A cluster is one AIC (matrix) and two AIV (vector) cores. C clusters are
// N = 3C workers: w in [0, C) are AIC, w in [C, N) are AIV, and cluster c holds
// AIC c, AIV C+2c and AIV C+2c+1. The physical id of a core, 0..74 on a2a3, says
// where on the die its register window lies: ids below 25 are AIC by cluster,
// then come the AIV in pairs. A table gives each id the base of its window, null
// where the cluster is fused off. Four AICPU threads run, or up to six; thread 0 leads,
// the last of several is the orchestrator and owns no cores.
//
// # The record
//
// One record a worker, in GM, alone in its cache line of [RecordBytes]. Little
// endian.
//
//	offset  type    field              written by  value
//	0       uint32  aicpu_ready        AICPU       1: task is there, start
//	4       uint32  aicore_done        AICore      worker+1; all ones: it has left
//	8       uint64  task               AICPU       address of its payload slots
//	16      uint32  core_type          AICore      0 AIC, 1 AIV
//	20      uint32  physical_core_id   AICore      masked with 0x0FFF by the reader
//	24      uint32  aicpu_regs_ready   AICPU       1: window open; 2: leave
//	28      uint32  aicore_regs_ready  AICore      1: the physical id is there
//	32..63  zero
//
// The host resets records before each launch: core_type and physical_core_id to
// all ones, so that a value that has not arrived is no value, the rest to zero.
// The runtime that this follows (hw-native-sys/simpler) fills in core_type by
// layout and leaves physical_core_id as it was.
//
// # The protocol
//
// Setup (leader): prepare; if that fails init_failed=1; release setup_done=1. The
// others wait for setup_done, look at init_failed, and only then go on.
//
// Partition: thread t of T has the workers [tN/T, (t+1)N/T), in order.
//
//	     AICPU thread                             AICore
//	A.   for each core of the slice:
//	       task = address
//	       barrier
//	       aicpu_ready = 1
//	     barrier                             1.   boot; poll aicpu_ready
//	                                         2.   physical_core_id = id
//	                                              barrier
//	                                              aicore_regs_ready = 1; clean
//	B.   for each core of the slice:         3.   poll aicpu_regs_ready
//	       poll aicore_regs_ready
//	       load physical_core_id
//	       load its base from the table
//	       window FAST_PATH_ENABLE = 0xE
//	       window DATA_MAIN_BASE = idle
//	       barrier
//	       aicpu_regs_ready = 1
//	       barrier                           4.   window COND = idle
//	                                         5.   core_type = type
//	                                              barrier
//	                                              aicore_done = worker+1; clean
//	       poll aicore_done                  6.   load task
//	       record the base                   7.   poll DATA_MAIN_BASE: EXIT ends it
//
// Each poll of a core invalidates its copy of the line before it loads.
//
// Post (leader): wait for all arrivals; refuse cores without window or type and
// ids that came twice; list AIC and AIV in ascending order; give cluster c to
// scheduler c mod S, S = T-1 or 1, at most [CoresPerSchedulerMax] cores each;
// release init_done=1. If anything failed: abort every core through its record
// (which also reaches one whose window is closed) and EXIT through every open
// window, await them all against one deadline, init_failed=1, release init_done=1.
// The others wait for init_done and then look at init_failed.
//
// Exit: EXIT to all cores of a scheduler, await COND = exited against one deadline
// that all schedulers share, then DATA_MAIN_BASE = idle, FAST_PATH_ENABLE = close.
//
// # What time goes into
//
// The costs of the a2a3 [Profile]; every one carries its source.
//
//	access                   ns      per core, broadcast + service      per slice
//	GM store                 50      2 + 1
//	store barrier            386     1 + 2                              1
//	GM load                  41      0 + 2 (report, table)
//	GM load, L1 hit          3       0 + 2 (id, done)
//	MMIO store               20      0 + 2
//	GM flag, one way         1033.5  0 + 2
//	MMIO load                95      0 (exit only)
//	boot                     11000                                      1
//
// So a core costs 486 ns of broadcast and 3017 ns of service, and a slice of n
// cores 486n+386, then 11000, then 3017n: 263.6 us for one thread with all 72
// cores, 74.4 us for four with 18 each. No total is written anywhere; the device
// adds up accesses, and [Uses] shows where the time went. Of the 3017 ns two MMIO
// stores are 40; the two flights and two barriers are 2839. A profile with
// PollStep set to 41 ns charges failed polls: 265.3 and 74.9 us. Boot is counted
// from a slice's closing barrier, see [Anchor].
//
// # What memory does
//
// A store stays in its actor's buffer until a barrier, a clean or a release lets
// it leave; an MMIO load pushes the MMIO stores before it. Two stores for one
// core with no barrier between them may leave in any order, and the model takes
// the worst: the younger first, the older one a trail later (see [Profile]). A
// core has a copy of its own line that lasts until it invalidates it, also from
// one round to the next; its clean writes back all 64 bytes, whoever wrote to
// them meanwhile.
//
// # What is not here
//
// Dispatch of tasks, profiling buffers, and other handshakes than that of the
// protocol above (batched barriers, sweeping polls, report-first).
package handshake
