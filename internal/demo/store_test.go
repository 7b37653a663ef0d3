package demo

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// A run has a store of its own in a directory that it was given, and takes only that away.
func TestDirectory(t *testing.T) {
	root := t.TempDir()
	s := mustStore(t, "file://"+root)
	if filepath.Dir(s.url()) != root || s.staging() != filepath.Join(s.url(), ".staging") {
		t.Errorf("%s, where workers write into %s, is not below %s", s.url(), s.staging(), root)
	}
	if again := mustStore(t, "file://"+root); again.url() == s.url() {
		t.Errorf("two runs share %s", s.url())
	} else if err := again.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(s.url()) {
		t.Errorf("there are %v, %v", entries, err)
	}
	for _, bad := range []string{"file://" + root + "/gone", "gs://bucket"} {
		if s, err := newStore(t.Context(), bad, ""); err == nil {
			t.Errorf("%s is a store: %v", bad, s)
		}
	}
}

// In a bucket too.
func TestBucket(t *testing.T) {
	root := onS3(t)
	b := mustStore(t, root).(*bucket)
	if b.staging() != "" || !strings.HasPrefix(b.url(), strings.Split(root, "?")[0]+"/demo-") || !strings.HasPrefix(b.prefix, "some/where/demo-") {
		t.Errorf("the store is at %s", b.url())
	}
	put := func(key string) {
		t.Helper()
		if _, err := b.client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: strings.NewReader("x")}); err != nil {
			t.Fatal(err)
		}
	}
	const others = "some/where/demo"
	put(others)
	for _, name := range []string{".catalogd/store.json", ".staging/in/x", "demo/a.tif", "demo/b c+d%.tif"} {
		put(b.prefix + name)
	}
	if _, err := b.client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: aws.String(b.prefix + "demo/c.tif")}); err != nil {
		t.Fatal(err)
	}
	objects, err := b.objects(t.Context())
	if err != nil || len(objects) != 2 || objects["demo/a.tif"].size != 1 || objects["demo/b c+d%.tif"].size != 1 {
		t.Errorf("there are %v, %v", objects, err)
	}
	if err := b.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.prefix = ""
	var left []string
	for name, err := range b.list(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, name)
	}
	for upload, err := range b.uploads(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, upload[0])
	}
	if !slices.Equal(left, []string{others}) {
		t.Errorf("left are %q", left)
	}
}

// A bucket that cannot be read is told before anything is started.
func TestNoBucket(t *testing.T) {
	root := strings.Replace(onS3(t), "s3://", "s3://no-", 1)
	if _, err := newStore(t.Context(), root, ""); err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
		t.Error(err)
	}
}

// GDAL is told what the SDK was told.
func TestBucketForGDAL(t *testing.T) {
	onS3(t)
	shared := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(shared, []byte("[profile other]\nregion = eu2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CONFIG_FILE", shared)
	t.Setenv("AWS_REGION", "")
	for settings, want := range map[string]string{
		"endpoint=http://127.0.0.1:1":                               "AWS_S3_ENDPOINT 127.0.0.1:1 --config AWS_HTTPS NO --config AWS_VIRTUAL_HOSTING NO",
		"endpoint=https://s3.example/x&path_style=false&region=eu1": "AWS_REGION eu1 --config AWS_S3_ENDPOINT s3.example/x --config AWS_HTTPS YES --config AWS_VIRTUAL_HOSTING YES",
		"endpoint=http://127.0.0.1:1&profile=other":                 "AWS_VIRTUAL_HOSTING NO --config AWS_PROFILE other",
		"profile=other": "AWS_REGION eu2 ",
		"":              "AWS_S3_ENDPOINT 127.0.0.1:1 ", // the environment's
	} {
		root, err := url.Parse("s3://b/p?" + settings)
		if err != nil {
			t.Fatal(err)
		}
		b, err := openBucket(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(b.gdal(), " "); !strings.Contains(got, want) {
			t.Errorf("%s: %s", settings, got)
		}
	}
}
