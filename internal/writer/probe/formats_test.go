//go:build cgo

package probe

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// makeFormats writes one file of each format besides GeoTIFF, with tags, and says what is in
// each, as GDAL sees it in Python.
const makeFormats = `
import json, os, sys
from osgeo import gdal, ogr, osr
gdal.UseExceptions()
os.chdir(sys.argv[1])
utm = osr.SpatialReference(); utm.ImportFromEPSG(32633)
wgs84 = osr.SpatialReference(); wgs84.ImportFromEPSG(4326); wgs84.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)
def raster(dtype=gdal.GDT_Byte, bands=3):
    m = gdal.GetDriverByName("MEM").Create("", 300, 200, bands, dtype)
    m.SetProjection(utm.ExportToWkt()); m.SetGeoTransform([500000, 10, 0, 5000000, 0, -10])
    for b in range(bands): m.GetRasterBand(b + 1).WriteRaster(0, 0, 300, 200, bytes((x * y + b) % 251 for y in range(200) for x in range(300)), buf_type=gdal.GDT_Byte)
    m.SetMetadataItem("CATALOGD_VERSION", "v1")
    return m
gdal.GetDriverByName("JP2OpenJPEG").CreateCopy("raster.jp2", raster(), options=["WRITE_METADATA=YES"])
for form in "PNG", "JPEG", "WEBP":
    gdal.GetDriverByName("GPKG").CreateCopy(form + ".gpkg", raster(), options=["TILE_FORMAT=" + form])
gdal.GetDriverByName("GPKG").CreateCopy("elevation.gpkg", raster(gdal.GDT_Float32, 1), options=["TILE_FORMAT=TIFF"])
def vector(driver, name, sr, x=500000, y=5000000, tables=("fields",)):
    d = gdal.GetDriverByName(driver).Create(name, 0, 0, 0, gdal.GDT_Unknown)
    for t in tables:
        l = d.CreateLayer(t, sr, ogr.wkbPolygon)
        l.CreateField(ogr.FieldDefn("crop", ogr.OFTString)); l.CreateField(ogr.FieldDefn("area", ogr.OFTReal)); l.CreateField(ogr.FieldDefn("n", ogr.OFTInteger))
        for i in range(50):
            f = ogr.Feature(l.GetLayerDefn()); f["crop"] = "rye"; f["area"] = i / 3; f["n"] = i
            f.SetGeometry(ogr.CreateGeometryFromWkt(f"POLYGON(({x} {y},{x + 1} {y},{x} {y + 1},{x} {y}))"))
            l.CreateFeature(f)
    if driver == "GPKG":
        d.SetMetadataItem("CATALOGD_VERSION", "v1")
        l = d.CreateLayer("table", None, ogr.wkbNone); l.CreateFeature(ogr.Feature(l.GetLayerDefn()))
    l = None; d = None
vector("GPKG", "vector.gpkg", utm, tables=("a", "b"))
vector("FlatGeobuf", "vector.fgb", utm)
vector("GeoJSON", "vector.geojson", wgs84, 15, 45)
out = {}
for name in sorted(os.listdir(".")):
    if not name.endswith((".gpkg", ".jp2", ".fgb", ".geojson")): continue
    d = gdal.OpenEx(name)
    out[name] = [{"name": l.GetName(), "geometry_type": ogr.GeometryTypeToName(l.GetGeomType()), "feature_count": l.GetFeatureCount(), "crs": "",
        "fields": [{"name": l.GetLayerDefn().GetFieldDefn(i).GetName(), "type": l.GetLayerDefn().GetFieldDefn(i).GetTypeName()} for i in range(l.GetLayerDefn().GetFieldCount())]}
        for l in (d.GetLayer(i) for i in range(d.GetLayerCount()))]
print(json.dumps(out))
`

// Each format is taken by a collection that says so, with the facts that GDAL gives.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command(python, "-c", makeFormats, dir).Output()
	check(t, err)
	var want map[string][]catalog.Layer
	check(t, json.Unmarshal(out, &want))
	if len(want) != 8 {
		t.Fatalf("%d formats", len(want))
	}
	for name, layers := range want {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			refused(t, lookFile(t, path, catalog.ProbeRequest{}), catalog.CodeDriverRefused, "the collection's drivers are GeoTIFF")
			req := catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: true}
			f := facts(t, lookFile(t, path, req))
			if ext, _ := catalog.Extension(f.MediaType); ext != filepath.Ext(name) {
				t.Errorf("media type %s", f.MediaType)
			}
			for i, l := range f.Layers {
				if crs := map[bool]string{true: "", false: f.CRS}[l.GeometryType == "None"]; l.CRS != crs && f.CRS != "" {
					t.Errorf("layer %s: CRS %q, file %q", l.Name, l.CRS, f.CRS)
				}
				f.Layers[i].CRS = ""
			}
			if len(layers) > 0 && !reflect.DeepEqual(f.Layers, layers) {
				t.Errorf("layers %+v; GDAL %+v", f.Layers, layers)
			}
			if len(layers) == 0 {
				sameAsGDAL(t, path, f)
			}
			if ext := filepath.Ext(name); (ext == ".jp2" || ext == ".gpkg") && f.Tags[catalog.TagVersion] != "v1" {
				t.Errorf("tags %v", f.Tags)
			}
			if len(f.Footprint) != 1 || !holds(f.Footprint, 15.0000001, 45.15+map[bool]float64{true: 0.1}[strings.HasSuffix(name, ".geojson")]) && len(layers) == 0 {
				t.Errorf("footprint %v", f.Footprint)
			}

			if name == "PNG.gpkg" { // a tile that is whole, and damaged
				content, err := os.ReadFile(path)
				check(t, err)
				at := bytes.LastIndex(content, []byte("IDAT"))
				copy(content[at+20:], "damagedamage")
				v, _ := lookBytes(content, req)
				refused(t, v, catalog.CodeTruncated, "not all can be decoded")
			}
			if name == "vector.fgb" { // whose layer has no name
				content, err := os.ReadFile(path)
				check(t, err)
				at := bytes.Index(content, []byte("\x06\x00\x00\x00fields"))
				clear(content[at : at+10])
				v, _ := lookBytes(content, req)
				if name := facts(t, v).Layers[0].Name; name != "" {
					t.Errorf("the layer without a name is %q", name)
				}
			}

			// What is announced must be what is found.
			req.MediaType = catalog.MediaTypeOf(f.Driver)
			facts(t, lookFile(t, path, req))
			req.MediaType = catalog.MediaTypeCOG
			refused(t, lookFile(t, path, req), catalog.CodeMediaType, "was announced at begin")
		})
	}
}

// makeGeoPackages writes one file for each of many reference systems, as GDAL defines
// them, and some with views.
const makeGeoPackages = `
import os, sqlite3, sys
from osgeo import gdal, ogr, osr
gdal.UseExceptions()
os.chdir(sys.argv[1])
def write(name, text, options=()):
    sr = None
    if text: sr = osr.SpatialReference(); sr.SetFromUserInput(text)
    d = gdal.GetDriverByName("GPKG").Create(name + ".gpkg", 0, 0, 0, gdal.GDT_Unknown, options=list(options))
    l = d.CreateLayer("t", sr, ogr.wkbPoint)
    f = ogr.Feature(l.GetLayerDefn()); f.SetGeometry(ogr.CreateGeometryFromWkt("POINT(10 20)")); l.CreateFeature(f)
for n, text in enumerate(["", "EPSG:32633", "EPSG:4326", "EPSG:4979", "EPSG:4978", "EPSG:5698", "EPSG:4326+5773", "EPSG:5773", "EPSG:9000", "ESRI:54009", "IAU_2015:30100",
    "+proj=utm +zone=33 +ellps=bessel +towgs84=1,2,3,4,5,6,7", 'LOCAL_CS["site",UNIT["metre",1]]', 'ENGCRS["site",EDATUM["here"],CS[Cartesian,2],AXIS["x",east],AXIS["y",north],LENGTHUNIT["metre",1]]']):
    for version in "AUTO", "1.0", "1.1", "1.2", "1.3":
        write("good-%d-%s" % (n, version), text, ["VERSION=" + version])
def change(name, *statements):
    write(name, "EPSG:32633")
    db = sqlite3.connect(name + ".gpkg", isolation_level=None)
    for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall(): db.execute('DROP TRIGGER "%s"' % trigger)
    for s in statements: db.execute(s)
    db.close()
LOOP = "CREATE VIEW evil AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i AS fid, NULL AS geom FROM r"
LIST = ["PRAGMA foreign_keys = OFF", "UPDATE gpkg_contents SET table_name = 'evil'", "UPDATE gpkg_geometry_columns SET table_name = 'evil'"]
change("good-unlisted", LOOP)
change("bad-view", LOOP, *LIST)
change("bad-virtual", "CREATE VIRTUAL TABLE evil USING fts4(geom, content='t')", *LIST)
change("bad-kind", LOOP, *LIST, "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET type = 'table', rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 't') WHERE name = 'evil'",
    "DELETE FROM sqlite_master WHERE name = 't'")
change("bad-nul", LOOP, *LIST, "UPDATE gpkg_contents SET table_name = CAST(x'6576696c00' AS TEXT)")
change("wkt-path", "UPDATE gpkg_spatial_ref_sys SET definition = '/etc/passwd', organization = 'none' WHERE srs_id = 32633")
`

// No reference system that GDAL writes down is refused, nor a view that the contents do
// not list; one that they do is, and is never queried.
func TestGeoPackages(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(python, "-c", makeGeoPackages, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.gpkg"))
	check(t, err)
	for _, path := range paths {
		v := lookFile(t, path, catalog.ProbeRequest{Drivers: catalog.Drivers(), FootprintOptional: true, Decode: true})
		switch kind, _, _ := strings.Cut(filepath.Base(path), "-"); kind {
		case "good":
			if f := facts(t, v); len(f.Layers) != 1 || f.Layers[0].Name != "t" {
				t.Errorf("%s: layers %+v", path, f.Layers)
			}
		case "bad":
			refused(t, v, catalog.CodeNotARaster, "is a view or a virtual table")
		default:
			refused(t, v, catalog.CodeNotARaster, "is \"/etc/passwd\", and not WKT")
		}
	}
	if len(paths) != 14*5+6 {
		t.Errorf("%d files", len(paths))
	}
}

// Of a GeoPackage's absent tiles no more are passed over than can be in a while.
func TestAbsentTiles(t *testing.T) {
	p := proven{raster: true, blocks: 1 << 40, missing: maxAbsent + 1}
	req := catalog.ProbeRequest{SparseAllowed: true, Decode: true}
	refused(t, wire.Verdict{Refusal: p.check(catalog.DriverGPKG, req)}, catalog.CodeSparse, "narrow the raster's extent")
	if p.check(catalog.DriverGTiff, req) != nil || p.check(catalog.DriverGPKG, catalog.ProbeRequest{SparseAllowed: true}) != nil {
		t.Error("refused where nothing is decoded, or at no cost")
	}
}

// A COG may be announced as GeoTIFF, but not the other way round.
func TestAnnounced(t *testing.T) {
	s := utm(900, 700)
	plain := s.write(t)
	s.cog = true
	cog := s.write(t)
	facts(t, lookFile(t, cog, catalog.ProbeRequest{MediaType: catalog.MediaTypeCOG}))
	facts(t, lookFile(t, cog, catalog.ProbeRequest{MediaType: catalog.MediaTypeGeoTIFF}))
	facts(t, lookFile(t, plain, catalog.ProbeRequest{MediaType: catalog.MediaTypeGeoTIFF}))
	refused(t, lookFile(t, plain, catalog.ProbeRequest{MediaType: catalog.MediaTypeCOG}), catalog.CodeMediaType, "should be tiled")
	if f := facts(t, lookFile(t, plain, catalog.ProbeRequest{})); f.Layout.COGReason == "" {
		t.Error("no reason is given")
	}
}

// Codes of authorities other than EPSG, and systems that only look like one of EPSG's.
func TestAuthorities(t *testing.T) {
	for name, c := range map[string]struct{ wkt, want string }{
		"ESRI": {"ESRI:54009", "ESRI:54009"},
		"EPSG": {"EPSG:3035", "EPSG:3035"},
	} {
		sr, err := godal.NewSpatialRef(c.wkt)
		check(t, err)
		if code, wkt := crs(sr); code != c.want || !strings.HasPrefix(wkt, "PROJCRS[") {
			t.Errorf("%s: %s, %s", name, code, wkt)
		}
		sr.Close()
	}
	// EPSG's code on another system.
	sr, err := godal.NewSpatialRef(`PROJCS["x",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",16],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",0],UNIT["metre",1],AUTHORITY["EPSG","32633"]]`)
	check(t, err)
	defer sr.Close()
	if code, wkt := crs(sr); code != wkt || !strings.HasPrefix(wkt, "PROJCRS[") {
		t.Errorf("%s, %s", code, wkt)
	}
}

// The WKT of a code is the same whatever was looked at before: PROJ would tell the datum
// of WGS 84 in two ways.
func TestWKTOfCode(t *testing.T) {
	path := utm(16, 16).write(t)
	want, err := exec.Command("gdalsrsinfo", "-o", "wkt2_2019", "--single-line", "EPSG:32633").Output()
	check(t, err)
	content, err := os.ReadFile(path)
	check(t, err)
	verdicts := make(chan wire.Verdict)
	go func() { // a thread that has asked PROJ nothing yet
		runtime.LockOSThread()
		v, _ := lookBytes(content, catalog.ProbeRequest{})
		verdicts <- v
	}()
	first := <-verdicts // one look at a time
	later, _ := lookBytes(content, catalog.ProbeRequest{})
	for _, v := range []wire.Verdict{first, later} {
		if f := facts(t, v); f.CRSWKT != strings.TrimSpace(string(want)) {
			t.Errorf("WKT %s; gdalsrsinfo %s", f.CRSWKT, want)
		}
	}
}
