package upsert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	return checkProperties(g.Properties)
}

// checkProperties refuses what PostgreSQL could not keep, or would write out far
// longer than it came: it spells 1e131071 in as many digits.
func checkProperties(properties []byte) error {
	refuse := func(what string) error {
		return catalog.Errorf(catalog.CodeInvalidRequest, "properties %s", what).At("/properties")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(properties, &members); err != nil || members == nil {
		return refuse("are not a JSON object")
	}
	tokens := json.NewDecoder(bytes.NewReader(properties))
	tokens.UseNumber()
	depth := 0
	for {
		token, err := tokens.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return refuse("are not JSON: " + err.Error())
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '{' || token == '[' {
				depth++
			} else {
				depth--
			}
			if depth > maxDepth {
				return refuse(fmt.Sprintf("are nested deeper than %d levels: flatten them", maxDepth))
			}
		case string:
			if strings.ContainsRune(token, 0) {
				return refuse("hold a NUL character, which PostgreSQL cannot store: remove it")
			}
		case json.Number:
			f, err := token.Float64()
			if err != nil || f == 0 && strings.ContainsAny(mantissa(token.String()), "123456789") {
				return refuse(fmt.Sprintf("hold the number %.40s, which no float64 is near: send it as text", token))
			}
			if len(token) > maxDigits {
				return refuse(fmt.Sprintf("hold a number of %d characters: send it as text", len(token)))
			}
		}
	}
}

// mantissa of a number's text: what stands before its exponent.
func mantissa(number string) string {
	before, _, _ := strings.Cut(strings.ToLower(number), "e")
	return before
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
