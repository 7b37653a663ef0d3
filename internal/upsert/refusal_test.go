package upsert_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/upsert"
)

// refused asserts the code, the field and that the message says what to do.
func refused(t *testing.T, err error, code catalog.Code, field string, says ...string) {
	t.Helper()
	var problem *catalog.Error
	if !errors.As(err, &problem) || problem.Code != code || problem.Field != field {
		t.Fatalf("%v, want %s at %q", err, code, field)
	}
	if len(strings.Fields(problem.Message)) < 3 {
		t.Errorf("%q says too little", problem.Message)
	}
	for _, s := range says {
		if !strings.Contains(problem.Message, s) {
			t.Errorf("%q does not say %q", problem.Message, s)
		}
	}
}

// What a begin refuses, by which name, at which field, and with which advice.
func TestBeginRefuses(t *testing.T) { onBoth(t, testBeginRefuses) }

func testBeginRefuses(t *testing.T, on place) {
	w := newWorld(t, on)
	identity := func(text string) func(*upsert.BeginRequest) {
		return func(r *upsert.BeginRequest) { r.Unit.Identity = json.RawMessage(text) }
	}
	tile := func(id string) func(*upsert.BeginRequest) { return func(r *upsert.BeginRequest) { r.Unit.TileID = id } }
	for _, test := range []struct {
		name  string
		spoil func(*upsert.BeginRequest)
		code  catalog.Code
		field string
		says  string
	}{
		{"unknown collection", func(r *upsert.BeginRequest) { r.Unit.Collection = "unknown" }, catalog.CodeUnknownCollection, "/collection", "POST /v1/collections"},
		{"malformed collection", func(r *upsert.BeginRequest) { r.Unit.Collection = "../x" }, catalog.CodeInvalidCollection, "/collection", "lower-case"},
		{"no identity", identity(``), catalog.CodeInvalidIdentity, "/identity", ""},
		{"identity is no object", identity(`[]`), catalog.CodeInvalidIdentity, "/identity", ""},
		{"identity is broken off", identity(`{"version":"v1"`), catalog.CodeInvalidIdentity, "/identity", ""},
		{"no version", identity(`{"scene":"S2"}`), catalog.CodeInvalidIdentity, "/identity/version", "version"},
		{"version is a number", identity(`{"version":1}`), catalog.CodeInvalidIdentity, "/identity/version", "text"},
		{"duplicate key", identity(`{"version":"v1","a":{"b":1,"b":2}}`), catalog.CodeInvalidIdentity, "/identity/a/b", ""},
		{"lone surrogate", identity(`{"version":"v1","a":"\ud800"}`), catalog.CodeInvalidIdentity, "/identity/a", ""},
		{"NUL", identity(`{"version":"v1","a":"\u0000"}`), catalog.CodeInvalidIdentity, "/identity/a", ""},
		{"large integer", identity(`{"version":"v1","a":[1,9007199254740993]}`), catalog.CodeInvalidIdentity, "/identity/a/1", "as text"},
		{"infinite number", identity(`{"version":"v1","a":1e999}`), catalog.CodeInvalidIdentity, "/identity/a", "as text"},
		{"tile id leads out", tile("../../etc/passwd"), catalog.CodeInvalidTileID, "/tile_id", "relative"},
		{"absolute tile id", tile("/etc/passwd"), catalog.CodeInvalidTileID, "/tile_id", "leave that out"},
		{"hidden tile id", tile("a/.b"), catalog.CodeInvalidTileID, "/tile_id", "dot"},
		{"no tile id", tile(""), catalog.CodeInvalidTileID, "/tile_id", "name the tile"},
		{"tile id that could be a directory", tile("t0001.tif/x"), catalog.CodeInvalidTileID, "/tile_id", "leave the extension out"},
		{"no owner", func(r *upsert.BeginRequest) { r.Owner = "" }, catalog.CodeInvalidRequest, "/owner", "1 to 256 bytes"},
		{"no request id", func(r *upsert.BeginRequest) { r.RequestID = "" }, catalog.CodeInvalidRequest, "/request_id", "1 to 256 bytes"},
		{"owner with NUL", func(r *upsert.BeginRequest) { r.Owner = "a\x00" }, catalog.CodeInvalidRequest, "/owner", "printable"},
		{"owner is not UTF-8", func(r *upsert.BeginRequest) { r.Owner = "\xff" }, catalog.CodeInvalidRequest, "/owner", "UTF-8"},
		{"negative try", func(r *upsert.BeginRequest) { r.Try = -1 }, catalog.CodeInvalidRequest, "/try", "from 0"},
		{"long client key", func(r *upsert.BeginRequest) { r.Unit.ClientKey = strings.Repeat("k", 257) }, catalog.CodeInvalidRequest, "/client_key", "at most 256"},
		{"unknown media type", func(r *upsert.BeginRequest) { r.MediaType = "image/gif" }, catalog.CodeInvalidMediaType, "/media_type", "use"},
		{"properties are a list", func(r *upsert.BeginRequest) { r.Given.Properties = json.RawMessage(`[]`) }, catalog.CodeInvalidRequest, "/properties", "object"},
		{"properties with NUL", func(r *upsert.BeginRequest) { r.Given.Properties = json.RawMessage(`{"a":"\u0000"}`) }, catalog.CodeInvalidRequest, "/properties", "remove it"},
		{"acquired backwards", func(r *upsert.BeginRequest) {
			start, end := time.Unix(1, 0), time.Unix(0, 0)
			r.Given.Acquired = catalog.Interval{Start: &start, End: &end}
		}, catalog.CodeInvalidRequest, "/acquired/end", "exchange"},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := request("t1", "v1")
			test.spoil(&req)
			_, err := w.Begin(t.Context(), req)
			refused(t, err, test.code, test.field, test.says)
			w.incoming("x.tif", rastertest.Raster{})
			_, err = w.Register(t.Context(), upsert.OutputRequest{Begin: req, Staged: "x.tif"})
			refused(t, err, test.code, test.field, test.says)
			if n := w.count(`SELECT count(*) FROM catalog.units`); n != 0 {
				t.Fatal("it left a unit behind")
			}
		})
	}
	w.do(request("t1", "v1"), rastertest.Raster{})
	w.check(settled)
}

// One key stands for one identity, by whichever of the two it is found out.
func TestKeyCollisions(t *testing.T) { onBoth(t, testKeyCollisions) }

func testKeyCollisions(t *testing.T, on place) {
	w := newWorld(t, on)
	named := func(tile, key string) upsert.BeginRequest {
		req := request(tile, "v1")
		req.Unit.ClientKey = key
		return req
	}
	w.do(named("t1", "k1"), rastertest.Raster{})
	for name, req := range map[string]upsert.BeginRequest{"second identity": named("t2", "k1"), "second key": named("t1", "k2")} {
		_, err := w.Begin(t.Context(), req)
		wantCode(t, err, catalog.CodeKeyCollision)
		if !strings.Contains(err.Error(), "send another") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Without the key the unit is the same; with it, in another collection, too.
	if d := w.begin(request("t1", "v1")); d.Verdict != upsert.VerdictSkip {
		t.Fatalf("%+v", d)
	}
	w.collection("other", catalog.Policy{OrderBy: catalog.OrderVersion})
	elsewhere := named("t1", "k1")
	elsewhere.Unit.Collection = "other"
	w.do(elsewhere, rastertest.Raster{})
	w.check(settled)
}

// What is staged and is no complete raster is refused by the name of what is
// wrong with it; the attempt stays open, so that the task can mend its file.
func TestCompleteRefuses(t *testing.T) { onBoth(t, testCompleteRefuses) }

func testCompleteRefuses(t *testing.T, on place) {
	w := newWorld(t, on)
	whole := rastertest.Raster{}.Bytes()
	put := func(content []byte) func(string) error {
		return func(key string) error {
			w.put(key, content)
			return nil
		}
	}
	// inRoot is of what only a filesystem has.
	inRoot := func(stage func(path string) error) func(string) error {
		return func(key string) error { return stage(filepath.Join(w.root, key)) }
	}
	size := int64(len(whole))
	type refusal struct {
		name  string
		stage func(key string) error
		req   upsert.CompleteRequest
		code  catalog.Code
		field string
		says  string
	}
	refusals := []refusal{
		{"nothing", func(string) error { return nil }, upsert.CompleteRequest{}, catalog.CodeStagedMissing, "", "then complete"},
		{"empty", put(nil), upsert.CompleteRequest{}, catalog.CodeEmptyOutput, "", "close it"},
		{"text", put([]byte("this is no raster, whatever its name says\n")), upsert.CompleteRequest{}, catalog.CodeNotARaster, "", ""},
		{"VRT", put([]byte(`<VRTDataset rasterXSize="1" rasterYSize="1"><VRTRasterBand dataType="Byte" band="1"><SimpleSource><SourceFilename>/etc/passwd</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>`)),
			upsert.CompleteRequest{}, catalog.CodeDriverRefused, "", ""},
		{"truncated", put(whole[:len(whole)-200]), upsert.CompleteRequest{}, "", "", ""},
		{"sparse", put(rastertest.Raster{Missing: 5}.Bytes()), upsert.CompleteRequest{}, catalog.CodeSparse, "", "sparse"},
		{"no CRS", put(rastertest.Raster{EPSG: -1}.Bytes()), upsert.CompleteRequest{}, catalog.CodeNoCRS, "", ""},
		{"of another unit", put(rastertest.Raster{Tags: map[string]string{catalog.TagUnitKey: uuid.NewString()}}.Bytes()), upsert.CompleteRequest{}, catalog.CodeIdentityMismatch, "", "another unit"},
		{"another size", put(whole), upsert.CompleteRequest{Size: ptr(size + 1)}, catalog.CodeSizeMismatch, "/size_bytes", "close and sync"},
		{"another checksum", put(whole), upsert.CompleteRequest{SHA256: strings.Repeat("0", 64)}, catalog.CodeChecksumMismatch, "/checksum", "changed"},
		// What came altered is no fault of the file's.
		{"altered on the way", put([]byte("no raster, and not what was sent")), upsert.CompleteRequest{SHA256: strings.Repeat("0", 64)}, catalog.CodeChecksumMismatch, "/checksum", "changed"},
		{"no checksum", put(whole), upsert.CompleteRequest{SHA256: "abc"}, catalog.CodeInvalidRequest, "/checksum", "64"},
	}
	if w.root != "" {
		refusals = append(refusals, []refusal{
			{"symbolic link", inRoot(func(path string) error {
				return errors.Join(os.WriteFile(path+".real", whole, 0o644), os.Symlink(path+".real", path))
			}), upsert.CompleteRequest{}, catalog.CodeStagedForbidden, "", "regular file"},
			{"link out of the store", inRoot(func(path string) error { return os.Symlink("/etc/passwd", path) }), upsert.CompleteRequest{}, catalog.CodeStagedForbidden, "", "regular file"},
			{"FIFO", inRoot(func(path string) error { return syscall.Mkfifo(path, 0o644) }), upsert.CompleteRequest{}, catalog.CodeStagedForbidden, "", "regular file"},
			{"directory", inRoot(func(path string) error { return os.Mkdir(path, 0o755) }), upsert.CompleteRequest{}, catalog.CodeStagedForbidden, "", "regular file"},
			{"hard link", inRoot(func(path string) error {
				return errors.Join(os.WriteFile(path, whole, 0o644), os.Link(path, path+".two"))
			}), upsert.CompleteRequest{}, catalog.CodeStagedLinked, "", "remove the other link"},
		}...)
	}
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			req := request(strings.ReplaceAll(test.name, " ", "-"), "v1")
			a := w.run(req)
			must(t, test.stage(a.StagingKey))
			_, err := w.Complete(t.Context(), a.ID, test.req)
			if test.code == "" { // which of the two depends on where it was cut
				if !catalog.IsCode(err, catalog.CodeTruncated) && !catalog.IsCode(err, catalog.CodeNotARaster) {
					t.Fatal(err)
				}
			} else {
				refused(t, err, test.code, test.field, test.says)
			}
			if s := w.state(a); s != catalog.AttemptOpen || w.exists(a.ObjectKey) {
				t.Fatal(s)
			}
			if w.root != "" {
				path := filepath.Join(w.root, a.StagingKey)
				must(t, os.RemoveAll(path), os.RemoveAll(path+".two"))
			}
			w.put(a.StagingKey, whole)
			if out := w.complete(a); out.Tile.SizeBytes != size {
				t.Fatalf("%+v", out.Tile)
			}
			// Who announces something else, now that it is done, is told so.
			if test.code == catalog.CodeSizeMismatch || test.code == catalog.CodeChecksumMismatch {
				_, err := w.Complete(t.Context(), a.ID, test.req)
				refused(t, err, test.code, test.field)
			}
		})
	}
	_, err := w.Complete(t.Context(), uuid.New(), upsert.CompleteRequest{})
	refused(t, err, catalog.CodeUnknownAttempt, "", "begin again")
	w.check(settled)
	w.sweep()
}

func ptr[T any](v T) *T { return &v }

// What a registration names is a file below .staging/in/ and nothing else, and
// nobody else's.
func TestRegisterRefuses(t *testing.T) { onBoth(t, testRegisterRefuses) }

func testRegisterRefuses(t *testing.T, on place) {
	w := newWorld(t, on)
	ctx := t.Context()
	register := func(tile, staged string) error {
		_, err := w.Register(ctx, upsert.OutputRequest{Begin: request(tile, "v1"), Staged: staged})
		return err
	}
	other := w.run(request("other", "v1"))
	w.stage(other, rastertest.Raster{})
	attempt := strings.TrimPrefix(other.StagingKey, ".staging/")
	names := map[string]catalog.Code{
		"": catalog.CodeStagedForbidden, "../" + attempt: catalog.CodeStagedForbidden, "/etc/passwd": catalog.CodeStagedForbidden,
		"a/../../" + attempt: catalog.CodeStagedForbidden, "a//b.tif": catalog.CodeStagedForbidden, `..\x.tif`: catalog.CodeStagedForbidden,
		"x\x00.tif": catalog.CodeStagedForbidden, strings.Repeat("x", 600): catalog.CodeStagedForbidden, attempt: catalog.CodeStagedMissing,
	}
	if w.root != "" {
		in := filepath.Join(w.root, ".staging/in")
		must(t, os.MkdirAll(filepath.Join(in, "dir"), 0o755), os.Symlink("..", filepath.Join(in, "up")))
		names["up/"+attempt], names["dir"], names[strings.Repeat("x", 300)] = catalog.CodeStagedForbidden, catalog.CodeStagedForbidden, catalog.CodeStagedForbidden
	}
	for staged, code := range names {
		if err := register("t1", staged); !catalog.IsCode(err, code) {
			t.Errorf("%q: %v, want %s", staged, err, code)
		}
	}
	// A file that another unit's registration is promoting.
	w.incoming("x.tif", rastertest.Raster{})
	w.on(upsert.PointIntended, uuid.Nil, func() {
		w.incoming("x.tif.new", rastertest.Raster{})
		err := register("t3", "x.tif")
		refused(t, err, catalog.CodeStagedInUse, "/staged", "name of its own")
	})
	if err := register("t2", "x.tif"); err != nil {
		t.Fatal(err)
	}
	// And one unit that two registrations bring at once.
	w.incoming("y.tif", rastertest.Raster{})
	w.incoming("z.tif", rastertest.Raster{})
	w.on(upsert.PointIntended, uuid.Nil, func() {
		if err := register("t4", "z.tif"); !catalog.IsCode(err, catalog.CodeUnitHeld) || !strings.Contains(err.Error(), "try again in") {
			t.Error(err)
		}
	})
	if err := register("t4", "y.tif"); err != nil {
		t.Fatal(err)
	}
	if !w.exists(".staging/in/z.tif") {
		t.Fatal("a registration that was refused lost its file")
	}
	w.complete(other)
	w.check(settled)
}

// The staged name that a caller chose is free again as soon as the row is there:
// tidying leaves what comes under it then.
func TestTidyLeavesTheNextFile(t *testing.T) { onBoth(t, testTidyLeavesTheNextFile) }

func testTidyLeavesTheNextFile(t *testing.T, on place) {
	w := newWorld(t, on)
	for _, copied := range []bool{false, true} {
		collection := fmt.Sprint("copied-", copied)
		w.collection(collection, catalog.Policy{OrderBy: catalog.OrderVersion, StagingCopied: copied})
		req := upsert.OutputRequest{Begin: request("t1", "v1"), Staged: "x.tif"}
		req.Begin.Unit.Collection = collection
		w.incoming("x.tif", rastertest.Raster{})
		w.on(upsert.PointUpserted, uuid.Nil, func() {
			if w.exists(".staging/in/x.tif") {
				w.remove(".staging/in/x.tif")
			}
			w.incoming("x.tif", rastertest.Raster{Seed: 1})
		})
		if _, err := w.Register(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if !w.exists(".staging/in/x.tif") {
			t.Fatal("tidying took the next unit's file")
		}
		req.Begin = request(collection, "v1")
		if _, err := w.Register(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if w.exists(".staging/in/x.tif") {
			t.Fatal("a staged file was left")
		}
		// The same bytes for another unit, right after the answer.
		w.incoming("x.tif", rastertest.Raster{Seed: 1})
		w.drain()
		if !w.exists(".staging/in/x.tif") {
			t.Fatal("tidying took the same bytes of the next unit")
		}
		w.remove(".staging/in/x.tif")
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// A collection of writers that are not trusted has its own copy promoted: what
// they write afterwards changes nothing.
func TestStagingCopied(t *testing.T) { onBoth(t, testStagingCopied) }

func testStagingCopied(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	w.collection("distrusted", catalog.Policy{OrderBy: catalog.OrderVersion, StagingCopied: true})
	req := request("t1", "v1")
	req.Unit.Collection = "distrusted"
	a := w.run(req)
	w.put(a.StagingKey, nil)
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeEmptyOutput)
	w.stage(a, rastertest.Raster{})
	overwrite := func() { w.put(a.StagingKey, []byte("overwritten")) }
	points := []upsert.Point{upsert.PointStaged, upsert.PointProbed, upsert.PointIntended, upsert.PointPromoted}
	if w.root != "" { // a descriptor that the writer keeps
		f, err := os.OpenFile(filepath.Join(w.root, a.StagingKey), os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		overwrite = func() { _, _ = f.WriteAt([]byte("overwritten"), 0) }
		points = from(upsert.PointStaged)
	}
	for _, at := range points {
		w.on(at, a.ID, overwrite)
	}
	if out := w.complete(a); out.State != catalog.AttemptDone {
		t.Fatalf("%+v", out)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// nobody is a store that opens staged files as a user who is not root.
type nobody struct{ *posix.Store }

func (n nobody) OpenStaged(ctx context.Context, key string) (staged storage.Staged, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with its rights
		if os.Geteuid() == 0 {
			for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
				if _, _, errno := syscall.RawSyscall(call, 65534, 65534, 65534); errno != 0 {
					err = errno
					return
				}
			}
		}
		staged, err = n.Store.OpenStaged(ctx, key)
	}()
	<-done
	return staged, err
}

// A file that the server may not read is refused with the uid and the mode that
// are in the way.
func TestStagedUnreadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	if err := os.Chmod(filepath.Dir(w.root), 0o755); err != nil {
		t.Fatal(err)
	}
	r := w.another(func(c *upsert.Config) { c.Stores = upsert.Stores{w.store.ID(): nobody{w.store.(*posix.Store)}} })
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	path := filepath.Join(w.root, a.StagingKey)
	if err := os.Chmod(path, 0o200); err != nil {
		t.Fatal(err)
	}
	_, err := r.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	refused(t, err, catalog.CodeStagedUnreadable, "", "the server runs as uid", "is mode 0200 of uid", "chmod a+r")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Complete(t.Context(), a.ID, upsert.CompleteRequest{}); err != nil {
		t.Fatal(err)
	}
	w.check(settled)
}

// A lease is kept while a long probe runs.
func TestLeaseIsKeptWhileProbing(t *testing.T) { onBoth(t, testLeaseIsKeptWhileProbing) }

func testLeaseIsKeptWhileProbing(t *testing.T, on place) {
	w := newWorld(t, on, func(c *upsert.Config) { c.Lease = 30 * time.Millisecond })
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	reached, resume := w.pause(upsert.PointProbed, a.ID)
	defer resume()
	done := w.completing(w.replica, a)
	<-reached
	// Its lease ends again and again, and is renewed each time.
	for range 3 {
		end := w.count(`SELECT (extract(epoch FROM lease_until) * 1000000)::bigint FROM catalog.attempts`)
		for w.count(`SELECT (extract(epoch FROM lease_until) * 1000000)::bigint FROM catalog.attempts`) == end && t.Context().Err() == nil {
		}
	}
	resume()
	if r := <-done; r.err != nil {
		t.Fatal(r.err)
	}
	w.check(settled)
}
