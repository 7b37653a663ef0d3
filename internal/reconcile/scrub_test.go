package reconcile_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

// opening is a store that tells what is opened.
type opening struct {
	storage.Store
	open func(key string)
}

func (o opening) Open(ctx context.Context, key string) (storage.Reader, catalog.Object, error) {
	o.open(key)
	return o.Store.Open(ctx, key)
}

func (w *world) scrub(fraction float64) reconcile.Scrubbed {
	w.t.Helper()
	scrubbed, err := w.rec.Scrub(w.t.Context(), w.store.ID(), fraction)
	must(w.t, err)
	return scrubbed
}

// Scrubs go round and round, each on from where the last one ended.
func TestScrub(t *testing.T) {
	w := newWorld(t)
	if got := w.scrub(1); got != (reconcile.Scrubbed{}) {
		t.Errorf("of nothing: %+v", got)
	}
	var tiles []catalog.Tile
	var size int64
	for i := range 10 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
		size = tiles[0].SizeBytes
	}
	unverified := func() int {
		return 10 - w.count(`SELECT count(*) FROM catalog.tile_health WHERE verified_at IS NOT NULL`)
	}
	for i, want := range []struct {
		outputs, unverified int
		lapped              bool
	}{{3, 7, false}, {3, 4, false}, {3, 1, false}, {3, 0, true}} {
		if got := w.scrub(0.25); got.Outputs != want.outputs || got.Lapped != want.lapped || got.Bytes != 3*size || unverified() != want.unverified {
			t.Errorf("scrub %d: %+v, %d unverified, want %+v", i, got, unverified(), want)
		}
	}
	states, err := w.rec.Scrubs(t.Context())
	must(t, err)
	if len(states) != 1 || states[0].AtKey != tiles[1].ObjectKey || states[0].LapEnded == nil || states[0].Verified != 12 || states[0].Outputs != 10 || states[0].Remaining != 8 || states[0].Store != "tiles" {
		t.Errorf("%+v", states)
	}
	if got := w.scrub(1); got.Outputs != 10 || !got.Lapped {
		t.Errorf("%+v", got)
	}
	if got := w.scrub(0.0001); got.Outputs != 1 {
		t.Errorf("%+v", got)
	}
	for _, fraction := range []float64{0, -1, 1.1} {
		if _, err := w.rec.Scrub(t.Context(), w.store.ID(), fraction); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
			t.Errorf("%g: %v", fraction, err)
		}
	}
}

// What is not right any more is a finding, until it is right, or its unit was made again.
// What cannot be read is not said to be wrong.
func TestScrubFinds(t *testing.T) {
	w := newWorld(t)
	var tiles []catalog.Tile
	for i := range 6 {
		tiles = append(tiles, w.register(fmt.Sprintf("t%d", i), "1"))
	}
	w.spoil(tiles[1].ObjectKey)
	w.spoil(tiles[2].ObjectKey)
	must(t, os.Remove(w.path(tiles[3].ObjectKey)))
	if got := w.scrub(1); got.Outputs != 5 || got.Bad != 2 || got.Unread != 1 {
		t.Errorf("%+v", got)
	}
	open := func() (keys []string) {
		found, err := w.rec.Findings(t.Context(), catalog.FindingQuery{Kind: catalog.FindingMismatch, Limit: 10})
		must(t, err)
		for _, f := range found {
			if f.Reason != "checksum" || f.State != catalog.FindingOpen || *f.AttemptID == [16]byte{} {
				t.Errorf("%+v", f)
			}
			keys = append(keys, f.ObjectKey)
		}
		return keys
	}
	if keys := open(); len(keys) != 2 || keys[0] != tiles[1].ObjectKey {
		t.Errorf("%q", keys)
	}
	// A reconciliation, which does not read them, resolves nothing of it.
	w.start(reconcile.Request{MinAge: atOnce})
	if got := w.scrub(1); got.Bad != 2 || len(open()) != 2 {
		t.Errorf("%+v", got)
	}
	w.spoil(tiles[1].ObjectKey) // back to what it was
	if got := w.scrub(1); got.Bad != 1 || len(open()) != 1 {
		t.Errorf("%+v", got)
	}
	must(t, os.Truncate(w.path(tiles[2].ObjectKey), 10))
	w.register("t2", "1")
	if got := w.scrub(1); got.Bad != 0 || len(open()) != 0 {
		t.Errorf("%+v", got)
	}
	if n := w.count(`SELECT count(*) FROM catalog.findings WHERE found_by = 'scrub' AND state = 'resolved'`); n != 2 {
		t.Errorf("%d resolved", n)
	}
	w.spoil(tiles[1].ObjectKey) // and new again
	if got := w.scrub(1); got.Bad != 1 || len(open()) != 1 {
		t.Errorf("%+v", got)
	}
}

// A scrub that is cut off, or whose store goes, is gone on with at its last page.
func TestScrubCutOff(t *testing.T) {
	w := newWorld(t)
	for i := range 100 {
		w.register(fmt.Sprintf("t%03d", i), "1")
	}
	opened := map[string]bool{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lock := make(chan struct{}, 1)
	w.seen.Set(func(s *storagetest.Shim) {
		s.Store = opening{w.store, func(key string) {
			lock <- struct{}{}
			defer func() { <-lock }()
			opened[key] = true
			if len(opened) == 80 {
				cancel()
			}
		}}
	})
	if got, err := w.rec.Scrub(ctx, w.store.ID(), 1); err == nil || got.Outputs != 64 {
		t.Fatalf("%+v %v", got, err)
	}
	opened = map[string]bool{}
	if got := w.scrub(0.36); got.Outputs != 36 || !got.Lapped || len(opened) != 36 {
		t.Errorf("%+v, %d opened", got, len(opened))
	}
	w.seen.Set(func(s *storagetest.Shim) { s.Store = w.store })
	must(t, os.Rename(w.path("landcover"), w.path("elsewhere")))
	w.seen.Set(func(s *storagetest.Shim) {
		asked := 0
		s.OnSentinel = func() error {
			if asked++; asked > 1 {
				return storage.ErrSentinel
			}
			return nil
		}
	})
	if got, err := w.rec.Scrub(t.Context(), w.store.ID(), 1); !catalog.IsCode(err, catalog.CodeStoreUnavailable) || got.Unread != 0 {
		t.Errorf("%+v %v", got, err)
	}
	if n := w.count(`SELECT count(*) FROM catalog.scrubs WHERE at_key <> ''`); n != 0 {
		t.Error("what was not read is taken for read")
	}
}
