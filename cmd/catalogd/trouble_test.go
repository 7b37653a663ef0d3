package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Troubles of the store and of the database: each is told as what it is, costs
// nothing but time, and is over when its cause is.

// mount mounts, for root; false says that this process may not, as in most
// places where tests do not run as root.
func mount(t testing.TB, source, target, kind string, flags uintptr, data string) bool {
	t.Helper()
	ok(t, os.MkdirAll(target, 0o755))
	err := unix.Mount(source, target, kind, flags, data)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
		t.Logf("may not mount %s: %v", target, err)
		return false
	}
	ok(t, err)
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	return true
}

func TestFullStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if !mount(t, "catalogd", s.store, "tmpfs", 0, "size=1m,nr_inodes=64,mode=755") {
		return
	}
	p := s.start()
	p.collection("landcover", nil)
	p.collection("copied", map[string]any{"staging_copied": true})
	one := newUnit("landcover", "t1", "v1")
	a := p.run(one)

	// No space for bytes.
	wantProblem(t, p.ask("PUT", a.path("output"), io.LimitReader(zeros{}, 3<<20)), "store_full", "")
	if left := s.files(".staging"); len(left) != 0 {
		t.Errorf("left in staging: %q", left)
	}
	copied := newUnit("copied", "t1", "v1")
	b := p.run(copied)
	write(t, b.StagingPath, make([]byte, 600<<10))
	wantProblem(t, p.ask("POST", b.path("complete"), nil), "store_full", "")
	if left := s.files(".staging"); len(left) != 1 {
		t.Errorf("left in staging: %q", left)
	}
	write(t, b.StagingPath, pixels(2))

	// No inode for the collection's directory: the intent stands, and is kept.
	write(t, a.StagingPath, pixels(1))
	var filled []string
	for i := 0; ; i++ {
		name := s.path(fmt.Sprintf(".staging/in/filler-%d", i))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			break
		}
		filled = append(filled, name)
	}
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_full", "")
	if left := s.outputs(); len(left) != 0 {
		t.Errorf("at final names: %q", left)
	}
	for _, name := range filled {
		ok(t, os.Remove(name))
	}
	if sum := must[recovered](p, "POST", "/v1/recover", nil); sum.RolledForward != 1 {
		t.Errorf("recovered %+v", sum)
	}
	p.complete(a)
	p.complete(b)
	s.done(p, one, pixels(1))
	s.done(p, copied, pixels(2))
	s.sound(p)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if !mount(t, "catalogd", s.store, "tmpfs", 0, "size=4m,mode=755") {
		return
	}
	p := s.start()
	p.collection("landcover", nil)
	old, one := newUnit("landcover", "t0", "v1"), newUnit("landcover", "t1", "v1")
	p.do(old, pixels(9))
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))

	ok(t, unix.Mount("", s.store, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	wantProblem(t, p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")), "store_read_only", "")
	wantProblem(t, p.ask("PUT", a.path("output"), bytes.NewReader(pixels(2))), "store_read_only", "")
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_read_only", "")
	s.done(p, old, pixels(9)) // what is done can still be read
	if n := s.count(`SELECT count(*) FROM catalog.tiles`); n != 1 {
		t.Errorf("%d rows", n)
	}

	ok(t, unix.Mount("", s.store, "", unix.MS_REMOUNT, ""))
	p.complete(a)
	p.do(newUnit("landcover", "t2", "v1"), pixels(3))
	s.done(p, one, pixels(1))
	s.sound(p)
}

func TestUnmountedStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	backing := reachable(t)
	if !mount(t, backing, s.store, "", unix.MS_BIND, "") {
		return
	}
	p := s.start()
	p.collection("landcover", nil)
	old, one := newUnit("landcover", "t0", "v1"), newUnit("landcover", "t1", "v1")
	done := p.do(old, pixels(9))
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))

	ok(t, unix.Unmount(s.store, unix.MNT_DETACH))
	wantProblem(t, p.ask("POST", "/v1/attempts", old.again()), "store_unavailable", "") // not run: it is not lost
	wantProblem(t, p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")), "store_unavailable", "")
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_unavailable", "") // not staged_missing
	wantProblem(t, p.ask("PUT", a.path("output"), bytes.NewReader(pixels(2))), "store_unavailable", "")
	wantProblem(t, p.ask("GET", "/data/"+done.Tile.ObjectKey, nil), "store_unavailable", "")
	// A check answers for each unit; of this one it cannot be told.
	checked := p.ask("POST", "/v1/units:check?verify=head", map[string]any{"units": []any{map[string]any{"unit_key": done.Tile.UnitKey}}})
	if !strings.Contains(string(checked.body), `"code":"store_unavailable"`) || !strings.Contains(string(checked.body), `"lost":0`) || !strings.Contains(string(checked.body), `"due":0`) {
		t.Errorf("check: %s", checked.body)
	}
	wantProblem(t, p.ask("POST", "/v1/sweep", nil), "store_unavailable", "")
	if left, err := os.ReadDir(s.store); err != nil || len(left) != 0 {
		t.Errorf("written where the volume is not: %v, %v", left, err)
	}
	p.kill()
	// Nor does a server start there, and make it another store.
	cmd := program(t, []string{"serve", "--database-url", withRole(s.database, "catalog_server"), "--store", s.store, "--listen", "127.0.0.1:0"}, nil)
	if said, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != exitError || !strings.Contains(string(said), "is the volume mounted?") {
		t.Errorf("start without the volume: %v, %s", cmd.ProcessState, said)
	}

	mount(t, backing, s.store, "", unix.MS_BIND, "")
	p = s.start()
	p.complete(a)
	s.done(p, old, pixels(9))
	s.done(p, one, pixels(1))
	s.sound(p)
}

func TestCollectionOnAnotherFilesystem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	one := newUnit("landcover", "t1", "v1")
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))
	if !mount(t, "catalogd", s.path("landcover"), "tmpfs", 0, "size=1m") {
		return
	}
	wantProblem(t, p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")), "cross_device", "")
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "cross_device", "")
	if left := s.outputs(); len(left) != 0 {
		t.Errorf("at final names: %q", left)
	}
	ok(t, unix.Unmount(s.path("landcover"), 0))
	if d := p.begin(one.again()); d.Verdict == "run" {
		write(t, d.Attempt.StagingPath, pixels(1))
		p.complete(*d.Attempt)
	} else {
		p.complete(a)
	}
	p.do(newUnit("landcover", "t2", "v1"), pixels(2))
	s.done(p, one, pixels(1))
	s.sound(p)
}

// The server runs as a user who may not read what the task wrote: root's tests
// run it as the user of the tests' PostgreSQL, since nobody else may reach its
// socket; others have mode 000.
func TestUnreadableOutput(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	uid := os.Getuid()
	if uid == 0 {
		uid = s.runAsPostgres()
	}
	p := s.start()
	p.collection("landcover", nil)
	one := newUnit("landcover", "t1", "v1")
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))
	mode := os.FileMode(0o600)
	if os.Getuid() != 0 {
		mode = 0
	}
	ok(t, os.Chmod(a.StagingPath, mode))
	said := wantProblem(t, p.ask("POST", a.path("complete"), nil), "staged_unreadable", "")
	for _, want := range []string{fmt.Sprintf("uid %d", uid), fmt.Sprintf("mode %04o of uid %d", mode, os.Getuid()), "chmod"} {
		if !strings.Contains(said.Detail, want) {
			t.Errorf("detail %q does not say %q", said.Detail, want)
		}
	}
	ok(t, os.Chmod(a.StagingPath, 0o644))
	// The store's own directory is closed to the server.
	if os.Getuid() == 0 {
		ok(t, os.Chown(s.store, 0, 0))
	}
	ok(t, os.Chmod(s.store, 0o555))
	said = wantProblem(t, p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")), "store_forbidden", "")
	for _, want := range []string{fmt.Sprintf("uid %d", uid), "mode 0555"} {
		if !strings.Contains(said.Detail, want) {
			t.Errorf("detail %q does not say %q", said.Detail, want)
		}
	}
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_forbidden", "")
	if n := len(s.outputs()); n != 0 {
		t.Errorf("%d objects", n)
	}
	ok(t, os.Chmod(s.store, 0o777))
	p.complete(a)
	p.do(newUnit("landcover", "t2", "v1"), pixels(2))
	s.done(p, one, pixels(1))
	s.sound(p)
}

// runAsPostgres has the servers of a site run as the user who owns the socket of
// the tests' PostgreSQL, from programs that this user may reach.
func (s *site) runAsPostgres() (uid int) {
	s.Helper()
	u, err := url.Parse(s.database)
	ok(s, err)
	info, err := os.Stat(u.Query().Get("host"))
	ok(s, err)
	stat := info.Sys().(*syscall.Stat_t)
	if stat.Uid == 0 {
		postgres, err := user.Lookup("postgres")
		ok(s, err)
		id, err := strconv.ParseUint(postgres.Uid, 10, 32)
		ok(s, err)
		stat.Uid = uint32(id)
	}
	bin := reachable(s)
	s.dress = func(cmd *exec.Cmd) {
		for i, env := range cmd.Env {
			if name, probe, _ := strings.Cut(env, "="); name == "CATALOGD_PROBE" {
				cmd.Env[i] = name + "=" + install(s, probe, bin)
			}
		}
		cmd.Path = install(s, cmd.Path, bin)
		cmd.Dir = "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}
	}
	ok(s, os.Chown(s.store, int(stat.Uid), int(stat.Gid)))
	return int(stat.Uid)
}

// install copies a program into dir and gives its path there.
func install(t testing.TB, program, dir string) string {
	t.Helper()
	content, err := os.ReadFile(program)
	ok(t, err)
	name := filepath.Join(dir, filepath.Base(program))
	ok(t, os.WriteFile(name, content, 0o755))
	return name
}

func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	old, one := newUnit("landcover", "t0", "v1"), newUnit("landcover", "t1", "v1")
	p.do(old, pixels(9))
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))

	s.onDatabase(`ALTER DATABASE %s SET default_transaction_read_only = on`)
	poll(t, "the database to be read-only", func() bool {
		return bytes.Contains(p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")).body, []byte("database_read_only"))
	})
	wantProblem(t, p.ask("POST", "/v1/attempts", newUnit("landcover", "t2", "v1")), "database_read_only", "")
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "database_read_only", "")
	wantProblem(t, p.ask("POST", "/v1/collections", map[string]any{"id": "more"}), "database_read_only", "")
	if d := p.begin(old.again()); d.Verdict != "skip" {
		t.Errorf("what is done: %+v", d)
	}
	if n := len(s.outputs()); n != 1 {
		t.Errorf("%d objects", n)
	}
	s.onDatabase(`ALTER DATABASE %s RESET default_transaction_read_only`)
	poll(t, "the database to be writable", func() bool {
		_, err := s.sql.Exec(t.Context(), `SELECT 1`)
		return err == nil && p.ask("POST", "/v1/heartbeats", map[string]any{"attempts": []any{a.ID}}).status == 200
	})
	p.complete(a)
	s.done(p, one, pixels(1))
	s.sound(p)
}

func TestLostDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	hold := t.TempDir()
	p := s.start(envHold + "=promoted:" + hold)
	p.collection("landcover", nil)
	one := newUnit("landcover", "t1", "v1")
	a := p.run(one)
	write(t, a.StagingPath, pixels(1))
	completed := make(chan answer, 1)
	go func() {
		got, err := p.send("POST", a.path("complete"), nil)
		if err != nil {
			t.Errorf("complete: %v", err)
		}
		completed <- got
	}()
	poll(t, "the step to be held", exists(filepath.Join(hold, "held")))
	s.onDatabase(`ALTER DATABASE %s ALLOW_CONNECTIONS false`)
	poll(t, "the database to be away", func() bool {
		return p.ask("GET", "/readyz", nil).status == 503
	})
	for _, r := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/attempts", one.again()},
		{"GET", "/v1/units/" + a.ID.String(), nil},
		{"POST", a.path("complete"), nil},
		{"PUT", a.path("output"), bytes.NewReader(pixels(2))},
		{"POST", "/v1/recover", nil},
		{"GET", "/data/landcover/t1.tif", nil},
		{"GET", "/readyz", nil},
	} {
		if r.path == a.path("complete") {
			continue // joins the step that is held
		}
		wantProblem(t, p.ask(r.method, r.path, r.body), "database_unavailable", "")
	}
	if p.ask("GET", "/healthz", nil).status != 200 {
		t.Error("the server itself is not healthy")
	}
	ok(t, os.WriteFile(filepath.Join(hold, "go"), nil, 0o644))
	poll(t, "the step to try again", func() bool { return strings.Contains(p.said(), "write the row again") })
	s.onDatabase(`ALTER DATABASE %s ALLOW_CONNECTIONS true`)
	if out := read[outcome](t, <-completed); out.State != "done" || out.AttemptID != a.ID {
		t.Errorf("the step under way: %+v", out)
	}
	s.done(p, one, pixels(1))
	s.sound(p)
}

// onDatabase alters the site's database from another one, and ends all of its
// connections, so that new ones see it.
func (s *site) onDatabase(sql string) {
	s.Helper()
	u, err := url.Parse(s.database)
	ok(s, err)
	name := strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	other := *s
	if other.sql, err = newPool(s.Context(), u.String()); err != nil {
		s.Fatal(err)
	}
	defer other.sql.Close()
	other.exec(fmt.Sprintf(sql, `"`+name+`"`))
	other.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
}
