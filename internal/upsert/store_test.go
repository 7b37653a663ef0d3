package upsert_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"

	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/storage/s3"
	"catalogd/internal/upsert"
)

// onBoth runs a test on a store in a directory, and on one in a bucket.
func onBoth(t *testing.T, test func(t *testing.T, on place)) {
	t.Parallel()
	for name, on := range map[string]place{"posix": inDirectory, "s3": inBucket} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, on)
		})
	}
}

// place makes a site for a store of the test's own.
type place func(t testing.TB) site

// site is where a store is, and what a test does there behind the server's back.
type site interface {
	invariant.Store
	// open opens the store as one more server does.
	open(t testing.TB) storage.Store
	// known is how the catalogue knows the store.
	known(store storage.Store) postgres.Store
	put(t testing.TB, key string, content []byte)
	// output puts a unit's object at its final name, whole at once.
	output(ctx context.Context, key, unit string, content []byte) error
	// get is fs.ErrNotExist where there is no object.
	get(t testing.TB, key string) ([]byte, error)
	// remove is of what is there.
	remove(t testing.TB, key string)
	// keys of all that could be outputs of a collection.
	keys(t testing.TB, collection string) []string
	// look sees what is at final names: that whose state is as it was known, again
	// only if all.
	look(known map[string]sight, all bool) map[string]sight
	// pace is how often a watcher looks.
	pace() time.Duration
	aways(t testing.TB) []away
}

// sight is what was seen of an object: its state, and its bytes at that time.
type sight struct {
	state string
	sum   [sha256.Size]byte
}

// away is a way in which a store goes, and comes back.
type away struct {
	name        string
	goes, comes func()
	// unseen calls do not notice.
	unseen []string
}

func (w *world) put(key string, content []byte) {
	w.t.Helper()
	w.site.put(w.t, key, content)
}

func (w *world) exists(key string) bool {
	w.t.Helper()
	_, err := w.site.get(w.t, key)
	return err == nil
}

func (w *world) remove(key string) {
	w.t.Helper()
	w.site.remove(w.t, key)
}

// directory is a site on this machine's filesystem.
type directory struct{ invariant.Directory }

func inDirectory(t testing.TB) site { return directory{invariant.Directory(t.TempDir())} }

func (d directory) path(key string) string { return filepath.Join(string(d.Directory), key) }

func (d directory) open(t testing.TB) storage.Store {
	t.Helper()
	store, err := posix.Open(t.Context(), string(d.Directory), posix.Options{Init: true})
	must(t, err)
	return store
}

func (d directory) known(store storage.Store) postgres.Store {
	return postgres.Store{ID: store.ID(), Root: "file://" + string(d.Directory), Location: string(d.Directory) + "/", Href: "/data/"}
}

func (d directory) put(t testing.TB, key string, content []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(d.path(key)), 0o755))
	must(t, os.WriteFile(d.path(key), content, 0o644))
}

func (d directory) output(_ context.Context, key, _ string, content []byte) error {
	temporary := d.path(".catalogd/" + uuid.NewString())
	return errors.Join(os.MkdirAll(filepath.Dir(d.path(key)), 0o755), os.WriteFile(temporary, content, 0o644), os.Rename(temporary, d.path(key)))
}

func (d directory) get(_ testing.TB, key string) ([]byte, error) {
	if _, err := os.Lstat(d.path(key)); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(d.path(key))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it is there, whatever it is
	}
	return content, err
}

func (d directory) remove(t testing.TB, key string) {
	t.Helper()
	must(t, os.Remove(d.path(key)))
}

func (d directory) keys(t testing.TB, collection string) (keys []string) {
	t.Helper()
	paths, err := filepath.Glob(d.path(collection + "/*.tif"))
	must(t, err)
	for _, path := range paths {
		keys = append(keys, collection+"/"+filepath.Base(path))
	}
	return keys
}

func (directory) pace() time.Duration { return 5 * time.Millisecond }

func (d directory) look(known map[string]sight, all bool) map[string]sight {
	seen := map[string]sight{}
	collections, _ := os.ReadDir(string(d.Directory))
	for _, c := range collections {
		if strings.HasPrefix(c.Name(), ".") || c.Name() == "current" {
			continue
		}
		_ = filepath.WalkDir(d.path(c.Name()), func(path string, e fs.DirEntry, err error) error {
			var st syscall.Stat_t
			if err != nil || e.IsDir() || syscall.Stat(path, &st) != nil {
				return nil
			}
			before, now := known[path], sight{state: fmt.Sprint(st.Ino, st.Mtim, st.Ctim)}
			if now.state == before.state && !all {
				seen[path] = before
			} else if content, err := os.ReadFile(path); err == nil {
				now.sum = sha256.Sum256(content)
				seen[path] = now
			}
			return nil
		})
	}
	return seen
}

func (d directory) aways(t testing.TB) []away {
	root := string(d.Directory)
	aside, back := root+".aside", func() { must(t, os.RemoveAll(root), os.Rename(root+".aside", root)) }
	return []away{
		{"the root is gone", func() { must(t, os.Rename(root, aside)) }, back, nil},
		{"an empty directory is in its place", func() { must(t, os.Rename(root, aside), os.Mkdir(root, 0o755)) }, back, nil},
		{"another store is in its place", func() {
			must(t, os.Rename(root, aside))
			d.put(t, storage.SentinelKey, []byte(`{"id":"another"}`))
		}, back, nil},
	}
}

// gateway is one S3 server for all tests of the package.
var gateway struct {
	sync.Once
	*s3gateway.Gateway
	dir string
	// caps were shown when the first store was opened.
	caps s3.Capabilities
	err  error
}

func startGateway(t testing.TB) *s3gateway.Gateway {
	t.Helper()
	gateway.Do(func() {
		if gateway.dir, gateway.err = os.MkdirTemp("", "catalogd-upsert-"); gateway.err == nil {
			gateway.Gateway, gateway.err = s3gateway.Start(t.Context(), s3gateway.Options{Dir: gateway.dir})
		}
		if gateway.err != nil {
			return
		}
		b := newBucket(t)
		b.Capabilities = nil
		store, err := s3.Open(t.Context(), b.Config)
		if gateway.err = err; err == nil {
			gateway.caps = store.Capabilities()
		}
	})
	must(t, gateway.err)
	return gateway.Gateway
}

// stopGateway is called after all tests.
func stopGateway() error {
	if gateway.Gateway == nil {
		return nil
	}
	return errors.Join(gateway.Stop(), os.RemoveAll(gateway.dir))
}

// bucket is a site on the gateway.
type bucket struct {
	invariant.Bucket
	s3.Config
	// versions are kept.
	versions bool
}

func inBucket(t testing.TB) site {
	startGateway(t)
	return newBucket(t)
}

// inBucketWith is inBucket with settings of the store's.
func inBucketWith(change func(*s3.Config)) place {
	return func(t testing.TB) site {
		b := inBucket(t).(*bucket)
		change(&b.Config)
		return b
	}
}

func newBucket(t testing.TB) *bucket {
	t.Helper()
	g := gateway.Gateway
	b := &bucket{Bucket: invariant.Bucket{Client: g.Client(), Name: gatewaytest.Bucket(t, g), Prefix: "some/prefix/"}}
	b.Config = s3.Config{
		URL: "s3://" + b.Name + "/" + b.Prefix, Endpoint: g.Endpoint, Region: s3gateway.Region, Init: true, Capabilities: &gateway.caps,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	}
	return b
}

func (b *bucket) key(key string) *string { return aws.String(b.Prefix + key) }

func (b *bucket) open(t testing.TB) storage.Store {
	t.Helper()
	store, err := s3.Open(t.Context(), b.Config)
	must(t, err)
	return store
}

func (b *bucket) known(store storage.Store) postgres.Store {
	return postgres.Store{ID: store.ID(), Root: "s3://" + b.Name + "/" + b.Prefix, Location: "/vsis3/" + b.Name + "/" + b.Prefix, Href: "/data/"}
}

func (b *bucket) put(t testing.TB, key string, content []byte) {
	t.Helper()
	must(t, b.output(t.Context(), key, "", content))
}

func (b *bucket) output(ctx context.Context, key, unit string, content []byte) error {
	_, err := b.Client.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: &b.Name, Key: b.key(key), Body: bytes.NewReader(content), Metadata: map[string]string{"catalogd-unit-key": unit},
	})
	return err
}

func (b *bucket) get(t testing.TB, key string) ([]byte, error) {
	t.Helper()
	content, _, err := b.read(t.Context(), key)
	return content, err
}

func (b *bucket) read(ctx context.Context, key string) (content []byte, etag string, err error) {
	out, err := b.Client.GetObject(ctx, &awss3.GetObjectInput{Bucket: &b.Name, Key: b.key(key)})
	if err != nil {
		return nil, "", fmt.Errorf("%w: %v", fs.ErrNotExist, err)
	}
	defer out.Body.Close()
	content, err = io.ReadAll(out.Body)
	return content, aws.ToString(out.ETag), err
}

func (b *bucket) remove(t testing.TB, key string) {
	t.Helper()
	if _, err := b.get(t, key); err != nil {
		t.Fatal(err)
	}
	_, err := b.Client.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &b.Name, Key: b.key(key)})
	must(t, err)
}

func (b *bucket) list(ctx context.Context, prefix string, yield func(key, state string)) error {
	pages := awss3.NewListObjectsV2Paginator(b.Client, &awss3.ListObjectsV2Input{Bucket: &b.Name, Prefix: b.key(prefix)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			yield(strings.TrimPrefix(*o.Key, b.Prefix), fmt.Sprint(*o.ETag, *o.Size, *o.LastModified))
		}
	}
	return nil
}

func (b *bucket) keys(t testing.TB, collection string) (keys []string) {
	t.Helper()
	must(t, b.list(t.Context(), collection+"/", func(key, _ string) { keys = append(keys, key) }))
	return keys
}

func (*bucket) pace() time.Duration { return 50 * time.Millisecond }

// look reads one more in each turn, or so, whose state is as it was.
func (b *bucket) look(known map[string]sight, all bool) map[string]sight {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seen := map[string]sight{}
	_ = b.list(ctx, "", func(key, state string) {
		if strings.HasPrefix(key, ".") {
			return
		}
		before, now := known[key], sight{state: state}
		if now.state == before.state && !all && rand.IntN(len(known)) > 0 {
			seen[key] = before
			return
		}
		if content, etag, err := b.read(ctx, key); err == nil {
			now.sum = sha256.Sum256(append(content, etag...))
			seen[key] = now
		}
	})
	return seen
}

// aways: a begin asks the store for nothing where its unit is new.
func (b *bucket) aways(t testing.TB) []away {
	objects := filepath.Join(gateway.dir, "objects")
	root, aside := filepath.Join(objects, b.Name), filepath.Join(t.TempDir(), "aside")
	back := func() { must(t, os.RemoveAll(root), os.Rename(aside, root)) }
	unseen := []string{"begin of what is new", "upload"}
	return []away{
		{"the bucket is gone", func() { must(t, os.Rename(root, aside)) }, back, unseen[:1]},
		{"an empty bucket is in its place", func() {
			must(t, os.Rename(root, aside), gateway.CreateBucket(t.Context(), b.Name))
		}, back, unseen},
		{"another store is in its place", func() {
			must(t, os.Rename(root, aside), gateway.CreateBucket(t.Context(), b.Name))
			b.put(t, storage.SentinelKey, []byte(`{"id":"another"}`))
		}, back, unseen},
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// calls come before a store's own: an error is the call's.
type calls struct {
	// prepare is called once, promote and remove each time.
	prepare atomic.Pointer[func()]
	promote func() error
	remove  func(key string) error
}

func (c *calls) preparing() {
	if do := c.prepare.Swap(nil); do != nil {
		(*do)()
	}
}

func (c *calls) promoting() error {
	if c.promote == nil {
		return nil
	}
	return c.promote()
}

func (c *calls) removing(key string) error {
	if c.remove == nil {
		return nil
	}
	return c.remove(key)
}

// with is the world's store with calls before its own.
func (w *world) with(c *calls) upsert.Stores {
	switch store := w.store.(type) {
	case *posix.Store:
		return upsert.Stores{store.ID(): posixWith{store, c}}
	case *s3.Store:
		return upsert.Stores{store.ID(): s3With{store, c}}
	}
	panic("another kind of store")
}

type posixWith struct {
	*posix.Store
	c *calls
}

func (s posixWith) PrepareStaging(ctx context.Context, stagedKey, finalKey string) error {
	s.c.preparing()
	return s.Store.PrepareStaging(ctx, stagedKey, finalKey)
}

func (s posixWith) Promote(ctx context.Context, stagedKey, finalKey, fingerprint string) error {
	if err := s.c.promoting(); err != nil {
		return err
	}
	return s.Store.Promote(ctx, stagedKey, finalKey, fingerprint)
}

func (s posixWith) Delete(ctx context.Context, key string) error {
	if err := s.c.removing(key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

type s3With struct {
	*s3.Store
	c *calls
}

func (s s3With) PrepareStaging(ctx context.Context, stagedKey, finalKey string) error {
	s.c.preparing()
	return s.Store.PrepareStaging(ctx, stagedKey, finalKey)
}

func (s s3With) PromoteAs(ctx context.Context, p storage.Promotion) (string, error) {
	if err := s.c.promoting(); err != nil {
		return "", err
	}
	return s.Store.PromoteAs(ctx, p)
}

func (s s3With) Delete(ctx context.Context, key string) error {
	if err := s.c.removing(key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}
