package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
)

// fakeReconciler stands in for reconciliation. What the fake's gate is, its runs and plans
// are too: running, or over.
type fakeReconciler struct {
	*fake
	req      reconcile.Request
	listed   []catalog.Object
	forget   bool // only count what is listed
	count    int
	broken   error // of the listing
	query    catalog.FindingQuery
	queries  int
	findings int // how many there are
	choices  catalog.PlanChoices
	most     float64
	why      string
	store    string
	all      bool
	fraction float64
}

func (f *fakeReconciler) run() catalog.Run {
	run := catalog.Run{
		ID: 184, StoreID: "s1", Store: "default", Prefix: "landcover/", Source: catalog.RunStore, MinAge: 24 * time.Hour, Settle: 5 * time.Second,
		State: catalog.RunIncomplete, AskedBy: "the-admin", CreatedAt: at, EndedAt: new(at.Add(161 * time.Second)),
		Figures: catalog.RunFigures{Objects: 2004118, Rows: 2004101, Matched: 2004096, InFlight: 12, Orphans: 5, Lost: 4, Mismatched: 1},
		Kinds:   []catalog.KindCount{{Kind: catalog.FindingOrphan, New: 5, Open: 5, Resolved: 2, Bytes: 1288490188, Example: objectKey}},
		Parts:   5, PartsEnded: 5, ErrorCode: catalog.CodeStoreUnavailable, ErrorMessage: "away",
	}
	if f.gate == catalog.GateRunning {
		run.State, run.EndedAt, run.ErrorCode = catalog.RunRunning, nil, ""
	}
	return run
}

func (f *fakeReconciler) Start(_ context.Context, req reconcile.Request, who string, wait time.Duration) (catalog.Run, error) {
	f.req, f.who, f.waited = req, who, wait
	return f.run(), f.fail
}

func (f *fakeReconciler) Listing(_ context.Context, req reconcile.Request, who string, objects iter.Seq2[catalog.Object, error]) (catalog.Run, error) {
	f.req, f.who, f.listed, f.count, f.broken = req, who, nil, 0, nil
	if f.fail != nil {
		return catalog.Run{}, f.fail
	}
	for o, err := range objects {
		if f.broken = err; err != nil {
			break
		}
		if f.count++; !f.forget {
			f.listed = append(f.listed, o)
		}
	}
	return f.run(), nil
}

func (f *fakeReconciler) Run(context.Context, int64) (catalog.Run, error) { return f.run(), f.fail }

func (f *fakeReconciler) Cancel(_ context.Context, _ int64, who string) (catalog.Run, error) {
	f.who = who
	return f.run(), f.fail
}

func (f *fakeReconciler) Runs(_ context.Context, storeID string, limit int) ([]catalog.Run, error) {
	f.store = storeID
	return slices.Repeat([]catalog.Run{f.run()}, min(limit, 7)), f.fail
}

func (f *fakeReconciler) Findings(_ context.Context, q catalog.FindingQuery) ([]catalog.Finding, error) {
	f.query = q
	f.queries++
	if f.fail != nil {
		return nil, f.fail
	}
	var page []catalog.Finding
	for id := q.After + 1; id <= int64(f.findings) && len(page) < q.Limit; id++ {
		page = append(page, catalog.Finding{
			ID: id, StoreID: "s1", Store: "default", Kind: catalog.FindingMismatch, ObjectKey: fmt.Sprintf("landcover/t%d.tif", id), State: catalog.FindingOpen,
			UnitKey: &unitKey, AttemptID: &attemptID, Reason: "size", SizeBytes: 7, ExpectedBytes: new(int64(9)), Current: true, FirstSeen: at, LastSeen: at, LastRun: 184, OpenedRun: new(int64(184)),
		})
	}
	return page, nil
}

func (f *fakeReconciler) plan() catalog.Plan {
	plan := catalog.Plan{
		ID: 12, RunID: 184, StoreID: "s1", Store: "default", State: catalog.PlanPlanned, Choices: f.choices, Catalogued: 100, PlannedBy: "the-admin", CreatedAt: at,
		Counts: []catalog.ActCount{{Act: catalog.ActRedo, State: catalog.ActPlanned, Acts: 4, Bytes: 9}, {Act: catalog.ActTrash, State: catalog.ActPlanned, Acts: 6, Bytes: 9}},
	}
	if f.gate == catalog.GateRunning {
		plan.State = catalog.PlanApplying
	}
	return plan
}

func (f *fakeReconciler) Plan(_ context.Context, _ int64, choices catalog.PlanChoices, who string) (catalog.Plan, error) {
	f.choices, f.who = choices, who
	return f.plan(), f.fail
}
func (f *fakeReconciler) GetPlan(context.Context, int64) (catalog.Plan, error) {
	return f.plan(), f.fail
}
func (f *fakeReconciler) PlansOf(_ context.Context, _ int64, limit int) ([]catalog.Plan, error) {
	return slices.Repeat([]catalog.Plan{f.plan()}, min(limit, 7)), f.fail
}

func (f *fakeReconciler) Acts(_ context.Context, _ int64, after, limit int) ([]catalog.Act, error) {
	var page []catalog.Act
	for no := after + 1; no <= f.findings && len(page) < limit; no++ {
		page = append(page, catalog.Act{
			No: no, Act: catalog.ActRedo, FindingID: 3, Kind: catalog.FindingLost, ObjectKey: objectKey, UnitKey: &unitKey, SizeBytes: 7,
			State: catalog.ActLeft, Outcome: "it is there again", DoneAt: &at,
		})
	}
	return page, f.fail
}

func (f *fakeReconciler) Apply(_ context.Context, _ int64, maxChange float64, who, why string, wait time.Duration) (catalog.Plan, error) {
	f.most, f.who, f.why, f.waited = maxChange, who, why, wait
	return f.plan(), f.fail
}

func (f *fakeReconciler) Trash(_ context.Context, storeID string, after int64, limit int) ([]catalog.Trashed, error) {
	f.store = storeID
	t := catalog.Trashed{ID: after + 1, StoreID: "s1", Store: "default", ObjectKey: objectKey, TrashKey: ".trash/12/" + objectKey, SizeBytes: 7, By: "the-admin", At: at, ExpiresAt: at}
	return slices.Repeat([]catalog.Trashed{t}, min(limit, 7)), f.fail
}

func (f *fakeReconciler) EmptyTrash(_ context.Context, storeID string, all bool, who, why string) (reconcile.Emptied, error) {
	f.store, f.all, f.who, f.why = storeID, all, who, why
	return reconcile.Emptied{Objects: 3, Bytes: 21, Left: 1}, f.fail
}

func (f *fakeReconciler) Restore(_ context.Context, _ int64, who, why string) error {
	f.who, f.why = who, why
	return f.fail
}

func (f *fakeReconciler) Scrubs(context.Context) ([]catalog.Scrub, error) {
	return []catalog.Scrub{{StoreID: "s1", Store: "default", AtKey: objectKey, LapBegan: at, RanAt: &at, Outputs: 100, Remaining: 60, Verified: 40, Bytes: 400}}, f.fail
}

func (f *fakeReconciler) QueueScrub(_ context.Context, storeID string, fraction float64) error {
	f.store, f.fraction = storeID, fraction
	return f.fail
}

func TestStartReconcile(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	post := func(body string) (*http.Response, string) {
		t.Helper()
		return call(t, "POST", url+"/v1/reconcile", "admin", "application/json", body)
	}
	res, answer := post(`{"store":"s3://b/p?endpoint=http%3A%2F%2Fx","prefix":"landcover/","min_age_seconds":0,"settle_seconds":0.5,"wait_seconds":2}`)
	r := f.reconciler.req
	if res.StatusCode != 200 || r.StoreID != "s2" || r.Prefix != "landcover/" || *r.MinAge != 0 || *r.Settle != time.Second/2 || f.waited != 2*time.Second || f.who != "the-admin" {
		t.Errorf("%d %s: asked for %+v by %s, waiting %s", res.StatusCode, answer, r, f.who, f.waited)
	}
	for _, want := range []string{
		`{"run":184,"store":"default","store_id":"s1","prefix":"landcover/","source":"store","state":"incomplete"`, `"seconds":161,"min_age_seconds":86400,"settle_seconds":5,"objects":2004118`,
		`"kinds":[{"kind":"orphan","new":5,"open":5,"resolved":2,"bytes":1288490188,"example":"` + objectKey + `"}]`,
		`"progress":{"parts":5,"parts_ended":5,"expected_rows":0,"at_key":""}`, `"error":{"code":"store_unavailable","detail":"away"}`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s lacks %s", answer, want)
		}
	}
	// Without a body it is the first store, by the server's settings.
	f.gate = catalog.GateRunning
	res, answer = call(t, "POST", url+"/v1/reconcile", "admin", "", "")
	r = f.reconciler.req
	if res.StatusCode != 202 || r.StoreID != "s1" || r.MinAge != nil || r.Settle != nil || f.waited != 0 ||
		!strings.HasSuffix(res.Header.Get("Location"), "/v1/reconcile/184") || res.Header.Get("Retry-After") != "1" || strings.Contains(answer, `"error"`) {
		t.Errorf("%d %s %v: asked for %+v", res.StatusCode, answer, res.Header, r)
	}
	for body, field := range map[string]string{
		`{"min_age_seconds":-1}`: "/min_age_seconds", `{"settle_seconds":"5s"}`: "/settle_seconds", `{"wait_seconds":21}`: "/wait_seconds", `{"stores":"x"}`: "/stores",
	} {
		res, answer := post(body)
		if p := problemOf(t, res, answer); p.Status != 400 || value(p.Field) != field {
			t.Errorf("%s: %+v", body, p)
		}
	}
	res, answer = post(`{"store":"nowhere"}`)
	if p := problemOf(t, res, answer); p.Code != CodeUnknownStore || value(p.Field) != "/store" || !strings.Contains(p.Detail, "default, bucket") {
		t.Errorf("%+v", p)
	}
	res, answer = call(t, "GET", url+"/v1/reconcile?store=nowhere", "read", "", "")
	if p := problemOf(t, res, answer); p.Code != CodeUnknownStore || value(p.Field) != "store" {
		t.Errorf("%+v", p)
	}
}

// What the run's prefix leaves out is not asked for.
func TestFindingsPages(t *testing.T) {
	f := newFake()
	f.reconciler.findings = 7
	url, _ := serve(t, f, nil)
	for query, want := range map[string]struct {
		findings int
		next     int64
		query    catalog.FindingQuery
	}{
		"":                                 {7, 0, catalog.FindingQuery{StoreID: "s1", Prefix: "landcover/", Limit: 101}},
		"?limit=7":                         {7, 0, catalog.FindingQuery{StoreID: "s1", Prefix: "landcover/", Limit: 8}},
		"?limit=3&after=2&prefix=land":     {3, 5, catalog.FindingQuery{StoreID: "s1", Prefix: "landcover/", After: 2, Limit: 4}},
		"?prefix=landcover/t1&state=young": {7, 0, catalog.FindingQuery{StoreID: "s1", Prefix: "landcover/t1", State: "young", Limit: 101}},
		"?kind=stale_staging":              {7, 0, catalog.FindingQuery{StoreID: "s1", Prefix: "landcover/", Kind: "stale_staging", Limit: 101}},
		"?prefix=dem/":                     {0, 0, catalog.FindingQuery{}},
	} {
		f.reconciler.query = catalog.FindingQuery{}
		res, body := call(t, "GET", url+"/v1/reconcile/184/findings"+query, "read", "", "")
		var got struct {
			Findings []json.RawMessage
			Next     int64
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != 200 || got.Findings == nil {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		if len(got.Findings) != want.findings || got.Next != want.next || f.reconciler.query != want.query {
			t.Errorf("%q: %d findings, next %d, asked for %+v; want %+v", query, len(got.Findings), got.Next, f.reconciler.query, want)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?kind=orphans", "?state=new", "?after=-1"} {
		if res, body := call(t, "GET", url+"/v1/reconcile/184/findings"+query, "read", "", ""); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", query, res.StatusCode, body)
		}
	}
	if res, body := call(t, "GET", url+"/v1/reconcile/0", "read", "", ""); res.StatusCode != 400 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// As NDJSON all come, page by page, and the last line says how many.
func TestFindingsAndActsStream(t *testing.T) {
	f := newFake()
	f.reconciler.findings = findingsChunk + 7
	url, _ := serve(t, f, nil)
	for path, schema := range map[string]string{"/v1/reconcile/184/findings": "Finding", "/v1/plans/12/acts": "Act"} {
		res, body := call(t, "GET", url+path+"?after=3", "read", "", "", "Accept", "application/x-ndjson, */*;q=0.1")
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != ndjson {
			t.Fatalf("%d %.500s", res.StatusCode, body)
		}
		var got []string
		for scan := bufio.NewScanner(strings.NewReader(body)); scan.Scan(); {
			got = append(got, scan.Text())
		}
		if len(got) != f.reconciler.findings-3+1 {
			t.Fatalf("%d lines", len(got))
		}
		holdLine(t, schema, []byte(got[0]))
		holdLine(t, schema+"SummaryLine", []byte(got[len(got)-1]))
		if want := fmt.Sprintf("s\":%d}}", f.reconciler.findings-3); !strings.HasSuffix(got[len(got)-1], want) {
			t.Errorf("last line %s, want %s", got[len(got)-1], want)
		}
	}
	if f.reconciler.queries != 2 {
		t.Errorf("read by %d pages", f.reconciler.queries)
	}
}

func TestPlanAndApply(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	for body, want := range map[string]catalog.PlanChoices{
		``:                   {Lost: "redo", Mismatch: "redo", Orphan: "trash"},
		`{"orphan":"adopt"}`: {Lost: "redo", Mismatch: "redo", Orphan: "adopt"},
		`{"lost":"leave","mismatch":"leave","orphan":"leave"}`: {Lost: "leave", Mismatch: "leave", Orphan: "leave"},
	} {
		contentType := "application/json"
		if body == "" {
			contentType = ""
		}
		res, answer := call(t, "POST", url+"/v1/reconcile/184/plan", "admin", contentType, body)
		if res.StatusCode != 201 || f.reconciler.choices != want || !strings.HasSuffix(res.Header.Get("Location"), "/v1/plans/12") || !strings.Contains(answer, `"acts":10,"catalogued":100,"share":0.1,`) {
			t.Errorf("%s: %d %s %v, chose %+v", body, res.StatusCode, answer, res.Header, f.reconciler.choices)
		}
	}
	for body, field := range map[string]string{`{"lost":"trash"}`: "/lost", `{"mismatch":"adopt"}`: "/mismatch", `{"orphan":"redo"}`: "/orphan", `{"young":"trash"}`: "/young"} {
		res, answer := call(t, "POST", url+"/v1/reconcile/184/plan", "admin", "application/json", body)
		if p := problemOf(t, res, answer); p.Status != 400 || value(p.Field) != field {
			t.Errorf("%s: %+v", body, p)
		}
	}

	res, answer := call(t, "POST", url+"/v1/plans/12/apply", "admin", "", "")
	if res.StatusCode != 200 || f.reconciler.most != 0.05 || f.waited != 0 || f.reconciler.why != "" {
		t.Errorf("%d %s: at most %g", res.StatusCode, answer, f.reconciler.most)
	}
	f.gate = catalog.GateRunning
	res, answer = call(t, "POST", url+"/v1/plans/12/apply", "admin", "application/json", `{"max_change":0.2,"why":"looked at","wait_seconds":3}`)
	if res.StatusCode != 202 || f.reconciler.most != 0.2 || f.waited != 3*time.Second || f.reconciler.why != "looked at" || f.who != "the-admin" || !strings.HasSuffix(res.Header.Get("Location"), "/v1/plans/12") {
		t.Errorf("%d %s: %+v", res.StatusCode, answer, f.reconciler)
	}
	for _, body := range []string{`{"max_change":1.5}`, `{"why":""}`} {
		if res, answer := call(t, "POST", url+"/v1/plans/12/apply", "admin", "application/json", body); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", body, res.StatusCode, answer)
		}
	}
}

func TestTrashAndScrub(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	if res, answer := call(t, "GET", url+"/v1/trash?store=bucket&limit=6", "read", "", ""); res.StatusCode != 200 || f.reconciler.store != "s2" || !strings.Contains(answer, `"next":1}`) {
		t.Errorf("%d %s of %s", res.StatusCode, answer, f.reconciler.store)
	}
	if res, answer := call(t, "POST", url+"/v1/trash:empty", "admin", "", ""); res.StatusCode != 200 || f.reconciler.store != "" || f.reconciler.all || answer != "{\"objects\":3,\"bytes\":21,\"left\":1}\n" {
		t.Errorf("%d %s of %q", res.StatusCode, answer, f.reconciler.store)
	}
	if res, answer := call(t, "POST", url+"/v1/trash:empty", "admin", "application/json", `{"store":"s1","all":true,"why":"full"}`); res.StatusCode != 200 || f.reconciler.store != "s1" || !f.reconciler.all || f.reconciler.why != "full" {
		t.Errorf("%d %s: %+v", res.StatusCode, answer, f.reconciler)
	}
	if res, answer := call(t, "POST", url+"/v1/scrub", "admin", "", ""); res.StatusCode != 202 || f.reconciler.store != "s1" || f.reconciler.fraction != 0.01 {
		t.Errorf("%d %s: %+v", res.StatusCode, answer, f.reconciler)
	}
	for _, fraction := range []string{"0", "-0.1", "1.01"} {
		if res, answer := call(t, "POST", url+"/v1/scrub", "admin", "application/json", `{"fraction":`+fraction+`}`); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", fraction, res.StatusCode, answer)
		}
	}
}

// A listing streams: of one of two hundred thousand objects little is held, and its bad
// line is named.
func TestListingStreams(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	const n = 200_000
	send := func(lines func(w io.Writer)) (*http.Response, ReconcileRun) {
		t.Helper()
		r, w := io.Pipe()
		go func() {
			lines(w)
			w.Close()
		}()
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/reconcile:listing?store=bucket&prefix=landcover/&min_age_seconds=0", r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer admin")
		req.Header.Set("Content-Type", ndjson)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var run ReconcileRun
		if err := json.NewDecoder(res.Body).Decode(&run); err != nil {
			t.Fatal(err)
		}
		return res, run
	}
	f.reconciler.forget = true
	var most uint64
	res, run := send(func(w io.Writer) {
		out := bufio.NewWriter(w)
		var stats runtime.MemStats
		for i := n; i > 0; i-- {
			fmt.Fprintf(out, "{\"key\":\"landcover/%s/t%06d.tif\",\"size\":%d,\"etag\":\"e\"}\n", strings.Repeat("d", 200), i, i)
			if i%20_000 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&stats)
				most = max(most, stats.HeapAlloc)
			}
		}
		out.Flush()
	})
	r := f.reconciler.req
	if res.StatusCode != 200 || run.Run != 184 || f.reconciler.count != n || f.reconciler.broken != nil || r.StoreID != "s2" || r.Prefix != "landcover/" || *r.MinAge != 0 || r.Settle != nil {
		t.Errorf("%d %+v: %d objects, %v, asked for %+v", res.StatusCode, run, f.reconciler.count, f.reconciler.broken, r)
	}
	if most > 64<<20 {
		t.Errorf("%d MiB are held of a listing of %d MiB", most>>20, n*250>>20)
	}
	f.reconciler.forget = false
	for body, want := range map[string]string{
		"{\"key\":\"a\",\"size\":1}\n{\"key\":\"b\"}\n":            "line 2",
		"{\"key\":\"a\",\"size\":1}\n{\"key\":\"b\",\"si":          "incomplete",
		"{\"key\":\"a\",\"size\":1}\n{\"key\":\"a\",\"size\":1}\n": "twice",
		"": "empty",
	} {
		send(func(w io.Writer) { _, _ = io.WriteString(w, body) })
		if err := f.reconciler.broken; !catalog.IsCode(err, catalog.CodeInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", body, err, want)
		}
	}
}
