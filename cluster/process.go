package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	tailLines   = 40      // lines of a rank's stderr that a failure quotes
	lineMax     = 8 << 10 // bytes of a line that are passed on as one
	outputDrain = 500 * time.Millisecond
)

// forker starts processes from one locked OS thread. The kernel's parent-death
// signal goes out when the thread that forked ends, not the process, and Go
// ends threads as it likes; so one thread starts all ranks and stays until all
// are gone.
type forker struct {
	starts chan *exec.Cmd // group -> thread
	errs   chan error     // thread -> group, one for each start
}

func newForker() *forker {
	f := &forker{starts: make(chan *exec.Cmd), errs: make(chan error)}
	go f.run() // ends by Close
	return f
}

func (f *forker) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for cmd := range f.starts {
		f.errs <- cmd.Start()
	}
}

// Start starts cmd. One goroutine uses a forker.
func (f *forker) Start(cmd *exec.Cmd) error {
	f.starts <- cmd
	return <-f.errs
}

// Close ends the thread. Every process that it started has been reaped before.
func (f *forker) Close() { close(f.starts) }

// exit is how a rank ended.
type exit struct {
	Rank   int
	PID    int    // 0 for a virtual rank
	Signal string // "" when it was none
	Code   int    // exit status, or -1 with a signal
	Detail string // the last lines of its stderr, or what its goroutine returned
}

// process is one rank that is a process.
type process struct {
	rank int
	pid  int
	cmd  *exec.Cmd
	out  *lines
	errs *lines

	mu    sync.Mutex // guards ended
	ended bool       // the number may be somebody else's soon
}

// startProcess starts a rank: argv as it is given, with env on top of nothing.
// What it prints goes to output, line by line, tagged with the rank.
func startProcess(f *forker, rank int, argv, env []string, output *output) (*process, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fmt.Errorf("start rank %d: %w", rank, err)
	}
	tag := fmt.Sprintf("[rank %d] ", rank)
	p := &process{rank: rank, out: newLines(output, tag), errs: newLines(output, tag)}
	p.cmd = &exec.Cmd{
		Path: path, Args: argv, Env: env, Stdout: p.out, Stderr: p.errs,
		SysProcAttr: processAttributes(),
		// A process that the rank started may hold its pipes open.
		WaitDelay: outputDrain,
	}
	if err := f.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start rank %d: %w", rank, err)
	}
	p.pid = p.cmd.Process.Pid
	return p, nil
}

// Wait returns when the rank has ended and everything in its process group with
// it. One goroutine calls it, once.
func (p *process) Wait() exit {
	if waitExit(p.pid) {
		p.Signal(syscall.SIGKILL) // what the rank started and left behind
		p.end()
	}
	_ = p.cmd.Wait() // says again what ProcessState says
	p.end()
	p.out.Flush()
	p.errs.Flush()

	e := exit{Rank: p.rank, PID: p.pid, Code: -1, Detail: p.errs.Tail()}
	if state := p.cmd.ProcessState; state != nil {
		e.Code = state.ExitCode()
		if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			e.Signal = status.Signal().String()
		}
	}
	return e
}

// end marks the number as given back.
func (p *process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// Signal sends sig to the rank's process group, and to nobody once the rank has
// ended.
func (p *process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		_ = syscall.Kill(-p.pid, sig) // it fails when all are gone, which is the aim
	}
}

// output is where all ranks print, one line at a time.
type output struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (o *output) line(tag string, line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w != nil {
		// Nobody can be told that the place for telling is gone.
		_, _ = fmt.Fprintf(o.w, "%s%s\n", tag, line)
	}
}

// lines cuts what one stream of a rank carries into lines, passes them on with
// a tag, and remembers the last ones.
type lines struct {
	to  *output
	tag string

	mu   sync.Mutex // guards the rest: exec's copier writes, Wait reads
	part []byte     // of a line that has not ended
	tail []string   // at most tailLines
}

func newLines(to *output, tag string) *lines { return &lines{to: to, tag: tag} }

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := len(data)
	for {
		line, rest, ended := bytes.Cut(data, []byte{'\n'})
		l.part = append(l.part, line...)
		if !ended && len(l.part) < lineMax {
			return size, nil
		}
		l.end()
		data = rest
	}
}

// Flush ends a last line that has no newline.
func (l *lines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.part) > 0 {
		l.end()
	}
}

// Tail is the last lines, for a person to read.
func (l *lines) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail, "\n")
}

// end passes the line on. mu is held.
func (l *lines) end() {
	l.to.line(l.tag, l.part)
	if len(l.tail) == tailLines {
		l.tail = append(l.tail[:0], l.tail[1:]...)
	}
	l.tail = append(l.tail, string(l.part))
	l.part = l.part[:0]
}
