// Package hostile makes files that attack whatever opens them: valid files that are
// damaged, bombs, enormous sizes, loops, references to other files and addresses. The same
// seed gives the same files. It is for tests, and imports the standard library only.
package hostile

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// File is one of a corpus: number Index of those of its seed.
type File struct {
	Index int
	Kind  string
	// Name is what a task might call it.
	Name string
	Size int64
	io.ReaderAt
}

// Valid is a file by the hand of GDAL.
type Valid struct {
	Name    string
	Content []byte
}

//go:embed valid.py
var script string

// MakeValid has GDAL in Python write one file of each format and kind into dir, an empty
// directory, and gives them in the order of their names.
func MakeValid(ctx context.Context, dir string) ([]Valid, error) {
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", script, dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make valid files: %w\n%s", err, out)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Valid
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, Valid{entry.Name(), content})
	}
	return all, nil
}

// Maker makes the files of one seed.
type Maker struct {
	seed  uint64
	valid []Valid
	// of valid
	whole, tiffs, bombs, evil []Valid
}

// NewMaker makes files out of those that MakeValid gave.
func NewMaker(seed uint64, valid []Valid) *Maker {
	m := &Maker{seed: seed, valid: valid}
	for _, v := range valid {
		switch {
		case strings.HasPrefix(v.Name, "bomb"):
			m.bombs = append(m.bombs, v)
		case strings.Contains(v.Name, ".evil."):
			m.evil = append(m.evil, v)
		default:
			m.whole = append(m.whole, v)
			if strings.HasSuffix(v.Name, ".tif") {
				m.tiffs = append(m.tiffs, v)
			}
		}
	}
	return m
}

// kinds take turns, so that as many files as there are kinds hold one of each.
var kinds = []struct {
	name string
	make func(*Maker, *rand.Rand) (name string, content []byte)
}{
	{"flipped bits", (*Maker).flip},
	{"cut off", (*Maker).truncate},
	{"spliced", (*Maker).splice},
	{"extreme number", (*Maker).extreme},
	{"hole", (*Maker).hole},
	{"tag value", (*Maker).entry},
	{"polyglot", (*Maker).polyglot},
	{"reference", (*Maker).reference},
	{"text", (*Maker).text},
	{"noise", (*Maker).noise},
	{"hostile GeoPackage", (*Maker).evilFile},
	{"damaged GeoPackage", (*Maker).evilMutated},
	{"bomb", (*Maker).bomb},
	{"deflate bomb", (*Maker).deflateBomb},
	{"one block, many times", (*Maker).amplified},
	{"enormous", (*Maker).enormous},
	{"directory loop", (*Maker).loop},
	{"directory chain", (*Maker).chain},
	{"millions of blocks", (*Maker).millions},
	{"GeoKeys", (*Maker).geoKeys},
	{"CRS with a path", (*Maker).crsPath},
	{"NaN transform", (*Maker).transform},
	{"paths in tags", (*Maker).paths},
}

// Kinds is how many kinds of file there are.
func Kinds() int { return len(kinds) }

// File makes number i.
func (m *Maker) File(i int) File {
	rng := rand.New(rand.NewPCG(m.seed, uint64(i)))
	kind := kinds[i%len(kinds)]
	name, content := kind.make(m, rng)
	return File{Index: i, Kind: kind.name, Name: name, Size: int64(len(content)), ReaderAt: bytes.NewReader(content)}
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// any is a copy of a valid file.
func (m *Maker) any(rng *rand.Rand) (string, []byte) {
	v := pick(rng, m.whole)
	return v.Name, bytes.Clone(v.Content)
}

// place is an offset into content, as often as not near its start, where most formats
// keep what says how to read the rest.
func place(rng *rand.Rand, content []byte) int {
	if rng.IntN(2) == 0 {
		return rng.IntN(min(len(content), 1200))
	}
	return rng.IntN(len(content))
}

func (m *Maker) flip(rng *rand.Rand) (string, []byte) {
	name, content := m.any(rng)
	for range 1 + rng.IntN(12) {
		content[place(rng, content)] ^= 1 << rng.IntN(8)
	}
	return name, content
}

func (m *Maker) truncate(rng *rand.Rand) (string, []byte) {
	name, content := m.any(rng)
	return name, content[:rng.IntN(len(content))]
}

// splice puts a piece of one file into another, or over a part of it.
func (m *Maker) splice(rng *rand.Rand) (string, []byte) {
	name, content := m.any(rng)
	_, other := m.any(rng)
	from := place(rng, other)
	piece := other[from : from+rng.IntN(min(4096, len(other)-from))+1]
	at := place(rng, content)
	rest := content[at:]
	if rng.IntN(2) == 0 {
		rest = rest[min(len(rest), len(piece)):]
	}
	return name, bytes.Join([][]byte{content[:at], piece, rest}, nil)
}

// extreme overwrites numbers, wherever they may be, with those that overflow.
func (m *Maker) extreme(rng *rand.Rand) (string, []byte) {
	name, content := m.any(rng)
	for range 1 + rng.IntN(4) {
		width := 1 << rng.IntN(4)
		at := place(rng, content) &^ (min(width, 2) - 1)
		copy(content[at:], number(rng, width, len(content)))
	}
	return name, content
}

// number is an extreme one of so many bytes, in either order.
func number(rng *rand.Rand, width, size int) []byte {
	v := pick(rng, []uint64{0, 1, 1<<64 - 1, 1<<63 - 1, 1 << 63, 1<<32 - 1, 1<<31 - 1, 1 << 31, 1<<16 - 1, 1<<15 - 1, 1 << 15, uint64(size), uint64(size) - 1, rng.Uint64()})
	b := make([]byte, width)
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	if rng.IntN(2) == 0 {
		for i := range width / 2 {
			b[i], b[width-1-i] = b[width-1-i], b[i]
		}
	}
	return b
}

func (m *Maker) hole(rng *rand.Rand) (string, []byte) {
	name, content := m.any(rng)
	at := rng.IntN(len(content))
	fill := pick(rng, []byte{0, 0xff, ' ', 'A'})
	for i := range content[at : at+rng.IntN(len(content)-at)] {
		content[at+i] = fill
	}
	return name, content
}

func (m *Maker) noise(rng *rand.Rand) (string, []byte) {
	head := pick(rng, []string{"", "II*\x00\x08\x00\x00\x00", "MM\x00*\x00\x00\x00\x08", "II+\x00\x08\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00",
		"SQLite format 3\x00", "fgb\x03fgb\x00", "\x00\x00\x00\x0cjP  \r\n\x87\n", "\xff\x4f\xff\x51\x00\x2f", `{"type":"FeatureCollection","features":[`, "\x89PNG\r\n\x1a\n"})
	content := make([]byte, pick(rng, []int{0, 1, 7, 100, 5000, 100_000}))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	return "noise" + pick(rng, extensions), append([]byte(head), content...)
}

// polyglot is two files in one.
func (m *Maker) polyglot(rng *rand.Rand) (string, []byte) {
	name, first := m.any(rng)
	_, second := m.any(rng)
	switch rng.IntN(4) {
	case 0:
		second = zipped("raster.tif", second)
	case 1:
		second = []byte("%PDF-1.7\n%%EOF\n<?xml version=\"1.0\"?><VRTDataset/>")
	case 2: // the second's head, and the first where it was
		copy(first, second[:rng.IntN(min(64, len(first), len(second)))])
		return name, first
	}
	return name, append(first, second...)
}

func (m *Maker) evilFile(rng *rand.Rand) (string, []byte) {
	v := pick(rng, m.evil)
	return v.Name, v.Content
}

func (m *Maker) evilMutated(rng *rand.Rand) (string, []byte) {
	var gpkgs []Valid
	for _, v := range append(m.evil, m.whole...) {
		if strings.HasSuffix(v.Name, ".gpkg") {
			gpkgs = append(gpkgs, v)
		}
	}
	damaged := &Maker{whole: gpkgs}
	return pick(rng, []func(*Maker, *rand.Rand) (string, []byte){(*Maker).flip, (*Maker).splice, (*Maker).extreme, (*Maker).hole})(damaged, rng)
}

var extensions = []string{".tif", ".tiff", ".vrt", ".xml", ".gpkg", ".fgb", ".geojson", ".jp2", ".png", ".wms", ".mbtiles", ".nc", ".zip", ""}
