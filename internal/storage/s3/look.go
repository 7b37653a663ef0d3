package s3

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"catalogd/internal/storage"
)

// What a look tells apart besides, of a store that is set up wrongly.
var (
	// ErrCredentials: the server does not know them.
	ErrCredentials = errors.New("the credentials are not accepted")
	// ErrClock: the clocks differ so much that no signature is valid.
	ErrClock = errors.New("this machine's clock differs from the server's")
	// ErrWithin: the prefix lies within another store.
	ErrWithin = fmt.Errorf("%w: the prefix lies within another store", storage.ErrSentinel)
	// ErrUnsigned: what is signed for others is not taken.
	ErrUnsigned = errors.New("a signed request is not taken")
)

// Look is a prefix of a bucket that is looked at, one thing after another. It need not
// be a store, and no look makes it one. What is tried is tried with names of its own
// below .catalogd/probe/, which are removed again.
type Look struct{ store *Store }

// NewLook makes ready to look. It asks nothing of the server.
func NewLook(ctx context.Context, cfg Config) (*Look, error) {
	s, err := newStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Look{s}, nil
}

// URL is s3://bucket/prefix.
func (l *Look) URL() string { return l.store.URL() }

// Bucket is the bucket's name.
func (l *Look) Bucket() string { return l.store.bucket }

// Region is the one that requests are signed for.
func (l *Look) Region() string { return l.store.client.Options().Region }

// Credentials are those that the SDK's chain finds: whose, and where it found them. An
// error says why it finds none.
func (l *Look) Credentials(ctx context.Context) (key, source string, err error) {
	provider := l.store.client.Options().Credentials
	if provider == nil {
		return "", "", errors.New("the SDK has no provider of them")
	}
	found, err := provider.Retrieve(ctx)
	if err != nil {
		return "", "", err
	}
	return found.AccessKeyID, found.Source, nil
}

// Answer is what a server's answer says by the way.
type Answer struct {
	// Host that answered; "" where none did.
	Host string
	// TLS is the version; "" for plain HTTP.
	TLS string
	// Date at the server; zero where it tells none.
	Date time.Time
	// Region that the server says the bucket is in, or that it takes signatures for; ""
	// where it says nothing.
	Region string

	status int
}

// Knock asks without credentials: nil where an S3 server answers, whatever its answer.
// ErrNotS3, or why none is reached.
func (l *Look) Knock(ctx context.Context) (Answer, error) {
	answer, err := l.ask(ctx, s3.New(l.store.client.Options(), func(o *s3.Options) { o.Credentials = aws.AnonymousCredentials{} }))
	var api smithy.APIError
	switch {
	case err == nil, answer.Host == "", answer.status >= http.StatusInternalServerError, errors.Is(err, ErrNotS3):
	case errors.As(err, &api) && api.ErrorCode() != strings.ReplaceAll(http.StatusText(answer.status), " ", ""):
		err = nil // where the answer has no code, the SDK makes one of its status
	default:
		err = fmt.Errorf("%w: it answers %d: %v", ErrNotS3, answer.status, brief(err))
	}
	return answer, err
}

// Enter asks with the credentials. ErrCredentials, ErrClock, ErrRegion, and
// storage.ErrSentinel where there is no bucket; storage.ErrPermission where all of
// that is well, and s3:ListBucket is denied.
func (l *Look) Enter(ctx context.Context) (Answer, error) {
	answer, err := l.ask(ctx, l.store.client)
	explained := l.store.explain(ctx, err, "s3:ListBucket", "")
	switch {
	case isCode(err, "RequestTimeTooSkewed"):
		return answer, fmt.Errorf("%w: %v", ErrClock, brief(err))
	case errors.Is(explained, storage.ErrPermission) && !isDenial(err):
		return answer, fmt.Errorf("%w: %v", ErrCredentials, brief(err))
	}
	return answer, explained
}

// isDenial tells whether a refusal is one of an action, to credentials that are known.
func isDenial(err error) bool {
	return slices.ContainsFunc([]string{"AccessDenied", "Forbidden", "AllAccessDisabled", "AccountProblem"}, func(code string) bool { return isCode(err, code) })
}

// expecting is how servers say which region is right.
var expecting = regexp.MustCompile(`expecting ['"]([a-z0-9-]+)['"]`)

// ask lists at most one name.
func (l *Look) ask(ctx context.Context, client *s3.Client) (answer Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.store.cfg.Timeouts.Request)
	defer cancel()
	out, err := client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: &l.store.bucket, Prefix: l.store.key(probePrefix), MaxKeys: aws.Int32(1),
	})
	var raw *smithyhttp.Response
	var failed *awshttp.ResponseError
	switch {
	case err == nil:
		raw, _ = awsmiddleware.GetRawResponse(out.ResultMetadata).(*smithyhttp.Response)
		if out.IsTruncated == nil {
			err = fmt.Errorf("%w: an answer that is no listing", ErrNotS3)
		}
	case errors.As(err, &failed):
		raw = failed.Response
	}
	if raw == nil || raw.Response == nil || raw.StatusCode == 0 {
		return answer, err
	}
	answer.status = raw.StatusCode
	answer.Region = raw.Header.Get("X-Amz-Bucket-Region")
	var api smithy.APIError
	if errors.As(err, &api) {
		if m := expecting.FindStringSubmatch(api.ErrorMessage()); m != nil {
			answer.Region = m[1]
		}
	}
	answer.Date, _ = http.ParseTime(raw.Header.Get("Date"))
	if raw.Request != nil {
		answer.Host = raw.Request.URL.Host
	}
	if raw.TLS != nil {
		answer.TLS = tls.VersionName(raw.TLS.Version)
	}
	return answer, err
}

// Denied tries the actions that a store takes, and gives those that the credentials may
// not do. Where nothing can be removed, nothing is written: s3:PutObject is then found
// out if at all by an upload. An error is anything but a refusal.
func (l *Look) Denied(ctx context.Context) (denied []string, err error) {
	p := &probing{Store: l.store, dir: probePrefix + rand.Text() + "/"}
	may := func(action string, do func() error) bool {
		switch tried := do(); {
		case err != nil || tried == nil:
		case errors.Is(tried, storage.ErrPermission):
			if !slices.Contains(denied, action) {
				denied = append(denied, action)
			}
			return false
		default:
			err = tried
		}
		return err == nil
	}
	key := p.dir + "action"
	may("s3:ListBucket", func() error { _, err := p.page(ctx, p.dir, "", nil); return err })
	read := may("s3:GetObject", func() error {
		if _, err := p.readSentinel(ctx); !errors.Is(err, storage.ErrSentinel) {
			return err
		}
		return nil
	})
	remove := may("s3:DeleteObject", func() error { return p.remove(ctx, key) })
	may("s3:ListBucketMultipartUploads", func() error {
		_, err := p.uploadsPage(ctx, &s3.ListMultipartUploadsInput{Bucket: &p.bucket, Prefix: p.key(p.dir), MaxUploads: aws.Int32(1)})
		return err
	})
	if may("s3:AbortMultipartUpload", func() error { return p.AbortUpload(ctx, key, "none") }) {
		may("s3:PutObject", func() error {
			id, err := p.createUpload(ctx, key, nil, "")
			if err != nil {
				return err
			}
			return p.abort(ctx, key, id)
		})
	}
	if !remove || err != nil {
		return denied, err
	}
	defer func() {
		err = errors.Join(err, p.remove(context.WithoutCancel(ctx), key), p.remove(context.WithoutCancel(ctx), key+"2"))
	}()
	var etag string
	if may("s3:PutObject", func() (err error) { etag, err = p.put(ctx, key, nil, putTerms{}); return err }) && read {
		c := copying{Store: p.Store, from: key, to: key + "2", fingerprint: etag + ":0"}
		may("s3:PutObject (copy)", func() error { return c.do(ctx) })
	}
	return denied, err
}

// Sentinel gives the id of the store that is there, fs.ErrNotExist where there is none,
// ErrWithin where there can be none; storage.ErrSentinel, storage.ErrPermission.
func (l *Look) Sentinel(ctx context.Context) (id string, err error) {
	found, err := l.store.readSentinel(ctx)
	if !errors.Is(err, errNoSentinel) {
		return found.ID, err
	}
	if id, url := l.store.enclosing(ctx); id != "" {
		return "", fmt.Errorf("%w: %s at %s", ErrWithin, id, url)
	}
	return "", fs.ErrNotExist
}

// Capabilities finds out what the server can do, as Open does.
func (l *Look) Capabilities(ctx context.Context) (Capabilities, error) { return l.store.probe(ctx) }

// Signed sends a signed GET, of an output that is not there, as readers do: nil where
// its signature is taken. ErrUnsigned, or why nobody is reached.
func (l *Look) Signed(ctx context.Context) error {
	s := l.store
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	req, err := s.PresignGet(ctx, http.MethodGet, "doctor-"+rand.Text(), time.Minute)
	if err != nil {
		return err
	}
	client, err := s.cfg.httpClient(s.cfg.Timeouts.Answer)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return err
	}
	var said struct{ Code, Message string }
	if err := xml.Unmarshal(text, &said); err != nil || said.Code != "NoSuchKey" {
		return fmt.Errorf("%w: %s: %s %s", ErrUnsigned, resp.Status, said.Code, said.Message)
	}
	return nil
}

// Versioning is "Enabled" or "Suspended"; "" where the bucket never kept versions.
func (l *Look) Versioning(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.store.cfg.Timeouts.Request)
	defer cancel()
	out, err := l.store.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &l.store.bucket})
	if err != nil {
		return "", l.store.explain(ctx, err, "s3:GetBucketVersioning", "")
	}
	return string(out.Status), nil
}

// Rules are what the bucket's lifecycle rules do to the store.
func (l *Look) Rules(ctx context.Context) (Rules, error) {
	found, err := l.store.bucketLifecycle(ctx)
	if err != nil {
		return Rules{}, err
	}
	return l.store.judge(found.Rules), nil
}

// Lifecycle is the document with the store's rules.
func (l *Look) Lifecycle() string { return l.store.Lifecycle() }

// InstallLifecycle sets the store's rules beside those that the bucket has.
func (l *Look) InstallLifecycle(ctx context.Context) error { return l.store.InstallLifecycle(ctx) }
