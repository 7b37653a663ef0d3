package oracle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// random is a grid anywhere, often at a pole or at the antimeridian.
func random(rng *rand.Rand, i int) raster {
	between := func(lo, hi float64) float64 { return lo + rng.Float64()*(hi-lo) }
	r := raster{w: 1 + int(math.Exp(between(0, 8))), h: 1 + int(math.Exp(between(0, 8)))}
	size := math.Exp(between(0, 10))
	longest := float64(max(r.w, r.h))
	// fit keeps the grid within a size that the projection is meant for.
	fit := func(extent float64) { size = math.Min(size, extent/longest) }
	var x, y float64
	switch i % 6 {
	case 0:
		zone := []int{1, 60, 1 + rng.IntN(60)}[rng.IntN(3)]
		fit(900e3)
		south := rng.IntN(2)
		r.crs = fmt.Sprintf("EPSG:32%d%02d", 6+south, zone)
		x, y = between(100e3, 900e3), between(0, 9.3e6)
		if south == 1 {
			y = 1e7 - y
		}
	case 1:
		r.crs = []string{"EPSG:3413", "EPSG:3031", "EPSG:3995", "EPSG:6931"}[rng.IntN(4)]
		fit(8e6)
		x, y = between(-3e6, 3e6), between(-3e6, 3e6)
		switch rng.IntN(4) { // the pole within, at a pixel, or near an edge
		case 0:
			x, y = -size*float64(rng.IntN(r.w+1)), size*float64(rng.IntN(r.h+1))
		case 1:
			x = size * between(-2, 2)
		case 2:
			x, y = size*between(-2, 2), size*between(-2, 2)
		}
	case 2:
		r.crs, r.turn = []string{"EPSG:4326", "EPSG:4267", "EPSG:4258"}[rng.IntN(3)], 360
		size /= 1e5
		fit(60)
		x, y = between(-200, 300), between(-60, 90)
		if rng.IntN(4) == 0 {
			x = 180 - size*float64(rng.IntN(r.w+1))
		}
		y = math.Min(90, math.Max(y, -90+size*float64(r.h)))
	case 3: // seen from above any place
		r.crs = fmt.Sprintf("+proj=%s +lat_0=%.3f +lon_0=%.3f +datum=WGS84", []string{"laea", "stere", "aeqd"}[rng.IntN(3)], between(-90, 90), between(-180, 180))
		fit(8e6)
		x, y = between(-4e6, 1e6), between(-1e6, 4e6)
	case 4: // along any line
		r.crs = fmt.Sprintf("+proj=omerc +lat_0=%.3f +lonc=%.3f +alpha=%.3f +k=1 +x_0=0 +y_0=0 +gamma=0 +datum=WGS84", between(-60, 60), between(-180, 180), between(10, 80))
		fit(3e6)
		x, y = between(-2e6, 1e6), between(-1e6, 2e6)
	case 5:
		lat := between(10, 70) * float64(1-2*rng.IntN(2))
		r.crs = fmt.Sprintf("+proj=%s +lat_1=%.2f +lat_2=%.2f +lat_0=%.2f +lon_0=%.2f +datum=WGS84", []string{"lcc", "aea"}[rng.IntN(2)], lat*0.9, lat*1.1, lat, between(-180, 180))
		fit(3e6)
		x, y = between(-2e6, 1e6), between(-1e6, 2e6)
	}
	r.gt = [6]float64{x, size, 0, y, 0, -size}
	switch upright := i%6 == 2 && rng.IntN(2) == 0; {
	case upright:
	case rng.IntN(3) == 0: // rotated
		s, c := math.Sincos(between(0, 2*math.Pi))
		r.gt = [6]float64{x, size * c, size * s, y, size * s, -size * c}
	case rng.IntN(4) == 0: // sheared, and pixels not square
		r.gt[1], r.gt[2], r.gt[4] = size*0.7, size*between(-0.4, 0.4), size*between(-0.4, 0.4)
	case rng.IntN(4) == 0 && i%6 != 2: // south-up
		r.gt[5] = size
	}
	r.name = fmt.Sprintf("%d: %s %d×%d %v", i, r.crs, r.w, r.h, r.gt)
	return r
}

// Random grids have a footprint that GDAL and PostGIS agree with, or none. FOOTPRINTS and
// SEED in the environment make it longer, and other.
func TestRandomGrids(t *testing.T) {
	n, seed := 180, uint64(1)
	if s := os.Getenv("FOOTPRINTS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	rasters := make([]raster, n)
	for i := range rasters {
		rasters[i] = random(rng, i)
	}
	all, errs := find(t, rasters, 120)
	var ok []found
	for i, err := range errs {
		if err != nil {
			t.Logf("%s: %v", all[i].name, err)
			continue
		}
		ok = append(ok, all[i])
	}
	t.Logf("seed %d: %d of %d grids have a footprint", seed, len(ok), n)
	if len(ok) < n*9/10 {
		t.Errorf("only %d of %d grids have a footprint", len(ok), n)
	}
	judge(t, database(t), ok)
}
