package writer

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"catalogd/internal/catalog"
)

// Every format is read whole within the limits that a child lives under.
func TestFormatsUnderLimits(t *testing.T) {
	p := realPool(t, Config{Size: 1})
	for _, name := range []string{"gpkg/testdata/vector.gpkg.gz", "gpkg/testdata/raster.gpkg.gz", "flatgeobuf/testdata/vector.fgb.gz", "geojson/testdata/vector.geojson.gz", "jp2/testdata/raster.jp2.gz"} {
		packed, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		f, err := probeBytes(t, p, content, catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Footprint == nil || f.CRSWKT == "" || len(f.Bands) == 0 && len(f.Layers) == 0 {
			t.Errorf("%s: %+v", filepath.Base(name), f)
		}
	}
}
