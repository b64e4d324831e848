package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"octet/cluster"
)

// rankCommand is one rank: what launch starts its own binary as. cmd/rankd is
// the same for launchers that bring their own processes.
func rankCommand() *cobra.Command {
	return &cobra.Command{
		Use:    rankName,
		Short:  "one rank of a group, configured by OCTET_ variables",
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLogger(c.ErrOrStderr(), os.Getenv(envLogLevel))
			if err != nil {
				return err
			}
			return cluster.RunRank(c.Context(), os.Getenv, log)
		},
	}
}

// rankName is the command that launch starts its own binary with.
const rankName = "rank"

// envLogLevel tells ranks what --log-level tells launch.
const envLogLevel = "OCTET_LOG_LEVEL"

// newLogger logs lines of text at a level and above; "" is warn.
func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	if level == "" {
		level = "warn"
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, refuse("--log-level is %q, want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
