//go:build cgo

package probe

import (
	"errors"
	"fmt"
	"math"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/footprint"
	"catalogd/internal/writer/wire"
)

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
