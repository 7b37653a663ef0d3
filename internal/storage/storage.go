// Package storage says what catalogd asks of a store: a root under which
// outputs live. Its implementations are posix and s3; storagetest holds the suite
// that each must pass. It imports catalog only.
//
// # What a store promises
//
//   - Names resolve inside the store and nowhere else: no "..", no absolute
//     path, no symbolic link that leads out or stands in for a staged file.
//   - Promote never replaces anything, and when it has returned nil the object
//     survives a power cut at its final name, and so does every directory above
//     it.
//   - A missing object and an unreachable store are different errors. Absence is
//     ErrNotExist only; whoever acts on absence asks Sentinel first.
//   - Deleting what is not there is success.
package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"time"

	"catalogd/internal/catalog"
)

// Names below the root that are catalogd's own. Collection ids cannot collide
// with them.
const (
	// StagingPrefix holds what is not yet an output: an attempt's own file at
	// .staging/<attempt><ext>, a private temporary of an upload or copy at
	// .staging/<attempt>….tmp, and files that callers name themselves at
	// .staging/in/….
	StagingPrefix = ".staging/"
	// IncomingPrefix holds staged files that their writers named.
	IncomingPrefix = ".staging/in/"
	// SentinelKey proves that the store is the one it was, and is mounted.
	SentinelKey = ".catalogd/store.json"
	// TrashPrefix holds what was put away, for a while.
	TrashPrefix = ".trash/"
	// CurrentPrefix is the tree of stable names, symbolic links on POSIX.
	CurrentPrefix = "current/"
)

// Errors that every implementation returns, wrapped with what was being done.
// Anything else is an unknown outcome.
var (
	ErrNotExist = fs.ErrNotExist
	// ErrExist: the final name is taken. Promote never replaces.
	ErrExist = fs.ErrExist
	// ErrChanged: what is staged is not what was probed.
	ErrChanged = errors.New("staged object changed since it was probed")
	// ErrCrossDevice: staging and destination are on different filesystems.
	ErrCrossDevice = errors.New("staging and destination are on different filesystems")
	// ErrNoSpace: no space, or no quota, left.
	ErrNoSpace = errors.New("no space left in the store")
	// ErrReadOnly: the store cannot be written.
	ErrReadOnly = errors.New("store is read-only")
	// ErrPermission: the server may not do this; the message says which uid and mode.
	ErrPermission = fs.ErrPermission
	// ErrSync: fsync failed. What it was to make durable may be lost, and a
	// second fsync may lie: give the file up.
	ErrSync = errors.New("fsync failed")
	// ErrNotRegular: a directory, a symbolic link, a device.
	ErrNotRegular = errors.New("not a regular file")
	// ErrLinked: more than one hard link, so that it can be changed under another name.
	ErrLinked = errors.New("file has more than one link")
	// ErrName: the name does not resolve inside the store.
	ErrName = errors.New("name does not resolve inside the store")
	// ErrTooLarge: a stream was longer than allowed.
	ErrTooLarge = errors.New("stream is longer than allowed")
	// ErrSentinel: the sentinel is missing or is another store's.
	ErrSentinel = errors.New("sentinel is missing or is another store's")
	// ErrSettings: the store is set up wrongly, so that no request can succeed before
	// an operator has mended that. The message says what and where.
	ErrSettings = errors.New("the store is set up wrongly")
)

// Staged is an open staged object. Reads go to the very object that was
// opened, whatever becomes of its name.
type Staged interface {
	io.ReaderAt
	io.Closer
	Size() int64
	// Fingerprint tells this object, in this state, from any other: device,
	// inode, size and modification time on POSIX, the ETag on S3.
	Fingerprint() string
}

// Reader is an open object.
type Reader interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// Store is one root.
type Store interface {
	// ID is that of the sentinel.
	ID() string
	// Location is what GDAL opens to read key: a path, or /vsis3/….
	Location(key string) string
	// Sentinel reads the sentinel anew: nil, ErrSentinel, or why it cannot be told.
	Sentinel(ctx context.Context) error

	// PrepareStaging makes .staging/ ready for stagedKey, and tells whether a
	// promotion from there to finalKey could work: ErrCrossDevice, ErrReadOnly,
	// ErrPermission.
	PrepareStaging(ctx context.Context, stagedKey, finalKey string) error
	// WriteStaged writes r, at most limit bytes, to a private temporary and then
	// renames it to key, replacing. It returns the size and the SHA-256 (hex).
	// On error nothing is left behind. ErrTooLarge, ErrNoSpace.
	WriteStaged(ctx context.Context, key string, r io.Reader, limit int64) (size int64, sha256 string, err error)
	// OpenStaged opens a staged object: a regular file with one link.
	// ErrNotExist, ErrNotRegular, ErrLinked, ErrPermission, ErrName.
	OpenStaged(ctx context.Context, key string) (Staged, error)
	// Promote gives what is at stagedKey its final name, durably. The object
	// must still have this fingerprint (else ErrChanged). Promote is repeatable:
	// with nothing staged and an object at finalKey, it makes that durable,
	// checks that it has the fingerprint, and returns nil. ErrNotExist when there
	// is neither. ErrExist when finalKey holds anything else.
	// A crash here leaves the object at one of the two names, whole.
	Promote(ctx context.Context, stagedKey, finalKey, fingerprint string) error

	// Stat asks for one object. ErrNotExist.
	Stat(ctx context.Context, key string) (catalog.Object, error)
	// Existing gives those of keys, all in one directory, that are objects.
	Existing(ctx context.Context, keys []string) ([]catalog.Object, error)
	// Open opens an object for reading. ErrNotExist.
	Open(ctx context.Context, key string) (Reader, catalog.Object, error)
	// Settle makes an object that is already at its final name durable, with
	// every directory above it, and returns it open with its fingerprint: for
	// recovery, which did not see the promotion. ErrNotExist.
	Settle(ctx context.Context, key string) (Staged, error)
	// Delete removes an object; nil if it is not there. It refuses names under
	// .catalogd/.
	Delete(ctx context.Context, key string) error
	// Rename gives an object another name, durably, and never replaces anything. It is
	// repeatable: with nothing at from and an object at to it returns nil. ErrNotExist
	// when there is neither; ErrExist when to holds something else; ErrChanged when
	// something else came to from meanwhile; ErrCrossDevice. A crash leaves the object at
	// one of the two names, or at both, of which the next call removes the first.
	Rename(ctx context.Context, from, to string) error
	// List yields the objects in a range in byte order of the whole key. An error ends
	// the listing: what came before it is incomplete.
	List(ctx context.Context, within Range) iter.Seq2[catalog.Object, error]
}

// Range is the keys that begin with Prefix, from From on and before To ("" for no bound).
// With no prefix catalogd's own trees are left out; one is listed by its name with its
// slash.
type Range struct{ Prefix, From, To string }

// Under is the range of all keys that begin with prefix.
func Under(prefix string) Range { return Range{Prefix: prefix} }

// Compare tells where a key stands to the bounds: -1 before, 0 within, 1 after.
func (r Range) Compare(key string) int {
	switch {
	case key < r.From:
		return -1
	case r.To != "" && key >= r.To:
		return 1
	}
	return 0
}

// Linker is a store with a tree of stable names.
type Linker interface {
	// Link makes the stable name (below current/) lead to key, atomically.
	Link(ctx context.Context, stable, key string) error
	// Linked tells where a stable name leads: ErrNotExist.
	Linked(ctx context.Context, stable string) (key string, err error)
	// Unlink removes stable names; nil for those that are not there.
	Unlink(ctx context.Context, stables ...string) error
	// Links yields all stable names, in byte order, as List yields objects.
	Links(ctx context.Context) iter.Seq2[Link, error]
}

// Link is a stable name; Key is where it leads, "" for nowhere that an output can be.
type Link struct{ Stable, Key string }

// Copier is a store whose promotion is a copy: the staged object stays, and it takes
// the longer the larger that is. The copy carries a description.
type Copier interface {
	// PromoteAs is Promote, with a description. etag is that of the object.
	PromoteAs(ctx context.Context, p Promotion) (etag string, err error)
	// About reads a description. A value that did not fit is there by its hash, as
	// NAME-sha256. ErrNotExist.
	About(ctx context.Context, key string) (map[string]string, error)
}

// Promotion is one of a Copier's.
type Promotion struct {
	StagedKey, FinalKey, Fingerprint string
	// SHA256 (hexadecimal, "" for none) that the copy must have: a fingerprint may be an
	// MD5, of which whoever writes can have two contents.
	SHA256 string
	// About is the object's description, bounded and encoded as the store needs it.
	// "content-type" becomes its media type.
	About map[string]string
	// Fresh says that nobody has tried before, and that the final name is nobody's
	// else: a server that cannot be told not to replace is then not asked first
	// whether there is something.
	Fresh bool
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
	// URI names an object for those who have credentials of their own: s3://….
	URI(key string) string
	// PresignPut is for one PUT of a staged object of size bytes. sha256 (hexadecimal,
	// "" for none) is then checked by the store; ifAbsent refuses to replace, where
	// the store is shown to honour that.
	PresignPut(ctx context.Context, key string, size int64, sha256 string, ifAbsent bool, expires time.Duration) (*http.Request, error)
	// CreateUpload begins an upload in parts to a staged name.
	CreateUpload(ctx context.Context, key string) (id string, err error)
	// PresignPart is for the PUT of part number (from 1), of size bytes: MinPart or
	// more, but the last. Its answer has an ETag.
	PresignPart(ctx context.Context, key, id string, number int32, size int64, expires time.Duration) (*http.Request, error)
	// CompleteUpload makes the parts, whose ETags come in order, an object, in place of
	// what is there. ErrNotExist where there is no such upload, as after one that was
	// completed; ErrParts where the parts are not those that were sent.
	CompleteUpload(ctx context.Context, key, id string, etags []string) error
	// Redirects tells whether readers are sent to the store, by PresignGet.
	Redirects() bool
	// PresignGet is for a GET or HEAD of an object, and ranges of it.
	PresignGet(ctx context.Context, method, key string, expires time.Duration) (*http.Request, error)
}

// MinPart is the least size of a part of an upload, but of the last; MaxParts is how
// many there may be, and MaxPut what one PUT may send.
const (
	MinPart  = 5 << 20
	MaxParts = 10_000
	MaxPut   = 5 << 30
)

// ErrParts: the parts of an upload are not those that were sent.
var ErrParts = errors.New("the parts are not those that were sent")

// Sentinel is the content of SentinelKey.
type Sentinel struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
}
