package catalog

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// identityScanner reads an identity in one pass and stops at the first thing
// that ParseIdentity refuses. path leads to the value being read, its keys
// unescaped.
type identityScanner struct {
	raw     []byte
	pos     int
	path    []string
	members int
	version string
}

// refuse reports a problem with the value at path.
func (s *identityScanner) refuse(format string, args ...any) *Error {
	return Errorf(CodeInvalidIdentity, format, args...).At("/identity" + pointer(s.path))
}

// syntax reports that the byte at pos is not what JSON has there.
func (s *identityScanner) syntax(expected string) *Error {
	found := "the end"
	if s.pos < len(s.raw) {
		r, _ := utf8.DecodeRune(s.raw[s.pos:])
		found = strconv.QuoteRune(r)
	}
	return s.refuse("not JSON: at byte %d, expected %s, found %s", s.pos, expected, found)
}

// peek skips white space and gives the byte after it; 0 at the end.
func (s *identityScanner) peek() byte {
	for ; s.pos < len(s.raw); s.pos++ {
		switch c := s.raw[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *identityScanner) push(token string) { s.path = append(s.path, token) }
func (s *identityScanner) pop()              { s.path = s.path[:len(s.path)-1] }

func (s *identityScanner) document() error {
	if s.peek() != '{' {
		return s.refuse(`identity is not a JSON object: send an object with a text member "version"`)
	}
	if err := s.object(); err != nil {
		return err
	}
	if s.peek(); s.pos < len(s.raw) {
		return s.syntax("nothing more")
	}
	if s.version == "" {
		s.push("version")
		return s.refuse(`identity has no version: add a text member "version", and bump it whenever the output's bytes could differ`)
	}
	return nil
}

func (s *identityScanner) value() error {
	switch s.peek() {
	case '{':
		return s.object()
	case '[':
		return s.array()
	case '"':
		if _, problem := s.text(); problem != "" {
			return s.refuse("text %s", problem)
		}
		return nil
	}
	rest := s.raw[s.pos:]
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(rest, []byte(word)) {
			s.pos += len(word)
			return nil
		}
	}
	// What Python and others write for numbers that JSON does not have.
	for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
		if bytes.HasPrefix(rest, []byte(word)) {
			return s.refuse("%s is not a number of JSON: send it as text, or null", word)
		}
	}
	return s.number()
}

func (s *identityScanner) object() error {
	seen := map[string]bool{}
	return s.list('}', func(int) error {
		if s.peek() != '"' {
			return s.syntax("a key in double quotes")
		}
		key, problem := s.text()
		s.push(key)
		if problem != "" {
			return s.refuse("key %s", problem)
		}
		if seen[key] {
			return s.refuse("key appears twice in its object: remove one of the two")
		}
		seen[key] = true
		if s.members++; s.members > MaxIdentityMembers {
			return s.refuse("identity has more than %d members: send a digest in place of large objects", MaxIdentityMembers)
		}
		if s.peek() != ':' {
			return s.syntax("':'")
		}
		s.pos++
		read := s.value
		if key == "version" && len(s.path) == 1 {
			read = s.versionText
		}
		if err := read(); err != nil {
			return err
		}
		s.pop()
		return nil
	})
}

func (s *identityScanner) array() error {
	return s.list(']', func(i int) error {
		s.push(strconv.Itoa(i))
		if err := s.value(); err != nil {
			return err
		}
		s.pop()
		return nil
	})
}

// list reads from an opening bracket to the closing one, calling item at the
// start of each item.
func (s *identityScanner) list(closing byte, item func(i int) error) error {
	if len(s.path) == MaxIdentityDepth {
		return s.refuse("identity is nested deeper than %d levels: flatten it, or send the inner part as text", MaxIdentityDepth)
	}
	s.pos++
	if s.peek() == closing {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case closing:
			s.pos++
			return nil
		default:
			return s.syntax(fmt.Sprintf("',' or %q", closing))
		}
	}
}

func (s *identityScanner) versionText() error {
	if s.peek() != '"' {
		return s.refuse(`version is not text: put it in double quotes, as in "2026.1"`)
	}
	version, problem := s.text()
	switch {
	case problem != "":
		return s.refuse("version %s", problem)
	case version == "":
		return s.refuse(`version is empty: name what would change the output's bytes, as in "2026.1"`)
	case len(version) > MaxVersionBytes:
		return s.refuse("version is %d bytes long; at most %d: send a digest, or move parts of it to members of their own", len(version), MaxVersionBytes)
	case strings.ContainsFunc(version, unicode.IsControl):
		return s.refuse("version %q holds a control character: remove it", version)
	}
	s.version = version
	return nil
}

// maxExact is the magnitude up to which every integer is a float64.
const maxExact = 1 << 53

// jsonNumber is the grammar of RFC 8259, section 6.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`)

func (s *identityScanner) number() error {
	literal := string(jsonNumber.Find(s.raw[s.pos:]))
	if literal == "" {
		return s.syntax("a value")
	}
	s.pos += len(literal)

	f, err := strconv.ParseFloat(literal, 64)
	mantissa, _, _ := strings.Cut(strings.ToLower(literal), "e")
	switch magnitude := math.Abs(f); {
	// Beyond 2^53 every float64 is an integer, so no fraction is spared here.
	case err != nil, magnitude > maxExact, magnitude == maxExact && !exactly(literal, f):
		return s.refuse("number %s is beyond ±2^53, where readers of JSON round: send it as text", abbreviate(literal))
	case f == 0 && strings.ContainsAny(mantissa, "123456789"):
		return s.refuse("number %s is too small for a float64, and would be read as 0: send it as text", abbreviate(literal))
	}
	return nil
}

// exactly tells whether the literal is f to the last digit.
func exactly(literal string, f float64) bool {
	exact, ok := new(big.Rat).SetString(literal)
	return ok && exact.Cmp(new(big.Rat).SetFloat64(f)) == 0
}

func abbreviate(literal string) string {
	if len(literal) > 40 {
		return literal[:40] + "…"
	}
	return literal
}

// text reads a string and gives it unescaped. With a problem, phrased to follow
// the name of what was read, value is still the whole string, fit for a pointer
// only.
func (s *identityScanner) text() (value, problem string) {
	var b strings.Builder
	note := func(p string) {
		if problem == "" {
			problem = p
		}
	}
	for s.pos++; s.pos < len(s.raw); {
		switch c := s.raw[s.pos]; {
		case c == '"':
			s.pos++
			if strings.ContainsRune(b.String(), 0) {
				note("holds NUL (U+0000), which PostgreSQL cannot store: remove it, or send bytes as hexadecimal text")
			}
			return b.String(), problem
		case c == '\\':
			part, p := s.escape()
			if p != "" {
				note(p)
			}
			b.WriteString(part)
		default:
			r, size := utf8.DecodeRune(s.raw[s.pos:])
			if r == utf8.RuneError && size == 1 {
				note(fmt.Sprintf("is not UTF-8 (byte 0x%02x): encode it as UTF-8, or send bytes as hexadecimal text", c))
			}
			if 0 < c && c < ' ' {
				note(fmt.Sprintf(`holds a raw control character: write \u%04x`, c))
			}
			b.WriteRune(r)
			s.pos += size
		}
	}
	note("is not closed: end it with a double quote")
	return b.String(), problem
}

// escape reads one escape sequence, or the two of a surrogate pair. With a
// problem, value is the offending text as it was written.
func (s *identityScanner) escape() (value, problem string) {
	const short, meaning = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	rest := s.raw[s.pos:]
	if len(rest) > 1 {
		if i := strings.IndexByte(short, rest[1]); i >= 0 {
			s.pos += 2
			return meaning[i : i+1], ""
		}
	}
	unit, ok := codeUnit(rest)
	if !ok {
		s.pos++
		return `\`, `holds a backslash that begins no escape of JSON: write \\`
	}
	s.pos += 6
	if !utf16.IsSurrogate(unit) {
		return string(unit), ""
	}
	if low, ok := codeUnit(rest[6:]); ok {
		if r := utf16.DecodeRune(unit, low); r != unicode.ReplacementChar {
			s.pos += 6
			return string(r), ""
		}
	}
	return string(rest[:6]), fmt.Sprintf("holds the lone surrogate %s: send well-formed Unicode, or bytes as hexadecimal text", rest[:6])
}

// codeUnit reads \uXXXX at the start of raw.
func codeUnit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(unit), err == nil
}

// maxPointerToken is where a token of a pointer is cut, in bytes.
const maxPointerToken = 200

// pointer is the RFC 6901 JSON pointer to path, for people to read: characters
// that do not print are escaped as in JSON, and long tokens are cut.
func pointer(path []string) string {
	var b strings.Builder
	for _, token := range path {
		b.WriteByte('/')
		for i, r := range token {
			if i >= maxPointerToken {
				b.WriteRune('…')
				break
			}
			switch {
			case r == '~':
				b.WriteString("~0")
			case r == '/':
				b.WriteString("~1")
			case unicode.IsPrint(r):
				b.WriteRune(r)
			default:
				for _, unit := range utf16.Encode([]rune{r}) {
					fmt.Fprintf(&b, `\u%04x`, unit)
				}
			}
		}
	}
	return b.String()
}
