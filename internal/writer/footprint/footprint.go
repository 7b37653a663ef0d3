// Package footprint finds the outline of a raster on the Earth: a valid WGS 84
// MultiPolygon, longitude before latitude, exterior rings counter-clockwise, cut at
// the antimeridian (RFC 7946, section 3.1.9).
//
// The outline is that of the grid's outer edges, whatever their direction (rotated,
// sheared, south-up). Edges are densified until the straight line between two
// neighbouring points, in longitude and latitude, is at most half a pixel away from the
// edge, measured in the raster's own grid. A ring that runs round a pole is closed
// over it. What has no honest outline is an error: points that are off the Earth, or
// that do not survive the way back, rings that cross themselves.
//
// Pure: it is given the reprojection as a function. Imports the standard library and
// go-geom only.
package footprint

import (
	"errors"
	"fmt"
	"math"

	geom "github.com/twpayne/go-geom"
)

// Transform reprojects points in place. A point that has no image becomes NaN or
// infinite.
type Transform func(xs, ys []float64)

// Grid is the raster.
type Grid struct {
	Width, Height int
	// Transform is GDAL's geotransform, see catalog.Facts.
	Transform [6]float64
	// Geographic: the coordinates are longitude and latitude in degrees, on any datum.
	Geographic bool
}

// Errors that say why there is no footprint.
var (
	ErrOffEarth   = errors.New("part of the raster's edge is not on the Earth in its projection")
	ErrDegenerate = errors.New("the raster's geotransform has no area")
	ErrCrossed    = errors.New("the raster's outline crosses itself on the Earth")
)

const (
	// tolerance of the outline, in pixels.
	tolerance = 0.5
	// minSegments of an edge: the longest edge, once round the Earth, then has
	// segments of 90 degrees, whose direction is not in doubt.
	minSegments = 4
	// maxVertices bounds the ring before it is cut. Where they do not suffice for
	// the tolerance, the worst parts got them.
	maxVertices = 400
	// nearly is a tenth of a metre in degrees.
	nearly = 1e-6
)

// Of finds the footprint of g. toLonLat takes the raster's coordinates to WGS 84
// longitude and latitude in degrees; toGrid is its inverse.
func Of(g Grid, toLonLat, toGrid Transform) (*geom.MultiPolygon, error) {
	o := &outliner{g: g, toLonLat: toLonLat, toGrid: toGrid}
	t := g.Transform
	det := t[1]*t[5] - t[2]*t[4]
	if math.IsNaN(det) || math.IsInf(det, 0) || det == 0 || !finite(t[0], t[3]) || g.Width < 1 || g.Height < 1 {
		return nil, ErrDegenerate
	}
	o.period = o.findPeriod()
	points, err := o.ring()
	if err != nil {
		return nil, err
	}
	ring, err := closeOnSphere(points)
	if err != nil {
		return nil, err
	}
	return cut(ring)
}

// point of the outline. u and v count pixels and lines from the grid's origin.
type point struct {
	u, v     float64
	lon, lat float64
	// right and down are how far one pixel's step moves lon and lat.
	right, down [2]float64
}

type outliner struct {
	g                Grid
	toLonLat, toGrid Transform
	// period is what x gains in a full turn, for cylindrical projections, whose grids
	// may run past the antimeridian; else 0.
	period float64
}

func (o *outliner) xy(u, v float64) (x, y float64) {
	t := o.g.Transform
	x, y = t[0]+u*t[1]+v*t[2], t[3]+u*t[4]+v*t[5]
	if o.g.Geographic {
		// Grids of points often reach half a cell past the pole.
		cell := math.Abs(t[4]) + math.Abs(t[5])
		if math.Abs(y) <= 90+cell {
			y = math.Max(-90, math.Min(90, y))
		}
	}
	return x, y
}

// locate fills in where the points are on the Earth.
func (o *outliner) locate(points []point) error {
	const per = 3
	w, h := float64(o.g.Width), float64(o.g.Height)
	xs, ys := make([]float64, per*len(points)), make([]float64, per*len(points))
	for i, p := range points {
		// One-sided differences, towards the inside, where the projection is at home.
		xs[per*i], ys[per*i] = o.xy(p.u, p.v)
		xs[per*i+1], ys[per*i+1] = o.xy(p.u+inwards(p.u, w), p.v)
		xs[per*i+2], ys[per*i+2] = o.xy(p.u, p.v+inwards(p.v, h))
	}
	lons, lats := append([]float64(nil), xs...), append([]float64(nil), ys...)
	o.toLonLat(lons, lats)
	if !finite(lons...) || !finite(lats...) {
		return ErrOffEarth
	}
	for _, lat := range lats {
		if math.Abs(lat) > 90+nearly {
			return ErrOffEarth
		}
	}
	if err := o.wayBack(xs, ys, lons, lats); err != nil {
		return err
	}
	for i := range points {
		p, j := &points[i], per*i
		p.lon, p.lat = lons[j], math.Max(-90, math.Min(90, lats[j]))
		su, sv := inwards(p.u, w), inwards(p.v, h)
		p.right = [2]float64{turn(lons[j+1]-lons[j]) * su, (lats[j+1] - lats[j]) * su}
		p.down = [2]float64{turn(lons[j+2]-lons[j]) * sv, (lats[j+2] - lats[j]) * sv}
	}
	return nil
}

// wayBack refuses points that come back elsewhere: some projections give a place on
// the Earth to points that are none (a sinusoidal grid's corners, for instance).
func (o *outliner) wayBack(xs, ys, lons, lats []float64) error {
	bx, by := append([]float64(nil), lons...), append([]float64(nil), lats...)
	o.toGrid(bx, by)
	t := o.g.Transform
	det := t[1]*t[5] - t[2]*t[4]
	for i := range xs {
		dx, dy := bx[i]-xs[i], by[i]-ys[i]
		if o.period > 0 {
			dx -= o.period * math.Round(dx/o.period)
		}
		// Rounding in large coordinates may exceed half a very small pixel.
		noise := 1e-9 * (math.Abs(xs[i]) + math.Abs(ys[i]))
		du, dv := (dx*t[5]-dy*t[2])/det, (dy*t[1]-dx*t[4])/det
		if math.Hypot(dx, dy) > noise && !(math.Hypot(du, dv) <= tolerance) {
			// At a pole every longitude is right.
			if o.g.Geographic && math.Abs(ys[i]) > 90-nearly && math.Abs(by[i]-ys[i]) < nearly {
				continue
			}
			return ErrOffEarth
		}
	}
	return nil
}

// findPeriod measures a full turn along two parallels and finds out whether they agree
// and longitude is linear in x, as in cylindrical projections and geographic grids.
func (o *outliner) findPeriod() float64 {
	lons := []float64{-179.9, 0, 179.9, -179.9, 0, 179.9}
	lats := []float64{0, 0, 0, 45, 45, 45}
	o.toGrid(lons, lats)
	if !finite(lons...) || !finite(lats...) {
		return 0
	}
	turn := (lons[2] - lons[0]) * 360 / 359.8
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(turn) }
	if turn > 0 && near(lons[5]-lons[3], lons[2]-lons[0]) && near(lons[1]-lons[0], lons[2]-lons[1]) &&
		near(lats[0], lats[1]) && near(lats[1], lats[2]) {
		return turn
	}
	return 0
}

// segment is a part of an edge, with its points at a quarter, half and three quarters.
type segment struct {
	from, to point
	inside   [3]point
	err      float64
}

// ring walks the four edges and gives their points, in order, the first not repeated,
// counter-clockwise as seen from above the Earth. Longitudes are not unwrapped.
func (o *outliner) ring() ([]point, error) {
	w, h := float64(o.g.Width), float64(o.g.Height)
	corners := [][2]float64{{0, 0}, {0, h}, {w, h}, {w, 0}, {0, 0}}
	var nodes []point
	for e := 0; e < 4; e++ {
		for i := 0; i < minSegments; i++ {
			f := float64(i) / minSegments
			nodes = append(nodes, point{u: corners[e][0] + f*(corners[e+1][0]-corners[e][0]), v: corners[e][1] + f*(corners[e+1][1]-corners[e][1])})
		}
	}
	if err := o.locate(nodes); err != nil {
		return nil, err
	}
	segments := make([]segment, len(nodes))
	for i := range nodes {
		s, err := o.segment(nodes[i], nodes[(i+1)%len(nodes)])
		if err != nil {
			return nil, err
		}
		segments[i] = s
	}
	for len(segments) < maxVertices {
		worst := 0
		for i := range segments {
			if segments[i].err > segments[worst].err {
				worst = i
			}
		}
		if segments[worst].err <= tolerance {
			break
		}
		s := segments[worst]
		a, err := o.segment(s.from, s.inside[1])
		if err != nil {
			return nil, err
		}
		b, err := o.segment(s.inside[1], s.to)
		if err != nil {
			return nil, err
		}
		segments = append(segments[:worst], append([]segment{a, b}, segments[worst+1:]...)...)
	}
	ring := make([]point, len(segments))
	for i, s := range segments {
		ring[i] = s.from
	}
	if o.mirrored(ring) {
		for i, j := 0, len(ring)-1; i < j; i, j = i+1, j-1 {
			ring[i], ring[j] = ring[j], ring[i]
		}
	}
	return ring, nil
}

// mirrored tells whether down, then right, turns clockwise on the Earth.
func (o *outliner) mirrored(ring []point) bool {
	// The best conditioned point decides: at a pole the steps say nothing.
	best := 0.0
	for _, p := range ring {
		det := p.down[0]*p.right[1] - p.down[1]*p.right[0]
		size := math.Hypot(p.down[0], p.down[1]) * math.Hypot(p.right[0], p.right[1])
		if size == 0 || math.Abs(p.lat) > 90-nearly {
			continue
		}
		if sine := det / size; math.Abs(sine) > math.Abs(best) {
			best = sine
		}
	}
	return best < 0
}

// segment locates the points within and measures how far the straight line between its
// ends strays from them, across the edge, in pixels.
func (o *outliner) segment(from, to point) (segment, error) {
	s := segment{from: from, to: to}
	for i := range s.inside {
		f := float64(i+1) / 4
		s.inside[i] = point{u: from.u + f*(to.u-from.u), v: from.v + f*(to.v-from.v)}
	}
	if err := o.locate(s.inside[:]); err != nil {
		return s, err
	}
	dlon, dlat := turn(to.lon-from.lon), to.lat-from.lat
	for i, p := range s.inside {
		f := float64(i+1) / 4
		elon, elat := turn(from.lon+f*dlon-p.lon), from.lat+f*dlat-p.lat
		det := p.right[0]*p.down[1] - p.right[1]*p.down[0]
		du := (elon*p.down[1] - elat*p.down[0]) / det
		dv := (elat*p.right[0] - elon*p.right[1]) / det
		across := math.Abs(du) // the edges on the left and right run along v
		if from.v == to.v {
			across = math.Abs(dv)
		}
		if !finite(across) {
			// At a pole a step says nothing, and neither does the error.
			continue
		}
		s.err = math.Max(s.err, across)
	}
	// A line of no length cannot be split further.
	if math.Abs(from.u-to.u)+math.Abs(from.v-to.v) < 1e-3 {
		s.err = 0
	}
	return s, nil
}

// inwards is the direction of a step from the edge at c of an axis of length n.
func inwards(c, n float64) float64 {
	if c > n/2 {
		return -1
	}
	return 1
}

// turn brings a difference of longitudes to [-180, 180].
func turn(d float64) float64 {
	if d >= -180 && d <= 180 {
		return d
	}
	return d - 360*math.Round(d/360)
}

func finite(vs ...float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// closeOnSphere unwraps the longitudes of a counter-clockwise ring, and closes it over
// the pole if it runs round one or through one. The result is a ring in the plane of
// longitude and latitude, at most one turn wide, whose last point is not its first.
func closeOnSphere(ring []point) ([][2]float64, error) {
	ring, atPole := splitPoles(ring)
	n := len(ring)
	out := make([][2]float64, 0, n+2)
	lon, total, doubtful := ring[0].lon, 0.0, -1
	for i, p := range ring {
		out = append(out, [2]float64{lon, p.lat})
		step := turn(ring[(i+1)%n].lon - p.lon)
		if atPole[i] && math.Abs(math.Abs(step)-180) < nearly {
			doubtful = i
		}
		lon += step
		total += step
	}
	turns := math.Round(total / 360)
	if turns != 0 && doubtful >= 0 && math.Abs(turns) == 1 {
		// The edge runs straight through the pole: half a turn there has no direction
		// of its own, and it is the one that brings the ring back to its start.
		for i := doubtful + 1; i < len(out); i++ {
			out[i][0] -= turns * 360
		}
		turns = 0
	}
	switch turns {
	case 0:
		return out, nil
	case 1, -1:
		// Heading east with the inside on the left goes round the north pole.
		pole := 90 * turns
		start := out[0][0]
		return append(out, [2]float64{start + 360*turns, out[0][1]}, [2]float64{start + 360*turns, pole}, [2]float64{start, pole}), nil
	default:
		return nil, fmt.Errorf("the raster's outline runs %v times round the Earth", math.Abs(turns))
	}
}

// splitPoles puts two points in the place of a corner or edge point that is at a pole,
// one on the meridian of each neighbour. Where neighbours are at the pole as well, the
// projection draws it as a line, and longitudes mean what they say.
func splitPoles(ring []point) ([]point, []bool) {
	n := len(ring)
	pole := func(i int) bool { return math.Abs(ring[(i+n)%n].lat) > 90-1e-9 }
	var out []point
	var at []bool
	for i, p := range ring {
		if !pole(i) || pole(i-1) || pole(i+1) {
			out, at = append(out, p), append(at, false)
			continue
		}
		before, after := p, p
		before.lon, after.lon = ring[(i-1+n)%n].lon, ring[(i+1)%n].lon
		out, at = append(out, before, after), append(at, true, false)
	}
	return out, at
}
