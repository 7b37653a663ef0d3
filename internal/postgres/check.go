package postgres

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/upsert"
)

// Each looks its keys up in one index. One statement that joins them all looks up row
// by row, and takes five times as long.
const (
	checkHolds = `
SELECT unit_key FROM catalog.attempts
WHERE unit_key = ANY(@units) AND state IN ('open', 'promoting') AND (state = 'promoting' OR lease_until >= clock_timestamp())`
	checkTiles = `SELECT unit_key, store_id, object_key, size_bytes, etag, withdrawn_at IS NOT NULL, published_at IS NULL FROM catalog.tiles WHERE unit_key = ANY(@units)`
	checkLost  = `SELECT unit_key FROM catalog.tile_health WHERE unit_key = ANY(@units) AND lost_since IS NOT NULL`
	// Units that failed, and are quarantined or not due yet.
	checkRetries = `
SELECT unit_key, quarantined_as IS NOT NULL FROM catalog.retries
WHERE unit_key = ANY(@units) AND (quarantined_as IS NOT NULL OR due_at > clock_timestamp())`
	// The slots that clients named; a place counts from 1.
	checkSlots = `
SELECT place, s.unit_key
FROM unnest(@collections::text[], @tiles::text[]) WITH ORDINALITY named (collection, tile, place)
JOIN catalog.slots s ON s.collection_id = named.collection AND s.tile_id = named.tile
WHERE s.unit_key IS NOT NULL`
	// The collections that clients named.
	checkCollections = `SELECT collection_id FROM catalog.collections WHERE collection_id = ANY(@collections)`
	// The slots of units that came by key alone. One that was never begun has none.
	checkSlotsOf = `
SELECT u.unit_key, s.unit_key
FROM catalog.units u JOIN catalog.slots s USING (collection_id, tile_id)
WHERE u.unit_key = ANY(@bare) AND s.unit_key IS NOT NULL`
)

// key is a UUID that pgx reads and writes as it is: uuid.UUID goes by way of text.
type key = [16]byte

// Check implements upsert.Ledger, from one snapshot.
func (db *DB) Check(ctx context.Context, units []upsert.UnitRef) ([]upsert.Known, error) {
	if len(units) == 0 {
		return nil, nil
	}
	keys := make([]key, len(units))
	collections := make([]string, len(units))
	tiles := make([]string, len(units))
	var bare []key
	for i, u := range units {
		keys[i], collections[i], tiles[i] = key(u.Key), u.Collection, u.TileID
		if u.TileID == "" {
			bare = append(bare, key(u.Key))
		}
	}
	known := make(map[key]upsert.Known, len(units))
	pointed := make(map[key]key)
	named := make(map[string]bool) // collections that are there
	for _, c := range collections {
		named[c] = false
	}
	places := make([]key, len(units)) // what the slot at each place points to
	var k, to key
	err := db.snapshot(ctx, "check units", func(batch *pgx.Batch) {
		args := pgx.StrictNamedArgs{"units": keys}
		var t upsert.Known
		each(batch, checkTiles, args, []any{&k, &t.StoreID, &t.ObjectKey, &t.SizeBytes, &t.ETag, &t.Withdrawn, &t.Unpublished}, func() { known[k] = t })
		each(batch, checkHolds, args, []any{&k}, func() {
			held := known[k]
			held.Running = true
			known[k] = held
		})
		each(batch, checkLost, args, []any{&k}, func() {
			lost := known[k]
			lost.Lost = true
			known[k] = lost
		})
		var quarantined bool
		each(batch, checkRetries, args, []any{&k, &quarantined}, func() {
			failed := known[k]
			failed.Quarantined, failed.Waiting = quarantined, !quarantined
			known[k] = failed
		})
		var collection string
		each(batch, checkCollections, pgx.StrictNamedArgs{"collections": slices.Collect(maps.Keys(named))}, []any{&collection}, func() { named[collection] = true })
		var place int
		each(batch, checkSlots, pgx.StrictNamedArgs{"collections": collections, "tiles": tiles}, []any{&place, &to}, func() { places[place-1] = to })
		if bare != nil {
			each(batch, checkSlotsOf, pgx.StrictNamedArgs{"bare": bare}, []any{&k, &to}, func() { pointed[k] = to })
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]upsert.Known, len(units))
	for i, unit := range keys {
		slot := places[i]
		if tiles[i] == "" {
			slot = pointed[unit]
		}
		out[i] = known[unit]
		out[i].NoCollection = collections[i] != "" && !named[collections[i]]
		out[i].Pointed = slot != key(uuid.Nil)
		out[i].Current = slot == unit
	}
	return out, nil
}

// each queues a query, and has do called for every row, which is in into then.
func each(batch *pgx.Batch, sql string, args pgx.StrictNamedArgs, into []any, do func()) {
	batch.Queue(sql, args).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, func() error {
			do()
			return nil
		})
		return err
	})
}
