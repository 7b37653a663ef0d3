package upsert

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Leftover is something staged, or an unfinished upload.
type Leftover struct {
	// Upload: an upload in parts, whose UploadID it has; else an object.
	Upload   bool
	UploadID string
	// Object; of an upload the key, and when it was begun.
	Object catalog.Object
	// Useless: nobody needs it any more, and a sweep removes it.
	Useless bool
}

// Leftovers are what is staged in a store, and unfinished uploads, with what of them
// nobody needs any more. What comes before an error is as good as ever.
func (s *Step) Leftovers(ctx context.Context, storeID string) iter.Seq2[Leftover, error] {
	return func(yield func(Leftover, error) bool) {
		store, err := s.store(storeID)
		if err != nil {
			yield(Leftover{}, err)
			return
		}
		for _, leftovers := range []iter.Seq2[Leftover, error]{s.staged(ctx, storeID, store), s.uploads(ctx, storeID, store)} {
			for l, err := range leftovers {
				if err != nil {
					yield(Leftover{}, storeProblem("list what is staged", err))
					return
				}
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

// staged goes through what is staged. An error that is no catalog.Error is the listing's.
func (s *Step) staged(ctx context.Context, storeID string, store storage.Store) iter.Seq2[Leftover, error] {
	return judged(func(take func(Leftover) error) error {
		for object, err := range store.List(ctx, storage.Range{Prefix: storage.StagingPrefix}) {
			if err != nil {
				return err
			}
			if err := take(Leftover{Object: object}); err != nil {
				return err
			}
		}
		return nil
	}, func(page []Leftover) error { return s.useless(ctx, storeID, page) })
}

// uploads goes through the uploads in parts that are neither completed nor aborted, of all
// keys.
func (s *Step) uploads(ctx context.Context, storeID string, store storage.Store) iter.Seq2[Leftover, error] {
	return judged(func(take func(Leftover) error) error {
		uploader, ok := store.(storage.Uploader)
		if !ok {
			return nil
		}
		return uploader.Uploads(ctx, func(key, id string, begun time.Time) error {
			return take(Leftover{Upload: true, UploadID: id, Object: catalog.Object{Key: key, Modified: begun}})
		})
	}, func(page []Leftover) error { return s.abandoned(ctx, storeID, page) })
}

// errEnough: the reader wants no more.
var errEnough = errors.New("enough")

// judged yields what list gives to take, after a page of it was judged. What was listed
// before an error is judged too.
func judged(list func(take func(Leftover) error) error, judge func([]Leftover) error) iter.Seq2[Leftover, error] {
	return func(yield func(Leftover, error) bool) {
		batch := make([]Leftover, 0, page)
		flush := func() error {
			if err := judge(batch); err != nil {
				return err
			}
			for _, l := range batch {
				if !yield(l, nil) {
					return errEnough
				}
			}
			batch = batch[:0]
			return nil
		}
		failed := false // to judge; else what failed was the listing
		err := list(func(l Leftover) error {
			if batch = append(batch, l); len(batch) < page {
				return nil
			}
			err := flush()
			failed = err != nil
			return err
		})
		if !failed {
			if last := flush(); last != nil {
				err = last
			}
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(Leftover{}, err)
		}
	}
}

// useless marks the staged objects that nobody needs any more. An attempt's
// state is read after its object was seen, and ended states are final.
func (s *Step) useless(ctx context.Context, storeID string, staged []Leftover) error {
	ended, err := s.Ledger.Ended(ctx, attempts(staged))
	if err != nil {
		return err
	}
	held, err := s.Ledger.Held(ctx, storeID, keysOf(staged))
	if err != nil {
		return err
	}
	old := time.Now().Add(-s.StagingAge)
	for i, l := range staged {
		id, named := catalog.ParseStagingName(l.Object.Key)
		over, known := ended[id]
		switch {
		case held[l.Object.Key]:
		case named && known && !over:
		default:
			staged[i].Useless = named && known || l.Object.Modified.Before(old)
		}
	}
	return nil
}

// abandoned marks the uploads that nobody needs any more: those of attempts that have
// ended and, past an age, those to staged names that no attempt knows. Others' are left
// alone.
func (s *Step) abandoned(ctx context.Context, storeID string, uploads []Leftover) error {
	ended, err := s.Ledger.Ended(ctx, attempts(uploads))
	if err != nil {
		return err
	}
	copied, err := s.Ledger.Outcomes(ctx, storeID, keysOf(uploads))
	if err != nil {
		return err
	}
	old := time.Now().Add(-s.StagingAge)
	for i, l := range uploads {
		id, _ := catalog.ParseStagingName(l.Object.Key)
		over, known := ended[id]
		staged := strings.HasPrefix(l.Object.Key, storage.StagingPrefix)
		uploads[i].Useless = copied[l.Object.Key] || over || staged && !known && l.Object.Modified.Before(old)
	}
	return nil
}

func keysOf(leftovers []Leftover) []string {
	keys := make([]string, len(leftovers))
	for i, l := range leftovers {
		keys[i] = l.Object.Key
	}
	return keys
}

// attempts are those whose staging names they have.
func attempts(leftovers []Leftover) (ids []uuid.UUID) {
	for _, l := range leftovers {
		if id, ok := catalog.ParseStagingName(l.Object.Key); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
