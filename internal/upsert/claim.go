package upsert

import (
	"context"
	"path"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

const (
	// MaxClaim bounds the units of one claim.
	MaxClaim = 1000
	// claimWithin bounds the search for them: what was found by then is handed out.
	claimWithin = 10 * time.Second
	// askAgain bounds how long a client is told to wait for more: a unit can be due again
	// long before the lease of its attempt would end.
	askAgain = 10 * time.Second
)

// Claim hands out units of a batch that are due, with an attempt begun at each. No unit
// is handed to two: units are reserved first, for as long as a lease lasts, so that
// claims do not wait for one another; what counts is the attempt, of which a unit has
// one. A crash in between leaves them to be looked at again when that time is over.
func (s *Step) Claim(ctx context.Context, req ClaimRequest) (Claimed, error) {
	if err := req.check(); err != nil {
		return Claimed{}, err
	}
	claim := &claiming{Step: s, req: req, prepared: map[string]error{}}
	claimed := Claimed{}
	until := time.Now().Add(claimWithin)
	limit := req.Max
	for len(claimed.Units) < req.Max && time.Now().Before(until) {
		// Until it has something itself, it asks whether the same request has.
		reserved, err := s.Ledger.Reserve(ctx, req, len(claim.mine) == 0, limit, s.Lease)
		switch {
		case err != nil:
			return claim.hand(claimed, err)
		case len(reserved.Handed) > 0:
			return s.reclaim(ctx, reserved.Handed)
		}
		units, err := claim.take(ctx, reserved, req.Max-len(claimed.Units))
		claimed.Units = append(claimed.Units, units...)
		if err != nil {
			return claim.hand(claimed, err)
		}
		if reserved.Looked < limit && (len(units) > 0 || len(reserved.Due) == 0) {
			break
		}
		if limit = req.Max - len(claimed.Units); len(reserved.Due) == 0 {
			limit = min(2*reserved.Looked, 2*MaxClaim) // there is much that is done already
		}
	}
	if len(claimed.Units) == req.Max {
		claimed.Left = true
		return claimed, nil
	}
	after, left, err := s.Ledger.NextDue(ctx, claim.batch)
	if err != nil {
		return claim.hand(claimed, err)
	}
	claimed.Left, claimed.RetryAfter = left, min(max(after, time.Second), askAgain)
	return claimed, nil
}

// claiming is one claim under way.
type claiming struct {
	*Step
	req        ClaimRequest
	batch      uuid.UUID
	collection catalog.Collection
	// prepared has the directories of final names for which staging was asked, and why it
	// is not ready.
	prepared map[string]error
	mine     []uuid.UUID // attempts that it has made
}

// take makes attempts at units that were reserved, at most so many, and gives back the
// others; all, where an error comes.
func (c *claiming) take(ctx context.Context, reserved Reserved, most int) (units []ClaimedUnit, err error) {
	c.batch, c.collection = reserved.BatchID, reserved.Collection
	due, err := c.fit(ctx, reserved.Due, most)
	if err == nil {
		units, err = c.begin(ctx, due)
	}
	if err != nil {
		_ = c.Ledger.Unreserve(context.WithoutCancel(ctx), c.batch, keys(due))
	}
	return units, err
}

// hand gives what was claimed before an error came; the error where there is nothing.
func (c *claiming) hand(claimed Claimed, err error) (Claimed, error) {
	if len(claimed.Units) == 0 {
		return Claimed{}, err
	}
	claimed.Left, claimed.RetryAfter = true, time.Second
	return claimed, nil
}

// fit gives back what is too much, and takes out what is no work: an output that was
// found missing and is there again.
func (c *claiming) fit(ctx context.Context, due []Due, most int) ([]Due, error) {
	fitting := make([]Due, 0, min(most, len(due)))
	var over []uuid.UUID
	for _, d := range due {
		switch there, err := c.stillThere(ctx, d); {
		case err != nil:
			return due, err
		case there:
		case len(fitting) == most:
			over = append(over, d.UnitKey)
		default:
			fitting = append(fitting, d)
		}
	}
	if len(over) > 0 {
		if err := c.Ledger.Unreserve(ctx, c.batch, over); err != nil {
			return due, err
		}
	}
	return fitting, nil
}

func (c *claiming) stillThere(ctx context.Context, d Due) (bool, error) {
	if d.Tile == nil {
		return false, nil
	}
	return c.there(ctx, d.Tile.StoreID, d.Tile.ObjectKey, d.Tile.SizeBytes, d.Tile.ETag)
}

// begin makes an attempt at each unit.
func (c *claiming) begin(ctx context.Context, due []Due) ([]ClaimedUnit, error) {
	if len(due) == 0 {
		return nil, nil
	}
	mediaType, ext, err := format(&c.collection, c.req.MediaType)
	if err != nil {
		return nil, err
	}
	store, err := c.store(c.collection.StoreID)
	if err != nil {
		return nil, err
	}
	opening := Opening{Mine: c.mine, Lease: c.Lease}
	var clientKeys []string
	var refused error
	for _, d := range due {
		id, err := catalog.NewAttemptID()
		if err != nil {
			return nil, err
		}
		a := catalog.Attempt{
			ID: id, UnitKey: d.UnitKey, Collection: c.collection.ID, TileID: d.TileID, Version: d.Version, Identity: d.Identity,
			BatchID: &c.batch, RequestID: c.req.RequestID, Owner: c.req.Owner, State: catalog.AttemptOpen,
			StoreID: c.collection.StoreID, MediaType: mediaType, StagingKey: catalog.StagingName(id, ext),
			ObjectKey: catalog.FinalName(c.collection.ID, d.TileID, d.UnitKey, id, ext),
		}
		if d.Tile != nil {
			a.Replaces = &d.Tile.AttemptID
		}
		if err := c.prepare(ctx, store, a); err != nil {
			// One place that cannot be written to keeps nobody from the others.
			if refused = err; c.away(ctx, a.StoreID) {
				return nil, err
			}
			continue
		}
		if d.Late {
			opening.Late = append(opening.Late, d.UnitKey)
		}
		opening.Attempts, clientKeys = append(opening.Attempts, a), append(clientKeys, d.ClientKey)
	}
	if len(opening.Attempts) == 0 {
		return nil, refused
	}
	leases, reused, err := c.Ledger.OpenMany(ctx, opening)
	switch {
	case err != nil:
		return nil, err
	case reused && len(c.mine) == 0:
		return nil, catalog.Errorf(catalog.CodeAttemptEnded, "attempts that this request_id made have ended: claim with a new request_id").At("/request_id")
	}
	units := make([]ClaimedUnit, 0, len(leases))
	for i, a := range opening.Attempts {
		until, opened := leases[a.ID]
		if !opened {
			continue // somebody was faster
		}
		a.LeaseUntil = until
		c.mine = append(c.mine, a.ID)
		units = append(units, claimedUnit(a, clientKeys[i], running(catalog.Unit{Key: a.UnitKey}, a, store)))
		c.at(ctx, PointBegun, a.ID)
	}
	if len(units) == 0 {
		_ = c.Ledger.Unreserve(context.WithoutCancel(ctx), c.batch, keys(due))
	}
	return units, nil
}

// prepare asks for staging once for all final names of one directory.
func (c *claiming) prepare(ctx context.Context, store storage.Store, a catalog.Attempt) error {
	dir := path.Dir(a.ObjectKey)
	if err, asked := c.prepared[dir]; asked {
		return err
	}
	err := store.PrepareStaging(ctx, a.StagingKey, a.ObjectKey)
	if err != nil {
		err = storeProblem("prepare staging for "+slot(a), err)
	}
	c.prepared[dir] = err
	return err
}

func claimedUnit(a catalog.Attempt, clientKey string, d Decision) ClaimedUnit {
	return ClaimedUnit{Collection: a.Collection, TileID: a.TileID, Identity: a.Identity, ClientKey: clientKey, Decision: d}
}

// reclaim answers a claim that was sent before with what it still holds.
func (s *Step) reclaim(ctx context.Context, before []Handed) (Claimed, error) {
	ids := make([]uuid.UUID, len(before))
	for i, a := range before {
		ids[i] = a.ID
	}
	leases, err := s.Ledger.Renew(ctx, ids, s.Lease)
	if err != nil {
		return Claimed{}, err
	}
	claimed := Claimed{Left: true, RetryAfter: time.Second}
	for i, handed := range before {
		a := handed.Attempt
		if leases[i].State != catalog.AttemptOpen {
			continue
		}
		store, err := s.store(a.StoreID)
		if err != nil {
			return Claimed{}, err
		}
		a.LeaseUntil = leases[i].Until
		claimed.Units = append(claimed.Units, claimedUnit(a, handed.ClientKey, running(catalog.Unit{Key: a.UnitKey}, a, store)))
	}
	return claimed, nil
}

func keys(due []Due) []uuid.UUID {
	out := make([]uuid.UUID, len(due))
	for i, d := range due {
		out[i] = d.UnitKey
	}
	return out
}

func (r ClaimRequest) check() error {
	if r.Max < 1 || r.Max > MaxClaim {
		return catalog.Errorf(catalog.CodeInvalidRequest, "max is %d; it is from 1 to %d", r.Max, MaxClaim).At("/max")
	}
	for _, text := range []struct{ field, value string }{{"/owner", r.Owner}, {"/request_id", r.RequestID}} {
		if err := checkName(text.field, text.value); err != nil {
			return err
		}
	}
	return nil
}
