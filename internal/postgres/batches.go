package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twpayne/go-geom/encoding/ewkb"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

const selectBatch = `
SELECT b.batch_id, b.name, b.collection_id, b.versions, b.expected, c.publish, b.published_at, b.created_by, b.created_at
FROM catalog.batches b JOIN catalog.collections c USING (collection_id)`

func scanBatch(row pgx.CollectableRow) (catalog.Batch, error) {
	var b catalog.Batch
	err := row.Scan(&b.ID, &b.Name, &b.Collection, &b.Versions, &b.Expected, &b.Publish, &b.PublishedAt, &b.CreatedBy, &b.CreatedAt)
	return b, err
}

func unknownBatch(name string) error {
	return catalog.Errorf(catalog.CodeUnknownBatch, "there is no batch %q: open it with POST /v1/batches", name)
}

// OpenBatch makes a batch, or finds the one of this name. CodeBatchExists where that is
// of another collection; CodeUnknownCollection.
func (db *DB) OpenBatch(ctx context.Context, name, collection, who string) (_ catalog.Batch, created bool, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return catalog.Batch{}, false, problem("name a batch", err)
	}
	tag, err := db.pool.Exec(ctx, `
INSERT INTO catalog.batches (batch_id, name, collection_id, created_by) VALUES (@id, @name, @collection, @who)
ON CONFLICT ON CONSTRAINT batches_name_key DO NOTHING`,
		pgx.StrictNamedArgs{"id": id, "name": name, "collection": collection, "who": who})
	switch {
	case violates(err, "batches_collection_id_fkey"):
		return catalog.Batch{}, false, catalog.Errorf(catalog.CodeUnknownCollection, "there is no collection %q: create it with POST /v1/collections", collection).At("/collection")
	case err != nil:
		return catalog.Batch{}, false, problem("open a batch", err)
	}
	batch, err := db.Batch(ctx, name)
	if err == nil && batch.Collection != collection {
		err = catalog.Errorf(catalog.CodeBatchExists, "batch %s is of collection %s: choose another name", name, batch.Collection).At("/name")
	}
	return batch, tag.RowsAffected() == 1, err
}

// Batch reads one by name. CodeUnknownBatch.
func (db *DB) Batch(ctx context.Context, name string) (catalog.Batch, error) {
	rows, err := db.pool.Query(ctx, selectBatch+` WHERE b.name = @name`, pgx.StrictNamedArgs{"name": name})
	if err != nil {
		return catalog.Batch{}, problem("read a batch", err)
	}
	batch, err := pgx.CollectExactlyOneRow(rows, scanBatch)
	if errors.Is(err, pgx.ErrNoRows) {
		return batch, unknownBatch(name)
	}
	return batch, problem("read a batch", err)
}

// Batches lists those of a collection, of all with "", the latest first: at most limit of
// those before the one of this id, uuid.Nil for the first.
func (db *DB) Batches(ctx context.Context, collection string, before uuid.UUID, limit int) ([]catalog.Batch, error) {
	where, args := " WHERE true", pgx.StrictNamedArgs{"limit": limit}
	if collection != "" {
		where += " AND b.collection_id = @collection"
		args["collection"] = collection
	}
	if before != uuid.Nil {
		where += " AND b.batch_id < @before" // UUIDv7
		args["before"] = before
	}
	rows, err := db.pool.Query(ctx, selectBatch+where+` ORDER BY b.batch_id DESC LIMIT @limit`, args)
	if err != nil {
		return nil, problem("list batches", err)
	}
	batches, err := pgx.CollectRows(rows, scanBatch)
	return batches, problem("list batches", err)
}

const (
	countBatch = `
SELECT count(*) AS expected,
       count(*) FILTER (WHERE status = 'done') AS done,
       count(*) FILTER (WHERE status = 'running') AS running,
       count(*) FILTER (WHERE status = 'retrying') AS retrying,
       count(*) FILTER (WHERE status = 'quarantined') AS quarantined,
       count(*) FILTER (WHERE status = 'lost') AS lost,
       count(*) FILTER (WHERE status = 'pending') AS pending
FROM catalog.batch_unit_status WHERE batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name)`
	// Few, by an index of their own.
	countUnpublished = `
SELECT count(*) FROM catalog.tiles t JOIN catalog.batch_units b USING (unit_key)
WHERE t.published_at IS NULL AND t.withdrawn_at IS NULL AND b.batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name)`
	selectBatchFailures = `
SELECT r.class, r.reason, count(*), sum(r.tries + r.expiries), min(r.tile_id), (array_agg(r.unit_key ORDER BY r.tile_id))[1], max(r.last_failed_at)
FROM catalog.retries r JOIN catalog.batch_units b USING (unit_key)
WHERE b.batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name)
GROUP BY r.class, r.reason
ORDER BY count(*) DESC, r.class, r.reason LIMIT 100`
)

// BatchStatus is how a batch stands, from one snapshot. CodeUnknownBatch.
func (db *DB) BatchStatus(ctx context.Context, name string) (catalog.BatchStatus, error) {
	var batch *catalog.Batch
	var counts *catalog.BatchCounts
	var unpublished *int64
	var status catalog.BatchStatus
	args := pgx.StrictNamedArgs{"name": name}
	err := db.snapshot(ctx, "read how a batch stands", func(queue *pgx.Batch) {
		queueOne(queue, selectBatch+` WHERE b.name = @name`, args, scanBatch, &batch)
		queueOne(queue, countBatch, args, pgx.RowToStructByPos[catalog.BatchCounts], &counts)
		queueOne(queue, countUnpublished, args, pgx.RowTo[int64], &unpublished)
		queue.Queue(selectBatchFailures, args).Query(func(rows pgx.Rows) (err error) {
			status.Failures, err = pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.BatchFailure])
			return err
		})
		queueOne(queue, selectGate+` WHERE b.name = @name ORDER BY g.created_at DESC LIMIT 1`, args, scanGate, &status.Gate)
	})
	switch {
	case err != nil:
		return status, err
	case batch == nil:
		return status, unknownBatch(name)
	}
	status.Batch, status.Counts, status.Unpublished = *batch, *counts, *unpublished
	return status, nil
}

// What a batch adds. Units that are new get their place in the order of versions and
// units, as at a begin, so that a claim has only attempts to make. All in key order: two
// that add the same units cannot wait for one another. No arbiter is named where units
// are inserted: a client key that stands for another unit is found out after.
const (
	addVersions = `
INSERT INTO catalog.collection_versions (collection_id, version)
SELECT DISTINCT @collection, version FROM unnest(@versions::text[]) AS version
WHERE (SELECT true FROM catalog.collection_versions v WHERE v.collection_id = @collection AND v.version = version.version LIMIT 1) IS NULL
ORDER BY version
ON CONFLICT ON CONSTRAINT collection_versions_pkey DO NOTHING`
	addSlots = `
INSERT INTO catalog.slots (collection_id, tile_id)
SELECT DISTINCT @collection, tile_id FROM unnest(@tiles::text[]) AS tile_id
WHERE (SELECT true FROM catalog.slots s WHERE s.collection_id = @collection AND s.tile_id = tile_id.tile_id LIMIT 1) IS NULL
ORDER BY tile_id
ON CONFLICT ON CONSTRAINT slots_pkey DO NOTHING`
	addUnits = `
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity, client_key)
SELECT unit_key, @collection, tile_id, version, identity::jsonb, nullif(client_key, '')
FROM unnest(@units::uuid[], @tiles::text[], @versions::text[], @identities::text[], @client_keys::text[])
     AS n (unit_key, tile_id, version, identity, client_key)
WHERE (SELECT true FROM catalog.units u WHERE u.unit_key = n.unit_key LIMIT 1) IS NULL
ORDER BY unit_key
ON CONFLICT DO NOTHING`
	nameUnits = `
UPDATE catalog.units u SET client_key = n.client_key
FROM (SELECT DISTINCT ON (client_key) unit_key, client_key FROM unnest(@units::uuid[], @client_keys::text[]) AS n (unit_key, client_key)
      ORDER BY client_key, unit_key) n
WHERE u.unit_key = ANY(@units) AND u.unit_key = n.unit_key AND u.client_key IS NULL AND n.client_key <> ''
  AND NOT EXISTS (SELECT FROM catalog.units o WHERE o.collection_id = @collection AND o.client_key = n.client_key)`
	selectMisfits = `
SELECT n.place, CASE
       WHEN u.unit_key IS NULL OR u.client_key IS NULL AND n.client_key <> '' THEN 'client_key ' || n.client_key || ' stands for another unit'
       WHEN u.collection_id <> @collection OR u.tile_id <> n.tile_id OR u.identity <> n.identity::jsonb
            THEN 'unit_key ' || u.unit_key || ' stands for another identity'
       ELSE 'this identity was first sent with client_key ' || u.client_key END
FROM unnest(@units::uuid[], @tiles::text[], @identities::text[], @client_keys::text[]) WITH ORDINALITY
     AS n (unit_key, tile_id, identity, client_key, place)
LEFT JOIN LATERAL (SELECT * FROM catalog.units u WHERE u.unit_key = n.unit_key LIMIT 1) u ON true
WHERE u.unit_key IS NULL OR u.collection_id <> @collection OR u.tile_id <> n.tile_id OR u.identity <> n.identity::jsonb
   OR (n.client_key <> '' AND n.client_key IS DISTINCT FROM u.client_key)`
	// A unit that has its output already is due no claim.
	addToBatch = `
WITH added AS (
    INSERT INTO catalog.batch_units (batch_id, unit_key, due_at, geom)
    SELECT @batch, n.unit_key, CASE WHEN t.unit_key IS NULL OR h.lost_since IS NOT NULL THEN clock_timestamp() END, ST_GeomFromEWKB(n.geom)
    FROM unnest(@units::uuid[], @geometries::bytea[]) AS n (unit_key, geom)
    LEFT JOIN LATERAL (SELECT * FROM catalog.tiles t WHERE t.unit_key = n.unit_key LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT * FROM catalog.tile_health h WHERE h.unit_key = n.unit_key LIMIT 1) h ON true
    ORDER BY n.unit_key
    ON CONFLICT ON CONSTRAINT batch_units_pkey DO NOTHING
    RETURNING 1
), counted AS (SELECT count(*) AS units FROM added)
UPDATE catalog.batches b
SET expected = b.expected + counted.units,
    versions = (SELECT (array_agg(DISTINCT v ORDER BY v))[:100] FROM unnest(b.versions || @versions::text[]) AS v)
FROM counted
WHERE b.batch_id = @batch AND counted.units > 0
RETURNING counted.units`
)

// AddUnits adds units to a batch. refused has, by place, why a unit was not; the rest were
// added now, or before.
func (db *DB) AddUnits(ctx context.Context, batch catalog.Batch, units []catalog.ExpectedUnit) (added int64, refused map[int]error, err error) {
	if len(units) == 0 {
		return 0, nil, nil
	}
	args, err := expectedArgs(batch, units)
	if err != nil {
		return 0, nil, err
	}
	named := slices.ContainsFunc(units, func(u catalog.ExpectedUnit) bool { return u.ClientKey != "" })
	ask := func(queue *pgx.Batch) {
		queue.Queue(lookUp)
		queue.Queue(addVersions, pick(args, "collection", "versions"))
		queue.Queue(addSlots, pick(args, "collection", "tiles"))
		queue.Queue(addUnits, pick(args, "collection", "units", "tiles", "versions", "identities", "client_keys"))
		if named {
			queue.Queue(nameUnits, pick(args, "collection", "units", "client_keys"))
		}
		queue.Queue(selectMisfits, pick(args, "collection", "units", "tiles", "identities", "client_keys"))
	}
	decide := func(answers pgx.BatchResults, write *pgx.Batch) error {
		before := 4
		if named {
			before++
		}
		for range before {
			if _, err := answers.Exec(); err != nil {
				return err
			}
		}
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		added, refused = 0, map[int]error{}
		var place int
		var why string
		if _, err = pgx.ForEachRow(rows, []any{&place, &why}, func() error {
			refused[place-1] = catalog.Errorf(catalog.CodeKeyCollision, "%s: one key stands for one identity; send another key, or the identity that it was first sent with", why)
			return nil
		}); err != nil {
			return err
		}
		fitting := args
		if len(refused) > 0 {
			kept := make([]catalog.ExpectedUnit, 0, len(units))
			for i, u := range units {
				if refused[i] == nil {
					kept = append(kept, u)
				}
			}
			if fitting, err = expectedArgs(batch, kept); err != nil {
				return err
			}
		}
		write.Queue(addToBatch, pick(fitting, "batch", "units", "versions", "geometries")).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&added}, func() error { return nil })
			return err
		})
		return nil
	}
	err = db.transact(ctx, "add units to a batch", ask, decide)
	if violates(err, "units_client_key_key") {
		return 0, nil, catalog.Errorf(catalog.CodeKeyCollision, "another request just gave one of these client keys to another unit: send the units again")
	}
	return added, refused, err
}

func expectedArgs(batch catalog.Batch, units []catalog.ExpectedUnit) (pgx.StrictNamedArgs, error) {
	n := len(units)
	keys, tiles, versions := make([]key, n), make([]string, n), make([]string, n)
	identities, clientKeys, geometries := make([]string, n), make([]string, n), make([][]byte, n)
	for i, u := range units {
		keys[i], tiles[i], versions[i] = key(u.Key), u.TileID, u.Identity.Version()
		identities[i], clientKeys[i] = string(u.Identity.Canonical()), u.ClientKey
		if u.Geometry != nil {
			var err error
			if geometries[i], err = ewkb.Marshal(u.Geometry, binary.LittleEndian); err != nil {
				return nil, problem("write a geometry", err)
			}
		}
	}
	return pgx.StrictNamedArgs{
		"batch": batch.ID, "collection": batch.Collection, "units": keys, "tiles": tiles, "versions": versions,
		"identities": identities, "client_keys": clientKeys, "geometries": geometries,
	}, nil
}

// pick gives a statement the arguments that it names, which are all that it may be given.
func pick(args pgx.StrictNamedArgs, names ...string) pgx.StrictNamedArgs {
	picked := make(pgx.StrictNamedArgs, len(names))
	for _, name := range names {
		picked[name] = args[name]
	}
	return picked
}

// A lost output that is published and not current is a finding, and nobody's work.
const selectPending = `
SELECT s.unit_key, u.tile_id, u.identity, coalesce(u.client_key, ''), s.status
FROM catalog.batch_unit_status s
JOIN catalog.units u USING (unit_key)
JOIN catalog.slots p USING (collection_id, tile_id)
WHERE s.batch_id = @batch AND s.unit_key > @after
  AND (s.status = 'pending' OR s.status = 'retrying' AND s.retry_at <= statement_timestamp()
       OR s.status = 'lost' AND (coalesce(p.unit_key, s.unit_key) = s.unit_key OR s.published_at IS NULL))
ORDER BY s.unit_key LIMIT @limit`

// Pending lists the units of a batch that are due, by key: at most limit of those after
// this one.
func (db *DB) Pending(ctx context.Context, batch, after uuid.UUID, limit int) ([]catalog.PendingUnit, error) {
	rows, err := db.pool.Query(ctx, selectPending, pgx.StrictNamedArgs{"batch": batch, "after": after, "limit": limit})
	if err != nil {
		return nil, problem("list pending units", err)
	}
	units, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (catalog.PendingUnit, error) {
		var u catalog.PendingUnit
		if err := row.Scan(&u.UnitKey, &u.TileID, &u.Identity, &u.ClientKey, &u.Status); err != nil {
			return u, err
		}
		var err error
		u.Identity, err = canonical(u.Identity)
		return u, err
	})
	return units, problem("list pending units", err)
}

// What a claim's request was handed before, and still holds.
const (
	handed = `
FROM catalog.attempts a
WHERE a.owner = @owner AND a.state = 'open' AND a.request_id = @request
  AND a.batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name)`
	selectHanded = `
SELECT ` + attemptColumns + `, coalesce(u.client_key, '')
FROM (SELECT a.*` + handed + `) a
JOIN catalog.units u USING (unit_key)
ORDER BY a.attempt_id`
)

func scanHanded(row pgx.CollectableRow) (upsert.Handed, error) {
	var h upsert.Handed
	err := row.Scan(append(attemptFields(&h.Attempt), &h.ClientKey)...)
	if err != nil {
		return h, err
	}
	h.Identity, err = canonical(h.Identity)
	return h, err
}

// lookUp has the statements of a transaction look rows up one by one, in indexes; so does
// LATERAL (… LIMIT 1) where one joins; and plans them anew. ⚗ A plan that was made while a table was small reads
// it, or its index, from end to end for ever after: the work of a batch grows with its
// square.
const lookUp = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true)`

// Who looks at a unit puts its due_at off: until its lease or its pause ends, for ever
// where it is done, or for as long as a claim may take where it is due. What each clause
// finds was true when the statement began. Whoever has changed it since writes due_at
// after this one, for he waits for the row's lock; but for who released the unit before
// its row was locked, so that one that is quarantined is looked at again.
const reserveUnits = `
WITH picked AS MATERIALIZED (
    SELECT batch_id, unit_key FROM catalog.batch_units
    WHERE batch_id = (SELECT batch_id FROM catalog.batches WHERE name = @name) AND due_at <= statement_timestamp()
      AND NOT (@first AND EXISTS (SELECT` + handed + `))
    ORDER BY due_at LIMIT @limit FOR UPDATE SKIP LOCKED
), looked AS (
    SELECT p.batch_id, p.unit_key, a.unit_key IS NOT NULL AS held, t.attempt_id, t.store_id, t.object_key, t.size_bytes, t.etag,
           CASE WHEN t.withdrawn_at IS NOT NULL THEN NULL
                WHEN a.state = 'promoting' OR a.lease_until >= statement_timestamp() THEN greatest(a.lease_until, clock_timestamp() + interval '1 second')
                WHEN t.unit_key IS NOT NULL AND h.lost_since IS NULL THEN NULL
                WHEN r.quarantined_as IS NOT NULL THEN NULL
                WHEN t.published_at IS NOT NULL AND s.unit_key <> p.unit_key THEN NULL
                WHEN r.due_at > statement_timestamp() THEN r.due_at
                ELSE 'infinity' END AS next
    FROM picked p
    LEFT JOIN LATERAL (SELECT * FROM catalog.tiles t WHERE t.unit_key = p.unit_key LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT * FROM catalog.tile_health h WHERE h.unit_key = t.unit_key LIMIT 1) h ON true
    LEFT JOIN LATERAL (SELECT * FROM catalog.slots s WHERE s.collection_id = t.collection_id AND s.tile_id = t.tile_id LIMIT 1) s ON true
    LEFT JOIN LATERAL (SELECT * FROM catalog.attempts a WHERE a.unit_key = p.unit_key AND a.state IN ('open', 'promoting') LIMIT 1) a ON true
    LEFT JOIN LATERAL (SELECT * FROM catalog.retries r WHERE r.unit_key = p.unit_key LIMIT 1) r ON true
), put_off AS (
    UPDATE catalog.batch_units b
    SET due_at = CASE WHEN l.next = 'infinity' THEN clock_timestamp() + @hold::interval ELSE l.next END
    FROM looked l WHERE b.batch_id = l.batch_id AND b.unit_key = l.unit_key
)
SELECT l.next = 'infinity', l.held, u.unit_key, u.tile_id, u.version, u.identity, coalesce(u.client_key, ''),
       l.attempt_id, l.store_id, l.object_key, l.size_bytes, l.etag
FROM looked l JOIN catalog.units u USING (unit_key)`

// Reserve implements upsert.Ledger, in one round trip. What is put off need not outlive a
// crash of the database: its commit does not wait for the disk.
func (db *DB) Reserve(ctx context.Context, req upsert.ClaimRequest, first bool, limit int, hold time.Duration) (upsert.Reserved, error) {
	var r upsert.Reserved
	var batch *uuid.UUID
	var collection *catalog.Collection
	name := pgx.StrictNamedArgs{"name": req.Batch}
	queue := &pgx.Batch{}
	queue.Queue(relaxCommit)
	queue.Queue(lookUp)
	queueOne(queue, `SELECT batch_id FROM catalog.batches WHERE name = @name`, name, pgx.RowTo[uuid.UUID], &batch)
	queueOne(queue, selectCollection+` WHERE c.collection_id = (SELECT collection_id FROM catalog.batches WHERE name = @name)`, name, scanCollection, &collection)
	if first {
		queue.Queue(selectHanded, pgx.StrictNamedArgs{"name": req.Batch, "owner": req.Owner, "request": req.RequestID}).Query(func(rows pgx.Rows) (err error) {
			r.Handed, err = pgx.CollectRows(rows, scanHanded)
			return err
		})
	}
	queue.Queue(reserveUnits, pgx.StrictNamedArgs{
		"name": req.Batch, "owner": req.Owner, "request": req.RequestID, "first": first, "limit": limit, "hold": hold,
	}).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			r.Looked++
			if due, err := scanDue(rows); err != nil {
				return err
			} else if due != nil {
				r.Due = append(r.Due, *due)
			}
		}
		return rows.Err()
	})
	err := db.pool.SendBatch(ctx, queue).Close()
	switch {
	case err != nil:
		return r, problem("reserve units", err)
	case batch == nil || collection == nil:
		return r, unknownBatch(req.Batch)
	}
	r.BatchID, r.Collection = *batch, *collection
	return r, nil
}

// scanDue is a unit that was looked at; nil where it is not due.
func scanDue(row pgx.CollectableRow) (*upsert.Due, error) {
	var isDue *bool
	var d upsert.Due
	var attempt *uuid.UUID
	var store, object, etag *string
	var size *int64
	if err := row.Scan(&isDue, &d.Late, &d.UnitKey, &d.TileID, &d.Version, &d.Identity, &d.ClientKey, &attempt, &store, &object, &size, &etag); err != nil {
		return nil, err
	}
	if isDue == nil || !*isDue {
		return nil, nil
	}
	if attempt != nil {
		d.Tile = &upsert.DueTile{AttemptID: *attempt, StoreID: *store, ObjectKey: *object, SizeBytes: *size, ETag: *etag}
	}
	var err error
	d.Identity, err = canonical(d.Identity)
	return &d, err
}

// Unreserve implements upsert.Ledger.
func (db *DB) Unreserve(ctx context.Context, batch uuid.UUID, units []uuid.UUID) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.batch_units SET due_at = clock_timestamp() WHERE batch_id = @batch AND unit_key = ANY(@units) AND due_at IS NOT NULL`,
		pgx.StrictNamedArgs{"batch": batch, "units": units})
	return problem("give units back", err)
}

const (
	expireMany = `
WITH late AS (
    SELECT attempt_id FROM catalog.attempts
    WHERE unit_key = ANY(@units) AND state = 'open' AND lease_until < clock_timestamp()
    ORDER BY attempt_id FOR UPDATE
), ended AS (
    UPDATE catalog.attempts a SET state = 'expired', ended_at = clock_timestamp()
    FROM late WHERE a.attempt_id = late.attempt_id AND a.state = 'open'
    RETURNING a.unit_key, a.owner, a.state, a.ended_at, a.batch_id
)` + countExpiries
	// As insertAttempt, for many that all stand alike; their slots and units are there.
	insertAttempts = `
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type,
                              staging_key, object_key, replaces, batch_id, lease_until)
SELECT n.attempt_id, n.unit_key, @request, @owner, 0, 'open', @store, @media_type,
       n.staging_key, n.object_key, n.replaces, @batch, clock_timestamp() + @lease::interval
FROM unnest(@attempts::uuid[], @units::uuid[], @staging_keys::text[], @object_keys::text[], @replaces::uuid[])
     AS n (attempt_id, unit_key, staging_key, object_key, replaces)
WHERE coalesce((SELECT t.attempt_id IS NOT DISTINCT FROM n.replaces FROM catalog.tiles t WHERE t.unit_key = n.unit_key LIMIT 1), true)
  AND NOT EXISTS (SELECT FROM catalog.attempts o WHERE o.owner = @owner AND o.state = 'open' AND o.request_id = @request AND o.batch_id = @batch
                  AND o.attempt_id <> ALL(@mine::uuid[]))
ORDER BY n.unit_key
ON CONFLICT DO NOTHING
RETURNING attempt_id, lease_until`
	// A request that was sent twice at once is answered once: a statement before this one
	// takes the lock, so that this sees what the other has made.
	lockRequest = `SELECT pg_advisory_xact_lock(hashtextextended(@batch::text || ' ' || @owner::text || ' ' || @request::text, 0))`
	// Requests whose attempts at these units have ended.
	selectReused = `
SELECT EXISTS (SELECT FROM catalog.attempts
               WHERE unit_key = ANY(@units) AND owner = @owner AND request_id = @request AND state NOT IN ('open', 'promoting'))`
	dropUndueMany = `
DELETE FROM catalog.attempts a
WHERE a.attempt_id = ANY(@attempts)
  AND (SELECT r.quarantined_as IS NOT NULL OR r.due_at > clock_timestamp() FROM catalog.retries r WHERE r.unit_key = a.unit_key LIMIT 1)
RETURNING a.attempt_id`
)

// OpenMany implements upsert.Ledger: statements that one implicit transaction holds
// together, in one round trip, and one more where no attempt was made.
func (db *DB) OpenMany(ctx context.Context, o upsert.Opening) (leases map[uuid.UUID]time.Time, reused bool, err error) {
	n := len(o.Attempts)
	ids, units, replaces := make([]key, n), make([]key, n), make([]*uuid.UUID, n)
	staging, objects := make([]string, n), make([]string, n)
	for i, a := range o.Attempts {
		ids[i], units[i], replaces[i], staging[i], objects[i] = key(a.ID), key(a.UnitKey), a.Replaces, a.StagingKey, a.ObjectKey
	}
	first := o.Attempts[0]
	mine := o.Mine
	if mine == nil {
		mine = []uuid.UUID{}
	}
	queue := &pgx.Batch{}
	queue.Queue(lookUp)
	queue.Queue(lockRequest, pgx.StrictNamedArgs{"batch": first.BatchID, "owner": first.Owner, "request": first.RequestID})
	if len(o.Late) > 0 {
		queue.Queue(expireMany, pgx.StrictNamedArgs{"units": o.Late})
	}
	leases = make(map[uuid.UUID]time.Time, n)
	var id key
	var until time.Time
	each(queue, insertAttempts, pgx.StrictNamedArgs{
		"request": first.RequestID, "owner": first.Owner, "store": first.StoreID, "media_type": first.MediaType, "batch": first.BatchID, "lease": o.Lease,
		"attempts": ids, "units": units, "staging_keys": staging, "object_keys": objects, "replaces": replaces, "mine": mine,
	}, []any{&id, &until}, func() { leases[id] = until })
	each(queue, dropUndueMany, pgx.StrictNamedArgs{"attempts": ids}, []any{&id}, func() { delete(leases, id) })
	if err := db.pool.SendBatch(ctx, queue).Close(); err != nil || len(leases) > 0 {
		return leases, false, problem("open attempts", err)
	}
	err = db.pool.QueryRow(ctx, selectReused, pgx.StrictNamedArgs{"units": units, "owner": first.Owner, "request": first.RequestID}).Scan(&reused)
	return leases, reused, problem("read why there are no attempts", err)
}

// NextDue implements upsert.Ledger.
func (db *DB) NextDue(ctx context.Context, batch uuid.UUID) (time.Duration, bool, error) {
	var after float64
	err := db.pool.QueryRow(ctx, `
SELECT greatest(extract(epoch FROM due_at - statement_timestamp())::float8, 0) FROM catalog.batch_unit_status
WHERE batch_id = @batch AND due_at IS NOT NULL AND status NOT IN ('done', 'quarantined')
ORDER BY due_at LIMIT 1`, pgx.StrictNamedArgs{"batch": batch}).Scan(&after)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return seconds(after), true, problem("read when a unit is due", err)
}

// Leased implements upsert.Ledger.
func (db *DB) Leased(ctx context.Context, owner string, limit int) ([]uuid.UUID, error) {
	rows, err := db.pool.Query(ctx, `SELECT attempt_id FROM catalog.attempts WHERE owner = @owner AND state = 'open' ORDER BY attempt_id LIMIT @limit`,
		pgx.StrictNamedArgs{"owner": owner, "limit": limit})
	if err != nil {
		return nil, problem("list an owner's leases", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return ids, problem("list an owner's leases", err)
}

// Outage implements upsert.Ledger. It counts no further than to what is an outage.
func (db *DB) Outage(ctx context.Context, batch uuid.UUID, reason string, share float64, least int) (bool, error) {
	var outage bool
	err := db.pool.QueryRow(ctx, `
WITH enough AS (
    SELECT greatest(@least, floor(@share::float8 * expected)::bigint + 1) AS units FROM catalog.batches WHERE batch_id = @batch
)
SELECT (SELECT count(*) FROM (
            SELECT FROM catalog.retries WHERE batch_id = @batch AND reason = @reason AND class = 'transient' AND quarantined_as IS NULL LIMIT (SELECT units FROM enough)) AS failing)
       >= (SELECT units FROM enough)`,
		pgx.StrictNamedArgs{"batch": batch, "reason": reason, "share": share, "least": least}).Scan(&outage)
	return outage, problem("count what fails for one reason", err)
}
