// Rankd is one rank of a tensor-parallel group, for launchers that start
// processes themselves. launch starts its own binary as ranks and does not need
// it.
//
// Usage:
//
//	OCTET_MASTER=host:port OCTET_RUN_ID=... OCTET_RANK=3 OCTET_TP=8 OCTET_MODEL=dir rankd
//
// The environment is the whole configuration; every variable is the flag of
// launch in capitals with OCTET_ before it (OCTET_ENABLE_FLASHCOMM1,
// OCTET_MMRS_COMM_MODE, ...). A rank ends when its master stops it (exit 0), or
// refuses it, or is gone (exit 5). An environment that cannot be used is exit 2.
// Logs go to stderr.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"octet/cluster"
)

// Exit codes, those of launch: after a signal it is signalled and its number.
const (
	exitRefused = 2 // the environment cannot be used
	exitGroup   = 5 // the group failed
	signalled   = 128
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	var got syscall.Signal
	heard := make(chan struct{})
	go func() { // ends with a signal, or with the process
		got = (<-signals).(syscall.Signal)
		close(heard)
		cancel()
	}()
	err := rankd(ctx)
	select {
	case <-heard:
		os.Exit(signalled + int(got))
	default:
		os.Exit(report(err))
	}
}

// report prints why the rank ended and gives the exit code.
func report(err error) int {
	var input *cluster.InputError
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "rankd:", err)
	if errors.As(err, &input) {
		return exitRefused
	}
	return exitGroup
}

func rankd(ctx context.Context) error {
	level := slog.LevelWarn
	if text := os.Getenv("OCTET_LOG_LEVEL"); text != "" {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return &cluster.InputError{Err: fmt.Errorf("OCTET_LOG_LEVEL: %w", err)}
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return cluster.RunRank(ctx, os.Getenv, log)
}
