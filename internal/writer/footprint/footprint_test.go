package footprint

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sort"
	"testing"

	geom "github.com/twpayne/go-geom"
)

const rad = math.Pi / 180

// each makes a Transform of a function of one point.
func each(f func(x, y float64) (float64, float64)) Transform {
	return func(xs, ys []float64) {
		for i := range xs {
			xs[i], ys[i] = f(xs[i], ys[i])
		}
	}
}

type projection struct {
	name       string
	there      Transform // to longitude and latitude
	back       Transform
	geographic bool
}

const earth = 6371000.0

var (
	plain = projection{"geographic",
		each(func(x, y float64) (float64, float64) { return x, y }), each(func(x, y float64) (float64, float64) { return x, y }), true}
	mercator = projection{"mercator",
		each(func(x, y float64) (float64, float64) {
			return wrap(x / earth / rad), (2*math.Atan(math.Exp(y/earth)) - math.Pi/2) / rad
		}),
		each(func(lon, lat float64) (float64, float64) {
			return wrap(lon) * rad * earth, earth * math.Log(math.Tan(math.Pi/4+lat*rad/2))
		}), false}
	// polar stereographic, true at the pole, central meridian -45 (as EPSG:3413).
	arctic = projection{"arctic",
		each(func(x, y float64) (float64, float64) {
			return wrap(math.Atan2(x, -y)/rad - 45), 90 - 2*math.Atan(math.Hypot(x, y)/(2*earth))/rad
		}),
		each(func(lon, lat float64) (float64, float64) {
			r, a := 2*earth*math.Tan((90-lat)*rad/2), (lon+45)*rad
			return r * math.Sin(a), -r * math.Cos(a)
		}), false}
	antarctic = projection{"antarctic",
		each(func(x, y float64) (float64, float64) {
			return wrap(math.Atan2(x, y) / rad), -90 + 2*math.Atan(math.Hypot(x, y)/(2*earth))/rad
		}),
		each(func(lon, lat float64) (float64, float64) {
			r, a := 2*earth*math.Tan((90+lat)*rad/2), lon*rad
			return r * math.Sin(a), r * math.Cos(a)
		}), false}
	// sinusoidal, which wraps points beyond its edge round, as PROJ does both ways.
	sinusoidal = projection{"sinusoidal",
		each(func(x, y float64) (float64, float64) {
			lat := y / earth
			return wrap(x / earth / math.Cos(lat) / rad), lat / rad
		}),
		each(func(lon, lat float64) (float64, float64) {
			return earth * wrap(lon) * rad * math.Cos(lat*rad), earth * lat * rad
		}), false}
	// a disc: orthographic over (0, 0).
	disc = projection{"disc",
		each(func(x, y float64) (float64, float64) {
			c := math.Asin(math.Hypot(x, y) / earth) // NaN off the disc
			if c == 0 {
				return 0, 0
			}
			return math.Atan2(x*math.Sin(c), math.Hypot(x, y)*math.Cos(c)) / rad, math.Asin(y*math.Sin(c)/math.Hypot(x, y)) / rad
		}),
		each(func(lon, lat float64) (float64, float64) {
			if math.Cos(lat*rad)*math.Cos(lon*rad) < 0 {
				return math.NaN(), math.NaN()
			}
			return earth * math.Cos(lat*rad) * math.Sin(lon*rad), earth * math.Sin(lat*rad)
		}), false}
)

func (p projection) of(w, h int, t [6]float64) (*geom.MultiPolygon, error) {
	return Of(Grid{Width: w, Height: h, Transform: t, Geographic: p.geographic}, p.there, p.back)
}

// contains tells whether a point lies in a MultiPolygon (even-odd rule).
func contains(mp *geom.MultiPolygon, lon, lat float64) bool {
	in := false
	for _, polygon := range mp.Coords() {
		for _, ring := range polygon {
			for i := range ring[:len(ring)-1] {
				a, b := ring[i], ring[i+1]
				if (a[1] > lat) != (b[1] > lat) && lon < a[0]+(b[0]-a[0])*(lat-a[1])/(b[1]-a[1]) {
					in = !in
				}
			}
		}
	}
	return in
}

// holds tells whether a place lies in the raster, whichever way round.
func (p projection) holds(lon, lat float64, w, h int, gt [6]float64) bool {
	det := gt[1]*gt[5] - gt[2]*gt[4]
	for _, turn := range []float64{-360, 0, 360} {
		if turn != 0 && !p.geographic && p.name != mercator.name {
			continue
		}
		xs, ys := []float64{lon + turn}, []float64{lat}
		if p.name == mercator.name {
			xs[0] = lon
		}
		p.back(xs, ys)
		if p.name == mercator.name {
			xs[0] += turn * rad * earth
		}
		x, y := xs[0]-gt[0], ys[0]-gt[3]
		u, v := (x*gt[5]-y*gt[2])/det, (y*gt[1]-x*gt[4])/det
		if u > 0 && v > 0 && u < float64(w) && v < float64(h) {
			return true
		}
	}
	return false
}

// verify checks a footprint against the raster, point by point: what is in the raster by
// more than the tolerance is in the footprint, and what is outside is not.
func verify(t *testing.T, p projection, mp *geom.MultiPolygon, w, h int, gt [6]float64) {
	t.Helper()
	sound(t, mp)
	rng := rand.New(rand.NewPCG(5, 6))
	const margin = 0.52
	miss := 0
	for range 4000 {
		u, v := rng.Float64()*float64(w), rng.Float64()*float64(h)
		in := true
		switch rng.IntN(9) { // hug the edges from both sides
		case 0:
			u = margin
		case 1:
			u = float64(w) - margin
		case 2:
			v = margin
		case 3:
			v = float64(h) - margin
		case 4:
			u, in = -margin, false
		case 5:
			u, in = float64(w)+margin, false
		case 6:
			v, in = -margin, false
		case 7:
			v, in = float64(h)+margin, false
		}
		if in && (u < margin || v < margin || u > float64(w)-margin || v > float64(h)-margin) {
			continue
		}
		x, y := []float64{gt[0] + u*gt[1] + v*gt[2]}, []float64{gt[3] + u*gt[4] + v*gt[5]}
		p.there(x, y)
		if math.IsNaN(x[0]) || math.Abs(y[0]) > 90 || in && !p.holds(wrap(x[0]), y[0], w, h, gt) {
			continue // off the Earth
		}
		lon := wrap(x[0])
		if math.Abs(math.Abs(lon)-180) < 1e-9 {
			continue
		}
		if !in && p.holds(lon, y[0], w, h, gt) {
			continue // once round the Earth
		}
		if contains(mp, lon, y[0]) != in {
			if miss++; miss < 5 {
				t.Errorf("pixel %v, line %v at %v, %v: inside %v", u, v, lon, y[0], !in)
			}
		}
	}
}

// sound checks what every footprint keeps to.
func sound(t *testing.T, mp *geom.MultiPolygon) {
	t.Helper()
	if mp.SRID() != 4326 || mp.Empty() {
		t.Fatalf("SRID %d, empty %v", mp.SRID(), mp.Empty())
	}
	for _, polygon := range mp.Coords() {
		for r, ring := range polygon {
			if n := len(ring); n < 4 || n > 2*maxPoints || !ring[0].Equal(geom.XY, ring[n-1]) {
				t.Errorf("a ring of %d points", len(ring))
			}
			sum := 0.0
			for i := range ring[:len(ring)-1] {
				a, b := ring[i], ring[i+1]
				sum += (a[0]-ring[0][0])*(b[1]-ring[0][1]) - (b[0]-ring[0][0])*(a[1]-ring[0][1])
				if math.Abs(a[0]) > 180 || math.Abs(a[1]) > 90 {
					t.Errorf("point %v", a)
				}
			}
			if sum == 0 || (sum > 0) != (r == 0) {
				t.Errorf("a ring turns the wrong way: %v", polygon)
			}
		}
	}
}

func TestFootprints(t *testing.T) {
	deg := func(lon, lat, w, h float64, n, m int) [6]float64 {
		return [6]float64{lon, w / float64(n), 0, lat, 0, -h / float64(m)}
	}
	turned := func(x, y, size, angle float64) [6]float64 {
		s, c := math.Sincos(angle * rad)
		return [6]float64{x, size * c, size * s, y, size * s, -size * c}
	}
	world := 2 * math.Pi * earth
	for _, c := range []struct {
		name     string
		p        projection
		w, h     int
		t        [6]float64
		polygons int
		points   int // of all rings, closing points included; 0 for no opinion
	}{
		{"plain", plain, 100, 50, deg(10, 50, 10, 5, 100, 50), 1, 5},
		{"one pixel", plain, 1, 1, deg(10, 50, 10, 5, 1, 1), 1, 5},
		{"a million pixels wide", plain, 1000000, 1, deg(10, 50, 10, 1e-5, 1000000, 1), 1, 5},
		{"south up", plain, 100, 50, [6]float64{10, 0.1, 0, 45, 0, 0.1}, 1, 5},
		{"east to west", plain, 100, 50, [6]float64{20, -0.1, 0, 50, 0, -0.1}, 1, 5},
		{"rotated", plain, 100, 50, turned(10, 50, 0.1, 30), 1, 5},
		{"sheared", plain, 100, 50, [6]float64{10, 0.1, 0.05, 50, 0.02, -0.1}, 1, 5},
		{"transposed", plain, 100, 50, [6]float64{10, 0, 0.1, 50, -0.1, 0}, 1, 5},
		{"across the antimeridian", plain, 100, 50, deg(175, 50, 10, 5, 100, 50), 2, 10},
		{"up to the antimeridian", plain, 100, 50, deg(170, 50, 10, 5, 100, 50), 1, 5},
		{"from the antimeridian", plain, 100, 50, deg(180, 50, 10, 5, 100, 50), 1, 5},
		{"200 to 210", plain, 100, 50, deg(200, 50, 10, 5, 100, 50), 1, 5},
		{"-190 to -170", plain, 100, 50, deg(-190, 50, 20, 5, 100, 50), 2, 10},
		{"rotated across the antimeridian", plain, 100, 50, turned(178, 50, 0.1, 30), 2, 0},
		{"whole Earth", plain, 360, 180, deg(-180, 90, 360, 180, 360, 180), 1, 11},
		{"whole Earth from 0", plain, 360, 180, deg(0, 90, 360, 180, 360, 180), 1, 11},
		{"whole Earth from 0.5, points", plain, 720, 361, [6]float64{-0.25, 0.5, 0, 90.25, 0, -0.5}, 1, 11},
		{"0 to 359", plain, 359, 180, deg(0, 90, 359, 180, 359, 180), 2, 14},
		{"a belt", plain, 360, 60, deg(0, 30, 360, 60, 360, 60), 1, 11},
		{"up to the north pole", plain, 90, 45, deg(10, 90, 90, 45, 90, 45), 1, 5},
		{"mercator", mercator, 512, 512, [6]float64{1e6, 1000, 0, 6e6, 0, -1000}, 1, 5},
		{"mercator rotated", mercator, 512, 512, turned(1e6, 9e6, 1000, 20), 1, 0},
		{"mercator world", mercator, 256, 256, [6]float64{-world / 2, world / 256, 0, world / 2, 0, -world / 256}, 1, 11},
		{"mercator across the antimeridian", mercator, 512, 512, [6]float64{world/2 - 2e5, 1000, 0, 6e6, 0, -1000}, 2, 10},
		{"arctic tile", arctic, 1000, 1000, [6]float64{1e6, 1000, 0, -1e6, 0, -1000}, 1, 0},
		{"arctic tile across the antimeridian", arctic, 1000, 1000, [6]float64{-1.5e6, 1000, 0, 2e6, 0, -1000}, 2, 0},
		{"arctic with the pole", arctic, 500, 600, [6]float64{-2e6, 10000, 0, 3e6, 0, -10000}, 1, 0},
		{"arctic with the pole, rotated", arctic, 500, 600, turned(-3e6, 1e6, 10000, 20), 1, 0},
		{"arctic with the pole, south up", arctic, 500, 600, [6]float64{-2e6, 10000, 0, -3e6, 0, 10000}, 1, 0},
		{"pole in a corner", arctic, 100, 100, [6]float64{0, 10000, 0, 0, 0, -10000}, 1, 0},
		{"pole in the corner, across the antimeridian", arctic, 100, 100, [6]float64{-1e6, 10000, 0, 1e6, 0, -10000}, 2, 0},
		{"pole on an edge", arctic, 200, 100, [6]float64{-1e6, 10000, 0, 0, 0, -10000}, 1, 0},
		{"pole on the other edge", arctic, 200, 100, [6]float64{-1e6, 10000, 0, 1e6, 0, -10000}, 2, 0},
		{"pole near an edge", arctic, 200, 100, [6]float64{-1e6, 10000, 0, 15000, 0, -10000}, 1, 0},
		{"pole just off an edge", arctic, 200, 100, [6]float64{-1e6, 10000, 0, -15000, 0, -10000}, 1, 0},
		{"antarctic with the pole", antarctic, 500, 600, [6]float64{-2e6, 10000, 0, 3e6, 0, -10000}, 1, 0},
		{"arctic, a million pixels wide", arctic, 1000000, 64, [6]float64{-1e5, 0.25, 0, -1e6, 0, -0.25}, 1, 0},
		{"arctic, a million pixels wide, south up", arctic, 1000000, 64, [6]float64{-1e5, 0.25, 0, -1e6, 0, 0.25}, 1, 0},
		{"arctic, a million pixels high", arctic, 64, 1000000, [6]float64{1e6, 0.25, 0, 1e5, 0, -0.25}, 1, 0},
		{"arctic, a million pixels wide, one high", arctic, 1000000, 1, [6]float64{-1e5, 0.25, 0, -1e6, 0, -0.25}, 1, 0},
		{"antarctic tile", antarctic, 100, 100, [6]float64{1e6, 10000, 0, 3e6, 0, -10000}, 1, 0},
		{"sinusoidal", sinusoidal, 1200, 1200, [6]float64{1e6, 926, 0, 6e6, 0, -926}, 1, 0},
		{"full disc", disc, 1000, 1000, [6]float64{-earth, earth / 500, 0, earth, 0, -earth / 500}, 1, 0},
		{"full disc, more than that", disc, 1200, 1000, [6]float64{-1.2 * earth, earth / 500, 0, 1.1 * earth, 0, -earth / 400}, 1, 0},
		{"full disc, rotated", disc, 1200, 1200, turned(-1.2*earth, 1.3*earth, earth/500, 10), 1, 0},
		{"off the limb", disc, 1000, 1000, [6]float64{0.3 * earth, earth / 1000, 0, earth, 0, -earth / 1000}, 1, 0},
		{"a corner off the limb", disc, 1000, 1000, [6]float64{0, earth / 1200, 0, earth / 1.5, 0, -earth / 1200}, 1, 0},
		{"sinusoidal world", sinusoidal, 1000, 500, [6]float64{-world / 2, world / 1000, 0, world / 4, 0, -world / 1000}, 1, 0},
		{"sinusoidal off the edge", sinusoidal, 100, 100, [6]float64{1.5e7, 10000, 0, 5e6, 0, -10000}, 1, 0},
		{"on the disc", disc, 1000, 1000, [6]float64{-3e6, 6000, 0, 3e6, 0, -6000}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			mp, err := c.p.of(c.w, c.h, c.t)
			if err != nil {
				t.Fatal(err)
			}
			if c.polygons > 0 && mp.NumPolygons() != c.polygons {
				t.Errorf("%d polygons, want %d: %v", mp.NumPolygons(), c.polygons, mp.Coords())
			}
			if c.points > 0 && mp.NumCoords() != c.points {
				t.Errorf("%d points, want %d: %v", mp.NumCoords(), c.points, mp.Coords())
			}
			verify(t, c.p, mp, c.w, c.h, c.t)
		})
	}
}

func TestExactFootprints(t *testing.T) {
	for _, c := range []struct {
		t    [6]float64
		want string
	}{
		{[6]float64{0, 1, 0, 90, 0, -1}, "[[[[-180 -90] [-90 -90] [0 -90] [90 -90] [180 -90] [180 90] [90 90] [0 90] [-90 90] [-180 90] [-180 -90]]]]"},
		{[6]float64{-180, 1, 0, 90, 0, -1}, "[[[[-180 -90] [-90 -90] [0 -90] [90 -90] [180 -90] [180 90] [90 90] [0 90] [-90 90] [-180 90] [-180 -90]]]]"},
	} {
		mp, err := plain.of(360, 180, c.t)
		if err != nil || fmt.Sprint(mp.Coords()) != c.want {
			t.Errorf("%v, %v", mp.Coords(), err)
		}
	}
	mp, err := plain.of(20, 10, [6]float64{170, 1, 0, 10, 0, -1})
	const want = "[[[[170 10] [170 0] [180 0] [180 10] [170 10]]] [[[-180 0] [-170 0] [-170 10] [-180 10] [-180 0]]]]"
	if err != nil || mp.Area() != 200 || mp.NumPolygons() != 2 {
		t.Errorf("%v, %v; want like %s", mp.Coords(), err, want)
	}
}

func TestNoFootprint(t *testing.T) {
	for _, c := range []struct {
		name string
		p    projection
		t    [6]float64
		want error
	}{
		{"no area", plain, [6]float64{0, 1, 1, 0, 1, 1}, ErrDegenerate},
		{"zero", plain, [6]float64{}, ErrDegenerate},
		{"NaN", plain, [6]float64{math.NaN(), 1, 0, 0, 0, -1}, ErrDegenerate},
		{"infinite", plain, [6]float64{0, math.Inf(1), 0, 0, 0, -1}, ErrDegenerate},
		{"metres taken for degrees", plain, [6]float64{500000, 10, 0, 5000000, 0, -10}, ErrOffEarth},
		{"beyond the pole", plain, [6]float64{0, 1, 0, 150, 0, -1}, ErrOffEarth},
	} {
		mp, err := c.p.of(100, 100, c.t)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", c.name, mp, err)
		}
	}
}

// Random grids all over the place have a true outline or none.
func TestRandomGrids(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	found := 0
	for range 300 {
		p := []projection{plain, mercator, arctic, antarctic, sinusoidal, disc}[rng.IntN(6)]
		w, h := 1+rng.IntN(300), 1+rng.IntN(300)
		size := math.Exp(rng.Float64()*6) * 100
		x, y := (rng.Float64()-0.5)*3e7, (rng.Float64()-0.5)*1.5e7
		if p.geographic {
			size, x, y = size/1e5, x/1e5, y/1e5
		}
		s, c := math.Sincos(rng.Float64() * 7)
		gt := [6]float64{x, size * c, size * s, y, size * s, -size * c}
		if rng.IntN(2) == 0 {
			gt[2], gt[5] = -gt[2], -gt[5]
		}
		mp, err := p.of(w, h, gt)
		if err != nil {
			continue
		}
		found++
		t.Run(fmt.Sprintf("%s %d×%d %v", p.name, w, h, gt), func(t *testing.T) { verify(t, p, mp, w, h, gt) })
	}
	t.Logf("%d of 300 grids have a footprint", found)
	if found < 100 {
		t.Errorf("only %d of 300 grids have a footprint", found)
	}
}

// Whatever the geotransform, there is a sound footprint or an error, in bounded time.
func FuzzOf(f *testing.F) {
	f.Add(uint8(0), 10, 10, 1e300, 1.0, 0.0, 1.0, 0.0, -1.0)
	f.Add(uint8(0), 1<<31-1, 1<<31-1, -180.0, 1e-300, 0.0, 90.0, 0.0, -1e-300)
	f.Add(uint8(1), 100, 100, 1e7, 1e6, 1e5, 1e7, 1e5, -1e6)
	f.Add(uint8(2), 1<<30, 1, -1e7, 0.02, 0.0, 1e-9, 1e-3, -0.02)
	f.Add(uint8(3), 3, 5, -1.0, 1e-9, 0.0, 1.0, 0.0, -1e7)
	f.Add(uint8(4), 1000, 1000, -2e7, 4e4, 1e3, 2e7, 1e3, -4e4)
	f.Add(uint8(5), 1000, 1000, -7e6, 14e3, 7e3, 7e6, 1e3, -1e4)
	f.Add(uint8(0), 720, 10, -400.0, 1.0, 0.1, 10.0, 0.1, -1.0)
	f.Fuzz(func(t *testing.T, which uint8, w, h int, a, b, c, d, e, g float64) {
		p := []projection{plain, mercator, arctic, antarctic, sinusoidal, disc}[which%6]
		gt := [6]float64{a, b, c, d, e, g}
		for _, back := range []Transform{p.back, nil} {
			mp, err := Of(Grid{Width: w, Height: h, Transform: gt, Geographic: p.geographic}, p.there, back)
			if err == nil {
				sound(t, mp)
			}
		}
	})
}

// A ring may cross the antimeridian as often as it likes.
func TestCutAComb(t *testing.T) {
	// Three teeth across the meridian 5.
	comb := [][2]float64{{0, 0}, {8, 0}, {8, 1}, {2, 1}, {2, 2}, {8, 2}, {8, 3}, {2, 3}, {2, 4}, {8, 4}, {8, 5}, {0, 5}}
	for i := range comb {
		comb[i][0] += 175
	}
	for start := range comb {
		ring := append(append([][2]float64(nil), comb[start:]...), comb[:start]...)
		polygons, err := cut(ring, 0)
		if err != nil {
			t.Fatal(err)
		}
		var areas []float64
		for _, p := range polygons {
			areas = append(areas, signedArea(p[0]))
		}
		sort.Float64s(areas)
		if !reflect.DeepEqual(areas, []float64{3, 3, 3, 5*5 - 2*3}) {
			t.Errorf("from %d: areas %v of %v", start, areas, polygons)
		}
	}
}
