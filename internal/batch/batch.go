// Package batch judges batches at their gate: how much of what was expected is there, by
// the catalogue and by the store.
//
// What it must never do is to take what cannot be told for a failure: a store that is
// away fails no batch. It sees the database, the stores and the step through the small
// interfaces below, and imports catalog, storage and the step's types only.
package batch

import (
	"context"
	"iter"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

// Ledger is the database as a gate sees it. Errors are catalog.Errors.
type Ledger interface {
	// AskGate records a gate, queued, together with the job that judges it.
	// CodeUnknownBatch.
	AskGate(ctx context.Context, gate catalog.Gate) error
	// Gate reads one. CodeUnknownBatch, CodeNotFound.
	Gate(ctx context.Context, batch string, id uuid.UUID) (catalog.Gate, error)
	// TakeGate has this process alone judge a gate, until the Sitting is over. Nil where
	// it has ended, or somebody else judges it.
	TakeGate(ctx context.Context, id uuid.UUID) (Sitting, error)
	// EndGate writes how a gate that is being judged ended, together with the job that
	// notifies of it, if its verdict is another than the batch's last. Nothing happens to
	// one that has ended.
	EndGate(ctx context.Context, gate catalog.Gate) error
	// Standings tells how units of a batch stand now.
	Standings(ctx context.Context, batch uuid.UUID, units []uuid.UUID) ([]Standing, error)
}

// Sitting is one gate's judging.
type Sitting interface {
	Gate() catalog.Gate
	Batch() catalog.Batch
	// Survey reads how the batch stands, from one snapshot. It is asked for once.
	Survey(ctx context.Context) (Survey, error)
	// Close ends the sitting, also where ctx is over.
	Close()
}

// Survey is how a batch stands.
type Survey struct {
	Counts catalog.BatchCounts
	// Missing are units that are not done, MaxOffenders at most, lost ones first.
	Missing []catalog.Offender
	// Outputs are those of units that are done and that the gate is to look at: by
	// store, and in byte order of the object key where it looks at all.
	Outputs iter.Seq2[Output, error]
}

// MaxOffenders is how many offenders a gate tells of.
const MaxOffenders = 1000

// Output is an output by its row.
type Output struct {
	UnitKey, AttemptID uuid.UUID
	StoreID, ObjectKey string
	SizeBytes          int64
}

// Standing is how a unit of a batch stands; Output is that of its row, if it has one.
type Standing struct {
	Output
	TileID string
	Status catalog.UnitStatus
	Reason string
}

// Stores finds a store by its id: CodeStoreUnavailable.
type Stores interface {
	Find(id string) (storage.Store, error)
}

// Publisher makes a batch's outputs current together; upsert.Step does. To publish again
// changes nothing.
type Publisher interface {
	PublishBatch(ctx context.Context, batch, who, why string) (upsert.BatchPublished, error)
}

// Judge runs gates. Any number of them may work on one database.
type Judge struct {
	Ledger    Ledger
	Stores    Stores
	Publisher Publisher
}

// Run asks for a judgement of a batch, and waits for it so long at most. It gives the
// gate as it stands then. CodeUnknownBatch.
func (j *Judge) Run(ctx context.Context, batch string, limits catalog.GateLimits, who string, wait time.Duration) (catalog.Gate, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return catalog.Gate{}, err
	}
	until := time.Now().Add(wait)
	if err := j.Ledger.AskGate(ctx, catalog.Gate{ID: id, Batch: batch, GateLimits: limits, AskedBy: who}); err != nil {
		return catalog.Gate{}, err
	}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		gate, err := j.Ledger.Gate(ctx, batch, id)
		left := time.Until(until)
		if err != nil || gate.State.Ended() || left <= 0 {
			return gate, err
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return gate, nil
		}
	}
}

// Gate reads one. CodeUnknownBatch, CodeNotFound.
func (j *Judge) Gate(ctx context.Context, batch string, id uuid.UUID) (catalog.Gate, error) {
	return j.Ledger.Gate(ctx, batch, id)
}
