package catalog

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	geom "github.com/twpayne/go-geom"
)

// Band describes one band of a raster.
type Band struct {
	// DataType is GDAL's name: Byte, UInt16, Float32, …
	DataType string `json:"data_type"`
	// NoData is the nodata value as text ("0", "nan", "-9999"); nil when none is set.
	NoData      *string  `json:"nodata,omitempty"`
	Description string   `json:"description,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	ColorInterp string   `json:"color_interpretation,omitempty"`
	Scale       *float64 `json:"scale,omitempty"`
	Offset      *float64 `json:"offset,omitempty"`
	// Statistics are those that the file holds; they are never computed.
	Statistics *Statistics `json:"statistics,omitempty"`
}

// Statistics of a band.
type Statistics struct {
	Minimum float64 `json:"minimum"`
	Maximum float64 `json:"maximum"`
	Mean    float64 `json:"mean"`
	StdDev  float64 `json:"stddev"`
}

// Layout says how a raster's bytes lie in its file.
type Layout struct {
	// Compression is GDAL's name: DEFLATE, …; "" for none.
	Compression string `json:"compression,omitempty"`
	// Interleave is PIXEL or BAND.
	Interleave string `json:"interleave,omitempty"`
	// BlockSize and Overviews are widths and heights, in pixels.
	BlockSize [2]int   `json:"block_size,omitzero"`
	Overviews [][2]int `json:"overviews,omitempty"`
	// Mask tells whether the file holds a mask of its own.
	Mask bool `json:"mask,omitempty"`
	// COGReason says why a GeoTIFF is no COG; "" for one that is.
	COGReason string `json:"cog_reason,omitempty"`
}

// Layer describes one layer of features.
type Layer struct {
	Name string `json:"name"`
	// GeometryType is OGR's name: Point, 3D Multi Polygon, …; None for a table.
	GeometryType string  `json:"geometry_type"`
	FeatureCount int64   `json:"feature_count"`
	CRS          string  `json:"crs,omitempty"`
	Fields       []Field `json:"fields"`
}

// Field is one attribute of a layer; Type is OGR's name: String, Integer64, …
type Field struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Facts is what the probe found in a complete output.
type Facts struct {
	// Driver is GDAL's short name: see Drivers.
	Driver    string
	MediaType string
	IsCOG     bool
	// CRS is an authority code ("EPSG:32633") where it is exactly that one, else
	// WKT2; CRSWKT is WKT2 always. Empty when the file has none, or its layers
	// have several.
	CRS, CRSWKT string
	// Transform is GDAL's geotransform in its order (origin x, pixel width, row
	// rotation, origin y, column rotation, pixel height), in units of CRS; zero for
	// a raster that has none. It, width and height are 0, and there are no bands,
	// where there is no raster.
	Transform     [6]float64
	Width, Height int
	Bands         []Band
	Layout        Layout
	// Layers of features; none for a raster.
	Layers []Layer
	// Tags are the dataset's metadata of the default domain.
	Tags map[string]string
	// Footprint is the outline in WGS 84, longitude then latitude, SRID 4326;
	// nil when the collection takes rasters without one.
	Footprint *geom.MultiPolygon
	// Acquired comes from tags (TIFFTAG_DATETIME, ACQUISITION_DATE…); zero when
	// there are none.
	Acquired Interval
}

// Interval is a span of time, both ends included. An instant has equal ends.
type Interval struct {
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"`
}

// IsZero tells whether neither end is known.
func (i Interval) IsZero() bool { return i.Start == nil && i.End == nil }

// Object is what a store says of one object.
type Object struct {
	// Key is the name below the store's root, with "/" between segments.
	Key       string
	SizeBytes int64
	ETag      string
	// Modified is when its content, its name or its rights last changed: an old file
	// that was moved here is new here.
	Modified time.Time
}

// Tile is an output: a row of catalog.tiles. A committed row names a durable
// object of this size and checksum.
type Tile struct {
	UnitKey    uuid.UUID
	Collection string
	TileID     string
	Version    string
	Identity   json.RawMessage
	ClientKey  string
	StoreID    string
	ObjectKey  string
	SizeBytes  int64
	// Checksum is "sha256:" and 64 hexadecimal digits.
	Checksum   string
	ETag       string
	Facts      Facts
	Properties json.RawMessage
	AttemptID  uuid.UUID
	BatchID    *uuid.UUID

	RegisteredAt time.Time
	PublishedAt  *time.Time
	WithdrawnAt  *time.Time
	LostSince    *time.Time
	// Current tells whether the slot points to this output.
	Current bool
}

// SlotMove is a span of time in which a slot pointed to one output.
type SlotMove struct {
	UnitKey   uuid.UUID
	Version   string
	ObjectKey string
	From      time.Time
	To        *time.Time // nil for now
	By        string     // owner of the attempt, or who published
	Reason    string     // registered, published or adopted
}
