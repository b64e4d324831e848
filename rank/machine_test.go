package rank

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/model"
)

var update = flag.Bool("update", false, "write what the machine does into testdata; read the diff")

// A script holds events, one a line, and after each the effects in order and the
// state if it changed, behind ">". Lines with "#" are comments. The rank is 1 of
// 3, or what a first line "rank 0 of 2" says.
func TestMachineScripts(t *testing.T) {
	// The machine does what every script in testdata says.
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

// play runs the events of a script and returns it with what really came out.
func play(script string) (string, error) {
	cfg := MachineConfig{RunID: "run", Rank: 1, Size: 3, Beat: 500 * time.Millisecond,
		Dead: 5 * time.Second, Grace: time.Second}
	if _, err := fmt.Sscanf(script, "rank %d of %d", &cfg.Rank, &cfg.Size); err != nil {
		cfg.Rank, cfg.Size = 1, 3
	}
	m := NewMachine(cfg)
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, ">") {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || strings.HasPrefix(line, "rank ") {
			continue
		}
		e, err := scriptEvent(line, cfg, m.Epoch())
		if err != nil {
			return "", fmt.Errorf("script line %q: %w", line, err)
		}
		was := fmt.Sprintf("%v, epoch %d", m.State(), m.Epoch())
		effects, err := m.Step(e)
		for _, effect := range effects {
			fmt.Fprintf(&out, "> %v\n", effect)
		}
		if err != nil {
			if illegal := (*IllegalError)(nil); !errors.As(err, &illegal) {
				return "", err
			}
			fmt.Fprintf(&out, "> illegal: %v\n", err)
		}
		if is := fmt.Sprintf("%v, epoch %d", m.State(), m.Epoch()); is != was {
			fmt.Fprintf(&out, "> %s\n", is)
		}
	}
	return out.String(), nil
}

// scriptEvent reads one event. now is the epoch that "failed" belongs to.
func scriptEvent(line string, cfg MachineConfig, now uint32) (Event, error) {
	word, rest, _ := strings.Cut(line, " ")
	first, text, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(first)
	epoch := uint32(n)
	var step uint64
	_, _ = fmt.Sscanf(first, "%d/%d", &epoch, &step) // where there is one
	switch word {
	case "begin":
		return Begin{}, nil
	case "connected":
		return Connected{&Hello{Rank: cfg.Rank}}, nil
	case "assign":
		return Got{scriptAssign(epoch, text, cfg)}, nil
	case "joined":
		return Joined{epoch}, nil
	case "device":
		return DeviceUp{DeviceTimes{Total: 75 * time.Microsecond}}, nil
	case "linked":
		return Linked{epoch}, nil
	case "loaded":
		return Loaded{int64(n)}, nil
	case "opened":
		return Opened{epoch, 3}, nil
	case "step":
		return Got{&Step{model.Plan{Epoch: epoch, Step: step}}}, nil
	case "ran":
		return Ran{&Stepped{Epoch: epoch, Step: step, Tokens: make([]model.Token, 2)}}, nil
	case "failed":
		return Failed{now, errors.New(rest), collective.Cause{Detail: rest}}, nil
	case "failed/": // of an epoch, named
		return Failed{epoch, errors.New(text), collective.Cause{Detail: text}}, nil
	case "broken":
		return Failed{0, errors.New(rest), collective.Cause{Detail: rest}}, nil
	case "closed":
		return Closed{epoch}, nil
	case "abort":
		return Got{&Abort{epoch, collective.Cause{Detail: text}}}, nil
	case "ask":
		return Got{&DigestsAsk{ID: uint64(n)}}, nil
	case "refuse":
		return Got{&Refuse{Reason: rest}}, nil
	case "heartbeat":
		return Got{&Heartbeat{}}, nil
	case "bye":
		return Got{&Bye{}}, nil
	case "stop":
		return Got{&Stop{}}, nil
	case "quit":
		return Quit{errors.New(rest)}, nil
	case "tick":
		d, err := time.ParseDuration(rest)
		return Tick{d}, err
	}
	return nil, errors.New("no such event")
}

// scriptAssign is an assignment to the rank's own place, or with "other rank" or
// "other run" one that is not for it.
func scriptAssign(epoch uint32, text string, cfg MachineConfig) *Assign {
	a := &Assign{RunID: cfg.RunID, Epoch: epoch, Rank: cfg.Rank, Size: cfg.Size,
		Mesh: make([]string, cfg.Size), Slots: 4,
		Heartbeat: 500 * time.Millisecond, Dead: 5 * time.Second, Op: time.Minute}
	switch text {
	case "other rank":
		a.Rank = (cfg.Rank + 1) % cfg.Size
	case "other run":
		a.RunID = "another"
	}
	return a
}

func TestMachineNeverPanics(t *testing.T) {
	// Whatever comes in whatever order, the machine answers with effects or with
	// an *IllegalError, says Finish at most once, and never begins an epoch
	// before the last one is closed.
	words := []string{"begin", "connected", "assign 1", "assign 2", "assign 3", "joined 1",
		"joined 2", "device", "linked 1", "linked 2", "loaded 7", "opened 1", "opened 2",
		"step 1/1", "step 1/2", "step 2/1", "ran 1/1", "ran 1/2", "ran 2/1", "failed x",
		"failed/ 1 x", "failed/ 2 x", "broken x", "closed 1", "closed 2", "abort 1 x", "abort 2 x",
		"ask 1", "heartbeat", "stop", "quit x"}
	for seed := range uint64(1000) {
		seeds := newRand(seed)
		m := NewMachine(MachineConfig{RunID: "run", Rank: 1, Size: 3, Beat: time.Second,
			Dead: 5 * time.Second, Grace: time.Second})
		var open uint32 // epoch that has been begun and not closed
		finished := 0
		for range 60 {
			word := words[seeds.IntN(len(words))]
			e, err := scriptEvent(word, m.cfg, m.Epoch())
			require.NoError(t, err)
			closing := m.closing
			effects, err := m.Step(e)
			if illegal := (*IllegalError)(nil); err != nil {
				require.ErrorAs(t, err, &illegal, "seed %d", seed)
				require.Empty(t, effects, "seed %d: %s", seed, word)
				continue
			}
			if c, ok := e.(Closed); ok && closing && c.Epoch == open {
				open = 0
			}
			for _, effect := range effects {
				switch effect := effect.(type) {
				case Join:
					require.Zero(t, open, "seed %d: %s", seed, word)
					open = effect.Assign.Epoch
				case LinkPeers:
					require.Equal(t, open, effect.Epoch, "seed %d: %s", seed, word)
				case Finish:
					finished++
				}
			}
		}
		require.LessOrEqual(t, finished, 1, "seed %d", seed)
	}
}
