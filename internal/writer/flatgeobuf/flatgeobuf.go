// Package flatgeobuf proves FlatGeobuf files complete: header, index and features,
// each within the file, end exactly where it does, and there are as many features as
// the header says; and of the index, that each node points to those below it and holds
// their boxes, each of the last to its feature, and that the first has the header's
// extent, which is what readers believe. It decodes no geometry.
//
// A header that says that there are no features proves nothing, and is refused: to the
// format it means that nobody counted them, and GDAL's writer leaves it so until it
// closes a file without an index (SPATIAL_INDEX=NO).
//
// The files are strangers': sizes are bounded. Pure Go; imports package proof.
//
// Source: github.com/flatgeobuf/flatgeobuf, src/fbs/header.fbs and README.md
// (version 3); flatbuffers.dev/internals.
package flatgeobuf

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/proof"
)

// ErrNotFlatGeobuf: the file does not begin like a FlatGeobuf of version 3.
var ErrNotFlatGeobuf = errors.New("no FlatGeobuf header")

// Report is what the walk found.
type Report struct {
	Features uint64
	// Tags are the texts in the header's metadata.
	Tags map[string]string
	// Odd is one of those that say whose the file is (catalog.Mark) that is no text, or
	// stands there twice and differs; "" for none.
	Odd string
}

const (
	magic     = "fgb\x03fgb"
	maxHeader = 10 << 20 // as the reference implementation has it
	nodeBytes = 40
)

// Prove walks the file of size bytes. The error is ErrNotFlatGeobuf, a
// *proof.TruncatedError, a *proof.MalformedError, or what r answered.
func Prove(r io.ReaderAt, size int64) (Report, error) {
	if size < 12 {
		return Report{}, ErrNotFlatGeobuf
	}
	p, err := proof.Read(r, 0, 12)
	if err != nil {
		return Report{}, err
	}
	if string(p[:len(magic)]) != magic {
		return Report{}, ErrNotFlatGeobuf
	}
	length := int64(binary.LittleEndian.Uint32(p[8:]))
	switch {
	case length > maxHeader || length < 8:
		return Report{}, proof.Malformed("the header is %d bytes long", length)
	case length > size-12:
		return Report{}, proof.Truncated("the header should be %d bytes long; the file has %d", length, size)
	}
	if p, err = proof.Read(r, 12, length); err != nil {
		return Report{}, err
	}
	header, err := root(p)
	if err != nil {
		return Report{}, err
	}
	const fieldCount, fieldNodeSize, fieldMetadata = 8, 9, 13
	report := Report{Features: header.uint(fieldCount, 8, 0)}
	report.Tags, report.Odd = tags(header.text(fieldMetadata))
	if report.Features == 0 {
		return Report{}, proof.Truncated("the header does not say how many features there are, so that nothing shows whether all are there: the writer was killed or has not closed the file, or there are none, which this format cannot say")
	}
	at := 12 + length
	nodeSize := header.uint(fieldNodeSize, 2, 16)
	index, ok := indexSize(report.Features, nodeSize)
	switch {
	case !ok:
		return Report{}, proof.Malformed("the index has nodes of one entry")
	case index > uint64(size-at):
		return Report{}, proof.Truncated("the index of %d features should be %d bytes long at %d; the file has %d", report.Features, index, at, size)
	}
	var leaves *nodes
	if nodeSize > 0 {
		extent, bounded := header.extent()
		if leaves, err = tree(r, at, report.Features, nodeSize, extent, bounded); err != nil {
			return Report{}, err
		}
	}
	at += int64(index)
	return report, features(r, at, size, report.Features, leaves)
}

// nodes are read one after the other.
type nodes struct {
	r    io.ReaderAt
	at   int64
	left uint64
	buf  []byte
}

// node of the index: its box, and what it points to: the number of the first node below
// it, or where its feature is, from the first feature on.
type node struct {
	box    [4]float64 // west, south, east, north
	target uint64
}

func (n *nodes) next() (node, error) {
	var out node
	if len(n.buf) == 0 {
		const most = 1024
		count := min(n.left, most)
		p, err := proof.Read(n.r, n.at, int64(count*nodeBytes))
		if err != nil {
			return out, err
		}
		n.buf, n.at, n.left = p, n.at+int64(len(p)), n.left-count
	}
	for i := range out.box {
		out.box[i] = math.Float64frombits(binary.LittleEndian.Uint64(n.buf[8*i:]))
	}
	out.target = binary.LittleEndian.Uint64(n.buf[32:])
	n.buf = n.buf[nodeBytes:]
	return out, nil
}

// holds tells whether a box lies within another; one that is none does.
func holds(outer, inner [4]float64) bool {
	return !(inner[0] < outer[0] || inner[1] < outer[1] || inner[2] > outer[2] || inner[3] > outer[3])
}

// tree checks the index at an offset, level by level, and gives its leaves.
func tree(r io.ReaderAt, at int64, features, nodeSize uint64, extent [4]float64, bounded bool) (*nodes, error) {
	counts := levels(features, nodeSize) // leaves first
	level := func(first, count uint64) *nodes {
		return &nodes{r: r, at: at + int64(first*nodeBytes), left: count}
	}
	first := uint64(0) // node of a level, of which the root's is the first in the file
	for i := len(counts) - 1; i > 0; i-- {
		parents, children := level(first, counts[i]), level(first+counts[i], counts[i-1])
		below := first + counts[i]
		for n := range counts[i] {
			parent, err := parents.next()
			if err != nil {
				return nil, err
			}
			if parent.target != below+n*nodeSize {
				return nil, proof.Malformed("node %d of the index should point to node %d, and points to %d: it was never written, or written over", first+n, below+n*nodeSize, parent.target)
			}
			if first == 0 && n == 0 && bounded && !(near(extent, parent.box) && near(parent.box, extent)) {
				return nil, proof.Malformed("the header says that the features lie in %v, and the index in %v", extent, parent.box)
			}
			for range min(nodeSize, counts[i-1]-n*nodeSize) {
				child, err := children.next()
				if err != nil {
					return nil, err
				}
				if !holds(parent.box, child.box) {
					return nil, proof.Malformed("node %d of the index has not the box of one below it: it was never written, or written over", first+n)
				}
			}
		}
		first += counts[i]
	}
	return level(first, features), nil
}

// near tells whether a box lies within another, give or take a rounding.
func near(outer, inner [4]float64) bool {
	for i := range outer {
		slack := 1e-9 * max(math.Abs(outer[i]), math.Abs(inner[i]))
		outer[i] += map[bool]float64{true: -slack, false: slack}[i < 2]
	}
	return holds(outer, inner)
}

// features walks from one length to the next.
func features(r io.ReaderAt, at, size int64, want uint64, leaves *nodes) error {
	const least = 8 // a root offset and an empty table
	start := at
	for n := uint64(0); n < want; n++ {
		if size-at < 4 {
			return proof.Truncated("%d of %d features are there", n, want)
		}
		p, err := proof.Read(r, at, 4)
		if err != nil {
			return err
		}
		length := int64(binary.LittleEndian.Uint32(p))
		switch {
		case length < least:
			return proof.Truncated("feature %d of %d was never written: it has %d bytes", n+1, want, length)
		case length > size-at-4:
			return proof.Truncated("feature %d of %d should be %d bytes long at %d; the file has %d", n+1, want, length, at, size)
		}
		if leaves != nil {
			leaf, err := leaves.next()
			if err != nil {
				return err
			}
			if leaf.target != uint64(at-start) {
				return proof.Malformed("the index has feature %d at %d, and it is at %d: the index was never written, or written over", n+1, leaf.target, at-start)
			}
		}
		at += 4 + length
	}
	if at != size {
		return proof.Malformed("%d bytes follow the last feature", size-at)
	}
	return nil
}

// indexSize of the packed Hilbert R-tree, bytes.
func indexSize(features, nodeSize uint64) (uint64, bool) {
	if nodeSize == 0 {
		return 0, true
	}
	if nodeSize == 1 || features > 1<<48 {
		return 1 << 62, nodeSize != 1
	}
	nodes := uint64(0)
	for _, n := range levels(features, nodeSize) {
		nodes += n
	}
	return nodes * nodeBytes, true
}

// levels are numbers of nodes, from the leaves to the root, which even a single feature
// has above it.
func levels(features, nodeSize uint64) []uint64 {
	counts := []uint64{features}
	for n := features; n > 1 || len(counts) == 1; {
		n = (n + nodeSize - 1) / nodeSize
		counts = append(counts, n)
	}
	return counts
}

// tags are the members of a JSON object that are texts, and odd is as Report.Odd.
func tags(metadata string) (out map[string]string, odd string) {
	in := json.NewDecoder(strings.NewReader(metadata))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, ""
	}
	out = make(map[string]string)
	for in.More() {
		key, err := in.Token()
		var value any
		if err != nil || in.Decode(&value) != nil {
			return nil, ""
		}
		name, _ := key.(string)
		text, isText := value.(string)
		if mark, ok := catalog.Mark(name); ok {
			if before, twice := out[mark]; !isText || twice && text != before {
				odd = mark
			}
			name = mark
		}
		if isText {
			out[name] = text
		}
	}
	if _, err := in.Token(); err != nil {
		return nil, ""
	}
	return out, odd
}

// table of a flatbuffer: buf[at:], with its vtable.
type table struct {
	buf    []byte
	at     uint64
	vtable []byte
}

var errTable = proof.Malformed("the header is no flatbuffer")

func root(buf []byte) (table, error) {
	at := uint64(binary.LittleEndian.Uint32(buf))
	if at+4 > uint64(len(buf)) {
		return table{}, errTable
	}
	v := int64(at) - int64(int32(binary.LittleEndian.Uint32(buf[at:])))
	if v < 0 || v+4 > int64(len(buf)) {
		return table{}, errTable
	}
	n := int64(binary.LittleEndian.Uint16(buf[v:]))
	if n < 4 || n > int64(len(buf))-v {
		return table{}, errTable
	}
	return table{buf, at, buf[v : v+n]}, nil
}

// field is where field i is; false if it is absent or would not fit.
func (t table) field(i int, size uint64) (uint64, bool) {
	slot := 4 + 2*i
	if slot+2 > len(t.vtable) {
		return 0, false
	}
	offset := uint64(binary.LittleEndian.Uint16(t.vtable[slot:]))
	return t.at + offset, offset != 0 && t.at+offset+size <= uint64(len(t.buf))
}

func (t table) uint(i int, size uint64, otherwise uint64) uint64 {
	at, ok := t.field(i, size)
	switch {
	case !ok:
		return otherwise
	case size == 2:
		return uint64(binary.LittleEndian.Uint16(t.buf[at:]))
	default:
		return binary.LittleEndian.Uint64(t.buf[at:])
	}
}

// extent is the header's envelope, if it has one.
func (t table) extent() (box [4]float64, ok bool) {
	const fieldEnvelope = 1
	at, ok := t.field(fieldEnvelope, 4)
	if !ok {
		return box, false
	}
	at += uint64(binary.LittleEndian.Uint32(t.buf[at:]))
	if at+4 > uint64(len(t.buf)) || binary.LittleEndian.Uint32(t.buf[at:]) < 4 || at+36 > uint64(len(t.buf)) {
		return box, false
	}
	for i := range box {
		box[i] = math.Float64frombits(binary.LittleEndian.Uint64(t.buf[at+4+8*uint64(i):]))
	}
	return box, true
}

func (t table) text(i int) string {
	at, ok := t.field(i, 4)
	if !ok {
		return ""
	}
	at += uint64(binary.LittleEndian.Uint32(t.buf[at:]))
	if at+4 > uint64(len(t.buf)) {
		return ""
	}
	n := uint64(binary.LittleEndian.Uint32(t.buf[at:]))
	if n > uint64(len(t.buf))-at-4 {
		return ""
	}
	return string(t.buf[at+4 : at+4+n])
}
