package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
)

// AskRun implements reconcile.Ledger.
func (db *DB) AskRun(ctx context.Context, run catalog.Run, parts []catalog.RunPart) (catalog.Run, error) {
	err := db.within(ctx, "ask for a reconciliation", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
INSERT INTO catalog.reconcile_runs (store_id, prefix, source, min_age, settle, state, asked_by)
SELECT store_id, @prefix, @source, @min_age, @settle, 'running', @who FROM catalog.stores WHERE store_id = @store
RETURNING run_id`, pgx.StrictNamedArgs{
			"store": run.StoreID, "prefix": run.Prefix, "source": run.Source, "min_age": run.MinAge, "settle": run.Settle, "who": run.AskedBy,
		}).Scan(&run.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return catalog.Errorf(catalog.CodeUnknownStore, "the catalogue has no store %s", run.StoreID).At("/store")
		}
		if err != nil {
			return err
		}
		for _, p := range parts {
			if _, err := tx.Exec(ctx, `
INSERT INTO catalog.reconcile_parts (run_id, part, kind, from_key, to_key) VALUES (@run, @part, @kind, @from, @to)`,
				pgx.StrictNamedArgs{"run": run.ID, "part": p.Part, "kind": p.Kind, "from": p.From, "to": p.To}); err != nil {
				return err
			}
			if run.Source != catalog.RunStore {
				continue
			}
			if err := db.queue.Part(ctx, tx, run.ID, p.Part); err != nil {
				return err
			}
		}
		return nil
	})
	if violates(err, "reconcile_runs_running_key") {
		return run, catalog.Errorf(catalog.CodeRunUnderWay, "a reconciliation of this store is running%s: wait for it, or cancel it", db.underWay(ctx, run.StoreID))
	}
	if err != nil {
		return run, err
	}
	return db.Run(ctx, run.ID)
}

func (db *DB) underWay(ctx context.Context, storeID string) string {
	var id int64
	err := db.pool.QueryRow(ctx, `SELECT run_id FROM catalog.reconcile_runs WHERE store_id = @store AND state = 'running'`, pgx.StrictNamedArgs{"store": storeID}).Scan(&id)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (run %d)", id)
}

// maxParts bounds the parts of a run.
const maxParts = 64

// Splits implements reconcile.Ledger, by what PostgreSQL knows of the keys: a table that
// was never analyzed is one range.
func (db *DB) Splits(ctx context.Context, storeID, prefix string, rows int) ([]string, error) {
	var total float64
	var bounds []string
	err := db.pool.QueryRow(ctx, `
SELECT c.reltuples::float8, coalesce(s.histogram_bounds::text::text[], '{}')
FROM pg_class c
LEFT JOIN pg_stats s ON (s.schemaname, s.tablename, s.attname) = ('catalog', 'tiles', 'object_key')
WHERE c.oid = 'catalog.tiles'::regclass`).Scan(&total, &bounds)
	if err != nil {
		return nil, problem("divide a store's rows", err)
	}
	all := max(len(bounds)-1, 1)
	var within []string
	for _, b := range bounds {
		if strings.HasPrefix(b, prefix) {
			within = append(within, b)
		}
	}
	ranges := min(int(total*float64(len(within))/float64(all))/rows+1, maxParts, len(within))
	var splits []string
	for i := 1; i < ranges; i++ {
		if key := within[i*len(within)/ranges]; len(splits) == 0 || key > splits[len(splits)-1] {
			splits = append(splits, key)
		}
	}
	return splits, nil
}

const selectRun = `
SELECT r.run_id, r.store_id, r.prefix, r.source, r.min_age, r.settle, r.state, r.asked_by, r.created_at, r.ended_at, r.figures, r.kinds,
       coalesce(r.error_code, ''), coalesce(r.error_message, ''), p.parts, p.ended, p.at_key, p.figures,
       coalesce((SELECT (b.figures ->> 'rows')::bigint FROM catalog.reconcile_runs b
                 WHERE b.store_id = r.store_id AND b.prefix = r.prefix AND b.state = 'complete' AND b.run_id < r.run_id ORDER BY b.run_id DESC LIMIT 1),
                (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'catalog.tiles'::regclass))
FROM catalog.reconcile_runs r
CROSS JOIN LATERAL (
    SELECT count(*) AS parts, count(*) FILTER (WHERE state IN ('complete', 'incomplete')) AS ended, coalesce(max(at_key), '') AS at_key,
           coalesce(jsonb_agg(figures), '[]') AS figures
    FROM catalog.reconcile_parts p WHERE p.run_id = r.run_id) p`

func (db *DB) scanRun(row pgx.CollectableRow) (r catalog.Run, err error) {
	var parts []catalog.RunFigures
	err = row.Scan(&r.ID, &r.StoreID, &r.Prefix, &r.Source, &r.MinAge, &r.Settle, &r.State, &r.AskedBy, &r.CreatedAt, &r.EndedAt, &r.Figures, &r.Kinds,
		&r.ErrorCode, &r.ErrorMessage, &r.Parts, &r.PartsEnded, &r.AtKey, &parts, &r.ExpectedRows)
	if r.State == catalog.RunRunning {
		r.Figures = catalog.RunFigures{}
		for _, f := range parts {
			r.Figures.Add(f)
		}
	}
	r.Store = db.storeName(r.StoreID)
	return r, err
}

// Run implements reconcile.Ledger.
func (db *DB) Run(ctx context.Context, id int64) (catalog.Run, error) {
	rows, err := db.pool.Query(ctx, selectRun+` WHERE r.run_id = @run`, pgx.StrictNamedArgs{"run": id})
	if err != nil {
		return catalog.Run{}, problem("read a reconciliation", err)
	}
	run, err := pgx.CollectExactlyOneRow(rows, db.scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return run, unknownRun(id)
	}
	return run, problem("read a reconciliation", err)
}

func unknownRun(id int64) error {
	return catalog.Errorf(catalog.CodeUnknownRun, "there is no reconciliation %d: catalogd reconcile ls lists those there are", id)
}

// Runs implements reconcile.Ledger.
func (db *DB) Runs(ctx context.Context, storeID string, limit int) ([]catalog.Run, error) {
	rows, err := db.pool.Query(ctx, selectRun+` WHERE @store = '' OR r.store_id = @store ORDER BY r.run_id DESC LIMIT @limit`,
		pgx.StrictNamedArgs{"store": storeID, "limit": limit})
	if err != nil {
		return nil, problem("list reconciliations", err)
	}
	runs, err := pgx.CollectRows(rows, db.scanRun)
	return runs, problem("list reconciliations", err)
}

// Cancel implements reconcile.Ledger.
func (db *DB) Cancel(ctx context.Context, id int64, who string) error {
	tag, err := db.pool.Exec(ctx, `
UPDATE catalog.reconcile_runs SET canceled_by = CASE WHEN state = 'running' THEN coalesce(canceled_by, @who) ELSE canceled_by END WHERE run_id = @run`,
		pgx.StrictNamedArgs{"run": id, "who": who})
	if err == nil && tag.RowsAffected() == 0 {
		return unknownRun(id)
	}
	return problem("cancel a reconciliation", err)
}

// work is a part of a run that this process alone works on.
type work struct {
	*hold
	db   *DB
	run  catalog.Run
	part catalog.RunPart
}

func partName(run int64, part int) string { return fmt.Sprintf("reconcile %d/%d", run, part) }

// TakePart implements reconcile.Ledger.
func (db *DB) TakePart(ctx context.Context, run int64, part int) (reconcile.Work, error) {
	held, err := db.take(ctx, partName(run, part))
	if held == nil || err != nil {
		return nil, err
	}
	w := &work{hold: held, db: db, part: catalog.RunPart{Run: run, Part: part}}
	taken, err := w.begin(ctx)
	if err != nil || !taken {
		w.Close()
		return nil, problem("take a part of a reconciliation", err)
	}
	return w, nil
}

func (w *work) begin(ctx context.Context) (bool, error) {
	err := w.db.pool.QueryRow(ctx, `
UPDATE catalog.reconcile_parts p SET state = 'running', figures = '{}', at_key = ''
FROM catalog.reconcile_runs r
WHERE p.run_id = @run AND p.part = @part AND p.state IN ('queued', 'running') AND r.run_id = p.run_id AND r.state = 'running'
RETURNING p.kind, p.from_key, p.to_key`, pgx.StrictNamedArgs{"run": w.part.Run, "part": w.part.Part}).Scan(&w.part.Kind, &w.part.From, &w.part.To)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		w.run, err = w.db.Run(ctx, w.part.Run)
	}
	return err == nil, err
}

func (w *work) Run() catalog.Run { return w.run }

func (w *work) Part() catalog.RunPart { return w.part }

// Progress implements reconcile.Work.
func (w *work) Progress(ctx context.Context, at string, figures catalog.RunFigures) (stop bool, err error) {
	err = w.db.pool.QueryRow(ctx, `
UPDATE catalog.reconcile_parts p SET at_key = @at, figures = @figures
FROM catalog.reconcile_runs r
WHERE p.run_id = @run AND p.part = @part AND r.run_id = p.run_id
RETURNING r.canceled_by IS NOT NULL OR r.state <> 'running'`,
		pgx.StrictNamedArgs{"run": w.part.Run, "part": w.part.Part, "at": catalog.EscapeKey(at), "figures": figures}).Scan(&stop)
	return stop, problem("tell how far a reconciliation is", err)
}

// endPart ends a part, once.
const endPart = `
UPDATE catalog.reconcile_parts SET state = CASE WHEN @message = '' THEN 'complete' ELSE 'incomplete' END, figures = @figures,
    error_code = nullif(@code, ''), error_message = nullif(@message, '')
WHERE run_id = @run AND part = @part AND state IN ('queued', 'running')`

// End implements reconcile.Work. The run's row has parts end one after another.
func (w *work) End(ctx context.Context, figures catalog.RunFigures, code catalog.Code, message string) error {
	return w.db.within(ctx, "end a part of a reconciliation", func(tx pgx.Tx) error {
		var canceled bool
		err := tx.QueryRow(ctx, `SELECT canceled_by IS NOT NULL FROM catalog.reconcile_runs WHERE run_id = @run AND state = 'running' FOR NO KEY UPDATE`,
			pgx.StrictNamedArgs{"run": w.run.ID}).Scan(&canceled)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, endPart, pgx.StrictNamedArgs{"run": w.run.ID, "part": w.part.Part, "figures": figures, "code": code, "message": message}); err != nil {
			return err
		}
		return endRun(ctx, tx, w.run, canceled)
	})
}

// endRun ends a run whose parts have all ended.
func endRun(ctx context.Context, tx pgx.Tx, run catalog.Run, canceled bool) error {
	rows, err := tx.Query(ctx, `
SELECT state, figures, coalesce(error_code, ''), coalesce(error_message, '') FROM catalog.reconcile_parts WHERE run_id = @run ORDER BY part`, pgx.StrictNamedArgs{"run": run.ID})
	if err != nil {
		return err
	}
	run.State = catalog.RunComplete
	run.Figures = catalog.RunFigures{}
	over := true
	var state, message string
	var figures catalog.RunFigures
	var code catalog.Code
	_, err = pgx.ForEachRow(rows, []any{&state, &figures, &code, &message}, func() error {
		over = over && (state == "complete" || state == "incomplete")
		run.Figures.Add(figures)
		figures = catalog.RunFigures{}
		if state == "incomplete" && run.State == catalog.RunComplete {
			run.State, run.ErrorCode, run.ErrorMessage = catalog.RunIncomplete, code, message
		}
		return nil
	})
	if err != nil || !over {
		return err
	}
	if canceled && run.State == catalog.RunIncomplete {
		run.State, run.ErrorCode, run.ErrorMessage = catalog.RunCanceled, "", ""
	}
	if run.State == catalog.RunComplete {
		if err := resolve(ctx, tx, run); err != nil {
			return err
		}
	}
	if run.Kinds, err = countKinds(ctx, tx, run); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
UPDATE catalog.reconcile_runs SET state = @state, figures = @figures, kinds = @kinds, error_code = nullif(@code, ''), error_message = nullif(@message, ''), ended_at = clock_timestamp()
WHERE run_id = @run`, pgx.StrictNamedArgs{
		"run": run.ID, "state": run.State, "figures": run.Figures, "kinds": run.Kinds, "code": run.ErrorCode, "message": run.ErrorMessage,
	})
	return err
}

// kinds are those that a run looks at.
func kinds(run catalog.Run) []catalog.FindingKind {
	if run.Prefix == "" && run.Source == catalog.RunStore {
		return catalog.FindingKinds()
	}
	return []catalog.FindingKind{catalog.FindingOrphan, catalog.FindingLost, catalog.FindingMismatch}
}

// resolve: what a complete run looked at and did not find is not so any more. What a scrub
// found, by reading, is so until its row is another's, or the object is not there.
func resolve(ctx context.Context, tx pgx.Tx, run catalog.Run) error {
	_, err := tx.Exec(ctx, `
UPDATE catalog.findings f SET state = 'resolved', resolved_at = clock_timestamp(), resolved_run = @run
WHERE f.store_id = @store AND f.kind = ANY(@kinds) AND f.state <> 'resolved' AND coalesce(f.last_run, 0) < @run AND starts_with(f.object_key, @prefix)
  AND (f.found_by = 'reconcile' OR NOT EXISTS (SELECT FROM catalog.tiles t WHERE t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id)
       OR EXISTS (SELECT FROM catalog.findings l WHERE l.store_id = f.store_id AND l.kind = 'lost' AND l.object_key = f.object_key AND l.last_run = @run AND l.state = 'open'))`,
		pgx.StrictNamedArgs{"store": run.StoreID, "kinds": kinds(run), "run": run.ID, "prefix": run.Prefix})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, forgetLost, pgx.StrictNamedArgs{"run": run.ID})
	return err
}

// An output that is back, and was not made again, is not lost any more; unless that was
// said of it since the run began.
const forgetLost = `
UPDATE catalog.tile_health h SET lost_since = NULL
FROM catalog.findings f JOIN catalog.tiles t ON t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id
WHERE f.resolved_run = @run AND f.kind IN ('lost', 'mismatch') AND h.unit_key = t.unit_key
  AND h.lost_since < (SELECT created_at FROM catalog.reconcile_runs WHERE run_id = @run)
  AND NOT EXISTS (SELECT FROM catalog.findings o WHERE o.store_id = f.store_id AND o.kind IN ('lost', 'mismatch') AND o.object_key = f.object_key AND o.state = 'open')`

func countKinds(ctx context.Context, tx pgx.Tx, run catalog.Run) ([]catalog.KindCount, error) {
	counts := []catalog.KindCount{}
	rows, err := tx.Query(ctx, `
SELECT f.kind, count(*) FILTER (WHERE f.state = 'open' AND f.opened_run = @run), count(*) FILTER (WHERE f.state = 'open'), count(*) FILTER (WHERE f.resolved_run = @run),
       coalesce(sum(f.size_bytes) FILTER (WHERE f.state = 'open'), 0)::bigint,
       coalesce(min(f.object_key || CASE WHEN f.reason = '' THEN '' ELSE ' ' || f.reason END) FILTER (WHERE f.state = 'open'), '')
FROM catalog.findings f
WHERE f.store_id = @store AND f.kind = ANY(@kinds) AND (f.state = 'open' OR f.resolved_run = @run) AND starts_with(f.object_key, @prefix)
GROUP BY f.kind ORDER BY array_position(@kinds, f.kind)`, pgx.StrictNamedArgs{"store": run.StoreID, "kinds": kinds(run), "run": run.ID, "prefix": run.Prefix})
	if err != nil {
		return nil, err
	}
	var k catalog.KindCount
	_, err = pgx.ForEachRow(rows, []any{&k.Kind, &k.New, &k.Open, &k.Resolved, &k.Bytes, &k.Example}, func() error {
		counts = append(counts, k)
		return nil
	})
	return counts, err
}

// RequeueParts has parts of runs done again whose server is gone: those that have not
// ended, that nobody holds, and that no job waits to do. A run of a given listing ends,
// incomplete: only its caller had that. It tells how many.
func (db *DB) RequeueParts(ctx context.Context, grace time.Duration) (requeued int, err error) {
	err = db.within(ctx, "queue parts of reconciliations again", func(tx pgx.Tx) error {
		requeued = 0
		rows, err := tx.Query(ctx, `
SELECT p.run_id, p.part, r.source
FROM catalog.reconcile_runs r JOIN catalog.reconcile_parts p USING (run_id)
WHERE r.state = 'running' AND p.state IN ('queued', 'running') AND p.queued_at < clock_timestamp() - @grace::interval
  AND NOT EXISTS (SELECT FROM river.river_job j
                  WHERE j.args @> jsonb_build_object('run', p.run_id, 'part', p.part) AND j.kind = 'reconcile_part'
                    AND j.state IN ('available', 'pending', 'retryable', 'scheduled'))
ORDER BY r.run_id, p.part`, pgx.StrictNamedArgs{"grace": grace})
		if err != nil {
			return err
		}
		type stray struct {
			Run    int64
			Part   int
			Source catalog.RunSource
		}
		strays, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stray])
		if err != nil {
			return err
		}
		for _, s := range strays {
			if ok, err := free(ctx, tx, partName(s.Run, s.Part)); err != nil || !ok {
				if err != nil {
					return err
				}
				continue
			}
			requeued++
			if s.Source == catalog.RunStore {
				if _, err := tx.Exec(ctx, `UPDATE catalog.reconcile_parts SET queued_at = clock_timestamp() WHERE run_id = @run AND part = @part`,
					pgx.StrictNamedArgs{"run": s.Run, "part": s.Part}); err != nil {
					return err
				}
				if err := db.queue.Part(ctx, tx, s.Run, s.Part); err != nil {
					return err
				}
				continue
			}
			if _, err := tx.Exec(ctx, `
UPDATE catalog.reconcile_parts SET state = 'incomplete', error_code = @code, error_message = 'the server that had the listing is gone: send it again' WHERE run_id = @run AND part = @part`,
				pgx.StrictNamedArgs{"run": s.Run, "part": s.Part, "code": catalog.CodeOutcomeUnknown}); err != nil {
				return err
			}
			run, err := db.Run(ctx, s.Run)
			if err == nil {
				err = endRun(ctx, tx, run, false)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return requeued, err
}

// rowsPage is how many rows are read at once.
const rowsPage = 5000

// last is after every key of a row.
const last = "\U0010ffff"

// Rows implements reconcile.Ledger.
func (db *DB) Rows(ctx context.Context, storeID string, within storage.Range) iter.Seq2[reconcile.Row, error] {
	from, to := max(within.From, within.Prefix), within.To
	if end := within.Prefix + last; to == "" || end < to {
		to = end
	}
	return func(yield func(reconcile.Row, error) bool) {
		// The first key is among them, the last of a page is not among the next.
		for from, compare := from, ">="; ; compare = ">" {
			rows, err := db.pool.Query(ctx, `
SELECT object_key, unit_key, attempt_id, size_bytes, etag, '' FROM catalog.tiles
WHERE store_id = @store AND object_key `+compare+` @from AND object_key < @to
ORDER BY object_key LIMIT @limit`, pgx.StrictNamedArgs{"store": storeID, "from": from, "to": to, "limit": rowsPage})
			n := 0
			if err == nil {
				var r reconcile.Row
				_, err = pgx.ForEachRow(rows, []any{&r.ObjectKey, &r.UnitKey, &r.AttemptID, &r.SizeBytes, &r.ETag, &r.Checksum}, func() error {
					n++
					if from = r.ObjectKey; !yield(r, nil) {
						return errEnough
					}
					return nil
				})
			}
			switch {
			case errors.Is(err, errEnough):
				return
			case err != nil:
				yield(reconcile.Row{}, problem("read rows", err))
				return
			case n < rowsPage:
				return
			}
		}
	}
}

// errEnough: the reader wants no more.
var errEnough = errors.New("enough")

// RowsNow implements reconcile.Ledger.
func (db *DB) RowsNow(ctx context.Context, rows []reconcile.Row) (map[string]reconcile.StillRow, error) {
	keys, units, attempts := make([]string, len(rows)), make([]uuid.UUID, len(rows)), make([]uuid.UUID, len(rows))
	for i, r := range rows {
		keys[i], units[i], attempts[i] = r.ObjectKey, r.UnitKey, r.AttemptID
	}
	now := map[string]reconcile.StillRow{}
	err := db.snapshot(ctx, "read rows again", func(batch *pgx.Batch) {
		var key string
		var still reconcile.StillRow
		each(batch, `
SELECT w.key, t.current
FROM unnest(@keys::text[], @units::uuid[], @attempts::uuid[]) w (key, unit, attempt)
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM catalog.slots s WHERE (s.collection_id, s.tile_id) = (t.collection_id, t.tile_id) AND s.unit_key = t.unit_key) AS current
    FROM catalog.tiles t WHERE t.unit_key = w.unit AND t.attempt_id = w.attempt AND t.object_key = w.key LIMIT 1) t`,
			pgx.StrictNamedArgs{"keys": keys, "units": units, "attempts": attempts}, []any{&key, &still.Current}, func() { now[key] = still })
	})
	return now, err
}

// Cover implements reconcile.Ledger. Attempts that have ended without a row cover their
// objects until those were swept.
func (db *DB) Cover(ctx context.Context, storeID string, keys []string) (map[string]reconcile.Cover, error) {
	covers := map[string]reconcile.Cover{}
	err := db.snapshot(ctx, "see what names objects", func(batch *pgx.Batch) {
		var key string
		var c reconcile.Cover
		each(batch, `
SELECT w.key, t.named IS NOT NULL OR r.named IS NOT NULL OR a.covers IS TRUE, a.attempt_id
FROM unnest(@keys::text[]) w (key)
LEFT JOIN LATERAL (SELECT true AS named FROM catalog.tiles WHERE store_id = @store AND object_key = w.key LIMIT 1) t ON true
LEFT JOIN LATERAL (SELECT attempt_id, state IN ('open', 'promoting') OR state <> 'done' AND swept_at IS NULL AS covers
                   FROM catalog.attempts WHERE store_id = @store AND object_key = w.key LIMIT 1) a ON true
LEFT JOIN LATERAL (SELECT true AS named FROM catalog.removals WHERE store_id = @store AND object_key = w.key AND confirmed_at IS NULL LIMIT 1) r ON true`,
			pgx.StrictNamedArgs{"store": storeID, "keys": keys}, []any{&key, &c.Named, &c.Attempt}, func() { covers[key] = c })
	})
	return covers, err
}

// A finding that was resolved begins anew. An object of others is young until it was seen
// for so long, by the clock of the database, as its first sight says.
const upsertFindings = `
WITH seen AS (
    SELECT clock_timestamp() AS now
), given AS (
    SELECT * FROM unnest(@kinds::text[], @keys::text[], @units::uuid[], @attempts::uuid[], @reasons::text[], @sizes::bigint[], @expected::bigint[], @foreign::boolean[])
        AS g (kind, object_key, unit_key, attempt_id, reason, size_bytes, expected_bytes, is_foreign)
), judged AS (
    SELECT g.*, coalesce(old.first_seen_at, seen.now) AS first_seen_at, old.opened_run,
           CASE WHEN old.state = 'open' OR NOT g.is_foreign OR coalesce(old.first_seen_at, seen.now) <= seen.now - @min_age::interval THEN 'open' ELSE 'young' END AS state,
           old.state IS NOT DISTINCT FROM 'open' AS was_open
    FROM given g CROSS JOIN seen
    LEFT JOIN LATERAL (SELECT f.first_seen_at, f.state, f.opened_run FROM catalog.findings f
                       WHERE f.store_id = @store AND f.kind = g.kind AND f.object_key = g.object_key AND f.state <> 'resolved' LIMIT 1) old ON true
)
INSERT INTO catalog.findings (store_id, kind, object_key, state, unit_key, attempt_id, reason, size_bytes, expected_bytes, found_by, first_seen_at, last_seen_at, last_run, opened_run)
SELECT @store, j.kind, j.object_key, j.state, j.unit_key, j.attempt_id, j.reason, j.size_bytes, j.expected_bytes, 'reconcile', j.first_seen_at, seen.now, @run,
       CASE WHEN j.was_open THEN j.opened_run WHEN j.state = 'open' THEN @run END
FROM judged j CROSS JOIN seen
ORDER BY j.kind, j.object_key
ON CONFLICT ON CONSTRAINT findings_object_key_key DO UPDATE SET
    state = EXCLUDED.state, unit_key = EXCLUDED.unit_key, attempt_id = EXCLUDED.attempt_id, reason = EXCLUDED.reason, size_bytes = EXCLUDED.size_bytes,
    expected_bytes = EXCLUDED.expected_bytes, found_by = 'reconcile', first_seen_at = EXCLUDED.first_seen_at, last_seen_at = EXCLUDED.last_seen_at,
    last_run = EXCLUDED.last_run, opened_run = EXCLUDED.opened_run, resolved_at = NULL, resolved_run = NULL
RETURNING kind, object_key, state`

// Find implements reconcile.Ledger.
func (db *DB) Find(ctx context.Context, run catalog.Run, found []reconcile.Found) ([]catalog.FindingState, error) {
	n := len(found)
	kinds, keys, reasons := make([]catalog.FindingKind, n), make([]string, n), make([]string, n)
	units, attempts := make([]*uuid.UUID, n), make([]*uuid.UUID, n)
	sizes, expected, foreign := make([]int64, n), make([]*int64, n), make([]bool, n)
	place := map[string]int{}
	for i, f := range found {
		kinds[i], keys[i], reasons[i] = f.Kind, f.ObjectKey, f.Reason
		units[i], attempts[i] = f.UnitKey, f.AttemptID
		sizes[i], expected[i], foreign[i] = f.SizeBytes, f.ExpectedBytes, f.Foreign
		place[string(f.Kind)+" "+f.ObjectKey] = i
	}
	rows, err := db.pool.Query(ctx, upsertFindings, pgx.StrictNamedArgs{
		"store": run.StoreID, "run": run.ID, "min_age": run.MinAge, "kinds": kinds, "keys": keys, "units": units, "attempts": attempts,
		"reasons": reasons, "sizes": sizes, "expected": expected, "foreign": foreign,
	})
	if err != nil {
		return nil, problem("record findings", err)
	}
	states := make([]catalog.FindingState, n)
	var kind, key string
	var state catalog.FindingState
	_, err = pgx.ForEachRow(rows, []any{&kind, &key, &state}, func() error {
		states[place[kind+" "+key]] = state
		return nil
	})
	return states, problem("record findings", err)
}

// Unsure implements reconcile.Ledger.
func (db *DB) Unsure(ctx context.Context, run catalog.Run, keys []string) error {
	_, err := db.pool.Exec(ctx, `
UPDATE catalog.findings SET last_run = @run WHERE store_id = @store AND kind IN ('orphan', 'lost', 'mismatch') AND object_key = ANY(@keys) AND state <> 'resolved'`,
		pgx.StrictNamedArgs{"run": run.ID, "store": run.StoreID, "keys": keys})
	return problem("keep findings", err)
}

// Findings implements reconcile.Ledger.
func (db *DB) Findings(ctx context.Context, q catalog.FindingQuery) ([]catalog.Finding, error) {
	rows, err := db.pool.Query(ctx, `
SELECT f.finding_id, f.store_id, f.kind, f.object_key, f.state, f.unit_key, f.attempt_id, f.reason, f.size_bytes, f.expected_bytes,
       f.unit_key IS NOT NULL AND EXISTS (SELECT FROM catalog.tiles t JOIN catalog.slots s USING (collection_id, tile_id, unit_key) WHERE t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id),
       f.first_seen_at, f.last_seen_at, f.resolved_at, coalesce(f.last_run, 0), f.opened_run, f.resolved_run
FROM catalog.findings f
WHERE (@store = '' OR f.store_id = @store) AND (@kind = '' OR f.kind = @kind) AND (f.state = @state OR @state = '' AND f.state <> 'resolved')
  AND starts_with(f.object_key, @prefix) AND f.finding_id > @after
ORDER BY f.finding_id LIMIT @limit`, pgx.StrictNamedArgs{
		"store": q.StoreID, "kind": q.Kind, "state": q.State, "prefix": q.Prefix, "after": q.After, "limit": q.Limit,
	})
	if err != nil {
		return nil, problem("list findings", err)
	}
	findings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f catalog.Finding, err error) {
		err = row.Scan(&f.ID, &f.StoreID, &f.Kind, &f.ObjectKey, &f.State, &f.UnitKey, &f.AttemptID, &f.Reason, &f.SizeBytes, &f.ExpectedBytes, &f.Current,
			&f.FirstSeen, &f.LastSeen, &f.ResolvedAt, &f.LastRun, &f.OpenedRun, &f.ResolvedIn)
		f.Store = db.storeName(f.StoreID)
		return f, err
	})
	return findings, problem("list findings", err)
}
