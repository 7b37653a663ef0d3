//go:build cgo

package probe

/*
#include <stdlib.h>
#include <gdal.h>
#include <gdal_alg.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"unsafe"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/footprint"
	"catalogd/internal/writer/wire"
)

// locate finds the footprint, or says why there is none. The raster is where GDAL says:
// by its geotransform, else by its ground control points.
func locate(ds *godal.Dataset, f *wire.Facts) (*geom.MultiPolygon, *wire.Refusal) {
	gt, haveTransform := geoTransform(ds)
	gcps := ds.GCPs()
	sr := system(ds)
	defer sr.Close()
	wkt, _ := sr.WKT(godal.ErrLogger(ignore))
	switch haveCRS := wkt != ""; {
	case (haveTransform || len(gcps) > 0) && !haveCRS:
		return nil, refuse(catalog.CodeNoCRS, "the raster has no coordinate reference system: write one (gdal_edit.py -a_srs EPSG:…)")
	case haveTransform || len(gcps) > 0:
	case len(ds.Metadatas(godal.Domain("RPC"))) > 0:
		return nil, refuse(catalog.CodeNoFootprint, "the raster is placed by rational polynomial coefficients only (RPCs): warp it to a projected grid first (gdalwarp -rpc)")
	case !haveCRS:
		return nil, refuse(catalog.CodeNoCRS, "the raster has no coordinate reference system and no geotransform: write both (gdal_edit.py -a_srs EPSG:… -a_ullr …)")
	default:
		return nil, refuse(catalog.CodeNoFootprint, "the raster has a coordinate reference system but no geotransform: write one (gdal_edit.py -a_ullr …)")
	}

	p, err := newProjection(sr)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "%v", err)
	}
	defer p.Close()
	g := footprint.Grid{Width: f.Width, Height: f.Height, Transform: gt, Geographic: sr.Geographic()}
	toLonLat, toGrid := footprint.Transform(p.toLonLat), footprint.Transform(p.toGrid)
	if !haveTransform {
		fit, err := fitGCPs(gcps, sr, polynomial)
		if err != nil {
			return nil, refuse(catalog.CodeNoFootprint, "%v", err)
		}
		defer fit.Close()
		// GDAL fits the way back apart: it is not the inverse.
		g.Transform, g.Geographic, toGrid = [6]float64{0, 1, 0, 0, 0, 1}, false, nil
		toLonLat = func(xs, ys []float64) {
			fit.toCRS(xs, ys)
			p.toLonLat(xs, ys)
		}
	}
	mp, err := footprint.Of(g, toLonLat, toGrid)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "the raster has no outline in WGS 84: %v", err)
	}
	return mp, nil
}

// system is the reference system that places a raster: that of its ground control
// points where it has no geotransform. It may be none.
func system(ds *godal.Dataset) *godal.SpatialRef {
	if _, haveTransform := geoTransform(ds); !haveTransform && len(ds.GCPs()) > 0 {
		return ds.GCPSpatialRef()
	}
	return ds.SpatialRef()
}

// locateBox finds the outline of a box, a layer's extent, in the system sr; nil for none.
func locateBox(sr *godal.SpatialRef, xmin, ymin, xmax, ymax float64) (*geom.MultiPolygon, *wire.Refusal) {
	if sr == nil {
		return nil, refuse(catalog.CodeNoCRS, "the layer has no coordinate reference system: write one (ogr2ogr -a_srs EPSG:…)")
	}
	p, err := newProjection(sr)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "%v", err)
	}
	defer p.Close()
	mp, err := footprint.OfBox(xmin, ymin, xmax, ymax, p.toLonLat, p.toGrid)
	if err != nil {
		return nil, refuse(catalog.CodeNoFootprint, "the layer's extent has no outline in WGS 84: %v", err)
	}
	return mp, nil
}

// gcpFit takes pixels and lines to the system of the ground control points.
type gcpFit struct {
	handle unsafe.Pointer
	spline bool
}

// What goes through the points: GDAL's own choice, as gdalwarp's, is a polynomial, of the
// first order up to five points, of the second from six on. A thin plate spline is made
// on demand only.
const (
	polynomial = false
	spline     = true
)

func fitGCPs(gcps []godal.GCP, sr *godal.SpatialRef, spline bool) (*gcpFit, error) {
	list := make([]C.GDAL_GCP, len(gcps))
	turned := acrossAntimeridian(gcps, sr)
	for i, g := range gcps {
		if !finite(g.DfGCPPixel, g.DfGCPLine, g.DfGCPX, g.DfGCPY) {
			return nil, errors.New("the raster's ground control points (GCPs) are not finite")
		}
		x := g.DfGCPX
		if turned && x < 0 {
			x += 360
		}
		list[i] = C.GDAL_GCP{dfGCPPixel: C.double(g.DfGCPPixel), dfGCPLine: C.double(g.DfGCPLine), dfGCPX: C.double(x), dfGCPY: C.double(g.DfGCPY)}
	}
	fit := &gcpFit{spline: spline}
	if spline {
		fit.handle = C.GDALCreateTPSTransformer(C.int(len(list)), &list[0], 0)
	} else {
		fit.handle = C.GDALCreateGCPTransformer(C.int(len(list)), &list[0], 0, 0)
	}
	if fit.handle == nil {
		return nil, fmt.Errorf("the raster is placed by ground control points (GCPs), and GDAL finds no fit through them: are the %d points on one line?", len(gcps))
	}
	return fit, nil
}

// acrossAntimeridian tells whether longitudes of the points jump by a turn.
func acrossAntimeridian(gcps []godal.GCP, sr *godal.SpatialRef) bool {
	if !sr.Geographic() {
		return false
	}
	spread := func(f func(x float64) float64) float64 {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, g := range gcps {
			lo, hi = math.Min(lo, f(g.DfGCPX)), math.Max(hi, f(g.DfGCPX))
		}
		return hi - lo
	}
	plain := spread(func(x float64) float64 { return x })
	return plain > 180 && spread(func(x float64) float64 {
		if x < 0 {
			return x + 360
		}
		return x
	}) < plain
}

func (f *gcpFit) toCRS(xs, ys []float64) {
	n := len(xs)
	if n == 0 {
		return
	}
	zs, ok := make([]C.double, n), make([]C.int, n)
	x, y := (*C.double)(&xs[0]), (*C.double)(&ys[0])
	if f.spline {
		C.GDALTPSTransform(f.handle, 0, C.int(n), x, y, &zs[0], &ok[0])
	} else {
		C.GDALGCPTransform(f.handle, 0, C.int(n), x, y, &zs[0], &ok[0])
	}
	for i := range ok {
		if ok[i] == 0 {
			xs[i], ys[i] = math.NaN(), math.NaN()
		}
	}
}

func (f *gcpFit) Close() {
	if f.spline {
		C.GDALDestroyTPSTransformer(f.handle)
	} else {
		C.GDALDestroyGCPTransformer(f.handle)
	}
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

// gridPath finds a grid that is named by a path or an address, which PROJ would open.
var gridPath = regexp.MustCompile(`(?i)(?:PARAMETERFILE\["[^"]*",\s*"|grids=)([^"\s]*[/\\:][^"\s]*)`)

// findGridPath spares systems that name no grid the expression, which is slow.
func findGridPath(wkt string) []string {
	if lower := strings.ToLower(wkt); !strings.Contains(lower, "parameterfile[") && !strings.Contains(lower, "grids=") {
		return nil
	}
	return gridPath.FindStringSubmatch(wkt)
}

// newProjection fails where sr is not a system of the Earth.
func newProjection(sr *godal.SpatialRef) (*projection, error) {
	wkt, _ := sr.WKT(godal.ErrLogger(ignore)) // WKT2, as Setup says
	if !sr.Geographic() && !sr.Projected() {
		switch {
		case strings.HasPrefix(wkt, "GEODCRS["):
			return nil, errors.New("the coordinate reference system is geocentric: warp to a geographic or projected one (gdalwarp -t_srs EPSG:…)")
		case strings.HasPrefix(wkt, "VERTCRS["):
			return nil, errors.New("the coordinate reference system is vertical only: it says how high, not where")
		}
		return nil, errors.New("the coordinate reference system is local: it has no known place on the Earth")
	}
	if a, err := sr.SemiMajor(); err == nil && math.Abs(a-earthRadius) > earthMargin*earthRadius {
		return nil, fmt.Errorf("the coordinate reference system is not of the Earth: its body has a radius of %.0f km", a/1000)
	}
	if m := findGridPath(wkt); m != nil {
		return nil, fmt.Errorf("the coordinate reference system leads to a file, %.200q: name a grid of PROJ's own, or the system by its code (gdal_edit.py -a_srs EPSG:…)", m[1])
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
		return nil, fmt.Errorf("PROJ cannot take the coordinate reference system to WGS 84: %w", err)
	}
	return p, nil
}

func failures(category godal.ErrorCategory, _ int, msg string) error {
	if category < godal.CE_Failure {
		return nil
	}
	return errors.New(plain(msg))
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
	if len(xs) == 0 {
		return // which godal does not bear
	}
	ok := make([]bool, len(xs))
	_ = t.TransformEx(xs, ys, nil, ok) // each point says for itself
	for i := range ok {
		if !ok[i] {
			xs[i], ys[i] = math.NaN(), math.NaN()
		}
	}
}
