package upsert

import (
	"context"
	"errors"
	"time"
)

// Publish gives a version the top rank of its collection, for what exists and
// for what comes. The rank is committed first, with its reason in the audit; then
// the slots move, a page at a time, each page in key order under its locks. A
// crash in between is finished by recovery.
func (s *Step) Publish(ctx context.Context, collection, version, who, why string) (Published, error) {
	if err := checkName("/why", why); err != nil {
		return Published{}, err
	}
	rank, err := s.Ledger.Publish(ctx, collection, version, who, why)
	if err != nil {
		return Published{}, err
	}
	p := Published{Collection: collection, Version: version, Rank: rank}
	return s.settle(ctx, p, who)
}

func (s *Step) finishPublications(ctx context.Context) (int, error) {
	open, err := s.Ledger.Publishing(ctx)
	if err != nil {
		return 0, err
	}
	for i, p := range open {
		if _, err := s.settle(ctx, p, "recovery"); err != nil {
			return i, err
		}
	}
	return len(open), nil
}

// settle points every slot that has an output of the version to its best one.
func (s *Step) settle(ctx context.Context, p Published, who string) (Published, error) {
	for after := ""; ; {
		settled, err := s.Ledger.Settle(ctx, p.Collection, p.Version, after, page, who)
		if err != nil {
			return p, err
		}
		p.Slots += settled.Slots
		p.Moved += len(settled.Moved)
		s.linkMoved(ctx, settled.Moved)
		if settled.Last == "" {
			return p, s.Ledger.SettleDone(ctx, p.Collection, p.Version, p.Rank)
		}
		after = settled.Last
	}
}

// PublishBatch makes a batch's outputs current together: those that are there and not
// published yet, in one transaction; then it puts their stable names right. What comes
// later waits for the next time. A crash before the commit leaves nothing, one after it
// old stable names, for recovery. CodeUnknownBatch; CodeInvalidRequest where outputs are
// published as they are registered.
func (s *Step) PublishBatch(ctx context.Context, batch, who, why string) (BatchPublished, error) {
	if err := checkName("/why", why); err != nil {
		return BatchPublished{}, err
	}
	published, err := s.Ledger.PublishBatch(ctx, batch, who, why)
	if err != nil {
		return BatchPublished{}, err
	}
	unlinked, err := s.Ledger.Unlinked(ctx, batch, 0)
	for _, u := range unlinked {
		err = s.linkBatch(ctx, u)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "leave a batch's stable names to recovery", "batch", batch, "error", err)
	}
	return published, nil
}

// linkBatches puts the stable names right that publications of batches left, those that
// are this old.
func (s *Step) linkBatches(ctx context.Context, age time.Duration) error {
	unlinked, err := s.Ledger.Unlinked(ctx, "", age)
	for _, u := range unlinked {
		err = errors.Join(err, s.linkBatch(ctx, u))
	}
	return err
}

// linkBatch goes through the moves of a publication, a page at a time.
func (s *Step) linkBatch(ctx context.Context, u Unlinked) error {
	for from := u.From; from != 0 && len(s.Stores.linkers()) > 0; {
		moved, next, err := s.Ledger.MovedFrom(ctx, u.Collection, from, page)
		if err != nil {
			return err
		}
		s.linkMoved(ctx, moved)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		from = next
	}
	return s.Ledger.Linked(ctx, u)
}

// linkMoved points the stable names of slots that moved to what is current now.
func (s *Step) linkMoved(ctx context.Context, moved []Pointed) {
	for _, slot := range moved {
		if err := s.link(ctx, slot.Collection, slot.TileID, nil); err != nil {
			s.Logger.WarnContext(ctx, "leave a stable name to the sweep", "slot", slot.Collection+"/"+slot.TileID, "error", err)
		}
	}
}
