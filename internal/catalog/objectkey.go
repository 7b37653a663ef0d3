package catalog

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// EscapeKey gives an object's name as text: itself where it is UTF-8 without NUL. Others
// begin with a slash, as no name does, and have their bytes that are not ASCII, and %, as
// %NN.
func EscapeKey(key string) string {
	if utf8.ValidString(key) && !strings.ContainsRune(key, 0) {
		return key
	}
	var b strings.Builder
	b.WriteByte('/')
	for i := range len(key) {
		if c := key[i]; c < 0x20 || c >= 0x7f || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// EscapeKeys is EscapeKey of each.
func EscapeKeys(keys []string) []string {
	text := make([]string, len(keys))
	for i, key := range keys {
		text[i] = EscapeKey(key)
	}
	return text
}

// UnescapeKey gives the name that EscapeKey was given.
func UnescapeKey(text string) string {
	if escaped, ok := strings.CutPrefix(text, "/"); ok {
		if key, err := url.PathUnescape(escaped); err == nil {
			return key
		}
	}
	return text
}
