//go:build cgo

package probe

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/tiff"
	"catalogd/internal/writer/wire"
)

// Look proves a file complete and finds its facts, or says why it is refused.
//
//	empty? → a TIFF? → every block there? → GDAL opens it → facts → footprint → decode
//
// It is for one file at a time, on the thread that called Setup.
func Look(job wire.Job, src *wire.Source) wire.Verdict {
	verdict := look(job, src)
	if errors.Is(src.Err(), wire.ErrBudget) {
		return wire.Refuse(catalog.CodeProbeFailed, "%v: its directories are scattered, or made to be", wire.ErrBudget)
	}
	return verdict
}

func look(job wire.Job, src *wire.Source) wire.Verdict {
	if job.Size == 0 {
		return wire.Refuse(catalog.CodeEmptyOutput, "the output has no bytes: the task wrote nothing, or has not closed the file")
	}
	report, err := tiff.Prove(src, job.Size)
	if err != nil {
		return unproven(err, src)
	}
	if report.Missing > 0 && !job.Request.SparseAllowed {
		return wire.Refuse(catalog.CodeSparse, "%s of %s blocks were never written: the writer was killed or has not closed the file; "+
			"write it again and hand it over once closed, or let the collection take sparse files, if those blocks are meant to be absent",
			grouped(report.Missing), grouped(report.Blocks))
	}

	current.set(src)
	defer current.set(nil)
	ds, err := open(job.Size)
	if outOfMemory(err) {
		return tooMuchMemory(err)
	}
	if err != nil {
		return wire.Refuse(catalog.CodeNotARaster, "the file begins like a TIFF, but GDAL cannot open it: %v", err)
	}
	defer ds.Close(godal.ErrLogger(ignore))

	facts, refusal := describe(ds, report)
	if refusal != nil {
		return wire.Verdict{Refusal: refusal}
	}
	outline, refusal := locate(ds, facts)
	if refusal != nil && !job.Request.FootprintOptional {
		return wire.Verdict{Refusal: refusal}
	}
	facts.Footprint = wire.FootprintCoords(outline)

	if job.Request.Decode {
		err := decode(ds, report.Missing > 0)
		if outOfMemory(err) {
			return tooMuchMemory(err)
		}
		if err != nil {
			return wire.Refuse(catalog.CodeTruncated, "the file is damaged or incomplete: %v; write it again", err)
		}
	}
	return wire.Verdict{Facts: facts}
}

// unproven is the verdict on a file that tiff.Prove does not pass.
func unproven(err error, src *wire.Source) wire.Verdict {
	var truncated *tiff.TruncatedError
	var malformed *tiff.MalformedError
	switch {
	case errors.Is(err, tiff.ErrNotTIFF):
		head := make([]byte, 512)
		n, _ := src.ReadAt(head, 0)
		if format := recognise(head[:n]); format != "" {
			return wire.Refuse(catalog.CodeDriverRefused, "the output is %s, and only GeoTIFF is taken: write GeoTIFF, best as COG (gdal_translate -of COG)", format)
		}
		return wire.Refuse(catalog.CodeNotARaster, "the output is not a TIFF, whatever its name says: it begins with %.24q; write GeoTIFF, best as COG", head[:n])
	case errors.As(err, &truncated):
		return wire.Refuse(catalog.CodeTruncated, "the file is cut off: %v; hand it over only once it is written to the end and closed", truncated)
	case errors.As(err, &malformed):
		return wire.Refuse(catalog.CodeNotARaster, "the file is not a sound TIFF: %v", malformed)
	default:
		return wire.Refuse(catalog.CodeProbeFailed, "reading the file failed: %v", err)
	}
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

func tooMuchMemory(err error) wire.Verdict {
	return wire.Refuse(catalog.CodeProbeFailed, "the file needs more memory than a probe may take: write it in smaller blocks (%v)", err)
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

// decode has GDAL decode every block of every band, its overviews and its mask. Blocks
// that were never written are passed over: sparse files may be huge.
func decode(ds *godal.Dataset, sparse bool) error {
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
		const perDataset, alpha, nodata = 2, 4, 8
		if flags := band.MaskFlags(); i == 0 && flags&perDataset != 0 && flags&(alpha|nodata) == 0 {
			mask := band.MaskBand()
			if err := decodeLevel([]godal.Band{mask}, "mask", sparse); err != nil {
				return err
			}
			for _, overview := range mask.Overviews() {
				if err := decodeLevel([]godal.Band{overview}, "overview of the mask", sparse); err != nil {
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
		if err := decodeLevel(level, name, sparse); err != nil {
			return err
		}
	}
	return nil
}

func decodeLevel(bands []godal.Band, name string, sparse bool) error {
	one := make([]byte, 1)
	s := bands[0].Structure()
	strict := godal.ErrLogger(func(category godal.ErrorCategory, _ int, msg string) error {
		if category < godal.CE_Warning {
			return nil
		}
		return errors.New(plain(msg))
	})
	for y := 0; y < s.SizeY; y += s.BlockSizeY {
		for x := 0; x < s.SizeX; x += s.BlockSizeX {
			for i, band := range bands {
				item := fmt.Sprintf("BLOCK_OFFSET_%d_%d", x/s.BlockSizeX, y/s.BlockSizeY)
				if sparse && band.Metadata(item, godal.Domain("TIFF")) == "" {
					continue
				}
				// One pixel makes GDAL decode the whole block.
				if err := band.Read(x, y, one, 1, 1, strict); err != nil {
					return fmt.Errorf("%s, band %d, block at column %d, row %d: %s", name, i+1, x, y, strings.TrimSpace(err.Error()))
				}
			}
		}
	}
	return nil
}
