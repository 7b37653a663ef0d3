package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"catalogd/internal/storage"
	"catalogd/internal/storage/s3"
)

const (
	bucketDeadline = 2 * time.Minute
	// bucketAttempts bounds the tries of a request: nobody waits for what is broken.
	bucketAttempts = 2
	// maxSkew is what S3 takes in a signature.
	maxSkew = 15 * time.Minute
)

// InBucket tells whether a store is on S3.
func (s Store) InBucket() bool { return strings.HasPrefix(s.URL, "s3://") }

// bucket is a store on S3 that is looked at.
type bucket struct {
	*exam
	*s3.Look
	cfg  s3.Config
	root string
}

// bucket makes every check of a store on S3, and leaves it as it was.
func (e *exam) bucket(ctx context.Context, s Store) {
	ctx, cancel := context.WithTimeout(ctx, bucketDeadline)
	defer cancel()
	b := e.reach(ctx, s)
	if b == nil {
		return
	}
	if b.permissions(ctx) {
		b.capabilities(ctx)
	}
	b.sentinel(ctx)
	b.public(ctx)
	b.versions(ctx)
	b.lifecycle(ctx)
}

// reach goes as far as the bucket; nil where it does not get there.
func (e *exam) reach(ctx context.Context, s Store) *bucket {
	cfg, err := s3.FromURL(s.URL)
	if err != nil {
		e.say("store", Lacks, err.Error(), "write it as s3://BUCKET/PREFIX?endpoint=https://HOST&region=…")
		return nil
	}
	cfg.Attempts = bucketAttempts
	look, err := s3.NewLook(ctx, cfg)
	if err != nil {
		e.say("store", Lacks, err.Error(), "correct the settings in the store's URL, or the SDK's environment and profile")
		return nil
	}
	b := &bucket{exam: e, Look: look, cfg: cfg, root: s.Root}
	answer, before, after, ok := b.endpoint(ctx)
	if !ok || !b.enter(ctx, answer) {
		return nil
	}
	b.clock(answer, before, after)
	return b
}

// endpoint looks for an S3 server, and tells when it was asked.
func (b *bucket) endpoint(ctx context.Context) (answer s3.Answer, before, after time.Time, ok bool) {
	before = b.now()
	answer, err := b.Knock(ctx)
	after = b.now()
	at := cmp.Or(b.cfg.Endpoint, answer.Host, "the S3 server of the SDK's settings")
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &untrusted):
		b.say("endpoint", Lacks, fmt.Sprintf("%s shows a certificate that is not trusted: %v", at, untrusted.Err),
			"name a file with its authority's certificate in ca_file=…, and the host as the certificate does in endpoint=…")
	case errors.As(err, &plain), err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		b.say("endpoint", Lacks, at+" does not speak TLS", "write endpoint=http://…, or turn TLS on at the server")
	case errors.Is(err, s3.ErrNotS3):
		b.say("endpoint", Lacks, err.Error(), "correct endpoint=…: the address of the S3 server itself, with https:// where it speaks TLS, no console and no other service")
	case err != nil:
		var sent *url.Error // without what the SDK says around it
		if errors.As(err, &sent) {
			err = sent.Err
		}
		b.say("endpoint", Lacks, fmt.Sprintf("%s is not reached: %v", at, err), "start the S3 server, or correct endpoint=…; path_style=true where it has no address of its own for each bucket")
	case answer.TLS == "" && !loopback(answer.Host):
		b.say("endpoint", Warn, at+" is an S3 server, without TLS: whoever is in between reads all, and what is signed for tasks", "have it speak TLS, and write endpoint=https://…, unless the network is trusted")
	case answer.TLS != "" && b.cfg.InsecureTLS:
		b.say("endpoint", Warn, fmt.Sprintf("%s is an S3 server, %s, with any certificate: whoever is in between can read and change all", at, answer.TLS), "take insecure_tls out, and name a file with its authority's certificate in ca_file=…")
	case answer.TLS != "":
		b.ok("endpoint", "%s is an S3 server, %s", at, answer.TLS)
	default:
		b.ok("endpoint", "%s is an S3 server, on this machine", at)
	}
	return answer, before, after, err == nil
}

func loopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// enter looks at credentials, region and bucket, in the order in which a server does.
func (b *bucket) enter(ctx context.Context, knocked s3.Answer) bool {
	key, source, err := b.Credentials(ctx)
	if err != nil {
		b.say("credentials", Lacks, "the SDK's chain finds none: "+err.Error(), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile in profile=…, or give this machine a role")
		return false
	}
	who := fmt.Sprintf("%s, of %s", key, source)
	answer, err := b.Enter(ctx)
	right := cmp.Or(answer.Region, knocked.Region)
	switch {
	case errors.Is(err, s3.ErrCredentials):
		b.say("credentials", Lacks, who+": "+err.Error(), "renew or correct them")
		return false
	case errors.Is(err, s3.ErrClock):
		b.say("store clock", Lacks, err.Error(), remedyClock)
		return false
	case errors.Is(err, s3.ErrRegion) && right != "" && right != b.Region():
		b.say("region", Lacks, fmt.Sprintf("the bucket is in %s, and the store is set to %s", right, b.Region()), "write region="+right+" into the store's URL")
		return false
	case errors.Is(err, s3.ErrRegion):
		b.say("region", Lacks, err.Error(), "write the bucket's region into the store's URL, region=…")
		return false
	case err != nil && !errors.Is(err, storage.ErrSentinel) && !errors.Is(err, storage.ErrPermission):
		b.say("store", Lacks, err.Error(), "see that the S3 server answers, and what its log says")
		return false
	}
	b.ok("credentials", "%s", who)
	b.ok("region", "%s", b.Region())
	switch {
	case errors.Is(err, storage.ErrSentinel):
		b.say("store", Lacks, "there is no bucket "+b.Bucket(), "make it, or correct the store's URL: nothing makes it, so that a name mistyped is noticed")
		return false
	case err == nil:
		b.ok("store", "%s is there", b.URL())
	}
	return true
}

const remedyClock = "keep this machine and the S3 server in step with NTP (timedatectl set-ntp true)"

// clock compares with the Date of an answer, which has no fractions.
func (b *bucket) clock(a s3.Answer, before, after time.Time) {
	if a.Date.IsZero() {
		b.say("store clock", Warn, "the answer has no date", "see what proxy removes it")
		return
	}
	skew := apart(a.Date, a.Date.Add(time.Second), before, after)
	found := fmt.Sprintf("differs from this machine's by %v at least", skew.Round(time.Millisecond))
	switch {
	case skew >= maxSkew:
		b.say("store clock", Lacks, found+": what is signed for tasks and readers is not taken", remedyClock)
	case skew > time.Second:
		b.say("store clock", Warn, found, remedyClock)
	default:
		b.ok("store clock", "%s", found)
	}
}

// permissions tries every action; true where all are allowed.
func (b *bucket) permissions(ctx context.Context) bool {
	denied, err := b.Denied(ctx)
	switch {
	case len(denied) > 0:
		found := strings.Join(denied, ", ") + " denied"
		if !slices.Contains(denied, "s3:PutObject") && slices.Contains(denied, "s3:DeleteObject") {
			found += "; writing was not tried, since nothing could be removed"
		}
		b.say("permissions", Lacks, found, fmt.Sprintf("allow these credentials s3:ListBucket and s3:ListBucketMultipartUploads on %s, s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on %s/*", b.Bucket(), strings.TrimPrefix(b.URL(), "s3://")))
	case err != nil:
		b.say("permissions", Lacks, err.Error(), "see that the S3 server takes objects, and what its log says")
	default:
		b.ok("permissions", "to list, get, put, copy and delete, to upload in parts, and to list and abort uploads")
	}
	return len(denied) == 0 && err == nil
}

// capability is what a server can do, and what follows where it cannot.
type capability struct {
	check   string
	has     bool
	ok, not string
	// status where it has not.
	status Status
	remedy string
}

// capabilities are those that Open tries.
func (b *bucket) capabilities(ctx context.Context) {
	caps, err := b.Capabilities(ctx)
	if err != nil {
		b.say("capabilities", Lacks, err.Error(), "see that the S3 server answers, and what its log says")
		return
	}
	for _, c := range judgeCapabilities(caps) {
		if c.has {
			b.ok(c.check, "%s", c.ok)
		} else {
			b.say(c.check, c.status, c.not, c.remedy)
		}
	}
}

func judgeCapabilities(caps s3.Capabilities) []capability {
	const another = "serve refuses this server: take one, or a version of it, that does"
	return []capability{
		{"put-if-none-match", caps.PutIfNoneMatch, "PutObject refuses to replace", "PutObject does not honour If-None-Match: an upload may replace what its attempt staged before",
			Warn, "let the first server of a new store start alone; what was replaced after it was probed is refused all the same"},
		{"copy-if-none-match", caps.CopyIfNoneMatch, "CopyObject refuses to replace", "CopyObject does not honour If-None-Match: catalogd looks first", OK, ""},
		{"complete-if-none-match", caps.CompleteIfNoneMatch, "CompleteMultipartUpload refuses to replace", "CompleteMultipartUpload does not honour If-None-Match: catalogd looks first", OK, ""},
		{"copy-source-if-match", caps.CopySourceIfMatch, "CopyObject refuses a source that changed", "CopyObject ignores x-amz-copy-source-if-match: a staged object that was replaced could be promoted unseen", Lacks, another},
		{"part-copy-source-if-match", caps.PartCopySourceIfMatch, "UploadPartCopy refuses a source that changed", "UploadPartCopy ignores x-amz-copy-source-if-match: a staged object that was replaced could be promoted unseen", Lacks, another},
		{"copy-metadata", caps.CopyMetadata, "CopyObject takes metadata", "CopyObject takes no metadata, by which a repeated promotion knows its own", Lacks, another},
		{"checksums", caps.Checksums, "SHA-256 is checked, and told by HEAD", "SHA-256 is not checked, or not told by HEAD: catalogd reads every output through to hash it", Warn, "take a server with checksums where that costs too much"},
		{"byte-order", caps.ByteOrder, "listings are in byte order", "listings are not in byte order of the keys", Lacks, another},
	}
}

func (b *bucket) sentinel(ctx context.Context) {
	id, err := b.Sentinel(ctx)
	switch {
	case errors.Is(err, storage.ErrPermission):
		return // permissions has said so
	case errors.Is(err, s3.ErrWithin):
		b.say("sentinel", Lacks, err.Error(), "give this one a prefix of its own")
		return
	}
	b.judgeSentinel(place{
		root: b.root, sentinel: b.URL() + "/" + storage.SentinelKey,
		doubt: "not the bucket or prefix that was meant", correct: "correct bucket, prefix and endpoint in --store",
	}, id, err)
}

// public looks at where tasks and readers are sent, if that is elsewhere.
func (b *bucket) public(ctx context.Context) {
	at := b.cfg.PublicEndpoint
	if at == "" {
		return
	}
	switch err := b.Signed(ctx); {
	case errors.Is(err, s3.ErrUnsigned):
		b.say("public endpoint", Lacks, at+": "+err.Error(), "have the proxy there leave Host and path as they come, since they are signed, or correct public_endpoint=…")
	case err != nil:
		b.say("public endpoint", Warn, fmt.Sprintf("not reached from here: %v", err), "see that tasks and readers reach it, or correct public_endpoint=…")
	default:
		b.ok("public endpoint", "%s takes what is signed here", at)
	}
}

func (b *bucket) versions(ctx context.Context) {
	const remedy = "add a lifecycle rule to the bucket with NoncurrentVersionExpiration, or suspend versioning"
	status, err := b.Versioning(ctx)
	switch {
	case err != nil:
		b.say("versioning", Warn, err.Error(), "look yourself whether the bucket keeps versions, or allow s3:GetBucketVersioning")
	case status == "Enabled":
		b.say("versioning", Warn, "the bucket keeps versions: whatever catalogd deletes stays there as a noncurrent one, and is paid for", remedy)
	case status == "Suspended":
		b.ok("versioning", "suspended; versions of before stay until somebody deletes them")
	default:
		b.ok("versioning", "none is kept")
	}
}
