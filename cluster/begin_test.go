package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"octet/model"
)

// A group says that it is starting until it is ready, and then that it is.
func TestBeginShowsTheStart(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := virtual(t, "qwen3-tp8", 2, settings()["off"])
	held, goOn := make(chan struct{}), make(chan struct{})
	s.Progress = func(stage string, done, of int) {
		if stage == "join" && done == 1 {
			close(held)
			<-goOn
		}
	}
	g, err := Begin(s)
	require.NoError(t, err)
	<-held
	shown := make(chan Status, 1)
	go func() { shown <- g.Status() }() // ends when the loop goes on
	select {
	case <-g.Ready():
		t.Fatal("ready without rank 1")
	default:
	}
	close(goOn)
	require.Contains(t, []string{"starting", "ready"}, (<-shown).State)
	select {
	case <-g.Ready():
	case <-until(t, 10*time.Second).Done():
		t.Fatal("not ready within 10 s")
	}
	require.Equal(t, "ready", g.Status().State)
	require.NoError(t, g.Stop(until(t, 10*time.Second)))
}

// A group that is stopped while it starts is never ready, and ends.
func TestStopWhileStarting(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g, err := Begin(virtual(t, "qwen3-tp8", 4, settings()["off"]))
	require.NoError(t, err)
	require.NoError(t, g.Stop(until(t, 10*time.Second)))
	require.Equal(t, "stopped", g.Status().State)
}

// A rank that is told to be another one ends its group, by name; none is taken
// for another, and nobody waits for it.
func TestRankKeepsItsNumber(t *testing.T) {
	var out printed
	for name, s := range map[string]Spec{
		"virtual":   virtual(t, "qwen3-tp8", 4, settings()["off"]),
		"processes": processes(t, "qwen3-tp8", 4, settings()["off"], &out),
	} {
		t.Run(name, func(t *testing.T) {
			env := append(s.RankEnv[2], "OCTET_RANK=1")
			s.RankEnv = map[int][]string{0: s.RankEnv[0], 1: s.RankEnv[1], 2: env, 3: s.RankEnv[3]}
			_, err := Start(until(t, 10*time.Second), s)
			require.Error(t, err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Regexp(t, `rank 2`, err.Error())
		})
	}
}

// Ranks are configured by their group alone: what the environment of the
// launcher says in OCTET_ variables is for other ranks, or for none.
func TestRanksIgnoreTheLaunchersVariables(t *testing.T) {
	for _, name := range []string{"OCTET_FAILPOINT=rank/hello=kill", "OCTET_LISTEN=nowhere",
		"OCTET_RANK=7", "OCTET_TP=3", "OCTET_BUILD=other"} {
		env := environ(&Spec{TP: 2, Model: "dir", Options: model.DefaultOptions(),
			RankEnv: map[int][]string{1: {"OCTET_CHUNK=5"}}}, "run", "127.0.0.1:1", 1,
			[]string{"HOME=/home", name})
		require.NotContains(t, env, name)
		require.Contains(t, env, "HOME=/home")
		require.Contains(t, env, "OCTET_RANK=1")
		require.Equal(t, "OCTET_CHUNK=5", env[len(env)-1])
	}
}

// What the caller asked for and cannot have is an InputError; it carries what
// is wrong.
func TestBadInputIsAnInputError(t *testing.T) {
	_, err := Begin(Spec{TP: 2, Model: t.TempDir(), Options: model.DefaultOptions(), Virtual: true})
	var input *InputError
	require.ErrorAs(t, err, &input)
	require.ErrorContains(t, err, "config")
	err = RunRank(t.Context(), func(string) string { return "" }, quiet())
	require.ErrorAs(t, err, &input, fmt.Sprint(err))
}
