package jobs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"catalogd/internal/batch"
	"catalogd/internal/batch/batchtest"
	"catalogd/internal/catalog"
	"catalogd/internal/jobs"
	"catalogd/internal/postgres"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/upsert"
)

// calls are what the jobs asked of others, in order.
type calls struct {
	mu   sync.Mutex
	all  []string
	fail map[string][]error // the next answers
	hold map[string]chan struct{}
}

func (c *calls) add(ctx context.Context, format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	c.mu.Lock()
	c.all = append(c.all, call)
	var err error
	if errs := c.fail[call]; len(errs) > 0 {
		err, c.fail[call] = errs[0], errs[1:]
	}
	hold := c.hold[call]
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	return err
}

func (c *calls) count(call string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if one == call {
			n++
		}
	}
	return n
}

func (c *calls) Sweep(ctx context.Context) error          { return c.add(ctx, "sweep") }
func (c *calls) RecoverOverdue(ctx context.Context) error { return c.add(ctx, "recover") }

func (c *calls) Start(ctx context.Context, req reconcile.Request, who string, wait time.Duration) (catalog.Run, error) {
	return catalog.Run{}, c.add(ctx, "start %s by %s, waiting %v", req.StoreID, who, wait)
}

func (c *calls) DoPart(ctx context.Context, run int64, part int) error {
	return c.add(ctx, "part %d/%d", run, part)
}

func (c *calls) ApplyPlan(ctx context.Context, plan int64) error { return c.add(ctx, "apply %d", plan) }

func (c *calls) EmptyTrash(ctx context.Context, storeID string, all bool, who, why string) (reconcile.Emptied, error) {
	return reconcile.Emptied{}, c.add(ctx, "empty %q %v by %s %q", storeID, all, who, why)
}

func (c *calls) Scrub(ctx context.Context, storeID string, fraction float64) (reconcile.Scrubbed, error) {
	return reconcile.Scrubbed{}, c.add(ctx, "scrub %s %v", storeID, fraction)
}

// calling has a replica tell what it is to do, and nothing by the clock.
func calling(c *calls, adjust func(*jobs.Config)) func(*jobs.Config, upsert.Stores) {
	return func(cfg *jobs.Config, _ upsert.Stores) {
		cfg.Step, cfg.Reconciler = c, c
		if adjust != nil {
			adjust(cfg)
		}
	}
}

// What is due by the clock is done.
func TestSchedules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	away := catalog.Errorf(catalog.CodeStoreUnavailable, "away")
	c := &calls{fail: map[string][]error{
		"start a by schedule, waiting 0s": {catalog.Errorf(catalog.CodeRunUnderWay, "one is under way")},
		"start b by schedule, waiting 0s": {away},
		"sweep":                           {away},
	}}
	w.replica(calling(c, func(cfg *jobs.Config) {
		cfg.Stores = []string{"a", "b"}
		cfg.RecoverEvery, cfg.SweepEvery = time.Second, time.Second
		cfg.Reconcile, cfg.Scrub, cfg.ScrubFraction = jobs.Every(2*time.Second), jobs.Every(2*time.Second), 0.25
	}))
	for call, times := range map[string]int{
		"recover": 2, "sweep": 2, `empty "" false by schedule ""`: 2, "start a by schedule, waiting 0s": 2, "start b by schedule, waiting 0s": 2, "scrub a 0.25": 1, "scrub b 0.25": 1,
	} {
		eventually(t, 30*time.Second, call, func() bool { return c.count(call) >= times })
	}
	const again = `SELECT count(*) FROM river.river_job WHERE kind = 'reconcile' AND attempt > 1 AND args ->> 'store' = $1`
	if a, b := w.count(again, "a"), w.count(again, "b"); a != 0 || b != 1 {
		t.Errorf("where a run is under way %d are tried again, and where the store is away %d", a, b)
	}
}

// What takes longer than its period is not done twice at once, and waits in no queue.
func TestLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	c := &calls{hold: map[string]chan struct{}{"recover": release}}
	w.replica(calling(c, func(cfg *jobs.Config) { cfg.RecoverEvery = time.Second }))
	const waiting = `SELECT count(*) FROM river.river_job WHERE kind = 'recover' AND state = 'available'`
	eventually(t, 30*time.Second, "four wait", func() bool { return w.count(waiting) >= 4 })
	if n := c.count("recover"); n != 1 {
		t.Errorf("%d recoveries at once", n)
	}
	close(release)
	late := func() int {
		return w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'recover' AND state = 'completed'`) - c.count("recover")
	}
	eventually(t, 30*time.Second, "those that were late are dropped", func() bool { return late() >= 2 && w.count(waiting) <= 1 })
}

// A scrub that is asked for twice is done once; one that nobody can do is refused.
func TestQueueScrub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	c := &calls{hold: map[string]chan struct{}{"scrub s 0.5": release}}
	r := w.replica(calling(c, nil))
	must(t, r.jobs.QueueScrub(t.Context(), "s", 0.5), r.jobs.QueueScrub(t.Context(), "s", 0.5))
	eventually(t, 30*time.Second, "it is done", func() bool { return c.count("scrub s 0.5") == 1 })
	must(t, r.jobs.QueueScrub(t.Context(), "s", 0.5))
	close(release)
	const over = `SELECT count(*) FROM river.river_job WHERE kind = 'scrub' AND state = 'completed'`
	eventually(t, 30*time.Second, "it is over", func() bool { return w.count(over) == 1 })
	must(t, r.jobs.QueueScrub(t.Context(), "s", 0.5))
	eventually(t, 30*time.Second, "another is over", func() bool { return w.count(over) == 2 })
	if n := c.count("scrub s 0.5"); n != 2 {
		t.Errorf("%d scrubs", n)
	}
	for _, fraction := range []float64{0, -1, 1.01} {
		if err := r.jobs.QueueScrub(t.Context(), "s", fraction); !catalog.IsCode(err, catalog.CodeInvalidRequest) {
			t.Errorf("%v: %v", fraction, err)
		}
	}
}

// A new leader begins what should have been begun while there was none, and nothing else.
func TestMissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &calls{}
	daily, err := jobs.ParseSchedule("@daily")
	must(t, err)
	first := w.replica(calling(c, nil))
	must(t, first.stop(5*time.Second))
	id := first.store.ID()
	start := fmt.Sprintf("start %s by schedule, waiting 0s", id)
	lead := func() {
		t.Helper()
		before := w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile' AND state = 'completed'`)
		r := w.replica(calling(c, func(cfg *jobs.Config) { cfg.Stores, cfg.Reconcile = []string{id}, daily }))
		eventually(t, 30*time.Second, "the new leader has looked", func() bool {
			return w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile' AND state = 'completed'`) > before
		})
		must(t, r.stop(5*time.Second))
	}
	set := func(sql string) {
		t.Helper()
		_, err := w.sql.Exec(t.Context(), sql)
		must(t, err)
	}
	for _, moment := range []struct {
		what, sql string
		begun     int
	}{
		{"a store that just came", `SELECT`, 0},
		{"one that came two days ago", `UPDATE catalog.stores SET created_at = now() - interval '2 days'`, 1},
		{"one that was compared today", `
INSERT INTO catalog.reconcile_runs (store_id, source, min_age, settle, state, asked_by, ended_at) SELECT store_id, 'store', '0', '0', 'complete', 'me', now() FROM catalog.stores`, 1},
		{"one of which a part was", `
INSERT INTO catalog.reconcile_runs (store_id, prefix, source, min_age, settle, state, asked_by, ended_at) SELECT store_id, 'dem/', 'store', '0', '0', 'complete', 'me', now() FROM catalog.stores`, 1},
		{"one that was compared two days ago", `UPDATE catalog.reconcile_runs SET created_at = now() - interval '2 days' WHERE prefix = ''`, 2},
	} {
		set(moment.sql)
		if lead(); c.count(start) != moment.begun {
			t.Errorf("%s: %d runs were begun, want %d", moment.what, c.count(start), moment.begun)
		}
	}
}

func TestParseSchedule(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 12, 1, 2, 0, 0, 0, time.FixedZone("elsewhere", -5*3600)) // 07:00 UTC
	for _, c := range []struct{ text, next, refused string }{
		{"", "", ""}, {"off", "", ""}, {" off ", "", ""},
		{"@daily", "2026-12-02T00:00:00Z", ""}, {"30 2 * * *", "2026-12-02T02:30:00Z", ""}, {"@every 10m", "2026-12-01T07:10:00Z", ""},
		{"CRON_TZ=Europe/Berlin 0 9 * * *", "2026-12-01T08:00:00Z", ""}, {"0 0 * * 0", "2026-12-06T00:00:00Z", ""},
		{"daily", "", "is no schedule"}, {"* * *", "", "is no schedule"}, {"61 * * * *", "", "is no schedule"}, {"@every day", "", "is no schedule"},
		{"0 0 30 2 *", "", "never comes"}, {"@every 1s", "", "more often"}, {"@every -1h", "", "more often"},
	} {
		s, err := jobs.ParseSchedule(c.text)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%q: %v, want %q", c.text, err, c.refused)
			continue
		}
		next := ""
		if s != nil {
			next = s.Next(from).UTC().Format(time.RFC3339)
		}
		if next != c.next {
			t.Errorf("%q comes at %q, want %q", c.text, next, c.next)
		}
	}
}

// Of a store metrics tell what its runs, findings, trash and scrubs are by their records.
func TestStoreTotals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.replica(nil)
	totals := func() catalog.StoreTotals {
		t.Helper()
		all, err := r.db.Totals(t.Context())
		must(t, err)
		if len(all.Stores) != 1 {
			t.Fatalf("%d stores", len(all.Stores))
		}
		return all.Stores[0]
	}
	of := func(s catalog.StoreTotals, kind catalog.FindingKind) catalog.FindingTotals {
		return s.Findings[slices.Index(catalog.FindingKinds(), kind)]
	}
	s := totals()
	if s.Store != r.store.ID() || s.CompleteAt != nil || s.CompleteTook != 0 || s.Incomplete || !s.Scrub.LapBegan.IsZero() || len(s.Findings) != 5 {
		t.Errorf("before anything: %+v", s)
	}
	exec := func(sql string) {
		t.Helper()
		_, err := w.sql.Exec(t.Context(), sql)
		must(t, err)
	}
	const run = `INSERT INTO catalog.reconcile_runs (store_id, prefix, source, min_age, settle, state, asked_by, created_at, ended_at, kinds) SELECT store_id, `
	exec(run + `'', 'store', '0', '0', 'complete', 'me', '2026-01-01 00:00Z', '2026-01-01 00:02Z', '[{"kind": "orphan", "open": 500000, "bytes": 9}]' FROM catalog.stores`)
	exec(run + `'', 'store', '0', '0', 'incomplete', 'me', '2026-01-02 00:00Z', '2026-01-02 00:05Z', '[]' FROM catalog.stores`)
	exec(run + `'', 'store', '0', '0', 'canceled', 'me', '2026-01-03 00:00Z', '2026-01-03 00:05Z', '[]' FROM catalog.stores`)
	exec(run + `'dem/', 'store', '0', '0', 'complete', 'me', '2026-01-04 00:00Z', '2026-01-04 00:05Z', '[]' FROM catalog.stores`)
	exec(run + `'', 'store', '0', '0', 'running', 'me', '2026-01-05 00:00Z', NULL, '[]' FROM catalog.stores`)
	exec(`INSERT INTO catalog.findings (store_id, kind, object_key, state, size_bytes, found_by, resolved_at)
SELECT store_id, f.kind, f.key, f.state, f.size, 'reconcile', CASE f.state WHEN 'resolved' THEN now() END FROM catalog.stores,
(VALUES ('orphan', 'a', 'open', 5), ('orphan', 'b', 'open', 6), ('orphan', 'c', 'young', 7), ('orphan', 'd', 'resolved', 8), ('lost', 'a', 'open', 9)) AS f (kind, key, state, size)`)
	exec(`INSERT INTO catalog.removals (store_id, object_key, reason, trash_key, size_bytes, expires_at, emptied_at)
SELECT store_id, f.key, 'orphan', f.trash, f.size, f.expires::timestamptz, f.emptied::timestamptz FROM catalog.stores,
(VALUES ('a', '.trash/a', 5, '2030-01-01', NULL), ('b', '.trash/b', 6, '2030-01-01', NULL), ('c', '.trash/c', 7, '2030-01-01', '2026-01-01'), ('d', NULL, NULL, NULL, NULL)) AS f (key, trash, size, expires, emptied)`)
	exec(`INSERT INTO catalog.scrubs (store_id, lap_began, lap_ended, ran_at, verified, read_bytes, bad) SELECT store_id, '2026-01-01Z', '2026-01-02Z', '2026-01-03Z', 3, 4, 5 FROM catalog.stores`)
	s = totals()
	if s.CompleteAt == nil || !s.CompleteAt.Equal(time.Date(2026, 1, 1, 0, 2, 0, 0, time.UTC)) || s.CompleteTook != 2*time.Minute || !s.Incomplete || s.TrashObjects != 2 || s.TrashBytes != 11 {
		t.Errorf("%+v", s)
	}
	if of(s, catalog.FindingOrphan) != (catalog.FindingTotals{Kind: catalog.FindingOrphan, Objects: 2, Bytes: 11}) || of(s, catalog.FindingLost).Objects != 1 || of(s, catalog.FindingMismatch).Objects != 0 {
		t.Errorf("%+v", s.Findings)
	}
	if c := s.Scrub; c.LapBegan.Day() != 1 || c.LapEnded.Day() != 2 || c.RanAt.Day() != 3 || c.Verified != 3 || c.Bytes != 4 || c.Bad != 5 {
		t.Errorf("%+v", c)
	}
	// No scrape counts them all.
	exec(`INSERT INTO catalog.findings (store_id, kind, object_key, state, size_bytes, found_by)
SELECT store_id, 'orphan', i::text, 'open', 0, 'reconcile' FROM catalog.stores, generate_series(1, 100000) AS i`)
	if s = totals(); of(s, catalog.FindingOrphan).Objects != 500_000 {
		t.Errorf("of very many: %+v", s.Findings)
	}
}

// reconcilerEnv has the test binary be a server that reconciles, slowly, and says what it
// does: for the database and the store of these two lines.
const reconcilerEnv = "CATALOGD_TEST_RECONCILER"

// slowly is a store whose listing takes its time, and says of each range when it begins
// and ends.
type slowly struct{ storage.Store }

func (s slowly) List(ctx context.Context, within storage.Range) iter.Seq2[catalog.Object, error] {
	if within.Prefix == storage.StagingPrefix || within.Prefix == storage.TrashPrefix {
		return s.Store.List(ctx, within)
	}
	return func(yield func(catalog.Object, error) bool) {
		fmt.Printf("begun %q\n", within.From)
		for o, err := range s.Store.List(ctx, within) {
			time.Sleep(100 * time.Millisecond)
			if !yield(o, err) {
				return
			}
		}
		fmt.Printf("ended %q\n", within.From)
	}
}

func newReconciler(db *postgres.DB, stores upsert.Stores, log *slog.Logger) *reconcile.Reconciler {
	step := upsert.New(upsert.Config{Ledger: db, Stores: stores, Logger: log})
	return reconcile.New(reconcile.Config{Ledger: db, Stores: stores, Step: step, Logger: log, MinAge: time.Hour, Settle: time.Millisecond, TrashKeep: time.Hour, PartRows: 10})
}

// serveSlowly is such a server, until it is killed.
func serveSlowly(url, root string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx := context.Background()
	db, err := postgres.Open(ctx, url)
	if err == nil {
		var store storage.Store
		store, err = posix.Open(ctx, root, posix.Options{})
		if err == nil {
			stores := upsert.Stores{store.ID(): slowly{store}}
			var j *jobs.Jobs
			j, err = jobs.New(jobs.Config{
				Pool: db.Pool(), Judge: &batch.Judge{}, Step: &calls{}, Reconciler: newReconciler(db, stores, log), Ledger: db, Logger: log,
				Stores: []string{store.ID()}, CountEvery: time.Second, RecoverEvery: time.Second, Reconcile: jobs.Every(5 * time.Second),
			})
			if err == nil {
				db.UseQueue(j)
				err = errors.Join(db.UseStore(ctx, postgres.Store{ID: store.ID(), Root: "file://" + root, Location: root + "/", Href: "/data/"}), j.Start(ctx))
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serving")
	select {}
}

// child is a server that is a process of its own.
type child struct {
	cmd *exec.Cmd

	mu           sync.Mutex
	serving      bool
	begun, ended int
}

func (w *world) child() *child {
	w.t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), reconcilerEnv+"="+w.url+"\n"+w.root)
	c.cmd.Stderr = w.t.Output()
	says, err := c.cmd.StdoutPipe()
	must(w.t, err, c.cmd.Start())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for lines := bufio.NewScanner(says); lines.Scan(); {
			word, _, _ := strings.Cut(lines.Text(), " ")
			c.mu.Lock()
			switch word {
			case "serving":
				c.serving = true
			case "begun":
				c.begun++
			case "ended":
				c.ended++
			}
			c.mu.Unlock()
		}
	}()
	w.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-over
		_ = c.cmd.Wait()
	})
	eventually(w.t, time.Minute, "a server serves", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.serving
	})
	return c
}

// parts tells how many it has ended, and how many it is in the middle of.
func (c *child) parts() (ended, now int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended, c.begun - c.ended
}

// kill kills it in the middle of a part.
func (c *child) kill(t testing.TB) {
	t.Helper()
	eventually(t, time.Minute, "it is in the middle of a part", func() bool {
		_, now := c.parts()
		return now > 0
	})
	must(t, c.cmd.Process.Kill())
}

// Several servers share a run. One is killed in the middle of a part, then the leader too:
// the run ends complete, soon, and what is due by the clock is done.
func TestReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	asking, err := open(ctx, w.url, w.root, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	t.Cleanup(asking.db.Close)
	must(t, asking.stop(5*time.Second))
	const outputs = 240
	for _, key := range batchtest.Write(t, w.sql, batchtest.Batch{Name: "b", Collection: "dem", StoreID: asking.store.ID(), Size: 7, Done: outputs}) {
		path := filepath.Join(w.root, key)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("content"), 0o644))
	}
	run, err := newReconciler(asking.db, upsert.Stores{asking.store.ID(): asking.store}, slog.New(slog.DiscardHandler)).Start(ctx, reconcile.Request{StoreID: asking.store.ID()}, "me", 0)
	if err != nil || run.Parts < 15 {
		t.Fatalf("%+v %v", run, err)
	}

	leader := w.child()
	eventually(t, time.Minute, "the first is leader", func() bool { return w.count(`SELECT count(*) FROM river.river_leader`) == 1 })
	second, third := w.child(), w.child()
	eventually(t, time.Minute, "all three have done parts", func() bool {
		for _, c := range []*child{leader, second, third} {
			if ended, _ := c.parts(); ended == 0 {
				return false
			}
		}
		return true
	})
	second.kill(t)
	leader.kill(t)
	killed := time.Now()

	eventually(t, 90*time.Second, "the run ends", func() bool {
		run, err = asking.db.Run(ctx, run.ID)
		must(t, err)
		return run.State != catalog.RunRunning
	})
	t.Logf("%d parts; the run ended %v after the leader was killed", run.Parts, time.Since(killed).Round(time.Second))
	if f := run.Figures; run.State != catalog.RunComplete || f.Objects != outputs || f.Rows != outputs || f.Matched != outputs || run.Open() != 0 {
		t.Errorf("%+v", run)
	}
	eventually(t, time.Minute, "recoveries by the clock", func() bool {
		var n int
		must(t, w.sql.QueryRow(ctx, `SELECT count(*) FROM river.river_job WHERE kind = 'recover' AND state = 'completed' AND created_at > $1`, killed.Add(time.Second)).Scan(&n))
		return n >= 2
	})
	eventually(t, time.Minute, "a run by the clock", func() bool {
		return w.count(`SELECT count(*) FROM catalog.reconcile_runs WHERE asked_by = 'schedule'`) > 0
	})
}
