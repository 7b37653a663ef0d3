package writer

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/writer/probetest"
	"catalogd/internal/writer/wire"
)

func realPool(t testing.TB, cfg Config) *Pool {
	t.Helper()
	cfg.Program, cfg.Log = probetest.Path(t), slog.New(slog.DiscardHandler)
	p := NewPool(cfg)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// raster makes a GeoTIFF with GDAL's own tools and gives its bytes.
func raster(t testing.TB, args ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raster.tif")
	args = append(append([]string{"-q", "-of", "GTiff", "-a_srs", "EPSG:32633", "-a_ullr", "500000", "5010240", "510240", "5000000", "-burn", "7"}, args...), path)
	if out, err := exec.Command("gdal_create", args...).CombinedOutput(); err != nil {
		t.Fatalf("gdal_create: %v\n%s", err, out)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func probeBytes(t testing.TB, p *Pool, content []byte, req catalog.ProbeRequest) (catalog.Facts, error) {
	return p.Probe(t.Context(), bytes.NewReader(content), int64(len(content)), req)
}

func TestRealProbe(t *testing.T) {
	p := realPool(t, Config{Size: 2})
	info, err := p.Check(t.Context())
	if err != nil || info.GDAL == "" || info.PROJ == "" || !slices.Contains(info.Drivers, "GTiff") {
		t.Fatalf("%+v, %v", info, err)
	}
	content := raster(t, "-outsize", "512", "256", "-co", "TILED=YES")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			f, err := probeBytes(t, p, content, catalog.ProbeRequest{Decode: true})
			if err != nil {
				t.Error(err)
				return
			}
			if f.Driver != "GTiff" || f.CRS != "EPSG:32633" || f.Width != 512 || f.Height != 256 || f.Footprint.NumPolygons() != 1 || f.Footprint.SRID() != 4326 {
				t.Errorf("%+v", f)
			}
			if _, err := probeBytes(t, p, content[:len(content)-1], catalog.ProbeRequest{}); !catalog.IsCode(err, catalog.CodeTruncated) {
				t.Errorf("cut off: %v", err)
			}
			if _, err := probeBytes(t, p, nil, catalog.ProbeRequest{}); !catalog.IsCode(err, catalog.CodeEmptyOutput) {
				t.Errorf("empty: %v", err)
			}
		})
	}
	wg.Wait()
}

// tiffOf hand-writes a TIFF of one page with one compressed tile of 4 bytes.
func tiffOf(width, tile uint32) []byte {
	le := binary.LittleEndian
	b := append([]byte("II\x2a\x00"), 12, 0, 0, 0, 'd', 'a', 't', 'a')
	entries := [][2]uint32{{256, width}, {257, width}, {258, 8}, {259, 8}, {262, 1}, {277, 1}, {322, tile}, {323, tile}, {324, 8}, {325, 4}}
	b = le.AppendUint16(b, uint16(len(entries)))
	for _, e := range entries {
		b = le.AppendUint32(le.AppendUint32(le.AppendUint16(le.AppendUint16(b, uint16(e[0])), 4), 1), e[1])
	}
	return le.AppendUint32(b, 0)
}

// A block of 1.6 GB, or a page of 2^62 pixels, is refused, and costs the pool nothing.
func TestBombs(t *testing.T) {
	p := realPool(t, Config{Size: 1, Timeout: 20 * time.Second})
	for name, content := range map[string][]byte{
		"a block of 1.6 GB":  tiffOf(40000, 40000),
		"enormous":           tiffOf(1<<31-1, 1<<20),
		"enormous, in tiles": tiffOf(1<<31-1, 16),
	} {
		_, err := probeBytes(t, p, content, catalog.ProbeRequest{Decode: true, FootprintOptional: true})
		var known bool
		for _, code := range []catalog.Code{catalog.CodeTruncated, catalog.CodeNotARaster, catalog.CodeProbeFailed, catalog.CodeSparse} {
			known = known || catalog.IsCode(err, code)
		}
		if !known {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %.300v", name, err)
	}
	if _, err := probeBytes(t, p, raster(t, "-outsize", "64", "64"), catalog.ProbeRequest{}); err != nil {
		t.Error(err)
	}
}

// Whatever is done to a file, it is taken or refused with a code that clients know.
func TestMutatedFiles(t *testing.T) {
	p := realPool(t, Config{Size: 2, Timeout: 20 * time.Second})
	seeds := [][]byte{
		raster(t, "-outsize", "100", "80", "-co", "TILED=YES", "-co", "COMPRESS=DEFLATE", "-mo", "TIFFTAG_DATETIME=2026:08:04 10:00:00"),
		raster(t, "-outsize", "100", "80", "-bands", "3", "-co", "COMPRESS=JPEG", "-co", "BIGTIFF=YES"),
	}
	rng := rand.New(rand.NewPCG(9, 9))
	counts := map[catalog.Code]int{}
	for i := range 200 {
		content := append([]byte(nil), seeds[i%2]...)
		for range 1 + rng.IntN(6) {
			// Directories are at the front.
			content[rng.IntN(min(len(content), 1200))] = byte(rng.Uint32())
		}
		_, err := probeBytes(t, p, content, catalog.ProbeRequest{Decode: i%3 == 0, SparseAllowed: true, FootprintOptional: true})
		code := catalog.Code("taken")
		if err != nil {
			if code = catalog.CodeOf(err); code == catalog.CodeInternal {
				t.Errorf("file %d: %v", i, err)
			}
		}
		counts[code]++
	}
	t.Log(counts)
}

// A child whose parent is gone goes too.
func TestChildEndsWithItsParent(t *testing.T) {
	cmd := exec.Command(probetest.Path(t), "serve")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := wire.ReadFrame(out, wire.KindHello); err != nil {
		t.Fatal(err)
	}
	// In the middle of a job: it waits for an answer.
	if err := wire.WriteJSON(in, wire.KindJob, wire.Job{Size: 1000}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := wire.ReadFrame(out, wire.KindRead); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("it lives on")
		_ = cmd.Process.Kill()
		<-done
	}
}

// By hand, without a pipe, the program says what it is for.
func TestStartedByHand(t *testing.T) {
	sparse, point := filepath.Join(t.TempDir(), "sparse.tif"), filepath.Join(t.TempDir(), "point.geojson")
	for path, content := range map[string][]byte{
		sparse: rastertest.Raster{Missing: 1, EPSG: -1}.Bytes(),
		point:  []byte(`{"type":"FeatureCollection","features":[{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[1,2]}}]}`),
	} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{nil, 2, "for catalogd"}, {[]string{"serve"}, 2, "no pipe"}, {[]string{"--version"}, 0, "GDAL"},
		{[]string{"/nowhere"}, 1, "no such file"}, {[]string{"/dev/null"}, 3, "empty_output"},
		{[]string{"-help"}, 0, "self-test"}, {[]string{"-help"}, 0, "sidecars"}, {[]string{"/dev"}, 1, "is a directory"},
		{[]string{"-media-type", "image/gif", "/dev/null"}, 2, "is not supported: use one of"}, {[]string{"/dev/null", "-media-type", "x"}, 2, "is not supported"},
		{[]string{sparse}, 3, "set the collection's sparse_allowed (here: -sparse)"}, {[]string{sparse, "-sparse"}, 3, "set the collection's footprint_optional (here: -no-footprint)"},
		{[]string{sparse, "-sparse", "--no-footprint"}, 0, `"driver": "GTiff"`}, {[]string{point}, 0, `"driver": "GeoJSON"`},
	} {
		cmd := exec.Command(probetest.Path(t), c.args...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.say) {
			t.Errorf("%v: exit code %d: %s", c.args, cmd.ProcessState.ExitCode(), out)
		}
		if slices.Contains(c.args, point) && (strings.Contains(string(out), "transform") || strings.Contains(string(out), "width") || !strings.Contains(string(out), `"name": "OGRGeoJSON"`)) {
			t.Errorf("features: %s", out)
		}
	}
}

// Where a child is denied memory, the refusal speaks of it: its end alone does not.
func TestWantOfMemory(t *testing.T) {
	p := realPool(t, Config{Size: 1})
	content := append([]byte(`{"type":"FeatureCollection","features":[{"type":"Feature","properties":{},"geometry":{"type":"LineString","coordinates":[`),
		bytes.Repeat([]byte("[1.5,2.5],"), 3<<20)...)
	content = append(content, "[1,2]]}}]}"...)
	_, err := probeBytes(t, p, content, catalog.ProbeRequest{Drivers: catalog.Drivers()})
	if !catalog.IsCode(err, catalog.CodeProbeFailed) || !strings.Contains(err.Error(), "MiB of memory, libraries included; a probe may take 256 MiB") {
		t.Errorf("%.600v", err)
	}
	t.Logf("%.300v", err)
}
