package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/catalog"
)

// BenchmarkRedelivery delivers 6,000 units again that are done: each begins, from 32
// clients, and is told to skip. By hand it is one SELECT of the row, one stat and one
// HTTP call for each.
func BenchmarkRedelivery(b *testing.B) {
	const units, clients, rounds = 6000, 32, 3
	s := newSite(b)
	database := s.database("served")
	srv := s.start(database)
	db := s.connect(database)
	s.seed(db, srv.store, units, true)
	hand := s.byHand(s.database("by_hand")).on(db, srv.store)

	served := func() {
		at(clients, units, func(i int) {
			var d struct{ Verdict string }
			srv.ask("POST", "/v1/attempts", newUnit(tileName(i)).asked(), &d)
			if d.Verdict != "skip" {
				srv.Errorf("begin of a done unit: %s", d.Verdict)
			}
		})
	}
	byHand := func() { at(clients, units, func(i int) { hand.skip(newUnit(tileName(i)).asked()) }) }
	served() // warm
	before := s.written(db)
	var ours, theirs []float64
	for b.Loop() {
		for range rounds {
			ours, theirs = append(ours, timed(served)), append(theirs, timed(byHand))
		}
	}
	after := s.written(db)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(units/median(ours), "per-s")
	b.ReportMetric(units/median(theirs), "hand-per-s")
	b.ReportMetric(median(ours)/median(theirs), "ratio")
	b.ReportMetric(float64(after.wal-before.wal), "WAL-bytes")
	b.ReportMetric(float64(after.xids-before.xids), "xids")
}

// on is the same hand, on another's database and store.
func (h *hand) on(db *pgxpool.Pool, root string) *hand {
	other := *h
	other.db, other.root = db, root
	return &other
}

// skip tells that a unit is done, by its key.
func (h *hand) skip(u unit) {
	h.hop(u)
	parsed, err := catalog.NewUnit(u.Collection, u.TileID, u.Identity, "")
	if err != nil {
		h.Error(err)
		return
	}
	var key string
	if err := h.db.QueryRow(context.Background(), `SELECT object_key FROM catalog.tiles WHERE unit_key = $1`, parsed.Key).Scan(&key); err != nil {
		h.Error(err)
		return
	}
	if _, err := os.Stat(filepath.Join(h.root, key)); err != nil {
		h.Error(err)
	}
}

// written is how much the statements of the server's role wrote, all databases, and
// how many transaction ids the cluster gave out.
type written struct{ wal, xids int64 }

func (s *site) written(db *pgxpool.Pool) (w written) {
	s.Helper()
	ctx := s.Context()
	_, err := db.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	ok(s, err)
	err = db.QueryRow(ctx, `
SELECT coalesce(sum(wal_bytes), 0)::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
FROM pg_stat_statements JOIN pg_roles r ON r.oid = userid WHERE r.rolname = 'catalog_server'`).Scan(&w.wal, &w.xids)
	ok(s, err)
	return w
}
