package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

func (s *server) BeginAttempt(ctx context.Context, req BeginAttemptRequestObject) (BeginAttemptResponseObject, error) {
	b := req.Body
	decision, err := s.Step.Begin(ctx, upsert.BeginRequest{
		Unit: upsert.UnitRef{
			Collection: b.Collection, TileID: b.TileId, Identity: b.Identity, ClientKey: value(b.ClientKey),
		},
		Owner: b.Owner, Try: value(b.Try), RequestID: b.RequestId,
		MediaType: value(b.MediaType), Given: given(b.Acquired, b.Properties), Batch: value(b.Batch),
	})
	if err != nil {
		return nil, err
	}
	base := exchangeOf(ctx).base
	out := BeginAttempt200JSONResponse{Body: Decision{
		Verdict: Verdict(decision.Verdict), UnitKey: decision.UnitKey,
		Reason: optional(decision.Reason), Class: optional(FailureClass(decision.Class)), Message: optional(decision.Message),
	}}
	if tile := decision.Tile; tile != nil {
		out.Body.Tile, out.Body.Current = new(toTile(*tile, base)), &tile.Current
	}
	if attempt := decision.Attempt; attempt != nil {
		out.Body.Attempt = new(toAttempt(decision, base))
	}
	if decision.Tags != nil {
		out.Body.Tags = &decision.Tags
	}
	if decision.Verdict == upsert.VerdictWait {
		seconds := decision.RetryAfter.Seconds()
		out.Body.RetryAfter = &seconds
		out.Headers.RetryAfter = new(int(math.Ceil(seconds)))
	}
	return out, nil
}

// UploadOutput streams. A client that breaks off, or stands still, leaves
// nothing staged.
func (s *server) UploadOutput(ctx context.Context, req UploadOutputRequestObject) (UploadOutputResponseObject, error) {
	body := &clientReader{r: req.Body}
	size, sum, err := s.Step.Stage(ctx, req.AttemptId, body)
	switch {
	case body.err != nil:
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "the upload broke off, or stood still, after %d bytes; nothing is staged: send it again", body.n).Because(errors.Join(body.err, err))
	case err != nil:
		return nil, err
	}
	return UploadOutput200JSONResponse{AttemptId: req.AttemptId, SizeBytes: size, Checksum: "sha256:" + sum}, nil
}

// clientReader remembers whether it was the client that failed.
type clientReader struct {
	r   io.Reader
	n   int64
	err error
}

func (c *clientReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

func (s *server) StartUpload(ctx context.Context, req StartUploadRequestObject) (StartUploadResponseObject, error) {
	b := req.Body
	up, err := s.Step.StartUpload(ctx, req.AttemptId, upsert.UploadRequest{
		Size: b.SizeBytes, SHA256: digits(b.Checksum), PartSize: value(b.PartSize), UploadID: value(b.UploadId), Replace: value(b.Replace),
	})
	if err != nil {
		return nil, err
	}
	out := StartUpload200JSONResponse{UploadId: optional(up.ID), PartSize: up.PartSize, ExpiresAt: optional(up.ExpiresAt)}
	for i, r := range up.Requests {
		headers := map[string]string{}
		for name := range r.Header {
			headers[name] = r.Header.Get(name)
		}
		offset := int64(i) * up.PartSize
		out.Requests = append(out.Requests, UploadPart{
			Method: PUT, Url: r.URL.String(), Headers: headers, Offset: offset, SizeBytes: min(up.PartSize, b.SizeBytes-offset),
		})
	}
	if len(up.Requests) == 0 {
		out.Requests = []UploadPart{{Method: PUT, Url: uploadURL(exchangeOf(ctx).base, req.AttemptId), Headers: map[string]string{}, SizeBytes: b.SizeBytes}}
	}
	return out, nil
}

func (s *server) CompleteAttempt(ctx context.Context, req CompleteAttemptRequestObject) (CompleteAttemptResponseObject, error) {
	var complete upsert.CompleteRequest
	if b := req.Body; b != nil {
		complete = upsert.CompleteRequest{Size: b.SizeBytes, SHA256: digits(b.Checksum), Given: given(b.Acquired, b.Properties)}
		if up := b.Upload; up != nil {
			complete.Upload = &upsert.Uploaded{ID: up.UploadId, ETags: up.Etags}
		}
	}
	outcome, err := s.Step.Complete(ctx, req.AttemptId, complete)
	if err != nil {
		return nil, err
	}
	return CompleteAttempt200JSONResponse{
		State: OutcomeState(outcome.State), AttemptId: outcome.AttemptID, Tile: toTile(outcome.Tile, exchangeOf(ctx).base),
	}, nil
}

func (s *server) AbandonAttempt(ctx context.Context, req AbandonAttemptRequestObject) (AbandonAttemptResponseObject, error) {
	if err := s.Step.Abandon(ctx, req.AttemptId); err != nil {
		return nil, err
	}
	return AbandonAttempt200JSONResponse{AttemptId: req.AttemptId, State: AttemptStateAbandoned}, nil
}

func (s *server) Heartbeat(ctx context.Context, req HeartbeatRequestObject) (HeartbeatResponseObject, error) {
	var leases []upsert.Lease
	var err error
	switch {
	case (req.Body.Attempts == nil) == (req.Body.Owner == nil):
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "send one of attempts and owner").At("/attempts")
	case req.Body.Owner != nil:
		leases, err = s.Step.HeartbeatOwner(ctx, *req.Body.Owner)
	default:
		leases, err = s.Step.Heartbeat(ctx, *req.Body.Attempts)
	}
	if err != nil {
		return nil, err
	}
	out := Heartbeat200JSONResponse{Leases: make([]Lease, len(leases))}
	for i, lease := range leases {
		out.Leases[i] = Lease{AttemptId: lease.AttemptID, State: LeaseState(lease.State)}
		switch {
		case lease.State == "":
			out.Leases[i].State = LeaseStateUnknown
		case !lease.State.Ended():
			out.Leases[i].LeaseUntil = &lease.Until
		}
	}
	return out, nil
}

func (s *server) RegisterOutput(ctx context.Context, req RegisterOutputRequestObject) (RegisterOutputResponseObject, error) {
	b := req.Body
	result, err := s.Step.Register(ctx, upsert.OutputRequest{
		Begin: upsert.BeginRequest{
			Unit: upsert.UnitRef{
				Collection: b.Collection, TileID: b.TileId, Identity: b.Identity, ClientKey: value(b.ClientKey),
			},
			Owner: b.Owner, Try: value(b.Try), RequestID: b.RequestId,
			MediaType: value(b.MediaType), Given: given(b.Acquired, b.Properties), Batch: value(b.Batch),
		},
		Staged:   b.Staged,
		Complete: upsert.CompleteRequest{Size: b.SizeBytes, SHA256: digits(b.Checksum)},
	})
	if err != nil {
		return nil, err
	}
	out := RegisterOutput200JSONResponse{State: OutputResultStateSkipped, Tile: toTile(result.Outcome.Tile, exchangeOf(ctx).base)}
	if !result.Skipped {
		out.State, out.AttemptId = OutputResultState(result.Outcome.State), &result.Outcome.AttemptID
	}
	return out, nil
}

// patientBody lets a stream last as long as it moves: reads have a deadline
// that is idle away, renewed now and then.
type patientBody struct {
	io.ReadCloser
	rc      *http.ResponseController
	renewed time.Time
	err     error
}

func (b *patientBody) Read(p []byte) (n int, err error) {
	if b.err != nil {
		// Once the body has ended, a deadline would end the request itself.
		return 0, b.err
	}
	if now := time.Now(); now.Sub(b.renewed) > idle/8 {
		_ = b.rc.SetReadDeadline(now.Add(idle))
		b.renewed = now
	}
	n, b.err = b.ReadCloser.Read(p)
	return n, b.err
}

func toAttempt(d upsert.Decision, base string) Attempt {
	a := d.Attempt
	return Attempt{
		AttemptId: a.ID, State: AttemptState(a.State), Owner: a.Owner, Try: a.Try, Version: a.Version,
		StoreId: a.StoreID, MediaType: a.MediaType, StagingKey: a.StagingKey, StagingPath: optional(d.StagingPath), StagingUri: optional(d.StagingURI),
		UploadUrl: uploadURL(base, a.ID),
		ObjectKey: a.ObjectKey, LeaseUntil: a.LeaseUntil,
	}
}

func uploadURL(base string, attempt uuid.UUID) string {
	return fmt.Sprintf("%s/v1/attempts/%s/output", base, attempt)
}

// given is what a task says of its output. An interval without an end is an
// instant.
func given(acquired *Interval, properties *Properties) catalog.Given {
	var g catalog.Given
	if acquired != nil {
		end := acquired.End
		if end == nil {
			end = &acquired.Start
		}
		g.Acquired = catalog.Interval{Start: &acquired.Start, End: end}
	}
	g.Properties = value(properties)
	return g
}

// digits of a checksum whose form the contract has checked.
func digits(checksum *Checksum) string { return strings.TrimPrefix(value(checksum), "sha256:") }

// value is what p points to, else zero.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// optional is nil for the zero value.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
