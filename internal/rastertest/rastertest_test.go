package rastertest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/rastertest"
)

// GDAL is the judge of what we make.
func TestGDALReadsIt(t *testing.T) {
	name := filepath.Join(t.TempDir(), "r.tif")
	raster := rastertest.Raster{Width: 40, Height: 30, EPSG: 3857, Tags: map[string]string{"CATALOGD_VERSION": "v7"}}
	if err := os.WriteFile(name, raster.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("gdalinfo", "-checksum", name).CombinedOutput()
	if err != nil {
		t.Fatalf("gdalinfo: %v\n%s", err, out)
	}
	for _, want := range []string{"Size is 40, 30", `ID["EPSG",3857]`, "CATALOGD_VERSION=v7", "Checksum="} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
