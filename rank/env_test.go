package rank

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/model"
)

// goodEnv is a complete environment.
func goodEnv() map[string]string {
	return map[string]string{EnvModel: "/m", EnvRank: "1", EnvTP: "2", EnvMaster: "127.0.0.1:9",
		EnvRunID: "run"}
}

func getenv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestFromEnvDefaults(t *testing.T) {
	// What is unset takes the model's defaults and a free loopback port.
	c, err := FromEnv(getenv(goodEnv()))
	require.NoError(t, err)
	require.Equal(t, model.DefaultOptions(), c.Options)
	require.Equal(t, "127.0.0.1:0", c.Listen)
	require.Equal(t, 1, c.Rank)
	require.Nil(t, c.Failpoint)
	require.False(t, c.Digests)
}

func TestFromEnvRefuses(t *testing.T) {
	// The first wrong variable is named, with what it may be.
	for _, c := range []struct{ name, value, want string }{
		{EnvModel, "", "OCTET_MODEL is \"\": must be 1 to 4096 bytes"},
		{EnvTP, "65", "OCTET_TP is \"65\": must be a whole number in 1..64"},
		{EnvTP, "two", "OCTET_TP is \"two\""},
		{EnvRank, "2", "OCTET_RANK is \"2\": must be a whole number in 0..1"},
		{EnvRank, "-1", "OCTET_RANK"},
		{EnvMaster, "localhost", "OCTET_MASTER is \"localhost\": must be host:port"},
		{EnvRunID, "", "OCTET_RUN_ID"},
		{EnvDigests, "maybe", "OCTET_DIGESTS is \"maybe\": must be true or false"},
		{EnvFailpoint, "rank/step:3=die", "OCTET_FAILPOINT"},
		{"OCTET_ENABLE_FLASHCOMM1", "si", "OCTET_ENABLE_FLASHCOMM1"},
		{"OCTET_FLASHCOMM1_MIN_TP", "0", "OCTET_FLASHCOMM1_MIN_TP"},
		{"OCTET_MMRS_COMM_MODE", "ring", "aiv, ai_cpu or none"},
		{"OCTET_MMRS_CONTRACT", "strict", "OCTET_MMRS_CONTRACT"},
	} {
		env := goodEnv()
		env[c.name] = c.value
		_, err := FromEnv(getenv(env))
		require.ErrorContains(t, err, c.want)
	}
}

func TestEnvironRoundTrip(t *testing.T) {
	// FromEnv reads back what Environ wrote.
	c := Config{RunID: "run", Rank: 3, Size: 8, Build: "b", Model: "/m", Listen: "127.0.0.1:7",
		Digests: true, Options: model.DefaultOptions()}
	c.Options.FlashComm1, c.Options.MinTP, c.Options.Chunk = true, 2, 128
	points := Failpoints{"rank/step:3": ActionError, "model/plan": ActionError}
	env := map[string]string{}
	for _, line := range c.Environ("127.0.0.1:9", points) {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	back, err := FromEnv(getenv(env))
	require.NoError(t, err)
	require.ErrorContains(t, back.Failpoint("rank/step:3"), "failpoint rank/step:3")
	require.NoError(t, back.Failpoint("rank/step:4"))
	require.Equal(t, c.Options, back.Options)
	require.Equal(t, []any{c.RunID, c.Rank, c.Size, c.Build, c.Model, c.Listen, c.Digests},
		[]any{back.RunID, back.Rank, back.Size, back.Build, back.Model, back.Listen, back.Digests})
}

func TestParseFailpoints(t *testing.T) {
	// The grammar is name=action[,name=action]; all else is refused by name.
	points, err := ParseFailpoints("rank/step:3=kill,model/plan=error,collective/op:17=stop")
	require.NoError(t, err)
	require.Equal(t, Failpoints{"rank/step:3": ActionKill, "model/plan": ActionError,
		"collective/op:17": ActionStop}, points)
	require.Equal(t, "collective/op:17=stop,model/plan=error,rank/step:3=kill", points.String())
	none, err := ParseFailpoints("")
	require.NoError(t, err)
	require.Empty(t, none)
	for _, bad := range []string{",", "rank/step:3", "rank/step:3=", "=kill", "step=kill",
		"rank/step:x=kill", "rank/step:3=kill,", "rank/step:3=kill=kill",
		"rank/loaded=kill,rank/loaded=exit", "disk/full=error"} {
		_, err := ParseFailpoints(bad)
		require.Error(t, err, bad)
	}
}

func TestConfigValidate(t *testing.T) {
	// The first wrong field is named.
	good, err := FromEnv(getenv(goodEnv()))
	require.NoError(t, err)
	for want, spoil := range map[string]func(c *Config){
		"run id":           func(c *Config) { c.RunID = "" },
		"size 65":          func(c *Config) { c.Size = 65 },
		"rank 2":           func(c *Config) { c.Rank = 2 },
		"no model":         func(c *Config) { c.Model = "" },
		"dial the master":  func(c *Config) { c.Dial = nil },
		"neither a mesh":   func(c *Config) { c.Listen = "" },
		"gossip lacks":     func(c *Config) { c.Gossip = &Gossip{} },
		"negative limit":   func(c *Config) { c.Grace = -1 },
		"heartbeat 500ms":  func(c *Config) { c.Dead = beatDefault },
		"mmrs_comm_mode":   func(c *Config) { c.Options.CommMode = "ring" },
		"not in 0..1":      func(c *Config) { c.Rank = -1 },
		"flashcomm1_min_t": func(c *Config) { c.Options.MinTP = 0 },
	} {
		c := good
		spoil(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
	require.True(t, slices.IsSorted(good.Environ("h:1", nil)))
}
