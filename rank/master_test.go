package rank

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/collective/mem"
	"octet/handshake"
	"octet/model"
)

// patience bounds every wait of these tests, in the bubble's time.
const patience = 60 * time.Second

// said is what the fake master hears from a rank: a message, or the end of the
// connection.
type said struct {
	rank    int
	message Message
	err     error
}

// fakeMaster starts ranks and speaks the protocol with them, as a test says, in
// a synctest bubble where the mesh is in memory.
type fakeMaster struct {
	t        *testing.T
	dir      string
	options  model.Options
	networks []*mem.Network // by epoch, from 1
	conns    []*Conn        // by rank, once HELLO is in
	hellos   []*Hello
	arrivals chan arrival  // greet -> test
	heard    chan said     // listen -> test
	results  []chan error  // what each Run returned
	quiet    chan struct{} // closed by hush
	hush     func()        // ends the heartbeats
	cancel   context.CancelFunc
}

type arrival struct {
	hello *Hello
	conn  *Conn
}

// goldenDir is a checkpoint that two, four and eight ranks can share.
func goldenDir(t *testing.T) string {
	dir := filepath.Join("..", "..", "shared", "golden", "qwen3-tp8")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("golden preset qwen3-tp8 is missing: %v", err)
	}
	return dir
}

// startRanks runs size ranks; change may alter the Config of each.
func startRanks(t *testing.T, size int, options model.Options,
	change func(r int, c *Config)) *fakeMaster {
	m := &fakeMaster{t: t, dir: goldenDir(t), options: options,
		conns: make([]*Conn, size), hellos: make([]*Hello, size),
		arrivals: make(chan arrival, size), heard: make(chan said, 1000),
		quiet: make(chan struct{})}
	for range 3 {
		m.networks = append(m.networks, mem.New(size))
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.hush = sync.OnceFunc(func() { close(m.quiet) })
	t.Cleanup(func() {
		cancel()
		m.hush()
		m.hangUp()
	})
	for r := range size {
		cfg := Config{RunID: "run", Rank: r, Size: size, Model: m.dir, Options: options,
			Device: handshake.Default(), Digests: true, Dial: m.dial, MeshAddr: "mem",
			Mesh: func(_ context.Context, epoch uint32, _ []string) (
				collective.Transport, collective.Lane, error) {
				transport, lane := m.networks[epoch-1].Rank(r)
				return transport, lane, nil
			}}
		if change != nil {
			change(r, &cfg)
		}
		result := make(chan error, 1)
		m.results = append(m.results, result)
		go func() { result <- Run(ctx, cfg) }() // ends by STOP, hang-up or cancel
	}
	return m
}

// dial gives a rank its end of a pipe and greets it on the other.
func (m *fakeMaster) dial(context.Context) (net.Conn, error) {
	theirs, ours := net.Pipe()
	go func() { // ends when HELLO is in, or the rank hangs up
		conn := NewConn(ours)
		hello, err := conn.Read(time.Now().Add(patience))
		if h, ok := hello.(*Hello); ok && err == nil {
			m.arrivals <- arrival{h, conn}
		}
	}()
	return theirs, nil
}

// meet takes HELLO of every rank and begins to listen and to send heartbeats.
func (m *fakeMaster) meet() {
	m.t.Helper()
	for range m.conns {
		select {
		case a := <-m.arrivals:
			r := a.hello.Rank
			require.Nil(m.t, m.conns[r], "rank %d said HELLO twice", r)
			m.conns[r], m.hellos[r] = a.conn, a.hello
			go m.listen(r, a.conn) // ends when the connection does
			go m.beat(a.conn)      // ends with the connection, or when quiet is closed
		case <-time.After(patience):
			require.FailNow(m.t, "ranks that never said HELLO")
		}
	}
}

func (m *fakeMaster) listen(r int, c *Conn) {
	for {
		message, err := c.Read(time.Time{})
		if _, ok := message.(*Heartbeat); ok && err == nil {
			continue
		}
		m.heard <- said{r, message, err}
		if err != nil {
			return
		}
	}
}

func (m *fakeMaster) beat(c *Conn) {
	for {
		select {
		case <-m.quiet:
			return
		case <-time.After(500 * time.Millisecond):
			if c.Write(&Heartbeat{}, time.Now().Add(patience)) != nil {
				return
			}
		}
	}
}

func (m *fakeMaster) send(r int, message Message) {
	m.t.Helper()
	require.NoError(m.t, m.conns[r].Write(message, time.Now().Add(patience)))
}

// assign sends every rank the group of an epoch.
func (m *fakeMaster) assign(epoch uint32) {
	m.t.Helper()
	table := make([]string, len(m.conns))
	for r := range m.conns {
		table[r] = m.hellos[r].Mesh
	}
	for r := range m.conns {
		m.send(r, &Assign{RunID: "run", Epoch: epoch, Rank: r, Size: len(m.conns),
			Mesh: table, Cores: 1, Slots: 2,
			Heartbeat: 500 * time.Millisecond, Dead: 5 * time.Second, Op: time.Minute})
	}
}

// hear returns the next message or end that a rank gave, of any rank.
func (m *fakeMaster) hear() said {
	m.t.Helper()
	select {
	case s := <-m.heard:
		return s
	case <-time.After(patience):
		require.FailNow(m.t, "the ranks say nothing")
	}
	return said{}
}

// hearAll returns one message of kind from each of n ranks and demands that
// nothing else comes before.
func hearAll[M Message](m *fakeMaster, n int) []M {
	m.t.Helper()
	all := make([]M, len(m.conns))
	for range n {
		s := m.hear()
		require.NoError(m.t, s.err, "rank %d", s.rank)
		message, ok := s.message.(M)
		require.True(m.t, ok, "rank %d said %v", s.rank, describe(s.message))
		all[s.rank] = message
	}
	return all
}

// awaitReady hears the phases of every rank, in order.
func (m *fakeMaster) awaitReady(epoch uint32) [][]*Reached {
	m.t.Helper()
	phases := make([][]*Reached, len(m.conns))
	for range 4 * len(m.conns) {
		s := m.hear()
		require.NoError(m.t, s.err, "rank %d", s.rank)
		reached, ok := s.message.(*Reached)
		require.True(m.t, ok, "rank %d said %v", s.rank, describe(s.message))
		phases[s.rank] = append(phases[s.rank], reached)
		require.Equal(m.t, Phase(len(phases[s.rank])), reached.Phase)
		require.Equal(m.t, epoch, reached.Epoch)
	}
	return phases
}

// start brings the ranks to READY in epoch 1.
func (m *fakeMaster) start() [][]*Reached {
	m.t.Helper()
	m.meet()
	m.assign(1)
	return m.awaitReady(1)
}

// plan is the first step of an epoch for a prompt.
func (m *fakeMaster) plan(epoch uint32, ids []int) *model.Plan {
	m.t.Helper()
	config, err := model.ReadConfig(m.dir)
	require.NoError(m.t, err)
	planner, err := model.NewPlanner(model.PlannerConfig{Model: config, Options: m.options,
		TP: len(m.conns), Epoch: epoch, Slots: 2})
	require.NoError(m.t, err)
	require.NoError(m.t, planner.Add(model.Request{ID: 1, IDs: ids, MaxNew: 1}))
	plan, ok := planner.Next()
	require.True(m.t, ok)
	return plan
}

// result is what the Run of a rank returned, within limit.
func (m *fakeMaster) result(r int, limit time.Duration) error {
	m.t.Helper()
	select {
	case err := <-m.results[r]:
		return err
	case <-time.After(limit):
		require.FailNow(m.t, "Run did not return", "rank %d within %v", r, limit)
	}
	return nil
}

// hangUp closes the control connections, as the end of the master's process does.
func (m *fakeMaster) hangUp() {
	for _, c := range m.conns {
		if c != nil {
			_ = c.Close() // a rank may have gone first
		}
	}
}

// golden is a prompt and the token that follows it.
type golden struct {
	IDs    []int `json:"ids"`
	Greedy []int `json:"greedy"`
}

// goldenPrompt is the recorded prompt of n tokens.
func goldenPrompt(t *testing.T, dir string, n int) golden {
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var all struct {
		Prompts []golden `json:"prompts"`
	}
	require.NoError(t, json.Unmarshal(raw, &all))
	for _, p := range all.Prompts {
		if len(p.IDs) == n {
			return p
		}
	}
	require.FailNow(t, "no such prompt", "%d tokens", n)
	return golden{}
}

var errTest = errors.New("as the test wants")
