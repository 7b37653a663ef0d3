package tiff

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// builder writes small TIFFs: data first, directories after it.
type builder struct {
	order binary.AppendByteOrder
	big   bool
	buf   []byte
	// link is where the offset of the next directory goes.
	link int
}

type entry struct {
	tag, typ uint16
	values   []uint64
}

func newBuilder(order binary.AppendByteOrder, big bool) *builder {
	b := &builder{order: order, big: big}
	b.buf = append(b.buf, map[string]string{"LittleEndian": "II", "BigEndian": "MM"}[order.String()]...)
	if big {
		b.buf = order.AppendUint16(order.AppendUint16(order.AppendUint16(b.buf, 43), 8), 0)
	} else {
		b.buf = order.AppendUint16(b.buf, 42)
	}
	b.link = len(b.buf)
	b.buf = b.word(b.buf, 0)
	return b
}

func (b *builder) word(p []byte, v uint64) []byte {
	if b.big {
		return b.order.AppendUint64(p, v)
	}
	return b.order.AppendUint32(p, uint32(v))
}

func (b *builder) put(v uint64, at int) { copy(b.buf[at:], b.word(nil, v)) }

func (b *builder) data(n int) uint64 {
	at := len(b.buf)
	b.buf = append(b.buf, bytes.Repeat([]byte{0x5a}, n)...)
	return uint64(at)
}

// dir appends a directory and gives its offset.
func (b *builder) dir(chain bool, entries ...entry) uint64 {
	inline := len(b.word(nil, 0))
	var raw [][]byte
	for _, e := range entries {
		var p []byte
		for _, v := range e.values {
			switch typeSize[e.typ] {
			case 2:
				p = b.order.AppendUint16(p, uint16(v))
			case 4:
				p = b.order.AppendUint32(p, uint32(v))
			default:
				p = b.order.AppendUint64(p, v)
			}
		}
		if len(p) > inline {
			at := len(b.buf)
			b.buf = append(b.buf, p...)
			p = b.word(nil, uint64(at))
		}
		raw = append(raw, append(p, make([]byte, inline-len(p))...))
	}
	at := len(b.buf)
	if chain {
		b.put(uint64(at), b.link)
	}
	if b.big {
		b.buf = b.order.AppendUint64(b.buf, uint64(len(entries)))
	} else {
		b.buf = b.order.AppendUint16(b.buf, uint16(len(entries)))
	}
	for i, e := range entries {
		b.buf = b.order.AppendUint16(b.order.AppendUint16(b.buf, e.tag), e.typ)
		b.buf = b.word(b.buf, uint64(len(e.values)))
		b.buf = append(b.buf, raw[i]...)
	}
	if chain {
		b.link = len(b.buf)
	}
	b.buf = b.word(b.buf, 0)
	return uint64(at)
}

const (
	short = 3
	long  = 4
	long8 = 16
)

// strips is a page of width 4 with that many one-row strips of 4 bytes.
func (b *builder) strips(chain bool, n int, more ...entry) uint64 {
	offsets, counts := entry{tagStripOffsets, long, nil}, entry{tagStripByteCounts, short, nil}
	for range n {
		offsets.values = append(offsets.values, b.data(4))
		counts.values = append(counts.values, 4)
	}
	return b.dir(chain, append([]entry{
		{tagImageWidth, short, []uint64{4}}, {tagImageLength, long, []uint64{uint64(n)}}, {tagBitsPerSample, short, []uint64{8}},
		{tagCompression, short, []uint64{1}}, offsets, {tagRowsPerStrip, short, []uint64{1}}, counts,
	}, more...)...)
}

// tiles is a page of 40 × 20 in 16 × 16 tiles, compressed, planar, of 2 samples.
func (b *builder) tiles(change func(offsets, counts []uint64), more ...entry) uint64 {
	const n = 3 * 2 * 2
	offsets, counts := make([]uint64, n), make([]uint64, n)
	for i := range offsets {
		offsets[i], counts[i] = b.data(10+i), uint64(10+i)
	}
	if change != nil {
		change(offsets, counts)
	}
	return b.dir(true, append([]entry{
		{tagImageWidth, short, []uint64{40}}, {tagImageLength, short, []uint64{20}}, {tagCompression, short, []uint64{8}},
		{tagSamplesPerPixel, short, []uint64{2}}, {tagPlanarConfig, short, []uint64{2}},
		{tagTileWidth, short, []uint64{16}}, {tagTileLength, short, []uint64{16}},
		{tagTileOffsets, long8, offsets}, {tagTileByteCounts, long, counts},
	}, more...)...)
}

func prove(p []byte) (Report, error) { return Prove(bytes.NewReader(p), int64(len(p))) }

func TestProve(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, big := range []bool{false, true} {
			b := newBuilder(order, big)
			sub := b.strips(false, 2)
			b.strips(true, 5, entry{tagSubIFDs, long, []uint64{sub}})
			b.tiles(nil, entry{tagSubfileType, long, []uint64{1}})
			b.strips(true, 1, entry{tagSubfileType, long, []uint64{4}})
			r, err := prove(b.buf)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Pages) != 4 || r.Blocks != 5+12+1+2 || r.Missing != 0 || r.BigTIFF != big {
				t.Errorf("%+v", r)
			}
			if !r.Pages[1].Reduced && !r.Pages[2].Reduced {
				t.Errorf("no page is an overview: %+v", r.Pages)
			}
		}
	}
}

// However a sound file is cut off, it is noticed: the builder leaves no slack but the
// last link.
func TestEveryCutIsNoticed(t *testing.T) {
	b := newBuilder(binary.LittleEndian, false)
	b.strips(true, 3)
	b.tiles(nil)
	for n := range b.buf {
		if _, err := prove(b.buf[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: taken", n, len(b.buf))
		}
	}
}

func TestMissingBlocks(t *testing.T) {
	b := newBuilder(binary.BigEndian, true)
	b.tiles(func(o, c []uint64) { o[1], c[1], o[2], c[2] = 0, 0, 0, 0 })
	if r, err := prove(b.buf); err != nil || r.Missing != 2 || r.Blocks != 12 {
		t.Errorf("%+v, %v", r, err)
	}
	// A writer that was killed between its two tables.
	for name, change := range map[string]func(offsets, counts []uint64){
		"no offset": func(o, _ []uint64) { o[3] = 0 },
		"no length": func(_, c []uint64) { c[5] = 0 },
	} {
		b := newBuilder(binary.BigEndian, true)
		b.tiles(change)
		wantError(t, name, b.buf, &TruncatedError{}, "were not both written")
	}
}

func wantError(t *testing.T, name string, file []byte, kind error, say string) {
	t.Helper()
	_, err := prove(file)
	var truncated *TruncatedError
	var malformed *MalformedError
	is := errors.As(err, &malformed)
	if _, ok := kind.(*TruncatedError); ok {
		is = errors.As(err, &truncated)
	}
	if !is || !strings.Contains(err.Error(), say) {
		t.Errorf("%s: %v", name, err)
	}
}

// libtiff takes a page for tiled by the size of its tiles, and the tables of strips for
// those of tiles: so does the walk.
func TestTablesOfOtherNames(t *testing.T) {
	b := newBuilder(binary.LittleEndian, false)
	b.tiles(nil)
	rename := func(from, to uint16) {
		i := bytes.Index(b.buf, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, from), map[uint16]uint16{tagTileOffsets: long8}[from]+map[uint16]uint16{tagTileByteCounts: long}[from]), 12))
		binary.LittleEndian.PutUint16(b.buf[i:], to)
	}
	rename(tagTileOffsets, tagStripOffsets)
	rename(tagTileByteCounts, tagStripByteCounts)
	r, err := prove(b.buf)
	if err != nil || r.Blocks != 12 || r.Missing != 0 || !r.Pages[0].Tiled {
		t.Errorf("%+v, %v", r, err)
	}
	i := bytes.LastIndex(b.buf, []byte{21, 0, 0, 0}) // the length of the last block
	b.buf[i+2] = 1
	wantError(t, "block past the end", b.buf, &TruncatedError{}, "block 11")
}

// What libtiff would read in a way of its own is refused.
func TestAmbiguous(t *testing.T) {
	for name, c := range map[string]struct {
		more []entry
		say  string
	}{
		"tables of tiles too":   {[]entry{{tagTileOffsets, long, []uint64{8, 8, 8}}}, "both strips and tiles"},
		"lengths of tiles too":  {[]entry{{tagTileByteCounts, long, []uint64{4, 4, 4}}}, "both strips and tiles"},
		"a table twice":         {[]entry{{tagStripOffsets, long, []uint64{8, 8, 8}}}, "tag 273 twice"},
		"a width twice":         {[]entry{{tagImageWidth, long, []uint64{4}}}, "tag 256 twice"},
		"a tile's width":        {[]entry{{tagTileWidth, long, []uint64{16}}}, "in blocks of 16 × 0"},
		"tiles":                 {[]entry{{tagTileWidth, long, []uint64{16}}, {tagTileLength, long, []uint64{16}}}, "page 1 has 1 blocks, and tables of 3"},
		"planes":                {[]entry{{tagSamplesPerPixel, short, []uint64{2}}, {tagPlanarConfig, short, []uint64{2}}}, "page 1 has 6 blocks, and tables of 3"},
		"planes in a third way": {[]entry{{tagPlanarConfig, short, []uint64{3}}}, "planes in way 3"},
		"depth":                 {[]entry{{tagImageDepth, short, []uint64{2}}}, "2 deep"},
		"depth of tiles":        {[]entry{{tagTileDepth, short, []uint64{2}}}, "2 deep"},
		"an unknown type":       {[]entry{{tagSamplesPerPixel, 14, []uint64{1}}}, "has type 14"},
		"fractions of pages":    {[]entry{{tagSubIFDs, 12, []uint64{8}}}, "has type 12"},
		"no subsampling":        {[]entry{{tagPhotometric, short, []uint64{6}}, {tagSamplesPerPixel, short, []uint64{3}}, {tagSubsampling, short, []uint64{0, 0}}}, "once for 0 × 0 pixels"},
	} {
		b := newBuilder(binary.LittleEndian, false)
		b.strips(true, 3, c.more...)
		wantError(t, name, b.buf, &MalformedError{}, c.say)
	}
	page := func(typ uint16, more ...entry) []byte {
		b := newBuilder(binary.LittleEndian, false)
		at := b.data(4)
		b.dir(true, append([]entry{{tagImageWidth, short, []uint64{4}}, {tagImageLength, short, []uint64{3}}, {tagBitsPerSample, short, []uint64{8}},
			{tagStripOffsets, typ, []uint64{at}}, {tagStripByteCounts, long, []uint64{4}}}, more...)...)
		return b.buf
	}
	old := entry{tagCompression, short, []uint64{oldJPEG}}
	lzw := entry{tagCompression, short, []uint64{5}}
	wantError(t, "old-style JPEG", page(long, old), &MalformedError{}, "old-style JPEG")
	// libtiff reads no offsets of this type, and takes the blocks for absent.
	wantError(t, "offsets that are directories", page(13, lzw), &MalformedError{}, "has type 13")
	wantError(t, "RowsPerStrip of one", page(long, lzw, entry{tagRowsPerStrip, short, []uint64{1}}), &MalformedError{}, "page 1 has 3 blocks, and tables of 1")
	for _, rows := range []uint64{3, 4, 1<<32 - 1} {
		if r, err := prove(page(long, lzw, entry{tagRowsPerStrip, long, []uint64{rows}})); err != nil || r.Blocks != 1 {
			t.Errorf("%d rows: %+v, %v", rows, r, err)
		}
	}
}

// Uncompressed blocks whose colours are subsampled are as long as their pixels ask.
func TestSubsampled(t *testing.T) {
	for length, whole := range map[int]bool{4*3*6 - 1: false, 4 * 3 * 6: true} {
		b := newBuilder(binary.LittleEndian, false)
		at := b.data(length)
		b.dir(true, entry{tagImageWidth, short, []uint64{7}}, entry{tagImageLength, short, []uint64{5}}, entry{tagBitsPerSample, short, []uint64{8, 8, 8}},
			entry{tagPhotometric, short, []uint64{6}}, entry{tagStripOffsets, long, []uint64{at}}, entry{tagSamplesPerPixel, short, []uint64{3}}, entry{tagStripByteCounts, long, []uint64{uint64(length)}})
		if _, err := prove(b.buf); (err == nil) != whole {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

// Blocks lie apart from the header, the directories and each other, or are the same.
func TestOverlaps(t *testing.T) {
	for name, c := range map[string]struct {
		change func(offsets, counts []uint64)
		say    string
	}{
		"the same place": {func(o, c []uint64) { o[3], c[3] = o[2], c[2] }, ""},
		"the header":     {func(o, _ []uint64) { o[0] = 7 }, "within the file's header"},
		"a part":         {func(o, _ []uint64) { o[4]++ }, "overlaps that of"},
		"the beginning":  {func(o, c []uint64) { o[4], c[4] = o[5], 3 }, "overlaps that of"},
		"the tables":     {func(o, c []uint64) { c[11]++ }, "overlaps a directory"},
		"the directory":  {func(o, c []uint64) { o[11] += 21 + 12*8 + 12*4 + 8; c[11] = 4 }, "overlaps a directory"},
	} {
		b := newBuilder(binary.LittleEndian, false)
		b.tiles(c.change)
		if c.say != "" {
			wantError(t, name, b.buf, &MalformedError{}, c.say)
		} else if _, err := prove(b.buf); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A COG of GDAL's has the length of each block before it, and its last bytes after it
// again: some are looked at.
func TestSamples(t *testing.T) {
	const ghost = "GDAL_STRUCTURAL_METADATA_SIZE=000093 bytes\nBLOCK_LEADER=SIZE_AS_UINT4\nBLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n"
	const n, length = 20, 10
	build := func(damage func(file []byte, offsets []uint64)) []byte {
		b := newBuilder(binary.BigEndian, false)
		b.buf = append(b.buf, ghost...)
		var offsets, counts []uint64
		for range n {
			b.buf = binary.LittleEndian.AppendUint32(b.buf, length)
			offsets, counts = append(offsets, b.data(length)), append(counts, length)
			b.data(4)
		}
		damage(b.buf, offsets)
		b.dir(true, entry{tagImageWidth, short, []uint64{1}}, entry{tagImageLength, short, []uint64{n}}, entry{tagCompression, short, []uint64{5}},
			entry{tagStripOffsets, long, offsets}, entry{tagRowsPerStrip, short, []uint64{1}}, entry{tagStripByteCounts, short, counts})
		return b.buf
	}
	for name, c := range map[string]struct {
		damage func(file []byte, o []uint64)
		say    string
	}{
		"whole":           {func([]byte, []uint64) {}, ""},
		"leader of first": {func(f []byte, o []uint64) { clear(f[o[0]-4 : o[0]]) }, "and says 0"},
		"trailer of last": {func(f []byte, o []uint64) { f[o[n-1]+length]++ }, "does not end as it should"},
		"a hole":          {func(f []byte, o []uint64) { clear(f[o[6]-4 : o[9]+length+4]) }, "never written"},
		"edited":          {func(f []byte, o []uint64) { copy(f[bytes.Index(f, []byte("=NO")):], "=YES"); clear(f[o[6]-4 : o[9]]) }, ""},
	} {
		file := build(c.damage)
		if c.say != "" {
			wantError(t, name, file, &TruncatedError{}, c.say)
		} else if _, err := prove(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Directories that overlap would be read as often as there are pages: each begins in a
// value of the one before it.
func TestSharedDirectories(t *testing.T) {
	b := newBuilder(binary.LittleEndian, true)
	at := b.data(4)
	const n = 10_000
	junk := entry{60000, long8, []uint64{n + 10}}
	entries := slices.Repeat([]entry{junk}, n)
	entries = append(entries, entry{tagImageWidth, short, []uint64{4}}, entry{tagImageLength, short, []uint64{1}}, entry{tagCompression, short, []uint64{5}},
		entry{tagStripOffsets, long, []uint64{at}}, entry{tagStripByteCounts, long, []uint64{4}})
	entries = append(entries, slices.Repeat([]entry{junk}, n+10)...)
	first := b.dir(false, entries...)
	var pages []uint64
	for i := range uint64(n) {
		pages = append(pages, first+8+20*i+12)
	}
	b.strips(true, 1, entry{tagSubIFDs, long8, pages})
	began := time.Now()
	var malformed *MalformedError
	if _, err := prove(b.buf); !errors.As(err, &malformed) || !strings.Contains(err.Error(), "share their directories") || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestRefusals(t *testing.T) {
	le := binary.LittleEndian
	build := func(f func(*builder)) []byte {
		b := newBuilder(le, false)
		f(b)
		return b.buf
	}
	page := func(width, height, rows uint64, more ...entry) []byte {
		return build(func(b *builder) {
			at := b.data(4)
			b.dir(true, append([]entry{{tagImageWidth, long, []uint64{width}}, {tagImageLength, long, []uint64{height}}, {tagRowsPerStrip, long, []uint64{rows}},
				{tagStripOffsets, long, []uint64{at}}, {tagStripByteCounts, long, []uint64{4}}, {tagCompression, short, []uint64{5}}}, more...)...)
		})
	}
	for name, c := range map[string]struct {
		file []byte
		want any
	}{
		"empty":        {nil, ErrNotTIFF},
		"text":         {[]byte("this is no raster at all"), ErrNotTIFF},
		"wrong magic":  {[]byte("II\x2c\x00\x08\x00\x00\x00"), ErrNotTIFF},
		"BigTIFF of 4": {[]byte("II\x2b\x00\x04\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00"), ErrNotTIFF},
		"no page yet":  {[]byte("II\x2a\x00\x00\x00\x00\x00"), &TruncatedError{}},
		"page far off": {[]byte("II\x2a\x00\xff\xff\xff\xff"), &TruncatedError{}},
		"empty page":   {[]byte("II\x2a\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00"), &TruncatedError{}},
		"circle":       {build(func(b *builder) { at := b.strips(true, 1); b.put(at, b.link) }), &MalformedError{}},
		"circle of subs": {build(func(b *builder) {
			b.strips(true, 1, entry{tagSubIFDs, long, []uint64{b.strips(false, 1), b.strips(false, 1), 8}})
		}), nil},
		"block past the end":  {build(func(b *builder) { b.tiles(func(o, c []uint64) { c[11] = 1 << 20 }) }), &TruncatedError{}},
		"block far off":       {build(func(b *builder) { b.tiles(func(o, c []uint64) { o[11] = 1<<64 - 5 }) }), &TruncatedError{}},
		"no width":            {page(0, 1, 1), &MalformedError{}},
		"no rows":             {page(1, 1, 0), &MalformedError{}},
		"enormous":            {page(1<<31-1, 1<<31-1, 1), &MalformedError{}},
		"beyond enormous":     {page(1<<31, 1, 1), &MalformedError{}},
		"too many samples":    {page(1, 1, 1, entry{tagSamplesPerPixel, long, []uint64{1 << 20}}), &MalformedError{}},
		"width is a fraction": {build(func(b *builder) { b.dir(true, entry{tagImageWidth, 5, []uint64{1}}) }), &MalformedError{}},
		"no table": {build(func(b *builder) {
			b.dir(true, entry{tagImageWidth, short, []uint64{1}}, entry{tagImageLength, short, []uint64{1}})
		}), &TruncatedError{}},
		"no lengths, compressed": {build(func(b *builder) {
			b.dir(true, entry{tagImageWidth, short, []uint64{1}}, entry{tagImageLength, short, []uint64{1}}, entry{tagStripOffsets, long, []uint64{8}}, entry{tagCompression, short, []uint64{5}})
		}), &TruncatedError{}},
		"value past the end": {build(func(b *builder) {
			b.dir(true, entry{700, long, []uint64{1, 2}})
			b.put(1<<30, len(b.buf)-8)
		}), &TruncatedError{}},
	} {
		_, err := prove(c.file)
		var truncated *TruncatedError
		var malformed *MalformedError
		switch want := c.want.(type) {
		case nil: // must end, and not in a crash
		case *TruncatedError:
			if !errors.As(err, &truncated) {
				t.Errorf("%s: %v", name, err)
			}
		case *MalformedError:
			if !errors.As(err, &malformed) {
				t.Errorf("%s: %v", name, err)
			}
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// An uncompressed strip that is shorter than its rows is cut off, whatever its table says.
func TestShortUncompressedStrip(t *testing.T) {
	b := newBuilder(binary.LittleEndian, false)
	at := b.data(4)
	b.dir(true, entry{tagImageWidth, short, []uint64{5}}, entry{tagImageLength, short, []uint64{1}}, entry{tagBitsPerSample, short, []uint64{8}},
		entry{tagStripOffsets, long, []uint64{at}}, entry{tagStripByteCounts, long, []uint64{4}})
	var truncated *TruncatedError
	if _, err := prove(b.buf); !errors.As(err, &truncated) {
		t.Errorf("%v", err)
	}
}

// Tables that pages share would be read as often as there are pages.
func TestSharedTables(t *testing.T) {
	b := newBuilder(binary.LittleEndian, false)
	const n = 1 << 15
	table := make([]uint64, n)
	for i := range table {
		table[i] = 8
	}
	b.dir(true, entry{tagImageWidth, short, []uint64{1}}, entry{tagImageLength, long, []uint64{n}}, entry{tagRowsPerStrip, short, []uint64{1}},
		entry{tagStripOffsets, long, table}, entry{tagStripByteCounts, long, table}, entry{tagCompression, short, []uint64{5}})
	first := int(binary.LittleEndian.Uint32(b.buf[4:]))
	dir := append([]byte(nil), b.buf[first:]...)
	for range 1000 {
		at := len(b.buf)
		b.put(uint64(at), b.link)
		b.buf = append(b.buf, dir...)
		b.link = len(b.buf) - 4
	}
	var malformed *MalformedError
	if _, err := prove(b.buf); !errors.As(err, &malformed) || !strings.Contains(err.Error(), "share") {
		t.Errorf("%v", err)
	}
}

func TestReadErrorsAreHandedOn(t *testing.T) {
	b := newBuilder(binary.LittleEndian, false)
	b.strips(true, 3)
	broken := errors.New("broken")
	for fail := range 5 {
		n := 0
		_, err := Prove(readerFunc(func(p []byte, off int64) (int, error) {
			if n++; n > fail {
				return 0, broken
			}
			return bytes.NewReader(b.buf).ReadAt(p, off)
		}), int64(len(b.buf)))
		if !errors.Is(err, broken) {
			t.Errorf("read %d: %v", fail, err)
		}
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// within refuses reads that are not of the file.
type within struct {
	t    testing.TB
	file []byte
}

func (w within) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > int64(len(w.file)) {
		w.t.Fatalf("read of %d bytes at %d in a file of %d", len(p), off, len(w.file))
	}
	return bytes.NewReader(w.file).ReadAt(p, off)
}

func check(t testing.TB, file []byte) {
	r, err := Prove(within{t, file}, int64(len(file)))
	var truncated *TruncatedError
	var malformed *MalformedError
	if err != nil && !errors.Is(err, ErrNotTIFF) && !errors.As(err, &truncated) && !errors.As(err, &malformed) && err != io.ErrUnexpectedEOF {
		t.Fatalf("unknown error %v", err)
	}
	if err == nil {
		if r.Missing > r.Blocks {
			t.Fatalf("%d of %d blocks missing", r.Missing, r.Blocks)
		}
		r.COG()
	}
}

func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, big := range []bool{false, true} {
		b := newBuilder(binary.LittleEndian, big)
		b.strips(true, 4, entry{tagSubIFDs, long, []uint64{b.strips(false, 1)}})
		b.tiles(nil)
		for range 20_000 {
			file := append([]byte(nil), b.buf...)
			for range 1 + rng.IntN(4) {
				file[rng.IntN(len(file))] = byte(rng.Uint32())
			}
			check(t, file[:len(file)-rng.IntN(2)*rng.IntN(len(file))])
		}
	}
}

func FuzzTIFF(f *testing.F) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, big := range []bool{false, true} {
			b := newBuilder(order, big)
			b.strips(true, 2, entry{tagSubIFDs, long, []uint64{b.strips(false, 1)}})
			b.tiles(nil)
			f.Add(b.buf)
		}
	}
	f.Add([]byte("II\x2a\x00\x00\x00\x00\x00GDAL_STRUCTURAL_METADATA_SIZE=000140 bytes\nBLOCK_TRAILER=LAST_4_BYTES_REPEATED\n"))
	f.Fuzz(func(t *testing.T, file []byte) { check(t, file) })
}
