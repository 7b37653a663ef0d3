package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
)

const expectedUnit = `{"tile_id":"t0001","identity":{"version":"7"},"geometry":{"type":"Polygon","coordinates":[[[15,50],[16,50],[16,51],[15,50]]]}}`

// A bad unit is refused alone, and told by its line; the rest is added.
func TestAddUnitsTellsOfBadOnes(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	lines := []struct{ line, code, field string }{
		{expectedUnit, "", ""},
		{`{"collection":"landcover","tile_id":"t0002","identity":{"version":"7"},"client_key":"k2"}`, "", ""},
		{`{"tile_id":"t0003","identity":{"version":7}}`, "invalid_identity", "/identity/version"},
		{`{"tile_id":"../x","identity":{"version":"7"}}`, "invalid_tile_id", "/tile_id"},
		{`{"collection":"dem","tile_id":"t","identity":{"version":"7"}}`, "invalid_request", "/collection"},
		{`{"tile_id":"t"}`, "invalid_request", "/identity"},
		{`{"tile_id":"t","identity":{"version":"7"},"geom":1}`, "invalid_request", "/geom"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Point","coordinates":[500000,5600000]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Polygon","coordinates":[]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Blob"}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Point","coordinates":[15,50,100]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Point","coordinates":[null,null]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"LineString","coordinates":[[15,50]]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Polygon","coordinates":[[[15,50],[16,50],[16,51],[15,51]]]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"Polygon","coordinates":[[[15,50],[16,50],[15,50]]]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"MultiPolygon","coordinates":[[[[15,50],[16,50],[16,51],[15,50]],[]]]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[15,50]}]}}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"geometry":[]}`, "invalid_request", "/geometry"},
		{`{"tile_id":"t","identity":{"version":"7"},"client_key":"` + strings.Repeat("k", 257) + `"}`, "invalid_request", "/client_key"},
		{`{"tile_id":"` + strings.Repeat("t", maxLine) + `"}`, "too_large", ""},
		{`not JSON`, "invalid_request", ""},
	}
	var body strings.Builder
	for _, l := range lines {
		body.WriteString(l.line + "\n\n")
	}
	res, answer := call(t, "POST", url+"/v1/batches/nightly/units", "write", ndjson, body.String())
	var out UnitsAdded
	if err := json.Unmarshal([]byte(answer), &out); err != nil || res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, answer)
	}
	if out.Total != int64(len(lines)) || out.Added != 2 || out.Refused != int64(len(lines)-2) || out.Expected != nightly.Expected || out.Error != nil {
		t.Errorf("%s", answer)
	}
	told := map[int64]RefusedUnit{}
	for _, e := range out.Errors {
		told[e.Line] = e
	}
	for i, l := range lines {
		e := told[int64(2*i+1)]
		if string(e.Code) != l.code || value(e.Field) != l.field {
			t.Errorf("line %d %.80s: %+v, want %s at %s", 2*i+1, l.line, e, l.code, l.field)
		}
	}
	if len(f.added) != 2 || f.added[0].Collection != "landcover" || f.added[1].ClientKey != "k2" {
		t.Fatalf("%+v", f.added)
	}
	if g, ok := f.added[0].Geometry.(*geom.Polygon); !ok || g.SRID() != 4326 || g.NumCoords() != 4 {
		t.Errorf("geometry: %+v", f.added[0].Geometry)
	}
}

// Two million units pass through without being held: at no time are there more than a
// chunk on their way.
func TestAddUnitsStreams(t *testing.T) {
	f := newFake()
	var most int
	var total int64
	f.expect = func(units []catalog.ExpectedUnit) (int64, map[int]error, error) {
		most, total = max(most, len(units)), total+int64(len(units))
		return int64(len(units)), nil, nil
	}
	url, _ := serve(t, f, nil)
	const n = 20_000
	r, w := io.Pipe()
	go func() {
		for i := range n {
			fmt.Fprintf(w, "{\"tile_id\":\"t%d\",\"identity\":{\"version\":\"7\"}}\n", i)
		}
		w.Close()
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/batches/nightly/units", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer write")
	req.Header.Set("Content-Type", ndjson)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var out UnitsAdded
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil || out.Added != n || total != n || most > addChunk {
		t.Errorf("%+v %v: %d units in chunks of %d at most", out, err, total, most)
	}
}

// What was added before a problem stays told: total says from where to go on.
func TestAddUnitsBreaksOff(t *testing.T) {
	f := newFake()
	chunks := 0
	f.expect = func(units []catalog.ExpectedUnit) (int64, map[int]error, error) {
		if chunks++; chunks == 2 {
			return 0, nil, catalog.Errorf(catalog.CodeDatabaseUnavailable, "away").Because(errors.New("password=hunter2"))
		}
		return int64(len(units)), nil, nil
	}
	url, _ := serve(t, f, nil)
	res, answer := call(t, "POST", url+"/v1/batches/nightly/units", "write", ndjson, strings.Repeat(expectedUnit+"\n", 3*addChunk))
	var out UnitsAdded
	if err := json.Unmarshal([]byte(answer), &out); err != nil || res.StatusCode != 200 || out.Total != addChunk || out.Added != addChunk ||
		out.Error == nil || out.Error.Code != "database_unavailable" || strings.Contains(answer, "hunter2") {
		t.Errorf("%d %.500s", res.StatusCode, answer)
	}
}

func TestPendingStreams(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	res, answer := call(t, "GET", url+"/v1/batches/nightly/pending", "read", "", "")
	lines := bytes.Split(bytes.TrimSpace([]byte(answer)), []byte("\n"))
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != ndjson || len(lines) != pendingChunk+2 {
		t.Fatalf("%d %d lines", res.StatusCode, len(lines))
	}
	holdLine(t, "PendingUnit", lines[0])
	holdLine(t, "PendingSummaryLine", lines[len(lines)-1])
	if want := fmt.Sprintf(`{"summary":{"pending":%d}}`, pendingChunk+1); string(lines[len(lines)-1]) != want {
		t.Errorf("last line %s, want %s", lines[len(lines)-1], want)
	}
}

func TestGateAnswers(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	ask := func(body, prefer string) (*http.Response, string) {
		t.Helper()
		return call(t, "POST", url+"/v1/batches/nightly/gate", "write", "application/json", body, "Prefer", prefer)
	}
	res, answer := ask(`{"max_missing_frac":0.002,"max_quarantined":5}`, "respond-async, wait=2")
	if res.StatusCode != 200 || f.waited != 2*time.Second || f.limits.Storage != catalog.GateList || *f.limits.MaxQuarantined != 5 || !strings.Contains(answer, `"state":"passed"`) {
		t.Errorf("%d %s %+v %s", res.StatusCode, answer, f.limits, f.waited)
	}
	ask(`{}`, "wait=900")
	if f.waited != gateWaitMost || f.limits.MaxMissingFrac != 0 || f.limits.MaxQuarantined != nil {
		t.Errorf("%+v %s", f.limits, f.waited)
	}
	f.gate = catalog.GateQueued
	if res, answer = ask(`{"storage":"sample"}`, "return=minimal"); res.StatusCode != 202 || f.waited != gateWait || f.limits.SampleSize != 1000 ||
		!strings.HasSuffix(res.Header.Get("Location"), "/v1/batches/nightly/gate/"+attemptID.String()) || strings.Contains(answer, "figures") {
		t.Errorf("%d %s %+v", res.StatusCode, answer, f.limits)
	}
	f.gate = catalog.GateError
	if _, answer = ask(`{"storage":"none"}`, ""); !strings.Contains(answer, `"error":{"code":"store_unavailable","detail":"away"}`) || strings.Contains(answer, "figures") {
		t.Errorf("%s", answer)
	}
	for body, field := range map[string]string{
		`{"max_missing_frac":1.5}`: "/max_missing_frac", `{"max_missing_frac":-1}`: "/max_missing_frac", `{"max_quarantined":-1}`: "/max_quarantined",
		`{"storage":"some"}`: "/storage", `{"sample_size":0}`: "/sample_size", `{"max_missing":3}`: "/max_missing",
	} {
		res, answer := ask(body, "")
		if p := problemOf(t, res, answer); p.Status != 400 || value(p.Field) != field {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func TestBatchNames(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, name := range []string{"nightly-0804", "scheduled__2026-08-04T02:00:00+00:00", "a=1@b"} {
		if res, answer := call(t, "GET", url+"/v1/batches/"+name, "read", "", ""); res.StatusCode != 200 {
			t.Errorf("%s: %d %s", name, res.StatusCode, answer)
		}
	}
	for _, name := range []string{"-x", "%2e%2e", "a%20b", "a%00b", strings.Repeat("x", 201)} {
		if res, answer := call(t, "GET", url+"/v1/batches/"+name, "read", "", ""); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", name, res.StatusCode, answer)
		}
	}
	res, answer := call(t, "POST", url+"/v1/batches", "write", "application/json", `{"name":"a/b","collection":"landcover"}`)
	if p := problemOf(t, res, answer); p.Status != 400 || value(p.Field) != "/name" {
		t.Errorf("%+v", p)
	}
}

func TestHeartbeatOfOwner(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for body, want := range map[string]int{`{"owner":"w1"}`: 200, `{}`: 400, `{"owner":"w1","attempts":[]}`: 400, `{"owner":""}`: 400} {
		if res, answer := call(t, "POST", url+"/v1/heartbeats", "write", "application/json", body); res.StatusCode != want {
			t.Errorf("%s: %d %s", body, res.StatusCode, answer)
		}
	}
	if f.who != "w1" {
		t.Errorf("leases of %q", f.who)
	}
}
