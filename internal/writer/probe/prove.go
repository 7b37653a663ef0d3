package probe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/flatgeobuf"
	"catalogd/internal/writer/geojson"
	"catalogd/internal/writer/gpkg"
	"catalogd/internal/writer/jp2"
	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/tiff"
	"catalogd/internal/writer/wire"
)

func refuse(code catalog.Code, format string, args ...any) *wire.Refusal {
	return wire.Refuse(code, format, args...).Refusal
}

// identify finds the driver of a file by its first bytes, and refuses what its collection
// does not take and what was not announced.
func identify(job wire.Job, src *wire.Source) (string, *wire.Refusal) {
	head := make([]byte, 512)
	n, _ := src.ReadAt(head, 0) // a failed read stays src's error, and the verdict
	head = head[:n]
	if src.Err() != nil {
		return "", refuse(catalog.CodeProbeFailed, "reading the file failed: %v", src.Err())
	}
	driver, format := recognise(head)
	takes := job.Request.Drivers
	if len(takes) == 0 {
		takes = []string{catalog.DriverGTiff}
	}
	if driver == "" && format == "" {
		begins := "it begins with bytes that are no text"
		if text := string(head[:min(len(head), 24)]); strings.IndexFunc(strings.TrimSpace(text), func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) || r == utf8.RuneError }) < 0 {
			begins = fmt.Sprintf("it begins with %q", strings.Join(strings.Fields(text), " "))
		}
		return "", refuse(catalog.CodeNotARaster, "the output is of no known format, whatever its name says: %s; write %s", begins, names(takes))
	}
	if driver == "" {
		return "", refuse(catalog.CodeDriverRefused, "the output is %s; the collection's drivers are %s", format, names(takes))
	}
	if !job.Request.Takes(driver) {
		return "", refuse(catalog.CodeDriverRefused, "the output is %s, and the collection's drivers are %s: write one of these, or add %s to the drivers", format, names(takes), driver)
	}
	if !slices.Contains(drivers, driver) {
		return "", refuse(catalog.CodeDriverRefused, "the output is %s, and the server's GDAL has no driver %s: write %s", format, driver, names(drivers))
	}
	if announced, err := catalog.Driver(job.Request.MediaType); err == nil && announced != driver {
		return "", refuse(catalog.CodeMediaType, "the output is %s, and %q was announced at begin: announce %q", format, job.Request.MediaType, catalog.MediaTypeOf(driver))
	}
	return driver, nil
}

// names makes "GeoTIFF (best as COG: gdal_translate -of COG), GPKG" of drivers.
func names(drivers []string) string {
	out := strings.Join(drivers, ", ")
	return strings.Replace(out, catalog.DriverGTiff, "GeoTIFF (best as COG: gdal_translate -of COG)", 1)
}

// proven is what the proof of a format found.
type proven struct {
	raster, features bool
	// blocks, or tiles, and those of them that were never written.
	blocks, missing uint64
	// pages of a TIFF, by their offset.
	pages map[string]tiff.Page
	// extents of layers, as found; see gpkg.Report.
	extents map[string][4]float64
	// tags that GDAL does not give.
	tags      map[string]string
	odd       string // one that says whose the file is, and cannot be taken at its word
	cog       bool
	cogReason string
}

// prove has a file proved complete, as far as it can be without GDAL.
func prove(driver string, src *wire.Source) (proven, error) {
	size := src.Size()
	switch driver {
	case catalog.DriverGTiff:
		r, err := tiff.Prove(src, size)
		p := proven{raster: true, blocks: r.Blocks, missing: r.Missing}
		p.cog, p.cogReason = r.COG()
		p.pages = make(map[string]tiff.Page, len(r.Pages))
		for _, page := range r.Pages {
			p.pages[strconv.FormatUint(page.Offset, 10)] = page
		}
		return p, err
	case catalog.DriverGPKG:
		r, err := gpkg.Prove(src, size)
		return proven{raster: r.Rasters > 0, features: r.Vectors > 0, blocks: r.Tiles, missing: r.Missing, extents: r.Extents}, err
	case catalog.DriverFlatGeobuf:
		r, err := flatgeobuf.Prove(src, size)
		return proven{features: true, tags: r.Tags, odd: r.Odd}, err
	case catalog.DriverGeoJSON:
		r, err := geojson.Prove(src, size)
		// What GDAL writes there by itself is no tag.
		maps.DeleteFunc(r.Tags, func(name, _ string) bool { return name == "name" })
		return proven{features: true, tags: r.Tags, odd: r.Odd}, err
	default:
		r, err := jp2.Prove(src, size)
		return proven{raster: true, blocks: r.Tiles, missing: r.Missing}, err
	}
}

// holes looks for damage that decoding passes over without a word.
func holes(driver string, src *wire.Source) error {
	if driver != catalog.DriverJP2 {
		return nil
	}
	return jp2.Holes(src, src.Size())
}

// maxAbsent tiles of a GeoPackage are passed over by a decode: GDAL queries for each.
const maxAbsent = 1 << 16

// check refuses what a collection does not take of a whole file.
func (p proven) check(driver string, req catalog.ProbeRequest) *wire.Refusal {
	if p.missing > 0 && !req.SparseAllowed {
		return refuse(catalog.CodeSparse, "%s of %s blocks were never written: the writer was killed or has not closed the file; "+
			"write it again and hand it over once closed; or, if those blocks are meant to be absent, set the collection's sparse_allowed",
			grouped(p.missing), grouped(p.blocks))
	}
	if driver == catalog.DriverGPKG && req.Decode && p.missing > maxAbsent {
		return refuse(catalog.CodeSparse, "%s of %s tiles are absent, and to decode the others each of those would be asked for; at most %s are: "+
			"narrow the raster's extent in gpkg_contents to the tiles that are there", grouped(p.missing), grouped(p.blocks), grouped(maxAbsent))
	}
	if driver == catalog.DriverGTiff && req.MediaType == catalog.MediaTypeCOG && !p.cog {
		return refuse(catalog.CodeMediaType, "the output was announced as a cloud-optimized GeoTIFF and is none: %s; write it with GDAL's COG driver, or announce %q", p.cogReason, catalog.MediaTypeGeoTIFF)
	}
	return nil
}

// unproven is the verdict on a file that its proof does not pass.
func unproven(driver string, err error) wire.Verdict {
	var truncated *proof.TruncatedError
	var malformed *proof.MalformedError
	var dependent *proof.DependentError
	switch {
	case errors.As(err, &truncated):
		return wire.Refuse(catalog.CodeTruncated, "the file is cut off: %v; hand it over only once it is written to the end and closed", truncated)
	case errors.As(err, &dependent):
		return wire.Refuse(catalog.CodeSidecar, "the file is not self-contained: %v", dependent)
	case errors.As(err, &malformed):
		return wire.Refuse(catalog.CodeNotARaster, "the file is no sound %s: %v", driver, malformed)
	case errors.Is(err, tiff.ErrNotTIFF), errors.Is(err, gpkg.ErrNotSQLite), errors.Is(err, flatgeobuf.ErrNotFlatGeobuf), errors.Is(err, jp2.ErrNotJP2):
		return wire.Refuse(catalog.CodeNotARaster, "the file begins like %s, and goes on like nothing known: %v", driver, err)
	default:
		return wire.Refuse(catalog.CodeProbeFailed, "reading the file failed: %v", err)
	}
}
