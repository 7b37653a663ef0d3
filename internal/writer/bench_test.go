package writer

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"catalogd/internal/catalog"
)

// gdalinfo is what a persistent process of GDAL in Python takes for what gdalinfo -json
// does, on each of its lines: a number of times and a file.
const gdalinfo = `
import sys, time
from osgeo import gdal
gdal.UseExceptions()
for line in sys.stdin:
    n, path = line.split(None, 1)
    start = time.perf_counter()
    for _ in range(int(n)):
        ds = gdal.Open(path.strip())
        gdal.Info(ds, format="json")
        ds = None
    print(time.perf_counter() - start, flush=True)
`

// BenchmarkProbe probes COGs as often in a second as it can, one at a time through the
// pool, and between has GDAL in Python look at the same files. Of each the median of all
// rounds counts; ratio is the pool's rate over Python's. The bytes are random, which no
// cache of blocks helps with.
func BenchmarkProbe(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"256KiB", 512}, {"100MiB", 8704}} {
		b.Run(c.name, func(b *testing.B) {
			const times, rounds = 40, 9
			path := cog(b, c.size)
			file, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			info, err := file.Stat()
			if err != nil {
				b.Fatal(err)
			}
			p := realPool(b, Config{Size: 1})
			src := &countingSource{ReaderAt: file}
			probe := func() float64 {
				start := time.Now()
				for range times {
					f, err := p.Probe(b.Context(), src, info.Size(), catalog.ProbeRequest{MediaType: catalog.MediaTypeCOG})
					if err != nil || !f.IsCOG {
						b.Fatal(err)
					}
				}
				return time.Since(start).Seconds()
			}
			python := pythonInfo(b, path)
			probe()
			python(times)
			src.reads.Store(0)
			src.bytes.Store(0)
			var ours, theirs []float64
			for b.Loop() {
				for range rounds {
					ours, theirs = append(ours, probe()), append(theirs, python(times))
				}
			}
			n := float64(len(ours) * times)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
			b.ReportMetric(float64(src.bytes.Load())/n, "bytes-read/probe")
			b.ReportMetric(float64(src.reads.Load())/n, "reads/probe")
			b.ReportMetric(times/median(ours), "probes/s")
			b.ReportMetric(times/median(theirs), "gdalinfo/s")
			b.ReportMetric(median(theirs)/median(ours), "ratio")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// cog makes an uncompressed one of size² pixels, and its overviews.
func cog(b *testing.B, size int) string {
	b.Helper()
	dir := b.TempDir()
	pixels := make([]byte, size*size)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(pixels)
	// A VRT of raw bytes, which gdal_translate takes for a raster.
	raw, vrt, path := filepath.Join(dir, "raw"), filepath.Join(dir, "raw.vrt"), filepath.Join(dir, "cog.tif")
	text := fmt.Sprintf(`<VRTDataset rasterXSize="%d" rasterYSize="%d"><SRS>EPSG:32633</SRS><GeoTransform>500000,10,0,5000000,0,-10</GeoTransform>
<VRTRasterBand dataType="Byte" band="1" subClass="VRTRawRasterBand"><SourceFilename relativeToVRT="1">raw</SourceFilename></VRTRasterBand></VRTDataset>`, size, size)
	for name, content := range map[string][]byte{raw: pixels, vrt: []byte(text)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if out, err := exec.Command("gdal_translate", "-q", "-of", "COG", "-co", "COMPRESS=NONE", vrt, path).CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return path
}

// pythonInfo starts the process; each call has it look so many times, and gives the
// seconds that it took.
func pythonInfo(b *testing.B, path string) func(times int) float64 {
	b.Helper()
	cmd := exec.Command("/usr/bin/python3", "-c", gdalinfo)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	return func(times int) (seconds float64) {
		fmt.Fprintln(in, times, path)
		if _, err := fmt.Fscan(lines, &seconds); err != nil {
			b.Fatalf("%v\n%s", err, stderr.String())
		}
		return seconds
	}
}
