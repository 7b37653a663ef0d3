package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/pgcluster"
	"catalogd/internal/postgres/migrate"
)

const (
	databaseDeadline = 30 * time.Second
	// poolSize is serve's where the URL names none.
	poolSize = 20
)

// database reads what the database says of itself, on one connection.
func (e *exam) database(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, databaseDeadline)
	defer cancel()
	config, err := pgxpool.ParseConfig(e.DatabaseURL)
	if err != nil { // which may quote a password
		e.say("database", Lacks, "the database URL cannot be read", "write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE")
		return
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		e.say("database", Lacks, err.Error(), "start PostgreSQL, or correct host, port, user and password in --database-url")
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pool := int(config.MaxConns)
	if !strings.Contains(e.DatabaseURL, "pool_max_conns") {
		pool = poolSize
	}
	for _, check := range []struct {
		name string
		look func(context.Context, *pgx.Conn) error
	}{
		{"database", e.reached},
		{"postgis", e.postgis},
		{"schema", e.schema},
		{"roles", e.roles},
		{"standby", e.standby},
		{"clock", e.databaseClock},
		{"connections", func(ctx context.Context, conn *pgx.Conn) error { return e.connections(ctx, conn, pool) }},
		{"durability", e.durability},
	} {
		if err := check.look(ctx, conn); err != nil {
			e.say(check.name, Lacks, err.Error(), "see that the database answers, and what its log says")
		}
	}
}

const selectReached = `
SELECT current_setting('server_version'), current_setting('server_version_num')::integer / 10000, pg_is_in_recovery(),
       current_setting('transaction_read_only') = 'on', current_database(), current_user,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)`

func (e *exam) reached(ctx context.Context, conn *pgx.Conn) error {
	var version, database, user string
	var major int
	var standby, readOnly, super bool
	if err := conn.QueryRow(ctx, selectReached).Scan(&version, &major, &standby, &readOnly, &database, &user, &super); err != nil {
		return err
	}
	found := fmt.Sprintf("PostgreSQL %s, database %s as %s", version, database, user)
	switch {
	case major < pgcluster.MinVersion:
		e.say("database", Lacks, found, fmt.Sprintf("move to PostgreSQL %d or later", pgcluster.MinVersion))
	case standby:
		e.say("database", Lacks, found+", a standby", "point --database-url at the primary (several hosts with target_session_attrs=read-write)")
	case readOnly:
		e.say("database", Lacks, found+", read-only", "turn default_transaction_read_only off for this role and database")
	case super:
		e.say("database", Warn, found+", a superuser", "serve as a login that has catalog_server and no more: see docs/operations.md")
	default:
		e.ok("database", "%s", found)
	}
	return nil
}

const selectPostGIS = `
SELECT (SELECT extversion FROM pg_extension WHERE extname = 'postgis'),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'postgis')`

func (e *exam) postgis(ctx context.Context, conn *pgx.Conn) error {
	var version *string
	var available bool
	if err := conn.QueryRow(ctx, selectPostGIS).Scan(&version, &available); err != nil {
		return err
	}
	switch {
	case version == nil && available:
		e.say("postgis", Lacks, "PostGIS is installed, and not in this database", "as a superuser: CREATE EXTENSION postgis, or catalogd migrate up")
	case version == nil:
		e.say("postgis", Lacks, "the database's machine has no PostGIS", "install it there (on Debian: postgresql-NN-postgis-3), then CREATE EXTENSION postgis as a superuser")
	case majorOf(*version) < 3:
		e.say("postgis", Lacks, "PostGIS "+*version, "move to PostGIS 3")
	default:
		e.ok("postgis", "PostGIS %s", *version)
	}
	return nil
}

func majorOf(version string) int {
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	return n
}

// poolSettings are the pool's own, which a lone connection would send to the server.
var poolSettings = regexp.MustCompile(`\bpool_\w+=[^&\s]*[&\s]?`)

// The tables are there; to_regclass would ask for rights on the schema.
const selectMigrated = `SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'catalog' AND tablename = 'tiles')`

func (e *exam) schema(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, selectMigrated).Scan(&there); err != nil {
		return err
	}
	current, latest, dirty, err := migrate.Status(ctx, poolSettings.ReplaceAllString(e.DatabaseURL, ""))
	found := fmt.Sprintf("schema %d of %d", current, latest)
	var pg *pgconn.PgError
	unreadable := errors.As(err, &pg) && pg.Code == "42501" // it is its owner's
	switch {
	case unreadable && !there:
		e.say("schema", Lacks, "there is no catalogue", "as its owner: catalogd migrate up")
	case unreadable:
		e.say("schema", Warn, "this role may not read the schema's version", "as the schema's owner: GRANT SELECT ON public.catalogd_migrations TO catalog_server, or catalogd migrate status")
	case err != nil:
		return err
	case dirty:
		e.say("schema", Lacks, found+", dirty", "another tool left a migration half done: catalogd migrate up says what to do")
	case current < latest:
		e.say("schema", Lacks, found, "as its owner: catalogd migrate up")
	case current > latest:
		e.say("schema", Lacks, found, "run the newer catalogd")
	default:
		e.ok("schema", "%s", found)
	}
	return nil
}

const selectRoles = `
SELECT ARRAY(SELECT r FROM unnest(ARRAY['catalog_server', 'catalog_reader']) r WHERE to_regrole(r) IS NULL),
       coalesce(has_schema_privilege(to_regnamespace('catalog')::oid, 'USAGE'), false)`

// What catalog_server may do with a table, this role must be able to do.
const selectRights = `
SELECT format('%s on %s', string_agg(p.name, ', ' ORDER BY p.name), c.relname)
FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p (name)
WHERE c.relnamespace = 'catalog'::regnamespace AND c.relkind IN ('r', 'p', 'v')
  AND has_table_privilege('catalog_server', c.oid, p.name) AND NOT has_table_privilege(c.oid, p.name)
GROUP BY c.relname ORDER BY c.relname`

const countRights = `
SELECT count(*) FROM pg_class c
WHERE c.relnamespace = 'catalog'::regnamespace AND c.relkind IN ('r', 'p') AND has_table_privilege('catalog_server', c.oid, 'INSERT')`

// roles looks at the rights of this role, and reads the stores with them.
func (e *exam) roles(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, selectMigrated).Scan(&there); err != nil || !there {
		return err // schema has said so
	}
	var missing []string
	var usage bool
	if err := conn.QueryRow(ctx, selectRoles).Scan(&missing, &usage); err != nil {
		return err
	}
	if len(missing) > 0 {
		e.say("roles", Lacks, "there is no role "+strings.Join(missing, ", nor "),
			"roles are not in a database's dump: CREATE ROLE … NOLOGIN for each, then restore the dump again for its GRANTs")
		return nil
	}
	var granted int
	if err := conn.QueryRow(ctx, countRights).Scan(&granted); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, selectRights)
	if err != nil {
		return err
	}
	lacking, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case granted == 0:
		e.say("roles", Lacks, "catalog_server has no rights on the tables", "restore the dump again, with its GRANTs, now that the role is there")
		return nil
	case !usage || len(lacking) > 0:
		what := "USAGE on the schema"
		if usage {
			what = strings.Join(lacking[:min(len(lacking), 3)], "; ")
		}
		e.say("roles", Lacks, "this role lacks "+what, "as the schema's owner: GRANT catalog_server TO the role in --database-url")
		return nil
	}
	e.ok("roles", "catalog_server's rights are here; catalog_reader is there for analysts")
	rows, err = conn.Query(ctx, `SELECT store_id, root FROM catalog.stores`)
	if err != nil {
		return err
	}
	stores := map[string]string{}
	var id, root string
	if _, err := pgx.ForEachRow(rows, []any{&id, &root}, func() error { stores[id] = root; return nil }); err != nil {
		return err
	}
	e.stores = stores
	return nil
}

// Rows are there for every role, sync_state for those only that may see it.
const selectStandbys = `
SELECT current_setting('synchronous_standby_names'), count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')),
       pg_has_role('pg_read_all_stats', 'USAGE')
FROM pg_stat_replication`

var standbysWanted = regexp.MustCompile(`(?i)^\s*(?:first|any)?\s*(\d+)\s*\(`)

func (e *exam) standby(ctx context.Context, conn *pgx.Conn) error {
	var names string
	var connected, synchronous int
	var seen bool
	if err := conn.QueryRow(ctx, selectStandbys).Scan(&names, &connected, &synchronous, &seen); err != nil {
		return err
	}
	want := 1
	if m := standbysWanted.FindStringSubmatch(names); m != nil {
		want, _ = strconv.Atoi(m[1])
	}
	switch {
	case names == "":
		e.say("standby", Warn, "no synchronous standby: a fail-over loses the last commits, so that outputs which were told done have no row and are due again",
			"where that matters, run one and name it in synchronous_standby_names")
	case connected < want, seen && synchronous < want:
		e.say("standby", Lacks, fmt.Sprintf("synchronous_standby_names is %q, which takes %d, and %d of them are connected: every commit waits", names, want, min(connected, synchronous)),
			"start the standby, or take it out of synchronous_standby_names")
	case !seen:
		e.ok("standby", "synchronous_standby_names is %q; this role may not see whether they are connected", names)
	default:
		e.ok("standby", "%d synchronous, of %q", synchronous, names)
	}
	return nil
}

func (e *exam) databaseClock(ctx context.Context, conn *pgx.Conn) error {
	var there time.Time
	before := e.now()
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&there); err != nil {
		return err
	}
	skew := apart(there, there, before, e.now())
	found := fmt.Sprintf("this machine and the database differ by %v", skew.Round(time.Millisecond))
	const remedy = "keep both in step with NTP (timedatectl set-ntp true)"
	switch {
	case skew > e.Lease/3:
		e.say("clock", Lacks, fmt.Sprintf("%s, more than a third of the lease of %v", found, e.Lease), remedy)
	case skew > time.Second:
		e.say("clock", Warn, found, remedy)
	default:
		e.ok("clock", "%s", found)
	}
	return nil
}

// apart is by how much at least a clock that was read, somewhere between before and
// after, to be from low to high, is wrong.
func apart(low, high, before, after time.Time) time.Duration {
	return max(low.Sub(after), before.Sub(high), 0)
}

const selectConnections = `
SELECT current_setting('max_connections')::integer,
       current_setting('superuser_reserved_connections')::integer + coalesce(current_setting('reserved_connections', true)::integer, 0),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = session_user),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       (SELECT count(datid) - 1 FROM pg_stat_activity)`

func (e *exam) connections(ctx context.Context, conn *pgx.Conn, pool int) error {
	var most, reserved, role, database, used int
	if err := conn.QueryRow(ctx, selectConnections).Scan(&most, &reserved, &role, &database, &used); err != nil {
		return err
	}
	room := most - reserved
	for _, limit := range []int{role, database} {
		if limit >= 0 {
			room = min(room, limit)
		}
	}
	found := fmt.Sprintf("%d for all, %d in use; a server takes up to %d", room, used, pool)
	switch {
	case pool > room:
		e.say("connections", Lacks, found, fmt.Sprintf("raise max_connections (or the limit of the role or the database), or put pool_max_conns=%d into the URL", max(room/2, 1)))
	case pool > room-used:
		e.say("connections", Warn, found, "raise max_connections, or put a smaller pool_max_conns into the URL: a server that gets none answers 503")
	default:
		e.ok("connections", "%s", found)
	}
	return nil
}

const selectDurability = `
SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names') <> ''`

func (e *exam) durability(ctx context.Context, conn *pgx.Conn) error {
	var fsync, pages, standby bool
	var commit string
	if err := conn.QueryRow(ctx, selectDurability).Scan(&fsync, &pages, &commit, &standby); err != nil {
		return err
	}
	switch {
	case !fsync:
		e.say("durability", Lacks, "fsync is off: a power cut ruins the database", "set fsync = on")
	case commit == "off":
		e.say("durability", Lacks, "synchronous_commit is off: a crash takes back rows that were told done", "set synchronous_commit = on, for this role and database too")
	case !pages:
		e.say("durability", Warn, "full_page_writes is off: a power cut ruins the database, unless its filesystem never tears a page", "set full_page_writes = on")
	case standby && commit == "local":
		e.say("durability", Warn, "synchronous_commit is local: commits do not wait for the synchronous standby", "set synchronous_commit = on")
	default:
		e.ok("durability", "fsync and full_page_writes are on, synchronous_commit is %s", commit)
	}
	return nil
}
