package upsert

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Prober proves a staged object complete and reads its facts. A refusal is a
// catalog.Error that names what is wrong with the file; any other error says
// nothing of the file.
type Prober interface {
	Probe(ctx context.Context, src io.ReaderAt, size int64, req catalog.ProbeRequest) (catalog.Facts, error)
}

// ErrRefused is wrapped by a Ledger's error when the database refuses what was to
// be written, and would every time.
var ErrRefused = errors.New("the database refuses the row")

// Stores finds a store by its id.
type Stores map[string]storage.Store

// Find gives a store by its id. CodeStoreUnavailable where this server has none of it.
func (s Stores) Find(id string) (storage.Store, error) {
	if store, ok := s[id]; ok {
		return store, nil
	}
	return nil, catalog.Errorf(catalog.CodeStoreUnavailable, "this server has no store %s: start it with --store for that root", id)
}

func (s Stores) ids() []string { return slices.Collect(maps.Keys(s)) }

// Ledger is the database as the step sees it. Each method is one statement or
// one short transaction. Errors are catalog.Errors; database_unavailable and
// database_read_only say nothing of what was or was not written.
type Ledger interface {
	// Stand reads, without locks, all that a begin must know of a unit.
	Stand(ctx context.Context, unit catalog.Unit, by Claim) (Standing, error)
	// Open makes the attempt unless its unit, or its staged file, is held; with an
	// intent it is promoting from the first. It takes over from an open attempt
	// whose lease has ended, or whose owner is the same with a lower try, and counts
	// that. It makes none at a unit that is quarantined, or not due yet.
	Open(ctx context.Context, unit catalog.Unit, attempt catalog.Attempt, lease time.Duration) (Opened, error)
	// Name gives a unit the client key that it comes with, if it has none. False
	// when the unit has one by now, or the key another unit.
	Name(ctx context.Context, unit catalog.Unit) (bool, error)
	// Renew extends the leases of open attempts. One answer per id, in order.
	Renew(ctx context.Context, ids []uuid.UUID, lease time.Duration) ([]Lease, error)
	// Leased lists the open attempts of an owner, at most limit.
	Leased(ctx context.Context, owner string, limit int) ([]uuid.UUID, error)
	// Resume extends the lease of an attempt if it is open, and reads it, with its
	// collection. CodeUnknownAttempt.
	Resume(ctx context.Context, id uuid.UUID, lease time.Duration) (catalog.Attempt, catalog.Collection, error)
	// Attempt reads one attempt, with its collection. CodeUnknownAttempt.
	Attempt(ctx context.Context, id uuid.UUID) (catalog.Attempt, catalog.Collection, error)
	// Intend commits the future row and makes the attempt promoting, until deadline
	// from now. False when the attempt was not open any more.
	Intend(ctx context.Context, id uuid.UUID, intent catalog.Intent, deadline time.Duration) (bool, error)
	// Collection reads one. CodeUnknownCollection.
	Collection(ctx context.Context, id string) (catalog.Collection, error)
	// Tile is the row of a unit. CodeNotFound.
	Tile(ctx context.Context, unit uuid.UUID) (catalog.Tile, error)
	// Conclude is the upsert: under the slot's lock it turns a promoting attempt
	// into the unit's row, or into overtaken where the unit has a healthy one. For
	// an attempt that has ended already it tells how.
	Conclude(ctx context.Context, id uuid.UUID, etag string) (Outcome, error)
	// End moves an attempt from one state to an ended one; false when it was in
	// another state.
	End(ctx context.Context, id uuid.UUID, from, to catalog.AttemptState) (bool, error)
	// Fail ends an attempt that is in this state as failed, records why, and judges its
	// unit by its collection's policy. Of one that has failed before it tells what was
	// judged then. Nil when the attempt was in another state.
	Fail(ctx context.Context, id uuid.UUID, from catalog.AttemptState, failure Failure) (*Failed, error)

	// Outage tells whether more than this share of a batch's units, and least of them at
	// least, fail for one transient reason.
	Outage(ctx context.Context, batch uuid.UUID, reason string, share float64, least int) (bool, error)

	// Reserve looks at units of a batch, at most limit, that a claim is to look at by
	// now, and has no other claim look at them for a while: those that are due for
	// hold. With the first look of a request it also tells what that has handed out
	// before, and then reserves nothing. CodeUnknownBatch.
	Reserve(ctx context.Context, req ClaimRequest, first bool, limit int, hold time.Duration) (Reserved, error)
	// Unreserve has claims look at units again at once.
	Unreserve(ctx context.Context, batch uuid.UUID, units []uuid.UUID) error
	// OpenMany makes a claim's attempts at units that were reserved, but for those that
	// somebody holds by now, or that are not due any more, and gives the ends of their
	// leases. It makes none where the same request has made others meanwhile. With none
	// at all, reused tells whether the request has had attempts at these units before,
	// which have ended.
	OpenMany(ctx context.Context, o Opening) (leases map[uuid.UUID]time.Time, reused bool, err error)
	// NextDue is how long it is until a claim is to look at units of a batch again; false
	// where all are done or quarantined.
	NextDue(ctx context.Context, batch uuid.UUID) (time.Duration, bool, error)

	// Check answers for many units at once, in order.
	Check(ctx context.Context, units []UnitRef) ([]Known, error)

	// Publish gives a version the top rank of its collection.
	Publish(ctx context.Context, collection, version, who, why string) (rank int64, err error)
	// Publishing lists publications that have not moved every slot yet.
	Publishing(ctx context.Context) ([]Published, error)
	// Settle points the next slots after the given tile id, at most limit, to
	// their best output; last is "" when there are no more.
	Settle(ctx context.Context, collection, version, after string, limit int, who string) (Settled, error)
	// SettleDone ends a publication if the version's rank is still this one.
	SettleDone(ctx context.Context, collection, version string, rank int64) error

	// PublishBatch publishes the outputs of a batch's units, and moves the slots in which
	// one of them is best, in one transaction. CodeUnknownBatch; CodeInvalidRequest where
	// outputs are published as they are registered.
	PublishBatch(ctx context.Context, name, who, why string) (BatchPublished, error)
	// Unlinked lists publications of batches whose stable names were not all put right: that
	// of the batch of this name; with "" all that are this old.
	Unlinked(ctx context.Context, name string, age time.Duration) ([]Unlinked, error)
	// MovedFrom lists slots of a collection whose pointers were moved by publications, at
	// most limit moves from this one on; next is 0 when there are no more.
	MovedFrom(ctx context.Context, collection string, from int64, limit int) (moved []Pointed, next int64, err error)
	// Linked says that a publication's stable names are right.
	Linked(ctx context.Context, u Unlinked) error

	// Promoting lists attempts with an open intent; only those past their
	// deadline unless all.
	Promoting(ctx context.Context, all bool) ([]catalog.Attempt, error)
	// Expire ends open attempts whose leases ended this long ago, and counts that.
	Expire(ctx context.Context, grace time.Duration) (int, error)
	// Unswept lists ended attempts without a row, ended this long ago, whose
	// objects, in this store, were not yet removed.
	Unswept(ctx context.Context, storeID string, grace time.Duration, limit int) ([]catalog.Attempt, error)
	// MarkSwept records that nothing is left of these attempts.
	MarkSwept(ctx context.Context, ids []uuid.UUID) error
	// Ended tells which of these attempts have ended, and which are known at all.
	Ended(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error)
	// Outcomes tells, of those of these final names that are attempts', whether the
	// attempt has ended.
	Outcomes(ctx context.Context, storeID string, objectKeys []string) (map[string]bool, error)
	// Held tells which of these staged files an open or promoting attempt holds.
	Held(ctx context.Context, storeID string, stagingKeys []string) (map[string]bool, error)
	// Named tells whether a row names this object.
	Named(ctx context.Context, storeID, objectKey string) (bool, error)
	// Removals lists intents to delete, in these stores, that are this old and not yet
	// confirmed; not those to move to the trash.
	Removals(ctx context.Context, storeIDs []string, grace time.Duration, limit int) ([]Removal, error)
	// Removed confirms removals.
	Removed(ctx context.Context, ids []int64) error
	// Pointer is what a slot points to: nil for nothing.
	Pointer(ctx context.Context, collection, tileID string) (*Pointed, error)
	// Pointers are what these slots point to; those that point to nothing are not there.
	Pointers(ctx context.Context, slots []SlotName) (map[SlotName]Pointed, error)
	// PointedIn lists slots whose current output is in a store, by their names, after
	// one, at most limit.
	PointedIn(ctx context.Context, storeID string, after SlotName, limit int) ([]Pointed, error)
	// Moved lists slots whose current object changed within window of the latest
	// change, at most limit changes back.
	Moved(ctx context.Context, window time.Duration, limit int) ([]Pointed, error)
}

// Claim is who asks for a unit.
type Claim struct {
	Owner     string
	Try       int
	RequestID string
	// Batch that it is begun for, by name; "" for none.
	Batch string
}

// Standing is all that a begin must know of a unit. It was read without locks:
// what is written next must hold whatever has happened since.
type Standing struct {
	// Collection is nil when there is none of that name.
	Collection *catalog.Collection
	// Tile is the unit's row, nil for none.
	Tile *catalog.Tile
	// Hold is the attempt that has the unit and cannot be taken over, nil for none.
	Hold *Hold
	// Replay is the attempt that this request made before, nil for none.
	Replay *uuid.UUID
	// Batch is the one that the claim names; nil where there is none of that name.
	Batch *StandingBatch
	// Retry is how the unit stands if it has failed, else nil.
	Retry *Retry
	// Collision says which of the unit's names stands for another identity; ""
	// for none.
	Collision string
}

// StandingBatch is a batch, and whether it expects the unit.
type StandingBatch struct {
	ID         uuid.UUID
	Collection string
	Expects    bool
}

// Retry is how a unit that failed stands now.
type Retry struct {
	catalog.Retry
	// After is how long it is until the unit is due.
	After time.Duration
}

// Hold is another attempt's hold of a unit.
type Hold struct {
	State catalog.AttemptState
	Owner string
	// Remaining of its lease, or of its step's deadline.
	Remaining time.Duration
}

// Reserved is what a claim may hand out.
type Reserved struct {
	BatchID    uuid.UUID
	Collection catalog.Collection
	// Handed is what the same request was handed before, and still holds.
	Handed []Handed
	Due    []Due
	// Looked counts the units that were looked at, due or not.
	Looked int
}

// Opening is a claim's attempts, all of one request.
type Opening struct {
	Attempts []catalog.Attempt
	// Late units' open attempts, whose leases have ended, are ended first, and counted.
	Late []uuid.UUID
	// Mine are attempts that this very claim has made before.
	Mine  []uuid.UUID
	Lease time.Duration
}

// Due is a unit of a batch that is due.
type Due struct {
	UnitKey   uuid.UUID
	TileID    string
	Version   string
	Identity  json.RawMessage
	ClientKey string
	// Late: it has an open attempt whose lease has ended.
	Late bool
	// Tile is what is known of its row, whose object was found missing; nil for none.
	Tile *DueTile
}

// Handed is an attempt that a claim made.
type Handed struct {
	catalog.Attempt
	ClientKey string
}

// DueTile is what is known of a row whose object was found missing.
type DueTile struct {
	AttemptID          uuid.UUID
	StoreID, ObjectKey string
	SizeBytes          int64
	ETag               string
}

// Opened tells how Open ended. With neither Hold nor Replay nor Staged nor Raced
// the attempt was made.
type Opened struct {
	LeaseUntil time.Time
	Hold       *Hold
	Replay     *uuid.UUID
	// Staged: the staged file is another unit's attempt's.
	Staged bool
	// Raced: how the unit stands has changed since it was read: it has a row, a
	// name, has failed, or had a holder that ended just now.
	Raced bool
}

// Known is what the catalogue knows of one unit.
type Known struct {
	// Store, object, size and ETag of the row; "" for none.
	StoreID, ObjectKey string
	SizeBytes          int64
	ETag               string
	Lost, Withdrawn    bool
	// Unpublished: the row waits for its batch.
	Unpublished bool
	// Quarantined: the unit failed, and is not to be tried; Waiting: not yet.
	Quarantined, Waiting bool
	// Running: an attempt holds the unit and its lease has not ended.
	Running bool
	// NoCollection: there is none of the name that the unit came with.
	NoCollection bool
	// Current: the slot points to this unit; Pointed: it points to some unit.
	Current, Pointed bool

	// err of looking at the object.
	err error
}

// Failure says why an attempt ended without a row.
type Failure struct {
	Code    catalog.Code
	Class   catalog.Class
	Reason  string
	Message string
	// Spent: it spends a try.
	Spent bool
	// Jitter is the part of the pause's bound that the pause is to be, from 0 to 1.
	Jitter float64
}

// Removal is an intent to delete.
type Removal struct {
	ID                 int64
	StoreID, ObjectKey string
}

// SlotName names a slot.
type SlotName struct{ Collection, TileID string }

// Pointed is a slot and the object that it points to.
type Pointed struct {
	Collection, TileID string
	StoreID, ObjectKey string
}

// Settled is one page of a publication.
type Settled struct {
	Last  string
	Slots int
	Moved []Pointed
}

// Unlinked is a publication of a batch whose stable names were not all put right.
type Unlinked struct {
	Batch      uuid.UUID
	Collection string
	// From is its first move.
	From        int64
	PublishedAt time.Time
}
