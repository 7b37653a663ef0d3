package reconcile

import (
	"context"
	"slices"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Plan makes a plan of what a complete run left open: by default what is lost, or is not
// what it should be, is made again, and objects without a row are moved to the trash.
// CodeUnknownRun, CodeRunNotComplete.
func (r *Reconciler) Plan(ctx context.Context, run int64, choices catalog.PlanChoices, who string) (catalog.Plan, error) {
	for _, choice := range []struct {
		act   *catalog.ActKind
		field string
		from  []catalog.ActKind // the first is the default
	}{
		{&choices.Lost, "/lost", []catalog.ActKind{catalog.ActRedo, catalog.ActLeave}},
		{&choices.Mismatch, "/mismatch", []catalog.ActKind{catalog.ActRedo, catalog.ActLeave}},
		{&choices.Orphan, "/orphan", []catalog.ActKind{catalog.ActTrash, catalog.ActAdopt, catalog.ActLeave}},
	} {
		if *choice.act == "" {
			*choice.act = choice.from[0]
		}
		if !slices.Contains(choice.from, *choice.act) {
			return catalog.Plan{}, catalog.Errorf(catalog.CodeInvalidRequest, "%q cannot be done about it: choose from %v", *choice.act, choice.from).At(choice.field)
		}
	}
	return r.Ledger.MakePlan(ctx, run, choices, who)
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
// as it stands then. maxChange is how many acts there may be, as a share of the outputs
// that the store had, 1 for any number; a plan with more stays planned. CodeUnknownPlan, CodePlanApplied,
// CodeTooMuchChange, CodeStoreUnavailable.
func (r *Reconciler) Apply(ctx context.Context, id int64, maxChange float64, who, why string, wait time.Duration) (catalog.Plan, error) {
	if !(maxChange >= 0 && maxChange <= 1) {
		return catalog.Plan{}, catalog.Errorf(catalog.CodeInvalidRequest, "max_change is a share, from 0 to 1").At("/max_change")
	}
	plan, err := r.Ledger.Plan(ctx, id)
	if err != nil {
		return plan, err
	}
	if _, err := r.there(ctx, plan.StoreID); err != nil {
		return plan, err
	}
	until := time.Now().Add(wait)
	if plan, err = r.Ledger.AskApply(ctx, id, maxChange, who, why); err != nil {
		return plan, err
	}
	return poll(ctx, until, func() (catalog.Plan, bool, error) {
		now, err := r.Ledger.Plan(ctx, id)
		return now, now.State != catalog.PlanApplying, err
	})
}

// there finds a store, and has it show its sentinel.
func (r *Reconciler) there(ctx context.Context, id string) (storage.Store, error) {
	store, err := r.Stores.Find(id)
	if err != nil {
		return nil, err
	}
	return store, sentinel(ctx, store)
}
