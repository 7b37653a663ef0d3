package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// server is a catalogd that the demo starts, kills and starts again.
type server struct {
	executable string
	dir        string // what --data says
	listen     string
	log        string
	// databaseURL is that of its PostgreSQL, once it runs.
	databaseURL string
	cmd         *exec.Cmd
	exited      chan struct{}
}

// newServer finds a port. It is free by the time the server listens, unless
// somebody else is very quick.
func newServer(executable, dir string) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return &server{
		executable: executable, dir: filepath.Join(dir, "data"),
		listen: listener.Addr().String(), log: filepath.Join(dir, "server.log"),
	}, nil
}

func (s *server) url() string   { return "http://" + s.listen }
func (s *server) store() string { return filepath.Join(s.dir, "store") }

// start starts the server and returns when it is ready. It ends by stop, by
// kill, or with this process.
func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.executable, "serve", "--dev", "--data", s.dir, "--listen", s.listen)
	s.cmd.Env = withoutSettings(os.Environ())
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

func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("catalogd was not ready in a minute"))
	defer cancel()
	for {
		if s.answers(ctx) {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.exited:
			return fmt.Errorf("catalogd ended while starting: %s", s.logTail())
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), s.stop())
		}
	}
	url, err := os.ReadFile(filepath.Join(s.dir, "database.url"))
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.databaseURL = strings.TrimSpace(string(url))
	return nil
}

func (s *server) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// withoutSettings drops the settings of the caller's own catalogd: they are
// not this one's. Where the probe is holds for both.
func withoutSettings(environ []string) (kept []string) {
	for _, setting := range environ {
		if !strings.HasPrefix(setting, "CATALOGD_") || strings.HasPrefix(setting, "CATALOGD_PROBE=") {
			kept = append(kept, setting)
		}
	}
	return kept
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

// caught is what a kill left behind.
type caught struct {
	at time.Time
	// attempts that had an intent and no row.
	attempts []string
}

const (
	sqlPromoting = `SELECT attempt_id::text FROM catalog.attempts WHERE state = 'promoting'`
	sqlActive    = `SELECT count(*) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()`
)

// catch kills the server while at least one step is between its intent and its
// row. That time is short, so a step that is seen there is looked at again with
// the server held still (SIGSTOP): if it has slipped through, the server goes
// on. It gives up, with nothing caught, when over is closed.
func (s *server) catch(ctx context.Context, over <-chan struct{}) (caught, error) {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return caught{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		promoting, err := query(ctx, conn, sqlPromoting)
		if err != nil {
			return caught{}, err
		}
		if len(promoting) > 0 {
			if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return caught{}, err
			}
			if promoting, err = s.still(ctx, conn); err != nil {
				return caught{}, err
			}
			if len(promoting) > 0 {
				s.kill()
				return caught{at: time.Now(), attempts: promoting}, nil
			}
			if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				return caught{}, err
			}
		}
		select {
		case <-time.After(300 * time.Microsecond):
		case <-over:
			return caught{}, nil
		case <-ctx.Done():
			return caught{}, ctx.Err()
		}
	}
}

// still gives the promoting attempts of a server that is held still, once
// PostgreSQL has carried out what the server had sent it.
func (s *server) still(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	for range 100 {
		time.Sleep(10 * time.Millisecond)
		var active int
		if err := conn.QueryRow(ctx, sqlActive).Scan(&active); err != nil {
			return nil, err
		}
		if active == 0 {
			break
		}
	}
	return query(ctx, conn, sqlPromoting)
}

const (
	sqlUnsettled     = `SELECT attempt_id::text FROM catalog.attempts WHERE attempt_id = ANY ($1::text[]::uuid[]) AND state = 'promoting'`
	sqlRolledForward = `SELECT attempt_id::text FROM catalog.attempts WHERE attempt_id = ANY ($1::text[]::uuid[]) AND state = 'done' AND ended_at > $2`
)

// settled waits until no caught attempt is promoting any more, and counts those
// that have become rows since the kill.
func (s *server) settled(ctx context.Context, c caught) (rolledForward int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("steps were not rolled forward in 30 s"))
	defer cancel()
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		open, err := query(ctx, conn, sqlUnsettled, c.attempts)
		if err != nil {
			return 0, errors.Join(context.Cause(ctx), err)
		}
		if len(open) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	done, err := query(ctx, conn, sqlRolledForward, c.attempts, c.at)
	return len(done), err
}

// query reads one column of texts.
func query(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]string, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
