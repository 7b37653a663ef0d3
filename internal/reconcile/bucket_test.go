package reconcile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/reconcile"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/s3"
	"catalogd/internal/storage/storagetest"
	"catalogd/internal/upsert"
)

// bucket is a world in one.
type bucket struct {
	*world
	g            *s3gateway.Gateway
	name, prefix string
}

func newBucket(t *testing.T) *bucket {
	t.Helper()
	g := gatewaytest.Start(t)
	b := &bucket{g: g, name: gatewaytest.Bucket(t, g), prefix: "some/prefix/"}
	url := "s3://" + b.name + "/" + b.prefix
	store, err := s3.Open(t.Context(), s3.Config{
		URL: url, Endpoint: g.Endpoint, Region: s3gateway.Region, Init: true,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	})
	must(t, err)
	b.world = newWorldIn(t, store, url)
	return b
}

func (b *bucket) put(key string, content []byte) {
	b.t.Helper()
	_, err := b.g.Client().PutObject(b.t.Context(), &awss3.PutObjectInput{Bucket: &b.name, Key: aws.String(b.prefix + key), Body: bytes.NewReader(content)})
	must(b.t, err)
}

// drop removes the bucket.
func (b *bucket) drop() {
	ctx, client := b.t.Context(), b.g.Client()
	listed, err := client.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: &b.name})
	must(b.t, err)
	for _, o := range listed.Contents {
		_, err := client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &b.name, Key: o.Key})
		must(b.t, err)
	}
	_, err = client.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: &b.name})
	must(b.t, err)
}

// upload is the whole step for one unit.
func (b *bucket) upload(tile string, seed byte) catalog.Tile {
	b.t.Helper()
	d, err := b.step.Begin(b.t.Context(), upsert.BeginRequest{
		Unit:  upsert.UnitRef{Collection: "landcover", TileID: tile, Identity: json.RawMessage(`{"version":"1"}`)},
		Owner: "worker", RequestID: uuid.NewString(),
	})
	must(b.t, err)
	if d.Verdict != upsert.VerdictRun {
		b.t.Fatalf("%s: %+v", tile, d)
	}
	_, _, err = b.step.Stage(b.t.Context(), d.Attempt.ID, bytes.NewReader(rastertest.Raster{Seed: seed}.Bytes()))
	must(b.t, err)
	out, err := b.step.Complete(b.t.Context(), d.Attempt.ID, upsert.CompleteRequest{})
	must(b.t, err)
	return out.Tile
}

// A bucket that is gone, or is another one's by now, has lost nothing.
func TestRunInBucket(t *testing.T) {
	b := newBucket(t)
	var tiles []catalog.Tile
	for i := range 5 {
		tiles = append(tiles, b.upload(fmt.Sprintf("t%d", i), byte(i)))
	}
	b.step.Drain(t.Context())
	want(t, b.start(reconcile.Request{}), catalog.RunComplete, nil)
	must(t, b.store.Delete(t.Context(), tiles[0].ObjectKey))
	b.put(tiles[1].ObjectKey, rastertest.Raster{Seed: 99}.Bytes()) // of the same size
	b.put("landcover/stray + 100%.tif", []byte("stray"))
	run := b.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}, catalog.FindingLost: {1, 1, 0}, catalog.FindingMismatch: {1, 1, 0}})
	if at := kind(run, catalog.FindingMismatch).Example; at != tiles[1].ObjectKey+" etag" {
		t.Errorf("mismatch %s", at)
	}
	// Another store's sentinel: whose objects are these?
	sentinel := func(content string) { b.put(storage.SentinelKey, []byte(content)) }
	r, _, err := b.store.Open(t.Context(), storage.SentinelKey)
	must(t, err)
	own, err := io.ReadAll(r)
	must(t, err, r.Close())
	sentinel(`{"id": "2b1e6f0a-3f0e-4d9c-9d5f-1d2f3a4b5c6d", "created_at": "2026-01-01T00:00:00Z"}`)
	if _, err := b.tryStart(reconcile.Request{}); !catalog.IsCode(err, catalog.CodeStoreUnavailable) {
		t.Errorf("%v, want that the store is away", err)
	}
	sentinel(string(own))
	// The bucket goes while it is listed.
	b.seen.Set(func(s *storagetest.Shim) {
		s.OnList = func(storagetest.Listing) storagetest.Listing {
			return func(func(catalog.Object, error) bool) {
				b.drop()
			}
		}
	})
	run = b.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunIncomplete, kinds{catalog.FindingOrphan: {0, 1, 0}, catalog.FindingLost: {0, 1, 0}, catalog.FindingMismatch: {0, 1, 0}})
	if run.ErrorCode != catalog.CodeStoreUnavailable {
		t.Errorf("%s %s", run.ErrorCode, run.ErrorMessage)
	}
}

// In a bucket: what the store keeps beside an object tells of what unit it is, and goes
// with it to the trash and back.
func TestActsInBucket(t *testing.T) {
	w := newBucket(t)
	g, name, prefix, store := w.g, w.name, w.prefix, w.store
	put, register := w.put, w.upload
	read := func(key string) []byte {
		r, _, err := store.Open(t.Context(), key)
		must(t, err)
		defer r.Close()
		content, err := io.ReadAll(r)
		must(t, err)
		return content
	}
	forget := func(unit uuid.UUID, all bool) {
		w.exec(`UPDATE catalog.slots SET unit_key = NULL WHERE unit_key = $1`, unit)
		w.exec(`DELETE FROM catalog.slot_history WHERE to_unit = $1`, unit)
		w.exec(`DELETE FROM catalog.tiles WHERE unit_key = $1`, unit)
		if all {
			w.exec(`DELETE FROM catalog.attempts WHERE unit_key = $1`, unit)
			w.exec(`DELETE FROM catalog.units WHERE unit_key = $1`, unit)
		}
	}
	register("keep", 1)
	known, unknown, wrong := register("known", 2), register("unknown", 3), register("wrong", 4)
	other := register("other", 5)
	forget(known.UnitKey, false)
	forget(unknown.UnitKey, true)
	put(wrong.ObjectKey, rastertest.Raster{Seed: 9}.Bytes())
	w.step.Drain(t.Context())

	// Of metadata that says another thing than the name.
	forget(other.UnitKey, true)
	misplaced := "landcover/misplaced.tif"
	must(t, store.Rename(t.Context(), other.ObjectKey, misplaced))

	plan := w.plan(catalog.PlanChoices{Orphan: catalog.ActAdopt})
	acts := w.apply(plan)
	ended(t, acts[known.ObjectKey], catalog.ActDone, "is current")
	ended(t, acts[unknown.ObjectKey], catalog.ActDone, "is current")
	ended(t, acts[misplaced], catalog.ActLeft, "another unit's output")
	ended(t, acts[wrong.ObjectKey], catalog.ActDone, fmt.Sprintf("moved to .trash/%d/", plan.ID))
	tile, err := w.db.Tile(t.Context(), unknown.UnitKey)
	must(t, err)
	if tile.ETag != unknown.ETag || tile.Checksum != unknown.Checksum || !tile.Current {
		t.Errorf("%+v\nwas\n%+v", tile, unknown)
	}
	register("wrong", 4)

	plan = w.plan(catalog.PlanChoices{})
	w.ask(plan)
	w.stopAt(plan, reconcile.PointIntended)
	// As after a crash between the copy and the removal of what was copied.
	trashed := fmt.Sprintf(".trash/%d/%s", plan.ID, misplaced)
	_, err = g.Client().CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &name, Key: aws.String(prefix + trashed), CopySource: aws.String(name + "/" + prefix + misplaced)})
	must(t, err, w.resume(plan))
	ended(t, w.acts(plan)[misplaced], catalog.ActDone, trashed)
	w.clean()

	trash := w.trash()
	if len(trash) != 2 {
		t.Fatalf("%+v", trash)
	}
	for _, tr := range trash {
		if tr.ObjectKey != misplaced {
			if string(read(tr.TrashKey)) != string(rastertest.Raster{Seed: 9}.Bytes()) {
				t.Errorf("%s has other bytes", tr.TrashKey)
			}
			continue
		}
		must(t, w.rec.Restore(t.Context(), tr.ID, "me", "it was another's"))
	}
	if about, err := store.(storage.Copier).About(t.Context(), misplaced); err != nil || about["unit-key"] != other.UnitKey.String() {
		t.Errorf("%v %v", about, err)
	}
	if emptied, err := w.rec.EmptyTrash(t.Context(), w.store.ID(), true, "me", "space"); err != nil || emptied.Objects != 1 {
		t.Errorf("%+v %v", emptied, err)
	}
	for o, err := range store.List(t.Context(), storage.Range{Prefix: storage.TrashPrefix}) {
		t.Errorf("still in the trash: %+v %v", o, err)
	}
}
