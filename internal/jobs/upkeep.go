package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"
)

// Step finishes and removes what others left. It logs what it did.
type Step interface {
	// RecoverOverdue finishes steps past their deadline.
	RecoverOverdue(ctx context.Context) error
	// Sweep removes what ended attempts left.
	Sweep(ctx context.Context) error
}

// late tells whether a job that comes by the clock waited for so long that the next is
// there too: where one takes longer than its period, the queue does not grow. Nothing
// keeps them apart otherwise, since one of a killed server would count as running for as
// long as it might have run; two at once, at two servers, do no harm.
func late(scheduled time.Time, every time.Duration) bool { return time.Since(scheduled) > every }

type recoverArgs struct{}

func (recoverArgs) Kind() string { return "recover" }

func (recoverArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: recoverQueue, MaxAttempts: 1}
}

type recoverWorker struct {
	river.WorkerDefaults[recoverArgs]
	jobs *Jobs
}

func (w *recoverWorker) Timeout(*river.Job[recoverArgs]) time.Duration { return recoverTimeout }

func (w *recoverWorker) Work(ctx context.Context, job *river.Job[recoverArgs]) error {
	if late(job.ScheduledAt, w.jobs.RecoverEvery) {
		return nil
	}
	return w.jobs.Step.RecoverOverdue(ctx)
}

type sweepArgs struct{}

func (sweepArgs) Kind() string { return "sweep" }

func (sweepArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: sweepQueue, MaxAttempts: 1}
}

type sweepWorker struct {
	river.WorkerDefaults[sweepArgs]
	jobs *Jobs
}

func (w *sweepWorker) Timeout(*river.Job[sweepArgs]) time.Duration { return sweepTimeout }

// Work sweeps, and empties the trash of what has expired.
func (w *sweepWorker) Work(ctx context.Context, job *river.Job[sweepArgs]) error {
	j := w.jobs
	if late(job.ScheduledAt, j.SweepEvery) {
		return nil
	}
	err := j.Step.Sweep(ctx)
	emptied, emptyErr := j.Reconciler.EmptyTrash(ctx, "", false, bySchedule, "")
	if emptied.Objects+emptied.Left > 0 {
		j.Logger.InfoContext(ctx, "what had expired in the trash is deleted", "objects", emptied.Objects, "bytes", emptied.Bytes, "left", emptied.Left)
	}
	return errors.Join(err, emptyErr)
}
