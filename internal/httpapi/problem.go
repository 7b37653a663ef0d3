package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5/middleware"

	"catalogd/internal/catalog"
)

// titles say what each code means. docs/problems.md repeats them and says what
// to do; a test holds the two, and the contract, together.
var titles = map[catalog.Code]string{
	catalog.CodeInvalidRequest:      "The request is not what the contract says",
	catalog.CodeInvalidCollection:   "The collection, or its id, is not valid",
	catalog.CodeInvalidIdentity:     "The identity is not valid",
	catalog.CodeInvalidTileID:       "The tile id is not valid",
	catalog.CodeInvalidMediaType:    "The output's media type is not supported",
	catalog.CodeUnauthenticated:     "No token, or one that does not work",
	catalog.CodeForbidden:           "The token's role does not allow this",
	catalog.CodeNotFound:            "There is nothing here",
	catalog.CodeMethodNotAllowed:    "This path does not take this method",
	catalog.CodeTooLarge:            "The body is too large",
	catalog.CodeUnsupportedType:     "The body's media type is not taken here",
	catalog.CodeRangeNotSatisfiable: "The range lies outside the output",
	catalog.CodePreconditionFailed:  "The condition that was sent does not hold",

	catalog.CodeUnknownCollection:  "There is no such collection",
	catalog.CodeCollectionExists:   "A collection has this id already",
	catalog.CodeCollectionNotEmpty: "The collection is not empty",
	catalog.CodeUnknownVersion:     "The collection has no such version",
	catalog.CodeUnknownBatch:       "There is no such batch",
	catalog.CodeBatchExists:        "A batch of another collection has this name",
	catalog.CodeNotInBatch:         "The batch does not expect this unit",
	catalog.CodeUnknownAttempt:     "There is no such attempt",
	catalog.CodeKeyCollision:       "The key stands for another identity",
	catalog.CodeUnitHeld:           "Another attempt holds the unit",
	catalog.CodeUnitQuarantined:    "The unit is quarantined",
	catalog.CodeAttemptLost:        "The attempt lost its unit to another",
	catalog.CodeAttemptEnded:       "The attempt has ended",
	catalog.CodeAttemptPromoting:   "The attempt's output is being promoted",
	catalog.CodeUnknownStore:       "This server has no store of this name or id",
	catalog.CodeUnknownRun:         "There is no reconciliation of this number",
	catalog.CodeRunUnderWay:        "A reconciliation of this store is running, and there is one at a time",
	catalog.CodeRunNotComplete:     "Nothing is planned from a reconciliation that is running, was canceled, or could not read both sides to their end",
	catalog.CodeUnknownPlan:        "There is no plan of this number",
	catalog.CodePlanApplied:        "The plan was applied, or refused, before: each is applied once",
	catalog.CodeTooMuchChange:      "The plan would change a larger share of the store's outputs than it may",
	catalog.CodeTokenExists:        "A token has this name already",

	catalog.CodeStagedMissing:    "Nothing is staged",
	catalog.CodeStagedForbidden:  "The staged name is not this attempt's, or not in staging",
	catalog.CodeStagedUnreadable: "The server cannot read the staged file",
	catalog.CodeStagedLinked:     "The staged file has more than one link",
	catalog.CodeStagedChanged:    "The staged file changed after it was probed",
	catalog.CodeStagedInUse:      "Another attempt holds the staged file",
	catalog.CodeSizeMismatch:     "The size is not the one that was sent",
	catalog.CodeChecksumMismatch: "The checksum is not the one that was sent",
	catalog.CodeEmptyOutput:      "The staged file is empty",
	catalog.CodeNotARaster:       "The staged file is no raster, and holds no features",
	catalog.CodeDriverRefused:    "The format is not taken",
	catalog.CodeTruncated:        "The output is incomplete or damaged",
	catalog.CodeSparse:           "The raster has blocks that were never written",
	catalog.CodeNoCRS:            "The output has no coordinate reference system",
	catalog.CodeNoFootprint:      "The output has no outline in WGS 84",
	catalog.CodeIdentityMismatch: "The tags in the output name another unit",
	catalog.CodeMediaType:        "The output is not of the media type announced",
	catalog.CodeSidecar:          "The output depends on a file beside it",

	catalog.CodeCrossDevice:         "Staging and destination are on different filesystems",
	catalog.CodeStoreFull:           "The store is full",
	catalog.CodeStoreReadOnly:       "The store cannot be written",
	catalog.CodeStoreForbidden:      "The server may not do this in the store",
	catalog.CodeFsyncFailed:         "The output could not be made durable",
	catalog.CodeStoreUnavailable:    "The store cannot be reached",
	catalog.CodeDatabaseReadOnly:    "The database cannot be written",
	catalog.CodeDatabaseUnavailable: "The database cannot be reached",
	catalog.CodeProbeFailed:         "The probe failed on this file",
	catalog.CodeProbeUnavailable:    "The probe cannot be run",
	catalog.CodeOutcomeUnknown:      "It is not known how this ended",
	catalog.CodeBusy:                "The server is busy",
	catalog.CodeInternal:            "An error that catalogd does not know",
}

// retryAfter is what every 503 suggests, in seconds.
const retryAfter = 5

// known turns any error into one that a client may see.
func known(err error) *catalog.Error {
	var domain *catalog.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &domain) && titles[domain.Code] != "":
		return domain
	case errors.As(err, &tooLarge):
		return catalog.Errorf(catalog.CodeTooLarge, "the body is longer than %d bytes: send less at once", tooLarge.Limit).Because(err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return catalog.Errorf(catalog.CodeOutcomeUnknown, "the request ended before it was known how it came out: send it again, nothing is done twice").Because(err)
	}
	return catalog.Errorf(catalog.CodeInternal, "the server's log has the reason under this request's id: send that to whoever runs it").Because(err)
}

// newProblem is the one place where an error becomes what a client sees.
func newProblem(err *catalog.Error, requestID string) Problem {
	p := Problem{
		Type:     "/problems/" + string(err.Code),
		Title:    titles[err.Code],
		Status:   err.Code.Status(),
		Detail:   err.Message,
		Instance: requestID,
		Code:     Code(err.Code),
	}
	if err.Field != "" {
		p.Field = &err.Field
	}
	return p
}

// problem answers with an error, unless the answer has begun; the error is
// logged with the request.
func (s *server) problem(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	e := known(err)
	x.err = e
	if begun, ok := w.(middleware.WrapResponseWriter); ok && begun.Status() != 0 {
		return
	}
	p := newProblem(e, x.id)
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Encoding", "ETag", "Last-Modified", "Accept-Ranges"} {
		h.Del(name)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="catalogd"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.Itoa(retryAfter))
	}
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_ = json.NewEncoder(w).Encode(p) // the client is gone
	}
}
