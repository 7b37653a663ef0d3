package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/testdb"
)

// job is a catalogue and a store in which four tiles were made, the first of them
// in two versions; written by hand, so that it can be doctored.
type job struct {
	url, store string
	wanted     []delivery
	conn       *pgx.Conn
	objects    []string
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{url: testdb.New(t), store: t.TempDir()}
	var err error
	if j.conn, err = pgx.Connect(t.Context(), j.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.conn.Close(t.Context()) })
	j.exec(t, `INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('s', 'file:///s', '/s/', 'http://s/')`)
	j.exec(t, `INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ('demo', 's', 'image/tiff')`)
	for _, dir := range []string{".staging/in", ".catalogd", "current/demo/r00", "demo/r00"} {
		if err := os.MkdirAll(filepath.Join(j.store, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	j.write(t, ".catalogd/store.json", "{}")
	tiles, err := cut(64, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	j.wanted = slices.Concat(deliveries(scene{}, tiles[:4], 0), deliveries(scene{}, tiles[:1], 1))
	for i, d := range j.wanted {
		j.insert(t, i+1, d)
	}
	return j
}

// insert makes a unit with its attempt, object, row, pointer and stable name.
func (j *job) insert(t *testing.T, n int, d delivery) {
	t.Helper()
	unit := fmt.Sprintf("00000000-0000-8000-8000-%012d", n)
	object := fmt.Sprintf("%s.%d.tif", d.slot(), n)
	j.objects = append(j.objects, object)
	j.write(t, object, "raster "+unit)
	size, checksum, err := hashFile(filepath.Join(j.store, object))
	if err != nil {
		t.Fatal(err)
	}
	j.exec(t, `INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) VALUES ($1, 'demo', $2, $3, '{}')`, unit, d.Tile, d.Identity.Version)
	j.exec(t, `INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, ended_at)
		VALUES ($1, $1, '', '', 0, 'done', 's', 'image/tiff', $2, $2, now(), now())`, unit, object)
	j.exec(t, `INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, transform, width, height, bands, attempt_id, registered_at)
		VALUES ($1, 'demo', $2, 's', $3, $4, $5, '', 'image/tiff', 'GTiff', false, '{0,1,0,0,0,-1}', 8, 8, '[]', $1, now())`, unit, d.Tile, object, size, checksum)
	j.exec(t, `INSERT INTO catalog.slots (collection_id, tile_id, unit_key) VALUES ('demo', $1, $2) ON CONFLICT (collection_id, tile_id) DO UPDATE SET unit_key = excluded.unit_key`, d.Tile, unit)
	j.link(t, d, object)
}

func (j *job) link(t *testing.T, d delivery, object string) {
	t.Helper()
	link := filepath.Join(j.store, "current", d.slot()+".tif")
	if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(j.store, object), link); err != nil {
		t.Fatal(err)
	}
}

func (j *job) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.store, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (j *job) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(j.store, name)); err != nil {
		t.Fatal(err)
	}
}

func (j *job) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := j.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestProveFindsWhatWasDoctored(t *testing.T) {
	// The units of newJob by number: 1 is superseded by 5.
	const first, second, fifth = "00000000-0000-8000-8000-000000000001", "00000000-0000-8000-8000-000000000002", "00000000-0000-8000-8000-000000000005"
	for _, c := range []struct {
		name   string
		doctor func(*testing.T, *job)
		want   []string // all that disagrees; nothing else may
	}{
		{"nothing", func(*testing.T, *job) {}, nil},
		{"missing file", func(t *testing.T, j *job) { j.remove(t, j.objects[0]) },
			[]string{"a row without an object: demo/r00/c00.1.tif"}},
		{"missing current file", func(t *testing.T, j *job) { j.remove(t, j.objects[1]) },
			[]string{"a row without an object: demo/r00/c01.2.tif", "the stable name demo/r00/c01.tif leads nowhere"}},
		{"changed byte", func(t *testing.T, j *job) { j.write(t, j.objects[1], "Raster "+second) },
			[]string{"demo/r00/c01.2.tif is sha256:"}},
		{"byte too many", func(t *testing.T, j *job) { j.write(t, j.objects[1], "raster  "+second) },
			[]string{"demo/r00/c01.2.tif has 44 bytes, its row says 43"}},
		{"extra file", func(t *testing.T, j *job) { j.write(t, "demo/r00/c00.9.tif.aux.xml", "") },
			[]string{"an object without a row: demo/r00/c00.9.tif.aux.xml"}},
		{"link for a file", func(t *testing.T, j *job) {
			j.remove(t, j.objects[0])
			if err := os.Symlink("c01.2.tif", filepath.Join(j.store, j.objects[0])); err != nil {
				t.Fatal(err)
			}
		}, []string{"demo/r00/c00.1.tif has 0 bytes"}},
		{"extra row", func(t *testing.T, j *job) {
			j.insert(t, 6, j.wanted[1])
			j.link(t, j.wanted[1], j.objects[5])
		}, []string{"demo/r00/c01 v1 has 2 rows, not one"}},
		{"row that nobody wanted", func(t *testing.T, j *job) {
			j.insert(t, 6, delivery{Collection: "demo", Tile: "r00/c09", Identity: identity{Version: "v1"}})
		}, []string{"nobody wanted demo/r00/c09 v1", "nobody wanted the slot demo/r00/c09"}},
		{"missing row", func(t *testing.T, j *job) { j.exec(t, `DELETE FROM catalog.tiles WHERE unit_key = $1`, first) },
			[]string{"an object without a row: demo/r00/c00.1.tif", "demo/r00/c00 v1 has 0 rows, not one"}},
		{"pointer to an old version", func(t *testing.T, j *job) {
			j.exec(t, `UPDATE catalog.slots SET unit_key = $1 WHERE unit_key = $2`, first, fifth)
		}, []string{"v1 of demo/r00/c00 is current, not v2", "the stable name demo/r00/c00.tif leads to demo/r00/c00.5.tif"}},
		{"pointer to another slot's", func(t *testing.T, j *job) {
			j.exec(t, `UPDATE catalog.slots SET unit_key = $1 WHERE unit_key = $2`, second, fifth)
		}, []string{"the slot demo/r00/c00 points to an output of demo/r00/c01", "the stable name demo/r00/c00.tif leads to demo/r00/c00.5.tif"}},
		{"pointer to nothing", func(t *testing.T, j *job) {
			j.exec(t, `UPDATE catalog.slots SET unit_key = NULL WHERE unit_key = $1`, second)
		}, []string{"the slot demo/r00/c01 has no current output", "the stable name demo/r00/c01.tif leads to demo/r00/c01.2.tif"}},
		{"missing slot", func(t *testing.T, j *job) { j.exec(t, `DELETE FROM catalog.slots WHERE unit_key = $1`, second) },
			[]string{"the slot demo/r00/c01 has no current output", "the stable name demo/r00/c01.tif leads to demo/r00/c01.2.tif"}},
		{"missing stable name", func(t *testing.T, j *job) { j.remove(t, "current/demo/r00/c02.tif") },
			[]string{"there is no stable name demo/r00/c02.tif"}},
		{"old stable name", func(t *testing.T, j *job) { j.link(t, j.wanted[0], j.objects[0]) },
			[]string{"the stable name demo/r00/c00.tif leads to demo/r00/c00.1.tif"}},
		{"left in staging", func(t *testing.T, j *job) { j.write(t, ".staging/in/x.tif", "") },
			[]string{"left in staging: in/x.tif"}},
		{"open attempt", func(t *testing.T, j *job) {
			j.exec(t, `UPDATE catalog.attempts SET state = 'open', ended_at = NULL WHERE attempt_id = $1`, second)
		}, []string{"1 attempt still open or promoting"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			c.doctor(t, j)
			p, err := prove(t.Context(), j.url, j.store, j.wanted)
			if err != nil {
				t.Fatal(err)
			}
			agree := len(p.disagreements) == len(c.want)
			for i := 0; agree && i < len(c.want); i++ {
				agree = strings.HasPrefix(p.disagreements[i], c.want[i])
			}
			if !agree {
				t.Errorf("found %q\nwant  %q", p.disagreements, c.want)
			}
			if c.name == "nothing" && (len(p.outputs) != 5 || p.objects != 5 || p.current != 4 || p.attempts != 5 || p.done != 5 || p.bytes != 5*43) {
				t.Errorf("figures are %+v", p)
			}
		})
	}
}

// A store that cannot be read is an error, not an empty store.
func TestProveNeedsToRead(t *testing.T) {
	j := newJob(t)
	if _, err := prove(t.Context(), j.url, filepath.Join(j.store, "gone"), j.wanted); err == nil {
		t.Error("proved without a store")
	}
	if err := os.RemoveAll(filepath.Join(j.store, ".staging")); err != nil {
		t.Fatal(err)
	}
	if _, err := prove(t.Context(), j.url, j.store, j.wanted); err == nil {
		t.Error("proved without a staging directory")
	}
}
