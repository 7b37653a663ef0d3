package s3

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// List yields the objects in a range, in byte order; disorder in what the server lists is
// an error. catalogd's own trees are left out unless the prefix names one with its slash,
// and so are empty objects whose name ends in "/", which
// stand for directories.
func (s *Store) List(ctx context.Context, within storage.Range) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		if err := s.list(ctx, within, func(o catalog.Object) bool { return yield(o, nil) }); err != nil {
			yield(catalog.Object{}, fmt.Errorf("list %q: %w", within.Prefix, err))
		}
	}
}

func (s *Store) list(ctx context.Context, within storage.Range, yield func(catalog.Object) bool) error {
	prefix := within.Prefix
	if dir, _, nested := cutLast(prefix); nested {
		if err := s.checkName(dir); err != nil {
			return err
		}
	}
	all := strings.Contains(prefix, "/")
	// A listing begins after a key: that before the range's first has one byte less, or
	// another one, so that keys before the range may come, and are passed over.
	last, after := "", before(within.From)
	var token *string
	for {
		page, err := s.page(ctx, prefix, after, token)
		if err != nil {
			return err
		}
		for _, o := range page.objects {
			if err := ctx.Err(); err != nil {
				return err
			}
			if o.Key <= last && last != "" {
				return fmt.Errorf("the server lists %q after %q: not in byte order, or twice", o.Key, last)
			}
			last = o.Key
			if !strings.HasPrefix(o.Key, prefix) {
				return fmt.Errorf("the server lists %q under %q", o.Key, prefix)
			}
			top, _, _ := strings.Cut(o.Key, "/")
			if at := within.Compare(o.Key); at > 0 {
				return nil
			} else if at < 0 {
				continue
			}
			if !all && ownNames[top] || strings.HasSuffix(o.Key, "/") && o.SizeBytes == 0 {
				continue
			}
			if !yield(o) {
				return nil
			}
		}
		if page.next == nil {
			return nil
		}
		token, after = page.next, ""
		if top, _, nested := strings.Cut(last, "/"); !all && nested && ownNames[top] {
			token, after = nil, top+"/\U0010ffff" // past the tree
		}
	}
}

// before is the first key's parent, so to say: the text less its last character.
func before(key string) string {
	_, size := utf8.DecodeLastRuneInString(key)
	return key[:len(key)-size]
}

// cutLast cuts s at its last slash.
func cutLast(s string) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return "", s, false
}

// page is a piece of a listing; next is nil for the last.
type page struct {
	objects []catalog.Object
	next    *string
}

func (s *Store) page(ctx context.Context, prefix, after string, token *string) (page, error) {
	if err := ctx.Err(); err != nil {
		return page{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	in := &s3.ListObjectsV2Input{
		Bucket: &s.bucket, Prefix: s.key(prefix), MaxKeys: &s.cfg.pageSize, ContinuationToken: token,
		EncodingType: types.EncodingTypeUrl, // XML cannot say all names
	}
	if after != "" {
		in.StartAfter = s.key(after)
	}
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return page{}, s.explain(ctx, err, "s3:ListBucket", prefix)
	}
	if out.IsTruncated == nil { // the SDK takes an empty answer for an empty listing
		return page{}, fmt.Errorf("%w: an answer that is no listing", ErrNotS3)
	}
	var p page
	for _, o := range out.Contents {
		key, err := decodeKey(aws.ToString(o.Key), out.EncodingType)
		if err != nil {
			return page{}, err
		}
		key, under := strings.CutPrefix(key, s.root)
		if !under {
			return page{}, fmt.Errorf("the server lists %q under %q", key, s.root+prefix)
		}
		p.objects = append(p.objects, listed(key, aws.ToInt64(o.Size), aws.ToString(o.ETag), aws.ToTime(o.LastModified)))
	}
	if aws.ToBool(out.IsTruncated) {
		if out.NextContinuationToken == nil || len(out.Contents) == 0 {
			return page{}, fmt.Errorf("%w: a listing that goes on, and does not say where", ErrNotS3)
		}
		p.next = out.NextContinuationToken
	}
	return p, nil
}

// decodeKey undoes the encoding of names in answers, where the server took it up.
func decodeKey(key string, encoding types.EncodingType) (string, error) {
	if encoding != types.EncodingTypeUrl {
		return key, nil
	}
	plain, err := url.QueryUnescape(key)
	if err != nil {
		return "", fmt.Errorf("%w: name %q of a listing: %v", ErrNotS3, key, err)
	}
	return plain, nil
}

// probePrefix holds what Open tries the server with.
var probePrefix = strings.TrimSuffix(storage.SentinelKey, "store.json") + "probe/"
