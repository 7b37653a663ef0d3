//go:build cgo

package probe

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// describeRaster finds all facts of a raster but the footprint.
func describeRaster(ds *godal.Dataset, p proven, f *wire.Facts) *wire.Refusal {
	s := ds.Structure()
	if s.NBands == 0 && f.Driver == catalog.DriverGPKG {
		return refuse(catalog.CodeNotARaster, "the GeoPackage holds several rasters: write one a file")
	}
	if s.NBands == 0 {
		return refuse(catalog.CodeNotARaster, "the file has no band")
	}
	if s.NBands > wire.MaxBands {
		return refuse(catalog.CodeNotARaster, "the raster has %s bands; at most %s are taken", grouped(uint64(s.NBands)), grouped(wire.MaxBands))
	}
	if f.IsCOG = p.cog; p.cog {
		f.MediaType = catalog.MediaTypeCOG
	}
	f.Width, f.Height = s.SizeX, s.SizeY
	if gt, ok := geoTransform(ds); ok {
		if !finite(gt[:]...) {
			return refuse(catalog.CodeNoFootprint, "the raster's geotransform is not finite: %v", gt)
		}
		f.Transform = gt
	}
	sr := system(ds)
	defer sr.Close()
	f.CRS, f.CRSWKT = crs(sr)
	if refusal := addTags(f, p, ds.Metadatas()); refusal != nil {
		return refusal
	}
	for _, band := range ds.Bands() {
		f.Bands = append(f.Bands, describeBand(band))
	}
	f.Layout = layout(ds)
	f.Layout.COGReason = wire.Text(p.cogReason, wire.MaxMessage)
	return nil
}

// layout says how a raster's bytes lie in its file.
func layout(ds *godal.Dataset) catalog.Layout {
	first := ds.Bands()[0]
	s := first.Structure()
	structure := godal.Domain("IMAGE_STRUCTURE")
	l := catalog.Layout{
		Compression: wire.Text(ds.Metadata("COMPRESSION", structure), 64),
		Interleave:  wire.Text(ds.Metadata("INTERLEAVE", structure), 64),
		BlockSize:   [2]int{s.BlockSizeX, s.BlockSizeY},
		Mask:        ownMask(first),
	}
	for _, overview := range first.Overviews() {
		if len(l.Overviews) < wire.MaxOverviews {
			s := overview.Structure()
			l.Overviews = append(l.Overviews, [2]int{s.SizeX, s.SizeY})
		}
	}
	return l
}

// ownMask tells whether a band has a mask that is neither nodata nor another band.
func ownMask(b godal.Band) bool {
	const perDataset, alpha, nodata = 2, 4, 8
	flags := b.MaskFlags()
	return flags&perDataset != 0 && flags&(alpha|nodata) == 0
}

func describeBand(b godal.Band) catalog.Band {
	s := b.Structure()
	out := catalog.Band{
		DataType:    s.DataType.String(),
		NoData:      noData(b),
		Description: wire.Text(b.Description(), wire.MaxBandText),
		Unit:        wire.Text(unitType(b), wire.MaxBandText),
		ColorInterp: b.ColorInterp().Name(),
	}
	// GDAL says 1 and 0 where nothing is set.
	if finite(s.Scale, s.Offset) && (s.Scale != 1 || s.Offset != 0) {
		out.Scale, out.Offset = &s.Scale, &s.Offset
	}
	out.Statistics = statistics(b)
	return out
}

// statistics are those that are stored with a band, all four; nil if one is missing.
func statistics(b godal.Band) *catalog.Statistics {
	var v [4]float64
	for i, name := range []string{"MINIMUM", "MAXIMUM", "MEAN", "STDDEV"} {
		var err error
		if v[i], err = strconv.ParseFloat(b.Metadata("STATISTICS_"+name), 64); err != nil || !finite(v[i]) {
			return nil
		}
	}
	return &catalog.Statistics{Minimum: v[0], Maximum: v[1], Mean: v[2], StdDev: v[3]}
}

func finite(vs ...float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// addTags adds to f what fits the pipe. Tags that say whose the file is are kept, or cost
// the file its verdict. Of the others those whose value is too long are left out, and
// those, in order of their names, past the limit of all together; of two of one name the
// later set's stays.
func addTags(f *wire.Facts, p proven, sets ...map[string]string) *wire.Refusal {
	if p.odd != "" {
		return refuse(catalog.CodeIdentityMismatch, "the output's %s is no text, or stands there twice with different values: write it once, as text, as begin gave it", p.odd)
	}
	marks, in := make(map[string]string), make(map[string]string)
	total := 0
	for _, set := range append([]map[string]string{f.Tags}, append(sets, p.tags)...) {
		for name, value := range set {
			mark, ok := catalog.Mark(name)
			if !ok {
				in[name] = value
				continue
			}
			if len(value) > wire.MaxTagBytes || wire.Text(value, wire.MaxTagBytes) != value {
				return refuse(catalog.CodeIdentityMismatch, "the output's tag %s is no text of at most %s bytes, and so no unit's: write the tags that begin gave", mark, grouped(wire.MaxTagBytes))
			}
			if before, twice := marks[mark]; twice && !sameMark(mark, before, value) {
				return refuse(catalog.CodeIdentityMismatch, "the output's tag %s is %.200q in one place and %.200q in another: write the tags that begin gave, once", mark, before, value)
			} else if !twice {
				total += len(mark) + len(value)
			}
			marks[mark] = value
		}
	}
	out := marks
	for _, name := range slices.Sorted(maps.Keys(in)) {
		value := in[name]
		if len(name)+len(value) > wire.MaxTagBytes/2 || len(out) == wire.MaxTags {
			continue
		}
		// A byte that is not UTF-8 becomes three.
		name, value = wire.Text(name, wire.MaxTagBytes), wire.Text(value, wire.MaxTagBytes)
		if _, ok := catalog.Mark(name); ok {
			continue // it was not one before it was made a text
		}
		if total += len(name) + len(value); total > wire.MaxTagsBytes {
			break
		}
		out[name] = value
	}
	if f.Tags = out; len(out) == 0 {
		f.Tags = nil
	}
	return nil
}

// marksOf are those of a set's tags that say whose the file is.
func marksOf(set map[string]string) map[string]string {
	maps.DeleteFunc(set, func(name, _ string) bool { _, ok := catalog.Mark(name); return !ok })
	return set
}

// sameMark tells whether two values of such a tag say the same: identities are compared
// by value.
func sameMark(mark, a, b string) bool {
	if a == b || mark != catalog.TagIdentity {
		return a == b
	}
	x, err1 := catalog.ParseIdentity([]byte(a))
	y, err2 := catalog.ParseIdentity([]byte(b))
	return err1 == nil && err2 == nil && string(x.Canonical()) == string(y.Canonical())
}

func geoTransform(ds *godal.Dataset) ([6]float64, bool) {
	gt, err := ds.GeoTransform()
	return gt, err == nil
}

// authorities are those that PROJ's database holds, and that a code is looked up with.
var authorities = []string{"EPSG", "ESRI", "IGNF", "IAU_2015", "OGC"}

// crs gives a system as "authority:code" where it is exactly that one, else WKT2, and as
// WKT2 always: that of the code, if it has one; "" for none.
func crs(sr *godal.SpatialRef) (code, wkt string) {
	wkt = wire.Text(wkt2(sr), wire.MaxCRS)
	if wkt == "" {
		return "", ""
	}
	name, number := sr.AuthorityName(""), sr.AuthorityCode("")
	if !slices.Contains(authorities, name) || !codeText.MatchString(number) {
		return wkt, wkt
	}
	code = name + ":" + number
	exact, err := godal.NewSpatialRef(code, godal.ErrLogger(ignore))
	if err != nil {
		return wkt, wkt
	}
	defer exact.Close()
	if !sr.IsSame(exact) {
		return wkt, wkt
	}
	if text := byCode()(code); text != "" {
		wkt = text
	}
	return code, wkt
}

var codeText = regexp.MustCompile(`^[A-Za-z0-9]{1,16}$`)
