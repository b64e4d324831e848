package rank

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"octet/collective"
	"octet/handshake"
	"octet/model"
)

// Limits of a rank where the master has not said otherwise yet.
const (
	beatDefault  = 500 * time.Millisecond
	deadDefault  = 5 * time.Second
	graceDefault = time.Second
)

// Config is all that a rank is told. Every field is used as given; Validate
// names the first wrong one.
type Config struct {
	RunID string // of the launch; the master refuses another
	Rank  int    // 0 <= Rank < Size
	Size  int    // ranks of the group, 1..RanksMax
	Build string // what binary this is; "" is a build without a name
	Model string // checkpoint directory, Hugging Face layout

	Options model.Options
	Device  handshake.Config
	Digests bool // keep row digests

	// Dial opens the control connection to the master.
	Dial func(ctx context.Context) (net.Conn, error)
	// Mesh links this rank to its peers; MeshAddr is where they find it. The
	// rank closes both results, also when ctx has ended. Where Mesh is nil the
	// rank listens on TCP at Listen by itself.
	Mesh     MeshFunc
	MeshAddr string
	Listen   string
	// Gossip is the memberlist of this process; nil: there is none.
	Gossip *Gossip
	// PID is told to the master; 0 for a rank that is a goroutine.
	PID int

	// Failpoint is called at named places and may return an error to be taken
	// for a fault of that place; nil: nowhere.
	Failpoint func(name string) error
	Log       *slog.Logger // tagged with the rank by the caller; nil: silent

	// Beat is how often the rank says that it lives, and Dead the silence of
	// the master after which it is lost, until ASSIGN says otherwise. Grace
	// bounds the farewell: how long Run waits for what still runs. Zero fields
	// take 500 ms, 5 s and 1 s.
	Beat, Dead, Grace time.Duration
}

// MeshFunc links the ranks of an epoch. table holds the MeshAddr of every rank.
// It returns when every peer is linked, or with an error when ctx ends.
type MeshFunc func(ctx context.Context, epoch uint32, table []string) (
	collective.Transport, collective.Lane, error)

// Gossip is a memberlist, as a rank needs it. Whoever made it closes it after
// Run has returned.
type Gossip struct {
	// Addr is where it listens, told to the master in HELLO.
	Addr string
	// Start joins the members at addrs, by rank, this rank's own among them. It
	// is called once an epoch; name is MemberName of the first epoch and does
	// not change afterwards. It returns when it has joined, or when ctx ends.
	Start func(ctx context.Context, name string, addrs []string) error
	// Members counts the members it sees, this rank included.
	Members func() int
	// Suspicions delivers names of members that it believes gone, for the log:
	// the master decides, and has a member of its own. It may be nil.
	Suspicions <-chan string
}

// Validate names the first wrong field.
func (c *Config) Validate() error {
	switch {
	case c.RunID == "" || len(c.RunID) > TextMax:
		return fmt.Errorf("rank config: run id has %d bytes, 1 to %d allowed",
			len(c.RunID), TextMax)
	case c.Size < 1 || c.Size > RanksMax:
		return fmt.Errorf("rank config: size %d is not in 1..%d", c.Size, RanksMax)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("rank config: rank %d is not in 0..%d", c.Rank, c.Size-1)
	case c.Model == "":
		return fmt.Errorf("rank config: no model directory")
	case c.Dial == nil:
		return fmt.Errorf("rank config: no way to dial the master")
	case c.Mesh == nil && c.Listen == "":
		return fmt.Errorf("rank config: neither a mesh nor an address to listen at")
	case c.Mesh != nil && c.MeshAddr == "":
		return fmt.Errorf("rank config: the mesh has no address")
	case c.Gossip != nil && (c.Gossip.Start == nil || c.Gossip.Members == nil):
		return fmt.Errorf("rank config: the gossip lacks Start or Members")
	case c.Beat < 0 || c.Dead < 0 || c.Grace < 0:
		return fmt.Errorf("rank config: a negative limit")
	case c.beat() >= c.dead():
		return fmt.Errorf("rank config: heartbeat %v is not below the limit of silence %v",
			c.beat(), c.dead())
	}
	if err := c.Options.Validate(); err != nil {
		return fmt.Errorf("rank config: %w", err)
	}
	if err := c.Device.Validate(); err != nil {
		return fmt.Errorf("rank config: %w", err)
	}
	return nil
}

func (c *Config) beat() time.Duration  { return orElse(c.Beat, beatDefault) }
func (c *Config) dead() time.Duration  { return orElse(c.Dead, deadDefault) }
func (c *Config) grace() time.Duration { return orElse(c.Grace, graceDefault) }

func orElse(d, other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return d
}

// Names under which Identity holds what is not an option of the model.
const (
	keyTP    = "tp"
	keyModel = "model." // before each name of a fingerprint
)

// Identity is what every rank of a group must have in common: the options by
// name, the number of ranks as "tp", and the fingerprints of the model directory
// as "model.config" and so on. The master makes its own and compares; it also
// refuses a directory that this number of ranks cannot share.
func Identity(dir string, tp int, o model.Options) (map[string]string, error) {
	id := o.Map()
	id[keyTP] = strconv.Itoa(tp)
	c, err := model.ReadConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("read model %s: %w", dir, err)
	}
	if err := c.CheckTP(tp); err != nil {
		return nil, fmt.Errorf("share model %s: %w", dir, err)
	}
	prints, err := model.Fingerprint(dir)
	if err != nil {
		return nil, fmt.Errorf("fingerprint model %s: %w", dir, err)
	}
	for name, value := range prints {
		id[keyModel+name] = value
	}
	return id, nil
}

// unknownIdentity is the identity of a rank that cannot read its model: where
// the master expects fingerprints, it finds the reason.
func unknownIdentity(tp int, o model.Options, problem error) map[string]string {
	id := o.Map()
	id[keyTP] = strconv.Itoa(tp)
	for _, name := range []string{"config", "tokenizer", "weights"} {
		id[keyModel+name] = clip("unknown: " + problem.Error())
	}
	return id
}
