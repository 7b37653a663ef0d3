package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hold is a connection of its own that holds a lock: it goes with its connection, and so
// with its process.
type hold struct{ conn *pgxpool.Conn }

// take has this process alone work on what is named; nil where another does.
func (db *DB) take(ctx context.Context, name string) (*hold, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, problem("take "+name, err)
	}
	h := &hold{conn}
	var taken bool
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended(@name, 0))`, pgx.StrictNamedArgs{"name": "catalogd " + name}).Scan(&taken)
	if err != nil || !taken {
		h.Close()
		return nil, problem("take "+name, err)
	}
	return h, nil
}

// free tells, within a transaction, whether nobody works on what is named; nobody can
// begin to until it is over.
func free(ctx context.Context, tx pgx.Tx, name string) (ok bool, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended(@name, 0))`, pgx.StrictNamedArgs{"name": "catalogd " + name}).Scan(&ok)
	return ok, err
}

// Close gives it up, also where the caller's context is over. It is another's at once:
// PostgreSQL takes its time to see that a connection is gone.
func (h *hold) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = h.conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
	_ = h.conn.Conn().Close(ctx)
	h.conn.Release()
}
