package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"octet/cluster"
	"octet/model"
)

func upCommand() *cobra.Command {
	var g groupFlags
	c := &cobra.Command{
		Use:   "up",
		Short: "start a group and serve other terminals until stopped",
		Long: "Up starts a group, stays in the foreground, and serves launch generate, status\n" +
			"and stop from other terminals through a socket file in --run-dir.\n\n" + exitTable,
		Args: noArgs,
	}
	addFlags(c, &g, nil, model.DefaultOptions())
	c.RunE = func(c *cobra.Command, _ []string) error {
		return up(c.Context(), &g, c.OutOrStdout(), c.ErrOrStderr())
	}
	return c
}

func up(ctx context.Context, g *groupFlags, stdout, stderr io.Writer) error {
	t, err := g.open()
	if err != nil {
		return err
	}
	lock, err := holdRunDir(g.runDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	spec, err := g.spec(t, g.options, stderr)
	if err != nil {
		return err
	}
	l, err := listen(g.runDir)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintf(stderr, "launch: starting %d ranks of %s\n", g.tp, t.name)
	group, err := cluster.Begin(spec)
	if err != nil {
		return err
	}
	s := newServer(group, g.flags(t), t)
	return s.serve(ctx, l, func() error {
		fmt.Fprintf(stderr, "launch: ready, serving on %s\n", filepath.Join(g.runDir, socketName))
		if !g.json {
			return nil
		}
		if err := json.NewEncoder(stdout).Encode(s.report()); err != nil {
			return refuse("write the status: %w", err)
		}
		return nil
	})
}

// flags are the settings of a group that another command may be asked for.
func (g *groupFlags) flags(t *target) map[string]any {
	m := map[string]any{"tp": g.tp, "model": t.dir, "virtual": g.virtual}
	for name, value := range g.options.Map() {
		m[name] = value
	}
	return m
}

// How long the group that is up may take to say how it is, and to end.
const (
	statusLimit = 5 * time.Second
	stopLimit   = 15 * time.Second
)

// client talks to the group that is up in a run directory.
type client struct {
	dir  string
	http http.Client
}

func newClient(dir string) *client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, socketName))
	}
	return &client{dir: dir, http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// errNoGroup says that no group is up in a run directory.
var errNoGroup = errors.New("no group is up")

// absent reports whether err says that no group can be up where it was looked
// for. A name that no socket file can have is EINVAL.
func absent(err error) bool {
	for _, is := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ENOTDIR,
		syscall.EINVAL, syscall.ENAMETOOLONG} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

func (c *client) do(ctx context.Context, method, path string,
	body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://octet"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		var connect *net.OpError
		errors.As(err, &connect)
		switch {
		case connect != nil && connect.Op == "dial" && absent(err):
			return nil, refuse("%w in %s: start one with launch up, or give its --run-dir (%w)",
				errNoGroup, c.dir, connect.Err)
		case connect != nil && connect.Op == "dial":
			return nil, refuse("--run-dir: %w", connect)
		}
		return nil, fmt.Errorf("ask the group in %s: %w", c.dir, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return nil, refuse("the group in %s refused: %s", c.dir, bytes.TrimSpace(text))
	}
	return resp, nil
}

func (c *client) status(ctx context.Context) (*statusReport, error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	resp, err := c.do(ctx, "GET", "/status", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var s statusReport
	return &s, json.NewDecoder(resp.Body).Decode(&s)
}

func statusCommand() *cobra.Command {
	var g groupFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "say how the group in the run directory is",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := newLogger(io.Discard, g.logLevel); err != nil {
				return err
			}
			s, err := newClient(g.runDir).status(c.Context())
			if err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(c.OutOrStdout()).Encode(s)
			}
			s.write(c.OutOrStdout())
			return nil
		},
	}
	registerRunDir(c.Flags(), &g)
	return c
}

func (s *statusReport) write(w io.Writer) {
	fmt.Fprintf(w, "%s: %s, TP=%d, epoch %d, launch %d, %d members\n",
		s.State, s.Model, s.TP, s.Epoch, s.PID, s.Members)
	if s.Last != "" {
		fmt.Fprintln(w, "last failure:", s.Last)
	}
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"rank", "pid", "host", "state", "step", "weight bytes",
		"device us", "members"})
	for _, r := range s.Ranks {
		state := r.State
		if r.Suspected {
			state += " (suspected)"
		}
		t.AppendRow(table.Row{r.Rank, r.PID, r.Host, state, r.Step, r.WeightBytes,
			fmt.Sprintf("%.1f", r.DeviceUS), r.Members})
	}
	t.Render()
}

// stopReport is the JSON object of stop.
type stopReport struct {
	Schema int    `json:"schema"`
	State  string `json:"state"` // stopped
}

func stopCommand() *cobra.Command {
	var g groupFlags
	c := &cobra.Command{
		Use:   "stop",
		Short: "end the group in the run directory",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := newLogger(io.Discard, g.logLevel); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), stopLimit)
			defer cancel()
			resp, err := newClient(g.runDir).do(ctx, "POST", "/stop", nil)
			if err != nil {
				return err
			}
			if g.json {
				err = json.NewEncoder(c.OutOrStdout()).Encode(stopReport{schemaVersion, "stopped"})
			}
			return errors.Join(err, resp.Body.Close())
		},
	}
	registerRunDir(c.Flags(), &g)
	return c
}
