package writer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// child is one catalogd-probe process. It has one user at a time.
type child struct {
	cmd     *exec.Cmd
	in, out *os.File
	stderr  tail
	hello   wire.Hello
	jobs    int
	// memory is its limit, in bytes.
	memory int64
	// slow: others may take processors from it.
	slow bool
	// before is the CPU time that it had used when its job began.
	before time.Duration
	// done is closed when the process has ended and was waited for.
	done chan struct{}
	err  error // of Wait; after done
}

// deathError: the child died, hung or broke the protocol.
type deathError struct {
	// summary is fit for clients, reason for the log.
	summary, reason string
	stderr          string
	// cpu is what the job took of it, as far as is known.
	cpu time.Duration
}

func (e *deathError) Error() string {
	s := e.reason
	if e.stderr != "" {
		s += "; it said: " + e.stderr
	}
	return s
}

// connect starts the process with pipes whose reads and writes can be given deadlines.
//
// The child ends as soon as its standard input does, whatever it is doing (see
// wire.Serve), and so with this process, however that ends. Pdeathsig would not do: it
// follows the thread that started the child, and Go ends threads.
func (c *child) connect() error {
	childIn, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return err
	}
	defer childOut.Close()
	// A block and its frame at once: a pipe's own 64 KiB are a few bytes short of that, and
	// both processes would be woken once more. Without leave it only takes longer.
	_, _ = unix.FcntlInt(childIn.Fd(), unix.F_SETPIPE_SZ, 128<<10)
	c.cmd.Stdin, c.cmd.Stdout = childIn, childOut
	c.in, c.out = in, out
	if err := c.cmd.Start(); err != nil {
		in.Close()
		out.Close()
		return err
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return nil
}

// greet waits for the child's hello.
func (c *child) greet(ctx context.Context, timeout time.Duration) error {
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	defer stop()
	if err := c.out.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, payload, err := wire.ReadFrame(c.out, wire.KindHello)
	if err != nil {
		return fmt.Errorf("wait for its hello: %w", err)
	}
	if err := json.Unmarshal(payload, &c.hello); err != nil {
		return fmt.Errorf("parse its hello: %w", err)
	}
	if c.hello.Protocol != wire.Version {
		return fmt.Errorf("it speaks version %d of the protocol, and this program version %d: install both of one release", c.hello.Protocol, wire.Version)
	}
	return nil
}

// exited tells whether the process has ended by itself.
func (c *child) exited() bool {
	select {
	case <-c.done:
		c.in.Close()
		c.out.Close()
		return true
	default:
		return false
	}
}

// kill ends the process and waits for that.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	c.in.Close()
	c.out.Close()
	<-c.done
}

// wall is how much time a job may take that may take so much CPU time.
func (c *child) wall(timeout time.Duration) time.Duration {
	if c.slow {
		return 2 * timeout
	}
	return timeout
}

// used is the CPU time of a running process; endless if that is not known, so that a job
// seems to take none. The clock's name is clock_getcpuclockid(3)'s, without a call.
func used(pid int) time.Duration {
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return math.MaxInt64 / 2
	}
	return time.Duration(t.Nano())
}

// probe gives the child one job and answers its reads until it has a verdict. sound
// tells whether the child can be given another. The child may take timeout in all, of
// CPU time and of time, not counting the reads of src; of time twice that if it is slow.
func (c *child) probe(ctx context.Context, src io.ReaderAt, size int64, req catalog.ProbeRequest, timeout time.Duration) (facts catalog.Facts, sound bool, err error) {
	c.jobs++
	c.stderr.Reset()
	c.before = used(c.cmd.Process.Pid)
	// A child that is killed closes its pipes, which ends whatever we wait for.
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	defer stop()

	facts, refusal, err := c.converse(ctx, src, size, req, timeout)
	var unread *sourceError
	switch {
	case ctx.Err() != nil:
		return catalog.Facts{}, false, ctx.Err()
	case errors.As(err, &unread):
		return catalog.Facts{}, false, fmt.Errorf("read the staged file: %w", unread.err)
	case err != nil:
		return catalog.Facts{}, false, c.died(err, timeout)
	case refusal != nil && refusal.Code == catalog.CodeProbeFailed && c.jobs > 1:
		// Most likely for want of memory, and what it did before may have left it less.
		return catalog.Facts{}, false, &deathError{summary: "it gave up", reason: "it gave up after other jobs: " + refusal.Message}
	case refusal != nil:
		return catalog.Facts{}, true, refusal
	}
	return facts, true, nil
}

// sourceError is src's, not the child's.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }

func (c *child) converse(ctx context.Context, src io.ReaderAt, size int64, req catalog.ProbeRequest, timeout time.Duration) (catalog.Facts, *catalog.Error, error) {
	none := catalog.Facts{}
	left := c.wall(timeout)
	// timed runs one exchange with the child on the job's clock.
	timed := func(f func() error) error {
		began := time.Now()
		deadline := began.Add(left)
		if err := errors.Join(c.in.SetWriteDeadline(deadline), c.out.SetReadDeadline(deadline)); err != nil {
			return err
		}
		err := f()
		left -= time.Since(began)
		return err
	}
	job := wire.Job{Size: size, Request: req, CPUSeconds: int(math.Ceil(timeout.Seconds()))}
	if err := timed(func() error { return wire.WriteJSON(c.in, wire.KindJob, job) }); err != nil {
		return none, nil, err
	}
	budget := wire.NewBudget(size)
	for {
		var kind wire.Kind
		var payload []byte
		if err := timed(func() (err error) {
			kind, payload, err = wire.ReadFrame(c.out, wire.KindRead, wire.KindVerdict)
			return err
		}); err != nil {
			return none, nil, err
		}
		if kind == wire.KindVerdict {
			return wire.ParseVerdict(payload)
		}
		offset, n, err := wire.DecodeRead(payload, size)
		if err != nil {
			return none, nil, err
		}
		if !budget.Spend(n) {
			return none, nil, wire.ErrBudget
		}
		data := make([]byte, n)
		if got, err := src.ReadAt(data, offset); got < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("%d bytes at %d of %d: %w", n, offset, size, io.ErrUnexpectedEOF)
			}
			return none, nil, &sourceError{err}
		}
		if err := ctx.Err(); err != nil {
			return none, nil, err
		}
		if err := timed(func() error { return wire.WriteFrame(c.in, wire.KindData, data) }); err != nil {
			return none, nil, err
		}
	}
}

// died ends the child and says how it came to that.
func (c *child) died(err error, timeout time.Duration) error {
	// A child that is dying may close its pipes a moment before it is gone.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) {
		select {
		case <-c.done:
		case <-time.After(time.Second):
		}
	}
	d := &deathError{}
	exited := c.exited()
	c.kill()
	if state := c.cmd.ProcessState; state != nil {
		d.cpu = state.UserTime() + state.SystemTime() - c.before
	}
	switch {
	case d.cpu >= timeout:
		d.summary = fmt.Sprintf("no verdict within %v of CPU time", timeout)
	case errors.Is(err, os.ErrDeadlineExceeded):
		d.summary = fmt.Sprintf("no verdict within %v", c.wall(timeout))
	case exited && wantOfMemory.MatchString(c.stderr.String()):
		d.summary = "it ran out of memory"
	case exited && c.err != nil:
		d.summary = c.err.Error() + c.took()
	case exited:
		d.summary = "it ended without a verdict"
	default:
		d.summary = "it broke the protocol"
	}
	d.reason = d.summary + ": " + err.Error()
	d.stderr = wire.Text(c.stderr.String(), headBytes+tailBytes+len("\n…\n"))
	return d
}

// took is what a child that has ended took of memory at most, in words: one that is denied
// more can end in any way. Its libraries count, as they do not towards the limit.
func (c *child) took() string {
	usage, ok := c.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok || c.memory == 0 {
		return ""
	}
	return fmt.Sprintf(", having taken %d MiB of memory, libraries included; a probe may take %d MiB besides those", usage.Maxrss>>10, c.memory>>20)
}

// headBytes and tailBytes of a child's standard error are kept: its cause comes first,
// and all its threads after that.
const headBytes, tailBytes = 1 << 10, 3 << 10

// tail is an io.Writer that keeps the beginning and the end of what was written.
type tail struct {
	mu        sync.Mutex
	head, buf []byte
	dropped   bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(headBytes-len(t.head), len(p))
	t.head = append(t.head, p[:n]...)
	rest := p[n:]
	t.dropped = t.dropped || len(t.buf)+len(rest) > tailBytes
	t.buf = append(t.buf, rest[max(0, len(rest)-tailBytes):]...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.head, t.buf, t.dropped = t.head[:0], t.buf[:0], false
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	between := ""
	if t.dropped {
		between = "\n…\n"
	}
	return string(t.head) + between + string(t.buf)
}

// wantOfMemory is how a child ends that is denied memory: Go's words, and C++'s.
var wantOfMemory = regexp.MustCompile(`(?i)out of memory|bad_alloc|cannot allocate`)
