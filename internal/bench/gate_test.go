package bench

import (
	"testing"
	"time"

	"catalogd/internal/batch/batchtest"
)

// BenchmarkGate judges a batch of 1,000,000 units over HTTP, without a look at the store,
// and counts the same with one statement: how many units are done, running, retrying,
// quarantined, lost, pending.
func BenchmarkGate(b *testing.B) {
	const units = 1_000_000
	s := newSite(b)
	database := s.database("served")
	srv := s.start(database)
	db := s.connect(database)
	var store string
	ok(b, db.QueryRow(b.Context(), `SELECT store_id FROM catalog.stores`).Scan(&store))
	// The references are good: they are not looked up a million times.
	batchtest.Write(b, s.connect(database+"&options=-csession_replication_role%3Dreplica"), batchtest.Batch{Name: "nightly", Collection: collection, StoreID: store, Done: units - 1000, Quarantined: 600, Retrying: 100, Untried: 300})
	_, err := db.Exec(b.Context(), `VACUUM ANALYZE`)
	ok(b, err)
	bare := func() {
		var counted [7]int
		ok(b, db.QueryRow(b.Context(), `
SELECT count(*), count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'retrying'),
       count(*) FILTER (WHERE status = 'quarantined'), count(*) FILTER (WHERE status = 'lost'), count(*) FILTER (WHERE status = 'pending')
FROM catalog.batch_unit_status WHERE batch_id = (SELECT batch_id FROM catalog.batches WHERE name = 'nightly')`).
			Scan(&counted[0], &counted[1], &counted[2], &counted[3], &counted[4], &counted[5], &counted[6]))
		if counted[0] != units || counted[1] != units-1000 {
			b.Errorf("%v", counted)
		}
	}
	type gate struct {
		State   string `json:"state"`
		GateID  string `json:"gate_id"`
		Figures struct {
			Expected, Done, Missing int
		} `json:"figures"`
		Offenders []any `json:"offenders"`
	}
	served := func() {
		var g gate
		srv.ask("POST", "/v1/batches/nightly/gate", map[string]any{"storage": "none", "max_missing_frac": 0.002}, &g)
		for g.State == "queued" || g.State == "running" {
			time.Sleep(20 * time.Millisecond)
			srv.ask("GET", "/v1/batches/nightly/gate/"+g.GateID, nil, &g)
		}
		if g.State != "passed" || g.Figures.Expected != units || g.Figures.Missing != 1000 || len(g.Offenders) != 1000 {
			b.Errorf("%s %+v, %d offenders", g.State, g.Figures, len(g.Offenders))
		}
	}
	bare() // warm
	served()
	var ours, theirs []float64
	for b.Loop() {
		for range 5 {
			ours, theirs = append(ours, timed(served)), append(theirs, timed(bare))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "gate-s")
	b.ReportMetric(median(theirs), "bare-s")
	b.ReportMetric(median(ours)/median(theirs), "ratio")
}
