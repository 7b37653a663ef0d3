package catalog

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Class says whether trying a failed unit again can help.
type Class string

const (
	ClassTransient     Class = "transient"
	ClassDeterministic Class = "deterministic"
)

// RetryPolicy says how often, and when, a unit that failed is tried again. One without
// Cap stands for DefaultRetryPolicy.
type RetryPolicy struct {
	// MaxRetries after transient failures; one more failure quarantines the unit.
	MaxRetries int
	// Base bounds the pause after the first failure, and doubles with each further one;
	// Cap bounds them all. The pause is drawn evenly from 0 to its bound, so that what
	// failed together does not come back together.
	Base, Cap time.Duration
	// MaxExpiries is how many attempts may end without a word; one more quarantines the unit.
	MaxExpiries int
	// Rules give classes to reasons; the first that matches counts.
	Rules []FailureRule
	// OutageFrac is the share of a batch above which units that fail for one transient
	// reason, MinOutage at least, spend no tries.
	OutageFrac float64
}

// MinOutage is how many units of a batch must fail for one reason before that can be
// nothing of theirs.
const MinOutage = 10

// DefaultRetryPolicy is that of collections which say nothing else.
var DefaultRetryPolicy = RetryPolicy{MaxRetries: 3, Base: 30 * time.Second, Cap: time.Hour, MaxExpiries: 10, OutageFrac: 0.05}

// OrDefault is the policy that p stands for.
func (p RetryPolicy) OrDefault() RetryPolicy {
	if p.Cap == 0 {
		return DefaultRetryPolicy
	}
	return p
}

// FailureRule gives failures of one reason a class. In Reason, * stands for any text
// and ? for any character.
type FailureRule struct {
	Reason string `json:"reason"`
	Class  Class  `json:"class"`
}

// Matches tells whether the rule is about this reason.
func (r FailureRule) Matches(reason string) bool {
	pattern := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(r.Reason))
	matched, _ := regexp.MatchString(`(?s)^`+pattern+`$`, reason) // quoted, it is a pattern always
	return matched
}

// Failure is what is known of why an attempt failed. All but one of Reason, HTTPStatus
// and Exception may be left out.
type Failure struct {
	Class      Class
	Reason     string
	HTTPStatus int
	// Exception is its qualified name: rasterio.errors.CRSError.
	Exception string
}

// Named is the failure with a reason: its own, else the HTTP status, else the exception.
func (f Failure) Named() Failure {
	switch {
	case f.Reason != "":
	case f.HTTPStatus != 0:
		f.Reason = fmt.Sprintf("http_%d", f.HTTPStatus)
	default:
		f.Reason = strings.TrimPrefix(f.Exception, "builtins.")
	}
	return f
}

// Classify tells whether a failure would come again: as the task says, else as the
// first of the rules that match its reason, else by its HTTP status, its exception, or
// the probe's refusal that is its reason. What nobody knows may pass.
func Classify(f Failure, rules []FailureRule) Class {
	f = f.Named()
	if f.Class != "" {
		return f.Class
	}
	for _, rule := range rules {
		if rule.Matches(f.Reason) {
			return rule.Class
		}
	}
	status := f.HTTPStatus
	if digits, ok := strings.CutPrefix(f.Reason, "http_"); ok && status == 0 {
		status, _ = strconv.Atoi(digits) // 0 for none
	}
	switch {
	case status == 408, status == 425, status == 429, status >= 500 && status < 600:
		return ClassTransient
	case status >= 400 && status < 500:
		return ClassDeterministic
	}
	exception := f.Exception
	if exception == "" {
		exception = f.Reason
	}
	if recurs(exception) || slices.Contains(refusals, Code(f.Reason)) {
		return ClassDeterministic
	}
	return ClassTransient
}

// recurs tells whether the exception of this name is about the data, or the code: it
// would be raised again. Those about files, connections, time and memory are not, nor
// are their kinds in libraries, such as RasterioIOError.
func recurs(exception string) bool {
	name := exception[strings.LastIndexAny(exception, ".:")+1:]
	return slices.Contains(recurring, name) || slices.ContainsFunc(recurringSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

var (
	recurring = []string{
		"ArithmeticError", "AssertionError", "AttributeError", "FloatingPointError", "IndexError", "KeyError", "LookupError", "NameError",
		"NotImplementedError", "OverflowError", "PoisonTile", "TypeError", "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError",
		"UnicodeError", "ValueError", "ZeroDivisionError",
		"GEOSException", "InvalidArrayError", "JSONDecodeError", "TopologicalError", "TopologyException",
		"TransformError", "ValidationError", "WindowError",
		"bad_crs", "invalid_geometry", "missing_band",
	}
	recurringSuffixes = []string{"BandError", "CRSError", "GeometryError", "ProjError", "ShapeError"}
)

// refusals are the probe's: the same bytes would be refused again.
var refusals = []Code{
	CodeEmptyOutput, CodeNotARaster, CodeDriverRefused, CodeTruncated, CodeSparse, CodeNoCRS, CodeNoFootprint,
	CodeIdentityMismatch, CodeMediaType, CodeSidecar, CodeProbeFailed,
}

// Quarantine is why a unit is not tried again until somebody releases it.
type Quarantine string

const (
	QuarantinedDeterministic Quarantine = "deterministic"
	// QuarantinedExhausted: it failed once more than it may be retried.
	QuarantinedExhausted Quarantine = "exhausted"
	// QuarantinedExpired: too many of its attempts ended without a word.
	QuarantinedExpired Quarantine = "expired"
)

// Retry is how a unit stands that failed, or whose leases ran out, since it last
// succeeded or was released.
type Retry struct {
	// Tries are failures that spent one; Expiries attempts that ended without a word.
	Tries, Expiries int
	// Class and what follows are of the last failure.
	Class                   Class
	Reason, Message, Worker string
	FirstFailedAt           time.Time
	LastFailedAt            time.Time
	// DueAt is when it may be tried again, unless it is quarantined.
	DueAt         time.Time
	QuarantinedAs Quarantine // "" for none
	QuarantinedAt *time.Time
}

// QuarantinedUnit is a unit that is not tried again until it is released.
type QuarantinedUnit struct {
	UnitKey    uuid.UUID
	Collection string
	TileID     string
	Version    string
	Identity   json.RawMessage
	Retry
}

// FailedAttempt is one failure of a unit, as it was recorded. Class is "" where nobody
// judged it.
type FailedAttempt struct {
	AttemptID               uuid.UUID
	Class                   Class
	Reason, Message, Worker string
	// Spent tells whether it spent a try.
	Spent    bool
	FailedAt time.Time
}

// QuarantineFilter picks quarantined units: those for which all that is given holds.
type QuarantineFilter struct {
	Units      []uuid.UUID
	Collection string
	Class      Class
	// Reason in which * stands for any text and ? for any character.
	Reason string
	// Batch, by name, that expects them.
	Batch string
}

// Picks tells whether anything is given.
func (f QuarantineFilter) Picks() bool {
	return len(f.Units) > 0 || f.Collection != "" || f.Class != "" || f.Reason != "" || f.Batch != ""
}

// String is the filter in words, for the audit.
func (f QuarantineFilter) String() string {
	var words []string
	for _, given := range []struct{ name, value string }{{"collection", f.Collection}, {"batch", f.Batch}, {"class", string(f.Class)}, {"reason", f.Reason}} {
		if given.value != "" {
			words = append(words, given.name+" "+given.value)
		}
	}
	switch len(f.Units) {
	case 0:
	case 1:
		words = append(words, "unit "+f.Units[0].String())
	default:
		words = append(words, fmt.Sprintf("%d units", len(f.Units)))
	}
	return strings.Join(words, ", ")
}
