package catalog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"catalogd/internal/catalog"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func mustIdentity(t interface{ Fatalf(string, ...any) }, raw string) catalog.Identity {
	id, err := catalog.ParseIdentity([]byte(raw))
	if err != nil {
		t.Fatalf("ParseIdentity(%q): %v", raw, err)
	}
	return id
}

func TestParseIdentity(t *testing.T) {
	id := mustIdentity(t, ` {"version":"2026.1", "scene":"S2B", "resolution":10.0} `)
	const want = `{"resolution":10,"scene":"S2B","version":"2026.1"}`
	if got := string(id.Canonical()); got != want {
		t.Errorf("Canonical() = %s, want %s", got, want)
	}
	if id.String() != want || id.Version() != "2026.1" {
		t.Errorf("String() = %s, Version() = %q", id, id.Version())
	}
	if id != mustIdentity(t, want) {
		t.Error("two ways to write one identity are not equal")
	}
	id.Canonical()[0] = 'x'
	if id.String() != want {
		t.Error("the bytes that Canonical gives lead into the identity")
	}
}

func TestParseIdentityAtItsLimits(t *testing.T) {
	members := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"version":"1"`)
		for i := 1; i < n; i++ {
			fmt.Fprintf(&b, `,"k%d":0`, i)
		}
		return b.String() + "}"
	}
	const frame = `{"a":"","version":"1"}`
	long := func(n int) string {
		return `{"a":"` + strings.Repeat("x", n-len(frame)) + `","version":"1"}`
	}
	deep := func(levels int) string {
		return `{"version":"1","a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + "}"
	}
	version := func(n int) string { return `{"version":"` + strings.Repeat("v", n) + `"}` }

	for name, limit := range map[string]struct{ within, beyond string }{
		"members": {members(catalog.MaxIdentityMembers), members(catalog.MaxIdentityMembers + 1)},
		"bytes":   {long(catalog.MaxIdentityBytes), long(catalog.MaxIdentityBytes + 1)},
		"depth":   {deep(catalog.MaxIdentityDepth), deep(catalog.MaxIdentityDepth + 1)},
		"version": {version(catalog.MaxVersionBytes), version(catalog.MaxVersionBytes + 1)},
		"canonical bytes": {
			`{"a":[` + strings.Repeat("1e15,", 3000) + `0],"version":"1"}`,
			`{"a":[` + strings.Repeat("1e15,", 6000) + `0],"version":"1"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			mustIdentity(t, limit.within)
			if _, err := catalog.ParseIdentity([]byte(limit.beyond)); !catalog.IsCode(err, catalog.CodeInvalidIdentity) {
				t.Errorf("beyond the limit: %v", err)
			}
		})
	}
}

// Refusals that a JSON file of vectors cannot hold, or whose words matter.
func TestParseIdentityRefuses(t *testing.T) {
	long := strings.Repeat("é", 300)
	for _, test := range []struct{ name, raw, field, says string }{
		{"nothing", "", "/identity", "is not a JSON object"},
		{"null", "null", "/identity", "is not a JSON object"},
		{"invalid UTF-8", "{\"version\":\"1\",\"a\":\"\xff\"}", "/identity/a", "text is not UTF-8 (byte 0xff)"},
		{"overlong NUL", "{\"version\":\"1\",\"a\":\"\xc0\x80\"}", "/identity/a", "text is not UTF-8"},
		{"surrogate as UTF-8", "{\"version\":\"1\",\"a\":\"\xed\xa0\x80\"}", "/identity/a", "text is not UTF-8"},
		{"invalid UTF-8 in a key", "{\"version\":\"1\",\"a\xffb\":1}", "/identity/a\uFFFDb", "key is not UTF-8"},
		{"invalid UTF-8 outside text", "{\"version\":\"1\",\xff}", "/identity", "not JSON: at byte 15"},
		{"raw NUL", "{\"version\":\"1\",\"a\":\"\x00\"}", "/identity/a", "text holds NUL (U+0000)"},
		{"raw NUL in a key", "{\"version\":\"1\",\"\x00\":\"\"}", `/identity/\u0000`, "key holds NUL (U+0000)"},
		{"NUL after the object", "{\"version\":\"1\"}\x00", "/identity", "not JSON: at byte 15, expected nothing more"},
		{"raw newline", "{\"version\":\"1\",\"a\":\"\n\"}", "/identity/a", `write \u000a`},
		{"unknown escape", `{"version":"1","a":"C:\data"}`, "/identity/a", `begins no escape of JSON: write \\`},
		{"short escape", `{"version":"1","a":"\u12"}`, "/identity/a", "begins no escape of JSON"},
		{"signed escape", `{"version":"1","a":"\u+123"}`, "/identity/a", "begins no escape of JSON"},
		{"open text", `{"version":"1`, "/identity/version", "version is not closed"},
		{"lone surrogate", `{"version":"1","a":"\uD800"}`, "/identity/a", `text holds the lone surrogate \uD800: send well-formed Unicode`},
		{"lone surrogate in version", `{"version":"\udfff"}`, "/identity/version", `version holds the lone surrogate \udfff`},
		{"duplicate", `{"version":"1","a":{"x y":1,"x\u0020y":1}}`, "/identity/a/x y", "appears twice in its object: remove one of the two"},
		{"duplicate, unprintable", `{"version":"1","\u202e\t":1,"\u202e\t":1}`, `/identity/\u202e\u0009`, "appears twice"},
		{"duplicate, astral and unprintable", `{"version":"1","` + "\U000E0001" + `":1,"\udb40\udc01":1}`, `/identity/\udb40\udc01`, "appears twice"},
		{"large integer", `{"version":"1","n":9007199254740993}`, "/identity/n", "9007199254740993 is beyond ±2^53, where readers of JSON round: send it as text"},
		{"long literal", `{"version":"1","n":1` + strings.Repeat("0", 400) + `}`, "/identity/n", "1000000000000000000000000000000000000000… is beyond"},
		{"fraction beyond 2^53", `{"version":"1","n":9007199254740993.5}`, "/identity/n", "send it as text"},
		{"underflow", `{"version":"1","n":-0.1e-999}`, "/identity/n", "would be read as 0: send it as text"},
		{"NaN", `{"version":"1","n":[0,NaN]}`, "/identity/n/1", "NaN is not a number of JSON: send it as text, or null"},
		{"version missing", `{}`, "/identity/version", "has no version"},
		{"version null", `{"version":null}`, "/identity/version", "version is not text"},
		{"version with DEL", `{"version":"1\u007f"}`, "/identity/version", "control character"},
		{"long key", `{"version":"1","` + long + `":NaN}`, "/identity/" + strings.Repeat("é", 100) + "…", "NaN"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := catalog.ParseIdentity([]byte(test.raw))
			var e *catalog.Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want a catalog.Error", err)
			}
			if e.Code != catalog.CodeInvalidIdentity || e.Field != test.field || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %s at %s: %s\nwant it at %s, saying %q", e.Code, e.Field, e.Message, test.field, test.says)
			}
		})
	}
}

func TestIdentityJSON(t *testing.T) {
	type request struct {
		Identity catalog.Identity `json:"identity"`
	}
	var r request
	if err := json.Unmarshal([]byte(`{"identity":{"version":"1","a":1.0}}`), &r); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(out), `{"identity":{"a":1,"version":"1"}}`; got != want {
		t.Errorf("marshalled %s, want %s", got, want)
	}
	err = json.Unmarshal([]byte(`{"identity":{"version":"1","a":1,"a":1}}`), &r)
	if !catalog.IsCode(err, catalog.CodeInvalidIdentity) {
		t.Errorf("duplicate key through encoding/json: %v", err)
	}
	if out, err = json.Marshal(request{}); err != nil || string(out) != `{"identity":null}` {
		t.Errorf("zero identity marshals to %s, %v", out, err)
	}
}

// anyText draws text that an identity may hold.
var anyText = rapid.StringOf(rapid.Rune().Filter(func(r rune) bool { return r != 0 && utf8.ValidRune(r) }))

// anyValue draws a value of the kinds that encoding/json decodes to.
func anyValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		anyText.AsAny(),
		rapid.Map(rapid.Int64Range(-1<<53, 1<<53), func(n int64) any { return float64(n) }),
		rapid.Float64Range(-1<<53, 1<<53).AsAny(),
		rapid.Float64Range(-1e-5, 1e-5).AsAny(),
	}
	if depth > 0 {
		inner := rapid.Deferred(func() *rapid.Generator[any] { return anyValue(depth - 1) })
		kinds = append(kinds,
			rapid.SliceOfN(inner, 0, 4).AsAny(),
			rapid.MapOfN(anyText, inner, 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

// anyIdentity draws the members of an identity.
var anyIdentity = rapid.Custom(func(t *rapid.T) map[string]any {
	members := rapid.MapOfN(anyText, anyValue(2), 0, 5).Draw(t, "members")
	members["version"] = rapid.StringMatching(`[a-zé.0-9]{1,20}`).Draw(t, "version")
	return members
})

// write gives one of the many ways to write v in JSON.
func write(t *rapid.T, v any) string {
	var b strings.Builder
	space := func() { b.WriteString(rapid.StringMatching(`[ \t\r\n]{0,2}`).Draw(t, "space")) }
	var value func(any)
	value = func(v any) {
		space()
		switch v := v.(type) {
		case map[string]any:
			b.WriteByte('{')
			keys := slices.Sorted(maps.Keys(v))
			if len(keys) > 0 {
				keys = rapid.Permutation(keys).Draw(t, "order")
			}
			for i, key := range keys {
				if i > 0 {
					b.WriteByte(',')
				}
				value(key)
				b.WriteByte(':')
				value(v[key])
			}
			space()
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i, item := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				value(item)
			}
			space()
			b.WriteByte(']')
		case string:
			b.WriteByte('"')
			for _, r := range v {
				if r < ' ' || r == '"' || r == '\\' || rapid.IntRange(0, 3).Draw(t, "escape") == 0 {
					for _, unit := range utf16.Encode([]rune{r}) {
						fmt.Fprintf(&b, `\u%04x`, unit)
					}
				} else {
					b.WriteRune(r)
				}
			}
			b.WriteByte('"')
		case float64:
			format := rapid.SampledFrom([]byte("gGeEf")).Draw(t, "format")
			b.WriteString(strconv.FormatFloat(v, format, -1, 64))
		default:
			fmt.Fprint(&b, map[any]string{nil: "null", true: "true", false: "false"}[v])
		}
		space()
	}
	value(v)
	return b.String()
}

func key(t *rapid.T, id catalog.Identity) uuid.UUID {
	k, err := catalog.NewUnitKey("c", "t", id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestIdentityHoldsItsMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := anyIdentity.Draw(t, "identity")
		id := mustIdentity(t, write(t, members))
		var got map[string]any
		if err := json.Unmarshal(id.Canonical(), &got); err != nil {
			t.Fatalf("canonical form is not JSON: %v", err)
		}
		if !reflect.DeepEqual(got, members) {
			t.Fatalf("canonical form says %v, the identity was %v", got, members)
		}
		if id.Version() != members["version"] {
			t.Fatalf("version is %q, want %q", id.Version(), members["version"])
		}
	})
}

func TestCanonicalFormIsAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := mustIdentity(t, write(t, anyIdentity.Draw(t, "identity")))
		if again := mustIdentity(t, id.String()); again != id {
			t.Fatalf("parse(canonical) = %s, canonical = %s", again, id)
		}
	})
}

func TestKeyDoesNotDependOnWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := anyIdentity.Draw(t, "identity")
		one, other := write(t, members), write(t, members)
		if a, b := mustIdentity(t, one), mustIdentity(t, other); a != b || key(t, a) != key(t, b) {
			t.Fatalf("one identity, two keys:\n%s\n%s", one, other)
		}
	})
}

func TestDifferentIdentitiesHaveDifferentKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyIdentity.Draw(t, "one")
		b := maps.Clone(a)
		// Often a neighbour: one member more, less or changed.
		if rapid.Bool().Draw(t, "neighbour") {
			b[anyText.Draw(t, "key")] = anyValue(1).Draw(t, "value")
			b["version"] = a["version"]
		} else {
			b = anyIdentity.Draw(t, "other")
		}
		same := key(t, mustIdentity(t, write(t, a))) == key(t, mustIdentity(t, write(t, b)))
		if same != reflect.DeepEqual(a, b) {
			t.Fatalf("same key: %t, for %v and %v", same, a, b)
		}
	})
}

// Every integer up to ±2^53 is taken, in any way of writing; none beyond is.
func TestIntegersAreExactOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(
			rapid.Int64Range(1<<53-5, 1<<53+5),
			rapid.Int64Min(1),
		).Draw(t, "n")
		if rapid.Bool().Draw(t, "negative") {
			n = -n
		}
		form := rapid.SampledFrom([]string{"%d", "%d.0", "%de0", "%d.000E-0", "%d00e-2"}).Draw(t, "form")
		id, err := catalog.ParseIdentity(fmt.Appendf(nil, `{"n":`+form+`,"version":"1"}`, n))
		if -1<<53 <= n && n <= 1<<53 {
			if want := fmt.Sprintf(`{"n":%d,"version":"1"}`, n); err != nil || id.String() != want {
				t.Fatalf("%d: %s, %v", n, id, err)
			}
		} else if !catalog.IsCode(err, catalog.CodeInvalidIdentity) {
			t.Fatalf("%d: %s, %v", n, id, err)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	v := readVectors(f)
	for _, vector := range v.Vectors {
		f.Add([]byte(vector.IdentityJSON))
	}
	for _, vector := range v.Refused {
		f.Add([]byte(vector.IdentityJSON))
	}
	f.Add([]byte("{\"version\":\"1\",\"\xed\xa0\x80\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		id, err := catalog.ParseIdentity(raw)
		if err != nil {
			var e *catalog.Error
			if !errors.As(err, &e) || e.Code != catalog.CodeInvalidIdentity || e.Err != nil {
				t.Fatalf("%q: refused with %#v", raw, err)
			}
			if !strings.HasPrefix(e.Field, "/identity") || !printable(e.Field) || !printable(e.Message) {
				t.Fatalf("%q: not fit to show: %q: %q", raw, e.Field, e.Message)
			}
			return
		}
		if !json.Valid(raw) || !utf8.Valid(raw) {
			t.Fatalf("%q: taken, but not JSON", raw)
		}
		if again := mustIdentity(t, id.String()); again != id {
			t.Fatalf("%q: parse(canonical) = %s, canonical = %s", raw, again, id)
		}
		decode := func(text []byte) (m map[string]any) {
			if err := json.Unmarshal(text, &m); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			return m
		}
		was, is := decode(raw), decode(id.Canonical())
		if !reflect.DeepEqual(was, is) || is["version"] != id.Version() || id.Version() == "" {
			t.Fatalf("%q: canonical form %s says something else", raw, id)
		}
		if escapes := strings.ReplaceAll(id.String(), `\\`, ""); strings.Contains(escapes, `\u0000`) {
			t.Fatalf("%q: NUL taken", raw)
		}
	})
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
