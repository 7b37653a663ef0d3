package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

func beginWith(identity string) string {
	return fmt.Sprintf(`{"collection":"landcover","tile_id":"t0001","owner":"w1","request_id":"r1","identity":%s}`, identity)
}

// ⚗ The domain gets the identity as it was sent: libraries on the way would
// drop duplicate keys and round numbers.
func TestIdentityPassesUntouched(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for _, identity := range []string{
		`{"version":"1"}`,
		`{ "version" : "1",` + "\n\t" + `"a": 10.0, "b": 1e-07, "c": 9007199254740992, "d": "\u00e9é😀", "z": {"y": [1.10, null, true]} }`,
		`{"version":"1","identity":{"version":"2"}}`,
	} {
		for _, path := range []string{"/v1/attempts", "/v1/outputs"} {
			body := beginWith(identity)
			if path == "/v1/outputs" {
				body = strings.TrimSuffix(body, "}") + `,"staged":"a.tif"}`
			}
			res, answer := call(t, "POST", url+path, "write", "application/json", body)
			if res.StatusCode != 200 {
				t.Fatalf("%s: %d %s", identity, res.StatusCode, answer)
			}
			if got := string(f.begun.Unit.Identity); got != identity {
				t.Errorf("%s gave the domain %s, want %s", path, got, identity)
			}
		}
	}
}

func TestMalformedBodies(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, c := range []struct {
		name, body, code, field, says string
	}{
		{"duplicate key", beginWith(`{"version":"1","a":1,"a":1}`), "invalid_identity", "/identity/a", "twice"},
		{"duplicate key within", beginWith(`{"version":"1","p":{"k":1,"k":2}}`), "invalid_identity", "/identity/p/k", "twice"},
		{"number out of range", beginWith(`{"version":"1","n":1e400}`), "invalid_identity", "/identity/n", "text"},
		{"integer that libraries round", beginWith(`{"version":"1","n":9007199254740993}`), "invalid_identity", "/identity/n", "2^53"},
		{"lone surrogate", beginWith(`{"version":"1","s":"\ud83d"}`), "invalid_identity", "/identity/s", "surrogate"},
		{"NUL", beginWith(`{"version":"1","s":"a\u0000b"}`), "invalid_identity", "/identity/s", "NUL"},
		{"NaN", beginWith(`{"version":"1","n":NaN}`), "invalid_identity", "/identity/n", "NaN"},
		{"not UTF-8", beginWith("{\"version\":\"1\",\"s\":\"\xff\"}"), "invalid_identity", "/identity/s", "UTF-8"},
		{"no version", beginWith(`{}`), "invalid_identity", "/identity/version", "version"},
		{"no object", beginWith(`[1]`), "invalid_identity", "/identity", "object"},
		{"cut off", `{"identity":{"version":"1"`, "invalid_identity", "/identity", "end"},
		{"identity twice", `{"identity":{"version":"1"},"identity":{"version":"2"}}`, "invalid_request", "/identity", "twice"},
		{"identity in capitals", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"IDENTITY":{"version":"2"},`, 1), "invalid_request", "/IDENTITY", `"IDENTITY" is unsupported`},
		{"no identity", `{"collection":"landcover","tile_id":"t","owner":"w","request_id":"r"}`, "invalid_request", "/identity", "missing"},
		{"a member of its own", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"tileid":"x",`, 1), "invalid_request", "/tileid", `"tileid" is unsupported`},
		{"wrong type", strings.Replace(beginWith(`{"version":"1"}`), `"w1"`, `7`, 1), "invalid_request", "/owner", "string"},
		{"a point in a whole number", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"try":1.0,`, 1), "invalid_request", "/try", "without point"},
		{"an exponent in one", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"try":1e2,`, 1), "invalid_request", "/try", "without point or exponent"},
		{"NUL elsewhere", strings.Replace(beginWith(`{"version":"1"}`), `"w1"`, `"w\u0000"`, 1), "invalid_request", "", "NUL"},
		{"surrogate elsewhere", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"properties":{"a":"\udc00"},`, 1), "invalid_request", "", "surrogate"},
		{"duplicate key in properties", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"properties":{"a":1,"a":2},`, 1), "invalid_request", "/properties/a", "twice"},
		{"not a time", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"acquired":{"start":"yesterday"},`, 1), "invalid_request", "/acquired/start", "RFC 3339"},
		{"deep", strings.Replace(beginWith(`{"version":"1"}`), `{`, `{"properties":`+strings.Repeat(`{"a":`, 100)+`1`+strings.Repeat(`}`, 100)+`,`, 1), "invalid_request", "", "deeper"},
		{"nothing", ``, "invalid_request", "", "JSON"},
		{"two values", beginWith(`{"version":"1"}`) + `{}`, "invalid_request", "", "more follows"},
		{"no JSON", `collection=landcover`, "invalid_request", "", "not JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := call(t, "POST", url+"/v1/attempts", "write", "application/json", c.body)
			p := problemOf(t, res, body)
			if string(p.Code) != c.code || c.field != "" && value(p.Field) != c.field || !strings.Contains(p.Detail, c.says) {
				t.Errorf("%s at %q: %s; want %s at %q, saying %q", p.Code, value(p.Field), p.Detail, c.code, c.field, c.says)
			}
		})
	}
}

func TestMalformedParameters(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, c := range []struct{ method, path, code, field string }{
		{"GET", "/v1/units/nonsense", "invalid_request", "unit_key"},
		{"GET", "/v1/units/%7B" + unitKey.String() + "%7D", "invalid_request", "unit_key"},
		{"GET", "/v1/slots/current", "invalid_request", "collection"},
		{"GET", "/v1/slots/current?collection=landcover", "invalid_request", "tile_id"},
		{"GET", "/v1/slots/current?collection=UPPER&tile_id=a", "invalid_collection", "collection"},
		{"GET", "/v1/slots/history?collection=landcover&tile_id=../a", "invalid_tile_id", "tile_id"},
		{"GET", "/v1/collections/UPPER", "invalid_collection", "/id"},
		{"GET", "/v1/collections/%00", "invalid_collection", "/id"},
		{"DELETE", "/v1/collections/landcover", "invalid_request", "why"},
		{"DELETE", "/v1/collections/landcover?why=", "invalid_request", "why"},
		{"DELETE", "/v1/collections/landcover?why=a%00b", "invalid_request", "why"},
		{"GET", "/v1/reconcile/1/findings?prefix=%ff", "invalid_request", "prefix"},
		{"DELETE", "/v1/tokens/a%2Fb", "invalid_request", "name"},
		{"POST", "/v1/units:check?verify=heads", "invalid_request", "verify"},
	} {
		res, body := call(t, c.method, url+c.path, "admin", "", "")
		p := problemOf(t, res, body)
		if string(p.Code) != c.code || value(p.Field) != c.field {
			t.Errorf("%s %s: %s at %q (%s), want %s at %q", c.method, c.path, p.Code, value(p.Field), p.Detail, c.code, c.field)
		}
	}
}

func TestOutsideTheContract(t *testing.T) {
	f := newFake()
	url, log := serve(t, f, nil)
	res, body := call(t, "GET", url+"/v2/collections", "", "", "")
	if p := problemOf(t, res, body); p.Code != CodeNotFound {
		t.Errorf("unknown path: %+v", p)
	}
	res, body = call(t, "PATCH", url+"/v1/collections/landcover", "", "", "")
	if p := problemOf(t, res, body); p.Code != CodeMethodNotAllowed || res.Header.Get("Allow") != "GET, PUT, DELETE" {
		t.Errorf("unknown method: %+v, Allow %q", p, res.Header.Get("Allow"))
	}
	res, body = call(t, "POST", url+"/v1/attempts", "write", "application/json", beginBody, "Content-Encoding", "gzip")
	if p := problemOf(t, res, body); p.Code != CodeUnsupportedMediaType {
		t.Errorf("content encoding: %+v", p)
	}

	f.decide = func() (upsert.Decision, error) { panic("hunter2") }
	res, body = call(t, "POST", url+"/v1/attempts", "write", "application/json", beginBody, "X-Request-Id", "job-7.42")
	p := problemOf(t, res, body)
	if p.Code != CodeInternal || p.Instance != "job-7.42" || strings.Contains(body, "hunter2") {
		t.Errorf("panic: %s", body)
	}
	var logged []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "hunter2") {
			logged = append(logged, line)
		}
	}
	if len(logged) != 1 || !strings.Contains(logged[0], `"request":"job-7.42"`) || !strings.Contains(logged[0], `"token":"the-write"`) {
		t.Errorf("the panic is in %d lines of the log: %s", len(logged), logged)
	}
	res, _ = call(t, "GET", url+"/healthz", "", "", "", "X-Request-Id", "no good")
	if id := res.Header.Get("X-Request-Id"); id == "" || id == "no good" {
		t.Errorf("request id %q", id)
	}
}

// What goes in comes out.
func TestBegin(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, func(c *Config) { c.PublicURL = "https://cat.example.org/" })
	body := `{"collection":"landcover","tile_id":"t0001","identity":{"version":"1"},"client_key":"k1","owner":"w1","try":2,
		"request_id":"r1","media_type":"image/tiff; application=geotiff","acquired":{"start":"2026-08-04T10:30:00Z"},"properties":{"cloud":0.25}}`
	_, answer := call(t, "POST", url+"/v1/attempts", "write", "application/json; charset=utf-8", body)
	want := upsert.BeginRequest{
		Unit:  upsert.UnitRef{Collection: "landcover", TileID: "t0001", Identity: json.RawMessage(`{"version":"1"}`), ClientKey: "k1"},
		Owner: "w1", Try: 2, RequestID: "r1", MediaType: catalog.MediaTypeGeoTIFF,
		Given: catalog.Given{Acquired: catalog.Interval{Start: &at, End: &at}, Properties: json.RawMessage(`{"cloud":0.25}`)},
	}
	if got, want := fmt.Sprint(mustJSON(t, f.begun)), fmt.Sprint(mustJSON(t, want)); got != want {
		t.Errorf("the domain was asked %s, want %s", got, want)
	}
	var d Decision
	if err := json.Unmarshal([]byte(answer), &d); err != nil {
		t.Fatal(err)
	}
	if d.Attempt == nil || d.Attempt.UploadUrl != "https://cat.example.org/v1/attempts/"+attemptID.String()+"/output" {
		t.Errorf("answer %s", answer)
	}

	f.decide = func() (upsert.Decision, error) {
		return upsert.Decision{Verdict: upsert.VerdictWait, UnitKey: unitKey, RetryAfter: 1500 * time.Millisecond, Reason: "held by w2"}, nil
	}
	res, answer := call(t, "POST", url+"/v1/attempts", "write", "application/json", beginBody)
	if res.Header.Get("Retry-After") != "2" || !strings.Contains(answer, `"retry_after":1.5`) {
		t.Errorf("wait: Retry-After %q, %s", res.Header.Get("Retry-After"), answer)
	}
	holdToContract(t, contract()["POST /v1/attempts"], res, answer)

	f.decide = func() (upsert.Decision, error) {
		return upsert.Decision{Verdict: upsert.VerdictSkip, UnitKey: unitKey, Tile: &f.tile}, nil
	}
	res, answer = call(t, "POST", url+"/v1/attempts", "write", "application/json", beginBody)
	if res.Header.Get("Retry-After") != "" || !strings.Contains(answer, `"href":"https://cat.example.org/data/`+objectKey+`"`) || !strings.Contains(answer, `"current":true`) {
		t.Errorf("skip: %s", answer)
	}
	holdToContract(t, contract()["POST /v1/attempts"], res, answer)
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestComplete(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	path := url + "/v1/attempts/" + attemptID.String() + "/complete"
	for _, c := range []struct{ contentType, body string }{{"", ""}, {"application/json", ""}, {"application/json", "{}"}} {
		if res, body := call(t, "POST", path, "write", c.contentType, c.body); res.StatusCode != 200 {
			t.Errorf("body %q as %q: %d %s", c.body, c.contentType, res.StatusCode, body)
		}
	}
	sum := strings.Repeat("0f", 32)
	call(t, "POST", path, "write", "application/json", `{"size_bytes":7,"checksum":"sha256:`+sum+`"}`)
	if value(f.given.Size) != 7 || f.given.SHA256 != sum {
		t.Errorf("the domain was given %+v", f.given)
	}
	res, body := call(t, "POST", path, "write", "application/json", `{"checksum":"`+sum+`"}`)
	if p := problemOf(t, res, body); value(p.Field) != "/checksum" {
		t.Errorf("checksum without its algorithm: %+v", p)
	}
}

// A row is told whole, whatever it lacks.
func TestTileWithoutWhatIsOptional(t *testing.T) {
	f := newFake()
	f.tile.Facts.Footprint, f.tile.Facts.CRS, f.tile.Facts.Transform, f.tile.Identity, f.tile.Current = nil, "", [6]float64{}, nil, false
	f.tile.LostSince = &at
	url, _ := serve(t, f, nil)
	res, body := call(t, "GET", url+"/v1/units/"+unitKey.String(), "read", "", "")
	holdToContract(t, contract()["GET /v1/units/{unit_key}"], res, body)
	for _, want := range []string{`"footprint":null`, `"crs":null`, `"transform":null`, `"width":256`, `"acquired_start":null`, `"properties":{}`, `"current":false`, `"lost_since":"2026-08-04T10:30:00Z"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %s", body, want)
		}
	}
}

// An upload is not kept, and one that breaks off is the client's to send again.
func TestUpload(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	path := "/v1/attempts/" + attemptID.String() + "/output"
	const size = 64 << 20
	req, _ := http.NewRequestWithContext(t.Context(), "PUT", url+path, io.LimitReader(zeros{}, size))
	req.Header.Set("Authorization", "Bearer write")
	before := heap()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if after := heap(); after > before+8<<20 {
		t.Errorf("the heap grew by %d KiB", (after-before)>>10)
	}
	if !strings.Contains(string(body), fmt.Sprintf(`"size_bytes":%d`, size)) {
		t.Errorf("%d %s", res.StatusCode, body)
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer write\r\nContent-Length: 100\r\n\r\nshort", path)
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(conn)
	if !strings.Contains(string(answer), "invalid_request") || !strings.Contains(string(answer), "after 5 bytes") {
		t.Errorf("an upload that broke off was answered %s", answer)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTokens(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	get := func(token string) (int, Problem) {
		res, body := call(t, "GET", url+"/v1/collections", token, "", "")
		if res.StatusCode == 200 {
			return 200, Problem{}
		}
		p := problemOf(t, res, body)
		p.Instance = ""
		return res.StatusCode, p
	}
	soon := time.Now().Add(50 * time.Millisecond)
	f.tokens[catalog.HashToken("brief")] = catalog.Token{Name: "brief", Role: catalog.RoleRead, ExpiresAt: &soon}
	f.tokens[catalog.HashToken("dead")] = catalog.Token{Name: "dead", Role: catalog.RoleRead, RevokedAt: &at}

	for range 5 {
		if status, _ := get("brief"); status != 200 {
			t.Fatalf("a valid token gives %d", status)
		}
	}
	if n := f.lookups.Load(); n != 1 {
		t.Errorf("%d look-ups for one token, want 1", n)
	}
	time.Sleep(time.Until(soon))
	_, unknown := get("never-was")
	for _, token := range []string{"brief", "dead", "", " "} {
		status, p := get(token)
		if token == "" {
			continue // says that a token is needed
		}
		if status != 401 || p.Detail != unknown.Detail {
			t.Errorf("token %q: %d %q, want what an unknown one gets: %q", token, status, p.Detail, unknown.Detail)
		}
	}

	// The text is shown once, works, and stops working here at once.
	_, body := call(t, "POST", url+"/v1/tokens", "admin", "application/json", `{"name":"nightly","role":"write"}`)
	var created CreatedToken
	if err := json.Unmarshal([]byte(body), &created); err != nil || !strings.HasPrefix(created.Token, catalog.TokenPrefix) {
		t.Fatalf("created %s", body)
	}
	if status, p := get(created.Token); status != 200 {
		t.Errorf("a new token gives %d %+v", status, p)
	}
	if res, body := call(t, "DELETE", url+"/v1/tokens/nightly", "admin", "", ""); res.StatusCode != 204 {
		t.Errorf("revoke: %d %s", res.StatusCode, body)
	}
	if status, _ := get(created.Token); status != 401 {
		t.Errorf("a revoked token gives %d", status)
	}
	res, body := call(t, "POST", url+"/v1/tokens", "admin", "application/json", `{"name":"old","role":"read","expires_at":"2001-01-01T00:00:00Z"}`)
	if p := problemOf(t, res, body); value(p.Field) != "/expires_at" {
		t.Errorf("a token that is over before it begins: %+v", p)
	}
	if res, _ := call(t, "GET", url+"/v1/collections", "", "", "", "Authorization", "Basic cmVhZA=="); res.StatusCode != 401 {
		t.Errorf("basic authentication gives %d", res.StatusCode)
	}
	call(t, "POST", url+"/v1/publish", "admin", "application/json", samples["publishVersion"].body)
	if f.who != "the-admin" {
		t.Errorf("publish was told that %q did it", f.who)
	}
}
