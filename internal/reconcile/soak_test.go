package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/reconcile"
	"catalogd/internal/upsert"
)

// soakEnv is how many registrations there are: 800 unless it says so; make test-soak says
// 100,000. A fiftieth of that is planted of each kind.
const soakEnv = "CATALOGD_SOAK"

// While writers register, supersede, fail, stop for ever (as the killed do) at any point of the step and come late,
// and while recovery, sweeps and removals run, reconciliation runs in a loop: it flags
// nothing of theirs, and all that is truly wrong.
func TestNoFalseFindings(t *testing.T) {
	registrations := 800
	if n, err := strconv.Atoi(os.Getenv(soakEnv)); err == nil {
		registrations = n
	}
	planted := registrations / 50
	w := newWorld(t)
	_, err := w.db.CreateCollection(t.Context(), catalog.Collection{
		ID: "planted", StoreID: w.store.ID(), MediaType: catalog.MediaTypeGeoTIFF, License: "other", Policy: catalog.Policy{OrderBy: catalog.OrderVersion},
	})
	must(t, err)
	c := &crowd{world: w, slots: registrations / 3, revived: make(chan struct{})}
	c.step = upsert.New(upsert.Config{
		Ledger: w.db, Stores: upsert.Stores{w.store.ID(): w.store}, Prober: pool(t), Logger: slog.New(slog.DiscardHandler),
		Lease: 500 * time.Millisecond, PromoteDeadline: 2 * time.Second, SweepGrace: time.Millisecond, StagingAge: time.Hour,
		Jitter: func() float64 { return 0 },
		Hook: func(ctx context.Context, _ upsert.Point, _ uuid.UUID) {
			if dies, ok := ctx.Value(mortal{}).(func()); ok && rand.IntN(300) == 0 {
				c.died.Add(1)
				dies()
				<-c.revived
			}
		},
	})
	planting := c.outputs("planted", 2*planted)

	var writers, others sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 8 {
		writers.Go(func() {
			for c.done.Load() < int64(registrations) && ctx.Err() == nil {
				c.one(ctx, "landcover", rand.IntN(c.slots))
			}
		})
	}
	loop := func(pause time.Duration, do func()) {
		others.Go(func() {
			for ctx.Err() == nil {
				do()
				time.Sleep(pause)
			}
		})
	}
	loop(300*time.Millisecond, func() { _, _ = c.step.RecoverOverdue(ctx) })
	loop(300*time.Millisecond, func() { _, _ = c.step.Sweep(ctx) })
	loop(time.Millisecond, func() { c.remove(ctx) })
	// What is truly wrong, a little at a time.
	wrong := kindsOf{}
	others.Go(func() {
		for i := range planted {
			wrong.add(catalog.FindingLost, planting[i])
			must(t, os.Remove(filepath.Join(w.root, planting[i])))
			wrong.add(catalog.FindingMismatch, planting[planted+i])
			must(t, os.Truncate(filepath.Join(w.root, planting[planted+i]), 60))
			stray := fmt.Sprintf("planted/stray-%05d.tif", i)
			wrong.add(catalog.FindingOrphan, stray)
			w.plant(stray, "stray")
			time.Sleep(time.Millisecond)
		}
	})
	runs := 0
	over := make(chan struct{})
	go func() { writers.Wait(); close(over) }()
	settle := 50 * time.Millisecond
	for busy := true; busy; runs++ {
		select {
		case <-over:
			busy = false
		default:
		}
		run := w.start(reconcile.Request{MinAge: atOnce, Settle: &settle})
		closes(t, run)
		if run.State != catalog.RunComplete {
			t.Fatalf("run %d is %s: %s %s", run.ID, run.State, run.ErrorCode, run.ErrorMessage)
		}
		if found := w.findings("landcover/"); len(found) > 0 {
			for kind, keys := range found {
				for key := range keys {
					t.Errorf("run %d: %s %s", run.ID, kind, key)
				}
			}
			t.FailNow()
		}
	}
	stop()
	others.Wait()
	close(c.revived)
	c.living.Wait()
	c.step.Drain(t.Context())
	_, err = c.step.Recover(t.Context())
	must(t, err)
	run := w.start(reconcile.Request{MinAge: atOnce})
	if run.State != catalog.RunComplete {
		t.Fatalf("%+v", run)
	}
	closes(t, run)
	if found := w.findings(""); !maps.EqualFunc(found, wrong, func(a, b map[string]bool) bool { return maps.Equal(a, b) }) {
		for _, kind := range catalog.FindingKinds() {
			t.Errorf("%s: found %d, of %d planted", kind, len(found[kind]), len(wrong[kind]))
		}
	}
	t.Logf("%d registrations, %d of them died, %d came late or failed, %d removals; %d runs meanwhile; %d planted of each kind and found", c.done.Load(), c.died.Load(), c.lost.Load(), c.removed.Load(), runs, planted)
	if c.died.Load() == 0 || c.lost.Load() == 0 || c.removed.Load() == 0 || runs < 3 {
		t.Error("nothing much happened")
	}
}

// mortal is the key of a function that is called when a registration stops for ever: until
// the end, when all go on, very late.
type mortal struct{}

type kindsOf map[catalog.FindingKind]map[string]bool

func (k kindsOf) add(kind catalog.FindingKind, key string) {
	if k[kind] == nil {
		k[kind] = map[string]bool{}
	}
	k[kind][key] = true
}

// findings are those of objects and rows that are open below a prefix.
func (w *world) findings(prefix string) kindsOf {
	w.t.Helper()
	out := kindsOf{}
	for after := int64(0); ; {
		page, err := w.rec.Findings(w.t.Context(), catalog.FindingQuery{StoreID: w.store.ID(), Prefix: prefix, After: after, Limit: 1000})
		must(w.t, err)
		for _, f := range page {
			if f.Kind != catalog.FindingStaging {
				out.add(f.Kind, f.ObjectKey)
			}
			after = f.ID
		}
		if len(page) < 1000 {
			return out
		}
	}
}

// crowd is writers at work.
type crowd struct {
	*world
	step                      *upsert.Step
	slots                     int
	next                      atomic.Int64
	revived                   chan struct{}
	living                    sync.WaitGroup
	done, died, lost, removed atomic.Int64
}

// outputs registers so many, and gives their keys.
func (c *crowd) outputs(collection string, n int) []string {
	keys := make([]string, n)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < n; i += 8 {
				out, err := c.register(c.t.Context(), collection, fmt.Sprintf("t%05d", i), "1")
				if err != nil {
					c.t.Error(err)
					return
				}
				keys[i] = out.Tile.ObjectKey
			}
		})
	}
	group.Wait()
	slices.Sort(keys)
	return keys
}

func (c *crowd) register(ctx context.Context, collection, tile, version string) (upsert.Outcome, error) {
	d, err := c.step.Begin(ctx, upsert.BeginRequest{
		Unit:  upsert.UnitRef{Collection: collection, TileID: tile, Identity: json.RawMessage(fmt.Sprintf(`{"version":%q}`, version))},
		Owner: "worker", RequestID: uuid.NewString(),
	})
	if err != nil || d.Verdict != upsert.VerdictRun {
		return upsert.Outcome{}, fmt.Errorf("begin: %s: %w", d.Verdict, err)
	}
	if err := os.WriteFile(filepath.Join(c.root, d.Attempt.StagingKey), rastertest.Raster{}.Bytes(), 0o644); err != nil {
		return upsert.Outcome{}, err
	}
	switch rand.IntN(200) * len(collection) / len("landcover") {
	case 1: // late: its lease ends, and another takes the unit
		time.Sleep(time.Second)
	case 2, 3:
		if collection == "landcover" {
			_, err := c.step.Fail(ctx, d.Attempt.ID, upsert.FailRequest{Failure: catalog.Failure{Reason: "oom"}})
			return upsert.Outcome{}, fmt.Errorf("failed: %w", err)
		}
	}
	return c.step.Complete(ctx, d.Attempt.ID, upsert.CompleteRequest{})
}

// one is one registration in a life of its own, which may end anywhere.
func (c *crowd) one(ctx context.Context, collection string, slot int) {
	version := fmt.Sprint(c.next.Add(1) / int64(c.slots))
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	c.living.Go(func() {
		defer end()
		out, err := c.register(context.WithValue(context.WithoutCancel(ctx), mortal{}, end), collection, fmt.Sprintf("t%05d", slot), version)
		if err != nil || out.State != catalog.AttemptDone {
			c.lost.Add(1)
			return
		}
		c.done.Add(1)
	})
	<-over
}

// remove writes an object that is to be removed, and removes it, as a sweep does.
func (c *crowd) remove(ctx context.Context) {
	key := fmt.Sprintf("landcover/removed-%d.tif", c.removed.Load())
	var id int64
	err := c.sql.QueryRow(ctx, `INSERT INTO catalog.removals (store_id, object_key, reason) VALUES ($1, $2, 'replaced') RETURNING id`, c.store.ID(), key).Scan(&id)
	if err != nil {
		return // it is over
	}
	c.plant(key, "to be removed")
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	must(c.t, c.store.Delete(context.WithoutCancel(ctx), key), c.db.Removed(context.WithoutCancel(ctx), []int64{id}))
	c.removed.Add(1)
}
