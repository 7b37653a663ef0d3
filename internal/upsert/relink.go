package upsert

import (
	"context"
	"errors"
	"path"
	"strings"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Relink puts every stable name of a store right, and tells how many were not: those of
// slots whose current output is in the store, then those that are there and should not be.
// A name that cannot be mended is left to the next time.
func (s *Step) Relink(ctx context.Context, storeID string) (relinked int, err error) {
	store, err := s.store(storeID)
	if err != nil {
		return 0, err
	}
	linker, ok := store.(storage.Linker)
	if !ok {
		return 0, nil
	}
	mend := func(slot SlotName, mended bool, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case catalog.IsCode(err, catalog.CodeDatabaseUnavailable):
			return err
		case err != nil:
			s.Logger.WarnContext(ctx, "leave a stable name to the next reconciliation", "slot", slot.Collection+"/"+slot.TileID, "error", err)
		case mended:
			relinked++
		}
		return nil
	}
	for after := (SlotName{}); ; {
		pointed, err := s.Ledger.PointedIn(ctx, storeID, after, page)
		if err != nil {
			return relinked, err
		}
		for _, p := range pointed {
			after = SlotName{p.Collection, p.TileID}
			if leads(ctx, linker, storeID, p) {
				continue
			}
			if err := mend(after, true, s.link(ctx, p.Collection, p.TileID, nil)); err != nil {
				return relinked, err
			}
		}
		if len(pointed) < page {
			break
		}
	}
	links := make([]storage.Link, 0, page)
	flush := func() error {
		wrong, err := s.wrong(ctx, storeID, links)
		if err != nil {
			return err
		}
		for _, stable := range wrong {
			slot, _ := slotOf(stable)
			mended, err := s.unlink(ctx, storeID, linker, stable)
			if err := mend(slot, mended, err); err != nil {
				return err
			}
		}
		links = links[:0]
		return nil
	}
	for link, err := range linker.Links(ctx) {
		if err != nil {
			return relinked, storeProblem("list stable names", err)
		}
		if strings.HasPrefix(path.Base(link.Stable), ".") {
			continue // one that is being made
		}
		if links = append(links, link); len(links) == page {
			if err := flush(); err != nil {
				return relinked, err
			}
		}
	}
	return relinked, flush()
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
	return slot, ok
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
