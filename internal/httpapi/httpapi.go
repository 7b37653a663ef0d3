package httpapi

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

// Step is what the API asks of upsert.
type Step interface {
	Begin(ctx context.Context, req upsert.BeginRequest) (upsert.Decision, error)
	StartUpload(ctx context.Context, attempt uuid.UUID, req upsert.UploadRequest) (upsert.Upload, error)
	Stage(ctx context.Context, attempt uuid.UUID, r io.Reader) (size int64, sha256 string, err error)
	Complete(ctx context.Context, attempt uuid.UUID, req upsert.CompleteRequest) (upsert.Outcome, error)
	Register(ctx context.Context, req upsert.OutputRequest) (upsert.OutputResult, error)
	Fail(ctx context.Context, attempt uuid.UUID, req upsert.FailRequest) (upsert.Failed, error)
	Abandon(ctx context.Context, attempt uuid.UUID) error
	Heartbeat(ctx context.Context, attempts []uuid.UUID) ([]upsert.Lease, error)
	HeartbeatOwner(ctx context.Context, owner string) ([]upsert.Lease, error)
	Claim(ctx context.Context, req upsert.ClaimRequest) (upsert.Claimed, error)
	// Check answers in the same order and length.
	Check(ctx context.Context, units []upsert.UnitRef, verify bool) ([]upsert.Checked, error)
	Publish(ctx context.Context, collection, version, who, why string) (upsert.Published, error)
	PublishBatch(ctx context.Context, batch, who, why string) (upsert.BatchPublished, error)
	Recover(ctx context.Context) (upsert.Recovered, error)
	Sweep(ctx context.Context) (upsert.Swept, error)
}

// Catalogue is what the API reads and writes beside the step.
type Catalogue interface {
	Collections(ctx context.Context) ([]catalog.Collection, error)
	// Collection: CodeUnknownCollection.
	Collection(ctx context.Context, id string) (catalog.Collection, error)
	// CreateCollection with an empty Store means the server's first.
	// CodeCollectionExists.
	CreateCollection(ctx context.Context, c catalog.Collection) (catalog.Collection, error)
	// UpdateCollection with an empty Store keeps the store.
	UpdateCollection(ctx context.Context, c catalog.Collection) (catalog.Collection, error)
	// DeleteCollection: CodeCollectionNotEmpty.
	DeleteCollection(ctx context.Context, id, who, why string) error
	// Tile, TileByObject, CurrentTile: CodeNotFound.
	Tile(ctx context.Context, key uuid.UUID) (catalog.Tile, error)
	TileByObject(ctx context.Context, objectKey string) (catalog.Tile, error)
	CurrentTile(ctx context.Context, collection, tileID string) (catalog.Tile, error)
	// SlotHistory is what a slot has pointed to, the latest first. CodeNotFound for one
	// that never pointed to anything.
	SlotHistory(ctx context.Context, collection, tileID string) ([]catalog.SlotMove, error)
	// Quarantined lists by collection, tile id and key, at most limit of those after the
	// unit of this key, uuid.Nil for the first. CodeInvalidRequest.
	Quarantined(ctx context.Context, f catalog.QuarantineFilter, after uuid.UUID, limit int) ([]catalog.QuarantinedUnit, error)
	// QuarantinedUnit, with its last failures. CodeNotFound.
	QuarantinedUnit(ctx context.Context, key uuid.UUID) (catalog.QuarantinedUnit, []catalog.FailedAttempt, error)
	// Release has quarantined units tried again, and tells how many.
	Release(ctx context.Context, f catalog.QuarantineFilter, who, why string) (int, error)
	// OpenBatch makes a batch, or finds the one of this name. CodeBatchExists where that
	// is of another collection.
	OpenBatch(ctx context.Context, name, collection, who string) (batch catalog.Batch, created bool, err error)
	// Batches lists the latest first, at most limit of those before the one of this id,
	// uuid.Nil for the first; "" for those of all collections.
	Batches(ctx context.Context, collection string, before uuid.UUID, limit int) ([]catalog.Batch, error)
	// Batch, BatchStatus: CodeUnknownBatch.
	Batch(ctx context.Context, name string) (catalog.Batch, error)
	BatchStatus(ctx context.Context, name string) (catalog.BatchStatus, error)
	// AddUnits adds units to a batch; refused has, by place, why one was not.
	AddUnits(ctx context.Context, batch catalog.Batch, units []catalog.ExpectedUnit) (added int64, refused map[int]error, err error)
	// Pending lists units of a batch that are due, by key, at most limit of those after
	// this one.
	Pending(ctx context.Context, batch, after uuid.UUID, limit int) ([]catalog.PendingUnit, error)
	// CreateToken: CodeTokenExists.
	CreateToken(ctx context.Context, token catalog.Token, hash [32]byte) error
	Tokens(ctx context.Context) ([]catalog.Token, error)
	// RevokeToken: CodeNotFound; nil for one that is revoked already.
	RevokeToken(ctx context.Context, name, who string) error
	// Token: CodeUnauthenticated.
	Token(ctx context.Context, hash [32]byte) (catalog.Token, error)
	Totals(ctx context.Context) (catalog.Totals, error)
	Ready(ctx context.Context) error
}

// Gates judges batches.
type Gates interface {
	// Run asks for a judgement of a batch, and waits for it so long at most.
	// CodeUnknownBatch.
	Run(ctx context.Context, batch string, limits catalog.GateLimits, who string, wait time.Duration) (catalog.Gate, error)
	// Gate: CodeUnknownBatch, CodeNotFound.
	Gate(ctx context.Context, batch string, id uuid.UUID) (catalog.Gate, error)
}

// Reconciler compares the catalogue with its stores, and puts right what was reviewed.
type Reconciler interface {
	// Start asks for a run, and waits for it so long at most. CodeRunUnderWay,
	// CodeStoreUnavailable.
	Start(ctx context.Context, req reconcile.Request, who string, wait time.Duration) (catalog.Run, error)
	// Listing runs a comparison with a listing, in byte order of the key, to its end.
	Listing(ctx context.Context, req reconcile.Request, who string, objects iter.Seq2[catalog.Object, error]) (catalog.Run, error)
	// Run, Cancel: CodeUnknownRun.
	Run(ctx context.Context, id int64) (catalog.Run, error)
	Cancel(ctx context.Context, id int64, who string) (catalog.Run, error)
	// Runs lists the latest, of one store or, with "", all.
	Runs(ctx context.Context, storeID string, limit int) ([]catalog.Run, error)
	// Findings lists by id.
	Findings(ctx context.Context, q catalog.FindingQuery) ([]catalog.Finding, error)
	// Plan: CodeUnknownRun, CodeRunNotComplete.
	Plan(ctx context.Context, run int64, choices catalog.PlanChoices, who string) (catalog.Plan, error)
	// GetPlan: CodeUnknownPlan.
	GetPlan(ctx context.Context, id int64) (catalog.Plan, error)
	// PlansOf lists the latest, of a run or, with 0, all.
	PlansOf(ctx context.Context, run int64, limit int) ([]catalog.Plan, error)
	// Acts lists acts of a plan, by number, after one.
	Acts(ctx context.Context, plan int64, after, limit int) ([]catalog.Act, error)
	// Apply asks for a plan to be applied, and waits for it so long at most.
	// CodeUnknownPlan, CodePlanApplied, CodeTooMuchChange, CodeStoreUnavailable.
	Apply(ctx context.Context, id int64, maxChange float64, who, why string, wait time.Duration) (catalog.Plan, error)
	// Trash lists by id, after one; of a store or, with "", all.
	Trash(ctx context.Context, storeID string, after int64, limit int) ([]catalog.Trashed, error)
	// EmptyTrash deletes what has expired or, with all, everything.
	EmptyTrash(ctx context.Context, storeID string, all bool, who, why string) (reconcile.Emptied, error)
	// Restore: CodeNotFound.
	Restore(ctx context.Context, id int64, who, why string) error
	Scrubs(ctx context.Context) ([]catalog.Scrub, error)
}

// Scrubs has checksums read again.
type Scrubs interface {
	// QueueScrub has this share of a store's outputs read by some server.
	QueueScrub(ctx context.Context, storeID string, fraction float64) error
}

// Stores gives readers the bytes of objects.
type Stores interface {
	// List has the server's stores, the first first.
	List() []StoreInfo
	// Open: storage.ErrNotExist, or any other error for a store that cannot be asked.
	Open(ctx context.Context, storeID, key string) (storage.Reader, catalog.Object, error)
	// Redirect is a URL at which the store itself answers one GET or HEAD of an object
	// until expires is over; "" where it is to be opened. It asks nothing of the store.
	Redirect(ctx context.Context, storeID, key, method string, expires time.Duration) (url string, err error)
}

// StoreInfo is what is told of a store.
type StoreInfo struct {
	Name, ID, Root, Location string
	// Capabilities of an object store's server; nil for others.
	Capabilities map[string]bool
}

// What callers without a token may do.
const (
	AnonymousNone = "none"
	// AnonymousRead gives them the role read.
	AnonymousRead = "read"
)

// Config of the API. All up to Stores are needed.
type Config struct {
	Step       Step
	Gates      Gates
	Reconciler Reconciler
	Scrubs     Scrubs
	Catalogue  Catalogue
	Stores     Stores
	// PublicURL is where clients reach this server, for the links it gives; "" for
	// the host that each request names.
	PublicURL string
	// Anonymous is AnonymousNone, or "", or AnonymousRead.
	Anonymous string
	Logger    *slog.Logger
	Version   string
}

// Deadlines and bounds.
const (
	// requestDeadline bounds ordinary operations; stepDeadline those that read,
	// hash or move outputs, or go through the whole catalogue.
	requestDeadline = 30 * time.Second
	stepDeadline    = time.Hour
	// readyDeadline bounds readiness and the counting for metrics.
	readyDeadline = 5 * time.Second

	maxBody      = 1 << 20
	maxCheckBody = 16 << 20
)

// idle is how long a stream may stand still, in either direction. It is a
// variable for tests only.
var idle = time.Minute

// unread is how long the server waits for a body that it does not want: that of a
// request it refuses, or that has none by the contract. net/http reads such bodies
// before it answers, to keep the connection. A variable for tests only.
var unread = 10 * time.Second

type server struct {
	Config
	contract map[string]*operation
	mux      *chi.Mux
	tokens   tokenCache
	metrics  *metrics
}

// New makes the handler of everything that the contract lists.
func New(cfg Config) http.Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.PublicURL = strings.TrimRight(cfg.PublicURL, "/")
	s := &server{Config: cfg, contract: contract(), mux: chi.NewRouter()}
	s.metrics = newMetrics(cfg)

	s.mux.Use(s.observe, middleware.GetHead)
	s.mux.NotFound(s.notFound)
	s.mux.MethodNotAllowed(s.methodNotAllowed)

	admitted := s.mux.With(s.admit)
	HandlerWithOptions(NewStrictHandlerWithOptions(s, nil, StrictHTTPServerOptions{
		RequestErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			s.problem(w, r, badBody(err))
		},
		ResponseErrorHandlerFunc: s.problem,
	}), ChiServerOptions{
		BaseRouter: admitted,
		ErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			s.problem(w, r, badParameter(err))
		},
	})
	// What OpenAPI 3.0 cannot say (slashes in a path parameter), or is not JSON.
	admitted.Get(dataPattern, s.data)
	admitted.Head(dataPattern, s.data)
	admitted.Get("/", s.index)
	admitted.Get("/openapi.yaml", s.openAPI)
	admitted.Get("/problems/{code}", s.aboutProblem)
	admitted.Get("/metrics", s.metrics.handler().ServeHTTP)
	return s.mux
}

// NewServer gives the handler a server with the timeouts that the handler
// counts on. There is none on writing, nor on reading bodies: streams last as long
// as they move, and observe sets what holds for all others.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// net/http's own answer to OPTIONS * waits for a body without any deadline.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func (s *server) notFound(w http.ResponseWriter, r *http.Request) {
	s.problem(w, r, catalog.Errorf(catalog.CodeNotFound, "there is nothing at this path: /openapi.yaml lists what there is"))
}

func (s *server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
		if s.mux.Match(chi.NewRouteContext(), method, r.URL.Path) {
			allowed = append(allowed, method)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	s.problem(w, r, catalog.Errorf(catalog.CodeMethodNotAllowed, "this path takes %s", strings.Join(allowed, ", ")))
}
