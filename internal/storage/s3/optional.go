package s3

import (
	"context"
	"net/http"
	"time"
)

// What this store does besides storage.Store. The signatures name no type of this
// package, so that whoever needs one can declare it where it is consumed, or package
// storage can take it over as it is.

// Describer is a store whose objects carry a description.
type Describer interface {
	// PromoteAs is Promote, and gives the object a description, bounded and encoded
	// as the store needs it. "content-type" becomes the object's media type.
	PromoteAs(ctx context.Context, stagedKey, finalKey, fingerprint string, about map[string]string) error
	// About reads a description. A value that did not fit is there by its hash, as
	// NAME-sha256. ErrNotExist.
	About(ctx context.Context, key string) (map[string]string, error)
}

// Voucher is a staged object whose SHA-256 the store itself computed, or checked,
// when it took the object.
type Voucher interface {
	// SHA256 is hexadecimal; "" where the store does not vouch.
	SHA256() string
}

// Uploader is a store with uploads in parts, which may be left unfinished.
type Uploader interface {
	// Uploads yields those that are neither completed nor aborted, of all keys, with
	// the moment at which each began.
	Uploads(ctx context.Context, yield func(key, id string, begun time.Time) error) error
	// AbortUpload removes one, with its parts; nil if it is not there. A part that is
	// on its way may survive it: abort again what is still listed later.
	AbortUpload(ctx context.Context, key, id string) error
}

// Presigner is a store that others can be let into, request by request. Requests are
// returned unsent: URL, method, and the headers that must be sent with it as they are.
type Presigner interface {
	// PresignPut is for one PUT of a staged object of size bytes. sha256 (hexadecimal,
	// "" for none) is then checked by the store; ifAbsent refuses to replace, where
	// the store is shown to honour that.
	PresignPut(ctx context.Context, key string, size int64, sha256 string, ifAbsent bool, expires time.Duration) (*http.Request, error)
	// CreateUpload begins an upload in parts to a staged name.
	CreateUpload(ctx context.Context, key string) (id string, err error)
	// PresignPart is for the PUT of part number (from 1), of size bytes: 5 MiB or
	// more, but the last. Its answer has an ETag.
	PresignPart(ctx context.Context, key, id string, number int32, size int64, expires time.Duration) (*http.Request, error)
	// CompleteUpload makes the parts, whose ETags come in order, an object.
	CompleteUpload(ctx context.Context, key, id string, etags []string, ifAbsent bool) error
	// PresignGet is for a GET or HEAD of an object, and ranges of it.
	PresignGet(ctx context.Context, method, key string, expires time.Duration) (*http.Request, error)
}

var (
	_ Describer = (*Store)(nil)
	_ Uploader  = (*Store)(nil)
	_ Presigner = (*Store)(nil)
	_ Voucher   = (*object)(nil)
)
