package s3

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

// A page that the server emptied, or that does not say where the listing goes on, is an
// error, and not the listing's end.
func TestListingPageEmptied(t *testing.T) {
	s, l, _ := through(t, func(c *Config) { c.pageSize = 2 })
	for i := range 5 {
		storagetest.Put(t, s, fmt.Sprint("a/", i), "")
	}
	same(t, len(storagetest.Keys(t, s, "")), 5)
	for name, left := range map[string]*regexp.Regexp{
		"contents": regexp.MustCompile(`(?s)<Contents>.*</Contents>`),
		"token":    regexp.MustCompile(`(?s)<NextContinuationToken>.*</NextContinuationToken>`),
	} {
		for page := 1; page <= 2; page++ { // the third is the last
			seen := 0
			empty := func(resp *http.Response) error {
				if !resp.Request.URL.Query().Has("list-type") {
					return nil
				}
				if seen++; seen != page {
					return nil
				}
				body, err := io.ReadAll(resp.Body)
				emptied := left.ReplaceAll(body, nil)
				if err != nil || bytes.Equal(emptied, body) || !bytes.Contains(emptied, []byte("<IsTruncated>true<")) {
					t.Errorf("%v: %s", err, body)
				}
				resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(emptied)), int64(len(emptied))
				resp.Header.Set("Content-Length", fmt.Sprint(len(emptied)))
				return nil
			}
			l.After(empty)
			var last error
			n := 0
			for _, last = range s.List(t.Context(), storage.Range{}) {
				n++
			}
			if last == nil || n > 2*page {
				t.Errorf("%s of page %d: %d objects and errors, the last %v", name, page, n, last)
			}
			is(t, last, ErrNotS3, "goes on")
		}
	}
}

// A range costs what it holds: its listing begins with it, and ends where it ends.
func TestListingRangeCost(t *testing.T) {
	s, l, _ := through(t, func(c *Config) { c.pageSize = 2 })
	for i := range 40 {
		storagetest.Put(t, s, fmt.Sprintf("a/%02d.tif", i), "")
	}
	for _, test := range []struct {
		within   storage.Range
		want     string
		requests int64
	}{
		{storage.Range{From: "a/20.tif", To: "a/22.tif"}, "a/20.tif a/21.tif", 2},
		{storage.Range{Prefix: "a/", From: "a/20.tif", To: "a/21"}, "a/20.tif", 1},
		{storage.Range{From: "a/38.tif"}, "a/38.tif a/39.tif", 1},
		{storage.Range{To: "a/01.tif"}, "a/00.tif", 2}, // beside the sentinel
		{storage.Range{From: "a/40.tif"}, "", 1},
	} {
		before := l.Count.Load()
		var keys []string
		for o, err := range s.List(t.Context(), test.within) {
			ok(t, err)
			keys = append(keys, o.Key)
		}
		same(t, strings.Join(keys, " "), test.want)
		if got := l.Count.Load() - before; got > test.requests {
			t.Errorf("%+v: %d requests, expected %d", test.within, got, test.requests)
		}
	}
}
