//go:build cgo

package probe

import (
	"fmt"
	"math"
	"sort"
	"strconv"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/tiff"
	"catalogd/internal/writer/wire"
)

// identity is the geotransform of a raster that has none: pixels and lines.
var identity = [6]float64{0, 1, 0, 0, 0, 1}

func refuse(code catalog.Code, format string, args ...any) *wire.Refusal {
	return wire.Refuse(code, format, args...).Refusal
}

// describe finds all facts but the footprint.
func describe(ds *godal.Dataset, report tiff.Report) (*wire.Facts, *wire.Refusal) {
	s := ds.Structure()
	if s.NBands == 0 {
		return nil, refuse(catalog.CodeNotARaster, "the file has no band")
	}
	if s.NBands > wire.MaxBands {
		return nil, refuse(catalog.CodeNotARaster, "the raster has %s bands; at most %s are taken", grouped(uint64(s.NBands)), grouped(wire.MaxBands))
	}
	f := &wire.Facts{
		Driver:    ds.Driver().ShortName(),
		MediaType: catalog.MediaTypeGeoTIFF,
		Width:     s.SizeX,
		Height:    s.SizeY,
		Transform: identity,
		CRS:       crs(ds),
		Tags:      tags(ds.Metadatas()),
	}
	if f.IsCOG, _ = report.COG(); f.IsCOG {
		f.MediaType = catalog.MediaTypeCOG
	}
	if gt, ok := geoTransform(ds); ok {
		for _, v := range gt {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, refuse(catalog.CodeNoFootprint, "the raster's geotransform is not finite: %v", gt)
			}
		}
		f.Transform = gt
	}
	f.Acquired = acquired(f.Tags)
	for _, band := range ds.Bands() {
		f.Bands = append(f.Bands, describeBand(band))
	}
	return f, nil
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
	return out
}

func finite(vs ...float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// tags keeps what fits the pipe: tags whose value is too long are left out, and those,
// in order of their names, past the limit of all together.
func tags(in map[string]string) map[string]string {
	names := make([]string, 0, len(in))
	for name := range in {
		names = append(names, name)
	}
	sort.Strings(names)
	out := make(map[string]string)
	total := 0
	for _, name := range names {
		value := in[name]
		if len(name)+len(value) > wire.MaxTagBytes/2 || len(out) == wire.MaxTags {
			continue
		}
		// A byte that is not UTF-8 becomes three.
		name, value = wire.Text(name, wire.MaxTagBytes), wire.Text(value, wire.MaxTagBytes)
		if total += len(name) + len(value); total > wire.MaxTagsBytes {
			break
		}
		out[name] = value
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func geoTransform(ds *godal.Dataset) ([6]float64, bool) {
	gt, err := ds.GeoTransform()
	return gt, err == nil
}

// crs is "EPSG:n" where the raster's system is exactly that one, else WKT2; "" for none.
func crs(ds *godal.Dataset) string {
	if ds.Projection() == "" {
		return ""
	}
	sr := ds.SpatialRef()
	defer sr.Close()
	if sr.AuthorityName("") == "EPSG" {
		if code, err := strconv.Atoi(sr.AuthorityCode("")); err == nil {
			if exact, err := godal.NewSpatialRefFromEPSG(code, godal.ErrLogger(ignore)); err == nil {
				defer exact.Close()
				if sr.IsSame(exact) {
					return fmt.Sprintf("EPSG:%d", code)
				}
			}
		}
	}
	wkt, err := sr.WKT(godal.ErrLogger(ignore))
	if err != nil {
		wkt = ds.Projection()
	}
	return wire.Text(wkt, wire.MaxCRS)
}
