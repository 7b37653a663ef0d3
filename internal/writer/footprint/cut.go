package footprint

import (
	"math"
	"slices"
	"sort"

	geom "github.com/twpayne/go-geom"
)

// polygon is an exterior ring and holes, none of them closed.
type polygon [][][2]float64

// hair is a thousandth of a millimetre, in degrees.
const hair = 1e-11

// unwrap makes a ring in the plane of longitude and latitude of the outline. Longitudes
// run on past 180 degrees; the ring ends turns times 360 degrees east of its start, which
// is not repeated: 1 for an outline round the north pole, -1 for the south pole.
func unwrap(segments []segment) (ring [][2]float64, turns int) {
	n := len(segments)
	start := 0
	for start < n-1 && segments[start].from.pole {
		start++
	}
	lon := segments[start].fromLon
	for i := range n {
		s, before := segments[(start+i)%n], segments[(start+i+n-1)%n]
		ring = append(ring, [2]float64{lon, s.from.lat})
		if s.from.pole {
			// The outline comes to the pole on one meridian and leaves it on another.
			// With the inside on its left, it goes west round the north pole.
			step := math.Mod(s.fromLon-before.toLon, 360)
			if north := s.from.lat > 0; north && step > -hair {
				step -= 360
			} else if !north && step < hair {
				step += 360
			}
			lon += step
			ring = append(ring, [2]float64{lon, s.from.lat})
		}
		lon += s.turn
	}
	return ring, int(math.Round((lon - ring[0][0]) / 360))
}

// cut makes polygons within [-180, 180] of an unwrapped ring that has its inside on the
// left: chains of points are cut off where they leave that box in the east or west, and
// joined along its border, counter-clockwise, which also encloses the poles.
func cut(ring [][2]float64, turns int) ([]polygon, error) {
	if turns < -1 || turns > 1 {
		return nil, ErrCrossed
	}
	west, east := math.Inf(1), math.Inf(-1)
	for i, p := range ring {
		// What is at the antimeridian but for rounding is at the antimeridian.
		if m := 180 + 360*math.Round((p[0]-180)/360); math.Abs(p[0]-m) < 1e-9 {
			ring[i][0] = m
		}
		west, east = math.Min(west, ring[i][0]), math.Max(east, ring[i][0])
	}
	if base := 360 * math.Floor((west+180)/360); turns == 0 && east <= base+180 {
		for i := range ring {
			ring[i][0] -= base
		}
		if signedArea(ring) < 0 {
			// All the Earth but for what the ring goes round.
			return []polygon{{{{-180, -90}, {180, -90}, {180, 90}, {-180, 90}}, ring}}, nil
		}
		return []polygon{{ring}}, nil
	}
	// A whole Earth whose seam is elsewhere: leave a gap there, lest polygons share an edge.
	const gap = 1e-6
	if turns == 0 && math.Abs(east-west-360) < gap {
		for i, p := range ring {
			ring[i][0] = math.Max(west+gap, math.Min(east-gap, p[0]))
		}
	}
	return join(chains(ring, turns)), nil
}

// chains of the ring between two crossings of the antimeridian, each within [-180, 180].
func chains(ring [][2]float64, turns int) [][][2]float64 {
	strip := func(p [2]float64) float64 { return math.Floor((p[0] + 180) / 360) }
	var out [][][2]float64
	k := strip(ring[0])
	current := [][2]float64{{ring[0][0] - 360*k, ring[0][1]}}
	for i, a := range ring {
		b := ring[0]
		if i+1 < len(ring) {
			b = ring[i+1]
		} else {
			b[0] += 360 * float64(turns)
		}
		for end := strip(b); k != end; {
			side := math.Copysign(1, end-k)
			meridian := 360*k + 180*side
			lat := a[1] + (b[1]-a[1])*(meridian-a[0])/(b[0]-a[0])
			out = append(out, append(current, [2]float64{180 * side, lat}))
			current = [][2]float64{{-180 * side, lat}}
			k += side
		}
		current = append(current, [2]float64{b[0] - 360*k, b[1]})
	}
	out[0] = append(current, out[0]...) // which begins where current ends
	return out
}

// join makes rings of chains that begin and end on the border of the box of longitude
// and latitude, along the border.
func join(chains [][][2]float64) []polygon {
	const round = 2 * (360 + 180)
	// border is how far along it a point lies, from the south-west, counter-clockwise.
	border := func(p [2]float64) float64 {
		if p[0] > 0 {
			return 360 + 90 + p[1]
		}
		return 360 + 180 + 360 + 90 - p[1]
	}
	ahead := func(from, to float64) float64 { return math.Mod(to-from+2*round, round) }
	corners := []struct {
		at float64
		p  [2]float64
	}{{540, [2]float64{180, 90}}, {900, [2]float64{-180, 90}}, {round, [2]float64{-180, -90}}, {round + 360, [2]float64{180, -90}}}

	var out []polygon
	used := make([]bool, len(chains))
	for first := range chains {
		var ring [][2]float64
		for c := first; !used[c]; {
			used[c] = true
			ring = append(ring, chains[c]...)
			end, next := border(ring[len(ring)-1]), -1
			for i := range chains {
				if (!used[i] || i == first) && (next < 0 || ahead(end, border(chains[i][0])) < ahead(end, border(chains[next][0]))) {
					next = i
				}
			}
			if next < 0 {
				break
			}
			for _, corner := range corners {
				if ahead(end, corner.at) < ahead(end, border(chains[next][0])) {
					ring = append(ring, corner.p)
				}
			}
			c = next
		}
		if ring != nil {
			out = append(out, polygon{ring})
		}
	}
	return out
}

// finish turns exterior rings counter-clockwise and holes clockwise, drops points and
// rings that say nothing, and refuses rings that cross.
func finish(polygons []polygon) ([]polygon, error) {
	var out []polygon
	largest := 0.0
	for _, polygon := range polygons {
		largest = math.Max(largest, math.Abs(signedArea(polygon[0])))
	}
	for _, in := range polygons {
		var kept polygon
		for i, ring := range in {
			ring = tidy(ring)
			area := signedArea(ring)
			if len(ring) < 3 || math.Abs(area) <= 1e-12*largest {
				if i == 0 {
					break
				}
				continue
			}
			if (area > 0) != (i == 0) {
				slices.Reverse(ring)
			}
			kept = append(kept, ring)
		}
		if kept != nil {
			out = append(out, kept)
		}
	}
	if out == nil {
		return nil, ErrDegenerate
	}
	if crosses(out) {
		return nil, ErrCrossed
	}
	return out, nil
}

// encode closes the rings. Edges of more than 90 degrees of longitude get points in
// between, so that nobody takes them for the shorter way round.
func encode(polygons []polygon) *geom.MultiPolygon {
	coords := make([][][]geom.Coord, len(polygons))
	for i, polygon := range polygons {
		for _, ring := range polygon {
			var out []geom.Coord
			for j, p := range ring {
				q := ring[(j+1)%len(ring)]
				parts := math.Max(1, math.Ceil((math.Abs(q[0]-p[0])-hair)/90))
				for k := range int(parts) {
					f := float64(k) / parts
					out = append(out, geom.Coord{p[0] + f*(q[0]-p[0]), p[1] + f*(q[1]-p[1])})
				}
			}
			coords[i] = append(coords[i], append(out, out[0].Clone()))
		}
	}
	return geom.NewMultiPolygon(geom.XY).MustSetCoords(coords).SetSRID(4326)
}

// tidy drops points that repeat the one before or lie on the line between their
// neighbours, and brings coordinates within a hair of the bounds onto them.
func tidy(ring [][2]float64) [][2]float64 {
	for i, p := range ring {
		ring[i] = [2]float64{math.Max(-180, math.Min(180, p[0])), math.Max(-90, math.Min(90, p[1]))}
	}
	ring = without(ring, func(prev, p, _ [2]float64) bool { return math.Hypot(p[0]-prev[0], p[1]-prev[1]) <= hair })
	return without(ring, onLine)
}

// without drops the points for which drop says so of them and their neighbours, until
// none is left.
func without(ring [][2]float64, drop func(prev, p, next [2]float64) bool) [][2]float64 {
	for n := 0; n != len(ring) && len(ring) > 3; {
		n = len(ring)
		var out [][2]float64
		for i, p := range ring {
			prev := ring[(i+n-1)%n]
			if len(out) > 0 {
				prev = out[len(out)-1]
			}
			if !drop(prev, p, ring[(i+1)%n]) {
				out = append(out, p)
			}
		}
		ring = out
	}
	return ring
}

// onLine tells whether b lies between a and c, by a hair, or on a spike.
func onLine(a, b, c [2]float64) bool {
	dx, dy := c[0]-a[0], c[1]-a[1]
	length := math.Hypot(dx, dy)
	if length == 0 {
		return true
	}
	across := math.Abs(dx*(b[1]-a[1])-dy*(b[0]-a[0])) / length
	along := (dx*(b[0]-a[0]) + dy*(b[1]-a[1])) / length
	return across <= hair && along >= 0 && along <= length
}

func signedArea(ring [][2]float64) float64 {
	sum := 0.0
	for i, p := range ring {
		q := ring[(i+1)%len(ring)]
		o := ring[0] // differences keep digits for small rings far from the origin
		sum += (p[0]-o[0])*(q[1]-o[1]) - (q[0]-o[0])*(p[1]-o[1])
	}
	return sum / 2
}

// crosses tells whether any two edges cross: those of one ring or of two.
func crosses(polygons []polygon) bool {
	type edge struct{ a, b [2]float64 }
	var edges []edge
	for _, polygon := range polygons {
		for _, ring := range polygon {
			for i := range ring {
				edges = append(edges, edge{ring[i], ring[(i+1)%len(ring)]})
			}
		}
	}
	// In order of their western ends, only those that begin before one ends can cross it.
	sort.Slice(edges, func(i, j int) bool {
		return math.Min(edges[i].a[0], edges[i].b[0]) < math.Min(edges[j].a[0], edges[j].b[0])
	})
	orient := func(a, b, c [2]float64) float64 {
		return (b[0]-a[0])*(c[1]-a[1]) - (b[1]-a[1])*(c[0]-a[0])
	}
	for i, e := range edges {
		for _, f := range edges[i+1:] {
			if math.Min(f.a[0], f.b[0]) > math.Max(e.a[0], e.b[0]) {
				break
			}
			if orient(e.a, e.b, f.a)*orient(e.a, e.b, f.b) < 0 && orient(f.a, f.b, e.a)*orient(f.a, f.b, e.b) < 0 {
				return true
			}
		}
	}
	return false
}
