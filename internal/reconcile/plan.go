package reconcile

import (
	"context"
	"time"

	"catalogd/internal/catalog"
)

// Plan makes a plan of what a complete run left open. CodeUnknownRun, CodeRunNotComplete.
func (r *Reconciler) Plan(ctx context.Context, run int64, choices catalog.PlanChoices, who string) (catalog.Plan, error) {
	panic("to be written")
}

// GetPlan reads one. CodeUnknownPlan.
func (r *Reconciler) GetPlan(ctx context.Context, id int64) (catalog.Plan, error) {
	return r.Ledger.Plan(ctx, id)
}

// PlansOf lists those of a run; the latest of all for 0.
func (r *Reconciler) PlansOf(ctx context.Context, run int64, limit int) ([]catalog.Plan, error) {
	return r.Ledger.PlansOf(ctx, run, limit)
}

// Acts lists acts of a plan, by number, after one.
func (r *Reconciler) Acts(ctx context.Context, plan int64, after, limit int) ([]catalog.Act, error) {
	return r.Ledger.Acts(ctx, plan, after, limit, false)
}

// Apply asks for a plan to be applied, and waits for it so long at most. It gives the plan
// as it stands then. CodeUnknownPlan, CodePlanApplied, CodeTooMuchChange,
// CodeStoreUnavailable.
func (r *Reconciler) Apply(ctx context.Context, id int64, maxChange float64, who, why string, wait time.Duration) (catalog.Plan, error) {
	panic("to be written")
}

// ApplyPlan applies a plan that was asked to be: what the job does. It is safe to repeat.
func (r *Reconciler) ApplyPlan(ctx context.Context, id int64) error {
	panic("to be written")
}

// Trash lists what is in the trash, by id, after one.
func (r *Reconciler) Trash(ctx context.Context, storeID string, after int64, limit int) ([]catalog.Trashed, error) {
	return r.Ledger.Trash(ctx, storeID, false, after, limit)
}

// Emptied tells what was deleted from the trash.
type Emptied struct {
	Objects int
	Bytes   int64
	// Left could not be deleted, and are left for the next time.
	Left int
}

// EmptyTrash deletes what has expired or, with all, everything that is in the trash of a
// store, or of all stores for "". Unless it is the schedule that asks, it is written to
// the audit.
func (r *Reconciler) EmptyTrash(ctx context.Context, storeID string, all bool, who, why string) (Emptied, error) {
	panic("to be written")
}

// Restore puts an object back from the trash to where it was. CodeNotFound.
func (r *Reconciler) Restore(ctx context.Context, id int64, who, why string) error {
	panic("to be written")
}

// Scrubbed tells what a scrub read.
type Scrubbed struct {
	Outputs, Bad int
	Bytes        int64
	// Unread were missing or could not be read: reconcile tells of those.
	Unread int
	// Lapped: the round ended.
	Lapped bool
}

// Scrub reads checksums again of this share of a store's outputs, those first that were
// not read for the longest time. It goes on where the last one ended, also after a crash.
func (r *Reconciler) Scrub(ctx context.Context, storeID string, fraction float64) (Scrubbed, error) {
	panic("to be written")
}

// Scrubs tells how far each store's is.
func (r *Reconciler) Scrubs(ctx context.Context) ([]catalog.Scrub, error) {
	return r.Ledger.ScrubStates(ctx)
}
