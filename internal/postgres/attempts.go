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

// takeable holds for the attempts that Open may end: see upsert.Ledger.
const takeable = `(state = 'open' AND (lease_until < clock_timestamp() OR (owner = @owner AND try < @try)))`

const selectHold = `
SELECT state, owner, extract(epoch FROM lease_until - clock_timestamp())::float8
FROM catalog.attempts
WHERE unit_key = @unit AND state IN ('open', 'promoting') AND NOT ` + takeable

const selectReplay = `SELECT attempt_id FROM catalog.attempts WHERE unit_key = @unit AND owner = @owner AND request_id = @request`

// What stands in the way of a unit's names: its own key with another identity
// or another client key; its client key with another unit.
const selectCollision = `
SELECT CASE
       WHEN unit_key <> @unit THEN 'client_key ' || client_key || ' stands for unit ' || unit_key
       WHEN identity <> @identity::jsonb OR collection_id <> @collection OR tile_id <> @tile
            THEN 'unit_key ' || unit_key || ' stands for another identity'
       ELSE 'this identity was first sent with client_key ' || client_key
       END
FROM catalog.units
WHERE (unit_key = @unit AND (identity <> @identity::jsonb OR collection_id <> @collection OR tile_id <> @tile
                             OR (@client_key <> '' AND client_key <> @client_key)))
   OR (collection_id = @collection AND client_key = nullif(@client_key, '') AND unit_key <> @unit)
LIMIT 1`

const selectExpected = `
SELECT batch_id, collection_id, EXISTS (SELECT FROM catalog.batch_units u WHERE u.batch_id = b.batch_id AND u.unit_key = @unit)
FROM catalog.batches b WHERE name = @batch`

// Stand implements upsert.Ledger, in one round trip. The hold is read before
// the row: a step that ends in between is then seen as done, or as held, and
// never as neither.
func (db *DB) Stand(ctx context.Context, unit catalog.Unit, by upsert.Claim) (upsert.Standing, error) {
	var standing upsert.Standing
	batch := &pgx.Batch{}
	queueOne(batch, selectHold, pgx.StrictNamedArgs{"unit": unit.Key, "owner": by.Owner, "try": by.Try}, scanHold, &standing.Hold)
	queueOne(batch, selectReplay, pgx.StrictNamedArgs{"unit": unit.Key, "owner": by.Owner, "request": by.RequestID}, pgx.RowTo[uuid.UUID], &standing.Replay)
	queueOne(batch, selectRetry, pgx.StrictNamedArgs{"unit": unit.Key}, scanRetry, &standing.Retry)
	queueOne(batch, selectTile+tileWhere, pgx.StrictNamedArgs{"unit": unit.Key}, scanTile, &standing.Tile)
	queueOne(batch, selectCollection+collectionWhere, pgx.StrictNamedArgs{"collection": unit.Collection}, scanCollection, &standing.Collection)
	if by.Batch != "" {
		queueOne(batch, selectExpected, pgx.StrictNamedArgs{"batch": by.Batch, "unit": unit.Key}, pgx.RowToStructByPos[upsert.StandingBatch], &standing.Batch)
	}
	var collision *string
	queueOne(batch, selectCollision, unitArgs(unit, nil), pgx.RowTo[string], &collision)
	if err := db.pool.SendBatch(ctx, batch).Close(); err != nil {
		return standing, problem("read how a unit stands", err)
	}
	if collision != nil {
		standing.Collision = *collision
	}
	return standing, nil
}

// queueOne queues a query of at most one row, and has it left in *into.
func queueOne[T any](batch *pgx.Batch, sql string, args pgx.StrictNamedArgs, scan pgx.RowToFunc[T], into **T) {
	batch.Queue(sql, args).Query(func(rows pgx.Rows) error {
		value, err := pgx.CollectOneRow(rows, scan)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		*into = &value
		return err
	})
}

func scanHold(row pgx.CollectableRow) (upsert.Hold, error) {
	var hold upsert.Hold
	var remaining float64
	err := row.Scan(&hold.State, &hold.Owner, &remaining)
	hold.Remaining = time.Duration(remaining * float64(time.Second))
	return hold, err
}

func unitArgs(unit catalog.Unit, more pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args := pgx.StrictNamedArgs{
		"unit": unit.Key, "collection": unit.Collection, "tile": unit.TileID,
		"identity": string(unit.Identity.Canonical()), "client_key": unit.ClientKey,
	}
	for name, value := range more {
		args[name] = value
	}
	return args
}

// A version gets its rank at its first begin, a unit its place in the order. In this
// order, one after another, as units are added to a batch: two that make the same ones
// cannot wait for one another.
const (
	ensureVersion = `
INSERT INTO catalog.collection_versions (collection_id, version) VALUES (@collection, @version)
ON CONFLICT ON CONSTRAINT collection_versions_pkey DO NOTHING`
	ensureSlot = `
INSERT INTO catalog.slots (collection_id, tile_id) VALUES (@collection, @tile)
ON CONFLICT ON CONSTRAINT slots_pkey DO NOTHING`
	ensureUnit = `
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity, client_key)
VALUES (@unit, @collection, @tile, @version, @identity::jsonb, nullif(@client_key, ''))
ON CONFLICT ON CONSTRAINT units_pkey DO UPDATE SET client_key = EXCLUDED.client_key
    WHERE units.client_key IS NULL AND EXCLUDED.client_key IS NOT NULL`
)

// named holds when the unit goes by the client's key: another begin may just have
// given it one that differs. It is read after ensureUnit has waited for that.
const named = `(@client_key = '' OR @client_key = (SELECT client_key FROM catalog.units WHERE unit_key = @unit))`

const endTaken = `
WITH ended AS (
    UPDATE catalog.attempts
    SET state = CASE WHEN lease_until < clock_timestamp() THEN 'expired' ELSE 'replaced' END, ended_at = clock_timestamp()
    WHERE unit_key = @unit AND (owner, request_id) <> (@owner, @request) AND ` + takeable + ` AND ` + named + `
    RETURNING unit_key, owner, state, ended_at, batch_id
)` + countExpiries

// No arbiter is named: a held unit, a replayed request and a held staged file
// all mean that there is no new attempt, and whyNot says which.
// Nor is there one when the unit has got a row since it was looked at.
const insertAttempt = `
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type,
                              staging_key, object_key, replaces, given, intent, batch_id, lease_until)
SELECT @attempt, @unit, @request, @owner, @try, @state, @store, @media_type,
       @staging_key, @object_key, @replaces, @given, @intent, @batch, clock_timestamp() + @lease::interval
WHERE ` + named + `
  AND NOT EXISTS (SELECT FROM catalog.tiles t WHERE t.unit_key = @unit AND t.attempt_id IS DISTINCT FROM @replaces)
ON CONFLICT DO NOTHING
RETURNING lease_until`

// dropUndue undoes insertAttempt where the unit is quarantined, or not due yet. Only a
// statement after that can tell: it may have waited for the failure of the attempt
// before, and not have seen what became of the unit by it.
const dropUndue = `
DELETE FROM catalog.attempts a USING catalog.retries r
WHERE a.attempt_id = @attempt AND r.unit_key = a.unit_key AND (r.quarantined_as IS NOT NULL OR r.due_at > clock_timestamp())
RETURNING a.attempt_id`

const selectStaged = `
SELECT attempt_id FROM catalog.attempts
WHERE store_id = @store AND staging_key = @staging_key AND unit_key <> @unit AND state IN ('open', 'promoting')`

// Open implements upsert.Ledger: statements that one implicit transaction holds
// together, in one round trip, and one more where no attempt was made.
func (db *DB) Open(ctx context.Context, unit catalog.Unit, a catalog.Attempt, lease time.Duration) (upsert.Opened, error) {
	batch := &pgx.Batch{}
	batch.Queue(ensureVersion, pgx.StrictNamedArgs{"collection": unit.Collection, "version": a.Version})
	batch.Queue(ensureSlot, pgx.StrictNamedArgs{"collection": unit.Collection, "tile": unit.TileID})
	batch.Queue(ensureUnit, unitArgs(unit, pgx.StrictNamedArgs{"version": a.Version}))
	batch.Queue(endTaken, pgx.StrictNamedArgs{"unit": unit.Key, "owner": a.Owner, "try": a.Try, "request": a.RequestID, "client_key": unit.ClientKey})
	var until *time.Time
	queueOne(batch, insertAttempt, pgx.StrictNamedArgs{
		"attempt": a.ID, "unit": a.UnitKey, "request": a.RequestID, "owner": a.Owner, "try": a.Try, "state": a.State,
		"store": a.StoreID, "media_type": a.MediaType, "staging_key": a.StagingKey, "object_key": a.ObjectKey,
		"replaces": a.Replaces, "given": a.Given, "intent": a.Intent, "lease": lease, "batch": a.BatchID,
		"client_key": unit.ClientKey,
	}, pgx.RowTo[time.Time], &until)
	var undue *uuid.UUID
	queueOne(batch, dropUndue, pgx.StrictNamedArgs{"attempt": a.ID}, pgx.RowTo[uuid.UUID], &undue)
	err := db.pool.SendBatch(ctx, batch).Close()
	switch {
	case retryable(err):
		return upsert.Opened{Raced: true}, nil
	case violates(err, "units_client_key_key"):
		return upsert.Opened{}, catalog.Errorf(catalog.CodeKeyCollision, "client_key %s stands for another unit: one key stands for one identity; send another", unit.ClientKey).At("/client_key")
	case violates(err, "collection_versions_collection_id_fkey"), violates(err, "slots_collection_id_fkey"), violates(err, "units_collection_id_fkey"):
		return upsert.Opened{}, catalog.Errorf(catalog.CodeUnknownCollection, "collection %s was deleted meanwhile", unit.Collection).At("/collection")
	case err != nil:
		return upsert.Opened{}, problem("open an attempt", err)
	case undue != nil:
		return upsert.Opened{Raced: true}, nil
	case until == nil:
		return db.whyNot(ctx, unit, a)
	}
	return upsert.Opened{LeaseUntil: *until}, nil
}

// whyNot tells why Open made no attempt: raced, where what was in the way is gone.
func (db *DB) whyNot(ctx context.Context, unit catalog.Unit, a catalog.Attempt) (upsert.Opened, error) {
	var opened upsert.Opened
	var staged, misnamed *uuid.UUID
	batch := &pgx.Batch{}
	queueOne(batch, selectReplay, pgx.StrictNamedArgs{"unit": unit.Key, "owner": a.Owner, "request": a.RequestID}, pgx.RowTo[uuid.UUID], &opened.Replay)
	queueOne(batch, selectHold, pgx.StrictNamedArgs{"unit": unit.Key, "owner": a.Owner, "try": a.Try}, scanHold, &opened.Hold)
	queueOne(batch, `SELECT unit_key FROM catalog.units WHERE unit_key = @unit AND NOT `+named,
		pgx.StrictNamedArgs{"unit": unit.Key, "client_key": unit.ClientKey}, pgx.RowTo[uuid.UUID], &misnamed)
	queueOne(batch, selectStaged, pgx.StrictNamedArgs{"store": a.StoreID, "staging_key": a.StagingKey, "unit": unit.Key}, pgx.RowTo[uuid.UUID], &staged)
	err := db.pool.SendBatch(ctx, batch).Close()
	switch {
	case err != nil:
		return upsert.Opened{}, problem("read why there is no attempt", err)
	case opened.Replay != nil:
		return upsert.Opened{Replay: opened.Replay}, nil
	case misnamed != nil:
		return upsert.Opened{Raced: true}, nil
	}
	opened.Staged = opened.Hold == nil && staged != nil
	opened.Raced = opened.Hold == nil && staged == nil
	return opened, nil
}

// Name implements upsert.Ledger.
func (db *DB) Name(ctx context.Context, unit catalog.Unit) (bool, error) {
	tag, err := db.pool.Exec(ctx, `UPDATE catalog.units SET client_key = @client_key WHERE unit_key = @unit AND client_key IS NULL`,
		pgx.StrictNamedArgs{"unit": unit.Key, "client_key": unit.ClientKey})
	if violates(err, "units_client_key_key") {
		return false, nil
	}
	return tag.RowsAffected() == 1, problem("give a unit its client key", err)
}

// Leases are no promise that must outlive a crash of the database: their
// commits need not wait for the disk.
const relaxCommit = `SELECT set_config('synchronous_commit', 'off', true)`

const renewLeases = `
WITH mine AS (
    SELECT attempt_id FROM catalog.attempts
    WHERE attempt_id = ANY(@ids) AND state = 'open'
    ORDER BY attempt_id FOR UPDATE
)
UPDATE catalog.attempts a
SET lease_until = greatest(a.lease_until, clock_timestamp() + @lease::interval)
FROM mine WHERE a.attempt_id = mine.attempt_id AND a.state = 'open'`

const selectLeases = `
SELECT id, coalesce(state, ''), coalesce(lease_until, '-infinity') > 'epoch', coalesce(lease_until, 'epoch')
FROM unnest(@ids::uuid[]) WITH ORDINALITY asked (id, place)
LEFT JOIN catalog.attempts a ON a.attempt_id = id
ORDER BY place`

// Renew implements upsert.Ledger.
func (db *DB) Renew(ctx context.Context, ids []uuid.UUID, lease time.Duration) ([]upsert.Lease, error) {
	batch := &pgx.Batch{}
	batch.Queue(relaxCommit)
	batch.Queue(renewLeases, pgx.StrictNamedArgs{"ids": ids, "lease": lease})
	var leases []upsert.Lease
	batch.Queue(selectLeases, pgx.StrictNamedArgs{"ids": ids}).Query(func(rows pgx.Rows) (err error) {
		leases, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (upsert.Lease, error) {
			var l upsert.Lease
			var known bool
			err := row.Scan(&l.AttemptID, &l.State, &known, &l.Until)
			if !known || l.State.Ended() {
				l.Until = time.Time{}
			}
			return l, err
		})
		return err
	})
	return leases, problem("renew leases", db.pool.SendBatch(ctx, batch).Close())
}

// attemptColumns are those of attemptFields, of attempts a and units u.
const attemptColumns = `a.attempt_id, a.unit_key, u.collection_id, u.tile_id, u.version, u.identity, a.batch_id, a.request_id, a.owner, a.try, a.state,
       a.store_id, a.media_type, a.staging_key, a.object_key, a.replaces, a.given, a.intent, a.lease_until,
       coalesce(a.error_code, ''), coalesce(a.error_message, ''), a.created_at, a.ended_at`

func attemptFields(a *catalog.Attempt) []any {
	return []any{&a.ID, &a.UnitKey, &a.Collection, &a.TileID, &a.Version, &a.Identity, &a.BatchID, &a.RequestID, &a.Owner, &a.Try, &a.State,
		&a.StoreID, &a.MediaType, &a.StagingKey, &a.ObjectKey, &a.Replaces, &a.Given, &a.Intent, &a.LeaseUntil,
		&a.ErrorCode, &a.ErrorMessage, &a.CreatedAt, &a.EndedAt}
}

const selectAttempt = `
SELECT ` + attemptColumns + `
FROM catalog.attempts a
JOIN catalog.units u USING (unit_key)`

func scanAttempt(row pgx.CollectableRow) (catalog.Attempt, error) {
	var a catalog.Attempt
	err := row.Scan(attemptFields(&a)...)
	if err != nil {
		return a, err
	}
	a.Identity, err = canonical(a.Identity)
	return a, err
}

// Attempt implements upsert.Ledger.
func (db *DB) Attempt(ctx context.Context, id uuid.UUID) (catalog.Attempt, catalog.Collection, error) {
	return db.attempt(ctx, id, &pgx.Batch{})
}

// Resume implements upsert.Ledger, in one round trip. Of an attempt that is not open
// it writes nothing.
func (db *DB) Resume(ctx context.Context, id uuid.UUID, lease time.Duration) (catalog.Attempt, catalog.Collection, error) {
	batch := &pgx.Batch{}
	batch.Queue(relaxCommit)
	batch.Queue(renewLeases, pgx.StrictNamedArgs{"ids": []uuid.UUID{id}, "lease": lease})
	return db.attempt(ctx, id, batch)
}

// attempt reads one after what is queued already.
func (db *DB) attempt(ctx context.Context, id uuid.UUID, batch *pgx.Batch) (catalog.Attempt, catalog.Collection, error) {
	var attempt *catalog.Attempt
	var collection *catalog.Collection
	queueOne(batch, selectAttempt+` WHERE a.attempt_id = @id`, pgx.StrictNamedArgs{"id": id}, scanAttempt, &attempt)
	queueOne(batch, selectCollection+` WHERE c.collection_id = (SELECT collection_id FROM catalog.units JOIN catalog.attempts USING (unit_key) WHERE attempt_id = @id)`,
		pgx.StrictNamedArgs{"id": id}, scanCollection, &collection)
	if err := db.pool.SendBatch(ctx, batch).Close(); err != nil {
		return catalog.Attempt{}, catalog.Collection{}, problem("read an attempt", err)
	}
	if attempt == nil || collection == nil {
		return catalog.Attempt{}, catalog.Collection{}, catalog.Errorf(catalog.CodeUnknownAttempt, "there is no attempt %s: begin again", id)
	}
	return *attempt, *collection, nil
}

const intend = `
UPDATE catalog.attempts
SET state = 'promoting', intent = @intent, lease_until = clock_timestamp() + @deadline::interval
WHERE attempt_id = @id AND state = 'open'`

// Intend implements upsert.Ledger.
func (db *DB) Intend(ctx context.Context, id uuid.UUID, intent catalog.Intent, deadline time.Duration) (bool, error) {
	tag, err := db.pool.Exec(ctx, intend, pgx.StrictNamedArgs{"id": id, "intent": intent, "deadline": deadline})
	return tag.RowsAffected() == 1, problem("write the intent", err)
}

// What ends without a row is due at once in its batches.
const endAttempt = `
WITH ended AS (
    UPDATE catalog.attempts SET state = @to, intent = NULL, given = '{}', ended_at = clock_timestamp()
    WHERE attempt_id = @id AND state = @from
    RETURNING unit_key, ended_at
), queued AS (
    UPDATE catalog.batch_units b SET due_at = e.ended_at FROM ended e WHERE b.unit_key = e.unit_key
)
SELECT EXISTS (SELECT FROM ended)`

// End implements upsert.Ledger.
func (db *DB) End(ctx context.Context, id uuid.UUID, from, to catalog.AttemptState) (bool, error) {
	var ended bool
	err := db.pool.QueryRow(ctx, endAttempt, pgx.StrictNamedArgs{"id": id, "from": from, "to": to}).Scan(&ended)
	return ended, problem("end an attempt", err)
}
