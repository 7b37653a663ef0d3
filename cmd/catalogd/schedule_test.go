package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What is done by the clock is refused where it cannot be meant, by the flag's name and
// before anything is made.
func TestScheduleSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, value, want string }{
		{"--reconcile-schedule", "daily", "is no schedule"}, {"--reconcile-schedule", "0 0 30 2 *", "never comes"}, {"--scrub-schedule", "@every 1s", "more often"},
		{"--scrub-schedule", "* * *", "@daily, @every 6h, or off"}, {"--scrub-fraction", "0", "more than 0"}, {"--scrub-fraction", "1.5", "1 at most"},
		{"--sweep-every", "100ms", "a second or longer"}, {"--recover-every", "0s", "a second or longer"}, {"--count-every", "0s", "a second or longer"},
		{"--min-age", "-1h", "negative"}, {"--settle", "-1s", "negative"}, {"--trash-keep", "0s", "longer than nothing"},
	} {
		var said bytes.Buffer
		code := run(t.Context(), []string{"serve", "--dev", "--data", t.TempDir() + "/none", c.flag + "=" + c.value}, streams{&said, &said})
		if code != exitUsage || !strings.Contains(said.String(), c.flag) || !strings.Contains(said.String(), c.want) {
			t.Errorf("%s=%s: exit code %d, %s", c.flag, c.value, code, said.String())
		}
	}
}

// A server reconciles and scrubs by its schedules, and its metrics tell when it did.
func TestBySchedule(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start("CATALOGD_RECONCILE_SCHEDULE=@every 10s", "CATALOGD_SCRUB_SCHEDULE=@every 10s", "CATALOGD_SCRUB_FRACTION=1")
	begun := time.Now()
	metric := func(name string) (value float64) {
		m := regexp.MustCompile(`(?m)^` + name + `\{store="default"\} (\S+)$`).FindSubmatch(p.ask("GET", "/metrics", nil).body)
		if m == nil {
			t.Fatalf("there is no metric %s", name)
		}
		value, err := strconv.ParseFloat(string(m[1]), 64)
		ok(t, err)
		return value
	}
	for _, name := range []string{"catalogd_reconcile_last_complete_timestamp_seconds", "catalogd_scrub_last_run_timestamp_seconds"} {
		for metric(name) < float64(begun.Unix()) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("%s does not move", name)
			}
			time.Sleep(time.Second)
		}
	}
	if metric("catalogd_reconcile_last_incomplete") != 0 {
		t.Error("a run is incomplete")
	}
}
