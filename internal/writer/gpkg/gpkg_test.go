package gpkg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/proof/prooftest"
)

func prove(r io.ReaderAt, size int64) error { _, err := Prove(r, size); return err }

func proveBytes(content []byte) (Report, error) {
	return Prove(bytes.NewReader(content), int64(len(content)))
}

func TestWhole(t *testing.T) {
	for name, want := range map[string]Report{"vector.gpkg": {Vectors: 1, Extents: map[string][4]float64{"t0": {500000, 5000000, 501990.5, 5000199.5}}}, "raster.gpkg": {Rasters: 1, Tiles: 6}} {
		content := prooftest.Fixture(t, name)
		if report, err := proveBytes(content); err != nil || !reflect.DeepEqual(report, want) {
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

// nodesOf are the nodes of the fixture's spatial index, as they stand in it.
func nodesOf(t *testing.T, content []byte) (found [][]byte) {
	t.Helper()
	d, err := open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := d.schema()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range schema {
		if o.name != "rtree_t0_geom_node" {
			continue
		}
		if _, err := d.tree(o.root, 0, maxPayload, func(payload []byte) error {
			at := bytes.Index(content, payload)
			found = append(found, content[at+len(payload)-1228:at+len(payload)])
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// A spatial index is held against its features.
func TestSpatialIndex(t *testing.T) {
	const say = "the spatial index of table \"t0\""
	wantRefusal := func(name string, content []byte, say string) {
		t.Helper()
		var truncated *proof.TruncatedError
		if _, err := proveBytes(content); !errors.As(err, &truncated) || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	nodes := len(nodesOf(t, prooftest.Fixture(t, "vector.gpkg")))
	if nodes < 4 {
		t.Fatalf("%d nodes", nodes)
	}
	for i := range nodes {
		content := prooftest.Fixture(t, "vector.gpkg")
		clear(nodesOf(t, content)[i])
		wantRefusal("a node of zeros", content, say)
	}
	for _, table := range []string{"_node", "_rowid", "_parent"} {
		content := prooftest.Fixture(t, "vector.gpkg")
		content = bytes.ReplaceAll(content, []byte("rtree_t0_geom"+table), []byte("rtree_t0_gone"+table))
		wantRefusal("no table "+table, content, say)
	}
	content := prooftest.Fixture(t, "vector.gpkg")
	content[bytes.Index(content, []byte("GP\x00\x03"))+3] |= 0x10 // empty
	wantRefusal("a feature that is empty", content, "the table 159 features with a geometry")
}

func TestHead(t *testing.T) {
	f := func(v ...float64) (p []byte) {
		for _, v := range v {
			p = binary.LittleEndian.AppendUint64(p, math.Float64bits(v))
		}
		return p
	}
	with := func(flags byte, rest ...[]byte) []byte {
		return append([]byte{'G', 'P', 0, flags, 0, 0, 0, 0}, bytes.Join(rest, nil)...)
	}
	nan := math.NaN()
	box := [4]float64{1, 2, 3, 4}
	for name, c := range map[string]struct {
		blob              []byte
		box               [4]float64
		empty, ok, placed bool
	}{
		"envelope":          {with(3, f(1, 3, 2, 4)), box, false, true, true},
		"envelope with z":   {with(5, f(1, 3, 2, 4, 8, 9)), box, false, true, true},
		"envelope of none":  {with(3, f(nan, nan, nan, nan)), box, true, true, true},
		"envelope cut off":  {with(3, f(1, 3)), box, false, false, false},
		"point":             {with(1, []byte{1, 1, 0, 0, 0}, f(1, 2)), [4]float64{1, 2, 1, 2}, false, true, true},
		"point with z":      {with(1, []byte{1, 0xe9, 3, 0, 0}, f(1, 2, 3)), [4]float64{1, 2, 1, 2}, false, true, true},
		"point of nowhere":  {with(1, []byte{1, 1, 0, 0, 0}, f(nan, nan)), box, true, true, true},
		"line, no envelope": {with(1, []byte{1, 2, 0, 0, 0}, f(1, 2)), box, false, true, false},
		"empty":             {with(0x11), box, true, true, true},
		"nothing":           {nil, box, false, false, false},
		"no geometry":       {[]byte("GPX\x01\x00\x00\x00\x00"), box, false, false, false},
	} {
		box, empty, ok, placed := head(c.blob)
		if empty != c.empty || ok != c.ok || placed != c.placed || ok && placed && !empty && box != c.box {
			t.Errorf("%s: %v, %v, %v, %v", name, box, empty, ok, placed)
		}
	}
}

// The tables that say what is there are bounded, list nothing twice, and are put together
// in no more steps than they have rows.
func TestManyContents(t *testing.T) {
	text := func(s string) value { return value{[]byte(s)} }
	c := contents{rows: map[string][]map[string]value{}, tiles: map[string]map[int64]*level{}}
	for i := range maxContents {
		name := text("t" + strconv.Itoa(i))
		c.rows["gpkg_contents"] = append(c.rows["gpkg_contents"], map[string]value{"table_name": name, "data_type": text("tiles")})
		c.rows["gpkg_tile_matrix_set"] = append(c.rows["gpkg_tile_matrix_set"], map[string]value{"table_name": name})
		for z := range int64(maxMatrices / maxContents) {
			c.rows["gpkg_tile_matrix"] = append(c.rows["gpkg_tile_matrix"], map[string]value{"table_name": name, "zoom_level": {z}})
		}
	}
	began := time.Now()
	if err := c.matrices(); err != nil || time.Since(began) > time.Second || len(c.tiles["t999"]) != 32 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	for _, table := range []string{"gpkg_contents", "gpkg_tile_matrix_set", "gpkg_tile_matrix"} {
		if err := c.keep(table, nil, nil); err == nil || !strings.Contains(err.Error(), "has more than") {
			t.Errorf("%s: %v", table, err)
		}
		saved := c.rows[table]
		c.rows[table] = append(slices.Clone(saved), saved[0])
		if err := c.matrices(); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%s: %v", table, err)
		}
		c.rows[table] = saved
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
