package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// server is a catalogd that the demo starts, kills and starts again.
type server struct {
	executable string
	dir        string // what --data says
	store      string // what --store says; "" for serve's own
	listen     string
	log        string
	// databaseURL is that of its PostgreSQL, once it runs.
	databaseURL string
	cmd         *exec.Cmd
	exited      chan struct{}
}

// newServer finds a port. It is free by the time the server listens, unless
// somebody else is very quick.
func newServer(executable, dir, store string) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return &server{
		executable: executable, dir: filepath.Join(dir, "data"), store: store,
		listen: listener.Addr().String(), log: filepath.Join(dir, "server.log"),
	}, nil
}

func (s *server) url() string { return "http://" + s.listen }

// start starts the server and returns when it is ready. It ends by stop, by
// kill, or with this process.
func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--dev", "--data", s.dir, "--listen", s.listen}
	if s.store != "" {
		args = append(args, "--store", s.store)
	}
	s.cmd = exec.Command(s.executable, args...)
	s.cmd.Env = append(environ(), credentials()...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// A group of its own: the terminal's ^C is for the demo, which then stops the server.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig comes when the thread ends that forked
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.exited = exited
	return s.ready(ctx)
}

// ready waits until the server answers from its database.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("catalogd was not ready in a minute"))
	defer cancel()
	ready, err := until(ctx, s.exited, 100*time.Millisecond, func() (bool, error) {
		_, err := s.ask(ctx, "collection", "list")
		return err == nil, nil
	})
	switch {
	case err != nil:
		return errors.Join(err, s.stop())
	case !ready:
		return fmt.Errorf("catalogd ended while starting: %s", s.logTail())
	}
	url, err := os.ReadFile(filepath.Join(s.dir, "database.url"))
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.databaseURL = strings.TrimSpace(string(url))
	return nil
}

// ask runs one of catalogd's commands as the administrator and gives what it prints.
func (s *server) ask(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.executable, args...)
	cmd.Env = environ("CATALOGD_URL="+s.url(), "CATALOGD_TOKEN_FILE="+filepath.Join(s.dir, "admin.token"))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("catalogd %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

// environ is this process's without the settings of the caller's own catalogd, which are
// not this one's, and without credentials for S3, which only the server needs; and with
// more. Where the probe is holds for both.
func environ(more ...string) []string {
	kept := slices.DeleteFunc(os.Environ(), func(setting string) bool {
		return strings.HasPrefix(setting, "AWS_") || strings.HasPrefix(setting, "CATALOGD_") && !strings.HasPrefix(setting, "CATALOGD_PROBE=")
	})
	return append(kept, more...)
}

// credentials are what this process's environment says to the AWS SDK.
func credentials() []string {
	return slices.DeleteFunc(os.Environ(), func(setting string) bool { return !strings.HasPrefix(setting, "AWS_") })
}

// stop asks the server to stop, and insists when it does not.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // in case it is stopped
	select {
	case <-s.exited:
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("catalogd stopped with exit code %d: %s", code, s.logTail())
		}
		return nil
	case <-time.After(time.Minute):
		s.kill()
		return errors.New("catalogd did not stop in a minute after SIGTERM")
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

func (s *server) logTail() string {
	content, _ := os.ReadFile(s.log)
	return string(bytes.TrimSpace(content[max(0, len(content)-1000):]))
}
