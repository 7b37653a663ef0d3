package catalog

import "time"

// Totals are the catalogue's sizes for metrics, read from the records at each
// scrape. Beyond ten thousand, Tiles, Slots, QuarantinedUnits and RetryingUnits may be
// the planner's estimates; beyond a hundred thousand, a store's findings are those of its
// last complete run, and its trash holds no more. All else is exact.
type Totals struct {
	Tiles int64
	Slots int64
	// OpenAttempts and PromotingAttempts hold a unit now.
	OpenAttempts      int64
	PromotingAttempts int64
	// LostTiles are rows whose object was found missing.
	LostTiles int64
	// QuarantinedUnits wait for somebody to release them; RetryingUnits failed, and are
	// tried again.
	QuarantinedUnits, RetryingUnits int64
	// Batches are the newest, as they were last counted.
	Batches []CountedBatch
	// Stores are those that the server uses.
	Stores []StoreTotals
}

// StoreTotals are what reconciliation and scrubs know of a store.
type StoreTotals struct {
	Store string // its name
	// CompleteAt is when the last complete run of the whole store ended, and CompleteTook
	// how long it took; nil before there is one.
	CompleteAt   *time.Time
	CompleteTook time.Duration
	// Incomplete tells whether the last run of the whole store that was not canceled
	// ended so.
	Incomplete bool
	// Findings that are open, of every kind.
	Findings                 []FindingTotals
	TrashObjects, TrashBytes int64
	// Scrub is how far the store's checksums were read; zero before the first.
	Scrub Scrub
}

// FindingTotals counts open findings.
type FindingTotals struct {
	Kind           FindingKind
	Objects, Bytes int64
}

// CountedBatch is how a batch stood when it was last counted.
type CountedBatch struct {
	Name, Collection string
	Counts           BatchCounts
	CountedAt        time.Time
	// GateError: its last gate could not be judged.
	GateError bool
}
