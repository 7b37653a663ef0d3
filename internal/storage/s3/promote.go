package s3

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/storage"
)

// Promote is PromoteAs without a description.
func (s *Store) Promote(ctx context.Context, stagedKey, finalKey, fingerprint string) error {
	_, err := s.PromoteAs(ctx, storage.Promotion{StagedKey: stagedKey, FinalKey: finalKey, Fingerprint: fingerprint})
	return err
}

// PromoteAs copies the staged object, which must have the fingerprint, to its final
// name, at the server, and looks at the copy. What is there already as a copy of it,
// whoever made that, is success. So processes may promote the same attempt at the same
// moment, and a lost answer does no harm. The staged object stays.
//
// ErrNotExist when there is neither; ErrExist when the final name holds something else;
// ErrChanged; ErrPermission, ErrNoSpace. Anything else leaves the outcome unknown:
// the copy may be there, or still come.
func (s *Store) PromoteAs(ctx context.Context, p storage.Promotion) (etag string, err error) {
	defer wrap(&err, "promote %s to %s", p.StagedKey, p.FinalKey)
	if err := cmp.Or(ctx.Err(), s.checkStaged(p.StagedKey), s.checkFinal(p.FinalKey)); err != nil {
		return "", err
	}
	// Beside the copy: is this the bucket that it was?
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Sentinel(ctx) })
	group.Go(func() (err error) {
		etag, err = s.promote(ctx, p)
		return err
	})
	err = group.Wait()
	return etag, err
}

func (s *Store) promote(ctx context.Context, p storage.Promotion) (etag string, err error) {
	c := copying{Store: s, from: p.StagedKey, to: p.FinalKey, fingerprint: p.Fingerprint, sum: p.SHA256, about: p.About}
	if !s.caps.CopyIfNoneMatch && !p.Fresh {
		if etag, err := c.promoted(ctx); !errors.Is(err, fs.ErrNotExist) {
			return etag, err
		}
	}
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := c.do(ctx)
		if err == nil {
			return c.verify(ctx)
		}
		etag, err := c.judge(ctx, err)
		if !errors.Is(err, errConflict) || pause > 2*time.Second {
			return etag, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// copying is one promotion.
type copying struct {
	*Store
	from, to, fingerprint, sum string
	about                      map[string]string
	// others is metadata whose names are not ours, as it is, to go with it where there is
	// room. What is ours among it is left out.
	others map[string]string
}

// do copies. Its errors say nothing of what is at the final name.
func (c copying) do(ctx context.Context) error {
	etag, size, ok := parseFingerprint(c.fingerprint)
	if !ok {
		return fmt.Errorf("%w: %q is no fingerprint of this store's", errPrecondition, c.fingerprint)
	}
	if size > c.cfg.CopyThreshold {
		return c.inParts(ctx, etag, size)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeouts.Copy)
	defer cancel()
	in := &s3.CopyObjectInput{
		Bucket: &c.bucket, Key: c.key(c.to), CopySource: c.source(), CopySourceIfMatch: aws.String(`"` + etag + `"`),
		MetadataDirective: types.MetadataDirectiveReplace, Metadata: c.meta(), ContentType: aws.String(c.contentType()),
	}
	if c.caps.CopyIfNoneMatch {
		in.IfNoneMatch = aws.String("*")
	}
	if c.caps.Checksums {
		in.ChecksumAlgorithm = types.ChecksumAlgorithmSha256
	}
	_, err := c.client.CopyObject(ctx, in, c.slow)
	return c.explain(ctx, err, "s3:PutObject (copy)", c.to)
}

// copiesAtOnce bounds the parts that the server copies at once.
const copiesAtOnce = 8

// inParts copies by an upload whose parts are ranges of the staged object.
func (c copying) inParts(ctx context.Context, etag string, size int64) (err error) {
	id, err := c.createUpload(ctx, c.to, c.meta(), c.contentType())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.abort(ctx, c.to, id))
		}
	}()
	step := max(c.cfg.CopyPart, (size+maxParts-1)/maxParts)
	var parts partList
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(copiesAtOnce)
	for number, off := int32(1), int64(0); off < size; number, off = number+1, off+step {
		slot, end := parts.add(number), min(off+step, size)-1
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(groupCtx, c.cfg.Timeouts.Copy)
			defer cancel()
			out, err := c.client.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
				Bucket: &c.bucket, Key: c.key(c.to), UploadId: &id, PartNumber: &number,
				CopySource: c.source(), CopySourceIfMatch: aws.String(`"` + etag + `"`),
				CopySourceRange: aws.String(fmt.Sprintf("bytes=%d-%d", off, end)),
			}, c.slow)
			if err != nil {
				return c.explain(ctx, err, "s3:PutObject (copy)", c.to)
			}
			if out.CopyPartResult == nil || out.CopyPartResult.ETag == nil {
				return fmt.Errorf("%w: a copied part without an ETag", ErrNotS3)
			}
			slot.ETag = out.CopyPartResult.ETag
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.completeUpload(ctx, c.to, id, parts.completed(), c.caps.CompleteIfNoneMatch)
}

// promoted looks at the final name: the ETag when a copy of the staged object is
// there, ErrExist for anything else, ErrNotExist for nothing.
func (c copying) promoted(ctx context.Context) (etag string, err error) {
	h, err := c.head(ctx, c.to)
	if err != nil {
		return "", err
	}
	_, size, ok := parseFingerprint(c.fingerprint)
	if ok && size == h.SizeBytes && (h.meta[metaSource] == c.fingerprint || h.fingerprint() == c.fingerprint) {
		return h.ETag, c.compare(ctx, h)
	}
	return "", fmt.Errorf("%w: %s is %s, a copy of %q, expected one of %s", storage.ErrExist, c.to, h.fingerprint(), h.meta[metaSource], c.fingerprint)
}

// compare holds the SHA-256 of the object at the final name against the one that it
// must have: that which the server computed when it copied, else that of what is read.
func (c copying) compare(ctx context.Context, h head) error {
	if c.sum == "" {
		return nil
	}
	if h.sha256 == "" {
		o := c.reader(ctx, h)
		defer o.Close()
		digest := sha256.New()
		if _, err := io.Copy(digest, o); err != nil {
			return fmt.Errorf("hash %s: %w", c.to, unknown(err))
		}
		h.sha256 = hex.EncodeToString(digest.Sum(nil))
	}
	if h.sha256 != c.sum {
		return fmt.Errorf("%w: %s has the SHA-256 %s, expected %s", storage.ErrChanged, c.to, h.sha256, c.sum)
	}
	return nil
}

// verify looks at a copy that the server said it made.
func (c copying) verify(ctx context.Context) (etag string, err error) {
	etag, err = c.promoted(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("copied, and then not there: %v", err) // an unknown outcome, and no absence
	}
	return etag, err
}

// judge finds out what became of a copy that failed because of cause.
func (c copying) judge(ctx context.Context, cause error) (etag string, err error) {
	if ctx.Err() != nil {
		return "", cause
	}
	if etag, err := c.promoted(ctx); err == nil || errors.Is(err, storage.ErrExist) || errors.Is(err, storage.ErrChanged) {
		return etag, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%v; nor can it be told whether it is there: %w", cause, unknown(err))
	}
	if !errors.Is(cause, errPrecondition) && !errors.Is(cause, fs.ErrNotExist) {
		return "", cause
	}
	staged, err := c.head(ctx, c.from)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%v; nor can it be told whether it is staged: %w", cause, unknown(err))
	case err != nil:
		return "", err
	case staged.fingerprint() != c.fingerprint:
		return "", fmt.Errorf("%w: %s is %s, expected %s", storage.ErrChanged, c.from, staged.fingerprint(), c.fingerprint)
	}
	// It is as it was, and the final name free: by now.
	return "", fmt.Errorf("%w: %v", errConflict, cause)
}

// unknown hides what an error says about the existence of anything.
func unknown(err error) error {
	if errors.Is(err, storage.ErrPermission) || errors.Is(err, storage.ErrSentinel) {
		return err
	}
	return fmt.Errorf("%v", err)
}

// source is the staged object as CopySource wants it: encoded, "+" too.
func (c copying) source() *string {
	segments := strings.Split(*c.key(c.from), "/")
	for i, segment := range segments {
		segments[i] = strings.ReplaceAll(url.QueryEscape(segment), "+", "%20")
	}
	return aws.String(c.bucket + "/" + strings.Join(segments, "/"))
}

func (c copying) contentType() string {
	return cmp.Or(c.about[contentType], mediaTypes[path.Ext(c.to)], mime.TypeByExtension(path.Ext(c.to)), "application/octet-stream")
}

// mediaTypes are those that the machine's own table may lack.
var mediaTypes = map[string]string{
	".tif": "image/tiff", ".tiff": "image/tiff", ".jp2": "image/jp2", ".gpkg": "application/geopackage+sqlite3", ".geojson": "application/geo+json",
}

// Names of metadata.
const (
	contentType = "content-type"
	// metaPrefix begins all of ours.
	metaPrefix = "catalogd-"
	// metaSource is the fingerprint of the staged object that an object is a copy of.
	metaSource = metaPrefix + "source"
	// metaWrite tells the call that wrote a staged object.
	metaWrite = metaPrefix + "write"
	// maxMeta is S3's bound on all names and values together.
	maxMeta = 2048
	sumName = "-sha256"
)

// meta is the object's metadata: the source, then the description, longest last.
// What does not fit is there by its hash.
func (c copying) meta() map[string]string {
	meta := map[string]string{metaSource: c.fingerprint}
	room := maxMeta - len(metaSource) - len(c.fingerprint)
	names := sortedKeys(c.about)
	for _, name := range names {
		if name != contentType {
			room -= len(metaPrefix) + len(name) + len(sumName) + 2*sha256.Size
		}
	}
	for _, name := range names {
		if name == contentType {
			continue
		}
		sum := sha256.Sum256([]byte(c.about[name]))
		value := escape(c.about[name])
		if more := len(value) - len(sumName) - 2*sha256.Size; more <= room {
			meta[metaPrefix+name] = value
			room -= more
		} else {
			meta[metaPrefix+name+sumName] = hex.EncodeToString(sum[:])
		}
	}
	for _, name := range sortedKeys(c.others) {
		if more := len(name) + len(c.others[name]); more <= room && !strings.HasPrefix(name, metaPrefix) {
			meta[name] = c.others[name]
			room -= more
		}
	}
	return meta
}

// readAbout is a description that meta wrote.
func readAbout(meta map[string]string) map[string]string {
	about := map[string]string{}
	for name, value := range meta {
		name, ours := strings.CutPrefix(name, metaPrefix)
		if !ours || metaPrefix+name == metaSource || metaPrefix+name == metaWrite {
			continue
		}
		if plain, err := url.PathUnescape(value); err == nil {
			value = plain
		}
		about[name] = value
	}
	return about
}

// escape makes text fit for a header: percent-encoded but for printable ASCII without
// space and percent, so that JSON stays readable.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
