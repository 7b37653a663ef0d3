package invariant

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Bucket is a store under a prefix of a bucket.
type Bucket struct {
	Client *s3.Client
	Name   string
	// Prefix ends in "/", or is "".
	Prefix string
}

func (b Bucket) get(ctx context.Context, key string) (*s3.GetObjectOutput, error) {
	out, err := b.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.Name, Key: aws.String(b.Prefix + key)})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return out, nil
}

func (b Bucket) sentinel(ctx context.Context) ([]byte, error) {
	out, err := b.get(ctx, ".catalogd/store.json")
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	return io.ReadAll(out.Body)
}

// list lists the objects before the uploads: one that is completed meanwhile is
// neither, and one that is begun meanwhile is an upload.
func (b Bucket) list(ctx context.Context, c *checker) error {
	objects := s3.NewListObjectsV2Paginator(b.Client, &s3.ListObjectsV2Input{Bucket: &b.Name, Prefix: &b.Prefix})
	for objects.HasMorePages() {
		page, err := objects.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			key := strings.TrimPrefix(aws.ToString(o.Key), b.Prefix)
			top, _, _ := strings.Cut(key, "/")
			switch {
			case top == ".staging":
				c.staged = append(c.staged, key)
			case top == "current":
				c.say("%s is among the stable names, of which a bucket has none", key)
			case own[top]:
			default:
				c.objects = append(c.objects, key)
			}
		}
	}
	uploads := s3.NewListMultipartUploadsPaginator(b.Client, &s3.ListMultipartUploadsInput{Bucket: &b.Name, Prefix: &b.Prefix})
	for uploads.HasMorePages() {
		page, err := uploads.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, u := range page.Uploads {
			c.uploads = append(c.uploads, strings.TrimPrefix(aws.ToString(u.Key), b.Prefix))
		}
	}
	return nil
}

func (b Bucket) read(ctx context.Context, key string) (o object, err error) {
	out, err := b.get(ctx, key)
	if err != nil {
		return o, err
	}
	defer out.Body.Close()
	h := sha256.New()
	if o.size, err = io.Copy(h, out.Body); err != nil {
		return o, fmt.Errorf("%s: %w", key, err)
	}
	o.sha256 = hex.EncodeToString(h.Sum(nil))
	o.etag, o.unit = strings.Trim(aws.ToString(out.ETag), `"`), out.Metadata["catalogd-unit-key"]
	return o, nil
}
