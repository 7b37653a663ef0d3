package catalog

import (
	"encoding/json"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/twpayne/go-geom"
)

// PublishWhen says when an output can become current.
type PublishWhen string

const (
	// PublishOnRegister: as it is registered.
	PublishOnRegister PublishWhen = "on_register"
	// PublishOnGate: together with its batch, when that passes its gate.
	PublishOnGate PublishWhen = "on_gate"
)

// Batch is a set of expected units of one collection, judged together.
type Batch struct {
	ID         uuid.UUID
	Name       string
	Collection string
	// Versions of its units, in alphabetical order; one, as a rule.
	Versions []string
	Expected int64
	// Publish is the collection's.
	Publish     PublishWhen
	PublishedAt *time.Time
	CreatedBy   string
	CreatedAt   time.Time
}

var batchName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:+@=-]*$`)

// MaxBatchName is the longest name of a batch, in bytes.
const MaxBatchName = 200

// CheckBatchName refuses a name that could not stand in a path. CodeInvalidRequest at field.
func CheckBatchName(name, field string) error {
	if len(name) > MaxBatchName || !batchName.MatchString(name) {
		return Errorf(CodeInvalidRequest, "batch name %q does not match [A-Za-z0-9][A-Za-z0-9._:+@=-]*, of at most %d", name, MaxBatchName).At(field)
	}
	return nil
}

// ExpectedUnit is a unit that a batch expects.
type ExpectedUnit struct {
	Unit
	// Geometry is where its output is to be, in WGS 84; nil where nobody said.
	Geometry geom.T
}

// BatchCounts says how the units of a batch stand; each counts once.
type BatchCounts struct {
	Expected    int64 `json:"expected"`
	Done        int64 `json:"done"`
	Running     int64 `json:"running"`
	Retrying    int64 `json:"retrying"`
	Quarantined int64 `json:"quarantined"`
	Lost        int64 `json:"lost"`
	Pending     int64 `json:"pending"`
}

// BatchFailure is one reason for which units of a batch fail.
type BatchFailure struct {
	Class  Class
	Reason string
	// Units whose last failure it is, and the Tries that they spent, attempts that ended
	// without a word included.
	Units, Tries int64
	// Example is the tile id of one, ExampleKey its unit key.
	Example    string
	ExampleKey uuid.UUID
	Last       time.Time
}

// BatchStatus is how a batch stands.
type BatchStatus struct {
	Batch
	Counts BatchCounts
	// Unpublished units are done, and their outputs wait for the batch.
	Unpublished int64
	Failures    []BatchFailure
	// Gate is the last; nil where none was run.
	Gate *Gate
}

// UnitStatus is how a unit of a batch stands.
type UnitStatus string

const (
	UnitDone        UnitStatus = "done"
	UnitRunning     UnitStatus = "running"
	UnitRetrying    UnitStatus = "retrying"
	UnitQuarantined UnitStatus = "quarantined"
	UnitLost        UnitStatus = "lost"
	UnitPending     UnitStatus = "pending"
)

// PendingUnit is a unit of a batch that is due.
type PendingUnit struct {
	UnitKey   uuid.UUID
	TileID    string
	Identity  json.RawMessage
	ClientKey string
	Status    UnitStatus // pending, retrying or lost
}

// GateState is where the judging of a batch stands.
type GateState string

const (
	GateQueued  GateState = "queued"
	GateRunning GateState = "running"
	GatePassed  GateState = "passed"
	GateFailed  GateState = "failed"
	// GateError: it could not be judged, and nothing is said of the batch.
	GateError GateState = "error"
)

// Ended tells whether the state is final.
func (s GateState) Ended() bool { return s != GateQueued && s != GateRunning }

// GateStorage says what of a batch is compared with its store.
type GateStorage string

const (
	// GateList: every output, by a listing.
	GateList GateStorage = "list"
	// GateSample: some, picked at random, one by one.
	GateSample GateStorage = "sample"
	GateNone   GateStorage = "none"
)

// GateReason is why a batch failed its gate.
type GateReason string

const (
	GateTooManyMissing     GateReason = "too_many_missing"
	GateTooManyQuarantined GateReason = "too_many_quarantined"
	// GateDisagreement: an output is lost, or done units differ in number from distinct
	// outputs in the store. It fails a batch whatever may be missing.
	GateDisagreement GateReason = "disagreement"
	// GateEmpty: nothing is expected, so that nothing can be judged good.
	GateEmpty GateReason = "empty"
)

// GateLimits are what a gate tolerates, and how it looks.
type GateLimits struct {
	// MaxMissingFrac is the share of the expected units that may be missing, from 0 to 1.
	MaxMissingFrac float64
	// MaxQuarantined is how many may be quarantined; nil for as many as may be missing.
	MaxQuarantined *int64
	Storage        GateStorage
	// SampleSize is how many outputs GateSample looks at.
	SampleSize int64
}

// Gate is one judgement of a batch.
type Gate struct {
	ID      uuid.UUID // its notification's too
	BatchID uuid.UUID
	Batch   string // its name
	GateLimits
	State     GateState
	Reasons   []GateReason
	Figures   GateFigures
	Offenders []Offender
	// ErrorCode and ErrorMessage say why it could not be judged.
	ErrorCode    Code
	ErrorMessage string
	AskedBy      string
	CreatedAt    time.Time
	StartedAt    *time.Time
	EndedAt      *time.Time
}

// GateFigures are what a gate judged by.
type GateFigures struct {
	BatchCounts
	// Missing is expected and not done; MissingFrac its share of the expected.
	Missing     int64   `json:"missing"`
	MissingFrac float64 `json:"missing_frac"`
	// LookedAt is how many outputs were looked for in the store; Outputs how many
	// distinct ones were there.
	LookedAt int64 `json:"looked_at"`
	Outputs  int64 `json:"outputs"`
	// Published is how many places point elsewhere now, where it passed and outputs
	// become current together.
	Published int64 `json:"published"`
}

// Offender is a unit that is missing from a batch.
type Offender struct {
	UnitKey uuid.UUID  `json:"unit_key"`
	TileID  string     `json:"tile_id"`
	Status  UnitStatus `json:"status"`
	// Reason of its last failure, or what is wrong with its output.
	Reason string `json:"reason"`
}
