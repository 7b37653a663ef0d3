package probe

import (
	"strings"
	"time"

	"catalogd/internal/catalog"
)

// Tags that say when an image was taken, in order of preference. TIFFTAG_DATETIME comes
// last: it is the time of the image by the TIFF standard, and that of the file by habit.
var (
	startTags   = []string{"ACQUISITION_START", "ACQUISITION_START_DATE", "ACQUISITION_START_DATETIME", "ACQUISITION_DATE_START"}
	endTags     = []string{"ACQUISITION_END", "ACQUISITION_END_DATE", "ACQUISITION_END_DATETIME", "ACQUISITION_DATE_END"}
	instantTags = []string{"ACQUISITION_DATETIME", "ACQUISITIONDATETIME", "ACQUISITION_DATE", "TIFFTAG_DATETIME"}
)

// acquired reads the span of acquisition from tags. Times without a zone are UTC; a
// date alone is its whole day. What does not parse, or ends before it starts, is not
// there.
func acquired(tags map[string]string) catalog.Interval {
	upper := make(map[string]string, len(tags))
	for k, v := range tags {
		upper[strings.ToUpper(k)] = v
	}
	first := func(names []string) (from, to time.Time, ok bool) {
		for _, name := range names {
			if from, to, ok = parseTime(upper[name]); ok {
				return from, to, true
			}
		}
		return from, to, false
	}
	start, _, haveStart := first(startTags)
	_, end, haveEnd := first(endTags)
	if haveStart && haveEnd && !end.Before(start) {
		return catalog.Interval{Start: &start, End: &end}
	}
	if from, to, ok := first(instantTags); ok {
		return catalog.Interval{Start: &from, End: &to}
	}
	return catalog.Interval{}
}

// parseTime reads TIFF's form (2022:01:17 10:43:43) and the usual ones of ISO 8601.
func parseTime(s string) (from, to time.Time, ok bool) {
	s = strings.TrimSpace(s)
	for _, layout := range []string{
		"2006:01:02 15:04:05", time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999",
		"2006-01-02T15:04:05.999999999Z07", "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05.999999999Z07:00", "20060102T150405Z", "20060102T150405",
	} {
		if t, err := time.Parse(layout, s); err == nil && sane(t) {
			return t.UTC(), t.UTC(), true
		}
	}
	for _, layout := range []string{"2006-01-02", "2006:01:02", "20060102"} {
		if t, err := time.Parse(layout, s); err == nil && sane(t) {
			return t, t.Add(24*time.Hour - time.Second), true
		}
	}
	return from, to, false
}

// sane leaves out 0000:00:00 and the like, and what JSON cannot hold. The year is that
// of UTC, which is the one that goes out: a zone can carry 9999 over into 10000.
func sane(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1800 && year <= 9999
}
