package invariant

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/testdb"
)

// The world by hand: two outputs in one slot, of which the second is current;
// an attempt that lost and one that is promoting.
const (
	storeID = "5e9e4f10-0000-4000-8000-000000000000"
	first   = "t1.111111111111.a11111111111.tif"
	second  = "t1.222222222222.a22222222222.tif"
	late    = "t1.111111111111.a33333333333.tif"
)

const good = `
INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('5e9e4f10-0000-4000-8000-000000000000', 'file:///r', '/r/', '/data/');
INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ('c', '5e9e4f10-0000-4000-8000-000000000000', 'image/tiff');
INSERT INTO catalog.collection_versions (collection_id, version, rank) VALUES ('c', 'v1', 1), ('c', 'v2', 2);
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) VALUES
    ('11111111-1111-8111-8111-111111111111', 'c', 't1', 'v1', '{}'), ('22222222-2222-8222-8222-222222222222', 'c', 't1', 'v2', '{}'),
    ('33333333-3333-8333-8333-333333333333', 'c', 't2', 'v2', '{}');
INSERT INTO catalog.slots (collection_id, tile_id) VALUES ('c', 't1'), ('c', 't2');
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, intent, lease_until, created_at, ended_at) VALUES
    ('00000000-0000-7000-8000-a11111111111', '11111111-1111-8111-8111-111111111111', 'r1', 'w', 0, 'done', '5e9e4f10-0000-4000-8000-000000000000', '', 's1', 'c/t1.111111111111.a11111111111.tif', NULL, now(), now(), '2100-01-01'),
    ('00000000-0000-7000-8000-a22222222222', '22222222-2222-8222-8222-222222222222', 'r2', 'w', 0, 'done', '5e9e4f10-0000-4000-8000-000000000000', '', 's2', 'c/t1.222222222222.a22222222222.tif', NULL, now(), now(), '2100-01-02'),
    ('00000000-0000-7000-8000-a33333333333', '11111111-1111-8111-8111-111111111111', 'r3', 'w', 0, 'overtaken', '5e9e4f10-0000-4000-8000-000000000000', '', 's3', 'c/t1.111111111111.a33333333333.tif', NULL, now(), now(), '2100-01-02'),
    ('00000000-0000-7000-8000-a44444444444', '33333333-3333-8333-8333-333333333333', 'r4', 'w', 0, 'promoting', '5e9e4f10-0000-4000-8000-000000000000', '', 's4', 'c/t2.333333333333.a44444444444.tif', '{}', now(), now(), NULL);
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, transform, width, height, bands, attempt_id, registered_at, published_at)
SELECT unit_key, 'c', 't1', store_id, object_key, 5, '%s', '', '', 'GTiff', false, '{0,1,0,0,0,-1}', 1, 1, '[]', attempt_id, ended_at, ended_at FROM catalog.attempts WHERE state = 'done';
UPDATE catalog.slots SET unit_key = '22222222-2222-8222-8222-222222222222' WHERE tile_id = 't1';
INSERT INTO catalog.slot_history (collection_id, tile_id, from_unit, to_unit, moved_by, reason, moved_at) VALUES
    ('c', 't1', NULL, '11111111-1111-8111-8111-111111111111', 'w', 'registered', '2100-01-01'),
    ('c', 't1', '11111111-1111-8111-8111-111111111111', '22222222-2222-8222-8222-222222222222', 'w', 'registered', '2100-01-02');
`

// world is in a transaction that is never committed.
type world struct {
	t    *testing.T
	root string
	tx   pgx.Tx
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func newWorld(t *testing.T, conn *pgx.Conn) *world {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	w := &world{t: t, root: t.TempDir(), tx: tx}
	w.exec(fmt.Sprintf(good, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("bytes")))))
	w.write(".catalogd/store.json", `{"id":"`+storeID+`"}`)
	w.write(".staging/s4", "in flight")
	w.write("c/"+first, "bytes")
	w.write("c/"+second, "bytes")
	w.write("c/"+late, "lost")
	w.link("current/c/t1.tif", "../../c/"+second)
	return w
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.tx.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) do(errs ...error) {
	w.t.Helper()
	for _, err := range errs {
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) path(key string) string { return filepath.Join(w.root, key) }

func (w *world) write(key, text string) {
	w.t.Helper()
	w.do(os.MkdirAll(filepath.Dir(w.path(key)), 0o755), os.WriteFile(w.path(key), []byte(text), 0o644))
}

func (w *world) link(key, target string) {
	w.t.Helper()
	w.do(os.MkdirAll(filepath.Dir(w.path(key)), 0o755), os.RemoveAll(w.path(key)), os.Symlink(target, w.path(key)))
}

func (w *world) violations(opts Options) []string {
	w.t.Helper()
	return violations(w.t, w.tx, Directory(w.root), opts)
}

func violations(t *testing.T, tx pgx.Tx, store Store, opts Options) []string {
	t.Helper()
	c, err := look(t.Context(), store)
	if err == nil {
		_, err = c.compare(t.Context(), tx, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.found
}

func TestGoodWorld(t *testing.T) {
	url := testdb.New(t)
	w := newWorld(t, connect(t, url))
	if err := w.tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	Check(t, url, w.root, Options{Linked: true})
}

// Every violation, planted by hand, is found, and nothing else is.
func TestViolations(t *testing.T) {
	conn := connect(t, testdb.New(t))
	for _, test := range []struct {
		name  string
		plant func(w *world)
		opts  Options
		want  string
	}{
		{"object missing", func(w *world) { w.do(os.Remove(w.path("c/" + first))) }, Options{}, "a row names an object"},
		{"object of another size", func(w *world) { w.write("c/"+first, "more bytes") }, Options{}, "size and checksum"},
		{"object with other bytes", func(w *world) { w.write("c/"+first, "BYTES") }, Options{}, "size and checksum"},
		{"object is a link", func(w *world) { w.link("c/"+first, second) }, Options{}, "no regular file"},
		{"orphan", func(w *world) { w.write("c/t9.tif", "?") }, Options{}, "c/t9.tif is an orphan"},
		{"orphan of a swept attempt", func(w *world) {
			w.exec(`UPDATE catalog.attempts SET swept_at = '2100-02-01' WHERE state = 'overtaken'`)
		}, Options{}, late + " is an orphan"},
		{"orphan of a confirmed removal", func(w *world) {
			w.write("c/gone.tif", "")
			w.exec(`INSERT INTO catalog.removals (store_id, object_key, reason, confirmed_at) VALUES ('` + storeID + `', 'c/gone.tif', '', now())`)
		}, Options{}, "c/gone.tif is an orphan"},
		{"two rows of a unit", func(w *world) {
			w.exec(`ALTER TABLE catalog.tiles DROP CONSTRAINT tiles_pkey CASCADE, DROP CONSTRAINT tiles_object_key_key;
			        INSERT INTO catalog.tiles SELECT * FROM catalog.tiles WHERE unit_key::text LIKE '1%'`)
		}, Options{}, "a unit has one row"},
		{"row in another slot", func(w *world) { w.exec(`UPDATE catalog.tiles SET tile_id = 't2' WHERE unit_key::text LIKE '1%'`) }, Options{}, "in its unit's slot"},
		{"row of a failed attempt", func(w *world) {
			w.exec(`UPDATE catalog.attempts SET state = 'failed' WHERE request_id = 'r1'`)
		}, Options{}, "a row is that of a done attempt"},
		{"row at another time", func(w *world) { w.exec(`UPDATE catalog.tiles SET registered_at = now()`) }, Options{}, "when its attempt ended"},
		{"done without a row", func(w *world) {
			w.exec(`UPDATE catalog.attempts SET state = 'done' WHERE request_id = 'r3'`)
			w.do(os.Remove(w.path("c/" + late)))
		}, Options{}, "a done attempt is its unit's row"},
		{"removal of a row's object", func(w *world) {
			w.exec(`INSERT INTO catalog.removals (store_id, object_key, reason) VALUES ('` + storeID + `', 'c/` + first + `', '')`)
		}, Options{}, "no removal names"},
		{"foreign final name", func(w *world) { w.exec(`UPDATE catalog.attempts SET object_key = 'c/x.tif' WHERE request_id = 'r4'`) }, Options{}, "a final name tells"},
		{"shared final name", func(w *world) {
			w.exec(`ALTER TABLE catalog.attempts DROP CONSTRAINT attempts_object_key_key;
			        UPDATE catalog.attempts SET object_key = 'c/` + first + `' WHERE request_id = 'r3'`)
			w.do(os.Remove(w.path("c/" + late)))
		}, Options{}, "a final name is one attempt's"},
		{"two holders", func(w *world) {
			w.exec(`DROP INDEX catalog.attempts_holder_key;
			        UPDATE catalog.attempts SET state = 'open', ended_at = NULL, unit_key = '33333333-3333-8333-8333-333333333333',
			            object_key = 'c/t2.333333333333.a33333333333.tif' WHERE request_id = 'r3'`)
			w.do(os.Remove(w.path("c/" + late)))
		}, Options{}, "one attempt holds a unit"},
		{"two holders of a file", func(w *world) {
			w.exec(`DROP INDEX catalog.attempts_staging_key;
			        UPDATE catalog.attempts SET state = 'open', ended_at = NULL, staging_key = 's4' WHERE request_id = 'r3'`)
		}, Options{}, "one attempt holds a staged file"},
		{"promoting without intent", func(w *world) {
			w.exec(`ALTER TABLE catalog.attempts DROP CONSTRAINT attempts_intent_check; UPDATE catalog.attempts SET intent = NULL`)
		}, Options{}, "promoting is having an intent"},
		{"done with intent", func(w *world) {
			w.exec(`ALTER TABLE catalog.attempts DROP CONSTRAINT attempts_intent_check; UPDATE catalog.attempts SET intent = '{}' WHERE request_id = 'r1'`)
		}, Options{}, "promoting is having an intent"},
		{"done and not ended", func(w *world) {
			w.exec(`ALTER TABLE catalog.attempts DROP CONSTRAINT attempts_ended_at_check; UPDATE catalog.attempts SET ended_at = NULL WHERE request_id = 'r3'`)
		}, Options{}, "an attempt has ended"},
		{"swept while promoting", func(w *world) { w.exec(`UPDATE catalog.attempts SET swept_at = now() WHERE request_id = 'r4'`) }, Options{}, "an attempt has ended"},
		{"failure of a done attempt", func(w *world) {
			w.exec(`INSERT INTO catalog.failures (attempt_id, unit_key, collection_id, tile_id, reason, worker)
			        SELECT attempt_id, unit_key, 'c', 't1', 'r', 'w' FROM catalog.attempts WHERE request_id = 'r1'`)
		}, Options{}, "a failure is a failed attempt's"},
		{"slot without pointer", func(w *world) {
			w.exec(`UPDATE catalog.slots SET unit_key = NULL; DELETE FROM catalog.slot_history`)
		}, Options{}, "a slot with published rows points to one of them"},
		{"slot points elsewhere", func(w *world) {
			w.exec(`UPDATE catalog.slots SET unit_key = '22222222-2222-8222-8222-222222222222' WHERE tile_id = 't2'`)
		}, Options{}, "one without to none"},
		{"slot points to the worse", func(w *world) {
			w.exec(`UPDATE catalog.slots SET unit_key = '11111111-1111-8111-8111-111111111111' WHERE tile_id = 't1'; DELETE FROM catalog.slot_history WHERE from_unit IS NOT NULL`)
		}, Options{}, "a slot points to its best output"},
		{"slot points to what waits", func(w *world) {
			w.exec(`UPDATE catalog.tiles SET published_at = NULL WHERE unit_key::text LIKE '2%'`)
		}, Options{}, "no slot points to an unpublished row"},
		{"published too late", func(w *world) { w.exec(`UPDATE catalog.tiles SET published_at = '2100-02-01'`) }, Options{}, "published before it became current"},
		{"rows without a slot", func(w *world) {
			w.exec(`DELETE FROM catalog.slot_history; DELETE FROM catalog.slots WHERE tile_id = 't1'`)
		}, Options{}, "rows have a slot"},
		{"history with a gap", func(w *world) { w.exec(`DELETE FROM catalog.slot_history WHERE from_unit IS NULL`) }, Options{}, "history chains"},
		{"history back in time", func(w *world) {
			w.exec(`UPDATE catalog.slot_history SET moved_at = '2000-01-01' WHERE from_unit IS NOT NULL`)
		}, Options{}, "history chains"},
		{"history elsewhere", func(w *world) { w.exec(`DELETE FROM catalog.slot_history WHERE from_unit IS NOT NULL`) }, Options{}, "history ends at the pointer"},
		{"history of no slot", func(w *world) {
			w.exec(`INSERT INTO catalog.slot_history (collection_id, tile_id, to_unit, moved_by, reason, moved_at)
			        VALUES ('c', 't9', '11111111-1111-8111-8111-111111111111', 'w', 'registered', now())`)
		}, Options{}, "history is of slots"},
		{"not quiet", func(*world) {}, Options{Quiet: true}, "nothing is open or promoting"},
		{"publishing", func(w *world) {
			w.exec(`DELETE FROM catalog.attempts WHERE request_id = 'r4'; UPDATE catalog.collection_versions SET publishing = true WHERE version = 'v2'`)
		}, Options{Quiet: true}, "no publication is under way"},
		{"staging", func(*world) {}, Options{StagingEmpty: true}, "staging is empty: .staging/s4"},
		{"stable name of the worse", func(w *world) { w.link("current/c/t1.tif", "../../c/"+first) }, Options{Linked: true}, "leads to the current output"},
		{"no stable name", func(w *world) { w.do(os.Remove(w.path("current/c/t1.tif"))) }, Options{Linked: true}, "has its stable name"},
		{"stable name of another slot", func(w *world) { w.link("current/c/t2.tif", "../../c/"+first) }, Options{}, "an output of its slot"},
		{"stable name out of the store", func(w *world) { w.link("current/c/t1.tif", "/etc/passwd") }, Options{}, "leads out of the store"},
		{"stable file", func(w *world) {
			w.do(os.Remove(w.path("current/c/t1.tif")))
			w.write("current/c/t1.tif", "bytes")
		}, Options{}, "is no symbolic link"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, conn)
			test.plant(w)
			if found := w.violations(test.opts); !strings.Contains(strings.Join(found, "\n"), test.want) {
				t.Fatalf("%q, want %q", found, test.want)
			}
		})
	}
}

// What is in flight, and what is known to be gone, is no violation.
func TestAllowed(t *testing.T) {
	w := newWorld(t, connect(t, testdb.New(t)))
	w.write("c/t2.333333333333.a44444444444.tif", "promoted, without a row yet")
	w.write("c/old.tif", "replaced")
	w.exec(`INSERT INTO catalog.removals (store_id, object_key, reason) VALUES ('` + storeID + `', 'c/old.tif', '')`)
	w.do(os.Remove(w.path("c/" + first)))
	w.link("current/c/t1.tif", "../../c/"+first) // not tidied yet
	if found := w.violations(Options{Lost: []string{"c/" + first}}); len(found) != 0 {
		t.Fatalf("%q", found)
	}
}

// The best output may wait for its batch, and so may all of a slot.
func TestUnpublished(t *testing.T) {
	w := newWorld(t, connect(t, testdb.New(t)))
	w.exec(`
UPDATE catalog.tiles SET published_at = NULL WHERE unit_key::text LIKE '2%';
UPDATE catalog.slots SET unit_key = '11111111-1111-8111-8111-111111111111' WHERE tile_id = 't1';
DELETE FROM catalog.slot_history WHERE from_unit IS NOT NULL`)
	if found := w.violations(Options{}); len(found) != 0 {
		t.Fatalf("%q", found)
	}
	w.exec(`
UPDATE catalog.tiles SET published_at = NULL;
UPDATE catalog.slots SET unit_key = NULL;
DELETE FROM catalog.slot_history`)
	if found := w.violations(Options{}); len(found) != 0 {
		t.Fatalf("%q", found)
	}
}
