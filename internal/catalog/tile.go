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
}

// Facts is what the probe found in a complete output.
type Facts struct {
	// Driver is GDAL's short name: GTiff, …
	Driver    string
	MediaType string
	IsCOG     bool
	// CRS is an authority code ("EPSG:32633") where it is exactly that one, else
	// WKT2; empty when the raster has none.
	CRS string
	// Transform is GDAL's geotransform in its order (origin x, pixel width, row
	// rotation, origin y, column rotation, pixel height), in units of CRS.
	Transform     [6]float64
	Width, Height int
	Bands         []Band
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
	Modified  time.Time
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
