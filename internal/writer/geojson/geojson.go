// Package geojson proves GeoJSON files complete: strict JSON (RFC 8259) to the last
// byte, one FeatureCollection, whose features are Features. It decodes no geometry.
//
// What it does not prove: that the features are all that were meant. A writer that
// closes the collection before it goes on (GDAL's does so on FlushCache) leaves a whole
// file each time.
//
// The files are strangers': depth and kept texts are bounded; nothing grows with the
// file. Pure Go; imports packages catalog and proof.
//
// Source: RFC 7946, RFC 8259.
package geojson

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/proof"
)

// Report is what the walk found.
type Report struct {
	Features uint64
	// Tags are the collection's own members that are texts. Those that say whose the
	// file is (catalog.Mark) are among them however many others there are.
	Tags map[string]string
	// Odd is one of these that is no text, or stands there twice and differs; "" for none.
	Odd string
}

const (
	maxDepth = 64
	maxText  = 64 << 10 // of texts that are kept, as they are spelt
	maxMark  = 8 * catalog.MaxIdentityBytes
	maxTags  = 1024
)

// Prove parses the file of size bytes. The error is a *proof.TruncatedError, a
// *proof.MalformedError, or what r answered.
func Prove(r io.ReaderAt, size int64) (Report, error) {
	s := &scanner{in: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 64<<10)}
	report, err := s.collection()
	switch {
	case errors.Is(err, io.EOF):
		return Report{}, proof.Truncated("the JSON ends too early, after %d bytes and %d features", size, s.features)
	case err != nil:
		return Report{}, err
	}
	return report, nil
}

type scanner struct {
	in       *bufio.Reader
	at       int64
	features uint64
	text     []byte
}

func (s *scanner) malformed(format string, args ...any) error {
	return proof.Malformed("byte %d: %s", s.at, fmt.Sprintf(format, args...))
}

// next is the next byte; io.EOF at the end.
func (s *scanner) next() (byte, error) {
	c, err := s.in.ReadByte()
	if err == nil {
		s.at++
	}
	return c, err
}

func (s *scanner) back() {
	_ = s.in.UnreadByte() // a byte was just read
	s.at--
}

// token is the next byte that is no white space.
func (s *scanner) token() (byte, error) {
	for {
		c, err := s.next()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

func (s *scanner) collection() (Report, error) {
	report := Report{Tags: map[string]string{}}
	var kind string
	haveFeatures := false
	c, err := s.token()
	if err != nil {
		return report, err
	}
	if c != '{' {
		return report, s.malformed("a FeatureCollection is an object, and begins with {, not %q", c)
	}
	if err := s.object(0, func(key string) error {
		c, err := s.token()
		if err != nil {
			return err
		}
		mark, isMark := catalog.Mark(key)
		switch {
		case key == "features" && c == '[' && !haveFeatures:
			haveFeatures = true
			return s.array(func(c byte) error { return s.feature(c) })
		case key == "features":
			return s.malformed("features is one array")
		case c == '"':
			if isMark {
				text, err := s.string(maxMark)
				if before, twice := report.Tags[mark]; twice && text != before {
					report.Odd = mark
				}
				report.Tags[mark] = text
				return err
			}
			text, err := s.string(maxText)
			if key == "type" {
				kind = text
			} else if len(report.Tags) < maxTags {
				report.Tags[key] = text
			}
			return err
		case isMark:
			report.Odd = mark
		}
		return s.value(c, 1)
	}); err != nil {
		return report, err
	}
	if kind != "FeatureCollection" || !haveFeatures {
		return report, proof.Malformed("the JSON is no FeatureCollection, but %q: write one (ogr2ogr -f GeoJSON)", kind)
	}
	if c, err := s.token(); err == nil {
		return report, s.malformed("%q follows after the collection", c)
	} else if !errors.Is(err, io.EOF) {
		return report, err
	}
	report.Features = s.features
	return report, nil
}

// feature reads one member of features.
func (s *scanner) feature(c byte) error {
	if c != '{' {
		return s.malformed("a feature is an object")
	}
	kind, haveGeometry := "", false
	err := s.object(2, func(key string) error {
		c, err := s.token()
		if err != nil {
			return err
		}
		switch {
		case key == "type" && c == '"':
			kind, err = s.string(maxText)
			return err
		case key == "geometry":
			haveGeometry = c == '{' || c == 'n'
		}
		return s.value(c, 3)
	})
	if err == nil && (kind != "Feature" || !haveGeometry) {
		err = s.malformed("feature %d is %q, and no Feature with a geometry", s.features+1, kind)
	}
	s.features++
	return err
}

// value reads one value that begins with c.
func (s *scanner) value(c byte, depth int) error {
	if depth > maxDepth {
		return s.malformed("nested deeper than %d levels", maxDepth)
	}
	switch {
	case c == '{':
		return s.object(depth, func(string) error {
			c, err := s.token()
			if err != nil {
				return err
			}
			return s.value(c, depth+1)
		})
	case c == '[':
		return s.array(func(c byte) error { return s.value(c, depth+1) })
	case c == '"':
		_, err := s.string(0)
		return err
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.number(c)
}

// object reads members after the opening brace; member reads the value of each.
func (s *scanner) object(depth int, member func(key string) error) error {
	for first := true; ; first = false {
		c, err := s.token()
		if err != nil {
			return err
		}
		if c == '}' && first {
			return nil
		}
		if c != '"' {
			return s.malformed("a member's name is missing; there is %q", c)
		}
		keep := 0
		if depth <= 2 {
			keep = maxText
		}
		key, err := s.string(keep)
		if err != nil {
			return err
		}
		if c, err = s.token(); err == nil && c != ':' {
			err = s.malformed("a colon is missing; there is %q", c)
		}
		if err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if more, err := s.more('}'); err != nil || !more {
			return err
		}
	}
}

// array reads items after the opening bracket; item reads one that begins with c.
func (s *scanner) array(item func(c byte) error) error {
	for first := true; ; first = false {
		c, err := s.token()
		if err != nil {
			return err
		}
		if c == ']' && first {
			return nil
		}
		if err := item(c); err != nil {
			return err
		}
		if more, err := s.more(']'); err != nil || !more {
			return err
		}
	}
}

func (s *scanner) more(end byte) (bool, error) {
	c, err := s.token()
	switch {
	case err != nil:
		return false, err
	case c == ',':
		return true, nil
	case c == end:
		return false, nil
	}
	return false, s.malformed("a comma or %q is missing; there is %q", end, c)
}

// word reads the rest of a word whose first letter was read.
func (s *scanner) word(word string) error {
	for i := 1; i < len(word); i++ {
		c, err := s.next()
		if err != nil {
			return err
		}
		if c != word[i] {
			return s.malformed("no JSON value")
		}
	}
	return nil
}

// number reads one that begins with c: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
func (s *scanner) number(c byte) (err error) {
	if c == '-' {
		if c, err = s.next(); err != nil {
			return err
		}
	}
	digits := func() error {
		if c < '0' || c > '9' {
			return s.malformed("no JSON value; there is %q", c)
		}
		for err == nil && c >= '0' && c <= '9' {
			c, err = s.next()
		}
		return err
	}
	if c == '0' {
		c, err = s.next()
	} else if err := digits(); err != nil {
		return err
	}
	if err == nil && c == '.' {
		if c, err = s.next(); err == nil {
			err = digits()
		}
	}
	if err == nil && (c == 'e' || c == 'E') {
		if c, err = s.next(); err == nil && (c == '+' || c == '-') {
			c, err = s.next()
		}
		if err == nil {
			err = digits()
		}
	}
	if err == nil {
		s.back()
	}
	return err
}

// string reads one after its opening quote, and gives as much of it as is to be kept.
func (s *scanner) string(keep int) (string, error) {
	s.text = s.text[:0]
	escaped, pending := false, 0
	var char [utf8.UTFMax]byte
	for {
		c, err := s.next()
		if err != nil {
			return "", err
		}
		switch {
		case pending > 0 || c >= utf8.RuneSelf:
			char[pending] = c
			if pending++; utf8.FullRune(char[:pending]) {
				if r, n := utf8.DecodeRune(char[:pending]); r == utf8.RuneError && n < 2 {
					return "", s.malformed("a text is not UTF-8")
				}
				pending = 0
			}
		case c == '"':
			if keep == 0 {
				return "", nil
			}
			if !escaped {
				return string(s.text), nil
			}
			var text string
			err := json.Unmarshal(append(append([]byte{'"'}, s.text...), '"'), &text)
			if err != nil { // cut within an escape
				text = ""
			}
			return text, nil
		case c < ' ':
			return "", s.malformed("a text holds a control character")
		case c == '\\':
			escaped = true
			if len(s.text) < keep {
				s.text = append(s.text, c)
			}
			if c, err = s.next(); err != nil {
				return "", err
			}
			switch c {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					if len(s.text) < keep {
						s.text = append(s.text, c)
					}
					if c, err = s.next(); err != nil {
						return "", err
					}
					if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
						return "", s.malformed("a text holds a broken escape")
					}
				}
			default:
				return "", s.malformed("a text holds a broken escape")
			}
		}
		if len(s.text) < keep {
			s.text = append(s.text, c)
		}
	}
}
