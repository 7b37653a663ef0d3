package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twpayne/go-geom"
	"github.com/twpayne/go-geom/encoding/geojson"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

const (
	batchPage = 100
	// addChunk units are added in one transaction, pendingChunk read from one snapshot.
	addChunk     = 1000
	pendingChunk = 5000
	// maxClientKey is the longest client key, in bytes, as at a begin.
	maxClientKey = 256
	// maxRefused is how many refused units an answer tells of.
	maxRefused = 100
	// gateWait is how long a gate's verdict is waited for, and gateWaitMost at most.
	gateWait     = 5 * time.Second
	gateWaitMost = 20 * time.Second
)

func (s *server) OpenBatch(ctx context.Context, req OpenBatchRequestObject) (OpenBatchResponseObject, error) {
	if err := catalog.CheckBatchName(req.Body.Name, "/name"); err != nil {
		return nil, err
	}
	batch, created, err := s.Catalogue.OpenBatch(ctx, req.Body.Name, req.Body.Collection, exchangeOf(ctx).who)
	if err != nil {
		return nil, err
	}
	if created {
		return OpenBatch201JSONResponse(toBatch(batch)), nil
	}
	return OpenBatch200JSONResponse(toBatch(batch)), nil
}

func toBatch(b catalog.Batch) Batch {
	versions := b.Versions
	if versions == nil {
		versions = []string{}
	}
	return Batch{
		Name: b.Name, Collection: b.Collection, Versions: versions, Expected: b.Expected, Publish: PublishWhen(b.Publish),
		PublishedAt: b.PublishedAt, BatchId: b.ID, CreatedBy: b.CreatedBy, CreatedAt: b.CreatedAt,
	}
}

func (s *server) ListBatches(ctx context.Context, req ListBatchesRequestObject) (ListBatchesResponseObject, error) {
	limit := batchPage
	if req.Params.Limit != nil {
		limit = *req.Params.Limit
	}
	// One more tells whether there is a next page.
	batches, err := s.Catalogue.Batches(ctx, value(req.Params.Collection), value(req.Params.Before), limit+1)
	if err != nil {
		return nil, err
	}
	out := ListBatches200JSONResponse{Batches: make([]Batch, 0, len(batches))}
	if len(batches) > limit {
		batches = batches[:limit]
		out.Next = &batches[limit-1].ID
	}
	for _, b := range batches {
		out.Batches = append(out.Batches, toBatch(b))
	}
	return out, nil
}

func (s *server) GetBatch(ctx context.Context, req GetBatchRequestObject) (GetBatchResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	status, err := s.Catalogue.BatchStatus(ctx, req.Batch)
	if err != nil {
		return nil, err
	}
	out := GetBatch200JSONResponse{Batch: toBatch(status.Batch), Counts: BatchCounts(status.Counts), Unpublished: status.Unpublished, Failures: make([]BatchFailure, len(status.Failures))}
	for i, f := range status.Failures {
		out.Failures[i] = BatchFailure{
			Class: FailureClass(f.Class), Reason: f.Reason, Units: f.Units, Tries: f.Tries, Example: f.Example, ExampleKey: f.ExampleKey, Last: f.Last,
		}
	}
	if status.Gate != nil {
		out.Gate = new(toGate(*status.Gate))
	}
	return out, nil
}

// AddBatchUnits adds a chunk at a time, and holds no more. What a client's stream broke
// off after is added; so is what came before a problem on the server's side.
func (s *server) AddBatchUnits(ctx context.Context, req AddBatchUnitsRequestObject) (AddBatchUnitsResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	batch, err := s.Catalogue.Batch(ctx, req.Batch)
	if err != nil {
		return nil, err
	}
	add := adding{s: s, batch: batch, out: UnitsAdded{Errors: []RefusedUnit{}}}
	if req.JSONBody != nil {
		if req.JSONBody.Units == nil {
			return nil, catalog.Errorf(catalog.CodeInvalidRequest, "units is missing: send a list").At("/units")
		}
		for i, raw := range req.JSONBody.Units {
			if err = add.take(ctx, int64(i+1), raw); err != nil {
				break
			}
		}
	} else {
		err = add.stream(ctx, req.Body)
	}
	// What came whole is added, also where the client broke off after it.
	if err == nil || catalog.IsCode(err, catalog.CodeInvalidRequest) {
		err = errors.Join(err, add.flush(context.WithoutCancel(ctx)))
	}
	if err != nil && add.out.Total == 0 {
		return nil, err
	}
	if err != nil {
		x := exchangeOf(ctx)
		x.err = known(err)
		add.out.Error = new(newProblem(known(err), x.id))
	}
	if batch, lookErr := s.Catalogue.Batch(ctx, req.Batch); lookErr == nil {
		add.out.Expected = batch.Expected
	}
	return AddBatchUnits200JSONResponse(add.out), nil
}

// adding is one request's units on their way into a batch.
type adding struct {
	s     *server
	batch catalog.Batch
	out   UnitsAdded
	// chunk is what is to be added next, with the line of each.
	chunk []catalog.ExpectedUnit
	lines []int64
	size  int
}

func (a *adding) stream(ctx context.Context, body io.Reader) error {
	in := bufio.NewReaderSize(body, maxLine)
	for line := int64(0); ; {
		raw, problem, err := nextLine(in, &line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case problem != nil:
			a.refuse(line, problem)
		default:
			err = a.take(ctx, line, raw)
		}
		if err != nil {
			return err
		}
	}
}

// take reads one unit, and adds those that are waiting where they are enough.
func (a *adding) take(ctx context.Context, line int64, raw []byte) error {
	unit, err := a.read(raw)
	if err != nil {
		a.refuse(line, err)
		return nil
	}
	a.chunk, a.lines, a.size = append(a.chunk, unit), append(a.lines, line), a.size+len(raw)
	if len(a.chunk) < addChunk && a.size < chunkBytes {
		return nil
	}
	return a.flush(ctx)
}

func (a *adding) refuse(line int64, err error) {
	a.out.Total++
	a.out.Refused++
	if len(a.out.Errors) < maxRefused {
		e := known(err)
		a.out.Errors = append(a.out.Errors, RefusedUnit{Line: line, Code: Code(e.Code), Detail: e.Message, Field: optional(e.Field)})
	}
}

func (a *adding) read(raw []byte) (catalog.ExpectedUnit, error) {
	if len(raw) > maxUnit {
		return catalog.ExpectedUnit{}, catalog.Errorf(catalog.CodeTooLarge, "the unit is longer than %d bytes", maxUnit)
	}
	var geometry json.RawMessage
	ref, err := readMembers(raw, "geometry", &geometry)
	switch {
	case err != nil:
		return catalog.ExpectedUnit{}, schemaProblemOf("ExpectedUnit", raw, err)
	case ref.Collection != "" && ref.Collection != a.batch.Collection:
		return catalog.ExpectedUnit{}, catalog.Errorf(catalog.CodeInvalidRequest, "batch %s is of collection %s: send the unit to a batch of its own collection", a.batch.Name, a.batch.Collection).At("/collection")
	case len(ref.ClientKey) > maxClientKey:
		return catalog.ExpectedUnit{}, catalog.Errorf(catalog.CodeInvalidRequest, "client_key is %d bytes long; at most %d", len(ref.ClientKey), maxClientKey).At("/client_key")
	case len(ref.Identity) == 0:
		return catalog.ExpectedUnit{}, catalog.Errorf(catalog.CodeInvalidRequest, "identity is missing: send everything that decides the bytes").At("/identity")
	}
	unit, err := catalog.NewUnit(a.batch.Collection, ref.TileID, ref.Identity, ref.ClientKey)
	if err != nil {
		return catalog.ExpectedUnit{}, err
	}
	if ref.Key != uuid.Nil && ref.Key != unit.Key {
		return catalog.ExpectedUnit{}, catalog.Errorf(catalog.CodeKeyCollision, "unit_key %s is not the key of this identity, which is %s: leave it out", ref.Key, unit.Key).At("/unit_key")
	}
	place, err := readGeometry(geometry)
	return catalog.ExpectedUnit{Unit: unit, Geometry: place}, err
}

// readGeometry is GeoJSON in WGS 84 (RFC 7946); nil for none.
func readGeometry(raw json.RawMessage) (geom.T, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	bad := func(why string, err error) error {
		return catalog.Errorf(catalog.CodeInvalidRequest, "geometry %s: send GeoJSON in WGS 84, longitudes from -180 to 180, latitudes from -90 to 90", why).At("/geometry").Because(err)
	}
	if bytes.Contains(raw, []byte("null")) {
		return nil, bad("holds null", nil)
	}
	var g geom.T
	if err := geojson.Unmarshal(raw, &g); err != nil {
		return nil, bad("is none that can be read", err)
	}
	var lines, rings int // positions of the shortest of each
	const none = 1 << 30
	lines, rings = none, none
	ring := func(p *geom.Polygon) {
		for i := range p.NumLinearRings() {
			r := p.LinearRing(i)
			n := r.NumCoords()
			if n > 0 && !r.Coord(0).Equal(r.Layout(), r.Coord(n-1)) {
				n = 0
			}
			rings = min(rings, n)
		}
	}
	switch g := g.(type) {
	case *geom.Point, *geom.MultiPoint:
	case *geom.LineString:
		lines = g.NumCoords()
	case *geom.MultiLineString:
		for i := range g.NumLineStrings() {
			lines = min(lines, g.LineString(i).NumCoords())
		}
	case *geom.Polygon:
		ring(g)
	case *geom.MultiPolygon:
		for i := range g.NumPolygons() {
			ring(g.Polygon(i))
		}
	default:
		return nil, bad("is a collection, or none", nil)
	}
	switch {
	case g.Empty():
		return nil, bad("is empty", nil)
	case g.Layout() != geom.XY:
		return nil, bad("has heights", nil)
	case lines < 2:
		return nil, bad("has a line of fewer than two positions", nil)
	case rings < 4:
		return nil, bad("has a ring that is not closed, or has fewer than four positions", nil)
	}
	for flat := g.FlatCoords(); len(flat) > 1; flat = flat[2:] {
		if lon, lat := flat[0], flat[1]; !(math.Abs(lon) <= 180 && math.Abs(lat) <= 90) {
			return nil, bad("leaves the Earth", nil)
		}
	}
	return geom.SetSRID(g, 4326)
}

// flush adds what is waiting.
func (a *adding) flush(ctx context.Context) error {
	if len(a.chunk) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	added, refused, err := a.s.Catalogue.AddUnits(ctx, a.batch, a.chunk)
	if err != nil {
		return err
	}
	a.out.Total += int64(len(a.chunk) - len(refused))
	a.out.Added += added
	a.out.Present += int64(len(a.chunk)-len(refused)) - added
	for i, line := range a.lines {
		if problem := refused[i]; problem != nil {
			a.refuse(line, problem)
		}
	}
	a.chunk, a.lines, a.size = a.chunk[:0], a.lines[:0], 0
	return nil
}

// UnmarshalJSON takes one list of units, which it does not look into.
func (u *ExpectedUnits) UnmarshalJSON(raw []byte) (err error) {
	u.Units, err = readUnits(raw)
	return err
}

func (s *server) ListPending(ctx context.Context, req ListPendingRequestObject) (ListPendingResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	batch, err := s.Catalogue.Batch(ctx, req.Batch)
	if err != nil {
		return nil, err
	}
	return pendingStream{paged[catalog.PendingUnit]{
		ctx: ctx, size: pendingChunk,
		page: func(ctx context.Context, after *catalog.PendingUnit) ([]catalog.PendingUnit, error) {
			last := uuid.Nil
			if after != nil {
				last = after.UnitKey
			}
			return s.Catalogue.Pending(ctx, batch.ID, last, pendingChunk)
		},
		item: func(u catalog.PendingUnit) any {
			return PendingUnit{
				UnitKey: u.UnitKey, TileId: u.TileID, Status: PendingUnitStatus(u.Status), Identity: Identity(u.Identity), ClientKey: optional(u.ClientKey),
			}
		},
		last: func(n int64, problem *Problem) any {
			line := PendingSummaryLine{Error: problem}
			line.Summary.Pending = n
			return line
		},
	}}, nil
}

// pendingStream is a batch's pending units as NDJSON.
type pendingStream struct{ paged[catalog.PendingUnit] }

// VisitListPendingResponse implements ListPendingResponseObject.
func (p pendingStream) VisitListPendingResponse(w http.ResponseWriter) error { return p.send(w) }

func (s *server) ClaimUnits(ctx context.Context, req ClaimUnitsRequestObject) (ClaimUnitsResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	claimed, err := s.Step.Claim(ctx, upsert.ClaimRequest{
		Batch: req.Batch, Max: req.Body.Max, Owner: req.Body.Owner, RequestID: req.Body.RequestId, MediaType: value(req.Body.MediaType),
	})
	if err != nil {
		return nil, err
	}
	base := exchangeOf(ctx).base
	out := ClaimUnits200JSONResponse{Units: make([]ClaimedUnit, len(claimed.Units))}
	for i, u := range claimed.Units {
		out.Units[i] = ClaimedUnit{
			UnitKey: u.UnitKey, Collection: u.Collection, TileId: u.TileID, Identity: Identity(u.Identity), ClientKey: optional(u.ClientKey),
			Attempt: toAttempt(u.Decision, base), Tags: u.Tags,
		}
	}
	if claimed.Left {
		out.RetryAfter = new(claimed.RetryAfter.Seconds())
	}
	return out, nil
}

func (s *server) RunGate(ctx context.Context, req RunGateRequestObject) (RunGateResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	b := req.Body
	limits := catalog.GateLimits{
		MaxMissingFrac: value(b.MaxMissingFrac), MaxQuarantined: b.MaxQuarantined,
		Storage: catalog.GateStorage(value(b.Storage)), SampleSize: value(b.SampleSize),
	}
	if limits.Storage == "" {
		limits.Storage = catalog.GateList
	}
	if limits.Storage == catalog.GateSample && limits.SampleSize == 0 {
		limits.SampleSize = 1000
	}
	gate, err := s.Gates.Run(ctx, req.Batch, limits, exchangeOf(ctx).who, patience(value(req.Params.Prefer)))
	if err != nil {
		return nil, err
	}
	if gate.State.Ended() {
		return RunGate200JSONResponse(toGate(gate)), nil
	}
	return RunGate202JSONResponse{Body: toGate(gate), Headers: RunGate202ResponseHeaders{
		Location:   new(exchangeOf(ctx).base + "/v1/batches/" + gate.Batch + "/gate/" + gate.ID.String()),
		RetryAfter: new(1),
	}}, nil
}

var waitPreference = regexp.MustCompile(`(?i)(?:^|[,;])\s*wait\s*=\s*"?(\d{1,6})"?\s*(?:$|[,;])`)

// patience is the wait of a Prefer header (RFC 7240, section 4.3), within bounds.
func patience(prefer string) time.Duration {
	match := waitPreference.FindStringSubmatch(prefer)
	if match == nil {
		return gateWait
	}
	seconds, _ := strconv.Atoi(match[1]) // at most six digits
	return min(time.Duration(seconds)*time.Second, gateWaitMost)
}

func (s *server) GetGate(ctx context.Context, req GetGateRequestObject) (GetGateResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	gate, err := s.Gates.Gate(ctx, req.Batch, req.GateId)
	if err != nil {
		return nil, err
	}
	return GetGate200JSONResponse(toGate(gate)), nil
}

// GateData is a gate as the contract has it.
func GateData(g catalog.Gate) Gate { return toGate(g) }

func toGate(g catalog.Gate) Gate {
	out := Gate{
		State: GateState(g.State), Reasons: make([]GateReasons, len(g.Reasons)), MaxMissingFrac: g.MaxMissingFrac, MaxQuarantined: g.MaxQuarantined,
		Storage: GateStorage(g.Storage), SampleSize: optional(g.SampleSize), Batch: g.Batch, GateId: g.ID, AskedBy: g.AskedBy,
		CreatedAt: g.CreatedAt, StartedAt: g.StartedAt, EndedAt: g.EndedAt, Offenders: make([]Offender, len(g.Offenders)),
	}
	for i, reason := range g.Reasons {
		out.Reasons[i] = GateReasons(reason)
	}
	for i, o := range g.Offenders {
		out.Offenders[i] = Offender{TileId: o.TileID, Status: OffenderStatus(o.Status), Reason: o.Reason, UnitKey: o.UnitKey}
	}
	if g.State == catalog.GateError {
		out.Error = &ItemError{Code: Code(g.ErrorCode), Detail: g.ErrorMessage}
	}
	if g.State == catalog.GatePassed || g.State == catalog.GateFailed {
		f := g.Figures
		out.Figures = &GateFigures{
			Expected: f.Expected, Done: f.Done, Running: f.Running, Retrying: f.Retrying, Quarantined: f.Quarantined, Lost: f.Lost, Pending: f.Pending,
			Missing: f.Missing, MissingFrac: f.MissingFrac, LookedAt: f.LookedAt,
		}
		if g.Storage != catalog.GateNone {
			out.Figures.Outputs = &f.Outputs
		}
		out.Published = optional(f.Published)
	}
	return out
}

func (s *server) PublishBatch(ctx context.Context, req PublishBatchRequestObject) (PublishBatchResponseObject, error) {
	if err := catalog.CheckBatchName(req.Batch, "batch"); err != nil {
		return nil, err
	}
	published, err := s.Step.PublishBatch(ctx, req.Batch, exchangeOf(ctx).who, req.Body.Why)
	if err != nil {
		return nil, err
	}
	return PublishBatch200JSONResponse{Batch: req.Batch, Published: published.Published, Moved: published.Moved}, nil
}
