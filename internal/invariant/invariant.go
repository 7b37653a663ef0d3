// Package invariant checks catalogd from outside: by plain SQL and a walk
// through the store, a directory or a bucket. It imports none of the product's
// code, so that a mistake there cannot hide itself here. It is for tests, of the
// step and of the program.
package invariant

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say what more is true than always. The zero value asserts what holds
// at every moment at which no step is between two of its points.
type Options struct {
	// Quiet: no attempt is open or promoting, and no publication is under way.
	Quiet bool
	// Linked: stable names lead to what is current, as after tidying or a sweep. A
	// bucket has none.
	Linked bool
	// StagingEmpty: nothing is left under .staging/, and no upload unfinished.
	StagingEmpty bool
	// Lost are keys of objects that the test itself removed or spoiled, and whose
	// rows may stand nevertheless.
	Lost []string
}

// Check fails the test for every invariant that does not hold of a store in a
// directory. The database is asked as a superuser or as the schema's owner.
func Check(t testing.TB, databaseURL, storeRoot string, opts Options) {
	t.Helper()
	CheckStore(t, databaseURL, Directory(storeRoot), opts)
}

// CheckStore is Check of any store. Where there are several, each is checked by
// itself.
func CheckStore(t testing.TB, databaseURL string, store Store, opts Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	violations, err := Violations(ctx, databaseURL, store, opts)
	if err != nil {
		t.Fatalf("invariant: %v", err)
	}
	for _, v := range violations {
		t.Errorf("invariant: %s", v)
	}
}

// Violations tells in words what does not hold; nothing when all does. What is
// in the store is listed before the database is read: an object of ours is
// covered by a record before it appears.
func Violations(ctx context.Context, databaseURL string, store Store, opts Options) (found []string, err error) {
	seen, err := look(ctx, store)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		found, err = seen.compare(ctx, tx, opts)
		return err
	})
	return found, err
}

// Store is where objects are: a Directory or a Bucket.
type Store interface {
	// sentinel reads .catalogd/store.json.
	sentinel(ctx context.Context) ([]byte, error)
	// list tells c of all there is.
	list(ctx context.Context, c *checker) error
	// read reads an object through.
	read(ctx context.Context, key string) (object, error)
}

// object is what was read at a final name.
type object struct {
	size   int64
	sha256 string
	// etag and unit are what a bucket says of it, "" in a directory.
	etag, unit string
}

// look lists what is in the store.
func look(ctx context.Context, store Store) (*checker, error) {
	c := &checker{in: store, lost: map[string]bool{}}
	text, err := store.sentinel(ctx)
	if err != nil {
		return nil, err
	}
	var sentinel struct{ ID string }
	if err := json.Unmarshal(text, &sentinel); err != nil || sentinel.ID == "" {
		return nil, fmt.Errorf("sentinel %q: %v", text, err)
	}
	c.store = sentinel.ID
	return c, store.list(ctx, c)
}

// compare holds what is in the store and in the database, in one snapshot,
// against the rules.
func (c *checker) compare(ctx context.Context, tx pgx.Tx, opts Options) ([]string, error) {
	c.tx, c.opts = tx, opts
	for _, key := range opts.Lost {
		c.lost[key] = true
	}
	for _, check := range []func(context.Context) error{c.rules, c.rows, c.covered, c.links} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	sort.Strings(c.found)
	return c.found, nil
}

type checker struct {
	in    Store
	store string // its id
	opts  Options
	lost  map[string]bool
	tx    pgx.Tx

	objects []string          // keys of all that could be an output
	staged  []string          // keys below .staging/
	uploads []string          // keys of uploads that are unfinished
	stable  map[string]string // key below current/ → target, as a key; nil where there is no such tree
	found   []string
}

func (c *checker) say(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// own are the names in the root that hold no outputs.
var own = map[string]bool{".catalogd": true, ".staging": true, ".trash": true, "current": true, "lost+found": true, ".snapshot": true}

// best orders the published outputs of a slot as its collection says.
const best = `
SELECT DISTINCT ON (t.collection_id, t.tile_id) t.collection_id, t.tile_id, t.unit_key
FROM catalog.tiles t
JOIN catalog.units u ON u.unit_key = t.unit_key
JOIN catalog.collections c ON c.collection_id = t.collection_id
JOIN catalog.collection_versions v ON v.collection_id = u.collection_id AND v.version = u.version
WHERE t.withdrawn_at IS NULL AND t.published_at IS NOT NULL
ORDER BY t.collection_id, t.tile_id,
         CASE c.order_by WHEN 'acquired' THEN coalesce(t.acquired_start, '-infinity') END DESC, v.rank DESC, u.seq DESC`

const publishing = `EXISTS (SELECT FROM catalog.collection_versions p WHERE p.collection_id = s.collection_id AND p.publishing)`

// rules are queries that find violations of one rule each, as text.
var rules = []struct{ rule, query string }{
	{"a unit has one row", `
SELECT unit_key::text || ' has ' || count(*) FROM catalog.tiles GROUP BY unit_key HAVING count(*) > 1`},
	{"an object has one row", `
SELECT object_key || ' has ' || count(*) FROM catalog.tiles GROUP BY store_id, object_key HAVING count(*) > 1`},
	{"a row is in its unit's slot", `
SELECT t.unit_key::text FROM catalog.tiles t LEFT JOIN catalog.units u ON u.unit_key = t.unit_key
WHERE (t.collection_id, t.tile_id) IS DISTINCT FROM (u.collection_id, u.tile_id)`},
	{"a row is that of a done attempt at its unit, with the attempt's object", `
SELECT t.unit_key::text || ' of attempt ' || t.attempt_id || ' (' || coalesce(a.state, 'unknown') || ')'
FROM catalog.tiles t LEFT JOIN catalog.attempts a ON a.attempt_id = t.attempt_id
WHERE (a.state, a.unit_key, a.store_id, a.object_key) IS DISTINCT FROM ('done', t.unit_key, t.store_id, t.object_key)`},
	{"a row was written when its attempt ended", `
SELECT t.unit_key::text || ': ' || t.registered_at || ', ' || a.ended_at
FROM catalog.tiles t JOIN catalog.attempts a ON a.attempt_id = t.attempt_id WHERE t.registered_at <> a.ended_at`},
	{"a done attempt is its unit's row, or its object is to be removed or was", `
SELECT a.attempt_id::text FROM catalog.attempts a
WHERE a.state = 'done'
  AND NOT EXISTS (SELECT FROM catalog.tiles t WHERE t.attempt_id = a.attempt_id)
  AND NOT EXISTS (SELECT FROM catalog.removals r WHERE r.store_id = a.store_id AND r.object_key = a.object_key)`},
	{"no removal names an object that a row names, but to move what is not what it should be", `
SELECT r.object_key FROM catalog.removals r JOIN catalog.tiles t USING (store_id, object_key) WHERE r.trash_key IS NULL`},
	{"a final name tells unit and attempt, but that of an object which was adopted", `
SELECT a.object_key FROM catalog.attempts a JOIN catalog.units u USING (unit_key)
WHERE a.request_id NOT LIKE 'adopt %' AND NOT starts_with(a.object_key, u.collection_id || '/' || u.tile_id || '.' || left(replace(a.unit_key::text, '-', ''), 12)
                                    || '.' || right(a.attempt_id::text, 12) || '.')`},
	{"a final name is one attempt's", `
SELECT object_key || ' of ' || count(*) FROM catalog.attempts GROUP BY store_id, object_key HAVING count(*) > 1`},
	{"one attempt holds a unit", `
SELECT unit_key::text || ' is held by ' || count(*) FROM catalog.attempts WHERE state IN ('open', 'promoting')
GROUP BY unit_key HAVING count(*) > 1`},
	{"one attempt holds a staged file", `
SELECT staging_key || ' is held by ' || count(*) FROM catalog.attempts WHERE state IN ('open', 'promoting')
GROUP BY store_id, staging_key HAVING count(*) > 1`},
	{"promoting is having an intent", `
SELECT attempt_id::text || ' is ' || state FROM catalog.attempts WHERE (state = 'promoting') <> (intent IS NOT NULL)`},
	{"an attempt has ended when its state is final, after it began", `
SELECT attempt_id::text || ' is ' || state FROM catalog.attempts
WHERE (state IN ('open', 'promoting')) <> (ended_at IS NULL) OR ended_at < created_at OR swept_at < ended_at
   OR (swept_at IS NOT NULL AND state IN ('open', 'promoting', 'done'))`},
	{"a failure is a failed attempt's", `
SELECT f.attempt_id::text FROM catalog.failures f LEFT JOIN catalog.attempts a USING (attempt_id) WHERE a.state IS DISTINCT FROM 'failed'`},
	{"nobody works on a quarantined unit", `
SELECT r.unit_key::text || ' is quarantined as ' || r.quarantined_as FROM catalog.retries r
JOIN catalog.attempts a ON a.unit_key = r.unit_key AND a.state IN ('open', 'promoting') WHERE r.quarantined_as IS NOT NULL`},
	{"a slot with published rows points to one of them, one without to none", `
SELECT s.collection_id || '/' || s.tile_id || ' points to ' || coalesce(s.unit_key::text, 'nothing') FROM catalog.slots s
WHERE CASE WHEN EXISTS (SELECT FROM catalog.tiles t WHERE (t.collection_id, t.tile_id) = (s.collection_id, s.tile_id) AND t.published_at IS NOT NULL AND t.withdrawn_at IS NULL)
           THEN NOT EXISTS (SELECT FROM catalog.tiles t WHERE (t.collection_id, t.tile_id) = (s.collection_id, s.tile_id) AND t.unit_key = s.unit_key)
           ELSE s.unit_key IS NOT NULL AND NOT EXISTS (SELECT FROM catalog.tiles t WHERE (t.collection_id, t.tile_id) = (s.collection_id, s.tile_id) AND t.unit_key = s.unit_key) END`},
	{"no slot points to an unpublished row", `
SELECT s.collection_id || '/' || s.tile_id || ' points to ' || s.unit_key FROM catalog.slots s
JOIN catalog.tiles t USING (unit_key) WHERE t.published_at IS NULL`},
	{"a row was published before it became current", `
SELECT h.to_unit::text || ' became current at ' || h.moved_at || ', published ' || coalesce(t.published_at::text, 'never')
FROM catalog.slot_history h JOIN catalog.tiles t ON t.unit_key = h.to_unit
WHERE t.published_at IS NULL OR t.published_at > h.moved_at`},
	{"rows have a slot", `
SELECT DISTINCT t.collection_id || '/' || t.tile_id FROM catalog.tiles t
LEFT JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (t.collection_id, t.tile_id) WHERE s.collection_id IS NULL`},
	{"a slot points to its best output", `
SELECT s.collection_id || '/' || s.tile_id || ' points to ' || coalesce(s.unit_key::text, 'nothing') || ', not to ' || b.unit_key
FROM (` + best + `) b JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (b.collection_id, b.tile_id)
WHERE s.unit_key IS DISTINCT FROM b.unit_key AND NOT ` + publishing},
	{"history chains", `
SELECT collection_id || '/' || tile_id || ' move ' || id || ' is from ' || coalesce(from_unit::text, 'nothing') || ' after ' || coalesce(before::text, 'nothing')
FROM (SELECT *, lag(to_unit) OVER slot AS before, lag(moved_at) OVER slot AS moved_before FROM catalog.slot_history
      WINDOW slot AS (PARTITION BY collection_id, tile_id ORDER BY id)) h
WHERE from_unit IS DISTINCT FROM before OR from_unit IS NOT DISTINCT FROM to_unit OR moved_at < moved_before`},
	{"history ends at the pointer", `
SELECT s.collection_id || '/' || s.tile_id || ' points to ' || coalesce(s.unit_key::text, 'nothing') || ', moved to ' || coalesce(h.to_unit::text, 'nothing')
FROM catalog.slots s
LEFT JOIN LATERAL (SELECT to_unit FROM catalog.slot_history h
                   WHERE (h.collection_id, h.tile_id) = (s.collection_id, s.tile_id) ORDER BY id DESC LIMIT 1) h ON true
WHERE s.unit_key IS DISTINCT FROM h.to_unit`},
	{"history is of slots", `
SELECT h.collection_id || '/' || h.tile_id FROM catalog.slot_history h
LEFT JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (h.collection_id, h.tile_id) WHERE s.collection_id IS NULL`},
}

// quiet are the rules of Options.Quiet.
var quiet = []struct{ rule, query string }{
	{"nothing is open or promoting", `
SELECT attempt_id::text || ' is ' || state FROM catalog.attempts WHERE state IN ('open', 'promoting')`},
	{"no publication is under way", `
SELECT collection_id || ' ' || version FROM catalog.collection_versions WHERE publishing`},
}

func (c *checker) rules(ctx context.Context) error {
	all := rules
	if c.opts.Quiet {
		all = append(all[:len(all):len(all)], quiet...)
	}
	for _, r := range all {
		broken, err := query[string](ctx, c.tx, r.query)
		if err != nil {
			return fmt.Errorf("%s: %w", r.rule, err)
		}
		for _, b := range broken {
			c.say("%s: %s", r.rule, b)
		}
	}
	return nil
}

func query[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// rows: every row names an object of exactly its size and checksum, and its ETag
// and unit where the store tells them.
func (c *checker) rows(ctx context.Context) error {
	type row struct {
		Key            string
		Size           int64
		Checksum, ETag string
		Unit           string
	}
	rows, err := c.tx.Query(ctx, `SELECT object_key, size_bytes, checksum, etag, unit_key::text FROM catalog.tiles WHERE store_id = $1 ORDER BY 1`, c.store)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	for _, r := range all {
		if c.lost[r.Key] {
			continue
		}
		o, err := c.in.read(ctx, r.Key)
		switch {
		case err != nil:
			c.say("a row names an object: %v", err)
		case o.size != r.Size || "sha256:"+o.sha256 != r.Checksum:
			c.say("a row's object has its size and checksum: %s has %d and sha256:%s, its row %d and %s", r.Key, o.size, o.sha256, r.Size, r.Checksum)
		case o.etag != "" && o.etag != r.ETag:
			c.say("a row's object has its ETag: %s has %s, its row %s", r.Key, o.etag, r.ETag)
		case o.etag != "" && o.unit != r.Unit:
			c.say("an object tells its unit: %s tells %q, its row is of %s", r.Key, o.unit, r.Unit)
		}
	}
	return nil
}

// covered: no file in the store is unknown to the catalogue.
func (c *checker) covered(ctx context.Context) error {
	orphans, err := query[string](ctx, c.tx, `
SELECT key FROM unnest($2::text[]) AS key
WHERE NOT EXISTS (SELECT FROM catalog.tiles t WHERE t.store_id = $1 AND t.object_key = key)
  AND NOT EXISTS (SELECT FROM catalog.attempts a WHERE a.store_id = $1 AND a.object_key = key
                    AND (a.state IN ('open', 'promoting') OR (a.state <> 'done' AND a.swept_at IS NULL)))
  AND NOT EXISTS (SELECT FROM catalog.removals r WHERE r.store_id = $1 AND r.object_key = key AND r.confirmed_at IS NULL)
ORDER BY 1`, c.store, c.objects)
	for _, key := range orphans {
		c.say("a file is a row's, or covered by an attempt or a removal: %s is an orphan", key)
	}
	if c.opts.StagingEmpty {
		for _, key := range c.staged {
			c.say("staging is empty: %s", key)
		}
		for _, key := range c.uploads {
			c.say("no upload is unfinished: one to %s", key)
		}
	}
	return err
}

// links: a stable name leads to an output of its slot; with Linked, to the
// current one, and every slot has its name.
func (c *checker) links(ctx context.Context) error {
	if c.stable == nil {
		return nil
	}
	rows, err := c.tx.Query(ctx, `
SELECT s.collection_id || '/' || s.tile_id, t.object_key
FROM catalog.slots s JOIN catalog.tiles t ON t.unit_key = s.unit_key WHERE t.store_id = $1`, c.store)
	if err != nil {
		return err
	}
	want := map[string]string{} // stable name → object
	var slot, key string
	if _, err := pgx.ForEachRow(rows, []any{&slot, &key}, func() error {
		want[slot+path.Ext(key)] = key
		return nil
	}); err != nil {
		return err
	}
	for stable, target := range c.stable {
		slot := strings.TrimSuffix(stable, path.Ext(stable))
		if base := path.Base(stable); strings.HasPrefix(base, ".link-") && !c.opts.Linked {
			continue // a crash left it
		}
		switch {
		case c.opts.Linked && want[stable] != target:
			c.say("a stable name leads to the current output: current/%s leads to %s, not to %q", stable, target, want[stable])
		case !strings.HasPrefix(target, slot+"."):
			c.say("a stable name leads to an output of its slot: current/%s leads to %s", stable, target)
		}
	}
	if c.opts.Linked {
		for stable, key := range want {
			if _, ok := c.stable[stable]; !ok {
				c.say("a current output has its stable name: %s has none", key)
			}
		}
	}
	return nil
}
