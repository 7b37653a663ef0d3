package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// delivery is one message of the queue: make this unit. It may come again.
type delivery struct {
	Collection string
	Tile       string
	Identity   identity
	// Try counts how often its worker was lost.
	Try int
}

// maxTries ends what no try survives.
const maxTries = 3

// identity is everything that decides the bytes of a tile.
type identity struct {
	Scene   string
	Window  window
	ZLevel  int
	Version string
}

func (d delivery) slot() string { return d.Collection + "/" + d.Tile }
func (d delivery) unit() string { return d.slot() + " " + d.Identity.Version }

// command is the line of a pipeline's task: catalogd exec, and gdal_translate, which cuts
// the window out of the scene.
func (d delivery) command(owner, scene string) []string {
	window, zlevel := d.Identity.Window, strconv.Itoa(d.Identity.ZLevel)
	line := []string{
		"exec", d.Collection, d.Tile, "version=" + d.Identity.Version, "scene=" + d.Identity.Scene,
		fmt.Sprintf("window:=[%d,%d,%d,%d]", window[0], window[1], window[2], window[3]), "zlevel:=" + zlevel,
		"--owner", owner, "--try", strconv.Itoa(d.Try), "--json", "--", "gdal_translate",
	}
	line = append(line, oneFile...)
	line = append(line, "-q", "-of", "GTiff", "-co", "TILED=YES", "-co", "COMPRESS=DEFLATE", "-co", "ZLEVEL="+zlevel, "-srcwin")
	return append(append(line, window.args()...), "{tags}", scene, "{out}")
}

// deliver gives deliveries to the workers and counts how they end.
func (d *demo) deliver(ctx context.Context, doing string, deliveries []delivery) error {
	queue := make(chan delivery, len(deliveries))
	for _, x := range deliveries {
		queue <- x
	}
	close(queue)
	d.mu.Lock()
	d.done = 0
	d.mu.Unlock()
	d.progress.update(doing, 0, len(deliveries))
	group, ctx := errgroup.WithContext(ctx)
	for i := range d.Workers {
		group.Go(func() error {
			runtime.LockOSThread() // what it starts dies with its thread, and so with this process
			for x := range queue {
				if err := d.handle(ctx, fmt.Sprintf("worker-%d", i+1), x); err != nil {
					return fmt.Errorf("%s: %w", x.unit(), err)
				}
				d.mu.Lock()
				d.done++
				d.progress.update(doing, d.done, len(deliveries))
				d.mu.Unlock()
			}
			return nil
		})
	}
	err := group.Wait()
	if err == nil {
		d.progress.settle()
	}
	return err
}

// handle has a worker handle a delivery, which comes again when the worker is lost.
func (d *demo) handle(ctx context.Context, owner string, x delivery) error {
	for ; ; x.Try++ {
		state, err := d.exec(ctx, owner, x)
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.report.Deliveries++
		switch state {
		case "done":
			d.report.Run++
			if x.Try > 0 {
				d.report.Redone++
			}
		case "skip":
			d.report.Skipped++
		case "overtaken":
			d.report.Overtaken++
		}
		d.mu.Unlock()
		if state != "" {
			return nil
		}
	}
}

// exec runs the task and tells how it ended: done, skip, overtaken, or "" when it was
// killed.
func (d *demo) exec(ctx context.Context, owner string, x delivery) (state string, err error) {
	log, err := os.OpenFile(filepath.Join(d.dir, "workers.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, d.Executable, x.command(owner, d.scene.Path)...)
	cmd.Env = environ("CATALOGD_URL="+d.server.url(), "CATALOGD_TOKEN="+d.token, "TMPDIR="+d.private())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // as for the server
	if err := cmd.Start(); err != nil {
		return "", err
	}
	d.mu.Lock()
	d.running[cmd.Process] = x
	d.mu.Unlock()
	err = cmd.Wait()
	d.mu.Lock()
	delete(d.running, cmd.Process)
	d.mu.Unlock()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case status.Signaled() && x.Try < maxTries:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("catalogd exec: %w; see %s", err, log.Name())
	}
	var ended struct{ State string }
	if err := json.Unmarshal(out.Bytes(), &ended); err != nil || ended.State == "" {
		return "", fmt.Errorf("catalogd exec says %q", out.Bytes())
	}
	return ended.State, nil
}
