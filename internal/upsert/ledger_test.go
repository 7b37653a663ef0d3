package upsert_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// lock begins a transaction that runs sql and is rolled back, or ended by end.
func (w *world) lock(sql string, args ...any) (end func(commit bool)) {
	w.t.Helper()
	ctx := w.t.Context()
	tx, err := w.sql.Begin(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { end(false) })
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		w.t.Fatal(err)
	}
	return func(commit bool) {
		if commit {
			if err := tx.Commit(ctx); err != nil {
				w.t.Fatal(err)
			}
		}
		_ = tx.Rollback(ctx)
	}
}

// blocked returns when this many of the server's sessions wait for a lock.
func (w *world) blocked(n int) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		waiting := w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'catalogd' AND wait_event_type = 'Lock'`)
		if waiting >= n {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d sessions wait for locks, want %d", waiting, n)
		}
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// result of something that runs beside the test.
type result[T any] struct {
	value T
	err   error
}

func async[T any](do func() (T, error)) <-chan result[T] {
	done := make(chan result[T], 1)
	go func() {
		value, err := do()
		done <- result[T]{value, err}
	}()
	return done
}

func (w *world) completing(r *replica, a catalog.Attempt) <-chan result[upsert.Outcome] {
	return async(func() (upsert.Outcome, error) { return r.Complete(w.t.Context(), a.ID, upsert.CompleteRequest{}) })
}

// An attempt that fails while its row is being written has either, and not both.
func TestConcludeAgainstFailure(t *testing.T) { onBoth(t, testConcludeAgainstFailure) }

func testConcludeAgainstFailure(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	reached, resume := w.pause(upsert.PointPromoted, a.ID)
	defer resume()
	done := w.completing(w.replica, a)
	<-reached
	end := w.lock(`UPDATE catalog.attempts SET state = 'failed', intent = NULL, ended_at = clock_timestamp() WHERE attempt_id = $1`, a.ID)
	resume()
	w.blocked(1)
	end(true)
	wantCode(t, (<-done).err, catalog.CodeAttemptEnded)
	w.check(invariant.Options{Quiet: true})
	if n := w.count(`SELECT count(*) FROM catalog.tiles`); n != 0 {
		t.Fatal("a failed attempt has a row")
	}
}

// A row that was being written while its version was published still gets its
// slot: it ranked by the old rank, so the publication has to wait for it.
func TestPublishDuringConclude(t *testing.T) { onBoth(t, testPublishDuringConclude) }

func testPublishDuringConclude(t *testing.T, on place) {
	w := newWorld(t, on)
	first := w.run(request("t1", "v1"))
	w.do(request("t1", "v2"), rastertest.Raster{Seed: 2})
	w.stage(first, rastertest.Raster{Seed: 1})
	end := w.lock(`LOCK TABLE catalog.tiles IN SHARE MODE`) // reads, and no writes
	registered := w.completing(w.replica, first)
	w.blocked(1)
	published := async(func() (upsert.Published, error) { return w.Publish(t.Context(), "landcover", "v1", "me", "back") })
	w.blocked(2)
	end(false)
	if p := <-published; p.err != nil || p.value.Moved != 1 {
		t.Fatalf("%+v", p)
	}
	if r := <-registered; r.err != nil {
		t.Fatal(r.err)
	}
	w.check(invariant.Options{Quiet: true, Linked: true})
}

// listing is a ledger that stops after it has listed what is promoting.
type listing struct {
	*postgres.DB
	listed, on chan struct{}
}

func (l *listing) Promoting(ctx context.Context, all bool) ([]catalog.Attempt, error) {
	attempts, err := l.DB.Promoting(ctx, all)
	close(l.listed)
	<-l.on
	return attempts, err
}

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

// A write that changes another number of rows than it must undoes all of its
// transaction, although COMMIT was on its way before the client could judge.
func TestWriteThatChangesNothing(t *testing.T) { onBoth(t, testWriteThatChangesNothing) }

func testWriteThatChangesNothing(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	w.exec(`CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	w.exec(`CREATE TRIGGER nothing BEFORE UPDATE ON catalog.attempts FOR EACH ROW WHEN (NEW.state = 'done') EXECUTE FUNCTION nothing()`)
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeInternal)
	if n := w.count(`SELECT count(*) FROM catalog.tiles`); n != 0 || w.state(a) != catalog.AttemptPromoting {
		t.Fatalf("%d rows, attempt %s", n, w.state(a))
	}
	w.exec(`DROP TRIGGER nothing ON catalog.attempts`)
	if r, err := w.Recover(t.Context()); err != nil || r.RolledForward != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	w.check(settled)
}
