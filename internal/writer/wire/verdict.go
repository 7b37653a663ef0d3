package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
)

// Limits of what a verdict may hold. The child keeps to them, the parent
// enforces them.
const (
	MaxMessage         = 2 << 10
	MaxCRS             = 64 << 10
	MaxBands           = 4096
	MaxTags            = 1024
	MaxBandText        = 1 << 10
	MaxTagBytes        = 64 << 10
	MaxTagsBytes       = 1 << 20
	MaxFootprintPoints = 4096
	MaxLayers          = 1024
	MaxFields          = 4096
	MaxOverviews       = 64

	// maxDimension is GDAL's: sizes are C ints.
	maxDimension = math.MaxInt32
)

// Verdict is the child's answer to a job: exactly one of its members is set.
type Verdict struct {
	Facts   *Facts   `json:"facts,omitempty"`
	Refusal *Refusal `json:"refusal,omitempty"`
}

// Refusal says why the output is not taken, and what to do about it.
type Refusal struct {
	Code    catalog.Code `json:"code"`
	Message string       `json:"message"`
}

// Refuse makes a verdict of a refusal.
func Refuse(code catalog.Code, format string, args ...any) Verdict {
	return Verdict{Refusal: &Refusal{Code: code, Message: Line(fmt.Sprintf(format, args...), MaxMessage)}}
}

// Facts is catalog.Facts as it crosses the pipe.
type Facts struct {
	Driver    string            `json:"driver"`
	MediaType string            `json:"media_type"`
	IsCOG     bool              `json:"is_cog"`
	CRS       string            `json:"crs,omitempty"`
	CRSWKT    string            `json:"crs_wkt,omitempty"`
	Transform [6]float64        `json:"transform,omitzero"`
	Width     int               `json:"width,omitzero"`
	Height    int               `json:"height,omitzero"`
	Bands     []catalog.Band    `json:"bands,omitempty"`
	Layout    catalog.Layout    `json:"layout,omitzero"`
	Layers    []catalog.Layer   `json:"layers,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Acquired  catalog.Interval  `json:"acquired,omitzero"`
	// Footprint is polygons of rings of longitude, latitude pairs.
	Footprint [][][][2]float64 `json:"footprint,omitempty"`
}

// refusals are the codes that are the child's to give.
var refusals = map[catalog.Code]bool{
	catalog.CodeEmptyOutput:      true,
	catalog.CodeNotARaster:       true,
	catalog.CodeDriverRefused:    true,
	catalog.CodeTruncated:        true,
	catalog.CodeSparse:           true,
	catalog.CodeSidecar:          true,
	catalog.CodeMediaType:        true,
	catalog.CodeIdentityMismatch: true,
	catalog.CodeNoCRS:            true,
	catalog.CodeNoFootprint:      true,
	catalog.CodeProbeFailed:      true,
}

// ParseVerdict reads a verdict frame. err means that the child broke the
// protocol. Else the job is settled: by facts, or by refusal.
func ParseVerdict(payload []byte) (facts catalog.Facts, refusal *catalog.Error, err error) {
	var v Verdict
	if err := json.Unmarshal(payload, &v); err != nil {
		return facts, nil, fmt.Errorf("parse verdict: %w", err)
	}
	switch {
	case (v.Facts == nil) == (v.Refusal == nil):
		return facts, nil, fmt.Errorf("a verdict needs facts or a refusal")
	case v.Refusal != nil:
		if !refusals[v.Refusal.Code] {
			return facts, nil, fmt.Errorf("refusal with code %.40q", v.Refusal.Code)
		}
		problem := catalog.Errorf(v.Refusal.Code, "%s", Line(v.Refusal.Message, MaxMessage))
		if problem.Code == catalog.CodeMediaType {
			return facts, problem.At("/media_type"), nil
		}
		return facts, problem, nil
	}
	facts, err = v.Facts.check()
	return facts, nil, err
}

// check turns f into the domain's facts, refusing what no sound child sends.
func (f *Facts) check() (catalog.Facts, error) {
	none := catalog.Facts{}
	if f.Driver == "" || len(f.Driver) > 64 {
		return none, fmt.Errorf("driver %.80q", f.Driver)
	}
	if _, err := catalog.Extension(f.MediaType); err != nil {
		return none, err
	}
	least := 0
	if len(f.Bands) > 0 || len(f.Layers) == 0 {
		least = 1
	}
	if min(f.Width, f.Height) < least || least == 0 && max(f.Width, f.Height) > 0 || max(f.Width, f.Height) > maxDimension {
		return none, fmt.Errorf("size %d × %d", f.Width, f.Height)
	}
	if len(f.Bands) < least || len(f.Bands) > MaxBands {
		return none, fmt.Errorf("%d bands", len(f.Bands))
	}
	if !sound(f.Driver, 64) || !sound(f.CRS, MaxCRS) || !sound(f.CRSWKT, MaxCRS) {
		return none, fmt.Errorf("driver or CRS is no sound text")
	}
	if err := f.checkLayout(); err != nil {
		return none, err
	}
	if err := f.checkLayers(); err != nil {
		return none, err
	}
	for i, b := range f.Bands {
		nodata := ""
		if b.NoData != nil {
			nodata = *b.NoData
		}
		if b.DataType == "" || !sound(b.DataType, 64) || !sound(nodata, 64) || !sound(b.ColorInterp, 64) ||
			!sound(b.Description, MaxBandText) || !sound(b.Unit, MaxBandText) {
			return none, fmt.Errorf("text of band %d is not sound", i+1)
		}
	}
	if len(f.Tags) > MaxTags {
		return none, fmt.Errorf("%d tags", len(f.Tags))
	}
	total := 0
	for k, v := range f.Tags {
		total += len(k) + len(v)
		if !sound(k, MaxTagBytes) || !sound(v, MaxTagBytes) || total > MaxTagsBytes {
			return none, fmt.Errorf("tag %.80q is no sound text, or too much of it", k)
		}
	}
	if a := f.Acquired; a.Start != nil && a.End != nil && a.End.Before(*a.Start) {
		return none, fmt.Errorf("acquired ends before it starts")
	}
	footprint, err := f.footprint()
	if err != nil {
		return none, err
	}
	return catalog.Facts{
		Driver: f.Driver, MediaType: f.MediaType, IsCOG: f.IsCOG, CRS: f.CRS, CRSWKT: f.CRSWKT, Transform: f.Transform,
		Width: f.Width, Height: f.Height, Bands: f.Bands, Layout: f.Layout, Layers: f.Layers, Tags: f.Tags, Acquired: f.Acquired, Footprint: footprint,
	}, nil
}

func (f *Facts) checkLayout() error {
	l := f.Layout
	if !sound(l.Compression, 64) || !sound(l.Interleave, 64) || !sound(l.COGReason, MaxMessage) {
		return fmt.Errorf("text of the layout is not sound")
	}
	if len(l.Overviews) > MaxOverviews {
		return fmt.Errorf("%d overviews", len(l.Overviews))
	}
	for _, size := range append([][2]int{l.BlockSize}, l.Overviews...) {
		if min(size[0], size[1]) < 0 || max(size[0], size[1]) > maxDimension {
			return fmt.Errorf("size %v in the layout", size)
		}
	}
	return nil
}

func (f *Facts) checkLayers() error {
	if len(f.Layers) > MaxLayers {
		return fmt.Errorf("%d layers", len(f.Layers))
	}
	fields := 0
	for i, l := range f.Layers {
		if fields += len(l.Fields); fields > MaxFields || l.FeatureCount < 0 {
			return fmt.Errorf("%d fields, %d features", fields, l.FeatureCount)
		}
		ok := sound(l.Name, MaxBandText) && sound(l.GeometryType, 64) && l.GeometryType != "" && sound(l.CRS, MaxCRS)
		for _, field := range l.Fields {
			ok = ok && sound(field.Name, MaxBandText) && sound(field.Type, 64)
		}
		if !ok {
			return fmt.Errorf("text of layer %d is not sound", i+1)
		}
	}
	return nil
}

func (f *Facts) footprint() (*geom.MultiPolygon, error) {
	if len(f.Footprint) == 0 {
		return nil, nil
	}
	points := 0
	coords := make([][][]geom.Coord, len(f.Footprint))
	for i, polygon := range f.Footprint {
		if len(polygon) == 0 {
			return nil, fmt.Errorf("polygon %d of the footprint has no ring", i)
		}
		for _, ring := range polygon {
			if points += len(ring); points > MaxFootprintPoints {
				return nil, fmt.Errorf("footprint of more than %d points", MaxFootprintPoints)
			}
			if len(ring) < 4 || ring[0] != ring[len(ring)-1] {
				return nil, fmt.Errorf("a ring of the footprint is not closed")
			}
			out := make([]geom.Coord, len(ring))
			for j, c := range ring {
				// JSON has no NaN and no infinity, so that these bounds are all.
				if math.Abs(c[0]) > 180 || math.Abs(c[1]) > 90 {
					return nil, fmt.Errorf("footprint point %v is not on the Earth", c)
				}
				out[j] = geom.Coord{c[0], c[1]}
			}
			coords[i] = append(coords[i], out)
		}
	}
	return geom.NewMultiPolygon(geom.XY).MustSetCoords(coords).SetSRID(4326), nil
}

// FootprintCoords is the inverse of what the parent does with Facts.Footprint.
func FootprintCoords(mp *geom.MultiPolygon) [][][][2]float64 {
	if mp == nil {
		return nil
	}
	var out [][][][2]float64
	for _, polygon := range mp.Coords() {
		var rings [][][2]float64
		for _, ring := range polygon {
			var points [][2]float64
			for _, c := range ring {
				points = append(points, [2]float64{c[0], c[1]})
			}
			rings = append(rings, points)
		}
		out = append(out, rings)
	}
	return out
}

// sound tells whether s can be stored as text: no longer than limit, UTF-8,
// without NUL.
func sound(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// Line is Text in one line, without tabs.
func Line(s string, limit int) string { return Text(strings.Join(strings.Fields(s), " "), limit) }

// Text makes a sound text of at most limit bytes out of s, without control
// characters other than tab and newline.
func Text(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > limit {
		cut := limit - len("…")
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}
