package upsert

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// page bounds what a sweep, a publication or a recovery holds at once.
const page = 500

// Sweep removes what ended attempts left behind: open attempts whose leases
// ended long ago are ended first, by compare-and-set, and committed; only then is
// anything deleted. It never touches what an open or promoting attempt may still
// need, nor an object that a row names.
func (s *Step) Sweep(ctx context.Context) (Swept, error) {
	var sum Swept
	// What one part, or one store, cannot do does not stop the others.
	var errs []error
	there := Stores{}
	for id, store := range s.Stores {
		if err := store.Sentinel(ctx); err != nil {
			errs = append(errs, storeProblem("read the sentinel of store "+id, err))
			continue
		}
		there[id] = store
	}
	if len(there) == 0 {
		return sum, errors.Join(errs...)
	}
	expired, err := s.Ledger.Expire(ctx, s.SweepGrace)
	if err != nil {
		return sum, err
	}
	sum.Expired = expired
	for id, store := range there {
		errs = append(errs, s.sweepStaging(ctx, id, store, &sum), s.sweepUploads(ctx, id, store, &sum), s.sweepAttempts(ctx, id, store, &sum))
	}
	errs = append(errs, s.sweepRemovals(ctx, there, &sum), s.relink(ctx, there, &sum))
	return sum, errors.Join(errs...)
}

// sweepStaging removes what is staged and belongs to ended attempts and, past an age,
// what no attempt knows.
func (s *Step) sweepStaging(ctx context.Context, storeID string, store storage.Store, sum *Swept) error {
	for l, err := range s.staged(ctx, storeID, store) {
		if known := (*catalog.Error)(nil); errors.As(err, &known) {
			return err
		} else if err != nil {
			// Most likely a directory that a task made for itself alone. What was
			// listed before it is as good as ever.
			s.Logger.WarnContext(ctx, "staging cannot be listed to its end", "error", err)
			break
		}
		if !l.Useless {
			sum.Kept++
			continue
		}
		if err := s.removeStaged(ctx, storeID, store, l.Object); err != nil {
			sum.Kept++
			s.Logger.WarnContext(ctx, "leave a staged file to the next sweep", "key", l.Object.Key, "error", err)
			continue
		}
		sum.Objects++
		sum.Bytes += l.Object.SizeBytes
	}
	return nil
}

// removeStaged deletes a staged file unless it is another one now, or has come
// into use since it was listed.
func (s *Step) removeStaged(ctx context.Context, storeID string, store storage.Store, listed catalog.Object) error {
	now, err := store.Stat(ctx, listed.Key)
	if errors.Is(err, storage.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	held, err := s.Ledger.Held(ctx, storeID, []string{listed.Key})
	if err != nil {
		return err
	}
	if _, reading := s.reading.Load(listed.Key); reading || held[listed.Key] || now != listed {
		return errors.New("it is in use again")
	}
	return store.Delete(ctx, listed.Key)
}

// sweepUploads aborts the uploads in parts that nobody needs any more.
func (s *Step) sweepUploads(ctx context.Context, storeID string, store storage.Store, sum *Swept) error {
	uploader, _ := store.(storage.Uploader)
	for l, err := range s.uploads(ctx, storeID, store) {
		if err != nil {
			return storeProblem("list uploads", err)
		}
		if !l.Useless {
			continue
		}
		if err := uploader.AbortUpload(ctx, l.Object.Key, l.UploadID); err != nil {
			s.Logger.WarnContext(ctx, "leave an upload to the next sweep", "key", l.Object.Key, "error", err)
			continue
		}
		sum.Uploads++
	}
	return nil
}

// copyGrace is how much later than a rename a copy at the server may still be on its way.
const copyGrace = time.Hour

// sweepAttempts removes the promoted objects of attempts that lost. The grace is
// longer than any step, so that none of theirs can still be on its way.
func (s *Step) sweepAttempts(ctx context.Context, storeID string, store storage.Store, sum *Swept) error {
	grace := s.PromoteDeadline + time.Minute
	if _, copies := store.(storage.Copier); copies {
		grace += copyGrace
	}
	for {
		attempts, err := s.Ledger.Unswept(ctx, storeID, grace, page)
		if err != nil || len(attempts) == 0 {
			return err
		}
		var swept []uuid.UUID
		for _, a := range attempts {
			removed, err := s.remove(ctx, store, storeID, a.ObjectKey)
			if err != nil {
				s.Logger.WarnContext(ctx, "leave an attempt to the next sweep", "attempt", a.ID, "error", err)
				continue
			}
			if removed {
				sum.Objects++
			}
			swept = append(swept, a.ID)
		}
		if err := s.Ledger.MarkSwept(ctx, swept); err != nil || len(swept) == 0 {
			return err
		}
		sum.Attempts += len(swept)
	}
}

// sweepRemovals carries out intents to delete. What is to be moved to the trash, the plan
// that says so moves.
func (s *Step) sweepRemovals(ctx context.Context, there Stores, sum *Swept) error {
	for {
		removals, err := s.Ledger.Removals(ctx, there.ids(), s.PromoteDeadline+time.Minute, page)
		if err != nil || len(removals) == 0 {
			return err
		}
		var done []int64
		for _, r := range removals {
			removed, err := s.remove(ctx, there[r.StoreID], r.StoreID, r.ObjectKey)
			if err != nil {
				s.Logger.WarnContext(ctx, "leave a removal to the next sweep", "key", r.ObjectKey, "error", err)
				continue
			}
			if removed {
				sum.Objects++
			}
			done = append(done, r.ID)
		}
		if err := s.Ledger.Removed(ctx, done); err != nil || len(done) == 0 {
			return err
		}
	}
}

// remove deletes an object unless a row names it, and tells whether it was there.
func (s *Step) remove(ctx context.Context, store storage.Store, storeID, key string) (bool, error) {
	named, err := s.Ledger.Named(ctx, storeID, key)
	if err != nil || named {
		return false, err
	}
	_, statErr := store.Stat(ctx, key)
	if err := store.Delete(ctx, key); err != nil {
		return false, storeProblem("remove "+key, err)
	}
	return statErr == nil, nil
}

// relink repairs the stable names of slots that moved shortly before the latest
// move: a crash between a commit and its tidying can only have left those.
func (s *Step) relink(ctx context.Context, there Stores, sum *Swept) error {
	moved, err := s.Ledger.Moved(ctx, 2*(s.PromoteDeadline+s.ProbeDeadline), 100*page)
	if err != nil {
		return err
	}
	for _, p := range moved {
		if linked(ctx, there, p) {
			continue
		}
		if err := s.link(ctx, p.Collection, p.TileID, nil); err != nil {
			s.Logger.WarnContext(ctx, "leave a stable name to the next sweep", "slot", p.Collection+"/"+p.TileID, "error", err)
			continue
		}
		sum.Relinked++
	}
	return nil
}

// linked tells whether a slot's stable name leads to its current output, and no
// name of another format, or in another store, is left.
func linked(ctx context.Context, there Stores, p Pointed) bool {
	for id, linker := range there.linkers() {
		own, others := stableNames(p, id)
		if own != "" {
			if key, err := linker.Linked(ctx, own); err != nil || key != p.ObjectKey {
				return false
			}
		}
		for _, other := range others {
			if _, err := linker.Linked(ctx, other); !errors.Is(err, storage.ErrNotExist) {
				return false
			}
		}
	}
	return true
}
