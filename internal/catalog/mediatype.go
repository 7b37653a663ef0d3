package catalog

import "strings"

// Media types of outputs, and the extension that each gives to names.
const (
	MediaTypeGeoTIFF = "image/tiff; application=geotiff"
	MediaTypeCOG     = "image/tiff; application=geotiff; profile=cloud-optimized"
)

// extensions is closed: the rule that no stable name is another's directory
// rests on knowing every extension (see CheckTileID).
var extensions = map[string]string{
	MediaTypeGeoTIFF: ".tif",
	MediaTypeCOG:     ".tif",
}

// Extension of names for a media type, with its dot.
func Extension(mediaType string) (string, error) {
	if ext, ok := extensions[mediaType]; ok {
		return ext, nil
	}
	return "", Errorf(CodeInvalidMediaType, "media type %q is not supported: use %q or %q", mediaType, MediaTypeGeoTIFF, MediaTypeCOG).At("/media_type")
}

// HasExtension tells whether name ends in an extension that an output can have,
// in any case, and gives it.
func HasExtension(name string) (ext string, ok bool) {
	lower := strings.ToLower(name)
	for _, ext := range extensions {
		if strings.HasSuffix(lower, ext) {
			return name[len(name)-len(ext):], true
		}
	}
	return "", false
}
