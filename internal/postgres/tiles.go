package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
)

// selectTile lists a tile's columns in the order of scanTile.
const selectTile = `
SELECT t.unit_key, t.collection_id, t.tile_id, u.version, u.identity, coalesce(u.client_key, ''),
       t.store_id, t.object_key, t.size_bytes, t.checksum, t.etag,
       t.driver, t.media_type, t.is_cog, coalesce(t.crs, ''), coalesce(t.crs_wkt, ''), t.transform, coalesce(t.width, 0), coalesce(t.height, 0), t.bands, t.layout, t.layers,
       t.footprint, t.acquired_start, t.acquired_end,
       t.properties, t.attempt_id, t.batch_id, t.registered_at, t.published_at, t.withdrawn_at,
       h.lost_since, s.unit_key IS NOT DISTINCT FROM t.unit_key
FROM catalog.tiles t
JOIN catalog.units u USING (unit_key)
JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (t.collection_id, t.tile_id)
LEFT JOIN catalog.tile_health h ON h.unit_key = t.unit_key`

func scanTile(row pgx.CollectableRow) (catalog.Tile, error) {
	var t catalog.Tile
	var transform []float64
	var footprint geom.T
	var start, end *time.Time
	err := row.Scan(&t.UnitKey, &t.Collection, &t.TileID, &t.Version, &t.Identity, &t.ClientKey,
		&t.StoreID, &t.ObjectKey, &t.SizeBytes, &t.Checksum, &t.ETag,
		&t.Facts.Driver, &t.Facts.MediaType, &t.Facts.IsCOG, &t.Facts.CRS, &t.Facts.CRSWKT, &transform, &t.Facts.Width, &t.Facts.Height, &t.Facts.Bands, &t.Facts.Layout, &t.Facts.Layers,
		&footprint, &start, &end,
		&t.Properties, &t.AttemptID, &t.BatchID, &t.RegisteredAt, &t.PublishedAt, &t.WithdrawnAt,
		&t.LostSince, &t.Current)
	if err != nil {
		return t, err
	}
	copy(t.Facts.Transform[:], transform)
	t.Facts.Footprint, _ = footprint.(*geom.MultiPolygon)
	t.Facts.Acquired = catalog.Interval{Start: start, End: end}
	t.Identity, err = canonical(t.Identity)
	return t, err
}

// canonical brings an identity back into the form that its key was derived
// from: jsonb keeps the values, and neither order nor spelling.
func canonical(stored []byte) (json.RawMessage, error) {
	identity, err := catalog.RestoreIdentity(stored)
	return identity.Canonical(), err
}

func (db *DB) tile(ctx context.Context, doing, where string, args pgx.StrictNamedArgs) (catalog.Tile, error) {
	rows, err := db.pool.Query(ctx, selectTile+where, args)
	if err != nil {
		return catalog.Tile{}, problem(doing, err)
	}
	tile, err := pgx.CollectExactlyOneRow(rows, scanTile)
	if errors.Is(err, pgx.ErrNoRows) {
		return tile, catalog.Errorf(catalog.CodeNotFound, "the catalogue has no such output")
	}
	return tile, problem(doing, err)
}

const tileWhere = ` WHERE t.unit_key = @unit`

// Tile is the row of a unit. CodeNotFound.
func (db *DB) Tile(ctx context.Context, unit uuid.UUID) (catalog.Tile, error) {
	return db.tile(ctx, "read a tile", tileWhere, pgx.StrictNamedArgs{"unit": unit})
}

// TileByObject is the row that names an object, in whichever store. CodeNotFound.
func (db *DB) TileByObject(ctx context.Context, key string) (catalog.Tile, error) {
	return db.tile(ctx, "read a tile by its object", ` WHERE t.object_key = @key LIMIT 1`, pgx.StrictNamedArgs{"key": key})
}

// CurrentTile is what a slot points to. CodeNotFound.
func (db *DB) CurrentTile(ctx context.Context, collection, tileID string) (catalog.Tile, error) {
	return db.tile(ctx, "read a slot's tile", ` WHERE s.collection_id = @collection AND s.tile_id = @tile AND s.unit_key = t.unit_key`,
		pgx.StrictNamedArgs{"collection": collection, "tile": tileID})
}

const slotHistory = `
SELECT h.to_unit, u.version, t.object_key, h.moved_at,
       lead(h.moved_at) OVER (ORDER BY h.id), h.moved_by, h.reason
FROM catalog.slot_history h
JOIN catalog.units u ON u.unit_key = h.to_unit
JOIN catalog.tiles t ON t.unit_key = h.to_unit
WHERE (h.collection_id, h.tile_id) = (@collection, @tile)
ORDER BY h.id DESC LIMIT 1000`

// SlotHistory is what a slot has pointed to, the latest first. An output that was
// replaced, its object lost, stands with the object that it has now. CodeNotFound.
func (db *DB) SlotHistory(ctx context.Context, collection, tileID string) ([]catalog.SlotMove, error) {
	rows, err := db.pool.Query(ctx, slotHistory, pgx.StrictNamedArgs{"collection": collection, "tile": tileID})
	if err != nil {
		return nil, problem("read a slot's history", err)
	}
	moves, err := pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.SlotMove])
	if err == nil && len(moves) == 0 {
		return nil, catalog.Errorf(catalog.CodeNotFound, "nothing was ever current in %s/%s", collection, tileID)
	}
	return moves, problem("read a slot's history", err)
}
