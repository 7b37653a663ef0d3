package upsert

import (
	"context"
	"errors"
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
	if up.PartSize = req.partSize(); up.PartSize == req.Size {
		one, err := presigner.PresignPut(ctx, a.StagingKey, req.Size, req.SHA256, !req.Replace, uploadExpires)
		if err != nil {
			return up, storeProblem("presign an upload", err)
		}
		up.Requests = append(up.Requests, one)
		return up, nil
	}
	if up.ID = req.UploadID; up.ID == "" {
		if up.ID, err = presigner.CreateUpload(ctx, a.StagingKey); err != nil {
			return up, storeProblem("begin an upload", err)
		}
	}
	for offset := int64(0); offset < req.Size; offset += up.PartSize {
		size := min(up.PartSize, req.Size-offset)
		part, err := presigner.PresignPart(ctx, a.StagingKey, up.ID, int32(len(up.Requests)+1), size, uploadExpires)
		if err != nil {
			return up, storeProblem("presign a part", err)
		}
		up.Requests = append(up.Requests, part)
	}
	return up, nil
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
// what was assembled before, and is no upload any more, is told by what is announced of
// it.
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
	err = presigner.CompleteUpload(ctx, a.StagingKey, up.ID, up.ETags, !up.Replace)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrExist) && req.SHA256 == "":
		return catalog.Errorf(catalog.CodeStagedInUse, "something is staged at %s already: send the checksum if it is this output, or replace to have it replaced", a.StagingKey).At("/upload/replace")
	case errors.Is(err, storage.ErrNotExist) && req.SHA256 == "" && up.Replace:
		return catalog.Errorf(catalog.CodeStagedMissing, "there is no upload %.60q: send the output again, or the checksum if it was assembled before", up.ID).At("/upload/upload_id")
	case errors.Is(err, storage.ErrExist), errors.Is(err, storage.ErrNotExist):
		return nil // assembled before
	case errors.Is(err, storage.ErrParts):
		return catalog.Errorf(catalog.CodeInvalidRequest, "the store does not have these parts of upload %.60q: send the ETags of its answers, in order, or upload again", up.ID).At("/upload/etags").Because(err)
	}
	return storeProblem("assemble the upload to "+a.StagingKey, err)
}
