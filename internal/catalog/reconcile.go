package catalog

import (
	"regexp"
	"time"

	"github.com/google/uuid"
)

// FindingKind is what should not be.
type FindingKind string

const (
	// FindingOrphan: an object without a row.
	FindingOrphan FindingKind = "orphan"
	// FindingLost: a row without its object.
	FindingLost FindingKind = "lost"
	// FindingMismatch: an object that is not what its row says.
	FindingMismatch FindingKind = "mismatch"
	// FindingStaging: a staged object of an attempt that has ended.
	FindingStaging FindingKind = "stale_staging"
	// FindingUpload: an upload in parts of an attempt that has ended.
	FindingUpload FindingKind = "abandoned_upload"
)

// FindingKinds are all, in the order in which they are shown.
func FindingKinds() []FindingKind {
	return []FindingKind{FindingOrphan, FindingLost, FindingMismatch, FindingStaging, FindingUpload}
}

// FindingState is where a finding stands across runs.
type FindingState string

const (
	// FindingYoung: an object that is not catalogd's, and was not seen for long enough.
	FindingYoung    FindingState = "young"
	FindingOpen     FindingState = "open"
	FindingResolved FindingState = "resolved"
)

// Finding is one thing that should not be. Kind and object key are its identity.
type Finding struct {
	ID        int64
	StoreID   string
	Store     string // its name
	Kind      FindingKind
	ObjectKey string
	State     FindingState
	// UnitKey and AttemptID are those of the row that it is about; of an orphan,
	// AttemptID is the attempt whose name it bears. Nil for none.
	UnitKey, AttemptID *uuid.UUID
	// Reason is what differs of a mismatch: size, etag, checksum.
	Reason string
	// SizeBytes is the object's; of a lost one, what it should be.
	SizeBytes int64
	// ExpectedBytes is the size by the row.
	ExpectedBytes *int64
	// Current tells whether a place points to the output.
	Current               bool
	FirstSeen, LastSeen   time.Time
	ResolvedAt            *time.Time
	LastRun               int64
	OpenedRun, ResolvedIn *int64
}

// RunState is where a reconciliation stands.
type RunState string

const (
	RunRunning RunState = "running"
	// RunComplete: both sides were read to their end.
	RunComplete RunState = "complete"
	// RunIncomplete: nothing may be concluded from what was not seen.
	RunIncomplete RunState = "incomplete"
	RunCanceled   RunState = "canceled"
)

// RunSource is whose listing a run compares with.
type RunSource string

const (
	RunStore   RunSource = "store"
	RunListing RunSource = "listing"
)

// RunFigures count what a run compared. Objects is the sum of Matched, Mismatched,
// Orphans, Young, InFlight and Unknown; Rows that of Matched, Mismatched, Lost,
// RowsInFlight and RowsUnknown.
type RunFigures struct {
	Objects     int64 `json:"objects"`
	ObjectBytes int64 `json:"object_bytes"`
	Rows        int64 `json:"rows"`
	Matched     int64 `json:"matched"`
	Mismatched  int64 `json:"mismatched"`
	Orphans     int64 `json:"orphans"`
	// Young objects are not catalogd's, and were not seen for long enough.
	Young int64 `json:"young"`
	Lost  int64 `json:"lost"`
	// InFlight objects are covered by an attempt or a removal, or were gone when they
	// were looked at again; rows are those written, or replaced, meanwhile.
	InFlight     int64 `json:"in_flight"`
	RowsInFlight int64 `json:"rows_in_flight"`
	// Unknown is what the store did not tell of.
	Unknown     int64 `json:"unknown"`
	RowsUnknown int64 `json:"rows_unknown"`
	// Staged and Uploads are what is in staging, and unfinished uploads, wanted or not.
	Staged  int64 `json:"staged"`
	Uploads int64 `json:"uploads"`
	// Relinked counts stable names that were put right.
	Relinked int64 `json:"relinked"`
}

// Add sums figures.
func (f *RunFigures) Add(g RunFigures) {
	f.Objects += g.Objects
	f.ObjectBytes += g.ObjectBytes
	f.Rows += g.Rows
	f.Matched += g.Matched
	f.Mismatched += g.Mismatched
	f.Orphans += g.Orphans
	f.Young += g.Young
	f.Lost += g.Lost
	f.InFlight += g.InFlight
	f.RowsInFlight += g.RowsInFlight
	f.Unknown += g.Unknown
	f.RowsUnknown += g.RowsUnknown
	f.Staged += g.Staged
	f.Uploads += g.Uploads
	f.Relinked += g.Relinked
}

// KindCount is how many findings of a kind there are after a run.
type KindCount struct {
	Kind FindingKind `json:"kind"`
	// New became open in the run; Open are open, the new ones among them; Resolved were
	// found by earlier runs, and are not so any more.
	New      int64  `json:"new"`
	Open     int64  `json:"open"`
	Resolved int64  `json:"resolved"`
	Bytes    int64  `json:"bytes"` // of the open ones
	Example  string `json:"example,omitempty"`
}

// Run is one reconciliation of a store.
type Run struct {
	ID      int64
	StoreID string
	Store   string // its name
	// Prefix of the keys that are compared; "" for all.
	Prefix string
	Source RunSource
	// MinAge is how long an object that is not catalogd's must have been seen before it
	// is a finding. Settle is how long after it was missing first an object is looked
	// for again.
	MinAge, Settle time.Duration
	State          RunState
	AskedBy        string
	CreatedAt      time.Time
	EndedAt        *time.Time
	Figures        RunFigures
	Kinds          []KindCount
	// Parts and PartsEnded tell how far it has come; AtKey is the last key, where there
	// is one part. ExpectedRows is about how many rows there are to compare.
	Parts, PartsEnded int
	AtKey             string
	ExpectedRows      int64
	ErrorCode         Code
	ErrorMessage      string
}

// Open tells how many findings are open after the run.
func (r Run) Open() (n int64) {
	for _, k := range r.Kinds {
		n += k.Open
	}
	return n
}

// RunPart is a range of keys, or what ended attempts left, compared by one server.
type RunPart struct {
	Run  int64
	Part int
	Kind PartKind
	// From is the first key, To the one before which it ends; "" for no bound.
	From, To string
}

// PartKind is what a part of a run looks at.
type PartKind string

const (
	PartKeys PartKind = "keys"
	// PartLeftovers: staging, unfinished uploads, and stable names.
	PartLeftovers PartKind = "leftovers"
)

// ActKind is what a plan does about a finding.
type ActKind string

const (
	// ActRedo has the unit made again: an object that is not what it should be is moved
	// to the trash.
	ActRedo ActKind = "redo"
	// ActAdopt gives an object without a row one.
	ActAdopt ActKind = "adopt"
	// ActTrash moves an object to the trash.
	ActTrash ActKind = "trash"
	// ActLeave does nothing.
	ActLeave ActKind = "leave"
)

// PlanChoices are what a plan is to do, by kind.
type PlanChoices struct {
	Lost     ActKind `json:"lost"`     // redo or leave
	Mismatch ActKind `json:"mismatch"` // redo or leave
	Orphan   ActKind `json:"orphan"`   // trash, adopt or leave
}

// PlanState is where a plan stands.
type PlanState string

const (
	PlanPlanned  PlanState = "planned"
	PlanApplying PlanState = "applying"
	PlanApplied  PlanState = "applied"
	// PlanRefused: the store was away, or too much would have changed.
	PlanRefused PlanState = "refused"
)

// Plan is what is to be done about a run's findings.
type Plan struct {
	ID      int64
	RunID   int64
	StoreID string
	Store   string // its name
	State   PlanState
	Choices PlanChoices
	// Catalogued is how many outputs the store had: what a share is of.
	Catalogued int64
	PlannedBy  string
	CreatedAt  time.Time
	AppliedBy  string
	Why        string
	MaxChange  float64
	StartedAt  *time.Time
	EndedAt    *time.Time
	// Counts are its acts by kind and state.
	Counts       []ActCount
	ErrorCode    Code
	ErrorMessage string
}

// Acts counts all.
func (p Plan) Acts() (n int64) {
	for _, c := range p.Counts {
		n += c.Acts
	}
	return n
}

// Share is how much of the store's outputs it would change.
func (p Plan) Share() float64 { return float64(p.Acts()) / float64(max(p.Catalogued, 1)) }

// ActCount is how many acts of a kind stand so.
type ActCount struct {
	Act   ActKind  `json:"act"`
	State ActState `json:"state"`
	Acts  int64    `json:"acts"`
	Bytes int64    `json:"bytes"`
}

// ActState is where an act stands.
type ActState string

const (
	ActPlanned ActState = "planned"
	ActDone    ActState = "done"
	// ActLeft: it was not so any more, or could not be done; Outcome says why.
	ActLeft ActState = "left"
)

// Act is one act of a plan.
type Act struct {
	No        int
	Act       ActKind
	FindingID int64
	Kind      FindingKind
	ObjectKey string
	// UnitKey and AttemptID are those of the row: of another one nothing is done.
	UnitKey, AttemptID *uuid.UUID
	SizeBytes          int64
	State              ActState
	Outcome            string
	DoneAt             *time.Time
}

// Trashed is an object in the trash.
type Trashed struct {
	ID        int64
	StoreID   string
	Store     string // its name
	ObjectKey string // where it was
	TrashKey  string // where it is
	SizeBytes int64
	Reason    string
	By        string
	At        time.Time
	ExpiresAt time.Time
}

// ParseFinalName tells which collection, tile id and attempt (the last 12 hexadecimal
// digits, and the first 12 of the unit's) an object's name is made of, if it is made as
// FinalName makes them.
func ParseFinalName(key string) (n FinalNameParts, ok bool) {
	m := finalName.FindStringSubmatch(key)
	if m == nil || checkCollectionID(m[1], "") != nil || CheckTileID(m[2]) != nil {
		return n, false
	}
	return FinalNameParts{Collection: m[1], TileID: m[2], Unit: m[3], Attempt: m[4], Ext: m[5]}, true
}

// FinalNameParts are what a final name is made of.
type FinalNameParts struct{ Collection, TileID, Unit, Attempt, Ext string }

var finalName = regexp.MustCompile(`^([^/]+)/(.+)\.([0-9a-f]{12})\.([0-9a-f]{12})(\.[a-z0-9]+)?$`)

// FindingQuery picks findings; zero members pick all.
type FindingQuery struct {
	StoreID string
	Kind    FindingKind
	// State: "" for those that are not resolved.
	State FindingState
	// Prefix of the object key.
	Prefix string
	// After is the id of the last finding of the page before.
	After int64
	Limit int
}

// Scrub is how far the checksums of a store's outputs have been read again.
type Scrub struct {
	StoreID string
	Store   string // its name
	// AtKey is the last output that was read, in the present round.
	AtKey              string
	LapBegan           time.Time
	LapEnded, RanAt    *time.Time
	Verified, Bytes    int64 // outputs and bytes read, ever
	Bad                int64 // outputs whose checksum was not that of their row, ever
	Outputs, Remaining int64 // of the store; of them, after AtKey
}
