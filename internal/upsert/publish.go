package upsert

import (
	"context"
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
		for _, slot := range settled.Moved {
			if err := s.link(ctx, slot.Collection, slot.TileID, nil); err != nil {
				s.Logger.WarnContext(ctx, "leave a stable name to the sweep", "slot", slot.Collection+"/"+slot.TileID, "error", err)
			}
		}
		if settled.Last == "" {
			return p, s.Ledger.SettleDone(ctx, p.Collection, p.Version, p.Rank)
		}
		after = settled.Last
	}
}

// PublishBatch makes a batch's outputs current together. CodeUnknownBatch.
func (s *Step) PublishBatch(ctx context.Context, batch, who, why string) (BatchPublished, error) {
	panic("to be written")
}
