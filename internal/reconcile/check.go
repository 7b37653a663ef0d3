package reconcile

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

const (
	// looking bounds the objects that one part of a run looks at together.
	looking = 16
	// Candidates are confirmed so many at a time, several times at once: those that
	// are missing wait together until they are looked for again.
	chunk      = 512
	lostChunk  = 4096
	confirming = 4
)

// check is the joiner of a run: it counts what agrees, and confirms what does not.
type check struct {
	run     catalog.Run
	store   storage.Store
	ledger  Ledger
	ctx     context.Context
	group   *errgroup.Group
	orphans []catalog.Object
	lost    []Row
	differ  []pair

	mu      sync.Mutex
	figures catalog.RunFigures
	at      string // about how far the join is
	seen    int    // since at was set
}

type pair struct {
	row    Row
	object catalog.Object
}

func newCheck(ctx context.Context, run catalog.Run, store storage.Store, ledger Ledger) *check {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(confirming)
	return &check{run: run, store: store, ledger: ledger, ctx: ctx, group: group}
}

// count changes figures.
func (c *check) count(change func(*catalog.RunFigures)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.figures)
}

// sum is what was counted so far, and how far the join is.
func (c *check) sum() (at string, figures catalog.RunFigures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at, c.figures
}

// total is the sum at the end: what was not confirmed by then is not known.
func (c *check) total() catalog.RunFigures {
	_, f := c.sum()
	f.Unknown = f.Objects - f.Matched - f.Mismatched - f.Orphans - f.Young - f.InFlight
	f.RowsUnknown = f.Rows - f.Matched - f.Mismatched - f.Lost - f.RowsInFlight
	return f
}

func (c *check) both(row Row, object catalog.Object) error {
	same := sameObject(row, object)
	c.mu.Lock()
	c.figures.Rows++
	c.figures.Objects++
	c.figures.ObjectBytes += object.SizeBytes
	if same {
		c.figures.Matched++
	}
	c.mu.Unlock()
	if !same {
		if c.differ = append(c.differ, pair{row, object}); len(c.differ) == chunk {
			c.flushDiffer()
		}
	}
	return c.tick(row.ObjectKey)
}

func (c *check) onlyRow(row Row) error {
	c.count(func(f *catalog.RunFigures) { f.Rows++ })
	if c.lost = append(c.lost, row); len(c.lost) == lostChunk {
		c.flushLost()
	}
	return c.tick(row.ObjectKey)
}

func (c *check) onlyObject(object catalog.Object) error {
	c.count(func(f *catalog.RunFigures) { f.Objects++; f.ObjectBytes += object.SizeBytes })
	if c.orphans = append(c.orphans, object); len(c.orphans) == chunk {
		c.flushOrphans()
	}
	return c.tick(object.Key)
}

// every is how many keys there are between two looks whether to go on.
const every = 1000

func (c *check) tick(key string) error {
	if c.seen++; c.seen < every {
		return nil
	}
	c.seen = 0
	c.mu.Lock()
	c.at = key
	c.mu.Unlock()
	return context.Cause(c.ctx)
}

// finish confirms what is left, and waits for all confirmations.
func (c *check) finish() error {
	c.flushDiffer()
	c.flushLost()
	c.flushOrphans()
	return c.group.Wait()
}

func (c *check) flushOrphans() {
	if objects := c.orphans; len(objects) > 0 {
		c.orphans = nil
		c.group.Go(func() error { return c.confirmOrphans(c.ctx, objects) })
	}
}

func (c *check) flushLost() {
	if rows := c.lost; len(rows) > 0 {
		c.lost = nil
		c.group.Go(func() error { return c.confirmLost(c.ctx, rows) })
	}
}

func (c *check) flushDiffer() {
	if pairs := c.differ; len(pairs) > 0 {
		c.differ = nil
		c.group.Go(func() error { return c.confirmDiffer(c.ctx, pairs) })
	}
}

// sameObject tells whether an object is that of a row, as far as a listing says: some
// name no ETag.
func sameObject(row Row, object catalog.Object) bool { return difference(row, object) == "" }

// difference is what differs: "", size or etag.
func difference(row Row, object catalog.Object) string {
	switch {
	case row.SizeBytes != object.SizeBytes:
		return "size"
	case row.ETag != "" && object.ETag != "" && row.ETag != object.ETag:
		return "etag"
	}
	return ""
}

// confirmOrphans: the objects were seen first, then what may name them is read, in one
// snapshot. An object of ours is covered by its intent before it is there, and by its row
// from the transaction on that ends the intent. What is not covered is looked at again: a
// removal that was confirmed meanwhile covers it no more, and has removed it.
func (c *check) confirmOrphans(ctx context.Context, objects []catalog.Object) error {
	keys := make([]string, len(objects))
	for i, o := range objects {
		keys[i] = o.Key
	}
	keys = catalog.EscapeKeys(keys)
	covers, err := c.ledger.Cover(ctx, c.run.StoreID, keys)
	if err != nil {
		return err
	}
	uncovered := objects[:0]
	for i, o := range objects {
		if !covers[keys[i]].Named {
			uncovered = append(uncovered, o)
		}
	}
	covered := int64(len(keys) - len(uncovered))
	looks, err := c.look(ctx, len(uncovered), func(i int) string { return uncovered[i].Key })
	if err != nil {
		return err
	}
	// What lies in another store's place says nothing of this one.
	if err := sentinel(ctx, c.store); err != nil {
		return err
	}
	var found []Found
	var unsure []string
	for i, o := range uncovered {
		key := catalog.EscapeKey(o.Key)
		switch l := looks[i]; {
		case l.missing:
			covered++
		case l.err != nil:
			unsure = append(unsure, key)
		default:
			attempt := covers[key].Attempt
			found = append(found, Found{Kind: catalog.FindingOrphan, ObjectKey: key, AttemptID: attempt, SizeBytes: l.object.SizeBytes, Foreign: attempt == nil})
		}
	}
	states, err := c.record(ctx, found, unsure)
	if err != nil {
		return err
	}
	c.count(func(f *catalog.RunFigures) {
		f.InFlight += covered
		for _, state := range states {
			if state == catalog.FindingYoung {
				f.Young++
			} else {
				f.Orphans++
			}
		}
	})
	return nil
}

// confirmLost: the rows were read first. An object that is missing is looked for again once
// the store's consistency window is over; each time the sentinel must read after that, or
// nothing is said. Then its row must still be the very one.
func (c *check) confirmLost(ctx context.Context, rows []Row) error {
	var unsure []string
	late := 0
	for again := range 2 {
		looks, err := c.look(ctx, len(rows), func(i int) string { return rows[i].ObjectKey })
		if err != nil {
			return err
		}
		looked := time.Now()
		missing := rows[:0]
		for i, row := range rows {
			switch l := looks[i]; {
			case l.missing:
				missing = append(missing, row)
			case l.err != nil:
				unsure = append(unsure, row.ObjectKey)
			default: // written while the listing was read; what differs is seen by the next run
				late++
			}
		}
		if rows = missing; len(rows) == 0 {
			break
		}
		if err := sentinel(ctx, c.store); err != nil {
			return err
		}
		if again == 0 {
			if err := sleep(ctx, time.Until(looked.Add(c.run.Settle))); err != nil {
				return err
			}
		}
	}
	still, err := c.still(ctx, rows)
	if err != nil {
		return err
	}
	var found []Found
	for _, row := range rows {
		if _, ok := still[row.ObjectKey]; !ok {
			late++
			continue
		}
		found = append(found, lostOutput(catalog.FindingLost, row, "", row.SizeBytes))
	}
	if _, err := c.record(ctx, found, unsure); err != nil {
		return err
	}
	c.count(func(f *catalog.RunFigures) {
		f.Lost += int64(len(found))
		f.RowsInFlight += int64(late)
	})
	return nil
}

func lostOutput(kind catalog.FindingKind, row Row, reason string, size int64) Found {
	return Found{
		Kind: kind, ObjectKey: row.ObjectKey, UnitKey: &row.UnitKey, AttemptID: &row.AttemptID, Reason: reason,
		SizeBytes: size, ExpectedBytes: &row.SizeBytes,
	}
}

// confirmDiffer: the object is looked at itself, and its row must still be the very one.
func (c *check) confirmDiffer(ctx context.Context, pairs []pair) error {
	looks, err := c.look(ctx, len(pairs), func(i int) string { return pairs[i].row.ObjectKey })
	if err != nil {
		return err
	}
	if err := sentinel(ctx, c.store); err != nil {
		return err
	}
	rows := make([]Row, len(pairs))
	for i, p := range pairs {
		rows[i] = p.row
	}
	still, err := c.still(ctx, rows)
	if err != nil {
		return err
	}
	var found []Found
	var unsure []string
	var f catalog.RunFigures
	for i, row := range rows {
		_, same := still[row.ObjectKey]
		switch l := looks[i]; {
		case l.missing, l.err == nil && !same:
			f.InFlight++
			f.RowsInFlight++
		case l.err != nil:
			unsure = append(unsure, row.ObjectKey)
		case sameObject(row, l.object):
			f.Matched++
		default:
			found = append(found, lostOutput(catalog.FindingMismatch, row, difference(row, l.object), l.object.SizeBytes))
			f.Mismatched++
		}
	}
	if _, err := c.record(ctx, found, unsure); err != nil {
		return err
	}
	c.count(func(sum *catalog.RunFigures) { sum.Add(f) })
	return nil
}

// recheck looks again at what earlier runs found and this one did not: a listing that
// somebody else made may be older than they. What is as it was stays.
func (c *check) recheck(ctx context.Context) error {
	q := catalog.FindingQuery{StoreID: c.run.StoreID, Prefix: c.run.Prefix, Limit: chunk}
	for {
		page, err := c.ledger.Findings(ctx, q)
		if err != nil || len(page) == 0 {
			return err
		}
		q.After = page[len(page)-1].ID
		var before []catalog.Finding
		var rows []Row
		for _, f := range page {
			switch {
			case f.LastRun >= c.run.ID:
			case f.Kind == catalog.FindingOrphan:
				before = append(before, f)
			case f.UnitKey != nil && f.AttemptID != nil:
				before = append(before, f)
				rows = append(rows, Row{ObjectKey: f.ObjectKey, UnitKey: *f.UnitKey, AttemptID: *f.AttemptID})
			}
		}
		if err := c.recheckPage(ctx, before, rows); err != nil {
			return err
		}
	}
}

func (c *check) recheckPage(ctx context.Context, before []catalog.Finding, rows []Row) error {
	keys := make([]string, len(before))
	for i, f := range before {
		keys[i] = f.ObjectKey
	}
	covers, err := c.ledger.Cover(ctx, c.run.StoreID, keys)
	if err != nil {
		return err
	}
	still, err := c.still(ctx, rows)
	if err != nil {
		return err
	}
	looks, err := c.look(ctx, len(before), func(i int) string { return catalog.UnescapeKey(keys[i]) })
	if err != nil {
		return err
	}
	var same []string
	for i, f := range before {
		_, row := still[f.ObjectKey]
		l := looks[i]
		there := l.err == nil
		over := false
		switch f.Kind {
		case catalog.FindingOrphan:
			over = l.missing || covers[f.ObjectKey].Named
		case catalog.FindingLost:
			over = there || !row
		case catalog.FindingMismatch: // a size tells, an ETag is for a listing of the store
			over = !row || there && f.Reason == "size" && f.ExpectedBytes != nil && l.object.SizeBytes == *f.ExpectedBytes
		}
		if !over {
			same = append(same, f.ObjectKey)
		}
	}
	if len(same) == 0 {
		return nil
	}
	return c.ledger.Unsure(ctx, c.run, same)
}

func (c *check) still(ctx context.Context, rows []Row) (map[string]StillRow, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	return c.ledger.RowsNow(ctx, rows)
}

func (c *check) record(ctx context.Context, found []Found, unsure []string) ([]catalog.FindingState, error) {
	if len(unsure) > 0 {
		if err := c.ledger.Unsure(ctx, c.run, unsure); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return c.ledger.Find(ctx, c.run, found)
}

// sentinel tells whether a store is the one that it was, so that absence counts.
func sentinel(ctx context.Context, store storage.Store) error {
	if err := store.Sentinel(ctx); err != nil {
		return storage.Problem("read the store's sentinel", err)
	}
	return nil
}

// looked is what a store says of one object.
type looked struct {
	object  catalog.Object
	missing bool
	err     error // any other answer
}

// look looks at n objects. An error is ctx's.
func (c *check) look(ctx context.Context, n int, key func(int) string) ([]looked, error) {
	out := make([]looked, n)
	var group errgroup.Group
	group.SetLimit(looking)
	for i := range n {
		group.Go(func() error {
			object, err := c.store.Stat(ctx, key(i))
			out[i] = looked{object: object, missing: missing(err), err: err}
			return nil
		})
	}
	_ = group.Wait()
	return out, ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
