package handshake

// pending is a store that has not left its actor yet.
type pending struct {
	at    place
	value uint64
}

func (p pending) device() bool { return p.at.in == inWindow }

// buffer is an actor's store buffer, oldest first. The actor sees its own stores;
// nobody else does until they leave.
type buffer []pending

// find is the youngest value stored at a place.
func (b buffer) find(at place) (uint64, bool) {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i].at == at {
			return b[i].value, true
		}
	}
	return 0, false
}

// drain empties the buffer. Stores of different groups do not care for each
// other, and window stores keep their order among themselves. Of any other two
// stores of one group nothing says which leaves first, and the worst is taken:
// the younger one leaves now, the older one is held.
func (b *buffer) drain(group func(place) int) (now, held []pending) {
	for i, old := range *b {
		overtaken := false
		for _, young := range (*b)[i+1:] {
			overtaken = overtaken || group(old.at) == group(young.at) &&
				old.at != young.at && (!old.device() || !young.device())
		}
		if overtaken {
			held = append(held, old)
		} else {
			now = append(now, old)
		}
	}
	*b = nil
	return now, held
}

// takeDevice removes and returns the window stores, in order.
func (b *buffer) takeDevice() []pending {
	var device []pending
	rest := (*b)[:0:0]
	for _, p := range *b {
		if p.device() {
			device = append(device, p)
		} else {
			rest = append(rest, p)
		}
	}
	*b = rest
	return device
}

// group is what drain keeps in order when it can: a record and the window of its
// core belong together, so do the control words; an exec state stands alone.
func (d *Device) group(at place) int {
	switch at.in {
	case inRecord:
		return at.of
	case inWindow:
		return d.workerOf[at.of]
	case inExec:
		return WindowsMax + at.of
	}
	return -1
}

// cached is a core's copy of its record line. It outlives a round, as caches do.
type cached struct {
	line  line
	valid bool
	dirty bool // holds stores that no clean has written back
}

// shared is the memory that actors share.
type shared struct {
	records []line // GM
	windows []window
	table   []uint64
	exec    []uint64
	control [words]uint64
	ready   []bool // by worker: aicpu_ready of this round has reached GM
}

func (s *shared) read(at place) uint64 {
	switch at.in {
	case inRecord:
		return s.records[at.of].get(at.field)
	case inWindow:
		return *s.windows[at.of].register(at.reg)
	case inTable:
		return s.table[at.of]
	case inExec:
		return s.exec[at.of]
	}
	return s.control[at.word]
}

func (s *shared) write(at place, value uint64) {
	switch at.in {
	case inRecord:
		s.records[at.of].put(at.field, value)
		if at.field == aicpuReady {
			s.ready[at.of] = true
		}
	case inWindow:
		*s.windows[at.of].register(at.reg) = value
	case inExec:
		s.exec[at.of] = value
	case inControl:
		s.control[at.word] = value
	}
}
