package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// A version that ranks top already keeps its rank: publishing twice is
// publishing once. The collection's row makes two publications take turns.
const rankTop = `
WITH turn AS (
    SELECT collection_id FROM catalog.collections WHERE collection_id = @collection FOR NO KEY UPDATE
), top AS (
    SELECT max(v.rank) AS rank FROM catalog.collection_versions v JOIN turn USING (collection_id)
), published AS (
    UPDATE catalog.collection_versions v
    SET rank = CASE WHEN v.rank = top.rank THEN v.rank ELSE nextval('catalog.version_rank') END, publishing = true
    FROM top
    WHERE v.collection_id = @collection AND v.version = @version
    RETURNING v.rank
), audited AS (
    INSERT INTO catalog.audit (who, act, target, why, details)
    SELECT @who, 'publish', @collection || ' ' || @version, @why, jsonb_build_object('rank', rank) FROM published
)
SELECT rank FROM published`

// Publish implements upsert.Ledger.
func (db *DB) Publish(ctx context.Context, collection, version, who, why string) (int64, error) {
	var rank int64
	err := db.pool.QueryRow(ctx, rankTop, pgx.StrictNamedArgs{
		"collection": collection, "version": version, "who": who, "why": why,
	}).Scan(&rank)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := db.Collection(ctx, collection); err != nil {
			return 0, err
		}
		return 0, catalog.Errorf(catalog.CodeUnknownVersion, "collection %s has never begun a version %q", collection, version).At("/version")
	}
	return rank, problem("publish a version", err)
}

// Publishing implements upsert.Ledger.
func (db *DB) Publishing(ctx context.Context) ([]upsert.Published, error) {
	rows, err := db.pool.Query(ctx, `SELECT collection_id, version, rank FROM catalog.collection_versions WHERE publishing`)
	if err != nil {
		return nil, problem("list publications", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (upsert.Published, error) {
		var p upsert.Published
		err := row.Scan(&p.Collection, &p.Version, &p.Rank)
		return p, err
	})
	return open, problem("list publications", err)
}

const (
	// The next slots in which a unit of the version was begun: only those can move.
	// Not those that have an output of it: a step may be writing that row just now,
	// which ranked by the old rank, cannot be seen yet, and has the slot's lock.
	selectVersionSlots = `
SELECT DISTINCT u.tile_id
FROM catalog.units u
WHERE u.collection_id = @collection AND u.version = @version AND u.tile_id > @after
ORDER BY u.tile_id LIMIT @limit`
	// In key order, as everybody locks many slots: two of us cannot wait for one
	// another.
	lockSlots = `
SELECT tile_id FROM catalog.slots
WHERE collection_id = @collection AND tile_id = ANY(@tiles)
ORDER BY collection_id, tile_id FOR UPDATE`
	// The output of each slot that is to be current, of the published ones; what
	// follows says which slots.
	bestOutputs = `
SELECT DISTINCT ON (t.tile_id) t.tile_id, t.unit_key, t.store_id, t.object_key
FROM catalog.tiles t
JOIN catalog.units u USING (unit_key)
JOIN catalog.collections c ON c.collection_id = t.collection_id
JOIN catalog.collection_versions v ON (v.collection_id, v.version) = (u.collection_id, u.version)
WHERE t.collection_id = @collection AND t.published_at IS NOT NULL AND t.withdrawn_at IS NULL AND t.tile_id `
	bestFirst = `
ORDER BY t.tile_id,
         CASE c.order_by WHEN 'acquired' THEN coalesce(t.acquired_start, '-infinity') END DESC,
         v.rank DESC, u.seq DESC`
	selectBest = `
SELECT clock_timestamp(), best.tile_id, s.unit_key, best.unit_key, best.store_id, best.object_key
FROM (` + bestOutputs + `= ANY(@tiles)` + bestFirst + `) best
JOIN catalog.slots s ON s.collection_id = @collection AND s.tile_id = best.tile_id
WHERE s.unit_key IS DISTINCT FROM best.unit_key
ORDER BY best.tile_id`
	insertPublished = `
INSERT INTO catalog.slot_history (collection_id, tile_id, from_unit, to_unit, moved_by, reason, moved_at)
VALUES (@collection, @tile, @from, @unit, @by, 'published', @now)`
)

// Settle implements upsert.Ledger.
func (db *DB) Settle(ctx context.Context, collection, version, after string, limit int, who string) (upsert.Settled, error) {
	rows, err := db.pool.Query(ctx, selectVersionSlots, pgx.StrictNamedArgs{"collection": collection, "version": version, "after": after, "limit": limit})
	if err != nil {
		return upsert.Settled{}, problem("list slots", err)
	}
	tiles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tiles) == 0 {
		return upsert.Settled{}, problem("list slots", err)
	}
	settled := upsert.Settled{Slots: len(tiles)}
	if len(tiles) == limit {
		settled.Last = tiles[limit-1]
	}
	these := pgx.StrictNamedArgs{"collection": collection, "tiles": tiles}
	ask := func(batch *pgx.Batch) {
		batch.Queue(lockSlots, these)
		batch.Queue(selectBest, these)
	}
	decide := func(answers pgx.BatchResults, write *pgx.Batch) error {
		settled.Moved = nil
		if _, err := answers.Exec(); err != nil {
			return err
		}
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		var now time.Time
		var tile, store, key string
		var from *uuid.UUID
		var unit uuid.UUID
		_, err = pgx.ForEachRow(rows, []any{&now, &tile, &from, &unit, &store, &key}, func() error {
			settled.Moved = append(settled.Moved, upsert.Pointed{Collection: collection, TileID: tile, StoreID: store, ObjectKey: key})
			exactlyOne(write.Queue(movePointer, pgx.StrictNamedArgs{"collection": collection, "tile": tile, "unit": unit, "now": now}))
			write.Queue(insertPublished, pgx.StrictNamedArgs{"collection": collection, "tile": tile, "from": from, "unit": unit, "by": who, "now": now})
			return nil
		})
		return err
	}
	return settled, db.transact(ctx, "move slots", ask, decide)
}

// SettleDone implements upsert.Ledger.
func (db *DB) SettleDone(ctx context.Context, collection, version string, rank int64) error {
	_, err := db.pool.Exec(ctx, `
UPDATE catalog.collection_versions SET publishing = false
WHERE collection_id = @collection AND version = @version AND rank = @rank`,
		pgx.StrictNamedArgs{"collection": collection, "version": version, "rank": rank})
	return problem("end a publication", err)
}
