package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/model"
)

// A checkpoint or a limit that cannot be used is refused input, also where only
// the start of the group finds out.
func TestWhatTheStartRefusesIsInput(t *testing.T) {
	damaged := demoCopy(t, "model.safetensors", func(b []byte) []byte { return b[:1<<17] })
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"generate", "--ids", "1", "--virtual", "--tp", "2", "--model", damaged},
			"model.safetensors: tensor "},
		{[]string{"verify", "--step-timeout", "1s"}, "limit of a step 1s"},
	} {
		r := launch(t, c.args...)
		require.Equal(t, exitRefused, r.code, r.stderr)
		require.Contains(t, r.stderr, c.want)
	}
	var errs bytes.Buffer
	err := run(t.Context(), []string{rankName}, io.Discard, &errs)
	require.Equal(t, exitRefused, exitCode(err), "a rank with a wrong environment")
	require.Contains(t, errs.String(), "OCTET_")
}

// demoCopy is a directory with the demo checkpoint, one file of it changed.
func demoCopy(t *testing.T, changed string, change func([]byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range must(demoFiles()) {
		if name == changed {
			content = change(content)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	return dir
}

// The demo needs no directory of the user's that can be written.
func TestDemoWithoutACache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	t.Setenv("HOME", file)
	t.Setenv("XDG_CACHE_HOME", file)
	t.Setenv("TMPDIR", t.TempDir())
	r := launch(t, "generate", "--ids", "1", "--max-new-tokens", "1", "--virtual", "--tp", "2")
	require.Equal(t, result{stdout: "32\n", took: r.took}, r)
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Output that cannot be written is no success.
func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, args := range []string{"generate --ids 1", "generate --ids 1 --json",
		"verify --ids 1,2,3", "verify --ids 1,2,3 --json"} {
		var errs bytes.Buffer
		err := run(t.Context(), append(strings.Fields(args), "--virtual", "--tp", "2",
			"--max-new-tokens", "1", "--run-dir", runDir(t)), full{}, &errs)
		require.Equal(t, exitRefused, exitCode(err), args)
		require.Contains(t, errs.String(), "no space left", args)
	}
}

// A prompt file is text, a prompt a line, whatever its lines end with.
func TestPromptFileIsText(t *testing.T) {
	got, err := readLines(strings.NewReader("\ufeffone\r\n\r\n  \ntwo\n thr\u00e9e "))
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two", " thr\u00e9e "}, got)
	_, err = readLines(strings.NewReader("one\n\xff\xfe\n"))
	require.ErrorContains(t, err, "line 2 is not UTF-8")
	_, err = readLines(strings.NewReader("one\n" + strings.Repeat("x", lineBytesMax+1)))
	require.ErrorContains(t, err, "line 2 has more than")
}

// A run directory that can hold no socket is refused by up before anything
// starts, and is none of a group that is up.
func TestRunDirThatCannotBe(t *testing.T) {
	file := filepath.Join(runDir(t), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	long := filepath.Join(runDir(t), strings.Repeat("x", 120))
	for dir, want := range map[string]string{
		file: "not a directory", long: "give a shorter directory",
	} {
		ask := func(args ...string) result {
			var out, errs bytes.Buffer
			err := run(t.Context(), append(args, "--run-dir", dir), &out, &errs)
			return result{code: exitCode(err), stdout: out.String(), stderr: errs.String()}
		}
		r := ask("up", "--virtual", "--tp", "2")
		require.Equal(t, exitRefused, r.code)
		require.Contains(t, r.stderr, want)
		require.NotContains(t, r.stderr, "starting")
		for _, command := range []string{"status", "stop"} {
			r = ask(command)
			require.Equal(t, exitRefused, r.code)
			require.Contains(t, r.stderr, "no group is up in "+dir)
		}
		r = ask("generate", "--ids", "1", "--max-new-tokens", "1", "--virtual", "--tp", "2")
		require.Equal(t, result{stdout: "32\n"}, r)
	}
}

// A group serves status from its beginning: it says that it is starting, and
// takes no prompt; a signal ends it in time although a rank is frozen.
func TestStatusWhileStarting(t *testing.T) {
	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "2", "--rank-env", "1:OCTET_FAILPOINT=rank/handshake=stop")
	p.until("starting 2 ranks")
	s, err := newClient(dir).status(t.Context())
	require.NoError(t, err)
	require.False(t, s.Ready)
	require.Equal(t, "starting", s.State)
	require.Len(t, s.Ranks, 2)
	var errs bytes.Buffer
	err = run(t.Context(), []string{"generate", "--ids", "1", "--run-dir", dir}, io.Discard, &errs)
	require.Equal(t, exitRefused, exitCode(err))
	require.Contains(t, errs.String(), "the group is still starting")
	begin := time.Now()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitInterrupt, p.end())
	require.Less(t, time.Since(begin), 5*time.Second)
	_, err = os.Stat(filepath.Join(dir, socketName))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A group can be told to stop while it starts.
func TestStopWhileStarting(t *testing.T) {
	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "4")
	p.until("starting 4 ranks")
	var errs bytes.Buffer
	err := run(t.Context(), []string{"stop", "--run-dir", dir}, io.Discard, &errs)
	require.NoError(t, err, errs.String())
	require.Equal(t, exitOK, p.end())
}

// A client that goes away takes its request out of the plans; a client with
// numbers that no prompt has is refused; the group serves on.
func TestClientThatGoesAway(t *testing.T) {
	endless := demoCopy(t, "", nil)
	for _, name := range []string{"generation_config.json", "tokenizer.json",
		"tokenizer_config.json"} {
		require.NoError(t, os.Remove(filepath.Join(endless, name)))
	}
	edit(t, filepath.Join(endless, "config.json"), "eos_token_id")
	c, err := model.ReadConfig(endless)
	require.NoError(t, err)
	require.Empty(t, c.StopIDs)

	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "2", "--virtual", "--model", endless)
	p.until("ready, serving on")
	ctx, leave := context.WithCancel(t.Context())
	begun, seen := make(chan struct{}), 0
	gone := make(chan error, 1)
	go func() { // ends when leave is called
		_, err := newClient(dir).generate(ctx, generateRequest{IDs: []int{1, 2}, MaxNew: 30000},
			func(model.Token) {
				if seen++; seen == 3 {
					close(begun)
				}
			})
		gone <- err
	}()
	<-begun
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	steps := func() uint64 {
		s, err := newClient(dir).status(t.Context())
		require.NoError(t, err)
		return s.Ranks[0].Step
	}
	require.Eventually(t, func() bool {
		// The request of another client is the next one: no step is between.
		before := steps()
		_, err := newClient(dir).generate(t.Context(), generateRequest{IDs: []int{1}, MaxNew: 1}, nil)
		require.NoError(t, err)
		return steps() == before+1
	}, 5*time.Second, 20*time.Millisecond, "steps go on without a client")

	for _, n := range []int{0, -1, 1 << 40, 1<<63 - 1} {
		body, err := json.Marshal(generateRequest{IDs: []int{1}, MaxNew: n})
		require.NoError(t, err)
		_, err = newClient(dir).do(t.Context(), http.MethodPost, "/generate", bytes.NewReader(body))
		require.Equal(t, exitRefused, exitCode(err), n)
	}
	require.NoError(t, run(t.Context(), []string{"stop", "--run-dir", dir}, io.Discard, io.Discard))
	require.Equal(t, exitOK, p.end())
}

// edit takes a key out of a JSON object in a file.
func edit(t *testing.T, name, key string) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, json.Unmarshal(text, &object))
	delete(object, key)
	text, err = json.Marshal(object)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o644))
}

// What only a start can take is refused where a group is up already.
func TestStartFlagsNeedAStart(t *testing.T) {
	dir := runDir(t)
	p := start(t, dir, "up", "--tp", "2", "--virtual")
	p.until("ready, serving on")
	for _, flag := range []string{"--rank-env=1:OCTET_CHUNK=5", "--step-timeout=20s"} {
		var errs bytes.Buffer
		err := run(t.Context(), []string{"generate", "--ids", "1", flag, "--run-dir", dir},
			io.Discard, &errs)
		require.Equal(t, exitRefused, exitCode(err))
		require.Contains(t, errs.String(), "is for the start of a group")
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitTerminate, p.end())
}

// Errors of no kind are failures of the group, and signals have their shell codes.
func TestExitCodes(t *testing.T) {
	require.Equal(t, exitRefused, exitCode(refuse("x")))
	require.Equal(t, exitGroup, exitCode(errors.New("x")))
	require.Equal(t, 129, exitCode(signalError{syscall.SIGHUP}))
}
