package rank

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Action is what happens at a failpoint.
type Action string

// The actions. Where a rank is a goroutine, kill, exit and stop strike the whole
// process, so a virtual group takes error only.
const (
	ActionKill  Action = "kill"  // SIGKILL to this process
	ActionExit  Action = "exit"  // the process ends with ExitFailpoint and no farewell
	ActionStop  Action = "stop"  // SIGSTOP to this process: it freezes until SIGCONT
	ActionError Action = "error" // the place returns an error; at model/plan: derives otherwise
)

// ExitFailpoint is the exit status of ActionExit.
const ExitFailpoint = 86

// Failpoints says what happens at which place. It is written
//
//	name=action[,name=action]
//
// with names such as rank/hello, rank/assigned, rank/handshake, rank/linked,
// rank/loaded, rank/ready, rank/step:3 (the plan of step 3), model/plan and
// collective/op:17 (the operation with sequence number 17).
type Failpoints map[string]Action

var failpointName = regexp.MustCompile(`^(rank|model|collective|handshake)/[a-z_]+(:[0-9]+)?$`)

// ParseFailpoints reads the written form; the empty string holds none.
func ParseFailpoints(s string) (Failpoints, error) {
	points := Failpoints{}
	if s == "" {
		return points, nil
	}
	actions := []Action{ActionKill, ActionExit, ActionStop, ActionError}
	for part := range strings.SplitSeq(s, ",") {
		name, action, _ := strings.Cut(part, "=")
		if !failpointName.MatchString(name) {
			return nil, fmt.Errorf("failpoint %q: want name=action, "+
				"the name as room/place or room/place:number", part)
		}
		if !slices.Contains(actions, Action(action)) {
			return nil, fmt.Errorf("failpoint %q: action %q is none of %v", name, action, actions)
		}
		if _, twice := points[name]; twice {
			return nil, fmt.Errorf("failpoint %q stands twice", name)
		}
		points[name] = Action(action)
	}
	return points, nil
}

// String is the written form, sorted by name.
func (f Failpoints) String() string {
	parts := make([]string, 0, len(f))
	for name, action := range f {
		parts = append(parts, name+"="+string(action))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// FailpointError is what a place returns that was told to fail.
type FailpointError struct {
	Name string
}

func (e *FailpointError) Error() string { return "failpoint " + e.Name }

// Hit does what is set for a place: nothing, an error, or the end or freeze of
// this process. It is the Failpoint of every Config.
func (f Failpoints) Hit(name string) error {
	switch f[name] {
	case ActionKill:
		killSelf()
	case ActionExit:
		exitSelf()
	case ActionStop:
		stopSelf()
	case ActionError:
		return &FailpointError{Name: name}
	}
	return nil
}
