// Package s3 keeps a store under a prefix of a bucket, on any server that speaks
// S3 well enough; Open finds out by trying.
//
// It imports the standard library, the AWS SDK, x/sync, catalog and storage only.
//
// # What S3 gives, and how the promises of package storage follow
//
// An object that was answered for is durable, whole, and seen by every later
// request. So there is nothing to sync, and what could go wrong is that an answer
// is lost, that a request arrives late, or that a name is written twice.
//
//   - A staged object is its ETag and size. All reads of it ask for that ETag: a
//     replaced object is storage.ErrChanged, never a mixture.
//   - Promote copies at the server, on condition that the source still has the ETag
//     that was probed. However late such a copy is carried out, it makes the same
//     bytes. Open refuses a server that ignores the condition.
//   - A promoted object says in its metadata which staged object it is a copy of
//     (catalogd-source). By that a repeated Promote, or one whose answer was lost,
//     knows its own: a copy of parts has another ETag than its source.
//   - A copy never replaces where the server is shown to honour If-None-Match on
//     it. Elsewhere Promote looks first, unless the promotion is fresh. What can come between are copies of the same
//     staged object for the same attempt, since nobody else has its final name.
//   - A HEAD without an object is 404, and so is one without a bucket: that is
//     storage.ErrNotExist, and whoever acts on it asks Sentinel first, as with
//     every store. Where the answer says that the bucket is missing, it is
//     storage.ErrSentinel at once.
//
// The staged object stays until it is deleted. A crash of Promote leaves it, and at
// the final name nothing or a whole copy; of a copy in parts it may leave an upload
// that was not completed, which Uploads lists.
package s3

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/storage"
)

var (
	_ storage.Store     = (*Store)(nil)
	_ storage.Copier    = (*Store)(nil)
	_ storage.Uploader  = (*Store)(nil)
	_ storage.Presigner = (*Store)(nil)
	_ storage.Voucher   = (*object)(nil)
)

// Store is one prefix of one bucket. It may be used by many goroutines, and the
// bucket by many processes.
type Store struct {
	cfg    Config
	bucket string
	root   string // "" or "a/b/"
	id     string
	seen   *atomic.Int64 // when the sentinel was read last, in Unix ns
	caps   Capabilities
	client *s3.Client
	// slow is client for what a server may work on for minutes before it answers.
	slow func(*s3.Options)
}

// Open opens the store at cfg.URL and finds out what its server can do.
// storage.ErrSentinel where there is no bucket, or no sentinel and not cfg.Init;
// storage.ErrPermission names the action and the key; ErrRegion, ErrNotS3,
// ErrIncapable.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	defer wrap(&err, "open store %s", cfg.URL)
	s, err := newStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := s.client.Options().Credentials.Retrieve(ctx); err != nil {
		return nil, fmt.Errorf("%w: there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile: %v", storage.ErrSettings, err)
	}
	found, err := s.readSentinel(ctx)
	fresh := errors.Is(err, errNoSentinel)
	if err != nil && !(fresh && cfg.Init) {
		return nil, err
	}
	if cfg.Capabilities != nil {
		s.caps = *cfg.Capabilities
	} else if s.caps, err = s.probe(ctx); err != nil {
		return nil, err
	}
	if err := s.caps.check(); err != nil {
		return nil, err
	}
	if fresh {
		if err := s.writeSentinel(ctx); err != nil {
			return nil, err
		}
		if found, err = s.readSentinel(ctx); err != nil {
			return nil, err
		}
	}
	s.id = found.ID
	return s, nil
}

// newStore is a store of which nothing is known yet. It asks nothing of the server.
func newStore(ctx context.Context, cfg Config) (*Store, error) {
	bucket, prefix, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg.withDefaults(), bucket: bucket, root: prefix, seen: &atomic.Int64{}}
	return s, s.connect(ctx)
}

// ID is that of the sentinel.
func (s *Store) ID() string { return s.id }

// URL is s3://bucket/prefix, without a slash at its end.
func (s *Store) URL() string { return strings.TrimSuffix("s3://"+s.bucket+"/"+s.root, "/") }

// URI is s3://bucket/prefix/key.
func (s *Store) URI(key string) string { return "s3://" + s.bucket + "/" + s.root + key }

// Redirects tells whether readers are sent to the server.
func (s *Store) Redirects() bool { return !s.cfg.StreamReads }

// Capabilities are what the server was seen to do when the store was opened.
func (s *Store) Capabilities() Capabilities { return s.caps }

// Location is what GDAL opens to read key; "" for a name that no object can have.
func (s *Store) Location(key string) string {
	if s.checkName(key) != nil {
		return ""
	}
	return "/vsis3/" + s.bucket + "/" + s.root + key
}

// Sentinel reads the sentinel: nil when it is this store's, storage.ErrSentinel when
// it or the bucket is not there, or is another's.
func (s *Store) Sentinel(ctx context.Context) (err error) {
	defer wrap(&err, "sentinel of %s", s.URL())
	found, err := s.readSentinel(ctx)
	if err != nil {
		return err
	}
	if found.ID != s.id {
		return fmt.Errorf("%w: %s says %q, expected %q", storage.ErrSentinel, storage.SentinelKey, found.ID, s.id)
	}
	s.seen.Store(time.Now().UnixNano())
	return nil
}

// errNoSentinel: the bucket is there, and no sentinel in it.
var errNoSentinel = fmt.Errorf("%w: there is no %s: is this the right bucket and prefix?", storage.ErrSentinel, storage.SentinelKey)

func (s *Store) readSentinel(ctx context.Context) (found storage.Sentinel, err error) {
	if err := ctx.Err(); err != nil {
		return found, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(storage.SentinelKey)})
	if err != nil {
		err = s.explain(ctx, err, "s3:GetObject", storage.SentinelKey)
		if errors.Is(err, storage.ErrNotExist) {
			err = errNoSentinel // nobody shall take this for an absent object
		}
		return found, err
	}
	defer out.Body.Close()
	text, err := io.ReadAll(io.LimitReader(out.Body, 64<<10))
	if err != nil {
		return found, s.explain(ctx, err, "s3:GetObject", storage.SentinelKey)
	}
	if out.ETag == nil {
		return found, fmt.Errorf("%w: it gives %s without an ETag", ErrNotS3, storage.SentinelKey)
	}
	if err := json.Unmarshal(text, &found); err != nil || found.ID == "" {
		return found, fmt.Errorf("%w: %s has no id", storage.ErrSentinel, storage.SentinelKey)
	}
	return found, nil
}

// writeSentinel gives the store an id, unless another process does so first. It
// refuses a prefix within another store.
func (s *Store) writeSentinel(ctx context.Context) error {
	if id, url := s.enclosing(ctx); id != "" {
		return fmt.Errorf("%w: the prefix lies within store %s at %s: give it one of its own", storage.ErrSentinel, id, url)
	}
	text, err := json.Marshal(storage.Sentinel{ID: newID(), CreatedAt: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	_, err = s.put(ctx, storage.SentinelKey, append(text, '\n'), putTerms{contentType: "application/json", ifNoneMatch: s.caps.PutIfNoneMatch})
	if errors.Is(err, errPrecondition) || errors.Is(err, errConflict) {
		return nil
	}
	return err
}

// enclosing is the store that the prefix lies within; "" for none that can be seen.
func (s *Store) enclosing(ctx context.Context) (id, url string) {
	for above := strings.TrimSuffix(s.root, "/"); above != ""; {
		if above = path.Dir(above); above == "." {
			above = ""
		}
		other := *s
		if other.root = above; above != "" {
			other.root += "/"
		}
		if found, err := other.readSentinel(ctx); err == nil {
			return found.ID, other.URL()
		}
	}
	return "", ""
}

// newID is a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// PrepareStaging tells whether the names are good, and the bucket is the one that it
// was, a moment ago at least. S3 has no directories to make; that the server may write
// was seen when the store was opened.
func (s *Store) PrepareStaging(ctx context.Context, stagedKey, finalKey string) error {
	if err := cmp.Or(ctx.Err(), s.checkStaged(stagedKey), s.checkFinal(finalKey)); err != nil {
		return err
	}
	if time.Since(time.Unix(0, s.seen.Load())) < sentinelSeen {
		return nil
	}
	return s.Sentinel(ctx)
}

// sentinelSeen is how long a sentinel that was read counts where nothing is promised yet.
const sentinelSeen = 2 * time.Second

// key is the name of key in the bucket.
func (s *Store) key(key string) *string {
	key = s.root + key
	return &key
}

// maxKey is S3's bound on the bytes of a name.
const maxKey = 1024

// checkName refuses what could not be the name of an object. Control characters
// cannot be said in the XML of a listing.
func (s *Store) checkName(key string) error {
	switch {
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not UTF-8", storage.ErrName, key)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffe || r == 0xffff }):
		return fmt.Errorf("%w: %q holds a control character", storage.ErrName, key)
	case len(s.root)+len(key) > maxKey:
		return fmt.Errorf("%w: %.60q… is longer than %d bytes, with the store's prefix", storage.ErrName, key, maxKey)
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch segment {
		case "", ".", "..":
			return fmt.Errorf("%w: %q has the segment %q", storage.ErrName, key, segment)
		}
	}
	return nil
}

// checkStaged refuses what could not be a staged object.
func (s *Store) checkStaged(key string) error {
	if !strings.HasPrefix(key, storage.StagingPrefix) {
		return fmt.Errorf("%w: %q is not under %s", storage.ErrName, key, storage.StagingPrefix)
	}
	return s.checkName(key)
}

// checkFinal refuses what could not be an output.
func (s *Store) checkFinal(key string) error {
	if top, _, _ := strings.Cut(key, "/"); ownNames[top] {
		return fmt.Errorf("%w: %q is in a tree of catalogd's own", storage.ErrName, key)
	}
	return s.checkName(key)
}

// ownNames are the names below the prefix that hold no outputs.
var ownNames = map[string]bool{".catalogd": true, ".staging": true, ".trash": true, "current": true}

// wrap says what was being done when err happened.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}
