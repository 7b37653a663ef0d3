package catalog_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"catalogd/internal/catalog"
)

func TestIntervalCheck(t *testing.T) {
	for _, test := range []struct{ name, json, field string }{
		{"unknown", `{}`, ""},
		{"instant", `{"start":"2026-08-04T10:15:30Z","end":"2026-08-04T10:15:30Z"}`, ""},
		{"one instant in two zones", `{"start":"2026-08-04T12:15:30+02:00","end":"2026-08-04T10:15:30Z"}`, ""},
		{"span", `{"start":"2026-08-01T00:00:00Z","end":"2026-08-31T23:59:59.999999Z"}`, ""},
		{"only the start known", `{"start":"2026-08-01T00:00:00Z"}`, ""},
		{"only the end known", `{"end":"2026-08-01T00:00:00Z"}`, ""},
		{"first and last", `{"start":"0001-01-01T00:00:00Z","end":"9999-12-31T23:59:59Z"}`, ""},
		{"reversed", `{"start":"2026-08-04T10:15:31Z","end":"2026-08-04T10:15:30Z"}`, "/acquired/end"},
		{"reversed by the zone", `{"start":"2026-08-04T10:00:00Z","end":"2026-08-04T11:00:00+02:00"}`, "/acquired/end"},
		{"year 0", `{"start":"0000-12-31T23:59:59Z"}`, "/acquired/start"},
		{"year 0 in UTC", `{"start":"0001-01-01T00:00:00+01:00"}`, "/acquired/start"},
		{"year 10000 in UTC", `{"end":"9999-12-31T23:59:59-01:00"}`, "/acquired/end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var interval catalog.Interval
			if err := json.Unmarshal([]byte(test.json), &interval); err != nil {
				t.Fatal(err)
			}
			err := interval.Check()
			if test.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *catalog.Error
			if !errors.As(err, &e) || e.Code != catalog.CodeInvalidRequest || e.Field != test.field {
				t.Errorf("got %v, want %s at %s", err, catalog.CodeInvalidRequest, test.field)
			}
		})
	}
}

func TestIntervalJSON(t *testing.T) {
	start := time.Date(2026, 8, 4, 10, 15, 30, 123456000, time.UTC)
	out, err := json.Marshal(catalog.Interval{Start: &start})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(out), `{"start":"2026-08-04T10:15:30.123456Z"}`; got != want {
		t.Errorf("marshalled %s, want %s", got, want)
	}
	for _, text := range []string{`"2026-08-04"`, `"2026-08-04T10:15:30"`, `"2026-02-30T00:00:00Z"`, `1754302530`} {
		var interval catalog.Interval
		if err := json.Unmarshal([]byte(`{"start":`+text+`}`), &interval); err == nil {
			t.Errorf("%s is taken for RFC 3339", text)
		}
	}
}
