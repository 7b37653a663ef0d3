package upsert_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/upsert"
)

// What was accepted stays readable, though PostgreSQL writes it out longer than
// it came.
func TestIdentityThatGrows(t *testing.T) { onBoth(t, testIdentityThatGrows) }

func testIdentityThatGrows(t *testing.T, on place) {
	w := newWorld(t, on)
	for i, member := range []string{strings.Repeat("1,", 25000) + "1", strings.Repeat("1e-300,", 900) + "2e-300"} {
		req := request(fmt.Sprint("t", i), "v1")
		req.Unit.Identity = json.RawMessage(`{"version":"v1","l":[` + member + `]}`)
		out := w.do(req, rastertest.Raster{})
		identity, err := catalog.ParseIdentity(req.Unit.Identity)
		if err != nil || string(out.Tile.Identity) != identity.String() {
			t.Fatalf("the identity came back as %.80s", out.Tile.Identity)
		}
		req.RequestID = uuid.NewString()
		if d := w.begin(req); d.Verdict != upsert.VerdictSkip {
			t.Fatalf("redelivered: %s", d.Verdict)
		}
	}
}

func TestPropertiesThatGrow(t *testing.T) { onBoth(t, testPropertiesThatGrow) }

func testPropertiesThatGrow(t *testing.T, on place) {
	w := newWorld(t, on)
	for _, bad := range []string{`{"a":1e131071}`, `{"a":1e-400}`, `{"a":` + strings.Repeat("9", 200) + `}`, `{"a":"\u0000"}`,
		`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, `[]`, `null`} {
		req := request("t0001", "v1")
		req.Given.Properties = json.RawMessage(bad)
		_, err := w.Begin(t.Context(), req)
		wantCode(t, err, catalog.CodeInvalidRequest)
	}
	req := request("t0001", "v1")
	req.Given.Properties = json.RawMessage(`{"path":"C:\\u0000dir","n":6.02e23,"zero":0.0e5}`)
	w.do(req, rastertest.Raster{})
}

// PostgreSQL takes no offset of 16 hours, and keeps microseconds.
func TestAcquiredAsPostgreSQLKeepsIt(t *testing.T) { onBoth(t, testAcquiredAsPostgreSQLKeepsIt) }

func testAcquiredAsPostgreSQLKeepsIt(t *testing.T, on place) {
	w := newWorld(t, on)
	w.collection("scenes", catalog.Policy{OrderBy: catalog.OrderAcquired})
	at := func(version, start string) upsert.BeginRequest {
		moment, err := time.Parse(time.RFC3339Nano, start)
		if err != nil {
			t.Fatal(err)
		}
		req := request("t0001", version)
		req.Unit.Collection, req.Given.Acquired = "scenes", catalog.Interval{Start: &moment, End: &moment}
		return req
	}
	w.do(at("v0", "2026-01-01T00:00:00Z"), rastertest.Raster{})
	w.do(at("v0b", "2026-02-01T00:00:00+16:00"), rastertest.Raster{Seed: 1})
	late := w.run(at("v1", "2026-03-01T00:00:00.1234567Z"))
	w.do(at("v2", "2026-03-01T00:00:00.1234567Z"), rastertest.Raster{Seed: 2})
	w.stage(late, rastertest.Raster{Seed: 3})
	if out := w.complete(late); out.Tile.Current {
		t.Fatal("the lower version took the slot")
	}
	w.check(invariant.Options{})
}

// What the database refuses every time ends the attempt, and not in waiting for ever.
func TestRowThatIsRefused(t *testing.T) { onBoth(t, testRowThatIsRefused) }

func testRowThatIsRefused(t *testing.T, on place) {
	w := newWorld(t, on)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	w.exec(`ALTER TABLE catalog.tiles ADD CONSTRAINT never CHECK (size_bytes < 0)`)
	_, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeInternal)
	w.exec(`ALTER TABLE catalog.tiles DROP CONSTRAINT never`)
	if got := w.state(a); got != catalog.AttemptFailed {
		t.Fatalf("the attempt is %s", got)
	}
	w.do(request("t0001", "v1"), rastertest.Raster{})
}

// One thing that cannot be swept does not keep the rest.
func TestSweepGoesOn(t *testing.T) { onBoth(t, testSweepGoesOn) }

func testSweepGoesOn(t *testing.T, on place) {
	w := newWorld(t, on, func(c *upsert.Config) { c.StagingAge = time.Nanosecond })
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	if err := w.Abandon(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	stuck := w.another(func(c *upsert.Config) {
		c.StagingAge = time.Nanosecond
		c.Stores = w.with(&calls{remove: func(key string) error {
			if key == a.StagingKey {
				return storage.ErrPermission
			}
			return nil
		}})
	})
	w.age()
	sum, err := stuck.Sweep(t.Context())
	if err != nil || sum.Attempts != 1 || sum.Kept != 1 {
		t.Fatalf("%+v %v", sum, err)
	}
	w.sweep()
	if w.exists(a.StagingKey) {
		t.Fatal("the next sweep left it too")
	}
}

// A server does its own stores' work, and tells what it cannot of others'.
func TestTwoStores(t *testing.T) {
	w := newWorld(t, inDirectory)
	mine := w.do(request("t0001", "v1"), rastertest.Raster{}).Tile

	root := t.TempDir()
	store, err := posix.Open(t.Context(), root, posix.Options{Init: true})
	if err != nil {
		t.Fatal(err)
	}
	db := w.open(w.url)
	if err := db.UseStore(t.Context(), postgres.Store{ID: store.ID(), Root: "file://" + root, Location: root + "/", Href: "/data/"}); err != nil {
		t.Fatal(err)
	}
	other := upsert.New(upsert.Config{Ledger: db, Stores: upsert.Stores{store.ID(): store}, Prober: w.Prober})
	if _, err := db.CreateCollection(t.Context(), catalog.Collection{ID: "elsewhere", MediaType: catalog.MediaTypeGeoTIFF, Policy: catalog.Policy{OrderBy: catalog.OrderVersion}}); err != nil {
		t.Fatal(err)
	}
	req := request("t0001", "v1")
	req.Unit.Collection = "elsewhere"
	d, err := other.Begin(t.Context(), req)
	if err != nil || d.Verdict != upsert.VerdictRun {
		t.Fatalf("%+v %v", d, err)
	}
	if err := os.WriteFile(d.StagingPath, rastertest.Raster{}.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Complete(t.Context(), d.Attempt.ID, upsert.CompleteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req.Unit.TileID, req.RequestID = "t0002", uuid.NewString()
	if d, err = other.Begin(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := other.Abandon(t.Context(), d.Attempt.ID); err != nil {
		t.Fatal(err)
	}
	w.age()
	for _, step := range []*upsert.Step{w.Step, other} {
		if _, err := step.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := step.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	checked, err := w.Check(t.Context(), []upsert.UnitRef{{Key: theirs.Tile.UnitKey}, {Key: mine.UnitKey}}, true)
	if err != nil || !catalog.IsCode(checked[0].Err, catalog.CodeStoreUnavailable) || checked[1].Status != upsert.StatusDone {
		t.Fatalf("%+v %v", checked, err)
	}
}

// unsyncedOnce fails to sync, and the database is away when that is to be told.
type unsyncedOnce struct {
	storage.Store
	done atomic.Bool
}

func (s *unsyncedOnce) Promote(ctx context.Context, from, to, fingerprint string) error {
	if s.done.CompareAndSwap(false, true) {
		return fmt.Errorf("promote: %w", storage.ErrSync)
	}
	return s.Store.Promote(ctx, from, to, fingerprint)
}

type mute struct{ upsert.Ledger }

func (d mute) Fail(ctx context.Context, id uuid.UUID, from catalog.AttemptState, failure upsert.Failure) (*upsert.Failed, error) {
	return nil, catalog.Errorf(catalog.CodeDatabaseUnavailable, "away")
}

func TestUnsyncedFileIsNeverSyncedAgain(t *testing.T) {
	w := newWorld(t, inDirectory)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	step := upsert.New(upsert.Config{Ledger: mute{w.db}, Stores: upsert.Stores{w.store.ID(): &unsyncedOnce{Store: w.store}}, Prober: w.Prober})
	_, err := step.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(t, err, catalog.CodeFsyncFailed)
	sum, err := w.Recover(t.Context())
	if err != nil || sum.RolledForward != 0 || sum.Failed != 1 {
		t.Fatalf("%+v %v", sum, err)
	}
}

// An object that an operator put a link in place of is no output any more.
func TestObjectThatIsNoFile(t *testing.T) {
	w := newWorld(t, inDirectory)
	tile := w.do(request("t0001", "v1"), rastertest.Raster{}).Tile
	path := filepath.Join(w.root, tile.ObjectKey)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	checked, err := w.Check(t.Context(), []upsert.UnitRef{{Key: tile.UnitKey}}, true)
	if err != nil || checked[0].Err != nil || checked[0].Status != upsert.StatusLost {
		t.Fatalf("%+v %v", checked, err)
	}
	if out := w.do(request("t0001", "v1"), rastertest.Raster{}); out.State != catalog.AttemptDone {
		t.Fatalf("%+v", out)
	}
}

// A request_id is its owner's: "1" of two workers is two requests.
func TestRequestIDsOfTwoOwners(t *testing.T) { onBoth(t, testRequestIDsOfTwoOwners) }

func testRequestIDsOfTwoOwners(t *testing.T, on place) {
	w := newWorld(t, on)
	one, two := request("t0001", "v1"), request("t0001", "v1")
	one.Owner, two.Owner, one.RequestID, two.RequestID = "one", "two", "1", "1"
	a := w.run(one)
	if d := w.begin(two); d.Verdict != upsert.VerdictWait {
		t.Fatalf("the other owner got %s", d.Verdict)
	}
	if again := w.run(one); again.ID != a.ID {
		t.Fatal("the replay made another attempt")
	}
	if err := w.Abandon(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	w.run(two)
}

// A file that is being registered is nobody's leftover, however old.
func TestSweepSparesWhatIsBeingRegistered(t *testing.T) {
	onBoth(t, testSweepSparesWhatIsBeingRegistered)
}

func testSweepSparesWhatIsBeingRegistered(t *testing.T, on place) {
	w := newWorld(t, on, func(c *upsert.Config) { c.StagingAge = time.Nanosecond })
	w.incoming("old.tif", rastertest.Raster{})
	w.on(upsert.PointProbed, uuid.Nil, func() { w.sweep() })
	if out, err := w.Register(t.Context(), upsert.OutputRequest{Begin: request("t0001", "v1"), Staged: "old.tif"}); err != nil || out.Outcome.State != catalog.AttemptDone {
		t.Fatalf("%+v %v", out, err)
	}
}
