package upsert_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
)

// world is a step on a real database, a real store and the real probe.
type world struct {
	*replica
	t     testing.TB
	url   string // as superuser
	db    *postgres.DB
	sql   *pgxpool.Pool
	site  site
	store storage.Store
	root  string // of a directory
	// replicas are all of them.
	replicas []*replica
}

// replica is one of any number of servers on a world.
type replica struct {
	*upsert.Step
	hooks
}

func newWorld(t testing.TB, on place, adjust ...func(*upsert.Config)) *world {
	t.Helper()
	return newWorldWith(t, testdb.New(t), on, adjust...)
}

// newWorldWith is newWorld with a database that has been migrated.
func newWorldWith(t testing.TB, url string, on place, adjust ...func(*upsert.Config)) *world {
	t.Helper()
	w := &world{t: t, url: url, site: on(t)}
	if d, ok := w.site.(directory); ok {
		w.root = string(d.Directory)
	}
	w.db = w.open(w.url)
	var err error
	w.sql, err = pgxpool.New(t.Context(), w.url)
	must(t, err)
	t.Cleanup(w.sql.Close)
	w.store = w.site.open(t)
	must(t, w.db.UseStore(t.Context(), w.site.known(w.store)))
	w.replica = w.another(adjust...)
	w.collection("landcover", catalog.Policy{OrderBy: catalog.OrderVersion})
	return w
}

// open connects as the server does.
func (w *world) open(url string) *postgres.DB {
	w.t.Helper()
	db, err := postgres.Open(w.t.Context(), url+sep(url)+"role=catalog_server&pool_max_conns=40")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(db.Close)
	return db
}

func sep(url string) string {
	if strings.Contains(url, "?") {
		return "&"
	}
	return "?"
}

// another is one more replica on the same database and store.
func (w *world) another(adjust ...func(*upsert.Config)) *replica {
	w.t.Helper()
	r := &replica{}
	cfg := upsert.Config{
		Ledger: w.db, Stores: upsert.Stores{w.store.ID(): w.store}, Prober: pool(w.t),
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
		Hook:   r.hooks.call,
		Jitter: func() float64 { return 0 }, // what failed is due at once
	}
	for _, f := range adjust {
		f(&cfg)
	}
	r.Step = upsert.New(cfg)
	w.replicas = append(w.replicas, r)
	w.t.Cleanup(func() { r.Drain(context.Background()) })
	return r
}

// drain waits for what is done after the answer: the removal of what was staged.
func (w *world) drain() {
	for _, r := range w.replicas {
		r.Drain(w.t.Context())
	}
}

// check holds the world against the invariants.
func (w *world) check(opts invariant.Options) {
	w.t.Helper()
	if opts.StagingEmpty {
		w.drain()
	}
	invariant.CheckStore(w.t, w.url, w.site, opts)
}

// hooks are called once each, at a point of an attempt, uuid.Nil for any.
type hooks struct {
	mu sync.Mutex
	at map[hook]func()
}

type hook struct {
	at upsert.Point
	id uuid.UUID
}

func (h *hooks) on(at upsert.Point, id uuid.UUID, do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[hook]func(){}
	}
	h.at[hook{at, id}] = do
}

func (h *hooks) call(_ context.Context, at upsert.Point, id uuid.UUID) {
	for _, key := range []hook{{at, id}, {at, uuid.Nil}} {
		h.mu.Lock()
		do := h.at[key]
		delete(h.at, key)
		h.mu.Unlock()
		if do != nil {
			do()
		}
	}
}

// pause stops the step of an attempt at a point: reached is closed when it is
// there, and it goes on when resume is called.
func (h *hooks) pause(at upsert.Point, id uuid.UUID) (reached <-chan struct{}, resume func()) {
	there, on := make(chan struct{}), make(chan struct{})
	h.on(at, id, func() {
		close(there)
		<-on
	})
	return there, sync.OnceFunc(func() { close(on) })
}

func (w *world) collection(id string, policy catalog.Policy) {
	w.t.Helper()
	_, err := w.db.CreateCollection(w.t.Context(), catalog.Collection{
		ID: id, StoreID: w.store.ID(), MediaType: catalog.MediaTypeGeoTIFF, License: "other", Policy: policy,
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func request(tile, version string) upsert.BeginRequest {
	return upsert.BeginRequest{
		Unit: upsert.UnitRef{
			Collection: "landcover", TileID: tile,
			Identity: json.RawMessage(fmt.Sprintf(`{"version":%q,"scene":"S2"}`, version)),
		},
		Owner: "worker", RequestID: uuid.NewString(),
	}
}

func (w *world) begin(req upsert.BeginRequest) upsert.Decision {
	w.t.Helper()
	d, err := w.Begin(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("begin: %v", err)
	}
	return d
}

// run begins and expects an attempt.
func (w *world) run(req upsert.BeginRequest) catalog.Attempt {
	w.t.Helper()
	d := w.begin(req)
	if d.Verdict != upsert.VerdictRun {
		w.t.Fatalf("begin: %s (%s), want run", d.Verdict, d.Reason)
	}
	return *d.Attempt
}

func (w *world) stage(a catalog.Attempt, raster rastertest.Raster) {
	w.t.Helper()
	w.put(a.StagingKey, raster.Bytes())
}

func (w *world) complete(a catalog.Attempt) upsert.Outcome {
	w.t.Helper()
	out, err := w.Complete(w.t.Context(), a.ID, upsert.CompleteRequest{})
	if err != nil {
		w.t.Fatalf("complete: %v", err)
	}
	return out
}

// do is the whole step for one unit.
func (w *world) do(req upsert.BeginRequest, raster rastertest.Raster) upsert.Outcome {
	w.t.Helper()
	a := w.run(req)
	w.stage(a, raster)
	return w.complete(a)
}

// failing reports a failure that may pass.
func (r *replica) failing(ctx context.Context, a catalog.Attempt) error {
	_, err := r.Fail(ctx, a.ID, upsert.FailRequest{Failure: catalog.Failure{Reason: "oom"}})
	return err
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.sql.QueryRow(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func wantCode(t testing.TB, err error, code catalog.Code) {
	t.Helper()
	if !catalog.IsCode(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
}

func TestStep(t *testing.T) { onBoth(t, testStep) }

func testStep(t *testing.T, on place) {
	w := newWorld(t, on)
	out := w.do(request("t0001", "v1"), rastertest.Raster{})
	if out.State != catalog.AttemptDone || !out.Tile.Current || out.Tile.Facts.CRS != "EPSG:32633" {
		t.Fatalf("%+v", out)
	}
	if again := w.begin(request("t0001", "v1")); again.Verdict != upsert.VerdictSkip || !again.Tile.Current {
		t.Fatalf("redelivered: %+v", again)
	}
	newer := w.do(request("t0001", "v2"), rastertest.Raster{Seed: 1})
	if !newer.Tile.Current {
		t.Fatal("a newer version is not current")
	}
	if old := w.begin(request("t0001", "v1")); old.Verdict != upsert.VerdictSkip || old.Tile.Current {
		t.Fatalf("late old version: %+v", old)
	}
	if w.root != "" {
		link, err := os.Readlink(filepath.Join(w.root, "current/landcover/t0001.tif"))
		if err != nil || filepath.Base(link) != filepath.Base(newer.Tile.ObjectKey) {
			t.Fatalf("stable name leads to %s, %v", link, err)
		}
	}
	if published, err := w.Publish(t.Context(), "landcover", "v1", "me", "going back"); err != nil || published.Moved != 1 {
		t.Fatalf("%+v %v", published, err)
	}
	if old := w.begin(request("t0001", "v1")); !old.Tile.Current {
		t.Fatal("the published version is not current")
	}
	if n := w.count(`SELECT count(*) FROM catalog.slot_history`); n != 3 {
		t.Fatalf("%d moves", n)
	}
	w.drain()
	if swept, err := w.Sweep(t.Context()); err != nil || swept.Objects != 0 {
		t.Fatalf("%+v %v", swept, err)
	}
	w.check(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}
