//go:build cgo

package probe

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
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
			refused(t, lookFile(t, path, catalog.ProbeRequest{}), catalog.CodeDriverRefused, "its collection takes GeoTIFF")
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

			// What is announced must be what is found.
			req.MediaType = catalog.MediaTypeOf(f.Driver)
			facts(t, lookFile(t, path, req))
			req.MediaType = catalog.MediaTypeCOG
			refused(t, lookFile(t, path, req), catalog.CodeMediaType, "was announced at begin")
		})
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
