package catalog

import (
	"errors"
	"fmt"
	"net/http"
	"sort"
)

// Code names one kind of problem. It is stable: clients branch on it. Each is
// listed in docs/problems.md with what to do about it.
type Code string

const (
	// Requests.
	CodeInvalidRequest      Code = "invalid_request"
	CodeInvalidCollection   Code = "invalid_collection"
	CodeInvalidIdentity     Code = "invalid_identity"
	CodeInvalidTileID       Code = "invalid_tile_id"
	CodeInvalidMediaType    Code = "invalid_media_type"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeForbidden           Code = "forbidden"
	CodeNotFound            Code = "not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeTooLarge            Code = "too_large"
	CodeUnsupportedType     Code = "unsupported_media_type"
	CodeRangeNotSatisfiable Code = "range_not_satisfiable"
	CodePreconditionFailed  Code = "precondition_failed"

	// Catalogue state.
	CodeUnknownCollection  Code = "unknown_collection"
	CodeCollectionExists   Code = "collection_exists"
	CodeCollectionNotEmpty Code = "collection_not_empty"
	CodeUnknownVersion     Code = "unknown_version"
	CodeUnknownAttempt     Code = "unknown_attempt"
	CodeKeyCollision       Code = "key_collision"
	CodeUnitHeld           Code = "unit_held"
	CodeUnitQuarantined    Code = "unit_quarantined"
	CodeAttemptLost        Code = "attempt_lost"
	CodeAttemptEnded       Code = "attempt_ended"
	CodeAttemptPromoting   Code = "attempt_promoting"
	CodeTokenExists        Code = "token_exists"
	CodeUnknownBatch       Code = "unknown_batch"
	CodeBatchExists        Code = "batch_exists"
	CodeNotInBatch         Code = "not_in_batch"
	CodeUnknownStore       Code = "unknown_store"
	CodeUnknownRun         Code = "unknown_run"
	CodeRunUnderWay        Code = "run_under_way"
	CodeRunNotComplete     Code = "run_not_complete"
	CodeUnknownPlan        Code = "unknown_plan"
	CodePlanApplied        Code = "plan_applied"
	CodeTooMuchChange      Code = "too_much_change"

	// The staged output.
	CodeStagedMissing    Code = "staged_missing"
	CodeStagedForbidden  Code = "staged_forbidden"
	CodeStagedUnreadable Code = "staged_unreadable"
	CodeStagedLinked     Code = "staged_linked"
	CodeStagedChanged    Code = "staged_changed"
	CodeStagedInUse      Code = "staged_in_use"
	CodeSizeMismatch     Code = "size_mismatch"
	CodeChecksumMismatch Code = "checksum_mismatch"
	CodeEmptyOutput      Code = "empty_output"
	CodeNotARaster       Code = "not_a_raster"
	CodeDriverRefused    Code = "driver_refused"
	CodeTruncated        Code = "truncated"
	CodeSparse           Code = "sparse"
	CodeNoCRS            Code = "no_crs"
	CodeNoFootprint      Code = "no_footprint"
	CodeIdentityMismatch Code = "identity_mismatch"
	CodeMediaType        Code = "media_type_mismatch"
	CodeSidecar          Code = "sidecar"

	// Resources.
	CodeCrossDevice         Code = "cross_device"
	CodeStoreFull           Code = "store_full"
	CodeStoreReadOnly       Code = "store_read_only"
	CodeStoreForbidden      Code = "store_forbidden"
	CodeFsyncFailed         Code = "fsync_failed"
	CodeStoreUnavailable    Code = "store_unavailable"
	CodeDatabaseReadOnly    Code = "database_read_only"
	CodeDatabaseUnavailable Code = "database_unavailable"
	CodeProbeFailed         Code = "probe_failed"
	CodeProbeUnavailable    Code = "probe_unavailable"
	CodeOutcomeUnknown      Code = "outcome_unknown"
	CodeBusy                Code = "busy"
	CodeInternal            Code = "internal"
)

// status gives each code its one HTTP status.
var status = map[Code]int{
	CodeInvalidRequest:      http.StatusBadRequest,
	CodeInvalidCollection:   http.StatusBadRequest,
	CodeInvalidIdentity:     http.StatusBadRequest,
	CodeInvalidTileID:       http.StatusBadRequest,
	CodeInvalidMediaType:    http.StatusBadRequest,
	CodeUnauthenticated:     http.StatusUnauthorized,
	CodeForbidden:           http.StatusForbidden,
	CodeNotFound:            http.StatusNotFound,
	CodeMethodNotAllowed:    http.StatusMethodNotAllowed,
	CodeTooLarge:            http.StatusRequestEntityTooLarge,
	CodeUnsupportedType:     http.StatusUnsupportedMediaType,
	CodeRangeNotSatisfiable: http.StatusRequestedRangeNotSatisfiable,
	CodePreconditionFailed:  http.StatusPreconditionFailed,

	CodeUnknownCollection:  http.StatusNotFound,
	CodeCollectionExists:   http.StatusConflict,
	CodeCollectionNotEmpty: http.StatusConflict,
	CodeUnknownVersion:     http.StatusNotFound,
	CodeUnknownAttempt:     http.StatusNotFound,
	CodeKeyCollision:       http.StatusConflict,
	CodeUnitHeld:           http.StatusConflict,
	CodeUnitQuarantined:    http.StatusConflict,
	CodeAttemptLost:        http.StatusConflict,
	CodeAttemptEnded:       http.StatusConflict,
	CodeAttemptPromoting:   http.StatusConflict,
	CodeTokenExists:        http.StatusConflict,
	CodeUnknownBatch:       http.StatusNotFound,
	CodeBatchExists:        http.StatusConflict,
	CodeNotInBatch:         http.StatusConflict,
	CodeUnknownStore:       http.StatusNotFound,
	CodeUnknownRun:         http.StatusNotFound,
	CodeRunUnderWay:        http.StatusConflict,
	CodeRunNotComplete:     http.StatusConflict,
	CodeUnknownPlan:        http.StatusNotFound,
	CodePlanApplied:        http.StatusConflict,
	CodeTooMuchChange:      http.StatusConflict,

	CodeStagedMissing:    http.StatusUnprocessableEntity,
	CodeStagedForbidden:  http.StatusUnprocessableEntity,
	CodeStagedUnreadable: http.StatusUnprocessableEntity,
	CodeStagedLinked:     http.StatusUnprocessableEntity,
	CodeStagedChanged:    http.StatusUnprocessableEntity,
	CodeStagedInUse:      http.StatusConflict,
	CodeSizeMismatch:     http.StatusUnprocessableEntity,
	CodeChecksumMismatch: http.StatusUnprocessableEntity,
	CodeEmptyOutput:      http.StatusUnprocessableEntity,
	CodeNotARaster:       http.StatusUnprocessableEntity,
	CodeDriverRefused:    http.StatusUnprocessableEntity,
	CodeTruncated:        http.StatusUnprocessableEntity,
	CodeSparse:           http.StatusUnprocessableEntity,
	CodeNoCRS:            http.StatusUnprocessableEntity,
	CodeNoFootprint:      http.StatusUnprocessableEntity,
	CodeIdentityMismatch: http.StatusUnprocessableEntity,
	CodeMediaType:        http.StatusUnprocessableEntity,
	CodeSidecar:          http.StatusUnprocessableEntity,

	CodeCrossDevice:         http.StatusInternalServerError,
	CodeStoreFull:           http.StatusInsufficientStorage,
	CodeStoreReadOnly:       http.StatusServiceUnavailable,
	CodeStoreForbidden:      http.StatusServiceUnavailable,
	CodeFsyncFailed:         http.StatusInternalServerError,
	CodeStoreUnavailable:    http.StatusServiceUnavailable,
	CodeDatabaseReadOnly:    http.StatusServiceUnavailable,
	CodeDatabaseUnavailable: http.StatusServiceUnavailable,
	CodeProbeFailed:         http.StatusUnprocessableEntity,
	CodeProbeUnavailable:    http.StatusServiceUnavailable,
	CodeOutcomeUnknown:      http.StatusServiceUnavailable,
	CodeBusy:                http.StatusServiceUnavailable,
	CodeInternal:            http.StatusInternalServerError,
}

// Status is the HTTP status of a code; 500 for one that is not known.
func (c Code) Status() int {
	if s, ok := status[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Codes lists every code in alphabetical order.
func Codes() []Code {
	out := make([]Code, 0, len(status))
	for c := range status {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// Error is a problem that a client may see. Message says what is wrong and
// what to do about it; Field is the JSON pointer, parameter or header at fault,
// where there is one. Err is the cause, for the log only: it never reaches a
// client.
type Error struct {
	Code    Code
	Field   string
	Message string
	Err     error
}

func (e *Error) Error() string {
	s := string(e.Code)
	if e.Field != "" {
		s += " at " + e.Field
	}
	s += ": " + e.Message
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error without a cause.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// At names the field at fault and returns e.
func (e *Error) At(field string) *Error {
	e.Field = field
	return e
}

// Because records the cause and returns e.
func (e *Error) Because(err error) *Error {
	e.Err = err
	return e
}

// CodeOf finds the code of err: CodeInternal where err is no Error.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// IsCode tells whether err is, or wraps, an Error with this code.
func IsCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
