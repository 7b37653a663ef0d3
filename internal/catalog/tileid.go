package catalog

import (
	"regexp"
	"strings"
)

// Limits of a tile id, in bytes. A segment leaves room in the 255 bytes of a
// file name for what FinalName adds.
const (
	MaxTileID        = 512
	MaxTileIDSegment = 200
)

// CheckTileID refuses an id that is not segments of [A-Za-z0-9._-] joined by
// "/", none empty, too long or starting with a dot.
//
// No segment but the last may end with an extension of HasExtension, in any
// case. Every stable and every final name ends with one, and every directory of
// such a name is a collection id, which has no dot, or ends with a segment that
// is not the last. So no name can be another's directory.
//
// Errors: CodeInvalidTileID at /tile_id.
func CheckTileID(id string) error {
	refuse := func(format string, args ...any) error {
		return Errorf(CodeInvalidTileID, format, args...).At("/tile_id")
	}
	switch {
	case id == "":
		return refuse(`tile id is empty: name the tile, as in "t0001" or "33UXP/2026-08-04"`)
	case len(id) > MaxTileID:
		return refuse("tile id is %d bytes long; at most %d: shorten it", len(id), MaxTileID)
	case strings.Contains(id, `\`):
		return refuse(`tile id %q holds a backslash: join segments with "/"`, id)
	case strings.HasPrefix(id, "/"):
		return refuse(`tile id %q begins with "/": leave that out, the id is relative to its collection`, id)
	case strings.HasSuffix(id, "/"):
		return refuse(`tile id %q ends with "/": leave that out, the id names a file`, id)
	}
	segments := strings.Split(id, "/")
	for i, segment := range segments {
		if at := strings.IndexFunc(segment, notInTileID); at >= 0 {
			r := []rune(segment[at:])[0]
			return refuse("tile id %q holds %q: use letters A-Z and a-z, digits, dot, underscore and hyphen, with \"/\" between segments", id, r)
		}
		switch {
		case segment == "":
			return refuse(`tile id %q has an empty segment: write one "/" between segments`, id)
		case segment == "." || segment == "..":
			return refuse("tile id %q has a segment %q: write the id without relative segments", id, segment)
		case segment[0] == '.':
			return refuse("segment %q of tile id %q begins with a dot: begin it with a letter, a digit, _ or -", segment, id)
		case len(segment) > MaxTileIDSegment:
			return refuse(`a segment of tile id %q is %d bytes long; at most %d: shorten it, or split it with "/"`, id, len(segment), MaxTileIDSegment)
		}
		if ext, ok := HasExtension(segment); ok && i < len(segments)-1 {
			return refuse("segment %q of tile id %q ends with %q, so that it could be both a directory and the name of an output: leave the extension out", segment, id, ext)
		}
	}
	if finalEnding.MatchString(id) {
		return refuse("tile id %q ends like the name of an attempt's output, two dots each before 12 hexadecimal digits: end it in another way", id)
	}
	return nil
}

// finalEnding is what FinalName puts between a tile id and its extension.
var finalEnding = regexp.MustCompile(`\.[0-9a-f]{12}\.[0-9a-f]{12}$`)

func notInTileID(r rune) bool {
	switch {
	case 'A' <= r && r <= 'Z', 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
		return false
	}
	return true
}
