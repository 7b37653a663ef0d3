package footprint

import (
	"math"
	"slices"
	"sort"
)

// tracer follows the outline of what of a grid is on the Earth. Its coordinates, u and
// v, count pixels and lines from the grid's origin.
type tracer struct {
	g                Grid
	w, h, det        float64
	tolerance        float64 // in pixels
	toLonLat, toGrid Transform

	// period is what x gains in a full turn, for geographic systems and cylindrical
	// projections, whose grids may run past the antimeridian; else 0.
	period float64
	// slack is how far off the way back may come, in pixels: PROJ chooses an operation
	// between datums for each point anew, and not always the same one both ways.
	slack float64
	// lattice of places all over the grid; those that are not on the Earth have NaN.
	lattice []place
	limb    bool // there are some
	// from and to are the box that the lattice covers: all the grid, or what of it is on
	// the Earth and a little more.
	from, to place
	// centre is on the Earth, and the outline is seen from it along straight lines.
	centre             place
	right, down        [2]float64 // see point
	mirrored           bool       // down, then right, turns clockwise on the Earth
	north, south       place      // the poles in the grid, where they are points
	hasNorth, hasSouth bool
}

// place is a point of the grid, and of the Earth.
type place struct{ u, v, lon, lat float64 }

func (p place) onEarth() bool { return !math.IsNaN(p.lon) }

// point of the outline.
type point struct {
	place
	// s is the direction in which the point is seen from the centre: that of the point
	// of the grid's perimeter which is s sides from its origin, down first.
	s    float64
	limb bool
	pole bool
	// off is how far the point's place on the Earth is off the edge of the grid, in pixels
	// across; u and v are on it. See even.
	off float64
	// right and down are how far one pixel's step moves on the Earth, east and north, in
	// degrees.
	right, down [2]float64
}

const (
	// latticeSize has the grid's middle among its places. The finer one is for grids
	// that are partly off the Earth.
	latticeSize     = 24
	latticeSizeLimb = 64
	// slackDegrees, a kilometre, is far more than operations between datums differ, and
	// far less than what lies between a place and its false image.
	slackDegrees = 0.01
	// maxLon bounds longitudes that are taken at their word: three turns either way.
	maxLon = 3 * 360
)

func (t *tracer) xy(u, v float64) (x, y float64) {
	gt := t.g.Transform
	x, y = gt[0]+u*gt[1]+v*gt[2], gt[3]+u*gt[4]+v*gt[5]
	if t.g.Geographic && t.period > 0 {
		// Grids of points often reach half a cell past the pole.
		pole, cell := t.period/4, math.Abs(gt[4])+math.Abs(gt[5])
		if math.Abs(y) <= pole+cell {
			y = math.Max(-pole, math.Min(pole, y))
		}
	}
	return x, y
}

func (t *tracer) uv(x, y float64) (u, v float64) {
	gt := t.g.Transform
	dx, dy := x-gt[0], y-gt[3]
	return (dx*gt[5] - dy*gt[2]) / t.det, (dy*gt[1] - dx*gt[4]) / t.det
}

// project fills in longitudes and latitudes, whether they can be true or not.
func (t *tracer) project(ps []place) (xs, ys []float64) {
	xs, ys = make([]float64, len(ps)), make([]float64, len(ps))
	for i, p := range ps {
		xs[i], ys[i] = t.xy(p.u, p.v)
	}
	lons, lats := append([]float64(nil), xs...), append([]float64(nil), ys...)
	// PROJ shifts no datum beyond 180 degrees: there it finds no operation to be at home.
	if half := t.period / 2; t.g.Geographic && half > 0 {
		for i, x := range lons {
			if math.Abs(x) > half && math.Abs(x) <= 2*half*maxLon/360 {
				lons[i] = x - 2*half*math.Round(x/(2*half))
			}
		}
	}
	t.toLonLat(lons, lats)
	for i := range ps {
		ps[i].lon, ps[i].lat = lons[i], lats[i]
		if !finite(lons[i], lats[i]) || math.Abs(lats[i]) > 90+1e-6 || math.Abs(lons[i]) > maxLon {
			ps[i].lon, ps[i].lat = math.NaN(), math.NaN()
		}
		ps[i].lat = math.Max(-90, math.Min(90, ps[i].lat))
	}
	return xs, ys
}

// look fills in longitudes and latitudes, NaN where the place is not on the Earth: where
// it has no image, or comes back from it elsewhere. Some projections have an image for
// what is none (a sinusoidal grid's corners).
func (t *tracer) look(ps []place) {
	xs, ys := t.project(ps)
	if t.toGrid == nil {
		return
	}
	bx, by := make([]float64, len(ps)), make([]float64, len(ps))
	for i, p := range ps {
		bx[i], by[i] = p.lon, p.lat
	}
	t.toGrid(bx, by)
	gt := t.g.Transform
	for i := range ps {
		dx, dy := bx[i]-xs[i], by[i]-ys[i]
		if t.period > 0 {
			dx -= t.period * math.Round(dx/t.period)
			if t.g.Geographic && math.Abs(ys[i]) > t.period/4*(1-1e-6) {
				dx = 0 // at a pole every longitude is right
			}
		}
		// Rounding in large coordinates may exceed a very small pixel.
		noise := 1e-9 * (math.Abs(xs[i]) + math.Abs(ys[i]))
		du, dv := (dx*gt[5]-dy*gt[2])/t.det, (dy*gt[1]-dx*gt[4])/t.det
		if !(math.Hypot(dx, dy) <= noise || math.Hypot(du, dv) <= t.slack) {
			ps[i].lon, ps[i].lat = math.NaN(), math.NaN()
		}
	}
}

// survey finds out what of the grid is on the Earth, and which way up it lies.
func (t *tracer) survey() error {
	t.period = t.findPeriod()
	t.to = place{u: t.w, v: t.h}
	t.lattice = t.places(latticeSize)
	// The size of a pixel on the Earth, for the slack, at a place near the middle.
	best := len(t.lattice) / 2
	if t.project(t.lattice[best : best+1]); !t.lattice[best].onEarth() {
		t.project(t.lattice)
		best = -1
		for i, p := range t.lattice {
			if p.onEarth() && (best < 0 || t.fromMiddle(p) < t.fromMiddle(t.lattice[best])) {
				best = i
			}
		}
	}
	if best < 0 {
		return ErrOffEarth
	}
	t.slack = 0.5
	right, down := t.steps(t.lattice[best : best+1])
	if area := math.Abs(right[0][0]*down[0][1] - right[0][1]*down[0][0]); area > 0 && !math.IsNaN(area) {
		t.slack = slackDegrees / math.Sqrt(area)
	}
	if t.look(t.lattice); !all(t.lattice) {
		// There is no limb where coordinates are longitudes and latitudes.
		if t.g.Geographic || t.toGrid == nil {
			return ErrOffEarth
		}
		t.limb = true
		for range 2 { // as fine where the Earth is as elsewhere, then there alone
			t.lattice = t.places(latticeSizeLimb)
			t.look(t.lattice)
			t.shrink()
		}
		t.lattice = t.places(latticeSizeLimb)
		t.look(t.lattice)
		t.tolerance = min(t.tolerance, toleranceSide*max(t.to.u-t.from.u, t.to.v-t.from.v))
	}
	n := 0.0
	for _, p := range t.lattice {
		if p.onEarth() {
			t.centre.u, t.centre.v, n = t.centre.u+p.u, t.centre.v+p.v, n+1
		}
	}
	if n == 0 {
		return ErrOffEarth
	}
	t.centre.u, t.centre.v = t.centre.u/n, t.centre.v/n
	centre := []place{t.centre}
	if t.look(centre); !centre[0].onEarth() {
		return ErrBroken
	}
	t.centre = centre[0]
	right, down = t.steps(centre)
	t.right, t.down = right[0], down[0]
	t.mirrored = t.down[0]*t.right[1]-t.down[1]*t.right[0] < 0
	t.north, t.hasNorth = t.findPole(90)
	t.south, t.hasSouth = t.findPole(-90)
	return nil
}

func all(ps []place) bool {
	for _, p := range ps {
		if !p.onEarth() {
			return false
		}
	}
	return true
}

func (t *tracer) places(n int) []place {
	var ps []place
	for i := range n + 1 {
		for j := range n + 1 {
			ps = append(ps, place{
				u: t.from.u + (t.to.u-t.from.u)*float64(i)/float64(n),
				v: t.from.v + (t.to.v-t.from.v)*float64(j)/float64(n),
			})
		}
	}
	return ps
}

// shrink makes the box that of the lattice's places on the Earth, and one more all round.
func (t *tracer) shrink() {
	du, dv := (t.to.u-t.from.u)/latticeSizeLimb, (t.to.v-t.from.v)/latticeSizeLimb
	from, to := t.to, t.from
	for _, p := range t.lattice {
		if p.onEarth() {
			from.u, from.v = min(from.u, p.u), min(from.v, p.v)
			to.u, to.v = max(to.u, p.u), max(to.v, p.v)
		}
	}
	if to.u < from.u {
		return // there are none
	}
	t.from = place{u: max(0, from.u-du), v: max(0, from.v-dv)}
	t.to = place{u: min(t.w, to.u+du), v: min(t.h, to.v+dv)}
}

func (t *tracer) fromMiddle(p place) float64 { return math.Hypot(p.u/t.w-0.5, p.v/t.h-0.5) }

// steps measures how far a pixel's step to the right and down moves from each place.
func (t *tracer) steps(ps []place) (right, down [][2]float64) {
	// Towards the inside, where the projection is at home.
	su, sv := math.Min(1, (t.to.u-t.from.u)/64), math.Min(1, (t.to.v-t.from.v)/64)
	beside := make([]place, 0, 2*len(ps))
	for _, p := range ps {
		beside = append(beside, place{u: p.u + inwards(p.u, t.w)*su, v: p.v}, place{u: p.u, v: p.v + inwards(p.v, t.h)*sv})
	}
	t.project(beside)
	for i, p := range ps {
		r, d := ground(p, beside[2*i].lon, beside[2*i].lat), ground(p, beside[2*i+1].lon, beside[2*i+1].lat)
		fu, fv := inwards(p.u, t.w)/su, inwards(p.v, t.h)/sv
		right, down = append(right, [2]float64{r[0] * fu, r[1] * fu}), append(down, [2]float64{d[0] * fv, d[1] * fv})
	}
	return right, down
}

// inwards is the direction of a step from c, on an axis of length n, to its middle.
func inwards(c, n float64) float64 {
	if c > n/2 {
		return -1
	}
	return 1
}

// ground is the way from p to a place on the sphere: its distance in degrees, east and
// north. It does not mind the poles.
func ground(p place, lon, lat float64) [2]float64 {
	const rad = math.Pi / 180
	sinLat, cosLat := math.Sincos(lat * rad)
	sinP, cosP := math.Sincos(p.lat * rad)
	dlon, half := turn(lon-p.lon)*rad, math.Sin(turn(lon-p.lon)*rad/2)
	x := cosLat * math.Sin(dlon)
	y := math.Sin((lat-p.lat)*rad) + 2*sinP*cosLat*half*half
	sine, cosine := math.Hypot(x, y), sinP*sinLat+cosP*cosLat*math.Cos(dlon)
	if sine == 0 && cosine > 0 {
		return [2]float64{}
	}
	distance := math.Atan2(sine, cosine) / rad
	if sine == 0 {
		return [2]float64{distance, 0}
	}
	return [2]float64{x / sine * distance, y / sine * distance}
}

// turn brings a difference of longitudes to [-180, 180].
func turn(d float64) float64 {
	if d >= -180 && d <= 180 {
		return d
	}
	return d - 360*math.Round(d/360)
}

// findPeriod finds out whether longitude is linear in x, and parallels are lines of equal
// y, and if so, what x gains in a full turn.
func (t *tracer) findPeriod() float64 {
	if t.toGrid == nil {
		return 0
	}
	lons := []float64{0, 1, 0, 1, 50, 130, -100}
	lats := []float64{0, 0, 45, 45, 45, 45, 45}
	xs, ys := append([]float64(nil), lons...), append([]float64(nil), lats...)
	t.toGrid(xs, ys)
	if !finite(xs...) || !finite(ys...) {
		return 0
	}
	// A turn may lie between 0 and 1.
	period := (xs[1] - xs[0]) * 360
	if xs[3]-xs[2] < xs[1]-xs[0] {
		period = (xs[3] - xs[2]) * 360
	}
	if period <= 0 {
		return 0
	}
	const near = 1e-5 // datums differ by some seconds of arc
	for i, lon := range lons {
		base := xs[0]
		if i > 1 {
			base = xs[2]
		}
		off := (xs[i] - base - lon/360*period) / period
		level := (ys[i] - ys[min(i, 2)/2*2]) / period
		if math.Abs(off-math.Round(off)) > near || math.Abs(level) > near {
			return 0
		}
	}
	return period
}

// findPole finds where a pole is in the grid, if the projection makes it a point.
func (t *tracer) findPole(lat float64) (place, bool) {
	if t.toGrid == nil || t.period > 0 {
		return place{}, false
	}
	xs, ys := []float64{0, 90, 180}, []float64{lat, lat, lat}
	t.toGrid(xs, ys)
	if !finite(xs...) || !finite(ys...) {
		return place{}, false
	}
	u, v := t.uv(xs[0], ys[0])
	for i := range xs {
		if ui, vi := t.uv(xs[i], ys[i]); math.Hypot(ui-u, vi-v) > t.tolerance/4 {
			return place{}, false
		}
	}
	return place{u, v, 0, lat}, true
}

// at finds the outline's points in the directions ss, which lie on the perimeter or, in
// front of it, on the limb.
func (t *tracer) at(ss ...float64) []point {
	corners := [5][2]float64{{0, 0}, {0, t.h}, {t.w, t.h}, {t.w, 0}, {0, 0}}
	points, ps := make([]point, len(ss)), make([]place, len(ss))
	for i, s := range ss {
		side := int(s) % 4
		f := s - math.Floor(s)
		a, b := corners[side], corners[side+1]
		ps[i] = place{u: a[0] + f*(b[0]-a[0]), v: a[1] + f*(b[1]-a[1])}
		points[i].s = s
	}
	t.look(ps)
	var off []int
	for i, p := range ps {
		if !p.onEarth() {
			off, points[i].limb = append(off, i), true
		}
	}
	if len(off) > 0 {
		t.retreat(ps, off)
	}
	right, down := t.steps(ps)
	for i := range points {
		points[i].place, points[i].right, points[i].down = ps[i], right[i], down[i]
	}
	return points
}

// retreat moves the places that are off the Earth towards the centre, up to the limb,
// the last that are.
func (t *tracer) retreat(ps []place, off []int) {
	lo, hi := make([]float64, len(off)), make([]float64, len(off))
	mid := make([]place, len(off))
	move := func(j int, f float64) place {
		p := ps[off[j]]
		return place{u: t.centre.u + f*(p.u-t.centre.u), v: t.centre.v + f*(p.v-t.centre.v)}
	}
	for j := range off {
		hi[j] = 1
	}
	for range 36 { // to a millionth of a pixel and less: the limb is seen at a slant
		for j := range off {
			mid[j] = move(j, (lo[j]+hi[j])/2)
		}
		t.look(mid)
		for j := range off {
			if mid[j].onEarth() {
				lo[j] = (lo[j] + hi[j]) / 2
			} else {
				hi[j] = (lo[j] + hi[j]) / 2
			}
		}
	}
	for j := range off {
		mid[j] = move(j, lo[j])
	}
	t.look(mid)
	for j, i := range off {
		ps[i] = mid[j]
	}
}

// segment of the outline.
type segment struct {
	from, to point
	// turn is how far it goes east; fromLon and toLon are its ends' longitudes: a pole
	// has that of the meridian on which it is reached.
	turn, fromLon, toLon float64
	err                  float64      // in pixels, or what is the like on the limb
	bulge                float64      // the same from the edge to the straight line, along u or v; 0 on the limb
	inside               [inner]place // places within, in the outline's own order
}

const (
	inner = 7 // places within a segment that are looked at
	// maxTurn of a segment that is taken for straight: its direction is then not in doubt.
	maxTurn = 120
)

// trace follows the outline once round, counter-clockwise on the Earth.
func (t *tracer) trace() ([]segment, error) {
	ss := []float64{0, 1, 2, 3}
	poles := map[float64]place{}
	for _, pole := range []struct {
		place
		known bool
	}{{t.north, t.hasNorth}, {t.south, t.hasSouth}} {
		if !pole.known {
			continue
		}
		if s, ok := t.direction(pole.place); ok {
			if p := t.at(s)[0]; math.Hypot(p.u-pole.u, p.v-pole.v) <= t.tolerance/2 {
				if s == math.Floor(s) {
					poles[s] = pole.place
				} else {
					ss, poles[s] = append(ss, s), pole.place
				}
			}
		}
	}
	sort.Float64s(ss)
	nodes := t.at(ss...)
	for i, s := range ss {
		if pole, ok := poles[s]; ok {
			nodes[i].lat, nodes[i].pole = pole.lat, true
		}
	}
	segments := t.between(nodes)
	for len(segments) < maxPoints {
		var split []int
		for i, s := range segments {
			if s.err > t.tolerance {
				split = append(split, i)
			}
		}
		if split == nil {
			break
		}
		sort.SliceStable(split, func(i, j int) bool { return segments[split[i]].err > segments[split[j]].err })
		split = split[:min(len(split), maxPoints-len(segments))]
		sort.Ints(split)
		middles := make([]float64, len(split))
		for j, i := range split {
			middles[j] = (segments[i].from.s + segments[i].to.s) / 2
		}
		points := t.at(middles...)
		halves := make([]segment, 0, 2*len(split))
		for j, i := range split {
			halves = append(halves, segment{from: segments[i].from, to: points[j]}, segment{from: points[j], to: segments[i].to})
		}
		t.measure(halves)
		next := make([]segment, 0, len(segments)+len(split))
		for i, s := range segments {
			if len(split) > 0 && split[0] == i {
				next, halves, split = append(next, halves[:2]...), halves[2:], split[1:]
			} else {
				next = append(next, s)
			}
		}
		segments = next
	}
	if slices.ContainsFunc(segments, func(s segment) bool { return math.IsInf(s.err, 0) }) {
		return nil, ErrBroken
	}
	return segments, nil
}

// between makes the segments between neighbours, and measures them.
func (t *tracer) between(nodes []point) []segment {
	segments := make([]segment, len(nodes))
	for i := range nodes {
		segments[i] = segment{from: nodes[i], to: nodes[(i+1)%len(nodes)]}
	}
	segments[len(nodes)-1].to.s += 4
	t.measure(segments)
	return segments
}

// even places the points anew where maxPoints do not suffice, as well as points can be:
// segments stray as the square of their lengths, so all get the same share of the sum of
// the roots; and points are moved off the edge by half of what the segments beside them
// stray, which leaves these half on one side of the edge and half on the other. Corners
// and poles stay, and the segments at them are shorter. Nil where there is a limb, or
// nothing gained.
func (t *tracer) even(segments []segment) []segment {
	if t.limb {
		return nil
	}
	const ends = (1 - 1/math.Sqrt2) / 2 // what a segment lacks of its length for an end that stays
	var fixed []int                     // where these begin, in segments
	var roots []float64                 // sums up to the next
	for i, s := range segments {
		if s.from.pole || s.from.s == math.Floor(s.from.s) {
			fixed, roots = append(fixed, i), append(roots, 0)
		}
		roots[len(roots)-1] += math.Sqrt(s.err)
	}
	counts := make([]float64, len(fixed))
	for err, total := t.tolerance, math.Inf(1); total > maxPoints; err *= 1.01 {
		total = 0
		for i, sum := range roots {
			counts[i] = math.Ceil(sum/math.Sqrt(2*err) + 2*ends)
			total += counts[i]
		}
	}
	var ss []float64
	stay := map[int]point{}
	for i, first := range fixed {
		stay[len(ss)] = segments[first].from
		ss = append(ss, segments[first].from.s)
		run := segments[first:]
		if i+1 < len(fixed) {
			run = segments[first:fixed[i+1]]
		}
		share, k, sum := roots[i]/(counts[i]-2*ends), 1-ends, 0.0
		for _, s := range run {
			root := math.Sqrt(s.err)
			for ; k < counts[i]-1 && k*share <= sum+root; k++ {
				ss = append(ss, s.from.s+(s.to.s-s.from.s)*(k*share-sum)/root)
			}
			sum += root
		}
	}
	nodes := t.at(ss...)
	for i, p := range stay {
		nodes[i] = p
	}
	out := t.between(nodes)
	beside := make([]place, len(nodes))
	for i := range nodes {
		beside[i] = nodes[i].place
		if _, ok := stay[i]; ok {
			continue
		}
		nodes[i].off = -(out[i-1].bulge + out[i].bulge) / 4
		if int(nodes[i].s)%2 == 1 {
			beside[i].v += nodes[i].off
		} else {
			beside[i].u += nodes[i].off
		}
	}
	t.look(beside)
	for i, p := range beside {
		if _, ok := stay[i]; !ok {
			nodes[i].lon, nodes[i].lat = p.lon, p.lat
		}
	}
	if !all(beside) {
		return nil
	}
	if out = t.between(nodes); worst(out) >= worst(segments) {
		return nil
	}
	return out
}

func worst(segments []segment) (err float64) {
	for _, s := range segments {
		err = max(err, s.err)
	}
	return err
}

func (s *segment) reverse() {
	s.from, s.to, s.fromLon, s.toLon, s.turn = s.to, s.from, s.toLon, s.fromLon, -s.turn
	slices.Reverse(s.inside[:])
}

// direction in which a place is seen from the centre, unless it is the centre.
func (t *tracer) direction(p place) (float64, bool) {
	du, dv := p.u-t.centre.u, p.v-t.centre.v
	// The perimeter is reached after f times the way to p.
	f, s := math.Inf(1), 0.0
	if du != 0 {
		wall, side := 0.0, 0.0
		if du > 0 {
			wall, side = t.w, 2
		}
		f = (wall - t.centre.u) / du
		along := clamp((t.centre.v + f*dv) / t.h)
		if s = side + along; side == 2 {
			s = 3 - along
		}
	}
	if dv != 0 {
		wall := 0.0
		if dv > 0 {
			wall = t.h
		}
		if g := (wall - t.centre.v) / dv; g < f {
			f = g
			along := clamp((t.centre.u + f*du) / t.w)
			if s = 1 + along; wall == 0 {
				s = 4 - along
			}
		}
	}
	return math.Mod(s, 4), !math.IsInf(f, 0)
}

func clamp(f float64) float64 { return max(0, min(1, f)) }

// measure finds how far segments stray from the outline.
func (t *tracer) measure(segments []segment) {
	ss := make([]float64, 0, inner*len(segments))
	for _, s := range segments {
		for k := 1; k <= inner; k++ {
			ss = append(ss, s.from.s+(s.to.s-s.from.s)*float64(k)/(inner+1))
		}
	}
	points := t.at(ss...)
	for i := range segments {
		t.measureOne(&segments[i], points[inner*i:inner*(i+1)])
	}
}

func (t *tracer) measureOne(s *segment, points []point) {
	s.fromLon, s.toLon, s.bulge = s.from.lon, s.to.lon, 0
	s.err = max(math.Abs(s.from.off), math.Abs(s.to.off))
	if s.from.pole {
		s.fromLon = points[0].lon
	}
	if s.to.pole {
		s.toLon = points[inner-1].lon
	}
	s.turn = turn(s.toLon - points[inner-1].lon)
	last := s.fromLon
	for k, p := range points {
		s.turn += turn(p.lon - last)
		last, s.inside[k] = p.lon, p.place
	}
	if math.Hypot(s.to.u-s.from.u, s.to.v-s.from.v) < t.tolerance/1000 || s.to.s-s.from.s < 1e-12 {
		return // too short to be split
	}
	if math.Abs(s.turn) > maxTurn {
		s.err = math.Inf(1)
		return
	}
	chord := func(f float64) (lon, lat float64) { return s.fromLon + f*s.turn, s.from.lat + f*(s.to.lat-s.from.lat) }
	for k, p := range points {
		f := float64(k+1) / (inner + 1)
		lon, lat := chord(f)
		away := ground(p.place, lon, lat)
		across := 0.0
		if p.limb {
			lon, lat = chord(f + 0.01)
			ahead := ground(p.place, lon, lat)
			dx, dy := ahead[0]-away[0], ahead[1]-away[1]
			if length := math.Hypot(dx, dy); length > 0 {
				across = math.Abs(away[0]*dy-away[1]*dx) / length / toleranceLimb * t.tolerance
			}
		} else {
			det := p.right[0]*p.down[1] - p.right[1]*p.down[0]
			bulge := (away[0]*p.down[1] - away[1]*p.down[0]) / det
			if int(p.s)%2 == 1 { // the edges below and above run along u
				bulge = (p.right[0]*away[1] - p.right[1]*away[0]) / det
			}
			across = math.Abs(bulge)
			if finite(bulge) && across > math.Abs(s.bulge) {
				s.bulge = bulge
			}
			if !finite(across) {
				across = math.Hypot(away[0], away[1]) / math.Max(math.Hypot(p.right[0], p.right[1]), math.Hypot(p.down[0], p.down[1]))
			}
		}
		if finite(across) {
			s.err = math.Max(s.err, across)
		}
	}
}

// rough tells whether the points did not suffice.
func (t *tracer) rough(segments []segment) bool { return worst(segments) > t.tolerance }

// belt finds whether the grid goes all the way round, and lies between two parallels.
func (t *tracer) belt(segments []segment) (south, north float64, ok bool) {
	gt := t.g.Transform
	wide, pixel := math.Abs(gt[1])*t.w, math.Abs(gt[1])
	if gt[1] == 0 && gt[5] == 0 {
		wide, pixel = math.Abs(gt[2])*t.h, math.Abs(gt[2])
	} else if gt[2] != 0 || gt[4] != 0 {
		return 0, 0, false
	}
	if t.period == 0 || wide < t.period-t.tolerance*pixel {
		return 0, 0, false
	}
	south, north = 90, -90
	for _, s := range segments {
		south, north = math.Min(south, s.from.lat), math.Max(north, s.from.lat)
	}
	return south, north, true
}
