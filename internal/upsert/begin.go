package upsert

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Begin answers whether a unit is done and, if it is not, who works on it. Most
// answers are one unlocked read and one stat; only run writes anything, and a
// client key that is new.
func (s *Step) Begin(ctx context.Context, req BeginRequest) (Decision, error) {
	unit, claim, err := req.parse()
	if err != nil {
		return Decision{}, err
	}
	for range 10 {
		decision, err := s.begin(ctx, unit, claim, req)
		if !errors.Is(err, errRaced) {
			return decision, err
		}
	}
	return waiting(unit, Hold{Owner: "others, in turn"}), nil
}

// errRaced: how the unit stands changed while it was looked at. Look again.
var errRaced = errors.New("how the unit stands has changed")

func (s *Step) begin(ctx context.Context, unit catalog.Unit, claim Claim, req BeginRequest) (Decision, error) {
	standing, err := s.stand(ctx, unit, claim)
	if err != nil {
		return Decision{}, err
	}
	decision, replaces, err := s.decide(ctx, unit, standing)
	if err != nil || decision.Verdict != VerdictRun {
		return decision, err
	}
	if standing.Replay != nil {
		return s.replay(ctx, unit, *standing.Replay)
	}
	attempt, err := s.newAttempt(unit, claim, standing, req, replaces)
	if err != nil {
		return Decision{}, err
	}
	store, err := s.store(attempt.StoreID)
	if err != nil {
		return Decision{}, err
	}
	if err := store.PrepareStaging(ctx, attempt.StagingKey, attempt.ObjectKey); err != nil {
		return Decision{}, storeProblem("prepare staging for "+slot(attempt), err)
	}
	opened, err := s.Ledger.Open(ctx, unit, attempt, s.Lease)
	switch {
	case err != nil:
		return Decision{}, err
	case opened.Replay != nil:
		return s.replay(ctx, unit, *opened.Replay)
	case opened.Hold != nil:
		return waiting(unit, *opened.Hold), nil
	case opened.Staged:
		return Decision{}, catalog.Errorf(catalog.CodeStagedInUse, "another attempt holds the staged file %s", attempt.StagingKey)
	case opened.Raced:
		return Decision{}, errRaced
	}
	attempt.LeaseUntil = opened.LeaseUntil
	s.at(ctx, PointBegun, attempt.ID)
	return running(unit, attempt, store), nil
}

// stand reads how things stand with a unit, and refuses what cannot be begun.
func (s *Step) stand(ctx context.Context, unit catalog.Unit, claim Claim) (Standing, error) {
	standing, err := s.Ledger.Stand(ctx, unit, claim)
	switch {
	case err != nil:
		return Standing{}, err
	case standing.Collection == nil:
		return Standing{}, unknownCollection(unit.Collection)
	case standing.Collision != "":
		return Standing{}, catalog.Errorf(catalog.CodeKeyCollision, "%s: one key stands for one identity; send another key, or the identity that it was first sent with", standing.Collision)
	case claim.Batch != "" && standing.Batch == nil:
		return Standing{}, unknownBatch(claim.Batch).At("/batch")
	case claim.Batch != "" && standing.Batch.Collection != unit.Collection:
		return Standing{}, catalog.Errorf(catalog.CodeNotInBatch, "batch %s is of collection %s: name a batch of %s, or leave batch out", claim.Batch, standing.Batch.Collection, unit.Collection).At("/batch")
	case claim.Batch != "" && !standing.Batch.Expects:
		return Standing{}, catalog.Errorf(catalog.CodeNotInBatch, "batch %s does not expect unit %s: add it with POST /v1/batches/%s/units, or leave batch out", claim.Batch, unit.Key, claim.Batch).At("/batch")
	}
	return standing, nil
}

// decide answers what can be answered without an attempt. For run, replaces is the
// attempt of the row whose object is missing, nil where there is no row.
func (s *Step) decide(ctx context.Context, unit catalog.Unit, standing Standing) (decision Decision, replaces *uuid.UUID, err error) {
	if tile := standing.Tile; tile != nil {
		if tile.WithdrawnAt != nil {
			return Decision{Verdict: VerdictQuarantined, UnitKey: unit.Key, Reason: "withdrawn"}, nil, nil
		}
		there, err := s.there(ctx, tile.StoreID, tile.ObjectKey, tile.SizeBytes, tile.ETag)
		if err != nil {
			return Decision{}, nil, err
		}
		if there && unit.ClientKey != "" && tile.ClientKey == "" {
			// Remembered although the unit is done, for the key may come again with
			// another identity.
			if named, err := s.Ledger.Name(ctx, unit); err != nil {
				return Decision{}, nil, err
			} else if !named {
				return Decision{}, nil, errRaced
			}
			tile.ClientKey = unit.ClientKey
		}
		if there {
			return Decision{Verdict: VerdictSkip, UnitKey: unit.Key, Tile: tile}, nil, nil
		}
		replaces = &tile.AttemptID
	}
	if retry := standing.Retry; retry != nil && retry.QuarantinedAs != "" {
		return Decision{Verdict: VerdictQuarantined, UnitKey: unit.Key, Class: retry.Class, Reason: retry.Reason, Message: retry.Message}, nil, nil
	}
	if standing.Replay == nil && standing.Hold != nil {
		return waiting(unit, *standing.Hold), nil, nil
	}
	if retry := standing.Retry; standing.Replay == nil && retry != nil && retry.After > 0 {
		return notYet(unit, *retry, standing.Collection.Policy.Retry.MaxRetries), nil, nil
	}
	return Decision{Verdict: VerdictRun, UnitKey: unit.Key}, replaces, nil
}

// there tells whether a row's object is in its store, and not another one of its name.
// Absence counts only while the store's sentinel reads: an unmounted volume is not a lost
// output.
func (s *Step) there(ctx context.Context, storeID, key string, size int64, etag string) (bool, error) {
	store, err := s.store(storeID)
	if err != nil {
		return false, err
	}
	object, err := store.Stat(ctx, key)
	switch {
	case err == nil && object.SizeBytes == size && object.ETag == etag:
		return true, nil
	// What is no regular file any more is no output either.
	case err != nil && !errors.Is(err, storage.ErrNotExist) && !errors.Is(err, storage.ErrNotRegular):
		return false, storeProblem("look at "+key, err)
	}
	if err := store.Sentinel(ctx); err != nil {
		return false, storeProblem("read the store's sentinel", err)
	}
	return false, nil
}

// replay answers a begin that was sent before with the attempt that it made.
func (s *Step) replay(ctx context.Context, unit catalog.Unit, id uuid.UUID) (Decision, error) {
	attempt, _, err := s.Ledger.Attempt(ctx, id)
	if err != nil {
		return Decision{}, err
	}
	switch {
	case attempt.State == catalog.AttemptPromoting:
		return waiting(unit, Hold{State: attempt.State, Owner: attempt.Owner}), nil
	case attempt.State != catalog.AttemptOpen:
		return Decision{}, catalog.Errorf(catalog.CodeAttemptEnded, "this request_id made attempt %s, which ended as %s: begin again with a new request_id", id, attempt.State).At("/request_id")
	}
	leases, err := s.Ledger.Renew(ctx, []uuid.UUID{id}, s.Lease)
	if err != nil {
		return Decision{}, err
	}
	if leases[0].State != catalog.AttemptOpen {
		return Decision{}, errRaced
	}
	attempt.LeaseUntil = leases[0].Until
	store, err := s.store(attempt.StoreID)
	if err != nil {
		return Decision{}, err
	}
	return running(unit, attempt, store), nil
}

func (s *Step) newAttempt(unit catalog.Unit, claim Claim, standing Standing, req BeginRequest, replaces *uuid.UUID) (catalog.Attempt, error) {
	c := standing.Collection
	mediaType, ext, err := format(c, req.MediaType)
	if err != nil {
		return catalog.Attempt{}, err
	}
	var batch *uuid.UUID
	if standing.Batch != nil {
		batch = &standing.Batch.ID
	} else if c.Policy.Publish == catalog.PublishOnGate {
		return catalog.Attempt{}, catalog.Errorf(catalog.CodeInvalidRequest, "outputs of collection %s become current with their batch: name the batch that expects this unit", c.ID).At("/batch")
	}
	id, err := catalog.NewAttemptID()
	if err != nil {
		return catalog.Attempt{}, err
	}
	return catalog.Attempt{
		ID: id, UnitKey: unit.Key, Collection: unit.Collection, TileID: unit.TileID,
		Version: unit.Identity.Version(), Identity: unit.Identity.Canonical(),
		RequestID: claim.RequestID, Owner: claim.Owner, Try: claim.Try,
		State: catalog.AttemptOpen, StoreID: c.StoreID, MediaType: mediaType,
		StagingKey: catalog.StagingName(id, ext),
		ObjectKey:  catalog.FinalName(unit.Collection, unit.TileID, unit.Key, id, ext),
		Replaces:   replaces, Given: req.Given, BatchID: batch,
	}, nil
}

// format is the media type of an output, by default its collection's, and the extension
// of its names.
func format(c *catalog.Collection, mediaType string) (_, ext string, err error) {
	if mediaType == "" {
		mediaType = c.MediaType
	}
	if err := c.CheckMediaType(mediaType); err != nil {
		return "", "", err
	}
	ext, err = catalog.Extension(mediaType)
	return mediaType, ext, err
}

func running(unit catalog.Unit, attempt catalog.Attempt, store storage.Store) Decision {
	d := Decision{Verdict: VerdictRun, UnitKey: unit.Key, Attempt: &attempt, Tags: catalog.Tags(attempt)}
	if presigner, ok := store.(storage.Presigner); ok {
		d.StagingURI = presigner.URI(attempt.StagingKey)
	} else {
		d.StagingPath = store.Location(attempt.StagingKey)
	}
	return d
}

// waiting tells when to ask again: when the lease could end, and soon for a
// step that is being finished.
func waiting(unit catalog.Unit, hold Hold) Decision {
	after := max(hold.Remaining, time.Second)
	reason := fmt.Sprintf("held by owner %q", hold.Owner)
	if hold.State == catalog.AttemptPromoting {
		after, reason = 2*time.Second, fmt.Sprintf("the output of owner %q is being promoted", hold.Owner)
	}
	return Decision{Verdict: VerdictWait, UnitKey: unit.Key, RetryAfter: after, Reason: reason}
}

// notYet tells when a unit that failed is due again.
func notYet(unit catalog.Unit, r Retry, retries int) Decision {
	return Decision{
		Verdict: VerdictWait, UnitKey: unit.Key, RetryAfter: r.After,
		Reason: fmt.Sprintf("failed, %d of %d tries spent (%s)", r.Tries, retries+1, r.Reason),
	}
}

func (s *Step) store(id string) (storage.Store, error) { return s.Stores.Find(id) }

// Bounds of what a client may call itself and its requests.
const (
	maxName       = 256
	maxProperties = 64 << 10
	maxDepth      = 32
	maxDigits     = 64
)

func (r BeginRequest) parse() (catalog.Unit, Claim, error) {
	claim := Claim{Owner: r.Owner, Try: r.Try, RequestID: r.RequestID, Batch: r.Batch}
	for _, text := range []struct{ field, value string }{{"/owner", r.Owner}, {"/request_id", r.RequestID}} {
		if err := checkName(text.field, text.value); err != nil {
			return catalog.Unit{}, claim, err
		}
	}
	if r.Try < 0 || r.Try > 1<<30 {
		return catalog.Unit{}, claim, catalog.Errorf(catalog.CodeInvalidRequest, "try is %d; it counts from 0 up", r.Try).At("/try")
	}
	if r.Unit.ClientKey != "" {
		if err := checkName("/client_key", r.Unit.ClientKey); err != nil {
			return catalog.Unit{}, claim, err
		}
	}
	if err := checkGiven(r.Given); err != nil {
		return catalog.Unit{}, claim, err
	}
	if r.Batch != "" {
		if err := catalog.CheckBatchName(r.Batch, "/batch"); err != nil {
			return catalog.Unit{}, claim, err
		}
	}
	unit, err := catalog.NewUnit(r.Unit.Collection, r.Unit.TileID, r.Unit.Identity, r.Unit.ClientKey)
	return unit, claim, err
}

func slot(a catalog.Attempt) string { return a.Collection + "/" + a.TileID }

func unknownBatch(name string) *catalog.Error {
	return catalog.Errorf(catalog.CodeUnknownBatch, "there is no batch %q: open it with POST /v1/batches", name)
}

func unknownCollection(id string) error {
	return catalog.Errorf(catalog.CodeUnknownCollection, "there is no collection %q: create it with POST /v1/collections", id).At("/collection")
}
