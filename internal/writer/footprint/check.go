package footprint

import "math"

// check holds a footprint against the grid, place by place, and refuses it where they
// differ: whatever a projection does, a footprint is true or there is none.
func (t *tracer) check(segments []segment, polygons []polygon) error {
	// What is near the outline is not asked about: it may be on either side.
	near := 2 * t.tolerance
	if !t.limb {
		near = math.Max(near, 2*worst(segments))
	} else {
		near = math.Max(near, math.Max(t.to.u-t.from.u, t.to.v-t.from.v)/latticeSizeLimb)
	}
	var inGrid []polygon // where there is a limb; else the outline is the grid's own
	if t.limb {
		var outline [][2]float64
		for _, s := range segments {
			outline = append(outline, [2]float64{s.from.u, s.from.v})
			for _, p := range s.inside {
				outline = append(outline, [2]float64{p.u, p.v})
			}
		}
		inGrid = []polygon{{outline}}
	}
	for _, p := range t.lattice {
		away, inside := min(p.u, t.w-p.u, p.v, t.h-p.v), true
		if t.limb {
			away, inside = distanceTo(inGrid, p.u, p.v), holds(inGrid, p.u, p.v)
		}
		if away <= near {
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

// holds tells whether a point lies in the polygons (even-odd rule).
func holds(polygons []polygon, x, y float64) bool {
	in := false
	for _, polygon := range polygons {
		for _, ring := range polygon {
			a := ring[len(ring)-1]
			for _, b := range ring {
				if (a[1] > y) != (b[1] > y) && x < a[0]+(b[0]-a[0])*(y-a[1])/(b[1]-a[1]) {
					in = !in
				}
				a = b
			}
		}
	}
	return in
}

// distanceTo is how far a point is from the polygons' edges.
func distanceTo(polygons []polygon, x, y float64) float64 {
	least := math.Inf(1)
	for _, polygon := range polygons {
		for _, ring := range polygon {
			a := ring[len(ring)-1]
			for _, b := range ring {
				dx, dy, px, py := b[0]-a[0], b[1]-a[1], x-a[0], y-a[1]
				f := 0.0
				if length := dx*dx + dy*dy; length > 0 {
					f = clamp((px*dx + py*dy) / length)
				}
				px, py = px-f*dx, py-f*dy
				if d := px*px + py*py; d < least {
					least = d
				}
				a = b
			}
		}
	}
	return math.Sqrt(least)
}

func wrap(lon float64) float64 { return lon - 360*math.Floor((lon+180)/360) }
