package upsert_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
)

// Every stable name is put right, whatever is wrong with it, and only what is wrong is
// counted.
func TestRelink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	for i := range 6 {
		w.do(request(fmt.Sprintf("a/t%d", i), "v1"), rastertest.Raster{})
	}
	w.do(request("a/t5", "v2"), rastertest.Raster{Seed: 1})
	relink := func() int {
		t.Helper()
		n, err := w.Relink(t.Context(), w.store.ID())
		must(t, err)
		return n
	}
	if n := relink(); n != 0 {
		t.Fatalf("%d of those that are right were relinked", n)
	}
	current := func(name string) string { return filepath.Join(w.root, "current/landcover", name) }
	old, err := os.Readlink(current("a/t1.tif"))
	must(t, err)
	must(t,
		os.Remove(current("a/t0.tif")),
		os.Remove(current("a/t1.tif")), os.Symlink("../../../landcover/a/nothing.tif", current("a/t1.tif")), // leads nowhere
		os.Remove(current("a/t2.tif")), os.Symlink("/etc/passwd", current("a/t2.tif")), // leads out
		os.Symlink(old, current("a/t3.gpkg")),    // of another format
		os.Symlink(old, current("a/t4.TIF")),     // as nobody writes it
		os.Symlink(old, current("a/nobody.tif")), // of no slot
		os.Symlink(old, current("a/nobody")),     // of no output
		os.MkdirAll(filepath.Join(w.root, "current/others"), 0o755),
		os.Symlink("../../landcover/a/x.tif", filepath.Join(w.root, "current/others/x.tif")), // of no collection
	)
	if n := relink(); n != 8 {
		t.Errorf("%d were relinked", n)
	}
	w.check(invariant.Options{Linked: true})
	for _, name := range []string{"a/t3.gpkg", "a/t4.TIF", "a/nobody.tif", "a/nobody", "../others/x.tif"} {
		if _, err := os.Lstat(current(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if n := relink(); n != 0 {
		t.Errorf("%d were relinked again", n)
	}
	// A name that leads to a lost output is right.
	lost, err := filepath.EvalSymlinks(current("a/t0.tif"))
	must(t, err, os.Remove(lost))
	if n := relink(); n != 0 {
		t.Errorf("%d that lead to lost outputs were relinked", n)
	}
}

// Names of many slots are gone through in less than seconds, while outputs come.
func TestRelinkMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	out := w.do(request("first", "v1"), rastertest.Raster{})
	const slots = 10_000
	w.exec(fmt.Sprintf(`
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) SELECT md5('u' || i)::uuid, 'landcover', 't' || lpad(i::text, 5, '0'), 'v1', '{}' FROM generate_series(1, %[1]d) i;
INSERT INTO catalog.tiles SELECT (t2).* FROM (
    SELECT jsonb_populate_record(t, jsonb_build_object('unit_key', md5('u' || i), 'tile_id', 't' || lpad(i::text, 5, '0'), 'object_key', 'landcover/t' || lpad(i::text, 5, '0') || '.x.tif', 'attempt_id', md5('a' || i))) AS t2
    FROM catalog.tiles t, generate_series(1, %[1]d) i) q;
INSERT INTO catalog.slots (collection_id, tile_id, unit_key) SELECT collection_id, tile_id, unit_key FROM catalog.tiles WHERE unit_key <> '%[2]s';
ANALYZE catalog.slots, catalog.tiles`, slots, out.Tile.UnitKey))
	began := time.Now()
	n, err := w.Relink(t.Context(), w.store.ID())
	must(t, err)
	if n != slots {
		t.Errorf("%d were relinked", n)
	}
	made := time.Since(began)
	began = time.Now()
	if n, err = w.Relink(t.Context(), w.store.ID()); err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	t.Logf("made in %v, looked at in %v", made, time.Since(began))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d slots took %v", slots, took)
	}
}

// A pointer that moves while names are put right is not lost.
func TestRelinkWhileMoving(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for i := range 30 {
			if _, err := w.Relink(t.Context(), w.store.ID()); err != nil {
				done <- fmt.Errorf("%d: %w", i, err)
				return
			}
		}
	}()
	for i := range 30 {
		w.do(request(fmt.Sprintf("t%d", i%3), fmt.Sprintf("v%d", i)), rastertest.Raster{Seed: byte(i)})
	}
	must(t, <-done)
	w.check(invariant.Options{Linked: true})
}

// What is told of staging is what a sweep then removes.
func TestLeftovers(t *testing.T) { onBoth(t, testLeftovers) }

func testLeftovers(t *testing.T, on place) {
	w := newWorld(t, on)
	failed := w.run(request("failed", "v1"))
	w.stage(failed, rastertest.Raster{})
	must(t, w.failing(t.Context(), failed))
	open := w.run(request("open", "v1"))
	w.stage(open, rastertest.Raster{})
	w.put(storage.IncomingPrefix+"young.tif", []byte("x"))
	want := map[string]bool{failed.StagingKey: true, open.StagingKey: false, storage.IncomingPrefix + "young.tif": false}
	if presigner, ok := w.store.(storage.Presigner); ok {
		for key, useless := range map[string]bool{failed.StagingKey: true, open.StagingKey: false, catalog.StagingName(open.ID, ".b.tif"): false} {
			id, err := presigner.CreateUpload(t.Context(), key)
			must(t, err)
			want[key+"?"+id] = useless
		}
	}
	got := map[string]bool{}
	useless := 0
	for l, err := range w.Leftovers(t.Context(), w.store.ID()) {
		must(t, err)
		key := l.Object.Key
		if l.Upload {
			key += "?" + l.UploadID
		}
		got[key] = l.Useless
		if l.Useless {
			useless++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
	for range w.Leftovers(t.Context(), w.store.ID()) {
		break // whoever has enough
	}
	for _, err := range w.Leftovers(t.Context(), "nowhere") {
		wantCode(t, err, catalog.CodeStoreUnavailable)
	}
	swept, err := w.Sweep(t.Context())
	must(t, err)
	if swept.Objects+swept.Uploads != useless {
		t.Errorf("%+v, but %d are useless", swept, useless)
	}
}

// An object at its final name is seen as the step would see it.
func TestInspect(t *testing.T) { onBoth(t, testInspect) }

func testInspect(t *testing.T, on place) {
	w := newWorld(t, on)
	out := w.do(request("t0", "v1"), rastertest.Raster{})
	seen, err := w.Inspect(t.Context(), w.store.ID(), out.Tile.ObjectKey, "landcover")
	must(t, err)
	if seen.Intent.Checksum != out.Tile.Checksum || seen.Intent.SizeBytes != out.Tile.SizeBytes || seen.Object.ETag != out.Tile.ETag || len(seen.Intent.Footprint) == 0 || seen.Intent.MediaType != out.Tile.Facts.MediaType {
		t.Errorf("%+v\nwant\n%+v", seen, out.Tile)
	}
	if w.root == "" && (seen.About["unit-key"] != out.Tile.UnitKey.String() || seen.About["identity"] != string(out.Tile.Identity)) {
		t.Errorf("%v", seen.About)
	}
	for name, test := range map[string]struct {
		content []byte
		code    catalog.Code
	}{
		"landcover/empty.tif":  {nil, catalog.CodeEmptyOutput},
		"landcover/text.tif":   {[]byte("no raster at all"), catalog.CodeNotARaster},
		"landcover/sparse.tif": {rastertest.Raster{Missing: 3}.Bytes(), catalog.CodeSparse},
		"landcover/name.jp2":   {rastertest.Raster{}.Bytes(), catalog.CodeMediaType},
	} {
		w.put(name, test.content)
		_, err := w.Inspect(t.Context(), w.store.ID(), name, "landcover")
		wantCode(t, err, test.code)
	}
	_, err = w.Inspect(t.Context(), w.store.ID(), "x/y.tif", "x")
	wantCode(t, err, catalog.CodeUnknownCollection)
}
