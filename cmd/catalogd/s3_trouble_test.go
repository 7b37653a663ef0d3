package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway/gatewaytest"
)

// Troubles of a store on S3. As for a directory (trouble_test.go), each is told as
// what it is, costs nothing but time, and is over when its cause is.

// rig is a site whose servers reach the gateway through what a test disturbs: the
// connections by toxiproxy and, behind it, requests and answers by a line. Tasks and
// readers reach the gateway itself.
type rig struct {
	*site
	tcp  *toxiproxy.Proxy
	line *gatewaytest.Line
}

func newRig(t *testing.T, settings ...string) *rig {
	t.Helper()
	b := newBucket(t, "some/prefix/")
	line := gatewaytest.Between(t, b.gateway)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	tcp := toxiproxy.NewProxy(server, "s3", "127.0.0.1:0", line.Listener.Addr().String())
	ok(t, tcp.Start())
	t.Cleanup(tcp.Stop)
	s := newSiteIn(t, b, append([]string{"endpoint", "http://" + tcp.Listen, "public_endpoint", b.gateway.Endpoint}, settings...)...)
	return &rig{s, tcp, line}
}

// start is site's. What a server says holds no secret.
func (r *rig) start(env ...string) *process {
	r.Helper()
	p := r.site.start(env...)
	r.Cleanup(func() { r.discreet(p.said()) })
	return p
}

func (s *site) discreet(said string) {
	s.Helper()
	for _, secret := range []string{s.token, "secret-", "X-Amz-Signature", "Signature="} {
		if strings.Contains(said, secret) {
			s.Errorf("%.10s… is told: %s", secret, said)
		}
	}
}

// toxic disturbs what comes from the gateway, until it is cured.
func (r *rig) toxic(kind, attributes string) {
	r.Helper()
	_, err := r.tcp.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"name":"it","type":%q,"attributes":%s}`, kind, attributes)))
	ok(r, err)
}

func (r *rig) cure() {
	r.Helper()
	ok(r, r.tcp.Toxics.RemoveToxic(context.WithoutCancel(r.Context()), "it"))
}

// attempt is the state of one.
func (s *site) attempt(a attempt) string {
	s.Helper()
	return s.text(`SELECT state FROM catalog.attempts WHERE attempt_id = $1`, a.ID)
}

// The answer to a copy that was made is lost, with all that follow, in each way in which
// a connection can fail: the attempt stays promoting, and becomes a row when its
// deadline is over, or it is asked for again. Where only that answer is lost, the copy
// is found.
func TestS3CopyAnswerLost(t *testing.T) {
	for i, toxic := range [][2]string{{"reset_peer", `{"timeout":0}`}, {"timeout", `{"timeout":100}`}, {"limit_data", `{"bytes":40}`}} {
		t.Run(toxic[0], func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.start()
			p.collection("landcover", nil)
			u, raster := newUnit("landcover", "t1", "v1"), pixels(byte(i))
			a := p.run(u)
			p.stage(a, raster)
			var copies atomic.Int64
			r.line.After(func(resp *http.Response) error {
				if gatewaytest.IsCopy(resp.Request) && copies.Add(1) == 1 {
					r.toxic(toxic[0], toxic[1])
				}
				return nil
			})
			wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_unavailable", "")
			if state := r.attempt(a); state != "promoting" || r.state(a.ObjectKey) == "" {
				t.Fatalf("%s, and at the final name %q", state, r.state(a.ObjectKey))
			}
			output := r.state(a.ObjectKey)
			r.line.Calm()
			r.cure()
			if i == 0 {
				if out := p.complete(a); out.AttemptID != a.ID {
					t.Errorf("%+v", out)
				}
			} else {
				r.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 second' WHERE attempt_id = $1`, a.ID)
				poll(t, "recovery by the clock", func() bool { return r.attempt(a) == "done" })
			}
			r.done(p, u, raster)
			if now := r.state(a.ObjectKey); now != output {
				t.Errorf("the object is %s, and was %s", now, output)
			}

			// Only that answer.
			two := newUnit("landcover", "t2", "v1")
			b := p.run(two)
			p.stage(b, raster)
			cured := make(chan bool)
			copies.Store(0)
			r.line.After(func(resp *http.Response) error {
				if gatewaytest.IsCopy(resp.Request) && copies.Add(1) == 1 {
					r.toxic(toxic[0], toxic[1])
					time.AfterFunc(120*time.Millisecond, func() { r.cure(); close(cured) }) // before the SDK has tried for the last time
				}
				return nil
			})
			if out := p.complete(b); out.State != "done" || out.AttemptID != b.ID {
				t.Errorf("%+v", out)
			}
			<-cured
			r.done(p, two, raster)
			r.sound(p)
		})
	}
}

// The gateway is away: nothing is lost, nothing fails, and no row is doubted.
func TestS3Away(t *testing.T) {
	t.Parallel()
	r := newRig(t, "reads", "stream")
	hold := t.TempDir()
	held := r.start(envHold + "=intended:" + hold)
	held.collection("landcover", nil)
	p := r.start()
	// At its start a server rolls forward what another holds.
	poll(t, "the start to be over", func() bool { return strings.Contains(p.said(), "what a crash left has been looked for") })
	old, one, two := newUnit("landcover", "t0", "v1"), newUnit("landcover", "t1", "v1"), newUnit("landcover", "t2", "v1")
	done := p.do(old, pixels(9))
	a, b := p.run(one), p.run(two)
	p.stage(a, pixels(1))
	p.stage(b, pixels(2))
	completed := make(chan answer, 1)
	go func() {
		got, _ := held.send("POST", b.path("complete"), nil)
		completed <- got
	}()
	poll(t, "the step to be held", exists(filepath.Join(hold, "held")))

	r.tcp.Stop()
	ok(t, os.WriteFile(filepath.Join(hold, "go"), nil, 0o644))
	three := newUnit("landcover", "t3", "v1")
	// Each waits for its tries: they are sent at once.
	requests := []struct {
		method, path string
		body         any
		said         chan answer
	}{
		{method: "POST", path: "/v1/attempts", body: old.again()}, // not run: it is not lost
		{method: "POST", path: a.path("complete")},                // not staged_missing
		{method: "PUT", path: a.path("output"), body: bytes.NewReader(pixels(3))},
		{method: "GET", path: "/data/" + done.Tile.ObjectKey},
		{method: "GET", path: "/data/landcover/t0.tif"},
		{method: "POST", path: "/v1/sweep"},
	}
	for i := range requests {
		q := &requests[i]
		q.said = make(chan answer, 1)
		go func() {
			got, _ := p.send(q.method, q.path, q.body)
			q.said <- got
		}()
	}
	checked := p.ask("POST", "/v1/units:check?verify=head", map[string]any{"units": []any{map[string]any{"unit_key": done.Tile.UnitKey}}})
	if !strings.Contains(string(checked.body), `"code":"store_unavailable"`) || !strings.Contains(string(checked.body), `"lost":0`) || !strings.Contains(string(checked.body), `"due":0`) {
		t.Errorf("check: %s", checked.body)
	}
	for _, q := range requests {
		got := <-q.said
		t.Logf("%s %s: %d", q.method, q.path, got.status)
		wantProblem(t, got, "store_unavailable", "")
	}
	wantProblem(t, <-completed, "store_unavailable", "")
	wantProblem(t, p.ask("GET", "/readyz", nil), "store_unavailable", "")
	if p.ask("GET", "/healthz", nil).status != 200 {
		t.Error("the server itself is not healthy")
	}
	if got := r.attempt(a) + " " + r.attempt(b); got != "open promoting" {
		t.Errorf("the attempts are %s", got)
	}
	// A begin counts on a store that showed its sentinel a moment ago, and else refuses.
	if got := p.ask("POST", "/v1/attempts", three); got.status != 200 {
		wantProblem(t, got, "store_unavailable", "")
	}
	if said := r.refused(nil, r.serveArgs()...); !strings.Contains(said, "connection refused") {
		t.Errorf("start without the gateway: %s", said)
	}

	ok(t, r.tcp.Start())
	poll(t, "the store to answer", func() bool { return p.ask("GET", "/readyz", nil).status == 200 })
	r.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 second' WHERE attempt_id = $1`, b.ID)
	poll(t, "recovery by the clock", func() bool { return r.attempt(b) == "done" })
	p.complete(a)
	c := p.run(three)
	p.stage(c, pixels(3))
	p.complete(c)
	for i, u := range []unit{old, one, two, three} {
		r.done(p, u, [][]byte{pixels(9), pixels(1), pixels(2), pixels(3)}[i])
	}
	r.sound(p)
}

// A slow line costs time.
func TestS3Slow(t *testing.T) {
	for name, toxic := range map[string]string{"latency": `{"latency":150,"jitter":100}`, "bandwidth": `{"rate":200}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "reads", "stream")
			r.toxic(name, toxic)
			p := r.start()
			p.collection("landcover", nil)
			u, raster := newUnit("landcover", "t1", "v1"), rastertest.Raster{Width: 600, Height: 600}.Bytes()
			a := p.run(u)
			must[struct{}](p, "PUT", a.path("output"), bytes.NewReader(raster))
			p.complete(a)
			r.done(p, u, raster)
			r.sound(p)
		})
	}
}

// What only HTTP can say. Each fault lasts while the task completes, and then ends: the
// task learns what it was, the attempt goes on where it was, and completes.
func TestS3Faults(t *testing.T) {
	isRead := func(r *http.Request) bool { return r.Method == http.MethodGet && !r.URL.Query().Has("list-type") }
	isWrite := func(r *http.Request) bool { return r.Method == http.MethodPut && !gatewaytest.IsCopy(r) }
	type fault struct {
		name   string
		status int
		s3code string
		match  gatewaytest.Match
		code   catalog.Code
		state  string // of the attempt, meanwhile
		words  []string
	}
	final, staged := "{final}", "{staged}"
	for _, f := range []fault{
		{"slow down at the copy", 503, "SlowDown", gatewaytest.IsCopy, "store_unavailable", "promoting", nil},
		{"slow down", 503, "SlowDown", gatewaytest.Any, "store_unavailable", "open", nil},
		{"internal error at the copy", 500, "InternalError", gatewaytest.IsCopy, "store_unavailable", "promoting", nil},
		{"copy denied", 403, "AccessDenied", gatewaytest.IsCopy, "store_forbidden", "promoting", []string{"s3:PutObject", final}},
		{"reading denied", 403, "AccessDenied", isRead, "store_forbidden", "open", []string{"s3:GetObject", staged}},
		{"expired token", 403, "ExpiredToken", isRead, "store_forbidden", "open", []string{"credentials are not accepted (ExpiredToken)", "renew"}},
		{"expired token at the copy", 403, "ExpiredToken", gatewaytest.IsCopy, "store_forbidden", "promoting", []string{"renew"}},
		{"key unknown", 403, "InvalidAccessKeyId", isRead, "store_forbidden", "open", []string{"renew"}},
		{"clock skew at the copy", 403, "RequestTimeTooSkewed", gatewaytest.IsCopy, "store_unavailable", "promoting", []string{"clock"}},
		{"no such bucket", 404, "NoSuchBucket", gatewaytest.Any, "store_unavailable", "open", []string{"bucket"}},
		{"no such bucket at the copy", 404, "NoSuchBucket", gatewaytest.IsCopy, "store_unavailable", "promoting", []string{"bucket"}},
		{"full", 507, "XMinioStorageFull", gatewaytest.IsCopy, "store_full", "promoting", nil},
		{"upload denied", 403, "AccessDenied", isWrite, "store_forbidden", "open", []string{"s3:PutObject", staged}},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.start()
			p.collection("landcover", nil)
			u, raster := newUnit("landcover", "t1", "v1"), pixels(1)
			a := p.run(u)
			p.stage(a, raster)
			seen := r.line.Refuse(gatewaytest.Always, f.status, f.s3code, f.match)
			request := func() answer { return p.ask("POST", a.path("complete"), nil) }
			if f.name == "upload denied" {
				request = func() answer { return p.ask("PUT", a.path("output"), bytes.NewReader(raster)) }
			}
			said := wantProblem(t, request(), f.code, "")
			if seen.Load() == 0 {
				t.Fatal("no request was refused")
			}
			t.Logf("%s: %s", f.s3code, said.Detail)
			for _, word := range f.words {
				word = strings.NewReplacer(final, a.ObjectKey, staged, a.StagingKey).Replace(word)
				if !strings.Contains(said.Detail, word) {
					t.Errorf("detail %q does not say %q", said.Detail, word)
				}
			}
			if state := r.attempt(a); state != f.state {
				t.Errorf("the attempt is %s, want %s", state, f.state)
			}
			r.line.Calm()
			if out := p.complete(a); out.State != "done" || out.AttemptID != a.ID {
				t.Errorf("%+v", out)
			}
			r.done(p, u, raster)
			r.sound(p)
		})
	}
}

// Some refusals, and some cut answers, are waited out: the task does not hear of them.
func TestS3PassingFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start()
	p.collection("landcover", nil)
	for i, disturb := range []func() *atomic.Int64{
		func() *atomic.Int64 { return r.line.Refuse(2, 503, "SlowDown", gatewaytest.Any) },
		func() *atomic.Int64 { return r.line.Refuse(1, 500, "InternalError", gatewaytest.IsCopy) },
		func() *atomic.Int64 { return r.line.Cut(1, gatewaytest.IsCopy) },
		func() *atomic.Int64 { return r.line.Cut(2, gatewaytest.Any) },
	} {
		u, raster := newUnit("landcover", fmt.Sprint("t", i), "v1"), pixels(byte(i))
		a := p.run(u)
		p.stage(a, raster)
		seen := disturb()
		p.complete(a)
		if seen.Load() == 0 {
			t.Fatal("nothing was disturbed")
		}
		r.line.Calm()
		r.done(p, u, raster)
	}
	r.sound(p)
}

// Bodies that end too early, with or without their length saying so: of the store's
// answer nothing is concluded about the file, and no reader takes half for the whole.
func TestS3Truncated(t *testing.T) {
	for _, lying := range []bool{false, true} {
		t.Run(fmt.Sprint("lying ", lying), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "reads", "stream")
			p := r.start()
			p.collection("landcover", nil)
			u, raster := newUnit("landcover", "t1", "v1"), rastertest.Raster{Width: 1000, Height: 1000}.Bytes()
			a := p.run(u)
			p.stage(a, raster)
			truncate := func(resp *http.Response) error {
				if resp.Request.Method == http.MethodGet && resp.StatusCode/100 == 2 && resp.ContentLength > 0 {
					half := resp.ContentLength / 2
					resp.Body = io.NopCloser(io.LimitReader(resp.Body, half))
					if lying {
						resp.ContentLength = half
						resp.Header.Set("Content-Length", fmt.Sprint(half))
					}
				}
				return nil
			}
			r.line.After(truncate)
			wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_unavailable", "")
			if state := r.attempt(a); state != "open" {
				t.Errorf("the attempt is %s", state)
			}
			r.line.Calm()
			out := p.complete(a)
			r.line.After(truncate)
			if got, err := p.send("GET", "/data/"+out.Tile.ObjectKey, nil); err == nil && !(got.status == 200 && bytes.Equal(got.body, raster)) && got.status < 500 {
				t.Errorf("read: %d, %d bytes", got.status, len(got.body))
			}
			r.line.Calm()
			r.done(p, u, raster)
			r.sound(p)
		})
	}
}

// The bucket goes, as a whole, and comes back: what is missing in it is not lost.
func TestS3BucketGone(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	p := s.start()
	t.Cleanup(func() { s.discreet(p.said()) })
	p.collection("landcover", nil)
	old, one := newUnit("landcover", "t0", "v1"), newUnit("landcover", "t1", "v1")
	done := p.do(old, pixels(9))
	a := p.run(one)
	p.stage(a, pixels(1))

	back := s.bucket.hide(s)
	wantProblem(t, p.ask("POST", "/v1/attempts", old.again()), "store_unavailable", "") // not run: it is not lost
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "store_unavailable", "")     // not staged_missing
	wantProblem(t, p.ask("PUT", a.path("output"), bytes.NewReader(pixels(2))), "store_unavailable", "")
	wantProblem(t, p.ask("POST", "/v1/sweep", nil), "store_unavailable", "")
	checked := p.ask("POST", "/v1/units:check?verify=head", map[string]any{"units": []any{map[string]any{"unit_key": done.Tile.UnitKey}}})
	if !strings.Contains(string(checked.body), `"code":"store_unavailable"`) || !strings.Contains(string(checked.body), `"lost":0`) {
		t.Errorf("check: %s", checked.body)
	}
	if said := s.refused(nil, s.serveArgs()...); !strings.Contains(said, "there is no bucket "+s.bucket.name) {
		t.Errorf("start without the bucket: %s", said)
	}
	back()
	p.complete(a)
	s.done(p, old, pixels(9))
	s.done(p, one, pixels(1))
	s.sound(p)
}

// The server's credentials lose rights, one after the other, and get them back. What is
// refused is named: the action, and the key.
func TestS3RightsLost(t *testing.T) {
	t.Parallel()
	s := newBucketSite(t)
	all := []string{"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
	user := s.bucket.user(s)
	s.env = user.env
	user.may(s, all...)
	p := s.start()
	t.Cleanup(func() { s.discreet(p.said()) })
	p.collection("landcover", nil)
	old := newUnit("landcover", "t0", "v1")
	p.do(old, pixels(9))

	one := newUnit("landcover", "t1", "v1")
	a := p.run(one)
	p.stage(a, pixels(1))
	refused := func(got answer, words ...string) {
		t.Helper()
		said := wantProblem(t, got, "store_forbidden", "")
		t.Log(said.Detail)
		for _, word := range words {
			if !strings.Contains(said.Detail, word) {
				t.Errorf("detail %q does not say %q", said.Detail, word)
			}
		}
	}
	user.may(s, "s3:GetObject", "s3:ListBucket", "s3:ListBucketMultipartUploads") // read only
	if d := p.begin(old.again()); d.Verdict != "skip" {
		t.Errorf("what is done: %+v", d)
	}
	refused(p.ask("PUT", a.path("output"), bytes.NewReader(pixels(2))), "s3:PutObject", a.StagingKey)
	refused(p.ask("POST", a.path("complete"), nil), "s3:PutObject", a.ObjectKey)
	if state := s.attempt(a); state != "promoting" {
		t.Errorf("the attempt is %s", state)
	}
	user.may(s, all...)
	p.complete(a)
	s.done(p, one, pixels(1))

	two := newUnit("landcover", "t2", "v1")
	b := p.run(two)
	p.stage(b, pixels(2))
	user.may(s, "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:ListBucketMultipartUploads") // write only
	refused(p.ask("POST", "/v1/attempts", old.again()), "s3:GetObject", "landcover/t0.")
	refused(p.ask("POST", b.path("complete"), nil), "s3:GetObject", b.StagingKey)
	user.may(s, all...)
	p.complete(b)
	s.done(p, two, pixels(2))
	s.sound(p)
}

// A step cut off by the fault that kills the server too is finished by the next one.
func TestS3CrashInTrouble(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start()
	p.collection("landcover", nil)
	u, raster := newUnit("landcover", "t1", "v1"), pixels(1)
	a := p.run(u)
	p.stage(a, raster)
	r.line.Before(func(_ http.ResponseWriter, q *http.Request) bool {
		if gatewaytest.IsCopy(q) {
			_ = p.cmd.Process.Kill()
		}
		return false
	})
	if got, err := p.send("POST", a.path("complete"), nil); err == nil {
		t.Fatalf("answered: %d %s", got.status, got.body)
	}
	p.crashed()
	poll(t, "the copy, which outlives its client", func() bool { return r.state(a.ObjectKey) != "" })
	r.line.Calm()
	invariant.CheckStore(t, r.database, r.bucket.seen(), invariant.Options{})
	p = r.start()
	poll(t, "recovery at start", func() bool { return r.attempt(a) == "done" })
	r.done(p, u, raster)
	r.sound(p)
}
