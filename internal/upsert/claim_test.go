package upsert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// expect opens a batch of landcover that expects these tiles, of one version.
func (w *world) expect(batch, version string, tiles ...string) catalog.Batch {
	w.t.Helper()
	_, _, err := w.db.OpenBatch(w.t.Context(), batch, "landcover", "me")
	must(w.t, err)
	w.add(batch, version, tiles...)
	b, err := w.db.Batch(w.t.Context(), batch)
	must(w.t, err)
	return b
}

func (w *world) add(batch, version string, tiles ...string) (added int64) {
	w.t.Helper()
	b, err := w.db.Batch(w.t.Context(), batch)
	must(w.t, err)
	units := make([]catalog.ExpectedUnit, len(tiles))
	for i, tile := range tiles {
		ref := request(tile, version).Unit
		unit, err := catalog.NewUnit(ref.Collection, ref.TileID, ref.Identity, "")
		must(w.t, err)
		units[i] = catalog.ExpectedUnit{Unit: unit}
	}
	added, refused, err := w.db.AddUnits(w.t.Context(), b, units)
	if err != nil || len(refused) > 0 {
		w.t.Fatalf("add: %v %v", refused, err)
	}
	return added
}

func names(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

func claim(batch string, most int) upsert.ClaimRequest {
	return upsert.ClaimRequest{Batch: batch, Max: most, Owner: "w1", RequestID: uuid.NewString()}
}

func (w *world) claim(req upsert.ClaimRequest) upsert.Claimed {
	w.t.Helper()
	claimed, err := w.Claim(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("claim: %v", err)
	}
	return claimed
}

// wantCounts checks how the units of a batch stand.
func (w *world) wantCounts(batch string, want catalog.BatchCounts) {
	w.t.Helper()
	status, err := w.db.BatchStatus(w.t.Context(), batch)
	if err != nil || status.Counts != want {
		w.t.Fatalf("%s: %+v %v, want %+v", batch, status.Counts, err, want)
	}
}

func TestClaim(t *testing.T) { onBoth(t, testClaim) }

func testClaim(t *testing.T, on place) {
	w := newWorld(t, on)
	w.expect("nightly", "v1", names("a/t%d", 5)...)
	w.do(request("a/t0", "v1"), rastertest.Raster{}) // outside the batch, and as good
	req := claim("nightly", 3)
	first := w.claim(req)
	if len(first.Units) != 3 || !first.Left {
		t.Fatalf("%+v", first)
	}
	// A replay is answered the same.
	again := w.claim(req)
	if len(again.Units) != 3 || again.Units[0].Attempt.ID != first.Units[0].Attempt.ID || again.Units[2].TileID != first.Units[2].TileID {
		t.Fatalf("%+v", again)
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: 5, Done: 1, Running: 3, Pending: 1})
	rest := w.claim(claim("nightly", 3))
	if len(rest.Units) != 1 || !rest.Left || rest.RetryAfter <= 0 {
		t.Fatalf("%+v", rest)
	}
	if none := w.claim(claim("nightly", 3)); len(none.Units) != 0 || !none.Left || none.RetryAfter <= 0 || none.RetryAfter > 10*time.Second {
		t.Fatalf("%+v", none)
	}
	for i, u := range append(first.Units, rest.Units...) {
		if u.Collection != "landcover" || u.Attempt.BatchID == nil || u.Attempt.Owner != "w1" || u.Tags["CATALOGD_UNIT_KEY"] != u.UnitKey.String() ||
			string(u.Identity) != `{"scene":"S2","version":"v1"}` {
			t.Fatalf("%+v", u)
		}
		w.stage(*u.Attempt, rastertest.Raster{Seed: byte(i)})
		if out := w.complete(*u.Attempt); out.State != catalog.AttemptDone {
			t.Fatalf("%+v", out)
		}
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: 5, Done: 5})
	if done := w.claim(claim("nightly", 3)); len(done.Units) != 0 || done.Left {
		t.Fatalf("%+v", done)
	}
	if n := w.count(`SELECT count(*) FROM catalog.outputs WHERE batch = 'nightly'`); n != 4 {
		t.Errorf("%d outputs are the batch's", n)
	}
	w.check(invariant.Options{Quiet: true})
}

// Claims hand each unit out once, however many ask at a time, and all of them.
func TestClaimsNeverShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	other := w.another()
	const units = 2000
	w.expect("nightly", "v1", names("t%d", units)...)
	var mu sync.Mutex
	holder := map[uuid.UUID]string{}
	var group errgroup.Group
	for i := range 16 {
		step := w.Step
		if i%2 == 1 {
			step = other.Step
		}
		group.Go(func() error {
			for {
				req := claim("nightly", 50)
				req.Owner = fmt.Sprint("w", i)
				claimed, err := step.Claim(t.Context(), req)
				if err != nil {
					return err
				}
				if len(claimed.Units) == 0 {
					return nil
				}
				mu.Lock()
				for _, u := range claimed.Units {
					if by := holder[u.UnitKey]; by != "" {
						t.Errorf("%s is %s's and %s's", u.TileID, by, req.Owner)
					}
					holder[u.UnitKey] = req.Owner
				}
				mu.Unlock()
			}
		})
	}
	must(t, group.Wait())
	if len(holder) != units {
		t.Errorf("%d of %d units were handed out", len(holder), units)
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: units, Running: units})
}

// What is not due is not handed out, and what is due again is, at once.
func TestClaimGivesOnlyWhatIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	b := w.expect("nightly", "v1", "poison", "flaky", "given-up", "expired", "done", "lost", "lost-old")
	units := map[string]catalog.Attempt{}
	for _, u := range w.claim(claim("nightly", 50)).Units {
		units[u.TileID] = *u.Attempt
	}
	for i, tile := range []string{"done", "lost", "lost-old"} {
		w.stage(units[tile], rastertest.Raster{Seed: byte(i)})
		w.complete(units[tile])
	}
	w.do(request("lost-old", "v2"), rastertest.Raster{Seed: 7})
	failed := w.fail(units["poison"], poison)
	w.fail(units["flaky"], passing)
	must(t, w.Abandon(t.Context(), units["given-up"].ID))
	w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 minute' WHERE attempt_id = $1`, units["expired"].ID)
	w.exec(`UPDATE catalog.batch_units SET due_at = clock_timestamp() WHERE due_at IS NOT NULL`) // as when the leases are over
	for _, tile := range []string{"lost", "lost-old"} {
		out := w.begin(request(tile, "v1")).Tile
		must(t, w.store.Delete(t.Context(), out.ObjectKey))
		w.exec(`INSERT INTO catalog.tile_health (unit_key, lost_since) VALUES ($1, clock_timestamp())`, out.UnitKey)
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: 7, Done: 1, Retrying: 1, Quarantined: 1, Lost: 2, Pending: 2})
	pending, err := w.db.Pending(t.Context(), b.ID, uuid.Nil, 100)
	must(t, err)
	due := map[string]catalog.UnitStatus{}
	for _, u := range pending {
		due[u.TileID] = u.Status
	}
	want := map[string]catalog.UnitStatus{"flaky": "retrying", "given-up": "pending", "expired": "pending", "lost": "lost"}
	if fmt.Sprint(due) != fmt.Sprint(want) {
		t.Errorf("pending: %v, want %v", due, want)
	}
	w.exec(`UPDATE catalog.batch_units SET due_at = clock_timestamp() WHERE due_at IS NULL AND unit_key IN (SELECT unit_key FROM catalog.tile_health)`)
	got := map[string]catalog.Attempt{}
	claimed := w.claim(claim("nightly", 50))
	for _, u := range claimed.Units {
		got[u.TileID] = *u.Attempt
	}
	if len(got) != 4 || got["flaky"].ID == uuid.Nil || got["given-up"].ID == uuid.Nil || got["expired"].ID == uuid.Nil || got["lost"].Replaces == nil {
		t.Fatalf("%+v", got)
	}
	if found := w.retries(request("expired", "v1")); found != "0 1 lease_expired -" {
		t.Errorf("expired: %s", found)
	}
	// A lost output is repaired.
	w.stage(got["lost"], rastertest.Raster{Seed: 9})
	w.complete(got["lost"])
	// Released, the poisoned one is due.
	if n := w.release(catalog.QuarantineFilter{Batch: "nightly"}); n != 1 {
		t.Errorf("released %d", n)
	}
	if one := w.claim(claim("nightly", 50)); len(one.Units) != 1 || one.Units[0].UnitKey != failed.UnitKey {
		t.Errorf("%+v", one)
	}
}

// A rerun costs what failed: the rest is done.
func TestRerunCostsWhatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.expect("nightly", "v1", names("t%d", 20)...)
	for i, u := range w.claim(claim("nightly", 50)).Units {
		if i < 3 {
			w.fail(*u.Attempt, poison)
			continue
		}
		w.stage(*u.Attempt, rastertest.Raster{Seed: byte(i)})
		w.complete(*u.Attempt)
	}
	w.release(catalog.QuarantineFilter{Batch: "nightly"})
	// Opened again, with the same units: nothing is expected twice.
	if _, created, err := w.db.OpenBatch(t.Context(), "nightly", "landcover", "me"); err != nil || created {
		t.Fatal(created, err)
	}
	if added := w.add("nightly", "v1", names("t%d", 20)...); added != 0 {
		t.Errorf("%d units were added again", added)
	}
	if rerun := w.claim(claim("nightly", 50)); len(rerun.Units) != 3 {
		t.Errorf("the rerun has %d units", len(rerun.Units))
	}
	// So does a batch of its own.
	w.expect("rerun", "v1", names("t%d", 20)...)
	w.wantCounts("rerun", catalog.BatchCounts{Expected: 20, Done: 17, Running: 3})
	if rerun := w.claim(claim("rerun", 50)); len(rerun.Units) != 0 || !rerun.Left {
		t.Errorf("%+v", rerun)
	}
}

// While many of a batch fail for one reason that may pass, none spends a try.
func TestOutageSpendsNoTries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.expect("nightly", "v1", names("t%d", 60)...)
	units := w.claim(claim("nightly", 60)).Units
	for i, u := range units[:30] {
		failed, err := w.Fail(t.Context(), u.Attempt.ID, upsert.FailRequest{Failure: passing})
		must(t, err)
		if want := i < catalog.MinOutage; failed.Spent != want {
			t.Fatalf("failure %d spent a try: %v", i, failed.Spent)
		}
	}
	// Another reason, and what would come again, are the unit's own.
	if failed := w.fail(*units[30].Attempt, catalog.Failure{HTTPStatus: 500}); !failed.Spent {
		t.Errorf("%+v", failed)
	}
	if failed := w.fail(*units[31].Attempt, catalog.Failure{Class: catalog.ClassDeterministic, Reason: "http_503"}); failed.QuarantinedAs == "" {
		t.Errorf("%+v", failed)
	}
}

func TestBeginForABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	b := w.expect("nightly", "v1", "t1")
	req := request("t1", "v1")
	req.Batch = "nightly"
	if a := w.run(req); a.BatchID == nil || *a.BatchID != b.ID {
		t.Fatalf("%+v", a)
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: 1, Running: 1})
	other := request("t2", "v1")
	other.Batch = "nightly"
	_, err := w.Begin(t.Context(), other)
	wantCode(t, err, catalog.CodeNotInBatch)
	other.Batch = "weekly"
	_, err = w.Begin(t.Context(), other)
	wantCode(t, err, catalog.CodeUnknownBatch)
	other.Batch = "a b"
	_, err = w.Begin(t.Context(), other)
	wantCode(t, err, catalog.CodeInvalidRequest)
	_, err = w.Claim(t.Context(), claim("weekly", 1))
	wantCode(t, err, catalog.CodeUnknownBatch)
	_, _, err = w.db.OpenBatch(t.Context(), "weekly", "nowhere", "me")
	wantCode(t, err, catalog.CodeUnknownCollection)
	w.collection("dem", catalog.Policy{OrderBy: catalog.OrderVersion})
	other.Batch, other.Unit.Collection = "nightly", "dem"
	if _, err = w.Begin(t.Context(), other); !catalog.IsCode(err, catalog.CodeNotInBatch) || !strings.Contains(err.Error(), "is of collection landcover") {
		t.Fatal(err)
	}
	_, _, err = w.db.OpenBatch(t.Context(), "nightly", "dem", "me")
	wantCode(t, err, catalog.CodeBatchExists)
}

// A client key that stands for another unit refuses its own unit only.
func TestAddUnitsWithClientKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	begun := request("t1", "v1")
	begun.Unit.ClientKey = "k1"
	w.run(begun)
	_, _, err := w.db.OpenBatch(t.Context(), "nightly", "landcover", "me")
	must(t, err)
	b, err := w.db.Batch(t.Context(), "nightly")
	must(t, err)
	var units []catalog.ExpectedUnit
	for _, u := range []struct{ tile, key string }{{"t1", "k1"}, {"t1", ""}, {"t1", "other"}, {"t2", "k1"}, {"t3", "k3"}, {"t4", "k3"}, {"t5", ""}} {
		ref := request(u.tile, "v1").Unit
		unit, err := catalog.NewUnit(ref.Collection, ref.TileID, ref.Identity, u.key)
		must(t, err)
		units = append(units, catalog.ExpectedUnit{Unit: unit})
	}
	added, refused, err := w.db.AddUnits(t.Context(), b, units)
	must(t, err)
	places := ""
	for i := range units {
		if refused[i] != nil {
			wantCode(t, refused[i], catalog.CodeKeyCollision)
			places += fmt.Sprint(i, " ")
		}
	}
	// Of units that are known, and go by none yet, one key is given to one too.
	w.run(request("u1", "v1"))
	w.run(request("u2", "v1"))
	var named []catalog.ExpectedUnit
	for _, tile := range []string{"u1", "u2", "u3"} {
		ref := request(tile, "v1").Unit
		unit, err := catalog.NewUnit(ref.Collection, ref.TileID, ref.Identity, "K")
		must(t, err)
		named = append(named, catalog.ExpectedUnit{Unit: unit})
	}
	if n, no, err := w.db.AddUnits(t.Context(), b, named); err != nil || n != 1 || len(no) != 2 {
		t.Errorf("%d %v %v", n, no, err)
	}
	// Of t3 and t4 the one has k3, the other is refused.
	if added != 3 || len(refused) != 3 || (places != "2 3 5 " && places != "2 3 4 ") {
		t.Errorf("added %d, refused %s", added, places)
	}
}

// A claim that is sent twice at once is answered once.
func TestClaimSentTwiceAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	other := w.another()
	w.expect("nightly", "v1", names("t%d", 400)...)
	for range 5 {
		req := claim("nightly", 20)
		got := make([]upsert.Claimed, 6)
		var group errgroup.Group
		for i := range got {
			step := []*upsert.Step{w.Step, other.Step}[i%2]
			group.Go(func() (err error) {
				got[i], err = step.Claim(t.Context(), req)
				return err
			})
		}
		must(t, group.Wait())
		attempts := map[uuid.UUID]bool{}
		for _, g := range got {
			for _, u := range g.Units {
				attempts[u.Attempt.ID] = true
			}
		}
		if len(attempts) != 20 {
			t.Fatalf("%d units were handed to one request for 20", len(attempts))
		}
	}
	w.wantCounts("nightly", catalog.BatchCounts{Expected: 400, Running: 100, Pending: 300})
	// One whose attempts have ended claims nothing more.
	req := claim("nightly", 400)
	for _, u := range w.claim(req).Units {
		must(t, w.Abandon(t.Context(), u.Attempt.ID))
	}
	_, err := w.Claim(t.Context(), req)
	wantCode(t, err, catalog.CodeAttemptEnded)
}

// A place that cannot be written to keeps nobody from the others.
func TestClaimBesideABadPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	must(t, os.MkdirAll(filepath.Join(w.root, "landcover"), 0o755))
	must(t, os.Symlink(t.TempDir(), filepath.Join(w.root, "landcover", "out")))
	w.expect("nightly", "v1", "out/1", "ok/1", "out/2", "ok/2")
	if claimed := w.claim(claim("nightly", 10)); len(claimed.Units) != 2 || !claimed.Left || claimed.Units[0].TileID[:2] != "ok" {
		t.Fatalf("%+v", claimed)
	}
	w.exec(`UPDATE catalog.batch_units SET due_at = clock_timestamp()`)
	if _, err := w.Claim(t.Context(), claim("nightly", 10)); err == nil {
		t.Fatal("nothing can be claimed, and nobody says why")
	}
}

// Begins and additions of the same new units do not wait for one another.
func TestBeginsBesideAdditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.expect("a", "v0")
	w.expect("b", "v0")
	var group errgroup.Group
	for round := range 3 {
		version := fmt.Sprint("v", round+1)
		tiles := names(fmt.Sprint("r", round, "/t%d"), 300)
		for _, batch := range []string{"a", "b"} {
			group.Go(func() error {
				w.add(batch, version, tiles...)
				return nil
			})
		}
		for i := range 4 {
			group.Go(func() error {
				for j := i; j < len(tiles); j += 7 {
					req := request(tiles[len(tiles)-1-j], version)
					req.Owner = fmt.Sprint("w", i)
					if _, err := w.Begin(t.Context(), req); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	must(t, group.Wait())
	w.wantCounts("a", mustCounts(w, "b"))
	var deadlocks int
	must(t, w.sql.QueryRow(t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks))
	if deadlocks != 0 {
		t.Errorf("%d deadlocks", deadlocks)
	}
}

func mustCounts(w *world, batch string) catalog.BatchCounts {
	status, err := w.db.BatchStatus(w.t.Context(), batch)
	must(w.t, err)
	return status.Counts
}

// A claim whose server dies between its reservation and its attempts leaves units that
// are handed out when the reservation is over.
func TestClaimThatBreaksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory, func(c *upsert.Config) { c.Lease = 2 * time.Second })
	w.expect("nightly", "v1", names("t%d", 4)...)
	if reserved, err := w.db.Reserve(t.Context(), claim("nightly", 10), true, 10, w.Lease); err != nil || len(reserved.Due) != 4 || reserved.Looked != 4 {
		t.Fatal(reserved, err)
	}
	none := w.claim(claim("nightly", 10))
	if len(none.Units) != 0 || !none.Left {
		t.Fatalf("%+v", none)
	}
	time.Sleep(2500 * time.Millisecond)
	if all := w.claim(claim("nightly", 10)); len(all.Units) != 4 {
		t.Fatalf("%+v", all)
	}
	// One that cannot prepare staging gives them back at once.
	w.expect("weekly", "v2", names("t%d", 4)...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Claim(ctx, claim("weekly", 10)); err == nil {
		t.Fatal("claimed with a cancelled context")
	}
	if all := w.claim(claim("weekly", 10)); len(all.Units) != 4 {
		t.Fatalf("%+v", all)
	}
}

func TestHeartbeatOfAnOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory)
	w.expect("nightly", "v1", names("t%d", 3)...)
	units := w.claim(claim("nightly", 3)).Units
	must(t, w.Abandon(t.Context(), units[0].Attempt.ID))
	w.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() + interval '1 second'`)
	leases, err := w.HeartbeatOwner(t.Context(), "w1")
	must(t, err)
	if len(leases) != 2 {
		t.Fatalf("%+v", leases)
	}
	for _, l := range leases {
		if l.State != catalog.AttemptOpen || time.Until(l.Until) < 30*time.Second {
			t.Errorf("%+v", l)
		}
	}
}
