package storagetest

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Shim is a store that a test has behave otherwise. A field that is nil leaves all to the
// store. While it is used, it is changed by Set.
type Shim struct {
	storage.Store
	// OnList makes another listing of one of outputs. Own trees are listed as they are.
	OnList func(Listing) Listing
	// OnStat answers in the store's place, at once for many. With neither a key nor an
	// error the store is asked.
	OnStat func(ctx context.Context, key string) (catalog.Object, error)
	// OnSentinel is asked before the store is.
	OnSentinel func() error

	mu sync.Mutex
}

// Listing is what List gives.
type Listing = iter.Seq2[catalog.Object, error]

// Set changes s between two calls.
func (s *Shim) Set(change func(*Shim)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *Shim) List(ctx context.Context, within storage.Range) Listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.OnList != nil && !strings.HasPrefix(within.Prefix, ".") {
		return s.OnList(s.Store.List(ctx, within))
	}
	return s.Store.List(ctx, within)
}

func (s *Shim) Stat(ctx context.Context, key string) (catalog.Object, error) {
	s.mu.Lock()
	answer, store := s.OnStat, s.Store
	s.mu.Unlock()
	if answer != nil {
		if o, err := answer(ctx, key); err != nil || o.Key != "" {
			return o, err
		}
	}
	return store.Stat(ctx, key)
}

func (s *Shim) Sentinel(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.OnSentinel != nil {
		if err := s.OnSentinel(); err != nil {
			return err
		}
	}
	return s.Store.Sentinel(ctx)
}

// Edited is an OnList: all that is listed as change leaves it, and then broken.
func Edited(broken error, change func([]catalog.Object) []catalog.Object) func(Listing) Listing {
	return func(listed Listing) Listing {
		return func(yield func(catalog.Object, error) bool) {
			var all []catalog.Object
			for o, err := range listed {
				if err != nil {
					yield(o, err)
					return
				}
				all = append(all, o)
			}
			for _, o := range change(all) {
				if !yield(o, nil) {
					return
				}
			}
			if broken != nil {
				yield(catalog.Object{}, broken)
			}
		}
	}
}

// Torn breaks off after n objects.
func Torn(n int, broken error) func(Listing) Listing {
	return Edited(broken, func(all []catalog.Object) []catalog.Object { return all[:n] })
}

// Without leaves a page out, and does not say so: the objects from first on and before last.
func Without(first, last int) func(Listing) Listing {
	return Edited(nil, func(all []catalog.Object) []catalog.Object { return slices.Delete(all, first, last) })
}

// Swapped is out of order: object i comes after the next one.
func Swapped(i int) func(Listing) Listing {
	return Edited(nil, func(all []catalog.Object) []catalog.Object {
		all[i], all[i+1] = all[i+1], all[i]
		return all
	})
}

// Twice lists object i again.
func Twice(i int) func(Listing) Listing {
	return Edited(nil, func(all []catalog.Object) []catalog.Object { return slices.Insert(all, i, all[i]) })
}

// Late is an OnStat: each object is not there until it has been asked for so long, as where
// a client caches that (NFS).
func Late(hidden time.Duration) func(context.Context, string) (catalog.Object, error) {
	var mu sync.Mutex
	asked := map[string]time.Time{}
	return func(_ context.Context, key string) (catalog.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked[key].IsZero() {
			asked[key] = time.Now()
		}
		if time.Since(asked[key]) < hidden {
			return catalog.Object{}, storage.ErrNotExist
		}
		return catalog.Object{}, nil
	}
}
