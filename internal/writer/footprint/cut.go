package footprint

import (
	"math"
	"sort"

	geom "github.com/twpayne/go-geom"
)

// cut makes a MultiPolygon of an unwrapped ring: shifted by whole turns into
// [-180, 180], and cut in two where it lies across the antimeridian.
func cut(ring [][2]float64) (*geom.MultiPolygon, error) {
	west, east := math.Inf(1), math.Inf(-1)
	for _, p := range ring {
		west, east = math.Min(west, p[0]), math.Max(east, p[0])
	}
	if east-west >= 360-nearly {
		return band(ring, west, east)
	}
	shift := -360 * math.Floor((west+180)/360)
	// A grid that begins at 179.9999999 begins at -180.
	if west+shift > 180-nearly {
		shift -= 360
	}
	for i := range ring {
		ring[i][0] += shift
	}
	east += shift

	var rings [][][2]float64
	if east <= 180+nearly {
		rings = [][][2]float64{ring}
	} else {
		rings = append(side(ring, 180, false), shifted(side(ring, 180, true), -360)...)
	}
	return polygons(rings)
}

// band is the footprint of a raster that goes all the way round: its northern and
// southern edges must be parallels, or the poles.
func band(ring [][2]float64, west, east float64) (*geom.MultiPolygon, error) {
	south, north := 90.0, -90.0
	for _, p := range ring {
		south, north = math.Min(south, p[1]), math.Max(north, p[1])
	}
	for _, p := range ring {
		onParallel := p[1]-south < nearly || north-p[1] < nearly
		onSide := p[0]-west < nearly || east-p[0] < nearly
		if !onParallel && !onSide {
			// Round a pole: cut at the antimeridian, between the pole and the ring.
			if east-west <= 360+nearly {
				return roundPole(ring)
			}
			return nil, ErrCrossed
		}
	}
	return polygons([][][2]float64{{{-180, south}, {180, south}, {180, north}, {-180, north}}})
}

// roundPole moves the seam of a ring that is closed over a pole to the antimeridian:
// the outline's own points, in order of longitude from -180 to 180, then the pole.
func roundPole(ring [][2]float64) (*geom.MultiPolygon, error) {
	n := len(ring)
	pole := ring[n-1][1]
	if math.Abs(pole) != 90 || ring[n-2][1] != pole {
		return nil, ErrCrossed
	}
	// The last three points are the first again a turn later, and the way over the pole.
	chain := ring[:n-2]
	eastwards := chain[len(chain)-1][0] > chain[0][0]
	if !eastwards {
		for i, j := 0, len(chain)-1; i < j; i, j = i+1, j-1 {
			chain[i], chain[j] = chain[j], chain[i]
		}
	}
	start := chain[0][0]
	seam := -180 + 360*math.Ceil((start+180)/360) // the first one at or after start
	var before, after [][2]float64
	for i, p := range chain {
		if p[0] < seam {
			before = append(before, p)
		} else {
			after = append(after, p)
		}
		if i+1 < len(chain) && (p[0] < seam) != (chain[i+1][0] < seam) {
			q := chain[i+1]
			lat := p[1] + (q[1]-p[1])*(seam-p[0])/(q[0]-p[0])
			if p[0] < seam {
				before, after = append(before, [2]float64{seam, lat}), append(after, [2]float64{seam, lat})
			} else {
				after, before = append(after, [2]float64{seam, lat}), append(before, [2]float64{seam, lat})
			}
		}
	}
	if len(before) == 0 {
		before = append(before, after[len(after)-1])
		before[0][0] -= 360
	}
	// after runs from the seam to start + 360, where before goes on from start.
	var out [][2]float64
	for _, p := range after {
		out = append(out, [2]float64{p[0] - seam - 180, p[1]})
	}
	for _, p := range before {
		out = append(out, [2]float64{p[0] + 360 - seam - 180, p[1]})
	}
	out = append(out, [2]float64{180, pole}, [2]float64{-180, pole})
	return polygons([][][2]float64{out})
}

func shifted(rings [][][2]float64, by float64) [][][2]float64 {
	for _, ring := range rings {
		for i := range ring {
			ring[i][0] += by
		}
	}
	return rings
}

// side is what of a simple ring lies on one side of a meridian: its chains on that
// side, joined along the meridian between neighbouring crossings, lowest first.
func side(ring [][2]float64, meridian float64, east bool) [][][2]float64 {
	in := func(p [2]float64) bool { return (p[0] > meridian) == east }
	n := len(ring)
	first := -1
	for i := range ring {
		if !in(ring[i]) && in(ring[(i+1)%n]) {
			first = i
			break
		}
	}
	if first < 0 {
		if in(ring[0]) {
			return [][][2]float64{append([][2]float64(nil), ring...)}
		}
		return nil
	}
	cross := func(a, b [2]float64) [2]float64 {
		return [2]float64{meridian, a[1] + (b[1]-a[1])*(meridian-a[0])/(b[0]-a[0])}
	}
	var chains [][][2]float64
	for k := 0; k < n; k++ {
		a, b := ring[(first+k)%n], ring[(first+k+1)%n]
		switch {
		case !in(a) && in(b):
			chains = append(chains, [][2]float64{cross(a, b), b})
		case in(a) && in(b):
			chains[len(chains)-1] = append(chains[len(chains)-1], b)
		case in(a) && !in(b):
			chains[len(chains)-1] = append(chains[len(chains)-1], cross(a, b))
		}
	}

	type end struct {
		lat   float64
		chain int
		start bool
	}
	var ends []end
	for i, c := range chains {
		ends = append(ends, end{c[0][1], i, true}, end{c[len(c)-1][1], i, false})
	}
	sort.Slice(ends, func(i, j int) bool { return ends[i].lat < ends[j].lat })
	// next[i] is the chain that begins where the stretch of meridian, inside the ring,
	// from the end of chain i leads.
	next := make([]int, len(chains))
	for i := 0; i+1 < len(ends); i += 2 {
		a, b := ends[i], ends[i+1]
		if a.start {
			a, b = b, a
		}
		next[a.chain] = b.chain
	}
	var out [][][2]float64
	used := make([]bool, len(chains))
	for i := range chains {
		var r [][2]float64
		for c := i; !used[c]; c = next[c] {
			used[c] = true
			r = append(r, chains[c]...)
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out
}

// polygons closes the rings, turns them counter-clockwise, drops points and rings that
// say nothing, and refuses rings that cross themselves.
func polygons(rings [][][2]float64) (*geom.MultiPolygon, error) {
	var coords [][][]geom.Coord
	for _, ring := range rings {
		ring = tidy(ring)
		area := signedArea(ring)
		if len(ring) < 3 || area == 0 {
			continue
		}
		if crosses(ring) {
			return nil, ErrCrossed
		}
		out := make([]geom.Coord, 0, len(ring)+1)
		for i := range ring {
			p := ring[i]
			if area < 0 {
				p = ring[len(ring)-1-i]
			}
			out = append(out, geom.Coord{p[0], p[1]})
		}
		coords = append(coords, [][]geom.Coord{append(out, out[0].Clone())})
	}
	if len(coords) == 0 {
		return nil, ErrDegenerate
	}
	return geom.NewMultiPolygon(geom.XY).MustSetCoords(coords).SetSRID(4326), nil
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

// hair is a thousandth of a millimetre, in degrees.
const hair = 1e-11

// onLine tells whether b lies between a and c, by a hair.
func onLine(a, b, c [2]float64) bool {
	dx, dy := c[0]-a[0], c[1]-a[1]
	length := math.Hypot(dx, dy)
	if length == 0 {
		return false
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

// crosses tells whether two edges of the ring cross. Rings have a few hundred points.
func crosses(ring [][2]float64) bool {
	n := len(ring)
	orient := func(a, b, c [2]float64) float64 {
		return (b[0]-a[0])*(c[1]-a[1]) - (b[1]-a[1])*(c[0]-a[0])
	}
	for i := 0; i < n; i++ {
		a, b := ring[i], ring[(i+1)%n]
		for j := i + 2; j < n; j++ {
			c, d := ring[j], ring[(j+1)%n]
			if (j+1)%n == i {
				continue
			}
			if orient(a, b, c)*orient(a, b, d) < 0 && orient(c, d, a)*orient(c, d, b) < 0 {
				return true
			}
		}
	}
	return false
}
