package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
	"catalogd/internal/upsert"
)

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.sql.Exec(w.t.Context(), sql, args...)
	must(w.t, err)
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	must(w.t, w.sql.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}

func (w *world) path(key string) string { return filepath.Join(w.root, key) }

func (w *world) exists(key string) bool {
	_, err := os.Lstat(w.path(key))
	return err == nil
}

// plan reconciles, and plans.
func (w *world) plan(choices catalog.PlanChoices) catalog.Plan {
	w.t.Helper()
	run := w.start(reconcile.Request{MinAge: atOnce})
	if run.State != catalog.RunComplete {
		w.t.Fatalf("%+v", run)
	}
	plan, err := w.rec.Plan(w.t.Context(), run.ID, choices, "planner")
	must(w.t, err)
	return plan
}

// ask has a plan applied by whoever takes its job.
func (w *world) ask(plan catalog.Plan) {
	w.t.Helper()
	asked, err := w.rec.Apply(w.t.Context(), plan.ID, 1, "operator", "mend it", 0)
	must(w.t, err)
	if asked.State != catalog.PlanApplying || asked.AppliedBy != "operator" {
		w.t.Fatalf("%+v", asked)
	}
}

// apply applies a plan, and gives its acts by their objects.
func (w *world) apply(plan catalog.Plan) map[string]catalog.Act {
	w.t.Helper()
	w.ask(plan)
	must(w.t, w.rec.ApplyPlan(w.t.Context(), plan.ID))
	return w.acts(plan)
}

// resume applies a plan that somebody was cut off at: the lock goes with his connection,
// which takes the database a moment.
func (w *world) resume(plan catalog.Plan) error {
	w.t.Helper()
	for range 200 {
		if err := w.rec.ApplyPlan(w.t.Context(), plan.ID); err != nil {
			return err
		}
		if now, err := w.rec.GetPlan(w.t.Context(), plan.ID); err != nil || now.State != catalog.PlanApplying {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("the plan is not applied")
}

// acts are those of a plan that was applied.
func (w *world) acts(plan catalog.Plan) map[string]catalog.Act {
	w.t.Helper()
	plan, err := w.rec.GetPlan(w.t.Context(), plan.ID)
	must(w.t, err)
	if plan.State != catalog.PlanApplied {
		w.t.Fatalf("%+v", plan)
	}
	acts, err := w.rec.Acts(w.t.Context(), plan.ID, 0, 1000)
	must(w.t, err)
	by := map[string]catalog.Act{}
	for _, a := range acts {
		by[a.ObjectKey] = a
	}
	return by
}

func ended(t testing.TB, a catalog.Act, state catalog.ActState, says string) {
	t.Helper()
	if a.State != state || !strings.Contains(a.Outcome, says) || a.DoneAt == nil {
		t.Errorf("%s %s: %s %q, want %s %q", a.Act, a.ObjectKey, a.State, a.Outcome, state, says)
	}
}

// clean: a reconciliation finds nothing.
func (w *world) clean() {
	w.t.Helper()
	run := w.start(reconcile.Request{MinAge: atOnce})
	if run.State != catalog.RunComplete || run.Open() != 0 {
		w.t.Errorf("not clean: %+v", run)
	}
}

// spoil changes a byte of an object, whose size stays.
func (w *world) spoil(key string) {
	w.t.Helper()
	content, err := os.ReadFile(w.path(key))
	must(w.t, err)
	content[len(content)/2] ^= 0xff
	must(w.t, os.WriteFile(w.path(key), content, 0o644))
}

// begin opens an attempt and leaves it.
func (w *world) begin(tile, version string) catalog.Attempt {
	w.t.Helper()
	d, err := w.step.Begin(w.t.Context(), upsert.BeginRequest{
		Unit:  upsert.UnitRef{Collection: "landcover", TileID: tile, Identity: json.RawMessage(fmt.Sprintf(`{"version":%q}`, version))},
		Owner: "worker", RequestID: uuid.NewString(),
	})
	must(w.t, err)
	if d.Verdict != upsert.VerdictRun {
		w.t.Fatalf("%s: %+v", tile, d)
	}
	return *d.Attempt
}

// orphan writes an output whose row is lost then, with its attempt as swept.
func (w *world) orphan(tile, version string) catalog.Tile {
	w.t.Helper()
	out := w.register(tile, version)
	w.exec(`UPDATE catalog.slots SET unit_key = NULL WHERE unit_key = $1`, out.UnitKey)
	w.exec(`DELETE FROM catalog.slot_history WHERE to_unit = $1`, out.UnitKey)
	w.exec(`DELETE FROM catalog.tiles WHERE unit_key = $1`, out.UnitKey)
	return out
}

func (w *world) trash() []catalog.Trashed {
	w.t.Helper()
	trash, err := w.rec.Trash(w.t.Context(), w.store.ID(), 0, 100)
	must(w.t, err)
	return trash
}

func TestRedo(t *testing.T) {
	w := newWorld(t)
	batch, _, err := w.db.OpenBatch(t.Context(), "b1", "landcover", "me")
	must(t, err)
	var tiles []catalog.Tile
	var expected []catalog.ExpectedUnit
	for i := range 8 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
		unit, err := catalog.NewUnit("landcover", tiles[i].TileID, tiles[i].Identity, "")
		must(t, err)
		expected = append(expected, catalog.ExpectedUnit{Unit: unit})
	}
	_, _, err = w.db.AddUnits(t.Context(), batch, expected)
	must(t, err)
	w.register("t7", "2") // 7 is not current any more
	wrong := map[int]string{}
	for i, tile := range tiles {
		content, err := os.ReadFile(w.path(tile.ObjectKey))
		must(t, err)
		wrong[i] = string(content)
		must(t, os.Remove(w.path(tile.ObjectKey)))
	}
	plan := w.plan(catalog.PlanChoices{})
	if plan.Acts() != 7 || plan.Catalogued != 9 || plan.PlannedBy != "planner" {
		t.Fatalf("%+v", plan)
	}
	w.plant(tiles[1].ObjectKey, wrong[1]) // it is back
	w.register("t2", "1")                 // it was made again
	w.begin("t3", "1")                    // it is being made
	w.exec(`UPDATE catalog.tiles SET withdrawn_at = now() WHERE unit_key = $1`, tiles[4].UnitKey)
	w.register("t5", "2") // another is current
	late := w.begin("t6", "1")
	w.exec(`UPDATE catalog.attempts SET lease_until = now() - interval '1 s' WHERE attempt_id = $1`, late.ID)
	acts := w.apply(plan)
	ended(t, acts[tiles[0].ObjectKey], catalog.ActDone, "")
	ended(t, acts[tiles[1].ObjectKey], catalog.ActLeft, "it is there again")
	ended(t, acts[tiles[2].ObjectKey], catalog.ActLeft, "another output")
	ended(t, acts[tiles[3].ObjectKey], catalog.ActLeft, "being made again")
	ended(t, acts[tiles[4].ObjectKey], catalog.ActLeft, "withdrawn")
	ended(t, acts[tiles[5].ObjectKey], catalog.ActLeft, "not current")
	ended(t, acts[tiles[6].ObjectKey], catalog.ActDone, "")
	if n := w.count(`SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL`); n != 2 {
		t.Errorf("%d units are lost", n)
	}
	claimed, err := w.step.Claim(t.Context(), upsert.ClaimRequest{Batch: "b1", Max: 10, Owner: "w", RequestID: "r"})
	must(t, err)
	if len(claimed.Units) != 2 {
		t.Fatalf("claimed %+v", claimed)
	}
	for _, u := range claimed.Units {
		must(t, os.WriteFile(w.path(u.Attempt.StagingKey), rastertest.Raster{Seed: 9}.Bytes(), 0o644))
		_, err := w.step.Complete(t.Context(), u.Attempt.ID, upsert.CompleteRequest{})
		must(t, err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL`); n != 0 {
		t.Errorf("%d units are lost", n)
	}
	if n := w.count(`SELECT count(*) FROM catalog.audit WHERE act = 'apply plan' AND who = 'operator' AND why = 'mend it'`); n != 1 {
		t.Errorf("%d rows of the audit", n)
	}
	_, err = w.rec.Apply(t.Context(), plan.ID, 1, "operator", "again", 0)
	if !catalog.IsCode(err, catalog.CodePlanApplied) {
		t.Errorf("applied twice: %v", err)
	}
}

// A lost output that comes back is not lost any more, and not made again.
func TestLostIsBack(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	tile := w.register("t0", "1")
	must(t, os.Rename(w.path(tile.ObjectKey), w.path("aside")))
	ended(t, w.apply(w.plan(catalog.PlanChoices{Orphan: catalog.ActLeave}))[tile.ObjectKey], catalog.ActDone, "")
	if now, err := w.db.Tile(t.Context(), tile.UnitKey); err != nil || now.LostSince == nil {
		t.Errorf("%+v %v", now, err)
	}
	must(t, os.Rename(w.path("aside"), w.path(tile.ObjectKey)))
	w.clean()
	if now, err := w.db.Tile(t.Context(), tile.UnitKey); err != nil || now.LostSince != nil || now.AttemptID != tile.AttemptID {
		t.Errorf("%+v %v", now, err)
	}
}

// What is not what its row says goes to the trash, and its unit is made again.
func TestMismatch(t *testing.T) {
	w := newWorld(t)
	var tiles []catalog.Tile
	for i := range 6 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
	}
	right, err := os.ReadFile(w.path(tiles[2].ObjectKey))
	must(t, err)
	for _, i := range []int{0, 2, 4} {
		must(t, os.Truncate(w.path(tiles[i].ObjectKey), 100))
	}
	for _, i := range []int{1, 3} {
		w.spoil(tiles[i].ObjectKey)
	}
	scrubbed, err := w.rec.Scrub(t.Context(), w.store.ID(), 1)
	must(t, err)
	if scrubbed.Outputs != 6 || scrubbed.Bad != 5 {
		t.Fatalf("%+v", scrubbed)
	}
	plan := w.plan(catalog.PlanChoices{})
	if plan.Acts() != 5 {
		t.Fatalf("%+v", plan)
	}
	w.plant(tiles[2].ObjectKey, string(right)) // mended by hand
	w.spoil(tiles[3].ObjectKey)                // and so is this
	must(t, os.Remove(w.path(tiles[4].ObjectKey)))
	acts := w.apply(plan)
	for _, i := range []int{0, 1} {
		ended(t, acts[tiles[i].ObjectKey], catalog.ActDone, fmt.Sprintf("moved to .trash/%d/%s", plan.ID, tiles[i].ObjectKey))
	}
	for _, i := range []int{2, 3} {
		ended(t, acts[tiles[i].ObjectKey], catalog.ActLeft, "it is what its row says")
	}
	ended(t, acts[tiles[4].ObjectKey], catalog.ActDone, "")
	if trash := w.trash(); len(trash) != 2 || trash[0].By != "operator" || trash[0].SizeBytes == 0 {
		t.Errorf("trash: %+v", trash)
	}
	if n := w.count(`SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL`); n != 3 {
		t.Errorf("%d units are lost", n)
	}
	if n := w.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL AND trash_key IS NOT NULL`); n != 0 {
		t.Errorf("%d removals are open", n)
	}
	for _, i := range []int{0, 1, 4} {
		w.register(tiles[i].TileID, "1")
	}
	if _, err := w.rec.Scrub(t.Context(), w.store.ID(), 1); err != nil {
		t.Error(err)
	}
	w.clean()
}

func TestTrash(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	own, swept := w.orphan("own", "1"), w.orphan("unswept", "1")
	for _, key := range []string{"landcover/a.tif", "landcover/\xff.tif", "x/gone", "notes.txt"} {
		w.plant(key, key)
	}
	plan := w.plan(catalog.PlanChoices{})
	if plan.Acts() != 6 {
		t.Fatalf("%+v", plan)
	}
	must(t, os.Remove(w.path("x/gone")))
	w.exec(`UPDATE catalog.attempts SET state = 'failed', swept_at = NULL WHERE attempt_id = $1`, swept.AttemptID)
	w.plant(fmt.Sprintf(".trash/%d/notes.txt", plan.ID), "of a database that was restored")
	acts := w.apply(plan)
	ended(t, acts[own.ObjectKey], catalog.ActDone, fmt.Sprintf(".trash/%d/%s", plan.ID, own.ObjectKey))
	ended(t, acts[swept.ObjectKey], catalog.ActLeft, "an attempt may still use it")
	ended(t, acts["landcover/a.tif"], catalog.ActDone, ".trash/")
	ended(t, acts[catalog.EscapeKey("landcover/\xff.tif")], catalog.ActDone, ".trash/")
	ended(t, acts["x/gone"], catalog.ActDone, "gone already")
	ended(t, acts["notes.txt"], catalog.ActDone, fmt.Sprintf(".trash/%d.1/notes.txt", plan.ID))
	if w.exists(own.ObjectKey) || w.exists("landcover/\xff.tif") || !w.exists(swept.ObjectKey) {
		t.Error("what was moved is still there, or what was not is not")
	}

	trash := w.trash()
	if len(trash) != 4 {
		t.Fatalf("trash: %+v", trash)
	}
	by := map[string]catalog.Trashed{}
	for _, tr := range trash {
		by[catalog.UnescapeKey(tr.ObjectKey)] = tr
	}
	w.plant("landcover/a.tif", "something else")
	if err := w.rec.Restore(t.Context(), by["landcover/a.tif"].ID, "me", "oops"); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
		t.Errorf("restored over another: %v", err)
	}
	must(t, w.rec.Restore(t.Context(), by["landcover/\xff.tif"].ID, "me", "oops"))
	if content, err := os.ReadFile(w.path("landcover/\xff.tif")); err != nil || string(content) != "landcover/\xff.tif" {
		t.Errorf("%q %v", content, err)
	}
	if err := w.rec.Restore(t.Context(), by["landcover/\xff.tif"].ID, "me", "oops"); !catalog.IsCode(err, catalog.CodeNotFound) {
		t.Errorf("restored twice: %v", err)
	}
	must(t, os.Remove(w.path(by["notes.txt"].TrashKey)))
	if err := w.rec.Restore(t.Context(), by["notes.txt"].ID, "me", "oops"); !catalog.IsCode(err, catalog.CodeNotFound) {
		t.Errorf("restored what is gone: %v", err)
	}

	w.exec(`UPDATE catalog.attempts SET state = 'failed', swept_at = NULL WHERE attempt_id = $1`, own.AttemptID)
	if err := w.rec.Restore(t.Context(), by[own.ObjectKey].ID, "me", "oops"); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
		t.Errorf("restored what a sweep would take: %v", err)
	}

	if emptied, err := w.rec.EmptyTrash(t.Context(), "", false, reconcile.Scheduled, ""); err != nil || emptied.Objects != 0 {
		t.Errorf("%+v %v", emptied, err)
	}
	w.exec(`UPDATE catalog.removals SET expires_at = now() WHERE id = $1`, by["landcover/a.tif"].ID)
	if emptied, err := w.rec.EmptyTrash(t.Context(), "", false, reconcile.Scheduled, ""); err != nil || emptied.Objects != 1 || emptied.Bytes != 15 {
		t.Errorf("%+v %v", emptied, err)
	}
	w.seen.Set(func(s *storagetest.Shim) { s.OnSentinel = func() error { return storage.ErrSentinel } })
	if emptied, err := w.rec.EmptyTrash(t.Context(), "", true, "me", "space"); err != nil || emptied.Objects != 0 || emptied.Left != 1 {
		t.Errorf("%+v %v", emptied, err)
	}
	w.seen.Set(func(s *storagetest.Shim) { s.OnSentinel = nil })
	if emptied, err := w.rec.EmptyTrash(t.Context(), w.store.ID(), true, "me", "space"); err != nil || emptied.Objects != 1 || w.exists(by[own.ObjectKey].TrashKey) {
		t.Errorf("%+v %v", emptied, err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.audit WHERE act IN ('empty the trash', 'restore from the trash')`); n != 2 || len(w.trash()) != 0 {
		t.Errorf("%d rows of the audit, %d in the trash", n, len(w.trash()))
	}
}

// A sweep deletes what removals name, and leaves to a plan what is to go to the trash.
func TestSweepLeavesTrash(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	w.plant("a.txt", "a")
	plan := w.plan(catalog.PlanChoices{})
	w.ask(plan)
	w.stopAt(plan, reconcile.PointIntended)
	w.exec(`UPDATE catalog.removals SET created_at = now() - interval '1 day'`)
	_, err := w.step.Sweep(t.Context())
	must(t, err)
	if !w.exists("a.txt") {
		t.Error("swept")
	}
	run := w.start(reconcile.Request{MinAge: atOnce})
	if run.Figures.InFlight != 1 || run.Open() != 0 {
		t.Errorf("what is being moved is not covered: %+v", run)
	}
	must(w.t, w.resume(plan))
	ended(t, w.acts(plan)["a.txt"], catalog.ActDone, ".trash/")
}

// stopAt applies a plan until its first act comes to a point: from there on nothing more is
// done, as after a crash.
func (w *world) stopAt(plan catalog.Plan, at reconcile.Point) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	w.rec.Hook = func(now reconcile.Point, _ catalog.Act) {
		if now == at {
			cancel()
			runtime.Goexit()
		}
	}
	err := w.rec.ApplyPlan(ctx, plan.ID)
	w.rec.Hook = nil
	if !errors.Is(err, context.Canceled) {
		w.t.Fatalf("not stopped at %s: %v", at, err)
	}
}

// A crash between any two steps of an act: whoever goes on does it once.
func TestCrashedActs(t *testing.T) {
	for _, at := range []reconcile.Point{reconcile.PointIntended, reconcile.PointMoved, reconcile.PointInspected, reconcile.PointAdopted} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t)
			w.register("keep", "1")
			if at == reconcile.PointInspected || at == reconcile.PointAdopted {
				orphan := w.orphan("own", "1")
				plan := w.plan(catalog.PlanChoices{Orphan: catalog.ActAdopt})
				w.ask(plan)
				w.stopAt(plan, at)
				must(w.t, w.resume(plan))
				ended(t, w.acts(plan)[orphan.ObjectKey], catalog.ActDone, "is current")
				if n := w.count(`SELECT count(*) FROM catalog.slot_history WHERE reason = 'adopted'`); n != 1 {
					t.Errorf("%d moves", n)
				}
				w.clean()
				return
			}
			for _, mended := range []bool{false, true} {
				for _, kind := range []catalog.FindingKind{catalog.FindingOrphan, catalog.FindingMismatch} {
					key, tile := "stray.txt", fmt.Sprint("t", mended)
					content := []byte(key)
					if kind == catalog.FindingMismatch {
						key = w.register(tile, "1").ObjectKey
						var err error
						content, err = os.ReadFile(w.path(key))
						must(t, err, os.Truncate(w.path(key), 100))
					} else {
						w.plant(key, key)
					}
					before := len(w.trash())
					plan := w.plan(catalog.PlanChoices{})
					w.ask(plan)
					w.stopAt(plan, at)
					if n := w.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL AND trash_key IS NOT NULL`); n != 1 {
						t.Fatalf("%d removals are open", n)
					}
					if mended { // by hand, meanwhile
						w.plant(key, string(content))
					}
					must(w.t, w.resume(plan))
					act := w.acts(plan)[key]
					trashed := 1
					switch {
					case kind == catalog.FindingMismatch && mended:
						ended(t, act, catalog.ActLeft, "it is what its row says")
						if now, err := os.ReadFile(w.path(key)); err != nil || string(now) != string(content) {
							t.Errorf("a right object was moved: %v", err)
						}
						if at == reconcile.PointIntended {
							trashed = 0
						}
					case mended && at == reconcile.PointMoved:
						ended(t, act, catalog.ActDone, fmt.Sprintf(".trash/%d.1/", plan.ID))
						trashed = 2
					default:
						ended(t, act, catalog.ActDone, fmt.Sprintf(".trash/%d/", plan.ID))
					}
					if n := len(w.trash()) - before; n != trashed {
						t.Errorf("%s, mended %t: %d in the trash, want %d", kind, mended, n, trashed)
					}
					for _, tr := range w.trash() {
						if !w.exists(tr.TrashKey) {
							t.Errorf("%s is not in the trash", tr.TrashKey)
						}
					}
					if n := w.count(`SELECT count(*) FROM catalog.removals WHERE confirmed_at IS NULL AND trash_key IS NOT NULL`); n != 0 {
						t.Errorf("%d removals are open", n)
					}
					if kind == catalog.FindingMismatch && !mended {
						w.register(tile, "1")
					}
					w.clean()
				}
			}
		})
	}
}

// Any number of servers apply one plan: each act is done once.
func TestTwoAppliers(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	for i := range 40 {
		w.plant(fmt.Sprintf("stray/%d", i), "x")
	}
	plan := w.plan(catalog.PlanChoices{})
	w.ask(plan)
	other := reconcile.New(w.rec.Config)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = other.ApplyPlan(t.Context(), plan.ID) })
	}
	wg.Wait()
	must(t, errs...)
	must(w.t, w.resume(plan))
	for _, act := range w.acts(plan) {
		ended(t, act, catalog.ActDone, ".trash/")
	}
	if n := len(w.trash()); n != 40 {
		t.Errorf("%d in the trash", n)
	}
	must(t, w.rec.ApplyPlan(t.Context(), plan.ID)) // nothing is left of it
}

// Two plans of the same findings: what one has done, or does, the other leaves.
func TestTwoPlans(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	var keys []string
	for i := range 20 {
		keys = append(keys, w.orphan(fmt.Sprintf("o%d", i), "1").ObjectKey)
	}
	trash := w.plan(catalog.PlanChoices{})
	adopt, err := w.rec.Plan(t.Context(), trash.RunID, catalog.PlanChoices{Orphan: catalog.ActAdopt}, "other")
	must(t, err)
	w.ask(trash)
	w.ask(adopt)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, plan := range []catalog.Plan{trash, adopt} {
		wg.Go(func() { errs[i] = w.rec.ApplyPlan(t.Context(), plan.ID) })
	}
	wg.Wait()
	must(t, errs...)
	trashed, adopted := w.acts(trash), w.acts(adopt)
	for _, key := range keys {
		row := w.count(`SELECT count(*) FROM catalog.tiles WHERE object_key = $1`, key) == 1
		if row != w.exists(key) || row != (adopted[key].State == catalog.ActDone) || row == strings.HasPrefix(trashed[key].Outcome, ".trash/") {
			t.Errorf("%s: row %t, there %t, trash %+v, adopt %+v", key, row, w.exists(key), trashed[key], adopted[key])
		}
	}
	w.clean()
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.register(fmt.Sprintf("t%d", i), "1")
	}
	w.plant("a", "a")
	w.plant("b", "b")
	plan := w.plan(catalog.PlanChoices{})
	if _, err := w.rec.Apply(t.Context(), plan.ID, 0.1, "me", "", 0); !catalog.IsCode(err, catalog.CodeTooMuchChange) || !strings.Contains(err.Error(), "2 acts") {
		t.Errorf("too much: %v", err)
	}
	for _, share := range []float64{-1, 1.5} {
		if _, err := w.rec.Apply(t.Context(), plan.ID, share, "me", "", 0); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
			t.Errorf("%g: %v", share, err)
		}
	}
	if _, err := w.rec.Apply(t.Context(), 99, 1, "me", "", 0); !catalog.IsCode(err, catalog.CodeUnknownPlan) {
		t.Error(err)
	}
	if _, err := w.rec.Plan(t.Context(), 99, catalog.PlanChoices{}, "me"); !catalog.IsCode(err, catalog.CodeUnknownRun) {
		t.Error(err)
	}
	for _, choices := range []catalog.PlanChoices{{Lost: "trash"}, {Mismatch: "adopt"}, {Orphan: "redo"}} {
		if _, err := w.rec.Plan(t.Context(), plan.RunID, choices, "me"); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
			t.Errorf("%+v: %v", choices, err)
		}
	}
	leave, err := w.rec.Plan(t.Context(), plan.RunID, catalog.PlanChoices{Orphan: catalog.ActLeave}, "me")
	if err != nil || leave.Acts() != 0 {
		t.Errorf("%+v %v", leave, err)
	}
	running, err := w.rec.Start(t.Context(), reconcile.Request{StoreID: w.store.ID()}, "test", 0)
	must(t, err)
	if _, err := w.rec.Plan(t.Context(), running.ID, catalog.PlanChoices{}, "me"); !catalog.IsCode(err, catalog.CodeRunNotComplete) {
		t.Error(err)
	}

	// A store that is away: at the beginning, and in the middle.
	away := func(s *storagetest.Shim) { s.OnSentinel = func() error { return storage.ErrSentinel } }
	back := func(s *storagetest.Shim) { s.OnSentinel, s.OnStat = nil, nil }
	w.seen.Set(away)
	if _, err := w.rec.Apply(t.Context(), plan.ID, 1, "me", "", 0); !catalog.IsCode(err, catalog.CodeStoreUnavailable) {
		t.Error(err)
	}
	w.seen.Set(back)
	w.ask(plan)
	w.seen.Set(away)
	if err := w.rec.ApplyPlan(t.Context(), plan.ID); !catalog.IsCode(err, catalog.CodeStoreUnavailable) {
		t.Error(err)
	}
	w.seen.Set(func(s *storagetest.Shim) {
		asked := 0
		s.OnStat = func(_ context.Context, key string) (catalog.Object, error) {
			if key == "b" {
				return catalog.Object{}, storage.ErrNotExist
			}
			return catalog.Object{}, nil
		}
		s.OnSentinel = func() error {
			if asked++; asked > 1 {
				return storage.ErrSentinel
			}
			return nil
		}
	})
	if err := w.resume(plan); !catalog.IsCode(err, catalog.CodeStoreUnavailable) {
		t.Error(err)
	}
	if now, err := w.rec.GetPlan(t.Context(), plan.ID); err != nil || now.State != catalog.PlanApplying || len(now.Counts) != 2 {
		t.Errorf("%+v %v", now, err)
	}
	w.seen.Set(back)
	must(w.t, w.resume(plan))
	for key, act := range w.acts(plan) {
		ended(t, act, catalog.ActDone, fmt.Sprintf(".trash/%d/%s", plan.ID, key))
	}
}

// A plan whose job is gone is queued again, unless it is held.
func TestRequeuePlans(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "1")
	w.plant("a", "a")
	plan := w.plan(catalog.PlanChoices{})
	if n, err := w.db.RequeuePlans(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("%d %v", n, err)
	}
	w.ask(plan)
	hold, err := w.db.TakePlan(t.Context(), plan.ID)
	must(t, err)
	if n, err := w.db.RequeuePlans(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("%d %v", n, err)
	}
	hold.Close()
	time.Sleep(200 * time.Millisecond) // the lock goes with the connection
	if n, err := w.db.RequeuePlans(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("%d %v", n, err)
	}
	if n, err := w.db.RequeuePlans(t.Context(), 0); err != nil || n != 1 || len(w.queue.plans) != 2 {
		t.Errorf("%d %v", n, err)
	}
}

func TestAdopt(t *testing.T) {
	w := newWorld(t)
	w.register("keep", "5")
	tags := func(tile, version string, more ...string) map[string]string {
		identity := fmt.Sprintf(`{"version":%q}`, version)
		m := map[string]string{catalog.TagIdentity: identity}
		for i := 0; i+1 < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	unit := func(tile, version string) catalog.Unit {
		u, err := catalog.NewUnit("landcover", tile, fmt.Appendf(nil, `{"version":%q}`, version), "")
		must(t, err)
		return u
	}
	raster := func(key string, tags map[string]string, missing int) string {
		w.plant(key, string(rastertest.Raster{Seed: byte(len(key)), Tags: tags, Missing: missing}.Bytes()))
		return key
	}
	named := func(tile, version string) string {
		u := unit(tile, version)
		attempt := uuid.New()
		return catalog.FinalName("landcover", tile, u.Key, attempt, ".tif")
	}
	own := w.orphan("own", "5") // its attempt is known
	unknown := w.orphan("unknown", "5")
	w.exec(`DELETE FROM catalog.attempts WHERE attempt_id = $1`, unknown.AttemptID)
	byName := w.orphan("byname", "5")
	w.register("taken", "5") // another is current
	behind := raster(named("taken", "4"), tags("taken", "4"), 0)
	strange := raster(named("strange", "9"), tags("strange", "9"), 0) // of a version, and a unit, that nobody knows
	foreign := raster("landcover/foreign.tif", tags("foreign", "5"), 0)
	left := map[string]string{
		raster("landcover/untagged.tif", nil, 0):                                                   "does not say what it was made from",
		raster(named("nobody", "5"), nil, 0):                                                       "knows no unit",
		raster(named("broken", "5"), tags("broken", "5"), 3):                                       "",
		raster("landcover/other.tif", tags("other", "5", catalog.TagUnitKey, uuid.NewString()), 0): "another unit's output",
		raster(strings.Replace(named("moved", "5"), "moved", "away", 1), tags("moved", "5"), 0):    "another unit's output",
		raster("nowhere/t.tif", tags("t", "5"), 0):                                                 "no collection",
		raster("landcover/notes.txt", nil, 0):                                                      "what place it is of",
		raster("landcover/a b.tif", nil, 0):                                                        "what place it is of",
		raster("landcover/\xff.tif", nil, 0):                                                       "not UTF-8",
		raster("landcover/image.jp2", tags("image", "5"), 0):                                       "does not end in .tif",
		raster(named("keep", "5"), tags("keep", "5"), 0):                                           "its unit has an output",
		raster(named("held", "5"), tags("held", "5"), 0):                                           "is being made",
		raster("landcover/wrong.tif", tags("wrong", "5", catalog.TagVersion, "6"), 0):              "another unit's output",
		raster("landcover/bad.tif", map[string]string{catalog.TagIdentity: `{"version":`}, 0):      "CATALOGD_IDENTITY",
	}
	w.plant("landcover/empty.tif", "")
	left["landcover/empty.tif"] = "is empty"
	w.begin("held", "5")
	gone := raster("landcover/gone.tif", tags("gone", "5"), 0)
	plan := w.plan(catalog.PlanChoices{Orphan: catalog.ActAdopt})
	must(t, os.Remove(w.path(gone)))
	acts := w.apply(plan)
	for _, key := range []string{own.ObjectKey, unknown.ObjectKey, byName.ObjectKey, strange, foreign} {
		ended(t, acts[key], catalog.ActDone, "is current")
	}
	ended(t, acts[behind], catalog.ActDone, "another output is current")
	ended(t, acts[gone], catalog.ActLeft, "gone already")
	for key, says := range left {
		ended(t, acts[catalog.EscapeKey(key)], catalog.ActLeft, says)
	}
	tile, err := w.db.Tile(t.Context(), own.UnitKey)
	must(t, err)
	if tile.AttemptID != own.AttemptID || tile.Checksum != own.Checksum || !tile.Current || tile.ObjectKey != own.ObjectKey || tile.Facts.CRS != "EPSG:32633" || tile.PublishedAt == nil {
		t.Errorf("%+v\nwas\n%+v", tile, own)
	}
	if tile, err = w.db.Tile(t.Context(), unit("taken", "4").Key); err != nil || tile.Current {
		t.Errorf("%+v %v", tile, err)
	}
	if tile, err = w.db.Tile(t.Context(), unit("strange", "9").Key); err != nil || !strings.HasSuffix(strings.ReplaceAll(tile.AttemptID.String(), "-", ""), strings.Split(strange, ".")[2]) {
		t.Errorf("%+v %v", tile, err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.collection_versions v WHERE rank < (SELECT rank FROM catalog.collection_versions WHERE version = '5') AND version IN ('4', '9')`); n != 2 {
		t.Errorf("%d versions rank below", n)
	}
	if n := w.count(`SELECT count(*) FROM catalog.tiles t JOIN catalog.attempts a USING (attempt_id) WHERE a.state = 'done' AND a.ended_at = t.registered_at AND a.swept_at IS NULL`); n != 8 {
		t.Errorf("%d rows have their attempts", n)
	}
	if link, err := os.Readlink(w.path("current/landcover/foreign.tif")); err != nil || filepath.Base(link) != "foreign.tif" {
		t.Errorf("%q %v", link, err)
	}
	// What was adopted is an output as any other: it is skipped, and outranked by any
	// version that is begun.
	w.register("strange", "6")
	if tile, err = w.db.Tile(t.Context(), unit("strange", "6").Key); err != nil || !tile.Current {
		t.Errorf("%+v %v", tile, err)
	}
	run := w.start(reconcile.Request{MinAge: atOnce})
	if run.Figures.Lost != 0 || run.Figures.Mismatched != 0 || int(run.Figures.Orphans) != len(left) {
		t.Errorf("%+v", run)
	}
}
