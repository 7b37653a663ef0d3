package upsert

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

// sentinelWithin is how long a store may take to show its sentinel before it is away.
const sentinelWithin = 5 * time.Second

// Fail ends an open attempt and records why, once: its unit is due again after a pause,
// or quarantined. Sent again it is answered the same.
func (s *Step) Fail(ctx context.Context, id uuid.UUID, req FailRequest) (Failed, error) {
	if err := req.check(); err != nil {
		return Failed{}, err
	}
	a, c, err := s.Ledger.Attempt(ctx, id)
	if err != nil {
		return Failed{}, err
	}
	failure := req.Named()
	class := catalog.Classify(failure, c.Policy.Retry.Rules)
	failed, err := s.record(ctx, a, catalog.AttemptOpen, Failure{
		Class: class, Reason: failure.Reason, Message: req.Message,
		Spent: class == catalog.ClassDeterministic || !s.outage(ctx, a, failure.Reason, c.Policy.Retry.OutageFrac),
	})
	if err != nil {
		return Failed{}, err
	}
	if failed == nil {
		return Failed{}, s.notOpen(ctx, id, "")
	}
	return *failed, nil
}

// fail ends a promoting attempt that cannot succeed and records why. Another may.
func (s *Step) fail(ctx context.Context, a catalog.Attempt, problem *catalog.Error) {
	_, err := s.record(ctx, a, catalog.AttemptPromoting, Failure{
		Code: problem.Code, Class: catalog.ClassTransient, Reason: string(problem.Code), Message: problem.Message, Spent: true,
	})
	if err != nil {
		s.Logger.WarnContext(ctx, "leave a failed attempt to recovery", "attempt", a.ID, "error", err)
	}
}

// record ends an attempt as failed. What may pass spends no try while the store is away:
// that is nothing of the unit's.
func (s *Step) record(ctx context.Context, a catalog.Attempt, from catalog.AttemptState, f Failure) (*Failed, error) {
	if f.Class == catalog.ClassTransient && f.Spent {
		f.Spent = !s.away(ctx, a.StoreID)
	}
	f.Jitter = s.Jitter()
	return s.Ledger.Fail(ctx, a.ID, from, f)
}

// counted is how long an outage is taken for one: where many fail, each would count them.
const counted = 2 * time.Second

// outages remembers which batches fail for which reasons, and since when that is known.
type outages struct {
	mu    sync.Mutex
	known map[outageKey]time.Time
}

type outageKey struct {
	batch  uuid.UUID
	reason string
}

// outage tells whether more of an attempt's batch than this share fail for the reason.
// What cannot be told is none.
func (s *Step) outage(ctx context.Context, a catalog.Attempt, reason string, share float64) bool {
	if a.BatchID == nil {
		return false
	}
	o := &s.outages
	key := outageKey{*a.BatchID, reason}
	o.mu.Lock()
	since := o.known[key]
	o.mu.Unlock()
	if time.Since(since) < counted {
		return true
	}
	outage, err := s.Ledger.Outage(ctx, key.batch, reason, share, catalog.MinOutage)
	if err != nil || !outage {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil || len(o.known) > 1000 {
		o.known = map[outageKey]time.Time{}
	}
	o.known[key] = time.Now()
	return true
}

func (r FailRequest) check() error {
	named := r.Named()
	switch {
	case named.Reason == "":
		return catalog.Errorf(catalog.CodeInvalidRequest, "reason is missing: send one, or http_status, or exception").At("/reason")
	case r.HTTPStatus != 0 && (r.HTTPStatus < 100 || r.HTTPStatus > 599):
		return catalog.Errorf(catalog.CodeInvalidRequest, "http_status is %d; it is from 100 to 599", r.HTTPStatus).At("/http_status")
	case len(r.Message) > maxProperties || strings.ContainsRune(r.Message, 0):
		return catalog.Errorf(catalog.CodeInvalidRequest, "message is longer than %d bytes or holds NUL", maxProperties).At("/message")
	}
	if r.Exception != "" {
		if err := checkName("/exception", r.Exception); err != nil {
			return err
		}
	}
	return checkName("/reason", named.Reason)
}
