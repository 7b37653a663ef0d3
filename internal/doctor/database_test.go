package doctor

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/pgcluster"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/testdb"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails unless there is one finding of a check, with this status and saying all
// of words. What is not well says what to do.
func want(t testing.TB, findings []Finding, check string, status Status, words ...string) {
	t.Helper()
	var found []Finding
	for _, f := range findings {
		if f.Check == check {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d findings of %s, want one: %+v", len(found), check, findings)
	}
	f := found[0]
	if f.Status != status || f.Found == "" || (f.Remedy == "") != (status == OK) {
		t.Errorf("%s: got %+v, want %s", check, f, status)
	}
	for _, word := range words {
		if !strings.Contains(f.Found+"\n"+f.Remedy, word) {
			t.Errorf("%s: %+v does not say %q", check, f, word)
		}
	}
}

// look makes the checks of a database alone.
func look(t testing.TB, config Config) []Finding {
	t.Helper()
	e := &exam{Config: config}
	if e.now == nil {
		e.now = time.Now
	}
	if e.Lease == 0 {
		e.Lease = time.Minute
	}
	e.database(t.Context())
	return e.findings
}

func sql(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	defer conn.Close(t.Context())
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// as changes the user of a URL, and adds settings.
func as(t testing.TB, database, user string, settings ...string) string {
	t.Helper()
	u, err := url.Parse(database)
	ok(t, err)
	u.User = url.User(user)
	for _, s := range settings {
		u.RawQuery += "&" + s
	}
	return u.String()
}

// cluster is a PostgreSQL of this test's own, whose settings others do not feel.
func cluster(t *testing.T, settings map[string]string) *pgcluster.Cluster {
	t.Helper()
	// In memory: it syncs to disk, as settings that are well say.
	dir, err := os.MkdirTemp("/dev/shm", "catalogd-doctor-")
	if err != nil {
		dir, err = os.MkdirTemp("", "catalogd-doctor-")
	}
	ok(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ok(t, os.Chmod(dir, 0o755))
	c, err := pgcluster.Start(t.Context(), pgcluster.Config{Dir: filepath.Join(dir, "pg"), Settings: settings, InitDB: []string{"--no-sync"}})
	ok(t, err)
	t.Cleanup(func() {
		if err := c.Kill(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestDatabase(t *testing.T) {
	c := cluster(t, map[string]string{"max_connections": "30"})
	admin := c.URL("postgres")

	// Nothing in it.
	found := look(t, Config{DatabaseURL: admin})
	want(t, found, "database", Warn, "PostgreSQL", "database postgres as postgres", "superuser")
	want(t, found, "postgis", Lacks, "CREATE EXTENSION postgis")
	want(t, found, "schema", Lacks, "schema 0 of", "catalogd migrate up")

	// As the docs have it.
	ok(t, migrate.Up(t.Context(), admin))
	sql(t, admin, `CREATE ROLE catalogd LOGIN`, `GRANT catalog_server TO catalogd`, `GRANT SELECT ON public.catalogd_migrations TO catalog_server`, `CREATE ROLE stranger LOGIN`)
	login := as(t, admin, "catalogd")
	found = look(t, Config{DatabaseURL: login})
	want(t, found, "database", OK, "as catalogd")
	want(t, found, "postgis", OK, "PostGIS 3")
	want(t, found, "schema", OK)
	want(t, found, "roles", OK)
	want(t, found, "standby", Warn, "fail-over")
	want(t, found, "clock", OK)
	want(t, found, "connections", OK, "a server takes up to 20")
	want(t, found, "durability", OK)

	// Standbys.
	sql(t, admin, `ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (witness, other)'`, `SELECT pg_reload_conf()`)
	standby := func(login string, status Status, words ...string) {
		t.Helper()
		until(t, func() bool {
			f := look(t, Config{DatabaseURL: login})
			i := slices.IndexFunc(f, func(f Finding) bool { return f.Check == "standby" })
			return f[i].Status == status
		})
		want(t, look(t, Config{DatabaseURL: login}), "standby", status, words...)
	}
	standby(login, Lacks, "every commit waits")
	stop := receive(t, admin)
	standby(admin, OK, "1 synchronous")
	standby(login, OK, "may not see")
	local := as(t, admin, "postgres", "synchronous_commit=local")
	want(t, look(t, Config{DatabaseURL: local}), "durability", Warn, "local")
	stop()
	standby(admin, Lacks)
	sql(t, admin, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	standby(admin, Warn)

	// Clocks.
	for _, test := range []struct {
		off    time.Duration
		status Status
	}{{-3 * time.Second, Warn}, {19 * time.Second, Warn}, {-time.Minute, Lacks}, {time.Minute, Lacks}} {
		now := func() time.Time { return time.Now().Add(test.off) }
		want(t, look(t, Config{DatabaseURL: login, now: now}), "clock", test.status, "NTP")
	}
	fast := func() time.Time { return time.Now().Add(19 * time.Second) }
	want(t, look(t, Config{DatabaseURL: login, now: fast, Lease: 30 * time.Second}), "clock", Lacks, "a third of the lease of 30s")

	// Connections.
	want(t, look(t, Config{DatabaseURL: as(t, login, "catalogd", "pool_max_conns=28")}), "connections", Lacks, "up to 28")
	sql(t, admin, `ALTER ROLE catalogd CONNECTION LIMIT 10`)
	want(t, look(t, Config{DatabaseURL: login}), "connections", Lacks, "10 for all")
	sql(t, admin, `ALTER ROLE catalogd CONNECTION LIMIT -1`)
	var held []*pgx.Conn
	for range 9 {
		conn, err := pgx.Connect(t.Context(), admin)
		ok(t, err)
		held = append(held, conn)
	}
	want(t, look(t, Config{DatabaseURL: login}), "connections", Warn, "9 in use")
	for _, conn := range held {
		ok(t, conn.Close(t.Context()))
	}

	// Roles, rights, read-only, durability.
	want(t, look(t, Config{DatabaseURL: as(t, admin, "stranger")}), "roles", Lacks, "USAGE on the schema", "GRANT catalog_server")
	sql(t, admin, `REVOKE SELECT ON public.catalogd_migrations FROM catalog_server`, `GRANT USAGE ON SCHEMA catalog TO stranger`)
	want(t, look(t, Config{DatabaseURL: login}), "schema", Warn, "GRANT SELECT ON public.catalogd_migrations")
	want(t, look(t, Config{DatabaseURL: as(t, admin, "stranger")}), "roles", Lacks, "INSERT, SELECT, UPDATE on attempts")
	want(t, look(t, Config{DatabaseURL: as(t, login, "catalogd", "default_transaction_read_only=on")}), "database", Lacks, "read-only")
	want(t, look(t, Config{DatabaseURL: as(t, login, "catalogd", "synchronous_commit=off")}), "durability", Lacks, "synchronous_commit is off")
	sql(t, admin, `ALTER SYSTEM SET full_page_writes = off`, `SELECT pg_reload_conf()`)
	until(t, func() bool {
		f := look(t, Config{DatabaseURL: login})
		return f[len(f)-1].Status == Warn && strings.Contains(f[len(f)-1].Found, "full_page_writes")
	})

	// A dump that was restored where the roles were not.
	sql(t, admin, `DROP OWNED BY catalog_server`, `DROP ROLE catalog_server`)
	want(t, look(t, Config{DatabaseURL: admin}), "roles", Lacks, "no role catalog_server", "CREATE ROLE")
	sql(t, admin, `CREATE ROLE catalog_server`)
	want(t, look(t, Config{DatabaseURL: admin}), "roles", Lacks, "no rights on the tables")

	// Schemas of others.
	sql(t, admin, `UPDATE catalogd_migrations SET version = 9999`)
	want(t, look(t, Config{DatabaseURL: admin}), "schema", Lacks, "the newer catalogd")
	sql(t, admin, `UPDATE catalogd_migrations SET dirty = true`)
	want(t, look(t, Config{DatabaseURL: admin}), "schema", Lacks, "dirty")
}

// The tests' own cluster knows nothing of durability.
func TestUnsafeDatabase(t *testing.T) {
	want(t, look(t, Config{DatabaseURL: testdb.New(t)}), "durability", Lacks, "fsync is off")
}

func TestNoDatabase(t *testing.T) {
	for url, words := range map[string][]string{
		"postgres://me:secret@127.0.0.1:1/x": {"failed to connect", "start PostgreSQL"},
		"postgres://me:secret@[":             {"cannot be read"},
	} {
		found := look(t, Config{DatabaseURL: url})
		want(t, found, "database", Lacks, words...)
		if len(found) != 1 || strings.Contains(fmt.Sprint(found), "secret") {
			t.Errorf("%s: %+v", url, found)
		}
	}
}

func TestPoolSettings(t *testing.T) {
	for url, plain := range map[string]string{
		"postgres://h/d?pool_max_conns=3":                 "postgres://h/d?",
		"postgres://h/d?pool_max_conns=3&sslmode=disable": "postgres://h/d?sslmode=disable",
		"host=h pool_max_conns=3 dbname=d":                "host=h dbname=d",
		"postgres://h/carpool_x":                          "postgres://h/carpool_x",
	} {
		if got := poolSettings.ReplaceAllString(url, ""); got != plain {
			t.Errorf("%s: got %s, want %s", url, got, plain)
		}
	}
}

// until asks until it is so: for a server that takes a setting up in its own time.
func until(t testing.TB, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

// receive runs pg_receivewal, which is a synchronous standby named witness, until
// stop.
func receive(t *testing.T, url string) (stop func()) {
	t.Helper()
	install, err := pgcluster.Find(t.Context())
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(install.BinDir, "pg_receivewal"), "--synchronous", "-D", t.TempDir(), "-d", as(t, url, "postgres", "application_name=witness"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	ok(t, cmd.Start())
	return func() {
		cancel()
		_ = cmd.Wait()
	}
}
