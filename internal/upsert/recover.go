package upsert

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Recover finishes every step that was left after its intent, and every
// publication. It races safely with a step that is still alive elsewhere: both
// promote the same object to the same name, and the slot's lock decides who
// writes the row.
func (s *Step) Recover(ctx context.Context) (Recovered, error) { return s.recover(ctx, true) }

// RecoverOverdue does the same for steps past their deadline only.
func (s *Step) RecoverOverdue(ctx context.Context) (Recovered, error) { return s.recover(ctx, false) }

func (s *Step) recover(ctx context.Context, all bool) (Recovered, error) {
	var sum Recovered
	promoting, err := s.Ledger.Promoting(ctx, all)
	if err != nil {
		return sum, err
	}
	away := map[string]bool{} // once one attempt had to wait for its store
	for _, a := range promoting {
		if away[a.StoreID] {
			sum.Unfinished++
			continue
		}
		outcome, err := s.once(ctx, a.ID.String(), func(ctx context.Context) (Outcome, error) {
			// It may have ended since it was listed, and others have its staged name.
			a, err := s.look(ctx, a.ID)
			if err != nil {
				return Outcome{}, err
			}
			return s.join(ctx, a)
		})
		switch {
		case err == nil && outcome.State == catalog.AttemptDone:
			sum.RolledForward++
		case err == nil:
			sum.Overtaken++
		case s.failed(ctx, a.ID):
			sum.Failed++
		default:
			sum.Unfinished++
			s.Logger.WarnContext(ctx, "leave an attempt to the next recovery", "attempt", a.ID, "slot", slot(a), "error", err)
			away[a.StoreID] = s.away(ctx, a.StoreID)
		}
		if ctx.Err() != nil {
			return sum, ctx.Err()
		}
	}
	sum.Published, err = s.finishPublications(ctx)
	age := s.PromoteDeadline
	if all {
		age = 0
	}
	return sum, errors.Join(err, s.linkBatches(ctx, age))
}

// away tells whether a store does not answer, or not as the one that it was.
func (s *Step) away(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, sentinelWithin)
	defer cancel()
	store, err := s.store(id)
	return err != nil || store.Sentinel(ctx) != nil
}

// failed tells whether an attempt has ended as failed.
func (s *Step) failed(ctx context.Context, id uuid.UUID) bool {
	a, err := s.look(ctx, id)
	return err == nil && a.State == catalog.AttemptFailed
}

// rollForward finishes the step of a promoting attempt. It did not see the
// promotion, so it trusts no name: whichever object it finds is hashed again
// before there is a row. The staged name is looked at first, since an object
// moves from there to its final name and never back.
func (s *Step) rollForward(ctx context.Context, a catalog.Attempt) (Outcome, error) {
	store, err := s.store(a.StoreID)
	if err != nil {
		return Outcome{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.promoting(store, *a.Intent)+reading(a.Intent.SizeBytes))
	defer cancel()
	fingerprint, err := s.find(ctx, store, a)
	if err != nil {
		return Outcome{}, err
	}
	if fingerprint == "" {
		if err := store.Sentinel(ctx); err != nil {
			return Outcome{}, storeProblem("read the store's sentinel", err)
		}
		problem := catalog.Errorf(catalog.CodeStagedChanged, "neither %s nor %s is what was probed (%s): the unit is due again", a.Intent.StagedKey, a.ObjectKey, a.Intent.Checksum)
		s.fail(ctx, a, problem)
		return Outcome{}, problem
	}
	return s.finish(ctx, store, a, fingerprint, fingerprint, false)
}

// find looks for the intent's object and gives its fingerprint, "" when neither
// name has it.
func (s *Step) find(ctx context.Context, store storage.Store, a catalog.Attempt) (string, error) {
	for _, at := range []struct {
		key  string
		open func(context.Context, string) (storage.Staged, error)
	}{{a.Intent.StagedKey, store.OpenStaged}, {a.ObjectKey, store.Settle}} {
		object, err := at.open(ctx, at.key)
		if errors.Is(err, storage.ErrNotExist) || errors.Is(err, storage.ErrLinked) || errors.Is(err, storage.ErrNotRegular) || errors.Is(err, storage.ErrName) {
			continue
		}
		if err != nil {
			problem := storeProblem("look at "+at.key, err)
			if errors.Is(err, storage.ErrSync) {
				s.giveUp(ctx, store, a, a.Intent.StagedKey)
				s.fail(ctx, a, problem)
			}
			return "", problem
		}
		checksum, err := hash(ctx, object)
		fingerprint := object.Fingerprint()
		object.Close()
		if err != nil {
			return "", storeProblem(fmt.Sprintf("hash %s", at.key), err)
		}
		if checksum == a.Intent.Checksum {
			return fingerprint, nil
		}
	}
	return "", nil
}
