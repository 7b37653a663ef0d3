package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

func TestData(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	own, stable := url+"/data/"+objectKey, url+"/data/landcover/33UXP/t0001.tif"
	etag := `"` + f.tile.Checksum + `"`

	for _, c := range []struct {
		name, method, url string
		header            []string
		status            int
		body              string
	}{
		{"own name", "GET", own, nil, 200, string(f.object)},
		{"stable name", "GET", stable, nil, 200, string(f.object)},
		{"HEAD", "HEAD", own, nil, 200, ""},
		{"HEAD of a stable name", "HEAD", stable, nil, 200, ""},
		{"range", "GET", own, []string{"Range", "bytes=7-12"}, 206, "raster"},
		{"suffix", "GET", own, []string{"Range", "bytes=-7"}, 206, "raster "},
		{"a range and none", "GET", own, []string{"Range", "bytes=7-12, -0"}, 206, "raster"},
		{"unchanged, and no range", "GET", stable, []string{"If-None-Match", etag, "Range", "bytes=-0"}, 304, ""},
		{"no range of another state", "GET", own, []string{"Range", "bytes=-0", "If-Range", `"x"`}, 200, string(f.object)},
		{"range with the right state", "GET", own, []string{"Range", "bytes=0-5", "If-Range", etag}, 206, "raster"},
		{"range with another state", "GET", own, []string{"Range", "bytes=0-5", "If-Range", `"x"`}, 200, string(f.object)},
		{"unchanged", "GET", stable, []string{"If-None-Match", etag}, 304, ""},
		{"changed", "GET", stable, []string{"If-None-Match", `"x"`}, 200, string(f.object)},
		{"unmodified", "GET", own, []string{"If-Modified-Since", at.Format(http.TimeFormat)}, 304, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := call(t, c.method, c.url, "read", "", "", c.header...)
			if res.StatusCode != c.status || body != c.body {
				t.Errorf("%d with %d bytes, want %d with %d", res.StatusCode, len(body), c.status, len(c.body))
			}
			if res.Header.Get("ETag") != etag {
				t.Errorf("ETag %s, want %s", res.Header.Get("ETag"), etag)
			}
			if c.status == 304 {
				return
			}
			if got := res.Header.Get("Content-Type"); got != f.tile.Facts.MediaType {
				t.Errorf("content type %q", got)
			}
			cache, modified := "private, max-age=31536000, immutable", true
			if c.url == stable {
				cache, modified = "no-cache", false
			}
			if got := res.Header.Get("Cache-Control"); got != cache {
				t.Errorf("Cache-Control %q, want %q", got, cache)
			}
			if got := res.Header.Get("Last-Modified"); (got != "") != modified {
				t.Errorf("Last-Modified %q", got)
			}
			if c.method == "HEAD" && res.ContentLength != f.tile.SizeBytes {
				t.Errorf("length %d, want %d", res.ContentLength, f.tile.SizeBytes)
			}
		})
	}

	for _, outside := range []string{"bytes=99999-", "bytes=-0", "bytes=-00", "bytes= - 0 ", "bytes=-0,-0", "bytes=-0,99999-"} {
		res, body := call(t, "GET", own, "read", "", "", "Range", outside)
		if p := problemOf(t, res, body); p.Code != CodeRangeNotSatisfiable || res.Header.Get("Content-Range") != "bytes */7000" {
			t.Errorf("%s: %+v, Content-Range %q", outside, p, res.Header.Get("Content-Range"))
		}
	}
	if res, _ := call(t, "HEAD", own, "read", "", "", "Range", "bytes=-0"); res.StatusCode != 416 {
		t.Errorf("HEAD of no range: %d", res.StatusCode)
	}
	public, _ := serve(t, f, func(c *Config) { c.Anonymous = AnonymousRead })
	if res, _ := call(t, "GET", public+"/data/"+objectKey, "", "", ""); !strings.HasPrefix(res.Header.Get("Cache-Control"), "public,") {
		t.Errorf("Cache-Control %q where all may read", res.Header.Get("Cache-Control"))
	}
}

// GDAL looks for siblings beside every raster; most names need no query.
func TestDataThatIsNotThere(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for _, name := range []string{
		objectKey + ".aux.xml", objectKey + ".ovr", objectKey + ".msk", "landcover/33UXP/t0001.aux", "landcover/33UXP/t0001.tfw",
		"landcover", "landcover/", "", "../../etc/passwd", "landcover/../x.tif", "landcover/%2e%2e/x.tif", "landcover/.staging/x.tif",
		".staging/x.tif", ".catalogd/store.json", "current/landcover/x.tif", "landcover/a%00.tif", "landcover/a//b.tif", "landcover/%ff.tif",
	} {
		res, body := call(t, "GET", url+"/data/"+name, "read", "", "")
		if p := problemOf(t, res, body); p.Code != CodeNotFound {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if n := f.queries.Load(); n != 0 {
		t.Errorf("%d queries for names that no output can have", n)
	}
	for _, name := range []string{
		"landcover/t0002.tif", "landcover/33UXP/t0001.TIF", "landcover/33UXP/t0001.0d5a5c7e3f80.fedcba987654.tif", "other/33UXP/t0001.tif",
	} {
		res, body := call(t, "GET", url+"/data/"+name, "read", "", "")
		if p := problemOf(t, res, body); p.Code != CodeNotFound {
			t.Errorf("%s: %+v", name, p)
		}
	}

	f.object = nil
	res, body := call(t, "GET", url+"/data/"+objectKey, "read", "", "")
	if p := problemOf(t, res, body); p.Code != CodeNotFound || !strings.Contains(p.Detail, "missing from the store") {
		t.Errorf("a lost object: %+v", p)
	}
	f.object = []byte("cut off")
	res, body = call(t, "GET", url+"/data/"+objectKey, "read", "", "")
	if p := problemOf(t, res, body); p.Code != CodeInternal {
		t.Errorf("an object of another size: %+v", p)
	}
}
