package reconcile

import (
	"context"
	"iter"
	"time"

	"catalogd/internal/catalog"
)

// Start asks for a run, and waits for it so long at most. It gives the run as it stands
// then. CodeUnknownStore, CodeRunUnderWay, CodeStoreUnavailable.
func (r *Reconciler) Start(ctx context.Context, req Request, who string, wait time.Duration) (catalog.Run, error) {
	panic("to be written")
}

// Listing runs a comparison with a listing that somebody else made, in byte order of the
// key, to its end. An error of the listing makes the run incomplete.
func (r *Reconciler) Listing(ctx context.Context, req Request, who string, objects iter.Seq2[catalog.Object, error]) (catalog.Run, error) {
	panic("to be written")
}

// DoPart works on a part of a run: what a job does. It is safe to repeat.
func (r *Reconciler) DoPart(ctx context.Context, run int64, part int) error {
	panic("to be written")
}

// Run reads one. CodeUnknownRun.
func (r *Reconciler) Run(ctx context.Context, id int64) (catalog.Run, error) {
	return r.Ledger.Run(ctx, id)
}

// Runs lists the latest, of one store or, with "", all.
func (r *Reconciler) Runs(ctx context.Context, storeID string, limit int) ([]catalog.Run, error) {
	return r.Ledger.Runs(ctx, storeID, limit)
}

// Cancel has a running run stop: what it has found stays, nothing is resolved.
// CodeUnknownRun.
func (r *Reconciler) Cancel(ctx context.Context, id int64, who string) (catalog.Run, error) {
	if err := r.Ledger.Cancel(ctx, id, who); err != nil {
		return catalog.Run{}, err
	}
	return r.Ledger.Run(ctx, id)
}

// Findings lists findings, by id.
func (r *Reconciler) Findings(ctx context.Context, q catalog.FindingQuery) ([]catalog.Finding, error) {
	return r.Ledger.Findings(ctx, q)
}
