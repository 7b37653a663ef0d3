package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"catalogd/internal/client"
)

// showFrom is how large an output is that is worth a bar.
const showFrom = 8 << 20

// rateFrom is when there is a rate to speak of.
const rateFrom = 200 * time.Millisecond

// gauge shows people at a terminal how an output is sent, and keeps other lines out of
// that one's way.
type gauge struct {
	w io.Writer

	mu         sync.Mutex
	bar        *progressbar.ProgressBar // nil for none
	began      time.Time
	sent, size int64
}

// showsBars tells whether a bar can be shown.
func showsBars(w io.Writer) bool { return isTerminal(w) && os.Getenv("TERM") != "dumb" }

// newBar is one that counts to most; -1 where that is not known.
func newBar(w io.Writer, most int64, what string, more ...progressbar.Option) *progressbar.ProgressBar {
	return progressbar.NewOptions64(most, append([]progressbar.Option{
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetWidth(20),
		progressbar.OptionThrottle(100 * time.Millisecond),
	}, more...)...)
}

// start is a client's Meter.
func (g *gauge) start(size int64) client.Meter {
	if size < showFrom || !showsBars(g.w) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.began, g.sent, g.size = time.Now(), 0, size
	g.bar = newBar(g.w, size, "sending",
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionUseIECUnits(true),
	)
	g.bar.StartWithoutRender()
	return g
}

// Add implements client.Meter. A full bar takes nothing back, so that it is not full
// before Close.
func (g *gauge) Add(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent += n
	if time.Since(g.began) > rateFrom {
		_ = g.bar.Set64(min(g.sent, g.size-1))
	}
}

// Close implements client.Meter. Of what was not sent nothing stays on the screen.
func (g *gauge) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sent == g.size {
		_ = g.bar.Finish()
		fmt.Fprintln(g.w)
	} else {
		_ = g.bar.Clear()
	}
	g.bar = nil
}

// notice prints a line.
func (g *gauge) notice(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		_ = g.bar.Clear()
	}
	fmt.Fprintln(g.w, "catalogd:", line)
}
