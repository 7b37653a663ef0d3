package gpkg

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"

	"catalogd/internal/writer/proof"
)

// geometryHead is what a row begins with that is looked at for the head of its geometry.
const geometryHead = 4096

// nothing is the box of no geometry.
var nothing = [4]float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}

// geometries of a table, as their heads tell: not the table's own rows beyond.
type geometries struct {
	name   string // of the column
	column int    // its place in a row; negative if unknown
	some   uint64 // that are neither null nor empty
	box    [4]float64
	// counted, placed: every head told whether it is empty, and where it is.
	counted, placed bool
}

// add the geometry of a row, of which the payload is the beginning.
func (g *geometries) add(payload []byte) {
	v := beginning(payload)
	if g.column < 0 || g.column >= len(v) {
		g.counted, g.placed = false, false
		return
	}
	if v[g.column].null() {
		return
	}
	blob, _ := v[g.column].v.([]byte)
	box, empty, ok, placed := head(blob)
	switch {
	case !ok:
		g.counted, g.placed = false, false
	case empty:
	case !placed:
		g.some++
		g.placed = false
	default:
		g.some++
		g.box = [4]float64{min(g.box[0], box[0]), min(g.box[1], box[1]), max(g.box[2], box[2]), max(g.box[3], box[3])}
	}
}

// head reads a geometry's: its envelope, or the coordinates of a point, which has none.
// Source: GeoPackage 1.3, clause 2.1.3.
func head(blob []byte) (box [4]float64, empty, ok, placed bool) {
	const headBytes = 8
	if len(blob) < headBytes || !bytes.HasPrefix(blob, []byte("GP\x00")) {
		return box, false, false, false
	}
	order := func(flag byte) binary.ByteOrder {
		if flag&1 == 1 {
			return binary.LittleEndian
		}
		return binary.BigEndian
	}
	floats := func(p []byte, o binary.ByteOrder, n int) (v [4]float64, ok bool) {
		if len(p) < 8*n {
			return v, false
		}
		for i := range n {
			v[i] = math.Float64frombits(o.Uint64(p[8*i:]))
		}
		return v, true
	}
	flags, rest := blob[3], blob[headBytes:]
	if flags>>4&1 == 1 {
		return box, true, true, true
	}
	if flags>>1&7 != 0 {
		v, ok := floats(rest, order(flags), 4)
		box = [4]float64{v[0], v[2], v[1], v[3]}
		// An envelope of NaN is that of an empty geometry.
		return box, ok && math.IsNaN(box[0]), ok, ok
	}
	if len(rest) < 5 {
		return box, false, false, false
	}
	// ISO's types are 1, 1001 (Z), 2001 (M), 3001 (ZM); old ones have flags in the high bits.
	if kind := order(rest[0]).Uint32(rest[1:]) & 0xffffff; kind%1000 != 1 {
		return box, false, true, false
	}
	v, ok := floats(rest[5:], order(rest[0]), 2)
	return [4]float64{v[0], v[1], v[0], v[1]}, ok && math.IsNaN(v[0]), ok, ok
}

// An extension of this name is a spatial index, in tables of these names.
const indexExtension = "gpkg_rtree_index"

func indexName(table, column string) string { return "rtree_" + table + "_" + column }

// nodes is the end of the name of the table with an index's nodes.
const nodes = "_node"

// indexes compares each spatial index with its features: SQLite keeps its nodes, the
// node of each feature, and the parent of each node in a table each.
func (c *contents) indexes() error {
	said := map[string]bool{}
	for _, row := range c.rows["gpkg_extensions"] {
		if strings.EqualFold(row["extension_name"].text(), indexExtension) {
			said[indexName(name(row), strings.ToLower(row["column_name"].text()))] = true
		}
	}
	for table, g := range c.geometries {
		index := indexName(table, g.name)
		got, ok := c.count[index+nodes]
		if _, there := c.count[table]; !there || !ok && !said[index] {
			continue
		}
		entries, parents, cells := c.count[index+"_rowid"], c.count[index+"_parent"], c.cells[index+nodes]
		if got == 0 || parents != got-1 || cells != parents+entries {
			return proof.Truncated("the spatial index of table %q has %d nodes, %d parents and %d entries, and its nodes hold %d: a part of it was never written; make it again", table, got, parents, entries, cells)
		}
		if g.counted && entries != g.some {
			return proof.Truncated("the spatial index of table %q has %d entries, and the table %d features with a geometry: make the index again", table, entries, g.some)
		}
	}
	return nil
}
