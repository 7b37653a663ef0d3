// Package reconcile compares the catalogue with what its stores hold, tells of every
// disagreement and of no false one, and repairs what an operator has reviewed.
//
// A run reads rows and objects, both in byte order of the key, and joins them (Join). What
// one side alone has is a candidate only: it becomes a finding when it was looked at again
// in the order that the step's own commits allow no mistake in (confirm). Finding is not
// acting: a Plan is made of a complete run's findings, and applied once, each act confirmed
// again under the slot's lock.
//
// It sees the database, the stores and the step through the small interfaces below, and
// imports catalog, storage and the step's types only.
package reconcile

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

// Ledger is the database as reconciliation sees it. Errors are catalog.Errors.
type Ledger interface {
	// AskRun records a run, running, with its parts, and queues a job for each, if the
	// run's source is the store: parts of a given listing are the caller's to do.
	// CodeUnknownStore, CodeRunUnderWay.
	AskRun(ctx context.Context, run catalog.Run, parts []catalog.RunPart) (catalog.Run, error)
	// Splits gives keys, in order, that divide the rows of a store below a prefix into
	// ranges of about so many rows each; none where there are few.
	Splits(ctx context.Context, storeID, prefix string, rows int) ([]string, error)
	// Run reads one. CodeUnknownRun.
	Run(ctx context.Context, id int64) (catalog.Run, error)
	// Runs lists the latest, of one store or, with "", all.
	Runs(ctx context.Context, storeID string, limit int) ([]catalog.Run, error)
	// Cancel has a running run stop. CodeUnknownRun.
	Cancel(ctx context.Context, id int64, who string) error
	// TakePart has this process alone work on a part, until the Work is over. Nil where
	// it has ended, or its run has, or somebody else works on it.
	TakePart(ctx context.Context, run int64, part int) (Work, error)

	// Rows are those of a store whose keys are in a range, in byte order of the key.
	Rows(ctx context.Context, storeID string, within storage.Range) iter.Seq2[Row, error]
	// RowsNow are those of rows which are still the very ones: of the same unit, attempt
	// and key.
	RowsNow(ctx context.Context, rows []Row) (map[string]StillRow, error)
	// Cover tells of each object, from one snapshot, whether a row, an attempt or a
	// removal names it.
	Cover(ctx context.Context, storeID string, keys []string) (map[string]Cover, error)
	// Find records findings of a run, and gives the states that they have now, in order.
	Find(ctx context.Context, run catalog.Run, found []Found) ([]catalog.FindingState, error)
	// Unsure keeps findings about these objects from being resolved by a run which could
	// not tell of them.
	Unsure(ctx context.Context, run catalog.Run, keys []string) error

	// Findings lists findings, by id.
	Findings(ctx context.Context, q catalog.FindingQuery) ([]catalog.Finding, error)

	Plans
	Scrubs
}

// Plans is the part of the Ledger that acts.
type Plans interface {
	// MakePlan makes a plan of what a complete run left open. CodeUnknownRun,
	// CodeRunNotComplete.
	MakePlan(ctx context.Context, run int64, choices catalog.PlanChoices, who string) (catalog.Plan, error)
	// Plan reads one. CodeUnknownPlan.
	Plan(ctx context.Context, id int64) (catalog.Plan, error)
	// PlansOf lists those of a run; of all, the latest, with 0.
	PlansOf(ctx context.Context, run int64, limit int) ([]catalog.Plan, error)
	// Acts lists acts of a plan after a number; with planned, only those not done yet.
	Acts(ctx context.Context, plan int64, after, limit int, planned bool) ([]catalog.Act, error)
	// AskApply turns a planned plan into one that is being applied, writes that to the
	// audit, and queues its job. CodeUnknownPlan, CodePlanApplied, CodeTooMuchChange.
	AskApply(ctx context.Context, id int64, maxChange float64, who, why string) (catalog.Plan, error)
	// TakePlan has this process alone apply a plan, until the Hold is over. Nil where it
	// is not being applied, or somebody else does.
	TakePlan(ctx context.Context, id int64) (Hold, error)
	// EndAct says what came of an act.
	EndAct(ctx context.Context, plan int64, no int, state catalog.ActState, outcome string) error
	// EndPlan ends a plan: applied, or refused for a reason.
	EndPlan(ctx context.Context, id int64, state catalog.PlanState, code catalog.Code, message string) error

	// Redo makes a unit due again, under its slot's lock: if its row is still that of the
	// act, no attempt holds the unit, and the output is current or waits for its batch.
	// CodeNotFound, with a message, where there is nothing to redo. As in Remove and
	// Adopt, confirm is called with the lock held, right before anything is written: its
	// error leaves all as it is, and is returned.
	Redo(ctx context.Context, act catalog.Act, storeID string, confirm Confirm) error
	// Remove records the removal of an object to the trash, under the lock of its slot:
	// of one that a row names, where Redo would make its unit due again; of another one
	// unless a row, an attempt or a removal names it. What was recorded for the same
	// reason before, and is not moved yet, is returned, with an error too. CodeNotFound,
	// with a message, where it is not to be moved.
	Remove(ctx context.Context, r Removal, act catalog.Act, confirm Confirm) (Removal, error)
	// Removed confirms removals.
	Removed(ctx context.Context, ids []int64) error
	// Unmoved forgets a removal: nothing was moved.
	Unmoved(ctx context.Context, id int64) error
	// Adopt gives an object without a row one: as an output that nobody made anew, and
	// current only where its slot has no current one. It tells whether it is. CodeNotFound,
	// with a message, where its unit has an output, or the object is named by now.
	Adopt(ctx context.Context, a Adoption, confirm Confirm) (current bool, err error)
	// Tile is the row of a unit: CodeNotFound. Named tells whether a row names an object.
	Tile(ctx context.Context, unit uuid.UUID) (catalog.Tile, error)
	Named(ctx context.Context, storeID, objectKey string) (bool, error)
	// Namesake finds the unit that an object's name is made of: CodeNotFound.
	Namesake(ctx context.Context, n catalog.FinalNameParts) (catalog.Unit, error)

	// Trash lists what is in the trash, by id: of a store, or all.
	Trash(ctx context.Context, storeID string, expired bool, after int64, limit int) ([]catalog.Trashed, error)
	// Trashed is one of it. CodeNotFound.
	Trashed(ctx context.Context, id int64) (catalog.Trashed, error)
	// Emptied says that objects are no longer in the trash.
	Emptied(ctx context.Context, ids []int64) error
	// Audit writes down what destroys or turns back.
	Audit(ctx context.Context, who, act, target, why string, details any) error
}

// Scrubs is the part of the Ledger that reading checksums again needs.
type Scrubs interface {
	// ScrubFrom tells where the next scrub of a store begins, and how many outputs it has.
	ScrubFrom(ctx context.Context, storeID string) (after string, outputs int64, err error)
	// Scrubbed records a page: how far it came, which outputs were right, how many were
	// not, and how many bytes were read; lapped where that was the last page of a round.
	// What an earlier scrub found is resolved of those that are right now, and of those
	// whose row is another's.
	Scrubbed(ctx context.Context, storeID, at string, verified []Row, bad int, read int64, lapped bool) error
	// ScrubRows are rows of a store after a key, by key, with their checksums.
	ScrubRows(ctx context.Context, storeID, after string, limit int) ([]Row, error)
	// FindBad records outputs whose checksum is not that of their row, if that is still
	// the very one, and tells how many.
	FindBad(ctx context.Context, storeID string, bad []Row) (int, error)
	// ScrubStates tells how far each store's is.
	ScrubStates(ctx context.Context) ([]catalog.Scrub, error)
}

// Row is an output by its row.
type Row struct {
	ObjectKey          string
	UnitKey, AttemptID uuid.UUID
	SizeBytes          int64
	ETag               string
	// Checksum is only there for a scrub.
	Checksum string
}

// StillRow is a row that is still the very one.
type StillRow struct{ Current bool }

// Cover tells what names an object.
type Cover struct {
	// Named: a row, an attempt that may still use it or leave it to be swept, or a
	// removal that is not confirmed.
	Named bool
	// Attempt whose name it bears, whatever has become of that; nil for none.
	Attempt *uuid.UUID
}

// Found is what a run found and confirmed.
type Found struct {
	Kind               catalog.FindingKind
	ObjectKey          string
	UnitKey, AttemptID *uuid.UUID
	Reason             string
	SizeBytes          int64
	ExpectedBytes      *int64
	// Foreign: it is not catalogd's, and a finding only once it was seen for long enough.
	Foreign bool
}

// Hold is what this process alone works on.
type Hold interface {
	// Close ends it, also where ctx is over.
	Close()
}

// Work is a part of a run that this process alone works on.
type Work interface {
	Hold
	Run() catalog.Run
	Part() catalog.RunPart
	// Progress records how far it is, and tells whether the run is to stop.
	Progress(ctx context.Context, at string, figures catalog.RunFigures) (stop bool, err error)
	// End ends the part. The last part to end ends the run: what a complete run no longer
	// saw is resolved. code is "" for a part that was read to its end.
	End(ctx context.Context, figures catalog.RunFigures, code catalog.Code, message string) error
}

// Confirm looks once more whether an act is to be.
type Confirm func(ctx context.Context) error

// Removal is an object that is to be moved to the trash.
type Removal struct {
	ID                           int64
	Before                       bool // it was recorded before
	StoreID, ObjectKey, TrashKey string
	SizeBytes                    int64
	Reason, By                   string
	Keep                         time.Duration
}

// Adoption is an object that is to have a row.
type Adoption struct {
	Unit      catalog.Unit
	StoreID   string
	ObjectKey string
	ETag      string
	Intent    catalog.Intent
	// Attempt that the row is given to, unless there is one that bears the name.
	Attempt       uuid.UUID
	By, RequestID string
}

// Stores finds a store by its id: CodeStoreUnavailable.
type Stores interface {
	Find(id string) (storage.Store, error)
}

// Step is the step as reconciliation needs it.
type Step interface {
	// Leftovers are what is staged, and unfinished uploads, with what of them nobody
	// needs any more.
	Leftovers(ctx context.Context, storeID string) iter.Seq2[upsert.Leftover, error]
	// Relink puts every stable name of a store right, and tells how many were not.
	Relink(ctx context.Context, storeID string) (int, error)
	// Inspect probes an object at its final name, by its collection's policy.
	Inspect(ctx context.Context, storeID, key, collection string) (upsert.Inspection, error)
	// Link points the stable name of a slot to its current output.
	Link(ctx context.Context, collection, tileID string) error
}

// Config of a Reconciler.
type Config struct {
	Ledger Ledger
	Stores Stores
	Step   Step
	Logger *slog.Logger

	// MinAge and Settle of a run that names none.
	MinAge, Settle time.Duration
	// TrashKeep is how long an object stays in the trash.
	TrashKeep time.Duration
	// PartRows is about how many rows there are in a part of a run; 500,000.
	PartRows int64

	// Hook, if set, is called at each Point of an act, for tests that drive interleavings
	// or stop there.
	Hook func(at Point, act catalog.Act)
}

// Point is a place in an act.
type Point string

// The places between which a crash, or somebody else, can come.
const (
	PointIntended  Point = "intended"
	PointMoved     Point = "moved"
	PointInspected Point = "inspected"
	PointAdopted   Point = "adopted"
)

// Reconciler runs, plans and applies. Any number of them may work on one database.
type Reconciler struct{ Config }

// New makes one.
func New(cfg Config) *Reconciler {
	if cfg.PartRows == 0 {
		cfg.PartRows = 500_000
	}
	return &Reconciler{cfg}
}

// Request asks for a run.
type Request struct {
	StoreID string
	Prefix  string
	// MinAge and Settle: nil for the server's.
	MinAge, Settle *time.Duration
}
