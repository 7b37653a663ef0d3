package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

// Rows are counted up to ten thousand, and are the planner's estimates beyond: a
// scrape must not scan; so are units that failed, with an index of their own for each kind. What is open, promoting or lost is counted, by its index or in a narrow table.
const selectTotals = `
SELECT (SELECT greatest(reltuples::bigint, (SELECT count(*) FROM (SELECT FROM catalog.tiles LIMIT 10000) AS few)) FROM pg_class WHERE oid = 'catalog.tiles'::regclass),
       (SELECT greatest(reltuples::bigint, (SELECT count(*) FROM (SELECT FROM catalog.slots LIMIT 10000) AS few)) FROM pg_class WHERE oid = 'catalog.slots'::regclass),
       (SELECT count(*) FROM catalog.attempts WHERE state = 'open'),
       (SELECT count(*) FROM catalog.attempts WHERE state = 'promoting'),
       (SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL),
       (SELECT CASE WHEN few < 10000 THEN few ELSE greatest(few, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'catalog.retries_quarantined_idx'::regclass)) END
        FROM (SELECT count(*) AS few FROM (SELECT FROM catalog.retries WHERE quarantined_as IS NOT NULL LIMIT 10000) AS first) AS counted),
       (SELECT CASE WHEN few < 10000 THEN few ELSE greatest(few, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'catalog.retries_due_idx'::regclass)) END
        FROM (SELECT count(*) AS few FROM (SELECT FROM catalog.retries WHERE quarantined_as IS NULL LIMIT 10000) AS first) AS counted)`

// Batches were counted before. Of more than the newest hundred nobody wants a label each.
const selectCounts = `
SELECT b.name, b.collection_id, n.expected, n.done, n.running, n.retrying, n.quarantined, n.lost, n.pending, n.counted_at,
       coalesce((SELECT g.state = 'error' FROM catalog.gates g WHERE g.batch_id = b.batch_id ORDER BY g.created_at DESC LIMIT 1), false)
FROM (SELECT batch_id, name, collection_id FROM catalog.batches ORDER BY batch_id DESC LIMIT 100) b
JOIN catalog.batch_counts n USING (batch_id)
ORDER BY b.batch_id DESC`

const (
	// maxFew bounds what a scrape counts of findings, and of the trash.
	maxFew = 100_000

	selectStoreTotals = `
SELECT s.store_id, c.ended_at, coalesce(c.ended_at - c.created_at, '0'), coalesce(l.state = 'incomplete', false), t.objects, t.bytes,
       coalesce(r.lap_began, '0001-01-01 00:00+00'), r.lap_ended, r.ran_at, coalesce(r.verified, 0), coalesce(r.read_bytes, 0), coalesce(r.bad, 0)
FROM catalog.stores s
LEFT JOIN LATERAL (SELECT created_at, ended_at FROM catalog.reconcile_runs
                   WHERE store_id = s.store_id AND prefix = '' AND state = 'complete' ORDER BY run_id DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (SELECT state FROM catalog.reconcile_runs
                   WHERE store_id = s.store_id AND prefix = '' AND state IN ('complete', 'incomplete') ORDER BY run_id DESC LIMIT 1) l ON true
LEFT JOIN catalog.scrubs r USING (store_id)
CROSS JOIN LATERAL (SELECT count(*) AS objects, coalesce(sum(size_bytes), 0)::bigint AS bytes
                    FROM (SELECT size_bytes FROM catalog.removals
                          WHERE store_id = s.store_id AND trash_key IS NOT NULL AND emptied_at IS NULL LIMIT @few) AS first) t
WHERE s.store_id = ANY(@stores) ORDER BY s.created_at`
	// Where there are more than few, the last complete run has counted them.
	selectFindings = `
WITH few AS MATERIALIZED (
    SELECT store_id, kind, state, size_bytes FROM catalog.findings WHERE state <> 'resolved' LIMIT @few
), counted AS (
    SELECT store_id, kind, count(*) AS objects, sum(size_bytes)::bigint AS bytes FROM few WHERE state = 'open' GROUP BY store_id, kind
), told AS (
    SELECT c.store_id, k.kind, k.open AS objects, k.bytes
    FROM unnest(@stores::text[]) AS s (store_id)
    CROSS JOIN LATERAL (SELECT store_id, kinds FROM catalog.reconcile_runs
                        WHERE store_id = s.store_id AND prefix = '' AND state = 'complete' ORDER BY run_id DESC LIMIT 1) c
    CROSS JOIN LATERAL jsonb_to_recordset(c.kinds) AS k (kind text, open bigint, bytes bigint)
    WHERE (SELECT count(*) FROM few) = @few
)
SELECT store_id, kind, max(objects), max(bytes) FROM (SELECT * FROM counted UNION ALL SELECT * FROM told) AS both_of_them
GROUP BY store_id, kind`
)

// Totals counts from the records.
func (db *DB) Totals(ctx context.Context) (catalog.Totals, error) {
	var t catalog.Totals
	queue := &pgx.Batch{}
	queue.Queue(selectTotals).QueryRow(func(row pgx.Row) error {
		return row.Scan(&t.Tiles, &t.Slots, &t.OpenAttempts, &t.PromotingAttempts, &t.LostTiles, &t.QuarantinedUnits, &t.RetryingUnits)
	})
	queue.Queue(selectCounts).Query(func(rows pgx.Rows) (err error) {
		t.Batches, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b catalog.CountedBatch, err error) {
			n := &b.Counts
			err = row.Scan(&b.Name, &b.Collection, &n.Expected, &n.Done, &n.Running, &n.Retrying, &n.Quarantined, &n.Lost, &n.Pending, &b.CountedAt, &b.GateError)
			return b, err
		})
		return err
	})
	byID := map[string]*catalog.StoreTotals{}
	args := pgx.StrictNamedArgs{"stores": db.stores, "few": maxFew}
	queue.Queue(selectStoreTotals, args).Query(func(rows pgx.Rows) (err error) {
		t.Stores, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s catalog.StoreTotals, err error) {
			c := &s.Scrub
			err = row.Scan(&c.StoreID, &s.CompleteAt, &s.CompleteTook, &s.Incomplete, &s.TrashObjects, &s.TrashBytes,
				&c.LapBegan, &c.LapEnded, &c.RanAt, &c.Verified, &c.Bytes, &c.Bad)
			s.Store = db.storeName(c.StoreID)
			for _, kind := range catalog.FindingKinds() {
				s.Findings = append(s.Findings, catalog.FindingTotals{Kind: kind})
			}
			return s, err
		})
		for i := range t.Stores {
			byID[t.Stores[i].Scrub.StoreID] = &t.Stores[i]
		}
		return err
	})
	queue.Queue(selectFindings, args).Query(func(rows pgx.Rows) error {
		var id string
		var found catalog.FindingTotals
		_, err := pgx.ForEachRow(rows, []any{&id, &found.Kind, &found.Objects, &found.Bytes}, func() error {
			if s := byID[id]; s != nil {
				if i := slices.Index(catalog.FindingKinds(), found.Kind); i >= 0 {
					s.Findings[i] = found
				}
			}
			return nil
		})
		return err
	})
	return t, problem("count", db.pool.SendBatch(ctx, queue).Close())
}

// LastReconciled tells when the last comparison of a whole store was asked for; of one
// without any, when the store came.
func (db *DB) LastReconciled(ctx context.Context, storeID string) (at time.Time, err error) {
	err = db.pool.QueryRow(ctx, `
SELECT coalesce((SELECT created_at FROM catalog.reconcile_runs WHERE store_id = @store AND prefix = '' ORDER BY run_id DESC LIMIT 1),
                (SELECT created_at FROM catalog.stores WHERE store_id = @store), clock_timestamp())`, pgx.StrictNamedArgs{"store": storeID}).Scan(&at)
	return at, problem("read when a store was compared last", err)
}

const (
	// Of the newest batches those that can have changed: that have not passed, or were
	// opened or judged in the last day. None takes more than a tenth of the time, so that
	// large ones that stand about are no burden.
	selectCountable = `
SELECT b.name
FROM (SELECT batch_id, name, created_at FROM catalog.batches ORDER BY batch_id DESC LIMIT 100) b
LEFT JOIN catalog.batch_counts n USING (batch_id)
WHERE (b.created_at > clock_timestamp() - interval '1 day'
       OR NOT EXISTS (SELECT FROM catalog.gates g WHERE g.batch_id = b.batch_id AND g.state = 'passed')
       OR EXISTS (SELECT FROM catalog.gates g WHERE g.batch_id = b.batch_id AND g.created_at > clock_timestamp() - interval '1 day'))
  AND (n.batch_id IS NULL OR n.counted_at + 9 * n.took < clock_timestamp())
ORDER BY n.counted_at NULLS FIRST`
	upsertCounts = `
WITH n AS MATERIALIZED (` + countBatch + `)
INSERT INTO catalog.batch_counts (batch_id, expected, done, running, retrying, quarantined, lost, pending, counted_at, took)
SELECT b.batch_id, n.expected, n.done, n.running, n.retrying, n.quarantined, n.lost, n.pending, statement_timestamp(), clock_timestamp() - statement_timestamp()
FROM n CROSS JOIN catalog.batches b WHERE b.name = @name
ON CONFLICT ON CONSTRAINT batch_counts_pkey DO UPDATE
SET expected = EXCLUDED.expected, done = EXCLUDED.done, running = EXCLUDED.running, retrying = EXCLUDED.retrying, quarantined = EXCLUDED.quarantined,
    lost = EXCLUDED.lost, pending = EXCLUDED.pending, counted_at = EXCLUDED.counted_at, took = EXCLUDED.took
WHERE batch_counts.counted_at < EXCLUDED.counted_at`
)

// CountBatches counts the newest batches anew, one after another. Two that count at once
// cost time, and nothing else. What was counted need not outlive a crash of the database.
func (db *DB) CountBatches(ctx context.Context) error {
	rows, err := db.pool.Query(ctx, selectCountable)
	if err != nil {
		return problem("count batches", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return problem("count batches", err)
	}
	for _, name := range names {
		queue := &pgx.Batch{}
		queue.Queue(relaxCommit)
		queue.Queue(upsertCounts, pgx.StrictNamedArgs{"name": name})
		if err := db.pool.SendBatch(ctx, queue).Close(); err != nil {
			return problem("count batch "+name, err)
		}
	}
	return nil
}
