package catalog

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Order says which of two units in a slot is current.
type Order string

const (
	// OrderVersion ranks by version, then by which unit was first seen later.
	OrderVersion Order = "version"
	// OrderAcquired ranks by time of acquisition, then as OrderVersion.
	OrderAcquired Order = "acquired"
)

// Collection is a family of outputs with one policy.
type Collection struct {
	ID          string
	Title       string
	Description string
	License     string
	// StoreID of the store that new outputs go to. Store is its name at this server,
	// or its id; in what is asked for, either, and "" for the server's first.
	StoreID, Store string
	// MediaType is that of outputs whose begin names none.
	MediaType string
	Policy    Policy
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Policy says what a collection takes, and what becomes current.
type Policy struct {
	OrderBy Order
	// Drivers that outputs are written with, by GDAL's short names; see Settle.
	Drivers []string
	// SparseAllowed takes TIFFs with blocks that were never written; they read as nodata or zero.
	SparseAllowed bool
	// FootprintOptional takes rasters without a WGS 84 footprint: no CRS, or not of the Earth.
	FootprintOptional bool
	// DecodeAlways decodes every block, and every feature, as proof of completeness, whatever the driver can prove more cheaply.
	DecodeAlways bool
	// StagingCopied promotes catalogd's own copy of the staged file, so that a
	// writer which keeps its descriptor open cannot change the output.
	StagingCopied bool
	// Retry says when a unit that failed is tried again.
	Retry RetryPolicy
	// Publish says when an output can become current; "" stands for PublishOnRegister.
	Publish PublishWhen
}

// Probe is what an output announced as of this media type, "" for any, is probed for.
func (p Policy) Probe(mediaType string) ProbeRequest {
	return ProbeRequest{
		MediaType: mediaType, Drivers: p.Drivers, SparseAllowed: p.SparseAllowed, FootprintOptional: p.FootprintOptional, Decode: p.DecodeAlways,
	}
}

// Settle fills in what a collection does not name: its media type by its first driver
// (GeoTIFF without any), its drivers by its media type. It refuses drivers that are not
// known, a list of none, and a media type whose driver is not among them.
//
// Errors: CodeInvalidCollection at /drivers or /drivers/n, CodeInvalidMediaType at
// /media_type.
func (c *Collection) Settle() error {
	if c.Policy.Drivers != nil && len(c.Policy.Drivers) == 0 {
		return Errorf(CodeInvalidCollection, "a collection takes one driver at least: name it, or leave drivers out").At("/drivers")
	}
	for i, d := range c.Policy.Drivers {
		if !slices.Contains(Drivers(), d) {
			return Errorf(CodeInvalidCollection, "driver %q is not supported: use %s", d, strings.Join(Drivers(), ", ")).At("/drivers/" + strconv.Itoa(i))
		}
		if slices.Contains(c.Policy.Drivers[:i], d) {
			return Errorf(CodeInvalidCollection, "driver %q is named twice: name it once", d).At("/drivers/" + strconv.Itoa(i))
		}
	}
	switch {
	case c.MediaType == "" && len(c.Policy.Drivers) > 0:
		c.MediaType = MediaTypeOf(c.Policy.Drivers[0])
	case c.MediaType == "":
		c.MediaType = MediaTypeGeoTIFF
	}
	if c.Policy.Drivers == nil {
		driver, err := Driver(c.MediaType)
		if err != nil {
			return err
		}
		c.Policy.Drivers = []string{driver}
	}
	return c.CheckMediaType(c.MediaType)
}

// CheckMediaType refuses a media type whose driver the collection does not take.
func (c *Collection) CheckMediaType(mediaType string) error {
	driver, err := Driver(mediaType)
	if err != nil {
		return err
	}
	if !(ProbeRequest{Drivers: c.Policy.Drivers}).Takes(driver) {
		return Errorf(CodeInvalidMediaType, "media type %q is of driver %s, and collection %s takes %s: send another media type, or add the driver to the collection",
			mediaType, driver, c.ID, strings.Join(c.Policy.Drivers, ", ")).At("/media_type")
	}
	return nil
}

var collectionID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)

// MaxCollectionID is the longest collection id, in bytes.
const MaxCollectionID = 64

// CheckCollectionID refuses an id that could not be a directory beside
// catalogd's own. CodeInvalidCollection at /id.
func CheckCollectionID(id string) error { return checkCollectionID(id, "/id") }

func checkCollectionID(id, field string) error {
	switch {
	case len(id) > MaxCollectionID:
		return Errorf(CodeInvalidCollection, "collection id is %d bytes long; at most %d", len(id), MaxCollectionID).At(field)
	case !collectionID.MatchString(id):
		return Errorf(CodeInvalidCollection, "collection id %q does not match [a-z0-9][a-z0-9_-]*: use lower-case letters, digits, _ and -", id).At(field)
	case id == "current":
		return Errorf(CodeInvalidCollection, `"current" is the name of the tree of stable names: choose another id`).At(field)
	}
	return nil
}
