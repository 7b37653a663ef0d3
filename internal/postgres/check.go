package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/upsert"
)

// A unit that was never begun is not in units; its slot is then the one that
// the client named.
const checkUnits = `
SELECT coalesce(t.store_id, ''), coalesce(t.object_key, ''), coalesce(t.size_bytes, 0),
       h.lost_since IS NOT NULL, t.withdrawn_at IS NOT NULL,
       EXISTS (SELECT FROM catalog.attempts a
               WHERE a.unit_key = asked.unit
                 AND (a.state = 'promoting' OR (a.state = 'open' AND a.lease_until >= clock_timestamp()))),
       coalesce(s.unit_key = asked.unit, false), s.unit_key IS NOT NULL
FROM unnest(@units::uuid[], @collections::text[], @tiles::text[]) WITH ORDINALITY asked (unit, collection, tile, place)
LEFT JOIN catalog.tiles t ON t.unit_key = asked.unit
LEFT JOIN catalog.tile_health h ON h.unit_key = asked.unit
LEFT JOIN catalog.units u ON u.unit_key = asked.unit AND asked.tile = ''
LEFT JOIN catalog.slots s ON s.collection_id = coalesce(u.collection_id, asked.collection) AND s.tile_id = coalesce(u.tile_id, asked.tile)
ORDER BY place`

// Check implements upsert.Ledger.
func (db *DB) Check(ctx context.Context, units []upsert.UnitRef) ([]upsert.Known, error) {
	if len(units) == 0 {
		return nil, nil
	}
	keys := make([]uuid.UUID, len(units))
	collections := make([]string, len(units))
	tiles := make([]string, len(units))
	for i, u := range units {
		keys[i], collections[i], tiles[i] = u.Key, u.Collection, u.TileID
	}
	rows, err := db.pool.Query(ctx, checkUnits, pgx.StrictNamedArgs{"units": keys, "collections": collections, "tiles": tiles})
	if err != nil {
		return nil, problem("check units", err)
	}
	known, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (upsert.Known, error) {
		var k upsert.Known
		err := row.Scan(&k.StoreID, &k.ObjectKey, &k.SizeBytes, &k.Lost, &k.Withdrawn, &k.Running, &k.Current, &k.Pointed)
		return k, err
	})
	return known, problem("check units", err)
}
