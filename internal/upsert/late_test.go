package upsert_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage/s3"
	"catalogd/internal/upsert"
)

// What only a store on S3 has: requests that arrive when nobody waits for them any
// more. They change no row and no final name, and what they leave is swept.

// held are requests that were sent, and that reach the gateway later.
type held struct {
	mu       sync.Mutex
	requests []*http.Request
	// came has one for each.
	came chan bool
}

// hold keeps requests that match back, and hangs up on who sent them.
func hold(l *gatewaytest.Line, match gatewaytest.Match) *held {
	h := &held{came: make(chan bool, 100)}
	l.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if !match(r) {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return true
		}
		later := r.Clone(context.WithoutCancel(r.Context()))
		later.Body, later.RequestURI = io.NopCloser(bytes.NewReader(body)), ""
		later.URL.Scheme, later.URL.Host, _ = strings.Cut(gateway.Endpoint, "://")
		h.mu.Lock()
		h.requests = append(h.requests, later)
		h.mu.Unlock()
		h.came <- true
		panic(http.ErrAbortHandler)
	})
	return h
}

// arrive lets them reach the gateway, and gives the statuses of its answers.
func (h *held) arrive(t testing.TB) (statuses []int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		statuses = append(statuses, status(t, r))
	}
	h.requests = nil
	return statuses
}

// status sends a request, and gives the status of the answer.
func status(t testing.TB, r *http.Request) int {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	return resp.StatusCode
}

// far is one more replica, at the other end of a line that a test disturbs.
func (w *world) far(l *gatewaytest.Line, change ...func(*s3.Config)) *replica {
	w.t.Helper()
	b := *w.site.(*bucket)
	b.Endpoint, b.Attempts = l.URL, 1
	for _, f := range change {
		f(&b.Config)
	}
	store := b.open(w.t)
	return w.another(func(c *upsert.Config) { c.Stores = upsert.Stores{store.ID(): store} })
}

func isAbort(r *http.Request) bool {
	return r.Method == http.MethodDelete && r.URL.Query().Has("uploadId")
}

// inParts has everything copied in parts.
func inParts(c *s3.Config) { c.CopyThreshold = 1 }

// A copy at the server that outlives its step: it reaches the server when the
// attempt was finished, lost, or has ended and is swept.
func TestLateCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	line := gatewaytest.Between(t, gateway.Gateway)
	other := w.another()
	for _, copying := range []struct {
		name string
		far  *replica
		hold gatewaytest.Match
	}{
		{"whole", w.far(line), gatewaytest.IsCopy},
		{"part", w.far(line, inParts), gatewaytest.IsCopy},
		{"assembly", w.far(line, inParts), func(r *http.Request) bool {
			return gatewaytest.IsAssembly(r) || isAbort(r) // as if the process were gone
		}},
	} {
		// late leaves an attempt promoting, its copy held.
		late := func(t *testing.T, a catalog.Attempt) *held {
			t.Helper()
			h := hold(line, copying.hold)
			_, err := copying.far.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
			wantCode(t, err, catalog.CodeStoreUnavailable)
			<-h.came
			line.Calm()
			if s := w.state(a); s != catalog.AttemptPromoting || w.exists(a.ObjectKey) {
				t.Fatalf("the attempt is %s", s)
			}
			return h
		}
		run := func(name string, order func(t *testing.T, a catalog.Attempt)) {
			t.Run(copying.name+"/"+name, func(t *testing.T) {
				a := w.run(owned(copying.name+"/"+name, "v1", "late"))
				w.stage(a, rastertest.Raster{})
				order(t, a)
				w.age()
				w.sweep()
				w.check(invariant.Options{Quiet: true, StagingEmpty: true})
			})
		}
		run("recovered", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			if r, err := other.Recover(t.Context()); err != nil || r.RolledForward != 1 {
				t.Fatalf("%+v %v", r, err)
			}
			h.arrive(t)
		})
		run("completed-again", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			if out, err := other.Complete(t.Context(), a.ID, upsert.CompleteRequest{}); err != nil || out.State != catalog.AttemptDone {
				t.Fatalf("%+v %v", out, err)
			}
			other.Drain(t.Context())
			if got := h.arrive(t); slices.Contains(got, http.StatusOK) && copying.name == "whole" {
				t.Errorf("a copy without its source: %d", got)
			}
		})
		run("before-the-row", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			other.on(upsert.PointPromoted, a.ID, func() { h.arrive(t) })
			if out, err := other.Complete(t.Context(), a.ID, upsert.CompleteRequest{}); err != nil || out.State != catalog.AttemptDone {
				t.Fatalf("%+v %v", out, err)
			}
		})
		// It alone is there: what it made is taken up.
		run("before-recovery", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			h.arrive(t)
			if r, err := other.Recover(t.Context()); err != nil || r.RolledForward != 1 {
				t.Fatalf("%+v %v", r, err)
			}
		})
		run("newer-version", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			newer := w.do(owned(a.TileID, "v2", "other"), rastertest.Raster{Seed: 1})
			h.arrive(t)
			if r, err := other.Recover(t.Context()); err != nil || r.RolledForward != 1 {
				t.Fatalf("%+v %v", r, err)
			}
			if d := w.begin(owned(a.TileID, "v2", "other")); d.Tile.AttemptID != newer.AttemptID || !d.Tile.Current {
				t.Fatalf("%+v", d)
			}
		})
		// What is staged is another's by then, so that recovery gives the attempt up.
		run("staged-changed", func(t *testing.T, a catalog.Attempt) {
			h := late(t, a)
			w.stage(a, rastertest.Raster{Seed: 1})
			if r, err := other.Recover(t.Context()); err != nil || r.Failed != 1 {
				t.Fatalf("%+v %v", r, err)
			}
			winner := w.do(owned(a.TileID, "v1", "other"), rastertest.Raster{Seed: 2})
			h.arrive(t)
			if copying.name != "assembly" && w.exists(a.ObjectKey) { // its parts are of the time before
				t.Fatal("other bytes than were probed reached the final name")
			}
			if d := w.begin(owned(a.TileID, "v1", "another")); d.Verdict != upsert.VerdictSkip || d.Tile.AttemptID != winner.AttemptID {
				t.Fatalf("%+v", d)
			}
			w.check(settled) // covered until it is swept
		})
		run("overtaken-and-swept", func(t *testing.T, a catalog.Attempt) {
			w.expire(a)
			winner := w.do(owned(a.TileID, "v1", "other"), rastertest.Raster{Seed: 2})
			w.exec(`UPDATE catalog.attempts SET state = 'open', ended_at = NULL, lease_until = clock_timestamp() + interval '1 minute' WHERE attempt_id = $1`, a.ID)
			h := late(t, a)
			if r, err := other.Recover(t.Context()); err != nil || r.Overtaken != 1 {
				t.Fatalf("%+v %v", r, err)
			}
			other.Drain(t.Context())
			w.age()
			w.sweep()
			if got := h.arrive(t); slices.Contains(got, http.StatusOK) || w.exists(a.ObjectKey) {
				t.Fatalf("a copy for a swept attempt: %d", got)
			}
			if d := w.begin(owned(a.TileID, "v1", "another")); d.Verdict != upsert.VerdictSkip || d.Tile.AttemptID != winner.AttemptID {
				t.Fatalf("%+v", d)
			}
		})
	}
}

// The step's own deadline ends while the server still copies; its answer finds nobody.
func TestCopyOutlivesItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	line := gatewaytest.Between(t, gateway.Gateway)
	far := w.far(line)
	far.PromoteDeadline = 2 * time.Second
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	release := make(chan bool)
	line.After(func(resp *http.Response) error {
		if gatewaytest.IsCopy(resp.Request) {
			<-release
		}
		return nil
	})
	_, err := far.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeStoreUnavailable)
	if s := w.state(a); s != catalog.AttemptPromoting || !w.exists(a.ObjectKey) {
		t.Fatal(s)
	}
	if d := w.begin(owned("t1", "v1", "another")); d.Verdict != upsert.VerdictWait {
		t.Fatalf("%+v", d)
	}
	w.check(invariant.Options{})
	out := w.complete(a)
	close(release)
	if out.State != catalog.AttemptDone || out.Tile.ObjectKey != a.ObjectKey {
		t.Fatalf("%+v", out)
	}
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}

// The copy is made and its answer lost: the step finds it, and goes on.
func TestCopyAnswerLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	line := gatewaytest.Between(t, gateway.Gateway)
	for name, change := range map[string]func(*s3.Config){
		"once": func(*s3.Config) {}, "and-asked-again": func(c *s3.Config) { c.Attempts = 3 },
		"in-parts": inParts, "in-parts-and-asked-again": func(c *s3.Config) { c.CopyThreshold, c.Attempts = 1, 3 },
	} {
		far := w.far(line, change)
		lost := line.Cut(1, func(r *http.Request) bool {
			return gatewaytest.IsAssembly(r) || gatewaytest.IsCopy(r) && !r.URL.Query().Has("uploadId")
		})
		a := w.run(request(name, "v1"))
		w.stage(a, rastertest.Raster{})
		if out, err := far.Complete(t.Context(), a.ID, upsert.CompleteRequest{}); err != nil || out.State != catalog.AttemptDone || lost.Load() == 0 {
			t.Errorf("%s: %+v %v, %d answers", name, out, err, lost.Load())
		}
		line.Calm()
		far.Drain(t.Context())
	}
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}

// 409, another request for the name is being carried out, is waited for; 412, a
// condition does not hold, is looked into. Neither is concluded from.
func TestCopyRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inBucket)
	w.watch()
	line := gatewaytest.Between(t, gateway.Gateway)
	far := w.far(line)
	for _, test := range []struct {
		name   string
		times  int64
		status int
		code   string
		change bool // of what is staged
		want   catalog.Code
		state  catalog.AttemptState
	}{
		{"conflict that passes", 2, http.StatusConflict, "ConditionalRequestConflict", false, "", catalog.AttemptDone},
		{"conflict that stays", gatewaytest.Always, http.StatusConflict, "OperationAborted", false, catalog.CodeStoreUnavailable, catalog.AttemptPromoting},
		{"condition that holds by now", 1, http.StatusPreconditionFailed, "PreconditionFailed", false, "", catalog.AttemptDone},
		{"condition that never holds", gatewaytest.Always, http.StatusPreconditionFailed, "PreconditionFailed", false, catalog.CodeStoreUnavailable, catalog.AttemptPromoting},
		{"condition of what has changed", gatewaytest.Always, http.StatusPreconditionFailed, "PreconditionFailed", true, catalog.CodeStagedChanged, catalog.AttemptFailed},
		{"slow down", gatewaytest.Always, http.StatusServiceUnavailable, "SlowDown", false, catalog.CodeStoreUnavailable, catalog.AttemptPromoting},
		{"denied", gatewaytest.Always, http.StatusForbidden, "AccessDenied", false, catalog.CodeStoreForbidden, catalog.AttemptPromoting},
	} {
		t.Run(test.name, func(t *testing.T) {
			tile := strings.ReplaceAll(test.name, " ", "-")
			a := w.run(request(tile, "v1"))
			w.stage(a, rastertest.Raster{})
			line.Refuse(test.times, test.status, test.code, gatewaytest.IsCopy)
			if test.change {
				far.on(upsert.PointIntended, a.ID, func() { w.stage(a, rastertest.Raster{Seed: 1}) })
			}
			_, err := far.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
			line.Calm()
			if code(err) != test.want {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if s := w.state(a); s != test.state {
				t.Fatalf("the attempt is %s, want %s", s, test.state)
			}
			if test.state == catalog.AttemptPromoting {
				w.complete(a) // the trouble is over
			} else if test.state == catalog.AttemptFailed {
				w.do(request(tile, "v1"), rastertest.Raster{})
			}
		})
	}
	w.age()
	w.sweep()
	w.check(invariant.Options{Quiet: true, StagingEmpty: true})
}

// sha is hexadecimal.
func sha(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
