package batch

import (
	"slices"
	"testing"

	"catalogd/internal/catalog"
)

// What a batch fails for, by its figures alone.
func TestReasons(t *testing.T) {
	some := int64(5)
	for name, c := range map[string]struct {
		limits catalog.GateLimits
		counts catalog.BatchCounts
		why    []catalog.GateReason
	}{
		"all there":                     {catalog.GateLimits{}, catalog.BatchCounts{Expected: 6000, Done: 6000}, nil},
		"one missing and none may be":   {catalog.GateLimits{}, catalog.BatchCounts{Expected: 6000, Done: 5999, Pending: 1}, []catalog.GateReason{catalog.GateTooManyMissing}},
		"3 of 6,000 at 0.002":           {catalog.GateLimits{MaxMissingFrac: 0.002}, catalog.BatchCounts{Expected: 6000, Done: 5997, Retrying: 3}, nil},
		"12 of 6,000 at 0.002, no more": {catalog.GateLimits{MaxMissingFrac: 0.002}, catalog.BatchCounts{Expected: 6000, Done: 5988, Retrying: 12}, nil},
		"13 of 6,000 at 0.002":          {catalog.GateLimits{MaxMissingFrac: 0.002}, catalog.BatchCounts{Expected: 6000, Done: 5987, Retrying: 13}, []catalog.GateReason{catalog.GateTooManyMissing}},
		"600 of 6,000 at 0.002":         {catalog.GateLimits{MaxMissingFrac: 0.002}, catalog.BatchCounts{Expected: 6000, Done: 5400, Pending: 600}, []catalog.GateReason{catalog.GateTooManyMissing}},
		"quarantined ones are missing":  {catalog.GateLimits{MaxMissingFrac: 0.002}, catalog.BatchCounts{Expected: 6000, Done: 5987, Quarantined: 13}, []catalog.GateReason{catalog.GateTooManyMissing}},
		"as many quarantined as may be": {catalog.GateLimits{MaxMissingFrac: 0.002, MaxQuarantined: &some}, catalog.BatchCounts{Expected: 6000, Done: 5995, Quarantined: 5}, nil},
		"more quarantined than may be":  {catalog.GateLimits{MaxMissingFrac: 0.002, MaxQuarantined: &some}, catalog.BatchCounts{Expected: 6000, Done: 5994, Quarantined: 6}, []catalog.GateReason{catalog.GateTooManyQuarantined}},
		"lost, whatever may be missing": {catalog.GateLimits{MaxMissingFrac: 1}, catalog.BatchCounts{Expected: 6000, Done: 5999, Lost: 1}, []catalog.GateReason{catalog.GateDisagreement}},
		"everything may be missing":     {catalog.GateLimits{MaxMissingFrac: 1}, catalog.BatchCounts{Expected: 6000, Pending: 6000}, nil},
		"nothing is expected":           {catalog.GateLimits{MaxMissingFrac: 1}, catalog.BatchCounts{}, []catalog.GateReason{catalog.GateEmpty}},
		"all at once": {catalog.GateLimits{MaxMissingFrac: 0.001, MaxQuarantined: &some}, catalog.BatchCounts{Expected: 100, Quarantined: 50, Lost: 50},
			[]catalog.GateReason{catalog.GateTooManyMissing, catalog.GateTooManyQuarantined, catalog.GateDisagreement}},
	} {
		f := figures(catalog.GateNone, seen{counts: c.counts})
		if got := reasons(c.limits, f, false); !slices.Equal(got, c.why) {
			t.Errorf("%s: %v, want %v", name, got, c.why)
		}
	}
}
