package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"catalogd/internal/storage"
)

// Rename copies an object to another name, at the server, looks at the copy, and then
// removes it from the first. catalogd's description goes with it; what others wrote of
// theirs does not. A crash leaves both, and is finished by the next call.
func (s *Store) Rename(ctx context.Context, from, to string) (err error) {
	defer wrap(&err, "rename %s to %s", from, to)
	for _, key := range []string{from, to} {
		if strings.HasPrefix(key, storage.TrashPrefix) {
			err = s.checkName(key)
		} else {
			err = s.checkFinal(key)
		}
		if err := cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
	}
	h, err := s.head(ctx, from)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = s.head(ctx, to)
		return err
	} else if err != nil {
		return err
	}
	// Nobody else writes to either name. There is no condition that nothing be there: some
	// servers take a name that was deleted, in a bucket with versions, for taken.
	unconditional := *s
	unconditional.caps.CopyIfNoneMatch, unconditional.caps.CompleteIfNoneMatch = false, false
	c := copying{Store: &unconditional, from: from, to: to, fingerprint: h.fingerprint(), sum: h.sha256, about: readAbout(h.meta)}
	_, err = c.promoted(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		if err = c.do(ctx); err == nil {
			_, err = c.verify(ctx)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it vanished while it was copied: %v", err)
	} else if err != nil {
		return err
	}
	return s.remove(ctx, from)
}
