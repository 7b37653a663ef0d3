package listing

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"catalogd/internal/catalog"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read is a whole listing, or what came before its error.
func read(objects iter.Seq2[catalog.Object, error]) (all []catalog.Object, err error) {
	for o, err := range objects {
		if err != nil {
			return all, err
		}
		all = append(all, o)
	}
	return all, nil
}

func keys(all []catalog.Object) []string {
	keys := []string{}
	for _, o := range all {
		keys = append(keys, o.Key)
	}
	return keys
}

func of(t testing.TB, text string, opts Options) []catalog.Object {
	t.Helper()
	all, err := read(Read(t.Context(), strings.NewReader(text), opts))
	ok(t, err)
	return all
}

// fails fails unless reading ends in an error that says all of words, and gave nothing
// before it: duplicates alone are seen only when all has been sorted.
func fails(t testing.TB, objects iter.Seq2[catalog.Object, error], words ...string) error {
	t.Helper()
	all, err := read(objects)
	if err == nil {
		t.Fatalf("no error, and %d objects: expected %q", len(all), words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if len(all) > 0 && !strings.Contains(err.Error(), "twice") {
		t.Errorf("%d objects came before %v", len(all), err)
	}
	return err
}

func TestNDJSON(t *testing.T) {
	got := of(t, `{"key":"b/t.tif","size":7,"etag":"e","modified":"2026-03-01T10:00:00.5+02:00","owner":{"a":1}}

{"size":0,"key":"a-","modified":null}
{"key":"../x","size":1}
{"key":"/abs//x","size":1}
{"key":"nul\u0000","size":1}
{"key":"nul","size":1}
{"key":"nul\u0000\u0001","size":1}
{"key":"nul\u0001","size":1}
{"key":".staging/x","size":1}
{"key":".catalogd/store.json","size":1}
{"key":".trash/x","size":1}
{"key":"current/x","size":1}
{"key":"current","size":1}
{"key":"currently","size":1}
{"key":"dir/","size":0}
{"key":"odd/","size":3}
{"key":"a","size":2}`, Options{})
	want := []string{"../x", "/abs//x", "a", "a-", "b/t.tif", "currently", "nul", "nul\x00", "nul\x00\x01", "nul\x01", "odd/"}
	if !slices.Equal(keys(got), want) {
		t.Errorf("got %q, expected %q", keys(got), want)
	}
	if o := (catalog.Object{Key: "b/t.tif", SizeBytes: 7, ETag: "e", Modified: time.Date(2026, 3, 1, 8, 0, 0, 5e8, time.UTC)}); got[4] != o {
		t.Errorf("got %v, expected %v", got[4], o)
	}
	if !got[3].Modified.IsZero() || got[3].SizeBytes != 0 {
		t.Errorf("got %v", got[3])
	}
}

func TestBad(t *testing.T) {
	const good = `{"key":"a","size":1}` + "\n"
	for text, words := range map[string][]string{
		"":                                    {"empty"},
		"hello":                               {`"hello"`, "no listing"},
		"\x1f\x8b\x08":                        {"no listing"},
		good + `{"key":"b"}`:                  {"line 2", "size"},
		good + `{"size":1}`:                   {"line 2", "key"},
		good + "\n" + `{"key":"b","size":-5}`: {"line 3", "-5", `"b"`},
		good + `{"key":"b","size":"1"}`:       {"line 2", `"size" is a string`},
		good + `{"key":"b","size":1.5}`:       {"line 2", `"size" is a number`},
		good + `{"key":"b","size":1,"modified":3}`: {"line 2", "modified"},
		good + "{\"key\":\"b\"x}\n" + good:         {"line 2", "invalid character"},
		good + `{"error":"out of disk"}`:           {"line 2"},
		good + "{\"key\":\"b\",\n" + "\"size\":1}": {"line 2"},
		good + `{"key":"b","si`:                    {"line 2", "listing is incomplete"},
		good + "{":                                 {"line 2", "listing is incomplete"},
		good + good:                                {`"a" is there twice`},
		good + `{"key":"` + strings.Repeat("x", maxLine) + `","size":1}`: {"line 2", "longer"},
		"[":                         {"listing is incomplete"},
		`[{"Path":"a","Size":1`:     {"record 1", "listing is incomplete"},
		`[{"Path":"a","Size":1},`:   {"listing is incomplete"},
		`[{"Path":"a","Size":1}`:    {"listing is incomplete"},
		`[{"Path":"a","Size":1}][]`: {"goes on"},
		`[{"Path":"a","Size":1}] x`: {"goes on"},
		`[{"Path":"a","Size":1},{"Path":"b","Size":-1}]`: {"record 2", "size unknown", `"b"`},
		`[{"Path":"a","Size":1},{"Path":"b"}]`:           {"record 2", "size unknown"},
		`[{"Path":"a","Size":-2}]`:                       {"record 1", "-2"},
		`[{"Name":"a","Size":1}]`:                        {"record 1", "Path"},
		`[{"Path":"a","Size":"1"}]`:                      {"record 1", "Size"},
		`[{"Path":"a","Size":1,"ModTime":"today"}]`:      {"record 1", "ModTime"},
		`["a"]`: {"record 1"},
		`[{"Path":"a","Size":1},{"Path":"a","Size":1}]`:     {`"a" is there twice`},
		`{"sourceBucket":"b","fileFormat":"CSV"}`:           {"name the file"},
		`[{"Path":"a","Size":1},{"Path":"b","Size":1}` + "": {"listing is incomplete"},
	} {
		t.Run(text[:min(len(text), 40)], func(t *testing.T) {
			fails(t, Read(t.Context(), strings.NewReader(text), Options{}), words...)
		})
	}
	for _, format := range []Format{NDJSON, Rclone} {
		fails(t, Read(t.Context(), strings.NewReader(""), Options{Format: format}), "empty")
	}
	fails(t, Read(t.Context(), strings.NewReader(good), Options{Format: "xml"}), "xml", "ndjson")
	fails(t, Open(t.Context(), filepath.Join(t.TempDir(), "no"), Options{}), "no such file")
}

// However a listing is cut, less comes with an error only. NDJSON that is cut between
// two lines cannot be told.
func TestCut(t *testing.T) {
	whole, err := os.ReadFile("testdata/rclone.json")
	ok(t, err)
	end := bytes.LastIndexByte(whole, ']')
	for n := range end {
		fails(t, Read(t.Context(), bytes.NewReader(whole[:n]), Options{}))
		if n > 0 {
			if _, err := read(Read(t.Context(), bytes.NewReader(whole[:n]), Options{Format: Rclone})); !errors.Is(err, ErrIncomplete) {
				t.Fatalf("cut at %d: %v", n, err)
			}
		}
	}
	const text = `{"key":"a","size":12}` + "\n" + `{"key":"b","size":12}` + "\n"
	for n := 1; n < len(text); n++ {
		all, err := read(Read(t.Context(), strings.NewReader(text[:n]), Options{}))
		if lines := strings.Count(text[:n]+"\n", "}\n"); err == nil && len(all) != lines {
			t.Errorf("cut at %d: %d objects", n, len(all))
		} else if err != nil && !errors.Is(err, ErrIncomplete) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	// A body that breaks off between lines.
	broken := io.MultiReader(strings.NewReader(text), errReader{io.ErrUnexpectedEOF})
	if err := fails(t, Read(t.Context(), broken, Options{}), "line 3"); !errors.Is(err, ErrIncomplete) {
		t.Error(err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// testdata/rclone.json is what rclone 1.60 printed of a directory with a name that is
// not UTF-8 and one with a line feed.
func TestRclone(t *testing.T) {
	all, err := read(Open(t.Context(), "testdata/rclone.json", Options{}))
	ok(t, err)
	want := []string{"a-/z.tif", "a/b.tif", "a/b/e", "a/b/x.tif", "c/bad\ufffd.tif", "c/full／.tif", "c/nl␊.tif", "c/qu‛‛ote.tif"}
	if !slices.Equal(keys(all), want) {
		t.Fatalf("got %q, expected %q", keys(all), want)
	}
	if o := all[3]; o.SizeBytes != 5 || o.Modified.Year() != 2026 || o.Modified.Nanosecond() == 0 {
		t.Errorf("got %v", o)
	}
	for _, text := range []string{"[]", "[\n]\n", `[{"Path":"d","Size":-1,"IsDir":true}]`} {
		if got := of(t, text, Options{}); len(got) != 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
	// Two names that are not UTF-8 look the same.
	if got := of(t, `[{"Path":"x\ufffd","Size":1},{"Path":"x\ufffd","Size":2}]`, Options{}); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

// What Write writes, Read reads: in order whatever the order was.
func TestWrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		key := rapid.StringOfN(rapid.SampledFrom([]rune("a/.\x00\x01\x02é<\"\\\n")), 1, 6, -1)
		object := rapid.Custom(func(rt *rapid.T) catalog.Object {
			o := catalog.Object{Key: key.Draw(rt, "key") + "k", SizeBytes: rapid.Int64Range(0, 1<<60).Draw(rt, "size"), ETag: key.Draw(rt, "etag")}
			if rapid.Bool().Draw(rt, "dated") {
				o.Modified = time.Unix(rapid.Int64Range(-1<<33, 1<<35).Draw(rt, "at"), rapid.Int64Range(0, 999_999_999).Draw(rt, "ns")).UTC()
			}
			return o
		})
		want := rapid.SliceOfNDistinct(object, 0, 30, func(o catalog.Object) string { return o.Key }).Draw(rt, "objects")
		var buf bytes.Buffer
		if err := Write(&buf, each(want)); err != nil {
			rt.Fatal(err)
		}
		got, err := read(Read(context.Background(), &buf, Options{}))
		if err != nil {
			rt.Fatal(err)
		}
		slices.SortFunc(want, func(a, b catalog.Object) int { return strings.Compare(a.Key, b.Key) })
		if !slices.Equal(got, want) {
			rt.Fatalf("got %v, expected %v", got, want)
		}
	})
	failed := errors.New("the store is gone")
	err := Write(io.Discard, func(yield func(catalog.Object, error) bool) {
		_ = yield(catalog.Object{Key: "a"}, nil) && yield(catalog.Object{}, failed)
	})
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if err := Write(errWriter{}, each(nil)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func each(all []catalog.Object) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

func TestSorted(t *testing.T) {
	opts := Options{Sorted: true}
	if got := of(t, `{"key":"a-b","size":1}`+"\n"+`{"key":"a/b","size":1}`, opts); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	all, err := read(Read(t.Context(), strings.NewReader(`{"key":"a/b","size":1}`+"\n"+`{"key":"a-b","size":1}`), opts))
	if err == nil || len(all) != 1 || !strings.Contains(err.Error(), `line 2: "a-b" comes after "a/b"`) {
		t.Errorf("got %v, %v", all, err)
	}
	all, err = read(Read(t.Context(), strings.NewReader(`{"key":"a","size":1}`+"\n"+`{"key":"a","size":1}`), opts))
	if err == nil || len(all) != 1 || !strings.Contains(err.Error(), `line 2: "a" is there twice`) {
		t.Errorf("got %v, %v", all, err)
	}
}

// listed is a stream of n lines; the last of them end to begin, when reversed.
func listed(n int, reversed bool) io.Reader {
	r, w := io.Pipe()
	go func() {
		for i := range n {
			if reversed {
				i = n - 1 - i
			}
			if _, err := fmt.Fprintf(w, "{\"key\":\"landcover/33UXP/t%08d.0123456789ab.cdef01234567.tif\",\"size\":%d,\"etag\":\"0123456789abcdef0123456789abcdef\"}\n", i, i); err != nil {
				return
			}
		}
		w.Close()
	}()
	return r
}

// Memory is that of sorting, and of nothing where order is promised: not that of the
// listing, of 25 MB.
func TestMemory(t *testing.T) {
	const n = 200_000
	live := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for _, sorted := range []bool{true, false} {
		t.Setenv("TMPDIR", t.TempDir())
		if sorted {
			t.Setenv("TMPDIR", "/nowhere")
		}
		before, most, seen := live(), 0, 0
		for o, err := range Read(t.Context(), listed(n, !sorted), Options{Sorted: sorted}) {
			ok(t, err)
			if o.SizeBytes != int64(seen) {
				t.Fatalf("object %d is %v", seen, o)
			}
			if seen++; seen%20_000 == 0 {
				most = max(most, live()-before)
			}
		}
		bound := sortMemory
		if sorted {
			bound = 1 << 20
		}
		if seen != n || most > bound {
			t.Errorf("sorted %v: %d objects, %d bytes of %d", sorted, seen, most, bound)
		}
	}
	// Without promise the disk is needed.
	t.Setenv("TMPDIR", "/nowhere")
	fails(t, Read(t.Context(), listed(n, false), Options{}), "/nowhere")
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fails(t, Read(ctx, listed(10, false), Options{})); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for range Read(t.Context(), listed(1000, false), Options{}) {
		break
	}
}

// inventory is a report as `aws s3 sync` leaves it: files at their keys below a
// directory. It returns the manifest's path.
func inventory(t *testing.T, schema string, edit func(m map[string]any), files ...string) string {
	t.Helper()
	top := t.TempDir()
	const config = "inv/imagery/daily/"
	list := []any{}
	for i, rows := range files {
		var gz bytes.Buffer
		w := gzip.NewWriter(&gz)
		fmt.Fprint(w, rows)
		ok(t, w.Close())
		key := fmt.Sprintf("%sdata/%d.csv.gz", config, i)
		put(t, filepath.Join(top, key), gz.Bytes())
		sum := md5.Sum(gz.Bytes())
		list = append(list, map[string]any{"key": key, "size": gz.Len(), "MD5checksum": hex.EncodeToString(sum[:])})
	}
	m := map[string]any{
		"sourceBucket": "imagery", "destinationBucket": "arn:aws:s3:::reports", "version": "2016-11-30",
		"creationTimestamp": "1514944800000", "fileFormat": "CSV", "fileSchema": schema, "files": list,
	}
	if edit != nil {
		edit(m)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	ok(t, err)
	name := filepath.Join(top, config, "2026-03-01T01-00Z/manifest.json")
	put(t, name, text)
	return name
}

func put(t *testing.T, name string, text []byte) {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(name), 0o755))
	ok(t, os.WriteFile(name, text, 0o644))
}

const schema = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"

const rows = `"imagery","tiles/b%2Bc/t+1%C3%A9.tif","v1","true","false","7","2026-03-01T10:00:00.000Z","0123abcd","STANDARD"
"imagery","tiles/a.tif","v2","true","false","0","2026-03-01T10:00:00.000Z","d41d8cd9","STANDARD"
"imagery","tiles/a.tif","v1","false","false","9","2026-02-01T10:00:00.000Z","ffff","STANDARD"
"imagery","tiles/gone.tif","v2","true","true","","2026-03-01T10:00:00.000Z","","STANDARD"
"imagery","tiles/gone.tif","v1","false","false","9","2026-03-01T10:00:00.000Z","aaaa","STANDARD"
"imagery","tiles/","v1","true","false","0","2026-03-01T10:00:00.000Z","aaaa","STANDARD"
"imagery","tiles/dir/","v1","true","false","0","2026-03-01T10:00:00.000Z","aaaa","STANDARD"
"imagery","tiles/.staging/x","v1","true","false","1","2026-03-01T10:00:00.000Z","aaaa","STANDARD"
"imagery","tiles2/x","v1","true","false","1","2026-03-01T10:00:00.000Z","aaaa","STANDARD"
`

const second = `"imagery","tiles/0.tif","v1","true","false","3","2026-03-01T10:00:00.000Z","eeee","GLACIER"
`

func TestInventory(t *testing.T) {
	want := []catalog.Object{
		{Key: "0.tif", SizeBytes: 3, ETag: "eeee", Modified: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)},
		{Key: "a.tif", SizeBytes: 0, ETag: "d41d8cd9", Modified: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)},
		{Key: "b+c/t 1é.tif", SizeBytes: 7, ETag: "0123abcd", Modified: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)},
	}
	name := inventory(t, schema, nil, rows, second)
	for _, opts := range []Options{{Prefix: "tiles"}, {Bucket: "imagery", Prefix: "tiles/", Format: Inventory}} {
		all, err := read(Open(t.Context(), name, opts))
		ok(t, err)
		if !slices.Equal(all, want) {
			t.Errorf("got %v, expected %v", all, want)
		}
	}
	// The files all in one directory.
	flat := t.TempDir()
	for _, file := range []string{name, filepath.Join(name, "../../data/0.csv.gz"), filepath.Join(name, "../../data/1.csv.gz")} {
		text, err := os.ReadFile(file)
		ok(t, err)
		put(t, filepath.Join(flat, filepath.Base(file)), text)
	}
	all, err := read(Open(t.Context(), flat+"/manifest.json", Options{Prefix: "tiles"}))
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("got %v, %v", all, err)
	}
	// What was synced without the configuration's prefix.
	moved := filepath.Join(t.TempDir(), "here")
	ok(t, os.Rename(filepath.Join(name, "../.."), moved))
	all, err = read(Open(t.Context(), moved+"/2026-03-01T01-00Z/manifest.json", Options{}))
	if err != nil || len(all) != 5 || all[0].Key != "tiles/.staging/x" {
		t.Errorf("got %v, %v", keys(all), err)
	}
	if all, err := read(Open(t.Context(), inventory(t, "Key, Size", nil, ""), Options{})); err != nil || len(all) > 0 {
		t.Errorf("of an empty bucket: %v %v", all, err)
	}
}

func TestBadInventory(t *testing.T) {
	ctx := t.Context()
	set := func(name string, value any) func(map[string]any) {
		return func(m map[string]any) { m[name] = value }
	}
	file := func(name string, value any) func(map[string]any) {
		return func(m map[string]any) { m["files"].([]any)[0].(map[string]any)[name] = value }
	}
	fails(t, Open(ctx, inventory(t, schema, set("fileFormat", "ORC"), rows), Options{}), "ORC", "CSV", "manifest.json")
	fails(t, Open(ctx, inventory(t, schema, set("files", nil), rows), Options{}), "files")
	fails(t, Open(ctx, inventory(t, "Bucket, Key", nil, rows), Options{}), "Size")
	fails(t, Open(ctx, inventory(t, "Bucket, Key, Size", nil, rows), Options{}), "0.csv.gz", "line 1", "wrong number of fields")
	fails(t, Open(ctx, inventory(t, schema, nil, rows), Options{Bucket: "other"}), `"imagery"`, `"other"`)
	fails(t, Open(ctx, inventory(t, schema, set("sourceBucket", "other"), rows), Options{}), "0.csv.gz", "line 1", `"imagery"`, `"other"`)
	fails(t, Open(ctx, inventory(t, schema, file("MD5checksum", "0123"), rows), Options{}), "0.csv.gz", "MD5", "0123", "copy it again")
	fails(t, Open(ctx, inventory(t, schema, file("size", 12345), rows), Options{}), "0.csv.gz", "listing is incomplete", "12345")
	fails(t, Open(ctx, inventory(t, schema, file("key", "inv/no.csv.gz"), rows), Options{}), "inv/no.csv.gz", "arn:aws:s3:::reports")
	fails(t, Open(ctx, inventory(t, schema, file("key", "../../../../etc/passwd.csv.gz"), rows), Options{}), "not where its key leads")
	fails(t, Open(ctx, inventory(t, "Bucket, Key, VersionId, x, IsDeleteMarker, Size", nil, `"imagery","a","1","","","5"
"imagery","a","2","","","6"
`), Options{}), `"a" is there twice`)
	for row, words := range map[string][]string{
		`"imagery","a%zz","1"`: {"line 2", "a%zz"},
		`"imagery","b",""`:     {"line 2", `"b"`, "no number"},
		`"imagery","b","-1"`:   {"line 2", `"b"`, "-1"},
		`"imagery","b"`:        {"line 2"},
		`"imagery","b","1`:     {"line 2"},
	} {
		fails(t, Open(ctx, inventory(t, "Bucket, Key, Size", nil, `"imagery","a","1"`+"\n"+row), Options{}), words...)
	}

	// A file that is cut, and says so itself where the manifest does not.
	name := inventory(t, schema, file("size", 0), rows)
	data := filepath.Join(name, "../../data/0.csv.gz")
	whole, err := os.ReadFile(data)
	ok(t, err)
	for n := range whole {
		put(t, data, whole[:n])
		if _, err := read(Open(ctx, name, Options{})); !errors.Is(err, ErrIncomplete) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	put(t, data, append(whole, 0))
	fails(t, Open(ctx, name, Options{}), "0.csv.gz")
	text, err := os.ReadFile(name)
	ok(t, err)
	put(t, name, text[:len(text)-3])
	if err := fails(t, Open(ctx, name, Options{})); !errors.Is(err, ErrIncomplete) {
		t.Fatal(err)
	}
}

// Whatever is read, reading ends, and what came is in order.
func FuzzRead(f *testing.F) {
	text, err := os.ReadFile("testdata/rclone.json")
	ok(f, err)
	f.Add(text, "")
	f.Add([]byte(`{"key":"a","size":1}`), "")
	f.Add([]byte(`{"key":"a","size":1}`), "rclone")
	f.Add([]byte(`{"sourceBucket":"a","fileFormat":"CSV","fileSchema":"Key, Size","files":[]}`), "inventory")
	f.Fuzz(func(t *testing.T, text []byte, format string) {
		last := ""
		for o, err := range Read(t.Context(), bytes.NewReader(text), Options{Format: Format(format)}) {
			if err == nil && (o.Key <= last || o.SizeBytes < 0) {
				t.Fatalf("%v after %q", o, last)
			}
			last = o.Key
		}
	})
}
