package catalog

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// AttemptState is where an attempt stands. open and promoting hold the unit;
// every other state is final.
type AttemptState string

const (
	AttemptOpen      AttemptState = "open"
	AttemptPromoting AttemptState = "promoting"
	AttemptDone      AttemptState = "done"
	// AttemptOvertaken: another attempt's output became the unit's row first.
	AttemptOvertaken AttemptState = "overtaken"
	AttemptFailed    AttemptState = "failed"
	AttemptAbandoned AttemptState = "abandoned"
	// AttemptExpired: the lease ran out and the unit, or a sweep, took it.
	AttemptExpired AttemptState = "expired"
	// AttemptReplaced: the same owner came back with a higher try.
	AttemptReplaced AttemptState = "replaced"
)

// Ended tells whether the state is final.
func (s AttemptState) Ended() bool { return s != AttemptOpen && s != AttemptPromoting }

// Attempt is one try at one unit by one worker.
type Attempt struct {
	ID         uuid.UUID
	UnitKey    uuid.UUID
	Collection string
	TileID     string
	Version    string
	Identity   json.RawMessage
	// BatchID is the batch that it was begun for; nil for none.
	BatchID   *uuid.UUID
	RequestID string
	Owner     string
	Try       int
	State     AttemptState
	StoreID   string
	MediaType string
	// StagingKey is where the task writes; ObjectKey is the final name, this
	// attempt's own, written once.
	StagingKey string
	ObjectKey  string
	// Replaces is the attempt of the row whose object was found missing.
	Replaces   *uuid.UUID
	LeaseUntil time.Time
	// Given comes from begin and is completed by complete.
	Given Given
	// Intent is the whole future row; nil unless promoting.
	Intent       *Intent
	ErrorCode    Code
	ErrorMessage string
	CreatedAt    time.Time
	EndedAt      *time.Time
}

// Given is what the task says of its output, over what its tags say.
type Given struct {
	Acquired   Interval        `json:"acquired,omitzero"`
	Properties json.RawMessage `json:"properties,omitempty"`
}

// Intent is the future row, committed before the object gets its final name,
// and all that recovery needs to finish the step.
type Intent struct {
	// StagedKey is the file that was probed: the staging name, or catalogd's copy.
	StagedKey  string          `json:"staged_key"`
	SizeBytes  int64           `json:"size_bytes"`
	Checksum   string          `json:"checksum"`
	Driver     string          `json:"driver"`
	MediaType  string          `json:"media_type"`
	IsCOG      bool            `json:"is_cog"`
	CRS        string          `json:"crs,omitempty"`
	CRSWKT     string          `json:"crs_wkt,omitempty"`
	Transform  [6]float64      `json:"transform"`
	Width      int             `json:"width"`
	Height     int             `json:"height"`
	Bands      []Band          `json:"bands"`
	Layout     Layout          `json:"layout,omitzero"`
	Layers     []Layer         `json:"layers,omitempty"`
	Acquired   Interval        `json:"acquired,omitzero"`
	Properties json.RawMessage `json:"properties,omitempty"`
	// Footprint is EWKB; empty for none.
	Footprint []byte `json:"footprint,omitempty"`
}
