package cluster

import (
	"errors"
	"net"
	"sync"
	"time"

	"octet/rank"
)

const (
	// strangerWait is how long a connection may take to say who it is.
	strangerWait = 2 * time.Second
	// strangersMax bounds connections that have not said who they are. More are
	// closed at once. A rank tries again.
	strangersMax = 256
	// refuseWait bounds the writing of a refusal.
	refuseWait = time.Second
	// queueMax bounds the messages that wait for one rank to read.
	queueMax = 256
)

// control is every control connection of a group. Its goroutines read and
// write; what a message means is for the loop to say.
type control struct {
	// Set by newControl, never changed:
	post  func(event any) bool // any goroutine -> loop; false: the loop has ended
	write time.Duration        // limit of one message to a rank
	slots chan struct{}        // one token for each stranger
	log   func(text string, args ...any)

	running sync.WaitGroup // goroutines of all links

	mu     sync.Mutex // guards the rest
	links  map[int]*link
	nextID int
	closed bool
}

// link is one control connection.
type link struct {
	id    int
	conn  *rank.Conn
	owner chan int          // loop -> reader, once: the rank; closed: none
	queue chan rank.Message // loop -> writer; closed by the loop
}

func newControl(post func(any) bool, write time.Duration,
	log func(text string, args ...any)) *control {
	return &control{post: post, write: write, log: log,
		slots: make(chan struct{}, strangersMax), links: map[int]*link{}}
}

// accept takes connections until the listener is closed.
func (c *control) accept(l net.Listener) {
	for {
		raw, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors or the like. Waiting is all that helps, and
			// the ranks that cannot come in are named at the join deadline.
			c.log("accept a control connection", "error", err)
			timer := time.NewTimer(50 * time.Millisecond)
			<-timer.C
			continue
		}
		c.greet(raw)
	}
}

// greet owns raw from now on.
func (c *control) greet(raw net.Conn) {
	select {
	case c.slots <- struct{}{}:
	default:
		c.log("too many strangers", "from", raw.RemoteAddr())
		_ = raw.Close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = raw.Close()
		<-c.slots
		return
	}
	c.nextID++
	l := &link{id: c.nextID, conn: rank.NewConn(raw), owner: make(chan int, 1),
		queue: make(chan rank.Message, queueMax)}
	c.links[l.id] = l
	c.running.Go(func() { c.read(l) }) // ends when the connection does
}

// read is the life of one connection: HELLO in time or nothing, then, when the
// loop has given it to a rank, messages until it ends.
func (c *control) read(l *link) {
	defer c.forget(l)
	l.conn.SetFrameMax(rank.HelloBytesMax)
	first, err := l.conn.Read(time.Now().Add(strangerWait))
	<-c.slots
	greeting, ok := first.(*rank.Hello)
	if err != nil || !ok {
		c.log("closed a stranger's connection", "from", l.conn.Remote(), "error", err)
		if version := (*rank.VersionError)(nil); errors.As(err, &version) {
			_ = l.conn.Write(&rank.Refuse{Reason: version.Error()}, time.Now().Add(refuseWait))
		}
		return
	}
	if !c.post(hello{l.id, greeting}) {
		return
	}
	owner, ok := <-l.owner
	if !ok {
		return
	}
	c.running.Go(func() { c.send(l) }) // ends when the loop closes the queue
	l.conn.SetFrameMax(rank.FrameBytesMax)
	for {
		message, err := l.conn.Read(time.Time{})
		if err != nil {
			c.post(hungUp{owner, err})
			return
		}
		if !c.post(said{owner, message}) {
			return
		}
	}
}

// send writes what is queued. After an error it only drains: the reader sees
// the end and tells.
func (c *control) send(l *link) {
	for message := range l.queue {
		if err := l.conn.Write(message, time.Now().Add(c.write)); err != nil {
			_ = l.conn.Close()
		}
	}
}

// forget closes a connection whose reader has ended.
func (c *control) forget(l *link) {
	_ = l.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l.id)
}

// adopt gives a connection to a rank and returns where its messages go in, or
// nil when it has ended meanwhile. Only the loop calls it.
func (c *control) adopt(id, owner int) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[id]
	if l != nil {
		l.owner <- owner
	}
	return l
}

// turn sends a refusal and closes the connection. Only the loop calls it.
func (c *control) turn(id int, refusal *rank.Refuse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[id]
	if l == nil {
		return
	}
	c.running.Go(func() { // ends when the refusal is written, within refuseWait
		_ = l.conn.Write(refusal, time.Now().Add(refuseWait))
		close(l.owner) // the reader ends and closes the connection
	})
}

// close ends every connection and waits for their goroutines. The loop has
// closed the queues, and post returns false by now.
func (c *control) close() {
	c.mu.Lock()
	c.closed = true
	for _, l := range c.links {
		_ = l.conn.Close()
	}
	c.mu.Unlock()
	c.running.Wait()
}
