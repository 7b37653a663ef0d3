package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"catalogd/internal/rastertest"
	"catalogd/internal/writer/probetest"
)

// BenchmarkRegistration registers GeoTIFFs of 256 KiB with the server by HTTP, and in
// turn by hand: as tasks do (begin, the file written to its staging path, complete), and
// by one call. By hand GDAL looks at the file in warm processes of Python, and once more
// in a pool of catalogd's own probes, which leaves the probe's work out of the ratio.
func BenchmarkRegistration(b *testing.B) {
	s := newSite(b)
	srv := s.start(s.database("served"))
	byHand := s.byHand(s.database("by_hand"))
	processes := runtime.GOMAXPROCS(0)
	gdal := byHand.with(warmGDAL(b, processes))
	probe := byHand.with(pooledProbe(b, probetest.Path(b), processes))
	content := rastertest.Raster{Width: 512, Height: 512}.Bytes()
	tile := 0

	for _, way := range []struct {
		name   string
		served func(u unit)
		hand   func(h *hand, u unit)
	}{
		{"task", func(u unit) { srv.task(u, content) }, func(h *hand, u unit) { h.task(u, content) }},
		{"call", func(u unit) { srv.call(u, content) }, func(h *hand, u unit) { h.call(u, content) }},
	} {
		all := []func(u unit){way.served, func(u unit) { way.hand(gdal, u) }, func(u unit) { way.hand(probe, u) }}
		b.Run(way.name+"/alone", func(b *testing.B) {
			type usage struct{ server, probe, served, byHand float64 }
			use := func() (u usage) {
				u.server, u.probe = s.cpu(srv.pid)
				u.served, _ = s.cpu(s.backends("served")...)
				u.byHand, _ = s.cpu(s.backends("by_hand")...)
				return u
			}
			before := use()
			took := inTurn(b, all, &tile)
			after, n := use(), float64(b.N*turns)
			b.ReportMetric((after.server-before.server)/n, "server-cpu-ms")
			b.ReportMetric((after.probe-before.probe)/n, "probe-cpu-ms")
			b.ReportMetric((after.served-before.served)/n, "postgres-cpu-ms")
			b.ReportMetric((after.byHand-before.byHand)/(2*n), "hand-postgres-cpu-ms") // of two hands
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(took[0])*1e3, "p50-ms")
			b.ReportMetric(percentile(took[0], 0.95)*1e3, "p95-ms")
			b.ReportMetric(median(took[1])*1e3, "hand-p50-ms")
			b.ReportMetric(percentile(took[1], 0.95)*1e3, "hand-p95-ms")
			b.ReportMetric(median(took[0])/median(took[1]), "ratio")
			b.ReportMetric(median(took[0])/median(took[2]), "ratio-with-probe")
			// What others on the machine disturbed least.
			b.ReportMetric(percentile(took[0], 0.1)/percentile(took[1], 0.1), "p10-ratio")
			b.ReportMetric(percentile(took[0], 0.1)/percentile(took[2], 0.1), "p10-ratio-with-probe")
		})
		b.Run(way.name+"/32-clients", func(b *testing.B) {
			const clients, times, rounds = 32, 128, 7
			rates := make([][]float64, len(all))
			for b.Loop() {
				for range rounds {
					for j, do := range all {
						first := tile
						tile += times
						seconds := timed(func() {
							at(clients, times, func(i int) { do(newUnit(tileName(first + i + 1)).asked()) })
						})
						rates[j] = append(rates[j], times/seconds)
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates[0]), "per-s")
			b.ReportMetric(median(rates[1]), "hand-per-s")
			b.ReportMetric(median(rates[0])/median(rates[1]), "ratio")
			b.ReportMetric(median(rates[0])/median(rates[2]), "ratio-with-probe")
		})
	}
}

// turns is how often inTurn does each, and warm how many of them do not count.
const turns, warm = 150, 10

// inTurn does each for new units, in turn, and gives the seconds that each took. tile
// counts the units.
func inTurn(b *testing.B, all []func(u unit), tile *int) [][]float64 {
	took := make([][]float64, len(all))
	for b.Loop() {
		for i := range turns {
			for j, do := range all {
				*tile++
				u := newUnit(tileName(*tile)).asked()
				if seconds := timed(func() { do(u) }); i >= warm {
					took[j] = append(took[j], seconds)
				}
			}
		}
	}
	return took
}

// task does what a pipeline's task does for a unit.
func (srv *server) task(u unit, content []byte) {
	var d struct {
		Verdict string
		Attempt struct {
			ID          string `json:"attempt_id"`
			StagingPath string `json:"staging_path"`
		}
	}
	srv.ask("POST", "/v1/attempts", u, &d)
	if d.Verdict != "run" {
		srv.Errorf("begin: %s", d.Verdict)
		return
	}
	if err := os.WriteFile(d.Attempt.StagingPath, content, 0o644); err != nil {
		srv.Error(err)
	}
	srv.done("/v1/attempts/"+d.Attempt.ID+"/complete", nil)
}

// call registers a file that is staged under a name of its writer's.
func (srv *server) call(u unit, content []byte) {
	u.Staged = fmt.Sprintf("%s.tif", u.RequestID)
	if err := os.WriteFile(filepath.Join(srv.store, ".staging/in", u.Staged), content, 0o644); err != nil {
		srv.Error(err)
	}
	srv.done("/v1/outputs", u)
}

func (srv *server) done(path string, body any) {
	var out struct {
		State string
		Tile  struct{ Current bool }
	}
	srv.ask("POST", path, body, &out)
	if out.State != "done" || !out.Tile.Current {
		srv.Errorf("%s: %+v", path, out)
	}
}
