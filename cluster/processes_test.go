package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/model"
	"octet/rank"
)

func pids(g *Group) []int {
	var out []int
	for _, r := range g.Status().Ranks {
		out = append(out, r.PID)
	}
	return out
}

// requireFailure waits for the end of a group and returns why.
func requireFailure(t *testing.T, g *Group) *Failure {
	t.Helper()
	select {
	case <-g.Done():
	case <-until(t, 5*time.Second).Done():
		t.Fatal("the group has not ended within 5 s")
	}
	var f *Failure
	require.ErrorAs(t, g.Err(), &f)
	return f
}

// requireNoChild fails when this process has a child left.
func requireNoChild(t *testing.T) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err == nil { // else the thread has ended
			require.Empty(t, strings.TrimSpace(string(data)))
		}
	}
}

// Eight processes give the golden tokens with FC1, count what the formula says,
// see each other in gossip with the master, and are gone after the stop.
func TestProcessGroup(t *testing.T) {
	o := settings()["fc1"]
	var out printed
	s := processes(t, "qwen3-tp8", 8, o, &out)
	g := start(t, s)
	generate(t, g, prompts(t, s.Model, 3, 17), 4)
	shape, err := ReadShape(s.Model)
	require.NoError(t, err)
	require.NoError(t, Check(shape, 8, flagsOf(o), g.Steps()))
	require.Eventually(t, func() bool { return g.Status().Members == 9 },
		10*time.Second, lookAgain, "gossip does not see eight ranks and the master")
	all := pids(g)
	require.Equal(t, &rank.Refuse{Reason: fmt.Sprintf("rank 3 is held by pid %d on %s",
		all[3], g.Status().Ranks[3].Host)}, pretend(t, g, 3))
	generate(t, g, prompts(t, s.Model, 5), 2)
	for _, pid := range all {
		require.True(t, alive(pid))
	}
	require.NoError(t, g.Stop(until(t, 10*time.Second)))
	require.Equal(t, "stopped", g.Status().State)
	requireGone(t, all...)
}

// pretend says HELLO as a rank of the group and returns the answer.
func pretend(t *testing.T, g *Group, r int) rank.Message {
	t.Helper()
	raw, err := net.Dial("tcp", g.address)
	require.NoError(t, err)
	conn := rank.NewConn(raw)
	t.Cleanup(func() { _ = conn.Close() })
	id := g.master.cfg.identity
	require.NoError(t, conn.Write(&rank.Hello{Build: id.Build, RunID: id.RunID, Rank: r,
		Size: id.Size, PID: 1, Host: "elsewhere", Mesh: "127.0.0.1:1", Options: id.Options,
		Cores: 1},
		time.Now().Add(time.Second)))
	answer, err := conn.Read(time.Now().Add(5 * time.Second))
	require.NoError(t, err)
	return answer
}

// A rank that is killed while nothing runs ends the group within five seconds,
// by name, number and signal.
func TestKillAnIdleRank(t *testing.T) {
	var out printed
	g := start(t, processes(t, "qwen3-tp8", 2, settings()["off"], &out))
	all := pids(g)
	require.NoError(t, syscall.Kill(all[1], syscall.SIGKILL))
	require.Eventually(t, func() bool { return g.Status().State == "failed" },
		5*time.Second, lookAgain, "it does not show")
	var early *Failure
	_, err := g.Submit(context.Background(), Request{ID: 1, IDs: []int{1}, MaxNew: 1})
	require.ErrorAs(t, err, &early, "the verdict is waited for")
	f := requireFailure(t, g)
	require.Same(t, early, f)
	want := fmt.Sprintf(`rank 1 (pid %d) was killed by signal "killed" while ready`, all[1])
	require.Equal(t, want, strings.SplitN(f.Error(), ":", 2)[0])
	require.Equal(t, "failed", g.Status().State)
	requireGone(t, all...)
}

// A rank that is killed or exits at some point of its start fails the start by
// name, signal or exit status, and phase.
func TestKillAStartingRank(t *testing.T) {
	for _, c := range []struct{ point, phase, signal string }{
		{"rank/hello=kill", "join", "killed"},
		{"rank/hello=exit", "join", ""},
		{"rank/handshake=kill", "handshake", "killed"},
		{"rank/linked=kill", "link", "killed"},
		// The tiny shard is there before the word that the links stand has left.
		{"rank/loaded=kill", "link load", "killed"},
	} {
		t.Run(c.point, func(t *testing.T) {
			var out printed
			s := processes(t, "qwen3-tp8", 2, settings()["off"], &out)
			s.RankEnv[1] = append(s.RankEnv[1], rank.EnvFailpoint+"="+c.point)
			from := time.Now()
			_, err := Start(until(t, 30*time.Second), s)
			require.Less(t, time.Since(from), 10*time.Second)
			var f *Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, 1, f.Rank, f.Error())
			require.Equal(t, c.signal, f.Signal, f.Error())
			require.Contains(t, strings.Fields(c.phase), f.Phase, f.Error())
			require.NotZero(t, f.PID)
			if c.signal == "" {
				require.Equal(t, rank.ExitFailpoint, f.Exit)
			}
			requireGone(t, f.PID)
			requireNoChild(t)
		})
	}
}

// A rank that is killed in a step ends all streams with the failure; the tokens
// before it are right.
func TestKillARankInAStep(t *testing.T) {
	var out printed
	s := processes(t, "qwen3-tp8", 2, settings()["off"], &out)
	s.RankEnv[1] = append(s.RankEnv[1], rank.EnvFailpoint+"=rank/step:3=kill")
	g := start(t, s)
	all := pids(g)
	p := prompts(t, s.Model, 3)[0]
	events, err := g.Submit(context.Background(), Request{ID: 1, IDs: p.IDs, MaxNew: 8})
	require.NoError(t, err)
	ids, last := collect(t, events)
	var f *Failure
	require.ErrorAs(t, last.Err, &f)
	require.Equal(t, []int{1}, f.Cause.Culprits)
	require.Equal(t, "killed", f.Signal)
	require.Equal(t, "step 3 (decode)", f.Phase)
	require.Equal(t, all[1], f.PID)
	require.Len(t, ids, 2)
	requireGolden(t, p, ids)
	require.Same(t, f, requireFailure(t, g))
	requireGone(t, all...)
}

// A rank that freezes in a step has stalled, and SIGKILL ends it, because
// nothing else can.
func TestFreezeARank(t *testing.T) {
	var out printed
	s := processes(t, "qwen3-tp8", 2, settings()["off"], &out)
	s.Limits = Limits{Dead: 2 * time.Second, Teardown: time.Second}
	s.RankEnv[1] = append(s.RankEnv[1], rank.EnvFailpoint+"=rank/step:2=stop")
	g := start(t, s)
	all := pids(g)
	events, err := g.Submit(context.Background(), Request{ID: 1, IDs: []int{1, 2}, MaxNew: 8})
	require.NoError(t, err)
	_, last := collect(t, events)
	var f *Failure
	require.ErrorAs(t, last.Err, &f)
	require.Equal(t, 1, f.Rank, f.Error())
	require.Equal(t, collective.Stall, f.Cause.Class, f.Error())
	requireFailure(t, g)
	requireGone(t, all...)
}

// A rank with another option or another model directory is refused with both
// values shown.
func TestRankThatDiffers(t *testing.T) {
	other := preset(t, "qwen3-tp8-trained")
	for name, c := range map[string]struct{ env, want string }{
		"option": {"OCTET_ENABLE_FLASHCOMM1=false",
			`rank 1: enable_flashcomm1 is "false" there, "true" here`},
		"model": {"OCTET_MODEL=" + other, `rank 1: model.`},
		"build": {"OCTET_BUILD=mine", `rank 1: build is "mine" there, `},
	} {
		t.Run(name, func(t *testing.T) {
			var out printed
			s := processes(t, "qwen3-tp8", 2, settings()["fc1"], &out)
			s.RankEnv[1] = append(s.RankEnv[1], c.env)
			_, err := Start(until(t, 30*time.Second), s)
			var f *Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, 1, f.Rank)
			require.Equal(t, "join", f.Phase)
			require.Contains(t, f.Error(), c.want)
			requireGone(t, f.PID)
			requireNoChild(t)
		})
	}
}

// A rank that never speaks is named at the join deadline, alone.
func TestMissingRank(t *testing.T) {
	var out printed
	s := processes(t, "qwen3-tp8", 4, settings()["off"], &out)
	s.RankEnv[2] = []string{role + "=mute"}
	s.Limits.Join = 3 * time.Second
	_, err := Start(until(t, 30*time.Second), s)
	var f *Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, 2, f.Rank)
	require.Contains(t, f.Error(),
		fmt.Sprintf("not ready after 3s: rank 2 (pid %d) never connected", f.PID))
	require.NotContains(t, f.Error(), "rank 0")
	requireNoChild(t)
}

// A command that does not exist is named, and the ranks before it are ended.
func TestCommandThatIsNot(t *testing.T) {
	var out printed
	s := processes(t, "qwen3-tp8", 2, settings()["off"], &out)
	s.Command = []string{"/no/such/rank"}
	_, err := Start(until(t, 30*time.Second), s)
	require.ErrorContains(t, err, "start rank 0: ")
	require.ErrorContains(t, err, "/no/such/rank")
}

// When the process that started a group is killed, its ranks are gone within
// three seconds: those that have a connection to lose, and where the kernel
// tells children those that never spoke.
func TestOrphansEnd(t *testing.T) {
	for _, as := range []string{"launch", "launch mute"} {
		t.Run(as, func(t *testing.T) {
			if as == "launch mute" && !waitExitLeaves {
				t.Skip("the kernel here tells children nothing")
			}
			dir := preset(t, "qwen3-tp8")
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), role+"="+as, "OCTET_TEST_MODEL="+dir)
			cmd.Stderr = os.Stderr
			pipe, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			lines := bufio.NewScanner(pipe)
			require.True(t, lines.Scan(), "the launcher has said nothing")
			var a, b int
			_, err = fmt.Sscan(lines.Text(), &a, &b)
			require.NoError(t, err, lines.Text())
			require.True(t, alive(a) && alive(b))
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			from := time.Now()
			requireGone(t, a, b)
			require.Less(t, time.Since(from), 3*time.Second)
		})
	}
}

// beMuteLauncher starts two processes that never speak and waits.
func beMuteLauncher() int {
	f := newForker()
	var all []int
	for r := range 2 {
		p, err := startProcess(f, r, []string{os.Args[0], "-test.run=^$"},
			append(os.Environ(), role+"=mute"), &output{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		all = append(all, p.pid)
	}
	fmt.Println(all[0], all[1])
	<-time.After(time.Minute)
	return 0
}

// beLauncher starts a group, prints the numbers of its ranks and waits.
func beLauncher() int {
	g, err := Start(context.Background(), Spec{TP: 2, Model: os.Getenv("OCTET_TEST_MODEL"),
		Options: model.DefaultOptions(), Command: []string{os.Args[0], "-test.run=^$"},
		Output:  os.Stderr,
		RankEnv: map[int][]string{0: {role + "=rank"}, 1: {role + "=rank"}}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	all := pids(g)
	fmt.Println(all[0], all[1])
	<-g.Done()
	return 0
}

// Strangers are closed: those that speak another tongue at once, the silent in
// time. Neither keeps a rank from coming in.
func TestStrangers(t *testing.T) {
	events := make(chan any, 10)
	c := newControl(func(e any) bool { events <- e; return true }, time.Second, quiet().Debug)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go c.accept(l)
	t.Cleanup(func() {
		_ = l.Close()
		c.close()
	})
	connect := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(2*strangerWait)))
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	silent := connect()
	from := time.Now()
	for _, word := range []string{"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "\x00\x10\x00\x00"} {
		talks := connect()
		_, err = io.WriteString(talks, word)
		require.NoError(t, err)
		_, err = io.ReadAll(talks)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "not closed: %q", word)
		require.Less(t, time.Since(from), strangerWait/2, "%q", word)
	}

	comes := connect()
	greeting := &rank.Hello{RunID: "run", Rank: 1, Size: 2, Mesh: "m", Host: "here", Cores: 1,
		Options: map[string]string{"a": "b"}}
	require.NoError(t, rank.NewConn(comes).Write(greeting, time.Now().Add(time.Second)))
	e := (<-events).(hello)
	require.Equal(t, greeting, e.Hello)
	c.turn(e.Conn, &rank.Refuse{Reason: "full"})
	m, err := rank.NewConn(comes).Read(time.Now().Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, &rank.Refuse{Reason: "full"}, m)

	_, err = io.ReadAll(silent)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "not closed")
	require.GreaterOrEqual(t, time.Since(from), strangerWait/2)
	require.Empty(t, events, "strangers are no events")
}
