// Package footprint finds the outline of a raster on the Earth: a valid WGS 84
// MultiPolygon, longitude before latitude, exterior rings counter-clockwise, cut at
// the antimeridian (RFC 7946, section 3.1.9).
//
// The outline is that of the grid's outer edges, whatever their direction (rotated,
// sheared, south-up), or of the limb where the grid reaches beyond it: the border of
// what is on the Earth. It is densified until the straight line between two neighbouring
// points, in longitude and latitude, strays at most half a pixel from the edge. A ring
// round a pole is closed over it. What has no honest outline is an error.
//
// docs/footprints.md has the algorithm and what it promises. The flow is outline; the
// outline's points come from trace.go, and what becomes of them on the sphere from
// cut.go; check.go holds the result against the grid.
//
// Pure: it is given the reprojection as a function. Imports the standard library and
// go-geom only.
package footprint

import (
	"errors"
	"fmt"
	"math"
	"slices"

	geom "github.com/twpayne/go-geom"
)

// Transform takes points from one system to another, in place. A point that has no image
// becomes NaN or infinite.
type Transform func(xs, ys []float64)

// Grid is the raster.
type Grid struct {
	Width, Height int
	// Transform is GDAL's geotransform, see catalog.Facts.
	Transform [6]float64
	// Geographic: the coordinates are longitude and latitude, on any datum, in any unit.
	Geographic bool
}

// Errors that say why there is no footprint.
var (
	ErrOffEarth   = errors.New("the raster, or its edge, is not on the Earth in its coordinate reference system")
	ErrDegenerate = errors.New("the raster's geotransform has no area")
	ErrCrossed    = errors.New("the raster's outline crosses itself on the Earth")
	ErrBroken     = errors.New("what of the raster is on the Earth is not in one simple piece")
	ErrTooFine    = fmt.Errorf("the raster is so long and thin that its outline would need more than %d points", maxPoints)
)

const (
	// tolerance of the outline, in pixels: half a pixel, less what may hide between
	// the places that are looked at. Small rasters are held to a part of their longer
	// side instead.
	tolerance     = 0.4
	toleranceSide = 1.0 / 200
	// toleranceBox is that of a box, as a part of its sides.
	toleranceBox = 1e-4
	// toleranceLimb is that of the limb, where pixels have no size: in degrees on the
	// Earth.
	toleranceLimb = 0.01
	// maxPoints bounds the outline before it is cut. Where bisection does not reach the
	// tolerance with them, see even.
	maxPoints = 500
)

// Of finds the footprint of g. toLonLat takes the raster's coordinates to WGS 84
// longitude and latitude in degrees; toGrid is its inverse. Some projections have an
// answer for points that are nowhere: only the way back tells. Without it (nil) points
// are taken at their word, and all must be on the Earth.
func Of(g Grid, toLonLat, toGrid Transform) (*geom.MultiPolygon, error) {
	longer := float64(max(g.Width, g.Height))
	return outline(g, math.Min(tolerance, longer*toleranceSide), toLonLat, toGrid)
}

// OfBox finds the outline on the Earth of a box in any system. A box without width or
// height, that of a single point for one, gets a few centimetres.
func OfBox(xmin, ymin, xmax, ymax float64, toLonLat, toGrid Transform) (*geom.MultiPolygon, error) {
	grow := func(lo, hi *float64) {
		if least := 1e-8 * math.Max(1, math.Max(math.Abs(*lo), math.Abs(*hi))); *hi-*lo < least {
			*lo, *hi = *lo-least/2, *hi+least/2
		}
	}
	grow(&xmin, &xmax)
	grow(&ymin, &ymax)
	g := Grid{Width: 1, Height: 1, Transform: [6]float64{xmin, xmax - xmin, 0, ymax, 0, ymin - ymax}}
	return outline(g, toleranceBox, toLonLat, toGrid)
}

func outline(g Grid, tolerance float64, toLonLat, toGrid Transform) (*geom.MultiPolygon, error) {
	t := g.Transform
	det := t[1]*t[5] - t[2]*t[4]
	if !finite(t[:]...) || !finite(det) || det == 0 || g.Width < 1 || g.Height < 1 {
		return nil, ErrDegenerate
	}
	tr := &tracer{g: g, w: float64(g.Width), h: float64(g.Height), det: det, tolerance: tolerance, toLonLat: toLonLat, toGrid: toGrid}
	if err := tr.survey(); err != nil {
		return nil, err
	}
	segments, err := tr.trace()
	if err != nil {
		return nil, err
	}
	polygons, err := tr.polygons(segments)
	if tr.rough(segments) {
		if err != nil {
			err = ErrTooFine
		}
		if better := tr.even(segments); better != nil {
			if p, e := tr.polygons(better); e == nil {
				polygons, err = p, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return encode(polygons), nil
}

// polygons makes those of the outline, and holds them against the grid.
func (t *tracer) polygons(segments []segment) ([]polygon, error) {
	if t.mirrored {
		segments = slices.Clone(segments)
		slices.Reverse(segments)
		for i := range segments {
			segments[i].reverse()
		}
	}
	var polygons []polygon
	if south, north, ok := t.belt(segments); ok {
		polygons = []polygon{{{{-180, south}, {180, south}, {180, north}, {-180, north}}}}
	} else {
		var err error
		if polygons, err = cut(unwrap(segments)); err != nil {
			return nil, err
		}
	}
	polygons, err := finish(polygons)
	if err != nil {
		return nil, err
	}
	return polygons, t.check(segments, polygons)
}

func finite(vs ...float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}
