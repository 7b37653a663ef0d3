package catalog

import (
	"testing"

	"github.com/google/uuid"
)

func TestClassify(t *testing.T) {
	rules := []FailureRule{
		{Reason: "http_404", Class: ClassTransient}, // scenes that come late
		{Reason: "exit_7*", Class: ClassTransient},
		{Reason: "exit_?", Class: ClassDeterministic},
		{Reason: "exit_*", Class: ClassTransient},
		{Reason: "a.b", Class: ClassDeterministic},
	}
	for _, c := range []struct {
		f      Failure
		class  Class
		reason string
	}{
		// What the task says, over all else.
		{Failure{Class: ClassDeterministic, HTTPStatus: 503}, ClassDeterministic, "http_503"},
		{Failure{Class: ClassTransient, Exception: "ValueError"}, ClassTransient, "ValueError"},
		{Failure{Class: ClassDeterministic, Reason: "exit_75"}, ClassDeterministic, "exit_75"},
		// The collection's rules, the first that matches.
		{Failure{HTTPStatus: 404}, ClassTransient, "http_404"},
		{Failure{Reason: "exit_75"}, ClassTransient, "exit_75"},
		{Failure{Reason: "exit_7"}, ClassTransient, "exit_7"},
		{Failure{Reason: "exit_1"}, ClassDeterministic, "exit_1"},
		{Failure{Reason: "exit_12"}, ClassTransient, "exit_12"},
		{Failure{Reason: "a.b"}, ClassDeterministic, "a.b"},
		{Failure{Reason: "aXb"}, ClassTransient, "aXb"},
		// HTTP.
		{Failure{HTTPStatus: 400}, ClassDeterministic, "http_400"},
		{Failure{HTTPStatus: 403}, ClassDeterministic, "http_403"},
		{Failure{HTTPStatus: 408}, ClassTransient, "http_408"},
		{Failure{HTTPStatus: 410}, ClassDeterministic, "http_410"},
		{Failure{HTTPStatus: 425}, ClassTransient, "http_425"},
		{Failure{HTTPStatus: 429}, ClassTransient, "http_429"},
		{Failure{HTTPStatus: 500}, ClassTransient, "http_500"},
		{Failure{HTTPStatus: 599}, ClassTransient, "http_599"},
		{Failure{HTTPStatus: 304}, ClassTransient, "http_304"},
		{Failure{Reason: "http_422"}, ClassDeterministic, "http_422"},
		{Failure{Reason: "http_503"}, ClassTransient, "http_503"},
		{Failure{Reason: "http_"}, ClassTransient, "http_"},
		{Failure{HTTPStatus: 503, Exception: "requests.exceptions.HTTPError"}, ClassTransient, "http_503"},
		{Failure{HTTPStatus: 503, Exception: "ValueError"}, ClassTransient, "http_503"},
		// Exceptions.
		{Failure{Exception: "builtins.ValueError"}, ClassDeterministic, "ValueError"},
		{Failure{Exception: "KeyError"}, ClassDeterministic, "KeyError"},
		{Failure{Reason: "invalid_geometry"}, ClassDeterministic, "invalid_geometry"},
		{Failure{Reason: "missing_band"}, ClassDeterministic, "missing_band"},
		{Failure{Exception: "rasterio.errors.CRSError"}, ClassDeterministic, "rasterio.errors.CRSError"},
		{Failure{Exception: "pyproj.exceptions.CRSError"}, ClassDeterministic, "pyproj.exceptions.CRSError"},
		{Failure{Exception: "mine.InvalidGeometryError"}, ClassDeterministic, "mine.InvalidGeometryError"},
		{Failure{Exception: "mine.MissingBandError"}, ClassDeterministic, "mine.MissingBandError"},
		{Failure{Exception: "shapely.errors.GEOSException"}, ClassDeterministic, "shapely.errors.GEOSException"},
		{Failure{Exception: "json.decoder.JSONDecodeError"}, ClassDeterministic, "json.decoder.JSONDecodeError"},
		{Failure{Exception: "catalogd.PoisonTile"}, ClassDeterministic, "catalogd.PoisonTile"},
		{Failure{Exception: "Geo::CRSError"}, ClassDeterministic, "Geo::CRSError"},
		{Failure{Reason: "ValueError"}, ClassDeterministic, "ValueError"},
		{Failure{Reason: "bad scene", Exception: "ValueError"}, ClassDeterministic, "bad scene"},
		{Failure{Exception: "OSError"}, ClassTransient, "OSError"},
		{Failure{Exception: "FileNotFoundError"}, ClassTransient, "FileNotFoundError"},
		{Failure{Exception: "TimeoutError"}, ClassTransient, "TimeoutError"},
		{Failure{Exception: "ConnectionResetError"}, ClassTransient, "ConnectionResetError"},
		{Failure{Exception: "MemoryError"}, ClassTransient, "MemoryError"},
		{Failure{Exception: "rasterio.errors.RasterioIOError"}, ClassTransient, "rasterio.errors.RasterioIOError"},
		{Failure{Exception: "botocore.exceptions.ClientError"}, ClassTransient, "botocore.exceptions.ClientError"},
		{Failure{Exception: "ValueError."}, ClassTransient, "ValueError."},
		// The probe's refusals; what is staged otherwise may pass.
		{Failure{Reason: "truncated"}, ClassDeterministic, "truncated"},
		{Failure{Reason: "no_crs"}, ClassDeterministic, "no_crs"},
		{Failure{Reason: "staged_missing"}, ClassTransient, "staged_missing"},
		{Failure{Reason: "checksum_mismatch"}, ClassTransient, "checksum_mismatch"},
		// What nobody knows.
		{Failure{Reason: "signal_KILL"}, ClassTransient, "signal_KILL"},
		{Failure{}, ClassTransient, ""},
	} {
		if got := Classify(c.f, rules); got != c.class || c.f.Named().Reason != c.reason {
			t.Errorf("%+v: %s %q, want %s %q", c.f, got, c.f.Named().Reason, c.class, c.reason)
		}
	}
}

func TestFailureRule(t *testing.T) {
	for _, c := range []struct {
		rule, reason string
		want         bool
	}{
		{"*", "", true}, {"*", "x\ny", true}, {"http_5??", "http_503", true}, {"http_5??", "http_50", false},
		{"*Error", "a.ValueError", true}, {"*Error", "Errors", false}, {"[a]+", "[a]+", true}, {"[a]+", "a", false},
		{`a\*`, `a\b`, true}, {"é?", "éü", true}, {"exit_1", "exit_12", false},
	} {
		if got := (FailureRule{Reason: c.rule}).Matches(c.reason); got != c.want {
			t.Errorf("%q of %q: %v", c.rule, c.reason, got)
		}
	}
}

func TestQuarantineFilter(t *testing.T) {
	one, two := uuid.New(), uuid.New()
	for want, f := range map[string]QuarantineFilter{
		"":                               {},
		"unit " + one.String():           {Units: []uuid.UUID{one}},
		"collection dem, 2 units":        {Collection: "dem", Units: []uuid.UUID{one, two}},
		"class transient, reason http_*": {Class: ClassTransient, Reason: "http_*"},
	} {
		if got := f.String(); got != want || f.Picks() != (want != "") {
			t.Errorf("%q, %v; want %q", got, f.Picks(), want)
		}
	}
}
