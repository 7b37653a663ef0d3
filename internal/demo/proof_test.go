package demo

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/testdb"
)

// job is a catalogue and a store in which four tiles were made, the first of them
// in two versions; written by hand, so that it can be doctored.
type job struct {
	url     string
	store   store
	wanted  []delivery
	conn    *pgx.Conn
	objects []string
}

func newJob(t *testing.T, s store) *job {
	t.Helper()
	j := &job{url: testdb.New(t), store: s}
	var err error
	if j.conn, err = pgx.Connect(t.Context(), j.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.conn.Close(t.Context()) })
	j.exec(t, `INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('s', 'file:///s', '/s/', 'http://s/')`)
	j.exec(t, `INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ('demo', 's', 'image/tiff')`)
	if s, ok := s.(directory); ok {
		for _, dir := range []string{".staging/in", "current/demo/r00"} {
			if err := os.MkdirAll(filepath.Join(s.path, dir), 0o755); err != nil {
				t.Fatal(err)
			}
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
	size, checksum, err := hash(strings.NewReader("raster " + unit))
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

// link gives an object its stable name, where those are in the store.
func (j *job) link(t *testing.T, d delivery, object string) {
	t.Helper()
	s, ok := j.store.(directory)
	if !ok {
		return
	}
	link := filepath.Join(s.path, "current", d.slot()+".tif")
	if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.path, object), link); err != nil {
		t.Fatal(err)
	}
}

// write writes an object. Its content ends with the unit that it is.
func (j *job) write(t *testing.T, name, content string) {
	t.Helper()
	var err error
	switch s := j.store.(type) {
	case directory:
		path := filepath.Join(s.path, name)
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
	case *bucket:
		_, err = s.client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: &s.name, Key: aws.String(s.prefix + name), Body: strings.NewReader(content),
			Metadata: map[string]string{"catalogd-unit-key": content[max(0, len(content)-36):]},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (j *job) remove(t *testing.T, name string) {
	t.Helper()
	var err error
	switch s := j.store.(type) {
	case directory:
		err = os.Remove(filepath.Join(s.path, name))
	case *bucket:
		_, err = s.client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &s.name, Key: aws.String(s.prefix + name)})
	}
	if err != nil {
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
	cases := []struct {
		name   string // of what only one kind of store can have it says which
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
		{"posix: link for a file", func(t *testing.T, j *job) {
			j.remove(t, j.objects[0])
			if err := os.Symlink("c01.2.tif", filepath.Join(j.store.(directory).path, j.objects[0])); err != nil {
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
		{"posix: missing stable name", func(t *testing.T, j *job) { j.remove(t, "current/demo/r00/c02.tif") },
			[]string{"there is no stable name demo/r00/c02.tif"}},
		{"posix: old stable name", func(t *testing.T, j *job) { j.link(t, j.wanted[0], j.objects[0]) },
			[]string{"the stable name demo/r00/c00.tif leads to demo/r00/c00.1.tif"}},
		{"left in staging", func(t *testing.T, j *job) { j.write(t, ".staging/in/x.tif", "") },
			[]string{"left in staging: in/x.tif"}},
		{"open attempt", func(t *testing.T, j *job) {
			j.exec(t, `UPDATE catalog.attempts SET state = 'open', ended_at = NULL WHERE attempt_id = $1`, second)
		}, []string{"1 attempt still open or promoting"}},
		{"s3: another's metadata", func(t *testing.T, j *job) { j.copyAs(t, j.objects[1], first) },
			[]string{`the metadata of demo/r00/c01.2.tif says that it is the unit "` + first + `", its row ` + second}},
		{"s3: no metadata", func(t *testing.T, j *job) { j.copyAs(t, j.objects[1], "") },
			[]string{`the metadata of demo/r00/c01.2.tif says that it is the unit "", its row ` + second}},
		{"s3: unfinished upload", func(t *testing.T, j *job) { j.upload(t, ".staging/x.tif") },
			[]string{"an unfinished upload of .staging/x.tif"}},
		{"s3: unfinished copy", func(t *testing.T, j *job) { j.upload(t, "demo/r00/c09.tif") },
			[]string{"an unfinished upload of demo/r00/c09.tif"}},
	}
	root := onS3(t)
	for kind, make := range map[string]func(*testing.T) store{
		"posix": func(t *testing.T) store { return directory{path: t.TempDir()} },
		"s3":    func(t *testing.T) store { return mustStore(t, root) },
	} {
		for _, c := range cases {
			only, _, one := strings.Cut(c.name, ": ")
			if one && only != kind {
				continue
			}
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				j := newJob(t, make(t))
				c.doctor(t, j)
				p, err := prove(t.Context(), j.url, j.store, j.wanted)
				if err != nil {
					t.Fatal(err)
				}
				want := slices.DeleteFunc(slices.Clone(c.want), func(line string) bool {
					return kind == "s3" && strings.Contains(line, " stable name ")
				})
				agree := len(p.disagreements) == len(want)
				for i := 0; agree && i < len(want); i++ {
					agree = strings.HasPrefix(p.disagreements[i], want[i])
				}
				if !agree {
					t.Errorf("found %q\nwant  %q", p.disagreements, want)
				}
				if c.name == "nothing" && (len(p.outputs) != 5 || p.objects != 5 || p.current != 4 || p.attempts != 5 || p.done != 5 || p.bytes != 5*43) {
					t.Errorf("figures are %+v", p)
				}
			})
		}
	}
}

// onS3 starts a gateway for the test, has the environment lead there, and gives a root
// for stores.
func onS3(t *testing.T) (root string) {
	t.Helper()
	gateway := gatewaytest.Start(t)
	for _, setting := range gateway.Env() {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1") // the root's own counts
	return "s3://" + gatewaytest.Bucket(t, gateway) + "/some/where?endpoint=" + url.QueryEscape(gateway.Endpoint)
}

func mustStore(t *testing.T, root string) store {
	t.Helper()
	s, err := newStore(t.Context(), root, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// copyAs writes an object anew, with the metadata of a unit.
func (j *job) copyAs(t *testing.T, name, unit string) {
	t.Helper()
	s := j.store.(*bucket)
	meta := map[string]string{}
	if unit != "" {
		meta["catalogd-unit-key"] = unit
	}
	if _, err := s.client.CopyObject(t.Context(), &s3.CopyObjectInput{
		Bucket: &s.name, Key: aws.String(s.prefix + name), CopySource: aws.String(s.name + "/" + s.prefix + name),
		MetadataDirective: types.MetadataDirectiveReplace, Metadata: meta,
	}); err != nil {
		t.Fatal(err)
	}
}

// upload begins an upload in parts.
func (j *job) upload(t *testing.T, name string) {
	t.Helper()
	s := j.store.(*bucket)
	if _, err := s.client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &s.name, Key: aws.String(s.prefix + name)}); err != nil {
		t.Fatal(err)
	}
}

// A store that cannot be read is an error, not an empty store.
func TestProveNeedsToRead(t *testing.T) {
	path := t.TempDir()
	j := newJob(t, directory{path: path})
	if _, err := prove(t.Context(), j.url, directory{path: filepath.Join(path, "gone")}, j.wanted); err == nil {
		t.Error("proved without a store")
	}
	if err := os.RemoveAll(filepath.Join(path, ".staging")); err != nil {
		t.Fatal(err)
	}
	if _, err := prove(t.Context(), j.url, j.store, j.wanted); err == nil {
		t.Error("proved without a staging directory")
	}
	gone := *mustStore(t, onS3(t)).(*bucket)
	gone.name += "-gone"
	if _, err := prove(t.Context(), j.url, &gone, j.wanted); err == nil {
		t.Error("proved without a bucket")
	}
}

// Stable names are followed to other servers, which must not get to know the token.
func TestReach(t *testing.T) {
	const content = "raster"
	_, checksum, err := hash(strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the token went elsewhere")
		}
		if r.URL.Path == "/again" {
			http.Redirect(w, r, "/again", http.StatusFound)
			return
		}
		fmt.Fprint(w, content)
	}))
	defer elsewhere.Close()
	catalogd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("there is no token")
		}
		switch r.URL.Path {
		case "/data/demo/here.tif":
			fmt.Fprint(w, content)
		case "/data/demo/there.tif":
			http.Redirect(w, r, elsewhere.URL+"/there", http.StatusFound)
		case "/data/demo/twice.tif":
			http.Redirect(w, r, elsewhere.URL+"/again", http.StatusFound)
		case "/data/demo/other.tif":
			fmt.Fprint(w, "Raster")
		default:
			http.NotFound(w, r)
		}
	}))
	defer catalogd.Close()
	d := &demo{server: &server{listen: strings.TrimPrefix(catalogd.URL, "http://")}, token: "secret"}
	p := proof{slots: map[string]string{}}
	for _, tile := range []string{"here", "there", "twice", "other", "gone"} {
		o := output{UnitKey: tile, Collection: "demo", Tile: tile, Object: "demo/" + tile + ".1.tif", Checksum: checksum}
		p.outputs = append(p.outputs, o, output{UnitKey: tile + "-old", Collection: "demo", Tile: tile, Object: "demo/" + tile + ".0.tif"})
		p.slots[o.slot()] = tile
	}
	reached, found, err := d.reach(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/data/demo/gone.tif: the answer is 404 Not Found", "/data/demo/other.tif is sha256:", "/data/demo/twice.tif: the answer is 302 Found"}
	if reached != 2 || !slices.EqualFunc(found, want, strings.HasPrefix) {
		t.Errorf("reached %d, found %q", reached, found)
	}
}
