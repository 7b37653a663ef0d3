package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
)

// Findings that are due an act. What is lost of an output that is not current, and does
// not wait for its batch, is not.
const insertActs = `
INSERT INTO catalog.reconcile_acts (plan_id, act_no, act, finding_id, kind, object_key, unit_key, attempt_id, size_bytes)
SELECT @plan, row_number() OVER (ORDER BY f.finding_id), a.act, f.finding_id, f.kind, f.object_key, f.unit_key, f.attempt_id, f.size_bytes
FROM catalog.findings f
JOIN (VALUES ('lost', @lost), ('mismatch', @mismatch), ('orphan', @orphan)) a (kind, act) ON a.kind = f.kind AND a.act <> 'leave'
WHERE f.store_id = @store AND f.state = 'open' AND starts_with(f.object_key, @prefix) AND (f.last_run >= @run OR f.found_by = 'scrub')
  AND (f.kind = 'orphan' OR EXISTS (
      SELECT FROM catalog.tiles t LEFT JOIN catalog.slots s USING (collection_id, tile_id)
      WHERE t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id AND t.withdrawn_at IS NULL AND (s.unit_key = t.unit_key OR t.published_at IS NULL)))`

// MakePlan implements reconcile.Plans.
func (db *DB) MakePlan(ctx context.Context, run int64, choices catalog.PlanChoices, who string) (catalog.Plan, error) {
	var plan int64
	err := db.within(ctx, "make a plan", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, planAnew); err != nil {
			return err
		}
		var store, prefix string
		var state catalog.RunState
		err := tx.QueryRow(ctx, `SELECT store_id, prefix, state FROM catalog.reconcile_runs WHERE run_id = @run FOR SHARE`, pgx.StrictNamedArgs{"run": run}).Scan(&store, &prefix, &state)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return unknownRun(run)
		case err != nil:
			return err
		case state == catalog.RunRunning:
			return catalog.Errorf(catalog.CodeRunNotComplete, "reconciliation %d is still running: plan when it is complete", run)
		case state != catalog.RunComplete:
			return catalog.Errorf(catalog.CodeRunNotComplete, "reconciliation %d is %s, so that nothing may be concluded from it: reconcile again, and plan that", run, state)
		}
		err = tx.QueryRow(ctx, `
INSERT INTO catalog.reconcile_plans (run_id, choices, catalogued, planned_by)
SELECT @run, @choices, (SELECT count(*) FROM catalog.tiles WHERE store_id = @store), @who
RETURNING plan_id`, pgx.StrictNamedArgs{"run": run, "choices": choices, "store": store, "who": who}).Scan(&plan)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insertActs, pgx.StrictNamedArgs{
			"plan": plan, "run": run, "store": store, "prefix": prefix,
			"lost": choices.Lost, "mismatch": choices.Mismatch, "orphan": choices.Orphan,
		})
		return err
	})
	if err != nil {
		return catalog.Plan{}, err
	}
	return db.Plan(ctx, plan)
}

const selectPlan = `
SELECT p.plan_id, p.run_id, r.store_id, p.state, p.choices, p.catalogued, p.planned_by, p.created_at, coalesce(p.applied_by, ''), p.why, coalesce(p.max_change, 0),
       p.started_at, p.ended_at, coalesce(p.error_code, ''), coalesce(p.error_message, ''),
       (SELECT coalesce(jsonb_agg(jsonb_build_object('act', act, 'state', state, 'acts', acts, 'bytes', bytes) ORDER BY act, state), '[]')
        FROM (SELECT act, state, count(*) AS acts, sum(size_bytes) AS bytes FROM catalog.reconcile_acts a WHERE a.plan_id = p.plan_id GROUP BY act, state) counts)
FROM catalog.reconcile_plans p JOIN catalog.reconcile_runs r USING (run_id)`

func (db *DB) scanPlan(row pgx.CollectableRow) (p catalog.Plan, err error) {
	err = row.Scan(&p.ID, &p.RunID, &p.StoreID, &p.State, &p.Choices, &p.Catalogued, &p.PlannedBy, &p.CreatedAt, &p.AppliedBy, &p.Why, &p.MaxChange,
		&p.StartedAt, &p.EndedAt, &p.ErrorCode, &p.ErrorMessage, &p.Counts)
	p.Store = db.storeName(p.StoreID)
	return p, err
}

// Plan implements reconcile.Plans.
func (db *DB) Plan(ctx context.Context, id int64) (catalog.Plan, error) {
	rows, err := db.pool.Query(ctx, selectPlan+` WHERE p.plan_id = @plan`, pgx.StrictNamedArgs{"plan": id})
	if err != nil {
		return catalog.Plan{}, problem("read a plan", err)
	}
	plan, err := pgx.CollectExactlyOneRow(rows, db.scanPlan)
	if errors.Is(err, pgx.ErrNoRows) {
		return plan, unknownPlan(id)
	}
	return plan, problem("read a plan", err)
}

func unknownPlan(id int64) error {
	return catalog.Errorf(catalog.CodeUnknownPlan, "there is no plan %d: make one of a reconciliation, with catalogd reconcile plan", id)
}

// PlansOf implements reconcile.Plans.
func (db *DB) PlansOf(ctx context.Context, run int64, limit int) ([]catalog.Plan, error) {
	rows, err := db.pool.Query(ctx, selectPlan+` WHERE @run::bigint = 0 OR p.run_id = @run ORDER BY p.plan_id DESC LIMIT @limit`, pgx.StrictNamedArgs{"run": run, "limit": limit})
	if err != nil {
		return nil, problem("list plans", err)
	}
	plans, err := pgx.CollectRows(rows, db.scanPlan)
	return plans, problem("list plans", err)
}

// Acts implements reconcile.Plans.
func (db *DB) Acts(ctx context.Context, plan int64, after, limit int, planned bool) ([]catalog.Act, error) {
	rows, err := db.pool.Query(ctx, `
SELECT act_no, act, finding_id, kind, object_key, unit_key, attempt_id, size_bytes, state, outcome, done_at
FROM catalog.reconcile_acts WHERE plan_id = @plan AND act_no > @after::bigint AND (NOT @planned OR state = 'planned') ORDER BY act_no LIMIT @limit`,
		pgx.StrictNamedArgs{"plan": plan, "after": after, "limit": limit, "planned": planned})
	if err != nil {
		return nil, problem("list acts", err)
	}
	acts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.Act])
	return acts, problem("list acts", err)
}

const auditPlan = `
INSERT INTO catalog.audit (who, act, target, why, details)
SELECT @who, 'apply plan', 'plan ' || @plan::bigint, @why, jsonb_build_object('run', @run::bigint, 'max_change', @max_change::float8, 'acts', @counts::jsonb)`

// AskApply implements reconcile.Plans.
func (db *DB) AskApply(ctx context.Context, id int64, maxChange float64, who, why string) (catalog.Plan, error) {
	plan, err := db.Plan(ctx, id)
	if err != nil {
		return plan, err
	}
	acts, share := plan.Acts(), plan.Share()
	switch {
	case plan.State != catalog.PlanPlanned:
		return plan, planApplied(plan)
	case share > maxChange && maxChange < 1:
		return plan, catalog.Errorf(catalog.CodeTooMuchChange,
			"plan %d has %d acts where the store has %d outputs, a share of %.3g, and %g is the most: look at it again, and apply it with a larger max_change if that is what is meant",
			id, acts, plan.Catalogued, share, maxChange).At("/max_change")
	}
	err = db.within(ctx, "ask for a plan to be applied", func(tx pgx.Tx) error {
		asked, err := tx.Exec(ctx, `
UPDATE catalog.reconcile_plans SET state = 'applying', applied_by = @who, why = @why, max_change = @max_change, started_at = clock_timestamp()
WHERE plan_id = @plan AND state = 'planned'`, pgx.StrictNamedArgs{"plan": id, "who": who, "why": why, "max_change": maxChange})
		switch {
		case err != nil:
			return err
		case asked.RowsAffected() == 0:
			return planApplied(plan)
		}
		_, err = tx.Exec(ctx, auditPlan, pgx.StrictNamedArgs{"who": who, "plan": id, "run": plan.RunID, "why": why, "max_change": maxChange, "counts": plan.Counts})
		if err != nil {
			return err
		}
		return db.queue.Apply(ctx, tx, id)
	})
	if err != nil {
		return plan, err
	}
	return db.Plan(ctx, id)
}

func planApplied(plan catalog.Plan) error {
	return catalog.Errorf(catalog.CodePlanApplied, "plan %d was applied before, and a plan is applied once: look at what came of it, reconcile, and plan again", plan.ID)
}

func planName(id int64) string { return fmt.Sprintf("plan %d", id) }

// TakePlan implements reconcile.Plans.
func (db *DB) TakePlan(ctx context.Context, id int64) (reconcile.Hold, error) {
	held, err := db.take(ctx, planName(id))
	if held == nil || err != nil {
		return nil, err
	}
	var applying bool
	err = held.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM catalog.reconcile_plans WHERE plan_id = @plan AND state = 'applying')`, pgx.StrictNamedArgs{"plan": id}).Scan(&applying)
	if err != nil || !applying {
		held.Close()
		return nil, problem("take a plan", err)
	}
	return held, nil
}

// EndAct implements reconcile.Plans.
func (db *DB) EndAct(ctx context.Context, plan int64, no int, state catalog.ActState, outcome string) error {
	_, err := db.pool.Exec(ctx, `
UPDATE catalog.reconcile_acts SET state = @state, outcome = @outcome, done_at = clock_timestamp() WHERE plan_id = @plan AND act_no = @no AND state = 'planned'`,
		pgx.StrictNamedArgs{"plan": plan, "no": no, "state": state, "outcome": outcome})
	return problem("end an act", err)
}

// EndPlan implements reconcile.Plans.
func (db *DB) EndPlan(ctx context.Context, id int64, state catalog.PlanState, code catalog.Code, message string) error {
	_, err := db.pool.Exec(ctx, `
UPDATE catalog.reconcile_plans SET state = @state, error_code = nullif(@code, ''), error_message = nullif(@message, ''), ended_at = clock_timestamp()
WHERE plan_id = @plan AND state = 'applying'
  AND (@state <> 'applied' OR NOT EXISTS (SELECT FROM catalog.reconcile_acts a WHERE a.plan_id = @plan AND a.state = 'planned'))`, pgx.StrictNamedArgs{"plan": id, "state": state, "code": code, "message": message})
	return problem("end a plan", err)
}

// RequeuePlans has plans applied on whose server is gone: those that are being applied,
// that nobody holds, and that no job waits to apply. It tells how many.
func (db *DB) RequeuePlans(ctx context.Context, grace time.Duration) (requeued int, err error) {
	err = db.within(ctx, "queue plans again", func(tx pgx.Tx) error {
		requeued = 0
		rows, err := tx.Query(ctx, `
SELECT p.plan_id FROM catalog.reconcile_plans p
WHERE p.state = 'applying' AND p.started_at < clock_timestamp() - @grace::interval
  AND NOT EXISTS (SELECT FROM river.river_job j
                  WHERE j.args @> jsonb_build_object('plan', p.plan_id) AND j.kind = 'apply'
                    AND j.state IN ('available', 'pending', 'retryable', 'scheduled'))
ORDER BY p.plan_id`, pgx.StrictNamedArgs{"grace": grace})
		if err != nil {
			return err
		}
		plans, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		for _, id := range plans {
			if ok, err := free(ctx, tx, planName(id)); err != nil {
				return err
			} else if !ok {
				continue
			}
			if err := db.queue.Apply(ctx, tx, id); err != nil {
				return err
			}
			requeued++
		}
		return nil
	})
	return requeued, err
}

// What acts on an object holds its name's lock first, then its slot's: whoever else is to
// act on it waits, whatever its name is made of.
const (
	lockObject = `SELECT pg_advisory_xact_lock(hashtextextended('catalogd object ' || @store::text || ' ' || @key::text, 0))`
	lockUnit   = `
SELECT s.unit_key FROM catalog.slots s JOIN catalog.units u USING (collection_id, tile_id) WHERE u.unit_key = @unit FOR UPDATE OF s`
	lockSlotNamed = `SELECT FROM catalog.slots WHERE collection_id = @collection AND tile_id = @tile FOR UPDATE`
)

// selectRedo is a statement of its own, after the lock. An attempt whose lease has ended
// does not hold its unit.
const selectRedo = `
SELECT CASE
       WHEN t.unit_key IS NULL THEN 'the unit has another output by now'
       WHEN t.withdrawn_at IS NOT NULL THEN 'the output is withdrawn'
       WHEN s.unit_key IS DISTINCT FROM t.unit_key AND t.published_at IS NOT NULL THEN 'the output is not current any more'
       WHEN EXISTS (SELECT FROM catalog.attempts a WHERE a.unit_key = u.unit_key AND (a.state = 'promoting' OR a.state = 'open' AND a.lease_until >= clock_timestamp()))
            THEN 'it is being made again'
       ELSE '' END
FROM catalog.units u
JOIN catalog.slots s USING (collection_id, tile_id)
LEFT JOIN catalog.tiles t ON t.unit_key = u.unit_key AND t.attempt_id = @attempt AND t.store_id = @store AND t.object_key = @key
WHERE u.unit_key = @unit`

// whyNot runs a query that gives the reason against an act, and makes it an error.
func whyNot(ctx context.Context, tx pgx.Tx, query string, args pgx.StrictNamedArgs) error {
	var why string
	err := tx.QueryRow(ctx, query, args).Scan(&why)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return catalog.Errorf(catalog.CodeNotFound, "the catalogue does not know the unit any more")
	case err != nil:
		return err
	case why != "":
		return catalog.Errorf(catalog.CodeNotFound, "%s", why)
	}
	return nil
}

// redoable locks the slot of an act's row, and tells why its unit is not to be made again.
func redoable(ctx context.Context, tx pgx.Tx, act catalog.Act, storeID string) error {
	if _, err := tx.Exec(ctx, lockUnit, pgx.StrictNamedArgs{"unit": act.UnitKey}); err != nil {
		return err
	}
	return whyNot(ctx, tx, selectRedo, pgx.StrictNamedArgs{"unit": act.UnitKey, "attempt": act.AttemptID, "store": storeID, "key": act.ObjectKey})
}

const (
	markLost = `
INSERT INTO catalog.tile_health (unit_key, lost_since) VALUES (@unit, clock_timestamp())
ON CONFLICT ON CONSTRAINT tile_health_pkey DO UPDATE SET lost_since = coalesce(tile_health.lost_since, EXCLUDED.lost_since)`
	queueUnit = `UPDATE catalog.batch_units SET due_at = clock_timestamp() WHERE unit_key = @unit`
)

// Redo implements reconcile.Plans.
func (db *DB) Redo(ctx context.Context, act catalog.Act, storeID string, confirm reconcile.Confirm) error {
	return db.within(ctx, "make a unit due again", func(tx pgx.Tx) error {
		if err := redoable(ctx, tx, act, storeID); err != nil {
			return err
		}
		if err := confirm(ctx); err != nil {
			return err
		}
		unit := pgx.StrictNamedArgs{"unit": act.UnitKey}
		if _, err := tx.Exec(ctx, markLost, unit); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, queueUnit, unit)
		return err
	})
}

// selectNamed tells what names an object, that of this removal itself left out.
const selectNamed = `
SELECT CASE
       WHEN EXISTS (SELECT FROM catalog.tiles WHERE store_id = @store AND object_key = @key) THEN 'a row names it by now'
       WHEN EXISTS (SELECT FROM catalog.attempts WHERE store_id = @store AND object_key = @key AND (state IN ('open', 'promoting') OR state <> 'done' AND swept_at IS NULL))
            THEN 'an attempt may still use it'
       WHEN EXISTS (SELECT FROM catalog.removals WHERE store_id = @store AND object_key = @key AND confirmed_at IS NULL AND id <> @removal) THEN 'it is being removed already'
       ELSE '' END`

const (
	selectRemoval = `
SELECT id, trash_key FROM catalog.removals
WHERE store_id = @store AND object_key = @key AND confirmed_at IS NULL AND trash_key IS NOT NULL AND reason = @reason ORDER BY id LIMIT 1`
	insertTrash = `
INSERT INTO catalog.removals (store_id, object_key, reason, trash_key, size_bytes, asked_by, expires_at)
VALUES (@store, @key, @reason, @trash_key, @size, @by, clock_timestamp() + @keep::interval) RETURNING id`
)

// Remove implements reconcile.Plans.
func (db *DB) Remove(ctx context.Context, r reconcile.Removal, act catalog.Act, confirm reconcile.Confirm) (reconcile.Removal, error) {
	asked := r
	err := db.within(ctx, "record a removal", func(tx pgx.Tx) error {
		r = asked
		object := pgx.StrictNamedArgs{"store": r.StoreID, "key": r.ObjectKey}
		if _, err := tx.Exec(ctx, lockObject, object); err != nil {
			return err
		}
		if named, ok := catalog.ParseFinalName(r.ObjectKey); ok && act.UnitKey == nil {
			if _, err := tx.Exec(ctx, lockSlotNamed, pgx.StrictNamedArgs{"collection": named.Collection, "tile": named.TileID}); err != nil {
				return err
			}
		}
		err := tx.QueryRow(ctx, selectRemoval, pgx.StrictNamedArgs{"store": r.StoreID, "key": r.ObjectKey, "reason": r.Reason}).Scan(&r.ID, &r.TrashKey)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		r.Before = err == nil
		if act.UnitKey != nil {
			err = redoable(ctx, tx, act, r.StoreID)
		} else {
			err = whyNot(ctx, tx, selectNamed, pgx.StrictNamedArgs{"store": r.StoreID, "key": r.ObjectKey, "removal": r.ID})
		}
		if err != nil {
			return err
		}
		if err := confirm(ctx); err != nil || r.Before {
			return err
		}
		return tx.QueryRow(ctx, insertTrash, pgx.StrictNamedArgs{
			"store": r.StoreID, "key": r.ObjectKey, "reason": r.Reason, "trash_key": r.TrashKey, "size": r.SizeBytes, "by": r.By, "keep": r.Keep,
		}).Scan(&r.ID)
	})
	return r, err
}

// Unmoved implements reconcile.Plans.
func (db *DB) Unmoved(ctx context.Context, id int64) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM catalog.removals WHERE id = @id AND confirmed_at IS NULL`, pgx.StrictNamedArgs{"id": id})
	return problem("forget a removal", err)
}

// Namesake implements reconcile.Plans. Two units of one slot whose keys begin alike are
// told apart by nobody.
func (db *DB) Namesake(ctx context.Context, n catalog.FinalNameParts) (catalog.Unit, error) {
	unit := catalog.Unit{Collection: n.Collection, TileID: n.TileID}
	rows, err := db.pool.Query(ctx, `
SELECT unit_key, identity FROM catalog.units
WHERE collection_id = @collection AND tile_id = @tile AND left(replace(unit_key::text, '-', ''), 12) = @unit LIMIT 2`,
		pgx.StrictNamedArgs{"collection": n.Collection, "tile": n.TileID, "unit": n.Unit})
	if err != nil {
		return unit, problem("find a unit by its name", err)
	}
	var identity json.RawMessage
	found, err := pgx.ForEachRow(rows, []any{&unit.Key, &identity}, func() error { return nil })
	if err != nil {
		return unit, problem("find a unit by its name", err)
	}
	if found.RowsAffected() != 1 {
		return unit, catalog.Errorf(catalog.CodeNotFound, "the catalogue knows no unit that its name is made of")
	}
	unit.Identity, err = catalog.RestoreIdentity(identity)
	return unit, err
}

const (
	// A version that the collection did not know ranks below all others: what comes back
	// from before never wins. The collection's row has two of them take turns.
	ensureOldVersion = `
WITH turn AS MATERIALIZED (
    SELECT collection_id FROM catalog.collections WHERE collection_id = @collection FOR NO KEY UPDATE
)
INSERT INTO catalog.collection_versions (collection_id, version, rank)
SELECT collection_id, @version, coalesce((SELECT min(v.rank) - 1 FROM catalog.collection_versions v WHERE v.collection_id = @collection), nextval('catalog.version_rank'))
FROM turn
ON CONFLICT ON CONSTRAINT collection_versions_pkey DO NOTHING`
	selectAdoptable = `
SELECT CASE
       WHEN t.unit_key IS NOT NULL THEN 'its unit has an output: ' || t.object_key
       WHEN u.identity <> @identity::jsonb OR u.collection_id <> @collection OR u.tile_id <> @tile THEN 'its key stands for another unit'
       WHEN EXISTS (SELECT FROM catalog.attempts a WHERE a.unit_key = u.unit_key AND a.state IN ('open', 'promoting')) THEN 'its unit is being made'
       WHEN EXISTS (SELECT FROM catalog.attempts a WHERE a.store_id = @store AND a.object_key = @key AND a.unit_key <> u.unit_key) THEN 'it bears the name of another unit''s attempt'
       ELSE '' END
FROM catalog.units u LEFT JOIN catalog.tiles t USING (unit_key)
WHERE u.unit_key = @unit`
	// Times are taken after the lock.
	adoptAttempt = `
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, created_at, ended_at)
SELECT @attempt, @unit, @request, @by, 0, 'done', @store, @media_type, @staging_key, @key, now, now, now
FROM (SELECT clock_timestamp() AS now) clock
ON CONFLICT ON CONSTRAINT attempts_object_key_key DO UPDATE
    SET state = 'done', ended_at = EXCLUDED.ended_at, swept_at = NULL, error_code = NULL, error_message = NULL, media_type = EXCLUDED.media_type
RETURNING attempt_id, ended_at, (SELECT unit_key FROM catalog.slots WHERE collection_id = @collection AND tile_id = @tile)`
	insertAdopted = `
INSERT INTO catalog.slot_history (collection_id, tile_id, from_unit, to_unit, moved_by, reason, moved_at)
VALUES (@collection, @tile, NULL, @unit, @by, 'adopted', @now)`
)

// Adopt implements reconcile.Plans.
func (db *DB) Adopt(ctx context.Context, a reconcile.Adoption, confirm reconcile.Confirm) (current bool, err error) {
	err = db.within(ctx, "adopt an object", func(tx pgx.Tx) error {
		current = false
		unit := unitArgs(a.Unit, pgx.StrictNamedArgs{"version": a.Unit.Identity.Version()})
		slot := pgx.StrictNamedArgs{"collection": a.Unit.Collection, "tile": a.Unit.TileID}
		for _, s := range []struct {
			sql  string
			args pgx.StrictNamedArgs
		}{
			{lockObject, pgx.StrictNamedArgs{"store": a.StoreID, "key": a.ObjectKey}},
			{ensureOldVersion, pgx.StrictNamedArgs{"collection": a.Unit.Collection, "version": a.Unit.Identity.Version()}},
			{ensureSlot, slot}, {ensureUnit, unit}, {lockSlotNamed, slot},
		} {
			if _, err := tx.Exec(ctx, s.sql, s.args); err != nil {
				return err
			}
		}
		// Who was cut off after the commit finds that it is done.
		var done bool
		err := tx.QueryRow(ctx, `
SELECT true, s.unit_key IS NOT DISTINCT FROM t.unit_key FROM catalog.tiles t JOIN catalog.slots s USING (collection_id, tile_id)
WHERE t.unit_key = @unit AND t.store_id = @store AND t.object_key = @key`,
			pgx.StrictNamedArgs{"unit": a.Unit.Key, "store": a.StoreID, "key": a.ObjectKey}).Scan(&done, &current)
		if done || err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err := whyNot(ctx, tx, selectNamed, pgx.StrictNamedArgs{"store": a.StoreID, "key": a.ObjectKey, "removal": 0}); err != nil {
			return err
		}
		if err := whyNot(ctx, tx, selectAdoptable, pgx.StrictNamedArgs{
			"unit": a.Unit.Key, "identity": string(a.Unit.Identity.Canonical()), "collection": a.Unit.Collection, "tile": a.Unit.TileID,
			"store": a.StoreID, "key": a.ObjectKey,
		}); err != nil {
			return err
		}
		if err := confirm(ctx); err != nil {
			return err
		}
		s := state{intent: &a.Intent, unit: a.Unit.Key, owner: a.By, published: true}
		s.slot.collection, s.slot.tile = a.Unit.Collection, a.Unit.TileID
		var attempt uuid.UUID
		err = tx.QueryRow(ctx, adoptAttempt, pgx.StrictNamedArgs{
			"attempt": a.Attempt, "unit": a.Unit.Key, "request": a.RequestID, "by": a.By, "store": a.StoreID, "media_type": a.Intent.MediaType,
			"staging_key": catalog.StagingName(a.Attempt, ""), "key": a.ObjectKey, "collection": a.Unit.Collection, "tile": a.Unit.TileID,
		}).Scan(&attempt, &s.now, &s.current)
		if err != nil {
			return err
		}
		write := &pgx.Batch{}
		if err := s.writeRow(write, attempt, a.ETag); err != nil {
			return err
		}
		if current = s.current == nil; current {
			moved := pgx.StrictNamedArgs{"collection": a.Unit.Collection, "tile": a.Unit.TileID, "unit": a.Unit.Key, "now": s.now}
			exactlyOne(write.Queue(movePointer, moved))
			write.Queue(insertAdopted, pgx.StrictNamedArgs{"collection": a.Unit.Collection, "tile": a.Unit.TileID, "unit": a.Unit.Key, "now": s.now, "by": a.By})
		}
		return tx.SendBatch(ctx, write).Close()
	})
	return current, err
}

const selectTrash = `
SELECT id, store_id, object_key, trash_key, coalesce(size_bytes, 0), reason, coalesce(asked_by, ''), created_at, expires_at
FROM catalog.removals WHERE trash_key IS NOT NULL AND confirmed_at IS NOT NULL AND emptied_at IS NULL`

func (db *DB) scanTrashed(row pgx.CollectableRow) (t catalog.Trashed, err error) {
	err = row.Scan(&t.ID, &t.StoreID, &t.ObjectKey, &t.TrashKey, &t.SizeBytes, &t.Reason, &t.By, &t.At, &t.ExpiresAt)
	t.Store = db.storeName(t.StoreID)
	return t, err
}

// Trash implements reconcile.Plans.
func (db *DB) Trash(ctx context.Context, storeID string, expired bool, after int64, limit int) ([]catalog.Trashed, error) {
	rows, err := db.pool.Query(ctx, selectTrash+`
  AND (@store = '' OR store_id = @store) AND (NOT @expired OR expires_at <= clock_timestamp()) AND id > @after ORDER BY id LIMIT @limit`,
		pgx.StrictNamedArgs{"store": storeID, "expired": expired, "after": after, "limit": limit})
	if err != nil {
		return nil, problem("list the trash", err)
	}
	trash, err := pgx.CollectRows(rows, db.scanTrashed)
	return trash, problem("list the trash", err)
}

// Trashed implements reconcile.Plans.
func (db *DB) Trashed(ctx context.Context, id int64) (catalog.Trashed, error) {
	rows, err := db.pool.Query(ctx, selectTrash+` AND id = @id`, pgx.StrictNamedArgs{"id": id})
	if err != nil {
		return catalog.Trashed{}, problem("look into the trash", err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, db.scanTrashed)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, catalog.Errorf(catalog.CodeNotFound, "nothing of number %d is in the trash: catalogd trash ls lists what is", id)
	}
	return t, problem("look into the trash", err)
}

// Emptied implements reconcile.Plans.
func (db *DB) Emptied(ctx context.Context, ids []int64) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.removals SET emptied_at = clock_timestamp() WHERE id = ANY(@ids) AND emptied_at IS NULL`, pgx.StrictNamedArgs{"ids": ids})
	return problem("record what was emptied", err)
}

// Audit implements reconcile.Plans.
func (db *DB) Audit(ctx context.Context, who, act, target, why string, details any) error {
	_, err := db.pool.Exec(ctx, `INSERT INTO catalog.audit (who, act, target, why, details) VALUES (@who, @act, @target, @why, coalesce(@details::jsonb, '{}'))`,
		pgx.StrictNamedArgs{"who": who, "act": act, "target": target, "why": why, "details": details})
	return problem("write to the audit", err)
}
