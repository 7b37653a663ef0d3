// Package gpkg proves GeoPackages complete. A GeoPackage is an SQLite database, and of
// that it shows: no part is in another file (no WAL mode); the header was kept with the
// last change; pages times page size is the size of the file; every page has exactly one
// use: a part of one b-tree, of one row's overflow, or free; and all cells lie within
// their pages.
//
// Of what is in it: what gpkg_contents lists are tables, not views or virtual tables,
// which could run for ever; reference systems are defined by WKT, since GDAL takes
// other text for a file's name; the number of features of each table is the one that its writer
// wrote down last (GDAL's gpkg_ogr_contents), and each tile of a raster's extent is
// there, or of an overview all or none; a spatial index has as many entries as there are
// features with a geometry, in nodes that are all there. The extent of features is found
// from their geometries' heads, since the one in gpkg_contents is only what a writer said.
//
// What it does not prove: that a writer did not stop between two of its transactions,
// each of which leaves a whole database, where it wrote nothing down. The bytes of
// tiles and geometries are not decoded.
//
// The files are strangers': every page is looked at once, rows are bounded. Pure Go;
// imports package proof.
//
// Source: sqlite.org/fileformat2.html; OGC GeoPackage 1.3 (12-128r17).
package gpkg

import (
	"encoding/binary"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"catalogd/internal/writer/proof"
)

// Report is what the walk found.
type Report struct {
	// Rasters and Vectors are numbers of tables; those without geometries count too.
	Rasters, Vectors int
	// Tiles that the rasters' extents call for, and those of them that are absent.
	Tiles, Missing uint64
	// Extents of the tables whose geometries all say where they are: west, south, east,
	// north; infinite where there is none.
	Extents map[string][4]float64
}

// Application ids of GeoPackages: "GPKG", "GP10", "GP11".
var appIDs = map[uint32]bool{0x47504b47: true, 0x47503130: true, 0x47503131: true}

// wanted tables are kept whole, up to so many rows each.
var wanted = map[string]int{
	"gpkg_contents": maxContents, "gpkg_ogr_contents": maxContents, "gpkg_tile_matrix": maxMatrices, "gpkg_tile_matrix_set": maxContents,
	"gpkg_geometry_columns": maxContents, "gpkg_extensions": maxMatrices,
}

const (
	maxContents = 1000
	maxMatrices = 32_000
)

// systems is the table of reference systems; definitions begins the names of its columns
// with WKT (also definition_12_063, of an extension).
const (
	systems     = "gpkg_spatial_ref_sys"
	definitions = "definition"
)

// wkt is how GDAL knows WKT, versions 1 and 2, from the name of a file.
var wkt = regexp.MustCompile(`(?i)^\s*(?:GEOGCS|GEOCCS|PROJCS|COMPD_CS|VERT_CS|LOCAL_CS|FITTED_CS|GEODCRS|GEODETICCRS|GEOGCRS|GEOGRAPHICCRS|` +
	`PROJCRS|PROJECTEDCRS|VERTCRS|VERTICALCRS|ENGCRS|ENGINEERINGCRS|IMAGECRS|COMPOUNDCRS|BOUNDCRS|TIMECRS|PARAMETRICCRS|DERIVEDPROJCRS|` +
	`COORDINATEMETADATA)\s*[\[(]`)

// contents of a GeoPackage: the wanted tables' rows, all tables' numbers of rows, where
// the tiles of tables with tiles are, the geometries of tables of features, and the
// numbers of cells in the nodes of spatial indexes. Names are in lower case.
type contents struct {
	rows       map[string][]map[string]value
	count      map[string]uint64
	tiles      map[string]map[int64]*level
	geometries map[string]*geometries
	trees      map[string]bool // tables of nodes
	cells      map[string]uint64
}

// level is a tile matrix: its size, what of it the extent covers, and the tiles there.
type level struct {
	first, last [2]int64 // column and row, of what is covered
	want, got   uint64
}

// Prove walks the file of size bytes. The error is ErrNotSQLite, a
// *proof.TruncatedError, a *proof.MalformedError, a *proof.DependentError, or what r
// answered. Missing tiles are no error: see Report.
func Prove(r io.ReaderAt, size int64) (Report, error) {
	d, err := open(r, size)
	if err != nil {
		return Report{}, err
	}
	if !appIDs[d.appID] {
		return Report{}, proof.Malformed("the SQLite database does not say that it is a GeoPackage (application id %#x)", d.appID)
	}
	schema, err := d.schema()
	if err != nil {
		return Report{}, err
	}
	c := contents{rows: map[string][]map[string]value{}, count: map[string]uint64{}, tiles: map[string]map[int64]*level{},
		geometries: map[string]*geometries{}, trees: map[string]bool{}, cells: map[string]uint64{}}
	// The wanted tables first: they say which others hold tiles.
	var others []object
	for _, o := range schema {
		switch {
		case !o.table() && o.kind != "index" && o.kind != "trigger" && strings.HasPrefix(strings.ToLower(o.name), "gpkg_"):
			return Report{}, proof.Malformed("%q is a view or a virtual table", o.name)
		case o.root == 0: // a view, a trigger, a virtual table
		case o.kind == "table" && wanted[strings.ToLower(o.name)] > 0:
			err = c.walk(d, o)
		default:
			others = append(others, o)
		}
		if err != nil {
			return Report{}, err
		}
	}
	if err := c.listed(schema); err != nil {
		return Report{}, err
	}
	if err := c.matrices(); err != nil {
		return Report{}, err
	}
	if err := c.columns(); err != nil {
		return Report{}, err
	}
	for _, o := range others {
		if err := c.walk(d, o); err != nil {
			return Report{}, err
		}
	}
	if err := d.allUsed(); err != nil {
		return Report{}, err
	}
	return c.report()
}

// listed refuses contents that are no tables.
func (c *contents) listed(schema []object) error {
	tables := map[string]bool{}
	for _, o := range schema {
		if o.kind != "index" && o.kind != "trigger" {
			tables[strings.ToLower(o.name)] = o.table()
		}
	}
	for _, content := range c.rows["gpkg_contents"] {
		name := content["table_name"].text()
		switch table, ok := tables[strings.ToLower(name)]; {
		case !ok:
			return proof.Malformed("gpkg_contents lists %q, and there is no such table", name)
		case !table:
			return proof.Malformed("%q is a view or a virtual table, whose query might never end: write its rows into a table (ogr2ogr -sql)", name)
		}
	}
	return nil
}

// defined refuses a row of reference systems with a definition that is no WKT.
func defined(names []string, payload []byte) error {
	if len(payload) >= maxPayload {
		return proof.Malformed("a reference system has more than %d bytes", maxPayload)
	}
	for i, v := range record(payload) {
		if i >= len(names) || !strings.HasPrefix(names[i], definitions) {
			continue
		}
		if text := strings.TrimSpace(v.text()); text != "" && !strings.EqualFold(text, "undefined") && !wkt.MatchString(text) {
			return proof.Malformed("the definition of a reference system in %s is %.60q, and not WKT", systems, text)
		}
	}
	return nil
}

// walk looks at one table or index.
func (c *contents) walk(d *database, o object) error {
	if o.kind != "table" {
		_, err := d.tree(o.root, 0, 0, nil)
		return err
	}
	name, names := strings.ToLower(o.name), columns(o.sql)
	var row func(payload []byte) error
	var need int64
	switch levels := c.tiles[name]; {
	case wanted[name] > 0:
		need, row = maxPayload, func(payload []byte) error { return c.keep(name, names, payload) }
	case name == systems:
		need, row = maxPayload, func(payload []byte) error { return defined(names, payload) }
	case levels != nil:
		z, x, y := slices.Index(names, "zoom_level"), slices.Index(names, "tile_column"), slices.Index(names, "tile_row")
		if min(z, x, y) < 0 {
			return proof.Malformed("table %q holds no tiles", o.name)
		}
		// The numbers come before the tile, and so lie in the row's own page.
		row = func(payload []byte) error {
			v := record(payload)
			if len(v) <= max(z, x, y) {
				return proof.Malformed("table %q has a row that does not say which tile it is", o.name)
			}
			if l := levels[v[z].integer()]; l != nil && l.covers(v[x].integer(), v[y].integer()) {
				l.got++
			}
			return nil
		}
	case c.geometries[name] != nil:
		g := c.geometries[name]
		g.column = slices.Index(names, g.name)
		need, row = geometryHead, func(payload []byte) error { g.add(payload); return nil }
	case c.trees[name]:
		need, row = maxPayload, func(payload []byte) error {
			v := record(payload)
			if len(v) < 2 {
				return proof.Malformed("table %q has a row that is no node", o.name)
			}
			// SQLite, rtree.c: depth, number of cells, cells.
			if node, _ := v[1].v.([]byte); len(node) >= 4 {
				c.cells[name] += uint64(binary.BigEndian.Uint16(node[2:]))
			}
			return nil
		}
	}
	n, err := d.tree(o.root, 0, need, row)
	c.count[name] = n
	return err
}

// keep a row of a wanted table.
func (c *contents) keep(name string, names []string, payload []byte) error {
	if len(c.rows[name]) == wanted[name] {
		return proof.Malformed("table %s has more than %d rows", name, wanted[name])
	}
	row := map[string]value{}
	for i, v := range record(payload) {
		if i < len(names) {
			row[names[i]] = v
		}
	}
	c.rows[name] = append(c.rows[name], row)
	return nil
}

func (l *level) covers(column, row int64) bool {
	return column >= l.first[0] && column <= l.last[0] && row >= l.first[1] && row <= l.last[1]
}

// name is a table's name in a row of a wanted table.
func name(row map[string]value) string { return strings.ToLower(row["table_name"].text()) }

// byName makes an index of a wanted table's rows, each of which is of another table.
func (c *contents) byName(table string) (map[string]map[string]value, error) {
	out := map[string]map[string]value{}
	for _, row := range c.rows[table] {
		if out[name(row)] != nil {
			return nil, proof.Malformed("%s lists %q twice", table, row["table_name"].text())
		}
		out[name(row)] = row
	}
	return out, nil
}

// matrices finds out which tiles the extents of rasters call for.
func (c *contents) matrices() error {
	listed, err := c.byName("gpkg_contents")
	if err != nil {
		return err
	}
	if _, err := c.byName("gpkg_ogr_contents"); err != nil {
		return err
	}
	sets, err := c.byName("gpkg_tile_matrix_set")
	if err != nil {
		return err
	}
	for name, content := range listed {
		if isRaster(content["data_type"].text()) {
			c.tiles[name] = map[int64]*level{}
		}
	}
	for _, matrix := range c.rows["gpkg_tile_matrix"] {
		levels, set, zoom := c.tiles[name(matrix)], sets[name(matrix)], matrix["zoom_level"].integer()
		if levels == nil || set == nil {
			continue
		}
		if levels[zoom] != nil {
			return proof.Malformed("gpkg_tile_matrix has zoom level %d of %q twice", zoom, matrix["table_name"].text())
		}
		levels[zoom] = newLevel(listed[name(matrix)], set, matrix)
	}
	return nil
}

// columns finds out which tables hold geometries, and where.
func (c *contents) columns() error {
	columns, err := c.byName("gpkg_geometry_columns")
	for name, row := range columns {
		if c.tiles[name] == nil {
			column := strings.ToLower(row["column_name"].text())
			c.trees[indexName(name, column)+nodes] = true
			c.geometries[name] = &geometries{name: column, box: nothing, counted: true, placed: true}
		}
	}
	return err
}

func newLevel(content, set, matrix map[string]value) *level {
	l := &level{last: [2]int64{matrix["matrix_width"].integer() - 1, matrix["matrix_height"].integer() - 1}}
	width := matrix["tile_width"].float() * matrix["pixel_x_size"].float()
	height := matrix["tile_height"].float() * matrix["pixel_y_size"].float()
	l.narrow(0, (content["min_x"].float()-set["min_x"].float())/width, (content["max_x"].float()-set["min_x"].float())/width)
	l.narrow(1, (set["max_y"].float()-content["max_y"].float())/height, (set["max_y"].float()-content["min_y"].float())/height)
	across, down := max(l.last[0]-l.first[0]+1, 0), max(l.last[1]-l.first[1]+1, 0)
	if across < 1<<31 && down < 1<<31 {
		l.want = uint64(across) * uint64(down)
	} else {
		l.want = math.MaxInt64
	}
	return l
}

// narrow the tiles to those between two edges, in tiles; no number, no edge. An edge
// that is off a tile's by less than a thousandth is the tile's.
func (l *level) narrow(axis int, from, to float64) {
	const slack = 0.001
	if from = math.Floor(from + slack); from > float64(l.first[axis]) {
		l.first[axis] = int64(min(from, math.MaxInt32))
	}
	if to = math.Ceil(to-slack) - 1; to < float64(l.last[axis]) {
		l.last[axis] = int64(max(to, -1))
	}
}

func isRaster(dataType string) bool {
	return dataType == "tiles" || dataType == "2d-gridded-coverage"
}

// report compares what is there with what was written down.
func (c *contents) report() (Report, error) {
	var r Report
	for _, content := range c.rows["gpkg_contents"] {
		name := content["table_name"].text()
		if !isRaster(content["data_type"].text()) {
			r.Vectors++
			continue
		}
		r.Rasters++
		levels := c.tiles[strings.ToLower(name)]
		top := int64(math.MinInt64)
		for zoom := range levels {
			top = max(top, zoom)
		}
		if len(levels) == 0 {
			return r, proof.Truncated("raster %q has no tile matrix yet", name)
		}
		for zoom, l := range levels {
			if zoom == top || l.got > 0 {
				r.Tiles = saturate(r.Tiles, l.want)
				r.Missing = saturate(r.Missing, l.want-min(l.got, l.want))
			}
		}
	}
	if r.Rasters+r.Vectors == 0 {
		return r, proof.Truncated("the GeoPackage has no contents yet")
	}
	for _, counted := range c.rows["gpkg_ogr_contents"] {
		name := counted["table_name"].text()
		got, ok := c.count[strings.ToLower(name)]
		switch want := counted["feature_count"]; {
		case !ok: // a view, or a table of before
		case want.null():
			return r, proof.Truncated("the writer of table %q has not counted its features: it was killed, has not closed the file, or wrote none, which looks the same (leave empty tables out)", name)
		case uint64(want.integer()) != got:
			return r, proof.Truncated("table %q has %d features, and its writer counted %d", name, got, want.integer())
		}
	}
	for _, content := range c.rows["gpkg_contents"] {
		if g := c.geometries[name(content)]; g != nil && g.placed {
			if r.Extents == nil {
				r.Extents = map[string][4]float64{}
			}
			r.Extents[content["table_name"].text()] = g.box
		}
	}
	return r, c.indexes()
}

func saturate(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}
