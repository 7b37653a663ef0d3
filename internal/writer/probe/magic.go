package probe

import (
	"bytes"
	"regexp"
	"strings"

	"catalogd/internal/catalog"
)

// What is said of formats that are not taken.
const (
	aside       = "which is not self-contained: its place on the Earth is in a world file beside it"
	unsupported = "which is refused until it is supported"
	sequence    = "one feature after the other (GeoJSONSeq), or one alone: write a FeatureCollection (ogr2ogr -f GeoJSON)"
	reference   = "which is a reference to something else, and is never taken"
)

// signatures of the formats that are taken, which have a driver, and of those that tasks
// hand over by mistake, by their first bytes.
var signatures = []struct {
	prefix, driver, format string
}{
	{"II*\x00", catalog.DriverGTiff, "TIFF"},
	{"MM\x00*", catalog.DriverGTiff, "TIFF"},
	{"II+\x00", catalog.DriverGTiff, "TIFF"},
	{"MM\x00+", catalog.DriverGTiff, "TIFF"},
	{"SQLite format 3\x00", catalog.DriverGPKG, "GeoPackage"},
	{"fgb\x03fgb", catalog.DriverFlatGeobuf, "FlatGeobuf"},
	{"\x00\x00\x00\x0cjP  \r\n\x87\n", catalog.DriverJP2, "JPEG 2000"},
	{"\xff\x4f\xff\x51", "", "a bare JPEG 2000 codestream: write it into a JP2 file"},
	{"\x00\x00\x27\x0a\x00\x00\x00\x00", "", "a Shapefile, which is several files: write a GeoPackage or FlatGeobuf (ogr2ogr)"},
	{"ncols ", "", "an ASCII grid, whose reference system is in a file beside it: write a GeoTIFF (gdal_translate -a_srs EPSG:…)"},
	{"NCOLS ", "", "an ASCII grid, whose reference system is in a file beside it: write a GeoTIFF (gdal_translate -a_srs EPSG:…)"},
	{"ENVI\n", "", "the header of an ENVI raster, which is two files: write a GeoTIFF (gdal_translate)"},
	{"ENVI\r", "", "the header of an ENVI raster, which is two files: write a GeoTIFF (gdal_translate)"},
	{"\x1e", "", sequence},
	{"\x89PNG\r\n\x1a\n", "", "PNG, " + aside},
	{"\xff\xd8\xff", "", "JPEG, " + aside},
	{"GIF8", "", "GIF, " + aside},
	{"BM", "", "BMP, " + aside},
	{"\x89HDF\r\n\x1a\n", "", "HDF5, probably netCDF, " + unsupported},
	{"CDF\x01", "", "netCDF, " + unsupported},
	{"CDF\x02", "", "netCDF, " + unsupported},
	{"CDF\x05", "", "netCDF, " + unsupported},
	{"GRIB", "", "GRIB, " + unsupported},
	{"EHFA_HEADER_TAG", "", "Erdas Imagine, " + unsupported},
	{"NITF", "", "NITF, " + unsupported},
	{"%PDF", "", "PDF"},
	{"PAR1", "", "Parquet, " + unsupported},
	{"PK\x03\x04", "", "a ZIP archive"},
	{"\x1f\x8b", "", "a gzip archive"},
	{"<VRTDataset", "", "VRT, " + reference},
	{"<OGRVRTDataSource", "", "VRT, " + reference},
	{"<GDAL_WMS", "", "a GDAL WMS description, " + reference},
	{"<", "", "XML or HTML"},
	{"{", catalog.DriverGeoJSON, "JSON"},
}

var feature = regexp.MustCompile(`^\{\s*"type"\s*:\s*"Feature"`)

// recognise says which driver opens a file that begins so, and names its format; "" for
// what is not known.
func recognise(head []byte) (driver, format string) {
	if len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP" {
		return "", "WebP, " + aside
	}
	text := strings.TrimLeft(string(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))), " \t\r\n")
	for _, name := range []string{".zgroup", ".zarray", "zarr.json", "zarr_format"} {
		if strings.HasPrefix(text, "PK\x03\x04") && strings.Contains(text, name) || strings.HasPrefix(text, "{") && name == "zarr_format" && strings.Contains(text, name) {
			return "", "Zarr, " + unsupported
		}
	}
	if feature.MatchString(text) {
		return "", sequence
	}
	if len(head) >= 72 && bytes.HasPrefix(head, []byte("SQLite format 3\x00")) && !bytes.HasPrefix(head[68:], []byte("GPKG")) && !bytes.HasPrefix(head[68:], []byte("GP1")) {
		if head[18] == 2 || head[19] == 2 { // the write-ahead log has what the header lacks
			return "", "SQLite in WAL mode, what it holds in another file: close the database (PRAGMA journal_mode = DELETE), then hand it over"
		}
		return "", "SQLite, and no GeoPackage by its application id: write one (ogr2ogr -f GPKG, or gdal_translate -of GPKG)"
	}
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.prefix)) || strings.HasPrefix(text, s.prefix) {
			return s.driver, s.format
		}
	}
	return "", ""
}
