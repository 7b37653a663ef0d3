package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

const (
	// scrubbing bounds the outputs that a scrub reads together.
	scrubbing = 4
	// scrubPage is how many outputs there are between two commits of a scrub's place.
	scrubPage = 64
)

// Scrubbed tells what a scrub read.
type Scrubbed struct {
	Outputs, Bad int
	Bytes        int64
	// Unread were missing or could not be read: reconcile tells of those.
	Unread int
	// Lapped: the round ended.
	Lapped bool
}

// Scrub reads checksums again of this share of a store's outputs, those first that were
// not read for the longest time. It goes on where the last one ended, also after a crash.
func (r *Reconciler) Scrub(ctx context.Context, storeID string, fraction float64) (sum Scrubbed, err error) {
	if !(fraction > 0 && fraction <= 1) {
		return sum, catalog.Errorf(catalog.CodeInvalidRequest, "fraction is above 0, and 1 at most").At("/fraction")
	}
	store, err := r.there(ctx, storeID)
	if err != nil {
		return sum, err
	}
	at, outputs, err := r.Ledger.ScrubFrom(ctx, storeID)
	if err != nil {
		return sum, err
	}
	if outputs == 0 { // that a scrub ran is known of an empty store, too
		return sum, r.Ledger.Scrubbed(ctx, storeID, "", nil, 0, 0, true)
	}
	for left := int(math.Ceil(fraction * float64(outputs))); left > 0; {
		limit := min(left, scrubPage)
		// One more tells whether there is one.
		rows, err := r.Ledger.ScrubRows(ctx, storeID, at, limit+1)
		if err != nil {
			return sum, err
		}
		lapped := len(rows) <= limit
		rows = rows[:min(limit, len(rows))]
		if len(rows) == 0 && at == "" {
			return sum, nil // all of them are gone
		}
		page, err := r.read(ctx, store, rows)
		if err != nil {
			return sum, err
		}
		if at = ""; !lapped {
			at = rows[len(rows)-1].ObjectKey
		}
		bad, err := r.Ledger.FindBad(ctx, storeID, page.bad)
		if err != nil {
			return sum, err
		}
		if err := r.Ledger.Scrubbed(ctx, storeID, at, page.right, bad, page.bytes, lapped); err != nil {
			return sum, err
		}
		sum.Outputs += len(page.right) + bad
		sum.Bad += bad
		sum.Bytes += page.bytes
		sum.Unread += len(rows) - len(page.right) - len(page.bad)
		sum.Lapped = sum.Lapped || lapped
		left -= len(rows)
	}
	return sum, nil
}

// scrubbedPage is what was read of a page.
type scrubbedPage struct {
	right, bad []Row
	bytes      int64
}

// read reads outputs, those that are not right twice. What cannot be read counts only
// while the store's sentinel reads: else nothing is said of the page.
func (r *Reconciler) read(ctx context.Context, store storage.Store, rows []Row) (page scrubbedPage, err error) {
	sums, errs, read := make([]string, len(rows)), make([]error, len(rows)), make([]int64, len(rows))
	var group errgroup.Group
	group.SetLimit(scrubbing)
	for i, row := range rows {
		group.Go(func() error {
			for range 2 {
				var n int64
				sums[i], n, errs[i] = checksum(ctx, store, row.ObjectKey)
				if read[i] += n; errs[i] != nil || sums[i] == row.Checksum {
					break
				}
			}
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil {
		return page, err
	}
	for i, row := range rows {
		page.bytes += read[i]
		switch {
		case errs[i] != nil:
			r.Logger.WarnContext(ctx, "an output could not be read", "key", row.ObjectKey, "error", errs[i])
			err = errs[i]
		case sums[i] == row.Checksum:
			page.right = append(page.right, row)
		default:
			page.bad = append(page.bad, row)
		}
	}
	if err == nil {
		return page, nil
	}
	if err := store.Sentinel(ctx); err != nil {
		return page, storage.Problem("read the store's sentinel", err)
	}
	return page, nil
}

// checksum reads an object through, and tells how much that was.
func checksum(ctx context.Context, store storage.Store, key string) (sum string, n int64, err error) {
	object, _, err := store.Open(ctx, key)
	if err != nil {
		return "", 0, err
	}
	defer object.Close()
	digest := sha256.New()
	n, err = io.CopyBuffer(digest, stopped{ctx, object}, make([]byte, 256<<10))
	return "sha256:" + hex.EncodeToString(digest.Sum(nil)), n, err
}

// stopped is a reader that ends with a context.
type stopped struct {
	ctx context.Context
	io.Reader
}

func (s stopped) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

// Scrubs tells how far each store's is.
func (r *Reconciler) Scrubs(ctx context.Context) ([]catalog.Scrub, error) {
	return r.Ledger.ScrubStates(ctx)
}
