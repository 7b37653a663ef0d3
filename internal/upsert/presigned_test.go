package upsert_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/s3"
	"catalogd/internal/upsert"
)

// Outputs that tasks send straight to the bucket: requests that are signed once, and
// may come at any time afterwards.

// large is a raster of three parts.
var large = sync.OnceValue(func() []byte { return rastertest.Raster{Width: 4096, Height: 2700}.Bytes() })

// presigned starts an upload.
func (w *world) presigned(a catalog.Attempt, req upsert.UploadRequest) upsert.Upload {
	w.t.Helper()
	up, err := w.StartUpload(w.t.Context(), a.ID, req)
	must(w.t, err)
	return up
}

// one is the request of an upload in one request.
func (w *world) one(a catalog.Attempt, content []byte, replace bool) *http.Request {
	w.t.Helper()
	up := w.presigned(a, upsert.UploadRequest{Size: int64(len(content)), Replace: replace})
	if len(up.Requests) != 1 || up.ID != "" {
		w.t.Fatalf("%+v", up)
	}
	return with(up.Requests[0], content)
}

// with is a request with its body.
func with(r *http.Request, content []byte) *http.Request {
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	return r
}

// send sends the parts of content, the last first, and gives their ETags.
func (w *world) send(up upsert.Upload, content []byte) []string {
	w.t.Helper()
	etags := make([]string, len(up.Requests))
	for i, r := range slices.Backward(up.Requests) {
		from := int64(i) * up.PartSize
		resp, err := http.DefaultClient.Do(with(r, content[from:min(from+up.PartSize, int64(len(content)))]))
		must(w.t, err)
		resp.Body.Close()
		if etags[i] = resp.Header.Get("ETag"); resp.StatusCode != http.StatusOK || etags[i] == "" {
			w.t.Fatalf("part %d: %s", i+1, resp.Status)
		}
	}
	return etags
}

// A presigned PUT that comes late makes a staged object at most, and the next sweep
// takes it.
func TestLatePut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	other := w.another()
	content, others := rastertest.Raster{}.Bytes(), rastertest.Raster{Seed: 1}.Bytes()
	for _, end := range []struct {
		name string
		do   func(t *testing.T, a catalog.Attempt)
	}{
		{"done", func(_ *testing.T, a catalog.Attempt) {
			w.complete(a)
			w.drain()
		}},
		{"failed", func(t *testing.T, a catalog.Attempt) {
			must(t, w.failing(t.Context(), a))
			w.sweep()
		}},
		{"abandoned", func(t *testing.T, a catalog.Attempt) { must(t, w.Abandon(t.Context(), a.ID)); w.sweep() }},
		{"expired", func(_ *testing.T, a catalog.Attempt) { w.expire(a); w.sweep() }},
		{"replaced", func(_ *testing.T, a catalog.Attempt) {
			w.expire(a)
			w.do(owned(a.TileID, "v1", "another"), rastertest.Raster{Seed: 2})
			w.sweep()
		}},
	} {
		for _, replace := range []bool{false, true} {
			a := w.run(owned(end.name+map[bool]string{true: "-replace"}[replace], "v1", "late"))
			late := w.one(a, others, replace)
			if got := status(t, w.one(a, content, false)); got != http.StatusOK {
				t.Fatal(got)
			}
			end.do(t, a)
			if w.exists(a.StagingKey) {
				t.Fatalf("%s: it is staged still", end.name)
			}
			before := w.dump()
			if got := status(t, late); got != http.StatusOK || !w.exists(a.StagingKey) {
				t.Fatalf("%s: %d", end.name, got)
			}
			if after := w.dump(); after != before {
				t.Fatalf("%s: before\n%s\nafter\n%s", end.name, before, after)
			}
			if end.name != "done" {
				_, err := other.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
				if code(err) != catalog.CodeAttemptLost && code(err) != catalog.CodeAttemptEnded {
					t.Fatalf("%s: %v", end.name, err)
				}
			} else if out := w.complete(a); out.Tile.AttemptID != a.ID {
				t.Fatalf("%+v", out)
			}
			w.drain()
			if swept := w.sweep(); swept.Objects != 1 || w.exists(a.StagingKey) {
				t.Fatalf("%s: %+v", end.name, swept)
			}
			w.check(invariant.Options{StagingEmpty: true})
		}
	}
}

// A presigned PUT that comes between the probe and the promotion: it is held back,
// or found out, or is of the same bytes.
func TestPutBetweenPoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	content, others := rastertest.Raster{}.Bytes(), rastertest.Raster{Seed: 1}.Bytes()
	for _, at := range []upsert.Point{upsert.PointStaged, upsert.PointProbed, upsert.PointIntended, upsert.PointPromoted, upsert.PointUpserted} {
		for name, late := range map[string]struct {
			content []byte
			replace bool
		}{"first": {others, false}, "replaced": {others, true}, "same": {content, true}} {
			t.Run(string(at)+"/"+name, func(t *testing.T) {
				a := w.run(request(string(at)+"/"+name, "v1"))
				put := w.one(a, late.content, late.replace)
				if got := status(t, w.one(a, content, false)); got != http.StatusOK {
					t.Fatal(got)
				}
				w.on(at, a.ID, func() {
					if got := status(t, put); (got == http.StatusPreconditionFailed) == late.replace {
						t.Errorf("answered %d", got)
					}
				})
				out, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
				changed := name == "replaced" && at != upsert.PointPromoted && at != upsert.PointUpserted
				switch {
				case !changed:
					if err != nil || out.State != catalog.AttemptDone {
						t.Fatalf("%+v %v", out, err)
					}
				case code(err) != catalog.CodeStagedChanged || w.exists(a.ObjectKey):
					t.Fatalf("%+v %v", out, err)
				case at == upsert.PointStaged: // the task may complete what it has staged by now
					if s := w.state(a); s != catalog.AttemptOpen {
						t.Fatal(s)
					}
					w.complete(a)
				default:
					w.do(request(a.TileID, "v1"), rastertest.Raster{Seed: 2})
				}
			})
		}
	}
	w.drain()
	w.age()
	w.sweep()
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}

// An upload in parts, and what can be wrong with what is told of it.
func TestUploadInParts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t, inBucket)
	w.watch()
	size, req := int64(len(large())), upsert.UploadRequest{Size: int64(len(large())), PartSize: storage.MinPart}
	complete := func(a catalog.Attempt, up upsert.Uploaded, change ...func(*upsert.CompleteRequest)) (upsert.Outcome, error) {
		req := upsert.CompleteRequest{Upload: &up, Size: &size, SHA256: sha(large())}
		for _, f := range change {
			f(&req)
		}
		return w.Complete(ctx, a.ID, req)
	}
	done := func(t *testing.T, out upsert.Outcome, err error) {
		t.Helper()
		if err != nil || out.State != catalog.AttemptDone || out.Tile.SizeBytes != size || out.Tile.Checksum != "sha256:"+sha(large()) {
			t.Fatalf("%+v %v", out, err)
		}
	}

	a := w.run(request("wrong", "v1"))
	up := w.presigned(a, req)
	if len(up.Requests) != 3 || up.ID == "" {
		t.Fatalf("%+v", up)
	}
	etags := w.send(up, large())
	_, err := complete(a, upsert.Uploaded{ID: up.ID, ETags: []string{etags[0], etags[1], `"0123456789abcdef0123456789abcdef"`}})
	refused(t, err, catalog.CodeInvalidRequest, "/upload/etags", "in order")
	_, err = complete(a, upsert.Uploaded{ID: up.ID, ETags: []string{etags[1], etags[0], etags[2]}})
	refused(t, err, catalog.CodeInvalidRequest, "/upload/etags", "in order")
	for _, other := range [][]string{append(slices.Clone(etags), etags[2]), etags[:2]} {
		_, err = complete(a, upsert.Uploaded{ID: up.ID, ETags: other})
		refused(t, err, catalog.CodeInvalidRequest, "/upload/etags", "3 parts")
	}
	_, err = complete(a, upsert.Uploaded{ID: up.ID, ETags: etags}, func(r *upsert.CompleteRequest) { r.SHA256 = "" })
	refused(t, err, catalog.CodeInvalidRequest, "/checksum", "send it")
	// What was aborted, as a lifecycle rule does it, and what is no id of ours. A server
	// may take an id for a path.
	gone := w.presigned(a, req)
	_, _, storeID := idOf(t, gone.ID)
	must(t, w.store.(storage.Uploader).AbortUpload(ctx, a.StagingKey, storeID))
	_, err = complete(a, upsert.Uploaded{ID: gone.ID, ETags: etags})
	wantCode(t, err, catalog.CodeStagedMissing)
	own, part, _ := idOf(t, up.ID)
	for _, id := range []string{"unknown", "0.0.x", own + "." + part + ".", own + "." + part + ".../../../pre/c", own + "." + part + ".a/b", own + "." + part + `.a\b`, own + "." + part + "...", own + ".1." + storeID, own + ".9223372036854775807." + storeID} {
		_, err = complete(a, upsert.Uploaded{ID: id, ETags: etags})
		refused(t, err, catalog.CodeInvalidRequest, "/upload/upload_id")
		_, err := w.StartUpload(ctx, a.ID, upsert.UploadRequest{Size: size, PartSize: storage.MinPart, UploadID: id})
		refused(t, err, catalog.CodeInvalidRequest, "/upload_id")
	}
	_, err = w.StartUpload(ctx, a.ID, upsert.UploadRequest{Size: size + 1, PartSize: storage.MinPart, UploadID: up.ID})
	refused(t, err, catalog.CodeInvalidRequest, "/upload_id", "leave upload_id out")
	if s := w.state(a); s != catalog.AttemptOpen || w.exists(a.StagingKey) {
		t.Fatal(s)
	}
	// Requests of the same upload are given anew, and a part may be sent again.
	again := w.presigned(a, upsert.UploadRequest{Size: size, PartSize: storage.MinPart, UploadID: up.ID})
	if again.ID != up.ID {
		t.Fatalf("%+v", again)
	}
	out, err := complete(a, upsert.Uploaded{ID: up.ID, ETags: w.send(again, large())})
	done(t, out, err)
	// Repeated, also when nothing is left of it.
	w.drain()
	out, err = complete(a, upsert.Uploaded{ID: up.ID, ETags: etags})
	done(t, out, err)

	t.Run("the answer to the assembly is lost", func(t *testing.T) {
		line := gatewaytest.Between(t, gateway.Gateway)
		far := w.far(line)
		a := w.run(request("lost", "v1"))
		up := w.presigned(a, req)
		uploaded := &upsert.Uploaded{ID: up.ID, ETags: w.send(up, large())}
		lost := line.Cut(1, gatewaytest.IsAssembly)
		_, err := far.Complete(ctx, a.ID, upsert.CompleteRequest{Upload: uploaded, SHA256: sha(large())})
		if err != nil {
			wantCode(t, err, catalog.CodeStoreUnavailable)
		}
		if s := w.state(a); lost.Load() == 0 || s != catalog.AttemptOpen && s != catalog.AttemptDone {
			t.Fatal(s)
		}
		line.Calm()
		for range 2 {
			out, err := complete(a, *uploaded)
			done(t, out, err)
		}
	})
	t.Run("the assembly is late", func(t *testing.T) {
		line := gatewaytest.Between(t, gateway.Gateway)
		far := w.far(line)
		a := w.run(request("late", "v1"))
		up := w.presigned(a, req)
		uploaded := &upsert.Uploaded{ID: up.ID, ETags: w.send(up, large())}
		h := hold(line, gatewaytest.IsAssembly)
		_, err := far.Complete(ctx, a.ID, upsert.CompleteRequest{Upload: uploaded, SHA256: sha(large())})
		wantCode(t, err, catalog.CodeStoreUnavailable)
		<-h.came
		must(t, w.Abandon(ctx, a.ID))
		h.arrive(t)
		if !w.exists(a.StagingKey) {
			t.Fatal("nothing is staged")
		}
		w.drain()
		if swept := w.sweep(); swept.Objects != 1 || w.exists(a.StagingKey) {
			t.Fatalf("%+v", swept)
		}
		w.do(request("late", "v1"), rastertest.Raster{})
	})
	t.Run("the assembly is late, after the sweep", func(t *testing.T) {
		line := gatewaytest.Between(t, gateway.Gateway)
		far := w.far(line)
		a := w.run(request("later", "v1"))
		up := w.presigned(a, req)
		uploaded := &upsert.Uploaded{ID: up.ID, ETags: w.send(up, large())}
		h := hold(line, gatewaytest.IsAssembly)
		_, err := far.Complete(ctx, a.ID, upsert.CompleteRequest{Upload: uploaded, SHA256: sha(large())})
		wantCode(t, err, catalog.CodeStoreUnavailable)
		<-h.came
		must(t, w.Abandon(ctx, a.ID))
		if swept := w.sweep(); swept.Uploads != 1 {
			t.Fatalf("%+v", swept)
		}
		if got := h.arrive(t); got[0] != http.StatusNotFound || w.exists(a.StagingKey) {
			t.Fatalf("%d", got)
		}
		w.do(request("later", "v1"), rastertest.Raster{})
	})
	t.Run("something is staged already", func(t *testing.T) {
		a := w.run(request("replace", "v1"))
		w.stage(a, rastertest.Raster{Seed: 1})
		up := w.presigned(a, req)
		uploaded := upsert.Uploaded{ID: up.ID, ETags: w.send(up, large())}
		out, err := complete(a, uploaded)
		done(t, out, err)
	})
	w.drain()
	w.sweep()
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}

// idOf takes apart what a client knows an upload by.
func idOf(t testing.TB, id string) (size, part, store string) {
	t.Helper()
	fields := strings.SplitN(id, ".", 3)
	if len(fields) != 3 {
		t.Fatal(id)
	}
	return fields[0], fields[1], fields[2]
}

// A store without uploads takes the bytes itself.
func TestNoPresignedUploads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	a := w.run(request("t1", "v1"))
	if up := w.presigned(a, upsert.UploadRequest{Size: 100}); up.Requests != nil || up.ID != "" || up.PartSize != 100 {
		t.Fatalf("%+v", up)
	}
	w.stage(a, rastertest.Raster{})
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{Upload: &upsert.Uploaded{ID: "x", ETags: []string{"y"}}})
	refused(t, err, catalog.CodeInvalidRequest, "/upload", "leave upload out")
}

// create begins an upload that nobody goes on with.
func (b *bucket) create(t testing.TB, key string) (id string) {
	t.Helper()
	out, err := b.Client.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &b.Name, Key: b.key(key)})
	must(t, err)
	return *out.UploadId
}

// uploads are the keys of those that are unfinished, in order.
func (w *world) uploads() (keys []string) {
	w.t.Helper()
	must(w.t, w.store.(*s3.Store).Uploads(w.t.Context(), func(key, _ string, _ time.Time) error {
		keys = append(keys, key)
		return nil
	}))
	slices.Sort(keys)
	return keys
}

// Unfinished uploads: those of ended attempts are aborted, under either name; others
// below .staging/ when they are old; all else is somebody's.
func TestSweepUploads(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t, inBucket)
	b := w.site.(*bucket)
	open, promoting := w.run(request("open", "v1")), w.promoting(request("promoting", "v1"), rastertest.Raster{})
	done, failed, late := w.run(request("done", "v1")), w.run(request("failed", "v1")), w.run(request("late", "v1"))
	w.stage(done, rastertest.Raster{})
	w.complete(done)
	must(t, w.failing(ctx, failed))
	w.expire(late)
	foreign := []string{"elsewhere/x.tif", "landcover/theirs.tif"}
	kept := []string{open.StagingKey, open.ObjectKey, promoting.StagingKey, promoting.ObjectKey, ".staging/in/theirs.tif", ".staging/theirs"}
	for _, key := range slices.Concat(kept, foreign, []string{
		done.StagingKey, done.ObjectKey, failed.StagingKey, failed.ObjectKey, late.StagingKey, late.ObjectKey, catalog.StagingName(failed.ID, ".copy"),
	}) {
		b.create(t, key)
	}
	if swept := w.sweep(); swept.Uploads != 7 || swept.Expired != 1 {
		t.Fatalf("%+v", swept)
	}
	sorted := func(keys ...[]string) string {
		all := slices.Concat(keys...)
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	if got := sorted(w.uploads()); got != sorted(kept, foreign) {
		t.Fatalf("%s are left, want %s", got, sorted(kept, foreign))
	}
	// Past their age, what no attempt knows.
	hasty := w.another(func(c *upsert.Config) { c.StagingAge = time.Nanosecond })
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // an upload tells whole seconds
	if swept, err := hasty.Sweep(ctx); err != nil || swept.Uploads != 2 {
		t.Fatalf("%+v %v", swept, err)
	}
	if got := sorted(w.uploads()); got != sorted(kept[:4], foreign) {
		t.Fatalf("%s are left", got)
	}
	// Two of the same name.
	for range 2 {
		b.create(t, failed.StagingKey)
	}
	w.sweep()
	w.sweep()
	w.stage(open, rastertest.Raster{})
	w.complete(open)
	w.complete(promoting)
	w.drain()
	w.sweep()
	if got := sorted(w.uploads()); got != sorted(foreign) {
		t.Fatalf("%s are left", got)
	}
	w.check(settled)
}

// A copy in parts, as of more than 5 GiB, that the process did not live to end: another
// finishes the step, and what was begun is swept.
func TestCrashBetweenParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucketWith(func(c *s3.Config) { c.CopyThreshold, c.CopyPart = 5<<20, 5<<20 }))
	w.watch()
	for _, by := range []string{"recovery", "complete"} {
		for _, part := range []string{"1", "2", "3", "assembly"} {
			t.Run(by+"/"+part, func(t *testing.T) {
				a := w.run(request(by+"/"+part, "v1"))
				w.put(a.StagingKey, large())
				line := gatewaytest.Between(t, gateway.Gateway)
				far := w.far(line)
				h := hold(line, func(r *http.Request) bool {
					return isAbort(r) || gatewaytest.IsAssembly(r) || gatewaytest.IsCopy(r) && r.URL.Query().Get("partNumber") >= part
				})
				_, err := far.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
				wantCode(t, err, catalog.CodeStoreUnavailable)
				<-h.came
				if got := w.uploads(); !slices.Equal(got, []string{a.ObjectKey}) {
					t.Fatalf("uploads to %s", got)
				}
				if swept := w.sweep(); swept.Uploads != 0 || w.state(a) != catalog.AttemptPromoting {
					t.Fatalf("swept under a promoting attempt: %+v", swept)
				}
				if by == "complete" {
					w.complete(a)
				} else if r, err := w.Recover(t.Context()); err != nil || r.RolledForward != 1 {
					t.Fatalf("%+v %v", r, err)
				}
				w.drain()
				if swept := w.sweep(); swept.Uploads != 1 {
					t.Fatalf("%+v", swept)
				}
				w.check(invariant.Options{Quiet: true, StagingEmpty: true})
			})
		}
	}
}

// The copy of what distrusted writers staged is swept with it, and both are gone after
// the step.
func TestStagingCopiedInBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	w.collection("distrusted", catalog.Policy{OrderBy: catalog.OrderVersion, StagingCopied: true})
	for _, at := range []upsert.Point{"", upsert.PointStaged, upsert.PointIntended, upsert.PointPromoted} {
		req := request("t-"+string(at), "v1")
		req.Unit.Collection = "distrusted"
		a := w.run(req)
		put := w.one(a, rastertest.Raster{Seed: 1}.Bytes(), true)
		w.stage(a, rastertest.Raster{})
		w.on(at, a.ID, func() { status(t, put) })
		if out := w.complete(a); out.Tile.Checksum != "sha256:"+sha(rastertest.Raster{}.Bytes()) {
			t.Fatalf("%+v", out.Tile)
		}
		w.drain()
		if staged, copied := w.exists(a.StagingKey), w.exists(catalog.StagingName(a.ID, ".copy")); staged || copied {
			t.Fatalf("left at %s: %v, %v", at, staged, copied)
		}
	}
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}
