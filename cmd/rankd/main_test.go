package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be rankd itself.
func TestMain(m *testing.M) {
	if os.Getenv("OCTET_TEST_RANKD") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func command(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), "OCTET_TEST_RANKD=1"), env...)
	return cmd
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	return exit.ExitCode()
}

// A rank that waits for its master ends on a signal with the shell's exit code.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		master, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer master.Close()
		cmd := command(t, "OCTET_MASTER="+master.Addr().String(), "OCTET_RUN_ID=run",
			"OCTET_RANK=0", "OCTET_TP=2", "OCTET_MODEL=../launch/demo")
		require.NoError(t, cmd.Start())
		conn, err := master.Accept() // the rank has come up and waits for an answer
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, cmd.Process.Signal(sig))
		require.Equal(t, 128+int(sig), exitOf(t, cmd.Wait()))
	}
}

// An environment that cannot be used is refused.
func TestRefusedEnvironment(t *testing.T) {
	require.Equal(t, exitRefused, exitOf(t, command(t, "OCTET_RANK=x").Run()))
	require.Equal(t, exitRefused, exitOf(t, command(t, "OCTET_LOG_LEVEL=loud").Run()))
}
