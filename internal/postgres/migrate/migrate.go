// Package migrate brings a database's schema to the version that this program
// needs. It is apart from postgres so that the tests of that package can have
// migrated databases. It imports pgx, golang-migrate and the migrations only.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	gomigrate "github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/migrations"
)

// Up brings the schema of the database up to date. Any number of processes
// may call it at once: one migrates, the others wait and find it done. A crash
// leaves whole migrations, each with its version; the next call goes on.
func Up(ctx context.Context, databaseURL string) error {
	return run(ctx, databaseURL, migrations.FS, (*gomigrate.Migrate).Up)
}

// Down takes every migration back, and all data with them.
func Down(ctx context.Context, databaseURL string) error {
	return run(ctx, databaseURL, migrations.FS, (*gomigrate.Migrate).Down)
}

// Status tells the version of the database's schema, 0 for none, and the
// latest that this program has. It writes nothing. dirty is never catalogd's own
// doing: another tool began a migration there and did not end it.
func Status(ctx context.Context, databaseURL string) (current, latest uint, dirty bool, err error) {
	if latest, err = latestVersion(migrations.FS); err != nil {
		return 0, 0, false, err
	}
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return 0, latest, false, fmt.Errorf("migration status: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	version, dirty, err := (&driver{ctx: ctx, conn: conn}).Version()
	if err != nil {
		return 0, latest, false, fmt.Errorf("migration status: %w", err)
	}
	return uint(max(version, 0)), latest, dirty, nil
}

// connect takes the settings of a pool in the URL, which servers are given too, for what
// they are: no matter of a single connection.
func connect(ctx context.Context, databaseURL string) (*pgx.Conn, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// run runs the migrations of fsys up or down, under an advisory lock, on a
// connection of its own.
func run(ctx context.Context, databaseURL string, fsys fs.FS, direction func(*gomigrate.Migrate) error) error {
	latest, err := latestVersion(fsys)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // frees the lock
	d := &driver{ctx: ctx, conn: conn}
	if err := d.prepare(); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	current, dirty, err := d.Version()
	switch {
	case err != nil:
		return fmt.Errorf("migrate: %w", err)
	case dirty:
		return fmt.Errorf("migrate: version %d is marked dirty: another tool began this migration and did not end it. "+
			"See which of its statements took effect, undo or complete them by hand, then: UPDATE %s SET version = …, dirty = false", current, versionTable)
	case current > int(latest):
		return fmt.Errorf("migrate: the database is at version %d, this catalogd knows %d at most: run the newer catalogd", current, latest)
	}

	files, err := iofs.New(fsys, ".")
	if err != nil {
		return err
	}
	defer files.Close()
	m, err := gomigrate.NewWithInstance("iofs", files, "catalogd", d)
	if err != nil {
		return err
	}
	if err := direction(m); err != nil && !errors.Is(err, gomigrate.ErrNoChange) {
		return fmt.Errorf("migrate: %w", errors.Join(ctx.Err(), err))
	}
	return ctx.Err()
}

func latestVersion(fsys fs.FS) (uint, error) {
	files, err := iofs.New(fsys, ".")
	if err != nil {
		return 0, err
	}
	defer files.Close()
	version, err := files.First()
	for next := version; err == nil; next, err = files.Next(version) {
		version = next
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return version, nil
}

const versionTable = "public.catalogd_migrations"

// driver is golang-migrate's view of the database. Unlike the one that
// comes with it, it obeys a context, and runs each migration in one transaction
// with the record of its version, so that no crash leaves a "dirty" schema for
// somebody to repair. The table is golang-migrate's own.
type driver struct {
	ctx  context.Context // of the one call that it serves: the interface passes none
	conn *pgx.Conn
	// target is the version that the next Run leads to.
	target int
}

var _ database.Driver = (*driver)(nil)

// prepare takes the lock, the same that golang-migrate's own tool takes, and
// makes the version table. It waits as long as the context allows.
func (d *driver) prepare() error {
	schema, table, _ := strings.Cut(versionTable, ".")
	lock, err := database.GenerateAdvisoryLockId(d.conn.Config().Database, schema, table)
	if err != nil {
		return err
	}
	if _, err := d.conn.Exec(d.ctx, `SELECT pg_advisory_lock($1::text::bigint)`, lock); err != nil {
		return fmt.Errorf("wait for another migration: %w", err)
	}
	exists, err := d.tableExists()
	if err != nil || exists {
		return err
	}
	_, err = d.conn.Exec(d.ctx, `CREATE TABLE `+versionTable+` (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
COMMENT ON TABLE `+versionTable+` IS 'Version of the schema catalog; kept by catalogd migrate.'`)
	return err
}

func (d *driver) tableExists() (exists bool, err error) {
	err = d.conn.QueryRow(d.ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists)
	return exists, err
}

// Version is database.NilVersion where nothing has been migrated.
func (d *driver) Version() (version int, dirty bool, err error) {
	exists, err := d.tableExists()
	if err != nil || !exists {
		return database.NilVersion, false, err
	}
	err = d.conn.QueryRow(d.ctx, `SELECT version, dirty FROM `+versionTable).Scan(&version, &dirty)
	if errors.Is(err, pgx.ErrNoRows) {
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

// SetVersion is called before Run, and after it once more: Run records the
// version itself.
func (d *driver) SetVersion(version int, _ bool) error {
	d.target = version
	return nil
}

// Run applies one migration.
func (d *driver) Run(migration io.Reader) error {
	sql, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(d.ctx, d.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(d.ctx, string(sql)); err != nil {
			return fmt.Errorf("to version %d: %w", max(d.target, 0), located(string(sql), err))
		}
		if _, err := tx.Exec(d.ctx, `DELETE FROM `+versionTable); err != nil {
			return err
		}
		if d.target == database.NilVersion {
			return nil
		}
		_, err := tx.Exec(d.ctx, `INSERT INTO `+versionTable+` (version, dirty) VALUES ($1, false)`, d.target)
		return err
	})
}

// located adds the line of the migration that PostgreSQL complains of.
func located(sql string, err error) error {
	var pgErr *pgconn.PgError
	runes := []rune(sql) // positions count characters, from 1
	if errors.As(err, &pgErr) && 0 < pgErr.Position && int(pgErr.Position) <= len(runes) {
		return fmt.Errorf("line %d: %w", 1+strings.Count(string(runes[:pgErr.Position-1]), "\n"), err)
	}
	return err
}

// The lock is taken before golang-migrate comes in, and freed with the
// connection; nothing opens or drops by this driver.

func (d *driver) Lock() error                          { return nil }
func (d *driver) Unlock() error                        { return nil }
func (d *driver) Close() error                         { return nil }
func (d *driver) Open(string) (database.Driver, error) { return nil, errors.ErrUnsupported }
func (d *driver) Drop() error                          { return errors.ErrUnsupported }
