package upsert

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Complete hands a staged output over and returns how its step ended. Two
// completes of one attempt in this process are one step; a complete of an
// attempt that another process left promoting rolls it forward. A client that
// hangs up changes nothing: the step goes on, and the next complete learns of
// its outcome.
func (s *Step) Complete(ctx context.Context, id uuid.UUID, req CompleteRequest) (Outcome, error) {
	if err := req.check(); err != nil {
		return Outcome{}, err
	}
	outcome, err := s.once(ctx, id.String(), func(ctx context.Context) (Outcome, error) {
		return s.complete(ctx, id, req)
	})
	if err != nil {
		return Outcome{}, err
	}
	return outcome, req.checkOutcome(outcome)
}

func (s *Step) complete(ctx context.Context, id uuid.UUID, req CompleteRequest) (Outcome, error) {
	a, c, err := s.resume(ctx, id)
	if err != nil {
		return Outcome{}, err
	}
	if a.State != catalog.AttemptOpen {
		return s.join(ctx, a)
	}
	ctx, stop := s.keep(ctx, id)
	defer stop()
	intended := false
	outcome := Outcome{}
	if err = s.assemble(ctx, a, req); err == nil {
		outcome, err = s.apply(ctx, nil, a, c, req, func(ctx context.Context, intent catalog.Intent, deadline time.Duration) (err error) {
			ctx, cancel := context.WithTimeout(ctx, s.PromoteDeadline)
			defer cancel()
			intended, err = s.Ledger.Intend(ctx, id, intent, deadline)
			if err == nil && !intended {
				err = errNotOpen
			}
			return err
		})
	}
	if err == nil || intended {
		return outcome, err
	}
	// Another process may have completed the attempt meanwhile, and so have taken
	// the staged file away; or the intent is committed, and only the reply was lost.
	a, lookErr := s.look(ctx, id)
	switch {
	case lookErr == nil && (a.State == catalog.AttemptPromoting || a.State == catalog.AttemptDone || a.State == catalog.AttemptOvertaken):
		return s.join(ctx, a)
	case !errors.Is(err, errNotOpen):
		return Outcome{}, err
	case lookErr != nil:
		return Outcome{}, lookErr
	}
	return Outcome{}, lost(a)
}

// resume renews an attempt's lease and reads it, for a step that no client's
// patience bounds. Of one that is not open a standby tells too.
func (s *Step) resume(ctx context.Context, id uuid.UUID) (catalog.Attempt, catalog.Collection, error) {
	ctx, cancel := context.WithTimeout(ctx, s.PromoteDeadline)
	defer cancel()
	a, c, err := s.Ledger.Resume(ctx, id, s.Lease)
	if catalog.IsCode(err, catalog.CodeDatabaseReadOnly) {
		if read, collection, lookErr := s.Ledger.Attempt(ctx, id); lookErr == nil && read.State != catalog.AttemptOpen {
			return read, collection, nil
		}
	}
	return a, c, err
}

// look is resume without the lease.
func (s *Step) look(ctx context.Context, id uuid.UUID) (catalog.Attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, s.PromoteDeadline)
	defer cancel()
	a, _, err := s.Ledger.Attempt(ctx, id)
	return a, err
}

// errNotOpen: the attempt was moved on by somebody else.
var errNotOpen = errors.New("attempt is not open")

// join finishes, or tells the outcome of, an attempt that somebody else moved on.
// Of one that has ended it writes nothing.
func (s *Step) join(ctx context.Context, a catalog.Attempt) (Outcome, error) {
	switch a.State {
	case catalog.AttemptPromoting:
		return s.rollForward(ctx, a)
	case catalog.AttemptDone, catalog.AttemptOvertaken:
		tile, err := s.Ledger.Tile(ctx, a.UnitKey)
		return Outcome{State: a.State, AttemptID: a.ID, Tile: tile}, err
	default:
		return Outcome{}, lost(a)
	}
}

// Register is begin and complete in one, for a file that is already staged
// under .staging/in/: attempt and intent are one commit, the row is the other.
func (s *Step) Register(ctx context.Context, req OutputRequest) (OutputResult, error) {
	for range 3 {
		result, err := s.register(ctx, req)
		if !errors.Is(err, errRaced) {
			return result, err
		}
	}
	return OutputResult{}, catalog.Errorf(catalog.CodeUnitHeld, "others work on the unit, in turn: try again in 1 s")
}

func (s *Step) register(ctx context.Context, req OutputRequest) (OutputResult, error) {
	if err := req.Complete.check(); err != nil {
		return OutputResult{}, err
	}
	unit, claim, err := req.Begin.parse()
	if err != nil {
		return OutputResult{}, err
	}
	stagingKey, err := incoming(req.Staged)
	if err != nil {
		return OutputResult{}, err
	}
	standing, err := s.stand(ctx, unit, claim)
	if err != nil {
		return OutputResult{}, err
	}
	decision, replaces, err := s.decide(ctx, unit, standing)
	switch {
	case err != nil:
		return OutputResult{}, err
	case decision.Verdict == VerdictSkip:
		outcome := Outcome{State: catalog.AttemptDone, AttemptID: decision.Tile.AttemptID, Tile: *decision.Tile}
		return OutputResult{Skipped: true, Outcome: outcome}, nil
	case decision.Verdict == VerdictQuarantined:
		return OutputResult{}, catalog.Errorf(catalog.CodeUnitQuarantined, "the unit is quarantined (%s): release it before it is done again", decision.Reason)
	case decision.Verdict == VerdictWait:
		return OutputResult{}, held(decision)
	case standing.Replay != nil:
		outcome, err := s.Complete(ctx, *standing.Replay, req.Complete)
		return OutputResult{Outcome: outcome}, err
	}
	a, err := s.newAttempt(unit, claim, standing, req.Begin, replaces)
	if err != nil {
		return OutputResult{}, err
	}
	a.StagingKey = stagingKey
	store, err := s.store(a.StoreID)
	if err != nil {
		return OutputResult{}, err
	}
	// The caller made the file and its directories: none is made for it.
	staged, err := openStaged(ctx, store, a)
	if err != nil {
		return OutputResult{}, err
	}
	s.reading.Store(a.StagingKey, true)
	defer s.reading.Delete(a.StagingKey)
	if err := store.PrepareStaging(ctx, a.StagingKey, a.ObjectKey); err != nil {
		staged.Close()
		return OutputResult{}, storeProblem("prepare staging for "+slot(a), err)
	}
	var intended atomic.Bool
	outcome, err := s.once(ctx, a.ID.String(), func(ctx context.Context) (Outcome, error) {
		return s.apply(ctx, staged, a, *standing.Collection, req.Complete, func(ctx context.Context, intent catalog.Intent, deadline time.Duration) error {
			err := s.open(ctx, unit, a, intent, deadline)
			intended.Store(err == nil)
			return err
		})
	})
	if err == nil || intended.Load() || ctx.Err() != nil {
		return OutputResult{Outcome: outcome}, err
	}
	// The same request may have come to another process, which has taken the staged
	// file away; or the intent is committed, and only the reply was lost.
	if standing, lookErr := s.stand(ctx, unit, claim); lookErr == nil && standing.Replay != nil {
		outcome, err = s.Complete(ctx, *standing.Replay, req.Complete)
	}
	return OutputResult{Outcome: outcome}, err
}

// open makes an attempt that is promoting from the first, until deadline from now.
func (s *Step) open(ctx context.Context, unit catalog.Unit, a catalog.Attempt, intent catalog.Intent, deadline time.Duration) error {
	a.State, a.Intent = catalog.AttemptPromoting, &intent
	ctx, cancel := context.WithTimeout(ctx, s.PromoteDeadline)
	defer cancel()
	opened, err := s.Ledger.Open(ctx, unit, a, deadline)
	switch {
	case err != nil:
		return err
	case opened.Hold != nil:
		return held(waiting(unit, *opened.Hold))
	case opened.Replay != nil:
		return catalog.Errorf(catalog.CodeUnitHeld, "the same request is being worked on: ask again")
	case opened.Staged:
		return catalog.Errorf(catalog.CodeStagedInUse, "another attempt holds the staged file %s: stage each output under a name of its own", a.StagingKey).At("/staged")
	case opened.Raced:
		return errRaced
	}
	return nil
}

// Stage streams an output into an attempt's staging name: into a private
// temporary first, so that a broken upload leaves what was staged before. The
// lease is renewed while bytes come.
func (s *Step) Stage(ctx context.Context, id uuid.UUID, r io.Reader) (size int64, sha256 string, err error) {
	a, store, err := s.staging(ctx, id)
	if err != nil {
		return 0, "", err
	}
	ctx, stop := s.keep(ctx, id)
	defer stop()
	size, sha256, err = store.WriteStaged(ctx, a.StagingKey, r, s.MaxOutputBytes)
	if err != nil {
		return 0, "", wrapStaged(a, err)
	}
	return size, sha256, nil
}

// staging renews the lease of an open attempt, and finds its store.
func (s *Step) staging(ctx context.Context, id uuid.UUID) (catalog.Attempt, storage.Store, error) {
	a, _, err := s.resume(ctx, id)
	switch {
	case err != nil:
		return a, nil, err
	case a.State == catalog.AttemptPromoting:
		return a, nil, promoting(a)
	case a.State != catalog.AttemptOpen:
		return a, nil, lost(a)
	}
	store, err := s.store(a.StoreID)
	return a, store, err
}

// keep renews the lease of an attempt that was resumed, until it is stopped.
func (s *Step) keep(ctx context.Context, id uuid.UUID) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(s.Lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				// A heartbeat that fails is made up for by the next.
				_, _ = s.Ledger.Renew(ctx, []uuid.UUID{id}, s.Lease)
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// Heartbeat extends the leases of attempts; one answer per id, in order.
func (s *Step) Heartbeat(ctx context.Context, ids []uuid.UUID) ([]Lease, error) {
	return s.Ledger.Renew(ctx, ids, s.Lease)
}

// maxLeased bounds the leases that are extended by their owner's name.
const maxLeased = 10_000

// HeartbeatOwner extends the leases of an owner's open attempts.
func (s *Step) HeartbeatOwner(ctx context.Context, owner string) ([]Lease, error) {
	if err := checkName("/owner", owner); err != nil {
		return nil, err
	}
	ids, err := s.Ledger.Leased(ctx, owner, maxLeased)
	if err != nil {
		return nil, err
	}
	return s.Ledger.Renew(ctx, ids, s.Lease)
}

// Abandon ends an open attempt without counting it as a failure. It is repeatable: an
// attempt that was abandoned is well ended.
func (s *Step) Abandon(ctx context.Context, id uuid.UUID) error {
	ended, err := s.Ledger.End(ctx, id, catalog.AttemptOpen, catalog.AttemptAbandoned)
	if err != nil || ended {
		return err
	}
	return s.notOpen(ctx, id, catalog.AttemptAbandoned)
}

// notOpen tells why an attempt cannot be ended; nil for one that ended as it should.
func (s *Step) notOpen(ctx context.Context, id uuid.UUID, to catalog.AttemptState) error {
	a, _, err := s.Ledger.Attempt(ctx, id)
	switch {
	case err != nil:
		return err
	case a.State == to:
		return nil
	case a.State == catalog.AttemptPromoting:
		return promoting(a)
	default:
		return lost(a)
	}
}

// once runs one step per key in this process, free of the caller's
// cancellation: its parts have deadlines of their own. Whoever asks meanwhile waits for the same outcome.
func (s *Step) once(ctx context.Context, key string, step func(context.Context) (Outcome, error)) (Outcome, error) {
	result := s.running.DoChan(key, func() (any, error) {
		s.underway.Add(1)
		defer s.underway.Done()
		return step(context.WithoutCancel(ctx))
	})
	select {
	case r := <-result:
		outcome, _ := r.Val.(Outcome)
		return outcome, r.Err
	case <-ctx.Done():
		return Outcome{}, catalog.Errorf(catalog.CodeOutcomeUnknown, "the step goes on: complete again to learn how it ended").Because(ctx.Err())
	}
}

func (r CompleteRequest) check() error {
	if err := checkSHA256(r.SHA256); err != nil {
		return err
	}
	return checkGiven(r.Given)
}

func checkSHA256(text string) error {
	if text == "" {
		return nil
	}
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != 32 || strings.ToLower(text) != text {
		return catalog.Errorf(catalog.CodeInvalidRequest, "checksum is not sha256 and 64 lower-case hexadecimal digits").At("/checksum")
	}
	return nil
}

func (r CompleteRequest) checkChecksum(checksum string) error {
	if r.SHA256 == "" || checksum == "sha256:"+r.SHA256 {
		return nil
	}
	return catalog.Errorf(catalog.CodeChecksumMismatch, "the output is %s, but sha256:%s was announced: it was changed after it was hashed, or is not the file that was meant", checksum, r.SHA256).At("/checksum")
}

// checkOutcome holds a repeated complete to what it announces: the step that
// it joined may have been another's, with other bytes.
func (r CompleteRequest) checkOutcome(o Outcome) error {
	if o.State != catalog.AttemptDone {
		return nil
	}
	if r.Size != nil && *r.Size != o.Tile.SizeBytes {
		return catalog.Errorf(catalog.CodeSizeMismatch, "the attempt is done with an output of %d bytes, but %d were announced", o.Tile.SizeBytes, *r.Size).At("/size_bytes")
	}
	return r.checkChecksum(o.Tile.Checksum)
}

// incoming is the staging key of a file that its writer named.
func incoming(name string) (string, error) {
	name = strings.TrimPrefix(name, storage.IncomingPrefix)
	key := storage.IncomingPrefix + name
	clean := !strings.HasPrefix(name, "/") && !strings.ContainsAny(name, "\\\x00") && name != "" && len(name) <= 512
	for _, segment := range strings.Split(name, "/") {
		clean = clean && segment != "" && segment != "." && segment != ".."
	}
	if !clean {
		return "", catalog.Errorf(catalog.CodeStagedForbidden, "%q is not a name below the store's %s: stage the file there and send its name from there on, without \"..\"", name, storage.IncomingPrefix).At("/staged")
	}
	return key, nil
}

// Drain waits for the steps under way in this process, until ctx ends. What it
// leaves is finished by recovery.
func (s *Step) Drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.underway.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
