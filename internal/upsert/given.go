package upsert

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"catalogd/internal/catalog"
)

// checkName refuses a name that is empty, too long, or could not be stored or
// printed on one line.
func checkName(field, name string) error {
	switch {
	case name == "":
		return catalog.Errorf(catalog.CodeInvalidRequest, "%s is missing: send a text of 1 to %d bytes", strings.TrimPrefix(field, "/"), maxName).At(field)
	case len(name) > maxName:
		return catalog.Errorf(catalog.CodeInvalidRequest, "%s is %d bytes long; at most %d", strings.TrimPrefix(field, "/"), len(name), maxName).At(field)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return catalog.Errorf(catalog.CodeInvalidRequest, "%s has control characters or is not UTF-8: send printable text", strings.TrimPrefix(field, "/")).At(field)
	}
	return nil
}

func checkGiven(g catalog.Given) error {
	if err := g.Acquired.Check(); err != nil {
		return err
	}
	if len(g.Properties) > maxProperties {
		return catalog.Errorf(catalog.CodeInvalidRequest, "properties are %d bytes; at most %d: keep large data in the raster", len(g.Properties), maxProperties).At("/properties")
	}
	if len(g.Properties) == 0 {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(g.Properties, &members); err != nil || members == nil {
		return catalog.Errorf(catalog.CodeInvalidRequest, "properties are not a JSON object").At("/properties")
	}
	if bytes.Contains(g.Properties, []byte(`\u0000`)) {
		return catalog.Errorf(catalog.CodeInvalidRequest, "properties hold a NUL character, which PostgreSQL cannot store: remove it").At("/properties")
	}
	return nil
}

// over lays what was given later over what was given before: acquisition as a
// whole, properties member by member.
func over(before, later catalog.Given) catalog.Given {
	out := before
	if !later.Acquired.IsZero() {
		out.Acquired = later.Acquired
	}
	switch {
	case len(later.Properties) == 0:
	case len(before.Properties) == 0:
		out.Properties = later.Properties
	default:
		members := map[string]json.RawMessage{}
		// Both were checked to be objects when they came in.
		_ = json.Unmarshal(before.Properties, &members)
		_ = json.Unmarshal(later.Properties, &members)
		out.Properties, _ = json.Marshal(members)
	}
	return out
}
