package catalog

import (
	"slices"
	"strings"
)

// Media types of outputs.
const (
	MediaTypeGeoTIFF    = "image/tiff; application=geotiff"
	MediaTypeCOG        = "image/tiff; application=geotiff; profile=cloud-optimized"
	MediaTypeGeoPackage = "application/geopackage+sqlite3"
	MediaTypeFlatGeobuf = "application/vnd.flatgeobuf"
	MediaTypeGeoJSON    = "application/geo+json"
	MediaTypeJPEG2000   = "image/jp2"
)

// Drivers that outputs are opened with, by GDAL's short names. GTiff takes COGs too.
const (
	DriverGTiff      = "GTiff"
	DriverGPKG       = "GPKG"
	DriverFlatGeobuf = "FlatGeobuf"
	DriverGeoJSON    = "GeoJSON"
	DriverJP2        = "JP2OpenJPEG"
)

// formats is closed: the rule that no stable name is another's directory rests on
// knowing every extension (see CheckTileID). The first media type of a driver is
// what its files are, if nothing more is known of them.
var formats = []struct{ mediaType, driver, ext string }{
	{MediaTypeGeoTIFF, DriverGTiff, ".tif"},
	{MediaTypeCOG, DriverGTiff, ".tif"},
	{MediaTypeGeoPackage, DriverGPKG, ".gpkg"},
	{MediaTypeFlatGeobuf, DriverFlatGeobuf, ".fgb"},
	{MediaTypeGeoJSON, DriverGeoJSON, ".geojson"},
	{MediaTypeJPEG2000, DriverJP2, ".jp2"},
}

// Drivers lists all drivers that a collection may take.
func Drivers() []string {
	var all []string
	for _, f := range formats {
		if !slices.Contains(all, f.driver) {
			all = append(all, f.driver)
		}
	}
	return all
}

// Extensions lists all extensions that names of outputs can have.
func Extensions() []string {
	var all []string
	for _, f := range formats {
		if !slices.Contains(all, f.ext) {
			all = append(all, f.ext)
		}
	}
	return all
}

// Extension of names for a media type, with its dot.
func Extension(mediaType string) (string, error) {
	for _, f := range formats {
		if f.mediaType == mediaType {
			return f.ext, nil
		}
	}
	return "", unknownMediaType(mediaType)
}

// Driver that opens outputs of a media type.
func Driver(mediaType string) (string, error) {
	for _, f := range formats {
		if f.mediaType == mediaType {
			return f.driver, nil
		}
	}
	return "", unknownMediaType(mediaType)
}

// MediaTypeOf is the media type of a driver's files; "" for a driver that is not
// known. A COG is known by its layout, not by its driver.
func MediaTypeOf(driver string) string {
	for _, f := range formats {
		if f.driver == driver {
			return f.mediaType
		}
	}
	return ""
}

func unknownMediaType(mediaType string) error {
	var known []string
	for _, f := range formats {
		known = append(known, `"`+f.mediaType+`"`)
	}
	return Errorf(CodeInvalidMediaType, "media type %q is not supported: use one of %s", mediaType, strings.Join(known, ", ")).At("/media_type")
}

// HasExtension tells whether name ends in an extension that an output can have,
// in any case, and gives it.
func HasExtension(name string) (ext string, ok bool) {
	lower := strings.ToLower(name)
	for _, f := range formats {
		if strings.HasSuffix(lower, f.ext) {
			return name[len(name)-len(f.ext):], true
		}
	}
	return "", false
}
