package postgres

import (
	"context"

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

// Totals counts from the records.
func (db *DB) Totals(ctx context.Context) (catalog.Totals, error) {
	var t catalog.Totals
	err := db.pool.QueryRow(ctx, selectTotals).Scan(&t.Tiles, &t.Slots, &t.OpenAttempts, &t.PromotingAttempts, &t.LostTiles, &t.QuarantinedUnits, &t.RetryingUnits)
	return t, problem("count", err)
}
