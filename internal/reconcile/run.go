package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Start asks for a run, and waits for it so long at most. It gives the run as it stands
// then. CodeUnknownStore, CodeRunUnderWay, CodeStoreUnavailable.
func (r *Reconciler) Start(ctx context.Context, req Request, who string, wait time.Duration) (catalog.Run, error) {
	run, parts, err := r.prepare(ctx, req, who)
	if err != nil {
		return run, err
	}
	until := time.Now().Add(wait)
	if run, err = r.Ledger.AskRun(ctx, run, parts); err != nil {
		return run, err
	}
	return poll(ctx, until, func() (catalog.Run, bool, error) {
		now, err := r.Ledger.Run(ctx, run.ID)
		return now, now.State != catalog.RunRunning, err
	})
}

// poll reads until what it reads is over, or the time is, and gives what it read last.
func poll[T any](ctx context.Context, until time.Time, read func() (now T, over bool, err error)) (T, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		now, over, err := read()
		left := time.Until(until)
		if err != nil || over || left <= 0 {
			return now, err
		}
		if sleep(ctx, min(pause, left)) != nil {
			return now, nil
		}
	}
}

// prepare looks whether a run can be, and divides it. A store that is away is told at
// once: it could tell nothing of what it holds.
func (r *Reconciler) prepare(ctx context.Context, req Request, who string) (run catalog.Run, parts []catalog.RunPart, err error) {
	store, err := r.Stores.Find(req.StoreID)
	if err != nil {
		return run, nil, err
	}
	if err := checkPrefix(req.Prefix); err != nil {
		return run, nil, err
	}
	run = catalog.Run{StoreID: req.StoreID, Prefix: req.Prefix, Source: catalog.RunStore, AskedBy: who, MinAge: r.MinAge, Settle: r.Settle}
	for _, given := range []struct {
		value *time.Duration
		to    *time.Duration
		field string
	}{{req.MinAge, &run.MinAge, "/min_age_seconds"}, {req.Settle, &run.Settle, "/settle_seconds"}} {
		switch {
		case given.value == nil:
		case *given.value < 0:
			return run, nil, catalog.Errorf(catalog.CodeInvalidRequest, "a time is 0 or longer").At(given.field)
		default:
			*given.to = *given.value
		}
	}
	if err := sentinel(ctx, store); err != nil {
		return run, nil, err
	}
	bounds, err := r.Ledger.Splits(ctx, req.StoreID, req.Prefix, int(r.PartRows))
	if err != nil {
		return run, nil, err
	}
	from := ""
	for _, to := range append(bounds, "") {
		parts = append(parts, catalog.RunPart{Part: len(parts), Kind: catalog.PartKeys, From: from, To: to})
		from = to
	}
	if req.Prefix == "" {
		parts = append(parts, catalog.RunPart{Part: len(parts), Kind: catalog.PartLeftovers})
	}
	return run, parts, nil
}

// checkPrefix takes what keys can begin with, outside catalogd's own trees.
func checkPrefix(prefix string) error {
	if strings.HasPrefix(prefix, "/") || strings.ContainsRune(prefix, 0) || len(prefix) > 1024 {
		return catalog.Errorf(catalog.CodeInvalidRequest, "a prefix is what object keys begin with, as landcover/ or landcover/33U").At("/prefix")
	}
	for segment := range strings.SplitSeq(prefix, "/") {
		if segment == "." || segment == ".." {
			return catalog.Errorf(catalog.CodeInvalidRequest, "a prefix has no . or .. between slashes").At("/prefix")
		}
	}
	for _, own := range []string{storage.StagingPrefix, storage.TrashPrefix, storage.CurrentPrefix, ".catalogd/"} {
		if strings.HasPrefix(prefix, own) {
			return catalog.Errorf(catalog.CodeInvalidRequest, "%s is catalogd's own, and holds no outputs: leave the prefix out", own).At("/prefix")
		}
	}
	return nil
}

// Listing runs a comparison with a listing that somebody else made, in byte order of the
// key, to its end, in this process. An error of the listing makes the run incomplete.
// Objects that the listing does not have are looked for in the store, and those that no
// row names are looked at there, before anything is said of them: it may be old.
func (r *Reconciler) Listing(ctx context.Context, req Request, who string, objects iter.Seq2[catalog.Object, error]) (catalog.Run, error) {
	run, _, err := r.prepare(ctx, req, who)
	if err != nil {
		return run, err
	}
	run.Source = catalog.RunListing
	if run, err = r.Ledger.AskRun(ctx, run, []catalog.RunPart{{Kind: catalog.PartKeys}}); err != nil {
		return run, err
	}
	work, err := r.Ledger.TakePart(ctx, run.ID, 0)
	if err == nil && work == nil {
		err = catalog.Errorf(catalog.CodeRunUnderWay, "run %d was taken from this server: look at it with catalogd reconcile show %d", run.ID, run.ID)
	}
	if err != nil {
		return run, err
	}
	defer work.Close()
	inPrefix := func(yield func(catalog.Object, error) bool) {
		for o, err := range objects {
			if (err != nil || strings.HasPrefix(o.Key, req.Prefix)) && !yield(o, err) {
				return
			}
		}
	}
	err = r.work(ctx, work, func(storage.Store, storage.Range) iter.Seq2[catalog.Object, error] { return inPrefix })
	if err != nil {
		return run, err
	}
	return r.Ledger.Run(context.WithoutCancel(ctx), run.ID)
}

// DoPart works on a part of a run: what a job does. It is safe to repeat: a crash here
// leaves a part that is done anew. An error says that nothing was concluded, and that it
// is to be tried again.
func (r *Reconciler) DoPart(ctx context.Context, run int64, part int) error {
	work, err := r.Ledger.TakePart(ctx, run, part)
	if err != nil || work == nil {
		return err
	}
	defer work.Close()
	return r.work(ctx, work, func(store storage.Store, within storage.Range) iter.Seq2[catalog.Object, error] {
		return store.List(ctx, within)
	})
}

// listing gives the objects in a range.
type listing func(storage.Store, storage.Range) iter.Seq2[catalog.Object, error]

// errStopped: somebody canceled the run.
var errStopped = errors.New("canceled")

func stop(asked bool, err error) error {
	if asked && err == nil {
		err = errStopped
	}
	return err
}

func (r *Reconciler) work(ctx context.Context, work Work, list listing) error {
	var figures catalog.RunFigures
	store, err := r.Stores.Find(work.Run().StoreID)
	if err == nil {
		err = stop(work.Progress(ctx, "", figures))
	}
	if err == nil {
		switch work.Part().Kind {
		case catalog.PartLeftovers:
			figures, err = r.leftovers(ctx, work)
		default:
			figures, err = r.compare(ctx, work, store, list)
		}
	}
	// What was not seen counts only if the store is still the one that it was.
	if err == nil {
		err = sentinel(ctx, store)
	}
	code, message := catalog.Code(""), ""
	switch {
	case err == nil:
	case errors.Is(err, errStopped):
		message = "canceled"
	case stopping(err):
		return err
	case ctx.Err() != nil && work.Run().Source == catalog.RunStore:
		return ctx.Err() // this server stops: another goes on
	default:
		code, message = catalog.CodeOf(err), words(err)
		r.Logger.WarnContext(ctx, "a reconciliation is incomplete", "run", work.Run().ID, "part", work.Part().Part, "error", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return work.End(ctx, figures, code, message)
}

// words are what a client may see of an error.
func words(err error) string {
	var known *catalog.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return "the server's log says why"
}

// compare joins the rows and objects in the range of a part.
func (r *Reconciler) compare(ctx context.Context, work Work, store storage.Store, list listing) (catalog.RunFigures, error) {
	run, part := work.Run(), work.Part()
	if err := sentinel(ctx, store); err != nil {
		return catalog.RunFigures{}, err
	}
	within := storage.Range{Prefix: run.Prefix, From: part.From, To: part.To}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := newCheck(ctx, run, store, r.Ledger)
	defer tell(ctx, cancel, work, c)()
	joined := join(ctx, r.Ledger.Rows(ctx, run.StoreID, within), list(store, within), c)
	if joined != nil {
		if known := (*catalog.Error)(nil); !errors.As(joined, &known) {
			joined = catalog.Errorf(listingCode(joined), "the listing could not be read to its end: %s", listingRemedy(joined)).Because(joined)
		}
	}
	// What was found up to there was found.
	err := c.finish()
	if cause := context.Cause(ctx); cause != nil {
		return c.total(), cause
	}
	if err == nil && joined == nil && run.Source == catalog.RunListing {
		err = c.recheck(ctx)
	}
	if joined != nil {
		err = joined
	}
	return c.total(), err
}

// progressEvery is how often a part tells how far it is, and asks whether to stop.
const progressEvery = time.Second

// tell tells how far a part is, until it is called off, and cancels it where somebody asked
// for that.
func tell(ctx context.Context, cancel context.CancelCauseFunc, work Work, c *check) (off func()) {
	over, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			at, figures := c.sum()
			if err := stop(work.Progress(ctx, at, figures)); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return func() {
		close(over)
		<-told
	}
}

func listingCode(err error) catalog.Code {
	if errors.Is(err, storage.ErrPermission) && !errors.Is(err, storage.ErrSettings) {
		return catalog.CodeStoreForbidden
	}
	return catalog.CodeStoreUnavailable
}

// listingRemedy: what the store says of itself is for the operator who asks.
func listingRemedy(err error) string {
	return fmt.Sprintf("%v; mend that, and reconcile again", err)
}

// leftovers looks at what is staged, and puts stable names right.
func (r *Reconciler) leftovers(ctx context.Context, work Work) (f catalog.RunFigures, err error) {
	run := work.Run()
	var found []Found
	flush := func() error {
		if len(found) == 0 {
			return nil
		}
		_, err := r.Ledger.Find(ctx, run, found)
		found = nil
		return err
	}
	told := time.Now()
	for l, err := range r.Step.Leftovers(ctx, run.StoreID) {
		if err != nil {
			return f, err
		}
		kind, key := catalog.FindingStaging, catalog.EscapeKey(l.Object.Key)
		if l.Upload {
			f.Uploads++
			kind, key = catalog.FindingUpload, key+"?uploadId="+l.UploadID
		} else {
			f.Staged++
		}
		if l.Useless {
			found = append(found, Found{Kind: kind, ObjectKey: key, SizeBytes: l.Object.SizeBytes})
		}
		if len(found) == chunk {
			if err := flush(); err != nil {
				return f, err
			}
		}
		if time.Since(told) > progressEvery {
			told = time.Now()
			if err := stop(work.Progress(ctx, l.Object.Key, f)); err != nil {
				return f, err
			}
		}
	}
	if err := flush(); err != nil {
		return f, err
	}
	relinked, err := r.Step.Relink(ctx, run.StoreID)
	f.Relinked = int64(relinked)
	return f, err
}

// Run reads one. CodeUnknownRun.
func (r *Reconciler) Run(ctx context.Context, id int64) (catalog.Run, error) {
	return r.Ledger.Run(ctx, id)
}

// Runs lists the latest, of one store or, with "", all.
func (r *Reconciler) Runs(ctx context.Context, storeID string, limit int) ([]catalog.Run, error) {
	return r.Ledger.Runs(ctx, storeID, limit)
}

// Cancel has a running run stop: what it has found stays, nothing is resolved.
// CodeUnknownRun.
func (r *Reconciler) Cancel(ctx context.Context, id int64, who string) (catalog.Run, error) {
	if err := r.Ledger.Cancel(ctx, id, who); err != nil {
		return catalog.Run{}, err
	}
	return r.Ledger.Run(ctx, id)
}

// Findings lists findings, by id.
func (r *Reconciler) Findings(ctx context.Context, q catalog.FindingQuery) ([]catalog.Finding, error) {
	return r.Ledger.Findings(ctx, q)
}
