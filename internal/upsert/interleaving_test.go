package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// The orders that matter. Hooks stop a step at its points while others act; at
// the end of each order the invariants are asserted from outside, and all the
// while a reader asserts that nothing at a final name ever changes.

var settled = invariant.Options{Quiet: true, Linked: true}

// watch reads every final name that it can see, over and over, until the test
// ends: what is there must never be anything else.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var changed []string
	go func() {
		defer close(done)
		seen := map[string]sight{}
		tick := time.NewTicker(w.site.pace())
		defer tick.Stop()
		for ended := false; !ended; {
			ended = ctx.Err() != nil // and once more
			for key, now := range w.site.look(seen, ended) {
				if before, known := seen[key]; known && before.sum != now.sum {
					changed = append(changed, key)
				}
				seen[key] = now
			}
			<-tick.C
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
		for _, key := range changed {
			w.t.Errorf("%s changed", key)
		}
	})
}

// expire ends an open attempt's lease.
func (w *world) expire(a catalog.Attempt) {
	w.t.Helper()
	w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 day' WHERE attempt_id = $1 AND state = 'open'`, a.ID)
}

// age makes all that ended, and all that is to be removed, old enough for a sweep.
func (w *world) age() {
	w.t.Helper()
	w.exec(`UPDATE catalog.attempts SET created_at = created_at - interval '1 day', ended_at = ended_at - interval '1 day' WHERE state NOT IN ('open', 'promoting', 'done')`)
	w.exec(`UPDATE catalog.removals SET created_at = created_at - interval '1 day'`)
}

func (w *world) sweep() upsert.Swept {
	w.t.Helper()
	swept, err := w.Sweep(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return swept
}

func (w *world) state(a catalog.Attempt) catalog.AttemptState {
	w.t.Helper()
	now, _, err := w.db.Attempt(w.t.Context(), a.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return now.State
}

// owned is request by another owner.
func owned(tile, version, owner string) upsert.BeginRequest {
	req := request(tile, version)
	req.Owner = owner
	return req
}

func from(at upsert.Point) []upsert.Point {
	for i, p := range upsert.Points {
		if p == at {
			return upsert.Points[i:]
		}
	}
	return nil
}

func intended(at upsert.Point) bool {
	for _, p := range from(upsert.PointIntended) {
		if p == at {
			return true
		}
	}
	return false
}

func code(err error) catalog.Code {
	if err == nil {
		return ""
	}
	return catalog.CodeOf(err)
}

// The first attempt's lease ended and a second took over; the first completes
// late, at every point of the second.
func TestLateFirst(t *testing.T) { onBoth(t, testLateFirst) }

func testLateFirst(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, bytes := range []string{"same", "different"} {
		for _, at := range from(upsert.PointStaged) {
			t.Run(bytes+" bytes/"+string(at), func(t *testing.T) {
				tile := bytes + "/" + string(at)
				first := w.run(owned(tile, "v1", "one"))
				w.stage(first, rastertest.Raster{})
				w.expire(first)
				second := w.run(owned(tile, "v1", "two"))
				w.stage(second, rastertest.Raster{Seed: byte(len(bytes) - len("same"))})
				var late error
				w.on(at, second.ID, func() { _, late = other.Complete(t.Context(), first.ID, upsert.CompleteRequest{}) })
				if out := w.complete(second); out.State != catalog.AttemptDone || out.Tile.AttemptID != second.ID {
					t.Fatalf("%+v", out)
				}
				wantCode(t, late, catalog.CodeAttemptLost)
				if w.exists(first.ObjectKey) {
					t.Fatal("the late first reached its final name")
				}
			})
		}
	}
	w.check(settled)
}

// A second attempt comes, and the lease of the first has ended, at every point of
// the first: until the intent it takes over, from then on it waits.
func TestSecondComes(t *testing.T) { onBoth(t, testSecondComes) }

func testSecondComes(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, at := range upsert.Points {
		t.Run(string(at), func(t *testing.T) {
			var first, second catalog.Attempt
			var decision upsert.Decision
			come := func() {
				w.expire(first)
				var err error
				if decision, err = other.Begin(t.Context(), owned(string(at), "v1", "two")); err != nil {
					t.Error(err)
				}
			}
			first = w.run(owned(string(at), "v1", "one"))
			w.stage(first, rastertest.Raster{})
			if at == upsert.PointBegun {
				come()
			} else {
				w.on(at, first.ID, come)
			}
			out, err := w.Complete(t.Context(), first.ID, upsert.CompleteRequest{})
			switch decision.Verdict {
			case upsert.VerdictRun:
				if intended(at) {
					t.Fatal("a promoting attempt was taken over")
				}
				wantCode(t, err, catalog.CodeAttemptLost)
				second = *decision.Attempt
				w.stage(second, rastertest.Raster{Seed: 1})
				if out := w.complete(second); out.Tile.AttemptID != second.ID {
					t.Fatalf("%+v", out)
				}
			case upsert.VerdictWait:
				if err != nil || out.State != catalog.AttemptDone || at == upsert.PointUpserted || at == upsert.PointTidied {
					t.Fatalf("%+v %v", out, err)
				}
			case upsert.VerdictSkip:
				if err != nil || at != upsert.PointUpserted && at != upsert.PointTidied {
					t.Fatalf("skip at %s: %v", at, err)
				}
			}
			if again := w.begin(owned(string(at), "v1", "three")); again.Verdict != upsert.VerdictSkip {
				t.Fatalf("%+v", again)
			}
		})
	}
	w.check(settled)
}

// Versions of one slot finish in every order; the highest is current.
func TestVersionsInEveryOrder(t *testing.T) { onBoth(t, testVersionsInEveryOrder) }

func testVersionsInEveryOrder(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for n, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		tile := fmt.Sprint("order", n)
		var attempts []catalog.Attempt
		for v := range 3 {
			a := w.run(request(tile, fmt.Sprint("v", v)))
			w.stage(a, rastertest.Raster{Seed: byte(v)})
			attempts = append(attempts, a)
		}
		for i, v := range order {
			out := w.complete(attempts[v])
			highest := true
			for _, before := range order[:i] {
				highest = highest && before < v
			}
			if out.Tile.Current != highest {
				t.Fatalf("order %v: v%d current %v", order, v, out.Tile.Current)
			}
		}
		w.check(settled)
	}
}

// One version stops at each point while the other goes through.
func TestVersionsBetweenPoints(t *testing.T) { onBoth(t, testVersionsBetweenPoints) }

func testVersionsBetweenPoints(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, stops := range []string{"v1", "v2"} {
		for _, at := range from(upsert.PointStaged) {
			tile := stops + "/" + string(at)
			attempts := map[string]catalog.Attempt{}
			for i, version := range []string{"v1", "v2"} {
				a := w.run(request(tile, version))
				w.stage(a, rastertest.Raster{Seed: byte(i)})
				attempts[version] = a
			}
			goes := "v1"
			if stops == "v1" {
				goes = "v2"
			}
			reached, resume := w.pause(at, attempts[stops].ID)
			done := w.completing(w.replica, attempts[stops])
			<-reached
			if _, err := other.Complete(t.Context(), attempts[goes].ID, upsert.CompleteRequest{}); err != nil {
				t.Error(err)
			}
			resume()
			if r := <-done; r.err != nil {
				t.Error(r.err)
			}
			if d := w.begin(request(tile, "v2")); !d.Tile.Current {
				t.Errorf("%s stopped at %s: v2 is not current", stops, at)
			}
		}
	}
	w.check(settled)
}

// Recovery runs on another server while a step is at each of its points, and the
// other way round; each time the step then goes on.
func TestRecoveryAgainstLiveStep(t *testing.T) { onBoth(t, testRecoveryAgainstLiveStep) }

func testRecoveryAgainstLiveStep(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, at := range from(upsert.PointStaged) {
		t.Run("recovery while the step is "+string(at), func(t *testing.T) {
			a := w.run(request("live/"+string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			reached, resume := w.pause(at, a.ID)
			defer resume()
			done := w.completing(w.replica, a)
			<-reached
			recovered, err := other.Recover(t.Context())
			open := at == upsert.PointIntended || at == upsert.PointPromoted
			if err != nil || (recovered.RolledForward == 1) != open || recovered.Failed+recovered.Unfinished != 0 {
				t.Fatalf("%+v %v", recovered, err)
			}
			resume()
			if r := <-done; r.err != nil || r.value.State != catalog.AttemptDone {
				t.Fatalf("%+v", r)
			}
		})
	}
	for _, at := range from(upsert.PointPromoted) {
		t.Run("the step while recovery is "+string(at), func(t *testing.T) {
			a := w.run(request("recovery/"+string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			reached, resume := w.pause(upsert.PointIntended, a.ID)
			defer resume()
			done := w.completing(w.replica, a)
			<-reached
			there, letGo := other.pause(at, a.ID)
			defer letGo()
			recovering := async(func() (upsert.Recovered, error) { return other.Recover(t.Context()) })
			<-there
			resume()
			if r := <-done; r.err != nil || r.value.State != catalog.AttemptDone {
				t.Fatalf("%+v", r)
			}
			letGo()
			if r := <-recovering; r.err != nil || r.value.RolledForward != 1 {
				t.Fatalf("%+v", r)
			}
		})
	}
	w.check(settled)
}

// An attempt that ended after recovery had listed it is left alone, and so is the
// staged file that somebody else has put under the same name since.
func TestRecoveryOfWhatHasEnded(t *testing.T) { onBoth(t, testRecoveryOfWhatHasEnded) }

func testRecoveryOfWhatHasEnded(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	listed := &listing{DB: w.db, listed: make(chan struct{}), on: make(chan struct{})}
	other := w.another(func(c *upsert.Config) { c.Ledger = listed })
	w.incoming("x.tif", rastertest.Raster{})
	req := upsert.OutputRequest{Begin: request("t1", "v1"), Staged: "x.tif"}
	reached, resume := w.pause(upsert.PointIntended, uuid.Nil)
	defer resume()
	done := async(func() (upsert.OutputResult, error) { return w.Register(t.Context(), req) })
	<-reached
	recovering := async(func() (upsert.Recovered, error) { return other.Recover(t.Context()) })
	<-listed.listed
	resume()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	w.incoming("x.tif", rastertest.Raster{}) // for another unit
	w.remove(r.value.Outcome.Tile.ObjectKey)
	close(listed.on)
	if r := <-recovering; r.err != nil || r.value.Failed+r.value.Unfinished != 0 {
		t.Fatalf("%+v", r)
	}
	if !w.exists(".staging/in/x.tif") {
		t.Fatal("recovery took the staged file of another unit")
	}
	req.Begin = request("t2", "v1")
	if _, err := w.Register(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	w.check(invariant.Options{Quiet: true, Lost: []string{r.value.Outcome.Tile.ObjectKey}})
}

func (w *world) incoming(name string, raster rastertest.Raster) {
	w.t.Helper()
	w.put(".staging/in/"+name, raster.Bytes())
}

// Two completes of one attempt are one step, in one process and in two.
func TestCompleteTwice(t *testing.T) { onBoth(t, testCompleteTwice) }

func testCompleteTwice(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, at := range from(upsert.PointStaged) {
		t.Run("one process/"+string(at), func(t *testing.T) {
			a := w.run(request("one/"+string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			reached, resume := w.pause(at, a.ID)
			defer resume()
			first := w.completing(w.replica, a)
			<-reached
			second := w.completing(w.replica, a)
			resume()
			r1, r2 := <-first, <-second
			if r1.err != nil || r2.err != nil || r1.value.Tile.ObjectKey != r2.value.Tile.ObjectKey {
				t.Fatalf("%+v\n%+v", r1, r2)
			}
		})
		t.Run("two processes/"+string(at), func(t *testing.T) {
			a := w.run(request("two/"+string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			reached, resume := w.pause(at, a.ID)
			defer resume()
			first := w.completing(w.replica, a)
			<-reached
			second, err := other.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
			if err != nil || second.State != catalog.AttemptDone {
				t.Fatalf("%+v %v", second, err)
			}
			resume()
			if r := <-first; r.err != nil || r.value.State != catalog.AttemptDone || r.value.Tile.ObjectKey != second.Tile.ObjectKey {
				t.Fatalf("%+v", r)
			}
		})
	}
	// Both open the file before either writes its intent.
	a := w.run(request("both", "v1"))
	w.stage(a, rastertest.Raster{})
	there, resume := w.pause(upsert.PointProbed, a.ID)
	otherThere, otherResume := other.pause(upsert.PointProbed, a.ID)
	first, second := w.completing(w.replica, a), w.completing(other, a)
	<-there
	<-otherThere
	resume()
	otherResume()
	if r1, r2 := <-first, <-second; r1.err != nil || r2.err != nil {
		t.Fatalf("%+v\n%+v", r1, r2)
	}
	w.check(settled)
}

// A client that hangs up changes nothing: the step goes on, and whoever completes
// next learns how it ended.
func TestClientHangsUp(t *testing.T) { onBoth(t, testClientHangsUp) }

func testClientHangsUp(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for _, at := range from(upsert.PointStaged) {
		t.Run(string(at), func(t *testing.T) {
			a := w.run(request(string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			reached, resume := w.pause(at, a.ID)
			defer resume()
			done := async(func() (upsert.Outcome, error) { return w.Complete(ctx, a.ID, upsert.CompleteRequest{}) })
			<-reached
			hangUp()
			wantCode(t, (<-done).err, catalog.CodeOutcomeUnknown)
			next := w.completing(w.replica, a)
			resume()
			if r := <-next; r.err != nil || r.value.State != catalog.AttemptDone {
				t.Fatalf("%+v", r)
			}
		})
	}
	w.check(settled)
}

// The same registration comes to two servers, at every point of the first.
func TestRegisterTwice(t *testing.T) { onBoth(t, testRegisterTwice) }

func testRegisterTwice(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, at := range from(upsert.PointStaged) {
		t.Run(string(at), func(t *testing.T) {
			w.incoming(string(at)+".tif", rastertest.Raster{})
			req := upsert.OutputRequest{Begin: request(string(at), "v1"), Staged: string(at) + ".tif"}
			reached, resume := w.pause(at, uuid.Nil)
			defer resume()
			first := async(func() (upsert.OutputResult, error) { return w.Register(t.Context(), req) })
			<-reached
			second, err := other.Register(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			resume()
			if r := <-first; r.err != nil || r.value.Outcome.Tile.ObjectKey != second.Outcome.Tile.ObjectKey {
				t.Fatalf("%+v", r)
			}
		})
	}
	w.check(settled)
}

// A begin that is sent again finds its attempt, or what has become of it.
func TestReplayedBegin(t *testing.T) { onBoth(t, testReplayedBegin) }

func testReplayedBegin(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	req := request("t1", "v1")
	a := w.run(req)
	w.expire(a) // a replay takes its own attempt up again
	if again := w.run(req); again.ID != a.ID || again.StagingKey != a.StagingKey || !again.LeaseUntil.After(time.Now()) {
		t.Fatalf("%+v", again)
	}
	w.stage(a, rastertest.Raster{})
	for _, at := range []upsert.Point{upsert.PointIntended, upsert.PointPromoted} {
		w.on(at, a.ID, func() {
			if d, err := w.Begin(t.Context(), req); err != nil || d.Verdict != upsert.VerdictWait {
				t.Errorf("replayed at %s: %+v %v", at, d, err)
			}
		})
	}
	w.complete(a)
	if d := w.begin(req); d.Verdict != upsert.VerdictSkip {
		t.Fatalf("%+v", d)
	}

	req = request("t2", "v1")
	a = w.run(req)
	if err := w.Abandon(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	_, err := w.Begin(t.Context(), req)
	wantCode(t, err, catalog.CodeAttemptEnded)
	w.check(settled)
}

// The same owner's higher try takes an open attempt over at once, and a promoting
// one never; a lower try, and another owner, wait.
func TestHigherTry(t *testing.T) { onBoth(t, testHigherTry) }

func testHigherTry(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	try := func(n int, owner string) upsert.BeginRequest {
		req := owned("t1", "v1", owner)
		req.Try = n
		return req
	}
	first := w.run(try(1, "me"))
	for _, req := range []upsert.BeginRequest{try(1, "me"), try(0, "me"), try(2, "you")} {
		if d := w.begin(req); d.Verdict != upsert.VerdictWait || d.RetryAfter <= 0 {
			t.Fatalf("%+v", d)
		}
	}
	second := w.run(try(2, "me"))
	if s := w.state(first); s != catalog.AttemptReplaced {
		t.Fatal(s)
	}
	w.stage(first, rastertest.Raster{})
	_, err := w.Complete(t.Context(), first.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeAttemptLost)
	w.stage(second, rastertest.Raster{})
	w.on(upsert.PointIntended, second.ID, func() {
		if d, err := w.Begin(t.Context(), try(3, "me")); err != nil || d.Verdict != upsert.VerdictWait {
			t.Errorf("%+v %v", d, err)
		}
	})
	w.complete(second)
	w.check(settled)
}

// change makes what is staged another thing than what was probed, and says what the
// problem is called.
type change struct {
	name string
	code catalog.Code
	do   func(path string) error
}

// fileChanges are all ways that there are in a directory.
var fileChanges = []change{
	{"rewritten in place", catalog.CodeStagedChanged, func(path string) error {
		before, err := os.Stat(path)
		for now := before; err == nil && now.ModTime().Equal(before.ModTime()); {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{99, 98, 97}, 20)
			err = errors.Join(err, f.Close())
			now, _ = os.Stat(path)
		}
		return err
	}},
	{"replaced by another file", catalog.CodeStagedChanged, func(path string) error {
		return errors.Join(os.WriteFile(path+".new", rastertest.Raster{Seed: 9}.Bytes(), 0o644), os.Rename(path+".new", path))
	}},
	{"truncated", catalog.CodeStagedChanged, func(path string) error { return os.Truncate(path, 100) }},
	{"appended to", catalog.CodeStagedChanged, func(path string) error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte("more"))
		return errors.Join(err, f.Close())
	}},
	{"hard-linked", catalog.CodeStagedLinked, func(path string) error { return os.Link(path, path+".other") }},
	{"replaced by a symbolic link", catalog.CodeStagedForbidden, func(path string) error {
		return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
	}},
	{"replaced by a directory", catalog.CodeStagedForbidden, func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }},
	{"removed", catalog.CodeStagedChanged, os.Remove},
}

// changes are the ways that there are where the world's store is.
func (w *world) changes() []change {
	if w.root != "" {
		return fileChanges
	}
	put := func(content []byte) func(string) error {
		return func(key string) error {
			w.put(key, content)
			return nil
		}
	}
	whole := rastertest.Raster{}.Bytes()
	in := []change{
		{"replaced by another object", catalog.CodeStagedChanged, put(rastertest.Raster{Seed: 9}.Bytes())},
		{"truncated", catalog.CodeStagedChanged, put(whole[:100])},
		{"appended to", catalog.CodeStagedChanged, put(append(whole, "more"...))},
	}
	if !w.site.(*bucket).versions { // versitygw v1.8.0 copies what lies under a deletion
		in = append(in, change{"removed", catalog.CodeStagedChanged, func(key string) error {
			w.remove(key)
			return nil
		}})
	}
	return in
}

// A staged file that changes after it was probed never reaches its final name,
// whether the step or recovery finds out, and the unit is due again.
func TestStagedChanged(t *testing.T) { onBoth(t, testStagedChanged) }

func testStagedChanged(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, change := range w.changes() {
		for _, at := range []upsert.Point{upsert.PointProbed, upsert.PointIntended, ""} {
			t.Run(fmt.Sprintf("%s/%s", change.name, at), func(t *testing.T) {
				tile := strings.ReplaceAll(fmt.Sprintf("%s/at-%s", change.name, at), " ", "-")
				a := w.run(request(tile, "v1"))
				w.stage(a, rastertest.Raster{})
				do := func() {
					if err := change.do(filepath.Join(w.root, a.StagingKey)); err != nil {
						t.Error(err)
					}
				}
				if at != "" {
					w.on(at, a.ID, do)
				} else { // and recovery comes first
					w.on(upsert.PointIntended, a.ID, func() {
						do()
						if r, err := other.Recover(t.Context()); err != nil || r.Failed != 1 {
							t.Errorf("%+v %v", r, err)
						}
					})
				}
				_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
				wantCode(t, err, change.code)
				if w.exists(a.ObjectKey) {
					t.Fatal("it reached its final name")
				}
				if s := w.state(a); s != catalog.AttemptFailed {
					t.Fatal(s)
				}
				if n := w.count(`SELECT count(*) FROM catalog.failures WHERE attempt_id = $1`, a.ID); n != 1 {
					t.Fatalf("%d failures", n)
				}
				w.do(request(tile, "v1"), rastertest.Raster{Seed: 3})
			})
		}
	}
	w.check(settled)
	w.age()
	w.sweep()
	w.check(settled)
}

// A sweep at each point of a step, with no patience at all, takes nothing from it.
func TestSweepAgainstLiveStep(t *testing.T) { onBoth(t, testSweepAgainstLiveStep) }

func testSweepAgainstLiveStep(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	hasty := w.another(func(c *upsert.Config) { c.SweepGrace, c.StagingAge = time.Nanosecond, time.Nanosecond })
	for _, at := range from(upsert.PointStaged) {
		t.Run(string(at), func(t *testing.T) {
			a := w.run(request(string(at), "v1"))
			w.stage(a, rastertest.Raster{})
			w.on(at, a.ID, func() {
				w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() + interval '1 hour' WHERE attempt_id = $1 AND state = 'open'`, a.ID)
				if _, err := hasty.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
			w.complete(a)
			w.incoming(string(at)+".tif", rastertest.Raster{})
			var id uuid.UUID
			w.on(at, id, func() {
				if !intended(at) {
					return // before its intent nobody knows whose file it is: age protects it
				}
				if _, err := hasty.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if _, err := w.Register(t.Context(), upsert.OutputRequest{Begin: request("in/"+string(at), "v1"), Staged: string(at) + ".tif"}); err != nil {
				t.Fatal(err)
			}
		})
	}
	w.check(settled)
}

// A worker that comes after a sweep ended its attempt has lost, and what it
// staged is removed.
func TestSweepBeforeLateWorker(t *testing.T) { onBoth(t, testSweepBeforeLateWorker) }

func testSweepBeforeLateWorker(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	a := w.run(request("t1", "v1"))
	w.stage(a, rastertest.Raster{})
	// Within the grace the worker may still come.
	w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 minute'`)
	if swept := w.sweep(); swept.Expired != 0 || !w.exists(a.StagingKey) {
		t.Fatalf("%+v", swept)
	}
	b := w.run(request("t2", "v1"))
	w.stage(b, rastertest.Raster{})
	w.complete(b)
	w.expire(a)
	w.drain()
	if swept := w.sweep(); swept.Expired != 1 || swept.Objects != 1 || w.exists(a.StagingKey) {
		t.Fatalf("%+v", swept)
	}
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeAttemptLost)
	_, _, err = w.Stage(t.Context(), a.ID, strings.NewReader("late"))
	wantCode(t, err, catalog.CodeAttemptLost)
	if leases, err := w.Heartbeat(t.Context(), []uuid.UUID{a.ID}); err != nil || leases[0].State != catalog.AttemptExpired || !leases[0].Until.IsZero() {
		t.Fatalf("%+v %v", leases, err)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// slowly reads nothing until it is let go.
type slowly struct {
	reached chan struct{}
	on      chan struct{}
	once    sync.Once
	io.Reader
}

func (s *slowly) Read(p []byte) (int, error) {
	s.once.Do(func() { close(s.reached) })
	<-s.on
	return s.Reader.Read(p)
}

func upload(raster rastertest.Raster) *slowly {
	return &slowly{reached: make(chan struct{}), on: make(chan struct{}), Reader: strings.NewReader(string(raster.Bytes()))}
}

// An upload that is under way while its attempt is completed, swept or taken over
// changes nothing of what was decided meanwhile.
func TestUploadRaces(t *testing.T) { onBoth(t, testUploadRaces) }

func testUploadRaces(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	staging := func(a catalog.Attempt, r io.Reader) <-chan result[int64] {
		return async(func() (int64, error) {
			size, _, err := w.Stage(t.Context(), a.ID, r)
			return size, err
		})
	}

	// Nothing is staged until the upload is whole.
	a := w.run(request("t1", "v1"))
	body := upload(rastertest.Raster{})
	up := staging(a, body)
	<-body.reached
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeStagedMissing)
	w.expire(a)
	w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() + interval '1 minute'`) // as its heartbeat would
	w.sweep()
	close(body.on)
	if r := <-up; r.err != nil {
		t.Fatal(r.err)
	}
	w.complete(a)

	// A second upload ends after the first was probed: neither is taken.
	a = w.run(request("t2", "v1"))
	w.stage(a, rastertest.Raster{})
	body = upload(rastertest.Raster{Seed: 1})
	up = staging(a, body)
	<-body.reached
	w.on(upsert.PointIntended, a.ID, func() {
		close(body.on)
		if r := <-up; r.err != nil {
			t.Error(r.err)
		}
	})
	_, err = w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeStagedChanged)

	// A second upload ends after the first was promoted.
	a = w.run(request("t3", "v1"))
	w.stage(a, rastertest.Raster{})
	body = upload(rastertest.Raster{Seed: 1})
	up = staging(a, body)
	<-body.reached
	w.on(upsert.PointPromoted, a.ID, func() {
		close(body.on)
		if r := <-up; r.err != nil {
			t.Error(r.err)
		}
	})
	w.complete(a)
	// Nor while it is promoting, or done, does an upload begin.
	_, _, err = w.Stage(t.Context(), a.ID, strings.NewReader("late"))
	wantCode(t, err, catalog.CodeAttemptEnded)

	// A broken upload leaves what was staged before.
	a = w.run(request("t4", "v1"))
	w.stage(a, rastertest.Raster{})
	_, _, err = w.Stage(t.Context(), a.ID, io.MultiReader(strings.NewReader("half"), broken{}))
	if err == nil {
		t.Fatal("a broken upload was taken")
	}
	w.complete(a)

	w.age()
	w.sweep()
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// fail and abandon end an open attempt, and never a promoting one.
func TestEndAgainstPromoting(t *testing.T) { onBoth(t, testEndAgainstPromoting) }

func testEndAgainstPromoting(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	ends := map[string]func(*replica, catalog.Attempt) error{
		"fail":    func(r *replica, a catalog.Attempt) error { return r.failing(t.Context(), a) },
		"abandon": func(r *replica, a catalog.Attempt) error { return r.Abandon(t.Context(), a.ID) },
	}
	other := w.another()
	for name, end := range ends {
		for _, at := range from(upsert.PointStaged) {
			t.Run(name+"/"+string(at), func(t *testing.T) {
				tile := name + "/" + string(at)
				a := w.run(request(tile, "v1"))
				w.stage(a, rastertest.Raster{})
				var ended error
				w.on(at, a.ID, func() { ended = end(other, a) })
				_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
				want := map[upsert.Point][2]catalog.Code{
					upsert.PointStaged: {"", catalog.CodeAttemptEnded}, upsert.PointProbed: {"", catalog.CodeAttemptEnded},
					upsert.PointIntended: {catalog.CodeAttemptPromoting, ""}, upsert.PointPromoted: {catalog.CodeAttemptPromoting, ""},
					upsert.PointUpserted: {catalog.CodeAttemptEnded, ""}, upsert.PointTidied: {catalog.CodeAttemptEnded, ""},
				}[at]
				if code(ended) != want[0] || code(err) != want[1] {
					t.Fatalf("%v, %v, want %q", ended, err, want)
				}
				if !intended(at) {
					if err := end(other, a); err != nil {
						t.Fatalf("again: %v", err)
					}
					w.do(request(tile, "v1"), rastertest.Raster{})
				}
			})
		}
	}
	if n := w.count(`SELECT count(*) FROM catalog.failures`); n != 2 {
		t.Fatalf("%d failures", n)
	}
	w.check(settled)
}

// lose removes a row's object behind everybody's back.
func (w *world) lose(tile catalog.Tile) {
	w.t.Helper()
	w.remove(tile.ObjectKey)
}

// A lost output is repaired while another repairs it: only one replaces the row.
func TestRepairAgainstRepair(t *testing.T) { onBoth(t, testRepairAgainstRepair) }

func testRepairAgainstRepair(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, at := range upsert.Points {
		t.Run(string(at), func(t *testing.T) {
			tile := string(at)
			lost := w.do(owned(tile, "v1", "zero"), rastertest.Raster{}).Tile
			w.lose(lost)
			first := w.run(owned(tile, "v1", "one"))
			if first.Replaces == nil || *first.Replaces != lost.AttemptID {
				t.Fatalf("replaces %v", first.Replaces)
			}
			w.stage(first, rastertest.Raster{Seed: 1})
			var second *catalog.Attempt
			come := func() {
				w.expire(first)
				if d, err := other.Begin(t.Context(), owned(tile, "v1", "two")); err != nil {
					t.Error(err)
				} else {
					second = d.Attempt
				}
			}
			if at == upsert.PointBegun {
				come()
			} else {
				w.on(at, first.ID, come)
			}
			_, err := w.Complete(t.Context(), first.ID, upsert.CompleteRequest{})
			winner := first
			if second != nil {
				wantCode(t, err, catalog.CodeAttemptLost)
				w.stage(*second, rastertest.Raster{Seed: 2})
				w.complete(*second)
				winner = *second
			} else if err != nil {
				t.Fatal(err)
			}
			if d := w.begin(owned(tile, "v1", "three")); d.Verdict != upsert.VerdictSkip || d.Tile.AttemptID != winner.ID || !d.Tile.Current {
				t.Fatalf("%+v", d)
			}
		})
	}
	w.check(settled)
	w.age()
	w.sweep()
	if n := w.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL`); n != 0 {
		t.Fatalf("%d removals are open", n)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// An attempt that was opened in the very instant in which another became the row
// is overtaken, and its object swept.
func TestOvertaken(t *testing.T) { onBoth(t, testOvertaken) }

func testOvertaken(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for _, repair := range []bool{false, true} {
		tile := fmt.Sprint("repair-", repair)
		if repair {
			w.lose(w.do(owned(tile, "v1", "zero"), rastertest.Raster{}).Tile)
		}
		late := w.run(owned(tile, "v1", "one"))
		w.stage(late, rastertest.Raster{Seed: 1})
		w.expire(late)
		winner := w.do(owned(tile, "v1", "two"), rastertest.Raster{Seed: 2})
		w.exec(`UPDATE catalog.attempts SET state = 'open', ended_at = NULL, lease_until = clock_timestamp() + interval '1 minute' WHERE attempt_id = $1`, late.ID)
		out := w.complete(late)
		if out.State != catalog.AttemptOvertaken || out.Tile.ObjectKey != winner.Tile.ObjectKey || !w.exists(late.ObjectKey) {
			t.Fatalf("%+v", out)
		}
		if again := w.complete(late); again.State != catalog.AttemptOvertaken || again.Tile.ObjectKey != winner.Tile.ObjectKey {
			t.Fatalf("%+v", again)
		}
		w.check(settled)
		w.sweep() // too early: a step could still be on its way
		if !w.exists(late.ObjectKey) {
			t.Fatal("swept at once")
		}
		w.age()
		if swept := w.sweep(); w.exists(late.ObjectKey) || swept.Objects == 0 {
			t.Fatalf("%+v", swept)
		}
		w.check(settled)
	}
}

// The lost object comes back while it is repaired: the repair stands, and the old
// object goes.
func TestLostComesBack(t *testing.T) { onBoth(t, testLostComesBack) }

func testLostComesBack(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for _, at := range append([]upsert.Point{upsert.PointBegun}, from(upsert.PointStaged)...) {
		tile := string(at)
		lost := w.do(request(tile, "v1"), rastertest.Raster{}).Tile
		content, err := w.site.get(t, lost.ObjectKey)
		must(t, err)
		w.remove(lost.ObjectKey)
		comesBack := func() {
			if err := w.site.output(t.Context(), lost.ObjectKey, lost.UnitKey.String(), content); err != nil {
				t.Error(err)
			}
		}
		a := w.run(request(tile, "v1"))
		w.stage(a, rastertest.Raster{Seed: 1})
		if at == upsert.PointBegun {
			comesBack()
			if d := w.begin(owned(tile, "v1", "another")); d.Verdict != upsert.VerdictSkip {
				t.Fatalf("%+v", d)
			}
		} else {
			w.on(at, a.ID, comesBack)
		}
		if out := w.complete(a); out.State != catalog.AttemptDone || out.Tile.ObjectKey != a.ObjectKey {
			t.Fatalf("%+v", out)
		}
		w.check(settled)
	}
	w.age()
	w.sweep()
	if n := w.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL`); n != 0 {
		t.Fatalf("%d removals are open", n)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// A begin that was stopped between looking and writing finds that things have
// changed, whatever has happened.
func TestBeginRaces(t *testing.T) { onBoth(t, testBeginRaces) }

func testBeginRaces(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	// A begin that has read how its unit stands, and has written nothing.
	door := &calls{}
	slow := w.another(func(c *upsert.Config) { c.Stores = w.with(door) })
	meanwhile := func(do func()) { door.prepare.Store(&do) }
	begin := func(req upsert.BeginRequest) (upsert.Decision, error) { return slow.Begin(t.Context(), req) }

	meanwhile(func() { w.do(owned("done", "v1", "two"), rastertest.Raster{}) })
	if d, err := begin(owned("done", "v1", "one")); err != nil || d.Verdict != upsert.VerdictSkip {
		t.Fatalf("%+v %v", d, err)
	}

	lost := w.do(owned("repaired", "v1", "zero"), rastertest.Raster{}).Tile
	w.lose(lost)
	meanwhile(func() { w.do(owned("repaired", "v1", "two"), rastertest.Raster{Seed: 1}) })
	if d, err := begin(owned("repaired", "v1", "one")); err != nil || d.Verdict != upsert.VerdictSkip || d.Tile.ObjectKey == lost.ObjectKey {
		t.Fatalf("%+v %v", d, err)
	}

	var held catalog.Attempt
	meanwhile(func() { held = w.run(owned("held", "v1", "two")) })
	if d, err := begin(owned("held", "v1", "one")); err != nil || d.Verdict != upsert.VerdictWait {
		t.Fatalf("%+v %v", d, err)
	}

	meanwhile(func() {
		if err := w.Abandon(t.Context(), held.ID); err != nil {
			t.Error(err)
		}
	})
	if d, err := begin(owned("held", "v2", "one")); err != nil || d.Verdict != upsert.VerdictRun {
		t.Fatalf("%+v %v", d, err)
	}

	// The same request comes to two servers: one attempt.
	req := owned("replayed", "v1", "one")
	var first catalog.Attempt
	meanwhile(func() { first = w.run(req) })
	if d, err := begin(req); err != nil || d.Verdict != upsert.VerdictRun || d.Attempt.ID != first.ID {
		t.Fatalf("%+v %v", d, err)
	}

	// The unit gets a client key, or the client key a unit.
	named := func(tile, key, owner string) upsert.BeginRequest {
		req := owned(tile, "v1", owner)
		req.Unit.ClientKey = key
		return req
	}
	meanwhile(func() { w.run(named("named", "key-a", "two")) })
	_, err := begin(named("named", "key-b", "one"))
	wantCode(t, err, catalog.CodeKeyCollision)
	var other catalog.Attempt
	meanwhile(func() { other = w.run(named("taken", "key-d", "two")) })
	higher := named("taken", "key-e", "two")
	higher.Try = 1
	_, err = begin(higher)
	wantCode(t, err, catalog.CodeKeyCollision)
	if s := w.state(other); s != catalog.AttemptOpen {
		t.Fatal("a begin that was refused took over")
	}
	meanwhile(func() { w.run(named("named/too", "key-c", "two")) })
	_, err = begin(named("named/three", "key-c", "one"))
	wantCode(t, err, catalog.CodeKeyCollision)
	w.check(invariant.Options{})
}

// A key that comes with a unit that is done is remembered: it is refused when it
// comes again with another identity.
func TestKeyOfDoneUnit(t *testing.T) { onBoth(t, testKeyOfDoneUnit) }

func testKeyOfDoneUnit(t *testing.T, on place) {
	w := newWorld(t, on)
	w.do(request("t1", "v1"), rastertest.Raster{})
	req := request("t1", "v1")
	req.Unit.ClientKey = "mine"
	if d := w.begin(req); d.Verdict != upsert.VerdictSkip || d.Tile.ClientKey != "mine" {
		t.Fatalf("%+v", d)
	}
	other := request("t2", "v1")
	other.Unit.ClientKey = "mine"
	_, err := w.Begin(t.Context(), other)
	wantCode(t, err, catalog.CodeKeyCollision)
	req.Unit.ClientKey = "another"
	_, err = w.Begin(t.Context(), req)
	wantCode(t, err, catalog.CodeKeyCollision)
	w.do(request("t3", "v1"), rastertest.Raster{})
	third := request("t3", "v1")
	third.Unit.ClientKey = "mine"
	_, err = w.Begin(t.Context(), third)
	wantCode(t, err, catalog.CodeKeyCollision)
	w.check(settled)
}

// A version ranks by its first begin, whenever its outputs come.
func TestRankAtFirstBegin(t *testing.T) { onBoth(t, testRankAtFirstBegin) }

func testRankAtFirstBegin(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	early := w.run(request("t1", "v1"))
	w.do(request("t1", "v2"), rastertest.Raster{Seed: 2})
	if err := w.Abandon(t.Context(), early.ID); err != nil {
		t.Fatal(err)
	}
	if out := w.do(request("t1", "v1"), rastertest.Raster{Seed: 1}); out.Tile.Current {
		t.Fatal("the version that was begun first is current")
	}
	if _, err := w.Check(t.Context(), []upsert.UnitRef{request("t1", "v3").Unit}, false); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.collection_versions`); n != 2 {
		t.Fatal("a check gave a version its rank")
	}
	w.check(settled)
}

// A version is published at every point of a step of another, and of its own.
func TestPublishAgainstLiveStep(t *testing.T) { onBoth(t, testPublishAgainstLiveStep) }

func testPublishAgainstLiveStep(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, stops := range []string{"v1", "v2"} {
		for _, at := range from(upsert.PointStaged) {
			t.Run("v1 while "+stops+" is "+string(at), func(t *testing.T) {
				collection := stops + "-" + string(at)
				w.collection(collection, catalog.Policy{OrderBy: catalog.OrderVersion})
				in := func(version string) upsert.BeginRequest {
					req := request("t1", version)
					req.Unit.Collection = collection
					return req
				}
				w.do(func() upsert.BeginRequest { r := in("v1"); r.Unit.TileID = "t2"; return r }(), rastertest.Raster{})
				goes := "v1"
				if stops == "v1" {
					goes = "v2"
				}
				if goes == "v1" {
					w.do(in("v1"), rastertest.Raster{})
				}
				a := w.run(in(stops))
				w.stage(a, rastertest.Raster{Seed: 1})
				if goes == "v2" {
					w.do(in("v2"), rastertest.Raster{})
				}
				w.on(at, a.ID, func() {
					if _, err := other.Publish(t.Context(), collection, "v1", "me", "back"); err != nil {
						t.Error(err)
					}
				})
				w.complete(a)
				if d := w.begin(in("v1")); d.Verdict != upsert.VerdictSkip || !d.Tile.Current {
					t.Fatalf("%+v", d)
				}
			})
		}
	}
	w.check(settled)
}

// A publication that stopped anywhere is finished by recovery, stable names too.
func TestPublishCrash(t *testing.T) { onBoth(t, testPublishCrash) }

func testPublishCrash(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for i := range 3 {
		w.do(request(fmt.Sprint("t", i), "v1"), rastertest.Raster{})
		w.do(request(fmt.Sprint("t", i), "v2"), rastertest.Raster{Seed: 1})
	}
	// What was registered long ago is not what moved lately.
	w.exec(`UPDATE catalog.attempts SET created_at = created_at - interval '1 day', ended_at = ended_at - interval '1 day'`)
	w.exec(`UPDATE catalog.tiles SET registered_at = registered_at - interval '1 day'`)
	w.do(request("later", "v1"), rastertest.Raster{})
	// The rank is committed, no slot has moved.
	if _, err := w.db.Publish(t.Context(), "landcover", "v1", "me", "back"); err != nil {
		t.Fatal(err)
	}
	w.check(invariant.Options{Linked: true})
	if r, err := w.Recover(t.Context()); err != nil || r.Published != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	w.check(settled)
	// A page of slots has moved, and not their names.
	if _, err := w.db.Publish(t.Context(), "landcover", "v2", "me", "forth"); err != nil {
		t.Fatal(err)
	}
	if s, err := w.db.Settle(t.Context(), "landcover", "v2", "", 2, "me"); err != nil || len(s.Moved) != 2 || s.Last != "t1" {
		t.Fatalf("%+v %v", s, err)
	}
	if r, err := w.Recover(t.Context()); err != nil || r.Published != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	if swept := w.sweep(); swept.Relinked != 2 && w.root != "" {
		t.Fatalf("%+v", swept)
	}
	w.check(settled)
	// Again is nothing.
	if p, err := w.Publish(t.Context(), "landcover", "v2", "me", "again"); err != nil || p.Moved != 0 {
		t.Fatalf("%+v %v", p, err)
	}
	w.check(settled)
}

// Two publications of a collection at once leave one of them on top, everywhere.
func TestPublishTwice(t *testing.T) { onBoth(t, testPublishTwice) }

func testPublishTwice(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for i := range 4 {
		for v := range 3 {
			w.do(request(fmt.Sprint("t", i), fmt.Sprint("v", v)), rastertest.Raster{Seed: byte(v)})
		}
	}
	var publishing []<-chan result[upsert.Published]
	for n := range 8 {
		publishing = append(publishing, async(func() (upsert.Published, error) {
			return w.Publish(t.Context(), "landcover", fmt.Sprint("v", n%3), "me", "race")
		}))
	}
	for _, p := range publishing {
		if r := <-p; r.err != nil {
			t.Error(r.err)
		}
	}
	w.check(settled)
}

// 32 attempts at one unit: one row; the others wait, skip, are overtaken or lose.
func TestManyAtOneUnit(t *testing.T) { onBoth(t, testManyAtOneUnit) }

func testManyAtOneUnit(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	for _, seeds := range []int{1, 32} {
		tile := fmt.Sprint("seeds", seeds)
		var winners atomic.Int32
		var group sync.WaitGroup
		for n := range 32 {
			group.Go(func() {
				r := []*replica{w.replica, other}[n%2]
				d, err := r.Begin(t.Context(), owned(tile, "v1", fmt.Sprint("worker", n)))
				if err != nil {
					t.Error(err)
					return
				}
				if d.Verdict != upsert.VerdictRun {
					return
				}
				w.stage(*d.Attempt, rastertest.Raster{Seed: byte(n % seeds)})
				if n%4 != 0 {
					w.expire(*d.Attempt)
				}
				out, err := r.Complete(t.Context(), d.Attempt.ID, upsert.CompleteRequest{})
				switch {
				case err == nil && out.State == catalog.AttemptDone:
					winners.Add(1)
				case err == nil && out.State != catalog.AttemptOvertaken, err != nil && !catalog.IsCode(err, catalog.CodeAttemptLost):
					t.Errorf("%+v %v", out, err)
				}
			})
		}
		group.Wait()
		if winners.Load() != 1 || w.count(`SELECT count(*) FROM catalog.tiles WHERE tile_id = $1`, tile) != 1 {
			t.Errorf("%d winners", winners.Load())
		}
	}
	w.check(settled)
}

// 32 clients work on many units, some in a slot of their own and some in one that
// all share; each asks until its unit is done.
func TestManyClients(t *testing.T) { onBoth(t, testManyClients) }

func testManyClients(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	other := w.another()
	var group sync.WaitGroup
	for n := range 32 {
		group.Go(func() {
			r := []*replica{w.replica, other}[n%2]
			for _, tile := range []string{fmt.Sprint("own", n), "shared"} {
				version := fmt.Sprint("v", n%5)
				for done := false; !done && t.Context().Err() == nil; {
					d, err := r.Begin(t.Context(), owned(tile, version, fmt.Sprint("worker", n)))
					switch {
					case err != nil:
						t.Error(err)
						return
					case d.Verdict == upsert.VerdictSkip:
						done = true
					case d.Verdict == upsert.VerdictWait:
						<-time.After(10 * time.Millisecond) // sooner than it is told, for the lease will not end
					case d.Verdict == upsert.VerdictRun:
						w.stage(*d.Attempt, rastertest.Raster{Seed: byte(n)})
						if _, err := r.Complete(t.Context(), d.Attempt.ID, upsert.CompleteRequest{}); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}
		})
	}
	group.Wait()
	if n := w.count(`SELECT count(*) FROM catalog.tiles`); n != 32+5 {
		t.Errorf("%d rows", n)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// In a collection ordered by acquisition the latest scene is current, in whatever
// order scenes come; and a repair that says that its scene is older gives way.
func TestAcquiredOrder(t *testing.T) { onBoth(t, testAcquiredOrder) }

func testAcquiredOrder(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	w.collection("scenes", catalog.Policy{OrderBy: catalog.OrderAcquired})
	scene := func(version string, day int) upsert.BeginRequest {
		req := request("t1", version)
		req.Unit.Collection = "scenes"
		at := time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		req.Given.Acquired = catalog.Interval{Start: &at, End: &at}
		return req
	}
	w.do(scene("v1", 10), rastertest.Raster{})
	latest := w.do(scene("v2", 20), rastertest.Raster{Seed: 1}).Tile
	if out := w.do(scene("v3", 15), rastertest.Raster{Seed: 2}); out.Tile.Current {
		t.Fatal("an earlier scene is current")
	}
	w.check(settled)
	w.lose(latest)
	if out := w.do(scene("v2", 5), rastertest.Raster{Seed: 3}); out.Tile.Current {
		t.Fatal("a scene that was repaired as the earliest is current")
	}
	w.check(settled)
}
