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
// removes it from the first, unless something else has come there: ErrChanged. Its media
// type and metadata go with it, but for what of others' does not fit beside catalogd's;
// its other headers (Content-Encoding, Cache-Control …) do not. A crash leaves both, and
// is finished by the next call.
func (s *Store) Rename(ctx context.Context, from, to string) (err error) {
	defer wrap(&err, "rename %s to %s", from, to)
	if from == to {
		return fmt.Errorf("%w: it has that name", storage.ErrName)
	}
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
	// Nor is the copy held against a checksum: what is moved away may have rotted.
	c := copying{Store: &unconditional, from: from, to: to, fingerprint: h.fingerprint(), about: readAbout(h.meta), others: h.meta}
	c.about[contentType] = h.mediaType
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
	// The copy may have taken minutes.
	switch now, err := s.head(ctx, from); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case now.fingerprint() != h.fingerprint():
		return fmt.Errorf("%w: %s is %s, and %s was copied", storage.ErrChanged, from, now.fingerprint(), h.fingerprint())
	}
	return s.remove(ctx, from)
}
