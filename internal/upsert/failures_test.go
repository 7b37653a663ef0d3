package upsert_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// fail reports a failure and gives what became of its unit.
func (w *world) fail(a catalog.Attempt, f catalog.Failure) upsert.Failed {
	w.t.Helper()
	failed, err := w.Fail(w.t.Context(), a.ID, upsert.FailRequest{Failure: f, Message: "in words"})
	if err != nil {
		w.t.Fatalf("fail: %v", err)
	}
	return failed
}

var (
	passing = catalog.Failure{HTTPStatus: 503}
	poison  = catalog.Failure{Exception: "builtins.ValueError"}
)

// due has all that failed wait no longer.
func (w *world) due() {
	w.t.Helper()
	w.exec(`UPDATE catalog.retries SET due_at = clock_timestamp() WHERE quarantined_as IS NULL`)
}

func (w *world) release(f catalog.QuarantineFilter) int {
	w.t.Helper()
	n, err := w.db.Release(w.t.Context(), f, "me", "mended")
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// wantStatus checks one unit, of a request that was begun.
func (w *world) wantStatus(req upsert.BeginRequest, status upsert.Status, due bool) {
	w.t.Helper()
	checked, err := w.Check(w.t.Context(), []upsert.UnitRef{req.Unit}, false)
	if err != nil || checked[0].Err != nil || checked[0].Status != status || checked[0].Due != due {
		w.t.Fatalf("check: %+v %v, want %s, due %v", checked, err, status, due)
	}
}

// retries are those of a unit: tries, expiries, and why it is quarantined.
func (w *world) retries(req upsert.BeginRequest) (found string) {
	w.t.Helper()
	unit, err := catalog.NewUnit(req.Unit.Collection, req.Unit.TileID, req.Unit.Identity, "")
	must(w.t, err)
	must(w.t, w.sql.QueryRow(w.t.Context(), `
SELECT coalesce(string_agg(tries || ' ' || expiries || ' ' || reason || ' ' || coalesce(quarantined_as, '-'), ','), 'none')
FROM catalog.retries WHERE unit_key = $1`, unit.Key).Scan(&found))
	return found
}

// A failure that would come again costs one attempt, until somebody releases the unit.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	req := request("bad", "v1")
	failed := w.fail(w.run(req), poison)
	if failed.QuarantinedAs != catalog.QuarantinedDeterministic || failed.Tries != 1 || failed.Reason != "ValueError" {
		t.Fatalf("%+v", failed)
	}
	for range 3 {
		again := request("bad", "v1")
		if d := w.begin(again); d.Verdict != upsert.VerdictQuarantined || d.Class != catalog.ClassDeterministic || d.Reason != "ValueError" || d.Message != "in words" {
			t.Fatalf("%+v", d)
		}
	}
	if d := w.begin(req); d.Verdict != upsert.VerdictQuarantined { // the begin whose attempt failed
		t.Fatalf("%+v", d)
	}
	w.wantStatus(req, upsert.StatusQuarantined, false)
	w.incoming("bad.tif", rastertest.Raster{})
	_, err := w.Register(t.Context(), upsert.OutputRequest{Begin: request("bad", "v1"), Staged: "bad.tif"})
	wantCode(t, err, catalog.CodeUnitQuarantined)
	if n := w.count(`SELECT count(*) FROM catalog.attempts`); n != 1 {
		t.Fatalf("%d attempts were spent", n)
	}
	w.check(invariant.Options{Quiet: true})

	if n := w.release(catalog.QuarantineFilter{Units: []uuid.UUID{failed.UnitKey, uuid.New()}}); n != 1 {
		t.Fatalf("released %d", n)
	}
	w.wantStatus(req, upsert.StatusNew, true)
	if out := w.do(request("bad", "v1"), rastertest.Raster{}); out.State != catalog.AttemptDone {
		t.Fatalf("%+v", out)
	}
	var audit string
	must(t, w.sql.QueryRow(t.Context(), `SELECT who || ', ' || act || ', ' || target || ', ' || why || ', ' || details FROM catalog.audit`).Scan(&audit))
	if want := fmt.Sprintf(`me, release from quarantine, 2 units, mended, {"units": [%q], "released": 1}`, failed.UnitKey); audit != want {
		t.Errorf("audit: %s, want %s", audit, want)
	}
}

// What may pass is tried again thrice, each time after a pause whose bound doubles.
func TestTransient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory, func(c *upsert.Config) { c.Jitter = func() float64 { return 1 } })
	req := request("t1", "v1")
	for i, bound := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
		failed := w.fail(w.run(request("t1", "v1")), passing)
		if failed.QuarantinedAs != "" || failed.Tries != i+1 || failed.RetryAfter > bound || failed.RetryAfter < bound-10*time.Second {
			t.Fatalf("%+v, want a pause of %s", failed, bound)
		}
		d := w.begin(request("t1", "v1"))
		if d.Verdict != upsert.VerdictWait || d.RetryAfter > bound || d.RetryAfter < bound-20*time.Second {
			t.Fatalf("%+v", d)
		}
		w.wantStatus(req, upsert.StatusNew, false)
		w.incoming("t1.tif", rastertest.Raster{})
		_, err := w.Register(t.Context(), upsert.OutputRequest{Begin: request("t1", "v1"), Staged: "t1.tif"})
		wantCode(t, err, catalog.CodeUnitHeld)
		w.due()
		w.wantStatus(req, upsert.StatusNew, true)
	}
	if failed := w.fail(w.run(request("t1", "v1")), passing); failed.QuarantinedAs != catalog.QuarantinedExhausted || failed.Tries != 4 {
		t.Fatalf("%+v", failed)
	}
	if d := w.begin(request("t1", "v1")); d.Verdict != upsert.VerdictQuarantined || d.Class != catalog.ClassTransient || d.Reason != "http_503" {
		t.Fatalf("%+v", d)
	}
	w.check(invariant.Options{Quiet: true})
}

// The pause is drawn from 0 to its bound, and no bound is above the cap, however often a
// unit fails.
func TestPauses(t *testing.T) {
	t.Parallel()
	var jitter atomic.Value
	w := newWorld(t, inDirectory, func(c *upsert.Config) { c.Jitter = func() float64 { return jitter.Load().(float64) } })
	w.collection("patient", catalog.Policy{OrderBy: catalog.OrderVersion, Retry: catalog.RetryPolicy{
		MaxRetries: 2000, Base: 1500 * time.Millisecond, Cap: 20 * time.Second, MaxExpiries: 10,
	}})
	for tries, bound := range map[int]time.Duration{0: 1500, 1: 3000, 2: 6000, 3: 12000, 4: 20000, 5: 20000, 70: 20000, 1999: 20000} {
		for _, part := range []float64{0, 0.25, 1} {
			req := in("patient", fmt.Sprintf("t%d-%v", tries, part), "v1")
			jitter.Store(0.0)
			if tries > 0 {
				w.fail(w.run(req), passing)
				w.exec(`UPDATE catalog.retries SET tries = $1 WHERE tile_id = $2`, tries, req.Unit.TileID)
				req.RequestID = uuid.NewString()
			}
			jitter.Store(part)
			a := w.run(req)
			w.fail(a, passing)
			got := time.Duration(w.count(`SELECT (extract(epoch FROM due_at - last_failed_at) * 1000)::bigint FROM catalog.retries WHERE tile_id = $1`, req.Unit.TileID))
			if want := time.Duration(float64(bound) * part); got != want {
				t.Errorf("after %d tries, at %v: a pause of %d ms, want %d", tries, part, got, want)
			}
		}
	}
	// Without a jitter of the test's own it is drawn evenly.
	var sum float64
	drawn := upsert.New(upsert.Config{}).Jitter
	for range 1000 {
		part := drawn()
		if sum += part; part < 0 || part >= 1 {
			t.Fatal(part)
		}
	}
	if sum < 400 || sum > 600 {
		t.Errorf("drawn: %v in 1000", sum)
	}
}

// A unit that became done has never failed; what fails later counts from one.
func TestSuccessForgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	req := request("t1", "v1")
	for range 3 {
		w.fail(w.run(request("t1", "v1")), passing)
	}
	tile := w.do(request("t1", "v1"), rastertest.Raster{}).Tile
	if got := w.retries(req); got != "none" {
		t.Fatal(got)
	}
	w.lose(tile)
	if failed := w.fail(w.run(request("t1", "v1")), passing); failed.Tries != 1 {
		t.Fatalf("%+v", failed)
	}
	w.fail(w.run(request("t1", "v1")), poison)
	if d := w.begin(request("t1", "v1")); d.Verdict != upsert.VerdictQuarantined {
		t.Fatalf("%+v", d)
	}
	// The object comes back: the unit is done, whatever failed.
	w.put(tile.ObjectKey, rastertest.Raster{}.Bytes())
	if d := w.begin(request("t1", "v1")); d.Verdict != upsert.VerdictSkip {
		t.Fatalf("%+v", d)
	}
	w.wantStatus(req, upsert.StatusDone, false)
	w.check(settled)
}

// A new version of what is done is due, and its failure is its own.
func TestStaleVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.do(request("t1", "v7"), rastertest.Raster{})
	w.wantStatus(request("t1", "v8"), upsert.StatusStale, true)
	w.fail(w.run(request("t1", "v8")), poison)
	w.wantStatus(request("t1", "v8"), upsert.StatusQuarantined, false)
	if d := w.begin(request("t1", "v7")); d.Verdict != upsert.VerdictSkip || !d.Tile.Current {
		t.Fatalf("%+v", d)
	}
	if out := w.do(request("t1", "v9"), rastertest.Raster{}); out.State != catalog.AttemptDone || !out.Tile.Current {
		t.Fatalf("%+v", out)
	}
	// The hole can be mapped: it has the footprint of what its place shows.
	if n := w.count(`SELECT count(*) FROM catalog.quarantined_units WHERE tile_id = 't1' AND version = 'v8' AND attempts = 1 AND ST_Area(geom) > 0`); n != 1 {
		t.Error("quarantined_units does not show it")
	}
}

// A report that is sent again changes nothing, and is answered as the first was,
// whatever has become of the unit.
func TestFailTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	req := request("t1", "v1")
	first := w.run(req)
	told := w.fail(first, passing)
	same := func(when string) {
		t.Helper()
		before := w.retries(req)
		if again := w.fail(first, poison); again != told {
			t.Errorf("%s: %+v, want %+v", when, again, told)
		}
		if after := w.retries(req); after != before {
			t.Errorf("%s: %s, was %s", when, after, before)
		}
	}
	same("at once")
	second := w.run(request("t1", "v1"))
	same("while another tries")
	w.fail(second, poison)
	same("after another failed")
	w.release(catalog.QuarantineFilter{Collection: "landcover"})
	same("after a release")
	w.do(request("t1", "v1"), rastertest.Raster{})
	same("when it is done")
	if n := w.count(`SELECT count(*) FROM catalog.failures`); n != 2 {
		t.Errorf("%d failures", n)
	}

	// All at once.
	a := w.run(request("t2", "v1"))
	answers := make([]upsert.Failed, 16)
	var group errgroup.Group
	for i := range answers {
		group.Go(func() (err error) {
			answers[i], err = w.Fail(t.Context(), a.ID, upsert.FailRequest{Failure: passing})
			return err
		})
	}
	must(t, group.Wait())
	for _, answer := range answers {
		if answer != answers[0] || answer.Tries != 1 {
			t.Errorf("%+v and %+v", answer, answers[0])
		}
	}
	if got := w.retries(request("t2", "v1")); got != "1 0 http_503 -" {
		t.Error(got)
	}
}

func TestFailRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	a := w.run(request("t1", "v1"))
	for _, c := range []struct {
		req   upsert.FailRequest
		field string
	}{
		{upsert.FailRequest{}, "/reason"},
		{upsert.FailRequest{Failure: catalog.Failure{Reason: "a\nb"}}, "/reason"},
		{upsert.FailRequest{Failure: catalog.Failure{Reason: "x", HTTPStatus: 600}}, "/http_status"},
		{upsert.FailRequest{Failure: catalog.Failure{Reason: "x", Exception: "a\x00"}}, "/exception"},
		{upsert.FailRequest{Failure: catalog.Failure{Reason: "x"}, Message: "a\x00"}, "/message"},
	} {
		_, err := w.Fail(t.Context(), a.ID, c.req)
		refused(t, err, catalog.CodeInvalidRequest, c.field)
	}
	_, err := w.Fail(t.Context(), uuid.New(), upsert.FailRequest{Failure: passing})
	wantCode(t, err, catalog.CodeUnknownAttempt)
	must(t, w.Abandon(t.Context(), a.ID))
	_, err = w.Fail(t.Context(), a.ID, upsert.FailRequest{Failure: passing})
	wantCode(t, err, catalog.CodeAttemptEnded)
	if got := w.retries(request("t1", "v1")); got != "none" {
		t.Errorf("what was given up counts: %s", got)
	}
}

// Attempts that end without a word are counted apart, and have a limit of their own.
func TestExpiries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.collection("short", catalog.Policy{OrderBy: catalog.OrderVersion, Retry: catalog.RetryPolicy{MaxRetries: 1, Cap: time.Second, MaxExpiries: 3}})
	req := in("short", "t1", "v1")
	next := func(owner string, try int) upsert.BeginRequest {
		r := in("short", "t1", "v1")
		r.Owner, r.Try = owner, try
		return r
	}
	a := w.run(next("one", 0))
	w.expire(a)
	w.sweep()
	if got := w.retries(req); got != "0 1 lease_expired -" {
		t.Fatal(got)
	}
	w.run(next("one", 0)) // due at once
	a = w.run(next("one", 1))
	if got := w.retries(req); got != "0 2 replaced -" {
		t.Fatal(got)
	}
	if failed := w.fail(a, passing); failed.Tries != 1 {
		t.Fatalf("%+v", failed)
	}
	w.expire(w.run(next("two", 0)))
	a = w.run(next("three", 0))
	if got := w.retries(req); got != "1 3 lease_expired -" {
		t.Fatal(got)
	}
	// The one too many is found by whoever would take over, and takes nothing over.
	w.expire(a)
	if d := w.begin(next("four", 0)); d.Verdict != upsert.VerdictQuarantined || d.Reason != "lease_expired" || d.Class != catalog.ClassTransient {
		t.Fatalf("%+v", d)
	}
	if got := w.retries(req); got != "1 4 lease_expired expired" || w.state(a) != catalog.AttemptExpired {
		t.Fatalf("%s, attempt %s", got, w.state(a))
	}
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeAttemptLost)
	w.check(invariant.Options{Quiet: true})

	// A sweep finds many at once.
	for i := range 5 {
		w.expire(w.run(in("short", fmt.Sprint("many", i), "v1")))
	}
	if swept := w.sweep(); swept.Expired != 5 {
		t.Fatalf("%+v", swept)
	}
	if n := w.count(`SELECT count(*) FROM catalog.retries WHERE expiries = 1 AND tries = 0`); n != 5 {
		t.Fatalf("%d", n)
	}
}

// What the step itself finds wrong may pass, and counts.
func TestStepsOwnFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	for range 4 {
		a := w.run(request("t1", "v1"))
		w.stage(a, rastertest.Raster{})
		w.on(upsert.PointIntended, a.ID, func() { w.stage(a, rastertest.Raster{Seed: 7}) })
		_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
		wantCode(t, err, catalog.CodeStagedChanged)
		// The task reports what it was told: that is known.
		if failed := w.fail(a, catalog.Failure{Class: catalog.ClassDeterministic, Reason: "staged_changed"}); failed.Class != catalog.ClassTransient {
			t.Fatalf("%+v", failed)
		}
	}
	if got := w.retries(request("t1", "v1")); got != "4 0 staged_changed exhausted" {
		t.Fatal(got)
	}
}

// What fails while its store is away spends no try, unless it would fail anyway.
func TestFailWhileStoreAway(t *testing.T) { onBoth(t, testFailWhileStoreAway) }

func testFailWhileStoreAway(t *testing.T, on place) {
	w := newWorld(t, on)
	var attempts []catalog.Attempt
	for i := range 6 {
		attempts = append(attempts, w.run(request(fmt.Sprint("t", i), "v1")))
	}
	before := w.run(request("before", "v1"))
	w.fail(before, passing)
	bad := w.run(request("bad", "v1"))
	again := w.run(request("before", "v1"))

	away := w.site.aways(t)[0]
	away.goes()
	for _, a := range attempts {
		if failed := w.fail(a, passing); failed.Spent || failed.Tries != 0 || failed.QuarantinedAs != "" {
			t.Errorf("%+v", failed)
		}
	}
	if failed := w.fail(again, passing); failed.Spent || failed.Tries != 1 {
		t.Errorf("%+v", failed)
	}
	if failed := w.fail(bad, poison); !failed.Spent || failed.QuarantinedAs == "" {
		t.Errorf("%+v", failed)
	}
	away.comes()
	if failed := w.fail(w.run(request("before", "v1")), passing); !failed.Spent || failed.Tries != 2 {
		t.Errorf("%+v", failed)
	}
	if n := w.count(`SELECT count(*) FROM catalog.failures WHERE NOT spent`); n != 7 {
		t.Errorf("%d failures spent nothing", n)
	}
}

// opening is a ledger at which somebody else comes first, once.
type opening struct {
	*postgres.DB
	once   sync.Once
	before func()
}

func (o *opening) Open(ctx context.Context, unit catalog.Unit, a catalog.Attempt, lease time.Duration) (upsert.Opened, error) {
	o.once.Do(o.before)
	return o.DB.Open(ctx, unit, a, lease)
}

// A begin that looked before a unit failed makes no attempt at it: neither when the
// failure is committed before its own write, nor when its write has to wait for that.
func TestFailAgainstBegin(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]bool{"before the write": false, "during the write": true} {
		for _, c := range []struct {
			failure catalog.Failure
			verdict upsert.Verdict
		}{{poison, upsert.VerdictQuarantined}, {passing, upsert.VerdictWait}} {
			t.Run(name+"/"+string(c.verdict), func(t *testing.T) {
				w := newWorld(t, inDirectory)
				w.fail(w.run(request("t1", "v1")), passing) // has a row that can be locked
				late := w.another(func(cfg *upsert.Config) { cfg.Jitter = func() float64 { return 1 } })
				var failed <-chan result[upsert.Failed]
				end := func(bool) {}
				first := &opening{DB: w.db}
				first.before = func() {
					a := w.run(owned("t1", "v1", "first"))
					if wait {
						end = w.lock(`SELECT FROM catalog.retries FOR UPDATE`)
					}
					failed = async(func() (upsert.Failed, error) {
						return late.Fail(t.Context(), a.ID, upsert.FailRequest{Failure: c.failure})
					})
					if wait {
						w.blocked(1)
					} else if f := <-failed; f.err != nil {
						t.Error(f.err)
					}
				}
				second := w.another(func(cfg *upsert.Config) { cfg.Ledger = first })
				begun := async(func() (upsert.Decision, error) { return second.Begin(t.Context(), owned("t1", "v1", "second")) })
				if wait {
					w.blocked(2)
					end(false)
				}
				if d := <-begun; d.err != nil || d.value.Verdict != c.verdict {
					t.Errorf("%+v, want %s", d, c.verdict)
				}
				if n := w.count(`SELECT count(*) FROM catalog.attempts`); n != 2 {
					t.Errorf("%d attempts", n)
				}
				w.check(invariant.Options{Quiet: true})
			})
		}
	}
}

// A failure that comes while a sweep ends its attempt is too late; one that came first is
// all there was.
func TestFailAgainstExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	late := w.run(request("late", "v1"))
	w.fail(late, passing)
	late = w.run(request("late", "v1"))
	w.expire(late)
	end := w.lock(`SELECT FROM catalog.retries FOR UPDATE`)
	swept := async(func() (upsert.Swept, error) { return w.Sweep(t.Context()) })
	w.blocked(1)
	failed := async(func() (upsert.Failed, error) {
		return w.Fail(t.Context(), late.ID, upsert.FailRequest{Failure: poison})
	})
	w.blocked(2)
	end(false)
	if s := <-swept; s.err != nil || s.value.Expired != 1 {
		t.Errorf("%+v", s)
	}
	wantCode(t, (<-failed).err, catalog.CodeAttemptLost)
	if got := w.retries(request("late", "v1")); got != "1 1 lease_expired -" {
		t.Error(got)
	}

	early := w.run(request("late", "v1"))
	w.expire(early)
	end = w.lock(`SELECT FROM catalog.retries FOR UPDATE`)
	failed = async(func() (upsert.Failed, error) {
		return w.Fail(t.Context(), early.ID, upsert.FailRequest{Failure: poison})
	})
	w.blocked(1)
	if s, err := w.Sweep(t.Context()); err != nil || s.Expired != 0 { // passes over what another holds
		t.Errorf("%+v %v", s, err)
	}
	taken := async(func() (upsert.Decision, error) { return w.Begin(t.Context(), owned("late", "v1", "other")) })
	w.blocked(2)
	end(false)
	if f := <-failed; f.err != nil || f.value.Tries != 2 {
		t.Errorf("%+v", f)
	}
	if d := <-taken; d.err != nil || d.value.Verdict != upsert.VerdictQuarantined {
		t.Errorf("%+v", d)
	}
	if got := w.retries(request("late", "v1")); got != "2 1 ValueError deterministic" {
		t.Error(got)
	}
	w.check(invariant.Options{Quiet: true})
}

// However a release falls among begins, nobody works on a quarantined unit, and one does
// on a released one.
func TestReleaseAgainstBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	for round := range 10 {
		tile := fmt.Sprint("t", round)
		w.fail(w.run(request(tile, "v1")), poison)
		var runs atomic.Int64
		var group errgroup.Group
		for i := range 8 {
			group.Go(func() error {
				for {
					d, err := w.Begin(t.Context(), owned(tile, "v1", fmt.Sprint("w", i)))
					switch {
					case err != nil:
						return err
					case d.Verdict == upsert.VerdictRun:
						runs.Add(1)
						return nil
					case d.Verdict == upsert.VerdictWait:
						return nil // another runs
					}
				}
			})
		}
		if n := w.release(catalog.QuarantineFilter{Collection: "landcover", Class: catalog.ClassDeterministic, Reason: "Value*"}); n != 1 {
			t.Errorf("released %d", n)
		}
		must(t, group.Wait())
		if runs.Load() != 1 {
			t.Errorf("%d run", runs.Load())
		}
		w.check(invariant.Options{})
	}
}

// A release that two ask for at once is one.
func TestReleaseTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	for i := range 20 {
		w.fail(w.run(request(fmt.Sprint("t", i), "v1")), poison)
	}
	var released atomic.Int64
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			n, err := w.db.Release(t.Context(), catalog.QuarantineFilter{Collection: "landcover"}, "me", "why")
			released.Add(int64(n))
			return err
		})
	}
	must(t, group.Wait())
	if n := w.count(`SELECT sum((details ->> 'released')::integer) FROM catalog.audit`); released.Load() != 20 || n != 20 {
		t.Errorf("released %d, audited %d", released.Load(), n)
	}
}

// Quarantined units are listed by place, page by page, whatever is released meanwhile.
func TestQuarantined(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t, inDirectory)
	w.collection("dem", catalog.Policy{OrderBy: catalog.OrderVersion, Retry: catalog.RetryPolicy{
		Cap: time.Second, MaxExpiries: 1, Rules: []catalog.FailureRule{{Reason: "exit_1", Class: catalog.ClassDeterministic}},
	}})
	for i := range 5 {
		w.fail(w.run(request(fmt.Sprint("t", i), "v1")), poison)
		w.fail(w.run(in("dem", fmt.Sprint("d", i), "v1")), catalog.Failure{Reason: "exit_2"}) // no retries there
	}
	w.fail(w.run(in("dem", "d9", "v1")), catalog.Failure{Reason: "exit_1"})
	w.fail(w.run(request("waiting", "v1")), passing)

	list := func(f catalog.QuarantineFilter, limit int) (tiles string) {
		t.Helper()
		after := uuid.Nil
		for {
			units, err := w.db.Quarantined(ctx, f, after, limit)
			must(t, err)
			for _, u := range units {
				tiles += u.TileID + " "
			}
			if len(units) < limit {
				return tiles
			}
			after = units[limit-1].UnitKey
			if limit == 3 {
				w.release(catalog.QuarantineFilter{Units: []uuid.UUID{after}})
			}
		}
	}
	for _, c := range []struct {
		filter catalog.QuarantineFilter
		want   string
	}{
		{catalog.QuarantineFilter{}, "d0 d1 d2 d3 d4 d9 t0 t1 t2 t3 t4 "},
		{catalog.QuarantineFilter{Collection: "landcover"}, "t0 t1 t2 t3 t4 "},
		{catalog.QuarantineFilter{Collection: "elsewhere"}, ""},
		{catalog.QuarantineFilter{Class: catalog.ClassTransient}, "d0 d1 d2 d3 d4 "},
		{catalog.QuarantineFilter{Collection: "dem", Class: catalog.ClassDeterministic}, "d9 "},
		{catalog.QuarantineFilter{Reason: "exit_?"}, "d0 d1 d2 d3 d4 d9 "},
		{catalog.QuarantineFilter{Reason: "exit?1"}, "d9 "},
		{catalog.QuarantineFilter{Reason: "exit%"}, ""},
	} {
		for _, limit := range []int{1, 2, 100} {
			if got := list(c.filter, limit); got != c.want {
				t.Errorf("%+v by %d: %q, want %q", c.filter, limit, got, c.want)
			}
		}
	}
	if got := list(catalog.QuarantineFilter{}, 3); got != "d0 d1 d2 d3 d4 d9 t0 t1 t2 t3 t4 " {
		t.Errorf("while some are released: %q", got)
	}
	_, err := w.db.Quarantined(ctx, catalog.QuarantineFilter{}, uuid.New(), 3)
	wantCode(t, err, catalog.CodeInvalidRequest)

	units, err := w.db.Quarantined(ctx, catalog.QuarantineFilter{Collection: "dem", Class: catalog.ClassTransient}, uuid.Nil, 1)
	must(t, err)
	one, failures, err := w.db.QuarantinedUnit(ctx, units[0].UnitKey)
	if err != nil || one.QuarantinedAs != catalog.QuarantinedExhausted || one.Version != "v1" || one.Message != "in words" || one.Worker != "worker" || len(failures) != 1 || !failures[0].Spent {
		t.Errorf("%+v %+v %v", one, failures, err)
	}
	_, _, err = w.db.QuarantinedUnit(ctx, uuid.New())
	wantCode(t, err, catalog.CodeNotFound)
	totals, err := w.db.Totals(ctx)
	if left := w.count(`SELECT count(*) FROM catalog.quarantined_units`); err != nil || totals.QuarantinedUnits != int64(left) || left == 0 || totals.RetryingUnits != 1 {
		t.Errorf("%+v, %d quarantined, %v", totals, left, err)
	}
}
