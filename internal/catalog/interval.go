package catalog

import "time"

// Check refuses an interval that ends before it starts, or with an end whose
// year, in UTC, is not in 1..9999, the years that RFC 3339 and PostgreSQL both
// write. An end that is not known is not checked. Ends travel in JSON as
// RFC 3339.
//
// Errors: CodeInvalidRequest at /acquired/start or /acquired/end.
func (i Interval) Check() error {
	if err := checkYear(i.Start, "/acquired/start"); err != nil {
		return err
	}
	if err := checkYear(i.End, "/acquired/end"); err != nil {
		return err
	}
	if i.Start != nil && i.End != nil && i.End.Before(*i.Start) {
		return Errorf(CodeInvalidRequest, "interval ends at %s, before it starts at %s: exchange the two",
			i.End.Format(time.RFC3339Nano), i.Start.Format(time.RFC3339Nano)).At("/acquired/end")
	}
	return nil
}

// Normal is the interval as PostgreSQL keeps it: in UTC, cut to microseconds.
func (i Interval) Normal() Interval { return Interval{Start: normal(i.Start), End: normal(i.End)} }

func normal(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	n := t.UTC().Truncate(time.Microsecond)
	return &n
}

func checkYear(t *time.Time, field string) error {
	if t == nil {
		return nil
	}
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return Errorf(CodeInvalidRequest, "time is in the year %d: send one from 1 to 9999, or leave it out", year).At(field)
	}
	return nil
}
