package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"catalogd/internal/storage"
)

// Rename moves a file to another name, and makes it durable there. What it may move lies
// at a final name, or in the trash. A crash leaves it at one of the two, or at both, which
// are then names of one file: the next call removes the first.
func (s *Store) Rename(ctx context.Context, from, to string) (err error) {
	defer wrap(&err, "rename %s to %s", from, to)
	if from == to {
		return fmt.Errorf("%w: it has that name", storage.ErrName)
	}
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
	if errors.Is(err, fs.ErrNotExist) {
		return s.renamed(top, to)
	} else if err != nil {
		return err
	}
	defer source.close()
	is, err := source.last().openRegular(path.Base(from))
	if errors.Is(err, fs.ErrNotExist) {
		err = s.renamed(top, to)
	} else if err == nil {
		defer is.Close()
		err = s.renameFile(top, is, source.last(), from, to)
	}
	if err != nil {
		return err
	}
	return s.fsync(source.last().File())
}

// renamed makes durable what somebody has moved to a name. ErrNotExist when there is nothing.
func (s *Store) renamed(top *dir, to string) error {
	f, err := s.settle(top, to)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *Store) renameFile(top *dir, is *file, source *dir, from, to string) error {
	target, err := openDirs(top, path.Dir(to), s.mkdir)
	if err != nil {
		return err
	}
	defer target.close()
	if err := s.fsync(is.File); err != nil {
		return err
	}
	from, to = path.Base(from), path.Base(to)
	if err := s.move(source, from, target.last(), to); err != nil {
		if err := s.finish(is, source, from, target, to, err); err != nil {
			return err
		}
	}
	return s.persist(target)
}

// finish is for a move that failed because of cause: nil when the file has come to its new
// name all the same, as where the answer was lost. One link at both names is a file that is
// reached in two ways, and would be gone.
func (s *Store) finish(is *file, source *dir, from string, target chain, to string, cause error) error {
	arrived, err := target.last().holds(to, is)
	if err != nil || !arrived {
		return cause
	}
	stayed, err := source.holds(from, is)
	switch {
	case err != nil:
		return cause
	case !stayed:
		return nil
	case !errors.Is(cause, fs.ErrExist) || is.stat.Nlink < 2:
		return cause
	}
	if err := s.persist(target); err != nil { // before the other name goes
		return err
	}
	return unlink(source, from)
}
