package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell is a person or a task at a command line, with a server.
type shell struct {
	*site
	p     *process
	url   string
	scene string // a raster to hand over
}

func newShell(t *testing.T) *shell {
	s := newSite(t)
	s.listen = freeAddress(t)
	sh := &shell{site: s, p: s.start(), url: "http://" + s.listen, scene: filepath.Join(reachable(t), "scene.tif")}
	write(t, sh.scene, pixels(1))
	sh.p.collection("landcover", nil)
	return sh
}

// ran is how a command ended.
type ran struct {
	code     int
	out, err string
}

func (sh *shell) command(args ...string) *exec.Cmd {
	sh.Helper()
	return program(sh, args, []string{
		"CATALOGD_URL=" + sh.url, "CATALOGD_TOKEN=" + sh.token, "CATALOGD_OWNER=w1", "SCENE=" + sh.scene, "CATALOGD_PATIENCE=30s",
	})
}

func (sh *shell) run(args ...string) ran {
	sh.Helper()
	return sh.end(sh.begin(args...))
}

// task is a command that runs.
type task struct {
	*exec.Cmd
	out, err *bytes.Buffer
}

func (sh *shell) begin(args ...string) task {
	sh.Helper()
	t := task{sh.command(args...), &bytes.Buffer{}, &bytes.Buffer{}}
	t.Stdout, t.Stderr = t.out, t.err
	ok(sh, t.Start())
	return t
}

func (sh *shell) end(t task) ran {
	sh.Helper()
	over := make(chan error, 1)
	go func() { over <- t.Wait() }()
	select {
	case <-over:
	case <-time.After(time.Minute):
		_ = t.Process.Kill()
		sh.Fatalf("%v does not end: %s", t.Args[1:], t.err)
	}
	return ran{t.ProcessState.ExitCode(), t.out.String(), t.err.String()}
}

// want asserts exit code and what is said.
func (sh *shell) want(r ran, code int, says ...string) {
	sh.Helper()
	if r.code != code {
		sh.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, text := range says {
		if !strings.Contains(r.out+r.err, text) {
			sh.Errorf("does not say %q:\n%s%s", text, r.out, r.err)
		}
	}
}

// make is an exec whose command copies the scene, after what script does.
func makeTile(tile, script string, flags ...string) []string {
	args := append([]string{"exec", "landcover", tile, "version=v1", "scene=S2"}, flags...)
	return append(args, "--", "sh", "-c", script+` && cp "$SCENE" "$1"`, "sh", "{out}")
}

func TestExec(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	u := newUnit("landcover", "t1", "v1")

	first := sh.run(makeTile("t1", "true")...)
	sh.want(first, 0, "done landcover/t1.")
	sh.done(sh.p, u, pixels(1))
	sh.want(sh.run(makeTile("t1", "false")...), 0, strings.Replace(first.out, "done", "skip", 1))

	// As JSON it is the row, and what the command prints is elsewhere.
	r := sh.run(makeTile("t1", "echo noise", "--json")...)
	var skipped struct {
		State string
		Tile  tile
	}
	ok(t, json.Unmarshal([]byte(r.out), &skipped))
	if skipped.State != "skip" || skipped.Tile.Checksum != checksum(pixels(1)) {
		t.Errorf("%+v", skipped)
	}

	// What the command sees.
	seen := filepath.Join(reachable(t), "seen")
	r = sh.run("exec", "landcover", "t2", "version=v1", "n:=10.0", "--", "sh", "-c",
		`env | grep ^CATALOGD_ >`+seen+`; echo "$@" >>`+seen+`; cp "$SCENE" "$CATALOGD_OUT"`, "sh", "{out}", "a{out}b", "{tags}")
	sh.want(r, 0, "done")
	env, err := os.ReadFile(seen)
	ok(t, err)
	key := strings.TrimSpace(sh.run("key", "landcover", "t2", "n:=10", "version=v1").out)
	for _, want := range []string{
		"CATALOGD_UNIT_KEY=" + key + "\n", "CATALOGD_VERSION=v1\n", `CATALOGD_IDENTITY={"n":10,"version":"v1"}` + "\n",
		"CATALOGD_OUT=" + sh.store + "/.staging/", " a" + sh.store + "/.staging/",
		` -mo CATALOGD_IDENTITY={"n":10,"version":"v1"} -mo CATALOGD_UNIT_KEY=` + key + " -mo CATALOGD_VERSION=v1\n",
	} {
		if !strings.Contains(string(env), want) {
			t.Errorf("the command does not see %q in\n%s", want, env)
		}
	}

	// A worker that does not have the store sends the bytes.
	temp := reachable(t)
	cmd := sh.command(makeTile("t3", `case "$1" in *.staging*) exit 9;; esac`, "--upload")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	sh.done(sh.p, newUnit("landcover", "t3", "v1"), pixels(1))
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in TMPDIR: %v %v", left, err)
	}
	sh.sound(sh.p)
}

// What goes wrong is reported to catalogd, and the unit is due again.
func TestExecFails(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for _, c := range []struct {
		tile, script   string
		class, reason  string
		message, error string
	}{
		{"exit", `for i in $(seq 30); do echo line $i >&2; done; exit 4`, "transient", "exit_4", "line 30", "sh failed (exit_4): line 30"},
		{"later", `exit 75`, "transient", "exit_75", "exit status 75", "exit_75"},
		{"signal", `kill -SEGV $$`, "transient", "signal_SIGSEGV", "segmentation fault", "signal_SIGSEGV"},
		{"nothing", `SCENE=/dev/null; exit 0`, "deterministic", "no_output", "{out}", "wrote nothing"},
		{"text", `echo no raster >"$1"; exit 0`, "deterministic", "not_a_raster", "", "not_a_raster"},
		{"binary", `printf 'a\000b\377' >&2; exit 1`, "transient", "exit_1", "a?b?", "exit_1"},
	} {
		r := sh.run(makeTile(c.tile, c.script)...)
		code, then := exitError, "due again in 0 s, tries spent: 1"
		switch {
		case c.class == "deterministic":
			code, then = exitQuarantined, "quarantined, tries spent: 1"
		case c.tile == "later":
			code = exitLater
		}
		sh.want(r, code, "landcover/"+c.tile+": ", c.error, then)
		got := sh.text(`SELECT concat_ws(' ', a.state, f.class, f.reason) || E'\n' || coalesce(f.message, '') FROM catalog.attempts a JOIN catalog.units u USING (unit_key)
			LEFT JOIN catalog.failures f USING (attempt_id) WHERE u.tile_id = $1`, c.tile)
		head, message, _ := strings.Cut(got, "\n")
		if want := strings.Join(strings.Fields("failed "+c.class+" "+c.reason), " "); head != want || !strings.Contains(message, c.message) {
			t.Errorf("%s: recorded %q, want %q with %q", c.tile, got, want, c.message)
		}
		if c.tile == "exit" && (strings.Contains(message, "line 9\n") || strings.Count(message, "\n") != 19) {
			t.Errorf("not the last twenty lines: %q", message)
		}
		if code == exitQuarantined { // and costs one attempt, however often it is tried
			sh.want(sh.run(makeTile(c.tile, "true")...), exitQuarantined, "quarantined: "+c.reason, "quarantine release")
			sh.want(sh.run("quarantine", "release", "landcover", c.tile, "version=v1", "scene=S2", "--why", "mended"), 0, "released  1")
		}
		sh.want(sh.run(makeTile(c.tile, "true")...), 0, "done")
	}

	// Too many failures quarantine too, those of the command's own choice among them.
	for _, code := range []int{exitLater, exitLater, exitLater, exitQuarantined} {
		sh.want(sh.run(makeTile("busy", "exit 75")...), code, "exit_75")
	}

	// What is no file here leaves the unit to the next at once.
	sh.want(sh.run("exec", "landcover", "dir", "version=v1", "--upload", "--", "mkdir", "{out}"), exitQuarantined, "no regular file")
	sh.want(sh.run("quarantine", "release", "--collection", "landcover", "--reason", "no_f*", "--why", "mended"), 0, "released  1")
	sh.want(sh.run("exec", "landcover", "dir", "version=v1", "--owner", "w2", "--", "cp", sh.scene, "{out}"), 0, "done")

	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "after --", []string{"exec", "landcover", "t", "version=v1"}},
		{exitUsage, "after --", []string{"exec", "landcover", "t", "version=v1", "--"}},
		{exitUsage, "KEY=TEXT", []string{"exec", "landcover", "t", "version", "--", "true"}},
		{exitUsage, "comes twice", []string{"exec", "landcover", "t", "version=1", "version=2", "--", "true"}},
		{exitUsage, "version", []string{"exec", "landcover", "t", "--", "true"}},
		{exitUsage, "not JSON", []string{"exec", "landcover", "t", "version=1", "n:=x", "--", "true"}},
		{exitUsage, "2^53", []string{"exec", "landcover", "t", "version=1", "n:=9007199254740993", "--", "true"}},
		{exitUsage, "tile_id", []string{"exec", "landcover", "../t", "version=1", "--", "true"}},
		{exitError, "executable file not found", []string{"exec", "landcover", "t", "version=1", "--", "no-such-program"}},
		{exitError, "collection create", []string{"exec", "nowhere", "t", "version=1", "--", "true"}},
		{exitError, "CATALOGD_TOKEN", []string{"exec", "landcover", "t", "version=1", "--token", "catd_wrong", "--", "true"}},
		{exitError, "no URL", []string{"exec", "landcover", "t", "version=1", "--url", "localhost:8080", "--", "true"}},
		{exitLater, "no answer from catalogd at http://127.0.0.1:1", []string{"exec", "landcover", "t", "version=1", "--url", "http://127.0.0.1:1", "--patience", "1s", "--", "true"}},
	} {
		attempts := sh.count(`SELECT count(*) FROM catalog.attempts`)
		sh.want(sh.run(c.args...), c.code, c.says)
		if n := sh.count(`SELECT count(*) FROM catalog.attempts`); n != attempts {
			t.Errorf("%v began an attempt", c.args)
		}
	}

	// What an operator took back is not made again.
	sh.exec(`UPDATE catalog.tiles SET withdrawn_at = now() WHERE tile_id = 'exit'`)
	sh.want(sh.run(makeTile("exit", "true")...), exitQuarantined, "withdrawn")
	sh.exec(`UPDATE catalog.tiles SET withdrawn_at = NULL`)
	sh.sound(sh.p)
}

// waiting is a script that says where it is, and goes on when it may.
func waiting(t testing.TB) (script string, at func(), proceed func()) {
	dir := reachable(t)
	script = fmt.Sprintf(`printf half >"$1"; echo $$ >%[1]s/at; while ! test -e %[1]s/go; do sleep 0.02; done`, dir)
	at = func() {
		t.Helper()
		poll(t, "the command to run", func() bool { text, err := os.ReadFile(dir + "/at"); return err == nil && len(text) > 0 })
	}
	return script, at, func() { write(t, dir+"/go", nil) }
}

// What a command left running ends with it, and the token is not the command's.
func TestExecLeavesNothing(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	pid := filepath.Join(reachable(t), "pid")
	left := func() bool {
		text, err := os.ReadFile(pid)
		ok(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		ok(t, err)
		return alive(n)
	}
	background := `sleep 3600 2>/dev/null & echo $! >` + pid
	sh.want(sh.run(makeTile("t1", background)...), 0, "done")
	poll(t, "what was left to end", func() bool { return !left() })
	sh.want(sh.run(makeTile("t2", background+`; exit 3`)...), exitError, "exit_3")
	poll(t, "what was left to end", func() bool { return !left() })

	sh.want(sh.run(makeTile("t3", `test -z "$CATALOGD_TOKEN"`)...), 0, "done")
	sh.want(sh.run(makeTile("t4", `test -n "$CATALOGD_TOKEN"`, "--pass-token")...), 0, "done")
	sh.sound(sh.p)
}

// A store that is away or full while a command runs is no failure of the unit.
func TestExecStoreAway(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	script, at, proceed := waiting(t)
	running := sh.begin(makeTile("t1", script+`; exit 5`)...)
	at()
	away := sh.store + ".away"
	ok(t, os.Rename(sh.store, away))
	proceed()
	sh.want(sh.end(running), exitLater, "the store is away")
	ok(t, os.Rename(away, sh.store))
	if n := sh.count(`SELECT count(*) FROM catalog.failures`); n != 0 {
		t.Errorf("%d failures", n)
	}
	sh.want(sh.run(makeTile("t1", "true")...), 0, "done")
	sh.sound(sh.p)
}

// A task that is told to end while it begins leaves the unit to the next.
func TestExecInterruptedAtBegin(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.p.kill()
	hold := reachable(t)
	sh.p = sh.start(envHold + "=begun:" + hold)
	running := sh.begin(makeTile("t1", "true")...)
	poll(t, "the attempt", func() bool { _, err := os.Stat(filepath.Join(hold, "held")); return err == nil })
	ok(t, running.Process.Signal(syscall.SIGTERM))
	time.Sleep(100 * time.Millisecond)
	write(t, filepath.Join(hold, "go"), nil)
	sh.want(sh.end(running), exitLater, "interrupted")
	if state := sh.text(`SELECT string_agg(state, ' ') FROM catalog.attempts`); state != "abandoned" {
		t.Errorf("the attempts are %s", state)
	}

	// Nor does it wait for others.
	other := sh.p.run(newUnit("landcover", "t2", "v1").from("w9"))
	waits := sh.begin(makeTile("t2", "true", "--wait")...)
	poll(t, "the task to wait", func() bool { return strings.Contains(waits.err.String(), "waiting") })
	ok(t, waits.Process.Signal(syscall.SIGHUP))
	sh.want(sh.end(waits), exitLater, "interrupted")
	must[struct{}](sh.p, "POST", other.path("abandon"), nil)
	sh.sound(sh.p)
}

// SIGTERM ends the command and gives the attempt up, which counts for nothing.
func TestExecIsTerminated(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for _, c := range []struct{ name, before string }{
		{"heeds", ""},
		{"ignores", `trap '' TERM; `},
	} {
		script, at, _ := waiting(t)
		running := sh.begin(makeTile(c.name, c.before+script, "--grace", "300ms")...)
		at()
		ok(t, running.Process.Signal(syscall.SIGTERM))
		sh.want(sh.end(running), exitLater, "given up")
		if state := sh.text(`SELECT state FROM catalog.attempts JOIN catalog.units USING (unit_key) WHERE tile_id = $1`, c.name); state != "abandoned" {
			t.Errorf("%s: the attempt is %s", c.name, state)
		}
		sh.want(sh.run(makeTile(c.name, "true")...), 0, "done")
	}
	sh.sound(sh.p)
}

// Another owner is told to come later, or waits; a higher try of the same owner
// takes over, and the command of the lower ends.
func TestExecTakesTurns(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	script, at, _ := waiting(t)
	overtaken := sh.begin(makeTile("t1", script)...)
	at()
	sh.want(sh.run(makeTile("t1", "true", "--owner", "w2")...), exitLater, `held by owner "w1"`, "--wait")
	sh.want(sh.run(makeTile("t1", "true")...), exitLater, `held by owner "w1"`, "--try 1 takes over")
	lease := sh.text(`SELECT lease_until::text FROM catalog.attempts WHERE state = 'open'`)
	poll(t, "a heartbeat", func() bool {
		return sh.text(`SELECT lease_until::text FROM catalog.attempts WHERE state = 'open'`) > lease
	})

	next, at, proceed := waiting(t)
	second := sh.begin(makeTile("t1", next, "--try", "1")...)
	at()
	waits := sh.begin(makeTile("t1", "false", "--owner", "w2", "--wait")...)
	poll(t, "the other to wait", func() bool { return strings.Contains(waits.err.String(), "waiting") })
	sh.want(sh.end(overtaken), exitLater, "took the unit over")
	proceed()
	sh.want(sh.end(second), 0, "done")
	sh.want(sh.end(waits), 0, "skip")
	sh.done(sh.p, newUnit("landcover", "t1", "v1"), pixels(1))
	sh.sound(sh.p)
}

// SIGKILL takes the command along; what it wrote is never taken, and the next try
// has the unit at once.
func TestExecSIGKILL(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	script, at, _ := waiting(t)
	running := sh.begin(makeTile("t1", script)...)
	at()
	staged := sh.files(".staging")
	ok(t, running.Process.Kill())
	sh.end(running)
	if len(staged) == 0 {
		t.Error("nothing was staged")
	}
	sh.want(sh.run(makeTile("t1", "true", "--try", "1")...), 0, "done")
	sh.done(sh.p, newUnit("landcover", "t1", "v1"), pixels(1))
	sh.sound(sh.p)
}

// A server that is away, at any moment, is waited for.
func TestExecOutlastsServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point string
		flags []string
	}{
		{"begun", nil}, {"staged", []string{"--upload"}}, {"intended", nil}, {"promoted", nil}, {"upserted", nil},
	} {
		t.Run(c.point, func(t *testing.T) {
			sh := newShell(t)
			sh.p.kill()
			// It is away while begin is asked, and dies on the way.
			running := sh.begin(makeTile("t1", "true", c.flags...)...)
			poll(t, "exec to wait", func() bool { return strings.Contains(running.err.String(), "waiting for catalogd") })
			sh.p = sh.start(envCrash + "=" + c.point)
			sh.p.crashed()
			sh.p = sh.start()
			sh.want(sh.end(running), 0, "done")
			sh.done(sh.p, newUnit("landcover", "t1", "v1"), pixels(1))
			sh.sound(sh.p)
		})
	}
}

// The tags are in the file, whoever writes them.
func TestExecTags(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for tile, args := range map[string][]string{
		"translated": {"--", "gdal_translate", "-q", "{tags}", sh.scene, "{out}"},
		"edited":     {"--tag", "--", "gdal_translate", "-q", sh.scene, "{out}"},
	} {
		unit := []string{"landcover", tile, "version=v1", "place=Žižkov 'n' \"more\""}
		sh.want(sh.run(append(append([]string{"exec"}, unit...), args...)...), 0, "done")
		said, err := exec.Command("gdalinfo", "-json", sh.path("current/landcover/"+tile+".tif")).Output()
		ok(t, err)
		var info struct {
			Metadata map[string]json.RawMessage `json:"metadata"`
		}
		ok(t, json.Unmarshal(said, &info))
		var tags map[string]string
		ok(t, json.Unmarshal(info.Metadata[""], &tags))
		key := strings.TrimSpace(sh.run(append([]string{"key"}, unit...)...).out)
		if tags["CATALOGD_UNIT_KEY"] != key || tags["CATALOGD_VERSION"] != "v1" || tags["CATALOGD_IDENTITY"] != `{"place":"Žižkov 'n' \"more\"","version":"v1"}` {
			t.Errorf("%s: %v, want those of %s", tile, tags, key)
		}
	}
	// Another unit's output is not taken for this one's.
	other := sh.path("current/landcover/edited.tif")
	sh.want(sh.run("exec", "landcover", "other", "version=v1", "--", "cp", other, "{out}"), exitQuarantined, "identity_mismatch")
	sh.sound(sh.p)
}

func TestPut(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for tile, flags := range map[string][]string{"t1": nil, "t2": {"--upload"}} {
		args := append([]string{"put", sh.scene, "landcover", tile, "version=v1", "scene=S2", "--acquired", "2026-08-04T10:30:00Z/2026-08-04T10:31:00Z",
			"--property", "cloud:=0.25", "--property", "note=a,b", "--client-key", "mine-" + tile}, flags...)
		sh.want(sh.run(args...), 0, "done landcover/"+tile)
		sh.want(sh.run(args...), 0, "skip landcover/"+tile)
		sh.done(sh.p, newUnit("landcover", tile, "v1"), pixels(1))
		got := sh.text(`SELECT concat_ws(' ', client_key, acquired_end AT TIME ZONE 'UTC', properties) FROM catalog.tiles JOIN catalog.units USING (unit_key) WHERE units.tile_id = $1`, tile)
		if got != "mine-"+tile+` 2026-08-04 10:31:00 {"note": "a,b", "cloud": 0.25}` {
			t.Errorf("%s: %s", tile, got)
		}
	}
	text := filepath.Join(reachable(t), "text.tif")
	write(t, text, []byte("no raster"))
	sh.want(sh.run("put", text, "landcover", "t3", "version=v1"), exitQuarantined, "not_a_raster")
	sh.want(sh.run("put", "/nowhere.tif", "landcover", "t3", "version=v1"), exitUsage, "nowhere.tif")
	sh.sound(sh.p)
}
