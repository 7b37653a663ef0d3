package upsert_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// A file beside the staged one, that GDAL would use, would be lost.
func TestSidecars(t *testing.T) {
	w := newWorld(t)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	staged := filepath.Join(w.root, a.StagingKey)
	stem := strings.TrimSuffix(staged, ".tif")
	for _, name := range []string{staged + ".aux.xml", staged + ".OVR", staged + ".msk", staged + ".msk.ovr", stem + ".tfw", stem + ".wld",
		stem + "_rpc.txt", stem + "_RPC.TXT", stem + ".rpc", stem + ".RPB", staged + "-wal", staged + "-shm"} {
		if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
		wantCode(t, err, catalog.CodeSidecar)
		if !strings.Contains(err.Error(), filepath.Base(name)) {
			t.Errorf("%v does not name %s", err, filepath.Base(name))
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	// A format that cannot hold it is told first.
	if err := os.WriteFile(stem+".wld", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(staged)
	if err == nil {
		err = os.WriteFile(staged, []byte("\x89PNG\r\n\x1a\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeDriverRefused)
	if err := errors.Join(os.WriteFile(staged, whole, 0o644), os.Remove(stem+".wld")); err != nil {
		t.Fatal(err)
	}
	// Neither empty files nor what GDAL does not read make a file depend on them.
	for _, name := range []string{staged + ".aux.xml", stem + ".txt"} {
		if err := os.WriteFile(name, []byte(strings.Repeat("x", strings.Count(name, ".txt"))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.complete(a)
}

const features = `{"type":"FeatureCollection","name":"fields","CATALOGD_VERSION":"v2","ACQUISITION_DATE":"2026-08-04","features":[
{"type":"Feature","properties":{"crop":"rye","area":1.5},"geometry":{"type":"Polygon","coordinates":[[[10,50],[11,50],[11,51],[10,50]]]}},
{"type":"Feature","properties":{"crop":"oat","area":2},"geometry":null}]}`

// A slot may hold a raster, and then features: each under the stable name of its format.
func TestFormats(t *testing.T) {
	w := newWorld(t)
	w.collection("fields", catalog.Policy{OrderBy: catalog.OrderVersion, Drivers: []string{catalog.DriverGTiff, catalog.DriverGeoJSON}})
	first := request("t0001", "v1")
	first.Unit.Collection = "fields"
	w.do(first, rastertest.Raster{})

	second := request("t0001", "v2")
	second.Unit.Collection, second.MediaType = "fields", catalog.MediaTypeGeoJSON
	a := w.run(second)
	if err := os.WriteFile(filepath.Join(w.root, a.StagingKey), []byte(features), 0o644); err != nil {
		t.Fatal(err)
	}
	f := w.complete(a).Tile.Facts
	if f.Driver != catalog.DriverGeoJSON || f.Width != 0 || len(f.Bands) != 0 || len(f.Layers) != 1 || f.Layers[0].FeatureCount != 2 ||
		f.Layers[0].Name != "fields" || len(f.Layers[0].Fields) != 2 || f.Footprint == nil || f.Acquired.Start == nil || !strings.HasPrefix(f.CRSWKT, "GEOGCRS") {
		t.Errorf("%+v", f)
	}
	if _, err := os.Lstat(filepath.Join(w.root, "current/fields/t0001.geojson")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(w.root, "current/fields/t0001.tif")); !os.IsNotExist(err) {
		t.Errorf("the old format's stable name stays: %v", err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.current_tiles WHERE collection = 'fields' AND num_nulls(width, height, res_x, res_y, band_count, dtype) = 6 AND epsg = 4326`); n != 1 {
		t.Errorf("%d rows without a raster", n)
	}

	// What was not announced is refused, and so is what the collection does not take.
	third := request("t0001", "v3")
	third.Unit.Collection = "fields"
	a = w.run(third)
	if err := os.WriteFile(filepath.Join(w.root, a.StagingKey), []byte(features), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeMediaType)
	fourth := request("t0004", "v1")
	fourth.Unit.Collection, fourth.MediaType = "fields", catalog.MediaTypeGeoPackage
	_, err = w.Begin(t.Context(), fourth)
	wantCode(t, err, catalog.CodeInvalidMediaType)
	other := request("t0002", "v1")
	a = w.run(other)
	if err := os.WriteFile(filepath.Join(w.root, a.StagingKey), []byte(features), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeDriverRefused)
	w.check(invariant.Options{Linked: true})
}

// CATALOGD_IDENTITY is compared by its value, not by its spelling.
func TestTagsOfAnother(t *testing.T) {
	w := newWorld(t)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{Tags: map[string]string{catalog.TagIdentity: `{"version":"v1","scene":"S3"}`}})
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeIdentityMismatch)
	w.stage(a, rastertest.Raster{Tags: map[string]string{catalog.TagIdentity: ` { "version" : "v1", "scene":"S2"}`}})
	w.complete(a)
}

// A raster that no geotransform places has none in its row either, nor a resolution.
func TestNoTransform(t *testing.T) {
	w := newWorld(t)
	w.collection("scans", catalog.Policy{OrderBy: catalog.OrderVersion, FootprintOptional: true})
	req := request("t0001", "v1")
	req.Unit.Collection = "scans"
	if f := w.do(req, rastertest.Raster{Pixel: -1}).Tile.Facts; f.Transform != [6]float64{} || f.Width != 16 || f.Footprint != nil {
		t.Errorf("%+v", f)
	}
	if n := w.count(`SELECT count(*) FROM catalog.current_tiles WHERE collection = 'scans' AND num_nulls(res_x, res_y) = 2 AND width = 16`); n != 1 {
		t.Errorf("%d rows without a resolution", n)
	}
	w.check(invariant.Options{Linked: true})
}
