package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"catalogd/internal/catalog"
)

// readJSON reads a whole body for the contract's eyes. Duplicate members, lone
// surrogates, NUL and what is not UTF-8 are refused: readers after this one
// would each make something else of them. With identity set, the top level's
// member of that name is read by the domain, so that its problems are told in
// its words, and an empty object stands for it in the result.
//
// Errors: CodeInvalidIdentity or CodeInvalidRequest, at a JSON pointer.
func readJSON(body []byte, identity bool) (any, error) {
	d := jsonReader{body: body, dec: json.NewDecoder(bytes.NewReader(body)), identity: identity}
	d.dec.UseNumber()
	value, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := d.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "more follows after the JSON value, at byte %d: send one value", d.dec.InputOffset())
	}
	if problem := checkText(body); problem != "" {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "%s", problem)
	}
	return value, nil
}

type jsonReader struct {
	body     []byte
	dec      *json.Decoder
	path     []string
	identity bool
}

// maxDepth of a body.
const maxDepth = 64

func (d *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "nested deeper than %d levels: flatten it", maxDepth).At(pointer(d.path))
	}
	token, err := d.dec.Token()
	if err != nil {
		return nil, d.syntax(err)
	}
	switch token {
	case json.Delim('{'):
		return d.object(depth)
	case json.Delim('['):
		return d.array(depth)
	}
	return token, nil
}

func (d *jsonReader) object(depth int) (any, error) {
	members := map[string]any{}
	for d.dec.More() {
		token, err := d.dec.Token()
		if err != nil {
			return nil, d.syntax(err)
		}
		key := token.(string)               // the decoder takes nothing else for a key
		if strings.IndexByte(key, 0) >= 0 { // here, since it must not get into a pointer either
			return nil, catalog.Errorf(catalog.CodeInvalidRequest, "a member's name holds NUL (\\u0000): remove it")
		}
		d.path = append(d.path, key)
		if _, twice := members[key]; twice {
			return nil, catalog.Errorf(catalog.CodeInvalidRequest, "member appears twice in its object: remove one of the two").At(pointer(d.path))
		}
		if d.identity && depth == 0 && key == "identity" {
			members[key], err = d.readIdentity()
		} else {
			members[key], err = d.value(depth + 1)
		}
		if err != nil {
			return nil, err
		}
		d.path = d.path[:len(d.path)-1]
	}
	if _, err := d.dec.Token(); err != nil {
		return nil, d.syntax(err)
	}
	return members, nil
}

func (d *jsonReader) array(depth int) (any, error) {
	items := []any{}
	for d.dec.More() {
		d.path = append(d.path, strconv.Itoa(len(items)))
		item, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		d.path = d.path[:len(d.path)-1]
	}
	if _, err := d.dec.Token(); err != nil {
		return nil, d.syntax(err)
	}
	return items, nil
}

// readIdentity hands the identity, as it was sent, to the domain. What is not
// JSON at all (NaN, say) goes there too, with whatever follows it: the domain
// stops at the same place.
func (d *jsonReader) readIdentity() (any, error) {
	start := d.dec.InputOffset()
	var raw json.RawMessage
	syntax := d.dec.Decode(&raw)
	if syntax != nil {
		rest := bytes.TrimLeft(d.body[start:], " \t\r\n:")
		raw = rest[:min(len(rest), catalog.MaxIdentityBytes)]
	}
	if _, err := catalog.ParseIdentity(raw); err != nil {
		return nil, err
	}
	if syntax != nil {
		return nil, d.syntax(syntax)
	}
	return map[string]any{}, nil
}

func (d *jsonReader) syntax(err error) error {
	e := badJSON(err)
	if e.Field == "" && len(d.path) > 0 {
		e = e.At(pointer(d.path))
	}
	return e
}

// errNoObject is what eachMember says of other values.
var errNoObject = errors.New("not one JSON object")

// eachMember calls each with the name of every member of the object raw, as it was
// sent. What comes next from dec is the member's value, which each has to take. For
// bodies that are too many, or too large, for readJSON.
func eachMember(raw []byte, each func(name string, dec *json.Decoder) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	switch token, err := dec.Token(); {
	case err != nil:
		return err
	case token != json.Delim('{'):
		return errNoObject
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		if err := each(token.(string), dec); err != nil { // the decoder takes nothing else for a key
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errNoObject
	}
	return nil
}

// validMembers is eachMember in one pass, for objects that come by the thousand; value is
// a part of raw. All of raw is known to be JSON before each is called.
func validMembers(raw []byte, each func(name string, value []byte) error) error {
	if !json.Valid(raw) {
		return json.Unmarshal(raw, new(json.RawMessage))
	}
	rest := bytes.TrimLeft(raw, space)
	if rest[0] != '{' {
		return errNoObject
	}
	for {
		rest = bytes.TrimLeft(rest[1:], space) // after a brace or a comma
		if rest[0] == '}' {
			return nil
		}
		n := valueLen(rest)
		name := string(rest[1 : n-1])
		if strings.IndexByte(name, '\\') >= 0 {
			if err := json.Unmarshal(rest[:n], &name); err != nil {
				return err
			}
		}
		rest = bytes.TrimLeft(bytes.TrimLeft(rest[n:], space)[1:], space)
		n = valueLen(rest)
		if err := each(name, rest[:n:n]); err != nil {
			return err
		}
		rest = bytes.TrimLeft(rest[n:], space)
		if rest[0] == '}' {
			return nil
		}
	}
}

const space = " \t\r\n"

// valueLen is how long the value is that valid JSON begins with.
func valueLen(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // what holds a number, or a word, ends here
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text)
}

// badJSON puts what encoding/json says in words for clients.
func badJSON(err error) *catalog.Error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var e *catalog.Error
	switch {
	case errors.As(err, &syntax):
		e = catalog.Errorf(catalog.CodeInvalidRequest, "not JSON, at byte %d: %s", syntax.Offset, syntax.Error())
	case errors.As(err, &kind):
		message := "a JSON " + kind.Value + " does not belong here"
		// The contract takes 1.0 and 1e2 for whole numbers; encoding/json does not.
		if strings.HasPrefix(kind.Value, "number ") {
			message += ": write a whole number within the contract's bounds, without point or exponent"
		}
		e = catalog.Errorf(catalog.CodeInvalidRequest, "%s", message).At("/" + strings.ReplaceAll(kind.Field, ".", "/"))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e = catalog.Errorf(catalog.CodeInvalidRequest, "the JSON ends too early, or there is none")
	default:
		e = catalog.Errorf(catalog.CodeInvalidRequest, "the body cannot be read as the contract says; see /openapi.yaml")
	}
	return e.Because(err)
}

// checkText looks for text that PostgreSQL cannot hold, or that encoding/json
// would replace without a word, in what is known to be JSON. "" for none.
func checkText(body []byte) string {
	if !utf8.Valid(body) {
		return "the body is not UTF-8: encode it as UTF-8"
	}
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		unit, ok := codeUnit(body[i:])
		if !ok {
			i++
			continue
		}
		switch low, pair := codeUnit(body[i+6:]); {
		case unit == 0:
			return fmt.Sprintf("the text at byte %d holds NUL (\\u0000): remove it", i)
		case unit >= 0xd800 && unit < 0xdc00 && pair && low >= 0xdc00 && low < 0xe000:
			i += 11
			continue
		case unit >= 0xd800 && unit < 0xe000:
			return fmt.Sprintf("the text at byte %d holds the lone surrogate %s: send well-formed Unicode", i, body[i:i+6])
		}
		i += 5
	}
	return ""
}

// codeUnit reads \uXXXX at the start of text.
func codeUnit(text []byte) (uint64, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return unit, err == nil
}

// pointer is the RFC 6901 JSON pointer to path.
func pointer(path []string) string {
	var b strings.Builder
	for _, token := range path {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(token))
	}
	return b.String()
}
