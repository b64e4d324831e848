package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be launch itself: a group's ranks are started
// from it, and so are whole commands that a test sends signals to.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == rankName || os.Getenv("OCTET_TEST_LAUNCH") != "") {
		main()
		return
	}
	os.Exit(m.Run())
}

const patience = 60 * time.Second

// result is what one command gave.
type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

// launch runs one command in this process, in a run directory of its own.
func launch(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	begin := time.Now()
	if args[0] != "bogus" && args[0] != "--version" {
		args = append(args[:1:1], append([]string{"--run-dir", runDir(t)}, args[1:]...)...)
	}
	err := run(ctx, args, &out, &errs)
	return result{exitCode(err), out.String(), errs.String(), time.Since(begin)}
}

// runDir is short: the name of a socket file has some hundred bytes at most.
func runDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "octet")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The main job proves that FC1 and MMRS run and change no bit, on eight real
// processes, and its JSON says so.
func TestVerifyIsEqual(t *testing.T) {
	for _, more := range [][]string{nil, {"--virtual"}, {"--tp", "2", "--virtual", "--chunk", "100"}} {
		t.Run(strings.Join(more, " "), func(t *testing.T) {
			r := launch(t, append([]string{"verify", "--json", "--max-new-tokens", "3"}, more...)...)
			require.Equal(t, exitOK, r.code, r.stderr)
			var got verifyReport
			require.NoError(t, json.Unmarshal([]byte(r.stdout), &got))
			require.Equal(t, schemaVersion, got.Schema)
			require.True(t, got.Equal)
			require.Equal(t, "equal", got.Verdict)
			require.Equal(t, "fc1 off", got.Reference)
			require.Len(t, got.Settings, 4)
			for i, s := range got.Settings {
				require.Equal(t, 15, s.Tokens, s.Name)
				require.Zero(t, s.Mismatches, s.Name)
				require.Zero(t, s.MaxLogprobDiff, s.Name)
				require.True(t, s.HiddenBitEqual, s.Name)
				require.Equal(t, s.Expected, s.fourCounts, s.Name)
				require.Equal(t, i > 0, s.FC1Steps > 0, s.Name)
				require.Equal(t, i > 1, s.MMRS > 0, s.Name)
				require.Equal(t, i == 1, s.ReduceScatter > 0, s.Name)
				// Two layers: two exchanges a layer in every step, and a
				// gather before each product and at the end.
				require.Equal(t, 4*s.FC1Steps, s.ReduceScatter+s.MMRS, s.Name)
				require.Equal(t, 4*(s.Steps-s.FC1Steps), s.AllReduce, s.Name)
				require.Equal(t, 5*s.FC1Steps, s.AllGather, s.Name)
			}
		})
	}
}

// A run in which FC1 or MMRS never ran has proved nothing, says what to change,
// and has an exit code of its own.
func TestVerifyIsVacuous(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tp", "1"}, "one rank has nothing to shard: give --tp 2 or more"},
		{[]string{"--tp", "2", "--enable_flashcomm1=false"}, "leave --enable_flashcomm1 on"},
		{[]string{"--tp", "2", "--flashcomm1-min-prefill-tokens", "1000"},
			"lower --flashcomm1_min_prefill_tokens"},
		{[]string{"--tp", "2", "--flashcomm1_min_tp", "4"}, "fewer ranks than flashcomm1_min_tp x"},
		{[]string{"--tp", "2", "--mmrs_contract", "device"},
			"mmrs o_proj: mmrs_contract device refuses float32 x"},
	} {
		r := launch(t, append([]string{"verify", "--virtual", "--max-new-tokens", "1",
			"--ids", "1,2,3"}, c.args...)...)
		require.Equal(t, exitVacuous, r.code, r.stderr)
		require.Contains(t, r.stderr, c.want)
		require.Contains(t, r.stdout, "verdict: vacuous")
	}
}

// Input that cannot be used is refused before any rank starts, by a line that
// names it and what was expected.
func TestBadInputIsRefusedByName(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.txt")
	require.NoError(t, os.WriteFile(empty, []byte("\n \n"), 0o644))
	for _, c := range []struct{ args, want string }{
		{"bogus", `no such command: "bogus" (want verify, generate, up, status or stop)`},
		{"verify --bogus", "unknown flag: --bogus"},
		{"verify x", `verify: unexpected argument "x"`},
		{"verify --tp 0", "--tp is 0, want at least 1"},
		{"verify --tp 3", "num_attention_heads 16 % tp 3 != 0"},
		{"verify --tp eight", `invalid argument "eight"`},
		{"verify --model /nonexistent", "/nonexistent"},
		{"verify --on-failure restart", "--on-failure restart is not built yet"},
		{"verify --on-failure maybe", `--on-failure is "maybe", want stop`},
		{"verify --mmrs_comm_mode fast", `mmrs_comm_mode is "fast": must be aiv, ai_cpu or none`},
		{"verify --mmrs-contract loose", `mmrs_contract is "loose"`},
		{"verify --chunk -1", "chunk is -1"},
		{"verify --flashcomm1_min_prefill_tokens 0", "flashcomm1_min_prefill_tokens is 0"},
		{"verify --rank-env 3", `--rank-env "3": want RANK:KEY=VALUE`},
		{"verify --rank-env 9:A=b", "rank 9 is outside the group of 8"},
		{"verify --virtual --rank-env 1:A=b", "--rank-env with --virtual takes OCTET_ names only"},
		{"verify --log-level loud", `--log-level is "loud"`},
		{"verify --join-timeout 0s", "--join-timeout 0s"},
		{"verify --max-new-tokens 0", "--max-new-tokens is 0"},
		{"--version", "launch: unknown flag: --version"},
		{"verify --rank-env 3:OCTET_CHUNKS=1", "ranks read no OCTET_CHUNKS, only OCTET_BUILD, "},
		{"generate --ids 1 --max-new-tokens 9223372036854775807", "pass the 32768 positions"},
		{"generate --ids 1 --temperature -1", "temperature is -1"},
		{"generate --ids 1 --top-p NaN", "top_p is NaN"},
		{"generate --ids 1 --top-k -1", "top_k is -1"},
		{"verify --ids 1,x", `"x" is not a token id`},
		{"verify --ids 1,320", "token id 320 is outside the vocabulary of 320"},
		{"verify --ids 1 --max-new-tokens 40000", "pass the 32768 positions of a sequence"},
		{"verify --prompt-file /nonexistent", "--prompt-file: open /nonexistent"},
		{"verify --prompt-file " + empty, "has no prompt: want one a line"},
		{"generate", "no prompt: give --prompt TEXT"},
		{"status", "no group is up in"},
		{"stop", "no group is up in"},
	} {
		r := launch(t, strings.Fields(c.args)...)
		require.Equal(t, exitRefused, r.code, "%s: %s", c.args, r.stderr)
		require.Contains(t, r.stderr, c.want, c.args)
		require.Empty(t, r.stdout, c.args)
	}
}

// A rank that dies, at whatever time, ends the command within five seconds with
// the exit code of a group failure, and is named with pid, signal and phase.
func TestDeadRankIsNamed(t *testing.T) {
	for _, c := range []struct{ point, phase string }{
		{"rank/hello=kill", "join"},
		{"rank/assigned=kill", "handshake"},
		{"rank/handshake=kill", "handshake"},
		// A rank that is killed at once may not have reported its last phase.
		{"rank/linked=kill", "(handshake|link)"},
		{"rank/loaded=kill", "(link|load)"},
		{"rank/step:1=kill", `step 1 \(prefill\)`},
		{"rank/step:3=kill", `step 3 \(decode\)`},
		{"collective/op:4=kill", `step 1 \(prefill\)`},
	} {
		t.Run(c.point, func(t *testing.T) {
			r := launch(t, "generate", "--ids", "1,2,3,4", "--max-new-tokens", "8", "--tp", "4",
				"--rank-env", "2:OCTET_FAILPOINT="+c.point)
			require.Equal(t, exitGroup, r.code, r.stderr)
			require.Regexp(t, `rank 2 \(pid \d+\) was killed by signal "killed" in .*`+
				c.phase, r.stderr)
			require.Less(t, r.took, 5*time.Second)
			require.NotContains(t, r.stderr, "rank 0 (pid", "a victim is blamed")
		})
	}
}

// A rank that does not agree with the others is refused at the join with both
// values, or found by the hash of its plan; it is named.
func TestRankThatDisagreesIsNamed(t *testing.T) {
	other := t.TempDir()
	for name, content := range must(demoFiles()) {
		if name == "config.json" {
			content = bytes.Replace(content, []byte(`"rms_norm_eps": 1e-06`),
				[]byte(`"rms_norm_eps": 1e-05`), 1)
		}
		require.NoError(t, os.WriteFile(filepath.Join(other, name), content, 0o644))
	}
	for _, c := range []struct{ env, want string }{
		{"OCTET_ENABLE_FLASHCOMM1=false", `enable_flashcomm1 is "false" there, "true" here`},
		{"OCTET_CHUNK=5", `chunk is "5" there, "0" here`},
		{"OCTET_TP=2", `OCTET_RANK is "3": must be a whole number in 0..1`},
		{"OCTET_MODEL=" + other, "model.config is "},
		{"OCTET_FAILPOINT=model/plan=error", "this rank derives fc1 off"},
	} {
		r := launch(t, "generate", "--ids", "1,2,3,4", "--max-new-tokens", "8", "--tp", "4",
			"--enable_flashcomm1", "--flashcomm1_min_prefill_tokens", "1", "--flashcomm1_min_tp", "2",
			"--rank-env", "3:"+c.env)
		require.Equal(t, exitGroup, r.code, "%s: %s", c.env, r.stderr)
		require.Contains(t, r.stderr, c.want, c.env)
		require.Contains(t, r.stderr, "rank 3", c.env)
		require.Less(t, r.took, 5*time.Second)
	}
}

func must(files map[string][]byte, _ [32]byte, err error) map[string][]byte {
	if err != nil {
		panic(err)
	}
	return files
}

// process is a command that runs in a process of its own.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner // of stderr
	dir   string
}

func start(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p := &process{t: t, dir: dir}
	p.cmd = exec.CommandContext(ctx, exe, append(args, "--run-dir", dir)...)
	p.cmd.Env = append(os.Environ(), "OCTET_TEST_LAUNCH=1")
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(stderr)
	require.NoError(t, p.cmd.Start())
	return p
}

// until reads lines until one contains text.
func (p *process) until(text string) {
	p.t.Helper()
	var seen []string
	for p.lines.Scan() {
		seen = append(seen, p.lines.Text())
		if strings.Contains(p.lines.Text(), text) {
			return
		}
	}
	p.t.Fatalf("launch ended without %q:\n%s", text, strings.Join(seen, "\n"))
}

// end waits and returns the exit code; -1 after a signal.
func (p *process) end() int {
	for p.lines.Scan() {
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// ranks are the pids of the ranks that status lists.
func ranks(t *testing.T, dir string) []int {
	t.Helper()
	s, err := newClient(dir).status(t.Context())
	require.NoError(t, err)
	require.True(t, s.Ready)
	var pids []int
	for _, r := range s.Ranks {
		require.NotZero(t, r.PID)
		pids = append(pids, r.PID)
	}
	return pids
}

// gone waits until no process of pids is there any more.
func gone(t *testing.T, pids []int, within time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil && !zombie(pid) {
				return false
			}
		}
		return true
	}, within, 10*time.Millisecond, "ranks are left: %v", pids)
}

// zombie reports whether a process has ended and waits to be reaped, as the
// children of a killed parent do where nobody adopts them.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && bytes.Contains(stat, []byte(") Z "))
}

// A signal ends a group within five seconds with the shell's exit code, and
// kill -9 leaves no rank after three.
func TestSignalsLeaveNothing(t *testing.T) {
	for _, c := range []struct {
		sig  syscall.Signal
		code int
	}{{syscall.SIGINT, exitInterrupt}, {syscall.SIGTERM, exitTerminate}, {syscall.SIGKILL, -1}} {
		t.Run(c.sig.String(), func(t *testing.T) {
			dir := runDir(t)
			p := start(t, dir, "up", "--tp", "8")
			p.until("ready, serving on")
			pids := ranks(t, dir)
			begin := time.Now()
			require.NoError(t, p.cmd.Process.Signal(c.sig))
			require.Equal(t, c.code, p.end())
			require.Less(t, time.Since(begin), 5*time.Second)
			gone(t, pids, 3*time.Second)
		})
	}
}

// A group that is up answers other terminals, refuses a second one in its run
// directory by the holder's pid, and ends when it is told to.
func TestUpServesOtherTerminals(t *testing.T) {
	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "4")
	p.until("ready, serving on")
	pids := ranks(t, dir)

	ask := func(args ...string) result {
		var out, errs bytes.Buffer
		err := run(t.Context(), append(args, "--run-dir", dir), &out, &errs)
		return result{code: exitCode(err), stdout: out.String(), stderr: errs.String()}
	}
	r := ask("generate", "--prompt", "The red fox eats")
	require.Equal(t, result{stdout: " berries.\n"}, r)
	r = ask("generate", "--ids", "261,32,114,101,100,295,260", "--max-new-tokens", "3")
	require.Equal(t, result{stdout: "282,114,114\n"}, r)
	r = ask("generate", "--prompt", "The red fox eats", "--json")
	var got answered
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &got))
	require.Equal(t, []int{282, 114, 114, 105, 263, 46, 309}, got.IDs)
	require.Len(t, got.Logprobs, 7)
	require.Equal(t, "stop", got.FinishReason)

	r = ask("generate", "--tp", "8", "--prompt", "x")
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.stderr, "--tp is 8, but the group that is up in "+dir+" has 4")
	r = ask("up")
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.stderr, fmt.Sprintf("by process %d:", p.cmd.Process.Pid))
	for _, command := range []string{"status", "stop", "generate --ids 1", "up"} {
		r = ask(append(strings.Fields(command), "--log-level", "loud")...)
		require.Equal(t, exitRefused, r.code, command)
		require.Contains(t, r.stderr, `--log-level is "loud"`, command)
	}
	r = ask("status", "--json")
	require.Contains(t, r.stdout, `"ready":true`)
	require.Contains(t, r.stdout, `"suspected":false`)
	require.Contains(t, ask("status").stdout, " members\n")

	r = ask("stop", "--json")
	require.Equal(t, exitOK, r.code)
	require.Equal(t, `{"schema":1,"state":"stopped"}`+"\n", r.stdout)
	require.Equal(t, exitOK, p.end())
	gone(t, pids, time.Second)
	require.Equal(t, exitRefused, ask("status").code)
}

// A rank that dies while its group is idle ends launch up, and status had told
// the truth before.
func TestIdleDeathEndsUp(t *testing.T) {
	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "4")
	p.until("ready, serving on")
	pids := ranks(t, dir)
	begin := time.Now()
	require.NoError(t, syscall.Kill(pids[1], syscall.SIGKILL))
	p.until(fmt.Sprintf("rank 1 (pid %d) was killed by signal", pids[1]))
	require.Equal(t, exitGroup, p.end())
	require.Less(t, time.Since(begin), 5*time.Second)
	gone(t, pids, 3*time.Second)
}
