package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// head is the answer to a HEAD.
type head struct {
	catalog.Object
	mediaType string
	meta      map[string]string // names in lower case, without x-amz-meta-
	sha256    string            // hexadecimal; "" where the store does not vouch for one of the whole object
}

func (h head) fingerprint() string { return h.ETag + ":" + strconv.FormatInt(h.SizeBytes, 10) }

// parseFingerprint takes a fingerprint apart; ok is false where it is not one of ours.
func parseFingerprint(s string) (etag string, size int64, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return "", 0, false
	}
	size, err := strconv.ParseInt(s[i+1:], 10, 64)
	return s[:i], size, err == nil && size >= 0
}

// head asks for an object. ErrNotExist.
func (s *Store) head(ctx context.Context, key string) (head, error) {
	if err := ctx.Err(); err != nil {
		return head{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(key), ChecksumMode: types.ChecksumModeEnabled})
	if isCode(err, "NotFound") { // a HEAD has no body to say what is missing
		return head{}, fmt.Errorf("%w: s3://%s/%s%s: %v", storage.ErrNotExist, s.bucket, s.root, key, err)
	}
	if err != nil {
		return head{}, s.explain(ctx, err, "s3:GetObject", key)
	}
	if out.ETag == nil || out.ContentLength == nil {
		return head{}, fmt.Errorf("%w: HEAD of %s gives no ETag or no length", ErrNotS3, key)
	}
	h := head{Object: listed(key, *out.ContentLength, *out.ETag, aws.ToTime(out.LastModified)), mediaType: aws.ToString(out.ContentType), meta: map[string]string{}}
	for name, value := range out.Metadata {
		h.meta[strings.ToLower(name)] = value
	}
	// Of parts, it is the hash of their hashes: type COMPOSITE, or a suffix "-N".
	if sum := aws.ToString(out.ChecksumSHA256); out.ChecksumType != types.ChecksumTypeComposite && s.caps.Checksums {
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil && len(raw) == 32 {
			h.sha256 = hex.EncodeToString(raw)
		}
	}
	return h, nil
}

// listed is what listings and HEAD say alike: a HEAD tells whole seconds.
func listed(key string, size int64, etag string, modified time.Time) catalog.Object {
	return catalog.Object{Key: key, SizeBytes: size, ETag: strings.Trim(etag, `"`), Modified: modified.UTC().Truncate(time.Second)}
}

// Stat asks for one object. ErrNotExist, of which a missing bucket is one too.
func (s *Store) Stat(ctx context.Context, key string) (_ catalog.Object, err error) {
	defer wrap(&err, "stat %s", key)
	if err := s.checkName(key); err != nil {
		return catalog.Object{}, err
	}
	h, err := s.head(ctx, key)
	return h.Object, err
}

// About reads an object's description.
func (s *Store) About(ctx context.Context, key string) (_ map[string]string, err error) {
	defer wrap(&err, "describe %s", key)
	if err := s.checkName(key); err != nil {
		return nil, err
	}
	h, err := s.head(ctx, key)
	if err != nil {
		return nil, err
	}
	return readAbout(h.meta), nil
}

// Existing gives those of keys, all in one directory, that are objects: by one
// listing of what they begin with in common or, where others have that in common
// with them, by a HEAD of each.
func (s *Store) Existing(ctx context.Context, keys []string) (found []catalog.Object, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	within := path.Dir(keys[0])
	defer wrap(&err, "look for objects in %s", within)
	var asked []string // those that can be
	for _, key := range keys {
		err := s.checkName(key)
		if err != nil && len(s.root)+len(key) <= maxKey {
			return nil, err
		}
		if path.Dir(key) != within {
			return nil, fmt.Errorf("%w: %s is not in %s", storage.ErrName, key, within)
		}
		if err == nil {
			asked = append(asked, key)
		}
	}
	if err := ctx.Err(); err != nil || len(asked) == 0 {
		return nil, err
	}
	there := make(map[string]catalog.Object, len(asked))
	all, err := s.listThese(ctx, asked, there)
	if err == nil && !all {
		err = s.headThese(ctx, asked, there)
	}
	if err != nil {
		return nil, err
	}
	for _, key := range asked {
		if o, is := there[key]; is {
			found = append(found, o)
		}
	}
	return found, nil
}

// listThese reads one page of a listing; all is false when it does not reach the
// last of keys.
func (s *Store) listThese(ctx context.Context, keys []string, there map[string]catalog.Object) (all bool, err error) {
	first, last := slices.Min(keys), slices.Max(keys)
	n := 0
	for n < len(first) && n < len(last) && first[n] == last[n] {
		n++
	}
	for !utf8.ValidString(first[:n]) {
		n--
	}
	page, err := s.page(ctx, first[:n], "", nil)
	if err != nil {
		return false, err
	}
	wanted := make(map[string]bool, len(keys))
	for _, key := range keys {
		wanted[key] = true
	}
	for _, o := range page.objects {
		if wanted[o.Key] {
			there[o.Key] = o
		}
		all = all || o.Key >= last
	}
	return all || page.next == nil, nil
}

func (s *Store) headThese(ctx context.Context, keys []string, there map[string]catalog.Object) error {
	clear(there)
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, key := range keys {
		group.Go(func() error {
			h, err := s.head(ctx, key)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			there[key] = h.Object
			return nil
		})
	}
	return group.Wait()
}

// Open opens an object for reading. ErrNotExist. Reads are of this very object:
// ErrChanged where another has its name, ErrNotExist where it was deleted.
func (s *Store) Open(ctx context.Context, key string) (_ storage.Reader, _ catalog.Object, err error) {
	defer wrap(&err, "open %s", key)
	if err := s.checkName(key); err != nil {
		return nil, catalog.Object{}, err
	}
	o, err := s.open(ctx, key)
	if err != nil {
		return nil, catalog.Object{}, err
	}
	return o, o.head.Object, nil
}

// Settle opens an object at its final name. That it is answered for says that it is
// durable. ErrNotExist.
func (s *Store) Settle(ctx context.Context, key string) (_ storage.Staged, err error) {
	defer wrap(&err, "settle %s", key)
	if err := s.checkFinal(key); err != nil {
		return nil, err
	}
	o, err := s.open(ctx, key)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Delete removes an object; nil if it is not there. In a bucket with versions it
// becomes a noncurrent one.
func (s *Store) Delete(ctx context.Context, key string) (err error) {
	defer wrap(&err, "delete %s", key)
	if !strings.HasPrefix(key, storage.StagingPrefix) && !strings.HasPrefix(key, storage.TrashPrefix) {
		if err := s.checkFinal(key); err != nil {
			return err
		}
	}
	if err := s.checkName(key); err != nil {
		return err
	}
	return s.remove(ctx, key)
}

func (s *Store) remove(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	err = s.explain(ctx, err, "s3:DeleteObject", key)
	if errors.Is(err, storage.ErrNotExist) {
		return nil
	}
	return err
}

// object is an open object. Reads that go on where another one ended are read
// ahead, in windows that grow, so that a file that is read through costs a handful
// of requests and one that is looked at here and there costs no more than it is
// asked for.
type object struct {
	s    *Store
	head head
	// ctx ends with Close: ReadAt is not given one, and whoever opened the object may
	// be done before whoever reads it.
	ctx    context.Context
	cancel context.CancelFunc

	pos int64 // of Read and Seek

	mu      sync.Mutex
	streams []*stream // least recently used first; not those that somebody reads from
	// whole is a small object's content, once it was read.
	whole []byte
}

var (
	_ storage.Staged = (*object)(nil)
	_ storage.Reader = (*object)(nil)
)

const (
	// smallObject is read whole at the first look: a request takes longer than its
	// bytes.
	smallObject = 512 << 10
	firstWindow = 256 << 10
	lastWindow  = 32 << 20
	maxStreams  = 4
	readTries   = 3
)

func (s *Store) open(ctx context.Context, key string) (*object, error) {
	h, err := s.head(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.reader(ctx, h), nil
}

// reader is what was looked at, open.
func (s *Store) reader(ctx context.Context, h head) *object {
	o := &object{s: s, head: h}
	o.ctx, o.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return o
}

func (o *object) Size() int64         { return o.head.SizeBytes }
func (o *object) Fingerprint() string { return o.head.fingerprint() }
func (o *object) SHA256() string      { return o.head.sha256 }

// Close ends all reads.
func (o *object) Close() error {
	o.cancel()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, st := range o.streams {
		st.close()
	}
	o.streams = nil
	return nil
}

func (o *object) Read(p []byte) (int, error) {
	if o.pos >= o.Size() {
		return 0, io.EOF
	}
	n, err := o.ReadAt(p, o.pos)
	o.pos += int64(n)
	if errors.Is(err, io.EOF) && n > 0 {
		err = nil
	}
	return n, err
}

func (o *object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += o.pos
	case io.SeekEnd:
		offset += o.Size()
	default:
		return 0, fmt.Errorf("seek: whence %d", whence)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek: to %d", offset)
	}
	o.pos = offset
	return offset, nil
}

// ReadAt may be called by many goroutines. ErrChanged, ErrNotExist.
func (o *object) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s at %d", o.head.Key, off)
	}
	want := int(max(0, min(int64(len(p)), o.Size()-off)))
	if o.Size() <= smallObject && want > 0 && want < int(o.Size()) {
		whole, err := o.content()
		if err != nil {
			return 0, err
		}
		if n = copy(p, whole[off:]); n < len(p) {
			err = io.EOF
		}
		return n, err
	}
	for tries := 0; n < want; {
		if err := o.ctx.Err(); err != nil {
			return n, fs.ErrClosed
		}
		m, err := o.read(p[n:want], off+int64(n))
		n += m
		if err == nil {
			continue
		}
		tries++
		if tries == readTries || errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrNotExist) ||
			errors.Is(err, storage.ErrSentinel) || errors.Is(err, storage.ErrPermission) {
			return n, fmt.Errorf("read %s: %w", o.head.Key, err)
		}
	}
	if want < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// content is a small object's, whole.
func (o *object) content() ([]byte, error) {
	o.mu.Lock()
	whole := o.whole
	o.mu.Unlock()
	if whole != nil {
		return whole, nil
	}
	whole = make([]byte, o.Size())
	if _, err := o.ReadAt(whole, 0); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.whole = whole
	return whole, nil
}

// read reads some of p, from the stream that is there already if there is one.
func (o *object) read(p []byte, off int64) (int, error) {
	st := o.take(off)
	if st.left == 0 {
		if err := o.get(st, max(int64(len(p)), st.window)); err != nil {
			return 0, err
		}
	}
	n, err := st.read(p, o.s.cfg.Timeouts.Transfer)
	if err != nil {
		st.close()
		return n, err
	}
	if st.left == 0 {
		st.close()
		st.window = min(max(2*st.window, firstWindow), lastWindow)
	}
	o.give(st)
	return n, nil
}

// take gives the stream that goes on at off, to nobody else; a new one reads what it
// is asked for only.
func (o *object) take(off int64) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, st := range o.streams {
		if st.pos == off {
			o.streams = slices.Delete(o.streams, i, i+1)
			return st
		}
	}
	return &stream{pos: off}
}

// give gives it back.
func (o *object) give(st *stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ctx.Err() != nil {
		st.close()
		return
	}
	if len(o.streams) == maxStreams {
		o.streams[0].close()
		o.streams = o.streams[1:]
	}
	o.streams = append(o.streams, st)
}

// get opens st's next n bytes.
func (o *object) get(st *stream, n int64) error {
	n = min(n, o.Size()-st.pos)
	ctx, cancel := context.WithCancelCause(o.ctx)
	timer := time.AfterFunc(o.s.cfg.Timeouts.Transfer, func() { cancel(context.DeadlineExceeded) })
	out, err := o.s.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &o.s.bucket, Key: o.s.key(o.head.Key),
		IfMatch: aws.String(`"` + o.head.ETag + `"`),
		Range:   aws.String(fmt.Sprintf("bytes=%d-%d", st.pos, st.pos+n-1)),
	})
	timer.Stop()
	if err == nil {
		want := fmt.Sprintf("bytes %d-%d/%d", st.pos, st.pos+n-1, o.Size())
		whole := st.pos == 0 && n == o.Size() && out.ContentRange == nil
		if got := aws.ToString(out.ContentRange); got != want && !whole {
			out.Body.Close()
			err = fmt.Errorf("asked for %s of %s, got %q", want, o.head.Key, got)
		}
	}
	if err != nil {
		err = o.s.explain(ctx, err, "s3:GetObject", o.head.Key)
		cancel(nil)
		if errors.Is(err, errPrecondition) {
			return fmt.Errorf("%w: %v", storage.ErrChanged, err)
		}
		return err
	}
	st.body, st.ctx, st.cancel, st.left = out.Body, ctx, cancel, n
	return nil
}

// stream is a place in an object from which one reader reads on.
type stream struct {
	pos    int64
	left   int64 // of body
	window int64 // that the next body is to have; 0 for what is asked
	body   io.ReadCloser
	ctx    context.Context // of body
	cancel context.CancelCauseFunc
}

// read reads what body has of p. Each read has a deadline of its own.
func (st *stream) read(p []byte, deadline time.Duration) (n int, err error) {
	p = p[:min(int64(len(p)), st.left)]
	timer := time.AfterFunc(deadline, func() { st.cancel(context.DeadlineExceeded) })
	defer timer.Stop()
	n, err = io.ReadFull(st.body, p)
	st.pos += int64(n)
	st.left -= int64(n)
	if cause := context.Cause(st.ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w: %v", cause, err)
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the answer was cut
	}
	return n, err
}

func (st *stream) close() {
	if st.body == nil {
		return
	}
	if st.left == 0 {
		_, _ = io.Copy(io.Discard, io.LimitReader(st.body, 1)) // to its EOF, so that the connection is kept
	}
	st.body.Close()
	st.cancel(nil)
	st.body, st.left = nil, 0
}

// sortedKeys are the names in m, in order.
func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
