package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"octet/collective"
	"octet/collective/mem"
	"octet/handshake"
	"octet/model"
	"octet/rank"
)

// Build names the version of this binary's code. A group has one build.
func Build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown " + runtime.Version()
	}
	parts := []string{info.Main.Version, info.GoVersion}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" || s.Key == "vcs.modified" && s.Value == "true" {
			parts = append(parts, strings.TrimPrefix(s.Key, "vcs.")+"="+s.Value)
		}
	}
	return strings.Join(parts, " ")
}

// RunRank is the life of one rank that is a process: it reads its configuration
// from OCTET_* variables, joins the group of the master that they name, and
// returns when the group has ended in order, or with the reason why this rank
// gave up. Any binary that ends in it can be a Spec's Command.
func RunRank(ctx context.Context, getenv func(string) string, log *slog.Logger) error {
	cfg, err := rank.FromEnv(getenv)
	if err != nil {
		return &InputError{err}
	}
	if cfg.Build == "" {
		cfg.Build = Build()
	}
	cfg.PID = os.Getpid()
	cfg.Log = log
	// An epoch after the first one keeps the process and so the name.
	member, err := openGossip(rank.MemberName(cfg.Rank, 1), cfg.RunID, log)
	if err != nil {
		return err
	}
	defer func() { _ = member.Close() }() // the group is over; nobody needs to know
	cfg.Gossip = member.seam()
	return rank.Run(ctx, cfg)
}

// RankVariables are the environment variables that RunRank reads, sorted.
func RankVariables() []string { return rank.Variables() }

// seam is gossip as a rank takes it.
func (g *gossip) seam() *rank.Gossip {
	suspicions := make(chan string, gossipEventsMax)
	go func() { // ends when the member is closed
		defer close(suspicions)
		for {
			select {
			case <-g.closed:
				return
			case h := <-g.hints:
				if h.Left && len(suspicions) < cap(suspicions) {
					suspicions <- h.Member // this goroutine alone fills it
				}
			}
		}
	}()
	return &rank.Gossip{
		Addr: g.Addr(),
		Start: func(_ context.Context, _ string, addrs []string) error {
			return g.Join(addrs)
		},
		Members:    g.Members,
		Suspicions: suspicions,
	}
}

// rankConfig is what rank r is told, as far as all ranks are told the same.
func rankConfig(s *Spec, runID string, r int) rank.Config {
	return rank.Config{RunID: runID, Rank: r, Size: s.TP, Model: s.Model,
		Options: s.Options, Digests: s.Digests, Device: handshake.Default()}
}

// environ is the whole environment of rank r's process: the parent's, what the
// group says, and what is for this rank alone. Later entries win. The parent's
// own OCTET_ variables are left out: they are of another rank, or of another day,
// and flags have said everything.
func environ(s *Spec, runID, master string, r int, parent []string) []string {
	cfg := rankConfig(s, runID, r)
	env := slices.DeleteFunc(slices.Clone(parent), func(line string) bool {
		return strings.HasPrefix(line, rank.EnvPrefix)
	})
	env = append(env, cfg.Environ(master, nil)...)
	env = append(env, "GOMAXPROCS="+strconv.Itoa(threads(s.TP, parent)))
	return append(env, s.RankEnv[r]...)
}

// threads is how many threads a rank's Go code runs on at a time: its part of
// the host, and never less than two, because with one a long product keeps
// heartbeats waiting. What the parent's environment says is kept when it can be.
func threads(tp int, parent []string) int {
	n := runtime.NumCPU() / tp
	for _, line := range parent {
		if value, ok := strings.CutPrefix(line, "GOMAXPROCS="); ok {
			if set, err := strconv.Atoi(value); err == nil {
				n = set
			}
		}
	}
	return max(n, 2)
}

// virtualRank is one rank that is a goroutine.
type virtualRank struct {
	cancel context.CancelFunc
}

// Signal ends the rank's context: a goroutine takes no other signal.
func (v *virtualRank) Signal(syscall.Signal) { v.cancel() }

// startVirtual runs a rank. wait returns when it has ended.
func startVirtual(cfg rank.Config) (v *virtualRank, wait func() exit) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rank.Run(ctx, cfg) }() // ends by STOP or Signal
	return &virtualRank{cancel}, func() exit {
		err := <-ended
		cancel()
		if err != nil {
			return exit{Rank: cfg.Rank, Code: 1, Detail: err.Error()}
		}
		return exit{Rank: cfg.Rank}
	}
}

// hub is what virtual ranks have instead of a network.
type hub struct {
	size  int
	greet func(net.Conn) // the master's end of a control connection

	mu       sync.Mutex // guards networks
	networks map[uint32]*mem.Network
}

func newHub(size int, greet func(net.Conn)) *hub {
	return &hub{size: size, greet: greet, networks: map[uint32]*mem.Network{}}
}

// mesh returns rank r's end of the network of an epoch.
func (h *hub) mesh(r int) rank.MeshFunc {
	return func(_ context.Context, epoch uint32, _ []string) (
		collective.Transport, collective.Lane, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		network := h.networks[epoch]
		if network == nil {
			network = mem.New(h.size)
			h.networks[epoch] = network
		}
		transport, lane := network.Rank(r)
		return transport, lane, nil
	}
}

// dial opens a control connection to the master.
func (h *hub) dial(context.Context) (net.Conn, error) {
	mine, masters := net.Pipe()
	h.greet(masters)
	return mine, nil
}

// virtualConfig is the configuration of a rank that is a goroutine. It is read
// from the same variables as that of a process, so that RankEnv means the same.
func virtualConfig(s *Spec, runID string, r int, h *hub) (rank.Config, error) {
	base := rankConfig(s, runID, r)
	env := map[string]string{}
	for _, line := range append(base.Environ("virtual:0", nil), s.RankEnv[r]...) {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	cfg, err := rank.FromEnv(func(name string) string { return env[name] })
	if err != nil {
		return cfg, fmt.Errorf("configure rank %d: %w", r, err)
	}
	if cfg.Rank != r { // a process is found out by its pid
		return cfg, fmt.Errorf("configure rank %d: %s is %d", r, rank.EnvRank, cfg.Rank)
	}
	if err := virtualFailpoints(env[rank.EnvFailpoint]); err != nil {
		return cfg, fmt.Errorf("configure rank %d: %w", r, err)
	}
	if cfg.Build == "" {
		cfg.Build = Build()
	}
	cfg.Dial, cfg.Mesh, cfg.MeshAddr = h.dial, h.mesh(r), "rank "+strconv.Itoa(r)
	cfg.Log = s.Log.With("rank", r)
	return cfg, nil
}

// virtualFailpoints refuses what would strike the whole process.
func virtualFailpoints(text string) error {
	points, err := rank.ParseFailpoints(text)
	if err != nil {
		return err
	}
	for name, action := range points {
		if action != rank.ActionError {
			return fmt.Errorf("failpoint %s=%s: a virtual rank takes error only", name, action)
		}
	}
	return nil
}

// optionsIdentity is what all ranks have in common, as the master has it.
func optionsIdentity(s *Spec, runID string) (identity, *model.Config, error) {
	options, err := rank.Identity(s.Model, s.TP, s.Options)
	if err != nil {
		return identity{}, nil, err
	}
	config, err := model.ReadConfig(s.Model)
	if err != nil {
		return identity{}, nil, err
	}
	return identity{Build: Build(), RunID: runID, Size: s.TP, Options: options}, config, nil
}
