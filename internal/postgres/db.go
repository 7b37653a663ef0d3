// Package postgres keeps the catalogue in PostgreSQL with PostGIS. SQL stands
// beside the function that runs it. It implements what upsert and httpapi ask
// for, knows catalog and the ports of upsert, and turns every database error
// into a catalog.Error.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxgeom "github.com/twpayne/pgx-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// statementTimeout bounds any one statement of the server's.
const statementTimeout = 60 * time.Second

// maxConns of a pool whose URL says nothing else: requests wait on the disk more
// than on processors.
const maxConns = 20

// DB is a pool of connections to one catalogue.
type DB struct {
	pool *pgxpool.Pool
	// stores that this server uses, by their ids, and what it calls them. What is left
	// to do in others is their servers' work.
	stores, names []string
	// queue takes jobs; nil where this process has none to give.
	queue Queue
}

// Open connects to a database that has been migrated. The pool has as many
// connections as the URL's pool_max_conns says, else maxConns.
func Open(ctx context.Context, url string) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The error may quote the URL, and the URL may hold a password.
		return nil, catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database URL cannot be read")
	}
	// Geometry types get their OIDs with PostGIS: registering needs a migrated
	// database.
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		err := pgxgeom.Register(ctx, conn)
		if sqlState(err) == "42704" { // no such type
			return notMigrated()
		}
		return err
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = maxConns
	}
	params := config.ConnConfig.RuntimeParams
	setDefault(params, "application_name", "catalogd")
	setDefault(params, "statement_timeout", fmt.Sprint(statementTimeout.Milliseconds()))
	setDefault(params, "idle_in_transaction_session_timeout", fmt.Sprint(statementTimeout.Milliseconds()))
	// All go by keys, through one index each, whatever the keys: planned once. Left to
	// itself the server plans some of them at each call, and all of them six times on
	// each connection, the largest for longer than a commit takes.
	setDefault(params, "plan_cache_mode", "force_generic_plan")
	params["timezone"] = "UTC"
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, problem("connect", err)
	}
	db := &DB{pool: pool}
	if err := db.Ready(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return db, nil
}

func setDefault(params map[string]string, name, value string) {
	if _, ok := params[name]; !ok {
		params[name] = value
	}
}

// Close waits for connections in use, then closes all.
func (db *DB) Close() { db.pool.Close() }

// Ready tells whether the catalogue answers.
func (db *DB) Ready(ctx context.Context) error {
	var migrated bool
	err := db.pool.QueryRow(ctx, `SELECT to_regclass('catalog.tiles') IS NOT NULL`).Scan(&migrated)
	if err != nil {
		return problem("ask the database", err)
	}
	if !migrated {
		return notMigrated()
	}
	return nil
}

func notMigrated() error {
	return catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database has no catalogue: run catalogd migrate up, or serve --migrate")
}

// snapshot reads what queue asks for from one snapshot, in one round trip. Only here,
// in transact, in within and where a batch is surveyed do transactions begin.
func (db *DB) snapshot(ctx context.Context, doing string, queue func(*pgx.Batch)) error {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	queue(batch)
	batch.Queue("COMMIT")
	return problem(doing, db.pool.SendBatch(ctx, batch).Close())
}

// transact sends BEGIN together
// with what queue asks, has decide read the answers and queue what to write, and
// sends that together with COMMIT: two round trips in all. With nothing to write
// it rolls back. An error rolls back too, whatever has become of ctx: a
// connection that is released inside a transaction is closed. Deadlocks and
// serialization failures are tried again.
func (db *DB) transact(ctx context.Context, doing string, queue func(*pgx.Batch), decide func(pgx.BatchResults, *pgx.Batch) error) error {
	var err error
	for range 3 {
		if err = db.transactOnce(ctx, queue, decide); !retryable(err) {
			break
		}
	}
	return problem(doing, err)
}

func (db *DB) transactOnce(ctx context.Context, queue func(*pgx.Batch), decide func(pgx.BatchResults, *pgx.Batch) error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	ask := &pgx.Batch{}
	ask.Queue("BEGIN")
	queue(ask)
	answers := conn.SendBatch(ctx, ask)
	write := &pgx.Batch{}
	if _, err = answers.Exec(); err == nil {
		err = decide(answers, write)
	}
	if closeErr := answers.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if write.Len() == 0 {
		write.Queue("ROLLBACK")
	} else {
		write.Queue("COMMIT")
	}
	return conn.SendBatch(ctx, write).Close()
}

// within has do work in a transaction, a round trip a statement, where others have to
// write in it too. It is tried again as in transact.
func (db *DB) within(ctx context.Context, doing string, do func(tx pgx.Tx) error) error {
	var err error
	for range 3 {
		if err = pgx.BeginFunc(ctx, db.pool, do); !retryable(err) {
			break
		}
	}
	return problem(doing, err)
}

// exactlyOne makes a queued write fail, and so its transaction, unless it changes
// one row. The server has to judge that: COMMIT is on its way already when the
// client could.
func exactlyOne(q *pgx.QueuedQuery) {
	q.SQL = "WITH changed AS (" + q.SQL + " RETURNING 1) SELECT 1 / (count(*) = 1)::integer AS exactly_one FROM changed"
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

func retryable(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// problem is the one place that translates database errors. Nil stays nil, and
// a catalog.Error itself.
func problem(doing string, err error) error {
	var known *catalog.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	err = fmt.Errorf("%s: %w", doing, err)
	state := sqlState(err)
	var network net.Error
	var connect *pgconn.ConnectError
	switch {
	case state == "25006":
		return catalog.Errorf(catalog.CodeDatabaseReadOnly, "the database takes no writes now (a standby, or read-only): have an operator point catalogd at the primary, then try again").Because(err)
	case state == "42501":
		return catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database's role lacks rights: have an operator GRANT catalog_server TO the role that catalogd logs in as").Because(err)
	case state == "53100":
		return catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database's disk is full: have an operator free space, then try again").Because(err)
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "53"), state == "57014", state == "55P03", retryable(err),
		errors.As(err, &connect), errors.As(err, &network), pgconn.Timeout(err), pgconn.SafeToRetry(err),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, net.ErrClosed),
		state == "" && strings.Contains(err.Error(), "conn closed"), state == "" && strings.Contains(err.Error(), "unexpected EOF"):
		return catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database does not answer: nothing is lost, try again").Because(err)
	}
	// Data that cannot be stored, or breaks a constraint; but not exactlyOne's
	// division by zero, which says that things have changed.
	if strings.HasPrefix(state, "23") || strings.HasPrefix(state, "22") && state != "22012" {
		err = fmt.Errorf("%w: %w", upsert.ErrRefused, err)
	}
	return catalog.Errorf(catalog.CodeInternal, "the database refused").Because(err)
}

var _ upsert.Ledger = (*DB)(nil)
