package jobs_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"go.uber.org/goleak"

	"catalogd/internal/batch"
	"catalogd/internal/batch/batchtest"
	"catalogd/internal/catalog"
	"catalogd/internal/jobs"
	"catalogd/internal/postgres"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
)

// replicaEnv has the test binary be a server that hangs in the middle of a gate, for the
// database and the store of this directory.
const replicaEnv = "CATALOGD_TEST_REPLICA"

func TestMain(m *testing.M) {
	if at := os.Getenv(replicaEnv); at != "" {
		url, root, _ := strings.Cut(at, "\n")
		hang(url, root)
	}
	if at := os.Getenv(reconcilerEnv); at != "" {
		url, root, _ := strings.Cut(at, "\n")
		serveSlowly(url, root)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// world is a database and a store, and the servers at work on them.
type world struct {
	t    testing.TB
	url  string // as the server
	root string
	sql  *pgxpool.Pool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, url: testdb.New(t), root: t.TempDir()}
	var err error
	w.sql, err = pgxpool.New(t.Context(), w.url)
	must(t, err)
	t.Cleanup(w.sql.Close)
	separator := "?"
	if strings.Contains(w.url, "?") {
		separator = "&"
	}
	w.url += separator + "role=catalog_server"
	return w
}

// replica is one server.
type replica struct {
	db    *postgres.DB
	judge *batch.Judge
	jobs  *jobs.Jobs
	store storage.Store
}

func open(ctx context.Context, url, root string, log *slog.Logger, adjust func(*jobs.Config, upsert.Stores)) (*replica, error) {
	db, err := postgres.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	store, err := posix.Open(ctx, root, posix.Options{Init: true})
	if err != nil {
		return nil, err
	}
	if err := db.UseStore(ctx, postgres.Store{ID: store.ID(), Root: "file://" + root, Location: root + "/", Href: "/data/"}); err != nil {
		return nil, err
	}
	stores := upsert.Stores{store.ID(): store}
	r := &replica{db: db, judge: &batch.Judge{Ledger: db, Stores: stores, Publisher: batchtest.NothingWaits{}}, store: store}
	cfg := jobs.Config{Pool: db.Pool(), Judge: r.judge, Ledger: db, CountEvery: time.Second, Logger: log}
	if adjust != nil {
		adjust(&cfg, stores)
	}
	if r.jobs, err = jobs.New(cfg); err != nil {
		return nil, err
	}
	db.UseQueue(r.jobs)
	return r, r.jobs.Start(ctx)
}

func (w *world) replica(adjust func(*jobs.Config, upsert.Stores)) *replica {
	w.t.Helper()
	r, err := open(w.t.Context(), w.url, w.root, slog.New(slog.NewTextHandler(w.t.Output(), nil)), adjust)
	must(w.t, err)
	w.t.Cleanup(func() {
		must(w.t, r.stop(5*time.Second))
		r.db.Close()
	})
	return r
}

func (r *replica) stop(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return r.jobs.Stop(ctx)
}

// write writes a batch with the objects of its outputs.
func (w *world) write(r *replica, b batchtest.Batch) (objects []string) {
	w.t.Helper()
	b.StoreID, b.Collection, b.Size = r.store.ID(), "dem", 7
	objects = batchtest.Write(w.t, w.sql, b)
	for _, key := range objects {
		path := filepath.Join(w.root, key)
		must(w.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("content"), 0o644))
	}
	return objects
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	must(w.t, w.sql.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}

// eventually waits for what others do.
func eventually(t testing.TB, within time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// What our migrations made is what River would have made.
func TestSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ours, err := rivermigrate.New(riverpgxv5.New(w.sql), &rivermigrate.Config{Schema: jobs.Schema})
	must(t, err)
	checked, err := ours.Validate(t.Context(), nil)
	must(t, err)
	if !checked.OK {
		t.Errorf("River misses: %v", checked.Messages)
	}
	_, err = w.sql.Exec(t.Context(), `CREATE SCHEMA rapids`)
	must(t, err)
	theirs, err := rivermigrate.New(riverpgxv5.New(w.sql), &rivermigrate.Config{Schema: "rapids"})
	must(t, err)
	_, err = theirs.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	must(t, err)
	describe := func(schema string) string {
		rows, err := w.sql.Query(t.Context(), `
SELECT replace(line, $1 || '.', 'SCHEMA.') FROM (
    SELECT format('%s.%s %s %s %s', table_name, column_name, udt_name, is_nullable, column_default) FROM information_schema.columns WHERE table_schema = $1
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = $1
    UNION ALL SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = $1::regnamespace
    UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace
    UNION ALL SELECT format('%s %s', relname, relpersistence) FROM pg_class WHERE relnamespace = $1::regnamespace
    UNION ALL SELECT format('%s %s %s', enumtypid::regtype, enumsortorder, enumlabel) FROM pg_enum WHERE enumtypid = ($1 || '.river_job_state')::regtype
) AS d (line) ORDER BY 1`, schema)
		must(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		if len(lines) < 40 {
			t.Errorf("%s has %d things only", schema, len(lines))
		}
		return strings.Join(lines, "\n")
	}
	if ours, theirs := describe(jobs.Schema), describe("rapids"); ours != theirs {
		t.Errorf("our migrations made\n%s\nRiver makes\n%s", ours, theirs)
	}
}

// Whoever asks for a gate gets its verdict, from whichever server judges.
func TestAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.replica(nil), w.replica(nil)
	w.write(first, batchtest.Batch{Name: "b", Done: 5, Untried: 1})
	for _, r := range []*replica{first, second} {
		for frac, state := range map[float64]catalog.GateState{0: catalog.GateFailed, 0.5: catalog.GatePassed} {
			gate, err := r.judge.Run(t.Context(), "b", catalog.GateLimits{MaxMissingFrac: frac, Storage: catalog.GateList}, "me", 30*time.Second)
			if err != nil || gate.State != state || gate.Figures.Outputs != 5 || gate.AskedBy != "me" {
				t.Errorf("%+v %v", gate, err)
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM river.river_job WHERE kind NOT IN ('gate', 'count')`); n != 0 {
		t.Errorf("%d notifications, and nobody is to be told", n)
	}
	// Counted by now and then, and read by nobody else.
	eventually(t, 30*time.Second, "counted", func() bool {
		totals, err := second.db.Totals(t.Context())
		must(t, err)
		return len(totals.Batches) == 1 && totals.Batches[0].Name == "b" && totals.Batches[0].Collection == "dem" &&
			totals.Batches[0].Counts == (catalog.BatchCounts{Expected: 6, Done: 5, Pending: 1}) && time.Since(totals.Batches[0].CountedAt) < time.Minute
	})
}

// A large batch is counted the less often; one that has passed, not for ever.
func TestCountable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.replica(func(cfg *jobs.Config, _ upsert.Stores) { cfg.CountEvery = time.Hour })
	w.write(r, batchtest.Batch{Name: "b", Done: 2, Untried: 1})
	eventually(t, 30*time.Second, "the first count", func() bool {
		return w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'count' AND state = 'completed'`) == 1
	})
	counts := func(set string) (again bool) {
		t.Helper()
		must(t, r.db.CountBatches(t.Context()))
		_, err := w.sql.Exec(t.Context(), set)
		must(t, err)
		var before, after time.Time
		must(t, w.sql.QueryRow(t.Context(), `SELECT counted_at FROM catalog.batch_counts`).Scan(&before))
		must(t, r.db.CountBatches(t.Context()))
		must(t, w.sql.QueryRow(t.Context(), `SELECT counted_at FROM catalog.batch_counts`).Scan(&after))
		return after.After(before)
	}
	if !counts(`UPDATE catalog.batch_counts SET counted_at = now() - interval '1 minute', took = '2 seconds'`) {
		t.Error("one that took two seconds a minute ago is not counted")
	}
	if counts(`UPDATE catalog.batch_counts SET counted_at = now() - interval '1 minute', took = '20 seconds'`) {
		t.Error("one that took twenty seconds a minute ago is counted")
	}
	const old = `UPDATE catalog.batch_counts SET counted_at = now() - interval '1 hour'; UPDATE catalog.batches SET created_at = now() - interval '2 days';`
	if !counts(old) {
		t.Error("one that never passed is not counted")
	}
	gate, err := r.judge.Run(t.Context(), "b", catalog.GateLimits{MaxMissingFrac: 1, Storage: catalog.GateNone}, "me", 30*time.Second)
	if err != nil || gate.State != catalog.GatePassed {
		t.Fatalf("%+v %v", gate, err)
	}
	if !counts(old) {
		t.Error("one that passed today is not counted")
	}
	if counts(old + `UPDATE catalog.gates SET created_at = now() - interval '2 days'`) {
		t.Error("one that passed two days ago is counted")
	}
}

// blocking is a store whose listing waits until it is let go.
type blocking struct {
	storage.Store
	listing chan<- struct{}
	release <-chan struct{}
}

func (b blocking) List(ctx context.Context, within storage.Range) iter.Seq2[catalog.Object, error] {
	select {
	case b.listing <- struct{}{}:
	default:
	}
	select {
	case <-b.release:
	case <-ctx.Done():
	}
	return b.Store.List(ctx, within)
}

// A server that stops leaves a gate in the middle to another.
func TestStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listing := make(chan struct{}, 1)
	stopping := w.replica(func(_ *jobs.Config, stores upsert.Stores) {
		for id, store := range stores {
			stores[id] = blocking{store, listing, nil}
		}
	})
	w.write(stopping, batchtest.Batch{Name: "b", Done: 5})
	id := batchtest.Ask(t, stopping.db, "b", catalog.GateLimits{Storage: catalog.GateList})
	<-listing
	begun := time.Now()
	must(t, stopping.stop(500*time.Millisecond))
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("stopping took %v", took)
	}
	other := w.replica(nil)
	if gate := batchtest.Ended(t, other.db, "b", id, time.Minute); gate.State != catalog.GatePassed {
		t.Errorf("%+v", gate)
	}
}

// hang judges a gate and never gets to the end of it.
func hang(url, root string) {
	listing := make(chan struct{}, 1)
	_, err := open(context.Background(), url, root, slog.New(slog.NewTextHandler(os.Stderr, nil)), func(_ *jobs.Config, stores upsert.Stores) {
		for id, store := range stores {
			stores[id] = blocking{store, listing, nil}
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("open")
	<-listing
	fmt.Println("judging")
	select {}
}

// A server that is killed in the middle of a gate leaves it to another, long before the
// job would have had to end.
func TestKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), replicaEnv+"="+w.url+"\n"+w.root)
	victim.Stderr = t.Output()
	says, err := victim.StdoutPipe()
	must(t, err)
	must(t, victim.Start())
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	var word string
	if _, err := fmt.Fscanln(says, &word); err != nil || word != "open" {
		t.Fatalf("%q %v", word, err)
	}
	// Another server's way in, which works on no job yet.
	other, err := postgres.Open(t.Context(), w.url)
	must(t, err)
	t.Cleanup(other.Close)
	store, err := posix.Open(t.Context(), w.root, posix.Options{})
	must(t, err)
	queue, err := jobs.New(jobs.Config{Pool: other.Pool(), Judge: &batch.Judge{}, Ledger: other, CountEvery: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	other.UseQueue(queue)
	w.write(&replica{store: store}, batchtest.Batch{Name: "b", Done: 5})
	id := batchtest.Ask(t, other, "b", catalog.GateLimits{Storage: catalog.GateList})
	if _, err := fmt.Fscanln(says, &word); err != nil || word != "judging" {
		t.Fatalf("%q %v", word, err)
	}
	// While it lives, nobody else takes the gate.
	if n, err := other.RequeueGates(t.Context(), 0); n != 0 || err != nil {
		t.Fatalf("%d gates were queued again, %v", n, err)
	}
	must(t, victim.Process.Kill())
	_, _ = victim.Process.Wait()
	w.replica(nil)
	gate := batchtest.Ended(t, other, "b", id, time.Minute)
	if gate.State != catalog.GatePassed {
		t.Errorf("%+v", gate)
	}
	if n := w.count(`SELECT count(*) FROM catalog.gates`); n != 1 {
		t.Errorf("%d gates", n)
	}
}

// receiver is whoever is told. It answers with each status in turn, and then with 200.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	answers  []int
	requests []told
}

type told struct {
	header http.Header
	body   []byte
}

func newReceiver(t testing.TB, answers ...int) *receiver {
	r := &receiver{answers: answers}
	r.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil || req.Method != http.MethodPost || req.URL.Path != "/hook" {
			t.Errorf("%s %s: %v", req.Method, req.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requests = append(r.requests, told{req.Header, body})
		status := http.StatusOK
		if len(r.answers) > 0 {
			status, r.answers = r.answers[0], r.answers[1:]
		}
		out.Header().Set("Location", "/elsewhere")
		out.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) told() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]told(nil), r.requests...)
}

const secret = "whsec_c2VjcmV0IHRoYXQgaXMgbG9uZyBlbm91Z2gh"

func gateData(g catalog.Gate, b catalog.Batch) any {
	return map[string]any{"state": g.State, "offenders": len(g.Offenders), "collection": b.Collection}
}

// telling has a replica tell a receiver, without long pauses.
func telling(t testing.TB, r *receiver) func(*jobs.Config, upsert.Stores) {
	return func(cfg *jobs.Config, _ upsert.Stores) {
		notifier, err := jobs.NewNotifier(r.URL+"/hook", secret, "https://catalogd.example.org", gateData)
		must(t, err)
		t.Cleanup(notifier.Close)
		cfg.Notifier = notifier
		cfg.NotifyPause = func(int) time.Duration { return 100 * time.Millisecond }
	}
}

// check holds a request against Standard Webhooks and CloudEvents, by hand.
func (r told) check(t testing.TB) (id string, data map[string]any) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	must(t, err)
	id = r.header.Get("Webhook-Id")
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, r.header.Get("Webhook-Timestamp"), r.body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.header.Get("Webhook-Signature") != want {
		t.Errorf("signature %q, want %q", r.header.Get("Webhook-Signature"), want)
	}
	seconds, err := strconv.ParseInt(r.header.Get("Webhook-Timestamp"), 10, 64)
	if age := time.Since(time.Unix(seconds, 0)); err != nil || age < -time.Second || age > time.Minute {
		t.Errorf("timestamp %q: %v", r.header.Get("Webhook-Timestamp"), err)
	}
	var event map[string]any
	must(t, json.Unmarshal(r.body, &event))
	for name, want := range map[string]any{
		"specversion": "1.0", "id": id, "source": "https://catalogd.example.org", "type": "catalogd.batch.gated.v1", "subject": "b", "datacontenttype": "application/json",
	} {
		if event[name] != want {
			t.Errorf("%s is %v, want %v", name, event[name], want)
		}
	}
	if r.header.Get("Content-Type") != "application/cloudevents+json" {
		t.Error(r.header.Get("Content-Type"))
	}
	if at, err := time.Parse(time.RFC3339, fmt.Sprint(event["time"])); err != nil || time.Since(at) > time.Minute {
		t.Errorf("time %v: %v", event["time"], err)
	}
	data, _ = event["data"].(map[string]any)
	if data["collection"] != "dem" {
		t.Errorf("%s", r.body)
	}
	return id, data
}

func (r *replica) gate(t testing.TB, limits catalog.GateLimits) catalog.Gate {
	t.Helper()
	gate, err := r.judge.Run(t.Context(), "b", limits, "me", 30*time.Second)
	must(t, err)
	if !gate.State.Ended() {
		t.Fatalf("%+v", gate)
	}
	return gate
}

// One notification for each verdict that is another than the last, the same one until it
// is taken.
func TestNotified(t *testing.T) {
	t.Parallel()
	w, to := newWorld(t), newReceiver(t, http.StatusInternalServerError, http.StatusFound)
	r := w.replica(telling(t, to))
	w.write(r, batchtest.Batch{Name: "b", Done: 5, Untried: 30})
	bad, good := catalog.GateLimits{Storage: catalog.GateNone}, catalog.GateLimits{MaxMissingFrac: 1, Storage: catalog.GateList}
	notified := func(gate catalog.Gate) bool {
		return w.count(`SELECT count(*) FROM catalog.gates WHERE gate_id = $1 AND notified_at IS NOT NULL`, gate.ID) == 1
	}

	failed := r.gate(t, bad)
	eventually(t, 30*time.Second, "the third try", func() bool { return notified(failed) })
	requests := to.told()
	if len(requests) != 3 {
		t.Fatalf("%d requests", len(requests))
	}
	for _, request := range requests {
		if id, data := request.check(t); id != failed.ID.String() || data["state"] != "failed" || data["offenders"] != 20.0 {
			t.Errorf("%s %v", id, data)
		}
	}
	again := r.gate(t, bad)
	passed := r.gate(t, good)
	eventually(t, 30*time.Second, "the other verdict", func() bool { return notified(passed) })
	last := r.gate(t, good)
	eventually(t, 30*time.Second, "no job is left", func() bool {
		return w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'notify' AND state <> 'completed'`) == 0
	})
	if requests = to.told(); len(requests) != 4 {
		t.Fatalf("%d requests", len(requests))
	}
	if id, data := requests[3].check(t); id != passed.ID.String() || data["state"] != "passed" {
		t.Errorf("%s %v", id, data)
	}
	if notified(again) || notified(last) {
		t.Error("a verdict that was told of is told of again")
	}
}

// A receiver that refuses is left in peace; one that is busy is not.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ answer, requests int }{{410, 1}, {404, 1}, {401, 1}, {408, 2}, {425, 2}, {429, 2}, {503, 2}, {204, 1}} {
		t.Run(strconv.Itoa(c.answer), func(t *testing.T) {
			t.Parallel()
			w, to := newWorld(t), newReceiver(t, c.answer)
			r := w.replica(telling(t, to))
			w.write(r, batchtest.Batch{Name: "b", Done: 1})
			r.gate(t, catalog.GateLimits{Storage: catalog.GateNone})
			eventually(t, 30*time.Second, "the job ends", func() bool {
				return w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'notify' AND state IN ('completed', 'cancelled')`) == 1
			})
			taken := w.count(`SELECT count(*) FROM catalog.gates WHERE notified_at IS NOT NULL`) == 1
			if n := len(to.told()); n != c.requests || taken != (c.requests == 2 || c.answer == 204) {
				t.Errorf("%d requests, taken: %v", n, taken)
			}
			// What was given up is known to nobody: the next gate tells it, though its
			// verdict is the same. What was taken is not told twice.
			r.gate(t, catalog.GateLimits{Storage: catalog.GateNone})
			eventually(t, 30*time.Second, "the verdict is taken", func() bool {
				return w.count(`SELECT count(*) FROM catalog.gates WHERE notified_at IS NOT NULL`) == 1
			})
			if jobs := w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'notify'`); (jobs == 2) == taken {
				t.Errorf("%d notifications, though the first was taken: %v", jobs, taken)
			}
		})
	}
}

// A server that is told of no receiver leaves notifications to those that are.
func TestNotTold(t *testing.T) {
	t.Parallel()
	w, to := newWorld(t), newReceiver(t)
	telling := w.replica(telling(t, to))
	w.write(telling, batchtest.Batch{Name: "b", Done: 1})
	must(t, telling.stop(5*time.Second))
	id := batchtest.Ask(t, telling.db, "b", catalog.GateLimits{Storage: catalog.GateNone})
	must(t, telling.judge.Judge(t.Context(), id))
	w.replica(nil)
	time.Sleep(2 * time.Second)
	if n := w.count(`SELECT count(*) FROM river.river_job WHERE kind = 'notify' AND state = 'available'`); n != 1 {
		t.Errorf("%d notifications wait", n)
	}
}

func TestNotifierSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, secret, want string }{
		{"https://h/x", secret, ""}, {"http://127.0.0.1:1/", "a plain text that is long", ""},
		{"ftp://h/x", secret, "is not the URL of a receiver"}, {"h/x", secret, "is not the URL"}, {"https://", secret, "is not the URL"}, {"http://[::1", secret, "is not the URL"},
		{"https://h/x", "", "no secret"}, {"https://h/x", "short", "shorter than 24 bytes"}, {"https://h/x", "whsec_c2hvcnQ=", "shorter than 24 bytes"},
		{"https://h/x", "whsec_this is not base64 at all, is it?", "does not go on in base64"},
	} {
		_, err := jobs.NewNotifier(c.url, c.secret, "/catalogd", gateData)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: %v, want %q", c.url, c.secret, err, c.want)
		}
	}
	// What an error says may be logged: not the URL, which may hold a password.
	n, err := jobs.NewNotifier("http://user:password@127.0.0.1:1/", secret, "/catalogd", gateData)
	must(t, err)
	defer n.Close()
	if err := n.Send(t.Context(), catalog.Gate{ID: uuid.New()}, catalog.Batch{}); err == nil || strings.Contains(err.Error(), "password") {
		t.Error(err)
	}
}
