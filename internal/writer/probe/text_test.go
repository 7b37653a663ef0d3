package probe

import (
	"encoding/json"
	"testing"
	"time"
)

func TestAcquired(t *testing.T) {
	for _, c := range []struct {
		tags map[string]string
		want string
	}{
		{nil, "/"},
		{map[string]string{"TIFFTAG_DATETIME": "2022:01:17 10:43:43"}, "2022-01-17T10:43:43Z/2022-01-17T10:43:43Z"},
		{map[string]string{"TIFFTAG_DATETIME": "0000:00:00 00:00:00"}, "/"},
		{map[string]string{"TIFFTAG_DATETIME": "yesterday"}, "/"},
		{map[string]string{"TIFFTAG_DATETIME": "2022:01:17 10:43:43", "ACQUISITION_DATETIME": "2022-01-16T08:00:00+02:00"}, "2022-01-16T06:00:00Z/2022-01-16T06:00:00Z"},
		{map[string]string{"acquisition_date": "2022-01-16"}, "2022-01-16T00:00:00Z/2022-01-16T23:59:59Z"},
		{map[string]string{"ACQUISITION_START": "2022-01-16T01:00:00Z", "ACQUISITION_END": "2022-01-16T02:00:00Z"}, "2022-01-16T01:00:00Z/2022-01-16T02:00:00Z"},
		{map[string]string{"ACQUISITION_START": "2022-01-16T03:00:00Z", "ACQUISITION_END": "2022-01-16T02:00:00Z"}, "/"},
		{map[string]string{"ACQUISITION_START_DATE": "2022-01-01", "ACQUISITION_END_DATE": "2022-01-31"}, "2022-01-01T00:00:00Z/2022-01-31T23:59:59Z"},
		// ⚗ A zone carries these over the ends of what JSON can hold, or we take, in UTC.
		{map[string]string{"ACQUISITION_DATE": "9999-12-31T23:59:59-23:59"}, "/"},
		{map[string]string{"ACQUISITION_DATE": "9999-12-31T23:59-01:00"}, "/"},
		{map[string]string{"ACQUISITION_DATE": "9999-12-31 23:59:59.5-01:00"}, "/"},
		{map[string]string{"ACQUISITION_START": "2022-01-16T01:00:00Z", "ACQUISITION_END": "9999-12-31T23:59:59-23:59"}, "/"},
		{map[string]string{"ACQUISITION_DATE": "1800-01-01T00:00:00+01:00"}, "/"},
		{map[string]string{"ACQUISITION_DATE": "9999-12-31"}, "9999-12-31T00:00:00Z/9999-12-31T23:59:59Z"},
	} {
		got := acquired(c.tags)
		// What JSON cannot hold would cost the child its answer.
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("%v: %v", c.tags, err)
		}
		text := func(t *time.Time) string {
			if t == nil {
				return ""
			}
			return t.Format(time.RFC3339)
		}
		if s := text(got.Start) + "/" + text(got.End); s != c.want {
			t.Errorf("%v: %s, want %s", c.tags, s, c.want)
		}
	}
}
