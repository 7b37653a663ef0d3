package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
)

// expect opens a batch of landcover and has it expect tiles of version v1.
func (sh *shell) expect(name string, tiles ...string) {
	sh.Helper()
	sh.want(sh.run("batch", "create", name, "landcover"), 0)
	add := sh.command("batch", "add", name)
	add.Stdin = strings.NewReader(expected(tiles...))
	if out, err := add.CombinedOutput(); err != nil {
		sh.Fatalf("%v: %s", err, out)
	}
}

// expected are units of newUnit's identities, as NDJSON.
func expected(tiles ...string) string {
	var b strings.Builder
	for _, tile := range tiles {
		fmt.Fprintf(&b, `{"tile_id": %q, "identity": {"version": "v1", "scene": "S2"}}`+"\n", tile)
	}
	return b.String()
}

// tiles are t0000 and so on.
func tiles(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("t%04d", i))
	}
	return names
}

func TestBatchCreateAndAdd(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for range 2 { // is idempotent
		sh.want(sh.run("batch", "create", "nightly@2026-08-04", "landcover"), 0, "name        nightly@2026-08-04\n", "expected    0\n", "publish     on_register\n")
	}
	sh.want(sh.run("batch", "create", "x", "nowhere"), exitError, "unknown_collection")
	for _, name := range []string{"a/b", "..", "", "a b", "é"} {
		sh.want(sh.run("batch", "status", name), exitUsage, "does not match")
	}
	sh.p.collection("dem", map[string]any{"publish": "on_gate"})
	sh.want(sh.run("batch", "create", "nightly@2026-08-04", "dem"), exitError, "batch_exists", "landcover")
	sh.want(sh.run("batch", "status", "nihgtly"), exitError, "unknown_batch", "batch ls")
	sh.want(sh.run("batch", "add", "nihgtly", sh.scene+".none"), exitUsage, "no such file")

	// Bad lines are named, and refused alone.
	file := filepath.Join(reachable(t), "units.ndjson")
	write(t, file, []byte(expected("t1")+"\n"+`{"tile_id": "t2"}`+"\nnonsense\n"+
		`{"tile_id": "t3", "identity": {"version": "v1"}, "client_key": "k3", "geometry": {"type": "Point", "coordinates": [15, 52]}}`+"\n"+
		`{"tile_id": "t4", "identity": {"version": "v1"}, "geometry": {"type": "Point", "coordinates": [15, 152]}}`+"\n"))
	sh.want(sh.run("batch", "add", "nightly@2026-08-04", file), exitError,
		"added     2\n", "present   0\n", "refused   3\n", "expected  2\n",
		"line 3: identity is missing", "/identity", "line 4: ", "line 6: geometry leaves the Earth", "3 of the units were refused")
	r := sh.run("batch", "add", "nightly@2026-08-04", file, "--json")
	var added struct {
		Present, Refused, Expected int64
		Errors                     []struct {
			Line  int64
			Code  string
			Field string
		}
	}
	ok(t, json.Unmarshal([]byte(r.out), &added))
	if strings.Contains(r.out, `"status"`) || strings.Contains(r.out, `"field":""`) {
		t.Errorf("not as in the contract: %s", r.out)
	}
	if r.code != exitError || added.Present != 2 || added.Refused != 3 || added.Expected != 2 || len(added.Errors) != 3 || added.Errors[2].Line != 6 || added.Errors[2].Field != "/geometry" {
		t.Errorf("exit code %d, %+v", r.code, added)
	}

	// What is refused whole has no figures.
	for _, args := range [][]string{nil, {"--json"}} {
		r := sh.run(append([]string{"batch", "add", "nihgtly", file}, args...)...)
		sh.want(r, exitError, "unknown_batch", "batch ls")
		if r.out != "" || strings.Contains(r.err, "lines") {
			t.Errorf("%+v", r)
		}
	}

	// Many, from standard input, in more than one piece, with bad ones in each.
	const many = 12_000
	cmd := sh.command("batch", "add", "nightly@2026-08-04", "-")
	in, err := cmd.StdinPipe()
	ok(t, err)
	go func() {
		w := bufio.NewWriter(in)
		for i := range many {
			fmt.Fprintf(w, `{"tile_id": "m/%d", "identity": {"version": "v2"}}`+"\n", i)
		}
		io.WriteString(w, "{}\n"+strings.Repeat("[]\n", 200))
		w.Flush()
		in.Close()
	}()
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("bad lines are none")
	}
	sh.want(ran{code: exitError, out: string(out)}, exitError, "added     12000\n", "expected  12002\n", "line 12001: ", "line 12100: ", "and 101 more of lines 10001 to 12201")

	sh.want(sh.run("batch", "create", "heights", "dem"), 0, "publish     on_gate\n")
	listed := strings.Split(strings.TrimSpace(sh.run("batch", "ls").out), "\n")
	if len(listed) != 3 || !strings.HasPrefix(listed[1], "heights ") || !strings.Contains(listed[2], " v1,v2 ") || !strings.Contains(listed[2], " 12002 ") {
		t.Errorf("%s", strings.Join(listed, "\n"))
	}
	if lines := sh.run("batch", "ls", "--collection", "dem", "--json").out; strings.Count(lines, "\n") != 1 || !strings.Contains(lines, `"name":"heights"`) {
		t.Errorf("%s", lines)
	}
}

// What is added while the server is away arrives when it is back.
func TestBatchAddWaits(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.expect("b")
	sh.p.kill()
	cmd := sh.command("batch", "add", "b")
	cmd.Stdin = strings.NewReader(expected(tiles(3)...))
	said := make(chan string)
	go func() { out, _ := cmd.CombinedOutput(); said <- string(out) }()
	time.Sleep(300 * time.Millisecond)
	sh.start()
	if out := <-said; !strings.Contains(out, "expected  3\n") {
		t.Error(out)
	}
}

// The layout that people see.
func TestBatchStatusText(t *testing.T) {
	now := time.Date(2026, 8, 4, 5, 12, 0, 0, time.Local)
	at := func(hour, minute int) time.Time { return time.Date(2026, 8, 4, hour, minute, 0, 0, time.Local) }
	status := func(change func(*batchStatus)) batchStatus {
		raw := fmt.Sprintf(`{
			"batch": {"name": "nightly-0804", "collection": "landcover", "versions": ["v7"], "expected": 6000, "publish": "on_gate", "created_at": %q},
			"counts": {"expected": 6000, "done": 5957, "running": 3, "retrying": 0, "quarantined": 40, "lost": 0, "pending": 0},
			"failures": [
				{"class": "deterministic", "reason": "invalid_geometry", "units": 37, "tries": 37, "example": "t0412", "last": %q},
				{"class": "transient", "reason": "http_503", "units": 3, "tries": 12, "example": "t0007", "last": %q}]}`,
			at(2, 0).Format(time.RFC3339), at(4, 51).Format(time.RFC3339), at(5, 2).Format(time.RFC3339))
		var s batchStatus
		ok(t, json.Unmarshal([]byte(raw), &s))
		if change != nil {
			change(&s)
		}
		return s
	}
	want := `nightly-0804  landcover v7  opened 02:00  3h12m  gate: not run  unpublished
expected 6000  done 5957  running 3  quarantined 40  lost 0  pending 0
CLASS          REASON            UNITS  TRIES  EXAMPLE  LAST
deterministic  invalid_geometry     37     37  t0412    04:51
transient      http_503              3     12  t0007    05:02
next: catalogd quarantine ls --batch nightly-0804
`
	if got := status(nil).text(now); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for name, c := range map[string]struct {
		change func(*batchStatus)
		want   string
	}{
		"failed": {func(s *batchStatus) {
			s.Failures, s.Batch.CreatedAt = nil, at(-46, 0)
			s.Counts = catalog.BatchCounts{Expected: 6000, Done: 5000, Retrying: 7, Pending: 993}
			s.Gate = &judgedGate{State: "failed", Reasons: []string{"too_many_missing"}, EndedAt: at(5, 10)}
		}, "nightly-0804  landcover v7  opened 2026-08-02  2d3h  gate: failed 05:10 (too_many_missing)  unpublished\n" +
			"expected 6000  done 5000  retrying 7  quarantined 0  lost 0  pending 993\n" +
			"next: catalogd batch claim nightly-0804\n"},
		"waiting": {func(s *batchStatus) {
			s.Failures, s.Batch.Publish = nil, "on_register"
			s.Counts = catalog.BatchCounts{Expected: 2, Done: 1, Retrying: 1}
			s.Gate = &judgedGate{State: "error", EndedAt: at(5, 10), Error: &itemError{Code: catalog.CodeStoreUnavailable}}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: error 05:10 (store_unavailable)\n" +
			"expected 2  done 1  retrying 1  quarantined 0  lost 0  pending 0\n" +
			"next: catalogd batch watch nightly-0804\n"},
		"empty": {func(s *batchStatus) {
			s.Failures, s.Batch.Publish, s.Batch.Versions, s.Counts, s.Batch.CreatedAt = nil, "on_register", nil, catalog.BatchCounts{}, at(5, 11)
		}, "nightly-0804  landcover  opened 05:11  1m  gate: not run\nexpected 0  done 0  quarantined 0  lost 0  pending 0\nnext: catalogd batch add nightly-0804 FILE\n"},
		"done": {func(s *batchStatus) {
			s.Failures, s.Counts = nil, catalog.BatchCounts{Expected: 2, Done: 2}
			s.Gate = &judgedGate{State: "queued"}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: queued  unpublished\nexpected 2  done 2  quarantined 0  lost 0  pending 0\nnext: catalogd batch gate nightly-0804\n"},
		"passed": {func(s *batchStatus) {
			s.Failures, s.Counts, s.Batch.PublishedAt = nil, catalog.BatchCounts{Expected: 2, Done: 2}, new(at(5, 11))
			s.Gate = &judgedGate{State: "passed", EndedAt: at(5, 10)}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: passed 05:10  published 05:11\nexpected 2  done 2  quarantined 0  lost 0  pending 0\n"},
		"late": {func(s *batchStatus) {
			s.Failures, s.Counts, s.Batch.PublishedAt, s.Unpublished = nil, catalog.BatchCounts{Expected: 2, Done: 2}, new(at(5, 11)), 1
			s.Gate = &judgedGate{State: "passed", EndedAt: at(5, 10)}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: passed 05:10  published 05:11, 1 waits\n" +
			"expected 2  done 2  quarantined 0  lost 0  pending 0\nnext: catalogd batch gate nightly-0804\n"},
		"late and quarantined": {func(s *batchStatus) {
			s.Failures, s.Counts, s.Batch.PublishedAt, s.Unpublished = nil, catalog.BatchCounts{Expected: 9, Done: 8, Quarantined: 1}, new(at(5, 11)), 3
			s.Gate = &judgedGate{State: "passed", EndedAt: at(5, 10)}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: passed 05:10  published 05:11, 3 wait\n" +
			"expected 9  done 8  quarantined 1  lost 0  pending 0\nnext: catalogd batch gate nightly-0804\n"},
		"quarantined and pending": {func(s *batchStatus) {
			s.Failures, s.Counts = nil, catalog.BatchCounts{Expected: 9, Done: 4, Quarantined: 1, Pending: 4}
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: not run  unpublished\n" +
			"expected 9  done 4  quarantined 1  lost 0  pending 4\nnext: catalogd batch claim nightly-0804\n"},
		"found lost": {func(s *batchStatus) {
			s.Failures, s.Batch.Publish, s.Counts = nil, "on_register", catalog.BatchCounts{Expected: 2, Done: 2}
			ok(t, json.Unmarshal([]byte(`{"state": "failed", "reasons": ["disagreement"], "figures": {"done": 1, "lost": 1}}`), &s.Gate))
		}, "nightly-0804  landcover v7  opened 02:00  3h12m  gate: failed (disagreement)\nexpected 2  done 2  quarantined 0  lost 0  pending 0\n" +
			"next: catalogd exec what the gate found lost (catalogd batch status nightly-0804 --json names it), then catalogd batch gate nightly-0804\n"},
	} {
		if got := status(c.change).text(now); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}

// A batch from its first claim to the last unit, with one that fails for good.
func TestBatchWork(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.expect("nightly", "t1", "t2", "t3", "t4")

	// exec takes units of a batch that it expects.
	sh.want(sh.run(makeTile("t1", "true", "--batch", "nightly")...), 0, "done")
	sh.want(sh.run(makeTile("t9", "true", "--batch", "nightly")...), exitError, "not_in_batch", "batch add", "CATALOGD_BATCH")
	sh.want(sh.run(makeTile("t1", "true", "--batch", "weekly")...), exitError, "unknown_batch")
	put := sh.command("put", sh.scene, "landcover", "t2", "version=v1", "scene=S2")
	put.Env = append(put.Env, "CATALOGD_BATCH=nightly")
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := sh.count(`SELECT count(*) FROM catalog.current_tiles WHERE batch = 'nightly'`); n != 2 {
		t.Errorf("%d outputs are the batch's, want 2", n)
	}

	sh.want(sh.run("batch", "pending", "nightly"), 0, "TILE_ID", "t3 ", "t4 ", `{"scene":"S2","version":"v1"}`, "2 units are due")
	due := sh.run("batch", "pending", "nightly", "--json")
	if due.code != 0 || strings.Count(due.out, "\n") != 2 || strings.Contains(due.out, "summary") || !strings.Contains(due.out, `"status":"pending"`) {
		t.Errorf("%+v", due)
	}

	watch := sh.begin("batch", "watch", "nightly", "--every", "50ms")
	poll(t, "the first look", func() bool { return strings.Contains(sh.p.said(), "operation=getBatch") })
	claim := sh.run("batch", "claim", "nightly", "--max", "50", "--json")
	sh.want(claim, 0, "2 units are w1's until ", "heartbeats")
	var attempts []attempt
	for line := range strings.Lines(claim.out) {
		var got struct {
			TileID  string `json:"tile_id"`
			Attempt attempt
		}
		ok(t, json.Unmarshal([]byte(line), &got))
		attempts = append(attempts, got.Attempt)
	}
	if len(attempts) != 2 {
		t.Fatalf("%d units: %s", len(attempts), claim.out)
	}
	sh.want(sh.run("batch", "claim", "nightly"), exitLater, "not now", "ask again in")
	sh.want(sh.run("batch", "status", "nightly"), 0, "expected 4  done 2  running 2  quarantined 0", "next: catalogd batch watch nightly")
	sh.p.stage(attempts[0], pixels(1))
	sh.p.complete(attempts[0])
	sh.want(sh.run("fail", attempts[1].ID.String(), "--reason", "invalid_geometry"), exitQuarantined)

	seen := sh.end(watch)
	sh.want(seen, 0, "expected 4  done 2  quarantined 0  lost 0  pending 2\n", "done 2  running 2  quarantined 0  lost 0  pending 0\n")
	if last := "expected 4  done 3  quarantined 1  lost 0  pending 0\n"; !strings.HasSuffix(seen.out, last) {
		t.Errorf("the last line is not %s%s", last, seen.out)
	}
	sh.want(sh.run("batch", "claim", "nightly"), 0, "no unit of batch nightly is left to do")
	sh.want(sh.run("batch", "pending", "nightly"), 0, "0 units are due")
	status := sh.run("batch", "status", "nightly")
	if layout := regexp.MustCompile(`^nightly  landcover v1  opened \S+  \dm  gate: not run
expected 4  done 3  quarantined 1  lost 0  pending 0
CLASS          REASON            UNITS  TRIES  EXAMPLE  LAST
deterministic  invalid_geometry      1      1  t\d       \S+
next: catalogd quarantine ls --batch nightly
$`); !layout.MatchString(status.out) {
		t.Errorf("%s", status.out)
	}
	sh.want(sh.run("batch", "status", "nightly", "--json"), 0, `"counts":{"expected":4,"done":3,`, `"example_key":"`)

	// Quarantine, by batch.
	sh.want(sh.run("quarantine", "ls", "--batch", "nightly"), 0, "invalid_geometry")
	sh.want(sh.run("quarantine", "ls", "--batch", "nigtly"), 1, "unknown_batch")
	sh.want(sh.run("quarantine", "release", "--batch", "nigtly", "--why", "mistyped"), 1, "unknown_batch")
	sh.expect("weekly", "t1", "t5")
	if other := sh.run("quarantine", "ls", "--batch", "weekly", "--json"); other.code != 0 || other.out != "" {
		t.Errorf("%+v", other)
	}
	sh.want(sh.run("quarantine", "release", "--batch", "weekly", "--why", "x"), 0, "released  0")
	sh.want(sh.run("quarantine", "release", "--batch", "nightly", "--why", "mended"), 0, "released  1")
	r := sh.run("batch", "claim", "nightly", "--owner", "w2", "--max", "2")
	sh.want(r, 0, "TILE_ID", "STAGING", sh.store+"/.staging/", "1 units are w2's")
	sh.want(sh.run("batch", "claim", "nightly", "--max", "0"), exitError, "/max")
}

// A list that was cut off is not taken for all.
func TestBatchPendingCutOff(t *testing.T) {
	t.Parallel()
	for last, says := range map[string]string{
		"": "was cut off",
		`{"summary":{"pending":1},"error":{"status":503,"code":"database_unavailable","detail":"the database is away"}}` + "\n": "these are not all",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"unit_key":"00000000-0000-8000-8000-000000000001","tile_id":"t1","status":"pending","identity":{"version":"v1"}}`+"\n"+last)
		}))
		defer server.Close()
		code, out := command(t, "batch", "pending", "nightly", "--url", server.URL)
		if code != exitError || !strings.Contains(out, "t1 ") || !strings.Contains(out, says) {
			t.Errorf("exit code %d: %s", code, out)
		}
	}
}

// The gate looks at the store, and its exit code says what it found.
func TestBatchGate(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.p.collection("dem", map[string]any{"publish": "on_gate"})
	sh.want(sh.run("batch", "create", "nightly", "dem"), 0)
	sh.want(sh.run("batch", "gate", "nightly"), exitJudged, "state         failed\n", "reasons       empty\n", "failed its gate: empty")
	sh.want(sh.run("batch", "gate", "nihgtly"), exitError, "unknown_batch")
	sh.want(sh.run("batch", "gate", "nightly", "--storage", "guess"), exitUsage, "storage")
	sh.want(sh.run("batch", "gate", "nightly", "--max-missing-frac", "2"), exitError, "/max_missing_frac")
	units := filepath.Join(reachable(t), "units")
	write(t, units, []byte(expected("t1", "t2", "t3", "t4")))
	sh.want(sh.run("batch", "add", "nightly", units), 0)

	var objects []string
	for _, tile := range []string{"t1", "t2", "t3"} {
		u := newUnit("dem", tile, "v1")
		u.Batch = "nightly"
		objects = append(objects, sh.p.do(u, pixels(1)).Tile.ObjectKey)
	}
	sh.want(sh.run("batch", "status", "nightly"), 0, "(empty)  unpublished\n", "next: catalogd batch claim nightly\n")
	sh.want(sh.run("get", "dem", "t1"), exitError, "not_found")
	sh.want(sh.run("batch", "gate", "nightly", "--max-missing-frac", "0.2"), exitJudged,
		"missing       1, or 25 %; tolerated: 20 %\n", "in the store  3 of 3 that were looked for (list)\n", "TILE_ID  STATUS   REASON  UNIT_KEY\n", "t4       pending")

	// What is lost is a disagreement, whatever may be missing; a store that is away is none.
	hidden := filepath.Join(reachable(t), "hidden")
	ok(t, os.Rename(sh.path(objects[0]), hidden))
	sh.want(sh.run("batch", "gate", "nightly", "--max-missing-frac", "1", "--storage", "sample", "--sample-size", "10"), exitJudged, "disagreement", "t1       lost")
	sh.want(sh.run("batch", "status", "nightly", "--json"), 0, `"offenders":[{`, `"status":"lost"`)
	ok(t, os.Rename(hidden, sh.path(objects[0])))
	away := sh.store + ".away"
	ok(t, os.Rename(sh.store, away))
	sh.want(sh.run("batch", "gate", "nightly", "--max-missing-frac", "1"), exitLater, "could not be judged", "store_unavailable")
	ok(t, os.Rename(away, sh.store))
	sh.want(sh.run("batch", "status", "nightly"), 0, "gate: error ", "(store_unavailable)")

	r := sh.run("batch", "gate", "nightly", "--max-missing-frac", "0.25", "--max-quarantined", "0", "--json")
	var passed judgedGate
	ok(t, json.Unmarshal([]byte(r.out), &passed))
	if r.code != 0 || passed.State != "passed" || passed.Figures.Missing != 1 || len(passed.Offenders) != 1 || *passed.Published != 3 {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
	sh.want(sh.run("get", "dem", "t1"), 0, "current        true")
	sh.want(sh.run("batch", "status", "nightly"), 0, "gate: passed ", "  published ")

	// A unit that is finished later waits, for the next gate or for somebody who says so.
	u := newUnit("dem", "t4", "v1")
	u.Batch = "nightly"
	sh.p.do(u, pixels(1))
	sh.want(sh.run("get", "dem", "t4"), exitError, "not_found")
	sh.want(sh.run("batch", "status", "nightly"), 0, "  published ", ", 1 waits\n", "next: catalogd batch gate nightly\n")
	sh.want(sh.run("batch", "publish", "nightly"), exitUsage, "--why")
	sh.want(sh.run("batch", "publish", "nightly", "--why", "t4 came late"), 0, "published  1\n", "moved      1\n")
	sh.want(sh.run("get", "dem", "t4"), 0, "current        true")

	queued := sh.run("batch", "gate", "nightly", "--no-wait", "--storage", "none")
	sh.want(queued, 0, "gate   ", "state  ")
	poll(t, "the gate that nobody waits for", func() bool {
		return sh.count(`SELECT count(*) FROM catalog.gates WHERE state = 'passed'`) == 2
	})
	sh.sound(sh.p)
}
