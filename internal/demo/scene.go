package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
)

// scene is the raster that is cut.
type scene struct {
	Path, Name    string
	Width, Height int
	Bands         int
	// CRS is its code where it has one, "no CRS" where it has none.
	CRS string
	// OnEarth tells whether GDAL can place it in WGS 84.
	OnEarth bool
	// Checksum is that of the file: part of the identity of each tile.
	Checksum string
}

func (s scene) describe() string {
	return fmt.Sprintf("%s (%d × %d, %s, %s)", s.Name, s.Width, s.Height, count(s.Bands, "band"), s.CRS)
}

// openScene looks at a raster with gdalinfo.
func openScene(ctx context.Context, path string) (scene, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return scene{}, err
	}
	found, err := gdalinfo(ctx, path)
	if err != nil {
		return scene{}, err
	}
	if len(found.Bands) == 0 {
		return scene{}, fmt.Errorf("%s has no bands: give a raster, or one of its subdatasets", path)
	}
	_, checksum, err := hashFile(path)
	if err != nil {
		return scene{}, err
	}
	return scene{
		Path: path, Name: filepath.Base(path), Width: found.Size[0], Height: found.Size[1], Bands: len(found.Bands),
		CRS: found.crs(), OnEarth: found.CoordinateSystem.WKT != "" && found.WGS84Extent != nil, Checksum: checksum,
	}, nil
}

// info is what gdalinfo -json says of a raster.
type info struct {
	Size             [2]int
	CoordinateSystem struct{ WKT string }
	WGS84Extent      json.RawMessage
	Metadata         map[string]json.RawMessage // domains; some are no objects
	Bands            []struct{ Checksum int }
}

// tags of the default domain.
func (i info) tags() (tags map[string]string) {
	_ = json.Unmarshal(i.Metadata[""], &tags) // none where it is missing
	return tags
}

func (i info) checksums() []int {
	var out []int
	for _, b := range i.Bands {
		out = append(out, b.Checksum)
	}
	return out
}

// code is the last ID of a WKT2 text, which is that of the CRS itself.
var code = regexp.MustCompile(`ID\["(\w+)",(\d+)\]\]\s*$`)

func (i info) crs() string {
	if found := code.FindStringSubmatch(i.CoordinateSystem.WKT); found != nil {
		return found[1] + ":" + found[2]
	}
	if i.CoordinateSystem.WKT == "" {
		return "no CRS"
	}
	return "a CRS without a code"
}

func gdalinfo(ctx context.Context, path string, options ...string) (found info, err error) {
	out, err := gdal(ctx, "gdalinfo", append(options, "-json", path)...)
	if err != nil {
		return found, err
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return found, fmt.Errorf("read what gdalinfo says of %s: %w", path, err)
	}
	return found, nil
}

// oneFile has GDAL put everything about an output into its one file: no .aux.xml, no .msk.
var oneFile = []string{"--config", "GDAL_PAM_ENABLED", "NO", "--config", "GDAL_TIFF_INTERNAL_MASK", "YES"}

// gdal runs one of GDAL's programs and gives what it prints.
func gdal(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, slices.Concat(oneFile, args)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, errors.Join(ctx.Err(), err), bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// side of the scene that the demo makes, pixels.
const side = 2048

// header places the scene west of Prague: 30 m pixels in UTM zone 33N. The
// words are those of ENVI's header, which GDAL reads.
const header = `ENVI
samples = %[1]d
lines = %[1]d
bands = 2
header offset = 0
file type = ENVI Standard
data type = 12
interleave = bsq
byte order = 0
map info = {UTM, 1, 1, 399960, 5500020, 30, 30, 33, North, WGS-84, units=Meters}
band names = {elevation, slope}
`

// makeScene writes a terrain as a GeoTIFF: two bands of 16 bits, elevation in
// decimetres and slope in tenths of a percent, the same on each run. Go writes
// ENVI's raw format, and GDAL makes a GeoTIFF of it.
func makeScene(ctx context.Context, path string) error {
	raw := path + ".img"
	height := terrain(side)
	pixels := make([]uint16, 0, 2*side*side)
	for y := range side {
		for x := range side {
			pixels = append(pixels, uint16(height[y][x]*10))
		}
	}
	for y := range side {
		for x := range side {
			dx, dy := height[y][x+1]-height[y][x], height[y+1][x]-height[y][x]
			pixels = append(pixels, uint16(math.Hypot(dx, dy)/30*1000))
		}
	}
	content := make([]byte, 0, 2*len(pixels))
	for _, p := range pixels {
		content = binary.LittleEndian.AppendUint16(content, p)
	}
	if err := os.WriteFile(raw, content, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(path+".hdr", fmt.Appendf(nil, header, side), 0o644); err != nil {
		return err
	}
	if _, err := gdal(ctx, "gdal_translate", "-q", "-a_srs", "EPSG:32633", "-co", "TILED=YES", raw, path); err != nil {
		return err
	}
	return errors.Join(os.Remove(raw), os.Remove(path+".hdr"))
}

// terrain is a square of heights in metres, one larger than n each way, n a
// power of two, made by the diamond-square method (Fournier, Fussell, Carpenter
// 1982): the middle of each square and of each edge is the mean of its
// neighbours, moved at random, the less the finer the grid.
func terrain(n int) [][]float64 {
	random := rand.New(rand.NewPCG(33, 2048))
	h := make([][]float64, n+1)
	for y := range h {
		h[y] = make([]float64, n+1)
	}
	h[0][0], h[0][n], h[n][0], h[n][n] = 700, 900, 1200, 800
	roughness := 600.0
	for step := n; step > 1; step /= 2 {
		half := step / 2
		set := func(x, y, dx1, dy1, dx2, dy2 int) {
			sum, of := 0.0, 0.0
			for _, at := range [4][2]int{{x + dx1, y + dy1}, {x - dx1, y - dy1}, {x + dx2, y + dy2}, {x - dx2, y - dy2}} {
				if at[0] >= 0 && at[0] <= n && at[1] >= 0 && at[1] <= n {
					sum, of = sum+h[at[1]][at[0]], of+1
				}
			}
			h[y][x] = min(max(sum/of+roughness*(random.Float64()-0.5), 0), 6000)
		}
		for y := half; y < n; y += step {
			for x := half; x < n; x += step {
				set(x, y, half, half, half, -half)
			}
		}
		for y := 0; y <= n; y += half {
			for x := (y/half + 1) % 2 * half; x <= n; x += step {
				set(x, y, half, 0, 0, half)
			}
		}
		roughness /= 1.9
	}
	return h
}

// hashFile is hash of a file.
func hashFile(path string) (size int64, checksum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	return hash(f)
}

// hash gives a stream's size and its SHA-256 as catalogd writes it.
func hash(r io.Reader) (size int64, checksum string, err error) {
	digest := sha256.New()
	size, err = io.Copy(digest, r)
	return size, "sha256:" + hex.EncodeToString(digest.Sum(nil)), err
}
