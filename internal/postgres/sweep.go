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

// Promoting implements upsert.Ledger.
func (db *DB) Promoting(ctx context.Context, all bool) ([]catalog.Attempt, error) {
	return db.attempts(ctx, "list open intents", ` WHERE a.state = 'promoting' AND a.store_id = ANY(@stores) AND (@all OR a.lease_until < clock_timestamp()) ORDER BY a.lease_until`,
		pgx.StrictNamedArgs{"all": all, "stores": db.stores})
}

// Unswept implements upsert.Ledger.
func (db *DB) Unswept(ctx context.Context, storeID string, grace time.Duration, limit int) ([]catalog.Attempt, error) {
	return db.attempts(ctx, "list attempts to sweep", `
WHERE a.state IN ('overtaken', 'failed', 'abandoned', 'expired', 'replaced') AND a.swept_at IS NULL
  AND a.store_id = @store AND a.ended_at < clock_timestamp() - @grace::interval
ORDER BY a.ended_at LIMIT @limit`, pgx.StrictNamedArgs{"grace": grace, "limit": limit, "store": storeID})
}

func (db *DB) attempts(ctx context.Context, doing, where string, args pgx.StrictNamedArgs) ([]catalog.Attempt, error) {
	rows, err := db.pool.Query(ctx, selectAttempt+where, args)
	if err != nil {
		return nil, problem(doing, err)
	}
	attempts, err := pgx.CollectRows(rows, scanAttempt)
	return attempts, problem(doing, err)
}

const expireAttempts = `
WITH late AS (
    SELECT attempt_id FROM catalog.attempts
    WHERE state = 'open' AND lease_until < clock_timestamp() - @grace::interval
    ORDER BY attempt_id FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE catalog.attempts a SET state = 'expired', ended_at = clock_timestamp()
    FROM late WHERE a.attempt_id = late.attempt_id AND a.state = 'open'
    RETURNING a.unit_key, a.owner, a.state, a.ended_at, a.batch_id
)` + countExpiries

// Expire implements upsert.Ledger.
func (db *DB) Expire(ctx context.Context, grace time.Duration) (int, error) {
	tag, err := db.pool.Exec(ctx, expireAttempts, pgx.StrictNamedArgs{"grace": grace})
	return int(tag.RowsAffected()), problem("expire attempts", err)
}

// MarkSwept implements upsert.Ledger.
func (db *DB) MarkSwept(ctx context.Context, ids []uuid.UUID) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.attempts SET swept_at = clock_timestamp() WHERE attempt_id = ANY(@ids)`, pgx.StrictNamedArgs{"ids": ids})
	return problem("mark attempts swept", err)
}

// Ended implements upsert.Ledger.
func (db *DB) Ended(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, err := db.pool.Query(ctx, `SELECT attempt_id, state NOT IN ('open', 'promoting') FROM catalog.attempts WHERE attempt_id = ANY(@ids)`,
		pgx.StrictNamedArgs{"ids": ids})
	if err != nil {
		return nil, problem("ask for attempts", err)
	}
	ended := map[uuid.UUID]bool{}
	var id uuid.UUID
	var over bool
	_, err = pgx.ForEachRow(rows, []any{&id, &over}, func() error {
		ended[id] = over
		return nil
	})
	return ended, problem("ask for attempts", err)
}

// Outcomes implements upsert.Ledger.
func (db *DB) Outcomes(ctx context.Context, storeID string, keys []string) (map[string]bool, error) {
	rows, err := db.pool.Query(ctx, `
SELECT object_key, state NOT IN ('open', 'promoting') FROM catalog.attempts
WHERE store_id = @store AND object_key = ANY(@keys)`, pgx.StrictNamedArgs{"store": storeID, "keys": catalog.EscapeKeys(keys)})
	if err != nil {
		return nil, problem("ask for final names", err)
	}
	ended := map[string]bool{}
	var key string
	var over bool
	_, err = pgx.ForEachRow(rows, []any{&key, &over}, func() error {
		ended[key] = over
		return nil
	})
	return ended, problem("ask for final names", err)
}

// Held implements upsert.Ledger.
func (db *DB) Held(ctx context.Context, storeID string, keys []string) (map[string]bool, error) {
	rows, err := db.pool.Query(ctx, `
SELECT staging_key FROM catalog.attempts
WHERE store_id = @store AND staging_key = ANY(@keys) AND state IN ('open', 'promoting')`, pgx.StrictNamedArgs{"store": storeID, "keys": catalog.EscapeKeys(keys)})
	if err != nil {
		return nil, problem("ask for staged files", err)
	}
	held := map[string]bool{}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&key}, func() error {
		held[key] = true
		return nil
	})
	return held, problem("ask for staged files", err)
}

// Named implements upsert.Ledger.
func (db *DB) Named(ctx context.Context, storeID, key string) (bool, error) {
	var named bool
	err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM catalog.tiles WHERE store_id = @store AND object_key = @key)`,
		pgx.StrictNamedArgs{"store": storeID, "key": key}).Scan(&named)
	return named, problem("ask for an object's row", err)
}

// Removals implements upsert.Ledger.
func (db *DB) Removals(ctx context.Context, storeIDs []string, grace time.Duration, limit int) ([]upsert.Removal, error) {
	rows, err := db.pool.Query(ctx, `
SELECT id, store_id, object_key FROM catalog.removals
WHERE confirmed_at IS NULL AND trash_key IS NULL AND store_id = ANY(@stores) AND created_at < clock_timestamp() - @grace::interval
ORDER BY id LIMIT @limit`, pgx.StrictNamedArgs{"grace": grace, "limit": limit, "stores": storeIDs})
	if err != nil {
		return nil, problem("list removals", err)
	}
	removals, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (upsert.Removal, error) {
		var r upsert.Removal
		err := row.Scan(&r.ID, &r.StoreID, &r.ObjectKey)
		return r, err
	})
	return removals, problem("list removals", err)
}

// Removed implements upsert.Ledger.
func (db *DB) Removed(ctx context.Context, ids []int64) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.removals SET confirmed_at = clock_timestamp() WHERE id = ANY(@ids)`, pgx.StrictNamedArgs{"ids": ids})
	return problem("confirm removals", err)
}

const selectPointed = `
SELECT s.collection_id, s.tile_id, t.store_id, t.object_key
FROM catalog.slots s
JOIN catalog.tiles t USING (unit_key)`

func scanPointed(row pgx.CollectableRow) (upsert.Pointed, error) {
	var p upsert.Pointed
	err := row.Scan(&p.Collection, &p.TileID, &p.StoreID, &p.ObjectKey)
	return p, err
}

// Pointer implements upsert.Ledger.
func (db *DB) Pointer(ctx context.Context, collection, tileID string) (*upsert.Pointed, error) {
	rows, err := db.pool.Query(ctx, selectPointed+` WHERE s.collection_id = @collection AND s.tile_id = @tile`,
		pgx.StrictNamedArgs{"collection": collection, "tile": tileID})
	if err != nil {
		return nil, problem("read a pointer", err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPointed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &p, problem("read a pointer", err)
}

// Pointers implements upsert.Ledger.
func (db *DB) Pointers(ctx context.Context, slots []upsert.SlotName) (map[upsert.SlotName]upsert.Pointed, error) {
	collections, tiles := make([]string, len(slots)), make([]string, len(slots))
	for i, s := range slots {
		collections[i], tiles[i] = s.Collection, s.TileID
	}
	rows, err := db.pool.Query(ctx, `
SELECT p.collection_id, p.tile_id, p.store_id, p.object_key
FROM unnest(@collections::text[], @tiles::text[]) AS n (collection, tile)
CROSS JOIN LATERAL (`+selectPointed+` WHERE s.collection_id = n.collection AND s.tile_id = n.tile LIMIT 1) p`,
		pgx.StrictNamedArgs{"collections": collections, "tiles": tiles})
	if err != nil {
		return nil, problem("read pointers", err)
	}
	pointed := map[upsert.SlotName]upsert.Pointed{}
	var p upsert.Pointed
	_, err = pgx.ForEachRow(rows, []any{&p.Collection, &p.TileID, &p.StoreID, &p.ObjectKey}, func() error {
		pointed[upsert.SlotName{Collection: p.Collection, TileID: p.TileID}] = p
		return nil
	})
	return pointed, problem("read pointers", err)
}

// PointedIn implements upsert.Ledger.
func (db *DB) PointedIn(ctx context.Context, storeID string, after upsert.SlotName, limit int) ([]upsert.Pointed, error) {
	rows, err := db.pool.Query(ctx, `
SELECT s.collection_id, s.tile_id, t.store_id, t.object_key
FROM catalog.slots s
CROSS JOIN LATERAL (SELECT * FROM catalog.tiles t WHERE t.unit_key = s.unit_key LIMIT 1) t
WHERE (s.collection_id, s.tile_id) > (@collection, @tile) AND t.store_id = @store ORDER BY s.collection_id, s.tile_id LIMIT @limit`,
		pgx.StrictNamedArgs{"collection": after.Collection, "tile": after.TileID, "store": storeID, "limit": limit})
	if err != nil {
		return nil, problem("list pointers", err)
	}
	pointed, err := pgx.CollectRows(rows, scanPointed)
	return pointed, problem("list pointers", err)
}

// Moved implements upsert.Ledger: pointers that moved, found by the ids of their
// moves backwards, since times have no index; and outputs that were written, for
// one that was repaired moves no pointer and has another object all the same.
func (db *DB) Moved(ctx context.Context, window time.Duration, limit int) ([]upsert.Pointed, error) {
	rows, err := db.pool.Query(ctx, `
WITH moves AS (
    SELECT collection_id, tile_id, moved_at FROM catalog.slot_history ORDER BY id DESC LIMIT @limit
), recent AS (
    SELECT collection_id, tile_id FROM moves WHERE moved_at >= (SELECT max(moved_at) FROM moves) - @window::interval
    UNION
    (SELECT u.collection_id, u.tile_id
     FROM catalog.attempts a
     JOIN catalog.units u USING (unit_key)
     WHERE a.ended_at >= (SELECT max(ended_at) FROM catalog.attempts) - @window::interval AND a.state = 'done'
     LIMIT @limit)
)
SELECT s.collection_id, s.tile_id, t.store_id, t.object_key
FROM recent
JOIN catalog.slots s USING (collection_id, tile_id)
JOIN catalog.tiles t USING (unit_key)
WHERE t.store_id = ANY(@stores)`, pgx.StrictNamedArgs{"window": window, "limit": limit, "stores": db.stores})
	if err != nil {
		return nil, problem("list moved slots", err)
	}
	moved, err := pgx.CollectRows(rows, scanPointed)
	return moved, problem("list moved slots", err)
}
