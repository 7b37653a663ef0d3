//go:build cgo

package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/catalog"
)

// makeExtents writes files whose features are elsewhere than they say, and some without.
const makeExtents = `
import os, sqlite3, struct, sys
from osgeo import gdal, ogr, osr
gdal.UseExceptions()
os.chdir(sys.argv[1])
sr = osr.SpatialReference(); sr.ImportFromEPSG(4326); sr.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)
def write(driver, name, geometries, options=()):
    d = gdal.GetDriverByName(driver).Create(name, 0, 0, 0, gdal.GDT_Unknown)
    l = d.CreateLayer("t", sr, ogr.wkbUnknown, list(options))
    for g in geometries:
        f = ogr.Feature(l.GetLayerDefn())
        if g: f.SetGeometry(ogr.CreateGeometryFromWkt(g))
        l.CreateFeature(f)
here = ["POINT(10 20)", "LINESTRING(11 21,12 22)", "POINT EMPTY", None]
for index in "YES", "NO":
    options = ["SPATIAL_INDEX=" + index]
    write("GPKG", "true-%s.gpkg" % index, here, options)
    db = sqlite3.connect("true-%s.gpkg" % index, isolation_level=None)
    db.execute("UPDATE gpkg_contents SET min_x = 70, max_x = 71")
    db.close()
    write("FlatGeobuf", "true-%s.fgb" % index, here, options)
write("GPKG", "none.gpkg", ["POINT EMPTY", None])
db = sqlite3.connect("none.gpkg", isolation_level=None)
db.execute("UPDATE gpkg_contents SET min_x = 70, max_x = 71, min_y = 0, max_y = 1")
db.close()
write("GeoJSON", "true.geojson", here)
for n, g in enumerate(['{"type":"Point","coordinates":[]}', 'null', '{"type":"MultiPoint","coordinates":[]}']):
    open("none-%d.geojson" % n, "w").write('{"type":"FeatureCollection","features":[{"type":"Feature","properties":{},"geometry":' + g + '}]}')
b = bytearray(open("true-NO.fgb", "rb").read())
i = b.index(struct.pack("<d", 20)); b[i:i + 8] = struct.pack("<d", 2)
open("false.fgb", "wb").write(b)
`

// The outline is that of the features, whatever their file says it is; where only a decode
// can know, it does. Features without geometries have none.
func TestExtents(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(python, "-c", makeExtents, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		req := catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: true}
		v := lookFile(t, filepath.Join(dir, e.Name()), req)
		switch kind := strings.FieldsFunc(e.Name(), func(r rune) bool { return r == '-' || r == '.' })[0]; kind {
		case "true":
			if f := facts(t, v); !holds(f.Footprint, 10.1, 20.1) || holds(f.Footprint, 70.5, 21) || holds(f.Footprint, 9, 21) {
				t.Errorf("%s: footprint %v", e.Name(), f.Footprint)
			}
		case "none":
			refused(t, v, catalog.CodeNoFootprint, "no feature has a geometry")
		default:
			refused(t, v, catalog.CodeTruncated, "says that its features lie in [10 2 12 22]")
		}
	}
	if len(entries) != 10 {
		t.Errorf("%d files", len(entries))
	}
}
