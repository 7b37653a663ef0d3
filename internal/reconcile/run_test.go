package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"catalogd/internal/catalog"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/storage/storagetest"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
	"catalogd/internal/writer"
	"catalogd/internal/writer/probetest"
)

// probes is one pool for all tests of the package: it keeps no state.
var probes struct {
	sync.Once
	*writer.Pool
}

func pool(t testing.TB) *writer.Pool {
	t.Helper()
	path := probetest.Path(t)
	probes.Do(func() { probes.Pool = writer.NewPool(writer.Config{Program: path, Size: 4}) })
	return probes.Pool
}

func TestMain(m *testing.M) {
	if at := os.Getenv(aloneEnv); at != "" {
		runAlone(at)
		return
	}
	code := m.Run()
	if probes.Pool != nil {
		probes.Close()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// world is a database, a store and one server's reconciliation of them.
type world struct {
	t     testing.TB
	url   string
	root  string
	db    *postgres.DB
	sql   *pgxpool.Pool
	store storage.Store
	// seen is the store as reconciliation sees it.
	seen  *storagetest.Shim
	step  *upsert.Step
	rec   *reconcile.Reconciler
	queue *queue
}

// queue keeps the jobs that were asked for.
type queue struct {
	mu    sync.Mutex
	parts []catalog.RunPart
	plans []int64
}

func (*queue) Judge(context.Context, pgx.Tx, uuid.UUID) error  { return nil }
func (*queue) Notify(context.Context, pgx.Tx, uuid.UUID) error { return nil }

func (q *queue) Part(_ context.Context, _ pgx.Tx, run int64, part int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.parts = append(q.parts, catalog.RunPart{Run: run, Part: part})
	return nil
}

func (q *queue) Apply(_ context.Context, _ pgx.Tx, plan int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.plans = append(q.plans, plan)
	return nil
}

func newWorld(t testing.TB) *world {
	t.Helper()
	root := t.TempDir()
	store, err := posix.Open(t.Context(), root, posix.Options{Init: true})
	must(t, err)
	w := newWorldIn(t, store, "file://"+root)
	w.root = root
	return w
}

// newWorldIn is newWorld in any store.
func newWorldIn(t testing.TB, store storage.Store, url string) *world {
	t.Helper()
	w := &world{t: t, url: testdb.New(t), store: store, queue: &queue{}}
	var err error
	w.sql, err = pgxpool.New(t.Context(), w.url)
	must(t, err)
	t.Cleanup(w.sql.Close)
	separator := "?"
	if strings.Contains(w.url, "?") {
		separator = "&"
	}
	w.db, err = postgres.Open(t.Context(), w.url+separator+"role=catalog_server&pool_max_conns=40")
	must(t, err)
	t.Cleanup(w.db.Close)
	w.db.UseQueue(w.queue)
	must(t, w.db.UseStore(t.Context(), postgres.Store{ID: w.store.ID(), Root: url, Location: store.Location(""), Href: "/data/", Name: "tiles"}))
	w.seen = &storagetest.Shim{Store: w.store}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.step = upsert.New(upsert.Config{
		Ledger: w.db, Stores: upsert.Stores{w.store.ID(): w.store}, Prober: pool(t), Logger: log,
		PromoteDeadline: 10 * time.Second, StagingAge: time.Hour, SweepGrace: time.Millisecond,
	})
	t.Cleanup(func() { w.step.Drain(context.Background()) })
	w.rec = reconcile.New(reconcile.Config{
		Ledger: w.db, Stores: upsert.Stores{w.store.ID(): w.seen}, Step: w.step, Logger: log,
		TrashKeep: time.Hour, PartRows: 1000,
	})
	_, err = w.db.CreateCollection(t.Context(), catalog.Collection{
		ID: "landcover", StoreID: w.store.ID(), MediaType: catalog.MediaTypeGeoTIFF, License: "other", Policy: catalog.Policy{OrderBy: catalog.OrderVersion},
	})
	must(t, err)
	return w
}

// register is the whole step for one unit.
func (w *world) register(tile, version string) catalog.Tile {
	w.t.Helper()
	out, err := w.tryRegister(w.t.Context(), tile, version)
	must(w.t, err)
	return out
}

func (w *world) tryRegister(ctx context.Context, tile, version string) (catalog.Tile, error) {
	d, err := w.step.Begin(ctx, upsert.BeginRequest{
		Unit:  upsert.UnitRef{Collection: "landcover", TileID: tile, Identity: json.RawMessage(fmt.Sprintf(`{"version":%q}`, version))},
		Owner: "worker", RequestID: uuid.NewString(),
	})
	if err != nil {
		return catalog.Tile{}, err
	}
	if d.Verdict != upsert.VerdictRun {
		return catalog.Tile{}, fmt.Errorf("begin %s: %s %s", tile, d.Verdict, d.Reason)
	}
	raster := rastertest.Raster{Seed: byte(len(tile) + len(version))}
	if err := os.WriteFile(filepath.Join(w.root, d.Attempt.StagingKey), raster.Bytes(), 0o644); err != nil {
		return catalog.Tile{}, err
	}
	out, err := w.step.Complete(ctx, d.Attempt.ID, upsert.CompleteRequest{})
	if err == nil && out.State != catalog.AttemptDone {
		err = fmt.Errorf("complete %s: %s", tile, out.State)
	}
	return out.Tile, err
}

// start asks for a run, and does its parts.
func (w *world) start(req reconcile.Request) catalog.Run {
	w.t.Helper()
	run, err := w.tryStart(req)
	must(w.t, err)
	return run
}

func (w *world) tryStart(req reconcile.Request) (catalog.Run, error) {
	req.StoreID = w.store.ID()
	run, err := w.rec.Start(w.t.Context(), req, "test", 0)
	if err != nil {
		return run, err
	}
	if err := w.work(); err != nil {
		return run, err
	}
	return w.rec.Run(w.t.Context(), run.ID)
}

// work does the parts that were asked for.
func (w *world) work() error {
	w.queue.mu.Lock()
	parts := w.queue.parts
	w.queue.parts = nil
	w.queue.mu.Unlock()
	var errs []error
	for _, p := range parts {
		errs = append(errs, w.rec.DoPart(w.t.Context(), p.Run, p.Part))
	}
	return errors.Join(errs...)
}

// plant writes a stray file.
func (w *world) plant(key, content string) {
	w.t.Helper()
	path := filepath.Join(w.root, key)
	must(w.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// kind is what a run says of a kind.
func kind(run catalog.Run, kind catalog.FindingKind) catalog.KindCount {
	for _, k := range run.Kinds {
		if k.Kind == kind {
			return k
		}
	}
	return catalog.KindCount{Kind: kind}
}

// closes: the figures of a run add up.
func closes(t testing.TB, run catalog.Run) {
	t.Helper()
	f := run.Figures
	if f.Objects != f.Matched+f.Mismatched+f.Orphans+f.Young+f.InFlight+f.Unknown {
		t.Errorf("the objects of run %d do not add up: %+v", run.ID, f)
	}
	if f.Rows != f.Matched+f.Mismatched+f.Lost+f.RowsInFlight+f.RowsUnknown {
		t.Errorf("the rows of run %d do not add up: %+v", run.ID, f)
	}
}

func want(t testing.TB, run catalog.Run, state catalog.RunState, kinds map[catalog.FindingKind][3]int64) {
	t.Helper()
	closes(t, run)
	if run.State != state {
		t.Fatalf("run %d is %s (%s %s), want %s", run.ID, run.State, run.ErrorCode, run.ErrorMessage, state)
	}
	for _, k := range catalog.FindingKinds() {
		got := kind(run, k)
		if w := kinds[k]; got.New != w[0] || got.Open != w[1] || got.Resolved != w[2] {
			t.Errorf("run %d: %s: new %d, open %d, resolved %d, want %v", run.ID, k, got.New, got.Open, got.Resolved, w)
		}
	}
}

type kinds = map[catalog.FindingKind][3]int64

var atOnce = new(time.Duration)

// Findings live across runs: new, open, resolved, and new again.
func TestRun(t *testing.T) {
	w := newWorld(t)
	var tiles []catalog.Tile
	for i := range 8 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
	}
	want(t, w.start(reconcile.Request{}), catalog.RunComplete, nil)

	content, err := os.ReadFile(filepath.Join(w.root, tiles[0].ObjectKey))
	must(t, err, os.Remove(filepath.Join(w.root, tiles[0].ObjectKey)), os.Truncate(filepath.Join(w.root, tiles[1].ObjectKey), 100))
	w.plant("landcover/stray.tif", "who wrote this?")
	w.plant("landcover/\xff.tif", "and this?")
	run := w.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {2, 2, 0}, catalog.FindingLost: {1, 1, 0}, catalog.FindingMismatch: {1, 1, 0}})
	if got := kind(run, catalog.FindingMismatch); got.Example != tiles[1].ObjectKey+" size" || got.Bytes != 100 {
		t.Errorf("mismatch: %+v", got)
	}
	if f := run.Figures; f.Objects != 9 || f.Rows != 8 || f.Matched != 6 {
		t.Errorf("%+v", f)
	}
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 2, 0}, catalog.FindingLost: {0, 1, 0}, catalog.FindingMismatch: {0, 1, 0}})
	found, err := w.rec.Findings(t.Context(), catalog.FindingQuery{Kind: catalog.FindingOrphan, Limit: 10})
	must(t, err)
	if len(found) != 2 || found[0].ObjectKey == found[1].ObjectKey || catalog.UnescapeKey(found[0].ObjectKey) != "landcover/\xff.tif" && catalog.UnescapeKey(found[1].ObjectKey) != "landcover/\xff.tif" {
		t.Errorf("orphans: %+v", found)
	}
	// What is as it should be again is resolved, and only that.
	w.plant(tiles[0].ObjectKey, string(content))
	must(t, os.Remove(filepath.Join(w.root, "landcover/stray.tif")))
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 1, 1}, catalog.FindingLost: {0, 0, 1}, catalog.FindingMismatch: {0, 1, 0}})
	must(t, os.Remove(filepath.Join(w.root, tiles[0].ObjectKey)))
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 1, 0}, catalog.FindingLost: {1, 1, 0}, catalog.FindingMismatch: {0, 1, 0}})
}

// The age floor of an object that is not catalogd's counts from its first sight, whatever
// its file says; an object that bears an attempt's name needs none.
func TestYoung(t *testing.T) {
	w := newWorld(t)
	tile := w.register("t0", "1")
	w.plant("landcover/old.tif", "copied with its times")
	must(t, os.Chtimes(filepath.Join(w.root, "landcover/old.tif"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	_, err := w.sql.Exec(t.Context(), `DELETE FROM catalog.slot_history; UPDATE catalog.slots SET unit_key = NULL; DELETE FROM catalog.tiles`)
	must(t, err)
	hour := time.Hour
	run := w.start(reconcile.Request{MinAge: &hour})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}})
	if run.Figures.Young != 1 || kind(run, catalog.FindingOrphan).Example != tile.ObjectKey {
		t.Errorf("%+v", run)
	}
	_, err = w.sql.Exec(t.Context(), `UPDATE catalog.findings SET first_seen_at = first_seen_at - interval '1 hour' WHERE state = 'young'`)
	must(t, err)
	want(t, w.start(reconcile.Request{MinAge: &hour}), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 2, 0}})
}

// Runs that could not read both sides to their end, and are told so: nothing is resolved
// by them, and nothing flagged that they did not see.
func TestIncomplete(t *testing.T) {
	torn, denied := errors.New("connection reset by peer"), fmt.Errorf("%w: landcover/33U is mode 0700", storage.ErrPermission)
	none := func(storagetest.Listing) storagetest.Listing {
		return func(func(catalog.Object, error) bool) {}
	}
	gone := func(context.Context, string) (catalog.Object, error) { return catalog.Object{}, storage.ErrNotExist }
	reads := 0
	for name, change := range map[string]func(*storagetest.Shim){
		"a listing that breaks off":             func(s *storagetest.Shim) { s.OnList = storagetest.Torn(4, torn) },
		"a listing in disorder":                 func(s *storagetest.Shim) { s.OnList = storagetest.Swapped(3) },
		"a listing with an object twice":        func(s *storagetest.Shim) { s.OnList = storagetest.Twice(3) },
		"a directory that may not be read":      func(s *storagetest.Shim) { s.OnList = storagetest.Torn(0, denied) },
		"a volume that is not mounted any more": func(s *storagetest.Shim) { s.OnList, s.OnStat, s.OnSentinel = none, gone, fails(&reads, 2) },
		"a volume that goes at the end":         func(s *storagetest.Shim) { s.OnSentinel = fails(&reads, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i := range 8 {
				w.register(fmt.Sprintf("t%d", i), "1")
			}
			w.plant("landcover/a.tif", "stray")
			want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}})
			must(t, os.Remove(filepath.Join(w.root, "landcover/a.tif")))
			reads = 0
			w.seen.Set(change)
			run := w.start(reconcile.Request{MinAge: atOnce})
			want(t, run, catalog.RunIncomplete, kinds{catalog.FindingOrphan: {0, 1, 0}})
			if run.ErrorCode != catalog.CodeStoreUnavailable && run.ErrorCode != catalog.CodeStoreForbidden || run.ErrorMessage == "" {
				t.Errorf("%s %q", run.ErrorCode, run.ErrorMessage)
			}
			w.seen.Set(func(s *storagetest.Shim) { s.OnList, s.OnStat, s.OnSentinel = nil, nil, nil })
			want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 0, 1}})
		})
	}
}

// fails is a sentinel that reads only so often.
func fails(reads *int, from int) func() error {
	return func() error {
		if *reads++; *reads > from {
			return storage.ErrSentinel
		}
		return nil
	}
}

// A page that the listing leaves out, and a store that shows its objects late: what is
// missing there is looked for by itself, and again when the store had time to show it.
func TestLate(t *testing.T) {
	w := newWorld(t)
	for i := range 30 {
		w.register(fmt.Sprintf("t%02d", i), "1")
	}
	w.seen.Set(func(s *storagetest.Shim) {
		s.OnList = storagetest.Without(10, 20)
		s.OnStat = storagetest.Late(200 * time.Millisecond) // a negative lookup that is cached for a while
	})
	settle := 500 * time.Millisecond
	run := w.start(reconcile.Request{Settle: &settle})
	want(t, run, catalog.RunComplete, nil)
	if run.Figures.RowsInFlight != 10 {
		t.Errorf("%+v", run.Figures)
	}
}

// Any other answer than "not there" is unknown: nothing is flagged, and nothing that was
// flagged is resolved.
func TestUnknown(t *testing.T) {
	w := newWorld(t)
	var tiles []catalog.Tile
	for i := range 4 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
	}
	w.plant("landcover/a.tif", "stray")
	must(t, os.Remove(filepath.Join(w.root, tiles[0].ObjectKey)))
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}, catalog.FindingLost: {1, 1, 0}})
	must(t, os.Remove(filepath.Join(w.root, tiles[1].ObjectKey)))
	w.plant("landcover/b.tif", "stray")
	w.seen.Set(func(s *storagetest.Shim) {
		s.OnStat = func(context.Context, string) (catalog.Object, error) {
			return catalog.Object{}, errors.New("503 Slow Down")
		}
	})
	run := w.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 1, 0}, catalog.FindingLost: {0, 1, 0}})
	if run.Figures.Unknown != 2 || run.Figures.RowsUnknown != 2 {
		t.Errorf("%+v", run.Figures)
	}
}

// An object that a step is about to give a row, or that is to be removed, is in flight.
func TestInFlight(t *testing.T) {
	w := newWorld(t)
	tile := w.register("t0", "1")
	var reached, resume = make(chan struct{}), make(chan struct{})
	step := upsert.New(upsert.Config{
		Ledger: w.db, Stores: upsert.Stores{w.store.ID(): w.store}, Prober: pool(t), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Hook: func(_ context.Context, at upsert.Point, _ uuid.UUID) {
			if at == upsert.PointPromoted {
				close(reached)
				<-resume
			}
		},
	})
	other := &world{t: t, root: w.root, step: step}
	registered := make(chan error)
	go func() {
		_, err := other.tryRegister(t.Context(), "t1", "1")
		registered <- err
	}()
	<-reached
	w.plant("landcover/gone.tif", "to be removed")
	_, err := w.sql.Exec(t.Context(), `INSERT INTO catalog.removals (store_id, object_key, reason) VALUES ($1, 'landcover/gone.tif', 'replaced')`, w.store.ID())
	must(t, err)
	run := w.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunComplete, nil)
	if run.Figures.InFlight != 2 || run.Figures.Matched != 1 {
		t.Errorf("%+v with %s", run.Figures, tile.ObjectKey)
	}
	close(resume)
	must(t, <-registered)
	step.Drain(t.Context())
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, nil)
}

// A run below a prefix says nothing of what lies elsewhere.
func TestPrefix(t *testing.T) {
	w := newWorld(t)
	w.register("a/t0", "1")
	w.plant("landcover/a/stray.tif", "stray")
	w.plant("landcover/b/stray.tif", "stray")
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {2, 2, 0}})
	must(t, os.RemoveAll(filepath.Join(w.root, "landcover/b")), os.Remove(filepath.Join(w.root, "landcover/a/stray.tif")))
	run := w.start(reconcile.Request{Prefix: "landcover/a/", MinAge: atOnce})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 0, 1}})
	if run.Figures.Rows != 1 || run.Parts != 1 {
		t.Errorf("%+v", run)
	}
	for _, prefix := range []string{"/landcover", "../x", ".trash/1", "current/landcover"} {
		if _, err := w.tryStart(reconcile.Request{Prefix: prefix}); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}

// A listing that somebody else made may be old: nothing is said of what it has or lacks
// before that was looked at, and what earlier runs found is resolved only where it is not
// so any more.
func TestListing(t *testing.T) {
	w := newWorld(t)
	var tiles []catalog.Tile
	for i := range 6 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
	}
	w.plant("landcover/old.tif", "stray")
	must(t, os.Remove(filepath.Join(w.root, tiles[0].ObjectKey)))
	var listed []catalog.Object
	for o, err := range w.store.List(t.Context(), storage.Range{}) {
		must(t, err)
		listed = append(listed, o)
	}
	listing := func(objects []catalog.Object, end error) iter.Seq2[catalog.Object, error] {
		return func(yield func(catalog.Object, error) bool) {
			for _, o := range objects {
				if !yield(o, nil) {
					return
				}
			}
			if end != nil {
				yield(catalog.Object{}, end)
			}
		}
	}
	compare := func(objects []catalog.Object, end error) catalog.Run {
		run, err := w.rec.Listing(t.Context(), reconcile.Request{StoreID: w.store.ID(), MinAge: atOnce}, "test", listing(objects, end))
		must(t, err)
		return run
	}
	want(t, compare(listed, nil), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}, catalog.FindingLost: {1, 1, 0}})
	// Since then: an output more, a stray more, one lost more, and one stray less.
	w.register("t6", "1")
	w.plant("landcover/new.tif", "stray")
	must(t, os.Remove(filepath.Join(w.root, tiles[1].ObjectKey)), os.Remove(filepath.Join(w.root, "landcover/old.tif")))
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 1}, catalog.FindingLost: {1, 2, 0}})
	run := compare(listed, nil)
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 1, 0}, catalog.FindingLost: {0, 2, 0}})
	if run.Figures.RowsInFlight != 1 || run.Figures.InFlight != 1 {
		t.Errorf("%+v", run.Figures)
	}
	must(t, os.Remove(filepath.Join(w.root, "landcover/new.tif")))
	want(t, compare(listed, nil), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 0, 1}, catalog.FindingLost: {0, 2, 0}})
	// What a plan has moved away is no less lost for a listing that still has it.
	must(t, os.Truncate(filepath.Join(w.root, tiles[2].ObjectKey), 100))
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingLost: {0, 2, 0}, catalog.FindingMismatch: {1, 1, 0}})
	must(t, os.Remove(filepath.Join(w.root, tiles[2].ObjectKey)))
	_, err := w.sql.Exec(t.Context(), `INSERT INTO catalog.tile_health (unit_key, lost_since) VALUES ($1, clock_timestamp())`, tiles[2].UnitKey)
	must(t, err)
	want(t, compare(listed, nil), catalog.RunComplete, kinds{catalog.FindingLost: {0, 2, 0}, catalog.FindingMismatch: {0, 1, 0}})
	if lost := w.count(`SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL`); lost != 1 {
		t.Errorf("%d are lost, want 1", lost)
	}
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingLost: {1, 3, 0}, catalog.FindingMismatch: {0, 0, 1}})
	want(t, compare(listed[:2], errors.New("unexpected end")), catalog.RunIncomplete, kinds{catalog.FindingLost: {0, 3, 0}})
}

// A store is reconciled once at a time; a run that is canceled resolves nothing.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	w.plant("landcover/stray.tif", "stray")
	want(t, w.start(reconcile.Request{MinAge: atOnce}), catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}})
	must(t, os.Remove(filepath.Join(w.root, "landcover/stray.tif")))
	run, err := w.rec.Start(t.Context(), reconcile.Request{StoreID: w.store.ID()}, "test", 0)
	must(t, err)
	_, err = w.rec.Start(t.Context(), reconcile.Request{StoreID: w.store.ID()}, "test", 0)
	if !catalog.IsCode(err, catalog.CodeRunUnderWay) || !strings.Contains(err.Error(), fmt.Sprint(run.ID)) {
		t.Errorf("%v, want that run %d is under way", err, run.ID)
	}
	_, err = w.rec.Cancel(t.Context(), run.ID, "operator")
	must(t, err, w.work())
	run, err = w.rec.Run(t.Context(), run.ID)
	must(t, err)
	want(t, run, catalog.RunCanceled, kinds{catalog.FindingOrphan: {0, 1, 0}})
	// Also while it waits for what is missing to show up.
	tile := w.register("t0", "1")
	must(t, os.Remove(filepath.Join(w.root, tile.ObjectKey)))
	minute := time.Minute
	run, err = w.rec.Start(t.Context(), reconcile.Request{StoreID: w.store.ID(), Settle: &minute}, "test", 0)
	must(t, err)
	worked := make(chan error)
	go func() { worked <- w.work() }()
	_, err = w.rec.Cancel(t.Context(), run.ID, "operator")
	must(t, err, <-worked)
	run, err = w.rec.Run(t.Context(), run.ID)
	must(t, err)
	want(t, run, catalog.RunCanceled, kinds{catalog.FindingOrphan: {0, 1, 0}})
	if _, err := w.rec.Cancel(t.Context(), 4711, "operator"); !catalog.IsCode(err, catalog.CodeUnknownRun) {
		t.Error(err)
	}
	want(t, w.start(reconcile.Request{}), catalog.RunComplete, kinds{catalog.FindingOrphan: {0, 0, 1}, catalog.FindingLost: {1, 1, 0}})
}

// A part that is done twice, at once or after a crash in the middle, is done once.
func TestTwice(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.register(fmt.Sprintf("t%d", i), "1")
	}
	w.plant("landcover/stray.tif", "stray")
	run, err := w.rec.Start(t.Context(), reconcile.Request{StoreID: w.store.ID(), MinAge: atOnce}, "test", 0)
	must(t, err)
	crashed, cancel := context.WithCancel(t.Context())
	w.seen.Set(func(s *storagetest.Shim) {
		s.OnList = func(listed storagetest.Listing) storagetest.Listing {
			return func(yield func(catalog.Object, error) bool) {
				cancel()
				for o, err := range listed {
					if !yield(o, err) {
						return
					}
				}
			}
		}
	})
	if err := w.rec.DoPart(crashed, run.ID, 0); err == nil {
		t.Fatal("a server that stopped has done its part")
	}
	w.seen.Set(func(s *storagetest.Shim) { s.OnList = nil })
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := w.rec.DoPart(t.Context(), run.ID, 0); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	must(t, w.work(), w.rec.DoPart(t.Context(), run.ID, 0))
	run, err = w.rec.Run(t.Context(), run.ID)
	must(t, err)
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {1, 1, 0}})
	if run.Figures.Objects != 5 || run.Figures.Orphans != 1 {
		t.Errorf("%+v", run.Figures)
	}
}

// Names that are no text, wherever they are, are told of, and stop nothing.
func TestNoText(t *testing.T) {
	w := newWorld(t)
	w.register("t0", "1")
	for _, key := range []string{"landcover/\xff.tif", "\xff/x.tif", ".staging/in/\xff.tif", ".staging/\xff/x.tif", "landcover/a\nb.tif"} {
		w.plant(key, "stray")
	}
	must(t, os.Symlink("../../landcover/\xff.tif", filepath.Join(w.root, "current/landcover/\xff.tif")))
	old := time.Now().Add(-48 * time.Hour)
	run := w.start(reconcile.Request{MinAge: atOnce})
	want(t, run, catalog.RunComplete, kinds{catalog.FindingOrphan: {3, 3, 0}})
	if run.Figures.Staged != 2 {
		t.Errorf("%+v", run.Figures)
	}
	must(t, os.Chtimes(filepath.Join(w.root, ".staging/in/\xff.tif"), old, old))
	_, err := w.step.Sweep(t.Context())
	must(t, err)
}
