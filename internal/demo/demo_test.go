package demo

import (
	"bytes"
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		width, height, atLeast int
		columns, rows          int
	}{
		{2048, 2048, 64, 8, 8},
		{8, 8, 64, 8, 8},
		{1000, 8, 64, 8, 8},
		{1000, 8, 100, 13, 8},
		{8, 1000, 100, 8, 13},
		{791, 718, 65, 9, 8},
		{100, 100, 10_000, 100, 100},
	} {
		tiles, err := cut(c.width, c.height, c.atLeast)
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		if len(tiles) != c.columns*c.rows {
			t.Errorf("%v: %d tiles", c, len(tiles))
		}
		covered := make([]int, c.width*c.height)
		ids := map[string]bool{}
		for _, tile := range tiles {
			ids[tile.ID] = true
			x, y, w, h := tile.Window[0], tile.Window[1], tile.Window[2], tile.Window[3]
			if w < c.width/c.columns || w > c.width/c.columns+1 || h < c.height/c.rows || h > c.height/c.rows+1 {
				t.Errorf("%v: tile %s is %d × %d", c, tile.ID, w, h)
			}
			for row := y; row < y+h; row++ {
				for column := x; column < x+w; column++ {
					covered[row*c.width+column]++
				}
			}
		}
		if len(ids) != len(tiles) {
			t.Errorf("%v: %d names for %d tiles", c, len(ids), len(tiles))
		}
		for pixel, times := range covered {
			if times != 1 {
				t.Fatalf("%v: pixel %d is in %d tiles", c, pixel, times)
			}
		}
	}
	for _, c := range [][3]int{{3, 2, 64}, {7, 100, 64}, {100, 100, 63}, {8, 8, 65}, {1000, 1000, 10_001}} {
		if tiles, err := cut(c[0], c[1], c[2]); err == nil {
			t.Errorf("%v: %d tiles", c, len(tiles))
		}
	}
}

// good is the report and the proof of a run in which all agrees.
func good() (Report, proof) {
	return Report{
			Scene: "scene.tif (2048 × 2048, 2 bands, EPSG:32633)", Tiles: 64, Columns: 8, Bumped: 6, Units: 70,
			Deliveries: 141, Run: 70, Redone: 1, Skipped: 70, Kills: Kills{Server: 3, PostgreSQL: 1, Worker: 1},
			Caught: 5, RolledForward: 4, Swept: 1, Reached: 64, Seconds: 12.34,
		}, proof{
			outputs: make([]output, 70), objects: 70, bytes: 12_345_678, current: 64, attempts: 71, done: 70, replaced: 1,
		}
}

func TestClose(t *testing.T) {
	report, p := good()
	report.close(p)
	if len(report.Disagreements) > 0 {
		t.Fatalf("all agrees, but: %q", report.Disagreements)
	}
	for name, doctor := range map[string]func(*Report, *proof){
		"deliveries":                func(r *Report, _ *proof) { r.Deliveries++ },
		"run ":                      func(r *Report, _ *proof) { r.Run-- },
		"skipped":                   func(r *Report, _ *proof) { r.Skipped-- },
		"all deliveries":            func(r *Report, _ *proof) { r.Overtaken++ },
		"no other work twice":       func(_ *Report, p *proof) { p.attempts++ },
		"attempts that became rows": func(_ *Report, p *proof) { p.done-- },
		"one a unit":                func(_ *Report, p *proof) { p.outputs = p.outputs[1:] },
		"one a row":                 func(_ *Report, p *proof) { p.objects++ },
		"one a tile":                func(_ *Report, p *proof) { p.current-- },
		"superseded":                func(r *Report, _ *proof) { r.Bumped++ },
		"a killed worker":           func(r *Report, _ *proof) { r.Redone++ },
		"taken over":                func(_ *Report, p *proof) { p.replaced = 0 },
		"kills of the server":       func(r *Report, _ *proof) { r.Kills.Server = 2 },
		"kills of PostgreSQL":       func(r *Report, _ *proof) { r.Kills.PostgreSQL = 0 },
		"worker that wrote":         func(r *Report, _ *proof) { r.Kills.Uploading = 1 },
		"reached":                   func(r *Report, _ *proof) { r.Reached-- },
		"rolled forward":            func(r *Report, _ *proof) { r.RolledForward = 2 },
		"the proof's own":           func(_ *Report, p *proof) { p.disagreements.add("the proof's own") },
	} {
		report, p := good()
		doctor(&report, &p)
		report.close(p)
		if !strings.Contains(strings.Join(report.Disagreements, "\n"), name) {
			t.Errorf("%s: not found in %q", name, report.Disagreements)
		}
	}
}

func TestPrint(t *testing.T) {
	report, p := good()
	report.close(p)
	var out bytes.Buffer
	report.Print(&out)
	want := `
  tiles                64   8 × 8 windows of scene.tif (2048 × 2048, 2 bands, EPSG:32633)
  run                  70   64 tiles, and 6 of them again as v2; 71 attempts
  redone                1   taken over at once from a worker that was killed while it wrote
  rolled forward        4   of 5 steps between intent and row when the server was killed; no work twice
  skipped              70   everything delivered again
  superseded            6   by v2; they stay as history
  kills                 5   server 3, PostgreSQL 1, worker 1
  swept                 1   left in staging by what was killed
  objects              70   = rows, by name, size and SHA-256; 12.3 MB
  reached              64   stable names, over HTTP, each with the bytes of what is current
  time             12.3 s
`
	if out.String() != want {
		t.Errorf("got:%s\nwant:%s", out.String(), want)
	}

	report.Disagreements, report.Kept = []string{"an object without a row: x"}, "/tmp/kept"
	out.Reset()
	report.Print(&out)
	for _, part := range []string{"70 rows; 12.3 MB", "Disagree:\n  - an object without a row: x\n", "--data /tmp/kept/data\n", ", data/store, "} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in:%s", part, out.String())
		}
	}

	report, _ = good()
	report.Uploaded, report.Kills.Uploading, report.Kept, report.Store = true, 1, "/tmp/kept", "s3://bucket/demo-x?region=r"
	out.Reset()
	report.Print(&out)
	for _, part := range []string{"workers that were killed while they wrote or uploaded", "SHA-256 and the unit in their metadata", "(server.log, workers.log, data/admin.token)",
		"--data /tmp/kept/data --store 's3://bucket/demo-x?region=r'\n", "rm -r /tmp/kept, and s3://bucket/demo-x?region=r\n"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in:%s", part, out.String())
		}
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 1536: "1.5 kB", 12_345_678: "12.3 MB", 5e12: "5000 GB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d is %q, want %q", bytes, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		var out bytes.Buffer
		p := newProgress(&out, terminal)
		p.step("begin")
		for done := range 4 {
			p.update("cut", done, 3)
			if done == 1 {
				p.step("kill")
			}
		}
		p.settle()
		p.step("compare")
		p.end()
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		want := []string{"begin", "kill", "cut: 3 of 3", "compare"}
		if len(lines) != len(want) {
			t.Fatalf("terminal %v: %q", terminal, lines)
		}
		for i, line := range lines {
			shown := line[strings.LastIndex(line, "\r")+1:] // what is left to see of it
			if !strings.HasSuffix(shown, want[i]) {
				t.Errorf("terminal %v: line %d is %q, want …%q", terminal, i, shown, want[i])
			}
		}
	}
}
