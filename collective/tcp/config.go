package tcp

import (
	"fmt"
	"hash/fnv"
	"time"

	"octet/collective"
)

// Hello is who a rank is. All ranks of a mesh have the same but for Rank.
type Hello struct {
	// RunID tells the runs on a host apart. Up to 16 bytes travel as they are;
	// of a longer one a hash does.
	RunID string
	Epoch uint32 // of two calls of Mesh the later one has the higher epoch
	Rank  int    // 0 <= Rank < Size
	Size  int    // 1..collective.SizeMax
}

// Config is what Mesh needs to know.
type Config struct {
	Hello
	// Peers is where each rank listens, by rank; its own entry is not used.
	Peers []string
	// SocketBytes is the size of the kernel's buffers of each data link and
	// direction; 0 leaves it to the system, which is best on a common network.
	// Below 16 KiB Linux waits for delayed acknowledgements again and again.
	SocketBytes int
}

// The waits and limits of this package.
const (
	helloWait   = 1500 * time.Millisecond // for an accepted connection to say hello and be gone
	answerWait  = 5 * time.Second         // for the answer to a hello, longer than helloWait
	connectWait = 5 * time.Second         // for one attempt to connect
	redialMin   = 2 * time.Millisecond    // between the first two attempts, then doubling
	redialMax   = 100 * time.Millisecond
	guestsMax   = 256                    // connections that are saying hello at a time
	writeWait   = time.Second            // for a notice to be taken by the kernel
	partWait    = 250 * time.Millisecond // for the peers to see the end of the lane
	drainWait   = time.Second            // for finished frames to reach the peers on Close
	blockMax    = 20 * time.Millisecond  // of one blocking wait for the links
)

// Validate names the first wrong field.
func (c Config) Validate() error {
	switch {
	case c.RunID == "":
		return fmt.Errorf("run id is empty")
	case c.Size < 1 || c.Size > collective.SizeMax:
		return fmt.Errorf("size %d is not in 1..%d", c.Size, collective.SizeMax)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("rank %d is not in 0..%d", c.Rank, c.Size-1)
	case len(c.Peers) != c.Size:
		return fmt.Errorf("%d peers given for size %d", len(c.Peers), c.Size)
	case c.SocketBytes < 0:
		return fmt.Errorf("socket bytes %d is negative", c.SocketBytes)
	}
	for r, addr := range c.Peers {
		if r != c.Rank && addr == "" {
			return fmt.Errorf("address of rank %d is empty", r)
		}
	}
	return nil
}

// runKey is a run id as it travels.
type runKey [16]byte

func keyOf(id string) (k runKey) {
	if len(id) > len(k) {
		h := fnv.New64a()
		h.Write([]byte(id))
		id = fmt.Sprintf("#%015x", h.Sum64()>>4)
	}
	copy(k[:], id)
	return k
}
