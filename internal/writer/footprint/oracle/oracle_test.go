package oracle

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	geom "github.com/twpayne/go-geom"
	"github.com/twpayne/go-geom/encoding/wkb"

	"catalogd/internal/catalog"
	"catalogd/internal/testdb"
	"catalogd/internal/writer"
	"catalogd/internal/writer/probetest"
	"catalogd/internal/writer/wire"
)

// raster to be made, and what is known of its footprint.
type raster struct {
	name string
	crs  string // whatever GDAL takes
	esri bool   // written as ESRI's WKT
	w, h int
	gt   [6]float64
	gcps [][4]float64 // pixel, line, x, y
	// truth is another way to place the raster, for the oracle.
	truth *place
	// turn is what x gains in a turn round the Earth, in systems that can take one.
	turn float64

	polygons int
	limb     bool    // some of it is off the Earth: distances are told apart in degrees
	area     float64 // in km², where known; within a thousandth
	error    float64 // in pixels; half a pixel by default
}

type place struct {
	CRS string     `json:"crs"`
	GT  [6]float64 `json:"gt"`
}

// found is a raster with its footprint.
type found struct {
	raster
	path      string
	footprint *geom.MultiPolygon
	wkt       string
	probes    [][3]any // longitude, latitude, whether in the raster
	back      float64  // how far the footprint strays in pixels, by GDAL
}

//go:embed testdata/gdal.py
var script string

func python(t testing.TB, command string, in, out any) {
	t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	// Debian's Python is the one that has GDAL.
	cmd := exec.Command("/usr/bin/python3", "-c", script, command)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(raw), &stderr
	raw, err = cmd.Output()
	if err == nil {
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		t.Fatalf("gdal.py %s: %v\n%s", command, err, stderr.Bytes())
	}
}

// find makes the rasters, has the real probe find their footprints, and GDAL say where
// their pixels are. A raster without a footprint has none, and its error.
func find(t testing.TB, rasters []raster, n int) ([]found, []error) {
	t.Helper()
	dir := t.TempDir()
	makes := make([]map[string]any, len(rasters))
	out := make([]found, len(rasters))
	for i, r := range rasters {
		out[i] = found{raster: r, path: filepath.Join(dir, fmt.Sprintf("%d.tif", i))}
		makes[i] = map[string]any{"path": out[i].path, "crs": r.crs, "esri": r.esri, "w": r.w, "h": r.h, "gt": r.gt, "gcps": r.gcps}
	}
	python(t, "make", makes, new([]any))

	pool := writer.NewPool(writer.Config{Program: probetest.Path(t), Size: 2, Log: slog.New(slog.DiscardHandler)})
	defer pool.Close()
	errs := make([]error, len(rasters))
	var judges []map[string]any
	var judged []int
	for i := range out {
		file, err := os.Open(out[i].path)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := file.Stat()
		facts, err := pool.Probe(t.Context(), file, info.Size(), catalog.ProbeRequest{SparseAllowed: true})
		file.Close()
		out[i].footprint, errs[i] = facts.Footprint, err
		if err == nil {
			judges = append(judges, map[string]any{"path": out[i].path, "truth": out[i].truth, "turn": out[i].turn, "seed": i, "n": n, "footprint": wire.FootprintCoords(facts.Footprint)})
			judged = append(judged, i)
		}
	}
	var answers []struct {
		WKT    string   `json:"wkt"`
		Probes [][3]any `json:"probes"`
		Back   float64  `json:"back"`
	}
	python(t, "judge", judges, &answers)
	for k, i := range judged {
		out[i].wkt, out[i].probes, out[i].back = answers[k].WKT, answers[k].Probes, answers[k].Back
	}
	return out, errs
}

// judge holds footprints against GDAL and PostGIS, in few queries.
func judge(t *testing.T, db *pgx.Conn, all []found) {
	t.Helper()
	var ids []int
	var shapes [][]byte
	for i, f := range all {
		raw, err := catalog.EncodeFootprint(f.footprint)
		if err != nil {
			t.Fatal(err)
		}
		ids, shapes = append(ids, i), append(shapes, raw)
	}
	_, err := db.Exec(t.Context(), `DROP TABLE IF EXISTS pg_temp.found;
		CREATE TEMP TABLE found (id int PRIMARY KEY, shape geometry)`)
	if err == nil {
		_, err = db.Exec(t.Context(), `INSERT INTO found SELECT id, ST_GeomFromEWKB(shape) FROM unnest($1::int[], $2::bytea[]) x(id, shape)`, ids, shapes)
	}
	if err != nil {
		t.Fatal(err)
	}
	sound(t, db, all)
	back(t, db, all)
	membership(t, db, all)
}

// sound: what every footprint keeps to, by PostGIS.
func sound(t *testing.T, db *pgx.Conn, all []found) {
	t.Helper()
	var caps []int // with an area that PostGIS can find too: it fails on whole Earths
	for i, f := range all {
		if f.area > 0 && f.area < earth/2 {
			caps = append(caps, i)
		}
	}
	rows, err := db.Query(t.Context(), `SELECT id, ST_IsValidReason(shape), ST_IsSimple(shape), ST_IsPolygonCCW(shape), ST_NPoints(shape), ST_NumGeometries(shape), ST_SRID(shape),
		ST_XMin(shape) >= -180 AND ST_XMax(shape) <= 180 AND ST_YMin(shape) >= -90 AND ST_YMax(shape) <= 90,
		ST_NPoints(shape) = ST_NPoints(ST_RemoveRepeatedPoints(shape)),
		CASE WHEN id = ANY($1) THEN ST_Area(ST_Segmentize(shape, 0.1)::geography)/1e6 END FROM found ORDER BY id`, caps)
	if err != nil {
		t.Fatal(err)
	}
	var (
		id, points, polygons, srid     int
		reason                         string
		simple, ccw, bounded, distinct bool
		byPostGIS                      *float64
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &reason, &simple, &ccw, &points, &polygons, &srid, &bounded, &distinct, &byPostGIS}, func() error {
		f := all[id]
		if reason != "Valid Geometry" || !simple || !ccw || !bounded || !distinct || srid != 4326 {
			t.Errorf("%s: %s; simple %v, counter-clockwise %v, within bounds %v, points distinct %v", f.name, reason, simple, ccw, bounded, distinct)
		}
		if points > 520 {
			t.Errorf("%s: %d points", f.name, points)
		}
		if f.polygons > 0 && polygons != f.polygons {
			t.Errorf("%s: %d polygons, want %d: %v", f.name, polygons, f.polygons, f.footprint.Bounds())
		}
		if f.area > 0 {
			share := area(f.footprint) / f.area
			if math.Abs(share-1) > 1e-3 {
				t.Errorf("%s: %.6f of the true area", f.name, share)
			}
			said := ""
			if byPostGIS != nil {
				if math.Abs(*byPostGIS/f.area-1) > 1e-3 {
					t.Errorf("%s: %.6f of the true area by PostGIS", f.name, *byPostGIS/f.area)
				}
				said = fmt.Sprintf(", by PostGIS %.6f", *byPostGIS/f.area)
			}
			t.Logf("%s: %.6f of the true area%s", f.name, share, said)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// area on the WGS 84 ellipsoid, in km²: the integral of the area between the equator and
// the edge (Snyder, Map Projections: A Working Manual, 3-12), along edges that are
// straight in longitude and latitude.
func area(mp *geom.MultiPolygon) float64 {
	const a, e = 6378.137, 0.0818191908426215
	q := func(lat float64) float64 {
		s := math.Sin(lat * math.Pi / 180)
		return (1 - e*e) * (s/(1-e*e*s*s) - math.Log((1-e*s)/(1+e*s))/(2*e))
	}
	sum := 0.0
	for _, polygon := range mp.Coords() {
		for _, ring := range polygon {
			for i, p := range ring[1:] {
				const n = 16
				for k := range n {
					lat := ring[i][1] + (float64(k)+0.5)/n*(p[1]-ring[i][1])
					sum -= q(lat) * (p[0] - ring[i][0]) / n * math.Pi / 180
				}
			}
		}
	}
	return sum * a * a / 2
}

// edges of a footprint, densified, but for its cuts: what must lie on the grid's edges.
func edges(mp *geom.MultiPolygon) *geom.MultiPoint {
	var flat []float64
	for _, polygon := range mp.Coords() {
		for _, ring := range polygon {
			for i, b := range ring[1:] {
				a := ring[i]
				if math.Abs(a[0]) > 180-1e-5 && a[0] == b[0] || math.Abs(a[1]) == 90 && a[1] == b[1] {
					continue
				}
				for k := range 8 {
					f := float64(k) / 8
					flat = append(flat, a[0]+f*(b[0]-a[0]), a[1]+f*(b[1]-a[1]))
				}
			}
		}
	}
	return geom.NewMultiPointFlat(geom.XY, flat)
}

// offEdge is how far a place is from the edges of the grid, in pixels.
func (f found) offEdge(x, y float64) float64 {
	gt := f.gt
	if f.truth != nil {
		gt = f.truth.GT
	}
	det := gt[1]*gt[5] - gt[2]*gt[4]
	dx, dy := x-gt[0], y-gt[3]
	w, h := float64(f.w), float64(f.h)
	best := math.Inf(1)
	for turn := -2.0; turn <= 2; turn++ {
		dx := dx + turn*f.turn
		u, v := (dx*gt[5]-dy*gt[2])/det, (dy*gt[1]-dx*gt[4])/det
		du, dv := math.Max(0, math.Max(-u, u-w)), math.Max(0, math.Max(-v, v-h))
		if du == 0 && dv == 0 {
			du = math.Min(math.Min(u, w-u), math.Min(v, h-v))
		}
		best = math.Min(best, math.Hypot(du, dv))
	}
	return best
}

// back: the footprint's edges come back to the edges of the grid, by PostGIS and by GDAL.
func back(t *testing.T, db *pgx.Conn, all []found) {
	t.Helper()
	var ids []int
	var points [][]byte
	var systems []string
	for i, f := range all {
		if f.gcps != nil && f.truth == nil || f.limb {
			continue // PostGIS knows no GCPs, and takes no point without an image
		}
		raw, err := wkb.Marshal(edges(f.footprint), binary.LittleEndian)
		if err != nil {
			t.Fatal(err)
		}
		ids, points, systems = append(ids, i), append(points, raw), append(systems, f.wkt)
	}
	rows, err := db.Query(t.Context(), `SELECT id, ST_AsBinary(ST_Transform(ST_GeomFromWKB(points), 'EPSG:4326', system))
		FROM unnest($1::int[], $2::bytea[], $3::text[]) x(id, points, system)`, ids, points, systems)
	if err != nil {
		t.Fatal(err)
	}
	worst := make([]float64, len(all))
	var id int
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &raw}, func() error {
		g, err := wkb.Unmarshal(raw)
		if err != nil {
			return err
		}
		for flat := g.FlatCoords(); len(flat) > 0; flat = flat[2:] {
			worst[id] = math.Max(worst[id], all[id].offEdge(flat[0], flat[1]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	most := 0.0
	for i, f := range all {
		if slices.Contains(ids, i) {
			limit := f.error
			if limit == 0 {
				limit = 0.5
				most = math.Max(most, math.Max(worst[i], f.back))
			}
			if !(worst[i] <= limit) || f.back > limit || f.back < 0 {
				t.Errorf("%s: %.3f pixels off by PostGIS, %.3f by GDAL", f.name, worst[i], f.back)
			}
		}
		off := fmt.Sprintf("%6.3f pixels off by PostGIS, %6.3f by GDAL", worst[i], f.back)
		if !slices.Contains(ids, i) {
			off = "see its places"
		}
		t.Logf("%-40s %3d points, %d places, %s", f.name, f.footprint.NumCoords(), len(f.probes), off)
	}
	t.Logf("at most %.3f pixels", most)
}

// membership: what GDAL says is in the raster is in the footprint, and nothing else.
func membership(t *testing.T, db *pgx.Conn, all []found) {
	t.Helper()
	var ids []int
	var lons, lats []float64
	var want []bool
	for i, f := range all {
		for _, p := range f.probes {
			ids, lons, lats, want = append(ids, i), append(lons, p[0].(float64)), append(lats, p[1].(float64)), append(want, p[2].(bool))
		}
	}
	rows, err := db.Query(t.Context(), `SELECT id, lon, lat, want, CASE WHEN want THEN ST_Distance(shape, p) ELSE ST_Distance(ST_Boundary(shape), p) END
		FROM unnest($1::int[], $2::float8[], $3::float8[], $4::bool[]) x(id, lon, lat, want) JOIN found USING (id), LATERAL ST_SetSRID(ST_MakePoint(lon, lat), 4326) p
		WHERE ST_Intersects(shape, p) <> want`, ids, lons, lats, want)
	if err != nil {
		t.Fatal(err)
	}
	var id int
	var lon, lat, distance float64
	var in bool
	_, err = pgx.ForEachRow(rows, []any{&id, &lon, &lat, &in, &distance}, func() error {
		f := all[id]
		if distance > 1e-9 && (f.error == 0 && !f.limb || distance > 0.02) {
			t.Errorf("%s: %.6f, %.6f: in the raster %v, not so in the footprint, by %g degrees", f.name, lon, lat, in, distance)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d places asked", len(ids))
}

func database(t *testing.T) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), testdb.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = db.Close(ctx)
	})
	return db
}

func turned(x, y, size, angle float64) [6]float64 {
	s, c := math.Sincos(angle * math.Pi / 180)
	return [6]float64{x, size * c, size * s, y, size * s, -size * c}
}

const (
	meteosat = "+proj=geos +h=35785831 +lon_0=0 +sweep=y +a=6378169 +b=6356583.8 +units=m"
	goes     = "+proj=geos +h=35786023 +lon_0=-137 +sweep=x +ellps=GRS80 +units=m"
	earth    = 510065621.724 // km², of the WGS 84 ellipsoid
)

func cases() []raster {
	grid := func(gt [6]float64, px [][2]float64) (gcps [][4]float64) {
		for _, p := range px {
			gcps = append(gcps, [4]float64{p[0], p[1], gt[0] + p[0]*gt[1] + p[1]*gt[2], gt[3] + p[0]*gt[4] + p[1]*gt[5]})
		}
		return gcps
	}
	var dense, bent, wild [][4]float64
	for i := range 5 {
		for j := range 5 {
			u, v := float64(i)*250, float64(j)*250
			dense = append(dense, [4]float64{u, v, 500000 + 30*u + 8*v, 5000000 + 5*u - 30*v})
			a, b := u/1000, v/1000
			bent = append(bent, [4]float64{u, v, 500000 + 30*u + 8*v + 2000*a*a - 1500*a*b, 5000000 + 5*u - 30*v + 1000*b*b})
			wild = append(wild, [4]float64{u, v, 500000 + 30*u + 8*v + 900*math.Sin(5*a+3*b), 5000000 + 5*u - 30*v + 900*math.Cos(4*a*b)})
		}
	}
	oblique := turned(500000, 5000000, 30, 25)
	dateline := [6]float64{178, 0.004, 0.0005, 60, -0.0003, -0.003}
	across := grid(dateline, [][2]float64{{0, 0}, {1000, 0}, {1000, 1000}, {0, 1000}, {500, 500}})
	for i := range across {
		if across[i][2] > 180 {
			across[i][2] -= 360
		}
	}
	world := 20037508.342789244
	cs := []raster{
		{name: "UTM", crs: "EPSG:32633", w: 10980, h: 10980, gt: [6]float64{300000, 10, 0, 5000040, 0, -10}, polygons: 1},
		{name: "UTM south", crs: "EPSG:32733", w: 1098, h: 1098, gt: [6]float64{300000, 100, 0, 8000000, 0, -100}, polygons: 1},
		{name: "UTM 60 across 180", crs: "EPSG:32660", w: 1098, h: 1098, gt: [6]float64{600000, 100, 0, 7000000, 0, -100}, polygons: 2},
		{name: "UTM 1 across 180", crs: "EPSG:32601", w: 1098, h: 1098, gt: [6]float64{300000, 100, 0, 7000000, 0, -100}, polygons: 2},
		{name: "UTM 1 south across 180", crs: "EPSG:32701", w: 1098, h: 1098, gt: [6]float64{150000, 100, 0, 8000000, 0, -100}, polygons: 2},
		{name: "UTM with the pole", crs: "EPSG:32633", w: 1000, h: 1000, gt: [6]float64{0, 1000, 0, 10400000, 0, -1000}},
		{name: "rotated", crs: "EPSG:32633", w: 10980, h: 10980, gt: turned(300000, 5000040, 10, 25), polygons: 1},
		{name: "sheared", crs: "EPSG:32633", w: 1000, h: 2000, gt: [6]float64{300000, 100, 30, 5000040, -20, -100}, polygons: 1},
		{name: "south-up", crs: "EPSG:32633", w: 1098, h: 1098, gt: [6]float64{300000, 100, 0, 4890240, 0, 100}, polygons: 1},
		{name: "east to west", crs: "EPSG:32633", w: 1098, h: 1098, gt: [6]float64{409800, -100, 0, 5000040, 0, -100}, polygons: 1},
		{name: "transposed", crs: "EPSG:32633", w: 1098, h: 1098, gt: [6]float64{409800, 0, 100, 5000040, -100, 0}, polygons: 1},
		{name: "one pixel", crs: "EPSG:32633", w: 1, h: 1, gt: [6]float64{300000, 100000, 0, 5000040, 0, -100000}, polygons: 1},
		{name: "one pixel of a metre", crs: "EPSG:32633", w: 1, h: 1, gt: [6]float64{300000, 1, 0, 5000040, 0, -1}, polygons: 1},
		{name: "a million pixels wide", crs: "EPSG:32633", w: 1000000, h: 64, gt: [6]float64{350000, 0.3, 0, 5000040, 0, -0.3}, polygons: 1},
		{name: "a million pixels, 500 km", crs: "EPSG:32633", w: 1000000, h: 64, gt: [6]float64{250000, 0.5, 0, 5000040, 0, -0.5}, polygons: 1},
		{name: "a million pixels, 500 km, south-up", crs: "EPSG:32633", w: 1000000, h: 64, gt: [6]float64{250000, 0.5, 0, 7000040, 0, 0.5}, polygons: 1},
		{name: "a million pixels, 500 km, rotated", crs: "EPSG:32633", w: 1000000, h: 64, gt: turned(250000, 5000040, 0.5, 35), polygons: 1},
		{name: "a million pixels high, 500 km", crs: "EPSG:32601", w: 64, h: 1000000, gt: [6]float64{200000, 0.5, 0, 7000000, 0, -0.5}, polygons: 1},
		{name: "a million pixels, 1000 km", crs: "EPSG:3035", w: 1000000, h: 64, gt: [6]float64{3500000, 1, 0, 3000000, 0, -1}, polygons: 1},
		{name: "a million pixels wide, degrees", crs: "EPSG:4326", w: 1000000, h: 64, gt: [6]float64{-180, 3.6e-4, 0, 50, 0, -3.6e-4}, turn: 360, polygons: 1},
		{name: "a million pixels, 5000 km", crs: "EPSG:3413", w: 1000000, h: 20000, gt: [6]float64{-2500000, 5, 0, -1000000, 0, -5}, polygons: 1, error: 4},
		{name: "a million pixels, 5000 km, thin", crs: "EPSG:3413", w: 1000000, h: 64, gt: [6]float64{-2500000, 5, 0, -1000000, 0, -5}, polygons: 1, error: 4},

		{name: "geographic", crs: "EPSG:4326", w: 400, h: 200, gt: [6]float64{10, 0.1, 0, 50, 0, -0.1}, turn: 360, polygons: 1},
		{name: "geographic rotated across 180", crs: "EPSG:4326", w: 400, h: 200, gt: turned(170, 60, 0.05, 20), turn: 360, polygons: 2},
		{name: "longitudes 190 to 230", crs: "EPSG:4326", w: 400, h: 200, gt: [6]float64{190, 0.1, 0, 50, 0, -0.1}, turn: 360, polygons: 1},
		{name: "longitudes 160 to 200", crs: "EPSG:4326", w: 400, h: 200, gt: [6]float64{160, 0.1, 0, 50, 0, -0.1}, turn: 360, polygons: 2},
		{name: "longitudes 0 to 360", crs: "EPSG:4326", w: 360, h: 180, gt: [6]float64{0, 1, 0, 90, 0, -1}, turn: 360, polygons: 1, area: earth},
		{name: "longitudes 0 to 359.75, points", crs: "EPSG:4326", w: 1440, h: 721, gt: [6]float64{-0.125, 0.25, 0, 90.125, 0, -0.25}, turn: 360, polygons: 1, area: earth},
		{name: "whole Earth", crs: "EPSG:4326", w: 3600, h: 1800, gt: [6]float64{-180, 0.1, 0, 90, 0, -0.1}, turn: 360, polygons: 1, area: earth},
		{name: "web mercator, whole", crs: "EPSG:3857", w: 256, h: 256, gt: [6]float64{-world, world / 128, 0, world, 0, -world / 128}, turn: 2 * world, polygons: 1},
		{name: "web mercator across 180", crs: "EPSG:3857", w: 512, h: 512, gt: [6]float64{19900000, 1000, 0, 6e6, 0, -1000}, turn: 2 * world, polygons: 2},
		{name: "mercator about 150, whole", crs: "+proj=merc +lon_0=150 +datum=WGS84", w: 200, h: 200, gt: [6]float64{-world, world / 100, 0, 1e7, 0, -1e5}, turn: 2 * world, polygons: 1},
		{name: "EASE-Grid 2.0 global", crs: "EPSG:6933", w: 964, h: 406, gt: [6]float64{-17367530.44, 36032.22, 0, 7314540.83, 0, -36032.22}, turn: 2 * 17367530.445161376, polygons: 1},
		{name: "EASE-Grid 2.0, beyond the poles", crs: "EPSG:6933", w: 1000, h: 430, gt: [6]float64{-18000000, 36000, 0, 7740000, 0, -36000}, turn: 2 * 17367530.445161376, polygons: 1, limb: true, area: earth},
		{name: "sinusoidal, whole", crs: "+proj=sinu +lon_0=0 +datum=WGS84", w: 1000, h: 500, gt: [6]float64{-20100000, 40200, 0, 10050000, 0, -40200}, limb: true, polygons: 1, area: earth},
		{name: "sinusoidal about 15, whole", crs: "+proj=sinu +lon_0=15 +datum=WGS84", w: 1000, h: 500, gt: [6]float64{-20100000, 40200, 0, 10050000, 0, -40200}, limb: true, polygons: 2, area: earth},
		{name: "MODIS tile", crs: "+proj=sinu +lon_0=0 +a=6371007.181 +b=6371007.181", w: 1200, h: 1200, gt: [6]float64{1111950.52, 926.62543305, 0, 5559752.598, 0, -926.62543305}, polygons: 1},
		{name: "MODIS tile off the edge", crs: "+proj=sinu +lon_0=0 +a=6371007.181 +b=6371007.181", w: 1200, h: 1200, gt: [6]float64{-17791208, 926.62543305, 0, 4447802, 0, -926.62543305}, limb: true, polygons: 1},
		{name: "Mollweide, whole", crs: "ESRI:54009", w: 900, h: 460, gt: [6]float64{-18100000, 40222, 0, 9100000, 0, -39565}, limb: true, polygons: 1, area: earth},
		{name: "Robinson, whole", crs: "ESRI:54030", w: 900, h: 460, gt: [6]float64{-17100000, 38000, 0, 8700000, 0, -37826}, limb: true, polygons: 1, area: earth},
		{name: "Lambert equal area, polar, whole", crs: "EPSG:6931", w: 1000, h: 1000, gt: [6]float64{-13000000, 26000, 0, 13000000, 0, -26000}, limb: true, polygons: 1, area: earth},
		{name: "Lambert equal area about 52, 10, whole", crs: "EPSG:3035", w: 1200, h: 1200, gt: [6]float64{-9500000, 23000, 0, 17000000, 0, -23000}, limb: true, area: earth},
		{name: "orthographic about 60, 20", crs: "+proj=ortho +lat_0=60 +lon_0=20 +a=6371000 +b=6371000", w: 1300, h: 1300, gt: [6]float64{-6500000, 10000, 0, 6500000, 0, -10000}, limb: true},

		{name: "3413 with the pole", crs: "EPSG:3413", w: 304, h: 448, gt: [6]float64{-3850000, 25000, 0, 5850000, 0, -25000}, polygons: 1},
		{name: "3413 with the pole, rotated", crs: "EPSG:3413", w: 500, h: 600, gt: turned(-3e6, 1e6, 10000, 20), polygons: 1},
		{name: "3413 with the pole, south-up", crs: "EPSG:3413", w: 500, h: 600, gt: [6]float64{-2e6, 10000, 0, -3e6, 0, 10000}, polygons: 1},
		{name: "3413, pole in a corner", crs: "EPSG:3413", w: 1000, h: 1000, gt: [6]float64{0, 1000, 0, 0, 0, -1000}, polygons: 1},
		{name: "3413, pole in each corner in turn, a", crs: "EPSG:3413", w: 100, h: 100, gt: [6]float64{-1e6, 10000, 0, 0, 0, -10000}, polygons: 1},
		{name: "3413, pole in each corner in turn, b", crs: "EPSG:3413", w: 100, h: 100, gt: [6]float64{-1e6, 10000, 0, 1e6, 0, -10000}},
		{name: "3413, pole in each corner in turn, c", crs: "EPSG:3413", w: 100, h: 100, gt: [6]float64{0, 10000, 0, 1e6, 0, -10000}},
		{name: "3413, pole on an edge", crs: "EPSG:3413", w: 200, h: 100, gt: [6]float64{-1e6, 10000, 0, 0, 0, -10000}, polygons: 1},
		{name: "3413, pole on another edge", crs: "EPSG:3413", w: 200, h: 100, gt: [6]float64{-1e6, 10000, 0, 1e6, 0, -10000}, polygons: 2},
		{name: "3413, pole beside an edge", crs: "EPSG:3413", w: 200, h: 100, gt: [6]float64{-1e6, 10000, 0, 15000, 0, -10000}, polygons: 1},
		{name: "3413, pole beyond an edge", crs: "EPSG:3413", w: 200, h: 100, gt: [6]float64{-1e6, 10000, 0, -6000, 0, -10000}, polygons: 1},
		{name: "3413 without the pole", crs: "EPSG:3413", w: 1000, h: 1000, gt: [6]float64{1e6, 1000, 0, -1e6, 0, -1000}, polygons: 1},
		{name: "3031 with the pole", crs: "EPSG:3031", w: 600, h: 600, gt: [6]float64{-3e6, 10000, 0, 3e6, 0, -10000}, polygons: 1},
		{name: "3031, pole in a corner", crs: "EPSG:3031", w: 300, h: 300, gt: [6]float64{0, 10000, 0, 3e6, 0, -10000}, polygons: 1},
		{name: "equal area with the pole", crs: "EPSG:6931", w: 720, h: 720, gt: [6]float64{-9000000 / 2, 12500, 0, 9000000 / 2, 0, -12500}, polygons: 1, area: 9000 * 9000},
		{name: "equal area with the pole, rotated", crs: "EPSG:6932", w: 720, h: 500, gt: turned(-6e6, -2e6, 12500, -30), polygons: 2, area: 9000 * 6250},

		{name: "Meteosat full disc", crs: meteosat, w: 3712, h: 3712, gt: [6]float64{-5570248.477, 3000.403, 0, 5570248.477, 0, -3000.403}, limb: true, polygons: 1},
		{name: "Meteosat full disc, as stored", crs: meteosat, w: 3712, h: 3712, gt: [6]float64{5567248.074, -3000.403, 0, -5570248.477, 0, 3000.403}, limb: true, polygons: 1},
		{name: "GOES full disc across 180", crs: goes, w: 5424, h: 5424, gt: [6]float64{-5434894.885, 2004.017, 0, 5434894.885, 0, -2004.017}, limb: true, polygons: 2},
		{name: "GOES sector", crs: goes, w: 1000, h: 1000, gt: [6]float64{-1000000, 2004.017, 0, 3000000, 0, -2004.017}},
		{name: "GOES sector off the limb", crs: goes, w: 1500, h: 1000, gt: [6]float64{2500000, 2004.017, 0, 5000000, 0, -2004.017}, limb: true},

		{name: "Lambert Europe", crs: "EPSG:3035", w: 1000, h: 1000, gt: [6]float64{3e6, 1000, 0, 3e6, 0, -1000}, polygons: 1},
		{name: "northing first (EPSG:2180)", crs: "EPSG:2180", w: 100, h: 100, gt: [6]float64{300000, 1000, 0, 500000, 0, -1000}, polygons: 1},
		{name: "northing first (EPSG:31467)", crs: "EPSG:31467", w: 1000, h: 1000, gt: [6]float64{3400000, 50, 0, 5600000, 0, -50}, polygons: 1},
		{name: "local datum without a grid", crs: "+proj=tmerc +lat_0=0 +lon_0=9 +k=1 +x_0=3500000 +ellps=bessel +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7", w: 1000, h: 1000, gt: [6]float64{3400000, 50, 0, 5600000, 0, -50}, polygons: 1},
		{name: "latitude first (EPSG:4258)", crs: "EPSG:4258", w: 400, h: 200, gt: [6]float64{10, 0.01, 0, 50, 0, -0.01}, turn: 360, polygons: 1},
		{name: "NAD27, longitudes 200 to 240", crs: "EPSG:4267", w: 400, h: 200, gt: [6]float64{200, 0.1, 0, 60, 0, -0.1}, turn: 360, polygons: 1},
		{name: "NAD27, longitude 187, fine", crs: "EPSG:4267", w: 400, h: 400, gt: [6]float64{187.58, 0.002, 0, 52.5, 0, -0.002}, turn: 360, polygons: 1},
		{name: "NTF (Paris), in grads", crs: "EPSG:4807", w: 40, h: 40, gt: [6]float64{0, 0.1, 0, 54, 0, -0.1}, polygons: 1},
		{name: "ESRI WKT, UTM", crs: "EPSG:32633", esri: true, w: 1098, h: 1098, gt: [6]float64{300000, 100, 0, 5000040, 0, -100}, polygons: 1},
		{name: "ESRI WKT, Albers", crs: "ESRI:102003", esri: true, w: 1000, h: 1000, gt: [6]float64{-1e6, 2000, 0, 1e6, 0, -2000}, polygons: 1},
		{name: "compound", crs: "EPSG:32633+5773", w: 1098, h: 1098, gt: [6]float64{300000, 100, 0, 5000040, 0, -100}, polygons: 1},
		{name: "compound, national", crs: "EPSG:5555", w: 1098, h: 1098, gt: [6]float64{400000, 10, 0, 5600000, 0, -10}, polygons: 1},
		{name: "oblique Mercator (EPSG:3375)", crs: "EPSG:3375", w: 500, h: 500, gt: [6]float64{300000, 1000, 0, 700000, 0, -1000}, polygons: 1},
		{name: "Krovak (EPSG:5514)", crs: "EPSG:5514", w: 500, h: 300, gt: [6]float64{-900000, 1000, 0, -935000, 0, -1000}, polygons: 1},
		{name: "feet (EPSG:2263)", crs: "EPSG:2263", w: 1000, h: 1000, gt: [6]float64{900000, 100, 0, 300000, 0, -100}, polygons: 1},

		{name: "GCPs, affine", crs: "EPSG:32633", w: 1000, h: 1000, gcps: grid(oblique, [][2]float64{{0, 0}, {1000, 0}, {1000, 1000}, {0, 1000}}), truth: &place{"EPSG:32633", oblique}, polygons: 1},
		{name: "GCPs, three", crs: "EPSG:32633", w: 1000, h: 1000, gcps: grid(oblique, [][2]float64{{100, 100}, {900, 200}, {300, 1000}}), truth: &place{"EPSG:32633", oblique}, polygons: 1},
		{name: "GCPs, affine, 25", crs: "EPSG:32633", w: 1000, h: 1000, gcps: dense, truth: &place{"EPSG:32633", [6]float64{500000, 30, 8, 5000000, 5, -30}}, polygons: 1},
		{name: "GCPs, second order", crs: "EPSG:32633", w: 1000, h: 1000, gcps: bent, polygons: 1},
		{name: "GCPs that only a spline would meet", crs: "EPSG:32633", w: 1000, h: 1000, gcps: wild, polygons: 1},
		{name: "GCPs across 180", crs: "EPSG:4326", w: 1000, h: 1000, gcps: across, truth: &place{"EPSG:4326", dateline}, turn: 360, polygons: 2},
	}
	return cs
}

// The footprints of real rasters, found by the real probe, are those of GDAL in Python and
// of PostGIS.
func TestAgainstOracles(t *testing.T) {
	start := time.Now()
	all, errs := find(t, cases(), 600)
	t.Logf("found in %v", time.Since(start))
	var ok []found
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", all[i].name, err)
			continue
		}
		ok = append(ok, all[i])
	}
	db := database(t)
	judge(t, db, ok)
	for _, f := range ok {
		if strings.Contains(f.name, "full disc") {
			disc(t, db, f)
		}
	}
}
