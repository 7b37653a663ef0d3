package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// crew are the worker processes. The demo is their queue: each has a delivery at
// a time on its standard input, and answers on its standard output.
type crew []*hand

type hand struct {
	owner string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	log   string
}

// hire starts workers. They end when they are dismissed, or when this process
// ends and their input with it.
func hire(n int, executable, url, token, scene, log string) (c crew, err error) {
	defer func() {
		if err != nil {
			c.dismiss()
		}
	}()
	stderr, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	for i := range n {
		h := &hand{owner: fmt.Sprintf("worker-%d", i+1), log: log}
		h.cmd = exec.Command(executable, "demo-worker", "--scene", scene, "--owner", h.owner)
		h.cmd.Env = append(withoutSettings(os.Environ()), "CATALOGD_URL="+url, "CATALOGD_TOKEN="+token)
		h.cmd.Stderr = stderr
		h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as for the server
		out, err := h.cmd.StdoutPipe()
		if err != nil {
			return c, err
		}
		h.out = json.NewDecoder(out)
		if h.in, err = h.cmd.StdinPipe(); err != nil {
			return c, err
		}
		if err := h.cmd.Start(); err != nil {
			return c, err
		}
		c = append(c, h)
	}
	return c, nil
}

// work has each delivery handled by some worker, and calls done for each, one at
// a time. An error ends the crew.
func (c crew) work(ctx context.Context, deliveries []delivery, done func(delivery, receipt) error) error {
	// A worker that waits for an answer is waited for no longer.
	defer context.AfterFunc(ctx, c.end)()
	group, ctx := errgroup.WithContext(ctx)
	queue := make(chan delivery)
	group.Go(func() error {
		defer close(queue)
		for _, d := range deliveries {
			select {
			case queue <- d:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var one sync.Mutex
	for _, h := range c {
		group.Go(func() (err error) {
			defer func() {
				if err != nil {
					c.end()
				}
			}()
			for d := range queue {
				r, err := h.handle(d)
				if err != nil {
					return errors.Join(ctx.Err(), err)
				}
				one.Lock()
				err = done(d, r)
				one.Unlock()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (h *hand) handle(d delivery) (r receipt, err error) {
	if err = json.NewEncoder(h.in).Encode(d); err == nil {
		err = h.out.Decode(&r)
	}
	if err != nil {
		err = fmt.Errorf("%s ended over %s; see %s: %w", h.owner, d.Tile, h.log, err)
	}
	return r, err
}

// end ends the workers' input, and so what they are at.
func (c crew) end() {
	for _, h := range c {
		h.in.Close()
	}
}

// dismiss ends the workers and waits for them.
func (c crew) dismiss() {
	c.end()
	for _, h := range c {
		insist := time.AfterFunc(10*time.Second, func() { _ = h.cmd.Process.Kill() })
		_ = h.cmd.Wait()
		insist.Stop()
	}
}
