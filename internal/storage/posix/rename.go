package posix

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"catalogd/internal/storage"
)

// Rename moves a file to another name, and makes it durable there. What it may move lies
// at a final name, or in the trash.
func (s *Store) Rename(ctx context.Context, from, to string) (err error) {
	defer wrap(&err, "rename %s to %s", from, to)
	for _, key := range []string{from, to} {
		if strings.HasPrefix(key, storage.TrashPrefix) {
			err = checkName(key)
		} else {
			err = checkFinal(key)
		}
		if err != nil {
			return err
		}
	}
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()
	source, err := openDirs(top, path.Dir(from), nil)
	if err == nil {
		defer source.close()
		var is *file
		if is, err = source.last().openRegular(path.Base(from)); err == nil {
			defer is.Close()
			err = s.renameFile(top, is, source, from, to)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody has, or there was nothing.
		moved, settleErr := s.settle(top, to)
		if settleErr != nil {
			return settleErr
		}
		return moved.Close()
	}
	return err
}

func (s *Store) renameFile(top *dir, is *file, source chain, from, to string) error {
	target, err := openDirs(top, path.Dir(to), s.mkdir)
	if err != nil {
		return err
	}
	defer target.close()
	if err := s.fsync(is.File); err != nil {
		return err
	}
	if err := s.move(source.last(), path.Base(from), target.last(), path.Base(to)); err != nil {
		return err
	}
	if err := s.persist(target); err != nil {
		return err
	}
	return s.fsync(source.last().File())
}
