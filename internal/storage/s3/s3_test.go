package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

const (
	staged = ".staging/0190-a1.tif"
	final  = "landcover/33UXP/t.0123456789ab.cdef01234567.tif"
)

func configFor(g *s3gateway.Gateway, url string) Config {
	return Config{
		URL: url, Endpoint: g.Endpoint, Region: s3gateway.Region, Init: true, MaxBackoff: 50 * time.Millisecond,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	}
}

// open opens a store of the test's own, and makes it one.
func open(t testing.TB, g *s3gateway.Gateway, change ...func(*Config)) *Store {
	t.Helper()
	cfg := configFor(g, "s3://"+gatewaytest.Bucket(t, g)+"/some/prefix")
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	ok(t, err)
	return s
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is fails unless err is want and says all of words.
func is(t testing.TB, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, expected %v", err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("%q does not say %q", err, word)
		}
	}
}

// undecided fails unless err leaves the outcome open.
func undecided(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, known := range []error{storage.ErrNotExist, storage.ErrExist, storage.ErrChanged, storage.ErrPermission, storage.ErrSentinel, storage.ErrName, storage.ErrNotRegular} {
		if errors.Is(err, known) {
			t.Fatalf("taken for certain: %v", err)
		}
	}
}

func same[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, expected %v", got, want)
	}
}

// uploads counts the unfinished uploads.
func uploads(t testing.TB, s *Store) int {
	t.Helper()
	n := 0
	ok(t, s.Uploads(t.Context(), func(string, string, time.Time) error { n++; return nil }))
	return n
}

func random(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestStore(t *testing.T) {
	g := gatewaytest.Start(t)
	storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, g) })
}

// With parts for everything, pages of few, and a bucket of its own that keeps versions.
func TestStoreInParts(t *testing.T) {
	g := gatewaytest.Start(t)
	bucket := gatewaytest.Bucket(t, g)
	ok(t, g.Version(t.Context(), bucket))
	n := 0
	storagetest.Run(t, func(t *testing.T) storage.Store {
		n++
		cfg := configFor(g, fmt.Sprintf("s3://%s/%d", bucket, n))
		cfg.CopyThreshold, cfg.CopyPart, cfg.pageSize = 3, 5<<20, 3
		s, err := Open(t.Context(), cfg)
		ok(t, err)
		return s
	})
}

// What versitygw v1.8.0 does: shared/FACTS.md.
func TestCapabilities(t *testing.T) {
	s := open(t, gatewaytest.Start(t))
	got := s.Capabilities()
	if got.LifecycleError == "" {
		t.Error("it does not say why there are no lifecycle rules")
	}
	got.LifecycleError = ""
	same(t, got, Capabilities{
		PutIfNoneMatch: true, CompleteIfNoneMatch: true, CopySourceIfMatch: true, PartCopySourceIfMatch: true,
		CopyMetadata: true, Checksums: true, ByteOrder: true,
	})
	same(t, strings.Join(storagetest.Keys(t, s, ".catalogd/"), " "), storage.SentinelKey)
	same(t, uploads(t, s), 0)
	is(t, (Capabilities{}).check(), ErrIncapable, "x-amz-copy-source-if-match")
}

func TestOpen(t *testing.T) {
	ctx, g := t.Context(), gatewaytest.Start(t)
	bucket := gatewaytest.Bucket(t, g)
	cfg := configFor(g, "s3://"+bucket+"/a/b")
	cfg.Init = false
	_, err := Open(ctx, cfg)
	is(t, err, storage.ErrSentinel, ".catalogd/store.json")
	if errors.Is(err, storage.ErrNotExist) {
		t.Fatal("a missing sentinel passes for a missing object")
	}
	cfg.Init = true
	var wg sync.WaitGroup
	var ids [4]string
	for i := range ids {
		wg.Go(func() {
			s, err := Open(ctx, cfg)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	if got := slices.Compact(ids[:]); len(got) != 1 || len(got[0]) != 36 {
		t.Fatalf("ids %q", got)
	}

	// Within another store.
	cfg.URL += "/c"
	_, err = Open(ctx, cfg)
	is(t, err, storage.ErrSentinel, "within store "+ids[0], "s3://"+bucket+"/a/b")

	cfg, err = FromURL("s3://b/x%20y?endpoint=https://h:1/&public_endpoint=http://p&region=r&profile=f&path_style=false&ca_file=/c&insecure_tls=true&reads=stream")
	ok(t, err)
	if cfg.PathStyle == nil || *cfg.PathStyle {
		t.Fatal("path style")
	}
	cfg.PathStyle = nil
	if want := (Config{
		URL: "s3://b/x%20y", Endpoint: "https://h:1", PublicEndpoint: "http://p", Region: "r", Profile: "f", CAFile: "/c", InsecureTLS: true, StreamReads: true,
	}); !reflect.DeepEqual(cfg, want) {
		t.Fatalf("%+v, want %+v", cfg, want)
	}
	for _, bad := range []string{"endpoint=h:1", "endpoint=https://u@h", "reads=x", "path_style=x", "insecure_tls=x", "colour=x", "endpoint=%"} {
		if _, err := FromURL("s3://b?" + bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}

	for _, bad := range []string{"", "s3://", "file:///x", "s3://b?x", "s3://u@b/x", "s3://b/x/../y", "s3://b/.staging/x", "s3://b//x//y"} {
		if _, _, err := ParseURL(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   error
		words  string
	}{
		{"no such bucket", func(c *Config) { c.URL = "s3://no-such-bucket-here" }, storage.ErrSentinel, "no bucket no-such-bucket-here"},
		{"wrong region", func(c *Config) { c.Region = "eu-west-1" }, ErrRegion, "eu-west-1"},
		{"wrong secret", func(c *Config) {
			c.Credentials = credentials.NewStaticCredentialsProvider(g.AccessKey, "wrong", "")
		}, storage.ErrPermission, "SignatureDoesNotMatch"},
		{"unknown key", func(c *Config) {
			c.Credentials = credentials.NewStaticCredentialsProvider("nobody", "wrong", "")
		}, storage.ErrPermission, "InvalidAccessKeyId"},
		{"nobody listens", func(c *Config) { c.Endpoint = "http://127.0.0.1:1" }, nil, "refused"},
		{"no CA", func(c *Config) { c.CAFile = "/nonexistent" }, nil, "CA file"},
	} {
		cfg := configFor(g, "s3://"+bucket)
		cfg.Attempts = 2
		test.change(&cfg)
		_, err := Open(ctx, cfg)
		if test.want == nil {
			undecided(t, err)
		} else {
			is(t, err, test.want)
		}
		is(t, err, err, test.words)
	}
}

func TestBucketGone(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g)
	client := g.Client()
	_, err := client.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(storage.SentinelKey)})
	ok(t, err)
	is(t, s.Sentinel(t.Context()), storage.ErrSentinel)
	_, err = client.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: &s.bucket})
	ok(t, err)
	err = s.Sentinel(t.Context())
	is(t, err, storage.ErrSentinel, "no bucket")
	if errors.Is(err, storage.ErrNotExist) {
		t.Fatal("a missing bucket passes for a missing object")
	}
	for _, err := range s.List(t.Context(), storage.Range{}) {
		is(t, err, storage.ErrSentinel)
	}
	_, _, err = s.WriteStaged(t.Context(), staged, strings.NewReader("x"), 9)
	is(t, err, storage.ErrSentinel)
}

// Names, as they go into paths, headers, queries and XML.
func TestNames(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g)
	long := strings.Repeat(strings.Repeat("n", 99)+"/", 10)
	for _, name := range []string{"with space", "a+b", "100%", "%41", "é/日本/🛰", `q"'<&>?#;=@:,!$()*[]\`, long[:1000-len("c/")]} {
		key, from := "c/"+name, ".staging/in/"+name
		if len(name) > 900 {
			from = ".staging/in/" + name[:899]
		}
		print := storagetest.Stage(t, s, from, name)
		_, err := s.PromoteAs(t.Context(), storage.Promotion{StagedKey: from, FinalKey: key, Fingerprint: print, About: map[string]string{"identity": name}})
		ok(t, err)
		same(t, storagetest.Content(t, s, key), name)
		same(t, strings.Join(storagetest.Keys(t, s, key), " "), key)
		about, err := s.About(t.Context(), key)
		ok(t, err)
		same(t, about["identity"], name)
		found, err := s.Existing(t.Context(), []string{key, key + "x"})
		ok(t, err)
		same(t, len(found), 1)
		same(t, s.Location(key), "/vsis3/"+s.bucket+"/some/prefix/"+key)
		ok(t, s.Delete(t.Context(), key))
		_, err = s.Stat(t.Context(), key)
		is(t, err, storage.ErrNotExist)
	}
	for _, bad := range []string{"c/\xff", "c/\x01", "c/" + strings.Repeat("x/", 512) + "x"} {
		_, err := s.Stat(t.Context(), bad)
		is(t, err, storage.ErrName)
	}
}

func TestWriteStagedInParts(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g, func(c *Config) { c.UploadPart = minPart; c.CopyThreshold, c.CopyPart = 6<<20, 5<<20 })
	for _, size := range []int{minPart - 1, minPart, minPart + 1, 4*minPart + 7} {
		content := random(t, size)
		n, sum, err := s.WriteStaged(t.Context(), staged, bytes.NewReader(content), int64(size))
		ok(t, err)
		same(t, n, int64(size))
		want := sha256.Sum256(content)
		same(t, sum, hex.EncodeToString(want[:]))
		if storagetest.Content(t, s, staged) != string(content) {
			t.Fatal("other content")
		}
		f, err := s.OpenStaged(t.Context(), staged)
		ok(t, err)
		if vouched := f.(storage.Voucher).SHA256(); vouched != sum && (vouched != "" || size <= minPart-1) {
			t.Fatalf("vouched for %q, expected %s", vouched, sum)
		}
		ok(t, f.Close())

		// Copied whole and in parts, with what it is about, and again.
		key := fmt.Sprintf("c/%d.tif", size)
		about := map[string]string{"unit-key": "u", "version": "é", "identity": `{"a":"` + strings.Repeat("x", 3000) + `"}`, "content-type": "image/tiff; x=y"}
		for _, fresh := range []bool{true, false} {
			etag, err := s.PromoteAs(t.Context(), storage.Promotion{StagedKey: staged, FinalKey: key, Fingerprint: f.Fingerprint(), About: about, Fresh: fresh})
			ok(t, err)
			o, err := s.Stat(t.Context(), key)
			ok(t, err)
			same(t, etag, o.ETag)
		}
		if storagetest.Content(t, s, key) != string(content) {
			t.Fatal("other content promoted")
		}
		got, err := s.About(t.Context(), key)
		ok(t, err)
		hash := sha256.Sum256([]byte(about["identity"]))
		same(t, fmt.Sprint(got), fmt.Sprint(map[string]string{"unit-key": "u", "version": "é", "identity-sha256": hex.EncodeToString(hash[:])}))

		// Replaced: by parts of which the last is another.
		print := f.Fingerprint()
		content[size-1]++
		_, _, err = s.WriteStaged(t.Context(), staged, bytes.NewReader(content), int64(size))
		ok(t, err)
		is(t, s.Promote(t.Context(), staged, key+"2", print), storage.ErrChanged)
		same(t, uploads(t, s), 0)
	}

	before := storagetest.Stage(t, s, staged, "before")
	broken := errors.New("broken")
	_, _, err := s.WriteStaged(t.Context(), staged, io.MultiReader(bytes.NewReader(random(t, 3*minPart)), errReader{broken}), 1<<30)
	is(t, err, broken)
	_, _, err = s.WriteStaged(t.Context(), staged, bytes.NewReader(random(t, 3*minPart)), 3*minPart-1)
	is(t, err, storage.ErrTooLarge)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err = s.WriteStaged(ctx, staged, io.MultiReader(bytes.NewReader(random(t, 2*minPart)), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil })), 1<<30)
	is(t, err, context.Canceled)
	same(t, uploads(t, s), 0)
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	same(t, f.Fingerprint(), before)
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Reads are of the object that was opened, or fail.
// Whoever writes can have two contents of one size and MD5, and so of one ETag (the pair
// is that of X. Wang et al., 2004). What was not probed is not promoted.
func TestPromoteSameMD5(t *testing.T) {
	const (
		one   = "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
		other = "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f8955ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5bd8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70"
	)
	a, err := hex.DecodeString(one)
	ok(t, err)
	b, err := hex.DecodeString(other)
	ok(t, err)
	g := gatewaytest.Start(t)
	for _, vouches := range []bool{true, false} {
		s := open(t, g)
		s.caps.Checksums = s.caps.Checksums && vouches
		sum := sha256.Sum256(a)
		p := storage.Promotion{StagedKey: staged, FinalKey: final, Fingerprint: storagetest.Stage(t, s, staged, string(a)), SHA256: hex.EncodeToString(sum[:]), Fresh: true}
		if print := storagetest.Stage(t, s, staged, string(b)); print != p.Fingerprint {
			t.Fatalf("%s and %s", print, p.Fingerprint)
		}
		_, err = s.PromoteAs(t.Context(), p)
		is(t, err, storage.ErrChanged, "SHA-256")
		p.Fresh = false // nor when it is there
		_, err = s.PromoteAs(t.Context(), p)
		is(t, err, storage.ErrChanged, "SHA-256")
		ok(t, s.Delete(t.Context(), final))
		same(t, storagetest.Stage(t, s, staged, string(a)), p.Fingerprint)
		_, err = s.PromoteAs(t.Context(), p)
		ok(t, err)
		same(t, storagetest.Content(t, s, final), string(a))
	}
}

// What is in the place of the bucket is not the store.
func TestPromoteElsewhere(t *testing.T) {
	s := open(t, gatewaytest.Start(t))
	print := storagetest.Stage(t, s, staged, "content")
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	ok(t, s.remove(t.Context(), storage.SentinelKey))
	_, err := s.PromoteAs(t.Context(), storage.Promotion{StagedKey: staged, FinalKey: final, Fingerprint: print, Fresh: true})
	is(t, err, storage.ErrSentinel)
	s.seen.Store(0)
	is(t, s.PrepareStaging(t.Context(), staged, final), storage.ErrSentinel)
}

func TestReadsArePinned(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g)
	content := random(t, 3<<20)
	storagetest.Stage(t, s, staged, string(content))
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	var wg sync.WaitGroup
	for i := range 8 { // as hash and probe do, at once
		wg.Go(func() {
			buf := make([]byte, 10_000+i)
			for off := int64(i) * 1000; ; off += int64(len(buf)) {
				n, err := f.ReadAt(buf, off)
				if !bytes.Equal(buf[:n], content[off:off+int64(n)]) {
					t.Error("other bytes")
				}
				if err == io.EOF {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	_, err = f.ReadAt(make([]byte, 1), int64(len(content)))
	same(t, err, io.EOF)

	storagetest.Stage(t, s, staged, string(random(t, 3<<20)))
	_, err = f.ReadAt(make([]byte, 1), 77)
	is(t, err, storage.ErrChanged)
	ok(t, s.Delete(t.Context(), staged))
	_, err = f.ReadAt(make([]byte, 1), 77)
	is(t, err, storage.ErrNotExist)
}

func TestExistingAmongMany(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g, func(c *Config) { c.pageSize = 4 })
	for i := range 12 {
		storagetest.Stage(t, s, fmt.Sprintf(".staging/in/a%02d", i), "x")
	}
	found, err := s.Existing(t.Context(), []string{".staging/in/a11", ".staging/in/a1", ".staging/in/a02"})
	ok(t, err)
	same(t, len(found), 2)
	same(t, found[0].Key, ".staging/in/a11")
	// Own trees are jumped over, wherever a page ends.
	storagetest.Put(t, s, "a/1", "")
	storagetest.Put(t, s, "z/1", "")
	same(t, strings.Join(storagetest.Keys(t, s, ""), " "), "a/1 z/1")
}

func TestUploads(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g, func(c *Config) { c.pageSize = 2 })
	other := *s
	other.root = "some/prefix-2/"
	_, err := other.CreateUpload(t.Context(), staged)
	ok(t, err)
	begun := time.Now()
	want := map[string]bool{}
	for i := range 5 {
		id, err := s.CreateUpload(t.Context(), fmt.Sprintf(".staging/%d +.tif", i/2))
		ok(t, err)
		want[id] = true
	}
	got := map[string]string{}
	ok(t, s.Uploads(t.Context(), func(key, id string, at time.Time) error {
		if !want[id] || got[id] != "" || at.Sub(begun).Abs() > time.Minute {
			t.Errorf("upload %s to %s at %v", id, key, at)
		}
		got[id] = key
		return nil
	}))
	same(t, len(got), len(want))
	for id, key := range got {
		ok(t, s.AbortUpload(t.Context(), key, id))
		ok(t, s.AbortUpload(t.Context(), key, id))
	}
	same(t, uploads(t, s), 0)
}

// Denied: the action and the key are named, at start and later.
func TestDenied(t *testing.T) {
	ctx, g := t.Context(), gatewaytest.Start(t)
	s := open(t, g)
	storagetest.Put(t, s, final, "hello")
	secret, err := g.CreateUser(ctx, "reader")
	ok(t, err)
	cfg := configFor(g, s.URL())
	cfg.Credentials = credentials.NewStaticCredentialsProvider("reader", secret, "")
	_, err = Open(ctx, cfg)
	is(t, err, storage.ErrPermission, "s3:GetObject", "some/prefix/.catalogd/store.json")
	ok(t, g.SetPolicy(ctx, s.bucket, fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["reader"]},
		"Action":["s3:GetObject","s3:ListBucket"],"Resource":["arn:aws:s3:::%[1]s","arn:aws:s3:::%[1]s/*"]}]}`, s.bucket)))
	_, err = Open(ctx, cfg)
	is(t, err, storage.ErrPermission, "s3:PutObject", "some/prefix/.catalogd/probe/")
	caps := s.Capabilities()
	cfg.Capabilities = &caps
	reader, err := Open(ctx, cfg)
	ok(t, err)
	same(t, storagetest.Content(t, reader, final), "hello")
	_, _, err = reader.WriteStaged(ctx, staged, strings.NewReader("x"), 9)
	is(t, err, storage.ErrPermission, "s3:PutObject", staged)
	print := storagetest.Stage(t, s, staged, "hullo")
	is(t, reader.Promote(ctx, staged, final+"2", print), storage.ErrPermission, "s3:PutObject", final+"2")
	is(t, reader.Delete(ctx, final), storage.ErrPermission, "s3:DeleteObject", final)
}

func TestLifecycle(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g)
	for _, word := range []string{`"Prefix": "some/prefix/.staging/"`, `"DaysAfterInitiation": 7`, `"Days": 7`} {
		if !strings.Contains(s.Lifecycle(), word) {
			t.Fatalf("%s does not say %s", s.Lifecycle(), word)
		}
	}
	is(t, s.InstallLifecycle(t.Context()), errNotImplemented)
}

// A bucket that keeps versions.
func TestVersions(t *testing.T) {
	g := gatewaytest.Start(t)
	s := open(t, g)
	ok(t, g.Version(t.Context(), s.bucket))
	print := storagetest.Stage(t, s, staged, "hello")
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	storagetest.Stage(t, s, staged, "other")
	_, err = f.ReadAt(make([]byte, 1), 0)
	is(t, err, storage.ErrChanged)
	is(t, s.Promote(t.Context(), staged, final, print), storage.ErrChanged)
	storagetest.Put(t, s, final, "hello")
	ok(t, s.Delete(t.Context(), final))
	_, err = s.Stat(t.Context(), final)
	is(t, err, storage.ErrNotExist)
	same(t, len(storagetest.Keys(t, s, "")), 0)
	out, err := g.Client().ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: &s.bucket, Prefix: aws.String("some/prefix/landcover/")})
	ok(t, err)
	same(t, len(out.Versions), 1)
}
