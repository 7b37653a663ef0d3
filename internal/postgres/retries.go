package postgres

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// What becomes of a unit is told its batches in the same statement: when a claim is to
// look at it again.
//
// Whoever writes a unit's retries has ended the attempt that held it in the same
// transaction, so that nobody else does: but for Release, which takes the row away, and
// waits where it is locked. Attempts are locked before retries, those in key order.

// failAttempt ends an attempt, counts that, judges its unit, and records what was
// judged. A unit that failed for the first time has no row to lock.
const failAttempt = `
WITH ended AS (
    UPDATE catalog.attempts
    SET state = 'failed', intent = NULL, given = '{}', ended_at = clock_timestamp(),
        error_code = nullif(@code, ''), error_message = nullif(@message, '')
    WHERE attempt_id = @id AND state = @from
    RETURNING attempt_id, unit_key, owner, ended_at, batch_id
), before AS (
    SELECT r.unit_key, r.tries FROM catalog.retries r JOIN ended USING (unit_key) FOR UPDATE OF r
), counted AS (
    SELECT e.*, u.collection_id, u.tile_id, coalesce(b.tries, 0) + @spent::boolean::integer AS tries
    FROM ended e JOIN catalog.units u USING (unit_key) LEFT JOIN before b USING (unit_key)
), judged AS (
    SELECT n.*,
           n.ended_at + @jitter::float8 * least(c.retry_cap_seconds, c.retry_base_seconds * 2 ^ least(greatest(n.tries - 1, 0), 60)) * interval '1 second' AS due_at,
           CASE WHEN @class = 'deterministic' THEN 'deterministic'
                WHEN @spent AND n.tries > c.max_retries THEN 'exhausted' END AS quarantined_as
    FROM counted n JOIN catalog.collections c USING (collection_id)
), failed AS (
    INSERT INTO catalog.failures (attempt_id, unit_key, collection_id, tile_id, class, reason, message, worker, failed_at, tries, spent, due_at, quarantined_as)
    SELECT attempt_id, unit_key, collection_id, tile_id, @class, @reason, @message, owner, ended_at, tries, @spent, due_at, quarantined_as FROM judged
), queued AS (
    UPDATE catalog.batch_units b SET due_at = CASE WHEN j.quarantined_as IS NULL THEN j.due_at END FROM judged j WHERE b.unit_key = j.unit_key
)
INSERT INTO catalog.retries (unit_key, collection_id, tile_id, tries, expiries, class, reason, message, worker,
                             first_failed_at, last_failed_at, due_at, quarantined_as, quarantined_at, batch_id)
SELECT unit_key, collection_id, tile_id, tries, 0, @class, @reason, @message, owner,
       ended_at, ended_at, due_at, quarantined_as, CASE WHEN quarantined_as IS NOT NULL THEN ended_at END, batch_id
FROM judged
ON CONFLICT ON CONSTRAINT retries_pkey DO UPDATE SET
    batch_id = EXCLUDED.batch_id, tries = EXCLUDED.tries, class = EXCLUDED.class, reason = EXCLUDED.reason, message = EXCLUDED.message, worker = EXCLUDED.worker,
    last_failed_at = EXCLUDED.last_failed_at, due_at = EXCLUDED.due_at,
    quarantined_as = EXCLUDED.quarantined_as, quarantined_at = EXCLUDED.quarantined_at`

// What was recorded of a failure before it was judged has neither tries nor due_at.
const selectFailed = `
SELECT attempt_id, unit_key, coalesce(class, 'transient'), reason, coalesce(tries, 0), coalesce(spent, true),
       greatest(extract(epoch FROM coalesce(due_at, failed_at) - clock_timestamp())::float8, 0), coalesce(quarantined_as, '')
FROM catalog.failures WHERE attempt_id = @id`

// Fail implements upsert.Ledger: statements that one implicit transaction holds
// together, in one round trip.
func (db *DB) Fail(ctx context.Context, id uuid.UUID, from catalog.AttemptState, f upsert.Failure) (*upsert.Failed, error) {
	batch := &pgx.Batch{}
	batch.Queue(failAttempt, pgx.StrictNamedArgs{
		"id": id, "from": from, "code": f.Code, "class": f.Class, "reason": f.Reason, "message": f.Message, "spent": f.Spent, "jitter": f.Jitter,
	})
	var failed *upsert.Failed
	queueOne(batch, selectFailed, pgx.StrictNamedArgs{"id": id}, scanFailed, &failed)
	return failed, problem("record a failure", db.pool.SendBatch(ctx, batch).Close())
}

func scanFailed(row pgx.CollectableRow) (upsert.Failed, error) {
	var f upsert.Failed
	var after float64
	err := row.Scan(&f.AttemptID, &f.UnitKey, &f.Class, &f.Reason, &f.Tries, &f.Spent, &after, &f.QuarantinedAs)
	f.RetryAfter = seconds(after)
	return f, err
}

// countExpiries follows "WITH … ended AS (…)": attempts that ended without a word. Their
// units are due at once, or quarantined.
const countExpiries = `, before AS (
    SELECT r.unit_key, r.tries, r.expiries FROM catalog.retries r WHERE r.unit_key IN (SELECT unit_key FROM ended) ORDER BY r.unit_key FOR UPDATE
), counted AS (
    SELECT e.*, CASE e.state WHEN 'expired' THEN 'lease_expired' ELSE e.state END AS reason,
           u.collection_id, u.tile_id, coalesce(b.tries, 0) AS tries, coalesce(b.expiries, 0) + 1 AS expiries
    FROM ended e JOIN catalog.units u USING (unit_key) LEFT JOIN before b USING (unit_key)
), judged AS (
    SELECT n.*, CASE WHEN n.expiries > c.max_expiries THEN 'expired' END AS quarantined_as
    FROM counted n JOIN catalog.collections c USING (collection_id)
), queued AS (
    UPDATE catalog.batch_units b SET due_at = CASE WHEN j.quarantined_as IS NULL THEN j.ended_at END FROM judged j WHERE b.unit_key = j.unit_key
)
INSERT INTO catalog.retries (unit_key, collection_id, tile_id, tries, expiries, class, reason, worker,
                             first_failed_at, last_failed_at, due_at, quarantined_as, quarantined_at, batch_id)
SELECT unit_key, collection_id, tile_id, tries, expiries, 'transient', reason, owner, ended_at, ended_at, ended_at,
       quarantined_as, CASE WHEN quarantined_as IS NOT NULL THEN ended_at END, batch_id
FROM judged
ORDER BY unit_key
ON CONFLICT ON CONSTRAINT retries_pkey DO UPDATE SET
    batch_id = EXCLUDED.batch_id, expiries = EXCLUDED.expiries, class = EXCLUDED.class, reason = EXCLUDED.reason, message = '', worker = EXCLUDED.worker,
    last_failed_at = EXCLUDED.last_failed_at, due_at = EXCLUDED.due_at,
    quarantined_as = EXCLUDED.quarantined_as, quarantined_at = EXCLUDED.quarantined_at`

// retryColumns are those of scanRetry.
const retryColumns = `r.tries, r.expiries, r.class, r.reason, r.message, r.worker, r.first_failed_at, r.last_failed_at, r.due_at, coalesce(r.quarantined_as, ''), r.quarantined_at`

func retryFields(r *catalog.Retry) []any {
	return []any{&r.Tries, &r.Expiries, &r.Class, &r.Reason, &r.Message, &r.Worker, &r.FirstFailedAt, &r.LastFailedAt, &r.DueAt, &r.QuarantinedAs, &r.QuarantinedAt}
}

const selectRetry = `SELECT ` + retryColumns + `, greatest(extract(epoch FROM r.due_at - clock_timestamp())::float8, 0) FROM catalog.retries r WHERE r.unit_key = @unit`

func scanRetry(row pgx.CollectableRow) (upsert.Retry, error) {
	var r upsert.Retry
	var after float64
	err := row.Scan(append(retryFields(&r.Retry), &after)...)
	r.After = seconds(after)
	return r, err
}

const selectQuarantined = `
SELECT r.unit_key, r.collection_id, r.tile_id, u.version, u.identity, ` + retryColumns + `
FROM catalog.retries r JOIN catalog.units u USING (unit_key)
WHERE r.quarantined_as IS NOT NULL`

func scanQuarantined(row pgx.CollectableRow) (catalog.QuarantinedUnit, error) {
	var q catalog.QuarantinedUnit
	err := row.Scan(append([]any{&q.UnitKey, &q.Collection, &q.TileID, &q.Version, &q.Identity}, retryFields(&q.Retry)...)...)
	if err != nil {
		return q, err
	}
	q.Identity, err = canonical(q.Identity)
	return q, err
}

// quarantineWhere are the conditions of a filter. Each is there only where it is asked
// for, so that the index serves.
func quarantineWhere(f catalog.QuarantineFilter) (where string, args pgx.StrictNamedArgs) {
	args = pgx.StrictNamedArgs{}
	if len(f.Units) > 0 {
		where += ` AND r.unit_key = ANY(@units)`
		args["units"] = f.Units
	}
	if f.Collection != "" {
		where += ` AND r.collection_id = @collection`
		args["collection"] = f.Collection
	}
	if f.Batch != "" {
		where += ` AND r.unit_key IN (SELECT b.unit_key FROM catalog.batch_units b JOIN catalog.batches USING (batch_id) WHERE name = @batch)`
		args["batch"] = f.Batch
	}
	if f.Class != "" {
		where += ` AND r.class = @class`
		args["class"] = f.Class
	}
	if f.Reason != "" {
		where += ` AND r.reason LIKE @reason`
		args["reason"] = pattern(f.Reason)
	}
	return where, args
}

// Quarantined lists quarantined units by collection, tile id and key, at most limit of
// those after the unit of this key, uuid.Nil for the first. CodeInvalidRequest.
func (db *DB) Quarantined(ctx context.Context, f catalog.QuarantineFilter, after uuid.UUID, limit int) ([]catalog.QuarantinedUnit, error) {
	where, args := quarantineWhere(f)
	args["limit"] = limit
	if after != uuid.Nil {
		// The unit tells its place even when it has been released.
		unit, err := db.unitSlot(ctx, after)
		if err != nil {
			return nil, err
		}
		where += ` AND (r.collection_id, r.tile_id, r.unit_key) > (@after_collection, @after_tile, @after)`
		args["after_collection"], args["after_tile"], args["after"] = unit.collection, unit.tile, after
	}
	rows, err := db.pool.Query(ctx, selectQuarantined+where+` ORDER BY r.collection_id, r.tile_id, r.unit_key LIMIT @limit`, args)
	if err != nil {
		return nil, problem("list quarantined units", err)
	}
	units, err := pgx.CollectRows(rows, scanQuarantined)
	return units, problem("list quarantined units", err)
}

type slotName struct{ collection, tile string }

func (db *DB) unitSlot(ctx context.Context, unit uuid.UUID) (slotName, error) {
	batch := &pgx.Batch{}
	var slot *slotName
	queueOne(batch, `SELECT collection_id, tile_id FROM catalog.units WHERE unit_key = @unit`, pgx.StrictNamedArgs{"unit": unit},
		func(row pgx.CollectableRow) (s slotName, err error) {
			err = row.Scan(&s.collection, &s.tile)
			return s, err
		}, &slot)
	switch err := db.pool.SendBatch(ctx, batch).Close(); {
	case err != nil:
		return slotName{}, problem("find a unit's place", err)
	case slot == nil:
		return slotName{}, catalog.Errorf(catalog.CodeInvalidRequest, "there is no unit %s to go on after: send next of the page before", unit).At("after")
	}
	return *slot, nil
}

const selectFailures = `
SELECT attempt_id, coalesce(class, ''), reason, message, worker, coalesce(spent, true), failed_at
FROM catalog.failures WHERE unit_key = @unit ORDER BY failed_at DESC LIMIT 20`

// QuarantinedUnit is one of them, with its last failures, the latest first. CodeNotFound.
func (db *DB) QuarantinedUnit(ctx context.Context, unit uuid.UUID) (catalog.QuarantinedUnit, []catalog.FailedAttempt, error) {
	var quarantined *catalog.QuarantinedUnit
	var failures []catalog.FailedAttempt
	err := db.snapshot(ctx, "read a quarantined unit", func(batch *pgx.Batch) {
		args := pgx.StrictNamedArgs{"unit": unit}
		queueOne(batch, selectQuarantined+` AND r.unit_key = @unit`, args, scanQuarantined, &quarantined)
		batch.Queue(selectFailures, args).Query(func(rows pgx.Rows) (err error) {
			failures, err = pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.FailedAttempt])
			return err
		})
	})
	switch {
	case err != nil:
		return catalog.QuarantinedUnit{}, nil, err
	case quarantined == nil:
		return catalog.QuarantinedUnit{}, nil, catalog.Errorf(catalog.CodeNotFound, "unit %s is not quarantined", unit)
	}
	return *quarantined, failures, nil
}

// Release has quarantined units tried again, as if they had never failed. What was
// released is audited, up to a thousand by key.
func (db *DB) Release(ctx context.Context, f catalog.QuarantineFilter, who, why string) (int, error) {
	where, args := quarantineWhere(f)
	args["who"], args["why"], args["target"] = who, why, f.String()
	var released int
	err := db.pool.QueryRow(ctx, `
WITH picked AS (
    SELECT r.unit_key FROM catalog.retries r WHERE r.quarantined_as IS NOT NULL`+where+` ORDER BY r.unit_key FOR UPDATE
), gone AS (
    DELETE FROM catalog.retries r USING picked WHERE r.unit_key = picked.unit_key RETURNING r.unit_key
), queued AS (
    UPDATE catalog.batch_units b SET due_at = clock_timestamp() FROM gone WHERE b.unit_key = gone.unit_key
), audited AS (
    INSERT INTO catalog.audit (who, act, target, why, details)
    SELECT @who, 'release from quarantine', @target, @why,
           jsonb_build_object('released', count(*), 'units', (SELECT coalesce(jsonb_agg(unit_key), '[]') FROM (SELECT unit_key FROM gone LIMIT 1000) AS first))
    FROM gone HAVING count(*) > 0
)
SELECT count(*) FROM gone`, args).Scan(&released)
	return released, problem("release units", err)
}

// pattern is a reason with * and ? as LIKE has it.
func pattern(reason string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`, `?`, `_`).Replace(reason)
}
