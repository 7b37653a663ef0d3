package footprint

import "math"

// check holds a footprint against the grid, place by place, and refuses it where they
// differ: whatever a projection does, a footprint is true or there is none.
func (t *tracer) check(segments []segment, polygons []polygon) error {
	// What is near the outline is not asked about: it may be on either side.
	near := 2 * t.tolerance
	if t.limb {
		near = math.Max(near, math.Max(t.w, t.h)/latticeSizeLimb)
	}
	for _, p := range t.lattice {
		inside, distance := t.within(segments, p.u, p.v)
		if distance <= near {
			continue
		}
		if p.onEarth() != inside {
			return ErrBroken
		}
		if inside && math.Abs(p.lat) < 90-hair && !holds(polygons, wrap(p.lon), p.lat) {
			return ErrCrossed
		}
	}
	if t.toGrid == nil {
		return nil
	}

	// And from the Earth to the grid: what is in the footprint is in the grid.
	const n = 16
	var lons, lats []float64
	for _, polygon := range polygons {
		west, south, east, north := 180.0, 90.0, -180.0, -90.0
		for _, p := range polygon[0] {
			west, east = math.Min(west, p[0]), math.Max(east, p[0])
			south, north = math.Min(south, p[1]), math.Max(north, p[1])
		}
		for i := range n * n {
			lon, lat := west+(east-west)*(float64(i%n)+0.5)/n, south+(north-south)*(float64(i/n)+0.5)/n
			if holds(polygons, lon, lat) {
				lons, lats = append(lons, lon), append(lats, lat)
			}
		}
	}
	xs, ys := append([]float64(nil), lons...), append([]float64(nil), lats...)
	t.toGrid(xs, ys)
	miss := t.slack + near
	for i := range lons {
		if t.limb && distanceTo(polygons, lons[i], lats[i]) < 10*toleranceLimb {
			continue
		}
		ok := false
		for turn := -2.0; turn <= 2; turn++ {
			u, v := t.uv(xs[i]+turn*t.period, ys[i])
			ok = ok || u > -miss && v > -miss && u < t.w+miss && v < t.h+miss
		}
		if !ok {
			return ErrCrossed
		}
	}
	return nil
}

// within tells whether a place of the grid is inside the outline, and how far from it.
func (t *tracer) within(segments []segment, u, v float64) (inside bool, distance float64) {
	distance = math.Inf(1)
	a := segments[0].from.place
	for _, s := range segments {
		for _, b := range append(s.inside[:], s.to.place) {
			if (a.v > v) != (b.v > v) && u < a.u+(b.u-a.u)*(v-a.v)/(b.v-a.v) {
				inside = !inside
			}
			distance = math.Min(distance, toSegment(u, v, a.u, a.v, b.u, b.v))
			a = b
		}
	}
	return inside, distance
}

func distanceTo(polygons []polygon, lon, lat float64) float64 {
	distance := math.Inf(1)
	for _, polygon := range polygons {
		for _, ring := range polygon {
			for i, a := range ring {
				b := ring[(i+1)%len(ring)]
				distance = math.Min(distance, toSegment(lon, lat, a[0], a[1], b[0], b[1]))
			}
		}
	}
	return distance
}

func toSegment(x, y, ax, ay, bx, by float64) float64 {
	dx, dy := bx-ax, by-ay
	f := 0.0
	if length := dx*dx + dy*dy; length > 0 {
		f = clamp(((x-ax)*dx + (y-ay)*dy) / length)
	}
	return math.Hypot(x-ax-f*dx, y-ay-f*dy)
}

func wrap(lon float64) float64 { return lon - 360*math.Floor((lon+180)/360) }
