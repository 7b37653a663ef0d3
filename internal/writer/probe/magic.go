package probe

import (
	"bytes"
	"strings"

	"catalogd/internal/catalog"
)

// What is said of formats that are not taken.
const (
	aside       = "which is not self-contained: its place on the Earth is in a world file beside it"
	unsupported = "which is refused until it is supported"
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
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.prefix)) || strings.HasPrefix(text, s.prefix) {
			return s.driver, s.format
		}
	}
	return "", ""
}
