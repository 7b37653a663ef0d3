package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
)

// ScrubFrom implements reconcile.Scrubs.
func (db *DB) ScrubFrom(ctx context.Context, storeID string) (after string, outputs int64, err error) {
	err = db.pool.QueryRow(ctx, `
SELECT coalesce((SELECT at_key FROM catalog.scrubs WHERE store_id = @store), ''), (SELECT count(*) FROM catalog.tiles WHERE store_id = @store)`,
		pgx.StrictNamedArgs{"store": storeID}).Scan(&after, &outputs)
	return after, outputs, problem("see how far a scrub is", err)
}

// ScrubRows implements reconcile.Scrubs.
func (db *DB) ScrubRows(ctx context.Context, storeID, after string, limit int) ([]reconcile.Row, error) {
	rows, err := db.pool.Query(ctx, `
SELECT object_key, unit_key, attempt_id, size_bytes, etag, checksum FROM catalog.tiles
WHERE store_id = @store AND object_key > @after ORDER BY object_key LIMIT @limit`, pgx.StrictNamedArgs{"store": storeID, "after": after, "limit": limit})
	if err != nil {
		return nil, problem("list outputs to read", err)
	}
	outputs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[reconcile.Row])
	return outputs, problem("list outputs to read", err)
}

const (
	// theseOutputs are rows that are still the very ones.
	theseOutputs = `
FROM unnest(@units::uuid[], @attempts::uuid[]) WITH ORDINALITY AS n (unit, attempt, place)
CROSS JOIN LATERAL (SELECT * FROM catalog.tiles t WHERE t.unit_key = n.unit AND t.attempt_id = n.attempt LIMIT 1) t`
	markVerified = `
INSERT INTO catalog.tile_health (unit_key, verified_at)
SELECT t.unit_key, clock_timestamp()` + theseOutputs + `
ORDER BY t.unit_key
ON CONFLICT ON CONSTRAINT tile_health_pkey DO UPDATE SET verified_at = EXCLUDED.verified_at`
	resolveScrubbed = `
UPDATE catalog.findings f SET state = 'resolved', resolved_at = clock_timestamp()
WHERE f.store_id = @store AND f.kind = 'mismatch' AND f.state <> 'resolved' AND f.found_by = 'scrub'
  AND (f.attempt_id = ANY(@attempts::uuid[]) OR NOT EXISTS (SELECT FROM catalog.tiles t WHERE t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id))`
	upsertScrub = `
INSERT INTO catalog.scrubs AS s (store_id, at_key, ran_at, verified, read_bytes, bad, lap_ended)
VALUES (@store, @at, clock_timestamp(), @verified, @read, @bad, CASE WHEN @lapped THEN clock_timestamp() END)
ON CONFLICT ON CONSTRAINT scrubs_pkey DO UPDATE SET
    at_key = EXCLUDED.at_key, ran_at = EXCLUDED.ran_at, verified = s.verified + EXCLUDED.verified, read_bytes = s.read_bytes + EXCLUDED.read_bytes, bad = s.bad + EXCLUDED.bad,
    lap_ended = coalesce(EXCLUDED.lap_ended, s.lap_ended), lap_began = coalesce(EXCLUDED.lap_ended, s.lap_began)`
)

// Scrubbed implements reconcile.Scrubs. verified counts outputs that were read, right or not.
func (db *DB) Scrubbed(ctx context.Context, storeID, at string, verified []reconcile.Row, bad int, read int64, lapped bool) error {
	units, attempts := outputIDs(verified)
	return db.within(ctx, "record a scrub", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, markVerified, pgx.StrictNamedArgs{"units": units, "attempts": attempts}); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, resolveScrubbed, pgx.StrictNamedArgs{"store": storeID, "attempts": attempts}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, upsertScrub, pgx.StrictNamedArgs{
			"store": storeID, "at": at, "verified": len(verified) + bad, "read": read, "bad": bad, "lapped": lapped,
		})
		return err
	})
}

func outputIDs(rows []reconcile.Row) (units, attempts []uuid.UUID) {
	units, attempts = make([]uuid.UUID, len(rows)), make([]uuid.UUID, len(rows))
	for i, r := range rows {
		units[i], attempts[i] = r.UnitKey, r.AttemptID
	}
	return units, attempts
}

// What a reconciliation found of the same object stands: it says more.
const upsertBad = `
INSERT INTO catalog.findings AS f (store_id, kind, object_key, state, unit_key, attempt_id, reason, size_bytes, expected_bytes, found_by)
SELECT @store, 'mismatch', t.object_key, 'open', t.unit_key, t.attempt_id, 'checksum', t.size_bytes, t.size_bytes, 'scrub'` + theseOutputs + `
ORDER BY t.object_key
ON CONFLICT ON CONSTRAINT findings_object_key_key DO UPDATE SET
    state = 'open', unit_key = EXCLUDED.unit_key, attempt_id = EXCLUDED.attempt_id, last_seen_at = EXCLUDED.last_seen_at,
    reason = CASE WHEN f.state = 'resolved' THEN EXCLUDED.reason ELSE f.reason END,
    found_by = CASE WHEN f.state = 'resolved' THEN EXCLUDED.found_by ELSE f.found_by END,
    size_bytes = CASE WHEN f.state = 'resolved' THEN EXCLUDED.size_bytes ELSE f.size_bytes END,
    first_seen_at = CASE WHEN f.state = 'resolved' THEN EXCLUDED.first_seen_at ELSE f.first_seen_at END,
    opened_run = CASE WHEN f.state = 'resolved' THEN NULL ELSE f.opened_run END, resolved_at = NULL, resolved_run = NULL`

// FindBad implements reconcile.Scrubs.
func (db *DB) FindBad(ctx context.Context, storeID string, bad []reconcile.Row) (int, error) {
	units, attempts := outputIDs(bad)
	found, err := db.pool.Exec(ctx, upsertBad, pgx.StrictNamedArgs{"store": storeID, "units": units, "attempts": attempts})
	return int(found.RowsAffected()), problem("record what a scrub found", err)
}

// ScrubStates implements reconcile.Scrubs.
func (db *DB) ScrubStates(ctx context.Context) ([]catalog.Scrub, error) {
	rows, err := db.pool.Query(ctx, `
SELECT s.store_id, s.at_key, s.lap_began, s.lap_ended, s.ran_at, s.verified, s.read_bytes, s.bad, n.outputs, n.remaining
FROM catalog.scrubs s
CROSS JOIN LATERAL (SELECT count(*) AS outputs, count(*) FILTER (WHERE t.object_key > s.at_key) AS remaining FROM catalog.tiles t WHERE t.store_id = s.store_id) n
ORDER BY s.store_id`)
	if err != nil {
		return nil, problem("list scrubs", err)
	}
	scrubs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s catalog.Scrub, err error) {
		err = row.Scan(&s.StoreID, &s.AtKey, &s.LapBegan, &s.LapEnded, &s.RanAt, &s.Verified, &s.Bytes, &s.Bad, &s.Outputs, &s.Remaining)
		s.Store = db.storeName(s.StoreID)
		return s, err
	})
	return scrubs, problem("list scrubs", err)
}
