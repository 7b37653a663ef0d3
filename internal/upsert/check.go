package upsert

import (
	"context"
	"runtime"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
)

// verifying bounds the objects that one check looks at together.
const verifying = 16

// parse fills in the key that a reference stands for. An identity and a key, if
// both are given, must agree.
func (r UnitRef) parse() (UnitRef, error) {
	if len(r.Identity) == 0 {
		if r.Key == uuid.Nil {
			return r, catalog.Errorf(catalog.CodeInvalidRequest, "name the unit: send unit_key, or collection, tile_id and identity")
		}
		return r, nil
	}
	unit, err := catalog.NewUnit(r.Collection, r.TileID, r.Identity, r.ClientKey)
	if err != nil {
		return r, err
	}
	if r.Key != uuid.Nil && r.Key != unit.Key {
		return r, catalog.Errorf(catalog.CodeKeyCollision, "unit_key %s is not the key of this identity, which is %s: send one of them", r.Key, unit.Key).At("/unit_key")
	}
	r.Key = unit.Key
	return r, nil
}

// Check answers for many units, in order; a bad reference costs its own answer
// only. With verify it also looks at each done unit's object; absence counts only
// while the store's sentinel reads. It never writes: not even a version's rank.
func (s *Step) Check(ctx context.Context, refs []UnitRef, verify bool) ([]Checked, error) {
	out := make([]Checked, len(refs))
	parsed := parseAll(refs, out)
	good := make([]UnitRef, 0, len(refs))
	at := make([]int, 0, len(refs))
	for i, ref := range parsed {
		if out[i].Err == nil {
			good, at = append(good, ref), append(at, i)
		}
	}
	known, err := s.Ledger.Check(ctx, good)
	if err != nil {
		return nil, err
	}
	if verify {
		s.verify(ctx, known)
	}
	for i, k := range known {
		if k.NoCollection { // mistyped, it would make everything due
			k.err = unknownCollection(good[i].Collection)
		}
		if k.err != nil {
			out[at[i]].Err = k.err
			continue
		}
		out[at[i]] = Checked{
			UnitKey: good[i].Key, Status: k.status(), Due: k.due(), Current: k.Current, ObjectKey: k.ObjectKey,
		}
	}
	return out, nil
}

// parseAll parses many on all processors: a key takes longer to derive than its unit
// to look up.
func parseAll(refs []UnitRef, out []Checked) []UnitRef {
	const least = 64
	parsed := make([]UnitRef, len(refs))
	size := max(least, (len(refs)+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for from := 0; from < len(refs); from += size {
		group.Go(func() {
			for i := from; i < min(from+size, len(refs)); i++ {
				ref, err := refs[i].parse()
				parsed[i], out[i] = ref, Checked{UnitKey: ref.Key, Err: err}
			}
		})
	}
	group.Wait()
	return parsed
}

// due: what failed may have to wait; what is lost and superseded is a finding, and
// nobody's work; what is lost and waits for its batch is due.
func (k Known) due() bool {
	if k.Waiting {
		return false
	}
	switch k.status() {
	case StatusNew, StatusStale:
		return true
	case StatusLost:
		return k.Current || !k.Pointed || k.Unpublished
	}
	return false
}

// verify looks at the objects of done units. What cannot be told of one is told
// so of that one.
func (s *Step) verify(ctx context.Context, known []Known) {
	var group errgroup.Group
	group.SetLimit(verifying)
	for i := range known {
		k := &known[i]
		if k.status() != StatusDone {
			continue
		}
		group.Go(func() error {
			var there bool
			there, k.err = s.there(ctx, k.StoreID, k.ObjectKey, k.SizeBytes, k.ETag)
			k.Lost = k.err == nil && !there
			return nil
		})
	}
	_ = group.Wait()
}

func (k Known) status() Status {
	switch {
	case k.Withdrawn:
		return StatusQuarantined
	case k.Running:
		return StatusRunning
	case k.ObjectKey != "" && !k.Lost:
		return StatusDone
	case k.Quarantined:
		return StatusQuarantined
	case k.ObjectKey != "":
		return StatusLost
	case k.Pointed:
		return StatusStale
	default:
		return StatusNew
	}
}
