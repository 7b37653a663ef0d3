//go:build cgo

package probe

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/tiff"
	"catalogd/internal/writer/wire"
)

func TestMain(m *testing.M) {
	runtime.LockOSThread()
	err := Setup()
	if err == nil {
		err = godal.RegisterRaster("COG") // to write them
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// spec is a raster to be made.
type spec struct {
	width, height, bands int
	dtype                godal.DataType
	epsg                 int
	wkt                  string
	gt                   [6]float64
	creation             []string
	overviews, mask      bool
	cog                  bool
	unwritten            bool
	change               func(ds *godal.Dataset)
}

func utm(width, height int) spec {
	return spec{width: width, height: height, bands: 1, dtype: godal.Byte, epsg: 32633, gt: [6]float64{500000, 10, 0, 5000000, 0, -10}}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a raster of noise, whose blocks do not compress away, and gives its path.
func (s spec) write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raster.tif")
	ds, err := godal.Create(godal.GTiff, path, s.bands, s.dtype, s.width, s.height, godal.CreationOption(s.creation...),
		godal.ConfigOption("GDAL_TIFF_INTERNAL_MASK=YES"))
	check(t, err)
	if s.epsg != 0 || s.wkt != "" {
		sr, err := godal.NewSpatialRef(s.wkt)
		if s.wkt == "" {
			sr, err = godal.NewSpatialRefFromEPSG(s.epsg)
		}
		check(t, err)
		defer sr.Close()
		check(t, ds.SetSpatialRef(sr))
	}
	if s.gt != [6]float64{} {
		check(t, ds.SetGeoTransform(s.gt))
	}
	if s.change != nil {
		s.change(ds)
	}
	if !s.unwritten {
		rng := rand.New(rand.NewPCG(1, 1))
		line := make([]byte, s.width*s.bands)
		for y := range s.height {
			for i := range line {
				line[i] = byte(rng.Uint32())
			}
			check(t, ds.Write(0, y, line, s.width, 1))
		}
	}
	if s.mask {
		mask, err := ds.CreateMaskBand(2, godal.ConfigOption("GDAL_TIFF_INTERNAL_MASK=YES"))
		check(t, err)
		check(t, mask.Fill(255, 0))
	}
	if s.overviews {
		check(t, ds.BuildOverviews(godal.Levels(2, 4), godal.ConfigOption("GDAL_TIFF_INTERNAL_MASK=YES")))
	}
	check(t, ds.Close())
	if !s.cog {
		return path
	}
	cog := filepath.Join(t.TempDir(), "cog.tif")
	src, err := godal.Open(path)
	check(t, err)
	defer src.Close()
	out, err := src.Translate(cog, []string{"-of", "COG", "-co", "BLOCKSIZE=256", "-co", "OVERVIEWS=AUTO"})
	check(t, err)
	check(t, out.Close())
	return cog
}

// traffic of one look.
type traffic struct{ reads, bytes int }

func lookBytes(content []byte, req catalog.ProbeRequest) (wire.Verdict, traffic) {
	var n traffic
	v := Look(wire.Job{Size: int64(len(content)), Request: req}, wire.NewSource(int64(len(content)), func(off int64, p []byte) error {
		n.reads++
		n.bytes += len(p)
		copy(p, content[off:])
		return nil
	}))
	return v, n
}

func lookFile(t testing.TB, path string, req catalog.ProbeRequest) wire.Verdict {
	t.Helper()
	content, err := os.ReadFile(path)
	check(t, err)
	v, _ := lookBytes(content, req)
	return v
}

func facts(t testing.TB, v wire.Verdict) *wire.Facts {
	t.Helper()
	if v.Facts == nil {
		t.Fatalf("refused: %+v", v.Refusal)
	}
	raw, err := json.Marshal(v)
	check(t, err)
	if _, _, err := wire.ParseVerdict(raw); err != nil {
		t.Fatalf("catalogd would not take these facts: %v", err)
	}
	return v.Facts
}

// noisy is what no message should say.
var noisy = regexp.MustCompile(`/vsi|0x[0-9a-f]{6}|\n|\.cpp`)

func refused(t testing.TB, v wire.Verdict, code catalog.Code, parts ...string) {
	t.Helper()
	if v.Refusal == nil || v.Refusal.Code != code {
		t.Errorf("verdict %+v %+v, want %s", v.Facts, v.Refusal, code)
		return
	}
	if noise := noisy.FindString(v.Refusal.Message); noise != "" {
		t.Errorf("message %q says %q", v.Refusal.Message, noise)
	}
	for _, part := range parts {
		if !strings.Contains(v.Refusal.Message, part) {
			t.Errorf("message %q does not say %q", v.Refusal.Message, part)
		}
	}
}

// shapes of files that GDAL writes.
func shapes() map[string]spec {
	with := func(s spec, f func(*spec)) spec { f(&s); return s }
	return map[string]spec{
		"stripped": utm(300, 200),
		"tiled":    with(utm(600, 500), func(s *spec) { s.creation = []string{"TILED=YES", "COMPRESS=DEFLATE"} }),
		"BigTIFF":  with(utm(300, 200), func(s *spec) { s.creation = []string{"BIGTIFF=YES", "COMPRESS=LZW"} }),
		"MSB":      with(utm(300, 200), func(s *spec) { s.creation = []string{"ENDIANNESS=BIG", "COMPRESS=ZSTD"} }),
		"planar":   with(utm(300, 200), func(s *spec) { s.bands = 4; s.creation = []string{"INTERLEAVE=BAND", "TILED=YES"} }),
		"pixel":    with(utm(300, 200), func(s *spec) { s.bands = 3; s.creation = []string{"INTERLEAVE=PIXEL", "COMPRESS=DEFLATE"} }),
		"JPEG":     with(utm(300, 200), func(s *spec) { s.bands = 3; s.creation = []string{"COMPRESS=JPEG", "PHOTOMETRIC=YCBCR"} }),
		"WebP":     with(utm(300, 200), func(s *spec) { s.bands = 3; s.creation = []string{"COMPRESS=WEBP", "TILED=YES"} }),
		"LERC":     with(utm(300, 200), func(s *spec) { s.dtype = godal.Float32; s.creation = []string{"COMPRESS=LERC_ZSTD", "TILED=YES"} }),
		"LZMA":     with(utm(300, 200), func(s *spec) { s.creation = []string{"COMPRESS=LZMA", "BLOCKYSIZE=7"} }),
		"fax":      with(utm(300, 200), func(s *spec) { s.creation = []string{"COMPRESS=CCITTFAX4", "NBITS=1"} }),
		"JPEG mask": with(utm(900, 700), func(s *spec) {
			s.bands, s.mask, s.overviews, s.creation = 3, true, true, []string{"TILED=YES", "COMPRESS=JPEG", "PHOTOMETRIC=YCBCR"}
		}),
		"planar Big": with(utm(300, 200), func(s *spec) {
			s.bands, s.overviews = 3, true
			s.creation = []string{"INTERLEAVE=BAND", "BIGTIFF=YES", "ENDIANNESS=BIG", "COMPRESS=DEFLATE", "PREDICTOR=2"}
		}),
		"one bit":   with(utm(301, 200), func(s *spec) { s.creation = []string{"NBITS=1"} }),
		"float":     with(utm(300, 200), func(s *spec) { s.dtype = godal.Float64 }),
		"overviews": with(utm(900, 700), func(s *spec) { s.overviews = true; s.creation = []string{"TILED=YES"} }),
		"mask": with(utm(900, 700), func(s *spec) {
			s.overviews, s.mask, s.creation = true, true, []string{"TILED=YES", "COMPRESS=DEFLATE"}
		}),
		"COG":      with(utm(900, 700), func(s *spec) { s.cog = true; s.bands = 3 }),
		"COG mask": with(utm(900, 700), func(s *spec) { s.cog, s.mask = true, true }),
	}
}

// Every shape is proved complete, its facts are gdalinfo's, and it is a COG where GDAL's
// own validator says so.
func TestShapes(t *testing.T) {
	isCOG := map[string]bool{}
	var paths []string
	for name, s := range shapes() {
		path := s.write(t)
		t.Run(name, func(t *testing.T) {
			f := facts(t, lookFile(t, path, catalog.ProbeRequest{Decode: true}))
			if s.cog && !f.IsCOG {
				t.Error("a COG is not seen as one")
			}
			sameAsGDAL(t, path, f)
			isCOG[path] = f.IsCOG
			paths = append(paths, path)
		})
	}
	const validate = `import sys
from osgeo_utils.samples.validate_cloud_optimized_geotiff import validate
for path in sys.argv[1:]:
    print(len(validate(path, full_check=True)[1]))
`
	// Debian's Python is the one that has GDAL.
	out, err := exec.Command("/usr/bin/python3", append([]string{"-c", validate}, paths...)...).Output()
	check(t, err)
	for i, errors := range strings.Fields(string(out)) {
		if (errors == "0") != isCOG[paths[i]] {
			t.Errorf("%s: COG %v; GDAL's validator has %s objections", paths[i], isCOG[paths[i]], errors)
		}
	}
}

// However a file is cut off, it is refused.
func TestTruncated(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(s.write(t))
			check(t, err)
			lengths := []int{1, 2, 7, 8, 9, 15, 16, 100, len(content) - 1, len(content) - 2, len(content) - 4, len(content) - 5, len(content) / 2}
			rng := rand.New(rand.NewPCG(2, 2))
			for range 40 {
				lengths = append(lengths, 1+rng.IntN(len(content)-1))
			}
			for _, n := range lengths {
				v, _ := lookBytes(content[:n], catalog.ProbeRequest{})
				if v.Facts != nil {
					t.Errorf("cut to %d of %d bytes: taken", n, len(content))
				} else if n >= 8 && v.Refusal.Code != catalog.CodeTruncated {
					t.Errorf("cut to %d of %d bytes: %+v", n, len(content), v.Refusal)
				}
			}
		})
	}
}

func TestSparse(t *testing.T) {
	s := utm(8192, 8192)
	s.unwritten, s.creation = true, []string{"TILED=YES", "SPARSE_OK=TRUE"}
	path := s.write(t)
	refused(t, lookFile(t, path, catalog.ProbeRequest{}), catalog.CodeSparse, "1,024 of 1,024 blocks were never written")
	facts(t, lookFile(t, path, catalog.ProbeRequest{SparseAllowed: true, Decode: true}))

	// Only an overview is missing a block.
	s = utm(512, 512)
	s.overviews, s.creation = true, []string{"TILED=YES", "SPARSE_OK=TRUE"}
	s.unwritten = true
	s.change = func(ds *godal.Dataset) { _ = ds.Write(0, 0, bytes.Repeat([]byte{1}, 256*256), 256, 256) }
	refused(t, lookFile(t, s.write(t), catalog.ProbeRequest{}), catalog.CodeSparse, "blocks were never written")
}

// absent is a TIFF of few bytes that claims some 50 million blocks, and has none.
func absent() []byte {
	const size = 7000 * 1024
	le := binary.LittleEndian
	entries := [][4]uint32{{256, 4, 1, size}, {257, 4, 1, size}, {258, 3, 1, 8}, {259, 3, 1, 1}, {262, 3, 1, 1}, {277, 3, 1, 1}, {322, 4, 1, 1024}, {323, 4, 1, 1024}, {324, 4, 1, 0}, {325, 4, 1, 0}}
	out := le.AppendUint16([]byte("II*\x00\x08\x00\x00\x00"), uint16(len(entries)))
	for _, e := range entries {
		out = le.AppendUint16(le.AppendUint16(out, uint16(e[0])), uint16(e[1]))
		out = le.AppendUint32(le.AppendUint32(out, e[2]), e[3])
	}
	return le.AppendUint32(out, 0)
}

// Decoding passes over blocks that are absent at no cost that the file has not paid for in
// bytes, and over no block that is there.
func TestSparseDecode(t *testing.T) {
	req := catalog.ProbeRequest{SparseAllowed: true, FootprintOptional: true, Decode: true}
	began := time.Now()
	v, _ := lookBytes(absent(), req)
	refused(t, v, catalog.CodeNotARaster, "49000000 blocks, and tables of 1 offsets")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d absent blocks took %v", 7000*7000, took)
	}

	noise := make([]byte, 256*256)
	rng := rand.New(rand.NewPCG(6, 6))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	tiles := []string{"TILED=YES", "SPARSE_OK=TRUE", "COMPRESS=DEFLATE"}
	sparse := func(bands int, creation string, change func(ds *godal.Dataset)) spec {
		s := utm(2048, 2048)
		s.bands, s.unwritten, s.creation, s.change = bands, true, append(slices.Clone(tiles), creation), change
		return s
	}
	last := func(band int) func(ds *godal.Dataset) {
		return func(ds *godal.Dataset) { check(t, ds.Bands()[band].Write(1792, 1792, noise, 256, 256)) }
	}
	masked := sparse(1, "BIGTIFF=YES", last(0))
	masked.mask = true
	overviews := sparse(1, "BIGTIFF=YES", last(0))
	overviews.overviews = true
	for name, s := range map[string]spec{
		"one band": sparse(1, "BIGTIFF=NO", last(0)), "planes": sparse(3, "INTERLEAVE=BAND", last(2)), "the first plane": sparse(3, "INTERLEAVE=BAND", last(0)),
		"pixels": sparse(3, "INTERLEAVE=PIXEL", last(1)), "mask": masked, "overviews": overviews,
	} {
		content, err := os.ReadFile(s.write(t))
		check(t, err)
		v, _ := lookBytes(content, req)
		facts(t, v)
		r, err := tiff.Prove(bytes.NewReader(content), int64(len(content)))
		check(t, err)
		for _, page := range r.Pages {
			if page.Missing == page.Blocks {
				continue
			}
			damaged := bytes.Clone(content)
			clear(damaged[page.FirstBlock:][:16])
			v, _ = lookBytes(damaged, req)
			refused(t, v, catalog.CodeTruncated, "damaged", "block at column")
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// Many planes are decoded one after the other: block by block across them, each block of
// the file that a Source keeps would be read again for every band.
func TestDecodePlanes(t *testing.T) {
	s := utm(256, 256)
	s.bands, s.dtype, s.creation, s.unwritten = 100, godal.Float32, []string{"INTERLEAVE=BAND"}, true
	s.change = func(ds *godal.Dataset) {
		for _, b := range ds.Bands() {
			check(t, b.Fill(1, 0))
		}
	}
	content, err := os.ReadFile(s.write(t))
	check(t, err)
	v, n := lookBytes(content, catalog.ProbeRequest{Decode: true})
	facts(t, v)
	if n.bytes > 2*len(content) {
		t.Errorf("%d bytes in %d reads of a file of %d", n.bytes, n.reads, len(content))
	}
}

// What GDAL says of itself reaches nobody.
func TestPlain(t *testing.T) {
	for msg, want := range map[string]string{
		"./gcore/gdalrasterblock.cpp, 1108: cannot allocate 268435456 bytes":             "cannot allocate 268435456 bytes",
		"cannot allocate 1 bytes in /build/gdal-3.6.2+dfsg/port/cpl_conv.cpp:203":        "cannot allocate 1 bytes",
		"Assertion `x > 0' failed in file `gdalmultidim.cpp', line 123":                  "Assertion `x > 0' failed",
		"file ./frmts/gtiff/geotiff.cpp, line: 77":                                       "file",
		"Out of memory allocating 5 bytes (./ogr/ogr_core.h:12): stop":                   "Out of memory allocating 5 bytes: stop",
		"/vsisubfile/0_538,/vsicatalogd/staged.tif: band 1, block 7: IReadBlock failed.": "band 1, block 7: IReadBlock failed.",
		"TIFFFillTile:Read error at row 0, col 0, tile 3; got 12 bytes, expected 65536":  "TIFFFillTile:Read error at row 0, col 0, tile 3; got 12 bytes, expected 65536",
		"layer main.c has 7 features, and a.cpp none":                                    "layer main.c has 7 features, and a.cpp none",
		"/vsimem/gpkg_read_tile_0x242e6b50: libpng: bad\n  CRC":                          "libpng: bad CRC",
		"Cannot open `/vsicatalogd/OGRGeoJSON.geojson', handle (0x7f00dead) of it":       "Cannot open handle of it",
		"x.cpp, 1: y.cpp, 2: twice":                                                      "twice",
	} {
		if got := plain(msg); got != want {
			t.Errorf("%q: %q, want %q", msg, got, want)
		}
	}
}

func TestNotARaster(t *testing.T) {
	for content, want := range map[string]struct {
		code catalog.Code
		say  string
	}{
		"":                                 {catalog.CodeEmptyOutput, "no bytes"},
		"a":                                {catalog.CodeNotARaster, "GeoTIFF"},
		"just some text named .tif":        {catalog.CodeNotARaster, "just some text"},
		"\x89PNG\r\n\x1a\n":                {catalog.CodeDriverRefused, "world file"},
		"\xff\xd8\xff\xe0":                 {catalog.CodeDriverRefused, "JPEG, which is not self-contained"},
		"CDF\x02":                          {catalog.CodeDriverRefused, "netCDF, which is refused until it is supported"},
		`{"zarr_format": 2}`:               {catalog.CodeDriverRefused, "Zarr, which is refused until it is supported"},
		"PK\x03\x04......a.zarr/.zgroup":   {catalog.CodeDriverRefused, "Zarr"},
		"\xff\x4f\xff\x51":                 {catalog.CodeDriverRefused, "write it into a JP2"},
		"SQLite format 3\x00":              {catalog.CodeDriverRefused, "GeoPackage"},
		"<VRTDataset rasterXSize=\"1\">":   {catalog.CodeDriverRefused, "VRT"},
		" \n<?xml version=\"1.0\"?>":       {catalog.CodeDriverRefused, "XML"},
		"{\"type\":\"FeatureCollection\"}": {catalog.CodeDriverRefused, "JSON"},
		"SQLite format 3\x00\x10\x00\x02\x02" + strings.Repeat("\x00", 60): {catalog.CodeDriverRefused, "SQLite in WAL mode"},
		"SQLite format 3\x00" + strings.Repeat("\x00", 60):                 {catalog.CodeDriverRefused, "no GeoPackage by its application id: write one (ogr2ogr -f GPKG"},
		"{\"type\": \"Feature\", \"geometry\":null}\n":                     {catalog.CodeDriverRefused, "GeoJSONSeq"},
		"\x1e{}": {catalog.CodeDriverRefused, "FeatureCollection (ogr2ogr -f GeoJSON)"},
		"\x00\x00\x27\x0a" + strings.Repeat("\x00", 96): {catalog.CodeDriverRefused, "a Shapefile, which is several files"},
		"ncols 4\nnrows 6\n":                            {catalog.CodeDriverRefused, "an ASCII grid"},
		"ENVI\nsamples = 4\n":                           {catalog.CodeDriverRefused, "ENVI"},
		"\x03\x7e\x0b\x1e\x00\n'":                       {catalog.CodeNotARaster, "begins with bytes that are no text; write"},
		"\x89HDF\r\n\x1a\n":                             {catalog.CodeDriverRefused, "HDF5"},
		"RIFF\x00\x00\x00\x00WEBPVP8 ":                  {catalog.CodeDriverRefused, "WebP"},
		"II\x2a\x00\x00\x00\x00\x00":                    {catalog.CodeTruncated, "no page"},
	} {
		v, _ := lookBytes([]byte(content), catalog.ProbeRequest{FootprintOptional: true, SparseAllowed: true})
		refused(t, v, want.code, want.say)
	}
}

// Damage within a block is beyond the directory walk; decoding sees it.
func TestDecodeSeesDamage(t *testing.T) {
	s := utm(600, 500)
	s.creation, s.overviews = []string{"TILED=YES", "COMPRESS=DEFLATE"}, true
	content, err := os.ReadFile(s.write(t))
	check(t, err)
	damaged := append([]byte(nil), content...)
	for i := len(content) / 2; i < len(content)/2+2000; i++ {
		damaged[i] = 0
	}
	v, _ := lookBytes(damaged, catalog.ProbeRequest{})
	facts(t, v)
	v, _ = lookBytes(damaged, catalog.ProbeRequest{Decode: true})
	refused(t, v, catalog.CodeTruncated, "damaged")
}

func TestBandsAndTags(t *testing.T) {
	s := utm(16, 16)
	s.bands, s.dtype = 2, godal.Float32
	s.change = func(ds *godal.Dataset) {
		check(t, ds.SetNoData(math.NaN()))
		b := ds.Bands()[1]
		check(t, b.SetScaleOffset(0.1, 273.15))
		check(t, b.SetDescription("temperature"))
		for _, name := range []string{"MINIMUM", "MAXIMUM", "MEAN", "STDDEV"} {
			check(t, b.SetMetadata("STATISTICS_"+name, "1.5"))
		}
		check(t, ds.SetMetadata("CATALOGD_VERSION", "v1"))
		check(t, ds.SetMetadata("LONG", strings.Repeat("x", 100_000)))
		check(t, ds.SetMetadata("ACQUISITION_DATE", "2026-08-04"))
		check(t, ds.SetMetadata("TIFFTAG_DATETIME", "2026:09:01 10:11:12"))
	}
	f := facts(t, lookFile(t, s.write(t), catalog.ProbeRequest{}))
	b := f.Bands[1]
	if *b.NoData != "nan" || *b.Scale != 0.1 || *b.Offset != 273.15 || b.Description != "temperature" || b.DataType != "Float32" || f.Bands[0].Scale != nil || f.Bands[0].Statistics != nil || *b.Statistics != (catalog.Statistics{Minimum: 1.5, Maximum: 1.5, Mean: 1.5, StdDev: 1.5}) {
		t.Errorf("%+v", f.Bands)
	}
	if f.Tags["CATALOGD_VERSION"] != "v1" || f.Tags["LONG"] != "" {
		t.Errorf("%.300v", f.Tags)
	}
	if got := f.Acquired.Start.Format(time.RFC3339) + "/" + f.Acquired.End.Format(time.RFC3339); got != "2026-08-04T00:00:00Z/2026-08-04T23:59:59Z" {
		t.Errorf("acquired %s", got)
	}
}

func TestCRS(t *testing.T) {
	for name, c := range map[string]struct {
		s    spec
		want string
	}{
		"EPSG": {utm(10, 10), "EPSG:32633"},
		"unlike any": {spec{width: 10, height: 10, bands: 1, dtype: godal.Byte, wkt: "+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84", gt: [6]float64{0, 10, 0, 0, 0, -10}},
			"PROJCRS["},
	} {
		f := facts(t, lookFile(t, c.s.write(t), catalog.ProbeRequest{}))
		if !strings.HasPrefix(f.CRS, c.want) {
			t.Errorf("%s: %s", name, f.CRS)
		}
	}
}

// A hundred megabytes are proved complete by their directories alone.
func TestTraffic(t *testing.T) {
	s := utm(10240, 10240)
	s.cog = true
	path := s.write(t)
	content, err := os.ReadFile(path)
	check(t, err)
	v, n := lookBytes(content, catalog.ProbeRequest{})
	f := facts(t, v)
	t.Logf("COG of %d MiB: %d reads, %d KiB", len(content)>>20, n.reads, n.bytes>>10)
	if !f.IsCOG || n.bytes > 1<<20 || n.reads > 8 {
		t.Errorf("COG %v: %d reads of %d bytes in all", f.IsCOG, n.reads, n.bytes)
	}
}

// The rasters that come with the project, if they are here.
func TestSharedRasters(t *testing.T) {
	paths, _ := filepath.Glob("../../../../shared/data/rasters/*.tif")
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			content, err := os.ReadFile(path)
			check(t, err)
			v, n := lookBytes(content, catalog.ProbeRequest{FootprintOptional: true})
			t.Logf("%d bytes: %d reads, %d bytes", len(content), n.reads, n.bytes)
			f := facts(t, v)
			sameAsGDAL(t, path, f)
			facts(t, lookFile(t, path, catalog.ProbeRequest{FootprintOptional: true, Decode: true}))
		})
	}
}

// sameAsGDAL compares facts with gdalinfo -json.
func sameAsGDAL(t *testing.T, path string, f *wire.Facts) {
	t.Helper()
	cmd := exec.Command("gdalinfo", "-json", "-wkt_format", "WKT2_2019", path)
	out, err := cmd.Output()
	check(t, err)
	var info struct {
		DriverShortName  string
		Size             [2]int
		CoordinateSystem struct{ WKT string }
		GCPs             struct {
			CoordinateSystem struct{ WKT string }
		}
		GeoTransform *[6]float64
		Metadata     map[string]json.RawMessage
		Bands        []struct {
			Type, ColorInterpretation, Description, Unit string
			NoDataValue                                  any
			Scale, Offset                                *float64
			Block                                        [2]int
			Overviews                                    []struct{ Size [2]int }
			Mask                                         struct{ Flags []string }
			Metadata                                     map[string]map[string]string
		}
	}
	check(t, json.Unmarshal(regexp.MustCompile(`:\s*nan\b`).ReplaceAll(out, []byte(`:"nan"`)), &info))
	if f.Driver != info.DriverShortName || [2]int{f.Width, f.Height} != info.Size || len(f.Bands) != len(info.Bands) {
		t.Errorf("%s %d×%d, %d bands; gdalinfo %+v", f.Driver, f.Width, f.Height, len(f.Bands), info)
		return
	}
	if (info.GeoTransform == nil) != (f.Transform == [6]float64{}) {
		t.Errorf("transform %v; gdalinfo %v", f.Transform, info.GeoTransform)
	}
	if info.GeoTransform != nil {
		for i, v := range info.GeoTransform {
			if math.Abs(v-f.Transform[i]) > 1e-9*math.Max(1, math.Abs(v)) {
				t.Errorf("transform %v; gdalinfo %v", f.Transform, *info.GeoTransform)
			}
		}
	}
	if info.GeoTransform == nil && info.GCPs.CoordinateSystem.WKT != "" {
		info.CoordinateSystem = info.GCPs.CoordinateSystem
	}
	if f.CRSWKT != "" || info.CoordinateSystem.WKT != "" {
		// Not by their texts: PROJ gives WGS 84 as a datum or as an ensemble, by what its
		// thread did before.
		ours, err := godal.NewSpatialRef(f.CRSWKT)
		check(t, err)
		defer ours.Close()
		theirs, err := godal.NewSpatialRef(info.CoordinateSystem.WKT)
		check(t, err)
		defer theirs.Close()
		if !ours.IsSame(theirs) {
			t.Errorf("WKT %s; gdalinfo %s", f.CRSWKT, info.CoordinateSystem.WKT)
		}
	}
	layout := catalog.Layout{COGReason: f.Layout.COGReason, BlockSize: info.Bands[0].Block}
	var structure map[string]string
	if raw := info.Metadata["IMAGE_STRUCTURE"]; raw != nil {
		check(t, json.Unmarshal(raw, &structure))
	}
	layout.Compression, layout.Interleave = structure["COMPRESSION"], structure["INTERLEAVE"]
	for _, o := range info.Bands[0].Overviews {
		layout.Overviews = append(layout.Overviews, o.Size)
	}
	layout.Mask = reflect.DeepEqual(info.Bands[0].Mask.Flags, []string{"PER_DATASET"})
	if !reflect.DeepEqual(f.Layout, layout) {
		t.Errorf("layout %+v; gdalinfo %+v", f.Layout, layout)
	}
	if f.Driver == catalog.DriverGTiff && f.IsCOG != (f.Layout.COGReason == "") {
		t.Errorf("COG %v, because %q", f.IsCOG, f.Layout.COGReason)
	}
	var id string
	if i := strings.LastIndex(info.CoordinateSystem.WKT, `ID["EPSG",`); i >= 0 {
		id = "EPSG:" + strings.TrimRight(info.CoordinateSystem.WKT[i+len(`ID["EPSG",`):], "]")
	}
	if f.CRS != id {
		t.Errorf("CRS %q; gdalinfo %q", f.CRS, id)
	}
	var tags map[string]string
	if raw := info.Metadata[""]; raw != nil {
		check(t, json.Unmarshal(raw, &tags))
	}
	for k, v := range f.Tags {
		if tags[k] != v {
			t.Errorf("tag %s %q; gdalinfo %q", k, v, tags[k])
		}
	}
	if len(f.Tags) != len(tags) {
		t.Errorf("tags %v; gdalinfo %v", f.Tags, tags)
	}
	for i, b := range f.Bands {
		want := info.Bands[i]
		var nodata, wantNoData float64
		if b.NoData != nil {
			_, _ = fmt.Sscan(*b.NoData, &nodata)
		}
		switch v := want.NoDataValue.(type) {
		case float64:
			wantNoData = v
		case string:
			wantNoData = math.NaN()
		}
		if (b.NoData == nil) != (want.NoDataValue == nil) || !(math.Abs(nodata-wantNoData) <= 1e-9*math.Abs(nodata)) && !(math.IsNaN(nodata) && math.IsNaN(wantNoData)) {
			t.Errorf("band %d: nodata %v; gdalinfo %v", i+1, b.NoData, want.NoDataValue)
		}
		if b.DataType != want.Type || b.ColorInterp != want.ColorInterpretation || b.Description != want.Description || b.Unit != want.Unit {
			t.Errorf("band %d: %+v; gdalinfo %+v", i+1, b, want)
		}
		var statistics *catalog.Statistics
		if m := want.Metadata[""]; m["STATISTICS_MEAN"] != "" {
			statistics = &catalog.Statistics{}
			for name, to := range map[string]*float64{"MINIMUM": &statistics.Minimum, "MAXIMUM": &statistics.Maximum, "MEAN": &statistics.Mean, "STDDEV": &statistics.StdDev} {
				_, err := fmt.Sscan(m["STATISTICS_"+name], to)
				check(t, err)
			}
		}
		if !reflect.DeepEqual(b.Statistics, statistics) {
			t.Errorf("band %d: statistics %+v; gdalinfo %+v", i+1, b.Statistics, statistics)
		}
		if !reflect.DeepEqual(b.Scale, want.Scale) && (b.Scale == nil || want.Scale == nil || *b.Scale != *want.Scale) && want.Scale != nil && *want.Scale != 1 {
			t.Errorf("band %d: scale %v; gdalinfo %v", i+1, b.Scale, want.Scale)
		}
	}
}

func BenchmarkLook(b *testing.B) {
	s := utm(512, 512)
	s.cog = true
	content, err := os.ReadFile(s.write(b))
	check(b, err)
	for b.Loop() {
		if v, _ := lookBytes(content, catalog.ProbeRequest{}); v.Facts == nil {
			b.Fatal(v.Refusal)
		}
	}
}
