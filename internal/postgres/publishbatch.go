package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// publishTimeout bounds one statement of a batch's publication, which may write a
// million rows.
const publishTimeout = 10 * time.Minute

const (
	// Planned for the tables as they are: the plan for a small batch would take for ever
	// over a large one.
	planAnew = `SET LOCAL plan_cache_mode = force_custom_plan`

	// What waits at all is few, by an index of its own; of a batch that was published
	// nothing does. The slots are locked in key order, as everybody does who locks many, and each by
	// itself: a lock that joined with what is unpublished would read all of that again
	// for every slot that moved while it waited. The moment is taken when all are
	// locked, and is the same for all. A row that came meanwhile waits for the next
	// time; one that was repaired or published meanwhile is judged as it is then.
	publishOutputs = `
WITH waiting AS MATERIALIZED (
    SELECT unit_key, tile_id FROM catalog.tiles WHERE published_at IS NULL AND withdrawn_at IS NULL
), unpublished AS MATERIALIZED (
    SELECT t.unit_key, t.tile_id
    FROM waiting t
    JOIN catalog.batch_units u USING (unit_key)
    LEFT JOIN catalog.tile_health h USING (unit_key)
    WHERE u.batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name) AND h.lost_since IS NULL
      -- Of a unit that has a row an attempt is at work only where the object was missing.
      AND NOT EXISTS (SELECT FROM catalog.attempts a WHERE a.unit_key = t.unit_key AND a.state IN ('open', 'promoting'))
), locked AS MATERIALIZED (
    SELECT slot.locked
    FROM (SELECT DISTINCT tile_id FROM unpublished ORDER BY tile_id) next
    CROSS JOIN LATERAL (
        SELECT true AS locked FROM catalog.slots s
        WHERE s.collection_id = (SELECT collection_id FROM catalog.batches WHERE name = @name) AND s.tile_id = next.tile_id
        FOR UPDATE) slot
), together AS MATERIALIZED (
    SELECT count(*) AS slots, clock_timestamp() AS at FROM locked
), published AS (
    UPDATE catalog.tiles t SET published_at = together.at
    FROM together, unpublished
    WHERE t.unit_key = unpublished.unit_key AND t.published_at IS NULL AND t.withdrawn_at IS NULL
    RETURNING 1
)
SELECT together.at, (SELECT count(*) FROM published) FROM together`

	// A statement after the lock: see selectState.
	moveToPublished = `
WITH best AS (` + bestOutputs + `IN (
    SELECT n.tile_id FROM catalog.batch_units b JOIN catalog.tiles n USING (unit_key)
    WHERE b.batch_id = @batch AND n.published_at = @now)` + bestFirst + `
), moves AS MATERIALIZED (
    SELECT s.tile_id, s.unit_key AS from_unit, best.unit_key AS to_unit
    FROM best JOIN catalog.slots s ON s.collection_id = @collection AND s.tile_id = best.tile_id
    WHERE s.unit_key IS DISTINCT FROM best.unit_key
), moved AS (
    UPDATE catalog.slots s SET unit_key = moves.to_unit, updated_at = @now
    FROM moves WHERE s.collection_id = @collection AND s.tile_id = moves.tile_id
), history AS (
    INSERT INTO catalog.slot_history (collection_id, tile_id, from_unit, to_unit, moved_by, reason, moved_at)
    SELECT @collection, tile_id, from_unit, to_unit, @who, 'published', @now FROM moves ORDER BY tile_id
    RETURNING id
), counted AS (
    SELECT count(*) AS moved, min(id) AS first FROM history
), dated AS (
    UPDATE catalog.batches SET published_at = @now, links_from = least(links_from, first) FROM counted WHERE batch_id = @batch
), audited AS (
    INSERT INTO catalog.audit (who, act, target, why, details)
    SELECT @who, 'publish batch', @name, @why, jsonb_build_object('published', @published::bigint, 'moved', moved) FROM counted
)
SELECT moved FROM counted`
)

// PublishBatch implements upsert.Ledger: lock the slots and publish the rows; move the
// pointers. With nothing to publish it writes nothing, but that the batch was published,
// the first time.
func (db *DB) PublishBatch(ctx context.Context, name, who, why string) (upsert.BatchPublished, error) {
	var out upsert.BatchPublished
	ask := func(queue *pgx.Batch) {
		queue.Queue(fmt.Sprintf("SET LOCAL statement_timeout = %d", publishTimeout.Milliseconds()))
		queue.Queue(planAnew)
		queue.Queue(publishOutputs, pgx.StrictNamedArgs{"name": name})
		queue.Queue(selectBatch+` WHERE b.name = @name`, pgx.StrictNamedArgs{"name": name})
	}
	decide := func(answers pgx.BatchResults, write *pgx.Batch) error {
		out = upsert.BatchPublished{}
		for range 2 {
			if _, err := answers.Exec(); err != nil {
				return err
			}
		}
		var now time.Time
		if err := answers.QueryRow().Scan(&now, &out.Published); err != nil {
			return err
		}
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanBatch)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return unknownBatch(name)
		}
		switch batch := found[0]; {
		case out.Published == 0 && batch.Publish == catalog.PublishOnRegister:
			return catalog.Errorf(catalog.CodeInvalidRequest, "outputs of collection %s become current as they are registered, and none of batch %s waits: set the collection's publish to on_gate for batches to come", batch.Collection, name)
		case out.Published > 0 || batch.PublishedAt == nil:
			write.Queue(moveToPublished, pgx.StrictNamedArgs{
				"batch": batch.ID, "name": name, "collection": batch.Collection, "now": now, "published": out.Published, "who": who, "why": why,
			}).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Moved) })
		}
		return nil
	}
	return out, db.transact(ctx, "publish a batch", ask, decide)
}

// Unlinked implements upsert.Ledger.
func (db *DB) Unlinked(ctx context.Context, name string, age time.Duration) ([]upsert.Unlinked, error) {
	rows, err := db.pool.Query(ctx, `
SELECT batch_id, collection_id, links_from, published_at FROM catalog.batches
WHERE links_from IS NOT NULL AND (@name = '' OR name = @name) AND published_at <= clock_timestamp() - @age::interval`,
		pgx.StrictNamedArgs{"name": name, "age": age})
	if err != nil {
		return nil, problem("list stable names to put right", err)
	}
	unlinked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[upsert.Unlinked])
	return unlinked, problem("list stable names to put right", err)
}

// MovedFrom implements upsert.Ledger.
func (db *DB) MovedFrom(ctx context.Context, collection string, from int64, limit int) (moved []upsert.Pointed, next int64, err error) {
	rows, err := db.pool.Query(ctx, `
SELECT h.id, s.collection_id, s.tile_id, t.store_id, t.object_key
FROM catalog.slot_history h
JOIN catalog.slots s USING (collection_id, tile_id)
JOIN catalog.tiles t ON t.unit_key = s.unit_key
WHERE h.id >= @from AND h.collection_id = @collection AND h.reason = 'published'
ORDER BY h.id LIMIT @limit`, pgx.StrictNamedArgs{"collection": collection, "from": from, "limit": limit})
	if err != nil {
		return nil, 0, problem("list moved slots", err)
	}
	var id int64
	var p upsert.Pointed
	_, err = pgx.ForEachRow(rows, []any{&id, &p.Collection, &p.TileID, &p.StoreID, &p.ObjectKey}, func() error {
		moved = append(moved, p)
		return nil
	})
	if len(moved) == limit {
		next = id + 1
	}
	return moved, next, problem("list moved slots", err)
}

// Linked implements upsert.Ledger. A publication that came meanwhile has its own names
// to put right.
func (db *DB) Linked(ctx context.Context, u upsert.Unlinked) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.batches SET links_from = NULL WHERE batch_id = @batch AND published_at = @at`,
		pgx.StrictNamedArgs{"batch": u.Batch, "at": u.PublishedAt})
	return problem("note that stable names are right", err)
}
