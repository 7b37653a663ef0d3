package catalog_test

import (
	"errors"
	"slices"
	"testing"

	"catalogd/internal/catalog"
)

func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		mediaType string
		drivers   []string
		want      []string
		code      catalog.Code
		field     string
	}{
		"default":     {catalog.MediaTypeGeoTIFF, nil, []string{"GTiff"}, "", ""},
		"COG":         {catalog.MediaTypeCOG, nil, []string{"GTiff"}, "", ""},
		"GeoPackage":  {catalog.MediaTypeGeoPackage, nil, []string{"GPKG"}, "", ""},
		"two":         {catalog.MediaTypeGeoTIFF, []string{"GPKG", "GTiff"}, []string{"GPKG", "GTiff"}, "", ""},
		"unknown":     {catalog.MediaTypeGeoTIFF, []string{"GTiff", "VRT"}, nil, catalog.CodeInvalidCollection, "/drivers/1"},
		"twice":       {catalog.MediaTypeGeoTIFF, []string{"GTiff", "GTiff"}, nil, catalog.CodeInvalidCollection, "/drivers/1"},
		"by a driver": {"", []string{"GPKG", "GTiff"}, []string{"GPKG", "GTiff"}, "", ""},
		"neither":     {"", nil, []string{"GTiff"}, "", ""},
		"none":        {catalog.MediaTypeGeoTIFF, []string{}, nil, catalog.CodeInvalidCollection, "/drivers"},
		"not its own": {catalog.MediaTypeGeoTIFF, []string{"GPKG"}, nil, catalog.CodeInvalidMediaType, "/media_type"},
		"media type":  {"image/png", nil, nil, catalog.CodeInvalidMediaType, "/media_type"},
	} {
		collection := catalog.Collection{ID: "x", MediaType: c.mediaType, Policy: catalog.Policy{Drivers: c.drivers}}
		err := collection.Settle()
		if c.code == "" {
			driver, _ := catalog.Driver(collection.MediaType)
			if err != nil || !slices.Equal(collection.Policy.Drivers, c.want) || c.mediaType == "" && driver != c.want[0] {
				t.Errorf("%s: %v, %q, %v", name, collection.Policy.Drivers, collection.MediaType, err)
			}
			continue
		}
		var problem *catalog.Error
		if !errors.As(err, &problem) || problem.Code != c.code || problem.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every media type has a driver and an extension, and every extension is refused in the
// middle of a tile id.
func TestFormats(t *testing.T) {
	for _, mediaType := range []string{
		catalog.MediaTypeGeoTIFF, catalog.MediaTypeCOG, catalog.MediaTypeGeoPackage, catalog.MediaTypeFlatGeobuf, catalog.MediaTypeGeoJSON, catalog.MediaTypeJPEG2000,
	} {
		ext, err := catalog.Extension(mediaType)
		driver, err2 := catalog.Driver(mediaType)
		if err != nil || err2 != nil || !slices.Contains(catalog.Drivers(), driver) || !slices.Contains(catalog.Extensions(), ext) {
			t.Errorf("%s: %s, %s, %v, %v", mediaType, ext, driver, err, err2)
		}
		if got, _ := catalog.Extension(catalog.MediaTypeOf(driver)); got != ext {
			t.Errorf("%s: files of %s end with %s and %s", mediaType, driver, ext, got)
		}
		if got, ok := catalog.HasExtension("a" + ext); !ok || got != ext {
			t.Errorf("%s: %s", mediaType, got)
		}
		if catalog.CheckTileID("a"+ext+"/b") == nil {
			t.Errorf("a%s could be a directory and an output", ext)
		}
	}
}

func TestTags(t *testing.T) {
	identity, err := catalog.ParseIdentity([]byte(`{"version":"v1","n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	a := catalog.Attempt{Version: "v1", Identity: identity.Canonical()}
	for value, ok := range map[string]bool{
		`{"n":1,"version":"v1"}`: true, ` {"version": "v1", "n": 1.0} `: true, `{"n":2,"version":"v1"}`: false, `{"version":"v1"}`: false, `x`: false, ``: false,
	} {
		err := catalog.CheckTags(map[string]string{catalog.TagIdentity: value}, a)
		if ok != (err == nil) || err != nil && !catalog.IsCode(err, catalog.CodeIdentityMismatch) {
			t.Errorf("%s: %v", value, err)
		}
	}
	if err := catalog.CheckTags(nil, a); err != nil {
		t.Error(err)
	}
}
