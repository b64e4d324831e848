package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"octet/collective"
	"octet/model"
)

// golden is one prompt of a golden file.
type golden struct {
	IDs    []int `json:"ids"`
	Greedy []int `json:"greedy"`
	Steps  []struct {
		Margin float64 `json:"margin"`
	} `json:"steps"`
}

// preset is the directory of a golden checkpoint.
func preset(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "shared", "golden", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the golden checkpoint %s is not here", dir)
	}
	abs, err := filepath.Abs(dir)
	require.NoError(t, err)
	return abs
}

// prompts reads the golden prompts whose lengths are asked for.
func prompts(t *testing.T, dir string, lengths ...int) []golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var file struct{ Prompts []golden }
	require.NoError(t, json.Unmarshal(data, &file))
	var out []golden
	for _, n := range lengths {
		for _, p := range file.Prompts {
			if len(p.IDs) == n {
				out = append(out, p)
				break
			}
		}
	}
	require.Len(t, out, len(lengths))
	return out
}

// until is a context for all waits of a test.
func until(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// settings of the three ways to run, with the flags that Expect takes.
func settings() map[string]model.Options {
	off := model.DefaultOptions()
	off.MinPrefillTokens, off.MinTP = 1, 2
	fc1 := off
	fc1.FlashComm1 = true
	mmrs := fc1
	mmrs.MMRS = true
	return map[string]model.Options{"off": off, "fc1": fc1, "mmrs": mmrs}
}

func flagsOf(o model.Options) Flags {
	return Flags{FC1: o.FlashComm1, MinTokens: o.MinPrefillTokens, MinTP: o.MinTP, MMRS: o.MMRS,
		Float32: o.Contract == model.ContractExtended}
}

// virtual is a Spec of ranks that are goroutines.
func virtual(t *testing.T, name string, tp int, o model.Options) Spec {
	return Spec{TP: tp, Model: preset(t, name), Options: o, Virtual: true}
}

// processes is a Spec of ranks that are processes of this test binary.
func processes(t *testing.T, name string, tp int, o model.Options, printed *printed) Spec {
	s := virtual(t, name, tp, o)
	s.Virtual = false
	s.Command = []string{os.Args[0], "-test.run=^$"}
	s.Output = printed
	s.RankEnv = map[int][]string{}
	for r := range tp {
		s.RankEnv[r] = []string{role + "=rank"}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what the ranks printed:\n%s", printed.String())
		}
	})
	return s
}

// printed collects what ranks print.
type printed struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// start starts a group that the test stops at its end.
func start(t *testing.T, s Spec) *Group {
	t.Helper()
	g, err := Start(until(t, 60*time.Second), s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Stop(until(t, 10*time.Second)) })
	return g
}

// collect reads a stream to its end.
func collect(t *testing.T, events <-chan Event) (ids []int, last Event) {
	t.Helper()
	ctx := until(t, 60*time.Second)
	for {
		select {
		case e, open := <-events:
			if !open {
				return ids, last
			}
			require.Empty(t, last.Finish, "an event after the last")
			last = e
			if e.Err == nil {
				ids = append(ids, e.Token.ID)
			}
		case <-ctx.Done():
			t.Fatalf("the stream has not ended; %d tokens so far", len(ids))
		}
	}
}

// requireGolden compares tokens up to the first one that was nearly another.
func requireGolden(t *testing.T, p golden, ids []int) {
	t.Helper()
	for i, id := range ids {
		if p.Steps[i].Margin < 0.01 {
			return
		}
		require.Equal(t, p.Greedy[i], id, "token %d of the prompt of %d", i, len(p.IDs))
	}
}

// generate runs prompts side by side and compares their tokens.
func generate(t *testing.T, g *Group, ps []golden, n int) {
	t.Helper()
	var streams []<-chan Event
	for i, p := range ps {
		events, err := g.Submit(context.Background(),
			Request{ID: uint64(i + 1), IDs: p.IDs, MaxNew: n})
		require.NoError(t, err)
		streams = append(streams, events)
	}
	for i, events := range streams {
		ids, last := collect(t, events)
		require.NoError(t, last.Err)
		require.Equal(t, model.FinishLength, last.Finish)
		require.Len(t, ids, n)
		requireGolden(t, ps[i], ids)
	}
}

// A virtual group gives the golden tokens with FC1 off, on, and on with a fusion
// that this model is too narrow for, counts what the formula says in each step on
// each rank, agrees on digests, and leaves no goroutine.
func TestVirtualGroup(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var first map[model.DigestKey]uint64
	for _, name := range []string{"off", "fc1", "mmrs"} {
		o := settings()[name]
		s := virtual(t, "qwen3-tp8", 8, o)
		s.Digests = true
		var stages []string
		s.Progress = func(stage string, done, of int) {
			if done == of {
				stages = append(stages, stage)
			}
		}
		g := start(t, s)
		require.Equal(t, []string{"join", "handshake", "linked", "loaded", "ready"}, stages)
		generate(t, g, prompts(t, s.Model, 3, 17), 4)

		shape, err := ReadShape(s.Model)
		require.NoError(t, err)
		require.NoError(t, Check(shape, 8, flagsOf(o), g.Steps()), name)
		active := 0
		for _, r := range g.Steps() {
			if r.Decision.FC1 {
				active++
				require.Equal(t, o.MMRS, r.Decision.FuseReason.Down == model.FuseReasonWidth)
			}
		}
		require.Equal(t, o.FlashComm1, active > 0, name)

		digests, err := g.Digests(until(t, 10*time.Second), 2)
		require.NoError(t, err)
		require.NotEmpty(t, digests)
		if first == nil {
			first = digests
		}
		require.Equal(t, first, digests, "hidden states with %s", name)

		status := g.Status()
		require.Equal(t, "ready", status.State)
		require.Len(t, status.Ranks, 8)
		require.Positive(t, status.Ranks[5].Bytes)
		require.Positive(t, status.Ranks[5].Device)
		require.NoError(t, g.Stop(until(t, 10*time.Second)))
		require.NoError(t, g.Stop(until(t, 10*time.Second)), "it may be called again")
		require.NoError(t, g.Err())
		require.Equal(t, "stopped", g.Status().State)
		_, err = g.Submit(context.Background(), Request{ID: 9, IDs: []int{1}, MaxNew: 1})
		require.ErrorIs(t, err, ErrStopped)
	}
}

// Both projections of qwen3-demo are wide enough at TP 8, so MMRS really runs,
// in both modes, and the counts follow.
func TestVirtualGroupFuses(t *testing.T) {
	for mode, want := range map[string]collective.CommMode{
		model.CommModeAIV: collective.AIV, model.CommModeAICPU: collective.AICPU} {
		o := settings()["mmrs"]
		o.CommMode = mode
		s := virtual(t, "qwen3-demo", 8, o)
		g := start(t, s)
		generate(t, g, prompts(t, s.Model, 17), 2)
		shape, err := ReadShape(s.Model)
		require.NoError(t, err)
		require.NoError(t, Check(shape, 8, flagsOf(o), g.Steps()))
		first := g.Steps()[0]
		require.EqualValues(t, 2*shape.Layers, first.Counts.Calls(collective.MatmulReduceScatter))
		require.Equal(t, want, first.Decision.Mode)
	}
}

// A request that is cancelled ends with its context's error and leaves the
// plans; others give the same tokens as ever.
func TestCancelARequest(t *testing.T) {
	s := virtual(t, "qwen3-tp8", 2, settings()["off"])
	g := start(t, s)
	p := prompts(t, s.Model, 3, 5)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dropped, err := g.Submit(ctx, Request{ID: 1, IDs: p[0].IDs, MaxNew: 400})
	require.NoError(t, err)
	select {
	case e := <-dropped:
		require.NoError(t, e.Err)
	case <-until(t, 30*time.Second).Done():
		t.Fatal("no token of the request")
	}
	cancel()
	_, last := collect(t, dropped)
	require.ErrorIs(t, last.Err, context.Canceled)
	kept, err := g.Submit(context.Background(), Request{ID: 2, IDs: p[1].IDs, MaxNew: 12})
	require.NoError(t, err)
	ids, last := collect(t, kept)
	require.NoError(t, last.Err)
	require.Len(t, ids, 12)
	requireGolden(t, p[1], ids)
	for _, r := range slices.Backward(g.Steps()) {
		if r.Facts.DecodeRows == 0 {
			break // the prompt of the second request
		}
		require.Equal(t, 1, r.Facts.Rows, "step %d has rows of a request that is gone", r.Step)
	}
	_, err = g.Submit(ctx, Request{ID: 3, IDs: p[0].IDs, MaxNew: 1})
	require.ErrorIs(t, err, context.Canceled)
}

// A stop in the middle of a request ends its stream and the group, in order and
// without blaming anybody.
func TestStopInTheMiddle(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := start(t, virtual(t, "qwen3-tp8", 4, settings()["fc1"]))
	events, err := g.Submit(context.Background(), Request{ID: 1, IDs: []int{1, 2}, MaxNew: 500})
	require.NoError(t, err)
	select {
	case e := <-events:
		require.NoError(t, e.Err)
	case <-until(t, 30*time.Second).Done():
		t.Fatal("no token")
	}
	require.NoError(t, g.Stop(until(t, 10*time.Second)))
	_, last := collect(t, events)
	require.ErrorIs(t, last.Err, ErrStopped)
	require.NoError(t, g.Err())
	require.NotEmpty(t, g.Steps())
}

// What a request asks is checked before it runs, and the group lives on.
func TestSubmitRefuses(t *testing.T) {
	g := start(t, virtual(t, "qwen3-tp8", 1, settings()["off"]))
	for want, r := range map[string]Request{
		"no token":         {ID: 1, MaxNew: 1},
		"at least 1":       {ID: 1, IDs: []int{1}},
		"vocabulary":       {ID: 1, IDs: []int{320}, MaxNew: 1},
		"exceed 512 posit": {ID: 1, IDs: []int{1}, MaxNew: 512},
	} {
		_, err := g.Submit(context.Background(), r)
		require.ErrorContains(t, err, want)
	}
	_, err := g.Digests(until(t, 5*time.Second), 77)
	require.Error(t, err)
	require.Equal(t, "ready", g.Status().State)
}

// A rank that fails by itself is named, with the phase, and requests end with
// the failure.
func TestVirtualFailures(t *testing.T) {
	for _, c := range []struct{ point, want string }{
		{"rank/handshake=error", "rank 1 ended in handshake: "},
		{"rank/loaded=error", "rank 1 ended in load: "},
	} {
		t.Run(c.point, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			s := virtual(t, "qwen3-tp8", 2, settings()["off"])
			s.RankEnv = map[int][]string{1: {"OCTET_FAILPOINT=" + c.point}}
			_, err := Start(until(t, 30*time.Second), s)
			var f *Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, 1, f.Rank, f.Error())
			require.Contains(t, f.Error(), c.want)
			require.Contains(t, f.Error(), "failpoint")
		})
	}
}

// A rank whose step fails, while its peers are in a collective with it or wait
// for it, is named by all, and the request ends with that.
func TestVirtualStepFailures(t *testing.T) {
	for _, point := range []string{"rank/step:2=error", "collective/op:3=error",
		"collective/op:20=error"} {
		t.Run(point, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			s := virtual(t, "qwen3-tp8", 4, settings()["fc1"])
			s.RankEnv = map[int][]string{3: {"OCTET_FAILPOINT=" + point}}
			g := start(t, s)
			events, err := g.Submit(context.Background(),
				Request{ID: 1, IDs: []int{1, 2, 3}, MaxNew: 8})
			require.NoError(t, err)
			_, last := collect(t, events)
			var f *Failure
			require.ErrorAs(t, last.Err, &f)
			require.Equal(t, 3, f.Rank, f.Error())
			require.Contains(t, f.Phase, "step ", f.Error())
			require.Contains(t, f.Error(), "failpoint")
			require.Same(t, f, requireFailure(t, g))
		})
	}
}

// One rank that derives another plan is named before any data moves.
func TestAnotherPlanIsNamed(t *testing.T) {
	s := virtual(t, "qwen3-tp8", 4, settings()["fc1"])
	s.RankEnv = map[int][]string{2: {"OCTET_FAILPOINT=model/plan=error"}}
	g := start(t, s)
	events, err := g.Submit(context.Background(), Request{ID: 1, IDs: []int{1, 2, 3}, MaxNew: 4})
	require.NoError(t, err)
	ids, last := collect(t, events)
	require.Empty(t, ids)
	var f *Failure
	require.ErrorAs(t, last.Err, &f)
	require.Equal(t, 2, f.Rank, f.Error())
	require.Equal(t, collective.Mismatch, f.Cause.Class)
	require.Equal(t, "step 1 (prefill)", f.Phase)
	require.Contains(t, f.Error(),
		"this rank derives fc1 off (enable_flashcomm1 is off), the plan says")
	select {
	case <-g.Done():
	case <-until(t, 10*time.Second).Done():
		t.Fatal("the group has not ended")
	}
	require.ErrorAs(t, g.Err(), &f)
	require.Equal(t, "failed", g.Status().State)
	_, err = g.Submit(context.Background(), Request{ID: 2, IDs: []int{1}, MaxNew: 1})
	require.ErrorAs(t, err, &f)
}

// A Spec is refused with the name of what is wrong, before anything starts.
func TestSpecIsChecked(t *testing.T) {
	good := Spec{TP: 2, Model: "x", Options: model.DefaultOptions(), Virtual: true}
	for want, change := range map[string]func(s *Spec){
		"0 ranks":           func(s *Spec) { s.TP = 0 },
		"no model":          func(s *Spec) { s.Model = "" },
		"no command":        func(s *Spec) { s.Virtual = false },
		"for rank 2":        func(s *Spec) { s.RankEnv = map[int][]string{2: nil} },
		"mmrs_comm_mode":    func(s *Spec) { s.Options.CommMode = "fast" },
		"limit of silence":  func(s *Spec) { s.Limits.Dead = 60 * time.Millisecond },
		"limit of a step":   func(s *Spec) { s.Limits.Step = time.Second },
		"limit is negative": func(s *Spec) { s.Limits.Teardown = -1 },
		"config":            func(s *Spec) { s.Model = t.TempDir() },
	} {
		s := good
		change(&s)
		_, err := Start(context.Background(), s)
		require.ErrorContains(t, err, want)
		var f *Failure
		require.False(t, errors.As(err, &f), "bad input is no failure of the group")
	}
}

// The start ends with its context, and nothing is left.
func TestStartIsCancelled(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := virtual(t, "qwen3-tp8", 4, settings()["off"])
	ctx, cancel := context.WithCancel(context.Background())
	s.Progress = func(stage string, done, of int) {
		if stage == "join" && done == 2 {
			cancel()
		}
	}
	_, err := Start(ctx, s)
	require.ErrorIs(t, err, context.Canceled, fmt.Sprint(err))
}
