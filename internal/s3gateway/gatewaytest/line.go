package gatewaytest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"catalogd/internal/s3gateway"
)

// Line is an HTTP proxy before a gateway, which a test disturbs. Requests reach the
// gateway as they were signed.
type Line struct {
	*httptest.Server
	// Count is of requests, Bytes of the bodies that the gateway sent.
	Count, Bytes atomic.Int64

	before atomic.Pointer[Before]
	after  atomic.Pointer[After]
}

type (
	// Before is asked first; true means that it answered.
	Before func(w http.ResponseWriter, r *http.Request) bool
	// After sees the gateway's answer; an error cuts the connection.
	After func(resp *http.Response) error
	// Match picks requests.
	Match func(r *http.Request) bool
)

// Between starts a line to g, which ends with the test.
func Between(t testing.TB, g *s3gateway.Gateway) *Line {
	t.Helper()
	target, err := url.Parse(g.Endpoint)
	if err != nil {
		t.Fatalf("gatewaytest: %v", err)
	}
	l := &Line{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(resp *http.Response) error {
			l.Bytes.Add(max(0, resp.ContentLength))
			if after := l.after.Load(); after != nil {
				return (*after)(resp)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.Count.Add(1)
		if before := l.before.Load(); before != nil && *before != nil && (*before)(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

// Before has f asked from now on, and After has f see answers.
func (l *Line) Before(f Before) { l.before.Store(&f) }
func (l *Line) After(f After)   { l.after.Store(&f) }

// Calm ends all disturbance.
func (l *Line) Calm() { l.before.Store(nil); l.after.Store(nil) }

var errCut = errors.New("cut")

// Cut loses the answers, from now on, to the first n requests that match.
func (l *Line) Cut(n int64, match Match) (seen *atomic.Int64) {
	seen = &atomic.Int64{}
	l.After(func(resp *http.Response) error {
		if match(resp.Request) && seen.Add(1) <= n {
			return errCut
		}
		return nil
	})
	return seen
}

// Refuse answers, from now on, the first n requests that match with an error of S3's.
func (l *Line) Refuse(n int64, status int, code string, match Match) (seen *atomic.Int64) {
	seen = &atomic.Int64{}
	l.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !match(r) || seen.Add(1) > n {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, fmt.Sprintf(`<?xml version="1.0"?><Error><Code>%s</Code><Message>The test says %[1]s.</Message></Error>`, code))
		}
		return true
	})
	return seen
}

// Always is more requests than a test sends.
const Always = 1 << 40

// Any matches every request, IsCopy the copy of an object or of a part, IsAssembly the
// completion of an upload in parts.
func Any(*http.Request) bool { return true }

func IsCopy(r *http.Request) bool {
	return r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != ""
}

func IsAssembly(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}
