// Package rastertest makes GeoTIFFs for tests, without GDAL: small, uncompressed,
// one strip a row, always complete unless asked otherwise.
package rastertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// Raster says what to make. Zero values give 16 × 16 pixels of 10 m in UTM 33N.
type Raster struct {
	Width, Height int
	// EPSG code of a projected CRS; -1 for none.
	EPSG int
	// Origin is the upper left corner, Pixel the size of a pixel, units of the CRS; a
	// negative size for no geotransform.
	Origin [2]float64
	Pixel  float64
	// Seed makes the bytes differ.
	Seed byte
	// Tags are GDAL metadata of the default domain.
	Tags map[string]string
	// Missing leaves this many strips out, as a killed writer does: offset 0.
	Missing int
}

// Bytes are the whole file.
func (r Raster) Bytes() []byte {
	if r.Width == 0 {
		r.Width, r.Height = 16, 16
	}
	if r.EPSG == 0 {
		r.EPSG = 32633
	}
	if r.Pixel == 0 {
		r.Pixel = 10
	}
	x, y := r.Origin[0], r.Origin[1]
	if x == 0 && y == 0 {
		x, y = 500_000, 5_800_000
	}
	t := &tiff{}
	offsets, counts := make([]uint32, r.Height), make([]uint32, r.Height)
	t.data.Grow(r.Width*r.Height + 16*r.Height + 1024)
	t.data.WriteString("II*\x00\x00\x00\x00\x00")
	for row := range r.Height {
		if row >= r.Height-r.Missing {
			break
		}
		offsets[row], counts[row] = uint32(t.data.Len()), uint32(r.Width)
		for col := range r.Width {
			t.data.WriteByte(byte(row*7+col*3) + r.Seed)
		}
	}
	t.short(256, uint16(r.Width))
	t.short(257, uint16(r.Height))
	t.short(258, 8)
	t.short(259, 1)
	t.short(262, 1)
	t.long(273, offsets...)
	t.short(277, 1)
	t.short(278, 1)
	t.long(279, counts...)
	if r.Pixel > 0 {
		t.double(33550, r.Pixel, r.Pixel, 0)
		t.double(33922, 0, 0, 0, x, y, 0)
	}
	if r.EPSG > 0 {
		t.short(34735, 1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, uint16(r.EPSG))
	}
	if len(r.Tags) > 0 {
		t.ascii(42112, metadata(r.Tags))
	}
	return t.bytes()
}

func metadata(tags map[string]string) string {
	var b strings.Builder
	b.WriteString("<GDALMetadata>\n")
	for name, value := range tags {
		fmt.Fprintf(&b, "  <Item name=%q>%s</Item>\n", name, strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(value))
	}
	b.WriteString("</GDALMetadata>\n")
	return b.String()
}

// tiff is a file of one page; entries come in ascending order of their tags.
type tiff struct {
	data    bytes.Buffer
	entries bytes.Buffer
	count   uint16
}

func (t *tiff) entry(tag, kind uint16, count int, value []byte) {
	t.count++
	le := binary.LittleEndian
	head := le.AppendUint32(le.AppendUint16(le.AppendUint16(nil, tag), kind), uint32(count))
	if len(value) <= 4 {
		value = append(value, make([]byte, 4-len(value))...)
	} else {
		at := uint32(t.data.Len())
		t.data.Write(value)
		if t.data.Len()%2 == 1 {
			t.data.WriteByte(0)
		}
		value = le.AppendUint32(nil, at)
	}
	t.entries.Write(append(head, value...))
}

func (t *tiff) short(tag uint16, values ...uint16) {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	t.entry(tag, 3, len(values), b)
}

func (t *tiff) long(tag uint16, values ...uint32) {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	t.entry(tag, 4, len(values), b)
}

func (t *tiff) double(tag uint16, values ...float64) {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	t.entry(tag, 12, len(values), b)
}

func (t *tiff) ascii(tag uint16, text string) {
	t.entry(tag, 2, len(text)+1, append([]byte(text), 0))
}

func (t *tiff) bytes() []byte {
	if t.data.Len()%2 == 1 {
		t.data.WriteByte(0)
	}
	le := binary.LittleEndian
	at := uint32(t.data.Len())
	out := append([]byte(nil), t.data.Bytes()...)
	out = le.AppendUint16(out, t.count)
	out = append(out, t.entries.Bytes()...)
	out = le.AppendUint32(out, 0)
	le.PutUint32(out[4:], at)
	return out
}
