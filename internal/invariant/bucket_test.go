package invariant

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/testdb"
)

// bucketWorld is a world in a bucket.
type bucketWorld struct {
	*world
	Bucket
}

func newBucketWorld(t *testing.T, conn *pgx.Conn, b Bucket) *bucketWorld {
	t.Helper()
	w := &bucketWorld{newWorld(t, conn), b}
	w.put(".catalogd/store.json", `{"id":"`+storeID+`"}`, "")
	w.put(".staging/s4", "in flight", "")
	w.put("c/"+first, "bytes", "11111111-1111-8111-8111-111111111111")
	etag := w.put("c/"+second, "bytes", "22222222-2222-8222-8222-222222222222")
	w.put("c/"+late, "lost", "")
	w.exec(`UPDATE catalog.tiles SET etag = '` + etag + `'`)
	return w
}

func (w *bucketWorld) put(key, text, unit string) (etag string) {
	w.t.Helper()
	in := &s3.PutObjectInput{Bucket: &w.Name, Key: aws.String(w.Prefix + key), Body: strings.NewReader(text)}
	if unit != "" {
		in.Metadata = map[string]string{"catalogd-unit-key": unit}
	}
	out, err := w.Client.PutObject(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Trim(*out.ETag, `"`)
}

func (w *bucketWorld) remove(key string) {
	w.t.Helper()
	_, err := w.Client.DeleteObject(w.t.Context(), &s3.DeleteObjectInput{Bucket: &w.Name, Key: aws.String(w.Prefix + key)})
	w.do(err)
}

func (w *bucketWorld) upload(key string) {
	w.t.Helper()
	_, err := w.Client.CreateMultipartUpload(w.t.Context(), &s3.CreateMultipartUploadInput{Bucket: &w.Name, Key: aws.String(w.Prefix + key)})
	w.do(err)
}

func TestGoodBucket(t *testing.T) {
	g := gatewaytest.Start(t)
	url := testdb.New(t)
	w := newBucketWorld(t, connect(t, url), Bucket{g.Client(), gatewaytest.Bucket(t, g), "a b/é+%/"})
	w.do(w.tx.Commit(t.Context()))
	CheckStore(t, url, w.Bucket, Options{Linked: true})
}

func TestViolationsInBucket(t *testing.T) {
	g := gatewaytest.Start(t)
	bucket, conn := gatewaytest.Bucket(t, g), connect(t, testdb.New(t))
	for i, test := range []struct {
		name  string
		plant func(w *bucketWorld)
		opts  Options
		want  string
	}{
		{"nothing", func(*bucketWorld) {}, Options{Linked: true}, ""},
		{"upload", func(w *bucketWorld) { w.upload(".staging/s4"); w.upload("foreign") }, Options{}, ""},
		{"object missing", func(w *bucketWorld) { w.remove("c/" + first) }, Options{}, "a row names an object: c/" + first},
		{"object of another size", func(w *bucketWorld) { w.put("c/"+first, "more bytes", "") }, Options{}, "size and checksum"},
		{"object with other bytes", func(w *bucketWorld) { w.put("c/"+first, "BYTES", "") }, Options{}, "size and checksum"},
		{"object of no unit", func(w *bucketWorld) { w.put("c/"+first, "bytes", "") }, Options{}, "an object tells its unit"},
		{"object of another ETag", func(w *bucketWorld) {
			w.exec(`UPDATE catalog.tiles SET etag = 'e' WHERE unit_key::text LIKE '1%'`)
		}, Options{}, "a row's object has its ETag"},
		{"orphan", func(w *bucketWorld) { w.put("c/t9.tif", "?", "") }, Options{}, "c/t9.tif is an orphan"},
		{"orphan at the root", func(w *bucketWorld) { w.put("x", "?", "") }, Options{}, "x is an orphan"},
		{"stable name", func(w *bucketWorld) { w.put("current/c/t1.tif", "bytes", "") }, Options{}, "current/c/t1.tif is among the stable names"},
		{"staging", func(*bucketWorld) {}, Options{StagingEmpty: true}, "staging is empty: .staging/s4"},
		{"unfinished upload", func(w *bucketWorld) { w.remove(".staging/s4"); w.upload("c/" + late) }, Options{StagingEmpty: true}, "no upload is unfinished: one to c/" + late},
		{"not quiet", func(*bucketWorld) {}, Options{Quiet: true}, "nothing is open or promoting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newBucketWorld(t, conn, Bucket{g.Client(), bucket, string(rune('a'+i)) + "/"})
			test.plant(w)
			found := violations(t, w.tx, w.Bucket, test.opts)
			if len(found) == 0 && test.want == "" {
				return
			}
			if test.want == "" || !strings.Contains(strings.Join(found, "\n"), test.want) {
				t.Fatalf("%q, want %q", found, test.want)
			}
		})
	}
	if _, err := look(t.Context(), Bucket{g.Client(), bucket, "empty/"}); err == nil {
		t.Fatal("a prefix without a sentinel passes for a store")
	}
}
