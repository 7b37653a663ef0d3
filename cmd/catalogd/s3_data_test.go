package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway/gatewaytest"
)

// readers is a site whose redirects lead to a line, which sees what readers send.
type readers struct {
	*site
	p    *process
	line *gatewaytest.Line

	mu     sync.Mutex
	tokens []string // that the store was sent
	asked  int
}

func newReaders(t *testing.T, prefix string, settings ...string) *readers {
	t.Helper()
	b := newBucket(t, prefix)
	r := &readers{line: gatewaytest.Between(t, b.gateway)}
	r.line.Before(func(_ http.ResponseWriter, q *http.Request) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked++
		if token := q.Header.Get("Authorization"); token != "" {
			r.tokens = append(r.tokens, token)
		}
		return false
	})
	r.site = newSiteIn(t, b, append([]string{"public_endpoint", r.line.URL}, settings...)...)
	r.p = r.start()
	t.Cleanup(func() { r.discreet(r.p.said()) })
	r.p.collection("landcover", nil)
	return r
}

// elsewhere tells whether the store was asked since the last call, and fails the test if
// it was sent a token.
func (r *readers) elsewhere() bool {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) > 0 {
		r.Errorf("the store was sent %d tokens", len(r.tokens))
	}
	asked := r.asked > 0
	r.asked, r.tokens = 0, nil
	return asked
}

// get asks for data without following redirects, or at the URL of one.
func get(t *testing.T, method, at, token string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, at, nil)
	ok(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	ok(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// dataURL of an object key or a stable name.
func (r *readers) dataURL(name string) string { return r.p.url + "/data/" + name }

// The bytes of outputs in a bucket: each name is answered with a request to the store
// that is signed for the method, and that holds for ranges and conditions.
func TestS3Data(t *testing.T) {
	t.Parallel()
	r := newReaders(t, "some/prefix/")
	raster := rastertest.Raster{Width: 300, Height: 300}.Bytes()
	u := newUnit("landcover", "33UXP/t1", "v1")
	out := r.p.do(u, raster)
	for _, name := range []string{out.Tile.ObjectKey, "landcover/33UXP/t1.tif"} {
		for _, method := range []string{"GET", "HEAD"} {
			first := get(t, method, r.dataURL(name), r.token)
			at := first.Header.Get("Location")
			if first.StatusCode != http.StatusFound || first.Header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(at, r.line.URL+"/"+r.bucket.name+"/") {
				t.Fatalf("%s %s: %d %v", method, name, first.StatusCode, first.Header)
			}
			whole := get(t, method, at, "")
			body := new(bytes.Buffer)
			_, err := body.ReadFrom(whole.Body)
			ok(t, err)
			if whole.StatusCode != 200 || whole.ContentLength != int64(len(raster)) || !strings.HasPrefix(whole.Header.Get("Content-Type"), "image/tiff") || method == "GET" && !bytes.Equal(body.Bytes(), raster) {
				t.Errorf("%s: %d %v", method, whole.StatusCode, whole.Header)
			}
			etag := whole.Header.Get("ETag")
			for _, test := range []struct {
				name, value string
				status      int
			}{
				{"Range", "bytes=10-19", 206}, {"Range", "bytes=-5", 206}, {"Range", fmt.Sprintf("bytes=%d-", len(raster)), 416},
				{"If-None-Match", etag, 304}, {"If-None-Match", `"another"`, 200}, {"If-Match", `"another"`, 412},
			} {
				got := get(t, method, at, "", test.name, test.value)
				part := new(bytes.Buffer)
				_, _ = part.ReadFrom(got.Body)
				if got.StatusCode != test.status {
					t.Errorf("%s with %s: %s: %d, want %d", method, test.name, test.value, got.StatusCode, test.status)
				}
				if test.value == "bytes=10-19" && method == "GET" && !bytes.Equal(part.Bytes(), raster[10:20]) {
					t.Errorf("a range is %q", part)
				}
			}
			other := map[string]string{"GET": "HEAD", "HEAD": "GET"}[method]
			if got := get(t, other, at, ""); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s of what is signed for %s: %d", other, method, got.StatusCode)
			}
			if got := get(t, "PUT", at, ""); got.StatusCode != http.StatusForbidden {
				t.Errorf("PUT of what is signed for %s: %d", method, got.StatusCode)
			}
		}
	}
	// The store is asked for nothing that the catalogue does not have, and nobody
	// without a token is sent there.
	r.elsewhere()
	for name, status := range map[string]int{
		"landcover/33UXP/t2.tif": 404, out.Tile.ObjectKey + ".aux.xml": 404, ".catalogd/store.json": 404, a64(out.Tile.ObjectKey): 404,
	} {
		if got := get(t, "GET", r.dataURL(name), r.token); got.StatusCode != status {
			t.Errorf("%s: %d, want %d", name, got.StatusCode, status)
		}
	}
	if got := get(t, "GET", r.dataURL(out.Tile.ObjectKey), ""); got.StatusCode != http.StatusUnauthorized || got.Header.Get("Location") != "" {
		t.Errorf("without a token: %d", got.StatusCode)
	}
	if r.elsewhere() {
		t.Error("the store was asked")
	}
}

// a64 is a name with another unit in it.
func a64(key string) string { return strings.Replace(key, ".", ".0123456789ab.", 1) }

// With reads=stream no reader is sent elsewhere, and what a directory's readers can do
// works.
func TestS3DataStreamed(t *testing.T) {
	t.Parallel()
	r := newReaders(t, "some/prefix/", "reads", "stream")
	raster := rastertest.Raster{Width: 300, Height: 300}.Bytes()
	out := r.p.do(newUnit("landcover", "t1", "v1"), raster)
	r.elsewhere()
	for _, name := range []string{out.Tile.ObjectKey, "landcover/t1.tif"} {
		for _, method := range []string{"GET", "HEAD"} {
			whole := get(t, method, r.dataURL(name), r.token)
			body := new(bytes.Buffer)
			_, err := body.ReadFrom(whole.Body)
			ok(t, err)
			if whole.StatusCode != 200 || whole.ContentLength != int64(len(raster)) || whole.Header.Get("ETag") != `"`+out.Tile.Checksum+`"` || method == "GET" && !bytes.Equal(body.Bytes(), raster) {
				t.Errorf("%s %s: %d %v", method, name, whole.StatusCode, whole.Header)
			}
			if got := get(t, method, r.dataURL(name), r.token, "Range", "bytes=10-19"); got.StatusCode != 206 || got.ContentLength != 10 {
				t.Errorf("%s of a range: %d", method, got.StatusCode)
			}
			if got := get(t, method, r.dataURL(name), r.token, "If-None-Match", `"`+out.Tile.Checksum+`"`); got.StatusCode != 304 {
				t.Errorf("%s if it is another: %d", method, got.StatusCode)
			}
		}
	}
	r.remove(out.Tile.ObjectKey)
	wantProblem(t, r.p.ask("GET", "/data/"+out.Tile.ObjectKey, nil), "not_found", "")
	if r.elsewhere() {
		t.Error("a reader was sent to the store")
	}
}

// What people read with follows the redirect, and the token stays behind.
func TestS3Readers(t *testing.T) {
	for name, prefix := range map[string]string{"plain": "some/prefix/", "odd": "with space+é%/a&b=c#d/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReaders(t, prefix)
			raster := rastertest.Raster{Width: 300, Height: 300}.Bytes()
			u := newUnit("landcover", "t1", "v1")
			a := r.p.run(u)
			if a.StagingURI != "s3://"+r.bucket.name+"/"+prefix+a.StagingKey {
				t.Errorf("staging_uri is %s", a.StagingURI)
			}
			r.p.stage(a, raster)
			key := r.p.complete(a).Tile.ObjectKey
			r.done(r.p, u, raster)
			if content := r.bucket.content(r.site, key); !bytes.Equal(content, raster) {
				t.Error("the object has other bytes")
			}
			r.elsewhere()
			token := "Authorization: Bearer " + r.token
			into := filepath.Join(reachable(t), "got.tif")
			same := func(what string) {
				t.Helper()
				content, err := os.ReadFile(into)
				if err != nil || !bytes.Equal(content, raster) {
					t.Errorf("%s: %v, %d bytes: %.300q", what, err, len(content), content)
				}
				_ = os.Remove(into)
				if !r.elsewhere() {
					t.Errorf("%s did not get there", what)
				}
			}
			for _, name := range []string{key, "landcover/t1.tif"} {
				at := r.dataURL(name)
				gdal(t, "curl", "-sSfL", "-H", token, "-o", into, at)
				same("curl")
				sh := &shell{site: r.site, p: r.p, url: r.p.url}
				sh.want(sh.run("get", "landcover", "t1", "--data", "-o", into), 0)
				same("catalogd get")
				r.opens(name, at, "GDAL_HTTP_HEADERS="+token)
			}
			// A lost object: it is the store that says so.
			r.remove(key)
			sh := &shell{site: r.site, p: r.p, url: r.p.url}
			sh.want(sh.run("get", "landcover", "t1", "--data", "-o", into), exitError, "404", strings.TrimPrefix(r.line.URL, "http://"), "where the output is")
			if _, err := os.Stat(into); err == nil {
				t.Error("something was written")
			}
			r.p.do(u.again(), raster)
			r.sound(r.p)
		})
	}
}

// opens has GDAL open a name over HTTP, and the object where its store is.
func (r *readers) opens(name, at string, env ...string) {
	r.Helper()
	info := func(source string, env ...string) {
		r.Helper()
		cmd := exec.Command("gdalinfo", "-json", "-checksum", source)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.Output()
		var said struct {
			Size  []int `json:"size"`
			Bands []struct {
				Checksum int `json:"checksum"`
			} `json:"bands"`
		}
		if err != nil || json.Unmarshal(out, &said) != nil || len(said.Size) != 2 || said.Size[0] != 300 || len(said.Bands) != 1 || said.Bands[0].Checksum == 0 {
			r.Errorf("gdalinfo %s: %v\n%s", source, err, out)
		}
	}
	info("/vsicurl/"+at, append(env, "GDAL_DISABLE_READDIR_ON_OPEN=EMPTY_DIR")...)
	// GDAL of before 3.10 sends such headers on to the store, and this one takes them.
	r.mu.Lock()
	r.tokens = nil
	r.mu.Unlock()
	if !r.elsewhere() {
		r.Error("GDAL did not get there")
	}
	// By its location, with credentials.
	var list struct {
		Stores []struct {
			Location string `json:"location"`
		} `json:"stores"`
	}
	ok(r, json.Unmarshal(r.p.ask("GET", "/v1/stores", nil).body, &list))
	if strings.Count(name, ".") > 1 { // an object's own name
		info(list.Stores[0].Location+name, r.bucket.gateway.Env()...)
	}
}

// urllib sends headers along with a redirect, but those that it is told not to.
func TestS3Urllib(t *testing.T) {
	t.Parallel()
	r := newReaders(t, "some/prefix/")
	raster := pixels(1)
	r.p.do(newUnit("landcover", "t1", "v1"), raster)
	r.elsewhere()
	const script = `
import hashlib, sys, urllib.request
request = urllib.request.Request(sys.argv[1])
request.add_unredirected_header("Authorization", "Bearer " + sys.argv[2])
print("sha256:" + hashlib.sha256(urllib.request.urlopen(request).read()).hexdigest())
`
	said := gdal(t, "python3", "-c", script, r.dataURL("landcover/t1.tif"), r.token)
	if strings.TrimSpace(said) != checksum(raster) || !r.elsewhere() {
		t.Errorf("urllib: %s", said)
	}
}
