package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"catalogd/internal/catalog"
)

// Command is a program that makes the output of a task.
type Command struct {
	// Args with {out} for where to write, and an argument {tags} for -mo KEY=VALUE …, which
	// gdal_translate takes.
	Args []string
	// Stdout and Stderr are the command's own.
	Stdout, Stderr io.Writer
	// Tag has gdal_edit.py write the tags into the output.
	Tag bool
	// Upload sends the output although the store's filesystem may be here too.
	Upload bool
	// PassToken leaves the token in the command's environment.
	PassToken bool
	// Grace is how long a command that must end has from SIGTERM to SIGKILL.
	Grace time.Duration
}

// CommandError: the command failed, and the failure was reported.
type CommandError struct {
	Program string
	Failure Failure
	// Then is what becomes of the unit, where the server has said.
	Then Failed
}

func (e *CommandError) Error() string {
	text := strings.TrimSuffix(fmt.Sprintf("%s failed (%s): %s", e.Program, e.Failure.Reason, lastLine(e.Failure.Message)), ": ")
	if then := e.Then.String(); then != "" {
		text += "; " + then
	}
	return text
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// ErrInterrupted: the task was told to end, and its attempt was given up.
var ErrInterrupted = errors.New("interrupted")

// ErrStore: the store's staging, which is mounted here, is away or full.
var ErrStore = errors.New("the store is away, or full")

// tempFail is what a command exits with when it may work later: EX_TEMPFAIL of sysexits.h.
const tempFail = 75

// Exec has the command make the unit's output, if that is due, and hands it over. When
// ctx ends the command, or the upload, is ended and the attempt given up; an output that
// is staged is handed over all the same. Errors: ErrHeld, ErrQuarantined, ErrLost,
// ErrInterrupted, *CommandError, and those of Call.
func (t *Task) Exec(ctx context.Context, cmd Command) (*Ended, error) {
	if len(cmd.Args) == 0 {
		return nil, errors.New("there is no command")
	}
	// What can be refused is refused before anything is begun.
	if _, err := exec.LookPath(cmd.Args[0]); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(gdalEdit); cmd.Tag && err != nil {
		return nil, fmt.Errorf("--tag: %w; install GDAL's Python programs, or write the tags yourself: see {tags}", err)
	}
	return t.attempt(ctx, cmd.Upload, func(ctx context.Context, s staging, b begun, lost <-chan struct{}) error {
		if err := t.run(ctx, cmd, s, b, lost); err != nil {
			return err
		}
		switch info, err := os.Lstat(s.path); {
		case errors.Is(err, os.ErrNotExist):
			return t.failed(ctx, b.attempt, &CommandError{Program: cmd.Args[0], Failure: Failure{
				Class: "deterministic", Reason: "no_output",
				Message: "it ended well, and wrote nothing to {out}: is that among its arguments?",
			}})
		case err == nil && !info.Mode().IsRegular():
			return t.failed(ctx, b.attempt, &CommandError{Program: cmd.Args[0], Failure: Failure{
				Class: "deterministic", Reason: "no_file", Message: "what it made at {out} is no regular file: " + info.Mode().String(),
			}})
		}
		if cmd.Tag {
			return t.tag(ctx, s.path, b)
		}
		return nil
	})
}

// Put hands a file over as the unit's output, if that is due.
func (t *Task) Put(ctx context.Context, file string, upload bool) (*Ended, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", file)
	}
	return t.attempt(ctx, upload, func(ctx context.Context, s staging, b begun, _ <-chan struct{}) error {
		if s.upload {
			return nil // from where it lies
		}
		return copyFile(ctx, s.path, file)
	}, file)
}

// attempt is what all tasks do: begin, make, hand over. from is what is uploaded, where it
// is not what make makes.
func (t *Task) attempt(ctx context.Context, upload bool, produce func(context.Context, staging, begun, <-chan struct{}) error, from ...string) (*Ended, error) {
	b, err := t.begin(ctx)
	if err != nil || b.ended != nil {
		return b.ended, err
	}
	// From here on the attempt is ours to end.
	steady := context.WithoutCancel(ctx)
	lost, stop := t.keep(steady, b.attempt)
	defer stop()
	s, err := stage(b.attempt, upload, "")
	if err != nil {
		return nil, errors.Join(err, t.giveUp(steady, b.attempt))
	}
	defer s.clear()
	if err := produce(ctx, s, b, lost); err != nil {
		s.discard()
		switch {
		case errors.As(err, new(*CommandError)), errors.Is(err, ErrLost):
			return nil, err // reported, or not this task's any more
		case full(err):
			err = fmt.Errorf("%w: %w", ErrStore, err)
		case ctx.Err() != nil:
			err = fmt.Errorf("%w, and the attempt given up", ErrInterrupted)
		}
		return nil, errors.Join(err, t.giveUp(steady, b.attempt))
	}
	if s.upload && len(from) > 0 {
		s.path = from[0]
	}
	ended, err := t.deliver(ctx, s, b.attempt, lost)
	if err == nil {
		return ended, nil
	}
	var p *Problem
	var away *UnavailableError
	switch {
	case errors.Is(err, ErrInterrupted):
		err = fmt.Errorf("%w, and the attempt given up", ErrInterrupted)
	case errors.As(err, &p) && p.Status == http.StatusUnprocessableEntity:
		// The file is refused; by the code the server knows whether it would be again.
		err = t.failed(steady, b.attempt, &CommandError{Program: "the output", Failure: Failure{Reason: string(p.Code), Message: p.Detail}})
		s.discard()
		return nil, err
	case errors.As(err, &away) && !away.Store, IsProblem(err, catalog.CodeAttemptPromoting), errors.Is(err, ErrLost):
		return nil, err // nothing is known to have failed, or nothing is this task's
	}
	return nil, errors.Join(err, t.giveUp(steady, b.attempt))
}

// deliver gets the output to where it is staged, and completes the attempt. When ctx ends
// it is sent no further. Bytes that came as others, or that the store has lost, are sent
// again.
func (t *Task) deliver(ctx context.Context, s staging, a Attempt, lost <-chan struct{}) (*Ended, error) {
	sending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-lost:
			stop(ErrLost)
		case <-sending.Done():
		}
	}()
	for sent := 1; ; sent++ {
		h, err := s.hand(sending, t, a, sent > 1)
		if IsProblem(err, catalog.CodeAttemptLost, catalog.CodeAttemptEnded) {
			return nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
		if err != nil {
			return nil, err
		}
		ended, err := t.complete(context.WithoutCancel(ctx), a, h)
		if !h.direct || !IsProblem(err, catalog.CodeSizeMismatch, catalog.CodeChecksumMismatch, catalog.CodeStagedMissing) {
			return ended, err
		}
		if sent == maxSent {
			return nil, s.altered()
		}
	}
}

// giveUp does not wait long for a server that is away: the lease ends by itself.
func (t *Task) giveUp(ctx context.Context, a Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := t.abandon(ctx, a); err != nil {
		return fmt.Errorf("the attempt could not be given up, and ends with its lease: %w", err)
	}
	return nil
}

// failed reports a failure, and returns it.
func (t *Task) failed(ctx context.Context, a Attempt, failure *CommandError) error {
	err := t.Fail(context.WithoutCancel(ctx), a.ID, failure.Failure, &failure.Then)
	if IsProblem(err, catalog.CodeAttemptLost, catalog.CodeAttemptEnded) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("the failure could not be reported: %w", err)
	}
	return errors.Join(failure, err)
}

// run runs the command until it ends, must end, or has lost its unit.
func (t *Task) run(ctx context.Context, c Command, s staging, b begun, lost <-chan struct{}) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	last := &tail{w: c.Stderr}
	cmd := exec.Command(c.Args[0], expand(c.Args[1:], s.path, b.tags)...)
	cmd.Stdout, cmd.Stderr = c.Stdout, last
	if !IsTerminal(os.Stdin) { // which only its foreground may read
		cmd.Stdin = os.Stdin
	}
	cmd.Env = append(environ(c.PassToken),
		"CATALOGD_UNIT_KEY="+t.Unit.Key.String(), "CATALOGD_VERSION="+t.Unit.Identity.Version(),
		"CATALOGD_IDENTITY="+t.Unit.Identity.String(), "CATALOGD_OUT="+s.path)
	cmd.SysProcAttr = ownGroup()
	// A grandchild may hold standard error open.
	cmd.WaitDelay = 5 * time.Second
	started, ended := make(chan error, 1), make(chan struct{})
	var waited error // once ended
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the command dies with the thread that started it
		err := cmd.Start()
		if started <- err; err == nil {
			waited = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return t.failed(ctx, b.attempt, &CommandError{Program: c.Args[0], Failure: Failure{Reason: "not_started", Message: err.Error()}})
	}
	var why error
	select {
	case <-ended:
		kill(cmd.Process) // what it left behind could write on
		switch err := waited; {
		case err == nil || errors.Is(err, exec.ErrWaitDelay):
			return nil
		case !s.sound(b.attempt):
			return fmt.Errorf("%s: %w: %w", c.Args[0], ErrStore, err)
		}
		return t.failed(ctx, b.attempt, &CommandError{Program: c.Args[0], Failure: failureOf(cmd.ProcessState, waited, last.String())})
	case <-ctx.Done():
		why = ctx.Err()
	case <-lost:
		why = ErrLost
	}
	terminate(cmd.Process)
	select {
	case <-ended:
	case <-time.After(c.Grace):
		kill(cmd.Process)
		<-ended
	}
	kill(cmd.Process) // what did not heed, and was not waited for
	return why
}

// environ is this process's environment; a token is nobody's else unless that is asked
// for.
func environ(token bool) []string {
	return slices.DeleteFunc(os.Environ(), func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		return !token && (name == "CATALOGD_TOKEN" || name == "CATALOGD_TOKEN_FILE")
	})
}

// failureOf tells how a command ended.
func failureOf(state *os.ProcessState, err error, said string) Failure {
	f := Failure{Reason: "exec", Message: said}
	if state != nil {
		if signal := signalOf(state); signal != "" {
			f.Reason = "signal_" + signal
		} else {
			f.Reason = fmt.Sprintf("exit_%d", state.ExitCode())
		}
		if state.ExitCode() == tempFail {
			f.Class = "transient"
		}
	}
	if f.Message == "" {
		f.Message = err.Error()
	}
	return f
}

// expand puts what is known now into arguments.
func expand(args []string, out string, tags map[string]string) []string {
	var full []string
	for _, arg := range args {
		if arg == "{tags}" {
			for _, name := range slices.Sorted(maps.Keys(tags)) {
				full = append(full, "-mo", name+"="+tags[name])
			}
			continue
		}
		full = append(full, strings.ReplaceAll(arg, "{out}", out))
	}
	return full
}

const gdalEdit = "gdal_edit.py"

// tag writes the identity's tags into a TIFF. A COG is one no longer then: GDAL
// adds the tags at its end.
func (t *Task) tag(ctx context.Context, file string, b begun) error {
	args := expand([]string{"{tags}", file}, "", b.tags)
	said, err := exec.CommandContext(ctx, gdalEdit, args...).CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return t.failed(ctx, b.attempt, &CommandError{Program: gdalEdit, Failure: Failure{Reason: "gdal_edit", Message: lastLines(string(said))}})
	}
	return err
}

// maxSaid is how much of what a command said is reported.
const maxSaid = 8 << 10

// tail passes on what a command says, and keeps the end of it.
type tail struct {
	w  io.Writer
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	if t.b = append(t.b, p...); len(t.b) > 2*maxSaid {
		t.b = append(t.b[:0], t.b[len(t.b)-maxSaid:]...)
	}
	t.mu.Unlock()
	if t.w == nil {
		return len(p), nil
	}
	return t.w.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lastLines(string(t.b))
}

// lastLines are the last twenty, within maxSaid bytes, as text that can be stored.
func lastLines(said string) string {
	said = strings.ReplaceAll(strings.ToValidUTF8(strings.TrimSpace(said), "?"), "\x00", "?")
	if len(said) > maxSaid {
		said = strings.ToValidUTF8(said[len(said)-maxSaid:], "")
	}
	lines := strings.Split(said, "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
