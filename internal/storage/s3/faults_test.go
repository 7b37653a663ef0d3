package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

// through opens a store at the far end of a line.
func through(t *testing.T, change ...func(*Config)) (*Store, *gatewaytest.Line, *s3gateway.Gateway) {
	t.Helper()
	g := gatewaytest.Start(t)
	l := gatewaytest.Between(t, g)
	s := open(t, g, append(change, func(c *Config) { c.Endpoint = l.URL; c.Attempts = 3 })...)
	return s, l, g
}

const always = gatewaytest.Always

// Answers to copies that succeeded are lost: the copy is found.
func TestPromoteAnswerLost(t *testing.T) {
	for _, parts := range []bool{false, true} {
		t.Run("in parts "+strconv.FormatBool(parts), func(t *testing.T) {
			s, l, _ := through(t, func(c *Config) {
				if parts {
					c.CopyThreshold = 1
				}
			})
			match := gatewaytest.IsCopy
			if parts {
				match = gatewaytest.IsAssembly
			}
			for _, n := range []int64{1, always} {
				key := final + strconv.FormatInt(n, 10)
				print := storagetest.Stage(t, s, staged, "hello")
				l.Cut(n, match)
				ok(t, s.Promote(t.Context(), staged, key, print))
				l.Calm()
				same(t, storagetest.Content(t, s, key), "hello")
				ok(t, s.Promote(t.Context(), staged, key, print))
			}
			same(t, uploads(t, s), 0)
		})
	}
}

// Where neither the copy nor a look at it is answered, nothing is concluded; and
// once the store is back, it is found.
func TestPromoteUnknown(t *testing.T) {
	s, l, _ := through(t)
	print := storagetest.Stage(t, s, staged, "hello")
	all := gatewaytest.Any
	l.Cut(always, all)
	undecided(t, s.Promote(t.Context(), staged, final, print))
	l.Calm()
	ok(t, s.Promote(t.Context(), staged, final, print))

	// It never got there.
	l.Refuse(always, 503, "SlowDown", gatewaytest.IsCopy)
	undecided(t, s.Promote(t.Context(), staged, final+"2", print))
	l.Calm()
	_, err := s.Stat(t.Context(), final+"2")
	is(t, err, storage.ErrNotExist)
	ok(t, s.Promote(t.Context(), staged, final+"2", print))
}

// A copy that is answered late, after its caller gave up, and after the staged name
// was written anew, makes the same bytes.
func TestPromoteDelayed(t *testing.T) {
	s, l, _ := through(t)
	print := storagetest.Stage(t, s, staged, "hello")
	arrived, release, carried := make(chan bool), make(chan bool), make(chan int, 9)
	hold := func(_ http.ResponseWriter, r *http.Request) bool {
		if !gatewaytest.IsCopy(r) {
			return false
		}
		arrived <- true
		<-release
		// With Done, for else the proxy watches the client's connection itself.
		ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
		t.Cleanup(stop)
		*r = *r.WithContext(ctx)
		return false
	}
	seen := func(resp *http.Response) error {
		if gatewaytest.IsCopy(resp.Request) {
			carried <- resp.StatusCode
		}
		return nil
	}
	l.Before(hold)
	l.After(seen)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Promote(ctx, staged, final, print) }()
	<-arrived
	cancel()
	is(t, <-done, context.Canceled)
	l.Before(nil)

	ok(t, s.Promote(t.Context(), staged, final, print))
	same(t, next(t, carried), 200)
	storagetest.Stage(t, s, staged, "other")
	before, err := s.Stat(t.Context(), final)
	ok(t, err)
	close(release)
	same(t, next(t, carried), http.StatusPreconditionFailed)
	after, err := s.Stat(t.Context(), final)
	ok(t, err)
	same(t, after, before)
	same(t, storagetest.Content(t, s, final), "hello")
}

func next[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("waited in vain")
	}
	return v
}

// 503 SlowDown: some are waited out, a storm leaves the outcome open.
func TestSlowDown(t *testing.T) {
	s, l, _ := through(t)
	print := storagetest.Stage(t, s, staged, "hello")
	seen := l.Refuse(2, 503, "SlowDown", gatewaytest.Any)
	ok(t, s.Promote(t.Context(), staged, final, print))
	if seen.Load() < 3 {
		t.Fatal("nothing was slowed down")
	}
	l.Refuse(always, 503, "SlowDown", gatewaytest.Any)
	_, err := s.Stat(t.Context(), final)
	undecided(t, err)
	is(t, err, err, "503")
	undecided(t, s.Sentinel(t.Context()))
	undecided(t, s.Delete(t.Context(), final))
	_, err = s.Existing(t.Context(), []string{final})
	undecided(t, err)
	for _, err := range s.List(t.Context(), storage.Range{}) {
		undecided(t, err)
	}
	_, _, err = s.WriteStaged(t.Context(), staged, strings.NewReader("x"), 9)
	undecided(t, err)
}

// Answers to uploads are lost: what is there is known again; and cut bodies of
// answers are read on.
func TestWriteAndReadCut(t *testing.T) {
	s, l, _ := through(t, func(c *Config) { c.UploadPart = minPart })
	content := random(t, 2*minPart+1)
	sum := sha256.Sum256(content)
	l.Cut(always, gatewaytest.IsAssembly)
	_, got, err := s.WriteStaged(t.Context(), staged, bytes.NewReader(content), 1<<30)
	ok(t, err)
	same(t, got, hex.EncodeToString(sum[:]))
	l.Cut(1, func(r *http.Request) bool { return r.Method == http.MethodPut })
	_, _, err = s.WriteStaged(t.Context(), staged+"2", bytes.NewReader(content), 1<<30)
	ok(t, err)
	l.Calm()
	same(t, uploads(t, s), 0)

	var n atomic.Int64
	short := func(resp *http.Response) error {
		if resp.Request.Method == http.MethodGet && n.Add(1)%2 == 1 {
			resp.Body = io.NopCloser(io.LimitReader(resp.Body, resp.ContentLength/2))
		}
		return nil
	}
	l.After(short)
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	read, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	ok(t, err)
	if !bytes.Equal(read, content) {
		t.Fatal("other bytes")
	}
	if n.Load() < 4 {
		t.Fatal("nothing was cut")
	}
}

// Truncated answers, and empty ones: no listing is shorter for it, no copy less certain.
func TestTruncated(t *testing.T) {
	s, l, _ := through(t)
	for _, key := range []string{"a/1", "a/2", "a/3"} {
		storagetest.Put(t, s, key, "hello")
	}
	_, err := s.CreateUpload(t.Context(), staged)
	ok(t, err)
	print := storagetest.Stage(t, s, staged, "hello")
	for _, share := range []int64{0, 2, 3, 10, 100} {
		truncate := func(resp *http.Response) error {
			if resp.Request.Method != http.MethodHead && resp.StatusCode == 200 && resp.ContentLength > 0 {
				length := int64(0)
				if share > 0 {
					length = resp.ContentLength - max(1, resp.ContentLength/share)
				}
				resp.Body = io.NopCloser(io.LimitReader(resp.Body, length))
				resp.ContentLength = length
				resp.Header.Set("Content-Length", strconv.FormatInt(length, 10))
			}
			return nil
		}
		l.After(truncate)
		var last error
		for _, last = range s.List(t.Context(), storage.Range{}) {
		}
		undecided(t, last)
		_, err := s.Existing(t.Context(), []string{"a/1"})
		undecided(t, err)
		undecided(t, s.Uploads(t.Context(), func(string, string, time.Time) error { return nil }))
		final := fmt.Sprint("b/", share)
		err = s.Promote(t.Context(), staged, final, print)
		if share < 100 { // then it is but the sentinel's last newline
			is(t, err, storage.ErrSentinel)
			is(t, s.Sentinel(t.Context()), storage.ErrSentinel)
			l.Calm()
			err = s.Promote(t.Context(), staged, final, print)
		}
		ok(t, err)
	}
}

// A signature is for the host that others know.
func TestPublicEndpoint(t *testing.T) {
	g := gatewaytest.Start(t)
	l := gatewaytest.Between(t, g)
	s := open(t, g, func(c *Config) { c.PublicEndpoint = l.URL })
	storagetest.Put(t, s, final, "hello")
	req, err := s.PresignGet(t.Context(), http.MethodGet, final, time.Minute)
	ok(t, err)
	resp, err := http.DefaultClient.Do(req)
	ok(t, err)
	defer resp.Body.Close()
	same(t, resp.StatusCode, 200)
	same(t, l.Count.Load(), 1)
}

// A store that does not answer is given up in time.
func TestTimeouts(t *testing.T) {
	s, l, _ := through(t)
	storagetest.Put(t, s, final, "hello")
	print := storagetest.Stage(t, s, staged, "hello")
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	s.cfg.Timeouts = Timeouts{Request: 300 * time.Millisecond, Transfer: 300 * time.Millisecond, Copy: 300 * time.Millisecond, Answer: time.Second}
	release := make(chan bool)
	defer close(release)
	hang := func(http.ResponseWriter, *http.Request) bool { <-release; return true }
	l.Before(hang)
	begun := time.Now()
	for name, call := range map[string]func() error{
		"stat":    func() error { _, err := s.Stat(t.Context(), final); return err },
		"promote": func() error { return s.Promote(t.Context(), staged, final+"2", print) },
		"read":    func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		"write":   func() error { _, _, err := s.WriteStaged(t.Context(), staged, strings.NewReader("x"), 9); return err },
	} {
		err := call()
		undecided(t, err)
		if !errors.Is(err, context.DeadlineExceeded) && name != "promote" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Fatalf("took %v", took)
	}
}

// Whatever answers at the endpoint, it is not taken for a store, nor its 404 for absence.
func TestNotS3(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"404": http.NotFound,
		"page": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<html><body>It works</body></html>")
		},
		"405": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusMethodNotAllowed) },
	} {
		server := httptest.NewServer(answer)
		defer server.Close()
		cfg := configFor(&s3gateway.Gateway{Endpoint: server.URL, AccessKey: "a", SecretKey: "b"}, "s3://bucket/prefix")
		cfg.Attempts = 1
		_, err := Open(t.Context(), cfg)
		if !errors.Is(err, ErrNotS3) && !errors.Is(err, storage.ErrSentinel) {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, storage.ErrNotExist) || errors.Is(err, storage.ErrPermission) {
			t.Errorf("%s: taken for absence, or refusal: %v", name, err)
		}
	}
}

// Refusals whose cause is the credentials or the clock say so.
func TestRefused(t *testing.T) {
	s, l, _ := through(t)
	for code, word := range map[string]string{"ExpiredToken": "renew", "RequestTimeTooSkewed": "clock", "AccessDenied": "s3:GetObject"} {
		refuse := func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code></Error>")
			return true
		}
		l.Before(refuse)
		err := s.Sentinel(t.Context())
		if code == "RequestTimeTooSkewed" {
			undecided(t, err)
		} else {
			is(t, err, storage.ErrPermission)
		}
		is(t, err, err, word)
	}
}

// A server whose CopyObject honours If-None-Match, which the gateway's does not: what
// is in between looks first.
func TestStoreConditionalCopy(t *testing.T) {
	g := gatewaytest.Start(t)
	l := gatewaytest.Between(t, g)
	client := g.Client()
	condition := func(w http.ResponseWriter, r *http.Request) bool {
		if !gatewaytest.IsCopy(r) || r.Header.Get("If-None-Match") == "" {
			return false
		}
		bucket, key, _ := strings.Cut(r.URL.Path[1:], "/")
		if _, err := client.HeadObject(r.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: &key}); err != nil {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusPreconditionFailed)
		_, _ = io.WriteString(w, "<Error><Code>PreconditionFailed</Code></Error>")
		return true
	}
	l.Before(condition)
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s := open(t, g, func(c *Config) { c.Endpoint = l.URL })
		same(t, s.Capabilities().CopyIfNoneMatch, true)
		return s
	})

	// 409: another copy to the name is being carried out. It is tried again.
	s := open(t, g, func(c *Config) { c.Endpoint = l.URL })
	var n atomic.Int64
	conflict := func(w http.ResponseWriter, r *http.Request) bool {
		if !gatewaytest.IsCopy(r) || n.Add(1) > 2 {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "<Error><Code>ConditionalRequestConflict</Code></Error>")
		return true
	}
	l.Before(conflict)
	storagetest.Put(t, s, final, "hello")
	same(t, n.Load(), 3)
	n.Store(-always)
	print := storagetest.Stage(t, s, staged, "hello")
	undecided(t, s.Promote(t.Context(), staged, final+"2", print))
}

func TestTLS(t *testing.T) {
	g := gatewaytest.Start(t)
	plain := gatewaytest.Between(t, g)
	secure := httptest.NewTLSServer(plain.Config.Handler)
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	ok(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o644))
	bucket := gatewaytest.Bucket(t, g)
	for _, test := range []struct {
		change func(*Config)
		good   bool
	}{
		{func(*Config) {}, false},
		{func(c *Config) { c.CAFile = ca }, true},
		{func(c *Config) { c.InsecureTLS = true }, true},
	} {
		cfg := configFor(g, "s3://"+bucket)
		cfg.Endpoint, cfg.Attempts = secure.URL, 1
		test.change(&cfg)
		s, err := Open(t.Context(), cfg)
		if !test.good {
			undecided(t, err)
			continue
		}
		ok(t, err)
		storagetest.Put(t, s, final, "hello")
		same(t, storagetest.Content(t, s, final), "hello")
		ok(t, s.Delete(t.Context(), final))
	}
}

// What others may do with a signed request, and what not.
func TestPresigned(t *testing.T) {
	ctx, g := t.Context(), gatewaytest.Start(t)
	s := open(t, g)
	const content = "hello"
	sum := sha256.Sum256([]byte(content))
	send := func(req *http.Request, err error, body string) int {
		t.Helper()
		ok(t, err)
		if req.Method == http.MethodPut {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 {
			t.Logf("%s: %s", resp.Status, text)
		}
		return resp.StatusCode
	}
	put := func(sha256 string, ifAbsent bool, body string) int {
		t.Helper()
		req, err := s.PresignPut(ctx, staged, int64(len(content)), sha256, ifAbsent, time.Minute)
		return send(req, err, body)
	}
	digest := hex.EncodeToString(sum[:])
	same(t, put(digest, true, "hullo"), 400)
	same(t, put(digest, true, "longer"), 403) // the length is signed
	_, err := s.Stat(ctx, staged)
	is(t, err, storage.ErrNotExist)
	same(t, put(digest, true, content), 200)
	same(t, put(digest, true, content), 412)
	same(t, put("", false, "hullo"), 200)
	req, err := s.PresignPut(ctx, staged, int64(len(content)), digest, true, time.Minute)
	ok(t, err)
	req.Header.Del("If-None-Match") // the condition is signed
	same(t, send(req, nil, content), 403)
	same(t, storagetest.Content(t, s, staged), "hullo")
	same(t, put(digest, false, content), 200)

	f, err := s.OpenStaged(ctx, staged)
	ok(t, err)
	same(t, f.(storage.Voucher).SHA256(), digest)
	ok(t, s.Promote(ctx, staged, final, f.Fingerprint()))
	ok(t, f.Close())
	// A late upload to the staging name changes nothing at the final one.
	before, err := s.Stat(ctx, final)
	ok(t, err)
	same(t, put("", false, "later"), 200)
	after, err := s.Stat(ctx, final)
	ok(t, err)
	same(t, after, before)
	same(t, storagetest.Content(t, s, final), content)

	for _, method := range []string{http.MethodGet, http.MethodHead} {
		req, err := s.PresignGet(ctx, method, final, time.Minute)
		same(t, send(req, err, ""), 200)
		if len(req.Header) > 0 {
			t.Fatalf("a redirect cannot carry %v", req.Header)
		}
	}
	for _, key := range []string{final, storage.SentinelKey, ".staging/../x"} {
		_, err = s.PresignPut(ctx, key, 1, "", false, time.Minute)
		is(t, err, storage.ErrName)
	}
	_, err = s.PresignGet(ctx, http.MethodGet, storage.SentinelKey, time.Minute)
	is(t, err, storage.ErrName)

	// In parts.
	id, err := s.CreateUpload(ctx, staged)
	ok(t, err)
	var etags []string
	parts := []string{string(random(t, minPart)), "end"}
	for i, part := range parts {
		req, err := s.PresignPart(ctx, staged, id, int32(i+1), int64(len(part)), time.Minute)
		ok(t, err)
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(part)), int64(len(part))
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		resp.Body.Close()
		same(t, resp.StatusCode, 200)
		etags = append(etags, resp.Header.Get("ETag"))
	}
	ok(t, s.CompleteUpload(ctx, staged, id, etags))
	ok(t, s.CompleteUpload(ctx, staged, id, etags)) // as where the answer was lost
	none := staged + "none"
	id, err = s.CreateUpload(ctx, none)
	ok(t, err)
	ok(t, s.AbortUpload(ctx, none, id))
	is(t, s.CompleteUpload(ctx, none, id, etags), storage.ErrNotExist)
	same(t, storagetest.Content(t, s, staged), strings.Join(parts, ""))
}

// What a registration costs in requests, without the probe's reads.
func TestRequests(t *testing.T) {
	s, l, _ := through(t)
	storagetest.Stage(t, s, staged, string(random(t, 8<<20)))
	count := func(want int64, do func()) {
		t.Helper()
		before := l.Count.Load()
		do()
		if got := l.Count.Load() - before; got != want {
			t.Errorf("%d requests, expected %d", got, want)
		}
	}
	var f storage.Staged
	count(1, func() { f, _ = s.OpenStaged(t.Context(), staged) })
	defer f.Close()
	count(1, func() { _, _ = s.Existing(t.Context(), []string{staged + ".ovr", staged + ".aux", staged + ".msk"}) })
	bytes := l.Bytes.Load()
	count(1, func() { _, _ = f.ReadAt(make([]byte, 64<<10), 0) })
	same(t, l.Bytes.Load()-bytes, 64<<10)
	count(6, func() { // 256 KiB, then doubling
		n, err := io.Copy(io.Discard, io.NewSectionReader(f, 64<<10, f.Size()-64<<10))
		ok(t, err)
		same(t, n, f.Size()-64<<10)
	})
	// HEAD, COPY, HEAD; and the sentinel at the same time.
	count(4, func() { ok(t, s.Promote(t.Context(), staged, final, f.Fingerprint())) })
	count(2, func() { ok(t, s.Promote(t.Context(), staged, final, f.Fingerprint())) })
}
