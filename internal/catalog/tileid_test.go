package catalog_test

import (
	"errors"
	"path"
	"regexp"
	"strings"
	"testing"

	"catalogd/internal/catalog"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestCheckTileID(t *testing.T) {
	for _, id := range []string{
		"t0001", "33UXP/2026-08-04", "a/b/c", "_", "-", "0", "a.b", "a..b", "a.", "T.tif", "a/b.TIF", "tif/a", "x.tiff/a",
		strings.Repeat("s", catalog.MaxTileIDSegment),
		strings.Repeat(strings.Repeat("s", 127)+"/", 3) + strings.Repeat("s", 128),
	} {
		if err := catalog.CheckTileID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, test := range []struct{ id, says string }{
		{"", "is empty: name the tile"},
		{"a.0123456789ab.0123456789ab", "ends like the name of an attempt's output"},
		{"/t0001", `begins with "/": leave that out`},
		{"/", `begins with "/"`},
		{"t0001/", `ends with "/": leave that out`},
		{"a//b", `empty segment: write one "/"`},
		{`a\b`, `backslash: join segments with "/"`},
		{"..", `segment "..": write the id without relative segments`},
		{"a/../b", `segment "..": write the id without relative segments`},
		{"./a", `segment ".": write the id without relative segments`},
		{".hidden", "begins with a dot: begin it with"},
		{"a/.b", `segment ".b" of tile id "a/.b" begins with a dot`},
		{"...", "begins with a dot"},
		{"a b", "holds ' ': use letters"},
		{"é", "holds 'é': use letters"},
		{"a~b", "holds '~'"},
		{"a:b", "holds ':'"},
		{"a\x00", `holds '\x00'`},
		{"a\n", `holds '\n'`},
		{"\xff", "holds '\uFFFD'"},
		{strings.Repeat("s", catalog.MaxTileIDSegment+1), "at most 200: shorten it, or split it"},
		{strings.Repeat("s/", catalog.MaxTileID/2) + "s", "is 513 bytes long; at most 512"},
		{"a.tif/b", `ends with ".tif", so that it could be both a directory and the name of an output: leave the extension out`},
		{"a/b.TiF/c", `ends with ".TiF"`},
	} {
		err := catalog.CheckTileID(test.id)
		var e *catalog.Error
		if !errors.As(err, &e) {
			t.Errorf("%q: not refused: %v", test.id, err)
			continue
		}
		if e.Code != catalog.CodeInvalidTileID || e.Field != "/tile_id" || !strings.Contains(e.Message, test.says) {
			t.Errorf("%q: got %s at %s: %s\nwant it to say %q", test.id, e.Code, e.Field, e.Message, test.says)
		}
	}
}

// anyTileID draws ids that are likely to meet in one tree.
var anyTileID = rapid.StringMatching(`[ab](\.tif|\.TIF|\.[0-9a-f]{2})?(/[ab](\.tif|\.TIF)?){0,2}`).
	Filter(func(id string) bool { return catalog.CheckTileID(id) == nil })

func TestNoNameIsADirectoryOfAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := func(label string) []string {
			id := anyTileID.Draw(t, label)
			return []string{
				catalog.StableName("c", id, ".tif"),
				catalog.FinalName("c", id, uuid.Nil, uuid.Max, ".tif"),
			}
		}
		for _, file := range names("file") {
			for _, other := range names("other") {
				// As on a file system that does not tell cases apart.
				for dir := path.Dir(other); dir != "."; dir = path.Dir(dir) {
					if strings.EqualFold(dir, file) {
						t.Fatalf("%s is a directory of %s", file, other)
					}
				}
			}
		}
	})
}

func FuzzCheckTileID(f *testing.F) {
	for _, id := range []string{"t0001", "33UXP/2026-08-04", "..", "a/../b", "a.tif/b", "a//b", `a\b`, "/", "\xff", ""} {
		f.Add(id)
	}
	grammar := regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199})*$`)
	directory := regexp.MustCompile(`(?i)\.tif/`)
	f.Fuzz(func(t *testing.T, id string) {
		err := catalog.CheckTileID(id)
		taken := grammar.MatchString(id) && len(id) <= catalog.MaxTileID && !directory.MatchString(id)
		if taken != (err == nil) {
			t.Fatalf("%q: taken %t, want %t: %v", id, err == nil, taken, err)
		}
		if err != nil {
			if !catalog.IsCode(err, catalog.CodeInvalidTileID) || !printable(err.Error()) {
				t.Fatalf("%q: refused with %q", id, err)
			}
			return
		}
		if clean := path.Clean(id); clean != id {
			t.Fatalf("%q is a longer way to say %q", id, clean)
		}
	})
}
