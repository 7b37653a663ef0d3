package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestCollectionCommands(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.run("collection", "create", "dem", "--title", "Heights", "--driver", "GTiff,GPKG", "--sparse-allowed", "--order-by", "acquired",
		"--publish", "on_gate", "--outage-frac", "0.125"), 0,
		"id          dem\n", "publish     on_gate\n", "none is spent while over 12.5 % of a batch", "takes       sparse_allowed\n", "drivers     GTiff, GPKG\n", "order_by    acquired\n")
	sh.want(sh.run("collection", "create", "dem"), exitError, "collection_exists", "collection edit")
	sh.want(sh.run("collection", "create", "UPPER"), exitError, "invalid_collection")
	sh.want(sh.run("collection", "edit", "dem"), exitUsage, "say what to change")
	sh.want(sh.run("collection", "edit", "nowhere", "--title", "x"), exitError, "unknown_collection", "collection list")
	// An edit leaves the rest.
	sh.want(sh.run("collection", "edit", "dem", "--description", "a\nb\x1b[31m", "--no-sparse-allowed", "--footprint-optional"), 0,
		"title        Heights\n", "description  a?b?[31m\n", "takes        footprint_optional\n", "order_by     acquired\n", "publish      on_gate\n", "over 12.5 % of")
	sh.want(sh.run("collection", "edit", "dem", "--publish", "never"), exitError, "/publish")
	sh.want(sh.run("collection", "list"), 0, "ID", "landcover", "dem")

	var shown map[string]any
	ok(t, json.Unmarshal([]byte(sh.run("collection", "show", "dem", "--json").out), &shown))
	if shown["sparse_allowed"] != false || shown["footprint_optional"] != true || shown["description"] != "a\nb\x1b[31m" {
		t.Errorf("%v", shown)
	}
	sh.want(sh.run("collection", "delete", "dem", "--why", "a trial"), 0, "deleted dem")
	sh.want(sh.run("collection", "show", "dem"), exitError, "unknown_collection")
}

func TestUnitCommands(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for _, version := range []string{"v1", "v2"} {
		sh.want(sh.run("exec", "landcover", "a/t1", "version="+version, "--", "sh", "-c", `cp "$SCENE" "$CATALOGD_OUT"`), 0, "done")
	}
	sh.want(sh.run("key", "landcover", "a/t1", "version=v\xe9"), exitUsage, "not UTF-8")
	sh.want(sh.run("key", "landcover", "a/t1", "--identity", "@/dev/zero"), exitUsage, "at most 65536")
	key := strings.TrimSpace(sh.run("key", "landcover", "a/t1", "version=v1").out)
	if again := strings.TrimSpace(sh.run("key", "landcover", "a/t1", "--identity", `{"version":"v1"}`).out); again != key || len(key) != 36 {
		t.Errorf("keys are %q and %q", key, again)
	}
	identity := filepath.Join(reachable(t), "identity.json")
	write(t, identity, []byte(`{"version": "v1"}`))
	sh.want(sh.run("get", "landcover", "a/t1", "--identity", "@"+identity), 0, "unit_key       "+key)
	sh.want(sh.run("get", key), 0, "version        v1\n", "current        false\n", "checksum       "+checksum(pixels(1)))
	sh.want(sh.run("get", "landcover", "a/t1"), 0, "version        v2\n", "current        true\n")
	sh.want(sh.run("get", "landcover", "a/t2"), exitError, "not_found")
	sh.want(sh.run("get", "landcover"), exitUsage, "no unit key")
	sh.want(sh.run("get", "landcover", "a/t2", "version=v1"), exitError, "not_found")

	// Bytes, which are the row's.
	got := filepath.Join(reachable(t), "got.tif")
	sh.want(sh.run("get", "landcover", "a/t1", "--data", "-o", got), 0)
	if content, err := os.ReadFile(got); err != nil || checksum(content) != checksum(pixels(1)) {
		t.Errorf("got other bytes: %v", err)
	}
	if r := sh.run("get", key, "--data"); r.code != 0 || checksum([]byte(r.out)) != checksum(pixels(1)) {
		t.Errorf("exit code %d, %d bytes", r.code, len(r.out))
	}
	// A link stays, and what is no file is written to.
	link, device := got+".link", got+".null"
	ok(t, os.Symlink(got, link))
	ok(t, syscall.Mkfifo(device, 0o600))
	fifo := make(chan string, 1)
	go func() { content, _ := os.ReadFile(device); fifo <- checksum(content) }()
	for _, output := range []string{link, device} {
		sh.want(sh.run("get", key, "--data", "-o", output), 0)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is one no more: %v", err)
	}
	if sum := <-fifo; sum != checksum(pixels(1)) {
		t.Error("the pipe had other bytes")
	}
	sh.want(sh.run("get", key, "-o", got), exitUsage, "--data")
	object := sh.text(`SELECT object_key FROM catalog.tiles WHERE unit_key = $1`, key)
	ok(t, os.Chmod(sh.path(object), 0o644))
	write(t, sh.path(object), pixels(2))
	write(t, got, []byte("before"))
	sh.want(sh.run("get", key, "--data", "-o", got), exitError, "its row says")
	if content, _ := os.ReadFile(got); string(content) != "before" {
		t.Error("bytes that are not the row's were written")
	}
	write(t, sh.path(object), pixels(1))

	sh.want(sh.run("publish", "landcover", "v1", "--why", "v2 was wrong"), 0, "slots       1")
	sh.want(sh.run("publish", "landcover", "v9", "--why", "x"), exitError, "unknown_version")
	history := strings.Split(strings.TrimSpace(sh.run("history", "landcover", "a/t1").out), "\n")
	if len(history) != 4 || !strings.HasPrefix(history[1], "v1 ") || !strings.Contains(history[1], "published") ||
		!strings.HasPrefix(history[2], "v2 ") || !strings.HasPrefix(history[3], "v1 ") || !strings.Contains(history[3], "registered  w1") {
		t.Errorf("%s", strings.Join(history, "\n"))
	}
	sh.want(sh.run("history", "landcover", "a/t2"), exitError, "not_found")

	sh.want(sh.run("recover"), 0, "rolled_forward  0")
	sh.want(sh.run("sweep", "--json"), 0, `"expired":0`)

	begun := sh.p.run(newUnit("landcover", "b", "v1"))
	sh.want(sh.run("fail", begun.ID.String(), "--reason", "http_503", "--class", "transient", "--message", "away"), 0, "retry "+begun.ID.String(), "tries spent: 1")
	sh.want(sh.run("fail", begun.ID.String(), "--reason", "poison", "--class", "deterministic"), 0, "retry") // told again
	done := sh.text(`SELECT attempt_id FROM catalog.tiles WHERE unit_key = $1`, key)
	sh.want(sh.run("fail", done, "--reason", "http_503"), exitError, "attempt_ended")
	sh.want(sh.run("fail", "b", "--reason", "x"), exitUsage, "no attempt")
	sh.want(sh.run("fail", begun.ID.String()), exitUsage, "--reason, --http-status or --exception")
}

// What failed for good is listed, looked at and released, by its key, its name, or all
// that is alike.
func TestQuarantineCommands(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.run("collection", "edit", "landcover", "--max-retries", "1", "--retry-base", "0", "--retry-cap", "90m", "--max-expiries", "5",
		"--failure-rule", "exit_3=deterministic", "--failure-rule", "http_404=transient"), 0,
		"1, after up to 0s, doubled each time up to 1h30m0s; 5 attempts", "exit_3=deterministic, http_404=transient")
	sh.want(sh.run("collection", "edit", "landcover", "--failure-rule", "exit_3"), exitUsage, "exit_3")
	sh.want(sh.run("collection", "edit", "landcover", "--failure-rule", "exit_3=poison"), exitError, "/failure_rules/0/class")

	sh.want(sh.run("quarantine", "ls"), 0, "TILE_ID")
	sh.want(sh.run(makeTile("t1", "exit 3")...), exitQuarantined, "exit_3", "quarantine release")
	for _, code := range []int{exitError, exitQuarantined} {
		sh.want(sh.run(makeTile("t2", "echo no such band >&2; exit 4")...), code, "exit_4")
	}
	begun := sh.p.run(newUnit("landcover", "t3", "v1"))
	sh.want(sh.run("fail", begun.ID.String(), "--http-status", "410"), exitQuarantined, "quarantined "+begun.ID.String(), "as deterministic (http_410)")
	begun = sh.p.run(newUnit("landcover", "t4", "v1"))
	sh.want(sh.run("fail", begun.ID.String(), "--exception", "builtins.KeyError", "--json"), exitQuarantined, `"next":"quarantined"`, `"reason":"KeyError"`)

	listed := strings.Split(strings.TrimSpace(sh.run("quarantine", "ls").out), "\n")
	if len(listed) != 5 || !strings.Contains(listed[1], "exit_3") || !strings.Contains(listed[2], "exhausted") {
		t.Errorf("%s", strings.Join(listed, "\n"))
	}
	if lines := strings.Count(sh.run("quarantine", "ls", "--class", "deterministic", "--collection", "landcover", "--reason", "*_*", "--json").out, "\n"); lines != 2 {
		t.Errorf("%d lines, want t1 and t3", lines)
	}
	key := strings.Fields(listed[2])[len(strings.Fields(listed[2]))-1]
	sh.want(sh.run("quarantine", "show", key), 0, "t2", "exhausted", "tries                 2", "exit_4 (transient), w1", "no such band")
	sh.want(sh.run("quarantine", "show", "landcover", "t2", "version=v1", "scene=S2", "--json"), 0, key, `"failures":[{`)
	sh.want(sh.run("quarantine", "show", "landcover", "t9", "version=v1"), exitError, "is not quarantined")
	sh.want(sh.run("quarantine", "show", "t2"), exitUsage, "no unit key")
	sh.want(sh.run("check", "landcover", "t2", "version=v1", "scene=S2"), 0, "quarantined", key)

	sh.want(sh.run("quarantine", "release", key), exitUsage, "--why")
	sh.want(sh.run("quarantine", "release", "--why", "x"), exitUsage, "say what to release")
	sh.want(sh.run("quarantine", "release", key, "--why", "mended"), 0, "released  1")
	sh.want(sh.run("quarantine", "release", key, "--why", "mended"), 0, "released  0")
	sh.want(sh.run(makeTile("t2", "true")...), 0, "done")
	sh.want(sh.run("quarantine", "release", "landcover", "t1", "version=v1", "scene=S2", "--why", "mended"), 0, "released  1")
	sh.want(sh.run("quarantine", "release", "--collection", "landcover", "--class", "deterministic", "--why", "all mended", "--json"), 0, `"released":2`)
	if got := sh.text(`SELECT string_agg(who || ': ' || why || ' (' || target || ')', ', ' ORDER BY id) FROM catalog.audit WHERE act = 'release from quarantine'`); !strings.HasSuffix(got, ", admin: all mended (collection landcover, class deterministic)") || strings.Count(got, "admin: ") != 3 {
		t.Errorf("audit: %s", got)
	}
	sh.sound(sh.p)
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if code, out := command(t, "version", "--json"); code != 0 || out != `{"version":"dev"}`+"\n" {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// A file that is no secret is not read to its end, which it may not have.
func TestSecretIsBounded(t *testing.T) {
	if _, err := secret("", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "right file") {
		t.Error(err)
	}
}

func TestNumbers(t *testing.T) {
	rows := numbers("collection", "bytes")(map[string]json.RawMessage{"collection": json.RawMessage(`"dem"`), "bytes": json.RawMessage(`3954196`)})
	if fmt.Sprint(rows) != "[[collection dem] [bytes 3954196]]" {
		t.Error(rows)
	}
}

// Metrics are counted, from a database that is up.
func TestMetrics(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.run(makeTile("t1", "true")...), 0, "done")
	body := string(sh.p.ask("GET", "/metrics", nil).body)
	for _, line := range []string{"catalogd_database_up 1", "catalogd_tiles 1", "catalogd_slots 1", `catalogd_attempts{state="open"} 0`, "catalogd_lost_tiles 0"} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %q in\n%s", line, body)
		}
	}
}

// check takes one unit, keys, or a stream, and says what cannot be understood.
func TestCheckCommand(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.run(makeTile("t1", "true")...), 0)
	key := strings.TrimSpace(sh.run("key", "landcover", "t1", "version=v1", "scene=S2").out)
	sh.want(sh.run("check", "landcover", "t1", "version=v1", "scene=S2"), 0, "done ", key, "1 units: 1 done")
	sh.want(sh.run("check", "landcover", "t1", "version=v2"), 0, "stale ", "yes", "1 due")
	sh.want(sh.run("check", "--key", key, "--key", key, "--verify"), 0, "2 done")
	sh.want(sh.run("check", "landcover", "t1", "--key", key), exitUsage, "not both")
	sh.want(sh.run("check", "landcovr", "t1", "version=v1"), exitError, "unknown_collection", "landcovr")
	sh.want(sh.run("check", "landcover"), exitUsage, "standard input")
	if r := sh.run("check", "--due", "--key", key); r.code != 0 || strings.Contains(r.out, key) {
		t.Errorf("--due prints what is done: %s", r.out)
	}
	sh.want(sh.run("check", "landcover", "t1", "version=v1", "--token", "catd_wrong"), exitError, "unauthenticated", "CATALOGD_TOKEN")

	// More than any buffer on the way: both directions stream.
	const many = 30_000
	cmd := sh.command("check", "--json")
	in, err := cmd.StdinPipe()
	ok(t, err)
	go func() {
		w := bufio.NewWriter(in)
		for i := range many {
			fmt.Fprintf(w, `{"collection":"landcover","tile_id":"t%d","identity":{"version":"v1","scene":"S2"}}`+"\n", i)
		}
		w.Flush()
		in.Close()
	}()
	out, err := cmd.Output()
	ok(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != many+1 || !strings.Contains(lines[1], `"status":"done"`) || !strings.Contains(lines[many], fmt.Sprintf(`"new":%d`, many-1)) {
		t.Errorf("%d lines: %s … %s", len(lines), lines[1], lines[len(lines)-1])
	}

	bad := sh.command("check")
	bad.Stdin = strings.NewReader(strings.Repeat(`{"unit_key":"`+key+`"}`+"\n", 10_500) + `{"collection":"landcover"}` + "\n")
	text, err := bad.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "\n10501    error: ") || !strings.Contains(string(text), "10500 done") || !strings.Contains(string(text), "1 of the units") {
		t.Errorf("%v %s", err, text)
	}

	long := sh.command("check")
	long.Stdin = strings.NewReader(`{"unit_key":"` + key + `"}` + "\n" + strings.Repeat("x", 2<<20) + "\n")
	if text, err = long.CombinedOutput(); err == nil || !strings.Contains(string(text), key) || !strings.Contains(string(text), "line 2 is longer") {
		t.Errorf("%v %s", err, text)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	ok(t, err)
	defer full.Close()
	unwritten := sh.command("check", "--key", key)
	unwritten.Stdout = full
	if err := unwritten.Run(); err == nil {
		t.Error("an answer that could not be written was none too few")
	}
	sh.want(sh.run("check", "--key", ""), exitUsage, "no unit key")
	away := sh.store + ".away"
	ok(t, os.Rename(sh.store, away))
	sh.want(sh.run("check", "--key", key, "--verify"), exitLater, "store_unavailable", "could not be looked at")
	ok(t, os.Rename(away, sh.store))

	// An answer that was cut off is no answer.
	sh.p.kill()
	sh.want(sh.run("check", "--key", key), exitLater, "no answer")
}

func TestTokenCommands(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	r := sh.run("token", "create", "nightly", "--role", "read", "--expires-in", "1h")
	sh.want(r, 0, "catd_")
	file := filepath.Join(reachable(t), "token")
	write(t, file, []byte(r.out))
	asRead := func(args ...string) ran {
		cmd := sh.command(append(args, "--token-file", file)...)
		for i, setting := range cmd.Env {
			if strings.HasPrefix(setting, "CATALOGD_TOKEN=") {
				cmd.Env[i] = "CATALOGD_TOKEN="
			}
		}
		out, _ := cmd.CombinedOutput()
		return ran{code: cmd.ProcessState.ExitCode(), out: string(out)}
	}
	sh.want(asRead("collection", "list"), 0, "landcover")
	sh.want(asRead("token", "list"), exitError, "forbidden", "an administrator makes", "token create NAME --role ROLE")
	sh.want(asRead("put", sh.scene, "landcover", "t1", "version=v1"), exitError, "forbidden")
	sh.want(sh.run("token", "create", "nightly", "--role", "read"), exitError, "token_exists")
	sh.want(sh.run("token", "create", "x", "--role", "king"), exitUsage, "role")
	sh.want(sh.run("token", "list"), 0, "nightly  read")
	sh.want(sh.run("token", "revoke", "nightly"), 0, "revoked nightly")
	sh.want(sh.run("token", "revoke", "nobody"), exitError, "not_found")
	sh.want(asRead("collection", "list"), exitError, "unauthenticated")
}

// Shells complete commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{"catalogd coll", "collection"},
		{"catalogd collection ", "create"},
		{"catalogd exec --ow", "--owner"},
		{"catalogd token create --role ", "write"},
	} {
		out, err := program(t, nil, []string{"COMP_LINE=" + c.line}).Output()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%q completes to %q, %v; want %s", c.line, out, err, c.want)
		}
	}
	for _, name := range []string{"bash", "zsh", "fish"} {
		if code, out := command(t, "completion", "-c", name); code != 0 || !strings.Contains(out, "complete") {
			t.Errorf("%s: exit code %d, %s", name, code, out)
		}
	}
}
