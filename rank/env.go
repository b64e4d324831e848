package rank

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"octet/handshake"
	"octet/model"
)

// Names of the environment variables that a rank reads, beside one for each
// option of the model: OCTET_ and the option's name in upper case.
const (
	EnvModel     = "OCTET_MODEL"     // checkpoint directory
	EnvRank      = "OCTET_RANK"      // this rank
	EnvTP        = "OCTET_TP"        // ranks of the group
	EnvMaster    = "OCTET_MASTER"    // host:port of the master's control port
	EnvRunID     = "OCTET_RUN_ID"    // of the launch
	EnvBuild     = "OCTET_BUILD"     // what binary this is; empty: no name
	EnvListen    = "OCTET_LISTEN"    // host:port for peers; empty: a free loopback port
	EnvDigests   = "OCTET_DIGESTS"   // true: keep row digests
	EnvFailpoint = "OCTET_FAILPOINT" // see Failpoints
	EnvPrefix    = "OCTET_"          // of all of them
)

// listenDefault is a free port that only this host can reach.
const listenDefault = "127.0.0.1:0"

// FromEnv reads a rank's configuration from OCTET_* variables, where an empty
// variable counts as unset. It names the first wrong one and what it may be.
// Gossip, Log and PID are the caller's to set.
func FromEnv(getenv func(string) string) (Config, error) {
	e := envReader{getenv: getenv}
	c := Config{
		Model:  e.text(EnvModel),
		Size:   e.number(EnvTP, 1, RanksMax),
		RunID:  e.text(EnvRunID),
		Build:  getenv(EnvBuild),
		Listen: getenv(EnvListen),
		Device: handshake.Default(),
	}
	c.Rank = e.number(EnvRank, 0, max(c.Size-1, 0))
	master := e.address(EnvMaster)
	c.Options = e.options()
	c.Digests = e.truth(EnvDigests)
	points := e.failpoints()
	if e.err != nil {
		return Config{}, e.err
	}
	if c.Listen == "" {
		c.Listen = listenDefault
	}
	c.Dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", master)
	}
	if len(points) > 0 {
		c.Failpoint = points.Hit
	}
	return c, c.Validate()
}

// Environ is what FromEnv reads back, sorted: the variables for a rank whose
// master listens at an address. Only fields that a variable can carry are in.
func (c *Config) Environ(master string, points Failpoints) []string {
	env := map[string]string{
		EnvModel: c.Model, EnvRank: strconv.Itoa(c.Rank), EnvTP: strconv.Itoa(c.Size),
		EnvMaster: master, EnvRunID: c.RunID, EnvBuild: c.Build, EnvListen: c.Listen,
		EnvDigests: strconv.FormatBool(c.Digests), EnvFailpoint: points.String(),
	}
	for name, value := range c.Options.Map() {
		env[optionVariable(name)] = value
	}
	lines := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, name+"="+env[name])
	}
	return lines
}

// Variables are the names that FromEnv reads, sorted.
func Variables() []string {
	names := []string{EnvModel, EnvRank, EnvTP, EnvMaster, EnvRunID, EnvBuild, EnvListen,
		EnvDigests, EnvFailpoint}
	options := model.DefaultOptions()
	for name := range options.Map() {
		names = append(names, optionVariable(name))
	}
	slices.Sort(names)
	return names
}

func optionVariable(name string) string { return EnvPrefix + strings.ToUpper(name) }

// envReader reads variables and keeps the first error.
type envReader struct {
	getenv func(string) string
	err    error
}

func (e *envReader) wrong(name, value, want string) {
	if e.err == nil {
		e.err = fmt.Errorf("environment: %s is %q: must be %s", name, value, want)
	}
}

func (e *envReader) text(name string) string {
	v := e.getenv(name)
	if v == "" || len(v) > TextMax {
		e.wrong(name, v, fmt.Sprintf("1 to %d bytes", TextMax))
	}
	return v
}

func (e *envReader) number(name string, from, to int) int {
	v := e.getenv(name)
	n, err := strconv.Atoi(v)
	if err != nil || n < from || n > to {
		e.wrong(name, v, fmt.Sprintf("a whole number in %d..%d", from, to))
		return from
	}
	return n
}

func (e *envReader) truth(name string) bool {
	v := e.getenv(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		e.wrong(name, v, "true or false")
	}
	return b
}

func (e *envReader) address(name string) string {
	v := e.getenv(name)
	if _, port, err := net.SplitHostPort(v); err != nil || port == "" {
		e.wrong(name, v, "host:port")
	}
	return v
}

// options starts from the model's defaults. The model names ranges by the
// option's own name, so the variable's is put before it.
func (e *envReader) options() model.Options {
	o := model.DefaultOptions()
	for _, name := range slices.Sorted(maps.Keys(o.Map())) {
		v := e.getenv(optionVariable(name))
		if v == "" {
			continue
		}
		err := o.Set(name, v)
		if err == nil {
			err = o.Validate()
		}
		if err != nil && e.err == nil {
			e.err = fmt.Errorf("environment: %s: %w", optionVariable(name), err)
		}
	}
	return o
}

func (e *envReader) failpoints() Failpoints {
	points, err := ParseFailpoints(e.getenv(EnvFailpoint))
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("environment: %s: %w", EnvFailpoint, err)
	}
	return points
}
