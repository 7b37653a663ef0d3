// Package tiff proves TIFF files complete, by walking the directories of every
// page (main image, overviews, masks, further pages, SubIFDs) of classic and
// BigTIFF files in either byte order: each block of each page has an offset, and
// lies within the file, apart from the directories and, unless it is the same, from
// every other block; so does every tag's value. It decodes nothing.
//
// A page is cut into blocks as libtiff does it, since libtiff will read it: what
// libtiff reads in a way of its own (tags given twice, tables of another length than
// the page has blocks, depth, old-style JPEG) is refused.
//
// What it does not prove: that the bytes of a block are those that the writer
// meant. A writer that reserved a block's place and was killed before it wrote
// there leaves no trace here, but for a sample of the blocks of a COG that GDAL wrote,
// which has each block's length before it; proof by decoding does see most of those.
//
// The files are strangers': counts, offsets and chains are bounded, and sums are
// guarded against overflow. Pure Go; imports package proof.
//
// Sources: TIFF 6.0 (Adobe, 1992); BigTIFF (libtiff.gitlab.io/libtiff/specification/bigtiff.html);
// SubIFDs, TIFF Technical Note 1 (Adobe, 1995).
package tiff

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"catalogd/internal/writer/proof"
)

// ErrNotTIFF: the file does not begin like a TIFF.
var ErrNotTIFF = errors.New("no TIFF header")

// Errors that all proofs share.
type (
	TruncatedError = proof.TruncatedError
	MalformedError = proof.MalformedError
)

const (
	// maxPages is libtiff's own limit of directories up to 4.5.
	maxPages = 65535
	// maxEntries of one directory: all that a classic one can hold.
	maxEntries = 65535
	// chunkEntries of the block tables are read at a time.
	chunkEntries = 32 << 10
	// maxSpans blocks and directories are held against each other (16 MiB of memory).
	maxSpans = 1 << 20
	// samples are the blocks of a COG that are looked at; each may be one read of 64 KiB.
	samples = 5
)

// Page is one directory.
type Page struct {
	// Offset of the directory.
	Offset        uint64
	Width, Height uint64
	Tiled         bool
	// Reduced and Mask are bits of NewSubfileType.
	Reduced, Mask bool
	// SubIFD is set for pages that are not in the main chain.
	SubIFD bool
	// Blocks that the page's size calls for, and those of them never written.
	Blocks, Missing uint64
	// FirstBlock is the lowest offset of a block; 0 if none was written.
	FirstBlock uint64
}

// Report is what the walk found.
type Report struct {
	Pages []Page
	// Blocks of all pages, and those of them that were never written: their
	// offset or length is 0. They read as nodata or zero.
	Blocks, Missing uint64
	BigTIFF         bool
	// ghost is the length of GDAL's structural metadata after the header.
	ghost uint64
	// edited: that metadata says that the layout was changed since.
	edited bool
}

// Prove walks the file of size bytes. The error is ErrNotTIFF, a
// *TruncatedError, a *MalformedError, or what r answered. Missing blocks are no
// error: see Report.
func Prove(r io.ReaderAt, size int64) (Report, error) {
	w := &walker{r: r, size: uint64(max(size, 0)), seen: make(map[uint64]bool), room: maxSpans}
	if err := w.header(); err != nil {
		return Report{}, err
	}
	for len(w.queue) > 0 {
		next := w.queue[0]
		w.queue = w.queue[1:]
		if err := w.page(next); err != nil {
			return Report{}, err
		}
	}
	if err := w.apart(); err != nil {
		return Report{}, err
	}
	return w.report, w.sample()
}

type walker struct {
	r      io.ReaderAt
	size   uint64
	order  binary.ByteOrder
	big    bool
	slack  uint64 // bytes that follow each block and belong to it
	leader bool   // four bytes before each block are its length
	head   uint64 // the header's length
	report Report
	queue  []link
	seen   map[uint64]bool
	// tables is how many bytes of directories and block tables were read. Sound pages
	// have their own; hostile ones share them, to be read 65,535 times.
	tables uint64
	// blocks that were written, and parts of the file that hold none; no more of
	// either than there is room, which more takes all away.
	written, reserved []span
	room              int
}

// span is a part of the file.
type span struct{ at, length uint64 }

func (s span) end() uint64 { return s.at + s.length }

func compareSpans(a, b span) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.length, b.length))
}

// keep adds a span to those that are held against each other, while there is room.
func (w *walker) keep(spans *[]span, s span) {
	if len(*spans) < w.room {
		*spans = append(*spans, s)
		return
	}
	w.room, w.written, w.reserved = 0, nil, nil
}

// apart refuses blocks that overlap others, or directories or their tables. Blocks may
// be the same: writers share those of equal content.
func (w *walker) apart() error {
	slices.SortFunc(w.written, compareSpans)
	slices.SortFunc(w.reserved, compareSpans)
	var last span // of blocks
	var reserved uint64
	rest := w.reserved
	for _, b := range w.written {
		if b != last && b.at < last.end() {
			return malformed("the block of %d bytes at %d overlaps that of %d bytes at %d: a write failed, and its writer went on", last.length, last.at, b.length, b.at)
		}
		last = b
		for len(rest) > 0 && rest[0].at < b.end() {
			reserved, rest = max(reserved, rest[0].end()), rest[1:]
		}
		if b.at < reserved {
			return malformed("the block of %d bytes at %d overlaps a directory or its tables", b.length, b.at)
		}
	}
	return nil
}

// sample looks at some blocks of a COG, which apart has sorted: GDAL wrote each one's
// length before it, and its last four bytes once more after it. The end of one and the
// beginning of the next are one read.
func (w *walker) sample() error {
	n := len(w.written)
	if n == 0 || !w.leader || w.slack == 0 {
		return nil
	}
	leader := func(p []byte, b span) error {
		// In this order, whatever the file's is.
		if length := binary.LittleEndian.Uint32(p); uint64(length) != b.length {
			return w.truncated("the block at %d should be %d bytes long, and says %d: it was never written, or written over", b.at, b.length, length)
		}
		return nil
	}
	p, err := w.read(w.written[0].at-4, 4)
	if err != nil {
		return err
	}
	if err := leader(p, w.written[0]); err != nil {
		return err
	}
	picks := min(n, samples)
	for i := range picks {
		at := n - 1 - i*n/picks
		b := w.written[at]
		if b.length < 4 {
			continue
		}
		length := uint64(8)
		next := at+1 < n && w.written[at+1].at == b.end()+8
		if next {
			length += 4
		}
		if p, err = w.read(b.end()-4, length); err != nil {
			return err
		}
		if !bytes.Equal(p[:4], p[4:8]) {
			return w.truncated("the block of %d bytes at %d does not end as it should: it was never written, or written over", b.length, b.at)
		}
		if next {
			if err := leader(p[8:], w.written[at+1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// link points to a directory.
type link struct {
	offset uint64
	sub    bool
}

func (w *walker) truncated(format string, args ...any) error {
	return proof.Truncated("%s; the file has %d bytes", fmt.Sprintf(format, args...), w.size)
}

var malformed = proof.Malformed

// within tells whether n bytes at offset lie in the file.
func (w *walker) within(offset, n uint64) bool {
	return offset <= w.size && n <= w.size-offset
}

func (w *walker) read(offset, n uint64) ([]byte, error) {
	return proof.Read(w.r, int64(offset), int64(n))
}

func (w *walker) header() error {
	if w.size < 8 {
		return ErrNotTIFF
	}
	h, err := w.read(0, 8)
	if err != nil {
		return err
	}
	switch string(h[:2]) {
	case "II":
		w.order = binary.LittleEndian
	case "MM":
		w.order = binary.BigEndian
	default:
		return ErrNotTIFF
	}
	first, end := uint64(w.order.Uint32(h[4:])), uint64(8)
	switch w.order.Uint16(h[2:]) {
	case 42:
	case 43:
		if w.order.Uint16(h[4:]) != 8 || w.order.Uint16(h[6:]) != 0 {
			return ErrNotTIFF
		}
		if !w.within(8, 8) {
			return w.truncated("the header is cut off")
		}
		if h, err = w.read(8, 8); err != nil {
			return err
		}
		w.big, first, end = true, w.order.Uint64(h), 16
	default:
		return ErrNotTIFF
	}
	w.report.BigTIFF = w.big
	if first == 0 {
		return w.truncated("the header points to no page: the writer had not written one yet")
	}
	if err := w.structure(end); err != nil {
		return err
	}
	w.head = end + w.report.ghost
	w.queue = append(w.queue, link{offset: first})
	return nil
}

// structure reads GDAL's structural metadata, which follows the header of a COG
// (gdal.org/drivers/raster/cog.html, "Header ghost area"). It may say that four
// bytes follow each block.
func (w *walker) structure(at uint64) error {
	const prefix = "GDAL_STRUCTURAL_METADATA_SIZE="
	n := min(w.size-at, 1024)
	if n < uint64(len(prefix)) {
		return nil
	}
	p, err := w.read(at, n)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(p, []byte(prefix)) {
		return nil
	}
	// "GDAL_STRUCTURAL_METADATA_SIZE=XXXXXX bytes\n" is 43 bytes long.
	const line = len(prefix) + len("000140 bytes\n")
	if len(p) < line {
		return nil
	}
	length, err := strconv.ParseUint(string(p[len(prefix):len(prefix)+6]), 10, 64)
	if err != nil {
		return nil
	}
	w.report.ghost = uint64(line) + length
	area := p[:min(uint64(len(p)), w.report.ghost)]
	w.report.edited = bytes.Contains(area, []byte("KNOWN_INCOMPATIBLE_EDITION=YES"))
	if bytes.Contains(area, []byte("BLOCK_TRAILER=LAST_4_BYTES_REPEATED")) && !w.report.edited {
		w.slack = 4
	}
	w.leader = bytes.Contains(area, []byte("BLOCK_LEADER=SIZE_AS_UINT4")) && !w.report.edited
	return nil
}

// Tags that the walk reads; none may be given twice.
const (
	tagSubfileType     = 254
	tagImageWidth      = 256
	tagImageLength     = 257
	tagBitsPerSample   = 258
	tagCompression     = 259
	tagPhotometric     = 262
	tagStripOffsets    = 273
	tagSamplesPerPixel = 277
	tagRowsPerStrip    = 278
	tagStripByteCounts = 279
	tagPlanarConfig    = 284
	tagTileWidth       = 322
	tagTileLength      = 323
	tagTileOffsets     = 324
	tagTileByteCounts  = 325
	tagSubIFDs         = 330
	tagSubsampling     = 530
	tagImageDepth      = 32997
	tagTileDepth       = 32998
)

func structural(tag uint16) bool {
	switch tag {
	case tagSubfileType, tagImageWidth, tagImageLength, tagBitsPerSample, tagCompression, tagPhotometric, tagStripOffsets, tagSamplesPerPixel,
		tagRowsPerStrip, tagStripByteCounts, tagPlanarConfig, tagTileWidth, tagTileLength, tagTileOffsets, tagTileByteCounts, tagSubIFDs,
		tagSubsampling, tagImageDepth, tagTileDepth:
		return true
	}
	return false
}

// Values of tags.
const (
	uncompressed     = 1
	oldJPEG          = 6
	photometricYCbCr = 6
	planarTogether   = 1
	planarSeparate   = 2
)

// typeSize in bytes, by field type; 0 for types that are not known.
var typeSize = [...]uint64{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}

// field is one entry of a directory; at is where its values are.
type field struct {
	typ   uint16
	count uint64
	at    uint64
}

func (f field) size() uint64 { return typeSize[f.typ] }

// page reads one directory, queues those that it points to, and checks its
// blocks.
func (w *walker) page(l link) error {
	number := len(w.report.Pages) + 1
	if w.seen[l.offset] {
		return malformed("the chain of pages runs in a circle: page %d is at %d again", number, l.offset)
	}
	w.seen[l.offset] = true
	if number > maxPages {
		return malformed("more than %d pages", maxPages)
	}

	fields, next, err := w.directory(number, l.offset)
	if err != nil {
		return err
	}
	if next != 0 && !l.sub {
		w.queue = append(w.queue, link{offset: next})
	}
	if f, ok := fields[tagSubIFDs]; ok {
		if f.count > maxPages || len(w.queue) > maxPages {
			return malformed("page %d has %d pages below it", number, f.count)
		}
		if !f.integers() {
			return malformed("tag %d has type %d", tagSubIFDs, f.typ)
		}
		if err := w.values(f, f.count, func(_, offset uint64) error {
			w.queue = append(w.queue, link{offset: offset, sub: true})
			return nil
		}); err != nil {
			return err
		}
	}
	page := Page{Offset: l.offset, SubIFD: l.sub}
	if err := w.blocks(number, &page, fields); err != nil {
		return err
	}
	w.report.Pages = append(w.report.Pages, page)
	w.report.Blocks = addSaturated(w.report.Blocks, page.Blocks)
	w.report.Missing = addSaturated(w.report.Missing, page.Missing)
	return nil
}

// directory reads the entries of the directory at offset and the offset of the
// next one; 0 for none.
func (w *walker) directory(number int, offset uint64) (map[uint16]field, uint64, error) {
	countLen, entryLen, inline := uint64(2), uint64(12), uint64(4)
	if w.big {
		countLen, entryLen, inline = 8, 20, 8
	}
	if !w.within(offset, countLen) {
		return nil, 0, w.truncated("the directory of page %d should be at %d", number, offset)
	}
	p, err := w.read(offset, countLen)
	if err != nil {
		return nil, 0, err
	}
	n := w.uint(p)
	if n == 0 {
		return nil, 0, w.truncated("the directory of page %d at %d was never written", number, offset)
	}
	if n > maxEntries {
		return nil, 0, malformed("the directory of page %d has %d entries", number, n)
	}
	if !w.within(offset+countLen, n*entryLen+inline) {
		return nil, 0, w.truncated("the directory of page %d at %d is cut off", number, offset)
	}
	length := countLen + n*entryLen + inline
	if err := w.spend(length); err != nil {
		return nil, 0, err
	}
	w.keep(&w.reserved, span{offset, length})
	if p, err = w.read(offset+countLen, n*entryLen+inline); err != nil {
		return nil, 0, err
	}
	fields := make(map[uint16]field, min(n, 64))
	seen := make(map[uint16]bool, min(n, 64))
	for i := uint64(0); i < n; i++ {
		e := p[i*entryLen:]
		tag, f := w.order.Uint16(e), field{typ: w.order.Uint16(e[2:])}
		f.count = w.uint(e[4 : entryLen-inline])
		if structural(tag) && seen[tag] {
			return nil, 0, malformed("page %d has tag %d twice", number, tag)
		}
		seen[tag] = true
		if int(f.typ) >= len(typeSize) || f.size() == 0 {
			// Of a type that readers pass over; GDAL's writer has 0 where it means to write later.
			if f.typ != 0 && structural(tag) {
				return nil, 0, malformed("tag %d has type %d", tag, f.typ)
			}
			continue
		}
		f.at = offset + countLen + i*entryLen + entryLen - inline
		if f.count > inline/f.size() {
			f.at = w.uint(e[entryLen-inline : entryLen])
			if f.count > w.size/f.size() || !w.within(f.at, f.count*f.size()) {
				return nil, 0, w.truncated("tag %d of page %d should have %d values at %d", tag, number, f.count, f.at)
			}
		}
		if _, twice := fields[tag]; !twice {
			fields[tag] = f
		}
	}
	return fields, w.uint(p[n*entryLen:]), nil
}

// uint reads an unsigned integer as long as p.
func (w *walker) uint(p []byte) uint64 {
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(w.order.Uint16(p))
	case 4:
		return uint64(w.order.Uint32(p))
	default:
		return w.order.Uint64(p)
	}
}

// integers tells whether f holds unsigned integers.
func (f field) integers() bool {
	switch f.typ {
	case 1, 3, 4, 13, 16, 18:
		return true
	}
	return false
}

// values calls do with index and value of the first n values of f.
func (w *walker) values(f field, n uint64, do func(i, v uint64) error) error {
	size := f.size()
	for i := uint64(0); i < n; i += chunkEntries {
		count := min(n-i, chunkEntries)
		if err := w.spend(count * size); err != nil {
			return err
		}
		p, err := w.read(f.at+i*size, count*size)
		if err != nil {
			return err
		}
		for j := uint64(0); j < count; j++ {
			if err := do(i+j, w.uint(p[j*size:(j+1)*size])); err != nil {
				return err
			}
		}
	}
	return nil
}

// spend counts bytes of directories and block tables.
func (w *walker) spend(n uint64) error {
	if w.tables += n; w.tables > 4*w.size+1<<20 {
		return malformed("pages share their directories, or their tables of blocks")
	}
	return nil
}

// first is the first value of a tag, or otherwise if the page lacks it.
func (w *walker) first(fields map[uint16]field, tag uint16, otherwise uint64) (uint64, error) {
	f, ok := fields[tag]
	if !ok || f.count == 0 {
		return otherwise, nil
	}
	if !f.integers() {
		return 0, malformed("tag %d has type %d", tag, f.typ)
	}
	var v uint64
	err := w.values(f, 1, func(_, value uint64) error { v = value; return nil })
	return v, err
}

// layout is how a page is cut into blocks.
type layout struct {
	width, height           uint64
	blockWidth, blockHeight uint64
	planes                  uint64 // 1 if the samples of a pixel are together
	rowBytes                uint64 // of group rows of one block, uncompressed; 0 if not known
	group                   uint64 // 1, or what subsampling takes together
	tiled                   bool
	across, down            uint64
}

func (w *walker) layout(number int, fields map[uint16]field) (l layout, err error) {
	get := func(tag uint16, otherwise uint64) (v uint64) {
		if err == nil {
			v, err = w.first(fields, tag, otherwise)
		}
		return v
	}
	l.width, l.height = get(tagImageWidth, 0), get(tagImageLength, 0)
	samples, sampleBits := get(tagSamplesPerPixel, 1), get(tagBitsPerSample, 1)
	planar, compression, photometric := get(tagPlanarConfig, planarTogether), get(tagCompression, uncompressed), get(tagPhotometric, 0)
	depth, tileDepth := get(tagImageDepth, 1), get(tagTileDepth, 1)
	// As libtiff has it: either makes tiles, whatever the tables are called.
	_, wide := fields[tagTileWidth]
	_, long := fields[tagTileLength]
	if l.tiled = wide || long; l.tiled {
		l.blockWidth, l.blockHeight = get(tagTileWidth, 0), get(tagTileLength, 0)
	} else {
		l.blockWidth, l.blockHeight = l.width, min(get(tagRowsPerStrip, l.height), l.height)
	}
	if err != nil {
		return l, err
	}
	const most = 1<<31 - 1
	for _, v := range []uint64{l.width, l.height, l.blockWidth, l.blockHeight, samples} {
		if v == 0 || v > most {
			return l, malformed("page %d is %d × %d in blocks of %d × %d with %d samples", number, l.width, l.height, l.blockWidth, l.blockHeight, samples)
		}
	}
	switch {
	case depth != 1 || tileDepth != 1:
		return l, malformed("page %d is %d deep, in tiles that are %d deep", number, depth, tileDepth)
	case compression == oldJPEG:
		return l, malformed("page %d is compressed as old-style JPEG (6), which says elsewhere where its blocks are: write JPEG (7)", number)
	case planar != planarTogether && planar != planarSeparate:
		return l, malformed("page %d has its planes in way %d", number, planar)
	}
	l.across, l.down, l.planes = (l.width+l.blockWidth-1)/l.blockWidth, (l.height+l.blockHeight-1)/l.blockHeight, 1
	together := samples
	if planar == planarSeparate {
		l.planes, together = samples, 1
	}
	if together > 65535 || l.planes > 65535 || sampleBits > 1024 {
		return l, malformed("page %d has %d samples of %d bits", number, samples, sampleBits)
	}
	if compression != uncompressed {
		return l, nil
	}
	l.rowBytes, l.group = (l.blockWidth*together*sampleBits+7)/8, 1
	if photometric == photometricYCbCr && planar == planarTogether && samples == 3 {
		// TIFF 6.0, section 21: both colours once for each across × down pixels.
		across, down, err := w.subsampling(fields)
		if err != nil {
			return l, err
		}
		l.rowBytes, l.group = ((l.blockWidth+across-1)/across*(across*down+2)*sampleBits+7)/8, down
	}
	return l, nil
}

// subsampling of colours, across and down.
func (w *walker) subsampling(fields map[uint16]field) (across, down uint64, err error) {
	across, down = 2, 2
	if f, ok := fields[tagSubsampling]; ok {
		if f.count != 2 || !f.integers() {
			return 0, 0, malformed("tag %d has %d values of type %d", tagSubsampling, f.count, f.typ)
		}
		v := []uint64{0, 0}
		if err := w.values(f, 2, func(i, value uint64) error { v[i] = value; return nil }); err != nil {
			return 0, 0, err
		}
		across, down = v[0], v[1]
	}
	if across == 0 || across > 4 || down == 0 || down > 4 {
		return 0, 0, malformed("colours are once for %d × %d pixels", across, down)
	}
	return across, down, nil
}

// raw is how many bytes block i has when uncompressed; 0 if not known.
func (l layout) raw(i uint64) uint64 {
	rows := l.blockHeight
	if !l.tiled && i%l.down == l.down-1 {
		rows = l.height - (l.down-1)*l.blockHeight
	}
	if l.rowBytes == 0 {
		return 0
	}
	high, n := bits.Mul64(l.rowBytes, (rows+l.group-1)/l.group)
	if high > 0 {
		return math.MaxUint64
	}
	return n
}

// blocks checks that each block of a page has its place in the file.
func (w *walker) blocks(number int, page *Page, fields map[uint16]field) error {
	l, err := w.layout(number, fields)
	if err != nil {
		return err
	}
	kind, err := w.first(fields, tagSubfileType, 0)
	if err != nil {
		return err
	}
	page.Width, page.Height, page.Tiled = l.width, l.height, l.tiled
	page.Reduced, page.Mask = kind&1 != 0, kind&4 != 0
	page.Blocks = l.across * l.down * l.planes // at most 2^62 × 2^16: see the guard
	if l.across*l.down > 1<<62/l.planes {
		return malformed("page %d has more blocks than can be counted", number)
	}

	offsets, ok, err := table(number, fields, tagTileOffsets, tagStripOffsets)
	if err != nil {
		return err
	}
	counts, haveCounts, err := table(number, fields, tagTileByteCounts, tagStripByteCounts)
	switch {
	case err != nil:
		return err
	case !ok:
		return w.truncated("page %d has no table of blocks (tag %d or %d): the writer had not written it yet", number, tagStripOffsets, tagTileOffsets)
	case !haveCounts && l.rowBytes == 0:
		return w.truncated("page %d does not say how long its compressed blocks are (tag %d or %d): the writer had not written it yet", number, tagStripByteCounts, tagTileByteCounts)
	case offsets.count != page.Blocks || haveCounts && counts.count != page.Blocks:
		return malformed("page %d has %d blocks, and tables of %d offsets and %d lengths", number, page.Blocks, offsets.count, counts.count)
	}
	for _, f := range []field{offsets, counts} {
		w.keep(&w.reserved, span{f.at, f.count * f.size()})
	}
	n := page.Blocks

	for i := uint64(0); i < n; i += chunkEntries {
		chunk := min(n-i, chunkEntries)
		var lengths []byte
		if haveCounts {
			if err := w.spend(chunk * counts.size()); err != nil {
				return err
			}
			if lengths, err = w.read(counts.at+i*counts.size(), chunk*counts.size()); err != nil {
				return err
			}
		}
		part := field{typ: offsets.typ, count: chunk, at: offsets.at + i*offsets.size()}
		if err := w.values(part, chunk, func(j, offset uint64) error {
			length := l.raw(i + j)
			if haveCounts {
				length = w.uint(lengths[j*counts.size() : (j+1)*counts.size()])
			}
			switch {
			case offset == 0 && (length == 0 || !haveCounts):
				page.Missing++
				return nil
			case offset == 0 || length == 0:
				return w.truncated("block %d of page %d has %d bytes at %d: its tables were not both written", i+j, number, length, offset)
			case offset < w.head:
				return malformed("block %d of page %d is at %d, within the file's header", i+j, number, offset)
			case l.rowBytes > 0 && length < l.raw(i+j):
				return w.truncated("block %d of page %d has %d bytes and should have %d", i+j, number, length, l.raw(i+j))
			case !w.within(offset, length) || !w.within(offset+length, w.slack):
				return w.truncated("block %d of page %d should be %d bytes long at %d", i+j, number, length, offset)
			}
			if page.FirstBlock == 0 || offset < page.FirstBlock {
				page.FirstBlock = offset
			}
			if l.rowBytes > 0 {
				length = l.raw(i + j) // what follows is not read
			}
			w.keep(&w.written, span{offset, length})
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// table of blocks, under either of its names, which libtiff takes for the same.
func table(number int, fields map[uint16]field, tile, strip uint16) (field, bool, error) {
	f, ok := fields[tile]
	other, both := fields[strip]
	switch {
	case ok && both:
		return f, true, malformed("page %d has tables of both strips and tiles", number)
	case both:
		f = other
	case !ok:
		return f, false, nil
	}
	if f.typ != 3 && f.typ != 4 && f.typ != 16 { // others are no numbers to libtiff
		return f, true, malformed("the table of blocks of page %d has type %d", number, f.typ)
	}
	return f, true, nil
}

func addSaturated(a, b uint64) uint64 {
	if a+b < a {
		return 1<<64 - 1
	}
	return a + b
}
