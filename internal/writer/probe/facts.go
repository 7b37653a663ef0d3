//go:build cgo

package probe

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/footprint"
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

// locate finds the footprint, or says why there is none.
func locate(ds *godal.Dataset, f *wire.Facts) (*geom.MultiPolygon, *wire.Refusal) {
	gt, haveTransform := geoTransform(ds)
	const warp = "warp it to a projected grid first (gdalwarp)"
	switch {
	case haveTransform && f.CRS == "":
		return nil, refuse(catalog.CodeNoCRS, "the raster has no coordinate reference system: write one (gdal_edit.py -a_srs EPSG:…), or let the collection take rasters without a footprint")
	case haveTransform:
	case len(ds.GCPs()) > 0:
		return nil, refuse(catalog.CodeNoFootprint, "the raster is placed by ground control points only (GCPs): "+warp)
	case len(ds.Metadatas(godal.Domain("RPC"))) > 0:
		return nil, refuse(catalog.CodeNoFootprint, "the raster is placed by rational polynomial coefficients only (RPCs): "+warp)
	case f.CRS == "":
		return nil, refuse(catalog.CodeNoCRS, "the raster has no coordinate reference system and no geotransform: write both (gdal_edit.py -a_srs EPSG:… -a_ullr …), or let the collection take rasters without a footprint")
	default:
		return nil, refuse(catalog.CodeNoFootprint, "the raster has a coordinate reference system but no geotransform: write one (gdal_edit.py -a_ullr …)")
	}

	sr := ds.SpatialRef()
	defer sr.Close()
	p, err := newProjection(sr)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "%v", err)
	}
	defer p.Close()
	unit, _ := sr.AttrValue("GEOGCS|UNIT", 0)
	mp, err := footprint.Of(footprint.Grid{
		Width: f.Width, Height: f.Height, Transform: gt,
		Geographic: sr.Geographic() && unit == "degree",
	}, p.toLonLat, p.toGrid)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "the raster has no outline in WGS 84: %v", err)
	}
	return mp, nil
}

// projection takes coordinates of a raster's system to WGS 84 and back.
type projection struct {
	wgs84         *godal.SpatialRef
	forward, back *godal.Transform
}

// earthRadius in metres, and how far, as a share, a reference body may be from it: all
// ellipsoids and spheres in use for the Earth are within half a percent.
const (
	earthRadius = 6378137
	earthMargin = 0.005
)

// newProjection fails where sr is not a system of the Earth.
func newProjection(sr *godal.SpatialRef) (*projection, error) {
	if !sr.Geographic() && !sr.Projected() {
		return nil, errors.New("the raster's coordinate reference system is local: it has no known place on the Earth")
	}
	if a, err := sr.SemiMajor(); err == nil && math.Abs(a-earthRadius) > earthMargin*earthRadius {
		return nil, fmt.Errorf("the raster's coordinate reference system is not of the Earth: its body has a radius of %.0f km", a/1000)
	}
	p := &projection{}
	var err error
	if p.wgs84, err = godal.NewSpatialRefFromEPSG(4326); err != nil {
		return nil, fmt.Errorf("PROJ does not know EPSG:4326: %w", err)
	}
	if p.forward, err = godal.NewTransform(sr, p.wgs84, godal.ErrLogger(failures)); err == nil {
		p.back, err = godal.NewTransform(p.wgs84, sr, godal.ErrLogger(failures))
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("PROJ cannot take the raster's coordinate reference system to WGS 84: %w", err)
	}
	return p, nil
}

func failures(category godal.ErrorCategory, _ int, msg string) error {
	if category < godal.CE_Failure {
		return nil
	}
	return errors.New(msg)
}

func (p *projection) Close() {
	if p.forward != nil {
		p.forward.Close()
	}
	if p.back != nil {
		p.back.Close()
	}
	p.wgs84.Close()
}

func (p *projection) toLonLat(xs, ys []float64) { transform(p.forward, xs, ys) }
func (p *projection) toGrid(xs, ys []float64)   { transform(p.back, xs, ys) }

// transform makes NaN of what cannot be transformed.
func transform(t *godal.Transform, xs, ys []float64) {
	ok := make([]bool, len(xs))
	_ = t.TransformEx(xs, ys, nil, ok) // each point says for itself
	for i := range ok {
		if !ok[i] {
			xs[i], ys[i] = math.NaN(), math.NaN()
		}
	}
}
