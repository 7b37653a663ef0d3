package upsert_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage/posix"
	"catalogd/internal/upsert"
)

// What each call costs: docs/benchmarks.md has these numbers.
func TestCost(t *testing.T) {
	w := newQuietWorld(t, inDirectory)
	ctx := t.Context()
	wire := w.wire()
	// One connection, so that its statements are prepared once.
	db := w.open(strings.Replace(wire.url(w.url), "pool_max_conns=2", "pool_max_conns=1", 1))
	var mu sync.Mutex
	var synced []string
	store, err := posix.Open(ctx, w.root, posix.Options{Synced: func(path string) {
		mu.Lock()
		defer mu.Unlock()
		name := strings.TrimPrefix(strings.TrimPrefix(path, w.root), "/")
		if strings.HasPrefix(name, ".staging/") {
			name = "file"
		}
		synced = append(synced, name)
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := w.another(func(c *upsert.Config) { c.Ledger, c.Stores = db, upsert.Stores{store.ID(): store} })

	begin := func(req upsert.BeginRequest, want upsert.Verdict) (a catalog.Attempt, err error) {
		d, err := r.Begin(ctx, req)
		if err != nil || d.Verdict != want {
			return a, fmt.Errorf("%+v %w", d, err)
		}
		if d.Attempt != nil {
			a = *d.Attempt
		}
		return a, nil
	}
	var a catalog.Attempt
	var registration upsert.OutputRequest
	n := 0
	fresh := func(collection string) upsert.BeginRequest {
		n++
		req := request(fmt.Sprintf("t%d", n), "v1")
		req.Unit.Collection = collection
		return req
	}
	staged := func() { w.stage(a, rastertest.Raster{}) }
	step := func(collection string) func() {
		return func() {
			if a, err = begin(fresh(collection), upsert.VerdictRun); err != nil {
				t.Fatal(err)
			}
			staged()
		}
	}
	complete := func() error {
		_, err := r.Complete(ctx, a.ID, upsert.CompleteRequest{})
		return err
	}
	register := func() error {
		_, err := r.Register(ctx, registration)
		return err
	}
	w.collection("fresh", catalog.Policy{OrderBy: catalog.OrderVersion})
	w.collection("slashed", catalog.Policy{OrderBy: catalog.OrderVersion})
	type cost struct {
		trips, commits int64
		fsyncs         []string
	}
	file := []string{"file", "landcover"}
	for _, c := range []struct {
		name   string
		before func()
		do     func() error
		want   cost
	}{
		{"begin", nil, func() (err error) { a, err = begin(fresh("landcover"), upsert.VerdictRun); return err }, cost{2, 1, nil}},
		{"complete", step("landcover"), complete, cost{5, 3, file}},
		{"complete again", nil, complete, cost{2, 0, nil}},
		{"register", func() {
			registration = upsert.OutputRequest{Begin: fresh("landcover"), Staged: fmt.Sprintf("x%d.tif", n)}
			w.incoming(registration.Staged, rastertest.Raster{})
		}, register, cost{5, 2, file}},
		{"register again", nil, register, cost{1, 0, nil}},
		{"begin again", nil, func() error {
			again := registration.Begin
			again.RequestID = uuid.NewString()
			_, err := begin(again, upsert.VerdictSkip)
			return err
		}, cost{1, 0, nil}},
		{"check", nil, func() error {
			_, err := r.Check(ctx, []upsert.UnitRef{registration.Begin.Unit, request("t0", "v9").Unit}, true)
			return err
		}, cost{1, 0, nil}},
		{"fail", step("landcover"), func() error { return r.failing(ctx, a) }, cost{2, 1, nil}},
		{"heartbeat", step("landcover"), func() error {
			_, err := r.Heartbeat(ctx, []uuid.UUID{a.ID})
			return err
		}, cost{1, 1, nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for try := range 3 {
				if c.before != nil {
					c.before()
				}
				_, xids := w.written()
				trips := wire.trips.Load()
				synced = nil
				if err := c.do(); err != nil {
					t.Fatal(err)
				}
				got := cost{trips: wire.trips.Load() - trips, fsyncs: synced}
				wal, xidsAfter := w.written()
				got.commits = xidsAfter - xids
				if try == 0 {
					continue // statements are prepared, directories made durable
				}
				if got.trips != c.want.trips || got.commits != c.want.commits || !slices.Equal(got.fsyncs, c.want.fsyncs) {
					t.Errorf("%d round trips, %d commits, fsyncs of %q; want %+v (WAL at %d)", got.trips, got.commits, got.fsyncs, c.want, wal)
				}
			}
		})
	}
	// The first output in a directory: those above are made durable, once.
	for tile, want := range map[string][]string{"first": {"file", "", "fresh"}, "a/b": {"file", "", "slashed", "slashed/a"}} {
		req := request(tile, "v1")
		req.Unit.Collection = filepath.Base(want[2])
		if a, err = begin(req, upsert.VerdictRun); err != nil {
			t.Fatal(err)
		}
		staged()
		synced = nil
		if err := complete(); err != nil || !slices.Equal(synced, want) {
			t.Errorf("%s: fsyncs of %q, want %q; %v", tile, synced, want, err)
		}
	}
}

// A batch of 6,000 done units that is delivered again writes no WAL and takes no
// transaction id.
func TestRedeliveryOfABatch(t *testing.T) {
	const units = 6000
	w := newQuietWorld(t, inDirectory)
	like := w.do(request("like", "v1"), rastertest.Raster{}).Tile
	content, err := os.ReadFile(filepath.Join(w.root, like.ObjectKey))
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`CREATE TABLE public.seed (unit uuid, attempt uuid, tile text COLLATE "C", identity jsonb, key text COLLATE "C")`)
	i := 0
	_, err = w.sql.CopyFrom(t.Context(), pgx.Identifier{"seed"}, []string{"unit", "attempt", "tile", "identity", "key"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == units {
			return nil, nil
		}
		ref := request(fmt.Sprintf("t%d", i), "v1").Unit
		i++
		unit, err := catalog.NewUnit(ref.Collection, ref.TileID, ref.Identity, "")
		if err != nil {
			return nil, err
		}
		attempt, err := catalog.NewAttemptID()
		if err != nil {
			return nil, err
		}
		key := catalog.FinalName(unit.Collection, unit.TileID, unit.Key, attempt, ".tif")
		return []any{unit.Key, attempt, unit.TileID, string(unit.Identity.Canonical()), key}, os.WriteFile(filepath.Join(w.root, key), content, 0o644)
	}))
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) SELECT unit, 'landcover', tile, 'v1', identity FROM seed`)
	w.exec(`
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, ended_at)
SELECT s.attempt, s.unit, 'r', 'worker', 0, 'done', a.store_id, a.media_type, '.staging/' || s.attempt, s.key, now(), now()
FROM seed s, catalog.attempts a WHERE a.attempt_id = $1`, like.AttemptID)
	w.exec(`
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, footprint, crs,
                           transform, width, height, bands, properties, attempt_id, registered_at, published_at)
SELECT s.unit, t.collection_id, s.tile, t.store_id, s.key, t.size_bytes, t.checksum, t.etag, t.media_type, t.driver, t.is_cog, t.footprint, t.crs,
       t.transform, t.width, t.height, t.bands, t.properties, s.attempt, t.registered_at, t.published_at
FROM seed s, catalog.tiles t WHERE t.attempt_id = $1`, like.AttemptID)
	w.exec(`INSERT INTO catalog.slots (collection_id, tile_id, unit_key) SELECT 'landcover', tile, unit FROM seed`)
	w.exec(`INSERT INTO catalog.slot_history (collection_id, tile_id, to_unit, moved_by, reason, moved_at) SELECT 'landcover', tile, unit, 'worker', 'registered', now() FROM seed`)
	w.exec(`DROP TABLE seed`)
	w.exec(`VACUUM ANALYZE`)

	deliver := func(n int) {
		var group errgroup.Group
		group.SetLimit(16)
		for i := range n {
			group.Go(func() error {
				d, err := w.Begin(t.Context(), request(fmt.Sprintf("t%d", i), "v1"))
				if err == nil && d.Verdict != upsert.VerdictSkip {
					err = fmt.Errorf("%+v", d)
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	deliver(400) // connections and catalogue caches are warm
	wal, xids := w.written()
	deliver(units)
	if walAfter, xidsAfter := w.written(); walAfter != wal || xidsAfter != xids {
		t.Errorf("%d bytes of WAL, %d transaction ids", walAfter-wal, xidsAfter-xids)
	}
}
