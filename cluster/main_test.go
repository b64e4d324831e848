package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// role is what this test binary is when it has been started as a child: an
// environment variable says so.
const role = "OCTET_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "rank":
		os.Exit(beRank())
	case "mute":
		<-time.After(time.Minute) // a rank that never says a word
	case "lines":
		fmt.Println("to stdout", os.Args[0])
		fmt.Fprint(os.Stderr, "first\nlast")
		os.Exit(3)
	case "launch":
		os.Exit(beLauncher())
	case "launch mute":
		os.Exit(beMuteLauncher())
	case "family":
		os.Exit(beFamily())
	}
	os.Exit(64)
}

func beRank() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if err := RunRank(ctx, os.Getenv, log); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// beFamily starts a child that outlives it and holds its output open.
func beFamily() int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=mute")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cmd.Process.Pid)
	return 0
}
