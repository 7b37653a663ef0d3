package httpapi

import (
	"encoding/json"
	"testing"

	"catalogd/internal/catalog"
)

func TestDriversOfCollections(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, c := range []struct{ body, want, code, field string }{
		{`{"id":"a"}`, `["GTiff"]`, "", ""},
		{`{"id":"a","media_type":"application/geopackage+sqlite3"}`, `["GPKG"]`, "", ""},
		{`{"id":"a","drivers":["FlatGeobuf","GTiff"]}`, `["FlatGeobuf","GTiff"]`, "", ""},
		{`{"id":"a","drivers":["VRT"]}`, "", "invalid_collection", "/drivers/0"},
		{`{"id":"a","drivers":["GPKG"]}`, `["GPKG"]`, "", ""},
		{`{"id":"a","drivers":["GPKG"],"media_type":"image/jp2"}`, "", "invalid_media_type", "/media_type"},
		{`{"id":"a","drivers":[]}`, "", "invalid_collection", "/drivers"},
	} {
		res, body := call(t, "POST", url+"/v1/collections", "admin", "application/json", c.body)
		if c.code != "" {
			if p := problemOf(t, res, body); string(p.Code) != c.code || value(p.Field) != c.field {
				t.Errorf("%s: %s", c.body, body)
			}
			continue
		}
		var got struct{ Drivers json.RawMessage }
		if err := json.Unmarshal([]byte(body), &got); err != nil || string(got.Drivers) != c.want {
			t.Errorf("%s: %s", c.body, body)
		}
	}
}

// Features have no pixels, and a raster's layout is told as the contract has it.
func TestRowsOfFeaturesAndRasters(t *testing.T) {
	f := newFake()
	f.tile.Facts.Layout = catalog.Layout{Compression: "DEFLATE", Interleave: "PIXEL", BlockSize: [2]int{256, 256}, Overviews: [][2]int{{128, 128}}, Mask: true, COGReason: "it should be tiled"}
	f.tile.Facts.Bands[0].Statistics = &catalog.Statistics{Maximum: 2, Mean: 1}
	url, _ := serve(t, f, nil)
	row := func() map[string]any {
		_, body := call(t, "GET", url+"/v1/units/"+unitKey.String(), "read", "", "")
		var out map[string]any
		if err := json.Unmarshal([]byte(body), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	layout, err := json.Marshal(row()["layout"])
	if want := `{"block_size":[256,256],"cog_reason":"it should be tiled","compression":"DEFLATE","interleave":"PIXEL","mask":true,"overviews":[[128,128]]}`; err != nil || string(layout) != want {
		t.Errorf("layout %s", layout)
	}
	f.tile.Facts = catalog.Facts{
		Driver: catalog.DriverGPKG, MediaType: catalog.MediaTypeGeoPackage, CRS: "EPSG:4326", CRSWKT: "GEOGCRS[…]",
		Layers: []catalog.Layer{{Name: "fields", GeometryType: "Polygon", FeatureCount: 3, CRS: "EPSG:4326", Fields: []catalog.Field{{Name: "crop", Type: "String"}}}},
	}
	got := row()
	for _, name := range []string{"transform", "width", "height", "footprint"} {
		if v, ok := got[name]; !ok || v != nil {
			t.Errorf("%s is %v", name, v)
		}
	}
	layers, err := json.Marshal(got["layers"])
	if want := `[{"crs":"EPSG:4326","feature_count":3,"fields":[{"name":"crop","type":"String"}],"geometry_type":"Polygon","name":"fields"}]`; err != nil || string(layers) != want {
		t.Errorf("layers %s", layers)
	}
}
