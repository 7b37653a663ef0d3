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

// The slot's row is the lock: rows do not run out, as advisory locks do. The
// attempt is locked with it, for it may be ended as failed without the slot's
// lock. Nobody waits for a slot while he holds an attempt.
const lockSlot = `
SELECT s.unit_key
FROM catalog.slots s
JOIN catalog.units u USING (collection_id, tile_id)
JOIN catalog.attempts a ON a.unit_key = u.unit_key
WHERE a.attempt_id = @attempt
FOR UPDATE OF s, a`

// selectState is a statement of its own, after the lock: one that both waits for
// a lock and reads would read what was true before it waited. So is its clock.
const selectState = `
SELECT clock_timestamp(), a.state, a.intent, a.replaces, a.unit_key, u.collection_id, u.tile_id, a.owner,
       t.attempt_id, t.store_id, t.object_key, s.unit_key, rival.unit_key,
       CASE WHEN t.unit_key IS NULL THEN c.publish = 'on_register' ELSE t.published_at IS NOT NULL END,
       s.unit_key IS NULL OR s.unit_key <> a.unit_key AND CASE c.order_by
           WHEN 'acquired' THEN (coalesce((a.intent #>> '{acquired,start}')::timestamptz, '-infinity'), v.rank, u.seq)
                              > (coalesce(ct.acquired_start, '-infinity'), cv.rank, cu.seq)
           ELSE (v.rank, u.seq) > (cv.rank, cu.seq)
       END
FROM catalog.attempts a
JOIN catalog.units u ON u.unit_key = a.unit_key
JOIN catalog.collections c ON c.collection_id = u.collection_id
JOIN catalog.collection_versions v ON (v.collection_id, v.version) = (u.collection_id, u.version)
JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (u.collection_id, u.tile_id)
LEFT JOIN catalog.tiles t ON t.unit_key = a.unit_key
LEFT JOIN catalog.tiles ct ON ct.unit_key = s.unit_key
LEFT JOIN catalog.units cu ON cu.unit_key = s.unit_key
LEFT JOIN catalog.collection_versions cv ON (cv.collection_id, cv.version) = (cu.collection_id, cu.version)
LEFT JOIN LATERAL (
    SELECT o.unit_key
    FROM catalog.tiles o
    JOIN catalog.units ou ON ou.unit_key = o.unit_key
    JOIN catalog.collection_versions ov ON (ov.collection_id, ov.version) = (ou.collection_id, ou.version)
    WHERE c.order_by = 'acquired' AND s.unit_key = a.unit_key
      AND (o.collection_id, o.tile_id) = (u.collection_id, u.tile_id) AND o.unit_key <> a.unit_key
      AND o.published_at IS NOT NULL AND o.withdrawn_at IS NULL
      AND (coalesce(o.acquired_start, '-infinity'), ov.rank, ou.seq)
        > (coalesce((a.intent #>> '{acquired,start}')::timestamptz, '-infinity'), v.rank, u.seq)
    ORDER BY coalesce(o.acquired_start, '-infinity') DESC, ov.rank DESC, ou.seq DESC
    LIMIT 1) rival ON true
WHERE a.attempt_id = @attempt`

type state struct {
	now      time.Time
	attempt  catalog.AttemptState
	intent   *catalog.Intent
	replaces *uuid.UUID
	unit     uuid.UUID
	slot     struct{ collection, tile string }
	owner    string
	// The unit's row, if it has one.
	row struct {
		attempt    *uuid.UUID
		store, key *string
	}
	current *uuid.UUID
	// published: the row can be current. One that is repaired can be if it could before;
	// a new one waits for its batch where its collection says so.
	published bool
	// outranked: this unit is to be current, if it can be.
	outranked bool
	// rival is to be current in place of this unit, which is, and whose repaired
	// output was acquired earlier than the lost one.
	rival *uuid.UUID
}

func scanState(row pgx.CollectableRow) (state, error) {
	var s state
	err := row.Scan(&s.now, &s.attempt, &s.intent, &s.replaces, &s.unit, &s.slot.collection, &s.slot.tile, &s.owner,
		&s.row.attempt, &s.row.store, &s.row.key, &s.current, &s.rival, &s.published, &s.outranked)
	return s, err
}

// healthy: the unit has a row, and it is not the one that this attempt found
// without its object.
func (s state) healthy() bool {
	return s.row.attempt != nil && (s.replaces == nil || *s.row.attempt != *s.replaces)
}

// The row is written once; only the row that the attempt found without its
// object is replaced.
const upsertTile = `
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver,
                           is_cog, footprint, crs, crs_wkt, transform, width, height, bands, layout, layers,
                           acquired_start, acquired_end, properties, attempt_id, batch_id, registered_at, published_at)
SELECT a.unit_key, @collection, @tile, a.store_id, a.object_key, @size_bytes, @checksum, @etag, @media_type, @driver,
       @is_cog, @footprint, nullif(@crs, ''), nullif(@crs_wkt, ''), @transform, @width, @height, @bands, @layout, @layers, @acquired_start, @acquired_end, coalesce(@properties::jsonb, '{}'),
       a.attempt_id, a.batch_id, @now, @published_at
FROM catalog.attempts a WHERE a.attempt_id = @attempt
ON CONFLICT ON CONSTRAINT tiles_pkey DO UPDATE SET
    store_id = EXCLUDED.store_id, object_key = EXCLUDED.object_key, size_bytes = EXCLUDED.size_bytes, checksum = EXCLUDED.checksum,
    etag = EXCLUDED.etag, media_type = EXCLUDED.media_type, driver = EXCLUDED.driver, is_cog = EXCLUDED.is_cog,
    footprint = EXCLUDED.footprint, crs = EXCLUDED.crs, crs_wkt = EXCLUDED.crs_wkt, transform = EXCLUDED.transform,
    width = EXCLUDED.width, height = EXCLUDED.height, bands = EXCLUDED.bands, layout = EXCLUDED.layout, layers = EXCLUDED.layers, acquired_start = EXCLUDED.acquired_start,
    acquired_end = EXCLUDED.acquired_end, properties = EXCLUDED.properties, attempt_id = EXCLUDED.attempt_id, batch_id = EXCLUDED.batch_id,
    registered_at = EXCLUDED.registered_at
WHERE tiles.attempt_id = @replaces`

const (
	insertRemoval = `INSERT INTO catalog.removals (store_id, object_key, reason) VALUES (@store, @key, 'replaced')`
	clearLost     = `UPDATE catalog.tile_health SET lost_since = NULL, verified_at = @now WHERE unit_key = @unit`
	forgetRetries = `DELETE FROM catalog.retries WHERE unit_key = @unit`
	movePointer   = `UPDATE catalog.slots SET unit_key = @unit, updated_at = @now WHERE collection_id = @collection AND tile_id = @tile`
	insertHistory = `
INSERT INTO catalog.slot_history (collection_id, tile_id, from_unit, to_unit, moved_by, reason, moved_at)
VALUES (@collection, @tile, @from, @unit, @by, 'registered', @now)`
	concludeAttempt = `
UPDATE catalog.attempts SET state = @state, intent = NULL, given = '{}', ended_at = @now WHERE attempt_id = @attempt AND state = 'promoting'`
)

// Conclude implements upsert.Ledger: lock the slot, read how things stand, write
// the row, move the pointer if the row is published and the unit outranks what it
// points to, end the attempt. Repeating it changes nothing.
func (db *DB) Conclude(ctx context.Context, attempt uuid.UUID, etag string) (upsert.Outcome, error) {
	var s state
	var tile *catalog.Tile
	ask := func(batch *pgx.Batch) {
		batch.Queue(lockSlot, pgx.StrictNamedArgs{"attempt": attempt})
		batch.Queue(selectState, pgx.StrictNamedArgs{"attempt": attempt})
	}
	decide := func(answers pgx.BatchResults, write *pgx.Batch) (err error) {
		if _, err := answers.Exec(); err != nil {
			return err
		}
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		s, err = pgx.CollectExactlyOneRow(rows, scanState)
		if errors.Is(err, pgx.ErrNoRows) {
			return catalog.Errorf(catalog.CodeUnknownAttempt, "there is no attempt %s", attempt)
		}
		if err != nil || s.attempt != catalog.AttemptPromoting {
			return err
		}
		s.attempt = catalog.AttemptOvertaken
		if !s.healthy() {
			s.attempt = catalog.AttemptDone
			if err := s.writeRow(write, attempt, etag); err != nil {
				return err
			}
		}
		exactlyOne(write.Queue(concludeAttempt, pgx.StrictNamedArgs{"attempt": attempt, "state": s.attempt, "now": s.now}))
		tile = nil
		queueOne(write, selectTile+tileWhere, pgx.StrictNamedArgs{"unit": s.unit}, scanTile, &tile)
		return nil
	}
	if err := db.transact(ctx, "write the row", ask, decide); err != nil {
		return upsert.Outcome{}, err
	}
	if s.attempt != catalog.AttemptDone && s.attempt != catalog.AttemptOvertaken {
		return upsert.Outcome{}, catalog.Errorf(catalog.CodeAttemptEnded, "attempt %s ended as %s: begin again", attempt, s.attempt)
	}
	if tile == nil {
		// It had ended before.
		row, err := db.Tile(ctx, s.unit)
		return upsert.Outcome{State: s.attempt, AttemptID: attempt, Tile: row}, err
	}
	return upsert.Outcome{State: s.attempt, AttemptID: attempt, Tile: *tile}, nil
}

// writeRow queues the writes of a row that is the unit's first, or replaces the
// one that was found without its object.
func (s state) writeRow(write *pgx.Batch, attempt uuid.UUID, etag string) error {
	intent := s.intent
	footprint, err := catalog.DecodeFootprint(intent.Footprint)
	if err != nil {
		return err
	}
	args := pgx.StrictNamedArgs{
		"attempt": attempt, "collection": s.slot.collection, "tile": s.slot.tile, "replaces": s.replaces, "now": s.now,
		"size_bytes": intent.SizeBytes, "checksum": intent.Checksum, "etag": etag, "media_type": intent.MediaType,
		"driver": intent.Driver, "is_cog": intent.IsCOG, "footprint": nil, "crs": intent.CRS, "crs_wkt": intent.CRSWKT,
		"transform": nil, "width": nil, "height": nil, "bands": []catalog.Band{}, "layout": intent.Layout, "layers": []catalog.Layer{},
		"acquired_start": intent.Acquired.Start, "acquired_end": intent.Acquired.End, "properties": intent.Properties, "published_at": nil,
	}
	if footprint != nil {
		args["footprint"] = footprint
	}
	if s.published {
		args["published_at"] = s.now
	}
	if len(intent.Bands) > 0 {
		args["width"], args["height"], args["bands"] = intent.Width, intent.Height, intent.Bands
	}
	if intent.Transform != [6]float64{} {
		args["transform"] = intent.Transform[:]
	}
	if len(intent.Layers) > 0 {
		args["layers"] = intent.Layers
	}
	exactlyOne(write.Queue(upsertTile, args))
	write.Queue(forgetRetries, pgx.StrictNamedArgs{"unit": s.unit})
	if s.row.attempt != nil {
		write.Queue(insertRemoval, pgx.StrictNamedArgs{"store": s.row.store, "key": s.row.key})
		write.Queue(clearLost, pgx.StrictNamedArgs{"unit": s.unit, "now": s.now})
	}
	to := s.rival
	if s.published && s.outranked {
		to = &s.unit
	}
	if to != nil {
		slot := pgx.StrictNamedArgs{"collection": s.slot.collection, "tile": s.slot.tile, "unit": to, "now": s.now}
		exactlyOne(write.Queue(movePointer, slot))
		exactlyOne(write.Queue(insertHistory, pgx.StrictNamedArgs{
			"collection": s.slot.collection, "tile": s.slot.tile, "unit": to, "now": s.now, "from": s.current, "by": s.owner,
		}))
	}
	return nil
}
