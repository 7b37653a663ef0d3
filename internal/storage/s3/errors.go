package s3

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"catalogd/internal/storage"
)

// Errors of a store that is set up wrongly: each is a storage.ErrSettings.
var (
	// ErrRegion: the bucket is in another region.
	ErrRegion = fmt.Errorf("%w: wrong region", storage.ErrSettings)
	// ErrNotS3: what answers at the endpoint does not speak S3.
	ErrNotS3 = fmt.Errorf("%w: the endpoint does not answer as an S3 server does", storage.ErrSettings)
	// ErrIncapable: the server lacks what no promotion is safe without.
	ErrIncapable = fmt.Errorf("%w: the S3 server lacks what a store needs", storage.ErrSettings)
)

// Answers that a caller in this package decides about.
var (
	errPrecondition   = errors.New("a condition of the request does not hold (412)")
	errConflict       = errors.New("another request for the name is being carried out (409)")
	errNotImplemented = errors.New("the server does not have this (501)")
	errNoUpload       = errors.New("there is no such upload")
	errClock          = fmt.Errorf("%w: this machine's clock differs from the server's", storage.ErrSettings)
	// errDenied: of these credentials, which no task can mend.
	errDenied error = denial{}
)

type denial struct{}

func (denial) Error() string { return storage.ErrPermission.Error() }

func (denial) Is(target error) bool {
	return target == storage.ErrPermission || target == storage.ErrSettings
}

// explain gives an answer its name in package storage, and says which action on
// which key it was the answer to. What has no name there is an unknown outcome:
// timeouts, lost connections, 5xx, SlowDown.
func (s *Store) explain(ctx context.Context, err error, action, key string) error {
	if err == nil {
		return nil
	}
	code, status := "", 0
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	at := fmt.Sprintf("%s on s3://%s/%s%s", action, s.bucket, s.root, key)
	var parse *smithy.DeserializationError
	is := func(known error, more string) error { return fmt.Errorf("%w: %s%s: %v", known, at, more, brief(err)) }
	switch code {
	case "NoSuchBucket":
		return fmt.Errorf("%w: there is no bucket %s: %v", storage.ErrSentinel, s.bucket, brief(err))
	case "NoSuchUpload":
		return is(errNoUpload, "")
	case "AccessDenied", "Forbidden", "AllAccessDisabled", "AccountProblem":
		return is(errDenied, denied(action))
	case "InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired":
		return is(errDenied, ": the credentials are not accepted ("+code+"): renew or correct them")
	case "RequestTimeTooSkewed":
		return is(errClock, "")
	case "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException", "AuthorizationHeaderMalformed":
		return is(ErrRegion, fmt.Sprintf(": the store is set to region %s", s.client.Options().Region))
	case "EntityTooLarge":
		return is(storage.ErrTooLarge, "")
	case "QuotaExceeded", "QuotaExceededException", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded":
		return is(storage.ErrNoSpace, "")
	case "KeyTooLongError", "XMinioInvalidObjectName":
		return is(storage.ErrName, "")
	case "PreconditionFailed":
		return is(errPrecondition, "")
	case "ConditionalRequestConflict", "OperationAborted":
		return is(errConflict, "")
	case "NotImplemented":
		return is(errNotImplemented, "")
	case "InvalidPart", "InvalidPartOrder", "EntityTooSmall":
		return is(storage.ErrParts, "")
	case "NoSuchKey":
		return is(storage.ErrNotExist, "")
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w: %v", at, context.Cause(ctx), err)
	case errors.As(err, &parse) && status < http.StatusInternalServerError && !cutShort(err):
		return is(ErrNotS3, "")
	}
	switch status {
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect:
		return is(ErrRegion, fmt.Sprintf(": the store is set to region %s", s.client.Options().Region))
	case http.StatusForbidden:
		return is(errDenied, denied(action))
	case http.StatusNotFound, http.StatusMethodNotAllowed: // and no code that S3 has
		return is(ErrNotS3, "")
	case http.StatusConflict:
		return is(errConflict, "")
	case http.StatusPreconditionFailed:
		return is(errPrecondition, "")
	case http.StatusNotImplemented:
		return is(errNotImplemented, "")
	case http.StatusInsufficientStorage:
		return is(storage.ErrNoSpace, "")
	}
	var unsent *smithyhttp.RequestSendError
	if errors.As(err, &unsent) {
		err = unsent.Err
	}
	return fmt.Errorf("%s: %w", at, err)
}

func denied(action string) string {
	if strings.HasPrefix(action, "s3:Get") {
		return ": the credentials may not do this, or lack s3:ListBucket, without which an object that is missing is answered like this"
	}
	return ": the credentials may not do this"
}

// brief is what the server said, without the SDK's wrapping.
func brief(err error) error {
	var api smithy.APIError
	var parse *smithy.DeserializationError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &parse):
		return parse
	}
	return err
}

// cutShort tells whether an answer that cannot be read is one that ended too early.
func cutShort(err error) bool {
	var syntax *xml.SyntaxError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &syntax) && syntax.Msg == "unexpected EOF"
}

func isCode(err error, code string) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == code
}
