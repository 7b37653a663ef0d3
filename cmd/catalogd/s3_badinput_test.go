package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"catalogd/internal/s3gateway/gatewaytest"
)

// What is wrong with a store on S3 is told when the server starts, in one line that
// names it.
func TestS3BadStores(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	b := s.bucket
	root := b.env()

	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><html><body><p>It works!</body></html>")
	}))
	t.Cleanup(web.Close)
	nothing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nothing.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	closed.Close()

	stranger := b.user(t)
	reader := newBucket(t, "some/prefix/")
	readOnly := reader.user(t)
	readOnly.may(t, "s3:GetObject", "s3:ListBucket")

	// Another catalogd at the endpoint.
	other := newSite(t).start()

	good := b.url()
	settings := func(pairs ...string) string { return b.url(pairs...) }
	missing := *b
	missing.name += "x"
	tests := []struct {
		name   string
		stores []string
		env    []string
		words  []string
	}{
		{"missing bucket", []string{missing.url()}, root, []string{"there is no bucket " + missing.name}},
		{"wrong region", []string{settings("region", "eu-west-1")}, root, []string{"region eu-west-1"}},
		{"denied", []string{good}, stranger.env, []string{"s3:GetObject", b.name + "/some/prefix/.catalogd/store.json", "may not"}},
		{"read-only", []string{reader.url()}, readOnly.env, []string{"s3:PutObject", reader.name + "/some/prefix/.catalogd/probe/", "may not"}},
		{"wrong secret", []string{good}, credentials(b.gateway.AccessKey, "secret-wrong"), []string{"credentials are not accepted"}},
		{"unknown key", []string{good}, credentials("nobody", "secret-wrong"), []string{"credentials are not accepted"}},
		{"no credentials", []string{good}, credentials("", ""), []string{"there are no credentials", "AWS_ACCESS_KEY_ID"}},
		{"unknown profile", []string{settings("profile", "nobody")}, credentials("", ""), []string{"nobody"}},

		{"catalogd itself", []string{settings("endpoint", other.url)}, root, []string{"does not answer as an S3 server"}},
		{"a web server", []string{settings("endpoint", web.URL)}, root, []string{"does not answer as an S3 server"}},
		{"an empty web server", []string{settings("endpoint", nothing.URL)}, root, []string{"does not answer as an S3 server"}},
		{"closed port", []string{settings("endpoint", "http://"+closed.Addr().String())}, root, []string{"connection refused", closed.Addr().String()}},
		{"https to http", []string{settings("endpoint", "https"+strings.TrimPrefix(b.gateway.Endpoint, "http"))}, root, []string{"http"}},
		{"http to https", []string{settings("endpoint", "http"+strings.TrimPrefix(secure.URL, "https"))}, root, []string{"does not answer as an S3 server"}},
		{"unknown certificate", []string{settings("endpoint", secure.URL)}, root, []string{"certificate"}},
		{"no CA file", []string{settings("ca_file", "/nowhere/ca.pem")}, root, []string{"CA file", "/nowhere/ca.pem"}},
		{"no such host", []string{settings("endpoint", "http://s3.invalid")}, root, []string{"s3.invalid"}},

		{"unknown setting", []string{settings("colour", "red")}, root, []string{"colour", "endpoint"}},
		{"bad path_style", []string{settings("path_style", "maybe")}, root, []string{"path_style", "maybe"}},
		{"bad insecure_tls", []string{settings("insecure_tls", "maybe")}, root, []string{"insecure_tls", "maybe"}},
		{"bad reads", []string{settings("reads", "never")}, root, []string{"reads", "never"}},
		{"bad endpoint", []string{settings("endpoint", "localhost:9000")}, root, []string{"endpoint", "https://HOST:PORT"}},
		{"no bucket", []string{"s3://"}, root, []string{"s3://bucket/prefix"}},
		{"no bucket, a prefix", []string{"s3:///prefix"}, root, []string{"s3://bucket/prefix"}},
		{"bad prefix", []string{"s3://" + b.name + "/a/../b"}, root, []string{".."}},
		{"a tree of catalogd's", []string{"s3://" + b.name + "/.staging/x"}, root, []string{".staging"}},
		{"credentials in the URL", []string{"s3://key:secret-pass@" + b.name}, root, []string{"s3://bucket/prefix"}},
		{"another scheme", []string{"gs://" + b.name}, root, []string{"s3://"}},
		{"no store", []string{}, root, []string{"--store"}},

		{"twice", []string{good, "more=" + good}, root, []string{"overlap", "default", "more"}},
		{"one within the other", []string{good, "more=" + strings.Replace(good, "some/prefix", "some/prefix/inner", 1)}, root, []string{"overlap"}},
		{"the bucket and a prefix", []string{good, "more=" + strings.Replace(good, "/some/prefix", "", 1)}, root, []string{"overlap"}},
		{"two of one name", []string{"a=" + good, "a=" + reachable(t)}, root, []string{"two stores are called a"}},
		{"two without a name", []string{good, reachable(t)}, root, []string{"two stores are called default"}},
		{"the same, from the environment", []string{good}, append(root, "CATALOGD_STORE_MORE="+good), []string{"overlap", "more"}},
	}
	t.Run("all", func(t *testing.T) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				s := s.within(t)
				s.env = nil
				said := s.refused(test.env, s.serveArgs(test.stores...)...)
				t.Log(said)
				for _, word := range test.words {
					if !strings.Contains(said, word) {
						t.Errorf("%q does not say %q", said, word)
					}
				}
				if len(said) > 600 {
					t.Errorf("%d characters", len(said))
				}
			})
		}
	})
	if n := s.count(`SELECT count(*) FROM catalog.stores`); n != 0 {
		t.Errorf("%d stores are known of those that were refused", n)
	}
	if left := append(b.files(s, ""), reader.files(s, "")...); len(left) != 0 {
		t.Errorf("left in the buckets: %q", left)
	}
}

// What is wrong with a store in the eyes of a catalogue that has one.
func TestS3OtherStores(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	b := s.bucket
	p := s.start()
	p.collection("landcover", nil)
	u := newUnit("landcover", "t1", "v1")
	p.do(u, pixels(1))
	at := func(prefix string, settings ...string) string {
		other := *b
		other.prefix = prefix
		return other.url(settings...)
	}
	loopback, err := url.Parse(b.gateway.Endpoint)
	ok(t, err)
	localhost := "http://localhost:" + loopback.Port()
	refused := func(name string, words []string, args ...string) {
		t.Run(name, func(t *testing.T) {
			said := s.within(t).refused(nil, args...)
			t.Log(said)
			for _, word := range words {
				if !strings.Contains(said, word) {
					t.Errorf("%q does not say %q", said, word)
				}
			}
		})
	}
	init := func(stores ...string) []string { return append(s.serveArgs(stores...), "--init-store") }
	refused("a new prefix without --init-store", []string{"--init-store", "bucket and prefix"}, s.serveArgs(at("another/"))...)
	refused("a prefix within", []string{"lies within store", "give it one of its own"}, init(at("some/prefix/inner/"))...)
	refused("a prefix above", []string{"overlaps store"}, init(at("some/"))...)
	refused("the bucket itself", []string{"overlaps store"}, init(at(""))...)
	refused("beside it, under another name", []string{"is another one too"}, s.serveArgs(s.store, "more="+at("some/prefix/", "endpoint", localhost))...)
	if left := b.files(s, ".catalogd"); len(left) != 1 {
		t.Errorf("sentinels, and what is left of tries: %q", left)
	}

	// Another store's sentinel, at a root that is known.
	sentinel := b.content(s, ".catalogd/store.json")
	p.kill()
	s.put(".catalogd/store.json", []byte(`{"id":"7f9c24e8-3b12-4fef-91e0-5f4f1b7c3a3a","created_at":"2026-01-01T00:00:00Z"}`))
	refused("another store's sentinel", []string{"is known as another store"}, s.serveArgs()...)
	s.put(".catalogd/store.json", []byte("{}"))
	refused("a sentinel without an id", []string{"sentinel", "has no id"}, s.serveArgs()...)
	s.put(".catalogd/store.json", sentinel)

	p = s.start()
	s.done(p, u, pixels(1))
	s.sound(p)
}

// A sentinel that becomes another's while the server runs.
func TestS3SentinelReplaced(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	p := s.start()
	p.collection("landcover", nil)
	u := newUnit("landcover", "t1", "v1")
	done := p.do(u, pixels(1))
	sentinel := s.bucket.content(s, ".catalogd/store.json")
	s.put(".catalogd/store.json", []byte(`{"id":"7f9c24e8-3b12-4fef-91e0-5f4f1b7c3a3a"}`))
	s.remove(done.Tile.ObjectKey)
	wantProblem(t, p.ask("POST", "/v1/attempts", u.again()), "store_unavailable", "")
	wantProblem(t, p.ask("POST", "/v1/sweep", nil), "store_unavailable", "")
	wantProblem(t, p.ask("GET", "/readyz", nil), "store_unavailable", "")
	s.put(".catalogd/store.json", sentinel)
	p.do(u.again(), pixels(2))
	s.done(p, u, pixels(2))
	s.sound(p)
}

// Several stores in one server: collections name theirs.
func TestStoresByName(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	second := newBucket(t, "")
	files := reachable(t)
	bucketStore := s.store
	s.env = append(s.env, "CATALOGD_STORE_ARCHIVE="+second.url())
	s.stores = []string{"files=" + files, "main=" + bucketStore}
	p := s.start()

	type storeList struct {
		Stores []struct {
			Name         string          `json:"name"`
			ID           string          `json:"store_id"`
			Location     string          `json:"location"`
			Capabilities map[string]bool `json:"capabilities"`
		} `json:"stores"`
	}
	var got []string
	ids := map[string]string{}
	for _, one := range must[storeList](p, "GET", "/v1/stores", nil).Stores {
		got = append(got, fmt.Sprintf("%s %s %t", one.Name, one.Location, one.Capabilities["copy-source-if-match"]))
		ids[one.Name] = one.ID
	}
	want := fmt.Sprintf("files %s/ false|main /vsis3/%s/some/prefix/ true|archive /vsis3/%s/ true", files, s.bucket.name, second.name)
	if strings.Join(got, "|") != want {
		t.Errorf("stores %q, want %s", got, want)
	}

	sh := &shell{site: s, p: p, url: p.url}
	sh.want(sh.run("collection", "create", "first"), 0, "store       files\n")
	sh.want(sh.run("collection", "create", "second", "--store", "main"), 0, "store       main\n")
	sh.want(sh.run("collection", "create", "third", "--store", ids["archive"]), 0, "store       archive\n")
	sh.want(sh.run("collection", "list"), 0, "STORE", "files", "main", "archive")
	sh.want(sh.run("collection", "create", "fourth", "--store", "nowhere"), exitError, `there is no store "nowhere"`, "invalid_collection at /store")
	wantProblem(t, p.ask("POST", "/v1/collections", map[string]any{"id": "fourth", "store": "nowhere"}), "invalid_collection", "/store")
	wantProblem(t, p.ask("PUT", "/v1/collections/first", map[string]any{"store": "nowhere"}), "invalid_collection", "/store")

	for i, collection := range []string{"first", "second", "third"} {
		u := newUnit(collection, "t1", "v1")
		out := p.do(u, pixels(byte(i)))
		s.done(p, u, pixels(byte(i)))
		if n := s.count(`SELECT count(*) FROM catalog.tiles WHERE object_key = $1 AND store_id = $2`, out.Tile.ObjectKey, ids[[]string{"files", "main", "archive"}[i]]); n != 1 {
			t.Errorf("%s: not in its store", collection)
		}
	}
	s.sound(p)
	archive := s.within(t)
	archive.bucket = second
	archive.sound(p)
	posix := s.within(t)
	posix.bucket, posix.store = nil, files
	posix.sound(p)

	// New outputs go elsewhere, old ones stay where they are.
	sh.want(sh.run("collection", "edit", "third", "--store", "files"), 0, "store       files\n")
	old, next := newUnit("third", "t1", "v1"), newUnit("third", "t1", "v2")
	out := p.do(next, pixels(9))
	if posix.state(out.Tile.ObjectKey) == "" {
		t.Error("not in the directory")
	}
	if d := p.begin(old.again()); d.Verdict != "skip" {
		t.Errorf("the old output: %+v", d)
	}

	// A server that lacks one of them.
	s.env, s.stores = credentials(s.bucket.gateway.AccessKey, s.bucket.gateway.SecretKey), []string{"files=" + files, "main=" + bucketStore}
	p.kill()
	p = s.start()
	wantProblem(t, p.ask("POST", "/v1/attempts", old.again()), "store_unavailable", "")
	if d := p.begin(next.again()); d.Verdict != "skip" {
		t.Errorf("in a store that is there: %+v", d)
	}
}

// A certificate that only a CA file vouches for.
func TestS3OverTLS(t *testing.T) {
	t.Parallel()
	b := newBucket(t, "some/prefix/")
	line := gatewaytest.Between(t, b.gateway)
	secure := httptest.NewTLSServer(line.Config.Handler)
	defer secure.Close()
	ca := reachable(t) + "/ca.pem"
	write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	s := newSiteIn(t, b, "endpoint", secure.URL, "ca_file", ca, "public_endpoint", b.gateway.Endpoint)
	p := s.start()
	p.collection("landcover", nil)
	u := newUnit("landcover", "t1", "v1")
	p.do(u, pixels(1))
	s.done(p, u, pixels(1))
	s.sound(p)
}
