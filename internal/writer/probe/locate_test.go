//go:build cgo

package probe

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/footprint"
	"catalogd/internal/writer/wire"
)

func TestNoPlaceOnEarth(t *testing.T) {
	base := utm(20, 20)
	with := func(f func(*spec)) spec { s := base; f(&s); return s }
	for name, c := range map[string]struct {
		s    spec
		code catalog.Code
		say  string
	}{
		"no CRS":      {with(func(s *spec) { s.epsg = 0 }), catalog.CodeNoCRS, "no coordinate reference system"},
		"nothing":     {with(func(s *spec) { s.epsg, s.gt = 0, [6]float64{} }), catalog.CodeNoCRS, "no geotransform"},
		"CRS only":    {with(func(s *spec) { s.gt = [6]float64{} }), catalog.CodeNoFootprint, "no geotransform"},
		"engineering": {with(func(s *spec) { s.epsg, s.wkt = 0, `LOCAL_CS["site",UNIT["metre",1]]` }), catalog.CodeNoFootprint, "local"},
		"Moon": {with(func(s *spec) {
			s.epsg, s.wkt, s.gt = 0, `GEOGCS["Moon",DATUM["Moon",SPHEROID["Moon",1737400,0]],PRIMEM["Reference",0],UNIT["degree",0.0174532925199433]]`, [6]float64{10, 0.1, 0, 10, 0, -0.1}
		}), catalog.CodeNoFootprint, "not of the Earth"},
		"engineering, WKT2": {with(func(s *spec) {
			s.epsg, s.wkt = 0, `ENGCRS["site",EDATUM["here"],CS[Cartesian,2],AXIS["x",east],AXIS["y",north],LENGTHUNIT["metre",1]]`
		}), catalog.CodeNoFootprint, "local"},
		"Moon, IAU": {with(func(s *spec) {
			s.epsg, s.wkt, s.gt = 0, "IAU_2015:30100", [6]float64{10, 0.1, 0, 10, 0, -0.1}
		}), catalog.CodeNoFootprint, "not of the Earth"},
		"Mars, projected": {with(func(s *spec) {
			s.epsg, s.wkt = 0, "+proj=eqc +a=3396190 +b=3396190"
		}), catalog.CodeNoFootprint, "not of the Earth"},
		"geocentric": {with(func(s *spec) { s.epsg = 4978 }), catalog.CodeNoFootprint, "geocentric"},
		"beyond the pole": {with(func(s *spec) {
			s.epsg, s.gt = 4326, [6]float64{10, 1, 0, 95, 0, -1}
		}), catalog.CodeNoFootprint, "not on the Earth"},
		"GCPs on a line": {with(func(s *spec) {
			s.epsg, s.gt = 0, [6]float64{}
			s.change = gcps(t, 4326, [4]float64{0, 0, 10, 50}, [4]float64{10, 10, 11, 49}, [4]float64{20, 20, 12, 48})
		}), catalog.CodeNoFootprint, "GCPs"},
		"GCPs off the Earth": {with(func(s *spec) {
			s.epsg, s.gt = 0, [6]float64{}
			s.change = gcps(t, 4326, [4]float64{0, 10, 10, 89}, [4]float64{10, 10, 11, 89}, [4]float64{0, 20, 10, 85})
		}), catalog.CodeNoFootprint, "not on the Earth"},
		"GCPs without CRS": {with(func(s *spec) {
			s.epsg, s.gt = 0, [6]float64{}
			s.change = gcps(t, 0, [4]float64{0, 0, 10, 50}, [4]float64{10, 0, 11, 50}, [4]float64{0, 10, 10, 49})
		}), catalog.CodeNoCRS, "no coordinate reference system"},
		"GCPs on the Moon": {with(func(s *spec) {
			s.epsg, s.gt = 0, [6]float64{}
			s.change = gcps(t, -1, [4]float64{0, 0, 10, 50}, [4]float64{10, 0, 11, 50}, [4]float64{0, 10, 10, 49})
		}), catalog.CodeNoFootprint, "not of the Earth"},
		"far off": {with(func(s *spec) { s.epsg, s.gt = 4326, base.gt }), catalog.CodeNoFootprint, "not on the Earth"},
		"RPCs": {with(func(s *spec) {
			s.epsg, s.gt = 0, [6]float64{}
			s.change = func(ds *godal.Dataset) {
				twenty := strings.TrimSpace(strings.Repeat("1 ", 20))
				for k, v := range map[string]string{"LINE_OFF": "1", "SAMP_OFF": "1", "LAT_OFF": "1", "LONG_OFF": "1", "HEIGHT_OFF": "1", "LINE_SCALE": "1", "SAMP_SCALE": "1", "LAT_SCALE": "1", "LONG_SCALE": "1", "HEIGHT_SCALE": "1",
					"LINE_NUM_COEFF": twenty, "LINE_DEN_COEFF": twenty, "SAMP_NUM_COEFF": twenty, "SAMP_DEN_COEFF": twenty} {
					check(t, ds.SetMetadata(k, v, godal.Domain("RPC")))
				}
			}
		}), catalog.CodeNoFootprint, "RPCs"},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.s.write(t)
			refused(t, lookFile(t, path, catalog.ProbeRequest{}), c.code, c.say)
			if f := facts(t, lookFile(t, path, catalog.ProbeRequest{FootprintOptional: true})); f.Footprint != nil {
				t.Errorf("footprint %v", f.Footprint)
			}
		})
	}
}

// gcps sets ground control points: pixel, line, x, y; epsg 0 is for none, -1 for the Moon.
func gcps(t *testing.T, epsg int, points ...[4]float64) func(*godal.Dataset) {
	return func(ds *godal.Dataset) {
		var list []godal.GCP
		for i, p := range points {
			list = append(list, godal.GCP{PszId: strconv.Itoa(i), DfGCPPixel: p[0], DfGCPLine: p[1], DfGCPX: p[2], DfGCPY: p[3]})
		}
		opts := []godal.SetGCPsOption{}
		if epsg != 0 {
			sr, err := godal.NewSpatialRefFromEPSG(max(epsg, 4326))
			if epsg < 0 {
				sr, err = godal.NewSpatialRef("+proj=longlat +a=1737400 +b=1737400")
			}
			check(t, err)
			opts = append(opts, godal.GCPSpatialRef(sr))
		}
		check(t, ds.SetGCPs(list, opts...))
	}
}

// The reference system of a raster that is placed by points is theirs.
func TestCRSOfGCPs(t *testing.T) {
	s := utm(20, 20)
	s.epsg, s.gt = 0, [6]float64{}
	s.change = gcps(t, 4326, [4]float64{0, 0, 10, 50}, [4]float64{20, 0, 11, 50}, [4]float64{0, 20, 10, 49}, [4]float64{20, 20, 11, 49})
	path := s.write(t)
	f := facts(t, lookFile(t, path, catalog.ProbeRequest{}))
	if f.CRS != "EPSG:4326" || !strings.HasPrefix(f.CRSWKT, "GEOGCRS[") || f.Transform != [6]float64{} || f.Footprint == nil {
		t.Errorf("%q, %q, %v, %v", f.CRS, f.CRSWKT, f.Transform, f.Footprint)
	}
	sameAsGDAL(t, path, f)
}

// A spline goes through its points; GDAL's own choice, a polynomial, need not.
func TestSpline(t *testing.T) {
	sr, err := godal.NewSpatialRefFromEPSG(32633)
	check(t, err)
	defer sr.Close()
	var points []godal.GCP
	for i := range 25 {
		u, v := float64(i%5)*250, float64(i/5)*250
		points = append(points, godal.GCP{DfGCPPixel: u, DfGCPLine: v,
			DfGCPX: 500000 + 30*u + 900*math.Sin(u/200+v/300), DfGCPY: 5000000 - 30*v + 900*math.Cos(u/250*v/1000)})
	}
	off := func(spline bool) float64 {
		fit, err := fitGCPs(points, sr, spline)
		check(t, err)
		defer fit.Close()
		worst := 0.0
		for _, p := range points {
			x, y := []float64{p.DfGCPPixel}, []float64{p.DfGCPLine}
			fit.toCRS(x, y)
			worst = max(worst, math.Hypot(x[0]-p.DfGCPX, y[0]-p.DfGCPY))
		}
		p, err := newProjection(sr)
		check(t, err)
		defer p.Close()
		mp, err := footprint.Of(footprint.Grid{Width: 1000, Height: 1000, Transform: [6]float64{0, 1, 0, 0, 0, 1}}, func(xs, ys []float64) {
			fit.toCRS(xs, ys)
			p.toLonLat(xs, ys)
		}, nil)
		check(t, err)
		for _, g := range points {
			onEdge := g.DfGCPPixel == 0 || g.DfGCPLine == 0 || g.DfGCPPixel == 1000 || g.DfGCPLine == 1000
			x, y := []float64{g.DfGCPX}, []float64{g.DfGCPY}
			p.toLonLat(x, y)
			if near := fromEdge(mp.Coords()[0][0], x[0], y[0]); spline && onEdge && near > 0.5*30/80000 {
				t.Errorf("the spline's footprint passes a point on its edge by %g degrees", near)
			}
		}
		return worst
	}
	if s, p := off(true), off(false); s > 1e-3 || p < 30 {
		t.Errorf("the spline is %g m off its points, the polynomial %g", s, p)
	}
}

func fromEdge(ring []geom.Coord, x, y float64) float64 {
	near := math.Inf(1)
	for i, b := range ring[1:] {
		a := ring[i]
		dx, dy := b[0]-a[0], b[1]-a[1]
		f := max(0, min(1, ((x-a[0])*dx+(y-a[1])*dy)/(dx*dx+dy*dy)))
		near = min(near, math.Hypot(a[0]+f*dx-x, a[1]+f*dy-y))
	}
	return near
}

// Of a height alone no place is known. GDAL writes no such GeoTIFF.
func TestVerticalOnly(t *testing.T) {
	sr, err := godal.NewSpatialRefFromEPSG(5773)
	check(t, err)
	defer sr.Close()
	if _, err := newProjection(sr); err == nil || !strings.Contains(err.Error(), "vertical") {
		t.Error(err)
	}
}

func TestLocateBox(t *testing.T) {
	sr, err := godal.NewSpatialRefFromEPSG(32601)
	check(t, err)
	defer sr.Close()
	mp, refusal := locateBox(sr, 450000, 7000000, 650000, 7100000)
	if refusal != nil || mp.NumPolygons() != 1 || mp.NumCoords() < 10 {
		t.Errorf("%v, %+v", mp, refusal)
	}
	if mp, refusal = locateBox(sr, 200000, 7000000, 400000, 7100000); refusal != nil || mp.NumPolygons() != 2 {
		t.Errorf("across the antimeridian: %v, %+v", mp, refusal)
	}
	if mp, refusal = locateBox(sr, 500000, 7000000, 500000, 7000000); refusal != nil || mp.NumPolygons() != 1 || mp.Area() > 1e-11 {
		t.Errorf("a point: %v, %+v", mp, refusal)
	}
	if _, refusal = locateBox(nil, 0, 0, 1, 1); refusal == nil || refusal.Code != catalog.CodeNoCRS {
		t.Errorf("no CRS: %+v", refusal)
	}
	if _, refusal = locateBox(sr, 0, 0, math.NaN(), 1); refusal == nil || refusal.Code != catalog.CodeNoFootprint {
		t.Errorf("not finite: %+v", refusal)
	}
}

// Footprints by PROJ hold what is in the raster, and nothing else.
func TestFootprints(t *testing.T) {
	turned := func(x, y, size, angle float64) [6]float64 {
		s, c := math.Sincos(angle * math.Pi / 180)
		return [6]float64{x, size * c, size * s, y, size * s, -size * c}
	}
	for name, c := range map[string]struct {
		epsg     int
		w, h     int
		gt       [6]float64
		polygons int
	}{
		"UTM":                        {32633, 10980, 10980, [6]float64{300000, 10, 0, 5000040, 0, -10}, 1},
		"UTM rotated":                {32633, 10980, 10980, turned(300000, 5000040, 10, 25), 1},
		"UTM south-up":               {32633, 1098, 1098, [6]float64{300000, 100, 0, 4890240, 0, 100}, 1},
		"UTM south":                  {32733, 1098, 1098, [6]float64{300000, 100, 0, 8000000, 0, -100}, 1},
		"UTM 60 across 180":          {32660, 1098, 1098, [6]float64{600000, 100, 0, 7000000, 0, -100}, 2},
		"UTM 1 across 180":           {32601, 1098, 1098, [6]float64{300000, 100, 0, 7000000, 0, -100}, 2},
		"geographic":                 {4326, 400, 200, [6]float64{10, 0.1, 0, 50, 0, -0.1}, 1},
		"geographic across 180":      {4326, 400, 200, [6]float64{160, 0.1, 0, 50, 0, -0.1}, 2},
		"geographic 0 to 360":        {4326, 360, 180, [6]float64{0, 1, 0, 90, 0, -1}, 1},
		"geographic 190 to 230":      {4326, 400, 200, [6]float64{190, 0.1, 0, 50, 0, -0.1}, 1},
		"NAD83 geographic":           {4269, 400, 200, [6]float64{-120, 0.1, 0, 50, 0, -0.1}, 1},
		"NTF (Paris), in grads":      {4807, 40, 40, [6]float64{0, 0.1, 0, 54, 0, -0.1}, 1},
		"web mercator":               {3857, 512, 512, [6]float64{1e6, 1000, 0, 6e6, 0, -1000}, 1},
		"web mercator across 180":    {3857, 512, 512, [6]float64{19900000, 1000, 0, 6e6, 0, -1000}, 2},
		"web mercator, whole":        {3857, 256, 256, [6]float64{-20037508.342789244, 156543.03392804097, 0, 20037508.342789244, 0, -156543.03392804097}, 1},
		"polar without the pole":     {3413, 1000, 1000, [6]float64{1e6, 1000, 0, -1e6, 0, -1000}, 1},
		"polar, a corner is a pole":  {3413, 1000, 1000, [6]float64{0, 1000, 0, 0, 0, -1000}, 1},
		"polar with the pole":        {3413, 304, 448, [6]float64{-3850000, 25000, 0, 5850000, 0, -25000}, 1},
		"south polar with the pole":  {3031, 600, 600, [6]float64{-3e6, 10000, 0, 3e6, 0, -10000}, 1},
		"Lambert Europe":             {3035, 1000, 1000, [6]float64{3e6, 1000, 0, 3e6, 0, -1000}, 1},
		"EASE-Grid 2.0 global":       {6933, 964, 406, [6]float64{-17367530.44, 36032.22, 0, 7314540.83, 0, -36032.22}, 1},
		"northing first (EPSG:2180)": {2180, 100, 100, [6]float64{300000, 1000, 0, 500000, 0, -1000}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec{width: c.w, height: c.h, bands: 1, dtype: godal.Byte, epsg: c.epsg, gt: c.gt, unwritten: true, creation: []string{"TILED=YES", "SPARSE_OK=TRUE"}}
			f := facts(t, lookFile(t, s.write(t), catalog.ProbeRequest{SparseAllowed: true}))
			points := 0
			for _, polygon := range f.Footprint {
				points += len(polygon[0])
			}
			if len(f.Footprint) != c.polygons || points > 510 {
				t.Errorf("%d polygons, want %d: %d points: %v", len(f.Footprint), c.polygons, points, f.Footprint)
			}
			verifyFootprint(t, f, c.epsg)
		})
	}
}

func verifyFootprint(t *testing.T, f *wire.Facts, epsg int) {
	sr, err := godal.NewSpatialRefFromEPSG(epsg)
	check(t, err)
	defer sr.Close()
	p, err := newProjection(sr)
	check(t, err)
	defer p.Close()
	gt := f.Transform
	det := gt[1]*gt[5] - gt[2]*gt[4]
	rng := rand.New(rand.NewPCG(4, 4))
	const margin = 0.55
	w, h := float64(f.Width), float64(f.Height)
	misses := 0
	for range 3000 {
		u, v, want := margin+rng.Float64()*(w-2*margin), margin+rng.Float64()*(h-2*margin), true
		switch rng.IntN(9) {
		case 0:
			u = margin
		case 1:
			u = w - margin
		case 2:
			v = margin
		case 3:
			v = h - margin
		case 4:
			u, want = -margin, false
		case 5:
			u, want = w+margin, false
		case 6:
			v, want = -margin, false
		case 7:
			v, want = h+margin, false
		}
		x, y := []float64{gt[0] + u*gt[1] + v*gt[2]}, []float64{gt[3] + u*gt[4] + v*gt[5]}
		p.toLonLat(x, y)
		lon, lat := x[0]-360*math.Floor((x[0]+180)/360), y[0]
		if math.IsNaN(lon) || math.Abs(lat) > 90 || math.Abs(math.Abs(lon)-180) < 1e-6 {
			continue
		}
		if !want {
			// Once round the Earth, the outside is inside again.
			for _, turn := range []float64{-360, 0, 360} {
				bx, by := []float64{lon + turn}, []float64{lat}
				p.toGrid(bx, by)
				dx, dy := bx[0]-gt[0], by[0]-gt[3]
				bu, bv := (dx*gt[5]-dy*gt[2])/det, (dy*gt[1]-dx*gt[4])/det
				want = want || bu > 0 && bv > 0 && bu < w && bv < h
			}
			if want {
				continue
			}
		}
		if holds(f.Footprint, lon, lat) != want {
			if misses++; misses < 4 {
				t.Errorf("pixel %v, line %v at %v, %v: in the footprint %v", u, v, lon, lat, !want)
			}
		}
	}
}

func holds(footprint [][][][2]float64, lon, lat float64) bool {
	in := false
	for _, polygon := range footprint {
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
