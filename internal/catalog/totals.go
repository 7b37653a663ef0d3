package catalog

// Totals are the catalogue's sizes for metrics, read from the records at each
// scrape. Tiles and Slots may be the planner's estimates; the others are exact.
type Totals struct {
	Tiles int64
	Slots int64
	// OpenAttempts and PromotingAttempts hold a unit now.
	OpenAttempts      int64
	PromotingAttempts int64
	// LostTiles are rows whose object was found missing.
	LostTiles int64
}
