package upsert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Relink puts every stable name of a store right, and tells how many were not: those of
// slots whose current output is in the store, then those that are there and should not be.
// A name that cannot be mended is left to the next time.
func (s *Step) Relink(ctx context.Context, storeID string) (int, error) {
	store, err := s.store(storeID)
	if err != nil {
		return 0, err
	}
	linker, ok := store.(storage.Linker)
	if !ok {
		return 0, nil
	}
	r := &relinking{Step: s, storeID: storeID, linker: linker}
	err = r.slots(ctx)
	if err == nil {
		err = r.links(ctx)
	}
	return int(r.relinked.Load()), err
}

// relinkingAtOnce bounds the names that are put right together.
const relinkingAtOnce = 8

// relinking is one store's.
type relinking struct {
	*Step
	storeID  string
	linker   storage.Linker
	relinked atomic.Int64
}

// mend puts names right, some together. That the database is away ends it.
func mend[T any](ctx context.Context, r *relinking, these []T, right func(context.Context, T) (mended bool, err error)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(relinkingAtOnce)
	for _, this := range these {
		group.Go(func() error {
			mended, err := right(ctx, this)
			switch {
			case ctx.Err() != nil, catalog.IsCode(err, catalog.CodeDatabaseUnavailable):
				return cmp.Or(err, ctx.Err())
			case err != nil:
				r.Logger.WarnContext(ctx, "leave a stable name to the next reconciliation", "name", fmt.Sprint(this), "error", err)
			case mended:
				r.relinked.Add(1)
			}
			return nil
		})
	}
	return group.Wait()
}

// slots has each slot whose current output is in the store have its name.
func (r *relinking) slots(ctx context.Context) error {
	for after := (SlotName{}); ; {
		pointed, err := r.Ledger.PointedIn(ctx, r.storeID, after, page)
		if err != nil {
			return err
		}
		more := len(pointed) == page
		if len(pointed) > 0 {
			last := pointed[len(pointed)-1]
			after = SlotName{last.Collection, last.TileID}
		}
		pointed = slices.DeleteFunc(pointed, func(p Pointed) bool { return leads(ctx, r.linker, r.storeID, p) })
		err = mend(ctx, r, pointed, func(ctx context.Context, p Pointed) (bool, error) {
			return true, r.link(ctx, p.Collection, p.TileID, &p)
		})
		if err != nil || !more {
			return err
		}
	}
}

// links goes through the names that are there.
func (r *relinking) links(ctx context.Context) error {
	links := make([]storage.Link, 0, page)
	flush := func() error {
		wrong, err := r.wrong(ctx, r.storeID, links)
		if err != nil {
			return err
		}
		links = links[:0]
		return mend(ctx, r, wrong, func(ctx context.Context, stable string) (bool, error) {
			return r.unlink(ctx, r.storeID, r.linker, stable)
		})
	}
	for link, err := range r.linker.Links(ctx) {
		if err != nil {
			return storeProblem("list stable names", err)
		}
		if strings.HasPrefix(path.Base(link.Stable), ".") {
			continue // one that is being made
		}
		if links = append(links, link); len(links) == page {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// Link points the stable name of a slot to its current output.
func (s *Step) Link(ctx context.Context, collection, tileID string) error {
	return s.link(ctx, collection, tileID, nil)
}

// leads tells whether a slot's stable name leads to its current output.
func leads(ctx context.Context, linker storage.Linker, storeID string, p Pointed) bool {
	own, _ := stableNames(p, storeID)
	if own == "" {
		return true // its output's name has no extension: it has none
	}
	key, err := linker.Linked(ctx, own)
	return err == nil && key == p.ObjectKey
}

// slotOf is the slot whose stable name it could be.
func slotOf(stable string) (slot SlotName, ok bool) {
	ext, ok := catalog.HasExtension(stable)
	if !ok {
		return slot, false
	}
	slot.Collection, slot.TileID, ok = strings.Cut(strings.TrimSuffix(stable, ext), "/")
	return slot, ok && catalog.CheckTileID(slot.TileID) == nil && catalog.CheckCollectionID(slot.Collection) == nil
}

// wrong picks the stable names that do not lead to the current output of their slot.
func (s *Step) wrong(ctx context.Context, storeID string, links []storage.Link) (wrong []string, err error) {
	var slots []SlotName
	for _, link := range links {
		if slot, ok := slotOf(link.Stable); ok {
			slots = append(slots, slot)
		}
	}
	pointers, err := s.Ledger.Pointers(ctx, slots)
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		slot, _ := slotOf(link.Stable)
		p, ok := pointers[slot]
		if own, _ := stableNames(p, storeID); !ok || own != link.Stable || link.Key != p.ObjectKey {
			wrong = append(wrong, link.Stable)
		}
	}
	return wrong, nil
}

// unlink puts right what was seen to lead elsewhere than its slot points to: it may be
// right by now, or be its slot's no more. Who removes the name reads the pointer
// afterwards, and makes it again if it is.
func (s *Step) unlink(ctx context.Context, storeID string, linker storage.Linker, stable string) (mended bool, err error) {
	slot, ok := slotOf(stable)
	if ok {
		p, err := s.Ledger.Pointer(ctx, slot.Collection, slot.TileID)
		if err != nil {
			return false, err
		}
		if p != nil {
			if own, _ := stableNames(*p, storeID); own == stable {
				if leads(ctx, linker, storeID, *p) {
					return false, nil
				}
				return true, s.link(ctx, slot.Collection, slot.TileID, nil)
			}
		}
	}
	if _, err := linker.Linked(ctx, stable); errors.Is(err, storage.ErrNotExist) {
		return false, nil
	}
	if err := linker.Unlink(ctx, stable); err != nil || !ok {
		return true, err
	}
	return true, s.link(ctx, slot.Collection, slot.TileID, nil)
}
