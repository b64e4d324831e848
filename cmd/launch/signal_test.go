package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
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

// children are the pids of the processes that pid has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	require.NoError(t, err)
	var all []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			all = append(all, child)
		}
	}
	return all
}

// Ctrl-C in the middle of verify ends it within five seconds with the shell's
// exit code, and leaves no rank.
func TestInterruptedVerify(t *testing.T) {
	if _, err := os.Stat("/proc/self/task"); err != nil {
		t.Skip("children can't be listed here")
	}
	p := start(t, runDir(t), "verify", "--tp", "4")
	p.until(" 32 of 320 tokens")
	pids := children(t, p.cmd.Process.Pid)
	require.Len(t, pids, 4)
	begin := time.Now()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitInterrupt, p.end())
	require.Less(t, time.Since(begin), 5*time.Second)
	gone(t, pids, 3*time.Second)
}

// A rank that is told to end by a signal ends with the shell's exit code.
func TestRankTakesSignals(t *testing.T) {
	for sig, code := range map[syscall.Signal]int{
		syscall.SIGINT: exitInterrupt, syscall.SIGTERM: exitTerminate} {
		master, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer master.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		dir, err := unpackDemo()
		require.NoError(t, err)
		cmd := exec.CommandContext(ctx, os.Args[0], rankName)
		cmd.Env = append(os.Environ(), "OCTET_MASTER="+master.Addr().String(),
			"OCTET_RUN_ID=run", "OCTET_RANK=0", "OCTET_TP=2", "OCTET_MODEL="+dir)
		require.NoError(t, cmd.Start())
		conn, err := master.Accept() // the rank has come up and waits for an answer
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, cmd.Process.Signal(sig))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, code, exit.ExitCode(), sig)
	}
}

// Up prints its status as JSON when it is ready, and ends where it cannot.
func TestUpPrintsItsStatus(t *testing.T) {
	args := []string{"up", "--json", "--tp", "2", "--virtual", "--run-dir"}
	limit, done := context.WithTimeout(t.Context(), patience)
	defer done()
	ctx, cancel := context.WithCancelCause(limit)
	from, to := io.Pipe()
	ended := make(chan error, 1)
	var errs bytes.Buffer
	go func() { // ends when ctx does
		err := run(ctx, append(args, runDir(t)), to, &errs)
		to.Close()
		ended <- err
	}()
	var got statusReport
	require.NoError(t, json.NewDecoder(from).Decode(&got))
	require.True(t, got.Ready)
	require.Equal(t, schemaVersion, got.Schema)
	require.Len(t, got.Ranks, 2)
	cancel(signalError{syscall.SIGINT})
	var stopped signalError
	require.True(t, errors.As(<-ended, &stopped))

	errs.Reset()
	err := run(limit, append(args, runDir(t)), full{}, &errs)
	require.Equal(t, exitRefused, exitCode(err))
	require.Contains(t, errs.String(), "no space left")
}
