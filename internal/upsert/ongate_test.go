package upsert_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// publishes sets when outputs of landcover can become current.
func (w *world) publishes(when catalog.PublishWhen) {
	w.t.Helper()
	c, err := w.db.Collection(w.t.Context(), "landcover")
	must(w.t, err)
	c.Policy.Publish = when
	_, err = w.db.UpdateCollection(w.t.Context(), c)
	must(w.t, err)
}

// of is request for a batch.
func of(batch, tile, version string) upsert.BeginRequest {
	req := request(tile, version)
	req.Batch = batch
	return req
}

// finishAll does these tiles of a batch.
func (w *world) finishAll(batch, version string, seed byte, tiles ...string) {
	w.t.Helper()
	for _, tile := range tiles {
		w.do(of(batch, tile, version), rastertest.Raster{Seed: seed})
	}
}

func (w *world) publishBatch(batch string, want upsert.BatchPublished) {
	w.t.Helper()
	got, err := w.PublishBatch(w.t.Context(), batch, "boss", "good enough")
	if err != nil || got != want {
		w.t.Fatalf("publish %s: %+v %v, want %+v", batch, got, err, want)
	}
}

// shows is what readers see: each current tile and its version.
func (w *world) shows() string {
	w.t.Helper()
	var text string
	must(w.t, w.sql.QueryRow(w.t.Context(), `SELECT coalesce(string_agg(tile_id || '=' || version, ' ' ORDER BY tile_id), '') FROM catalog.current_tiles`).Scan(&text))
	return text
}

func (w *world) wantShown(want string) {
	w.t.Helper()
	if got := w.shows(); got != want {
		w.t.Fatalf("readers see %q, want %q", got, want)
	}
}

// Outputs of a batch are seen by nobody until it is published, and then all at once.
func TestOnGate(t *testing.T) { onBoth(t, testOnGate) }

func testOnGate(t *testing.T, on place) {
	w := newWorld(t, on)
	w.publishes(catalog.PublishOnGate)
	tiles := names("t%d", 5)
	v1, v2 := "t0=v1 t1=v1 t2=v1 t3=v1 t4=v1", "t0=v2 t1=v2 t2=v2 t3=v2 t4=v2"
	seen := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		for ctx.Err() == nil {
			seen[w.shows()] = true
		}
	})
	w.expect("first", "v1", tiles...)
	w.expect("second", "v2", tiles...)
	w.finishAll("first", "v1", 1, tiles...)

	// Done, and not current.
	d := w.begin(of("first", "t0", "v1"))
	if d.Verdict != upsert.VerdictSkip || d.Tile.Current || d.Tile.PublishedAt != nil {
		t.Fatalf("%+v", d)
	}
	w.wantStatus(request("t0", "v1"), upsert.StatusDone, false)
	w.wantCounts("first", catalog.BatchCounts{Expected: 5, Done: 5})
	_, err := w.db.CurrentTile(t.Context(), "landcover", "t0")
	wantCode(t, err, catalog.CodeNotFound)
	if tile, err := w.db.Tile(t.Context(), d.UnitKey); err != nil || tile.Current {
		t.Fatalf("%+v %v", tile, err)
	}
	if w.root != "" {
		if _, err := os.Lstat(filepath.Join(w.root, "current/landcover/t0.tif")); !os.IsNotExist(err) {
			t.Fatalf("an unpublished output has a stable name: %v", err)
		}
	}
	w.check(settled)

	w.publishBatch("first", upsert.BatchPublished{Published: 5, Moved: 5})
	w.wantShown(v1)
	w.check(settled)
	w.finishAll("second", "v2", 2, tiles...)
	w.wantShown(v1)
	w.publishBatch("second", upsert.BatchPublished{Published: 5, Moved: 5})
	w.wantShown(v2)
	stop()
	reader.Wait()
	for state := range seen {
		if state != "" && state != v1 && state != v2 {
			t.Errorf("a reader saw %q", state)
		}
	}
	// One moment, in history too.
	if n := w.count(`SELECT count(DISTINCT moved_at) FROM catalog.slot_history WHERE reason = 'published' AND moved_by = 'boss'`); n != 2 {
		t.Errorf("%d moments", n)
	}
	if n := w.count(`SELECT count(*) FROM catalog.batches b, catalog.tiles_as_of('landcover', b.published_at) WHERE b.name = 'first' AND version = 'v1'`); n != 5 {
		t.Errorf("%d outputs as of the first publication", n)
	}

	// Again is nothing, and nothing is written; what comes later waits for the next time.
	w.publishBatch("second", upsert.BatchPublished{})
	w.add("second", "v2", "t5")
	w.finishAll("second", "v2", 2, "t5")
	w.wantShown(v2)
	w.publishBatch("second", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown(v2 + " t5=v2")
	if n := w.count(`SELECT count(*) FROM catalog.audit WHERE act = 'publish batch' AND who = 'boss' AND why = 'good enough'`); n != 3 {
		t.Errorf("%d acts in the audit", n)
	}
	if n := w.count(`SELECT (details ->> 'published')::int FROM catalog.audit WHERE target = 'first'`); n != 5 {
		t.Errorf("the audit tells of %d", n)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

func TestPublishBatchRefuses(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.expect("nightly", "v1", "t1")
	w.finishAll("nightly", "v1", 0, "t1")
	_, err := w.PublishBatch(t.Context(), "other", "boss", "why not")
	wantCode(t, err, catalog.CodeUnknownBatch)
	_, err = w.PublishBatch(t.Context(), "nightly", "boss", "why not")
	wantCode(t, err, catalog.CodeInvalidRequest)
	_, err = w.PublishBatch(t.Context(), "nightly", "boss", "")
	wantCode(t, err, catalog.CodeInvalidRequest)
	w.publishes(catalog.PublishOnGate)
	_, err = w.Begin(t.Context(), request("t2", "v1"))
	wantCode(t, err, catalog.CodeInvalidRequest)
	// All of it was published before: that is noted, once.
	w.publishBatch("nightly", upsert.BatchPublished{})
	if n := w.count(`SELECT count(*) FROM catalog.batches WHERE published_at IS NOT NULL`); n != 1 {
		t.Fatal("the batch is not published")
	}
	w.publishBatch("nightly", upsert.BatchPublished{})
	if n := w.count(`SELECT count(*) FROM catalog.audit WHERE act = 'publish batch'`); n != 1 {
		t.Fatalf("%d acts", n)
	}
}

// Whatever the order of batches, the newer version is current; and a version that is
// published gets no slot by outputs that wait.
func TestOnGateRank(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	w.expect("old", "v1", "t1", "t2") // ranks first
	w.expect("new", "v2", "t1", "t2")
	w.expect("more", "v1", "t3")
	w.finishAll("new", "v2", 2, "t1", "t2")
	w.finishAll("old", "v1", 1, "t1") // late
	w.publishBatch("old", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1")
	w.publishBatch("new", upsert.BatchPublished{Published: 2, Moved: 2})
	w.wantShown("t1=v2 t2=v2")
	w.finishAll("old", "v1", 1, "t2") // later still
	w.publishBatch("old", upsert.BatchPublished{Published: 1})
	w.wantShown("t1=v2 t2=v2")
	w.check(settled)

	w.finishAll("more", "v1", 1, "t3")
	published, err := w.Publish(t.Context(), "landcover", "v1", "boss", "back")
	if err != nil || published.Moved != 2 {
		t.Fatalf("%+v %v", published, err)
	}
	w.wantShown("t1=v1 t2=v1")
	w.publishBatch("more", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1 t2=v1 t3=v1")
	w.check(settled)
}

// The policy may change: what waits goes on waiting for its batch, and what can be
// current stays so.
func TestOnGatePolicyChanges(t *testing.T) {
	w := newWorld(t, inDirectory)
	unbatched := w.run(request("t3", "v1"))
	w.publishes(catalog.PublishOnGate)
	w.expect("nightly", "v1", "t1", "t2")
	w.finishAll("nightly", "v1", 0, "t1")
	w.publishes(catalog.PublishOnRegister)
	w.wantShown("")
	w.check(invariant.Options{Linked: true})
	w.lose(*w.begin(of("nightly", "t1", "v1")).Tile) // and is repaired
	w.finishAll("nightly", "v1", 0, "t1")
	w.wantShown("")
	w.finishAll("nightly", "v1", 0, "t2")
	w.wantShown("t2=v1")
	w.publishBatch("nightly", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1 t2=v1")
	_, err := w.PublishBatch(t.Context(), "nightly", "boss", "again")
	wantCode(t, err, catalog.CodeInvalidRequest)

	// What was begun without a batch before waits for one that expects it.
	w.publishes(catalog.PublishOnGate)
	w.wantShown("t1=v1 t2=v1")
	w.stage(unbatched, rastertest.Raster{})
	if out := w.complete(unbatched); out.Tile.Current || out.Tile.PublishedAt != nil {
		t.Fatalf("%+v", out)
	}
	w.publishBatch("nightly", upsert.BatchPublished{})
	w.add("nightly", "v1", "t3")
	w.publishBatch("nightly", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1 t2=v1 t3=v1")
	w.check(settled)
}

// A lost output that was published is repaired in its place; one that waits for its batch
// is due, is not published while it is lost, and waits on when it is repaired.
func TestOnGateRepair(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	w.expect("one", "v1", "t1")
	w.expect("two", "v2", "t1", "t2")
	w.finishAll("one", "v1", 1, "t1")
	w.publishBatch("one", upsert.BatchPublished{Published: 1, Moved: 1})
	before, err := w.db.CurrentTile(t.Context(), "landcover", "t1")
	must(t, err)
	w.lose(before)
	out := w.do(of("one", "t1", "v1"), rastertest.Raster{Seed: 2})
	if !out.Tile.Current || out.Tile.PublishedAt == nil || !out.Tile.PublishedAt.Equal(*before.PublishedAt) {
		t.Fatalf("%+v", out.Tile)
	}
	w.check(settled)

	w.finishAll("two", "v2", 3, "t1", "t2")
	waiting := w.begin(of("two", "t1", "v2")).Tile
	w.lose(*waiting)
	w.exec(`INSERT INTO catalog.tile_health (unit_key, lost_since) VALUES ($1, now())`, waiting.UnitKey)
	w.publishBatch("two", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1 t2=v2")
	w.wantStatus(request("t1", "v2"), upsert.StatusLost, true)
	batch, err := w.db.Batch(t.Context(), "two")
	must(t, err)
	if due, err := w.db.Pending(t.Context(), batch.ID, [16]byte{}, 10); err != nil || len(due) != 1 {
		t.Fatalf("%+v %v", due, err)
	}
	w.exec(`UPDATE catalog.batch_units SET due_at = now()`)
	claimed := w.claim(claim("two", 10))
	if len(claimed.Units) != 1 || claimed.Units[0].TileID != "t1" {
		t.Fatalf("%+v", claimed)
	}
	w.stage(*claimed.Units[0].Attempt, rastertest.Raster{Seed: 4})
	if out := w.complete(*claimed.Units[0].Attempt); out.Tile.Current || out.Tile.PublishedAt != nil {
		t.Fatalf("%+v", out.Tile)
	}
	w.check(settled)
	w.publishBatch("two", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v2 t2=v2")
	w.check(settled)
}

// Ordered by acquisition, the latest of the published scenes is current: also where
// another scene waits, and where a repair changes a scene's time.
func TestOnGateAcquired(t *testing.T) {
	w := newWorld(t, inDirectory)
	c, err := w.db.Collection(t.Context(), "landcover")
	must(t, err)
	c.Policy.OrderBy, c.Policy.Publish = catalog.OrderAcquired, catalog.PublishOnGate
	_, err = w.db.UpdateCollection(t.Context(), c)
	must(t, err)
	scene := func(version string, day int) upsert.BeginRequest {
		req := of(version, "t1", version)
		at := time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		req.Given.Acquired = catalog.Interval{Start: &at, End: &at}
		return req
	}
	for i, version := range []string{"v1", "v2", "v3"} {
		w.expect(version, version, "t1")
		w.do(scene(version, 30-i), rastertest.Raster{Seed: byte(i)})
	}
	w.publishBatch("v3", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v3")
	w.publishBatch("v2", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v2")
	current, err := w.db.CurrentTile(t.Context(), "landcover", "t1")
	must(t, err)
	// Repaired as later, it is current as before; as the earliest, it gives way to the
	// best that is published, not to one that waits.
	w.lose(current)
	w.do(scene("v2", 31), rastertest.Raster{Seed: 5})
	w.check(settled)
	current, err = w.db.CurrentTile(t.Context(), "landcover", "t1")
	must(t, err)
	w.lose(current)
	w.do(scene("v2", 2), rastertest.Raster{Seed: 6})
	w.wantShown("t1=v3")
	w.check(settled)
	w.publishBatch("v1", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t1=v1")
	w.check(settled)
}

// While a batch is being published, and waits for one slot, what is registered in the
// others waits for it, and is not published with it.
func TestRegisterDuringPublishBatch(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	w.expect("one", "v1", "t1", "t2")
	w.expect("two", "v2", "t1")
	w.finishAll("one", "v1", 1, "t1", "t2")
	// Both batches expect it, and it is not done yet.
	w.add("one", "v2", "t1")
	late := w.run(of("two", "t1", "v2"))
	w.stage(late, rastertest.Raster{Seed: 2})
	end := w.lock(`UPDATE catalog.slots SET updated_at = clock_timestamp() WHERE tile_id = 't2'`)
	publishing := async(func() (upsert.BatchPublished, error) { return w.PublishBatch(t.Context(), "one", "boss", "go") })
	w.blocked(1)
	registering := w.completing(w.replica, late)
	w.blocked(2)
	w.wantShown("")
	end(true)
	if p := <-publishing; p.err != nil || p.value != (upsert.BatchPublished{Published: 2, Moved: 2}) {
		t.Fatalf("%+v", p)
	}
	if r := <-registering; r.err != nil || r.value.Tile.Current {
		t.Fatalf("%+v", r)
	}
	w.wantShown("t1=v1 t2=v1")
	w.check(settled)
	w.publishBatch("one", upsert.BatchPublished{Published: 1, Moved: 1})
	w.publishBatch("two", upsert.BatchPublished{})
	w.wantShown("t1=v2 t2=v1")
	w.check(settled)
}

// Units of several batches are registered in the same slots while all batches are
// published, over and over, and a version too.
func TestManyPublishBatches(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.watch()
	w.publishes(catalog.PublishOnGate)
	tiles := names("t%d", 8)
	batches := []string{"v1", "v2", "v3"}
	for _, v := range batches {
		w.expect(v, v, tiles...)
	}
	w.expect("all", "v1", tiles...)
	w.add("all", "v3", tiles...)
	var work, publish sync.WaitGroup
	for i, v := range batches {
		work.Go(func() {
			for _, tile := range tiles {
				d, err := w.Begin(t.Context(), of(v, tile, v))
				if err != nil || d.Attempt == nil {
					t.Errorf("%+v %v", d, err)
					return
				}
				w.stage(*d.Attempt, rastertest.Raster{Seed: byte(i)})
				if _, err := w.Complete(t.Context(), d.Attempt.ID, upsert.CompleteRequest{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	for _, batch := range append(batches, "all") {
		publish.Go(func() {
			for ctx.Err() == nil {
				if _, err := w.PublishBatch(t.Context(), batch, "boss", "race"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	publish.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := w.Publish(t.Context(), "landcover", batches[n%2], "boss", "race"); err != nil {
				t.Error(err)
			}
		}
	})
	work.Wait()
	stop()
	publish.Wait()
	for _, batch := range append(batches, "all") {
		if _, err := w.PublishBatch(t.Context(), batch, "boss", "rest"); err != nil {
			t.Error(err)
		}
	}
	if n := w.count(`SELECT count(*) FROM catalog.tiles WHERE published_at IS NULL`); n != 0 {
		t.Errorf("%d outputs wait", n)
	}
	w.check(settled)
}

// A publication whose stable names were not put right is finished by recovery, and by
// itself only when it is old enough for nobody to be at it.
func TestPublishBatchCrash(t *testing.T) {
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	w.expect("nightly", "v1", "t1", "t2")
	w.finishAll("nightly", "v1", 0, "t1", "t2")
	_, err := w.db.PublishBatch(t.Context(), "nightly", "boss", "go")
	must(t, err)
	links := func() int {
		found, err := filepath.Glob(filepath.Join(w.root, "current/landcover/*.tif"))
		must(t, err)
		return len(found)
	}
	_, err = w.RecoverOverdue(t.Context())
	must(t, err)
	if n := links(); n != 0 {
		t.Fatalf("%d stable names of a publication that may be under way", n)
	}
	// Nor is it forgotten by a later one of the same batch.
	w.add("nightly", "v1", "t3")
	w.finishAll("nightly", "v1", 0, "t3")
	_, err = w.db.PublishBatch(t.Context(), "nightly", "boss", "go")
	must(t, err)
	_, err = w.Recover(t.Context())
	must(t, err)
	if n := links(); n != 3 {
		t.Fatalf("%d stable names", n)
	}
	if n := w.count(`SELECT count(*) FROM catalog.batches WHERE links_from IS NOT NULL`); n != 0 {
		t.Fatal("stable names are still to be put right")
	}
	w.check(settled)
}

// What a publication moved is told page by page, every place once.
func TestPublishBatchByPages(t *testing.T) {
	const units = 12_000
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	batch := w.expect("like", "v1", "like")
	w.finishAll("like", "v1", 0, "like")
	w.copies(batch, units)
	out, err := w.db.PublishBatch(t.Context(), "like", "boss", "go")
	if err != nil || out != (upsert.BatchPublished{Published: units + 1, Moved: units + 1}) {
		t.Fatalf("%+v %v", out, err)
	}
	if out, err := w.db.PublishBatch(t.Context(), "like", "boss", "go"); err != nil || out != (upsert.BatchPublished{}) {
		t.Fatalf("%+v %v", out, err)
	}
	// Pages of moves: every one, once.
	unlinked, err := w.db.Unlinked(t.Context(), "like", 0)
	if err != nil || len(unlinked) != 1 {
		t.Fatalf("%+v %v", unlinked, err)
	}
	slots := map[string]bool{}
	for from := unlinked[0].From; from != 0; {
		var moved []upsert.Pointed
		moved, from, err = w.db.MovedFrom(t.Context(), "landcover", from, 5000)
		must(t, err)
		for _, p := range moved {
			slots[p.TileID] = true
		}
	}
	if len(slots) != units+1 {
		t.Errorf("%d slots moved", len(slots))
	}
}

// copies adds units to a batch by SQL, each with a row like that of its only one, and
// without an object.
func (w *world) copies(batch catalog.Batch, n int) {
	w.t.Helper()
	w.exec(`CREATE TABLE public.seed AS SELECT gen_random_uuid() AS unit, gen_random_uuid() AS attempt, 't' || i AS tile FROM generate_series(1, $1::int) i`, n)
	w.exec(`INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) SELECT unit, 'landcover', tile, 'v1', '{"version":"v1"}' FROM seed`)
	w.exec(`INSERT INTO catalog.slots (collection_id, tile_id) SELECT 'landcover', tile FROM seed ORDER BY random()`)
	w.exec(`INSERT INTO catalog.batch_units (batch_id, unit_key) SELECT $1, unit FROM seed`, batch.ID)
	w.exec(`
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, footprint, crs,
                           transform, width, height, bands, properties, attempt_id, registered_at)
SELECT s.unit, t.collection_id, s.tile, t.store_id, s.tile, t.size_bytes, t.checksum, t.etag, t.media_type, t.driver, t.is_cog,
       ST_Translate(t.footprint, random(), random()), t.crs, t.transform, t.width, t.height, t.bands, t.properties, s.attempt, t.registered_at
FROM seed s, catalog.tiles t WHERE t.tile_id = 'like'`)
	w.exec(`DROP TABLE seed`)
}

// An output that was found missing, and is being made again, takes no good one's place.
func TestOnGateKeepsTheGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.publishes(catalog.PublishOnGate)
	tiles := names("t%d", 2)
	w.expect("first", "v1", tiles...)
	w.finishAll("first", "v1", 1, tiles...)
	w.publishBatch("first", upsert.BatchPublished{Published: 2, Moved: 2})
	w.expect("second", "v2", tiles...)
	w.finishAll("second", "v2", 2, tiles...)
	missing := w.begin(of("second", "t0", "v2")).Tile
	must(t, w.store.Delete(t.Context(), missing.ObjectKey))
	again := w.run(of("second", "t0", "v2"))
	w.publishBatch("second", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t0=v1 t1=v2")
	w.stage(again, rastertest.Raster{Seed: 3})
	w.complete(again)
	w.wantShown("t0=v1 t1=v2")
	w.publishBatch("second", upsert.BatchPublished{Published: 1, Moved: 1})
	w.wantShown("t0=v2 t1=v2")
	w.check(settled)
}
