package catalog

import "time"

// Totals are the catalogue's sizes for metrics, read from the records at each
// scrape. Beyond ten thousand, Tiles, Slots, QuarantinedUnits and RetryingUnits may be
// the planner's estimates; all else is exact.
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
}

// CountedBatch is how a batch stood when it was last counted.
type CountedBatch struct {
	Name, Collection string
	Counts           BatchCounts
	CountedAt        time.Time
}
