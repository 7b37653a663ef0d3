package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/testdb"
)

const root = "../.."

// pages are the texts by their paths below root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range append(names, filepath.Join(root, "README.md")) {
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		out[rel] = read(t, rel)
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fence = regexp.MustCompile("(?ms)^[ ]*```(\\w*)\n(.*?)^[ ]*```")
	link  = regexp.MustCompile(`\[([^\]\n]+)\]\(([^)\s]+)\)`)
	span  = regexp.MustCompile("^`([\\w.]+)`$")
)

// blocks are the fenced blocks of a language.
func blocks(page, language string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		if m[1] == language {
			out = append(out, m[2])
		}
	}
	return out
}

func prose(page string) string { return fence.ReplaceAllString(page, "") }

// anchors are the fragments of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(prose(page), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			case r == ' ':
				b.WriteByte('-')
			}
		}
		anchor := b.String()
		for n := 1; out[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", b.String(), n)
		}
		out[anchor] = true
	}
	return out
}

// Every relative link leads to a file, and every fragment to a heading. Where
// the text of a link to code is one name, that file has the name.
func TestLinks(t *testing.T) {
	all := pages(t)
	followed := 0
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(prose(text), -1) {
			target, fragment, _ := strings.Cut(m[2], "#")
			if strings.Contains(target, "://") {
				continue
			}
			followed++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: %s: there is no %s", page, m[0], file)
				continue
			}
			if fragment != "" && !anchors(all[file])[fragment] {
				t.Errorf("%s: %s: %s has no heading #%s", page, m[0], file, fragment)
			}
			name := span.FindStringSubmatch(m[1])
			if name == nil || filepath.Ext(file) != ".go" {
				continue
			}
			name[1] = name[1][strings.LastIndex(name[1], ".")+1:]
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name[1]) + `\b`).MatchString(read(t, file)) {
				t.Errorf("%s: %s: %s does not have it", page, m[0], file)
			}
		}
	}
	if followed < 50 {
		t.Errorf("followed %d links only", followed)
	}
}

// What the pages name is there, and what is there is named where operators look.
func TestNames(t *testing.T) {
	all := pages(t)
	var source strings.Builder
	files, _ := filepath.Glob(filepath.Join(root, "cmd/catalogd/*.go"))
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	settings := names(read(t, "cmd/catalogd/serve.go"), `env:"(CATALOGD_\w+)"`)
	known := names(source.String(), `env:"(CATALOGD_\w+)"`)
	settings["CATALOGD_DATABASE_URL"], settings["CATALOGD_DATABASE_URL_FILE"] = true, true
	operations := all["docs/operations.md"]
	for name := range settings {
		if !strings.Contains(operations, "`"+name+"`") {
			t.Errorf("docs/operations.md does not list %s", name)
		}
	}
	for name := range names(operations, `\b(CATALOGD_\w+)`) {
		if !known[name] {
			t.Errorf("docs/operations.md: no command takes %s", name)
		}
	}
	for flag, value := range regexpPairs(read(t, "cmd/catalogd/serve.go"), `env:"CATALOGD_(\w+)"[^\n]* default:"([^"]+)"`) {
		row := fmt.Sprintf("| `CATALOGD_%s` | `%s` |", flag, value)
		if !strings.Contains(operations, row) {
			t.Errorf("docs/operations.md has no %q", row)
		}
	}

	for _, m := range regexp.MustCompile(`runbook_url: (\S+)#(\S+)`).FindAllStringSubmatch(read(t, "deploy/alerts.yml"), -1) {
		if !anchors(all[m[1]])[m[2]] {
			t.Errorf("deploy/alerts.yml: %s has no heading #%s", m[1], m[2])
		}
	}

	metrics := read(t, "internal/httpapi/metrics.go")
	exported := names(metrics, `"(catalogd_\w+)"`)
	for name := range names(operations, `\b(catalogd_[a-z_]+)`) {
		if !exported[name] && name != "catalogd_migrations" {
			t.Errorf("docs/operations.md: there is no metric %s", name)
		}
	}

	targets := names(read(t, "Makefile"), `(?m)^([a-z0-9-]+):`)
	for page, text := range all {
		for name := range names(text, "(?m)(?:`|^)make ([a-z0-9-]+)") {
			if !targets[name] {
				t.Errorf("%s: there is no make %s", page, name)
			}
		}
	}

	// Every state of an attempt is explained.
	states := regexp.MustCompile(`attempts_state_check CHECK \(state IN \(([^)]+)\)`).FindStringSubmatch(read(t, "migrations/0001_catalog.up.sql"))
	for state := range names(states[1], `'(\w+)'`) {
		if !strings.Contains(operations, "| `"+state+"` |") {
			t.Errorf("docs/operations.md does not explain the state %s", state)
		}
	}

	// Every table has its line in the design.
	for table := range names(read(t, "migrations/0001_catalog.up.sql"), `CREATE TABLE catalog\.(\w+)`) {
		if !strings.Contains(all["docs/design.md"], "| `"+table+"` |") {
			t.Errorf("docs/design.md has no line for the table %s", table)
		}
	}
}

func names(text, pattern string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	return out
}

func regexpPairs(text, pattern string) map[string]string {
	out := map[string]string{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out[m[1]] = m[2]
	}
	return out
}

// what the queries of docs/sql.md are about: t0001 had v6 for a month and has v7
// since an hour ago; t0002 has v6; a late output of v5 was never current.
const fixture = `
INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('s', 'file:///store', '/store/', 'http://localhost/data/');
INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ('landcover', 's', 'image/tiff; application=geotiff');
INSERT INTO catalog.collection_versions (collection_id, version) VALUES ('landcover', 'v5'), ('landcover', 'v6'), ('landcover', 'v7');
INSERT INTO catalog.slots (collection_id, tile_id) VALUES ('landcover', 't0001'), ('landcover', 't0002');
CREATE TEMPORARY TABLE made (unit_key uuid, tile text, version text, at timestamptz);
INSERT INTO made VALUES
    ('00000000-0000-8000-8000-000000000001', 't0001', 'v6', now() - interval '30 days'),
    ('00000000-0000-8000-8000-000000000002', 't0002', 'v6', now() - interval '30 days'),
    ('00000000-0000-8000-8000-000000000003', 't0001', 'v7', now() - interval '1 hour'),
    ('00000000-0000-8000-8000-000000000004', 't0002', 'v5', now());
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity)
SELECT unit_key, 'landcover', tile, version, jsonb_build_object('version', version, 'scene_id', 'S2_0804', 'inputs', jsonb_build_array('S2_0804', 'dem')) FROM made;
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog,
                           footprint, crs, transform, width, height, bands, attempt_id, registered_at, published_at)
SELECT unit_key, 'landcover', tile, 's', 'landcover/' || unit_key || '.tif', 1000, 'sha256:' || repeat('0', 64), '', 'image/tiff; application=geotiff', 'GTiff', false,
       ST_Multi(ST_MakeEnvelope(15, 52.3, 15.04, 52.33, 4326)), 'EPSG:32633', '{500000,10,0,5800000,0,-10}', 256, 256, '[{"data_type": "Byte"}]', unit_key, at, at
FROM made;
INSERT INTO catalog.slot_history (collection_id, tile_id, to_unit, moved_by, reason, moved_at)
SELECT 'landcover', tile, unit_key, 'test', 'registered', at FROM made WHERE version <> 'v5' ORDER BY at;
INSERT INTO catalog.batches (batch_id, name, collection_id, expected, versions, created_by) VALUES ('00000000-0000-7000-8000-000000000001', 'nightly-0804', 'landcover', 1, '{v7}', 'test');
UPDATE catalog.slots s SET unit_key = (SELECT to_unit FROM catalog.slot_history h WHERE h.tile_id = s.tile_id ORDER BY id DESC LIMIT 1);
INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) VALUES ('00000000-0000-8000-8000-000000000005', 'landcover', 't0002', 'v7', '{"version": "v7"}');
INSERT INTO catalog.batch_units (batch_id, unit_key, geom) VALUES ('00000000-0000-7000-8000-000000000001', '00000000-0000-8000-8000-000000000005', ST_MakeEnvelope(15, 52.3, 15.04, 52.33, 4326));
INSERT INTO catalog.retries (unit_key, collection_id, tile_id, tries, expiries, class, reason, worker, first_failed_at, last_failed_at, due_at, quarantined_as, quarantined_at, batch_id)
VALUES ('00000000-0000-8000-8000-000000000005', 'landcover', 't0002', 1, 0, 'deterministic', 'ValueError', 'w', now(), now(), now(), 'deterministic', now(), '00000000-0000-7000-8000-000000000001');
INSERT INTO catalog.findings (store_id, kind, object_key, state, unit_key, attempt_id, size_bytes, found_by, last_run) VALUES
    ('s', 'lost', 'landcover/00000000-0000-8000-8000-000000000003.tif', 'open', '00000000-0000-8000-8000-000000000003', '00000000-0000-8000-8000-000000000003', 1000, 'reconcile', 1),
    ('s', 'orphan', 'landcover/foreign.tif', 'young', NULL, NULL, 7, 'reconcile', 1);`

// Every query of docs/sql.md runs as an analyst, and finds something.
func TestAnalystsQueries(t *testing.T) {
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, testdb.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, fixture); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `SET ROLE catalog_reader`); err != nil {
		t.Fatal(err)
	}
	queries := blocks(read(t, "docs/sql.md"), "sql")
	if len(queries) < 6 {
		t.Fatalf("docs/sql.md has %d queries", len(queries))
	}
	for _, query := range queries {
		rows, err := conn.Query(ctx, query)
		if err != nil {
			t.Errorf("%v:\n%s", err, query)
			continue
		}
		found, err := pgx.CollectRows(rows, pgx.RowToMap)
		switch {
		case err != nil:
			t.Errorf("%v:\n%s", err, query)
		case len(found) == 0:
			t.Errorf("found nothing:\n%s", query)
		}
	}
	// The page says what a reader may see, and that it is all.
	var granted []string
	err = conn.QueryRow(ctx, `
SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
WHERE c.relnamespace = 'catalog'::regnamespace AND c.relkind IN ('r', 'v', 'S')
  AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE') ELSE has_table_privilege(c.oid, 'SELECT') END`).Scan(&granted)
	if err != nil {
		t.Fatal(err)
	}
	named := names(read(t, "docs/sql.md"), "(?m)^\\| `catalog\\.(\\w+)`")
	if want := slices.Sorted(maps.Keys(named)); !slices.Equal(granted, want) {
		t.Errorf("catalog_reader may read %v, docs/sql.md lists %v", granted, want)
	}
}

// SQL on the other pages runs as the superuser, and is undone.
func TestOperatorsSQL(t *testing.T) {
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, testdb.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	ran := 0
	for page, text := range pages(t) {
		if page == "docs/sql.md" {
			continue
		}
		for _, sql := range blocks(text, "sql") {
			ran++
			if _, err := conn.Exec(ctx, "BEGIN;\n"+sql+";\nROLLBACK"); err != nil {
				t.Errorf("%s: %v:\n%s", page, err, sql)
				_, _ = conn.Exec(ctx, "ROLLBACK")
			}
		}
	}
	if ran == 0 {
		t.Error("found no SQL")
	}
}
