// Launch runs tensor-parallel groups: it starts the ranks, verifies that FC1 and
// MMRS change no bit, generates text, and keeps a group up for other terminals.
//
// Usage:
//
//	launch verify   [flags]   compare FC1 off, FC1 on, FC1+MMRS aiv and FC1+MMRS ai_cpu
//	launch generate [flags]   prompts in, tokens out, streamed as they come
//	launch up       [flags]   start a group and serve generate, status and stop until stopped
//	launch status   [flags]   say how the group in the run directory is, from its start on
//	launch stop     [flags]   end the group in the run directory
//
// Every flag is taken with dashes or with underscores. Flags of the group:
//
//	--tp N                            ranks of the group (8)
//	--model DIR                       checkpoint in Hugging Face layout (an embedded demo model)
//	--virtual                         ranks are goroutines over the in-memory transport
//	--chunk N                         prefill at most N tokens of a prompt in a step (0: all)
//	--max_positions N                 most tokens of a sequence (0: as the model says)
//	--enable_flashcomm1               FC1 sequence sharding (false; verify: true)
//	--flashcomm1_min_prefill_tokens N least tokens of a step for FC1 (8192; verify: 1)
//	--flashcomm1_min_tp N             least group size for FC1 (8; verify: 2)
//	--enable_mmrs_fusion              fused Matmul-ReduceScatter under FC1 (false; verify: true)
//	--mmrs_comm_mode MODE             aiv, ai_cpu, or none = ai_cpu (aiv; verify: both)
//	--mmrs_contract C                 extended admits float32; device refuses it (extended)
//	--on-failure stop                 what a dead rank does to the group (restart: not built)
//	--rank-env R:KEY=VALUE            environment of rank R only; may be repeated (OCTET_
//	                                  variables of launch itself mean nothing to ranks)
//	--run-dir DIR                     socket and lock of a group (a directory of the user's)
//	--join-timeout D                  from start until every rank is ready (60s)
//	--step-timeout D                  for one step of the whole group (120s)
//	--json                            one JSON object on stdout; generate: one a prompt
//	--log-level L                     debug, info, warn or error, on stderr (warn)
//
// Prompts, of verify and generate:
//
//	--prompt TEXT, --ids 1,2,3, --prompt-file FILE (a prompt a line); each may be repeated
//	--max-new-tokens N                (16)
//	--temperature, --top-k, --top-p, --seed   generate only; greedy without them; the last three
//	                                  alone mean temperature 1
//
// A session:
//
//	$ launch generate --prompt 'The red fox eats'
//	 berries.
//
// Tokens and tables go to stdout, everything else to stderr. Exit codes: 0 done,
// equal; 1 different; 2 refused input; 3 vacuous (FC1 or MMRS never ran); 4
// near-tie; 5 group failure; 129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := withSignals(context.Background())
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var failed signalError
	if err != nil && errors.As(context.Cause(ctx), &failed) {
		err = failed
	}
	stop()
	os.Exit(exitCode(err))
}

// run is one command. What it returns has been printed on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		var silent exitError
		var stopped signalError
		switch cause := context.Cause(ctx); {
		case errors.As(cause, &stopped) && len(args) > 0 && args[0] == rankName:
		case errors.As(cause, &stopped):
			fmt.Fprintln(stderr, "launch:", cause)
		case errors.As(err, &silent) && silent.text == "":
		default:
			fmt.Fprintln(stderr, "launch:", err)
		}
	}
	return err
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "launch",
		Short:         "run, verify and break tensor-parallel groups",
		Long:          "Launch runs tensor-parallel groups of ranks.\n\n" + exitTable,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		name := c.Name() + ": "
		if !c.HasParent() {
			name = "" // every line begins with it
		}
		return refuse("%s%w (see %s --help)", name, err, c.CommandPath())
	})
	root.AddCommand(verifyCommand(), generateCommand(), upCommand(), statusCommand(),
		stopCommand(), rankCommand())
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return root
}

// noArgs refuses what is not a flag, naming it.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasParent() {
		return refuse("no such command: %q (want verify, generate, up, status or stop)", args[0])
	}
	return refuse("%s: unexpected argument %q", c.Name(), args[0])
}
