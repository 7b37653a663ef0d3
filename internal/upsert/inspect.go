package upsert

import (
	"context"
	"path"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Inspection is what was seen of an object at its final name.
type Inspection struct {
	Object catalog.Object
	// Intent is all of its row, but for what nobody said of it.
	Intent catalog.Intent
	// Tags are the dataset's, About what the store keeps beside the object.
	Tags, About map[string]string
}

// Inspect makes an object at its final name durable, hashes it and has it proved complete
// by its collection's policy, as the step does with what is staged. Refusals are those of
// the probe; CodeMediaType where its name ends otherwise than such outputs' do.
func (s *Step) Inspect(ctx context.Context, storeID, key, collection string) (Inspection, error) {
	var seen Inspection
	store, err := s.store(storeID)
	if err != nil {
		return seen, err
	}
	c, err := s.Ledger.Collection(ctx, collection)
	if err != nil {
		return seen, err
	}
	if seen.Object, err = store.Stat(ctx, key); err != nil {
		return seen, err
	}
	object, err := store.Settle(ctx, key)
	if err != nil {
		return seen, err
	}
	defer object.Close()
	if object.Size() == 0 {
		return seen, catalog.Errorf(catalog.CodeEmptyOutput, "%s is empty", key)
	}
	ctx, cancel := context.WithTimeout(ctx, s.ProbeDeadline+reading(object.Size()))
	defer cancel()
	var facts catalog.Facts
	var checksum string
	group, within := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		checksum, err = hash(within, object)
		return err
	})
	group.Go(func() (err error) {
		facts, err = s.Prober.Probe(within, object, object.Size(), c.Policy.Probe(""))
		return err
	})
	if err := group.Wait(); err != nil {
		return seen, err
	}
	if ext, err := catalog.Extension(facts.MediaType); err != nil {
		return seen, err
	} else if path.Ext(key) != ext {
		return seen, catalog.Errorf(catalog.CodeMediaType, "%s is of %s, and does not end in %s: give it such a name", key, facts.MediaType, ext)
	}
	seen.Tags = facts.Tags
	if copier, ok := store.(storage.Copier); ok {
		if seen.About, err = copier.About(ctx, key); err != nil {
			return seen, err
		}
	}
	seen.Intent, err = newIntent(catalog.Attempt{}, CompleteRequest{}, "", object.Size(), checksum, facts)
	return seen, err
}
