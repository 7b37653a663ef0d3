// Package testdb gives each test a PostgreSQL database of its own, cloned from a
// template that has been migrated once.
//
// It does by hand what pgtestdb does: that one speaks to a cluster by host and
// port only, and the tests' private cluster has just a Unix socket.
package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"catalogd/internal/postgres/migrate"
	"catalogd/migrations"
)

// Env names the variable with the URL of a running cluster, as its superuser.
// Never a cluster that anybody needs: databases come and go in it.
const Env = "CATALOGD_TEST_DATABASE_URL"

// New makes a migrated database for this test and gives its URL, as superuser.
// It goes when the test has passed; a failed test keeps it and says where it is.
func New(t testing.TB) string {
	t.Helper()
	admin := adminURL(t)
	template, err := template(admin)
	if err != nil {
		t.Fatalf("testdb: template: %v", err)
	}
	return create(t, admin, template)
}

// NewEmpty is New without the migrations.
func NewEmpty(t testing.TB) string {
	t.Helper()
	return create(t, adminURL(t), "template1")
}

func adminURL(t testing.TB) string {
	t.Helper()
	admin := os.Getenv(Env)
	if admin == "" {
		t.Fatalf("%s is not set: run `make test`, or `go run ./internal/testdb/withpg -- go test ./...`", Env)
	}
	return admin
}

func create(t testing.TB, admin, template string) string {
	t.Helper()
	name := fmt.Sprintf("test_%.30s_%s", strings.ToLower(notWord.ReplaceAllString(t.Name(), "_")), strings.ToLower(rand.Text()[:10]))
	sql := fmt.Sprintf(`CREATE DATABASE %q TEMPLATE %q`, name, template)
	err := exec(admin, sql+` STRATEGY file_copy`)                                            // through the log it takes thrice the CPU
	if failed := (*pgconn.PgError)(nil); errors.As(err, &failed) && failed.Code == "42601" { // a syntax error
		err = exec(admin, sql) // for PostgreSQL 14, which copies files anyway
	}
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	database := withName(admin, name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testdb: kept: psql '%s'", database)
			return
		}
		if err := exec(admin, fmt.Sprintf(`DROP DATABASE %q WITH (FORCE)`, name)); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	return database
}

var notWord = regexp.MustCompile(`\W+`)

var (
	templateOnce sync.Once
	templateName string
	templateErr  error
)

// template makes the template database if no other test process has, and gives
// its name, which tells the migrations in it.
func template(admin string) (string, error) {
	templateOnce.Do(func() { templateName, templateErr = makeTemplate(admin) })
	return templateName, templateErr
}

func makeTemplate(admin string) (string, error) {
	hash, err := hashMigrations()
	if err != nil {
		return "", err
	}
	name := "template_" + hash
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) // frees the lock
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext('catalogd testdb'))`); err != nil {
		return "", err
	}
	// It gets its name when it is complete.
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists); err != nil || exists {
		return name, err
	}
	unfinished := name + "_unfinished"
	if _, err := conn.Exec(ctx, fmt.Sprintf(`DROP DATABASE IF EXISTS %q WITH (FORCE)`, unfinished)); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(`CREATE DATABASE %q`, unfinished)); err != nil {
		return "", err
	}
	if err := migrate.Up(ctx, withName(admin, unfinished)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`ALTER DATABASE %q RENAME TO %q`, unfinished, name))
	return name, err
}

func hashMigrations() (string, error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range names {
		content, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			return "", err
		}
		_, _ = io.WriteString(h, name+"\x00"+string(content)+"\x00")
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// exec runs a statement on a connection of its own, independent of the test's
// context, which is over when cleanups run.
func exec(admin, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func withName(admin, database string) string {
	u, err := url.Parse(admin)
	if err != nil {
		panic(err) // pgx has parsed it before
	}
	u.Path = "/" + database
	return u.String()
}
