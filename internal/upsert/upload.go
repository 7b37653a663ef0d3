package upsert

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

const (
	// uploadWhole is what goes up in one request, which the store checks by its
	// SHA-256; what comes in parts must be read to be hashed.
	uploadWhole = 256 << 20
	uploadPart  = 16 << 20
	// uploadParts bounds the requests of one answer; larger outputs have larger parts.
	uploadParts = 1000
	// uploadExpires is how long each request may be sent; whoever is slower asks again.
	uploadExpires = time.Hour
)

// StartUpload gives requests that send an output of an open attempt straight to its
// store. What they stage becomes an output by Complete alone: a request that comes later
// makes a staged object that nobody asks for, which the sweep removes.
func (s *Step) StartUpload(ctx context.Context, id uuid.UUID, req UploadRequest) (up Upload, err error) {
	if err := checkSHA256(req.SHA256); err != nil {
		return up, err
	}
	if req.PartSize != 0 && (req.PartSize < storage.MinPart || req.PartSize > storage.MaxPut) {
		return up, catalog.Errorf(catalog.CodeInvalidRequest, "part_size is %d; it is from 5 MiB (%d) to 5 GiB (%d)", req.PartSize, int64(storage.MinPart), int64(storage.MaxPut)).At("/part_size")
	}
	if req.Size > s.MaxOutputBytes {
		return up, catalog.Errorf(catalog.CodeTooLarge, "an output of %d bytes is larger than this server takes, which is %d", req.Size, s.MaxOutputBytes).At("/size_bytes")
	}
	a, store, err := s.staging(ctx, id)
	if err != nil {
		return up, err
	}
	presigner, ok := store.(storage.Presigner)
	if !ok {
		return Upload{PartSize: req.Size}, nil
	}
	up.ExpiresAt = time.Now().Add(uploadExpires)
	if up.PartSize = req.partSize(); up.PartSize == req.Size && req.UploadID == "" {
		one, err := presigner.PresignPut(ctx, a.StagingKey, req.Size, req.SHA256, !req.Replace, uploadExpires)
		if err != nil {
			return up, storeProblem("presign an upload", err)
		}
		up.Requests = append(up.Requests, one)
		return up, nil
	}
	to, err := s.upload(ctx, presigner, a, req)
	if err != nil {
		return up, err
	}
	up.ID, up.PartSize = to.String(), to.part
	for offset := int64(0); offset < req.Size; offset += up.PartSize {
		size := min(up.PartSize, req.Size-offset)
		part, err := presigner.PresignPart(ctx, a.StagingKey, to.store, int32(len(up.Requests)+1), size, uploadExpires)
		if err != nil {
			return up, storeProblem("presign a part", err)
		}
		up.Requests = append(up.Requests, part)
	}
	return up, nil
}

// upload begins an upload in parts, or takes up the one that is asked for.
func (s *Step) upload(ctx context.Context, presigner storage.Presigner, a catalog.Attempt, req UploadRequest) (id uploadID, err error) {
	if req.UploadID == "" {
		id = uploadID{size: req.Size, part: req.partSize()}
		if id.store, err = presigner.CreateUpload(ctx, a.StagingKey); err != nil {
			return id, storeProblem("begin an upload", err)
		}
		return id, nil
	}
	if id, err = parseUploadID("/upload_id", req.UploadID); err != nil {
		return id, err
	}
	if id.size != req.Size {
		return id, catalog.Errorf(catalog.CodeInvalidRequest, "this upload was begun for %d bytes: leave upload_id out for a new one", id.size).At("/upload_id")
	}
	return id, nil
}

// uploadID is what a client knows an upload in parts by: the store's id, and what the
// parts must be.
type uploadID struct {
	size, part int64
	store      string
}

// storeUploadID keeps to the alphabet of the ids that S3 servers give: some take what
// comes for a path.
var storeUploadID = regexp.MustCompile(`^[A-Za-z0-9~][A-Za-z0-9._~=+-]*$`)

func (id uploadID) String() string { return fmt.Sprintf("%d.%d.%s", id.size, id.part, id.store) }

func (id uploadID) parts() int64 { return (id.size + id.part - 1) / id.part }

func parseUploadID(field, text string) (id uploadID, err error) {
	fields := strings.SplitN(text, ".", 3)
	if len(fields) == 3 {
		id.size, _ = strconv.ParseInt(fields[0], 10, 64)
		id.part, _ = strconv.ParseInt(fields[1], 10, 64)
		id.store = fields[2]
	}
	if id.size <= 0 || id.part < storage.MinPart || id.part > storage.MaxPut || id.parts() > uploadParts || !storeUploadID.MatchString(id.store) {
		return id, catalog.Errorf(catalog.CodeInvalidRequest, "%.60q is no upload that this attempt was given", text).At(field)
	}
	return id, nil
}

// partSize is the size of the parts, or that of the whole where it is one request.
func (r UploadRequest) partSize() int64 {
	whole, size := r.PartSize, r.PartSize
	if r.PartSize == 0 {
		whole, size = uploadWhole, uploadPart
	}
	if r.Size <= min(whole, storage.MaxPut) {
		return r.Size
	}
	return max(size, (r.Size+uploadParts-1)/uploadParts, storage.MinPart)
}

// assemble makes an upload in parts the attempt's staged object. It can be repeated:
// what is no upload any more was assembled before, or what is staged is none of it, which
// what is announced tells.
func (s *Step) assemble(ctx context.Context, a catalog.Attempt, req CompleteRequest) error {
	up := req.Upload
	if up == nil {
		return nil
	}
	store, err := s.store(a.StoreID)
	if err != nil {
		return err
	}
	presigner, ok := store.(storage.Presigner)
	if !ok {
		return catalog.Errorf(catalog.CodeInvalidRequest, "the store of this attempt has no uploads in parts: leave upload out").At("/upload")
	}
	if req.SHA256 == "" {
		return catalog.Errorf(catalog.CodeInvalidRequest, "an upload in parts is handed over with its checksum, by which a complete that is sent again knows its own: send it").At("/checksum")
	}
	id, err := parseUploadID("/upload/upload_id", up.ID)
	if err != nil {
		return err
	}
	if int64(len(up.ETags)) != id.parts() {
		return catalog.Errorf(catalog.CodeInvalidRequest, "the upload has %d parts, and %d ETags were sent: send all parts, then the ETags of their answers, in order", id.parts(), len(up.ETags)).At("/upload/etags")
	}
	err = presigner.CompleteUpload(ctx, a.StagingKey, id.store, up.ETags)
	switch {
	case err == nil, errors.Is(err, storage.ErrNotExist):
		return nil
	case errors.Is(err, storage.ErrParts):
		return catalog.Errorf(catalog.CodeInvalidRequest, "the store does not have these parts of the upload: send the ETags of its answers, in order, or upload again").At("/upload/etags").Because(err)
	}
	return storeProblem("assemble the upload to "+a.StagingKey, err)
}
