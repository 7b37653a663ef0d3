package upsert_test

import (
	"fmt"
	"net/http"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/upsert"
)

// beside is the same world with a second store, called second, beside its first: both
// are every replica's of what it returns.
func (w *world) beside(on place) *world {
	w.t.Helper()
	b := &world{t: w.t, url: w.url, db: w.db, sql: w.sql, site: on(w.t)}
	if d, ok := b.site.(directory); ok {
		b.root = string(d.Directory)
	}
	b.store = b.site.open(w.t)
	known := b.site.known(b.store)
	known.Name = "second"
	must(w.t, w.db.UseStore(w.t.Context(), known))
	b.replica = b.another(func(c *upsert.Config) {
		c.Stores = upsert.Stores{w.store.ID(): w.store, b.store.ID(): b.store}
	})
	return b
}

// both gives a world with one store of each kind: on's is the first.
func both(t *testing.T, on place) (w, second *world) {
	w = newWorld(t, on)
	other := inBucket
	if w.root == "" {
		other = inDirectory
	}
	return w, w.beside(other)
}

// in is request in a collection.
func in(collection, tile, version string) upsert.BeginRequest {
	req := request(tile, version)
	req.Unit.Collection = collection
	return req
}

// While one store is away, recovery and sweep do all that there is to do in the other.
func TestOneStoreAway(t *testing.T) { onBoth(t, testOneStoreAway) }

func testOneStoreAway(t *testing.T, on place) {
	gone, here := both(t, on)
	_, err := here.db.CreateCollection(t.Context(), catalog.Collection{ID: "here", Store: "second", MediaType: catalog.MediaTypeGeoTIFF, Policy: catalog.Policy{OrderBy: catalog.OrderVersion}})
	must(t, err)
	var failed, promoting []catalog.Attempt
	for _, w := range []*world{gone, here} {
		collection := map[*world]string{gone: "landcover", here: "here"}[w]
		// A repair leaves an object to be removed, which has come back.
		lost := here.run(in(collection, "lost", "v1"))
		w.stage(lost, rastertest.Raster{})
		content := rastertest.Raster{}.Bytes()
		here.complete(lost)
		w.remove(lost.ObjectKey)
		repair := here.run(in(collection, "lost", "v1"))
		w.stage(repair, rastertest.Raster{Seed: 1})
		here.complete(repair)
		must(t, w.site.output(t.Context(), lost.ObjectKey, lost.UnitKey.String(), content))

		a := here.run(in(collection, "failed", "v1"))
		w.stage(a, rastertest.Raster{})
		must(t, here.failing(t.Context(), a))
		failed = append(failed, a)

		stuck := w.another(func(c *upsert.Config) {
			c.Stores = w.with(&calls{promote: func() error { return fmt.Errorf("stuck") }})
		})
		for i := range 2 {
			a = here.run(in(collection, fmt.Sprint("promoting", i), "v1"))
			w.stage(a, rastertest.Raster{})
			_, err := stuck.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
			wantCode(t, err, catalog.CodeStoreUnavailable)
			promoting = append(promoting, a)
		}
	}
	here.drain()
	// Of the store that goes there is more to sweep than one page, and all of it older.
	here.exec(`
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, created_at, ended_at)
SELECT id, unit_key, id::text, 'w', 0, 'failed', store_id, media_type, '.staging/' || id || '.tif',
       'landcover/failed.' || left(replace(unit_key::text, '-', ''), 12) || '.' || right(id::text, 12) || '.tif',
       now() - interval '3 days', now() - interval '3 days', now() - interval '3 days'
FROM (SELECT gen_random_uuid() AS id, a.* FROM catalog.attempts a, generate_series(1, 1001) WHERE a.attempt_id = $1) a`, failed[0].ID)
	here.exec(`
INSERT INTO catalog.removals (store_id, object_key, reason, created_at)
SELECT store_id, 'landcover/old-' || i, 'replaced', now() - interval '3 days' FROM catalog.attempts a, generate_series(1, 1001) i WHERE a.attempt_id = $1`, failed[0].ID)
	here.age()

	away := gone.site.aways(t)[0]
	away.goes()
	if r, err := here.Recover(t.Context()); err != nil || r.RolledForward != 2 || r.Unfinished != 2 || r.Failed != 0 {
		t.Errorf("recover: %+v %v", r, err)
	}
	here.drain()
	swept, err := here.Sweep(t.Context())
	wantCode(t, err, catalog.CodeStoreUnavailable)
	if swept.Attempts != 1 || here.exists(failed[1].StagingKey) {
		t.Errorf("sweep: %+v", swept)
	}
	if n := here.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL AND store_id = $1`, here.store.ID()); n != 0 {
		t.Errorf("%d removals are open", n)
	}
	if d, err := here.Begin(t.Context(), in("here", "lost", "v1")); err != nil || d.Verdict != upsert.VerdictSkip {
		t.Errorf("%+v %v", d, err)
	}
	_, err = here.Begin(t.Context(), in("landcover", "lost", "v1"))
	wantCode(t, err, catalog.CodeStoreUnavailable)
	here.check(invariant.Options{StagingEmpty: true})

	away.comes()
	if !gone.exists(failed[0].StagingKey) || here.state(promoting[0]) != catalog.AttemptPromoting {
		t.Error("what is in the store that was away was taken for gone")
	}
	if r, err := here.Recover(t.Context()); err != nil || r.RolledForward != 2 {
		t.Errorf("recover: %+v %v", r, err)
	}
	here.drain()
	if swept, err := here.Sweep(t.Context()); err != nil || swept.Attempts != 1002 {
		t.Errorf("sweep: %+v %v", swept, err)
	}
	gone.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
	here.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// Recovery asks a store that does not answer for one attempt, not for each.
func TestRecoveryAsksOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	line := gatewaytest.Between(t, gateway.Gateway)
	far := w.far(line)
	for i := range 4 {
		w.promoting(request(fmt.Sprint("t", i), "v1"), rastertest.Raster{})
	}
	asked := line.Refuse(gatewaytest.Always, http.StatusServiceUnavailable, "SlowDown", gatewaytest.Any)
	if r, err := far.Recover(t.Context()); err != nil || r.Unfinished != 4 || asked.Load() > 2 {
		t.Fatalf("%+v %v, %d requests", r, err, asked.Load())
	}
	line.Calm()
	if r, err := far.Recover(t.Context()); err != nil || r.RolledForward != 4 {
		t.Fatalf("%+v %v", r, err)
	}
	w.check(settled)
}

// A collection goes on in another store: what it has stays where it is and is read
// there, what comes goes to the other, and so does a repair, which leaves nothing behind.
func TestCollectionChangesStore(t *testing.T) { onBoth(t, testCollectionChangesStore) }

func testCollectionChangesStore(t *testing.T, on place) {
	ctx := t.Context()
	old, now := both(t, on)
	old.watch()
	now.watch()
	do := func(w *world, req upsert.BeginRequest, raster rastertest.Raster) upsert.Outcome {
		t.Helper()
		a := now.run(req)
		w.stage(a, raster)
		return now.complete(a)
	}
	kept, lost := do(old, request("t1", "v1"), rastertest.Raster{}).Tile, do(old, request("t2", "v1"), rastertest.Raster{}).Tile
	open, promoting := now.run(request("t3", "v1")), old.promoting(request("t4", "v1"), rastertest.Raster{})
	old.stage(open, rastertest.Raster{})

	c, err := now.db.Collection(ctx, "landcover")
	must(t, err)
	c.Store = "second"
	c, err = now.db.UpdateCollection(ctx, c)
	if err != nil || c.StoreID != now.store.ID() {
		t.Fatalf("%+v %v", c, err)
	}
	// What was begun ends where it began.
	if out := now.complete(open); out.Tile.StoreID != old.store.ID() {
		t.Fatalf("%+v", out.Tile)
	}
	if r, err := now.Recover(ctx); err != nil || r.RolledForward != 1 || !old.exists(promoting.ObjectKey) {
		t.Fatalf("%+v %v", r, err)
	}
	// What is there is read where it is.
	if d := now.begin(request("t1", "v1")); d.Verdict != upsert.VerdictSkip || d.Tile.StoreID != old.store.ID() || !d.Tile.Current {
		t.Fatalf("%+v", d)
	}
	checked, err := now.Check(ctx, []upsert.UnitRef{{Key: kept.UnitKey}, {Key: lost.UnitKey}}, true)
	if err != nil || checked[0].Status != upsert.StatusDone || checked[1].Status != upsert.StatusDone {
		t.Fatalf("%+v %v", checked, err)
	}
	// What comes, goes to the other.
	newer := do(now, request("t1", "v2"), rastertest.Raster{Seed: 1}).Tile
	if newer.StoreID != now.store.ID() || !newer.Current || !now.exists(newer.ObjectKey) || old.exists(newer.ObjectKey) {
		t.Fatalf("%+v", newer)
	}
	old.check(invariant.Options{Quiet: true, Linked: true})
	now.check(invariant.Options{Quiet: true, Linked: true})

	// A repair takes the row along; what came back of the lost object is removed.
	content, err := old.site.get(t, lost.ObjectKey)
	must(t, err)
	old.remove(lost.ObjectKey)
	repaired := do(now, request("t2", "v1"), rastertest.Raster{Seed: 2}).Tile
	if repaired.StoreID != now.store.ID() || !repaired.Current || repaired.UnitKey != lost.UnitKey {
		t.Fatalf("%+v", repaired)
	}
	must(t, old.site.output(ctx, lost.ObjectKey, lost.UnitKey.String(), content))
	now.drain()
	now.age()
	if swept := now.sweep(); swept.Objects != 1 || old.exists(lost.ObjectKey) || !now.exists(repaired.ObjectKey) {
		t.Fatalf("%+v", swept)
	}
	old.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
	now.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})

	// Back to what the other store has, and forth again.
	for _, version := range []string{"v1", "v2"} {
		if p, err := now.Publish(ctx, "landcover", version, "me", "why"); err != nil || p.Moved == 0 {
			t.Fatalf("%+v %v", p, err)
		}
		old.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
		now.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
	}
	// A name that a server without the store in a directory moved is mended by the sweep.
	directory := old
	if old.root == "" {
		directory = now
	}
	if directory == old {
		_, err := now.db.Publish(ctx, "landcover", "v1", "me", "back")
		must(t, err)
		bucket := now.another()
		if _, err := bucket.Recover(ctx); err != nil {
			t.Fatal(err)
		}
		if swept := now.sweep(); swept.Relinked != 1 {
			t.Fatalf("%+v", swept)
		}
		old.check(invariant.Options{Quiet: true, Linked: true})
	}
}
