package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sync/errgroup"
)

// bucket is a store on S3, which is read as with aws s3 ls and aws s3 cp.
type bucket struct {
	root    string // its URL, with the settings
	name    string
	prefix  string // ends in "/"
	profile string // of the SDK's shared configuration; "" for what the environment says
	client  *s3.Client
}

// newBucket takes a prefix below that of root, and asks whether it can be read.
func newBucket(ctx context.Context, root *url.URL) (*bucket, error) {
	b, err := openBucket(ctx, root.JoinPath("demo-"+strings.ToLower(rand.Text()[:8])))
	if err != nil {
		return nil, err
	}
	for _, err := range b.list(ctx, "") {
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// openBucket asks nothing of the server. What is not in root the SDK's environment says.
func openBucket(ctx context.Context, root *url.URL) (*bucket, error) {
	settings := root.Query()
	profile := settings.Get("profile")
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(settings.Get("region")), config.WithSharedConfigProfile(profile))
	if err != nil {
		return nil, fmt.Errorf("settings of the AWS SDK: %w", err)
	}
	client := s3.NewFromConfig(loaded, func(o *s3.Options) {
		if endpoint := settings.Get("endpoint"); endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		if o.UsePathStyle = o.BaseEndpoint != nil; o.UsePathStyle {
			o.Region = cmp.Or(o.Region, "us-east-1")
		}
		if style, err := strconv.ParseBool(settings.Get("path_style")); err == nil {
			o.UsePathStyle = style
		}
		// Not all servers have the SDK's own checksums.
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return &bucket{root.String(), root.Host, strings.TrimPrefix(root.Path, "/") + "/", profile, client}, nil
}

func (b *bucket) url() string     { return b.root }
func (b *bucket) staging() string { return "" }

// gdal says to GDAL what the SDK was told; credentials it finds as the SDK does.
func (b *bucket) gdal() []string {
	options := b.client.Options()
	out := []string{"--config", "GDAL_DISABLE_READDIR_ON_OPEN", "EMPTY_DIR", "--config", "AWS_REGION", options.Region}
	if endpoint, err := url.Parse(aws.ToString(options.BaseEndpoint)); err == nil && endpoint.Host != "" {
		out = append(out, "--config", "AWS_S3_ENDPOINT", endpoint.Host+endpoint.Path,
			"--config", "AWS_HTTPS", yes(endpoint.Scheme == "https"), "--config", "AWS_VIRTUAL_HOSTING", yes(!options.UsePathStyle))
	}
	if b.profile != "" {
		out = append(out, "--config", "AWS_PROFILE", b.profile)
	}
	return out
}

func yes(is bool) string {
	if is {
		return "YES"
	}
	return "NO"
}

// list gives the names below the prefix that begin with more.
func (b *bucket) list(ctx context.Context, more string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		prefix := b.prefix + more
		pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield("", fmt.Errorf("list s3://%s/%s: %w", b.name, prefix, err))
				return
			}
			for _, o := range page.Contents {
				if !yield(strings.TrimPrefix(aws.ToString(o.Key), b.prefix), nil) {
					return
				}
			}
		}
	}
}

// uploads gives the names, and the ids, of the uploads in parts that were not finished.
func (b *bucket) uploads(ctx context.Context) iter.Seq2[[2]string, error] {
	return func(yield func([2]string, error) bool) {
		pages := s3.NewListMultipartUploadsPaginator(b.client, &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &b.prefix})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield([2]string{}, fmt.Errorf("list uploads to s3://%s/%s: %w", b.name, b.prefix, err))
				return
			}
			for _, u := range page.Uploads {
				if !yield([2]string{strings.TrimPrefix(aws.ToString(u.Key), b.prefix), aws.ToString(u.UploadId)}, nil) {
					return
				}
			}
		}
	}
}

// readsAtOnce bounds the objects that are read at once.
const readsAtOnce = 8

func (b *bucket) objects(ctx context.Context) (map[string]object, error) {
	var mu sync.Mutex
	objects := map[string]object{}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for name, err := range b.list(ctx, "") {
		if err != nil {
			return nil, err
		}
		if own(name) {
			continue
		}
		group.Go(func() error {
			o, err := b.read(groupCtx, name)
			mu.Lock()
			defer mu.Unlock()
			objects[name] = o
			return err
		})
	}
	return objects, group.Wait()
}

// own tells what catalogd keeps in a store for itself.
func own(name string) bool {
	return strings.HasPrefix(name, ".catalogd/") || strings.HasPrefix(name, ".staging/")
}

func (b *bucket) read(ctx context.Context, name string) (object, error) {
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: aws.String(b.prefix + name)})
	if err != nil {
		return object{}, fmt.Errorf("read %s: %w", name, err)
	}
	defer out.Body.Close()
	o := object{unit: out.Metadata["catalogd-unit-key"]}
	o.size, o.checksum, err = hash(out.Body)
	return o, err
}

// compare: the metadata of each object names the unit of its row, and nothing is staged,
// nor on its way.
func (b *bucket) compare(ctx context.Context, p *proof, objects map[string]object) error {
	for _, o := range p.outputs {
		if found, ok := objects[o.Object]; ok && found.unit != o.UnitKey {
			p.disagreements.add("the metadata of %s says that it is the unit %q, its row %s", o.Object, found.unit, o.UnitKey)
		}
	}
	for name, err := range b.list(ctx, ".staging/") {
		if err != nil {
			return err
		}
		p.disagreements.add("left in staging: %s", strings.TrimPrefix(name, ".staging/"))
	}
	for upload, err := range b.uploads(ctx) {
		if err != nil {
			return err
		}
		p.disagreements.add("an unfinished upload of %s", upload[0])
	}
	return nil
}

// remove leaves nothing under the prefix. In a bucket with versions it is hidden, as
// everything else that is deleted there.
func (b *bucket) remove(ctx context.Context) error {
	for upload, err := range b.uploads(ctx) {
		if err != nil {
			return err
		}
		if _, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
			Bucket: &b.name, Key: aws.String(b.prefix + upload[0]), UploadId: &upload[1],
		}); err != nil {
			return fmt.Errorf("abort the upload of %s: %w", upload[0], err)
		}
	}
	for name, err := range b.list(ctx, "") {
		if err != nil {
			return err
		}
		if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: aws.String(b.prefix + name)}); err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
	}
	return nil
}
