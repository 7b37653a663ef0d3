package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

// Judge judges a gate, unless it has ended or somebody else judges it. An error says that
// nothing was decided and that it is to be tried again; what cannot be judged ends the
// gate as an error. A crash here leaves a gate that is judged anew.
func (j *Judge) Judge(ctx context.Context, id uuid.UUID) error {
	sitting, err := j.Ledger.TakeGate(ctx, id)
	if sitting == nil || err != nil {
		return err
	}
	defer sitting.Close()
	gate, err := j.verdict(ctx, sitting)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = catalog.Errorf(catalog.CodeOutcomeUnknown, "judging took too long and was given up: judge a sample, or have an operator look why the store is slow").Because(err)
	case ctx.Err() != nil || passing(err):
		return err
	}
	if err != nil {
		gate.State, gate.ErrorCode, gate.ErrorMessage = catalog.GateError, catalog.CodeOf(err), words(err)
		gate.Reasons, gate.Offenders, gate.Figures = nil, nil, catalog.GateFigures{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if endErr := j.Ledger.EndGate(ctx, gate); endErr != nil {
		return endErr
	}
	if gate.State == catalog.GateError && gate.ErrorCode == catalog.CodeInternal {
		return fmt.Errorf("gate %s: %w", id, err) // to be logged
	}
	return nil
}

// passing tells of an error after which the gate could not be written down either.
func passing(err error) bool {
	return catalog.IsCode(err, catalog.CodeDatabaseUnavailable) || catalog.IsCode(err, catalog.CodeDatabaseReadOnly)
}

// words are what a client may see of an error.
func words(err error) string {
	var known *catalog.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return "the server's log says why"
}

// verdict judges by what is there, and publishes what passes: before that is written
// down, so that a crash in between has it judged, and published, again.
func (j *Judge) verdict(ctx context.Context, sitting Sitting) (catalog.Gate, error) {
	gate, batch := sitting.Gate(), sitting.Batch()
	survey, err := sitting.Survey(ctx)
	if err != nil {
		return gate, err
	}
	seen, err := j.look(ctx, gate, batch, survey)
	if err != nil {
		return gate, err
	}
	gate.Figures = figures(gate.Storage, seen)
	gate.Offenders = append(seen.lost, append(seen.gone, survey.Missing...)...)
	gate.Offenders = gate.Offenders[:min(len(gate.Offenders), MaxOffenders)]
	gate.Reasons = reasons(gate.GateLimits, gate.Figures, seen.disagrees(gate.Storage))
	gate.State = catalog.GateFailed
	if len(gate.Reasons) == 0 {
		gate.State = catalog.GatePassed
	}
	if gate.State != catalog.GatePassed {
		return gate, nil
	}
	published, err := j.Publisher.PublishBatch(ctx, batch.Name, gate.AskedBy, fmt.Sprintf("gate %s passed", gate.ID))
	// What was registered while its collection published on gates still waits, though that
	// be another policy by now; where nothing waits, that is no error.
	if err != nil && !(batch.Publish == catalog.PublishOnRegister && catalog.IsCode(err, catalog.CodeInvalidRequest)) {
		return gate, err
	}
	gate.Figures.Published = published.Moved
	return gate, nil
}

func figures(storage catalog.GateStorage, seen seen) catalog.GateFigures {
	f := catalog.GateFigures{BatchCounts: seen.counts, LookedAt: seen.lookedAt, Outputs: seen.outputs}
	if storage == catalog.GateNone {
		f.Outputs = f.Done // one row a unit, and one object a row
	}
	f.Missing = f.Expected - f.Done
	if f.Expected > 0 {
		f.MissingFrac = float64(f.Missing) / float64(f.Expected)
	}
	return f
}

// reasons are why a batch fails its gate; none where it passes.
func reasons(limits catalog.GateLimits, f catalog.GateFigures, disagrees bool) []catalog.GateReason {
	if f.Expected == 0 {
		return []catalog.GateReason{catalog.GateEmpty}
	}
	var why []catalog.GateReason
	if f.MissingFrac > limits.MaxMissingFrac {
		why = append(why, catalog.GateTooManyMissing)
	}
	if limits.MaxQuarantined != nil && f.Quarantined > *limits.MaxQuarantined {
		why = append(why, catalog.GateTooManyQuarantined)
	}
	if f.Lost > 0 || disagrees {
		why = append(why, catalog.GateDisagreement)
	}
	return why
}
