//go:build cgo

package probe

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
)

// However much else is in a file, and however they are spelt, the tags that say whose it
// is are told, or are its refusal.
func TestMarks(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, tags := range map[string]func(set func(k, v string)){
		"many": func(set func(k, v string)) {
			for i := range 1100 {
				set(fmt.Sprintf("A%04d", i), "x")
			}
		},
		"much": func(set func(k, v string)) {
			for i := range 1000 {
				set(fmt.Sprintf("A%04d", i), long+long)
			}
		},
		"none": func(func(k, v string)) {},
	} {
		for _, mark := range []string{catalog.TagUnitKey, catalog.TagVersion, catalog.TagIdentity, "catalogd_version"} {
			value := `{"version":"v1","list":"` + strings.Repeat("x", 40<<10) + `"}`
			s := utm(20, 20)
			s.change = func(ds *godal.Dataset) {
				set := func(k, v string) { check(t, ds.SetMetadata(k, v)) }
				tags(set)
				set(mark, value)
			}
			if f := facts(t, lookFile(t, s.write(t), catalog.ProbeRequest{})); f.Tags[strings.ToUpper(mark)] != value {
				t.Errorf("%s: %s is %.40q", name, mark, f.Tags[mark])
			}
		}
	}
	s := utm(20, 20)
	s.change = func(ds *godal.Dataset) { check(t, ds.SetMetadata(catalog.TagIdentity, strings.Repeat("x", 65<<10))) }
	refused(t, lookFile(t, s.write(t), catalog.ProbeRequest{}), catalog.CodeIdentityMismatch, "CATALOGD_IDENTITY is no text of at most 65,536 bytes")

	req := catalog.ProbeRequest{Drivers: catalog.Drivers()}
	collection := func(members string) []byte {
		return []byte(`{"type":"FeatureCollection",` + members + `"features":[{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[1,2]}}]}`)
	}
	others := &strings.Builder{}
	for i := range 1100 {
		fmt.Fprintf(others, `"a%d":"x",`, i)
	}
	for members, want := range map[string]string{
		others.String() + `"CATALOGD_VERSION":"v2",`: "v2", `"catalogd_version":"v2",`: "v2", `"CATALOGD_VERSION":"v2","CATALOGD_VERSION":"v2",`: "v2",
		`"CATALOGD_VERSION":2,`: "", `"CATALOGD_VERSION":"v1","CATALOGD_VERSION":"v2",`: "", `"CATALOGD_VERSION":null,"CATALOGD_VERSION":"v2",`: "",
	} {
		v, _ := lookBytes(collection(members), req)
		if want == "" {
			refused(t, v, catalog.CodeIdentityMismatch, "CATALOGD_VERSION is no text, or stands there twice")
		} else if f := facts(t, v); f.Tags[catalog.TagVersion] != want {
			t.Errorf("%.80s: %v", members, f.Tags[catalog.TagVersion])
		}
	}
	quoted := strings.Repeat(`\"`, 60<<10)
	v, _ := lookBytes(collection(`"CATALOGD_IDENTITY":"`+quoted+`",`), req)
	if f := facts(t, v); len(f.Tags[catalog.TagIdentity]) != 60<<10 {
		t.Errorf("%d bytes", len(f.Tags[catalog.TagIdentity]))
	}
	v, _ = lookBytes(collection(`"CATALOGD_IDENTITY":{"version":"v1"},`), req)
	refused(t, v, catalog.CodeIdentityMismatch, "is no text")
}

const makeMarked = `
import os, sys
from osgeo import gdal, ogr, osr
gdal.UseExceptions()
os.chdir(sys.argv[1])
sr = osr.SpatialReference(); sr.ImportFromEPSG(32633)
def write(name, file, *layers):
    d = gdal.GetDriverByName("GPKG").Create(name, 0, 0, 0, gdal.GDT_Unknown)
    for k, v in file.items(): d.SetMetadataItem(k, v)
    for i, tags in enumerate(layers):
        l = d.CreateLayer("l%d" % i, sr, ogr.wkbPoint)
        for k, v in tags.items(): l.SetMetadataItem(k, v)
        f = ogr.Feature(l.GetLayerDefn()); f.SetGeometry(ogr.CreateGeometryFromWkt("POINT(500000 5000000)")); l.CreateFeature(f)
write("second.gpkg", {}, {"A": "x"}, {"CATALOGD_VERSION": "v2"})
write("same.gpkg", {"CATALOGD_IDENTITY": '{"version":"v2","n":1}'}, {"CATALOGD_IDENTITY": '{"n":1.0,"version":"v2"}'}, {})
write("differ.gpkg", {"CATALOGD_VERSION": "v1"}, {"catalogd_version": "v2"}, {})
write("one.gpkg", {"CATALOGD_VERSION": "v1"}, {"CATALOGD_VERSION": "v2"})
`

// Every layer may say whose the file is, and they must agree.
func TestMarksOfLayers(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(python, "-c", makeMarked, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	req := catalog.ProbeRequest{Drivers: catalog.Drivers()}
	f := facts(t, lookFile(t, filepath.Join(dir, "second.gpkg"), req))
	if f.Tags[catalog.TagVersion] != "v2" || len(f.Tags) != 1 {
		t.Errorf("%v", f.Tags)
	}
	if f := facts(t, lookFile(t, filepath.Join(dir, "same.gpkg"), req)); f.Tags[catalog.TagIdentity] == "" {
		t.Errorf("%v", f.Tags)
	}
	for _, name := range []string{"differ.gpkg", "one.gpkg"} {
		refused(t, lookFile(t, filepath.Join(dir, name), req), catalog.CodeIdentityMismatch, `in one place and "v2" in another`)
	}
}
