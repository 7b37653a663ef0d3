package s3

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"catalogd/internal/storage"
)

// presigner keeps headers headers: in the query, a server may leave a condition or
// a checksum unheeded.
func (s *Store) presigner(expires time.Duration) *s3.PresignClient {
	return s3.NewPresignClient(s.client, s3.WithPresignExpires(expires), func(o *s3.PresignOptions) {
		if s.cfg.PublicEndpoint != "" {
			o.ClientOptions = append(o.ClientOptions, func(o *s3.Options) { o.BaseEndpoint = &s.cfg.PublicEndpoint })
		}
		o.Presigner = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableHeaderHoisting, o.DisableURIPathEscaping = true, true })
	})
}

func unsent(ctx context.Context, signed *v4.PresignedHTTPRequest, err error) (*http.Request, error) {
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, signed.Method, signed.URL, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range signed.SignedHeader {
		if http.CanonicalHeaderKey(name) != "Host" {
			req.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return req, nil
}

// PresignPut is for one PUT of a staged object, of 5 GiB at most.
func (s *Store) PresignPut(ctx context.Context, key string, size int64, sha256 string, ifAbsent bool, expires time.Duration) (_ *http.Request, err error) {
	defer wrap(&err, "presign a PUT of %s", key)
	if err := s.checkStaged(key); err != nil {
		return nil, err
	}
	in := &s3.PutObjectInput{Bucket: &s.bucket, Key: s.key(key), ContentLength: &size}
	if sha256 != "" {
		raw, err := hex.DecodeString(sha256)
		if err != nil {
			return nil, fmt.Errorf("SHA-256: %w", err)
		}
		in.ChecksumSHA256 = aws.String(base64.StdEncoding.EncodeToString(raw))
	}
	if ifAbsent && s.caps.PutIfNoneMatch {
		in.IfNoneMatch = aws.String("*")
	}
	signed, err := s.presigner(expires).PresignPutObject(ctx, in)
	return unsent(ctx, signed, err)
}

// CreateUpload begins an upload in parts to a staged name.
func (s *Store) CreateUpload(ctx context.Context, key string) (id string, err error) {
	defer wrap(&err, "create an upload to %s", key)
	if err := s.checkStaged(key); err != nil {
		return "", err
	}
	return s.createUpload(ctx, key, nil, "")
}

// checkUploadID refuses what comes from outside and could be taken for a path.
func checkUploadID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\\") {
		return fmt.Errorf("%w: %.60q is no id of an upload", storage.ErrName, id)
	}
	return nil
}

// PresignPart is for the PUT of one part.
func (s *Store) PresignPart(ctx context.Context, key, id string, number int32, size int64, expires time.Duration) (_ *http.Request, err error) {
	defer wrap(&err, "presign part %d of %s", number, key)
	if err := cmp.Or(s.checkStaged(key), checkUploadID(id)); err != nil {
		return nil, err
	}
	signed, err := s.presigner(expires).PresignUploadPart(ctx, &s3.UploadPartInput{
		Bucket: &s.bucket, Key: s.key(key), UploadId: &id, PartNumber: &number, ContentLength: &size,
	})
	return unsent(ctx, signed, err)
}

// CompleteUpload makes the parts an object. It replaces: nobody but who calls it, by an
// id of his own, can have it done. ErrNotExist where there is no such upload, as after
// one that was completed.
func (s *Store) CompleteUpload(ctx context.Context, key, id string, etags []string) (err error) {
	defer wrap(&err, "complete the upload to %s", key)
	if err := cmp.Or(ctx.Err(), s.checkStaged(key), checkUploadID(id)); err != nil {
		return err
	}
	parts := make([]types.CompletedPart, len(etags))
	for i, etag := range etags {
		parts[i] = types.CompletedPart{PartNumber: aws.Int32(int32(i + 1)), ETag: aws.String(etag)}
	}
	err = s.completeUpload(ctx, key, id, parts, false)
	if errors.Is(err, errNoUpload) {
		return fmt.Errorf("%w: %v", storage.ErrNotExist, err)
	}
	return err
}

// PresignGet is for a GET or HEAD of an object.
func (s *Store) PresignGet(ctx context.Context, method, key string, expires time.Duration) (_ *http.Request, err error) {
	defer wrap(&err, "presign a %s of %s", method, key)
	if err := s.checkFinal(key); err != nil {
		return nil, err
	}
	var signed *v4.PresignedHTTPRequest
	switch method {
	case http.MethodGet:
		signed, err = s.presigner(expires).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	case http.MethodHead:
		signed, err = s.presigner(expires).PresignHeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	default:
		err = fmt.Errorf("not a GET or HEAD")
	}
	return unsent(ctx, signed, err)
}
