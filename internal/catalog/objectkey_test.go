package catalog

import (
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Every name survives being escaped, as text, and only those that are none change.
func TestEscapeKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "key"))
		if key[0] == '/' {
			key = "a" + key
		}
		text := EscapeKey(key)
		if !utf8.ValidString(text) || UnescapeKey(text) != key {
			t.Fatalf("%q is %q, and back %q", key, text, UnescapeKey(text))
		}
	})
	for key, want := range map[string]string{"a/b%20.tif": "a/b%20.tif", "a/Zürich.tif": "a/Zürich.tif", "a/\xff%.tif": "/a/%FF%25.tif", "a\x00b": "/a%00b"} {
		if got := EscapeKey(key); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}
