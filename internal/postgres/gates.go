package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/batch"
	"catalogd/internal/catalog"
)

// Queue takes jobs into a transaction of the caller's: they are done if it commits.
type Queue interface {
	// Judge has a gate judged.
	Judge(ctx context.Context, tx pgx.Tx, gate uuid.UUID) error
	// Notify tells of a gate's verdict, where anybody is to be told.
	Notify(ctx context.Context, tx pgx.Tx, gate uuid.UUID) error
	// Part has a part of a reconciliation done.
	Part(ctx context.Context, tx pgx.Tx, run int64, part int) error
	// Apply has a plan applied.
	Apply(ctx context.Context, tx pgx.Tx, plan int64) error
}

// UseQueue is called before the server serves.
func (db *DB) UseQueue(q Queue) { db.queue = q }

// Pool is for what keeps its own tables in this database.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

const selectGate = `
SELECT g.gate_id, g.batch_id, b.name, g.state, g.max_missing_frac, g.max_quarantined, g.storage, coalesce(g.sample_size, 0), g.reasons, g.figures, g.offenders,
       coalesce(g.error_code, ''), coalesce(g.error_message, ''), g.asked_by, g.created_at, g.started_at, g.ended_at
FROM catalog.gates g JOIN catalog.batches b USING (batch_id)`

func scanGate(row pgx.CollectableRow) (catalog.Gate, error) {
	var g catalog.Gate
	err := row.Scan(&g.ID, &g.BatchID, &g.Batch, &g.State, &g.MaxMissingFrac, &g.MaxQuarantined, &g.Storage, &g.SampleSize, &g.Reasons, &g.Figures, &g.Offenders,
		&g.ErrorCode, &g.ErrorMessage, &g.AskedBy, &g.CreatedAt, &g.StartedAt, &g.EndedAt)
	return g, err
}

// AskGate implements batch.Ledger.
func (db *DB) AskGate(ctx context.Context, g catalog.Gate) error {
	return db.within(ctx, "ask for a gate", func(tx pgx.Tx) error {
		asked, err := tx.Exec(ctx, `
INSERT INTO catalog.gates (gate_id, batch_id, state, max_missing_frac, max_quarantined, storage, sample_size, asked_by)
SELECT @gate, batch_id, 'queued', @max_missing_frac, @max_quarantined, @storage, nullif(@sample_size::bigint, 0), @who
FROM catalog.batches WHERE name = @batch`, pgx.StrictNamedArgs{
			"gate": g.ID, "batch": g.Batch, "max_missing_frac": g.MaxMissingFrac, "max_quarantined": g.MaxQuarantined,
			"storage": g.Storage, "sample_size": g.SampleSize, "who": g.AskedBy,
		})
		switch {
		case err != nil:
			return err
		case asked.RowsAffected() == 0:
			return unknownBatch(g.Batch)
		}
		return db.queue.Judge(ctx, tx, g.ID)
	})
}

// Gate implements batch.Ledger.
func (db *DB) Gate(ctx context.Context, name string, id uuid.UUID) (catalog.Gate, error) {
	g, err := db.gate(ctx, selectGate+` WHERE g.gate_id = @gate AND b.name = @batch`, pgx.StrictNamedArgs{"gate": id, "batch": name})
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := db.Batch(ctx, name); err != nil {
			return g, err
		}
		return g, catalog.Errorf(catalog.CodeNotFound, "batch %s has no gate %s", name, id)
	}
	return g, problem("read a gate", err)
}

func (db *DB) gate(ctx context.Context, sql string, args pgx.StrictNamedArgs) (catalog.Gate, error) {
	rows, err := db.pool.Query(ctx, sql, args)
	if err != nil {
		return catalog.Gate{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanGate)
}

// sitting is a gate that this process alone judges.
type sitting struct {
	*hold
	gate  catalog.Gate
	batch catalog.Batch
}

func gateName(id uuid.UUID) string { return "gate " + id.String() }

// TakeGate implements batch.Ledger.
func (db *DB) TakeGate(ctx context.Context, id uuid.UUID) (batch.Sitting, error) {
	held, err := db.take(ctx, gateName(id))
	if held == nil || err != nil {
		return nil, err
	}
	s := &sitting{hold: held}
	taken, err := s.begin(ctx, id)
	if err != nil || !taken {
		s.Close()
		return nil, problem("take a gate", err)
	}
	return s, nil
}

// What a judge reads is large and read once: its statements may take as long as the job
// may, have memory to join in, and are planned for the batch at hand. What the planner
// cannot know is that few rows are left of those that workers read, and that a merge would
// read a table from its first key to the one that a sample begins at. What a compiler
// would save here is less than it costs.
const judgeSettings = `
SET statement_timeout = 0; SET work_mem = '64MB'; SET plan_cache_mode = force_custom_plan; SET parallel_tuple_cost = 0; SET enable_mergejoin = off; SET jit = off`

// begin sets the connection up: its settings and cursors go with it.
func (s *sitting) begin(ctx context.Context, id uuid.UUID) (taken bool, err error) {
	args := pgx.StrictNamedArgs{"gate": id}
	running, err := s.conn.Exec(ctx, `
UPDATE catalog.gates SET state = 'running', started_at = coalesce(started_at, clock_timestamp()) WHERE gate_id = @gate AND ended_at IS NULL`, args)
	if err != nil || running.RowsAffected() == 0 {
		return false, err
	}
	if _, err := s.conn.Exec(ctx, judgeSettings); err != nil {
		return false, err
	}
	rows, err := s.conn.Query(ctx, selectGate+` WHERE g.gate_id = @gate`, args)
	if err != nil {
		return false, err
	}
	if s.gate, err = pgx.CollectExactlyOneRow(rows, scanGate); err != nil {
		return false, err
	}
	rows, err = s.conn.Query(ctx, selectBatch+` WHERE b.batch_id = @batch`, pgx.StrictNamedArgs{"batch": s.gate.BatchID})
	if err != nil {
		return false, err
	}
	s.batch, err = pgx.CollectExactlyOneRow(rows, scanBatch)
	return err == nil, err
}

func (s *sitting) Gate() catalog.Gate { return s.gate }

func (s *sitting) Batch() catalog.Batch { return s.batch }

const (
	// One pass over the batch: units that are done are those that are not missing.
	surveyBatch = `
WITH missing AS MATERIALIZED (
    SELECT unit_key, status, reason FROM catalog.batch_unit_status WHERE batch_id = @batch AND status <> 'done'
), worst AS (
    SELECT unit_key, status, reason FROM missing ORDER BY status <> 'lost', status <> 'quarantined', unit_key LIMIT @offenders
), units AS (
    SELECT count(*) AS expected FROM catalog.batch_units WHERE batch_id = @batch
)
SELECT expected, expected - count(m), count(m) FILTER (WHERE m.status = 'running'), count(m) FILTER (WHERE m.status = 'retrying'),
       count(m) FILTER (WHERE m.status = 'quarantined'), count(m) FILTER (WHERE m.status = 'lost'), count(m) FILTER (WHERE m.status = 'pending'),
       (SELECT coalesce(jsonb_agg(jsonb_build_object('unit_key', w.unit_key, 'tile_id', u.tile_id, 'status', w.status,
                                                     'reason', CASE WHEN w.status = 'lost' THEN 'object_missing' ELSE coalesce(w.reason, '') END)
                                  ORDER BY w.status <> 'lost', w.status <> 'quarantined', u.tile_id, w.unit_key), '[]')
        FROM worst w JOIN catalog.units u USING (unit_key))
FROM units LEFT JOIN missing m ON true
GROUP BY expected`
	selectDone  = `SELECT unit_key, attempt_id, store_id, object_key, size_bytes FROM catalog.batch_unit_status WHERE batch_id = @batch AND status = 'done'`
	declareList = `DECLARE outputs NO SCROLL CURSOR WITH HOLD FOR ` + selectDone + ` ORDER BY store_id, object_key`
	// Keys are hashes: those that follow a random one are a random choice.
	declareSample = `
DECLARE outputs NO SCROLL CURSOR WITH HOLD FOR
SELECT * FROM (
    (` + selectDone + ` AND unit_key >= @from ORDER BY unit_key LIMIT @size)
    UNION ALL
    (` + selectDone + ` AND unit_key < @from ORDER BY unit_key LIMIT @size)) AS chosen
LIMIT @size`
	// outputPage is how many outputs are fetched at once.
	outputPage = 5000
)

// Survey implements batch.Sitting. What the gate looks at is kept by the server once the
// snapshot is over: no old one is held while a store is listed.
func (s *sitting) Survey(ctx context.Context) (batch.Survey, error) {
	survey := batch.Survey{Outputs: func(func(batch.Output, error) bool) {}}
	c := &survey.Counts
	queue := &pgx.Batch{}
	queue.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	queue.Queue(surveyBatch, pgx.StrictNamedArgs{"batch": s.batch.ID, "offenders": batch.MaxOffenders}).QueryRow(func(row pgx.Row) error {
		return row.Scan(&c.Expected, &c.Done, &c.Running, &c.Retrying, &c.Quarantined, &c.Lost, &c.Pending, &survey.Missing)
	})
	switch s.gate.Storage {
	case catalog.GateList:
		queue.Queue(declareList, pgx.StrictNamedArgs{"batch": s.batch.ID})
		survey.Outputs = s.outputs(ctx)
	case catalog.GateSample:
		queue.Queue(declareSample, pgx.StrictNamedArgs{"batch": s.batch.ID, "from": uuid.New(), "size": s.gate.SampleSize})
		survey.Outputs = s.outputs(ctx)
	}
	queue.Queue("COMMIT")
	return survey, problem("survey a batch", s.conn.SendBatch(ctx, queue).Close())
}

func (s *sitting) outputs(ctx context.Context) iter.Seq2[batch.Output, error] {
	return func(yield func(batch.Output, error) bool) {
		for {
			rows, err := s.conn.Query(ctx, fmt.Sprintf(`FETCH %d FROM outputs`, outputPage))
			if err == nil {
				var page []batch.Output
				page, err = pgx.CollectRows(rows, pgx.RowToStructByPos[batch.Output])
				for _, o := range page {
					if !yield(o, nil) {
						return
					}
				}
				if err == nil && len(page) == 0 {
					return
				}
			}
			if err != nil {
				yield(batch.Output{}, problem("list a batch's outputs", err))
				return
			}
		}
	}
}

// Standings implements batch.Ledger.
func (db *DB) Standings(ctx context.Context, id uuid.UUID, units []uuid.UUID) ([]batch.Standing, error) {
	rows, err := db.pool.Query(ctx, `
SELECT s.unit_key, coalesce(s.attempt_id, '00000000-0000-0000-0000-000000000000'), coalesce(s.store_id, ''), coalesce(s.object_key, ''), coalesce(s.size_bytes, 0),
       u.tile_id, s.status, coalesce(s.reason, '')
FROM catalog.batch_unit_status s JOIN catalog.units u USING (unit_key)
WHERE s.batch_id = @batch AND s.unit_key = ANY(@units) ORDER BY u.tile_id, s.unit_key`,
		pgx.StrictNamedArgs{"batch": id, "units": units})
	if err != nil {
		return nil, problem("read how units stand", err)
	}
	standings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s batch.Standing, err error) {
		err = row.Scan(&s.UnitKey, &s.AttemptID, &s.StoreID, &s.ObjectKey, &s.SizeBytes, &s.TileID, &s.Status, &s.Reason)
		return s, err
	})
	return standings, problem("read how units stand", err)
}

const (
	endGate = `
UPDATE catalog.gates
SET state = @state, reasons = coalesce(@reasons::text[], '{}'), figures = @figures, offenders = coalesce(@offenders::jsonb, '[]'), error_code = nullif(@code, ''), error_message = nullif(@message, ''),
    ended_at = clock_timestamp()
WHERE gate_id = @gate AND ended_at IS NULL`
	// The last verdict that was told, or that a job is still to tell: one whose
	// notification was given up is not known to anybody.
	selectToldVerdict = `
SELECT coalesce((
    SELECT state FROM catalog.gates g
    WHERE batch_id = @batch AND state IN ('passed', 'failed')
      AND (notified_at IS NOT NULL OR EXISTS (
          SELECT FROM river.river_job j WHERE j.args @> jsonb_build_object('gate', g.gate_id) AND j.kind = 'notify'
             AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled')))
    ORDER BY ended_at DESC LIMIT 1), '')`
)

// EndGate implements batch.Ledger.
func (db *DB) EndGate(ctx context.Context, g catalog.Gate) error {
	return db.within(ctx, "end a gate", func(tx pgx.Tx) error {
		// The batch's row has gates of one batch end one after another.
		if _, err := tx.Exec(ctx, `SELECT FROM catalog.batches WHERE batch_id = @batch FOR NO KEY UPDATE`, pgx.StrictNamedArgs{"batch": g.BatchID}); err != nil {
			return err
		}
		var before catalog.GateState
		if err := tx.QueryRow(ctx, selectToldVerdict, pgx.StrictNamedArgs{"batch": g.BatchID}).Scan(&before); err != nil {
			return err
		}
		ended, err := tx.Exec(ctx, endGate, pgx.StrictNamedArgs{
			"gate": g.ID, "state": g.State, "reasons": g.Reasons, "figures": g.Figures, "offenders": g.Offenders,
			"code": g.ErrorCode, "message": g.ErrorMessage,
		})
		if err != nil || ended.RowsAffected() == 0 || g.State == catalog.GateError || g.State == before {
			return err
		}
		return db.queue.Notify(ctx, tx, g.ID)
	})
}

// RequeueGates has gates judged again whose judge is gone: those that have not ended,
// that nobody holds, and that no job waits to judge. It tells how many.
func (db *DB) RequeueGates(ctx context.Context, grace time.Duration) (requeued int, err error) {
	err = db.within(ctx, "queue gates again", func(tx pgx.Tx) error {
		requeued = 0
		rows, err := tx.Query(ctx, `
SELECT g.gate_id FROM catalog.gates g
WHERE g.ended_at IS NULL AND g.created_at < clock_timestamp() - @grace::interval
  AND NOT EXISTS (SELECT FROM river.river_job j
                  WHERE j.args @> jsonb_build_object('gate', g.gate_id) AND j.kind = 'gate'
                    AND j.state IN ('available', 'pending', 'retryable', 'scheduled'))`, pgx.StrictNamedArgs{"grace": grace})
		if err != nil {
			return err
		}
		gates, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		for _, id := range gates {
			if ok, err := free(ctx, tx, gateName(id)); err != nil {
				return err
			} else if !ok {
				continue
			}
			if err := db.queue.Judge(ctx, tx, id); err != nil {
				return err
			}
			requeued++
		}
		return nil
	})
	return requeued, err
}

// JudgedGate reads a gate, with its batch, to tell of it. CodeNotFound.
func (db *DB) JudgedGate(ctx context.Context, id uuid.UUID) (catalog.Gate, catalog.Batch, error) {
	g, err := db.gate(ctx, selectGate+` WHERE g.gate_id = @gate`, pgx.StrictNamedArgs{"gate": id})
	if errors.Is(err, pgx.ErrNoRows) {
		return g, catalog.Batch{}, catalog.Errorf(catalog.CodeNotFound, "there is no gate %s any more", id)
	}
	if err != nil {
		return g, catalog.Batch{}, problem("read a gate", err)
	}
	b, err := db.Batch(ctx, g.Batch)
	return g, b, err
}

// Notified records that a gate's notification was taken.
func (db *DB) Notified(ctx context.Context, id uuid.UUID) error {
	_, err := db.pool.Exec(ctx, `UPDATE catalog.gates SET notified_at = coalesce(notified_at, clock_timestamp()) WHERE gate_id = @gate`, pgx.StrictNamedArgs{"gate": id})
	return problem("record a notification", err)
}

var _ batch.Ledger = (*DB)(nil)
