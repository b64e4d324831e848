package main

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows how far a run is: a bar on a terminal, plain lines otherwise.
type progress struct {
	w    io.Writer
	pool *mpb.Progress // nil without a terminal
	bar  *mpb.Bar

	mu    sync.Mutex // guards what follows: stages come from the group's goroutines
	name  string
	total int
	done  int
	tenth int
}

// newProgress expects total tokens in all.
func newProgress(w io.Writer, total int) *progress {
	p := &progress{w: w, total: total}
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return p
	}
	p.pool = mpb.New(mpb.WithOutput(w), mpb.WithWidth(60))
	p.bar = p.pool.AddBar(int64(total),
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Sprintf("%-28s", p.name)
		})),
		mpb.AppendDecorators(decor.CountersNoUnit("%d/%d tokens")), mpb.BarRemoveOnComplete())
	return p
}

// setting names what runs now.
func (p *progress) setting(name string) { p.say(name) }

// stage tells how far a group's start is.
func (p *progress) stage(stage string, done, of int) {
	if p.pool != nil {
		p.rename(fmt.Sprintf("%s %d/%d", stage, done, of))
	}
}

func (p *progress) say(line string) {
	p.rename(line)
	if p.pool == nil {
		fmt.Fprintf(p.w, "launch: %s\n", line)
	}
}

func (p *progress) rename(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = name
}

// token counts one token more; every tenth of the whole is a line.
func (p *progress) token() {
	if p.bar != nil {
		p.bar.Increment()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if tenth := p.done * 10 / max(p.total, 1); tenth > p.tenth {
		p.tenth = tenth
		fmt.Fprintf(p.w, "launch: %d of %d tokens\n", p.done, p.total)
	}
}

// finish takes the bar away.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.SetTotal(-1, true)
		p.pool.Wait()
	}
}

// abandon takes the bar away before its end.
func (p *progress) abandon() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.pool.Wait()
	}
}
