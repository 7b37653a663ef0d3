package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"catalogd/internal/invariant"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/testdb"
)

// serve --dev is one program: whatever ends it, its PostgreSQL ends too; and when
// only that ends, it comes back.
func TestDevSIGKILL(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachable(t), "data")
	dev := func(env ...string) *process {
		t.Helper()
		p := launch(t, program(t, []string{"serve", "--dev", "--data", dir, "--listen", "127.0.0.1:0"}, env), "")
		info, err := os.Stat(filepath.Join(dir, "admin.token"))
		ok(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("admin.token has mode %o", info.Mode())
		}
		token, err := os.ReadFile(filepath.Join(dir, "admin.token"))
		ok(t, err)
		p.token = strings.TrimSpace(string(token))
		return p
	}
	p := dev()
	p.collection("landcover", nil)
	one := newUnit("landcover", "t1", "v1")
	p.do(one, pixels(1))

	// One directory has one server.
	second := program(t, []string{"serve", "--dev", "--data", dir, "--listen", "127.0.0.1:0"}, nil)
	said, err := second.CombinedOutput()
	if second.ProcessState.ExitCode() != exitError || !strings.Contains(string(said), "in use by another catalogd (process "+strconv.Itoa(p.cmd.Process.Pid)) {
		t.Errorf("a second server: %v, %s", err, said)
	}

	// SIGKILL leaves nothing running, and a restart nothing to repair.
	children := descendants(t, p.cmd.Process.Pid)
	if len(children) < 3 {
		t.Fatalf("children %v, want PostgreSQL's and a probe", children)
	}
	token := p.token
	p.kill()
	poll(t, "PostgreSQL and the probe to end", func() bool { return !slices.ContainsFunc(children, alive) })

	hold := t.TempDir()
	p = dev(envHold + "=promoted:" + hold)
	if p.token != token {
		t.Error("a restart made another admin token")
	}
	if d := p.begin(one.again()); d.Verdict != "skip" {
		t.Errorf("after SIGKILL: %+v", d)
	}

	// The database dies in the middle of a step: the step, and everybody else, waits.
	two := newUnit("landcover", "t2", "v1")
	a := p.run(two)
	write(t, a.StagingPath, pixels(2))
	completed := make(chan answer, 1)
	go func() {
		got, err := p.send("POST", a.path("complete"), nil)
		if err != nil {
			t.Errorf("complete: %v", err)
		}
		completed <- got
	}()
	poll(t, "the step to be held", exists(filepath.Join(hold, "held")))
	postmaster := postmasterPID(t, dir)
	ok(t, syscall.Kill(postmaster, syscall.SIGKILL))
	refused := 0
	ok(t, os.WriteFile(filepath.Join(hold, "go"), nil, 0o644))
	poll(t, "the database to come back", func() bool {
		got := p.ask("POST", "/v1/attempts", one.again())
		if got.status == http.StatusOK {
			return refused > 0
		}
		wantProblem(t, got, "database_unavailable", "")
		refused++
		return false
	})
	if out := read[outcome](t, <-completed); out.State != "done" || out.AttemptID != a.ID {
		t.Errorf("the step under way: %+v", out)
	}
	if pid := postmasterPID(t, dir); pid == postmaster {
		t.Error("no new postmaster")
	}
	p.do(newUnit("landcover", "t3", "v1"), pixels(3))
	if code := p.terminate(); code != 0 {
		t.Errorf("SIGTERM: exit code %d", code)
	}

	// SIGTERM lets the step under way finish.
	hold = t.TempDir()
	p = dev(envHold + "=probed:" + hold)
	four := newUnit("landcover", "t4", "v1")
	a = p.run(four)
	write(t, a.StagingPath, pixels(4))
	go func() {
		got, err := p.send("POST", a.path("complete"), nil)
		if err != nil {
			t.Errorf("complete: %v", err)
		}
		completed <- got
	}()
	poll(t, "the step to be held", exists(filepath.Join(hold, "held")))
	children = descendants(t, p.cmd.Process.Pid)
	ok(t, p.cmd.Process.Signal(syscall.SIGTERM))
	poll(t, "the server to stop listening", func() bool {
		_, err := http.Get(p.url + "/healthz")
		return err != nil
	})
	ok(t, os.WriteFile(filepath.Join(hold, "go"), nil, 0o644))
	if out := read[outcome](t, <-completed); out.State != "done" {
		t.Errorf("the step under way at SIGTERM: %+v", out)
	}
	if code := p.terminate(); code != 0 {
		t.Errorf("SIGTERM: exit code %d", code)
	}
	if i := slices.IndexFunc(children, alive); i >= 0 {
		t.Errorf("process %d outlives the server", children[i])
	}

	p = dev()
	for i, u := range []unit{one, two, newUnit("landcover", "t3", "v1"), four} {
		d := p.begin(u.again())
		if d.Verdict != "skip" || d.Tile.Checksum != checksum(pixels(byte(i+1))) {
			t.Errorf("%s at the end: %+v", u.TileID, d)
		}
	}
	database, err := os.ReadFile(filepath.Join(dir, "database.url"))
	ok(t, err)
	invariant.Check(t, strings.TrimSpace(string(database)), filepath.Join(dir, "store"), invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
	p.terminate()
}

func exists(name string) func() bool {
	return func() bool {
		_, err := os.Stat(name)
		return err == nil
	}
}

func postmasterPID(t testing.TB, dir string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "postgres/data/postmaster.pid"))
	ok(t, err)
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(line)
	ok(t, err)
	return pid
}

// descendants of a process, itself left out.
func descendants(t testing.TB, pid int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	ok(t, err)
	children := map[int][]int{}
	for _, name := range stats {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …
		fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
		parent, _ := strconv.Atoi(string(fields[1]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		children[parent] = append(children[parent], child)
	}
	var all []int
	for next := children[pid]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// alive tells whether a process runs; a zombie does not.
func alive(pid int) bool {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	state := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])[0]
	return string(state) != "Z" && string(state) != "X"
}

// command runs a command line to its end.
func command(t testing.TB, args ...string) (code int, out string) {
	t.Helper()
	text, err := program(t, args, nil).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(text)
	}
	ok(t, err)
	return 0, string(text)
}

func TestMigrateCommand(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	_, latest, _, err := migrate.Status(t.Context(), url)
	ok(t, err)
	current := fmt.Sprintf("schema %d of %d", latest, latest)
	for _, step := range []struct {
		args string
		code int
		says string
	}{
		{"status", exitJudged, "behind: run catalogd migrate up"},
		{"up", 0, current},
		{"up", 0, current},
		{"status --database-url " + url + "&pool_max_conns=4", 0, current},
		{"status --json", 0, fmt.Sprintf(`{"current":%d,"dirty":false,"latest":%d}`, latest, latest)},
		{"down", exitUsage, "--yes"},
		{"status", 0, current},
		{"down --yes", 0, "schema 0 of "},
		{"up", 0, current},
	} {
		args := append([]string{"migrate"}, strings.Fields(step.args)...)
		if !strings.Contains(step.args, "--database-url") {
			args = append(args, "--database-url", url)
		}
		if code, out := command(t, args...); code != step.code || !strings.Contains(out, step.says) {
			t.Errorf("migrate %s: exit code %d, %s", step.args, code, out)
		}
	}
}

// serve --migrate brings an empty database up by itself.
func TestServeMigrates(t *testing.T) {
	t.Parallel()
	store := reachable(t)
	args := []string{"serve", "--database-url", testdb.NewEmpty(t), "--store", store, "--listen", "127.0.0.1:0"}
	token := "catd_" + strings.Repeat("m", 43)
	p := launch(t, program(t, append(args, "--migrate"), []string{"CATALOGD_ADMIN_TOKEN=" + token}), token)
	p.collection("landcover", nil)
	p.do(newUnit("landcover", "t1", "v1"), pixels(1))
	if code := p.terminate(); code != 0 {
		t.Errorf("SIGTERM: exit code %d", code)
	}
}
