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
	"catalogd/internal/upsert"
)

// In a bucket: what the store keeps beside an object tells of what unit it is, and goes
// with it to the trash and back.
func TestActsInBucket(t *testing.T) {
	g := gatewaytest.Start(t)
	name, prefix := gatewaytest.Bucket(t, g), "some/prefix/"
	store, err := s3.Open(t.Context(), s3.Config{
		URL: "s3://" + name + "/" + prefix, Endpoint: g.Endpoint, Region: s3gateway.Region, Init: true,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	})
	must(t, err)
	w := newWorldIn(t, store, "s3://"+name+"/"+prefix)
	put := func(key string, content []byte) {
		_, err := g.Client().PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &name, Key: aws.String(prefix + key), Body: bytes.NewReader(content)})
		must(t, err)
	}
	read := func(key string) []byte {
		r, _, err := store.Open(t.Context(), key)
		must(t, err)
		defer r.Close()
		content, err := io.ReadAll(r)
		must(t, err)
		return content
	}
	register := func(tile string, seed byte) catalog.Tile {
		d, err := w.step.Begin(t.Context(), upsert.BeginRequest{
			Unit:  upsert.UnitRef{Collection: "landcover", TileID: tile, Identity: json.RawMessage(`{"version":"1"}`)},
			Owner: "worker", RequestID: uuid.NewString(),
		})
		must(t, err)
		if d.Verdict != upsert.VerdictRun {
			t.Fatalf("%s: %+v", tile, d)
		}
		_, _, err = w.step.Stage(t.Context(), d.Attempt.ID, bytes.NewReader(rastertest.Raster{Seed: seed}.Bytes()))
		must(t, err)
		out, err := w.step.Complete(t.Context(), d.Attempt.ID, upsert.CompleteRequest{})
		must(t, err)
		return out.Tile
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
	if about, err := store.About(t.Context(), misplaced); err != nil || about["unit-key"] != other.UnitKey.String() {
		t.Errorf("%v %v", about, err)
	}
	if emptied, err := w.rec.EmptyTrash(t.Context(), w.store.ID(), true, "me", "space"); err != nil || emptied.Objects != 1 {
		t.Errorf("%+v %v", emptied, err)
	}
	for o, err := range store.List(t.Context(), storage.Range{Prefix: storage.TrashPrefix}) {
		t.Errorf("still in the trash: %+v %v", o, err)
	}
}
