package batch

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

const (
	// looking bounds the objects that one gate looks at together.
	looking = 16
	// chunk is how many outputs are confirmed together.
	chunk = 256
	// confirmations of one output: each time its row had been replaced meanwhile.
	confirmations = 10
)

// seen is how a batch stands by what was seen in its stores.
type seen struct {
	// counts are the survey's, but for what was found not to be there.
	counts catalog.BatchCounts
	// lookedAt outputs; outputs of them, which are distinct, are there.
	lookedAt, outputs int64
	// lost has offenders whose output is not there, gone those whose units are not done
	// any more since they were counted; MaxOffenders each, at most.
	lost, gone []catalog.Offender
	// undone counts the units of both.
	undone int64
}

// disagrees tells whether units that are done differ in number from outputs that are there.
func (s *seen) disagrees(by catalog.GateStorage) bool {
	switch by {
	case catalog.GateList:
		return s.counts.Done != s.outputs
	case catalog.GateSample:
		return s.lookedAt-s.undone != s.outputs
	}
	return false
}

// look compares what the rows say is there with what is. Any answer of a store but
// "there" and "not there" is an error.
func (j *Judge) look(ctx context.Context, gate catalog.Gate, batch catalog.Batch, survey Survey) (s seen, err error) {
	s.counts = survey.Counts
	if gate.Storage == catalog.GateNone {
		return s, nil
	}
	var listed listing
	defer listed.close()
	var last Output
	var doubtful []Output
	for o, err := range survey.Outputs {
		if err != nil {
			return s, err
		}
		s.lookedAt++
		there := false
		if gate.Storage == catalog.GateList {
			if there, err = j.listed(ctx, &listed, batch.Collection, o); err != nil {
				return s, err
			}
		}
		switch {
		case there && (o.StoreID != last.StoreID || o.ObjectKey != last.ObjectKey):
			s.outputs++
		case !there:
			doubtful = append(doubtful, o)
		}
		last = o
		if len(doubtful) == chunk {
			if err := j.confirm(ctx, batch, &s, doubtful); err != nil {
				return s, err
			}
			doubtful = doubtful[:0]
		}
	}
	err = j.confirm(ctx, batch, &s, doubtful)
	return s, err
}

// listed tells whether an output is in its store's listing, which goes on from the
// output before.
func (j *Judge) listed(ctx context.Context, in *listing, collection string, o Output) (bool, error) {
	if in.store != o.StoreID || in.next == nil {
		store, err := j.Stores.Find(o.StoreID)
		if err != nil {
			return false, err
		}
		// What lies in another store's place, a copy say, says nothing of this one.
		if err := store.Sentinel(ctx); err != nil {
			return false, storage.Problem("read the store's sentinel", err)
		}
		in.open(o.StoreID, store.List(ctx, storage.Under(collection+"/")))
	}
	object, there, err := in.find(o.ObjectKey)
	if err != nil {
		return false, storage.Problem("list "+collection+"/", err)
	}
	return there && object.SizeBytes == o.SizeBytes, nil
}

// listing is a store's, as far as it has been read.
type listing struct {
	store string
	next  func() (catalog.Object, error, bool)
	stop  func()
	at    catalog.Object // the last that was read
	over  bool
}

func (l *listing) open(store string, objects iter.Seq2[catalog.Object, error]) {
	l.close()
	next, stop := iter.Pull2(objects)
	*l = listing{store: store, next: next, stop: stop}
}

func (l *listing) close() {
	if l.stop != nil {
		l.stop()
	}
}

// find reads on to a key. Keys must be asked for in byte order.
func (l *listing) find(key string) (object catalog.Object, there bool, err error) {
	for !l.over && l.at.Key < key {
		object, err, more := l.next()
		switch {
		case !more:
			l.over = true
		case err != nil:
			return object, false, err
		case object.Key <= l.at.Key:
			return object, false, fmt.Errorf("%q comes after %q: the store does not list in byte order", object.Key, l.at.Key)
		default:
			l.at = object
		}
	}
	return l.at, !l.over && l.at.Key == key, nil
}

// confirm looks at outputs one by one. One that is not there is lost only if its store's
// sentinel reads after that, and its row is still the very one.
func (j *Judge) confirm(ctx context.Context, batch catalog.Batch, s *seen, outputs []Output) error {
	for range confirmations {
		if len(outputs) == 0 {
			return nil
		}
		wrong, err := j.wrong(ctx, outputs)
		if err != nil {
			return err
		}
		s.outputs += int64(len(outputs) - len(wrong))
		if outputs, err = j.settle(ctx, batch, s, wrong); err != nil {
			return err
		}
	}
	return catalog.Errorf(catalog.CodeBusy, "outputs of the batch were replaced faster than they could be looked at: judge it again when nobody works on it")
}

// doubt is an output that is not there, or is not what its row says.
type doubt struct {
	Output
	reason string
}

const (
	objectMissing = "object_missing"
	sizeDiffers   = "size_mismatch"
)

// wrong gives those of outputs that are not there as their rows say, in stores that are.
func (j *Judge) wrong(ctx context.Context, outputs []Output) ([]doubt, error) {
	found := make([]string, len(outputs))
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(looking)
	for i, o := range outputs {
		group.Go(func() error {
			store, err := j.Stores.Find(o.StoreID)
			if err != nil {
				return err
			}
			object, err := store.Stat(within, o.ObjectKey)
			switch {
			// What is no regular file any more is no output either.
			case errors.Is(err, storage.ErrNotExist), errors.Is(err, storage.ErrNotRegular):
				found[i] = objectMissing
			case err != nil:
				return storage.Problem("look at "+o.ObjectKey, err)
			case object.SizeBytes != o.SizeBytes:
				found[i] = sizeDiffers
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var wrong []doubt
	asked := map[string]bool{}
	for i, o := range outputs {
		if found[i] == "" {
			continue
		}
		wrong = append(wrong, doubt{o, found[i]})
		if asked[o.StoreID] {
			continue
		}
		asked[o.StoreID] = true
		store, err := j.Stores.Find(o.StoreID)
		if err != nil {
			return nil, err
		}
		if err := store.Sentinel(ctx); err != nil {
			return nil, storage.Problem("see whether the store is there", err)
		}
	}
	return wrong, nil
}

// settle counts outputs that are not there by how their units stand now, and gives those
// that their units have instead by now.
func (j *Judge) settle(ctx context.Context, batch catalog.Batch, s *seen, wrong []doubt) (instead []Output, err error) {
	if len(wrong) == 0 {
		return nil, nil
	}
	units := make([]uuid.UUID, len(wrong))
	reasons := map[uuid.UUID]doubt{}
	for i, d := range wrong {
		units[i], reasons[d.UnitKey] = d.UnitKey, d
	}
	standings, err := j.Ledger.Standings(ctx, batch.ID, units)
	if err != nil {
		return nil, err
	}
	for _, now := range standings {
		before := reasons[now.UnitKey]
		offender := catalog.Offender{UnitKey: now.UnitKey, TileID: now.TileID, Status: now.Status, Reason: now.Reason}
		switch {
		case now.Status == catalog.UnitDone && now.AttemptID != before.AttemptID:
			instead = append(instead, now.Output)
			continue
		case now.Status == catalog.UnitDone:
			offender.Status, offender.Reason = catalog.UnitLost, before.reason
		}
		s.undone++
		s.counts.Done--
		*count(&s.counts, offender.Status)++
		into := &s.gone
		if offender.Status == catalog.UnitLost {
			into = &s.lost
		}
		if len(*into) < MaxOffenders {
			*into = append(*into, offender)
		}
	}
	return instead, nil
}

// count is that of units which stand so.
func count(c *catalog.BatchCounts, status catalog.UnitStatus) *int64 {
	switch status {
	case catalog.UnitDone:
		return &c.Done
	case catalog.UnitRunning:
		return &c.Running
	case catalog.UnitRetrying:
		return &c.Retrying
	case catalog.UnitQuarantined:
		return &c.Quarantined
	case catalog.UnitLost:
		return &c.Lost
	default:
		return &c.Pending
	}
}
