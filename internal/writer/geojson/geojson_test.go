package geojson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/proof/prooftest"
)

func prove(r io.ReaderAt, size int64) error { _, err := Prove(r, size); return err }

func TestWhole(t *testing.T) {
	content := bytes.TrimSpace(prooftest.Fixture(t, "vector.geojson"))
	report, err := Prove(bytes.NewReader(content), int64(len(content)))
	if err != nil || report.Features != 5 {
		t.Fatalf("%+v, %v", report, err)
	}
	prooftest.Cut(t, content, prove)
}

func TestTaken(t *testing.T) {
	for text, want := range map[string]map[string]string{
		`{"type":"FeatureCollection","features":[]}`:                                                                                   {},
		" \n{\"features\" : [ ] , \"type\":\"FeatureCollection\"}\r\n":                                                                 {},
		`{"type":"FeatureCollection","name":"a\u00e4\n","features":[{"type":"Feature","geometry":null,"properties":{"a":[-1.5e+3]}}]}`: {"name": "aä\n"},
		`{"type":"FeatureCollection","CATALOGD_VERSION":"v1","crs":{"type":"x"},"features":[]}`:                                        {"CATALOGD_VERSION": "v1"},
	} {
		report, err := Prove(strings.NewReader(text), int64(len(text)))
		if err != nil || !maps.Equal(report.Tags, want) {
			t.Errorf("%s: %q, %v", text, report.Tags, err)
		}
	}
}

func TestRefused(t *testing.T) {
	const head, tail = `{"type":"FeatureCollection","features":[`, `]}`
	for _, text := range []string{
		`[]`, `{}`, `{"type":"Feature","geometry":null}`, `{"type":"FeatureCollection"}`, `{"features":[]}`,
		head + tail + `x`, head + tail + head, head + `1` + tail, head + `{}` + tail, head + `{"type":"Feature"}` + tail,
		head + `{"type":"Feature","geometry":3}` + tail, head + `{"type":"Feature","geometry":null},` + tail,
		`{"type":"FeatureCollection","features":[],}`, `{"type":"FeatureCollection","features":[],"features":[]}`,
		head + tail[:1] + `,"a":NaN}`, head + tail[:1] + `,"a":01}`, head + tail[:1] + `,"a":1.}`, head + tail[:1] + `,"a":+1}`,
		head + tail[:1] + ",\"a\":\"\xff\"}", head + tail[:1] + ",\"a\":\"\x01\"}", head + tail[:1] + `,"a":"\x"}`, head + tail[:1] + `,"a":"\u12g4"}`,
		head + tail[:1] + `,"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`,
	} {
		var malformed *proof.MalformedError
		if err := prove(strings.NewReader(text), int64(len(text))); !errors.As(err, &malformed) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What is taken is JSON to encoding/json too.
func FuzzProve(f *testing.F) {
	f.Add([]byte(`{"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2e3]},"properties":{"a":"\u00e4\\","b":[true,false,null]}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if prove(bytes.NewReader(raw), int64(len(raw))) == nil && !json.Valid(raw) {
			t.Fatalf("%q", raw)
		}
	})
}
