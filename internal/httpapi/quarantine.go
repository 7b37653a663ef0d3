package httpapi

import (
	"context"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

const quarantinePage = 100

func (s *server) FailAttempt(ctx context.Context, req FailAttemptRequestObject) (FailAttemptResponseObject, error) {
	b := req.Body
	failed, err := s.Step.Fail(ctx, req.AttemptId, upsert.FailRequest{
		Failure: catalog.Failure{
			Class: catalog.Class(value(b.Class)), Reason: value(b.Reason), HTTPStatus: value(b.HttpStatus), Exception: value(b.Exception),
		},
		Message: value(b.Message),
	})
	if err != nil {
		return nil, err
	}
	out := FailAttempt200JSONResponse{
		AttemptId: req.AttemptId, State: AttemptStateFailed, UnitKey: failed.UnitKey, Next: FailedNextRetry,
		Class: FailureClass(failed.Class), Reason: failed.Reason, Tries: failed.Tries, Spent: failed.Spent,
	}
	if failed.QuarantinedAs == "" {
		out.RetryAfter = new(failed.RetryAfter.Seconds())
	} else {
		out.Next, out.QuarantinedAs = FailedNextQuarantined, new(QuarantinedAs(failed.QuarantinedAs))
	}
	return out, nil
}

func (s *server) ListQuarantine(ctx context.Context, req ListQuarantineRequestObject) (ListQuarantineResponseObject, error) {
	p := req.Params
	limit := quarantinePage
	if p.Limit != nil {
		limit = *p.Limit
	}
	filter := catalog.QuarantineFilter{Collection: value(p.Collection), Batch: value(p.Batch), Class: catalog.Class(value(p.Class)), Reason: value(p.Reason)}
	if err := s.knowBatch(ctx, filter.Batch, "batch"); err != nil {
		return nil, err
	}
	// One more tells whether there is a next page.
	units, err := s.Catalogue.Quarantined(ctx, filter, value(p.After), limit+1)
	if err != nil {
		return nil, err
	}
	out := ListQuarantine200JSONResponse{Units: make([]QuarantinedUnit, 0, len(units))}
	if len(units) > limit {
		units = units[:limit]
		out.Next = &units[limit-1].UnitKey
	}
	for _, u := range units {
		out.Units = append(out.Units, toQuarantined(u))
	}
	return out, nil
}

func (s *server) GetQuarantined(ctx context.Context, req GetQuarantinedRequestObject) (GetQuarantinedResponseObject, error) {
	unit, failures, err := s.Catalogue.QuarantinedUnit(ctx, req.UnitKey)
	if err != nil {
		return nil, err
	}
	out := GetQuarantined200JSONResponse{Unit: toQuarantined(unit), Identity: object(unit.Identity), Failures: make([]UnitFailure, len(failures))}
	for i, f := range failures {
		out.Failures[i] = UnitFailure{
			FailedAt: f.FailedAt, Class: optional(FailureClass(f.Class)), Reason: f.Reason, Worker: f.Worker, Spent: f.Spent,
			AttemptId: f.AttemptID, Message: f.Message,
		}
	}
	return out, nil
}

func (s *server) ReleaseQuarantined(ctx context.Context, req ReleaseQuarantinedRequestObject) (ReleaseQuarantinedResponseObject, error) {
	b := req.Body
	filter := catalog.QuarantineFilter{Collection: value(b.Collection), Batch: value(b.Batch), Class: catalog.Class(value(b.Class)), Reason: value(b.Reason)}
	if b.Units != nil {
		filter.Units = []uuid.UUID(*b.Units)
	}
	if !filter.Picks() {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "say what to release: send units, collection, batch, class or reason")
	}
	if err := s.knowBatch(ctx, filter.Batch, "/batch"); err != nil {
		return nil, err
	}
	released, err := s.Catalogue.Release(ctx, filter, exchangeOf(ctx).who, b.Why)
	if err != nil {
		return nil, err
	}
	return ReleaseQuarantined200JSONResponse{Released: released}, nil
}

// knowBatch refuses a batch that there is none of: mistyped, it would pick nothing.
func (s *server) knowBatch(ctx context.Context, name, field string) error {
	if name == "" {
		return nil
	}
	if err := catalog.CheckBatchName(name, field); err != nil {
		return err
	}
	_, err := s.Catalogue.Batch(ctx, name)
	return err
}

func toQuarantined(u catalog.QuarantinedUnit) QuarantinedUnit {
	return QuarantinedUnit{
		UnitKey: u.UnitKey, Collection: u.Collection, TileId: u.TileID, Version: u.Version,
		QuarantinedAs: QuarantinedAs(u.QuarantinedAs), QuarantinedAt: value(u.QuarantinedAt),
		Class: FailureClass(u.Class), Reason: u.Reason, Message: u.Message, Worker: u.Worker,
		Tries: u.Tries, Expiries: u.Expiries, FirstFailedAt: u.FirstFailedAt, LastFailedAt: u.LastFailedAt,
	}
}
