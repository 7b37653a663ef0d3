package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

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

// Scheduled is who does what no one asked for.
const Scheduled = "schedule"

// EmptyTrash deletes what has expired or, with all, everything that is in the trash of a
// store, or of all stores for "". Unless it is the schedule that asks, it is written to
// the audit. A crash here leaves objects in the list that are gone, which is as good.
func (r *Reconciler) EmptyTrash(ctx context.Context, storeID string, all bool, who, why string) (Emptied, error) {
	if storeID != "" {
		if _, err := r.there(ctx, storeID); err != nil {
			return Emptied{}, err
		}
	}
	var sum Emptied
	stores := map[string]storage.Store{} // nil for one that is away
	var failed error
	for after := int64(0); ; {
		trash, err := r.Ledger.Trash(ctx, storeID, !all, after, actPage)
		if err != nil || len(trash) == 0 {
			failed = errors.Join(failed, err)
			break
		}
		after = trash[len(trash)-1].ID
		for _, t := range trash {
			if _, known := stores[t.StoreID]; known {
				continue
			}
			store, err := r.there(ctx, t.StoreID)
			if err != nil {
				store = nil
				r.Logger.WarnContext(ctx, "leave the trash of a store", "store", t.StoreID, "error", err)
			}
			stores[t.StoreID] = store
		}
		emptied, err := r.empty(ctx, stores, trash)
		sum.Objects += emptied.Objects
		sum.Bytes += emptied.Bytes
		sum.Left += emptied.Left
		if err != nil {
			failed = err
			break
		}
	}
	if sum.Objects > 0 && who != Scheduled {
		details := map[string]any{"objects": sum.Objects, "bytes": sum.Bytes, "expired_only": !all}
		failed = errors.Join(failed, r.Ledger.Audit(context.WithoutCancel(ctx), who, "empty the trash", storeID, why, details))
	}
	return sum, failed
}

// empty deletes a page of the trash.
func (r *Reconciler) empty(ctx context.Context, stores map[string]storage.Store, trash []catalog.Trashed) (sum Emptied, err error) {
	var group errgroup.Group
	group.SetLimit(acting)
	var mu sync.Mutex
	var gone []int64
	for _, t := range trash {
		group.Go(func() error {
			store := stores[t.StoreID]
			var err error
			if store != nil {
				err = store.Delete(ctx, catalog.UnescapeKey(t.TrashKey))
			}
			mu.Lock()
			defer mu.Unlock()
			if store == nil || err != nil {
				sum.Left++
				if err != nil {
					r.Logger.WarnContext(ctx, "leave an object in the trash", "key", t.TrashKey, "error", err)
				}
				return nil
			}
			gone = append(gone, t.ID)
			sum.Objects++
			sum.Bytes += t.SizeBytes
			return nil
		})
	}
	_ = group.Wait()
	if err := r.Ledger.Emptied(context.WithoutCancel(ctx), gone); err != nil {
		return sum, err
	}
	return sum, ctx.Err()
}

// Restore puts an object back from the trash to where it was. What it was moved away for
// is found again by the next reconciliation. CodeNotFound; CodeInvalidRequest where
// something is there, or what is there is about to be removed.
func (r *Reconciler) Restore(ctx context.Context, id int64, who, why string) error {
	t, err := r.Ledger.Trashed(ctx, id)
	if err != nil {
		return err
	}
	store, err := r.there(ctx, t.StoreID)
	if err != nil {
		return err
	}
	// An attempt that is not swept yet, or a removal, would take it away again.
	covers, err := r.Ledger.Cover(ctx, t.StoreID, []string{t.ObjectKey})
	if err != nil {
		return err
	}
	if covers[t.ObjectKey].Named {
		named, err := r.Ledger.Named(ctx, t.StoreID, t.ObjectKey)
		if err != nil {
			return err
		}
		if !named {
			return catalog.Errorf(catalog.CodeInvalidRequest, "what is at %s is about to be swept: restore it after the next sweep", t.ObjectKey)
		}
	}
	err = store.Rename(ctx, catalog.UnescapeKey(t.TrashKey), catalog.UnescapeKey(t.ObjectKey))
	switch {
	case errors.Is(err, storage.ErrExist):
		return catalog.Errorf(catalog.CodeInvalidRequest, "there is another object at %s: move it away first", t.ObjectKey)
	case errors.Is(err, storage.ErrNotExist):
		if err := store.Sentinel(ctx); err != nil {
			return storage.Problem("read the store's sentinel", err)
		}
		if err := r.Ledger.Emptied(ctx, []int64{id}); err != nil {
			return err
		}
		return catalog.Errorf(catalog.CodeNotFound, "%s is not in the trash any more: somebody removed it there", t.ObjectKey)
	case err != nil:
		return storage.Problem("restore "+t.ObjectKey, err)
	}
	if err := r.Ledger.Emptied(ctx, []int64{id}); err != nil {
		return err
	}
	return r.Ledger.Audit(ctx, who, "restore from the trash", fmt.Sprintf("%s %s", t.Store, t.ObjectKey), why, map[string]any{"trash": id, "trash_key": t.TrashKey})
}
