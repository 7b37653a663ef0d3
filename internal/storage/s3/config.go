package s3

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/storage"
)

// Config says where a store is and how to speak to its server. All but URL may be
// left out.
type Config struct {
	// URL is s3://bucket or s3://bucket/prefix.
	URL string
	// Endpoint is the server's http or https URL; "" for AWS, or what the SDK's
	// environment says.
	Endpoint string
	// PublicEndpoint is the server's URL in what is signed for others; "" for Endpoint.
	PublicEndpoint string
	// Region is the bucket's; "" for what the SDK's environment or profile says, and
	// us-east-1 where there is an endpoint and they say none.
	Region string
	// Profile is one of the SDK's shared configuration, for credentials and region; ""
	// for what the environment says.
	Profile string
	// PathStyle puts the bucket into the path, as most servers but AWS need it; nil for
	// wherever there is an endpoint.
	PathStyle *bool
	// CAFile holds certificates (PEM) to trust besides the system's.
	CAFile string
	// InsecureTLS trusts any certificate: whoever is in between can read and change
	// everything.
	InsecureTLS bool
	// StreamReads has catalogd send the bytes of outputs itself, rather than send
	// readers to the server: for servers that readers cannot reach.
	StreamReads bool
	// Credentials, if set, replaces the SDK's chain: environment, profile, web
	// identity, container, instance.
	Credentials aws.CredentialsProvider
	// Attempts bounds the tries of one request that fails for a reason that may pass
	// (default 5), and MaxBackoff the pause between two (default 5 s).
	Attempts   int
	MaxBackoff time.Duration
	Timeouts   Timeouts
	// CopyThreshold is the size above which an object is copied in parts of CopyPart
	// bytes. At most, and by default, 5 GiB, which is S3's bound; parts are 512 MiB.
	CopyThreshold, CopyPart int64
	// UploadPart is the size of the parts in which a stream is uploaded; 8 MiB. What
	// fits in one is one PUT.
	UploadPart int64
	// Init writes a sentinel with a new id when there is none. Without it, a prefix
	// without a sentinel is refused: it is most likely not the one that was meant.
	Init bool
	// Capabilities, if set, are taken as shown, and not tried again.
	Capabilities *Capabilities

	pageSize int32 // of listings, for tests
}

// Timeouts bound what a server may take. Each covers one call with its retries.
type Timeouts struct {
	// Connect: TCP and, again, TLS; 5 s.
	Connect time.Duration
	// Answer: until one try at an ordinary request is answered; 15 s.
	Answer time.Duration
	// Request: an ordinary request, with its retries; 1 min.
	Request time.Duration
	// Transfer: one part up, or the next bytes down; 2 min.
	Transfer time.Duration
	// Copy: one copy at the server, or the completion of an upload; 10 min.
	Copy time.Duration
}

const (
	maxCopy  = 5 << 30 // of one CopyObject or UploadPartCopy
	minPart  = storage.MinPart
	maxParts = storage.MaxParts
)

func (c Config) withDefaults() Config {
	c.Attempts = cmp.Or(c.Attempts, 5)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Second)
	t := &c.Timeouts
	t.Connect = cmp.Or(t.Connect, 5*time.Second)
	t.Answer = cmp.Or(t.Answer, 15*time.Second)
	t.Request = cmp.Or(t.Request, time.Minute)
	t.Transfer = cmp.Or(t.Transfer, 2*time.Minute)
	t.Copy = cmp.Or(t.Copy, 10*time.Minute)
	c.CopyThreshold = min(cmp.Or(c.CopyThreshold, maxCopy), maxCopy)
	c.CopyPart = min(cmp.Or(c.CopyPart, 512<<20), maxCopy)
	c.UploadPart = max(cmp.Or(c.UploadPart, 8<<20), minPart)
	c.pageSize = cmp.Or(c.pageSize, 1000)
	return c
}

// ParseURL takes s3://bucket/prefix apart; prefix ends in "/" or is "". A prefix
// has the segments of a name.
func ParseURL(s string) (bucket, prefix string, err error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("store URL: %w", err)
	case u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Port() != "":
		return "", "", fmt.Errorf("store URL %q is not of the form s3://bucket/prefix", u.Redacted())
	}
	prefix = strings.Trim(u.Path, "/")
	if prefix == "" {
		return u.Host, "", nil
	}
	if err := (&Store{}).checkFinal(prefix); err != nil {
		return "", "", fmt.Errorf("prefix of the store URL: %w", err)
	}
	return u.Host, prefix + "/", nil
}

// FromURL is the Config of a URL with its settings as query parameters:
// s3://bucket/prefix?endpoint=https://host:port&region=…. They are endpoint,
// public_endpoint, region, profile, path_style, ca_file, insecure_tls, and reads
// (redirect or stream).
func FromURL(text string) (cfg Config, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return cfg, fmt.Errorf("store URL: %w", err)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return cfg, fmt.Errorf("store URL %s: %w", text, err)
	}
	u.RawQuery = ""
	cfg.URL = u.String()
	if _, _, err := ParseURL(cfg.URL); err != nil {
		return cfg, err
	}
	for name, values := range query {
		if err := cfg.set(name, values[len(values)-1]); err != nil {
			return cfg, fmt.Errorf("store URL %s: %s: %w", cfg.URL, name, err)
		}
	}
	return cfg, nil
}

func (c *Config) set(name, value string) (err error) {
	switch name {
	case "endpoint":
		c.Endpoint, err = endpoint(value)
	case "public_endpoint":
		c.PublicEndpoint, err = endpoint(value)
	case "region":
		c.Region = value
	case "profile":
		c.Profile = value
	case "path_style":
		var on bool
		on, err = yesOrNo(value)
		c.PathStyle = &on
	case "ca_file":
		c.CAFile = value
	case "insecure_tls":
		c.InsecureTLS, err = yesOrNo(value)
	case "reads":
		c.StreamReads = value == "stream"
		if value != "stream" && value != "redirect" {
			err = fmt.Errorf("%q is neither redirect nor stream", value)
		}
	default:
		err = errors.New("there is no such setting; there are endpoint, public_endpoint, region, profile, path_style, ca_file, insecure_tls and reads")
	}
	return err
}

func yesOrNo(value string) (bool, error) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", value)
	}
	return on, nil
}

func endpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not of the form https://HOST:PORT", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// connect makes the clients. It asks nothing of the server.
func (s *Store) connect(ctx context.Context) error {
	quick, err := s.cfg.httpClient(s.cfg.Timeouts.Answer)
	if err != nil {
		return err
	}
	slow, err := s.cfg.httpClient(0)
	if err != nil {
		return err
	}
	load := []func(*config.LoadOptions) error{config.WithHTTPClient(quick)}
	if s.cfg.Region != "" {
		load = append(load, config.WithRegion(s.cfg.Region))
	}
	if s.cfg.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(s.cfg.Profile))
	}
	if s.cfg.Credentials != nil {
		load = append(load, config.WithCredentialsProvider(s.cfg.Credentials))
	}
	loaded, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return fmt.Errorf("the SDK's settings: %w", err)
	}
	s.client = s3.NewFromConfig(loaded, func(o *s3.Options) {
		if s.cfg.Endpoint != "" {
			o.BaseEndpoint = &s.cfg.Endpoint
		}
		if o.Region == "" && o.BaseEndpoint != nil {
			o.Region = "us-east-1"
		}
		o.UsePathStyle = o.BaseEndpoint != nil
		if s.cfg.PathStyle != nil {
			o.UsePathStyle = *s.cfg.PathStyle
		}
		// Not all servers take the checksums that the SDK adds by itself; what is
		// uploaded here always carries one of ours.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
		o.Retryer = retry.NewStandard(func(r *retry.StandardOptions) {
			r.MaxAttempts, r.MaxBackoff = s.cfg.Attempts, s.cfg.MaxBackoff
		})
	})
	s.slow = func(o *s3.Options) { o.HTTPClient = slow }
	if s.client.Options().Region == "" {
		return errors.New("no region: set it for the store, or AWS_REGION")
	}
	return nil
}

func (c Config) httpClient(answer time.Duration) (*awshttp.BuildableClient, error) {
	var roots *x509.CertPool
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %v", err) // absent, it is no absent object
		}
		if roots, err = x509.SystemCertPool(); err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("CA file %s holds no certificate in PEM", c.CAFile)
		}
	}
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = c.Timeouts.Connect }).
		WithTransportOptions(func(t *http.Transport) {
			t.TLSHandshakeTimeout = c.Timeouts.Connect
			t.ResponseHeaderTimeout = answer
			t.MaxIdleConnsPerHost = 64
			t.DisableCompression = true // bytes are what they are
			t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, InsecureSkipVerify: c.InsecureTLS}
		}), nil
}
