// Package batchtest writes batches straight into the catalogue, as units would stand
// after much work, and at once. It is for tests.
package batchtest

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/batch"
	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// Batch is what to write: so many units that stand so, in this order by tile id.
type Batch struct {
	Name, Collection, StoreID                           string
	Done, Lost, Quarantined, Retrying, Running, Untried int
	// Size of each output.
	Size int64
}

func (b Batch) args() pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"name": b.Name, "collection": b.Collection, "store": b.StoreID, "size": max(b.Size, 1),
		"done": b.Done, "lost": b.Lost, "quarantined": b.Quarantined, "retrying": b.Retrying, "running": b.Running, "untried": b.Untried,
	}
}

var statements = []string{`
INSERT INTO catalog.collections (collection_id, store_id, media_type, publish) VALUES (@collection, @store, 'image/tiff', 'on_register')
ON CONFLICT DO NOTHING`, `
INSERT INTO catalog.collection_versions (collection_id, version) VALUES (@collection, 'v1') ON CONFLICT DO NOTHING`, `
CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT gen_random_uuid() AS unit_key, gen_random_uuid() AS attempt_id, @name || '/' || lpad(i::text, 7, '0') AS tile_id,
       CASE WHEN i <= @done::integer THEN 'done'
            WHEN i <= @done::integer + @lost::integer THEN 'lost'
            WHEN i <= @done::integer + @lost::integer + @quarantined::integer THEN 'quarantined'
            WHEN i <= @done::integer + @lost::integer + @quarantined::integer + @retrying::integer THEN 'retrying'
            WHEN i <= @done::integer + @lost::integer + @quarantined::integer + @retrying::integer + @running::integer THEN 'running'
            ELSE 'pending' END AS status
FROM generate_series(1, @done::integer + @lost::integer + @quarantined::integer + @retrying::integer + @running::integer + @untried::integer) AS i`, `
INSERT INTO catalog.batches (batch_id, name, collection_id, expected, versions, created_by)
SELECT @batch, @name, @collection, count(*), '{v1}', 'test' FROM made`, `
INSERT INTO catalog.slots (collection_id, tile_id) SELECT @collection, tile_id FROM made`, `
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity)
SELECT unit_key, @collection, tile_id, 'v1', '{"version": "v1"}' FROM made`, `
INSERT INTO catalog.batch_units (batch_id, unit_key, due_at)
SELECT @batch, unit_key, CASE WHEN status NOT IN ('done', 'quarantined') THEN clock_timestamp() END FROM made`, `
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog,
                           crs, transform, width, height, bands, attempt_id, batch_id, registered_at, published_at)
SELECT unit_key, @collection, tile_id, @store, @collection || '/' || tile_id || '.' || left(replace(unit_key::text, '-', ''), 12) || '.' || right(attempt_id::text, 12) || '.tif',
       @size, 'sha256:' || repeat('0', 64), '', 'image/tiff', 'GTiff', false, 'EPSG:32633', '{0,10,0,0,0,-10}', 1, 1, '[]', attempt_id, @batch, clock_timestamp(), clock_timestamp()
FROM made WHERE status IN ('done', 'lost')`, `
INSERT INTO catalog.tile_health (unit_key, lost_since) SELECT unit_key, clock_timestamp() FROM made WHERE status = 'lost'`, `
UPDATE catalog.slots s SET unit_key = m.unit_key FROM made m WHERE (s.collection_id, s.tile_id) = (@collection, m.tile_id) AND m.status IN ('done', 'lost')`, `
INSERT INTO catalog.retries (unit_key, collection_id, tile_id, tries, expiries, class, reason, worker, first_failed_at, last_failed_at, due_at, quarantined_as, quarantined_at)
SELECT unit_key, @collection, tile_id, 1, 0, CASE status WHEN 'retrying' THEN 'transient' ELSE 'deterministic' END, CASE status WHEN 'retrying' THEN 'http_503' ELSE 'no_crs' END,
       'test', clock_timestamp(), clock_timestamp(), clock_timestamp(),
       CASE status WHEN 'quarantined' THEN 'deterministic' END, CASE status WHEN 'quarantined' THEN clock_timestamp() END
FROM made WHERE status IN ('retrying', 'quarantined')`, `
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, batch_id, lease_until)
SELECT attempt_id, unit_key, 'r', 'test', 0, 'open', @store, 'image/tiff', '.staging/' || attempt_id || '.tif', @collection || '/' || tile_id || '.' || attempt_id || '.tif', @batch,
       clock_timestamp() + interval '1 hour'
FROM made WHERE status = 'running'`,
}

// Write writes a batch, as superuser, and gives the object keys of the outputs that are
// done, by tile id.
func Write(t testing.TB, sql *pgxpool.Pool, b Batch) (objects []string) {
	t.Helper()
	ctx := t.Context()
	id := uuid.Must(uuid.NewV7())
	err := pgx.BeginFunc(ctx, sql, func(tx pgx.Tx) error {
		for _, statement := range statements {
			all, args := b.args(), pgx.StrictNamedArgs{}
			all["batch"] = id
			for name, value := range all {
				if named(statement, name) {
					args[name] = value
				}
			}
			if _, err := tx.Exec(ctx, statement, args); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `SELECT object_key FROM catalog.tiles JOIN made USING (unit_key) WHERE status = 'done' ORDER BY made.tile_id`)
		if err != nil {
			return err
		}
		objects, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatalf("batchtest: %v", err)
	}
	if _, err := sql.Exec(ctx, `ANALYZE catalog.batches, catalog.batch_units, catalog.units, catalog.tiles, catalog.tile_health, catalog.attempts, catalog.retries`); err != nil {
		t.Fatalf("batchtest: %v", err)
	}
	return objects
}

// NothingWaits is a step without outputs that wait for their batch.
type NothingWaits struct{}

// PublishBatch implements batch.Publisher.
func (NothingWaits) PublishBatch(context.Context, string, string, string) (upsert.BatchPublished, error) {
	return upsert.BatchPublished{}, catalog.Errorf(catalog.CodeInvalidRequest, "none waits")
}

// Ask records a gate as batch.Judge.Run does, and gives its id.
func Ask(t testing.TB, ledger batch.Ledger, name string, limits catalog.GateLimits) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	if err := ledger.AskGate(t.Context(), catalog.Gate{ID: id, Batch: name, GateLimits: limits, AskedBy: "test"}); err != nil {
		t.Fatalf("batchtest: %v", err)
	}
	return id
}

// Ended waits for a gate's end.
func Ended(t testing.TB, ledger batch.Ledger, name string, id uuid.UUID, within time.Duration) catalog.Gate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		gate, err := ledger.Gate(ctx, name, id)
		if err == nil && gate.State.Ended() {
			return gate
		}
		if ctx.Err() != nil {
			t.Fatalf("gate %s is %s after %v: %v", id, gate.State, within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// named tells whether a statement has an argument of this name.
func named(statement, name string) bool {
	return regexp.MustCompile(`@` + name + `\b`).MatchString(statement)
}
