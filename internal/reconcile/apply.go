package reconcile

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

const (
	// acting bounds the acts that are done together.
	acting = 8
	// actPage is how many acts are read at once.
	actPage = 500
)

// ApplyPlan applies a plan that was asked to be: what the job does. It is safe to repeat:
// a crash here leaves acts planned, and each looks anew at how things stand. An error says
// that some are left to be done, and that it is to be tried again.
func (r *Reconciler) ApplyPlan(ctx context.Context, id int64) error {
	hold, err := r.Ledger.TakePlan(ctx, id)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Close()
	plan, err := r.Ledger.Plan(ctx, id)
	if err != nil {
		return err
	}
	store, err := r.there(ctx, plan.StoreID)
	if err != nil {
		return err
	}
	a := &applying{Reconciler: r, plan: plan, store: store}
	for after := 0; ; {
		acts, err := r.Ledger.Acts(ctx, id, after, actPage, true)
		if err != nil {
			return err
		}
		if len(acts) == 0 {
			break
		}
		after = acts[len(acts)-1].No
		a.do(ctx, acts)
		// One object that cannot be told of keeps nobody from the others; a store that is
		// away, or a database, does.
		if a.failed != nil {
			if ctx.Err() != nil || stopping(a.failed) {
				return a.failed
			}
			if err := store.Sentinel(ctx); err != nil {
				return storage.Problem("read the store's sentinel", err)
			}
		}
	}
	if a.failed != nil {
		return a.failed
	}
	return r.Ledger.EndPlan(ctx, id, catalog.PlanApplied, "", "")
}

// stopping tells of an error after which nothing could be written down either.
func stopping(err error) bool {
	return catalog.IsCode(err, catalog.CodeDatabaseUnavailable) || catalog.IsCode(err, catalog.CodeDatabaseReadOnly)
}

// applying is a plan that this process alone applies.
type applying struct {
	*Reconciler
	plan  catalog.Plan
	store storage.Store

	mu     sync.Mutex
	failed error // the first error of an act that is to be tried again
}

// do does acts, some together.
func (a *applying) do(ctx context.Context, acts []catalog.Act) {
	var group errgroup.Group
	group.SetLimit(acting)
	for _, act := range acts {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := a.act(ctx, act)
			if err == nil {
				return nil
			}
			a.Logger.WarnContext(ctx, "leave an act to be tried again", "plan", a.plan.ID, "act", act.No, "key", act.ObjectKey, "error", err)
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.failed == nil || stopping(err) {
				a.failed = err
			}
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil {
		a.failed = err
	}
}

// act does one, and says what came of it. What cannot be done, or need not be, is left.
func (a *applying) act(ctx context.Context, act catalog.Act) error {
	var outcome string
	var err error
	switch act.Act {
	case catalog.ActRedo:
		outcome, err = a.redo(ctx, act)
	case catalog.ActTrash:
		outcome, err = a.trash(ctx, act)
	case catalog.ActAdopt:
		outcome, err = a.adopt(ctx, act)
	default:
		err = left("this server does not know how to %s", act.Act)
	}
	state := catalog.ActDone
	if err != nil {
		if !leaving(err) {
			return err
		}
		state, outcome = catalog.ActLeft, words(err)
	}
	return a.Ledger.EndAct(ctx, a.plan.ID, act.No, state, outcome)
}

// left is why an act is not done.
func left(format string, args ...any) *catalog.Error {
	return catalog.Errorf(catalog.CodeNotFound, format, args...)
}

// errGone: there is no object any more.
var errGone = left("it was gone already")

// leaving tells of an error that says why an act cannot be done, as opposed to one after
// which nothing is known.
func leaving(err error) bool {
	var known *catalog.Error
	if !errors.As(err, &known) {
		return false
	}
	switch known.Code {
	case catalog.CodeDatabaseUnavailable, catalog.CodeDatabaseReadOnly, catalog.CodeStoreUnavailable, catalog.CodeProbeUnavailable, catalog.CodeOutcomeUnknown, catalog.CodeBusy:
		return false
	case catalog.CodeInternal:
		return errors.Is(err, upsert.ErrRefused)
	}
	return true
}

// missing tells of an answer that there is no object.
func missing(err error) bool {
	return errors.Is(err, storage.ErrNotExist) || errors.Is(err, storage.ErrNotRegular)
}

// problem is what an act says of a store's error: what will not pass by itself leaves it.
func (a *applying) problem(doing string, err error) error {
	for _, known := range []error{storage.ErrNotRegular, storage.ErrName, storage.ErrCrossDevice, storage.ErrLinked, storage.ErrReadOnly} {
		if errors.Is(err, known) {
			return left("%s: %v", doing, known)
		}
	}
	return storage.Problem(doing, err)
}

// isGone confirms that there is no object, in a store that is there.
func (a *applying) isGone(ctx context.Context, key string) error {
	_, err := a.store.Stat(ctx, key)
	switch {
	case err == nil:
		return left("it is there again")
	case !missing(err):
		return storage.Problem("look at "+key, err)
	}
	return a.sentinel(ctx)
}

func (a *applying) sentinel(ctx context.Context) error {
	if err := a.store.Sentinel(ctx); err != nil {
		return storage.Problem("read the store's sentinel", err)
	}
	return nil
}

// isStill confirms that an object is the one that was seen; errGone where there is none.
func (a *applying) isStill(ctx context.Context, key string, seen catalog.Object) error {
	now, err := a.store.Stat(ctx, key)
	switch {
	case missing(err):
		if err := a.sentinel(ctx); err != nil {
			return err
		}
		return errGone
	case err != nil:
		return storage.Problem("look at "+key, err)
	case now != seen:
		return left("it was written meanwhile")
	}
	return nil
}

// redo has the unit of an output made again. One that is not what it should be is moved to
// the trash first: begin looks at the object itself, and would take one of the right size
// for the output.
func (a *applying) redo(ctx context.Context, act catalog.Act) (string, error) {
	key := catalog.UnescapeKey(act.ObjectKey)
	trash := ""
	if act.Kind == catalog.FindingMismatch {
		differs, err := a.differs(ctx, act, key)
		if err != nil {
			return "", err
		}
		if trash, err = a.move(ctx, act, key, differs); err != nil && !errors.Is(err, errGone) {
			return "", err
		}
	}
	err := a.Ledger.Redo(ctx, act, a.plan.StoreID, func(ctx context.Context) error { return a.isGone(ctx, key) })
	switch {
	case trash == "":
		return "", err
	case err != nil && !leaving(err):
		return "", err
	case err != nil: // somebody was faster
		return fmt.Sprintf("moved to %s; %s", trash, words(err)), nil
	}
	return "moved to " + trash, nil
}

// differs looks whether an object is not what its row says, and gives what confirms that.
func (a *applying) differs(ctx context.Context, act catalog.Act, key string) (Confirm, error) {
	tile, err := a.Ledger.Tile(ctx, *act.UnitKey)
	if err != nil && !catalog.IsCode(err, catalog.CodeNotFound) {
		return nil, err
	}
	object, err := a.store.Stat(ctx, key)
	switch {
	case missing(err):
		return func(ctx context.Context) error {
			if err := a.isGone(ctx, key); err != nil {
				return err
			}
			return errGone
		}, nil
	case err != nil:
		return nil, storage.Problem("look at "+key, err)
	case sameObject(Row{SizeBytes: tile.SizeBytes, ETag: tile.ETag}, object):
		checksum, _, err := checksum(ctx, a.store, key)
		switch {
		case errors.Is(err, storage.ErrNotExist):
			return nil, left("it was written meanwhile")
		case err != nil:
			return nil, a.problem("read "+key, err)
		case checksum == tile.Checksum:
			return func(context.Context) error { return left("it is what its row says") }, nil
		}
	}
	return func(ctx context.Context) error { return a.isStill(ctx, key, object) }, nil
}

// trash moves an object without a row to the trash. That it is gone is as good.
func (a *applying) trash(ctx context.Context, act catalog.Act) (string, error) {
	key := catalog.UnescapeKey(act.ObjectKey)
	confirm := func(ctx context.Context) error {
		_, err := a.store.Stat(ctx, key)
		switch {
		case missing(err):
			if err := a.sentinel(ctx); err != nil {
				return err
			}
			return errGone
		case err != nil:
			return storage.Problem("look at "+key, err)
		}
		return nil
	}
	trash, err := a.move(ctx, act, key, confirm)
	if errors.Is(err, errGone) {
		return words(errGone), nil
	}
	return trash, err
}

// trashes bounds how many names in the trash are tried.
const trashes = 10

// move moves an object to the trash, and gives its name there. The intent is committed
// first: until it is confirmed or forgotten, the object is covered by it. Whoever finds an
// intent of this plan's finishes it. errGone where there is nothing to move.
func (a *applying) move(ctx context.Context, act catalog.Act, key string, confirm Confirm) (string, error) {
	for n := range trashes {
		removal, err := a.Ledger.Remove(ctx, Removal{
			StoreID: a.plan.StoreID, ObjectKey: act.ObjectKey, TrashKey: catalog.EscapeKey(trashName(a.plan.ID, n, key)),
			SizeBytes: act.SizeBytes, Reason: fmt.Sprintf("%s, plan %d", act.Kind, a.plan.ID), By: a.plan.AppliedBy, Keep: a.TrashKeep,
		}, act, confirm)
		if err != nil {
			if removal.Before && leaving(err) {
				moved, settleErr := a.settle(ctx, removal)
				switch {
				case settleErr != nil:
					return "", settleErr
				case moved && errors.Is(err, errGone):
					return removal.TrashKey, nil
				}
			}
			return "", err
		}
		a.at(PointIntended, act)
		err = a.store.Rename(ctx, key, catalog.UnescapeKey(removal.TrashKey))
		switch {
		case err == nil:
			a.at(PointMoved, act)
			return removal.TrashKey, a.Ledger.Removed(ctx, []int64{removal.ID})
		case errors.Is(err, storage.ErrExist):
			// Something else has that name; of an earlier try of ours it is recorded.
			if removal.Before {
				_, err = a.settle(ctx, removal)
			} else {
				err = a.Ledger.Unmoved(ctx, removal.ID)
			}
			if err != nil {
				return "", err
			}
		case errors.Is(err, storage.ErrNotExist):
			if err := a.sentinel(ctx); err != nil {
				return "", err
			}
			if err := a.Ledger.Unmoved(ctx, removal.ID); err != nil {
				return "", err
			}
			return "", errGone
		default:
			err := a.problem("move "+act.ObjectKey+" to the trash", err)
			if leaving(err) {
				if err := a.Ledger.Unmoved(ctx, removal.ID); err != nil {
					return "", err
				}
			}
			return "", err
		}
	}
	return "", left("the trash has %d objects of this name: empty it", trashes)
}

// settle ends an intent that is not to be carried out any more: confirmed where the object
// is in the trash, else forgotten.
func (a *applying) settle(ctx context.Context, r Removal) (moved bool, err error) {
	key := catalog.UnescapeKey(r.TrashKey)
	_, err = a.store.Stat(ctx, key)
	switch {
	case err == nil:
		return true, a.Ledger.Removed(ctx, []int64{r.ID})
	case !missing(err):
		return false, storage.Problem("look at "+key, err)
	}
	if err := a.sentinel(ctx); err != nil {
		return false, err
	}
	return false, a.Ledger.Unmoved(ctx, r.ID)
}

// trashName is where an object is moved to: below the plan's number, and the try's.
func trashName(plan int64, n int, key string) string {
	if n == 0 {
		return fmt.Sprintf("%s%d/%s", storage.TrashPrefix, plan, key)
	}
	return fmt.Sprintf("%s%d.%d/%s", storage.TrashPrefix, plan, n, key)
}

// adopt gives an object without a row one, if it is a good output and tells of what unit.
func (a *applying) adopt(ctx context.Context, act catalog.Act) (string, error) {
	key := catalog.UnescapeKey(act.ObjectKey)
	place, named, err := placeOf(key)
	if err != nil {
		return "", err
	}
	seen, err := a.Step.Inspect(ctx, a.plan.StoreID, key, place.Collection)
	switch {
	case errors.Is(err, storage.ErrNotExist):
		if err := a.sentinel(ctx); err != nil {
			return "", err
		}
		return "", errGone
	case err != nil:
		return "", a.problem("read "+key, err)
	}
	unit, err := a.identify(ctx, place, named, seen)
	if err != nil {
		return "", err
	}
	attempt, err := catalog.NewAttemptID()
	if err != nil {
		return "", err
	}
	if digits, err := hex.DecodeString(place.Attempt); err == nil {
		copy(attempt[10:], digits) // so that the name is the attempt's
	}
	a.at(PointInspected, act)
	current, err := a.Ledger.Adopt(ctx, Adoption{
		Unit: unit, StoreID: a.plan.StoreID, ObjectKey: key, ETag: seen.Object.ETag, Intent: seen.Intent,
		Attempt: attempt, By: a.plan.AppliedBy, RequestID: fmt.Sprintf("adopt %d/%d", a.plan.ID, act.No),
	}, func(ctx context.Context) error { return a.isStill(ctx, key, seen.Object) })
	if err != nil {
		return "", err
	}
	a.at(PointAdopted, act)
	if !current {
		return "has a row; another output is current in its place", nil
	}
	if err := a.Step.Link(ctx, unit.Collection, unit.TileID); err != nil {
		a.Logger.WarnContext(ctx, "leave a stable name to the sweep", "slot", unit.Collection+"/"+unit.TileID, "error", err)
	}
	return "has a row, and is current", nil
}

// placeOf tells of what slot an object is, by its name; named where the name is made as an
// attempt's, else it is the slot's and an extension.
func placeOf(key string) (place catalog.FinalNameParts, named bool, err error) {
	if place, ok := catalog.ParseFinalName(key); ok {
		return place, true, nil
	}
	if catalog.EscapeKey(key) != key {
		return place, false, left("its name is not UTF-8: rename it, or move it to the trash")
	}
	collection, rest, _ := strings.Cut(key, "/")
	ext, ok := catalog.HasExtension(rest)
	if !ok {
		return place, false, left("its name does not say what place it is of: outputs are named COLLECTION/TILE-ID.EXT, as in landcover/t0001.tif")
	}
	place = catalog.FinalNameParts{Collection: collection, TileID: strings.TrimSuffix(rest, ext), Ext: ext}
	if err := errors.Join(catalog.CheckCollectionID(collection), catalog.CheckTileID(place.TileID)); err != nil {
		return place, false, left("its name does not say what place it is of: %s", words(err))
	}
	return place, false, nil
}

// identify tells of what unit an object is: by the identity in its tags, else by that which
// the store keeps beside it, else by its name. All that it says must agree.
func (a *applying) identify(ctx context.Context, place catalog.FinalNameParts, named bool, seen upsert.Inspection) (unit catalog.Unit, err error) {
	identity := seen.Tags[catalog.TagIdentity]
	if identity == "" {
		identity = seen.About["identity"]
	}
	switch {
	case identity != "":
		unit, err = catalog.NewUnit(place.Collection, place.TileID, []byte(identity), "")
	case named:
		unit, err = a.Ledger.Namesake(ctx, place)
	default:
		err = left("it does not say what it was made from")
	}
	if err != nil {
		if leaving(err) {
			err = left("%s: write the tag %s into it, hand it over with catalogd put, or move it to the trash", words(err), catalog.TagIdentity)
		}
		return unit, err
	}
	for _, says := range []struct{ where, what, want string }{
		{"tag " + catalog.TagUnitKey, seen.Tags[catalog.TagUnitKey], unit.Key.String()},
		{"tag " + catalog.TagVersion, seen.Tags[catalog.TagVersion], unit.Identity.Version()},
		{"unit key beside it", seen.About["unit-key"], unit.Key.String()},
		{"version beside it", seen.About["version"], unit.Identity.Version()},
		{"name", place.Unit, hex.EncodeToString(unit.Key[:6])},
	} {
		if says.what != "" && says.what != says.want {
			return unit, left("its %s says %.100s, but its identity in this place is that of %.100s: it is another unit's output, or was moved; hand it over with catalogd put, or move it to the trash", says.where, says.what, says.want)
		}
	}
	return unit, nil
}

func (a *applying) at(p Point, act catalog.Act) {
	if a.Hook != nil {
		a.Hook(p, act)
	}
}

var _ Step = (*upsert.Step)(nil)
