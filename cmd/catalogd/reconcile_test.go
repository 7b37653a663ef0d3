package main

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
)

// The layout that people see.
func TestReconcileText(t *testing.T) {
	raw := `{
		"run": 184, "store": "default", "prefix": "", "source": "store", "state": "complete", "asked_by": "ops", "seconds": 161.2,
		"objects": 2004118, "rows": 2004101, "matched": 2004096, "in_flight": 10, "rows_in_flight": 2, "unknown": 0,
		"kinds": [
			{"kind": "orphan", "new": 5, "open": 5, "resolved": 2, "bytes": 1288490188, "example": "landcover/t0412.3f9c0a1b2c3d.0123456789ab.tif"},
			{"kind": "lost", "new": 4, "open": 4, "resolved": 0, "bytes": 167772160, "example": "landcover/t0901.77b00a1b2c3d.0123456789ab.tif"},
			{"kind": "mismatch", "new": 1, "open": 1, "resolved": 0, "bytes": 46137344, "example": "landcover/t0007.91aa0a1b2c3d.0123456789ab.tif size"},
			{"kind": "stale_staging", "new": 11, "open": 11, "resolved": 40, "bytes": 3328599654, "example": ".staging/x"},
			{"kind": "abandoned_upload", "new": 0, "open": 0, "resolved": 0, "bytes": 0}],
		"progress": {"parts": 5, "parts_ended": 2}}`
	want := `run 184  2m41s  listing complete  sentinel ok
objects 2,004,118  rows 2,004,101  matched 2,004,096  in flight 12  unknown 0
KIND           NEW  OPEN  RESOLVED  BYTES    EXAMPLE
orphan           5     5         2  1.2 GiB  landcover/t0412.3f9c….tif
lost             4     4         0  160 MiB  landcover/t0901.77b0….tif
mismatch         1     1         0  44 MiB   landcover/t0007.91aa….tif size
stale-staging   11    11        40  3.1 GiB  .staging/x
nothing was changed.  next: catalogd reconcile plan 184
`
	for name, c := range map[string]struct {
		change func(*reconciled)
		want   string
	}{
		"findings": {func(*reconciled) {}, want},
		"clean": {func(r *reconciled) {
			r.Kinds, r.Young, r.Seconds, r.Store, r.Prefix = nil, 3, 0.26, "bucket", "landcover/"
		},
			"run 184  300ms  listing complete  sentinel ok  store bucket  prefix landcover/\n" +
				"objects 2,004,118  rows 2,004,101  matched 2,004,096  in flight 12  unknown 0  young 3\nclean: nothing disagrees.\n"},
		"for the sweep": {func(r *reconciled) { r.Kinds = r.Kinds[3:] },
			"run 184  2m41s  listing complete  sentinel ok\nobjects 2,004,118  rows 2,004,101  matched 2,004,096  in flight 12  unknown 0\n" +
				"KIND           NEW  OPEN  RESOLVED  BYTES    EXAMPLE\nstale-staging   11    11        40  3.1 GiB  .staging/x\nnothing was changed.  next: catalogd sweep\n"},
		"incomplete": {func(r *reconciled) { r.Kinds, r.State, r.RowsUnknown = r.Kinds[1:2], "incomplete", 7 },
			"run 184  2m41s  incomplete\nobjects 2,004,118  rows 2,004,101  matched 2,004,096  in flight 12  unknown 7\n" +
				"KIND  NEW  OPEN  RESOLVED  BYTES    EXAMPLE\nlost    4     4         0  160 MiB  landcover/t0901.77b0….tif\n"},
		"running": {func(r *reconciled) { r.State = "running" },
			"run 184  2m41s  running, 2 of 5 parts ended\nobjects 2,004,118  rows 2,004,101  matched 2,004,096  in flight 12  unknown 0\n"},
	} {
		run, err := readRun(json.RawMessage(raw))
		ok(t, err)
		c.change(&run)
		if got := run.text(); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}

func TestFiguresForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 12345: "12,345", 2004118: "2,004,118", -1234567: "-1,234,567", -123: "-123"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 7: "7 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 10: "10 KiB", 1023 << 20: "1023 MiB", 1<<30 - 1: "1.0 GiB", 5 << 50: "5.0 PiB", 1<<63 - 1: "8.0 EiB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// reconcile is a run that finds young objects at once.
func (sh *shell) reconcile(args ...string) ran {
	sh.Helper()
	return sh.run(append([]string{"reconcile", "--min-age", "0s", "--settle", "50ms"}, args...)...)
}

var saidNumber = regexp.MustCompile(`(?m)^(?:run|plan) (\d+) `)

// number of the run, or plan, that a command tells of.
func (sh *shell) number(r ran) string {
	sh.Helper()
	m := saidNumber.FindStringSubmatch(r.out)
	if m == nil {
		sh.Fatalf("%d: names no number:\n%s%s", r.code, r.out, r.err)
	}
	return m[1]
}

// final is the file of a tile's current output.
func (sh *shell) final(tile string) string {
	sh.Helper()
	var key string
	ok(sh, sh.sql.QueryRow(sh.Context(), `SELECT object_key FROM catalog.tiles t JOIN catalog.slots USING (collection_id, tile_id, unit_key) WHERE t.tile_id = $1`, tile).Scan(&key))
	return filepath.Join(sh.store, key)
}

// damage removes t0's object, truncates t1's, and puts two there that nobody made.
func (sh *shell) damage() {
	sh.Helper()
	for _, tile := range tiles(4) {
		sh.want(sh.run(makeTile(tile, "true")...), 0, "done")
	}
	ok(sh, os.Remove(sh.final("t0000")))
	bad := sh.final("t0001")
	ok(sh, os.Chmod(bad, 0o644))
	ok(sh, os.Truncate(bad, 100))
	for _, name := range []string{"foreign.tif", "other.tif"} {
		write(sh, filepath.Join(sh.store, "landcover", name), pixels(7))
	}
}

// The bad day: found, planned, applied, made again, clean.
func TestReconcileBadDay(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.reconcile(), 0, "listing complete  sentinel ok", "clean: nothing disagrees.")
	sh.want(sh.reconcile("--prefix", "nope/"), 0, "nothing was compared: no object and no row is below nope/")
	sh.damage()

	found := sh.reconcile()
	n := sh.number(found)
	layout := regexp.MustCompile(`^run \d+  \S+  listing complete  sentinel ok
objects 5  rows 4  matched 2  in flight 0  unknown 0
KIND      NEW  OPEN  RESOLVED  BYTES +EXAMPLE
orphan      2     2         0  \S+ \S+ +landcover/foreign.tif
lost        1     1         0  \S+ \S+ +landcover/t0000\.[0-9a-f]{4}….tif
mismatch    1     1         0  100 B +landcover/t0001\.[0-9a-f]{4}….tif size
nothing was changed.  next: catalogd reconcile plan ` + n + `
$`)
	if found.code != exitJudged || !layout.MatchString(found.out) {
		t.Errorf("%d: %s%s", found.code, found.out, found.err)
	}
	sh.want(found, exitJudged, "run "+n+" leaves 4 findings open")
	sh.want(sh.reconcile("--json"), exitJudged, `"state":"complete"`, `"orphans":2`)
	sh.want(sh.run("reconcile", "show", n), exitJudged, "objects 5")
	sh.want(sh.run("reconcile", "ls"), 0, "RUN ", "complete ", "  4  ")
	sh.want(sh.run("reconcile", "findings", n), 0, "KIND ", "orphan            open", "landcover/foreign.tif\n", "size\n")
	if lines := sh.run("reconcile", "findings", "--kind", "lost", "--json"); strings.Count(lines.out, "\n") != 1 || !strings.Contains(lines.out, `"kind":"lost"`) {
		t.Errorf("%+v", lines)
	}
	if lines := sh.run("reconcile", "findings", "--prefix", "landcover/f", "--json"); strings.Count(lines.out, "\n") != 1 {
		t.Errorf("%+v", lines)
	}

	file := filepath.Join(reachable(t), "plan.ndjson")
	plan := sh.run("reconcile", "plan", n, "-o", file)
	p := sh.number(plan)
	sh.want(plan, 0, "plan "+p+" of run "+n+"  acts 4  100 % of 4 outputs\n", "ACT    ACTS  BYTES", "redo      2  ", "trash     2  ", "landcover/foreign.tif, landcover/other.tif",
		"nothing was changed.  next: catalogd reconcile apply "+p)
	written, err := os.ReadFile(file)
	ok(t, err)
	if lines := strings.Split(strings.TrimSpace(string(written)), "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], `{"plan":`) || !strings.Contains(lines[4], `"no":4`) {
		t.Errorf("the plan as a file:\n%s", written)
	}
	sh.want(sh.run("reconcile", "plan", "ls"), 0, "planned")

	sh.want(sh.run("reconcile", "apply", p), exitError, "too_much_change", "--max-change")
	sh.want(sh.run("reconcile", "plan", "show", p), 0, "nothing was changed")
	applied := sh.run("reconcile", "apply", p, "--max-change", "1", "--why", "the disk lost them")
	sh.want(applied, 0, "applied", "ACT    PLANNED  DONE  LEFT", "redo         0     2     0", "trash        0     2     0")
	sh.want(sh.run("reconcile", "apply", p, "--max-change", "1"), exitError, "plan_applied")
	sh.want(sh.run("reconcile", "plan", "show", p), 0, "applied", "DONE")
	if why := sh.count(`SELECT count(*) FROM catalog.audit WHERE why = 'the disk lost them'`); why == 0 {
		t.Error("the audit has no reason")
	}

	// The foreign objects, and the damaged one, are in the trash.
	trash := sh.run("trash", "ls", "--json")
	sh.want(sh.run("trash", "ls"), 0, "ID ", "landcover/foreign.tif\n", "landcover/t0001.")
	var first struct {
		ID  int64  `json:"trash_id"`
		Key string `json:"object_key"`
	}
	for line := range strings.Lines(trash.out) {
		var one struct {
			ID  int64  `json:"trash_id"`
			Key string `json:"object_key"`
		}
		ok(t, json.Unmarshal([]byte(line), &one))
		if one.Key == "landcover/foreign.tif" {
			first = one
		}
	}
	sh.want(sh.run("trash", "restore", fmt.Sprint(first.ID)), 0)
	if _, err := os.Stat(filepath.Join(sh.store, first.Key)); err != nil {
		t.Error(err)
	}
	sh.want(sh.run("trash", "restore", fmt.Sprint(first.ID)), exitError)
	ok(t, os.Remove(filepath.Join(sh.store, first.Key)))

	// What was lost is made again.
	for _, tile := range []string{"t0000", "t0001"} {
		sh.want(sh.run(makeTile(tile, "true")...), 0, "done landcover/"+tile)
	}
	clean := sh.reconcile()
	sh.want(clean, 0, "objects 4  rows 4  matched 4", "orphan      0     0         2", "clean: nothing disagrees.")
	sh.want(sh.run("trash", "empty"), 0, "objects  0\n")
	sh.want(sh.run("trash", "empty", "--all", "--why", "looked at"), 0, "objects  2\n", "left     0\n")
	sh.want(sh.run("reconcile", "plan", sh.number(clean)), 0, "there is nothing to do.")
}

// A plan's acts that are no longer so are left, and told.
func TestApplyTellsWhatWasLeft(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.damage()
	p := sh.number(sh.run("reconcile", "plan", sh.number(sh.reconcile())))
	ok(t, os.Remove(filepath.Join(sh.store, "landcover/foreign.tif")))
	write(t, sh.final("t0000"), pixels(1))
	r := sh.run("reconcile", "apply", p, "--max-change", "1")
	sh.want(r, exitJudged, "left: redo lost landcover/t0000.", "of the 4 acts were left")
	if strings.Contains(r.err, "t0001") || strings.Contains(r.err, "other.tif") {
		t.Errorf("%s", r.err)
	}
}

// Nothing is concluded from a store that is away, or not seen whole.
func TestReconcileTriesLater(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.want(sh.reconcile("--prefix", ".staging/"), exitError, "invalid_request", "/prefix")
	sh.want(sh.reconcile("--store", "nowhere"), exitError, "unknown_store", "default")
	sh.want(sh.run("reconcile", "show", "999"), exitError, "unknown_run", "reconcile ls")
	sh.want(sh.run("reconcile", "plan", "show", "999"), exitError, "unknown_plan")
	sh.want(sh.run("reconcile", "findings"), exitError, "no run yet")
	ok(t, os.Rename(filepath.Join(sh.store, ".catalogd"), filepath.Join(sh.store, ".gone")))
	sh.want(sh.reconcile(), exitLater, "store_unavailable")
	ok(t, os.Rename(filepath.Join(sh.store, ".gone"), filepath.Join(sh.store, ".catalogd")))
	sh.damage()

	// One whose listing does not come to its end is canceled; meanwhile there is no other.
	running := func() (n string) {
		poll(t, "the run", func() bool {
			n = fmt.Sprint(sh.count(`SELECT coalesce(max(run_id), 0) FROM catalog.reconcile_runs WHERE state = 'running'`))
			return n != "0"
		})
		return n
	}
	body, send := io.Pipe()
	answers := make(chan answer, 1)
	go func() { answers <- sh.p.raw("POST", "/v1/reconcile:listing", "application/x-ndjson", body) }()
	n := running()
	sh.want(sh.reconcile(), exitLater, "run_under_way", "run "+n)
	sh.want(sh.run("reconcile", "show", n), 0, "running, 0 of 1 parts ended")
	sh.want(sh.run("reconcile", "plan", n), exitError, "run_not_complete", "reconcile ls")
	sh.want(sh.run("reconcile", "cancel", n), 0, "stops")
	time.Sleep(time.Second) // a run looks so often, at the most, whether it is to stop
	for i := range 1500 {   // and not for fewer
		fmt.Fprintf(send, `{"key":"landcover/a%d.tif","size":1}`+"\n", i)
	}
	send.Close()
	if got := <-answers; got.status != 200 || !strings.Contains(string(got.body), `"state":"canceled"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	sh.want(sh.run("reconcile", "show", n), exitLater, "canceled", "reconcile again")
	sh.want(sh.run("reconcile", "cancel", n), 0, "canceled")
	sh.want(sh.run("reconcile", "plan", n), exitError, "run_not_complete")

	// One that is interrupted goes on.
	slow := sh.begin("reconcile", "--settle", "2s")
	n = running()
	poll(t, "a look at it", func() bool { return strings.Contains(sh.p.said(), "path=/v1/reconcile/"+n+" ") })
	ok(t, slow.Process.Signal(os.Interrupt))
	sh.want(sh.end(slow), exitLater, "run "+n+" goes on", "reconcile cancel "+n)
	poll(t, "its end", func() bool {
		return sh.count(`SELECT count(*) FROM catalog.reconcile_runs WHERE state = 'complete' AND run_id = `+n) == 1
	})
	begun := sh.reconcile("--no-wait")
	sh.want(begun, 0, "has begun.  next: catalogd reconcile show ")
}

// Listings of others come to the same.
func TestReconcileListing(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.damage()
	var ndjson, rclone []string
	ok(t, filepath.WalkDir(sh.store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		key, _ := filepath.Rel(sh.store, path)
		info, err := d.Info()
		ndjson = append([]string{fmt.Sprintf(`{"key":%q,"size":%d}`, key, info.Size())}, ndjson...) // in no order
		rclone = append(rclone, fmt.Sprintf(`{"Path":%q,"Name":%q,"Size":%d,"ModTime":%q,"IsDir":false}`, key, d.Name(), info.Size(), info.ModTime().Format(time.RFC3339Nano)))
		return err
	}))
	dir := reachable(t)
	for name, text := range map[string]string{"ndjson": strings.Join(ndjson, "\n") + "\n", "rclone": "[\n" + strings.Join(rclone, ",\n") + "\n]\n"} {
		file := filepath.Join(dir, name)
		write(t, file, []byte(text))
		r := sh.reconcile("--listing", file)
		sh.want(r, exitJudged, "objects 5  rows 4  matched 2", "orphan ", "lost ", "mismatch ")
		if kind := catalog.RunListing; sh.count(`SELECT count(*) FROM catalog.reconcile_runs WHERE source = $1 AND run_id = `+sh.number(r), kind) != 1 {
			t.Error("not by a listing")
		}
		// One that breaks off is told from here.
		write(t, file, []byte(text[:len(text)-20]))
		sh.want(sh.reconcile("--listing", file), exitError, "incomplete")
	}
	cmd := sh.command("reconcile", "--min-age", "0s", "--settle", "50ms", "--listing", "-", "--json")
	cmd.Stdin = strings.NewReader(strings.Join(ndjson, "\n"))
	if out, err := cmd.Output(); err == nil || !strings.Contains(string(out), `"source":"listing","state":"complete"`) {
		t.Errorf("%v %s", err, out)
	}
	sh.want(sh.run("reconcile", "--inventory", filepath.Join(dir, "ndjson")), exitUsage, "an inventory is of a bucket")

	// The server says what is wrong with one that it is sent.
	bad := sh.p.raw("POST", "/v1/reconcile:listing", "application/x-ndjson", strings.NewReader(`{"key":"landcover/a.tif","size":1}`+"\nnonsense\n"))
	if bad.status != 200 || !strings.Contains(string(bad.body), `"state":"incomplete"`) || !strings.Contains(string(bad.body), `"code":"invalid_request"`) || !strings.Contains(string(bad.body), "line 2") {
		t.Errorf("%d %s", bad.status, bad.body)
	}
}

func TestScrubCommand(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	for _, tile := range tiles(3) {
		sh.want(sh.run(makeTile(tile, "true")...), 0, "done")
	}
	// The same size, other bytes: only reading tells.
	bad := sh.final("t0002")
	text, err := os.ReadFile(bad)
	ok(t, err)
	text[len(text)-1] ^= 1
	ok(t, os.Chmod(bad, 0o644))
	write(t, bad, text)

	sh.want(sh.run("scrub", "--fraction", "2"), exitError, "/fraction")
	sh.want(sh.run("scrub", "--fraction", "1"), 0, "it is queued")
	poll(t, "the scrub", func() bool {
		return sh.count(`SELECT count(*) FROM catalog.scrubs WHERE verified + bad >= 3`) == 1
	})
	sh.want(sh.run("scrub", "status"), 0, "STORE ", "default ")
	sh.want(sh.run("reconcile"), exitJudged, "mismatch ", "checksum")
	sh.want(sh.run("reconcile", "findings", "--kind", "mismatch"), 0, "landcover/t0002.", "checksum")
}

// raw is ask with a body of another type.
func (p *process) raw(method, path, contentType string, body io.Reader) answer {
	p.t.Helper()
	req, err := http.NewRequest(method, p.url+path, body)
	ok(p.t, err)
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Content-Type", contentType)
	resp, err := p.client.Do(req)
	ok(p.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	ok(p.t, err)
	return answer{resp.StatusCode, resp.Header, text}
}

// An inventory is of the whole bucket; what lies outside the store is left out.
func TestReconcileInventory(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, newBucket(t, "p/"))
	sh := &shell{site: s, p: s.start(), scene: filepath.Join(reachable(t), "scene.tif")}
	sh.url = sh.p.url
	write(t, sh.scene, pixels(1))
	sh.p.collection("landcover", nil)
	sh.want(sh.run(makeTile("t0000", "true")...), 0, "done")
	sh.want(sh.run(makeTile("t0001", "true")...), 0, "done")
	var key, etag string
	var size int64
	ok(t, s.sql.QueryRow(t.Context(), `SELECT object_key, size_bytes, etag FROM catalog.tiles WHERE tile_id = 't0000'`).Scan(&key, &size, &etag))
	var lost string
	ok(t, s.sql.QueryRow(t.Context(), `SELECT object_key FROM catalog.tiles WHERE tile_id = 't0001'`).Scan(&lost))
	s.bucket.remove(s, lost)
	s.bucket.put(s, "landcover/foreign.tif", []byte("x"))

	bucket := regexp.MustCompile(`^s3://([^/]+)/`).FindStringSubmatch(s.store)[1]
	var data bytes.Buffer
	zip := gzip.NewWriter(&data)
	for _, row := range [][]string{
		{"elsewhere/a.tif", "7", "e"}, {"p/" + lost, "646", "e"}, {"p/landcover/foreign.tif", "1", "e"}, {"p/" + key, fmt.Sprint(size), etag}, {"p/.staging/x", "9", "e"},
	} {
		fmt.Fprintf(zip, "%q,%q,%q,%q\n", bucket, row[0], row[1], row[2])
	}
	ok(t, zip.Close())
	dir := reachable(t)
	write(t, filepath.Join(dir, "data.csv.gz"), data.Bytes())
	manifest, err := json.Marshal(map[string]any{
		"sourceBucket": bucket, "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size, ETag",
		"files": []map[string]any{{"key": "inventory/data/data.csv.gz", "size": data.Len(), "MD5checksum": fmt.Sprintf("%x", md5.Sum(data.Bytes()))}},
	})
	ok(t, err)
	file := filepath.Join(dir, "manifest.json")
	write(t, file, manifest)
	sh.want(sh.reconcile("--inventory", file), exitJudged, "matched 1", "orphan    1     1 ", "landcover/foreign.tif\n")
	sh.want(sh.reconcile("--inventory", file, "--store", "nowhere"), exitError, "unknown_store")
}
