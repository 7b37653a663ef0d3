package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/storage"
)

// Capabilities are what a server was seen to do, not what it says it does.
type Capabilities struct {
	// PutIfNoneMatch, CopyIfNoneMatch, CompleteIfNoneMatch: the request refuses to
	// replace when it is told so.
	PutIfNoneMatch, CopyIfNoneMatch, CompleteIfNoneMatch bool
	// CopySourceIfMatch, PartCopySourceIfMatch: a copy, and a copy of a part, refuses a
	// source that has changed.
	CopySourceIfMatch, PartCopySourceIfMatch bool
	// CopyMetadata: a copy takes metadata of its own, and HEAD tells it.
	CopyMetadata bool
	// Checksums: an upload that is not what its SHA-256 says is refused, and HEAD tells
	// that of one that was taken.
	Checksums bool
	// ByteOrder: listings are in byte order of the whole key, across pages.
	ByteOrder bool
	// Lifecycle: the server has lifecycle rules, and these credentials may read them.
	Lifecycle bool
	// LifecycleError says why not.
	LifecycleError string
}

// check refuses a server with which promotion would not be safe.
func (c Capabilities) check() error {
	var lacks []string
	for _, need := range []struct {
		has  bool
		what string
	}{
		{c.CopySourceIfMatch, "CopyObject ignores x-amz-copy-source-if-match, so that a staged object that was replaced could be promoted unseen"},
		{c.PartCopySourceIfMatch, "UploadPartCopy ignores x-amz-copy-source-if-match"},
		{c.CopyMetadata, "CopyObject does not take metadata, by which a repeated promotion knows its own"},
		{c.ByteOrder, "ListObjectsV2 is not in byte order of the keys"},
	} {
		if !need.has {
			lacks = append(lacks, need.what)
		}
	}
	if lacks != nil {
		return fmt.Errorf("%w: %s", ErrIncapable, strings.Join(lacks, "; "))
	}
	return nil
}

// named are the capabilities in the order in which they are told.
func (c Capabilities) named() []namedCapability {
	return []namedCapability{
		{"put-if-none-match", c.PutIfNoneMatch}, {"copy-if-none-match", c.CopyIfNoneMatch}, {"complete-if-none-match", c.CompleteIfNoneMatch},
		{"copy-source-if-match", c.CopySourceIfMatch}, {"part-copy-source-if-match", c.PartCopySourceIfMatch}, {"copy-metadata", c.CopyMetadata},
		{"checksums", c.Checksums}, {"byte-order", c.ByteOrder}, {"lifecycle", c.Lifecycle},
	}
}

type namedCapability struct {
	name string
	has  bool
}

// Map has each capability by the name that String gives it.
func (c Capabilities) Map() map[string]bool {
	all := map[string]bool{}
	for _, one := range c.named() {
		all[one.name] = one.has
	}
	return all
}

// String is for a log.
func (c Capabilities) String() string {
	var b strings.Builder
	for _, one := range c.named() {
		fmt.Fprintf(&b, "%s=%t ", one.name, one.has)
	}
	return strings.TrimSpace(b.String())
}

// probing is one test of a server.
type probing struct {
	*Store
	dir  string
	made []string
}

// probe tries what Capabilities names with small objects of its own, and removes
// them; what a killed probe left, an hour ago or earlier, is removed as well. An
// error is one of getting through, or of permission: of those nothing follows about
// the server.
func (s *Store) probe(ctx context.Context) (caps Capabilities, err error) {
	defer wrap(&err, "find out what the server can do")
	p := &probing{Store: s, dir: probePrefix + rand.Text() + "/"}
	defer func() {
		if tidied := p.tidy(ctx); err == nil {
			err = tidied
		}
	}()
	for _, try := range []func(context.Context, *Capabilities) error{p.puts, p.copies, p.parts, p.order, p.lifecycle} {
		if err := try(ctx, &caps); err != nil {
			return Capabilities{}, err
		}
	}
	return caps, nil
}

// tidy removes what was made, even where ctx is done, and then the leftovers of
// others.
func (p *probing) tidy(ctx context.Context) error {
	if len(p.made) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Timeouts.Request)
	defer cancel()
	var errs []error
	for _, key := range p.made {
		errs = append(errs, p.remove(ctx, key))
	}
	old := time.Now().Add(-time.Hour)
	for o, err := range p.List(ctx, storage.Under(probePrefix)) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if o.Modified.Before(old) {
			errs = append(errs, p.remove(ctx, o.Key))
		}
	}
	return errors.Join(errs...)
}

// key names a probe object, to be removed whatever comes of it.
func (p *probing) name(name string) string {
	if key := p.dir + name; !slices.Contains(p.made, key) {
		p.made = append(p.made, key)
	}
	return p.dir + name
}

// refused tells whether a request that a server should refuse was refused: true for
// 412 and 409, false where it was carried out, or the server does not know the
// condition.
func refused(err error) (bool, error) {
	var response *awshttp.ResponseError
	switch {
	case err == nil, errors.Is(err, errNotImplemented):
		return false, nil
	case errors.Is(err, errPrecondition), errors.Is(err, errConflict):
		return true, nil
	case errors.As(err, &response) && response.HTTPStatusCode()/100 == 4:
		return false, nil // those that mean something else have a name of ours, and do not wrap their cause
	}
	return false, err
}

func (p *probing) puts(ctx context.Context, caps *Capabilities) error {
	a, b := p.name("a"), p.name("b")
	sum := sha256.Sum256([]byte("first"))
	if _, err := p.put(ctx, a, []byte("first"), putTerms{}); err != nil {
		return err
	}
	if _, err := p.put(ctx, b, []byte("other"), putTerms{}); err != nil {
		return err
	}
	_, err := p.put(ctx, b, []byte("second"), putTerms{ifNoneMatch: true})
	if caps.PutIfNoneMatch, err = refused(err); err != nil {
		return err
	}
	if caps.PutIfNoneMatch { // and takes what is new
		if _, err := p.put(ctx, p.name("new"), nil, putTerms{ifNoneMatch: true}); err != nil {
			return err
		}
	}
	vouching := *p.Store
	vouching.caps.Checksums = true
	h, err := vouching.head(ctx, a)
	if err != nil {
		return err
	}
	_, err = p.put(ctx, p.name("wrong"), []byte("wrong"), putTerms{sum: sum[:]})
	caps.Checksums = err != nil && h.sha256 == fmt.Sprintf("%x", sum)
	return nil
}

func (p *probing) copies(ctx context.Context, caps *Capabilities) (err error) {
	a, err := p.head(ctx, p.name("a"))
	if err != nil {
		return err
	}
	c := copying{Store: p.Store, from: a.Key, to: p.name("copy"), fingerprint: "0123456789abcdef0123456789abcdef:5"}
	if caps.CopySourceIfMatch, err = refused(c.do(ctx)); err != nil {
		return err
	}
	c.fingerprint, c.about = a.fingerprint(), map[string]string{"probe": "é +%"}
	if err := c.do(ctx); err != nil {
		return err
	}
	h, err := p.head(ctx, c.to)
	if err != nil {
		return err
	}
	caps.CopyMetadata = h.meta[metaSource] == c.fingerprint && readAbout(h.meta)["probe"] == "é +%"

	conditional := *p.Store
	conditional.caps.CopyIfNoneMatch = true
	c.Store, c.to = &conditional, p.name("b")
	caps.CopyIfNoneMatch, err = refused(c.do(ctx))
	return err
}

func (p *probing) parts(ctx context.Context, caps *Capabilities) (err error) {
	b := p.name("b")
	id, err := p.createUpload(ctx, b, nil, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.abort(ctx, b, id)) }()
	c := copying{Store: p.Store, from: p.name("a"), to: b}
	copyCtx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Request)
	defer cancel()
	_, err = p.client.UploadPartCopy(copyCtx, &s3.UploadPartCopyInput{
		Bucket: &p.bucket, Key: p.key(b), UploadId: &id, PartNumber: aws.Int32(1),
		CopySource: c.source(), CopySourceIfMatch: aws.String(`"0123456789abcdef0123456789abcdef"`),
	})
	if caps.PartCopySourceIfMatch, err = refused(p.explain(copyCtx, err, "s3:PutObject (copy)", b)); err != nil {
		return err
	}
	var parts partList
	if err := p.uploadPart(ctx, b, id, 1, bytes.Repeat([]byte{1}, 1024), parts.add(1)); err != nil {
		return err
	}
	caps.CompleteIfNoneMatch, err = refused(p.completeUpload(ctx, b, id, parts.completed(), true))
	return err
}

func (p *probing) order(ctx context.Context, caps *Capabilities) error {
	want := []string{"o/a-b", "o/a.b", "o/a/b", "o/a/c", "o/a0", "o/é"}
	for _, i := range []int{4, 2, 0, 5, 3, 1} {
		if _, err := p.put(ctx, p.name(want[i]), nil, putTerms{}); err != nil {
			return err
		}
	}
	paged := *p.Store
	paged.cfg.pageSize = 4
	var got []string
	var token *string
	for {
		page, err := paged.page(ctx, p.dir+"o/", "", token)
		if err != nil {
			return err
		}
		for _, o := range page.objects {
			got = append(got, strings.TrimPrefix(o.Key, p.dir))
		}
		if token = page.next; token == nil || len(got) > len(want) {
			break
		}
	}
	caps.ByteOrder = slices.Equal(got, want)
	return nil
}

// lifecycle asks for the rules: to write some would change the bucket.
func (p *probing) lifecycle(ctx context.Context, caps *Capabilities) error {
	_, err := p.bucketLifecycle(ctx)
	if caps.Lifecycle = err == nil; err != nil {
		caps.LifecycleError = err.Error()
	}
	return ctx.Err()
}
