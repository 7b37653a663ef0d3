// Package writer deals with what writers hand over. Its Pool has staged files probed by
// catalogd-probe children: GDAL, which parses strangers' files, is never in the server's
// process. A probe that dies takes neither a request nor the server with it.
//
// The children speak the protocol of package wire; what they do is package probe. This
// package imports catalog and wire only, and builds without cgo.
package writer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// Config of a Pool. The zero value of each member is its default.
type Config struct {
	// Program is the path of catalogd-probe: by default beside the running executable,
	// else on PATH.
	Program string
	// Size is how many probes run at once; by default GOMAXPROCS.
	Size int
	// Timeout of one probe, 30 s by default, not counting the time that reading the
	// file takes. Where the file is to be decoded, one second more for each MiB of it.
	Timeout time.Duration
	// Memory of one child in bytes (RLIMIT_DATA); by default 256 MiB.
	Memory int64
	// Recycle replaces a child after so many probes; by default 500.
	Recycle int
	// Log gets the deaths of children, with what they last said; by default
	// slog.Default.
	Log *slog.Logger

	// For tests: args of the program, instead of catalogd-probe's own; started is
	// called with the process id of each child.
	args    []string
	started func(pid int)
}

// decodePerMiB is what each MiB of a file adds to its timeout when it is decoded.
const decodePerMiB = time.Second

// Info is what a child says of itself.
type Info struct {
	GDAL, PROJ string
	Drivers    []string
	// Confinement is what the kernel keeps it from.
	Confinement wire.Confinement
}

// Pool keeps catalogd-probe children ready. It is safe for concurrent use.
type Pool struct {
	cfg Config
	// sem has Size tokens: a probe holds one, one that must be alone holds all.
	sem *semaphore.Weighted

	mu     sync.Mutex
	idle   []*child
	closed bool
	busy   sync.WaitGroup
}

// NewPool makes a pool. Children are started as they are needed: see Check.
func NewPool(cfg Config) *Pool {
	if cfg.Program == "" {
		cfg.Program = findProgram()
	}
	if cfg.Size <= 0 {
		cfg.Size = runtime.GOMAXPROCS(0)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 256 << 20
	}
	if cfg.Recycle <= 0 {
		cfg.Recycle = 500
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.args == nil {
		cfg.args = []string{"-memory", strconv.FormatInt(cfg.Memory, 10), "serve"}
	}
	return &Pool{cfg: cfg, sem: semaphore.NewWeighted(int64(cfg.Size))}
}

// findProgram looks for catalogd-probe beside the running executable, then leaves it to
// PATH.
func findProgram() string {
	const name = "catalogd-probe"
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside
		}
	}
	return name
}

// Probe has a child look at the size bytes of src and says what it found. An error is
//
//   - a refusal: a *catalog.Error with a code of the staged output, probe_failed where
//     the child died on the file twice, the second time with no other probe beside it,
//     or after as much CPU time as it would have had then;
//   - probe_unavailable: no child can be started, or the pool is closed;
//   - ctx's own;
//   - any other: src could not be read. Nothing is known of the file then.
//
// src is read at one place at a time, and not after Probe has returned, so that a read
// which hangs holds Probe up: src must keep to ctx itself. A crash here leaves nothing:
// children die with their parent.
func (p *Pool) Probe(ctx context.Context, src io.ReaderAt, size int64, req catalog.ProbeRequest) (catalog.Facts, error) {
	// A first death is no verdict: memory that others took, a slow machine or what the
	// child did before may have been its cause. None of them is the cause of a second one
	// that comes in quiet, or of a fresh child that used all the CPU time that it would
	// have had in quiet.
	in := anyChild
	for {
		facts, err := p.try(ctx, src, size, req, in)
		var death *deathError
		if !errors.As(err, &death) {
			return facts, err
		}
		limit := p.timeout(size, req)
		switch {
		case in == alone, in == fresh && death.cpu >= limit:
			p.cfg.Log.Error("probe died again", "reason", death.reason, "stderr", death.stderr, "size", size, "cpu", death.cpu)
			return catalog.Facts{}, catalog.Errorf(catalog.CodeProbeFailed,
				"the file made the probe fail twice (%s): it is damaged, or needs more memory or time than a probe may take; "+
					"check that it opens with gdalinfo and write it again, in smaller blocks, or geometries, if they are very large", death.summary).Because(err)
		case in == anyChild && death.cpu >= limit/2:
			in = fresh
		default:
			in = alone
		}
		p.cfg.Log.Warn("probe died; trying once more", "reason", death.reason, "stderr", death.stderr, "size", size, "cpu", death.cpu, "alone", in == alone)
	}
}

// Check starts a child if none is ready, and tells its versions: for readiness.
func (p *Pool) Check(ctx context.Context) (Info, error) {
	c, done, err := p.take(ctx, anyChild)
	if err != nil {
		return Info{}, err
	}
	defer done(true)
	return Info{GDAL: c.hello.GDAL, PROJ: c.hello.PROJ, Drivers: c.hello.Drivers, Confinement: c.hello.Confinement}, nil
}

// Close ends all children, waits for the probes that are under way, and makes later
// ones probe_unavailable.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.kill()
	}
	p.busy.Wait()
	return nil
}

// kind of child that a file is given.
type kind int

const (
	anyChild kind = iota
	fresh         // one that had no job, and has twice the time, since others run beside it
	alone         // one that had no job, while no other probe runs
)

// try has one child look at the file.
func (p *Pool) try(ctx context.Context, src io.ReaderAt, size int64, req catalog.ProbeRequest, in kind) (catalog.Facts, error) {
	c, done, err := p.take(ctx, in)
	if err != nil {
		return catalog.Facts{}, err
	}
	c.slow = in == fresh
	facts, sound, err := c.probe(ctx, src, size, req, p.timeout(size, req))
	done(sound)
	return facts, err
}

func (p *Pool) timeout(size int64, req catalog.ProbeRequest) time.Duration {
	if !req.Decode {
		return p.cfg.Timeout
	}
	const day = 24 * time.Hour
	return p.cfg.Timeout + min(time.Duration(min(size>>20, int64(day/decodePerMiB)))*decodePerMiB, day)
}

// take waits for its turn and gives a child that waits for a job. done gives both back:
// sound says whether the child is fit for another job.
func (p *Pool) take(ctx context.Context, in kind) (c *child, done func(sound bool), err error) {
	unavailable := func(err error) error {
		return catalog.Errorf(catalog.CodeProbeUnavailable, "no probe can be started on the server: have an operator run catalogd doctor there, then try again").Because(err)
	}
	tokens := int64(1)
	if in == alone {
		tokens = int64(p.cfg.Size)
	}
	if err := p.sem.Acquire(ctx, tokens); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.sem.Release(tokens)
		return nil, nil, unavailable(errors.New("the pool is closed"))
	}
	p.busy.Add(1)
	for in == anyChild && c == nil && len(p.idle) > 0 {
		c = p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if c.exited() {
			c = nil
		}
	}
	p.mu.Unlock()

	release := func() {
		p.sem.Release(tokens)
		p.busy.Done()
	}
	if c == nil {
		if c, err = start(ctx, p.cfg); err != nil {
			release()
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			return nil, nil, unavailable(err)
		}
	}
	return c, func(sound bool) {
		defer release()
		p.mu.Lock()
		keep := sound && !p.closed && c.jobs < p.cfg.Recycle && len(p.idle) < p.cfg.Size
		if keep {
			p.idle = append(p.idle, c)
		}
		p.mu.Unlock()
		if !keep {
			c.kill()
		}
	}, nil
}

// start runs a child and waits for its hello.
func start(ctx context.Context, cfg Config) (*child, error) {
	c := &child{memory: cfg.Memory, done: make(chan struct{})}
	c.cmd = exec.Command(cfg.Program, cfg.args...)
	c.cmd.Env = environment()
	c.cmd.Dir = "/"
	c.cmd.Stderr = &c.stderr
	// Whoever else may have got hold of stderr must not hold us up.
	c.cmd.WaitDelay = time.Second
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Program, err)
	}
	if cfg.started != nil {
		cfg.started(c.cmd.Process.Pid)
	}
	if err := c.greet(ctx, cfg.Timeout); err != nil {
		c.kill()
		return nil, fmt.Errorf("start %s: %w; it said: %.500q", cfg.Program, err, c.stderr.String())
	}
	return c, nil
}

// environment is all that a child gets of ours: where its libraries' data are. No
// secret, and no setting of GDAL's, which would undo the probe's own.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "PROJ_LIB", "PROJ_DATA", "GDAL_DATA"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
