package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress tells what goes on: lasting lines, and on a terminal a last line that
// is written over. Elsewhere a count is told every few seconds only.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	began    time.Time
	// line stands on the terminal without a newline, or is what was not told yet.
	line string
	told time.Time
}

// every is how often a count is told where lines last.
const every = 5 * time.Second

func newProgress(w io.Writer, terminal bool) *progress {
	if w == nil {
		w, terminal = io.Discard, false
	}
	return &progress{w: w, terminal: terminal, began: time.Now()}
}

// step tells of something once. A count that is under way goes on below it.
func (p *progress) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last(fmt.Sprintf(format, args...))
	if p.terminal {
		fmt.Fprint(p.w, p.line)
	}
}

// update counts something that is under way.
func (p *progress) update(doing string, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = fmt.Sprintf("%s  %s: %d of %d", p.clock(), doing, done, of)
	switch {
	case p.terminal:
		fmt.Fprint(p.w, "\r\x1b[K", p.line)
	case time.Since(p.told) > every && done > 0:
		fmt.Fprintln(p.w, p.line)
		p.told = time.Now()
	}
}

// settle makes the count last.
func (p *progress) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.line == "":
	case p.terminal:
		fmt.Fprintln(p.w)
	default:
		fmt.Fprintln(p.w, p.line)
	}
	p.line = ""
	p.told = time.Now()
}

// last writes a line that lasts.
func (p *progress) last(text string) {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, "%s  %s\n", p.clock(), text)
	p.told = time.Now()
}

func (p *progress) clock() string { return fmt.Sprintf("%6.1f s", time.Since(p.began).Seconds()) }

// end leaves the terminal at the beginning of a line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.line != "" {
		fmt.Fprintln(p.w)
		p.line = ""
	}
}
