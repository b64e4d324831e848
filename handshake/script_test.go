package handshake

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the machines do into testdata; read the diff")

// A script starts with the machine that it plays: "thread 0 of 2, 6 workers",
// "core 3 of 6 workers" or "exit of workers 0 2 4". "go" starts it, "got V" ends a
// load or poll with V, "late" ends a poll at its limit. Behind ">" stand the
// accesses up to the next load or poll.
func TestMachineScripts(t *testing.T) {
	// Both sides of the protocol do what every script in testdata says.
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(path)
			require.NoError(t, err)
			played, err := play(string(script))
			require.NoError(t, err)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(played), 0o644))
			}
			require.Equal(t, string(script), played)
		})
	}
}

func play(script string) (string, error) {
	var m machine
	var out strings.Builder
	for line := range strings.Lines(script) {
		if line[0] == '>' {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if m == nil {
			if m = scriptMachine(line); m == nil {
				return "", fmt.Errorf("script line %q: no such machine", line)
			}
			continue
		}
		r, err := scriptResult(line)
		if err != nil {
			return "", err
		}
		playUntilAsked(&out, m, r)
	}
	return out.String(), nil
}

func playUntilAsked(out *strings.Builder, m machine, r result) {
	for {
		a := m.next(r)
		fmt.Fprintf(out, "> %v\n", a)
		switch a.op {
		case opLoad, opPoll:
			return
		case opHalt, opMisbehaves:
			if t, ok := m.(*threadMachine); ok {
				t.lead.tell(out)
				for _, f := range t.failures {
					fmt.Fprintf(out, "> worker %d [%v]: %s\n", f.worker, f.phase, f.why)
				}
				if t.lost != "" {
					fmt.Fprintf(out, "> %s\n", t.lost)
				}
			}
			return
		}
		r = result{}
	}
}

func (l *leader) tell(out *strings.Builder) {
	if l.cause != nil {
		fmt.Fprintf(out, "> %v\n", l.cause)
	}
	if l.lists != nil {
		fmt.Fprintf(out, "> AIC %v, AIV %v, schedulers %v\n", l.aic, l.aiv, l.lists)
	}
	for _, f := range l.failures {
		fmt.Fprintf(out, "> worker %d [%v]: %s\n", f.worker, f.phase, f.why)
	}
}

func scriptMachine(line string) machine {
	cfg := Default()
	var index, threads, workers int
	if n, _ := fmt.Sscanf(line, "thread %d of %d, %d workers", &index, &threads, &workers); n == 3 {
		cfg.Clusters, cfg.Threads = workers/coresPerCluster, threads
		m := &threadMachine{index: index, threads: threads, workers: workers,
			slice: cfg.slice(index), silicon: cfg.Profile.SiliconClusters,
			windows: cfg.Profile.windows(), refused: strings.HasSuffix(line, "setup fails")}
		for _, c := range cfg.cores() {
			m.lead.types = append(m.lead.types, c.Type)
		}
		m.lead.fail = func() error { return nil }
		return m
	}
	if n, _ := fmt.Sscanf(line, "core %d of %d workers", &index, &workers); n == 2 {
		m := &coreMachine{worker: index, typ: AIC, window: index, reported: uint32(index)}
		if index >= workers/coresPerCluster {
			m.typ = AIV
		}
		for k := NeverBoots; k <= IgnoresExit; k++ {
			if strings.HasSuffix(line, k.String()) {
				m.fault = k
			}
		}
		return m
	}
	if list, ok := strings.CutPrefix(line, "exit of workers "); ok {
		m := &exitMachine{}
		for word := range strings.FieldsSeq(list) {
			w, _ := strconv.Atoi(word)
			m.workers, m.windows = append(m.workers, w), append(m.windows, w)
		}
		return m
	}
	return nil
}

func scriptResult(line string) (result, error) {
	if line == "go" || line == "late" {
		return result{late: line == "late"}, nil
	}
	text, ok := strings.CutPrefix(line, "got ")
	value, err := strconv.ParseUint(text, 0, 64)
	if !ok || err != nil {
		return result{}, fmt.Errorf("script line %q: want go, late or got VALUE", line)
	}
	return result{value: value}, nil
}
