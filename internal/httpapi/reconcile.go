package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/listing"
	"catalogd/internal/reconcile"
)

const (
	reconcilePage = 100
	// findingsChunk are findings, or acts, of a stream that are read at once.
	findingsChunk = 5000
	// maxChange and scrubFraction are the contract's defaults.
	maxChange     = 0.05
	scrubFraction = 0.01
)

func (s *server) StartReconcile(ctx context.Context, req StartReconcileRequestObject) (StartReconcileResponseObject, error) {
	var b ReconcileRequest
	if req.Body != nil {
		b = *req.Body
	}
	store, err := s.storeNamed(value(b.Store), "/store")
	if err != nil {
		return nil, err
	}
	run, err := s.Reconciler.Start(ctx, reconcile.Request{
		StoreID: store, Prefix: value(b.Prefix), MinAge: duration(b.MinAgeSeconds), Settle: duration(b.SettleSeconds),
	}, exchangeOf(ctx).who, value(duration(b.WaitSeconds)))
	if err != nil {
		return nil, err
	}
	if run.State != catalog.RunRunning {
		return StartReconcile200JSONResponse(toRun(run)), nil
	}
	return StartReconcile202JSONResponse{Body: toRun(run), Headers: StartReconcile202ResponseHeaders{
		Location: new(fmt.Sprintf("%s/v1/reconcile/%d", exchangeOf(ctx).base, run.ID)), RetryAfter: new(1),
	}}, nil
}

// storeNamed finds the id of a store by its name, id or root; "" is the first.
func (s *server) storeNamed(name, field string) (string, error) {
	stores := s.Stores.List()
	for _, store := range stores {
		if name == "" || name == store.Name || name == store.ID || strings.TrimRight(name, "/") == strings.TrimRight(store.Root, "/") {
			return store.ID, nil
		}
	}
	names := make([]string, len(stores))
	for i, store := range stores {
		names[i] = store.Name
	}
	return "", catalog.Errorf(catalog.CodeUnknownStore, "this server has no store %q: there is %s", name, strings.Join(names, ", ")).At(field)
}

// storeOrAll is storeNamed where "" is all, and stays.
func (s *server) storeOrAll(name, field string) (string, error) {
	if name == "" {
		return "", nil
	}
	return s.storeNamed(name, field)
}

func duration(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	return new(time.Duration(*seconds * float64(time.Second)))
}

// ReconcileListing holds nothing of the listing but what sorting it on disk takes.
func (s *server) ReconcileListing(ctx context.Context, req ReconcileListingRequestObject) (ReconcileListingResponseObject, error) {
	p := req.Params
	store, err := s.storeNamed(value(p.Store), "store")
	if err != nil {
		return nil, err
	}
	run, err := s.Reconciler.Listing(ctx, reconcile.Request{
		StoreID: store, Prefix: value(p.Prefix), MinAge: duration(p.MinAgeSeconds), Settle: duration(p.SettleSeconds),
	}, exchangeOf(ctx).who, listed(ctx, req.Body))
	if err != nil {
		return nil, err
	}
	return ReconcileListing200JSONResponse(toRun(run)), nil
}

// listed reads a listing that is sent. What is wrong with it is the client's to know.
func listed(ctx context.Context, body io.Reader) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		for o, err := range listing.Read(ctx, body, listing.Options{Format: listing.NDJSON}) {
			if domain := (*catalog.Error)(nil); err != nil && !errors.As(err, &domain) {
				err = catalog.Errorf(catalog.CodeInvalidRequest, "%v", err).Because(err)
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

func (s *server) ListReconciles(ctx context.Context, req ListReconcilesRequestObject) (ListReconcilesResponseObject, error) {
	store, err := s.storeOrAll(value(req.Params.Store), "store")
	if err != nil {
		return nil, err
	}
	runs, err := s.Reconciler.Runs(ctx, store, pageOf(req.Params.Limit))
	if err != nil {
		return nil, err
	}
	out := ListReconciles200JSONResponse{Runs: make([]ReconcileRun, len(runs))}
	for i, run := range runs {
		out.Runs[i] = toRun(run)
	}
	return out, nil
}

func pageOf(limit *int) int {
	if limit == nil {
		return reconcilePage
	}
	return *limit
}

func (s *server) GetReconcile(ctx context.Context, req GetReconcileRequestObject) (GetReconcileResponseObject, error) {
	run, err := s.Reconciler.Run(ctx, req.Run)
	if err != nil {
		return nil, err
	}
	return GetReconcile200JSONResponse(toRun(run)), nil
}

func (s *server) CancelReconcile(ctx context.Context, req CancelReconcileRequestObject) (CancelReconcileResponseObject, error) {
	run, err := s.Reconciler.Cancel(ctx, req.Run, exchangeOf(ctx).who)
	if err != nil {
		return nil, err
	}
	return CancelReconcile200JSONResponse(toRun(run)), nil
}

func toRun(r catalog.Run) ReconcileRun {
	f := r.Figures
	ended := time.Now()
	if r.EndedAt != nil {
		ended = *r.EndedAt
	}
	out := ReconcileRun{
		Run: r.ID, Store: r.Store, StoreId: r.StoreID, Prefix: r.Prefix, Source: ReconcileRunSource(r.Source), State: ReconcileState(r.State),
		AskedBy: r.AskedBy, CreatedAt: r.CreatedAt, EndedAt: r.EndedAt, Seconds: max(ended.Sub(r.CreatedAt).Seconds(), 0),
		MinAgeSeconds: r.MinAge.Seconds(), SettleSeconds: r.Settle.Seconds(),
		Objects: f.Objects, ObjectBytes: f.ObjectBytes, Rows: f.Rows, Matched: f.Matched, Mismatched: f.Mismatched, Orphans: f.Orphans, Young: f.Young,
		Lost: f.Lost, InFlight: f.InFlight, RowsInFlight: f.RowsInFlight, Unknown: f.Unknown, RowsUnknown: f.RowsUnknown,
		Staged: f.Staged, Uploads: f.Uploads, Relinked: f.Relinked,
		Kinds:    make([]KindCount, len(r.Kinds)),
		Progress: ReconcileProgress{Parts: r.Parts, PartsEnded: r.PartsEnded, ExpectedRows: r.ExpectedRows, AtKey: r.AtKey},
		Error:    itemError(r.ErrorCode, r.ErrorMessage),
	}
	for i, k := range r.Kinds {
		out.Kinds[i] = KindCount{Kind: FindingKind(k.Kind), New: k.New, Open: k.Open, Resolved: k.Resolved, Bytes: k.Bytes, Example: optional(k.Example)}
	}
	return out
}

// itemError is nil for none.
func itemError(code catalog.Code, message string) *ItemError {
	if code == "" {
		return nil
	}
	return &ItemError{Code: Code(code), Detail: message}
}

func (s *server) ListFindings(ctx context.Context, req ListFindingsRequestObject) (ListFindingsResponseObject, error) {
	p := req.Params
	look, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	run, err := s.Reconciler.Run(look, req.Run)
	if err != nil {
		return nil, err
	}
	q := catalog.FindingQuery{
		StoreID: run.StoreID, Kind: catalog.FindingKind(value(p.Kind)), State: catalog.FindingState(value(p.State)), Prefix: value(p.Prefix), After: value(p.After),
	}
	none := false
	switch {
	case strings.HasPrefix(run.Prefix, q.Prefix):
		q.Prefix = run.Prefix
	case !strings.HasPrefix(q.Prefix, run.Prefix):
		none = true
	}
	find := func(ctx context.Context, after *catalog.Finding, limit int) ([]catalog.Finding, error) {
		if none {
			return nil, nil
		}
		q.Limit = limit
		if after != nil {
			q.After = after.ID
		}
		return s.Reconciler.Findings(ctx, q)
	}
	if wantsLines(ctx) {
		return findingStream{paged[catalog.Finding]{
			ctx: ctx, size: findingsChunk, item: func(f catalog.Finding) any { return toFinding(f) },
			page: func(ctx context.Context, after *catalog.Finding) ([]catalog.Finding, error) {
				return find(ctx, after, findingsChunk)
			},
			last: func(n int64, problem *Problem) any {
				line := FindingSummaryLine{Error: problem}
				line.Summary.Findings = n
				return line
			},
		}}, nil
	}
	limit := pageOf(p.Limit)
	// One more tells whether there is a next page.
	findings, err := find(look, nil, limit+1)
	if err != nil {
		return nil, err
	}
	out := ListFindings200JSONResponse{Findings: make([]Finding, 0, len(findings))}
	if len(findings) > limit {
		findings = findings[:limit]
		out.Next = &findings[limit-1].ID
	}
	for _, f := range findings {
		out.Findings = append(out.Findings, toFinding(f))
	}
	return out, nil
}

// findingStream is findings as NDJSON.
type findingStream struct{ paged[catalog.Finding] }

// VisitListFindingsResponse implements ListFindingsResponseObject.
func (s findingStream) VisitListFindingsResponse(w http.ResponseWriter) error { return s.send(w) }

func toFinding(f catalog.Finding) Finding {
	return Finding{
		FindingId: f.ID, Kind: FindingKind(f.Kind), State: FindingState(f.State), Store: f.Store, StoreId: f.StoreID, ObjectKey: f.ObjectKey, Reason: f.Reason,
		SizeBytes: f.SizeBytes, ExpectedBytes: f.ExpectedBytes, UnitKey: f.UnitKey, AttemptId: f.AttemptID, Current: f.Current,
		FirstSeenAt: f.FirstSeen, LastSeenAt: f.LastSeen, ResolvedAt: f.ResolvedAt, LastRun: optional(f.LastRun), OpenedRun: f.OpenedRun, ResolvedRun: f.ResolvedIn,
	}
}

func (s *server) PlanReconcile(ctx context.Context, req PlanReconcileRequestObject) (PlanReconcileResponseObject, error) {
	choices := catalog.PlanChoices{Lost: catalog.ActRedo, Mismatch: catalog.ActRedo, Orphan: catalog.ActTrash}
	if b := req.Body; b != nil {
		choose(&choices.Lost, b.Lost)
		choose(&choices.Mismatch, b.Mismatch)
		choose(&choices.Orphan, b.Orphan)
	}
	plan, err := s.Reconciler.Plan(ctx, req.Run, choices, exchangeOf(ctx).who)
	if err != nil {
		return nil, err
	}
	return PlanReconcile201JSONResponse{Body: toPlan(plan), Headers: PlanReconcile201ResponseHeaders{Location: new(planURL(ctx, plan))}}, nil
}

func choose[T ~string](choice *catalog.ActKind, given *T) {
	if given != nil {
		*choice = catalog.ActKind(*given)
	}
}

func planURL(ctx context.Context, plan catalog.Plan) string {
	return fmt.Sprintf("%s/v1/plans/%d", exchangeOf(ctx).base, plan.ID)
}

func (s *server) ListPlans(ctx context.Context, req ListPlansRequestObject) (ListPlansResponseObject, error) {
	plans, err := s.Reconciler.PlansOf(ctx, value(req.Params.Run), pageOf(req.Params.Limit))
	if err != nil {
		return nil, err
	}
	out := ListPlans200JSONResponse{Plans: make([]Plan, len(plans))}
	for i, plan := range plans {
		out.Plans[i] = toPlan(plan)
	}
	return out, nil
}

func (s *server) GetPlan(ctx context.Context, req GetPlanRequestObject) (GetPlanResponseObject, error) {
	plan, err := s.Reconciler.GetPlan(ctx, req.Plan)
	if err != nil {
		return nil, err
	}
	return GetPlan200JSONResponse(toPlan(plan)), nil
}

func (s *server) ApplyPlan(ctx context.Context, req ApplyPlanRequestObject) (ApplyPlanResponseObject, error) {
	var b ApplyRequest
	if req.Body != nil {
		b = *req.Body
	}
	most := maxChange
	if b.MaxChange != nil {
		most = *b.MaxChange
	}
	plan, err := s.Reconciler.Apply(ctx, req.Plan, most, exchangeOf(ctx).who, value(b.Why), value(duration(b.WaitSeconds)))
	if err != nil {
		return nil, err
	}
	if plan.State != catalog.PlanApplying {
		return ApplyPlan200JSONResponse(toPlan(plan)), nil
	}
	return ApplyPlan202JSONResponse{Body: toPlan(plan), Headers: ApplyPlan202ResponseHeaders{Location: new(planURL(ctx, plan)), RetryAfter: new(1)}}, nil
}

func toPlan(p catalog.Plan) Plan {
	out := Plan{
		Plan: p.ID, Run: p.RunID, Store: p.Store, StoreId: p.StoreID, State: PlanState(p.State),
		Choices: PlanChoices{Lost: string(p.Choices.Lost), Mismatch: string(p.Choices.Mismatch), Orphan: string(p.Choices.Orphan)},
		Acts:    p.Acts(), Catalogued: p.Catalogued, Share: p.Share(), Counts: make([]ActCount, len(p.Counts)),
		PlannedBy: p.PlannedBy, CreatedAt: p.CreatedAt, AppliedBy: optional(p.AppliedBy), Why: optional(p.Why), StartedAt: p.StartedAt, EndedAt: p.EndedAt,
		Error: itemError(p.ErrorCode, p.ErrorMessage),
	}
	if p.State != catalog.PlanPlanned {
		out.MaxChange = &p.MaxChange
	}
	for i, c := range p.Counts {
		out.Counts[i] = ActCount{Act: ActKind(c.Act), State: ActState(c.State), Acts: c.Acts, Bytes: c.Bytes}
	}
	return out
}

func (s *server) ListActs(ctx context.Context, req ListActsRequestObject) (ListActsResponseObject, error) {
	look, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	if _, err := s.Reconciler.GetPlan(look, req.Plan); err != nil {
		return nil, err
	}
	first := value(req.Params.After)
	if wantsLines(ctx) {
		return actStream{paged[catalog.Act]{
			ctx: ctx, size: findingsChunk, item: func(a catalog.Act) any { return toAct(a) },
			page: func(ctx context.Context, after *catalog.Act) ([]catalog.Act, error) {
				no := first
				if after != nil {
					no = after.No
				}
				return s.Reconciler.Acts(ctx, req.Plan, no, findingsChunk)
			},
			last: func(n int64, problem *Problem) any {
				line := ActSummaryLine{Error: problem}
				line.Summary.Acts = n
				return line
			},
		}}, nil
	}
	limit := pageOf(req.Params.Limit)
	acts, err := s.Reconciler.Acts(look, req.Plan, first, limit+1)
	if err != nil {
		return nil, err
	}
	out := ListActs200JSONResponse{Acts: make([]Act, 0, len(acts))}
	if len(acts) > limit {
		acts = acts[:limit]
		out.Next = &acts[limit-1].No
	}
	for _, a := range acts {
		out.Acts = append(out.Acts, toAct(a))
	}
	return out, nil
}

// actStream is acts as NDJSON.
type actStream struct{ paged[catalog.Act] }

// VisitListActsResponse implements ListActsResponseObject.
func (s actStream) VisitListActsResponse(w http.ResponseWriter) error { return s.send(w) }

func toAct(a catalog.Act) Act {
	return Act{
		No: a.No, Act: ActKind(a.Act), State: ActState(a.State), Kind: FindingKind(a.Kind), FindingId: a.FindingID, ObjectKey: a.ObjectKey,
		SizeBytes: a.SizeBytes, UnitKey: a.UnitKey, AttemptId: a.AttemptID, Outcome: a.Outcome, DoneAt: a.DoneAt,
	}
}

func (s *server) ListTrash(ctx context.Context, req ListTrashRequestObject) (ListTrashResponseObject, error) {
	store, err := s.storeOrAll(value(req.Params.Store), "store")
	if err != nil {
		return nil, err
	}
	limit := pageOf(req.Params.Limit)
	trash, err := s.Reconciler.Trash(ctx, store, value(req.Params.After), limit+1)
	if err != nil {
		return nil, err
	}
	out := ListTrash200JSONResponse{Trash: make([]Trashed, 0, len(trash))}
	if len(trash) > limit {
		trash = trash[:limit]
		out.Next = &trash[limit-1].ID
	}
	for _, t := range trash {
		out.Trash = append(out.Trash, Trashed{
			TrashId: t.ID, Store: t.Store, StoreId: t.StoreID, ObjectKey: t.ObjectKey, TrashKey: t.TrashKey, SizeBytes: t.SizeBytes,
			Reason: t.Reason, By: t.By, At: t.At, ExpiresAt: t.ExpiresAt,
		})
	}
	return out, nil
}

func (s *server) EmptyTrash(ctx context.Context, req EmptyTrashRequestObject) (EmptyTrashResponseObject, error) {
	var b EmptyTrashRequest
	if req.Body != nil {
		b = *req.Body
	}
	store, err := s.storeOrAll(value(b.Store), "/store")
	if err != nil {
		return nil, err
	}
	emptied, err := s.Reconciler.EmptyTrash(ctx, store, value(b.All), exchangeOf(ctx).who, value(b.Why))
	if err != nil {
		return nil, err
	}
	return EmptyTrash200JSONResponse{Objects: emptied.Objects, Bytes: emptied.Bytes, Left: emptied.Left}, nil
}

func (s *server) RestoreTrashed(ctx context.Context, req RestoreTrashedRequestObject) (RestoreTrashedResponseObject, error) {
	why := ""
	if req.Body != nil {
		why = value(req.Body.Why)
	}
	if err := s.Reconciler.Restore(ctx, req.TrashId, exchangeOf(ctx).who, why); err != nil {
		return nil, err
	}
	return RestoreTrashed204Response{}, nil
}

func (s *server) ListScrubs(ctx context.Context, _ ListScrubsRequestObject) (ListScrubsResponseObject, error) {
	scrubs, err := s.Reconciler.Scrubs(ctx)
	if err != nil {
		return nil, err
	}
	out := ListScrubs200JSONResponse{Scrubs: make([]Scrub, len(scrubs))}
	for i, c := range scrubs {
		out.Scrubs[i] = Scrub{
			Store: c.Store, StoreId: c.StoreID, AtKey: c.AtKey, LapBeganAt: c.LapBegan, LapEndedAt: c.LapEnded, RanAt: c.RanAt,
			Outputs: c.Outputs, Remaining: c.Remaining, Verified: c.Verified, Bytes: c.Bytes, Bad: c.Bad,
		}
	}
	return out, nil
}

func (s *server) StartScrub(ctx context.Context, req StartScrubRequestObject) (StartScrubResponseObject, error) {
	var b ScrubRequest
	if req.Body != nil {
		b = *req.Body
	}
	store, err := s.storeNamed(value(b.Store), "/store")
	if err != nil {
		return nil, err
	}
	fraction := scrubFraction
	if b.Fraction != nil {
		fraction = *b.Fraction
	}
	if err := s.Scrubs.QueueScrub(ctx, store, fraction); err != nil {
		return nil, err
	}
	return StartScrub202Response{Headers: StartScrub202ResponseHeaders{Location: new(exchangeOf(ctx).base + "/v1/scrub")}}, nil
}
