package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"catalogd/internal/catalog"
	"catalogd/internal/reconcile"
)

// Reconciler compares the catalogue with its stores.
type Reconciler interface {
	Start(ctx context.Context, req reconcile.Request, who string, wait time.Duration) (catalog.Run, error)
	DoPart(ctx context.Context, run int64, part int) error
	ApplyPlan(ctx context.Context, plan int64) error
	EmptyTrash(ctx context.Context, storeID string, all bool, who, why string) (reconcile.Emptied, error)
	Scrub(ctx context.Context, storeID string, fraction float64) (reconcile.Scrubbed, error)
}

// bySchedule is who asks for what comes by the clock.
const bySchedule = "schedule"

// waiting are the states of a job that is not over.
var waiting = []rivertype.JobState{
	rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
}

// Part queues a part of a run, in a transaction of the caller's.
func (j *Jobs) Part(ctx context.Context, tx pgx.Tx, run int64, part int) error {
	_, err := j.client.InsertTx(ctx, tx, partArgs{run, part}, nil)
	return err
}

// Apply queues the applying of a plan, in a transaction of the caller's.
func (j *Jobs) Apply(ctx context.Context, tx pgx.Tx, plan int64) error {
	_, err := j.client.InsertTx(ctx, tx, applyArgs{plan}, nil)
	return err
}

// QueueScrub queues the reading of a share of a store's outputs, unless one waits already.
func (j *Jobs) QueueScrub(ctx context.Context, storeID string, fraction float64) error {
	if err := CheckFraction(fraction); err != nil {
		return catalog.Errorf(catalog.CodeInvalidRequest, "fraction %v %v", fraction, err)
	}
	if _, err := j.client.Insert(ctx, scrubArgs{storeID, fraction}, nil); err != nil {
		return catalog.Errorf(catalog.CodeDatabaseUnavailable, "the scrub could not be queued: try again").Because(err)
	}
	return nil
}

// partArgs: postgres.RequeueParts knows them too.
type partArgs struct {
	Run  int64 `json:"run"`
	Part int   `json:"part"`
}

func (partArgs) Kind() string { return "reconcile_part" }

// InsertOpts: what ends the tries is queued again, as if its server were gone.
func (partArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: partQueue, MaxAttempts: 25}
}

type partWorker struct {
	river.WorkerDefaults[partArgs]
	jobs *Jobs
}

func (w *partWorker) Timeout(*river.Job[partArgs]) time.Duration { return partTimeout }

func (w *partWorker) NextRetry(job *river.Job[partArgs]) time.Time { return soon(job.Attempt) }

func (w *partWorker) Work(ctx context.Context, job *river.Job[partArgs]) error {
	return w.jobs.Reconciler.DoPart(ctx, job.Args.Run, job.Args.Part)
}

// applyArgs: postgres.RequeuePlans knows them too.
type applyArgs struct {
	Plan int64 `json:"plan"`
}

func (applyArgs) Kind() string { return "apply" }

func (applyArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: applyQueue, MaxAttempts: 25}
}

type applyWorker struct {
	river.WorkerDefaults[applyArgs]
	jobs *Jobs
}

func (w *applyWorker) Timeout(*river.Job[applyArgs]) time.Duration { return applyTimeout }

func (w *applyWorker) NextRetry(job *river.Job[applyArgs]) time.Time { return soon(job.Attempt) }

func (w *applyWorker) Work(ctx context.Context, job *river.Job[applyArgs]) error {
	return w.jobs.Reconciler.ApplyPlan(ctx, job.Args.Plan)
}

// reconcileArgs: with Missed, a run is only begun if one should have been.
type reconcileArgs struct {
	Store  string `json:"store"`
	Missed bool   `json:"missed,omitempty"`
}

func (reconcileArgs) Kind() string { return "reconcile" }

// InsertOpts: a store that is away is tried for hours; meanwhile the next time adds none.
func (reconcileArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: startQueue, MaxAttempts: 10, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: waiting}}
}

type reconcileWorker struct {
	river.WorkerDefaults[reconcileArgs]
	jobs *Jobs
}

func (w *reconcileWorker) Timeout(*river.Job[reconcileArgs]) time.Duration { return startTimeout }

// Work begins a run of a store: its parts are jobs of their own.
func (w *reconcileWorker) Work(ctx context.Context, job *river.Job[reconcileArgs]) error {
	j, store := w.jobs, job.Args.Store
	if job.Args.Missed {
		last, err := j.Ledger.LastReconciled(ctx, store)
		if err != nil {
			return err
		}
		if next := j.Reconcile.Next(last); next.After(time.Now()) {
			return nil
		}
	}
	_, err := j.Reconciler.Start(ctx, reconcile.Request{StoreID: store}, bySchedule, 0)
	if catalog.IsCode(err, catalog.CodeRunUnderWay) {
		return nil
	}
	return err
}

type scrubArgs struct {
	Store    string  `json:"store"`
	Fraction float64 `json:"fraction"`
}

func (scrubArgs) Kind() string { return "scrub" }

// InsertOpts: one of a killed server, which counts as running for as long as it might have
// run, keeps others away for an hour at most.
func (scrubArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: scrubQueue, MaxAttempts: 5, UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: time.Hour, ByState: waiting}}
}

type scrubWorker struct {
	river.WorkerDefaults[scrubArgs]
	jobs *Jobs
}

func (w *scrubWorker) Timeout(*river.Job[scrubArgs]) time.Duration { return scrubTimeout }

func (w *scrubWorker) Work(ctx context.Context, job *river.Job[scrubArgs]) error {
	j := w.jobs
	sum, err := j.Reconciler.Scrub(ctx, job.Args.Store, job.Args.Fraction)
	if err != nil {
		return fmt.Errorf("scrub store %s: %w", job.Args.Store, err)
	}
	j.Logger.InfoContext(ctx, "scrubbed", "store", job.Args.Store, "outputs", sum.Outputs, "bytes", sum.Bytes, "bad", sum.Bad, "unread", sum.Unread, "lapped", sum.Lapped)
	return nil
}
