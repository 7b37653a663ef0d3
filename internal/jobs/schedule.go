package jobs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/riverqueue/river"
	"github.com/robfig/cron/v3"
)

// Schedule says when something is done next; nil for never.
//
// One by the clock, as @daily, is that of River's leader whichever server that is. An
// interval is counted from the moment a server became leader, so that of a day would never
// end where servers are replaced every day.
type Schedule = river.PeriodicSchedule

// shortest is how often something on a schedule may come: what is more often is a mistyped
// one.
const shortest = 10 * time.Second

// ParseSchedule reads minute, hour, day, month and day of the week, as cron does, or
// @daily, @every 6h and the like; "" and off are never. Times are UTC, whatever the zone
// of the server that is leader; CRON_TZ=ZONE before them names another.
func ParseSchedule(text string) (Schedule, error) {
	if text = strings.TrimSpace(text); text == "" || text == "off" {
		return nil, nil
	}
	parsed, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no schedule (%w): give five fields as cron does (\"30 2 * * *\"), @daily, @every 6h, or off", text, err)
	}
	s := inUTC{parsed}
	first := s.Next(time.Now())
	switch {
	case first.IsZero():
		return nil, fmt.Errorf("%q never comes", text)
	case s.Next(first).Sub(first) < shortest:
		return nil, fmt.Errorf("%q comes more often than every %v", text, shortest)
	}
	return s, nil
}

type inUTC struct{ cron.Schedule }

func (s inUTC) Next(t time.Time) time.Time { return s.Schedule.Next(t.UTC()) }

// Every is a schedule of an interval.
func Every(d time.Duration) Schedule { return river.PeriodicInterval(d) }

var errFraction = errors.New("is a share of a store's outputs: more than 0, and 1 at most")

// CheckFraction refuses what is no share of a store's outputs.
func CheckFraction(fraction float64) error {
	if fraction > 0 && fraction <= 1 {
		return nil
	}
	return errFraction
}
