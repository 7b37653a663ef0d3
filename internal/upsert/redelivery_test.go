package upsert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/pgcluster"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// newQuietWorld has a cluster of its own in which nobody else writes, so that
// every byte of WAL and every transaction id is the test's.
func newQuietWorld(t *testing.T, on place) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogd-quiet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // postgres passes through
		t.Fatal(err)
	}
	cluster, err := pgcluster.Start(t.Context(), pgcluster.Config{Dir: filepath.Join(dir, "pg"), Unsafe: true, Settings: map[string]string{
		"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	url := cluster.URL("postgres")
	if err := migrate.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return newWorldWith(t, url, on)
}

// written tells how much WAL was written so far, and how many transaction ids
// were given out.
func (w *world) written() (wal, xids int64) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `
SELECT pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&wal, &xids)
	if err != nil {
		w.t.Fatal(err)
	}
	return wal, xids
}

// Redelivery writes nothing: no byte of WAL, and no transaction id is taken.
// Measured after VACUUM, for a plain SELECT may prune pages, and writes then.
func TestRedeliveryWritesNothing(t *testing.T) { onBoth(t, testRedeliveryWritesNothing) }

func testRedeliveryWritesNothing(t *testing.T, on place) {
	w := newQuietWorld(t, on)
	ctx := t.Context()
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	w.complete(a)
	w.do(request("t1", "v2"), rastertest.Raster{Seed: 1})
	w.incoming("x.tif", rastertest.Raster{})
	registration := upsert.OutputRequest{Begin: request("t2", "v1"), Staged: "x.tif"}
	if _, err := w.Register(ctx, registration); err != nil {
		t.Fatal(err)
	}
	named := request("t3", "v1")
	named.Unit.ClientKey = "mine"
	w.do(named, rastertest.Raster{})
	poisoned := w.run(request("bad", "v1"))
	w.fail(poisoned, poison)
	w.fail(w.run(request("waiting", "v1")), passing)
	w.exec(`UPDATE catalog.retries SET due_at = due_at + interval '1 hour'`)
	w.exec(`VACUUM ANALYZE`)

	verdict := func(tile string, want upsert.Verdict) func() error {
		return func() error {
			if d, err := w.Begin(ctx, request(tile, "v1")); err != nil || d.Verdict != want {
				return fmt.Errorf("%+v %v", d, err)
			}
			return nil
		}
	}
	skip := func(req upsert.BeginRequest) func() error {
		return func() error {
			if d, err := w.Begin(ctx, req); err != nil || d.Verdict != upsert.VerdictSkip {
				return fmt.Errorf("%+v %v", d, err)
			}
			return nil
		}
	}
	for _, redelivered := range []struct {
		name string
		do   func() error
	}{
		{"begin", skip(request("t1", "v2"))},
		{"begin of an old version", skip(request("t1", "v1"))},
		{"begin with its client key", skip(named)},
		{"complete", func() error {
			_, err := w.Complete(ctx, a.ID, upsert.CompleteRequest{})
			return err
		}},
		{"register", func() error {
			r, err := w.Register(ctx, registration)
			if err == nil && !r.Skipped {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}},
		{"register anew", func() error {
			again := registration
			again.Begin.RequestID = uuid.NewString()
			_, err := w.Register(ctx, again)
			return err
		}},
		{"check", func() error {
			refs := []upsert.UnitRef{request("t1", "v1").Unit, request("t1", "v2").Unit, request("t9", "v9").Unit, request("bad", "v1").Unit, request("waiting", "v1").Unit}
			_, err := w.Check(ctx, refs, true)
			return err
		}},
		{"begin of what is quarantined", verdict("bad", upsert.VerdictQuarantined)},
		{"begin of what is not due", verdict("waiting", upsert.VerdictWait)},
		{"fail", func() error {
			_, err := w.Fail(ctx, poisoned.ID, upsert.FailRequest{Failure: poison})
			return err
		}},
		{"heartbeat of an ended attempt", func() error {
			_, err := w.Heartbeat(ctx, []uuid.UUID{a.ID})
			return err
		}},
		{"recover with nothing to do", func() error {
			_, err := w.Recover(ctx)
			return err
		}},
	} {
		t.Run(redelivered.name, func(t *testing.T) {
			do := func() {
				if err := redelivered.do(); err != nil {
					t.Error(err)
				}
			}
			do() // connections and catalogue caches are warm
			wal, xids := w.written()
			for range 5 {
				do()
			}
			walAfter, xidsAfter := w.written()
			if walAfter != wal || xidsAfter != xids {
				t.Errorf("%d bytes of WAL, %d transaction ids", walAfter-wal, xidsAfter-xids)
			}
		})
	}
	w.check(settled)

	// And so the measure can tell.
	wal, xids := w.written()
	w.run(request("t4", "v1"))
	if walAfter, xidsAfter := w.written(); walAfter == wal || xidsAfter != xids+1 {
		t.Errorf("a begin that runs wrote %d bytes in %d transactions", walAfter-wal, xidsAfter-xids)
	}

	t.Run("health is narrow", func(t *testing.T) {
		w.t = t
		w.many("narrow", 500, "v1")
		w.exec(`INSERT INTO catalog.tile_health (unit_key) SELECT unit_key FROM catalog.tiles`)
		w.exec(`VACUUM ANALYZE`)
		cost := func(sql string) int64 {
			before, _ := w.written()
			w.exec(sql)
			after, _ := w.written()
			return after - before
		}
		narrow := cost(`UPDATE catalog.tile_health SET verified_at = clock_timestamp()`)
		wide := cost(`UPDATE catalog.tiles SET withdrawn_at = clock_timestamp()`)
		ratio := float64(wide) / float64(narrow)
		t.Logf("marking 500 outputs: %d bytes of WAL in tile_health, %d in tiles: %.1f times as many", narrow, wide, ratio)
		if ratio < 2 {
			t.Errorf("tile_health saves too little: %.1f", ratio)
		}
	})
}

// many registers one output of each version in n slots of a new collection, by
// SQL: rows, attempts and files as the step would have made them.
func (w *world) many(collection string, n int, versions ...string) {
	w.t.Helper()
	w.collection(collection, catalog.Policy{OrderBy: catalog.OrderVersion})
	w.exec(`INSERT INTO catalog.slots (collection_id, tile_id) SELECT $1, 't' || lpad(i::text, 5, '0') FROM generate_series(1, $2::int) i`, collection, n)
	like := w.do(request("like", "v0"), rastertest.Raster{}).Tile
	content, err := w.site.get(w.t, like.ObjectKey)
	must(w.t, err)
	for _, version := range versions {
		w.exec(`INSERT INTO catalog.collection_versions (collection_id, version) VALUES ($1, $2)`, collection, version)
		w.exec(`
WITH new AS MATERIALIZED (
    SELECT gen_random_uuid() AS unit, gen_random_uuid() AS attempt, tile_id FROM catalog.slots WHERE collection_id = $1
), unit AS (
    INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity)
    SELECT unit, $1, tile_id, $2, jsonb_build_object('version', $2::text) FROM new
), attempt AS (
    INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, ended_at)
    SELECT n.attempt, n.unit, 'r', 'w', 0, 'done', a.store_id, a.media_type, 's-' || n.attempt,
           $1 || '/' || n.tile_id || '.' || left(replace(n.unit::text, '-', ''), 12) || '.' || right(n.attempt::text, 12) || '.tif', now(), '2100-01-01'
    FROM new n, catalog.attempts a WHERE a.attempt_id = $3
    RETURNING *
)
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, footprint, crs,
                           transform, width, height, bands, properties, attempt_id, registered_at, published_at)
SELECT n.unit, $1, n.tile_id, a.store_id, a.object_key, t.size_bytes, t.checksum, t.etag, t.media_type, t.driver, t.is_cog, t.footprint, t.crs,
       t.transform, t.width, t.height, t.bands, t.properties, a.attempt_id, a.ended_at, now()
FROM new n JOIN attempt a ON a.attempt_id = n.attempt, catalog.tiles t WHERE t.attempt_id = $3`, collection, version, like.AttemptID)
		if _, err := w.Publish(w.t.Context(), collection, version, "many", "as if registered"); err != nil {
			w.t.Fatal(err)
		}
	}
	w.outputs(`SELECT object_key, unit_key::text FROM catalog.tiles WHERE collection_id = '`+collection+`'`, content)
}

// outputs puts the objects of rows that were made by SQL.
func (w *world) outputs(query string, content []byte) {
	w.t.Helper()
	rows, err := w.sql.Query(w.t.Context(), query)
	must(w.t, err)
	var group errgroup.Group
	group.SetLimit(8)
	var key, unit string
	_, err = pgx.ForEachRow(rows, []any{&key, &unit}, func() error {
		key, unit := key, unit
		group.Go(func() error { return w.site.output(w.t.Context(), key, unit, content) })
		return nil
	})
	must(w.t, err, group.Wait())
}

// Publications of two versions over many slots, with registrations among them,
// lock the slots in key order and so never one another out; and they take no
// advisory locks, whose table runs out.
func TestManySlotsInKeyOrder(t *testing.T) { onBoth(t, testManySlotsInKeyOrder) }

func testManySlotsInKeyOrder(t *testing.T, on place) {
	w := newWorld(t, on)
	w.many("many", 1200, "v1", "v2")
	end := w.lock(`SELECT FROM catalog.slots WHERE collection_id = 'many' AND tile_id = 't00499' FOR UPDATE`)
	publish := func(version string) <-chan result[upsert.Published] {
		return async(func() (upsert.Published, error) { return w.Publish(t.Context(), "many", version, "me", "race") })
	}
	publishing := []<-chan result[upsert.Published]{publish("v1"), publish("v2"), publish("v1"), publish("v2")}
	for i := range 8 {
		req := request(fmt.Sprintf("t%05d", 1+i*171), "v3")
		req.Unit.Collection = "many"
		a := w.run(req)
		w.stage(a, rastertest.Raster{})
		publishing = append(publishing, async(func() (upsert.Published, error) {
			_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
			return upsert.Published{}, err
		}))
	}
	w.blocked(4)
	if n := w.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
		t.Errorf("%d advisory locks", n)
	}
	end(false)
	for _, p := range publishing {
		if r := <-p; r.err != nil {
			t.Error(r.err)
		}
	}
	w.check(invariant.Options{Quiet: true, Linked: true})
}

// Times are taken after the wait for the slot's lock, so that they are in the
// order of what they tell of.
func TestTimesAreTakenAfterTheLock(t *testing.T) { onBoth(t, testTimesAreTakenAfterTheLock) }

func testTimesAreTakenAfterTheLock(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	end := w.lock(`SELECT FROM catalog.slots WHERE tile_id = 't1' FOR UPDATE`)
	done := w.completing(w.replica, a)
	w.blocked(1)
	w.exec(`CREATE TABLE released AS SELECT clock_timestamp() AS at`)
	end(false)
	if r := <-done; r.err != nil {
		t.Fatal(r.err)
	}
	if n := w.count(`
SELECT count(*) FROM released, catalog.tiles t, catalog.attempts a, catalog.slot_history h, catalog.slots s
WHERE t.registered_at > at AND t.published_at > at AND a.ended_at > at AND h.moved_at > at AND s.updated_at > at`); n != 1 {
		t.Fatal("a time is from before the lock")
	}
	w.do(request("t1", "v2"), rastertest.Raster{})
	end = w.lock(`SELECT FROM catalog.slots WHERE tile_id = 't1' FOR UPDATE`)
	published := async(func() (upsert.Published, error) { return w.Publish(t.Context(), "landcover", "v1", "me", "back") })
	w.blocked(1)
	w.exec(`UPDATE released SET at = clock_timestamp()`)
	end(false)
	if r := <-published; r.err != nil || r.value.Moved != 1 {
		t.Fatalf("%+v", r)
	}
	if n := w.count(`SELECT count(*) FROM released, catalog.slot_history h, catalog.slots s WHERE h.reason = 'published' AND h.moved_at > at AND s.updated_at > at`); n != 1 {
		t.Fatal("a time is from before the lock")
	}
	w.check(settled)
}

// How a slot stands is read in a statement after the one that waits for its lock:
// two steps that queue for it see one another's outcome, in either order.
func TestStateIsReadAfterTheLock(t *testing.T) { onBoth(t, testStateIsReadAfterTheLock) }

func testStateIsReadAfterTheLock(t *testing.T, on place) {
	w := newWorld(t, on)
	for _, order := range [][]string{{"v1", "v2"}, {"v2", "v1"}} {
		tile := order[0]
		attempts := map[string]catalog.Attempt{}
		for i, v := range []string{"v1", "v2"} {
			attempts[v] = w.run(request(tile, v))
			w.stage(attempts[v], rastertest.Raster{Seed: byte(i)})
		}
		end := w.lock(`SELECT FROM catalog.slots WHERE tile_id = $1 FOR UPDATE`, tile)
		first := w.completing(w.replica, attempts[order[0]])
		w.blocked(1)
		second := w.completing(w.replica, attempts[order[1]])
		w.blocked(2)
		end(false)
		r1, r2 := <-first, <-second
		if r1.err != nil || r2.err != nil || r2.value.Tile.Current != (order[1] == "v2") {
			t.Fatalf("%v: %+v\n%+v", order, r1, r2)
		}
		w.check(settled)
	}
}

// No two attempts share a final name, by construction.
func TestFinalNamesAreUnique(t *testing.T) { onBoth(t, testFinalNamesAreUnique) }

func testFinalNamesAreUnique(t *testing.T, on place) {
	w := newWorld(t, on)
	a, b := w.run(request("t1", "v1")), w.run(request("t2", "v1"))
	if a.ObjectKey == b.ObjectKey {
		t.Fatal(a.ObjectKey)
	}
	_, err := w.sql.Exec(t.Context(), `UPDATE catalog.attempts SET object_key = $1 WHERE attempt_id = $2`, a.ObjectKey, b.ID)
	if !violates(err, "attempts_object_key_key") {
		t.Fatal(err)
	}
}
