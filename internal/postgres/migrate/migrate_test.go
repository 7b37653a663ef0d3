package migrate_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	gomigrate "github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/postgres/migrate"
	"catalogd/internal/testdb"
	"catalogd/migrations"
)

func TestUpDownUp(t *testing.T) {
	ctx, url := t.Context(), testdb.NewEmpty(t)
	checkStatus := func(want uint) {
		t.Helper()
		current, latest, dirty, err := migrate.Status(ctx, url)
		if err != nil || dirty || latest == 0 {
			t.Fatalf("status: latest %d, dirty %v, %v", latest, dirty, err)
		}
		if want = min(want, latest); current != want {
			t.Fatalf("at version %d, want %d", current, want)
		}
	}
	const latest = 1 << 20
	checkStatus(0)
	up := schemaOf(t, url, func() error { return migrate.Up(ctx, url) })
	checkStatus(latest)
	schemaOf(t, url, func() error { return migrate.Up(ctx, url) }) // no change is no error
	if down := schemaOf(t, url, func() error { return migrate.Down(ctx, url) }); down != "" {
		t.Errorf("down leaves %s", down)
	}
	checkStatus(0)
	if again := schemaOf(t, url, func() error { return migrate.Up(ctx, url) }); again != up {
		t.Errorf("up again makes %s\nup made %s", again, up)
	}
	checkStatus(latest)
}

// schemaOf lists what there is in the schemas catalog and river after do.
func schemaOf(t *testing.T, url string, do func() error) string {
	t.Helper()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `
SELECT 'relation ' || c.oid::regclass FROM pg_class c WHERE c.relnamespace IN (to_regnamespace('catalog'), to_regnamespace('river'))
UNION ALL
SELECT 'function ' || p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace IN (to_regnamespace('catalog'), to_regnamespace('river'))
UNION ALL
SELECT 'type ' || t.oid::regtype FROM pg_type t WHERE t.typnamespace IN (to_regnamespace('catalog'), to_regnamespace('river'))
ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, "\n")
}

func TestFilesComeInPairs(t *testing.T) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		other := strings.NewReplacer(".up.sql", ".down.sql", ".down.sql", ".up.sql").Replace(name)
		if _, err := fs.Stat(migrations.FS, other); err != nil || other == name {
			t.Errorf("%s has no counterpart", name)
		}
	}
}

func TestConcurrently(t *testing.T) {
	url := testdb.NewEmpty(t)
	done := make(chan error)
	for range 2 {
		go func() { done <- migrate.Up(t.Context(), url) }()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// What stands of the schema always has its version: a failed migration leaves
// the one before it, and nothing to repair.
func TestFailureLeavesTheVersionBefore(t *testing.T) {
	ctx, url := t.Context(), testdb.NewEmpty(t)
	good := fstest.MapFS{
		"0001_a.up.sql":   {Data: []byte("CREATE TABLE a ();")},
		"0001_a.down.sql": {Data: []byte("DROP TABLE a;")},
		"0002_b.up.sql":   {Data: []byte("CREATE TABLE b ();")},
		"0002_b.down.sql": {Data: []byte("DROP TABLE b;")},
	}
	bad := fstest.MapFS{"0002_b.up.sql": {Data: []byte("CREATE TABLE b ();\nCREATE TABLE c (x nonsense);")}}
	for name, file := range good {
		if _, ok := bad[name]; !ok {
			bad[name] = file
		}
	}
	err := migrate.Run(ctx, url, bad, (*gomigrate.Migrate).Up)
	if err == nil || !strings.Contains(err.Error(), "version 2: line 2") {
		t.Fatalf("bad migration: %v", err)
	}
	if current, _, dirty, err := migrate.Status(ctx, url); current != 1 || dirty || err != nil {
		t.Fatalf("after a failure: version %d, dirty %v, %v", current, dirty, err)
	}
	if err := migrate.Run(ctx, url, good, (*gomigrate.Migrate).Up); err != nil {
		t.Fatal(err)
	}

	older := fstest.MapFS{"0001_a.up.sql": good["0001_a.up.sql"], "0001_a.down.sql": good["0001_a.down.sql"]}
	if err := migrate.Run(ctx, url, older, (*gomigrate.Migrate).Up); err == nil || !strings.Contains(err.Error(), "newer catalogd") {
		t.Errorf("older program: %v", err)
	}

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "UPDATE "+migrate.VersionTable+" SET dirty = true"); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Run(ctx, url, good, (*gomigrate.Migrate).Up); err == nil || !strings.Contains(err.Error(), "dirty = false") {
		t.Errorf("dirty: %v", err)
	}
}

func TestObeysContext(t *testing.T) {
	url := testdb.NewEmpty(t)
	slow := fstest.MapFS{
		"0001_a.up.sql":   {Data: []byte("CREATE TABLE a (); SELECT pg_sleep(60);")},
		"0001_a.down.sql": {Data: []byte("DROP TABLE a;")},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error)
	for range 2 { // one in the migration, one waiting for it
		go func() { done <- migrate.Run(ctx, url, slow, (*gomigrate.Migrate).Up) }()
	}
	for range 2 {
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if current, _, dirty, err := migrate.Status(t.Context(), url); current != 0 || dirty || err != nil {
		t.Errorf("after a cancelled migration: version %d, dirty %v, %v", current, dirty, err)
	}
}
