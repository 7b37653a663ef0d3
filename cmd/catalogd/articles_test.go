package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/batch/batchtest"
)

// What retries must be like, told by those who suffered from others: each case by real
// processes, over HTTP.

// A worker that is killed when its output is written, and before it is handed over, leaves
// the unit not done: what is there counts for nothing until there is a row.
func TestMarkerAfterObject(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.expect("nightly", "t0001")
	dir := reachable(t)
	worker := sh.begin("exec", "landcover", "t0001", "version=v1", "scene=S2", "--batch", "nightly", "--", "sh", "-c",
		`cp "$SCENE" "$1" && touch "$2/staged" && exec sleep 60`, "sh", "{out}", dir)
	poll(t, "the output to be staged", func() bool { _, err := os.Stat(filepath.Join(dir, "staged")); return err == nil })
	ok(t, worker.Process.Kill())
	_ = worker.Wait()

	if staged := sh.files(".staging"); len(staged) != 1 {
		t.Errorf("staged is %v, want the whole output", staged)
	}
	sh.want(sh.run("check", "landcover", "t0001", "version=v1", "scene=S2"), 0, "0 done")
	sh.want(sh.run("batch", "status", "nightly"), 0, "expected 1  done 0 ")
	sh.want(sh.run("get", "landcover", "t0001"), exitError, "not_found")
	if found := sh.files("landcover"); len(found) != 0 {
		t.Errorf("at final names: %v", found)
	}
	sh.want(sh.run(makeTile("t0001", "true", "--batch", "nightly", "--try", "1")...), 0, "done landcover/t0001.")
	sh.want(sh.run("batch", "status", "nightly"), 0, "expected 1  done 1 ")
	sh.done(sh.p, newUnit("landcover", "t0001", "v1"), pixels(1))
	sh.sound(sh.p)
}

// What was done by an earlier version is stale, not done, and made again.
func TestStaleVersionIsRedone(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	calls := filepath.Join(reachable(t), "calls")
	exec := func(version string) ran {
		return sh.run("exec", "landcover", "t0001", "version="+version, "scene=S2", "--", "sh", "-c", `echo `+version+` >>"$2" && cp "$SCENE" "$1"`, "sh", "{out}", calls)
	}
	sh.want(exec("v7"), 0, "done")
	sh.want(sh.run("check", "landcover", "t0001", "version=v8", "scene=S2"), 0, "stale ", "yes", "1 due")
	for _, state := range []string{"done", "skip"} {
		sh.want(exec("v8"), 0, state)
	}
	if made := lines(t, calls); strings.Join(made, " ") != "v7 v8" {
		t.Errorf("made for %v", made)
	}
	sh.want(sh.run("get", "landcover", "t0001"), 0, "version        v8\n")
	sh.sound(sh.p)
}

// lines of a file; none where it is not there.
func lines(t *testing.T, name string) []string {
	t.Helper()
	content, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil
	}
	ok(t, err)
	return strings.Fields(string(content))
}

// A second run of a whole batch asks about what is done, and computes nothing.
func TestCompletedIsNotRecomputed(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	names := tiles(3)
	sh.expect("nightly", names...)
	calls := filepath.Join(reachable(t), "calls")
	for _, state := range []string{"done", "skip"} {
		for _, tile := range names {
			sh.want(sh.run(makeTile(tile, "echo "+tile+" >>"+calls, "--batch", "nightly")...), 0, state)
		}
	}
	if made := lines(t, calls); strings.Join(made, " ") != strings.Join(names, " ") {
		t.Errorf("computed %v", made)
	}
	sh.expect("nightly", names...) // opened and filled again
	sh.want(sh.run("batch", "pending", "nightly"), 0, "0 units are due")
	sh.want(sh.run("batch", "claim", "nightly", "--max", "50"), 0, "no unit of batch nightly is left to do")
	if n := sh.count(`SELECT count(*) FROM catalog.attempts`); n != len(names) {
		t.Errorf("%d attempts at %d units", n, len(names))
	}
	sh.sound(sh.p)
}

// A failure that would come again costs one attempt, not four.
func TestPoisonIsNotRetried(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.run("collection", "edit", "landcover", "--failure-rule", "exit_3=deterministic"), 0, "retries        3,")
	sh.expect("nightly", "bad")
	calls := filepath.Join(reachable(t), "calls")
	for range 4 { // an orchestrator with three retries
		sh.want(sh.run(makeTile("bad", "echo call >>"+calls+"; echo invalid geometry >&2; exit 3", "--batch", "nightly")...), exitQuarantined, "exit_3")
	}
	if made := lines(t, calls); len(made) != 1 {
		t.Errorf("computed %d times", len(made))
	}
	if n := sh.count(`SELECT count(*) FROM catalog.attempts`); n != 1 {
		t.Errorf("%d attempts", n)
	}
	sh.want(sh.run("batch", "status", "nightly"), 0, "quarantined 1  lost 0  pending 0\n", "deterministic  exit_3      1      1  bad ", "quarantine ls --batch nightly")
	sh.want(sh.run("batch", "claim", "nightly"), 0, "left to do")
	sh.sound(sh.p)
}

// Three tiles of 6,000 may be missing, and are told of; 600 stop the run. The outputs are
// rows written by SQL, without objects, so that the gate leaves the store out.
func TestGateTolerates3Of6000(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	store := sh.text(`SELECT store_id FROM catalog.stores`)
	gate := func(name string) ran {
		return sh.run("batch", "gate", name, "--max-missing-frac", "0.002", "--storage", "none")
	}
	batchtest.Write(t, sh.sql, batchtest.Batch{Name: "few", Collection: "landcover", StoreID: store, Done: 5997, Quarantined: 2, Untried: 1})
	sh.want(gate("few"), 0, "state         passed\n", "expected      6000\n", "missing       3, or 0.05 %; tolerated: 0.2 %\n", "quarantined   2\n", "no_crs", "pending")

	batchtest.Write(t, sh.sql, batchtest.Batch{Name: "many", Collection: "landcover", StoreID: store, Done: 5400, Untried: 600})
	refused := gate("many")
	sh.want(refused, exitJudged, "state         failed\n", "reasons       too_many_missing\n", "missing       600, or 10 %; tolerated: 0.2 %\n", "and 580 more", "batch many failed its gate")
	if n := strings.Count(refused.out, "many/000"); n != shownOffenders {
		t.Errorf("%d offenders are shown:\n%s", n, refused.out)
	}
}

// After 40 failures of 6,000 a rerun costs 40 attempts: 37 that were mended and released,
// 3 that were due again by themselves. The 5,960 that went well are rows written by SQL.
func TestRerunAfter40FailuresCosts40(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	batchtest.Write(t, sh.sql, batchtest.Batch{Name: "nightly", Collection: "landcover", StoreID: sh.text(`SELECT store_id FROM catalog.stores`), Done: 5960, Untried: 40})
	claim := func() (attempts []attempt) {
		t.Helper()
		r := sh.run("batch", "claim", "nightly", "--max", "1000", "--json")
		sh.want(r, 0)
		for line := range strings.Lines(r.out) {
			var unit struct{ Attempt attempt }
			ok(t, json.Unmarshal([]byte(line), &unit))
			attempts = append(attempts, unit.Attempt)
		}
		return attempts
	}
	first := claim()
	if len(first) != 40 {
		t.Fatalf("the first run has %d units to do", len(first))
	}
	for i, a := range first {
		failure := map[string]any{"exception": "shapely.errors.InvalidGeometryError"}
		if i >= 37 {
			failure = map[string]any{"http_status": 503}
		}
		must[struct{}](sh.p, "POST", a.path("fail"), failure)
	}
	sh.want(sh.run("batch", "status", "nightly"), 0, "expected 6000  done 5960  retrying 3  quarantined 37  lost 0  pending 0\n",
		"deterministic  shapely.errors.InvalidGeometryError     37     37  nightly/", "transient      http_503                                 3      3  nightly/", "next: catalogd quarantine ls --batch nightly")

	sh.want(sh.run("quarantine", "release", "--batch", "nightly", "--class", "deterministic", "--why", "the scenes were mended"), 0, "released  37")
	rerun := claim()
	if len(rerun) != 40 {
		t.Errorf("the rerun has %d units to do", len(rerun))
	}
	for _, a := range rerun {
		sh.p.stage(a, pixels(1))
		if out := sh.p.complete(a); out.State != "done" {
			t.Errorf("a unit ended as %s", out.State)
		}
	}
	if again := claim(); len(again) != 0 {
		t.Errorf("%d units are left", len(again))
	}
	sh.want(sh.run("batch", "status", "nightly"), 0, "expected 6000  done 6000  quarantined 0  lost 0  pending 0\nnext: catalogd batch gate nightly\n")
	if n := sh.count(`SELECT count(*) FROM catalog.attempts`); n != 80 {
		t.Errorf("%d attempts in all, want 40 of the first run and 40 of the rerun", n)
	}
}
