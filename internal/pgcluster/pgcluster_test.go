package pgcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain lets the test binary be a process that holds a cluster, for the tests
// to kill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PGCLUSTER_TEST_HOLD"); dir != "" {
		c, err := Start(context.Background(), Config{Dir: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(c.PID())
		select {}
	}
	os.Exit(m.Run())
}

// hold starts such a process. It prints the postmaster's pid when it is ready.
func hold(t *testing.T, dir string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PGCLUSTER_TEST_HOLD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

func start(t *testing.T, dir string) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), Config{Dir: dir, Unsafe: true, Settings: map[string]string{"max_connections": "17"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	return c
}

func stop(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// query gives one text.
func query(t *testing.T, c *Cluster, sql string) (result string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&result); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return result
}

// testDir is one that the user postgres can reach, unlike t.TempDir under root.
func testDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgcluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestStartStopStart(t *testing.T) {
	dir := filepath.Join(testDir(t), `a "b" & ü`)
	c := start(t, dir)
	for setting, want := range map[string]string{
		"server_encoding": "UTF8", "data_checksums": "on", "listen_addresses": "", "fsync": "off",
		"max_connections": "17", "TimeZone": "UTC",
	} {
		if got := query(t, c, "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	query(t, c, "CREATE TABLE kept ()")
	if info, err := os.Stat(c.socket); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket's directory: %v, %v: others can reach it", info.Mode(), err)
	}

	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a second server: %v", err)
	}
	stop(t, c)
	stop(t, c) // again is no error
	if _, err := os.Stat(filepath.Join(c.dataDir(), "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not shut down in order: %v", err)
	}

	// A stale pid file whose pid is now somebody else's.
	if err := os.WriteFile(filepath.Join(c.dataDir(), "postmaster.pid"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c = start(t, dir)
	if got := query(t, c, "SELECT to_regclass('kept')::text"); got != "kept" {
		t.Errorf("the table is gone: %q", got)
	}
	stop(t, c)
}

func TestDurableByDefault(t *testing.T) {
	s := Config{}.settings("/run")
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if value, set := s[name]; set {
			t.Errorf("%s = %s", name, value)
		}
	}
}

// The server dies with the process that started it, even by SIGKILL, and the
// next one starts with every committed row.
func TestSIGKILL(t *testing.T) {
	dir := testDir(t)
	holder, out := hold(t, dir)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	postmaster, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(line)
	}
	held := &Cluster{dir: dir, socket: filepath.Join(dir, "run")}
	query(t, held, "CREATE TABLE kept ()")

	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(holder.Process.Pid)) {
		t.Errorf("a second server beside process %d: %v", holder.Process.Pid, err)
	}

	_ = holder.Process.Kill()
	_ = holder.Wait()
	waitGone(t, postmaster)
	c := start(t, dir)
	if got := query(t, c, "SELECT to_regclass('kept')::text"); got != "kept" {
		t.Errorf("the table is gone: %q", got)
	}
	stop(t, c)
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(stat), ") Z ") {
			return // dead, and waiting for a parent that does not care
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlived its server", pid)
		}
	}
}

// Killed at any instant of its first start, it starts the next time.
func TestSIGKILLWhileStarting(t *testing.T) {
	dir := testDir(t)
	for _, delay := range []time.Duration{20, 100, 300, 600, 900} {
		holder, _ := hold(t, dir)
		time.Sleep(delay * time.Millisecond)
		_ = holder.Process.Kill()
		_ = holder.Wait()
	}
	c := start(t, dir)
	query(t, c, "SELECT 'x'")
	stop(t, c)
}

// A server that outlived its parent after all is ended by the next start.
func TestOrphan(t *testing.T) {
	dir := testDir(t)
	c := start(t, dir)
	stop(t, c)

	orphan := c.command("postgres", "-D", c.dataDir(), "-c", "listen_addresses=", "-k", c.socket)
	orphan.Dir = c.dataDir()
	ended, err := spawn(orphan)
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = orphan
	for !c.ready() {
		time.Sleep(10 * time.Millisecond)
	}
	c = start(t, dir)
	<-ended
	query(t, c, "SELECT 'x'")
	stop(t, c)
}

// The thread that calls Start may end; the server stays.
func TestThreadEnds(t *testing.T) {
	dir := testDir(t)
	started := make(chan *Cluster)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		c, err := Start(context.Background(), Config{Dir: dir, Unsafe: true})
		if err != nil {
			t.Error(err)
		}
		started <- c
	}()
	c := <-started
	if c == nil {
		return
	}
	defer c.Kill()
	select {
	case <-c.Exited():
		t.Fatal("the server ended with the thread")
	case <-time.After(500 * time.Millisecond):
	}
	// Told by Exited when it ends without being asked.
	_ = syscall.Kill(c.PID(), syscall.SIGQUIT)
	<-c.Exited()
}

func TestDirectoryThatCannotHoldTheSocket(t *testing.T) {
	for _, name := range []string{strings.Repeat("long/", 30), "a,b"} {
		c := start(t, filepath.Join(testDir(t), name))
		query(t, c, "SELECT 'x'")
		if !strings.HasPrefix(c.socket, "/tmp/catalogd-") {
			t.Errorf("socket in %s", c.socket)
		}
		stop(t, c)
		if _, err := os.Stat(c.socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stays: %v", c.socket, err)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	contains := func(err error, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not say %q", err, part)
			}
		}
	}
	has := func(versions ...int) func(Installation) bool {
		return func(i Installation) bool {
			for _, v := range versions {
				if v == i.Version {
					return true
				}
			}
			return false
		}
	}
	found := []Installation{{"/13", 13}, {"/15", 15}, {"/16", 16}}
	_, err := choose(nil, has())
	contains(err, "no PostgreSQL server", "apt-get install postgresql postgresql-postgis")
	_, err = choose(found[:1], has(13))
	contains(err, "PostgreSQL 13", "14 or later")
	_, err = choose(found, has(13))
	contains(err, "apt-get install postgresql-16-postgis-3 postgresql-16-postgis-3-scripts")
	if i, err := choose(found, has(13, 15)); err != nil || i.Version != 15 {
		t.Errorf("chose %v, %v", i, err)
	}

	closed := filepath.Join(testDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		_, err = Start(t.Context(), Config{Dir: filepath.Join(closed, "a", "pg")})
		contains(err, "may not pass through "+closed+":", "chmod o+x "+closed)
	}

	// A setting that the server refuses: its own words reach the caller.
	_, err = Start(t.Context(), Config{Dir: filepath.Join(testDir(t), "pg"), Unsafe: true, Settings: map[string]string{"work_mem": "much"}})
	contains(err, `invalid value for parameter "work_mem"`, "postgres.log")
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("second lock: %v", err)
	}
	release()
	if release, err = Lock(dir); err != nil {
		t.Fatal(err)
	}
	release()
}
