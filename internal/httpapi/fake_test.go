package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

// fake stands in for the step, the catalogue and the stores where only what
// HTTP makes of them is looked at. With fail set, everything but tokens fails.
type fake struct {
	mu     sync.Mutex
	fail   error
	tokens map[[32]byte]catalog.Token
	begun  upsert.BeginRequest
	given  upsert.CompleteRequest
	who    string
	filter catalog.QuarantineFilter
	after  uuid.UUID
	tile   catalog.Tile
	object []byte
	// redirects has the store answer readers itself.
	redirects bool
	lookups   atomic.Int64
	queries   atomic.Int64
	check     func(refs []upsert.UnitRef) ([]upsert.Checked, error)
	decide    func() (upsert.Decision, error)
	// added are units that a batch was given; expect says what becomes of them.
	added  []catalog.ExpectedUnit
	expect func(units []catalog.ExpectedUnit) (int64, map[int]error, error)
	gate   catalog.GateState // "" for GatePassed
	waited time.Duration
	limits catalog.GateLimits
	// reconciler is what it is for reconciliation.
	reconciler fakeReconciler
}

var (
	unitKey   = uuid.MustParse("0d5a5c7e-3f80-8a6b-9c1d-0123456789ab")
	attemptID = uuid.MustParse("0198c1de-7a3b-7c52-9d0f-0123456789ab")
	at        = time.Date(2026, 8, 4, 10, 30, 0, 0, time.UTC)
)

const objectKey = "landcover/33UXP/t0001.0d5a5c7e3f80.0123456789ab.tif"

func newFake() *fake {
	f := &fake{tokens: map[[32]byte]catalog.Token{}, object: bytes.Repeat([]byte("raster "), 1000)}
	f.reconciler.fake = f
	for _, role := range catalog.Roles {
		f.tokens[catalog.HashToken(string(role))] = catalog.Token{Name: "the-" + string(role), Role: role, CreatedAt: at}
	}
	f.tile = catalog.Tile{
		UnitKey: unitKey, Collection: "landcover", TileID: "33UXP/t0001", Version: "1",
		Identity: json.RawMessage(`{"version":"1"}`), StoreID: "s1", ObjectKey: objectKey,
		SizeBytes: int64(len(f.object)), Checksum: "sha256:" + strings.Repeat("ab", 32), ETag: "e1",
		Facts: catalog.Facts{
			Driver: "GTiff", MediaType: catalog.MediaTypeGeoTIFF, CRS: "EPSG:32633",
			Transform: [6]float64{500000, 10, 0, 5600000, 0, -10}, Width: 256, Height: 256,
			Bands:     []catalog.Band{{DataType: "Byte"}},
			Footprint: geom.NewMultiPolygonFlat(geom.XY, []float64{15, 50, 16, 50, 16, 51, 15, 50}, [][]int{{8}}).SetSRID(4326),
		},
		AttemptID: attemptID, RegisteredAt: at, Current: true,
	}
	return f
}

func (f *fake) Begin(_ context.Context, req upsert.BeginRequest) (upsert.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = req
	if f.decide != nil {
		return f.decide()
	}
	return upsert.Decision{
		Verdict: upsert.VerdictRun, UnitKey: unitKey, StagingPath: "/store/.staging/x.tif", Tags: map[string]string{"CATALOGD_VERSION": "1"},
		Attempt: &catalog.Attempt{
			ID: attemptID, State: catalog.AttemptOpen, Owner: "w1", Version: "1", StoreID: "s1", MediaType: catalog.MediaTypeGeoTIFF,
			StagingKey: ".staging/x.tif", ObjectKey: objectKey, LeaseUntil: at,
		},
	}, f.fail
}

func (f *fake) StartUpload(_ context.Context, _ uuid.UUID, req upsert.UploadRequest) (upsert.Upload, error) {
	up := upsert.Upload{ID: "u1", PartSize: req.Size/2 + 1, ExpiresAt: at}
	for _, part := range []string{"1", "2"} {
		r, _ := http.NewRequest(http.MethodPut, "https://s3.example/b/.staging/x.tif?part="+part, nil)
		r.Header.Set("X-Amz-Checksum-Sha256", part)
		up.Requests = append(up.Requests, r)
	}
	return up, f.fail
}

func (f *fake) Stage(_ context.Context, _ uuid.UUID, r io.Reader) (int64, string, error) {
	n, err := io.Copy(io.Discard, r)
	if err == nil {
		err = f.fail
	}
	return n, strings.Repeat("ab", 32), err
}

func (f *fake) Complete(_ context.Context, _ uuid.UUID, req upsert.CompleteRequest) (upsert.Outcome, error) {
	f.given = req
	return upsert.Outcome{State: catalog.AttemptDone, AttemptID: attemptID, Tile: f.tile}, f.fail
}

func (f *fake) Register(_ context.Context, req upsert.OutputRequest) (upsert.OutputResult, error) {
	f.begun, f.given = req.Begin, req.Complete
	return upsert.OutputResult{Outcome: upsert.Outcome{State: catalog.AttemptOvertaken, AttemptID: attemptID, Tile: f.tile}}, f.fail
}

func (f *fake) Fail(_ context.Context, id uuid.UUID, req upsert.FailRequest) (upsert.Failed, error) {
	failed := upsert.Failed{
		AttemptID: id, UnitKey: unitKey, Class: catalog.Classify(req.Failure, nil), Reason: req.Named().Reason, Tries: 2, Spent: true,
		RetryAfter: 90 * time.Second,
	}
	if failed.Class == catalog.ClassDeterministic {
		failed.QuarantinedAs = catalog.QuarantinedDeterministic
	}
	return failed, f.fail
}
func (f *fake) Abandon(context.Context, uuid.UUID) error { return f.fail }

func (f *fake) Quarantined(_ context.Context, filter catalog.QuarantineFilter, after uuid.UUID, limit int) ([]catalog.QuarantinedUnit, error) {
	f.filter, f.after = filter, after
	unit, _, err := f.QuarantinedUnit(context.Background(), unitKey)
	return slices.Repeat([]catalog.QuarantinedUnit{unit}, min(limit, 7)), err
}
func (f *fake) QuarantinedUnit(_ context.Context, key uuid.UUID) (catalog.QuarantinedUnit, []catalog.FailedAttempt, error) {
	return catalog.QuarantinedUnit{
		UnitKey: key, Collection: "landcover", TileID: "33UXP/t0001", Version: "1", Identity: json.RawMessage(`{"version":"1"}`),
		Retry: catalog.Retry{
			Tries: 4, Class: catalog.ClassTransient, Reason: "http_503", Worker: "w1", FirstFailedAt: at, LastFailedAt: at, DueAt: at,
			QuarantinedAs: catalog.QuarantinedExhausted, QuarantinedAt: &at,
		},
	}, []catalog.FailedAttempt{{AttemptID: attemptID, Reason: "http_503", Worker: "w1", Spent: true, FailedAt: at}}, f.fail
}
func (f *fake) Release(_ context.Context, filter catalog.QuarantineFilter, who, _ string) (int, error) {
	f.filter, f.who = filter, who
	return 3, f.fail
}

func (f *fake) Heartbeat(_ context.Context, ids []uuid.UUID) ([]upsert.Lease, error) {
	out := make([]upsert.Lease, len(ids))
	for i, id := range ids {
		out[i] = upsert.Lease{AttemptID: id, State: catalog.AttemptOpen, Until: at}
	}
	return out, f.fail
}

func (f *fake) HeartbeatOwner(ctx context.Context, owner string) ([]upsert.Lease, error) {
	f.who = owner
	return f.Heartbeat(ctx, []uuid.UUID{attemptID})
}

func (f *fake) Claim(ctx context.Context, req upsert.ClaimRequest) (upsert.Claimed, error) {
	d, err := f.Begin(ctx, upsert.BeginRequest{Owner: req.Owner, RequestID: req.RequestID, Batch: req.Batch})
	unit := upsert.ClaimedUnit{Collection: "landcover", TileID: "33UXP/t0001", Identity: json.RawMessage(`{"version":"1"}`), Decision: d}
	return upsert.Claimed{Units: []upsert.ClaimedUnit{unit}, Left: true, RetryAfter: 3 * time.Second}, err
}

var nightly = catalog.Batch{
	ID: attemptID, Name: "nightly", Collection: "landcover", Versions: []string{"1"}, Expected: 6000,
	Publish: catalog.PublishOnGate, CreatedBy: "the-write", CreatedAt: at,
}

func (f *fake) OpenBatch(_ context.Context, name, _, who string) (catalog.Batch, bool, error) {
	f.who = who
	return nightly, name != nightly.Name, f.fail
}
func (f *fake) Batches(_ context.Context, _ string, _ uuid.UUID, limit int) ([]catalog.Batch, error) {
	return slices.Repeat([]catalog.Batch{nightly}, min(limit, 7)), f.fail
}
func (f *fake) Batch(context.Context, string) (catalog.Batch, error) { return nightly, f.fail }
func (f *fake) BatchStatus(context.Context, string) (catalog.BatchStatus, error) {
	gate, _ := f.Gate(context.Background(), "", uuid.Nil)
	return catalog.BatchStatus{
		Batch: nightly, Counts: catalog.BatchCounts{Expected: 6000, Done: 5957, Running: 3, Quarantined: 40}, Gate: &gate,
		Failures: []catalog.BatchFailure{{Class: catalog.ClassTransient, Reason: "http_503", Units: 3, Tries: 12, Example: "t0007", ExampleKey: unitKey, Last: at}},
	}, f.fail
}
func (f *fake) AddUnits(_ context.Context, _ catalog.Batch, units []catalog.ExpectedUnit) (int64, map[int]error, error) {
	if f.expect != nil {
		return f.expect(units)
	}
	f.added = append(f.added, units...)
	return int64(len(units)), nil, f.fail
}
func (f *fake) Pending(_ context.Context, _, after uuid.UUID, limit int) ([]catalog.PendingUnit, error) {
	unit := catalog.PendingUnit{UnitKey: unitKey, TileID: "t0001", Identity: json.RawMessage(`{"version":"1"}`), Status: catalog.UnitPending}
	if after != uuid.Nil {
		return []catalog.PendingUnit{unit}, f.fail
	}
	return slices.Repeat([]catalog.PendingUnit{unit}, limit), f.fail
}
func (f *fake) Run(ctx context.Context, _ string, limits catalog.GateLimits, who string, wait time.Duration) (catalog.Gate, error) {
	f.limits, f.who, f.waited = limits, who, wait
	return f.Gate(ctx, "", uuid.Nil)
}
func (f *fake) Gate(context.Context, string, uuid.UUID) (catalog.Gate, error) {
	state := f.gate
	if state == "" {
		state = catalog.GatePassed
	}
	return catalog.Gate{
		ID: attemptID, Batch: "nightly", State: state, AskedBy: "the-write", CreatedAt: at, ErrorCode: catalog.CodeStoreUnavailable, ErrorMessage: "away",
		GateLimits: catalog.GateLimits{MaxMissingFrac: 0.01, Storage: catalog.GateList},
		Figures:    catalog.GateFigures{BatchCounts: catalog.BatchCounts{Expected: 6000, Done: 5957}, Missing: 43, MissingFrac: 43.0 / 6000},
		Offenders:  []catalog.Offender{{UnitKey: unitKey, TileID: "t0007", Status: catalog.UnitQuarantined, Reason: "http_503"}},
	}, f.fail
}
func (f *fake) PublishBatch(_ context.Context, _, who, _ string) (upsert.BatchPublished, error) {
	f.who = who
	return upsert.BatchPublished{Published: 3, Moved: 2}, f.fail
}

func (f *fake) Check(_ context.Context, refs []upsert.UnitRef, _ bool) ([]upsert.Checked, error) {
	if f.check != nil {
		return f.check(refs)
	}
	return checkAll(refs), f.fail
}

// checkAll finds every unit done that is well formed.
func checkAll(refs []upsert.UnitRef) []upsert.Checked {
	out := make([]upsert.Checked, len(refs))
	for i, ref := range refs {
		out[i] = upsert.Checked{UnitKey: ref.Key, Status: upsert.StatusDone, Current: true, ObjectKey: objectKey}
		if ref.Key != uuid.Nil {
			continue
		}
		unit, err := catalog.NewUnit(ref.Collection, ref.TileID, ref.Identity, ref.ClientKey)
		if out[i].UnitKey = unit.Key; err != nil {
			out[i] = upsert.Checked{Err: err}
		}
	}
	return out
}

func (f *fake) Publish(_ context.Context, collection, version, who, _ string) (upsert.Published, error) {
	f.who = who
	return upsert.Published{Collection: collection, Version: version, Rank: 7, Moved: 2, Slots: 3}, f.fail
}
func (f *fake) Recover(context.Context) (upsert.Recovered, error) { return upsert.Recovered{}, f.fail }
func (f *fake) Sweep(context.Context) (upsert.Swept, error)       { return upsert.Swept{}, f.fail }

var landcover = catalog.Collection{
	ID: "landcover", License: "other", StoreID: "s1", MediaType: catalog.MediaTypeGeoTIFF,
	Policy: catalog.Policy{Drivers: []string{catalog.DriverGTiff}, OrderBy: catalog.OrderVersion}, CreatedAt: at, UpdatedAt: at,
}

func (f *fake) Collections(context.Context) ([]catalog.Collection, error) {
	return []catalog.Collection{landcover}, f.fail
}
func (f *fake) Collection(context.Context, string) (catalog.Collection, error) {
	return landcover, f.fail
}
func (f *fake) CreateCollection(_ context.Context, c catalog.Collection) (catalog.Collection, error) {
	return c, f.fail
}
func (f *fake) UpdateCollection(_ context.Context, c catalog.Collection) (catalog.Collection, error) {
	return c, f.fail
}
func (f *fake) DeleteCollection(_ context.Context, _, who, _ string) error {
	f.who = who
	return f.fail
}

func (f *fake) found(ok bool) (catalog.Tile, error) {
	f.queries.Add(1)
	switch {
	case f.fail != nil:
		return catalog.Tile{}, f.fail
	case !ok:
		return catalog.Tile{}, catalog.Errorf(catalog.CodeNotFound, "no such row")
	}
	return f.tile, nil
}
func (f *fake) Tile(_ context.Context, key uuid.UUID) (catalog.Tile, error) {
	return f.found(key == unitKey)
}
func (f *fake) TileByObject(_ context.Context, key string) (catalog.Tile, error) {
	return f.found(key == objectKey)
}
func (f *fake) CurrentTile(_ context.Context, collection, tileID string) (catalog.Tile, error) {
	return f.found(collection == f.tile.Collection && tileID == f.tile.TileID)
}
func (f *fake) SlotHistory(_ context.Context, collection, tileID string) ([]catalog.SlotMove, error) {
	if _, err := f.found(collection == f.tile.Collection && tileID == f.tile.TileID); err != nil {
		return nil, err
	}
	return []catalog.SlotMove{
		{UnitKey: unitKey, Version: "v8", ObjectKey: objectKey, From: at, By: "w1", Reason: "registered"},
		{UnitKey: unitKey, Version: "v7", ObjectKey: objectKey, From: at, To: &at, By: "the-admin", Reason: "published"},
	}, nil
}

func (f *fake) CreateToken(_ context.Context, t catalog.Token, hash [32]byte) error {
	if f.fail == nil {
		f.tokens[hash] = t
	}
	return f.fail
}
func (f *fake) Tokens(context.Context) ([]catalog.Token, error) {
	return []catalog.Token{{Name: "ci", Role: catalog.RoleWrite, CreatedAt: at}}, f.fail
}
func (f *fake) RevokeToken(_ context.Context, name, _ string) error {
	for hash, t := range f.tokens {
		if t.Name == name {
			t.RevokedAt = &at
			f.tokens[hash] = t
		}
	}
	return f.fail
}
func (f *fake) Token(_ context.Context, hash [32]byte) (catalog.Token, error) {
	f.lookups.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if t, ok := f.tokens[hash]; ok {
		return t, nil
	}
	return catalog.Token{}, catalog.Errorf(catalog.CodeUnauthenticated, "no such row in catalog.tokens")
}
func (f *fake) Totals(context.Context) (catalog.Totals, error) {
	return catalog.Totals{
		Tiles: 12, Slots: 9, OpenAttempts: 3, QuarantinedUnits: 2, RetryingUnits: 5,
		Batches: []catalog.CountedBatch{{Name: "b", Collection: "dem", Counts: catalog.BatchCounts{Expected: 7, Done: 4, Lost: 3}, CountedAt: time.Unix(1796076975, 5e8), GateError: true}},
		Stores: []catalog.StoreTotals{
			{
				Store: "default", CompleteAt: &at, CompleteTook: 161 * time.Second, Incomplete: true, TrashObjects: 4, TrashBytes: 99,
				Findings: []catalog.FindingTotals{{Kind: catalog.FindingOrphan, Objects: 5, Bytes: 77}, {Kind: catalog.FindingLost}},
				Scrub:    catalog.Scrub{LapBegan: at, RanAt: &at, Verified: 100, Bytes: 200, Bad: 1},
			},
			{Store: "new"},
		},
	}, f.fail
}
func (f *fake) Ready(context.Context) error { return f.fail }

type fakeObject struct{ *bytes.Reader }

func (fakeObject) Close() error { return nil }

func (f *fake) Open(_ context.Context, _, key string) (storage.Reader, catalog.Object, error) {
	if f.object == nil {
		return nil, catalog.Object{}, storage.ErrNotExist
	}
	return fakeObject{bytes.NewReader(f.object)}, catalog.Object{Key: key, SizeBytes: int64(len(f.object)), Modified: at}, f.fail
}

func (f *fake) List() []StoreInfo {
	return []StoreInfo{
		{Name: "default", ID: "s1", Root: "file:///store", Location: "/store/"},
		{Name: "bucket", ID: "s2", Root: "s3://b/p?endpoint=http%3A%2F%2Fx", Location: "/vsis3/b/p/", Capabilities: map[string]bool{"lifecycle": false}},
	}
}

func (f *fake) Redirect(_ context.Context, _, key, method string, _ time.Duration) (string, error) {
	if !f.redirects {
		return "", nil
	}
	return "https://s3.example/b/p/" + key + "?method=" + method, f.fail
}

// serve starts the API on a fake and gives its URL and its log.
func serve(t *testing.T, f *fake, change func(*Config)) (url string, log *safeBuffer) {
	t.Helper()
	log = &safeBuffer{}
	cfg := Config{
		Step: f, Catalogue: f, Gates: f, Reconciler: &f.reconciler, Scrubs: &f.reconciler, Stores: f, Version: "test",
		Logger: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	server := httptest.NewUnstartedServer(New(cfg))
	server.Config = NewServer(server.Config.Handler, cfg.Logger)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, log
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// call sends one request; role is the token's text, "" for none.
// steady follows no redirect.
var steady = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func call(t *testing.T, method, url, role, contentType, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if role != "" {
		req.Header.Set("Authorization", "Bearer "+role)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := steady.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

// problemOf decodes a problem and holds it to its form.
func problemOf(t *testing.T, res *http.Response, body string) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%d %s is no problem: %v", res.StatusCode, body, err)
	}
	if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	if p.Status != res.StatusCode || p.Instance != res.Header.Get("X-Request-Id") || p.Type != "/problems/"+string(p.Code) {
		t.Errorf("problem %+v does not agree with the response: %d, request %s", p, res.StatusCode, res.Header.Get("X-Request-Id"))
	}
	return p
}
