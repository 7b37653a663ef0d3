package oracle

import (
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
)

// disc holds a full disc's footprint against the limb that the satellite sees: there its
// line of sight touches the ellipsoid, which is where the plane x = a²/distance, polar to
// the satellite, cuts it.
func disc(t *testing.T, db *pgx.Conn, f found) {
	t.Helper()
	a, b, distance, lon0 := 6378169.0, 6356583.8, 6378169.0+35785831, 0.0
	if strings.HasPrefix(f.name, "GOES") {
		a, b, distance, lon0 = 6378137, 6356752.314140356, 6378137+35786023, -137
	}
	x := a * a / distance
	r := math.Sqrt(1 - x*x/(a*a)) // of the limb's ellipse, in parts of a and b
	limb := make([][2]float64, 200000)
	for i := range limb {
		s, c := math.Sincos(2 * math.Pi * float64(i) / float64(len(limb)))
		y, z := a*r*c, b*r*s
		lon := math.Atan2(y, x)*180/math.Pi + lon0
		limb[i] = [2]float64{lon - 360*math.Floor((lon+180)/360), math.Atan(z/(1-(a*a-b*b)/(a*a))/math.Hypot(x, y)) * 180 / math.Pi}
	}
	// From the footprint to the limb.
	worst := 0.0
	for _, polygon := range f.footprint.Coords() {
		for i, p := range polygon[0][1:] {
			q := polygon[0][i]
			if math.Abs(p[0]) == 180 && p[0] == q[0] {
				continue
			}
			for k := range 8 {
				lon, lat := q[0]+float64(k)/8*(p[0]-q[0]), q[1]+float64(k)/8*(p[1]-q[1])
				near := math.Inf(1)
				for _, l := range limb {
					if d := math.Abs(l[1] - lat); d < near {
						near = math.Min(near, math.Hypot((l[0]-lon)*math.Cos(lat*math.Pi/180), d))
					}
				}
				worst = math.Max(worst, near)
			}
		}
	}
	if worst > 0.02 {
		t.Errorf("%s: %.4f degrees off the true limb", f.name, worst)
	}
	// The area within the limb, of which that of a spherical cap is a sanity check.
	flat := make([]float64, 0, 2*len(limb)+2)
	for i := 0; i <= len(limb); i++ {
		p := limb[i%len(limb)]
		flat = append(flat, p[0]-lon0-360*math.Round((p[0]-lon0)/360), p[1])
	}
	truth := area(geom.NewMultiPolygonFlat(geom.XY, flat, [][]int{{len(flat)}}))
	if cap := 2 * math.Pi * 6371.0072 * 6371.0072 * (1 - x/a); math.Abs(truth/cap-1) > 5e-3 {
		t.Fatalf("%s: %.0f km² within the limb, a cap of the sphere has %.0f", f.name, truth, cap)
	}
	raw, err := catalog.EncodeFootprint(f.footprint)
	if err != nil {
		t.Fatal(err)
	}
	var byPostGIS float64
	if err := db.QueryRow(t.Context(), `SELECT ST_Area(ST_Segmentize(ST_GeomFromEWKB($1), 0.1)::geography)/1e6`, raw).Scan(&byPostGIS); err != nil {
		t.Fatal(err)
	}
	ours := area(f.footprint)
	if math.Abs(ours/truth-1) > 1e-3 || math.Abs(byPostGIS/truth-1) > 1e-3 {
		t.Errorf("%s: %.6f of the true area, by PostGIS %.6f", f.name, ours/truth, byPostGIS/truth)
	}
	t.Logf("%s: %.4f degrees off the true limb at most; %.6f of the true area, by PostGIS %.6f", f.name, worst, ours/truth, byPostGIS/truth)
}
