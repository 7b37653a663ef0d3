//go:build cgo

package probe

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/tiff"
	"catalogd/internal/writer/wire"
)

// Look proves a file complete and finds its facts, or says why it is refused.
//
//	empty? → which format? taken? announced? → all there? → GDAL opens it → facts → footprint → decode
//
// It is for one file at a time, on the thread that called Setup.
func Look(job wire.Job, src *wire.Source) wire.Verdict {
	verdict := look(job, src)
	if errors.Is(src.Err(), wire.ErrBudget) {
		return wire.Refuse(catalog.CodeProbeFailed, "%v: its parts are scattered, or made to be", wire.ErrBudget)
	}
	return verdict
}

func look(job wire.Job, src *wire.Source) wire.Verdict {
	if job.Size == 0 {
		return wire.Refuse(catalog.CodeEmptyOutput, "the output has no bytes: the task wrote nothing, or has not closed the file")
	}
	driver, refusal := identify(job, src)
	if refusal != nil {
		return wire.Verdict{Refusal: refusal}
	}
	proven, err := prove(driver, src)
	if err != nil {
		return unproven(driver, err)
	}
	if refusal := proven.check(driver, job.Request); refusal != nil {
		return wire.Verdict{Refusal: refusal}
	}

	ext, _ := catalog.Extension(catalog.MediaTypeOf(driver))
	// A layer that its file gives no name has that of the file: GDAL's own is OGRGeoJSON.
	current.set("OGR"+driver+ext, src)
	defer current.set("", nil)
	facts := &wire.Facts{Driver: driver, MediaType: catalog.MediaTypeOf(driver)}
	for _, features := range []bool{false, true} {
		if features && !proven.features || !features && !proven.raster {
			continue
		}
		if refusal := examine(job, src, driver, features, proven, facts); refusal != nil {
			return wire.Verdict{Refusal: refusal}
		}
	}
	facts.Acquired = acquired(facts.Tags)
	return wire.Verdict{Facts: facts}
}

// examine opens a file for its raster, or for its features, and adds what it finds to f.
func examine(job wire.Job, src *wire.Source, driver string, features bool, proven proven, f *wire.Facts) *wire.Refusal {
	ds, err := open(src, driver, features)
	if outOfMemory(err) {
		return tooMuchMemory(err)
	}
	if err != nil {
		return refuse(catalog.CodeNotARaster, "the file is whole and begins like %s, but GDAL cannot open it: %v", driver, err)
	}
	defer ds.Close(godal.ErrLogger(ignore))
	// Before anybody asks for overviews: GDAL would open it, /vsistdin/ and all.
	if name := ds.Metadata("OVERVIEW_FILE", godal.Domain("OVERVIEWS")); name != "" {
		return refuse(catalog.CodeSidecar, "the file is not self-contained: its metadata says that its overviews are in %.200q; take out the item OVERVIEW_FILE and build them in the file itself (gdaladdo)", name)
	}

	describe, locate, decode := describeRaster, locate, func() error {
		if err := holes(driver, src); err != nil {
			return err
		}
		return decodeRaster(ds, proven.pages)
	}
	if features {
		describe, decode = describeLayers, func() error { return decodeLayers(ds, proven) }
		locate = func(ds *godal.Dataset, f *wire.Facts) (*geom.MultiPolygon, *wire.Refusal) {
			return locateLayers(ds, proven, f)
		}
	}
	if refusal := describe(ds, proven, f); refusal != nil {
		return refusal
	}
	// Where there is a raster, the outline is its.
	if !features || !proven.raster {
		outline, refusal := locate(ds, f)
		if refusal != nil && !job.Request.FootprintOptional {
			refusal.Message += "; or, if outputs without a footprint are meant, set the collection's footprint_optional"
			return refusal
		}
		f.Footprint = wire.FootprintCoords(outline)
	}
	if !job.Request.Decode {
		return nil
	}
	err = decode()
	if outOfMemory(err) {
		return tooMuchMemory(err)
	}
	if err != nil {
		return refuse(catalog.CodeTruncated, "every part of the file is there, and not all can be decoded, so that it was damaged, or written in part: %v; write it again", err)
	}
	return nil
}

// outOfMemory tells whether GDAL says that memory was refused to it: it does so in many
// places and words, and without an error number.
func outOfMemory(err error) bool {
	if err == nil {
		return false
	}
	msg := strings.ToLower(err.Error())
	return strings.Contains(msg, "allocate") || strings.Contains(msg, "out of memory") || strings.Contains(msg, "malloc")
}

func tooMuchMemory(err error) *wire.Refusal {
	return refuse(catalog.CodeProbeFailed, "the file needs more memory than a probe may take: write it in smaller blocks (%v)", err)
}

// grouped writes 1024 as 1,024.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func ignore(godal.ErrorCategory, int, string) error { return nil }

// decodeRaster has GDAL decode every block of every band, its overviews and its mask. Blocks
// of pages that were never written are passed over: sparse files may be huge.
func decodeRaster(ds *godal.Dataset, pages map[string]tiff.Page) error {
	// Levels of one size are read block by block across bands, since a block may hold
	// all of them: each is then decoded once.
	var levels [][]godal.Band
	add := func(level int, b godal.Band) {
		for len(levels) <= level {
			levels = append(levels, nil)
		}
		levels[level] = append(levels[level], b)
	}
	for i, band := range ds.Bands() {
		add(0, band)
		for j, overview := range band.Overviews() {
			add(1+j, overview)
		}
		if i == 0 && ownMask(band) {
			mask := band.MaskBand()
			if err := decodeLevel([]godal.Band{mask}, "mask", pages); err != nil {
				return err
			}
			for _, overview := range mask.Overviews() {
				if err := decodeLevel([]godal.Band{overview}, "overview of the mask", pages); err != nil {
					return err
				}
			}
		}
	}
	for i, level := range levels {
		name := "image"
		if i > 0 {
			name = "overview " + strconv.Itoa(i)
		}
		if err := decodeLevel(level, name, pages); err != nil {
			return err
		}
	}
	return nil
}

// decodeLevel decodes the blocks of one page. Of a sparse one it looks for those that are
// there, in the order of the page's table, until it has had them all: no further than the
// table goes, whatever the page says its size is.
func decodeLevel(bands []godal.Band, name string, pages map[string]tiff.Page) error {
	s := bands[0].Structure()
	across, down := (s.SizeX-1)/s.BlockSizeX+1, (s.SizeY-1)/s.BlockSizeY+1
	page := pages[bands[0].Metadata("IFD_OFFSET", godal.Domain("TIFF"))]
	sparse, left := page.Missing > 0, page.Blocks-page.Missing

	groups := [][]godal.Band{bands}
	if page.Blocks > uint64(across)*uint64(down) { // one plane after the other
		groups = groups[:0]
		for i := range bands {
			groups = append(groups, bands[i:i+1])
		}
	}
	for first, group := range groups {
		for block := range across * down {
			if sparse && left == 0 {
				return nil
			}
			x, y := block%across, block/across
			if sparse {
				offset := group[0].Metadata(fmt.Sprintf("BLOCK_OFFSET_%d_%d", x, y), godal.Domain("TIFF"))
				if offset == "" || offset == "0" {
					continue
				}
				left--
			}
			for i, band := range group {
				if err := decodeBlock(band, x*s.BlockSizeX, y*s.BlockSizeY); err != nil {
					return fmt.Errorf("%s, band %d, block at column %d, row %d: %w", name, first+i+1, x*s.BlockSizeX, y*s.BlockSizeY, err)
				}
			}
		}
	}
	return nil
}

// decodeBlock reads one pixel, for which GDAL decodes the whole block.
func decodeBlock(band godal.Band, x, y int) error {
	var first error // the cause; GDAL repeats it at each of its levels
	err := band.Read(x, y, make([]byte, 1), 1, 1, godal.ErrLogger(func(category godal.ErrorCategory, _ int, msg string) error {
		if category < godal.CE_Warning {
			return nil
		}
		said := errors.New(plain(msg))
		if first == nil || outOfMemory(said) && !outOfMemory(first) {
			first = said
		}
		return said
	}))
	if err != nil && first == nil {
		first = errors.New(plain(err.Error()))
	}
	return first
}
