package upsert_test

import (
	"path"
	"strings"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// A file beside the staged one, that GDAL would use, would be lost.
func TestSidecars(t *testing.T) { onBoth(t, testSidecars) }

func testSidecars(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	staged := a.StagingKey
	stem := strings.TrimSuffix(staged, ".tif")
	for _, name := range []string{staged + ".aux.xml", staged + ".OVR", staged + ".msk", staged + ".msk.ovr", stem + ".tfw", stem + ".wld",
		stem + "_rpc.txt", stem + "_RPC.TXT", stem + ".rpc", stem + ".RPB", staged + "-wal", staged + "-shm"} {
		w.put(name, []byte("x"))
		_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
		wantCode(t, err, catalog.CodeSidecar)
		if !strings.Contains(err.Error(), path.Base(name)) {
			t.Errorf("%v does not name %s", err, path.Base(name))
		}
		w.remove(name)
	}
	// A format that cannot hold it is told first.
	w.put(stem+".wld", []byte("x"))
	w.put(staged, []byte("\x89PNG\r\n\x1a\n"))
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeDriverRefused)
	w.stage(a, rastertest.Raster{})
	w.remove(stem + ".wld")
	// Neither empty files nor what GDAL does not read make a file depend on them.
	w.put(staged+".aux.xml", nil)
	w.put(stem+".txt", []byte("x"))
	w.complete(a)
}

const features = `{"type":"FeatureCollection","name":"fields","CATALOGD_VERSION":"v2","ACQUISITION_DATE":"2026-08-04","features":[
{"type":"Feature","properties":{"crop":"rye","area":1.5},"geometry":{"type":"Polygon","coordinates":[[[10,50],[11,50],[11,51],[10,50]]]}},
{"type":"Feature","properties":{"crop":"oat","area":2},"geometry":null}]}`

// A slot may hold a raster, and then features: each under the stable name of its format.
func TestFormats(t *testing.T) { onBoth(t, testFormats) }

func testFormats(t *testing.T, on place) {
	w := newWorld(t, on)
	w.collection("fields", catalog.Policy{OrderBy: catalog.OrderVersion, Drivers: []string{catalog.DriverGTiff, catalog.DriverGeoJSON}})
	first := request("t0001", "v1")
	first.Unit.Collection = "fields"
	w.do(first, rastertest.Raster{})

	second := request("t0001", "v2")
	second.Unit.Collection, second.MediaType = "fields", catalog.MediaTypeGeoJSON
	a := w.run(second)
	w.put(a.StagingKey, []byte(features))
	f := w.complete(a).Tile.Facts
	if f.Driver != catalog.DriverGeoJSON || f.Width != 0 || len(f.Bands) != 0 || len(f.Layers) != 1 || f.Layers[0].FeatureCount != 2 ||
		f.Layers[0].Name != "fields" || len(f.Layers[0].Fields) != 2 || f.Footprint == nil || f.Acquired.Start == nil || !strings.HasPrefix(f.CRSWKT, "GEOGCRS") {
		t.Errorf("%+v", f)
	}
	if w.root != "" && !w.exists("current/fields/t0001.geojson") {
		t.Error("there is no stable name")
	}
	if w.exists("current/fields/t0001.tif") {
		t.Error("the old format's stable name stays")
	}
	if n := w.count(`SELECT count(*) FROM catalog.current_tiles WHERE collection = 'fields' AND num_nulls(width, height, res_x, res_y, band_count, dtype) = 6 AND epsg = 4326`); n != 1 {
		t.Errorf("%d rows without a raster", n)
	}

	// What was not announced is refused, and so is what the collection does not take.
	third := request("t0001", "v3")
	third.Unit.Collection = "fields"
	a = w.run(third)
	w.put(a.StagingKey, []byte(features))
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeMediaType)
	fourth := request("t0004", "v1")
	fourth.Unit.Collection, fourth.MediaType = "fields", catalog.MediaTypeGeoPackage
	_, err = w.Begin(t.Context(), fourth)
	wantCode(t, err, catalog.CodeInvalidMediaType)
	other := request("t0002", "v1")
	a = w.run(other)
	w.put(a.StagingKey, []byte(features))
	_, err = w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeDriverRefused)
	w.check(invariant.Options{Linked: true})
}

// CATALOGD_IDENTITY is compared by its value, not by its spelling.
func TestTagsOfAnother(t *testing.T) { onBoth(t, testTagsOfAnother) }

func testTagsOfAnother(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{Tags: map[string]string{catalog.TagIdentity: `{"version":"v1","scene":"S3"}`}})
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeIdentityMismatch)
	w.stage(a, rastertest.Raster{Tags: map[string]string{catalog.TagIdentity: ` { "version" : "v1", "scene":"S2"}`}})
	w.complete(a)
}

// A raster that no geotransform places has none in its row either, nor a resolution.
func TestNoTransform(t *testing.T) { onBoth(t, testNoTransform) }

func testNoTransform(t *testing.T, on place) {
	w := newWorld(t, on)
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
