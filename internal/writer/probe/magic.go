package probe

import (
	"bytes"
	"strings"
)

// signatures of formats that tasks hand over by mistake, by their first bytes.
var signatures = []struct {
	prefix string
	format string
}{
	{"\x89PNG\r\n\x1a\n", "PNG"},
	{"\xff\xd8\xff", "JPEG"},
	{"GIF8", "GIF"},
	{"BM", "BMP"},
	{"\x00\x00\x00\x0cjP  ", "JPEG 2000 (JP2)"},
	{"\xff\x4f\xff\x51", "JPEG 2000 (codestream)"},
	{"SQLite format 3\x00", "SQLite, probably GeoPackage"},
	{"\x89HDF\r\n\x1a\n", "HDF5, probably netCDF"},
	{"CDF\x01", "netCDF"},
	{"CDF\x02", "netCDF"},
	{"CDF\x05", "netCDF"},
	{"GRIB", "GRIB"},
	{"EHFA_HEADER_TAG", "Erdas Imagine"},
	{"NITF", "NITF"},
	{"%PDF", "PDF"},
	{"fgb", "FlatGeobuf"},
	{"PAR1", "Parquet"},
	{"PK\x03\x04", "a ZIP archive"},
	{"\x1f\x8b", "a gzip archive"},
	{"<VRTDataset", "VRT, which is a reference to other files"},
	{"<OGRVRTDataSource", "VRT, which is a reference to other files"},
	{"<GDAL_WMS", "a GDAL WMS description, which is a reference to a server"},
	{"<", "XML or HTML"},
	{"{", "JSON"},
}

// recognise names the format of a file that is no TIFF; "" if it is not known.
func recognise(head []byte) string {
	if len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP" {
		return "WebP"
	}
	text := strings.TrimLeft(string(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))), " \t\r\n")
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.prefix)) || strings.HasPrefix(text, s.prefix) {
			return s.format
		}
	}
	return ""
}
