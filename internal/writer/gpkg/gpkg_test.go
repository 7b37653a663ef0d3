package gpkg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/proof/prooftest"
)

func prove(r io.ReaderAt, size int64) error { _, err := Prove(r, size); return err }

func proveBytes(content []byte) (Report, error) {
	return Prove(bytes.NewReader(content), int64(len(content)))
}

func TestWhole(t *testing.T) {
	for name, want := range map[string]Report{"vector.gpkg": {Vectors: 1}, "raster.gpkg": {Rasters: 1, Tiles: 6}} {
		content := prooftest.Fixture(t, name)
		if report, err := proveBytes(content); err != nil || report != want {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		prooftest.Cut(t, content, prove)
	}
}

// A page that was never written, whichever it is, is seen, unless nothing is read from
// it: a free page, or the end of a long row.
func TestZeroedPages(t *testing.T) {
	for _, name := range []string{"vector.gpkg", "raster.gpkg"} {
		content := prooftest.Fixture(t, name)
		const page = 4096
		unseen := 0
		for at := 0; at < len(content); at += page {
			damaged := bytes.Clone(content)
			clear(damaged[at : at+page])
			if _, err := proveBytes(damaged); err == nil {
				unseen++
			}
		}
		t.Logf("%s: %d of %d pages", name, unseen, len(content)/page)
		if unseen*4 > len(content)/page*3 {
			t.Errorf("%s: %d of %d zeroed pages were not seen", name, unseen, len(content)/page)
		}
	}
}

func TestHeader(t *testing.T) {
	content := prooftest.Fixture(t, "vector.gpkg")
	for name, c := range map[string]struct {
		change func(h []byte)
		say    string
	}{
		"WAL":            {func(h []byte) { h[18], h[19] = 2, 2 }, "WAL"},
		"change counter": {func(h []byte) { h[27]++ }, "change counter"},
		"page size":      {func(h []byte) { h[16], h[17] = 0, 3 }, "pages have 3 bytes"},
		"pages":          {func(h []byte) { h[31]++ }, "pages of 4096 bytes are"},
		"free pages":     {func(h []byte) { h[39]++ }, "free"},
		"no GeoPackage":  {func(h []byte) { h[68] = 0 }, "GeoPackage"},
		"UTF-16":         {func(h []byte) { h[59] = 2 }, "UTF-8"},
	} {
		damaged := bytes.Clone(content)
		c.change(damaged)
		if _, err := proveBytes(damaged); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	damaged := bytes.Clone(content)
	damaged[19] = 2
	var depends *proof.DependentError
	if _, err := proveBytes(damaged); !errors.As(err, &depends) {
		t.Errorf("%v", err)
	}
}

// A feature fewer than its writer counted is seen, and so is a tile.
func TestCounts(t *testing.T) {
	content := prooftest.Fixture(t, "vector.gpkg")
	i := bytes.Index(content, []byte("t0\x00\xa0")) // gpkg_ogr_contents: t0, 160
	if i < 0 {
		t.Fatal("the row is not found")
	}
	content[i+3]++
	if _, err := proveBytes(content); err == nil || !strings.Contains(err.Error(), "its writer counted 161") {
		t.Errorf("%v", err)
	}
}

// What is listed as contents, or says what is, must be a table: a view may never end.
func TestViews(t *testing.T) {
	for name, c := range map[string]struct{ file, old, new, say string }{
		"view":           {"vector.gpkg", `CREATE TABLE "t0" `, `CREATE VIEW "t0"  `, `"t0" is a view or a virtual table`},
		"virtual table":  {"vector.gpkg", `CREATE TABLE "t0" ( `, `CREATE VIRTUAL TABLE`, `"t0" is a view or a virtual table`},
		"view of tiles":  {"raster.gpkg", `CREATE TABLE "raster" `, `CREATE VIEW "raster"  `, `"raster" is a view or a virtual table`},
		"no such table":  {"vector.gpkg", "tablet0t0", "tablet1t1", `"t0", and there is no such table`},
		"gpkg_contents":  {"vector.gpkg", "CREATE TABLE gpkg_contents ", "CREATE VIEW gpkg_contents  ", `"gpkg_contents" is a view`},
		"gpkg_spatial_…": {"vector.gpkg", "CREATE TABLE gpkg_spatial_ref_sys ", "CREATE VIEW gpkg_spatial_ref_sys  ", `"gpkg_spatial_ref_sys" is a view`},
	} {
		content := prooftest.Fixture(t, c.file)
		if !bytes.Contains(content, []byte(c.old)) {
			t.Errorf("%s: the fixture has no %q", name, c.old)
		}
		damaged := bytes.Replace(content, []byte(c.old), []byte(c.new), 1)
		var malformed *proof.MalformedError
		if _, err := proveBytes(damaged); !errors.As(err, &malformed) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// GDAL takes the definition of a reference system that is no WKT for the name of a file.
func TestDefinitions(t *testing.T) {
	content := prooftest.Fixture(t, "vector.gpkg")
	for _, text := range []string{"/vsistdin", "/../a.xml", "EPSG:4326", "+proj=utm", "GEOGCS///", "x[/../a]x"} {
		damaged := bytes.Replace(content, []byte("undefined"), []byte(text), 1)
		var malformed *proof.MalformedError
		if _, err := proveBytes(damaged); !errors.As(err, &malformed) || !strings.Contains(err.Error(), "and not WKT") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"Undefined", "         ", "GEODCRS[]", "projcrs (", "\x00/etc/abc"} {
		changed := bytes.Replace(content, []byte("undefined"), []byte(text), 1)
		if _, err := proveBytes(changed); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestColumns(t *testing.T) {
	for sql, want := range map[string][]string{
		`CREATE TABLE "a(b" (id INTEGER PRIMARY KEY, "Tile,Row" TEXT DEFAULT ')', [x] DECIMAL(1,2), CHECK (id IN (1,2)))`: nil,
		"CREATE TABLE t (id INTEGER, `B c` text DEFAULT (strftime('%Y,%m','now')), [d]blob)":                              {"id", "b c", "d"},
		"CREATE VIEW v AS SELECT 1": nil,
	} {
		if got := columns(sql); want != nil && !slices.Equal(got, want) {
			t.Errorf("%s: %q", sql, got)
		}
	}
}

func TestNotSQLite(t *testing.T) {
	for _, s := range []string{"", "SQLite format 3\x00", strings.Repeat("x", 200)} {
		if err := prove(strings.NewReader(s), int64(len(s))); !errors.Is(err, ErrNotSQLite) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// Whatever is in a page, the walk ends, and soon.
func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, name := range []string{"vector.gpkg", "raster.gpkg"} {
		content := prooftest.Fixture(t, name)
		for range 2000 {
			damaged := bytes.Clone(content)
			for range 1 + rng.IntN(5) {
				page := rng.IntN(len(content) / 4096)
				at := page*4096 + rng.IntN(200)
				if rng.IntN(2) == 0 {
					damaged[at] = byte(rng.Uint32())
				} else {
					binary.BigEndian.PutUint32(damaged[at:], rng.Uint32N(64))
				}
			}
			_, _ = proveBytes(damaged)
		}
	}
}

func FuzzProve(f *testing.F) {
	prooftest.Fuzz(f, prove, prooftest.Fixture(f, "vector.gpkg")[:8192])
}
