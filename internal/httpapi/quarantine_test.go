package httpapi

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// A failure is told what becomes of its unit, with the pause only where there is one.
func TestFail(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	path := url + "/v1/attempts/" + attemptID.String() + "/fail"
	for body, want := range map[string]string{
		`{"http_status":503}`:                          `"next":"retry","retry_after":90,"class":"transient","reason":"http_503","tries":2,"spent":true`,
		`{"exception":"builtins.ValueError"}`:          `"next":"quarantined","quarantined_as":"deterministic","class":"deterministic","reason":"ValueError"`,
		`{"reason":"no_band","class":"deterministic"}`: `"next":"quarantined"`,
		`{"class":"poison","reason":"x"}`:              `"/class"`,
		`{"http_status":99}`:                           `"/http_status"`,
		`{"http_status":503,"until":"tomorrow"}`:       `"/until"`,
	} {
		if _, got := call(t, "POST", path, "write", "application/json", body); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// The list goes on after the last unit of its page, until there is no more.
func TestQuarantinePages(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for query, want := range map[string]struct {
		units  int
		next   bool
		filter catalog.QuarantineFilter
		after  uuid.UUID
	}{
		"":         {units: 7},
		"?limit=7": {units: 7},
		"?limit=6": {units: 6, next: true},
		"?collection=dem&class=transient&reason=http_*&after=" + unitKey.String(): {
			units: 7, filter: catalog.QuarantineFilter{Collection: "dem", Class: catalog.ClassTransient, Reason: "http_*"}, after: unitKey,
		},
	} {
		res, body := call(t, "GET", url+"/v1/quarantine"+query, "read", "", "")
		var got struct {
			Units []json.RawMessage
			Next  *uuid.UUID
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		if len(got.Units) != want.units || (got.Next != nil) != want.next || !reflect.DeepEqual(f.filter, want.filter) || f.after != want.after {
			t.Errorf("%q: %d units, next %v, asked for %+v after %s; want %+v", query, len(got.Units), got.Next, f.filter, f.after, want)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?class=poison", "?after=t0001", "?reason="} {
		if res, body := call(t, "GET", url+"/v1/quarantine"+query, "read", "", ""); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", query, res.StatusCode, body)
		}
	}
}

// Nothing is released that nobody picked, nor without a reason.
func TestRelease(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for _, body := range []string{`{"why":"x"}`, `{"units":[],"why":"x"}`, `{"collection":"","why":"x"}`, `{"collection":"dem"}`, `{"collection":"dem","why":""}`} {
		if res, got := call(t, "POST", url+"/v1/quarantine:release", "admin", "application/json", body); res.StatusCode != 400 || f.who != "" {
			t.Errorf("%s: %d %s", body, res.StatusCode, got)
		}
	}
	res, got := call(t, "POST", url+"/v1/quarantine:release", "admin", "application/json", `{"units":["`+unitKey.String()+`"],"why":"mended"}`)
	if res.StatusCode != 200 || got != "{\"released\":3}\n" || f.who != "the-admin" || !reflect.DeepEqual(f.filter, catalog.QuarantineFilter{Units: []uuid.UUID{unitKey}}) {
		t.Errorf("%d %s by %s of %+v", res.StatusCode, got, f.who, f.filter)
	}
}

// A begin at a quarantined unit is told why.
func TestBeginOfQuarantined(t *testing.T) {
	f := newFake()
	f.decide = func() (upsert.Decision, error) {
		return upsert.Decision{Verdict: upsert.VerdictQuarantined, UnitKey: unitKey, Class: catalog.ClassDeterministic, Reason: "ValueError", Message: "no band 3"}, nil
	}
	url, _ := serve(t, f, nil)
	_, got := call(t, "POST", url+"/v1/attempts", "write", "application/json", beginBody)
	if want := `{"verdict":"quarantined","class":"deterministic","message":"no band 3","reason":"ValueError","unit_key":"` + unitKey.String() + "\"}\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A collection's policy is the default where nothing else is said.
func TestRetryPolicy(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for body, want := range map[string]string{
		`{"id":"dem"}`: `"max_retries":3,"media_type":"image/tiff; application=geotiff","order_by":"version","outage_frac":0.05,"publish":"on_register","retry_base_seconds":30,"retry_cap_seconds":3600`,
		`{"id":"dem","max_retries":0,"retry_base_seconds":0.5,"max_expiries":2,"failure_rules":[{"reason":"exit_*","class":"deterministic"}]}`: `"failure_rules":[{"class":"deterministic","reason":"exit_*"}]`,
		`{"id":"dem","max_retries":-1}`:                             `"/max_retries"`,
		`{"id":"dem","retry_cap_seconds":0}`:                        `"/retry_cap_seconds"`,
		`{"id":"dem","failure_rules":[{"reason":"x","class":"y"}]}`: `"/failure_rules/0/class"`,
		`{"id":"dem","failure_rules":[{"class":"transient"}]}`:      `"/failure_rules/0/reason"`,
	} {
		if _, got := call(t, "POST", url+"/v1/collections", "admin", "application/json", body); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
