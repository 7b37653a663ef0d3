package upsert

import (
	"encoding/json"
	"net/http"
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
	// Batch that it is begun for, by name, which must expect the unit; "" for none.
	Batch string
}

// ClaimRequest asks for units of a batch that are due.
type ClaimRequest struct {
	Batch string // by name
	Max   int
	Owner string
	// RequestID makes a replay return what was handed out.
	RequestID string
	// MediaType of the outputs; "" for the collection's.
	MediaType string
}

// Claimed answers a claim.
type Claimed struct {
	Units []ClaimedUnit
	// Left tells whether more units are, or will be, due; RetryAfter when to ask.
	Left       bool
	RetryAfter time.Duration
}

// ClaimedUnit is a unit that is handed out; its Decision is to run.
type ClaimedUnit struct {
	Collection, TileID string
	Identity           json.RawMessage
	ClientKey          string
	Decision
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
	// filesystem with the server; StagingURI where one with credentials of its own
	// may, s3://…. A store has one of the two.
	StagingPath, StagingURI string
	// Tags are what the task should write into the output.
	Tags map[string]string
	// RetryAfter says when to ask again, for wait.
	RetryAfter time.Duration
	// Reason explains wait. For quarantined it is the last failure's, whose Class and
	// Message are here too; "withdrawn" for an output that an operator took back.
	Reason  string
	Class   catalog.Class
	Message string
}

// UploadRequest asks for requests that send an output straight to its store.
type UploadRequest struct {
	Size int64
	// SHA256 is hexadecimal; the store then checks what comes in one request.
	SHA256 string
	// PartSize is above which an output goes up in parts, of that size; 0 for what
	// the server thinks best.
	PartSize int64
	// UploadID of an upload whose requests are wanted anew; "" for a new one.
	UploadID string
	// Replace takes the place of what the attempt has staged already.
	Replace bool
}

// Upload is how an output gets to its store: each request has the next PartSize bytes,
// the last what is left.
type Upload struct {
	// ID of an upload in parts; "" for one in one request.
	ID       string
	PartSize int64
	// Requests in order; none where the store lets nobody in, and the server takes the
	// bytes.
	Requests  []*http.Request
	ExpiresAt time.Time
}

// Uploaded is an upload in parts that was sent; ETags are the answers', in order.
type Uploaded struct {
	ID    string
	ETags []string
}

// CompleteRequest hands a staged output over. Size and SHA256 (hexadecimal),
// where given, must match what is staged.
type CompleteRequest struct {
	Size   *int64
	SHA256 string
	// Upload, if set, becomes what is staged first.
	Upload *Uploaded
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
	catalog.Failure
	// Message is for people.
	Message string
}

// Failed answers a failure: when its unit is due again, or that it is quarantined.
type Failed struct {
	AttemptID, UnitKey uuid.UUID
	Class              catalog.Class
	Reason             string
	// Tries of the unit that are spent; Spent tells whether this failure spent one, as
	// none does while its store is away.
	Tries int
	Spent bool
	// RetryAfter is how long it is until the unit is due, unless it is quarantined.
	RetryAfter    time.Duration
	QuarantinedAs catalog.Quarantine // "" for none
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
	// removed; Uploads aborted; Relinked stable names; Kept files that are too young to
	// judge.
	Expired, Attempts, Objects int
	Bytes                      int64
	Uploads, Relinked, Kept    int
}

// Published sums up a publish.
type Published struct {
	Collection string
	Version    string
	Rank       int64
	// Moved slots; Slots looked at.
	Moved, Slots int
}

// BatchPublished sums up the publishing of a batch.
type BatchPublished struct {
	// Published outputs could not become current before; Moved places point elsewhere now.
	Published, Moved int64
}
