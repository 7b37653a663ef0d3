package upsert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
)

func TestOpenSaysWhatAnEmptyDatabaseLacks(t *testing.T) {
	_, err := postgres.Open(t.Context(), testdb.NewEmpty(t))
	if !catalog.IsCode(err, catalog.CodeDatabaseUnavailable) || !strings.Contains(err.Error(), "migrate up") {
		t.Fatalf("%v", err)
	}
}

// What the task gave lives on in the row, and nowhere else.
func TestEndedAttemptsKeepNothing(t *testing.T) { onBoth(t, testEndedAttemptsKeepNothing) }

func testEndedAttemptsKeepNothing(t *testing.T, on place) {
	w := newWorld(t, on)
	req := request("t0001", "v1")
	req.Given.Properties = []byte(`{"cloud":3}`)
	if out := w.do(req, rastertest.Raster{}); string(out.Tile.Properties) != `{"cloud": 3}` {
		t.Fatalf("properties %s", out.Tile.Properties)
	}
	req = request("t0002", "v1")
	req.Given.Properties = []byte(`{"cloud":4}`)
	if err := w.Abandon(t.Context(), w.run(req).ID); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.attempts WHERE given <> '{}' OR intent IS NOT NULL`); n != 0 {
		t.Fatalf("%d ended attempts keep their payload", n)
	}
}

func TestRegisterBelowAFile(t *testing.T) {
	w := newWorld(t, inDirectory)
	in := filepath.Join(w.root, storage.IncomingPrefix)
	if err := w.store.PrepareStaging(t.Context(), storage.IncomingPrefix+"x", "landcover/x"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in, "file.tif"), rastertest.Raster{}.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file.tif/x.tif", "nobody/made/this.tif"} {
		_, err := w.Register(t.Context(), upsert.OutputRequest{Begin: request("t0001", "v1"), Staged: name})
		wantCode(t, err, catalog.CodeStagedMissing)
	}
	if entries, err := os.ReadDir(in); err != nil || len(entries) != 1 {
		t.Fatalf("%v %v", entries, err)
	}
}

// unsynced is a store whose disk fails when recovery makes the output durable.
type unsynced struct{ storage.Store }

func (unsynced) Settle(context.Context, string) (storage.Staged, error) {
	return nil, fmt.Errorf("settle: %w", storage.ErrSync)
}

// A second fsync may lie: the file is given up, the unit is due again.
func TestRecoveryGivesUpWhatCannotBeSynced(t *testing.T) {
	w := newWorld(t, inDirectory)
	a := w.run(request("t0001", "v1"))
	w.stage(a, rastertest.Raster{})
	intent := `{"staged_key": "` + a.StagingKey + `", "checksum": "sha256:00", "size_bytes": 1}`
	if _, err := w.sql.Exec(t.Context(), `UPDATE catalog.attempts SET state = 'promoting', intent = $1`, intent); err != nil {
		t.Fatal(err)
	}
	broken := upsert.New(upsert.Config{Ledger: w.db, Stores: upsert.Stores{w.store.ID(): unsynced{w.store}}, Prober: w.Prober})
	sum, err := broken.Recover(t.Context())
	if err != nil || sum.Failed != 1 {
		t.Fatalf("%+v %v", sum, err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.attempts WHERE state = 'failed' AND error_code = 'fsync_failed'`); n != 1 {
		t.Fatal("the attempt goes on")
	}
	w.due()
	if d := w.begin(request("t0001", "v1")); d.Verdict != upsert.VerdictRun {
		t.Fatalf("%s", d.Verdict)
	}
}

// What is current must not turn around by a change of policy that moves nothing.
func TestOrderIsSettledWithTheFirstUnit(t *testing.T) { onBoth(t, testOrderIsSettledWithTheFirstUnit) }

func testOrderIsSettledWithTheFirstUnit(t *testing.T, on place) {
	w := newWorld(t, on)
	c, err := w.db.Collection(t.Context(), "landcover")
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []catalog.Order{catalog.OrderAcquired, catalog.OrderVersion} {
		c.Policy.OrderBy = order
		if c, err = w.db.UpdateCollection(t.Context(), c); err != nil || c.Policy.OrderBy != order {
			t.Fatalf("%+v %v", c, err)
		}
	}
	w.do(request("t0001", "v1"), rastertest.Raster{})
	c.Title = "still to be changed"
	if _, err = w.db.UpdateCollection(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Policy.OrderBy = catalog.OrderAcquired
	_, err = w.db.UpdateCollection(t.Context(), c)
	wantCode(t, err, catalog.CodeCollectionNotEmpty)
}
