// Package jobs runs what catalogd does beside requests, by River, in the catalogue's own
// database: any number of servers, each job at one of them at a time. A job may run
// twice, as after a crash in the middle, so each is safe to repeat. It imports River,
// pgx, cron's schedules, catalog, the requests of reconcile, and the Standard Webhooks'
// signatures; what the jobs do is others'.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"catalogd/internal/catalog"
)

// Schema is where River keeps its tables; our migrations make them.
const Schema = "river"

// Queues, so that nothing short waits behind what takes hours.
const (
	gateQueue    = "gates"
	notifyQueue  = "notices"
	countQueue   = "counts"
	recoverQueue = "recoveries"
	sweepQueue   = "sweeps"
	startQueue   = "reconciles"
	partQueue    = "parts"
	applyQueue   = "applies"
	scrubQueue   = "scrubs"
)

// atOnce is how many jobs of a queue one server does at once.
func atOnce(notified bool) map[string]river.QueueConfig {
	queues := map[string]river.QueueConfig{
		gateQueue: {MaxWorkers: 2}, countQueue: {MaxWorkers: 1}, recoverQueue: {MaxWorkers: 1}, sweepQueue: {MaxWorkers: 1},
		startQueue: {MaxWorkers: 1}, partQueue: {MaxWorkers: 2}, applyQueue: {MaxWorkers: 1}, scrubQueue: {MaxWorkers: 1},
	}
	if notified {
		queues[notifyQueue] = river.QueueConfig{MaxWorkers: 2}
	}
	return queues
}

// Bounds of one run of a job. What is cut off goes on where it was.
const (
	gateTimeout    = time.Hour
	notifyTimeout  = 30 * time.Second
	countTimeout   = 5 * time.Minute
	recoverTimeout = time.Hour
	sweepTimeout   = 6 * time.Hour
	startTimeout   = time.Minute
	partTimeout    = 12 * time.Hour
	applyTimeout   = 24 * time.Hour
	scrubTimeout   = 24 * time.Hour
)

// abandoned is how old a gate, a part of a run or an applied plan must be to be queued
// again if nobody works on it.
const abandoned = 10 * time.Second

// Judge judges a gate.
type Judge interface {
	Judge(ctx context.Context, gate uuid.UUID) error
}

// Ledger is the database as the jobs see it.
type Ledger interface {
	// CountBatches counts what metrics tell of batches.
	CountBatches(ctx context.Context) error
	// RequeueGates queues gates again that are this old and have no judge any more;
	// RequeueParts and RequeuePlans do the same for parts of runs, and for plans.
	RequeueGates(ctx context.Context, grace time.Duration) (int, error)
	RequeueParts(ctx context.Context, grace time.Duration) (int, error)
	RequeuePlans(ctx context.Context, grace time.Duration) (int, error)
	// JudgedGate reads a gate, with its batch. CodeNotFound.
	JudgedGate(ctx context.Context, id uuid.UUID) (catalog.Gate, catalog.Batch, error)
	// Notified records that a gate's notification was taken.
	Notified(ctx context.Context, gate uuid.UUID) error
	// LastReconciled tells when the last comparison of a whole store was asked for; of
	// one without any, when the store came.
	LastReconciled(ctx context.Context, storeID string) (time.Time, error)
}

// Config of the jobs. Notifier is nil where nobody is to be told of gates.
type Config struct {
	Pool       *pgxpool.Pool
	Judge      Judge
	Step       Step
	Reconciler Reconciler
	Ledger     Ledger
	Notifier   *Notifier
	Logger     *slog.Logger

	// Stores are the ids of those that are compared and scrubbed.
	Stores []string
	// How often batches are counted, steps past their deadline are finished, and
	// leftovers are removed; 0 for never.
	CountEvery, RecoverEvery, SweepEvery time.Duration
	// When each store is compared with the catalogue, and when this share of its outputs
	// is read again.
	Reconcile, Scrub Schedule
	ScrubFraction    float64

	// NotifyPause is how long after its nth try a notification is tried again; tests set
	// it. Nil for the fourth power of n seconds.
	NotifyPause func(n int) time.Duration
}

// Jobs are one server's.
type Jobs struct {
	Config
	client *river.Client[pgx.Tx]
}

// New makes them; Start starts them.
func New(cfg Config) (*Jobs, error) {
	j := &Jobs{Config: cfg}
	workers := river.NewWorkers()
	river.AddWorker(workers, &gateWorker{jobs: j})
	river.AddWorker(workers, &notifyWorker{jobs: j})
	river.AddWorker(workers, &countWorker{jobs: j})
	river.AddWorker(workers, &recoverWorker{jobs: j})
	river.AddWorker(workers, &sweepWorker{jobs: j})
	river.AddWorker(workers, &reconcileWorker{jobs: j})
	river.AddWorker(workers, &partWorker{jobs: j})
	river.AddWorker(workers, &applyWorker{jobs: j})
	river.AddWorker(workers, &scrubWorker{jobs: j})
	var err error
	j.client, err = river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{
		Schema:       Schema,
		Queues:       atOnce(cfg.Notifier != nil),
		Workers:      workers,
		PeriodicJobs: cfg.periodic(),
		Logger:       slog.New(quiet{cfg.Logger.Handler()}),
		ErrorHandler: &failures{cfg.Logger},
		// New jobs are told of; polling is for what that missed.
		FetchCooldown:     50 * time.Millisecond,
		FetchPollInterval: 5 * time.Second,
		// Each kind has a timeout of its own; a job is given up for lost after that only.
		JobTimeout:                  time.Minute,
		RescueStuckJobsAfter:        2 * time.Minute,
		CompletedJobRetentionPeriod: time.Hour,
		// Only the owner of an index can rebuild it, which the server is not.
		ReindexerIndexNames: []string{},
	})
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	return j, nil
}

// periodic is what whichever server is leader has done by the clock.
func (c *Config) periodic() (all []*river.PeriodicJob) {
	add := func(when Schedule, args river.JobArgs, atStart bool) {
		if when != nil {
			all = append(all, river.NewPeriodicJob(when, func() (river.JobArgs, *river.InsertOpts) { return args, nil },
				&river.PeriodicJobOpts{RunOnStart: atStart}))
		}
	}
	every := func(d time.Duration) Schedule {
		if d == 0 {
			return nil
		}
		return river.PeriodicInterval(d)
	}
	add(every(c.CountEvery), countArgs{}, true)
	add(every(c.RecoverEvery), recoverArgs{}, false)
	add(every(c.SweepEvery), sweepArgs{}, false)
	for _, store := range c.Stores {
		add(c.Reconcile, reconcileArgs{Store: store}, false)
		if c.Reconcile != nil {
			// A new leader looks for what came while there was none.
			add(river.NeverSchedule(), reconcileArgs{Store: store, Missed: true}, true)
		}
		add(c.Scrub, scrubArgs{store, c.ScrubFraction}, false)
	}
	return all
}

// Start works until Stop.
func (j *Jobs) Start(ctx context.Context) error {
	if err := j.client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start the jobs (is the schema up to date? see catalogd migrate): %w", err)
	}
	return nil
}

// Stop takes no more jobs, and lets those under way end until ctx is over; then they are
// cut off, to be run again by another server, or by this one when it is back.
func (j *Jobs) Stop(ctx context.Context) error {
	err := j.client.Stop(ctx)
	if ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = j.client.StopAndCancel(ctx)
	}
	if err != nil {
		return fmt.Errorf("stop the jobs: %w", err)
	}
	return nil
}

// Judge queues the judging of a gate, in a transaction of the caller's.
func (j *Jobs) Judge(ctx context.Context, tx pgx.Tx, gate uuid.UUID) error {
	_, err := j.client.InsertTx(ctx, tx, gateArgs{gate}, nil)
	return err
}

// Notify queues the notification of a gate, in a transaction of the caller's, if anybody
// is to be told.
func (j *Jobs) Notify(ctx context.Context, tx pgx.Tx, gate uuid.UUID) error {
	if j.Notifier == nil {
		return nil
	}
	_, err := j.client.InsertTx(ctx, tx, notifyArgs{gate}, nil)
	return err
}

// gateArgs: postgres.RequeueGates knows them too.
type gateArgs struct {
	Gate uuid.UUID `json:"gate"`
}

func (gateArgs) Kind() string { return "gate" }

// InsertOpts: what ends the tries is queued again, as if its judge were gone.
func (gateArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: gateQueue, MaxAttempts: 25}
}

type gateWorker struct {
	river.WorkerDefaults[gateArgs]
	jobs *Jobs
}

func (w *gateWorker) Timeout(*river.Job[gateArgs]) time.Duration { return gateTimeout }

// NextRetry is soon: somebody waits.
func (w *gateWorker) NextRetry(job *river.Job[gateArgs]) time.Time { return soon(job.Attempt) }

func soon(attempt int) time.Time {
	return time.Now().Add(min(time.Duration(attempt)*time.Second, time.Minute))
}

func (w *gateWorker) Work(ctx context.Context, job *river.Job[gateArgs]) error {
	return w.jobs.Config.Judge.Judge(ctx, job.Args.Gate)
}

type countArgs struct{}

func (countArgs) Kind() string { return "count" }

func (countArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: countQueue, MaxAttempts: 1}
}

type countWorker struct {
	river.WorkerDefaults[countArgs]
	jobs *Jobs
}

func (w *countWorker) Timeout(*river.Job[countArgs]) time.Duration { return countTimeout }

// Work counts batches. Before, it looks for what a killed server worked on: River itself
// would wait for its job as long as it might have run.
func (w *countWorker) Work(ctx context.Context, _ *river.Job[countArgs]) error {
	j := w.jobs
	gates, gatesErr := j.Ledger.RequeueGates(ctx, abandoned)
	parts, partsErr := j.Ledger.RequeueParts(ctx, abandoned)
	plans, plansErr := j.Ledger.RequeuePlans(ctx, abandoned)
	if gates+parts+plans > 0 {
		j.Logger.InfoContext(ctx, "what nobody works on any more is queued again", "gates", gates, "parts", parts, "plans", plans)
	}
	return errors.Join(gatesErr, partsErr, plansErr, j.Ledger.CountBatches(ctx))
}

type notifyArgs struct {
	Gate uuid.UUID `json:"gate"`
}

func (notifyArgs) Kind() string { return "notify" }

func (notifyArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: notifyQueue, MaxAttempts: 15}
}

type notifyWorker struct {
	river.WorkerDefaults[notifyArgs]
	jobs *Jobs
}

func (w *notifyWorker) Timeout(*river.Job[notifyArgs]) time.Duration { return notifyTimeout }

func (w *notifyWorker) NextRetry(job *river.Job[notifyArgs]) time.Time {
	if w.jobs.NotifyPause == nil {
		return time.Time{} // as River thinks best
	}
	return time.Now().Add(w.jobs.NotifyPause(job.Attempt))
}

// Work sends a notification. A crash after that sends it again, with the same id.
func (w *notifyWorker) Work(ctx context.Context, job *river.Job[notifyArgs]) error {
	gate, batch, err := w.jobs.Ledger.JudgedGate(ctx, job.Args.Gate)
	if err == nil {
		err = w.jobs.Notifier.Send(ctx, gate, batch)
	}
	switch {
	case err == nil:
		return w.jobs.Ledger.Notified(ctx, gate.ID)
	case errors.Is(err, errRefused), catalog.IsCode(err, catalog.CodeNotFound), catalog.IsCode(err, catalog.CodeUnknownBatch):
		w.jobs.Logger.ErrorContext(ctx, "notification given up", "gate", job.Args.Gate, "batch", batch.Name, "error", err)
		return river.JobCancel(err)
	}
	return fmt.Errorf("tell of gate %s of batch %s: %w", gate.ID, batch.Name, err)
}

// failures logs each failure of a job once. River does not tell of those that were given
// up, nor of those that were cut off when a server stopped.
type failures struct{ log *slog.Logger }

func (f *failures) HandleError(ctx context.Context, job *rivertype.JobRow, err error) *river.ErrorHandlerResult {
	level, what := slog.LevelWarn, "job failed and is run again"
	if job.Attempt >= job.MaxAttempts && job.MaxAttempts > 1 { // what has one try comes by the clock
		level, what = slog.LevelError, "job given up after its last try"
	}
	f.log.Log(ctx, level, what, "job", job.Kind, "args", string(job.EncodedArgs), "tries", job.Attempt, "error", err)
	return nil
}

func (f *failures) HandlePanic(ctx context.Context, job *rivertype.JobRow, value any, trace string) *river.ErrorHandlerResult {
	f.log.ErrorContext(ctx, "job panicked", "job", job.Kind, "args", string(job.EncodedArgs), "panic", value, "stack", trace)
	return nil
}

// quiet keeps what River tells of its ordinary work out of the log.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.Handler.Enabled(ctx, level)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
