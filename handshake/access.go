package handshake

import "fmt"

// op is what an access does.
type op uint8

const (
	opStore      op = iota + 1 // into the actor's store buffer, or posted to a window
	opBarrier                  // everything in the store buffer leaves
	opLoad                     // once
	opPoll                     // load until want holds, or until limit
	opClean                    // a core writes its copy of its record line back, whole
	opRelease                  // store that leaves after all stores before it
	opAdd                      // add to a control word, otherwise as opRelease
	opHalt                     // the actor is done
	opMisbehaves               // the actor was given what its protocol does not allow
)

func (o op) String() string {
	names := [...]string{opStore: "store", opBarrier: "barrier", opLoad: "load", opPoll: "poll",
		opClean: "clean", opRelease: "release", opAdd: "add", opHalt: "halt",
		opMisbehaves: "misbehave"}
	return names[o]
}

// memory is a kind of memory.
type memory uint8

const (
	inRecord  memory = iota + 1 // a field of a handshake record, in GM
	inWindow                    // a register
	inTable                     // the register-base table
	inExec                      // the AICPU's own state of a worker: its window's base
	inControl                   // a word that the AICPU threads share
)

// word is a control word.
type word uint8

const (
	setupDone word = iota
	initFailed
	arrivals
	handshakeFailed
	initDone
	words
)

func (w word) String() string {
	return [words]string{"setup_done", "init_failed", "arrivals", "handshake_failed",
		"init_done"}[w]
}

// place is where an access goes. of is the worker of a record or exec state, the
// physical id of a window or table entry.
type place struct {
	in    memory
	of    int
	field field    // of a record
	reg   register // of a window
	word  word     // of control
}

func (p place) String() string {
	switch p.in {
	case inRecord:
		return fmt.Sprintf("record %d %v", p.of, p.field)
	case inWindow:
		return fmt.Sprintf("window %d %v", p.of, p.reg)
	case inTable:
		return fmt.Sprintf("base of %d", p.of)
	case inExec:
		return fmt.Sprintf("exec state %d", p.of)
	case inControl:
		return p.word.String()
	}
	return ""
}

// same reports whether a change at p can end a wait at q: they share a line or a
// window.
func (p place) same(q place) bool {
	return p.in == q.in && p.of == q.of && (p.in != inControl || p.word == q.word)
}

func record(worker int, f field) place  { return place{in: inRecord, of: worker, field: f} }
func windowOf(id int, r register) place { return place{in: inWindow, of: id, reg: r} }
func control(w word) place              { return place{in: inControl, word: w} }
func exec(worker int) place             { return place{in: inExec, of: worker} }

// want is what ends a poll.
type want uint8

const (
	wantSet  want = iota // value is not zero
	wantThis             // value is access.value
	wantNews             // value is not access.value
)

// limit says which limit bounds a poll.
type limit uint8

const (
	unlimited limit = iota // a core spins for as long as the launch lasts
	limitReport
	limitDone
	limitExit
	limitPhase
)

// mark tells the device where a thread stands.
type mark uint8

const (
	markBegin     mark = iota + 1 // the access before the partition has ended
	markBroadcast                 // the broadcast has ended
	markReported                  // the first report of the slice is there
	markServed                    // the last core of the slice is served
	markExit                      // the shared deadline of all exits starts
)

// site names accesses that order others. Leaving one out is a bug that the model
// makes visible.
type site uint32

const (
	siteTask          site = 1 << iota // barrier: task before aicpu_ready
	siteBroadcast                      // barrier: the last aicpu_ready leaves
	siteWindow                         // barrier: window stores before aicpu_regs_ready
	siteRegs                           // barrier: aicpu_regs_ready leaves
	siteCoreID                         // core's barrier: physical id before aicore_regs_ready
	siteCoreDone                       // core's barrier: core_type before aicore_done
	siteCleanReport                    // core's clean of its report
	siteCleanDone                      // core's clean of its done
	siteFreshReady                     // core's invalidate while it polls aicpu_ready
	siteFreshRegs                      // core's invalidate while it polls aicpu_regs_ready
	siteReleaseSetup                   // release order of init_failed before setup_done
	siteReleaseArrive                  // release order of a slice before its arrival
	siteReleaseInit                    // release order of init_failed before init_done
	siteReset                          // host's reset of the records before a launch
)

// access is one thing that an actor does. A machine returns it and is given its
// result with the next call.
type access struct {
	op    op
	at    place
	value uint64
	want  want
	limit limit
	fresh bool // poll of a record by a core: invalidate the line before each load
	mark  mark // holds when the access has ended
	site  site // 0: the access orders nothing
	why   string
}

func (a access) String() string {
	s := a.op.String()
	if a.at.in != 0 {
		s += " " + a.at.String()
	}
	switch {
	case a.op == opPoll && a.want == wantSet:
		s += " until set"
	case a.op == opPoll && a.want == wantNews:
		s += fmt.Sprintf(" until not 0x%X", a.value)
	case a.op == opPoll:
		s += fmt.Sprintf(" until 0x%X", a.value)
	case a.op == opStore || a.op == opRelease || a.op == opAdd:
		s += fmt.Sprintf(" 0x%X", a.value)
	}
	if a.fresh {
		s += ", fresh"
	}
	if a.why != "" {
		s += ": " + a.why
	}
	return s
}

// result is how an access ended.
type result struct {
	value uint64 // of a load or poll
	late  bool   // a poll ended at its limit; value is the last one seen
}

func store(at place, value uint64) access { return access{op: opStore, at: at, value: value} }
func load(at place) access                { return access{op: opLoad, at: at} }
func barrier(s site) access               { return access{op: opBarrier, site: s} }
func halt() access                        { return access{op: opHalt} }

func poll(at place, w want, value uint64, l limit) access {
	return access{op: opPoll, at: at, want: w, value: value, limit: l}
}

// holds reports whether value ends poll a.
func (a access) holds(value uint64) bool {
	switch a.want {
	case wantSet:
		return value != 0
	case wantThis:
		return value == a.value
	}
	return value != a.value
}
