// Package pgcluster runs a private PostgreSQL: the embedded default of
// `catalogd serve --dev`, and the database of the tests.
//
// Its invariant: the server lives no longer than the process that started it,
// however that ends, and no two processes use one directory. It listens on a
// Unix socket that only its owner and root can reach, never on TCP; so it asks
// for no password. It works on Linux only and imports the standard library.
package pgcluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// port only names the socket.
const port = "5432"

// Config says where a cluster lives and how it runs.
type Config struct {
	// Dir holds the cluster: data/, run/ (the socket), postgres.log, lock. It is
	// made if need be. When root starts the cluster it runs as the user postgres,
	// who must be able to pass through the directories above.
	Dir string
	// Settings are PostgreSQL's own: max_connections, shared_preload_libraries, …
	Settings map[string]string
	// InitDB are more arguments to initdb, which runs when there is no cluster yet.
	InitDB []string
	// Unsafe trades durability for speed: for tests, whose data nobody misses.
	Unsafe bool
}

// Cluster is a running PostgreSQL server.
type Cluster struct {
	install Installation
	owner   owner
	dir     string // absolute
	socket  string // directory
	cmd     *exec.Cmd
	exited  chan struct{}
	exit    error // how it ended; after exited is closed
	release func()
	once    sync.Once
}

// Start starts the cluster, after making it if there is none, and returns when
// it accepts connections. A server that was left over in Dir is ended first.
// The context bounds the start only; the server ends by Stop, Kill or the end of
// this process, also by SIGKILL. A crash here leaves a directory that the next
// Start completes.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start PostgreSQL in %s: %w", config.Dir, err)
		}
	}()
	c := &Cluster{exited: make(chan struct{})}
	if c.dir, err = filepath.Abs(config.Dir); err != nil {
		return nil, err
	}
	if c.install, err = Find(ctx); err != nil {
		return nil, err
	}
	if c.owner, err = findOwner(); err != nil {
		return nil, err
	}
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	if c.release, err = Lock(c.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	if err := c.owner.canReach(ctx, c.dir); err != nil {
		return nil, err
	}
	if err := endLeftovers(ctx, c.dir); err != nil {
		return nil, err
	}
	if err := c.initialise(ctx, config); err != nil {
		return nil, err
	}
	if c.socket, err = c.socketDir(); err != nil {
		return nil, err
	}
	if err := c.removeStale(); err != nil {
		return nil, err
	}
	if err := c.run(ctx, config); err != nil {
		return nil, err
	}
	return c, nil
}

// URL of a database in the cluster, for its superuser.
func (c *Cluster) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Path:     "/" + database,
		RawQuery: strings.ReplaceAll(url.Values{"host": {c.socket}, "port": {port}}.Encode(), "+", "%20"), // libpq takes + for itself
	}
	return u.String()
}

// PID of the postmaster.
func (c *Cluster) PID() int { return c.cmd.Process.Pid }

// Exited is closed when the server has ended, for whatever reason.
func (c *Cluster) Exited() <-chan struct{} { return c.exited }

// LogFile is where the server writes its log.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, "postgres.log") }

// Stop shuts the server down: open transactions are rolled back, a checkpoint is
// written. When ctx ends before that is done the server is told to quit at
// once, which costs the next start a recovery and loses nothing.
func (c *Cluster) Stop(ctx context.Context) error {
	c.signal(syscall.SIGINT)
	select {
	case <-c.exited:
		return c.ended()
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop PostgreSQL in %s: shutdown did not finish: %w", c.dir, ctx.Err()), c.Kill())
	}
}

// Kill ends the server without a checkpoint, as a crash would.
func (c *Cluster) Kill() error {
	c.signal(syscall.SIGQUIT)
	select {
	case <-c.exited:
	case <-time.After(10 * time.Second):
		c.signal(syscall.SIGKILL)
		<-c.exited
	}
	return c.ended()
}

func (c *Cluster) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// ended frees what the server held. It is no error if it was already gone.
func (c *Cluster) ended() error {
	var err error
	c.once.Do(func() {
		if filepath.Dir(c.socket) != c.dir {
			err = os.RemoveAll(c.socket)
		}
		c.release()
	})
	return err
}

// makeDir makes the cluster's directory. Under root it stays root's, so that
// nothing that runs as postgres can put a link where root writes.
func (c *Cluster) makeDir() error {
	mode := os.FileMode(0o700)
	if c.owner.credential != nil {
		mode = 0o711
	}
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(c.dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (c *Cluster) dataDir() string { return filepath.Join(c.dir, "data") }

// initialise makes the cluster beside its name and renames it when it is
// complete: where data/ exists, it is whole.
func (c *Cluster) initialise(ctx context.Context, config Config) error {
	if info, err := os.Stat(c.dataDir()); err == nil {
		return c.owner.owns(c.dataDir(), info)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	unfinished := filepath.Join(c.dir, "data.new")
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := c.owner.mkdir(unfinished); err != nil {
		return err
	}
	args := []string{
		"--pgdata=" + unfinished, "--username=postgres", "--auth-local=trust", "--auth-host=reject",
		"--encoding=UTF8", "--locale=C", "--data-checksums",
	}
	if config.Unsafe {
		args = append(args, "--no-sync")
	}
	cmd := c.command("initdb", append(args, config.InitDB...)...)
	cmd.Dir = unfinished
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // on any other signal it would still be deleting when the next Start begins
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	ended, err := spawn(cmd)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err = <-ended
		stop()
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("initdb was stopped: %w", ctx.Err())
		}
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(output.Bytes()))
	}
	if err := os.Rename(unfinished, c.dataDir()); err != nil {
		return err
	}
	return syncDir(c.dir)
}

// run starts the postmaster and waits until it says, in its pid file, that it is
// ready.
func (c *Cluster) run(ctx context.Context, config Config) error {
	log, err := c.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	logged, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	args := []string{"-D", c.dataDir(), "-p", port}
	settings := config.settings(c.socket)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	c.cmd = c.command("postgres", args...)
	c.cmd.Dir = c.dataDir()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // gone at once: a successor need not wait for a checkpoint
	c.cmd.SysProcAttr.Setsid = true               // the terminal's ^C is for this process, which then stops the server
	ended, err := spawn(c.cmd)
	if err != nil {
		return err
	}
	go func() {
		c.exit = <-ended
		close(c.exited)
	}()

	for !c.ready() {
		select {
		case <-c.exited:
			return errors.Join(fmt.Errorf("the server ended while starting (%v); %s says: %s", c.exit, c.LogFile(), tail(c.LogFile(), logged)), c.ended())
		case <-ctx.Done():
			return errors.Join(ctx.Err(), c.Kill())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// settings that hold whatever the caller wants come last.
func (config Config) settings(socket string) map[string]string {
	s := map[string]string{"timezone": "UTC", "log_timezone": "UTC"}
	if config.Unsafe {
		s["fsync"], s["synchronous_commit"], s["full_page_writes"] = "off", "off", "off"
	}
	maps.Copy(s, config.Settings)
	s["listen_addresses"] = ""
	s["unix_socket_directories"] = `"` + strings.ReplaceAll(socket, `"`, `""`) + `"` // a list, hence the quotes
	s["unix_socket_permissions"] = "0700"
	return s
}

// ready reads the postmaster's pid file: its first line is the pid, its eighth
// the state.
func (c *Cluster) ready() bool {
	content, err := os.ReadFile(filepath.Join(c.dataDir(), "postmaster.pid"))
	lines := strings.Split(string(content), "\n")
	return err == nil && len(lines) > 7 && lines[0] == strconv.Itoa(c.PID()) && strings.TrimSpace(lines[7]) == "ready"
}

// removeStale removes what a killed server left to tell others that it runs.
// PostgreSQL would do so itself, but not when its pid has since been given to
// another process. Only after endLeftovers, under the lock.
func (c *Cluster) removeStale() error {
	for _, name := range []string{
		filepath.Join(c.dataDir(), "postmaster.pid"),
		filepath.Join(c.socket, socketName),
		filepath.Join(c.socket, socketName+".lock"),
	} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

const (
	socketName = ".s.PGSQL." + port
	// maxSocketPath is the size of sockaddr_un.sun_path without its final NUL.
	maxSocketPath = 107
)

// socketDir makes the directory of the socket: in the cluster's own, or where
// that path is too long for a socket, or would be a list of hosts in a URL, in
// /tmp under a name derived from it.
func (c *Cluster) socketDir() (string, error) {
	dir := filepath.Join(c.dir, "run")
	if len(filepath.Join(dir, socketName)) > maxSocketPath || strings.Contains(dir, ",") {
		hash := sha256.Sum256([]byte(c.dir))
		dir = fmt.Sprintf("/tmp/catalogd-%x", hash[:6])
	}
	return dir, c.owner.mkdir(dir)
}

// maxLog is the size above which a log is set aside at the next start.
const maxLog = 16 << 20

func (c *Cluster) openLog() (*os.File, error) {
	if info, err := os.Stat(c.LogFile()); err == nil && info.Size() > maxLog {
		if err := os.Rename(c.LogFile(), c.LogFile()+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(c.LogFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// tail is the last of what was written to the file after the first skip bytes.
func tail(name string, skip int64) string {
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	content = content[min(int(skip), len(content)):]
	return string(bytes.TrimSpace(content[max(0, len(content)-2000):]))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// command runs a program of the installation as the cluster's owner, with none
// of this process's environment, where there may be secrets and PG… variables.
func (c *Cluster) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.install.BinDir, program), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner.credential}
	return cmd
}
