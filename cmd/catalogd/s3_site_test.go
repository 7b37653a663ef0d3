package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"catalogd/internal/invariant"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
)

// gateway is a real S3 server, which all tests that do not harm it share.
var gateway = sync.OnceValues(func() (*sharedGateway, error) {
	dir, err := os.MkdirTemp("", "catalogd-test-")
	if err != nil {
		return nil, err
	}
	g, err := s3gateway.Start(context.Background(), s3gateway.Options{Dir: dir})
	shared = &sharedGateway{g, dir}
	return shared, err
})

type sharedGateway struct {
	*s3gateway.Gateway
	dir string
}

var shared *sharedGateway // if any test asked for it

func endGateway() {
	if shared == nil {
		return
	}
	if shared.Gateway != nil {
		_ = shared.Stop()
	}
	_ = os.RemoveAll(shared.dir)
}

// bucket is a store under a prefix of a bucket, as a test sees and changes it behind
// the server's back.
type bucket struct {
	gateway      *s3gateway.Gateway
	client       *s3.Client
	name, prefix string // the prefix ends in "/"
}

// newBucket makes a bucket with nothing in it.
func newBucket(t testing.TB, prefix string) *bucket {
	t.Helper()
	g, err := gateway()
	ok(t, err)
	return &bucket{g.Gateway, g.Client(), gatewaytest.Bucket(t, g.Gateway), prefix}
}

// url of the store, with settings over those that it needs.
func (b *bucket) url(settings ...string) string {
	query := url.Values{"endpoint": {b.gateway.Endpoint}, "region": {s3gateway.Region}}
	for i := 0; i+1 < len(settings); i += 2 {
		query.Set(settings[i], settings[i+1])
	}
	u := url.URL{Scheme: "s3", Host: b.name, Path: "/" + strings.TrimSuffix(b.prefix, "/"), RawQuery: query.Encode()}
	return u.String()
}

// credentials are an environment in which the SDK finds these, and no others.
func credentials(access, secret string) []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + access, "AWS_SECRET_ACCESS_KEY=" + secret,
		"AWS_SESSION_TOKEN=", "AWS_PROFILE=", "AWS_REGION=", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
	}
}

// env is that of who may do everything.
func (b *bucket) env() []string { return credentials(b.gateway.AccessKey, b.gateway.SecretKey) }

// newBucketSite is newSite on a bucket.
func newBucketSite(t *testing.T) *site {
	t.Helper()
	return newSiteIn(t, newBucket(t, "some/prefix/"))
}

func newSiteIn(t *testing.T, b *bucket, settings ...string) *site {
	t.Helper()
	s := newSite(t)
	s.bucket, s.store = b, b.url(settings...)
	s.env = b.env()
	return s
}

// onEachStore runs a test on a directory and on a bucket.
func onEachStore(t *testing.T, test func(t *testing.T, newSite func(*testing.T) *site)) {
	for name, make := range map[string]func(*testing.T) *site{"posix": newSite, "s3": newBucketSite} {
		t.Run(name, func(t *testing.T) { test(t, make) })
	}
}

func (b *bucket) key(key string) *string { return aws.String(b.prefix + key) }

func (b *bucket) put(s *site, key string, content []byte) {
	s.Helper()
	_, err := b.client.PutObject(s.Context(), &s3.PutObjectInput{Bucket: &b.name, Key: b.key(key), Body: bytes.NewReader(content)})
	ok(s, err)
}

func (b *bucket) remove(s *site, key string) {
	s.Helper()
	_, err := b.client.DeleteObject(s.Context(), &s3.DeleteObjectInput{Bucket: &b.name, Key: b.key(key)})
	ok(s, err)
}

func (b *bucket) state(s *site, key string) string {
	s.Helper()
	out, err := b.client.HeadObject(s.Context(), &s3.HeadObjectInput{Bucket: &b.name, Key: b.key(key)})
	var none *types.NotFound
	if errors.As(err, &none) {
		return ""
	}
	ok(s, err)
	return aws.ToString(out.ETag) + aws.ToTime(out.LastModified).String()
}

func (b *bucket) content(s *site, key string) []byte {
	s.Helper()
	out, err := b.client.GetObject(s.Context(), &s3.GetObjectInput{Bucket: &b.name, Key: b.key(key)})
	ok(s, err)
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	ok(s, err)
	return content
}

func (b *bucket) files(s *site, dir string) (names []string) {
	s.Helper()
	if dir != "" {
		dir += "/"
	}
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: b.key(dir)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(s.Context())
		ok(s, err)
		for _, o := range page.Contents {
			names = append(names, strings.TrimPrefix(aws.ToString(o.Key), b.prefix))
		}
	}
	return names
}

// uploads are the keys of those in parts that are not finished.
func (b *bucket) uploads(s *site) (keys []string) {
	s.Helper()
	out, err := b.client.ListMultipartUploads(s.Context(), &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &b.prefix})
	ok(s, err)
	for _, u := range out.Uploads {
		keys = append(keys, strings.TrimPrefix(aws.ToString(u.Key), b.prefix))
	}
	return keys
}

func (b *bucket) seen() invariant.Store {
	return invariant.Bucket{Client: b.client, Name: b.name, Prefix: b.prefix}
}

// hide takes the bucket away from the gateway, until back is called.
func (b *bucket) hide(t testing.TB) (back func()) {
	t.Helper()
	at := filepath.Join(shared.dir, "objects", b.name)
	away := filepath.Join(shared.dir, b.name)
	ok(t, os.Rename(at, away))
	return func() { ok(t, os.Rename(away, at)) }
}

// gatewayUser is one of the gateway's who may do in the bucket what its policy says.
type gatewayUser struct {
	*bucket
	name string
	env  []string
}

func (b *bucket) user(t testing.TB) gatewayUser {
	t.Helper()
	name := "user-" + b.name
	secret, err := b.gateway.CreateUser(t.Context(), name)
	ok(t, err)
	return gatewayUser{b, name, credentials(name, secret)}
}

func (u gatewayUser) may(t testing.TB, actions ...string) {
	t.Helper()
	policy, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{map[string]any{
		"Effect": "Allow", "Principal": map[string]any{"AWS": []string{u.name}}, "Action": actions,
		"Resource": []string{"arn:aws:s3:::" + u.bucket.name, "arn:aws:s3:::" + u.bucket.name + "/*"},
	}}})
	ok(t, err)
	ok(t, u.gateway.SetPolicy(t.Context(), u.bucket.name, string(policy)))
}

// serveArgs start a server on the site's database, on these stores or else the site's.
func (s *site) serveArgs(stores ...string) []string {
	if stores == nil {
		stores = []string{s.store}
	}
	args := []string{"serve", "--database-url", withRole(s.database, "catalog_server"), "--listen", "127.0.0.1:0"}
	return append(args, storeArgs(stores)...)
}

func storeArgs(stores []string) (args []string) {
	for _, store := range stores {
		args = append(args, "--store", store)
	}
	return args
}

// refused runs a command that must end with exit code 1 or 2, and gives the line that
// says why.
func (s *site) refused(env []string, args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	cmd := program(s, args, slices.Concat(s.env, env))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	ok(s, cmd.Start())
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	stop()
	s.discreet(said.String())
	var lines []string
	for line := range strings.Lines(said.String()) {
		if strings.HasPrefix(line, "catalogd: ") {
			lines = append(lines, line)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != exitError && code != exitUsage || len(lines) != 1 {
		s.Errorf("catalogd %q: %v, and said:\n%s", args, cmd.ProcessState, said.String())
		return said.String()
	}
	return lines[0]
}
