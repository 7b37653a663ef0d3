package upsert

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

// UnitRef names a unit as a client does: by collection, tile id and identity,
// or by key alone.
type UnitRef struct {
	Key        uuid.UUID
	Collection string
	TileID     string
	Identity   json.RawMessage
	ClientKey  string
}

// BeginRequest asks whether a unit is done and, if not, for an attempt at it.
type BeginRequest struct {
	Unit      UnitRef // by identity, never by key alone
	Owner     string
	Try       int
	RequestID string
	// MediaType gives the output's name its extension; "" for the collection's.
	MediaType string
	Given     catalog.Given
}

// Verdict of a begin.
type Verdict string

const (
	VerdictSkip        Verdict = "skip"
	VerdictRun         Verdict = "run"
	VerdictWait        Verdict = "wait"
	VerdictQuarantined Verdict = "quarantined"
)

// Decision answers a begin.
type Decision struct {
	Verdict Verdict
	UnitKey uuid.UUID
	// Tile is the row, for skip.
	Tile *catalog.Tile
	// Attempt is the caller's, for run.
	Attempt *catalog.Attempt
	// StagingPath is where the task may write, when it shares the store's
	// filesystem with the server.
	StagingPath string
	// Tags are what the task should write into the output.
	Tags map[string]string
	// RetryAfter says when to ask again, for wait.
	RetryAfter time.Duration
	// Reason explains wait and quarantined.
	Reason string
}

// CompleteRequest hands a staged output over. Size and SHA256 (hexadecimal),
// where given, must match what is staged.
type CompleteRequest struct {
	Size   *int64
	SHA256 string
	Given  catalog.Given
}

// Outcome is how a step ended.
type Outcome struct {
	// State is done or overtaken. Either way Tile is the unit's row.
	State     catalog.AttemptState
	AttemptID uuid.UUID
	Tile      catalog.Tile
}

// OutputRequest is begin and complete in one, for a file that is already staged
// under .staging/in/.
type OutputRequest struct {
	Begin BeginRequest
	// Staged is the name below .staging/in/.
	Staged   string
	Complete CompleteRequest
}

// OutputResult answers an OutputRequest: skip or the outcome; wait and
// quarantined come as errors (unit_held, unit_quarantined).
type OutputResult struct {
	Skipped bool
	Outcome Outcome
}

// FailRequest reports that an attempt failed.
type FailRequest struct {
	// Class is transient, deterministic or "" when the task does not know.
	Class   string
	Reason  string
	Message string
}

// Lease is the state of one attempt after a heartbeat.
type Lease struct {
	AttemptID uuid.UUID
	// State is open or promoting while the attempt holds its unit; "" for an
	// attempt that is not known.
	State catalog.AttemptState
	// Until is the end of the lease, for an attempt that holds its unit.
	Until time.Time
}

// Status of a unit, as a check sees it.
type Status string

const (
	StatusDone        Status = "done"
	StatusStale       Status = "stale"
	StatusNew         Status = "new"
	StatusRunning     Status = "running"
	StatusQuarantined Status = "quarantined"
	StatusLost        Status = "lost"
)

// Statuses in the order in which totals are printed.
var Statuses = []Status{StatusDone, StatusStale, StatusNew, StatusRunning, StatusQuarantined, StatusLost}

// Checked is one unit's answer to a check.
type Checked struct {
	UnitKey uuid.UUID
	Status  Status
	// Due tells whether the unit should be run now.
	Due bool
	// Current tells whether the slot points to this unit.
	Current bool
	// ObjectKey of the row, where there is one.
	ObjectKey string
	// Err says why the unit could not be understood; nothing but UnitKey is set then.
	Err error
}

// Recovered sums up a recovery.
type Recovered struct {
	// RolledForward became rows; Overtaken found another row; Failed had nothing
	// to finish with; Unfinished must be looked at again.
	RolledForward, Overtaken, Failed, Unfinished int
	// Published counts publications that were finished.
	Published int
}

// Swept sums up a sweep.
type Swept struct {
	// Expired attempts; Attempts whose leftovers were removed; Objects and Bytes
	// removed; Relinked stable names; Kept files that are too young to judge.
	Expired, Attempts, Objects int
	Bytes                      int64
	Relinked, Kept             int
}

// Published sums up a publish.
type Published struct {
	Collection string
	Version    string
	Rank       int64
	// Moved slots; Slots looked at.
	Moved, Slots int
}
