package posix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

// Promote moves the file at stagedKey, which must have the fingerprint and one
// link, to finalKey and makes it durable there; the package's page says in which
// order and why. When there is no such file staged (any more), but finalKey holds
// it, then it has been promoted, by whomever: that is made durable, and is
// success. So processes may promote the same attempt at the same moment.
//
// ErrNotExist when there is neither; ErrExist when finalKey holds something
// else; ErrChanged, ErrLinked, ErrNotRegular for what is staged; ErrSync after
// which the file is to be given up; ErrCrossDevice, ErrNoSpace, ErrReadOnly,
// ErrPermission. Anything else leaves the outcome unknown. A crash leaves the
// file at one of the two names, whole.
func (s *Store) Promote(ctx context.Context, stagedKey, finalKey, fingerprint string) (err error) {
	defer wrap(&err, "promote %s to %s", stagedKey, finalKey)
	if err := cmp.Or(checkStaged(stagedKey), checkFinal(finalKey)); err != nil {
		return err
	}
	stagedName, finalName := path.Base(stagedKey), path.Base(finalKey)
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()

	staged, from, err := openStaged(top, stagedKey)
	if err == nil {
		defer from.close()
		defer staged.Close()
		err = from.last().check(stagedName, fingerprint)
	}
	if err != nil {
		return s.promoted(top, finalKey, fingerprint, err)
	}
	protect(staged)
	if err := s.fsync(staged.File); err != nil {
		return err
	}
	to, err := openDirs(top, path.Dir(finalKey), s.mkdir)
	if err != nil {
		return err
	}
	defer to.close()
	if err := from.last().check(stagedName, fingerprint); err != nil {
		return s.promoted(top, finalKey, fingerprint, err)
	}
	if err := s.move(from.last(), stagedName, to.last(), finalName); err != nil {
		return s.promoted(top, finalKey, fingerprint, err)
	}
	if err := to.last().check(finalName, fingerprint); err != nil {
		return fmt.Errorf("at its final name already, but: %w", err)
	}
	return s.persist(to)
}

// protect takes the right to write from what is about to be an output, so that
// nobody opens it by mistake to write, at its final name or through a stable one.
// Its owner can still give the right back, and a server that is neither the owner
// nor root cannot take it: for writers that are not trusted there are copies.
func protect(staged *file) {
	_ = staged.Chmod(fs.FileMode(staged.stat.Mode) & 0o555)
}

// promoted is for a Promote that could not do it, because of cause: when finalKey
// holds the file, somebody else has, and all that is left is to make it durable.
func (s *Store) promoted(top *dir, finalKey, fingerprint string, cause error) error {
	final, err := s.settle(top, finalKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cause
	case err != nil:
		return err
	}
	defer final.Close()
	if got := final.Fingerprint(); got != fingerprint {
		return fmt.Errorf("%w: %s is %s, expected %s; nor could it be promoted: %v", storage.ErrExist, final.Name(), got, fingerprint, cause)
	}
	return nil
}

// move renames a staged file without replacing anything. A filesystem that
// cannot do that by itself (NFS) is asked first whether the name is free. What
// could come between the two are promotions of this same attempt only, since
// nobody else has its final name; the later of them finds nothing to rename. That
// leaves one gap: between two processes that promote the same attempt at that
// instant, a task that writes its staging name anew has it renamed over the
// output; the later process sees so, and returns ErrChanged. A hard link, which
// never replaces, would be refused for files of another uid
// (fs.protected_hardlinks).
func (s *Store) move(from *dir, stagedName string, to *dir, finalName string) error {
	err := s.sys.rename(from, stagedName, to, finalName, false)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		if _, err = to.stat(finalName); err == nil {
			err = unix.EEXIST
		} else if errors.Is(err, fs.ErrNotExist) {
			err = s.sys.rename(from, stagedName, to, finalName, true)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		// Not ErrNotExist: what vanished may as well be the destination directory.
		return fmt.Errorf("rename %s: it, or %s, vanished: %v", from.join(stagedName), to.Name(), err)
	}
	return translate(pathError("rename", from.join(stagedName), err), from.join(stagedName), from.Name(), to.Name())
}

// Settle makes the file at key and every directory above it durable, and returns
// it open.
func (s *Store) Settle(ctx context.Context, key string) (_ storage.Staged, err error) {
	defer wrap(&err, "settle %s", key)
	if err := checkFinal(key); err != nil {
		return nil, err
	}
	top, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	f, err := s.settle(top, key)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (s *Store) settle(top *dir, key string) (*file, error) {
	dirs, err := openDirs(top, path.Dir(key), nil)
	if err != nil {
		return nil, err
	}
	defer dirs.close()
	f, err := dirs.last().openRegular(path.Base(key))
	if err != nil {
		return nil, err
	}
	if err = s.fsync(f.File); err == nil {
		err = s.persist(dirs)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// persist makes the entries in the last directory of c durable, and that
// directory itself: its parents are fsynced unless this process has done so
// since the directory below was made. Who finds a directory just made by another
// does not wait for that one's fsync but does its own.
func (s *Store) persist(c chain) error {
	for i, d := range c[1:] {
		is, err := d.inode()
		if err != nil {
			return err
		}
		s.mu.Lock()
		durable := s.durable[d.Name()] == is
		s.mu.Unlock()
		if durable {
			continue
		}
		if err := s.fsync(c[i].File()); err != nil {
			return err
		}
		s.mu.Lock()
		s.durable[d.Name()] = is
		s.mu.Unlock()
	}
	return s.fsync(c.last().File())
}

// mkdir makes a directory for all to read, less the umask. One that is there
// already is success. That an earlier one of the name was durable is forgotten:
// inode numbers come again.
func (s *Store) mkdir(parent *dir, name string) error {
	s.mu.Lock()
	delete(s.durable, parent.join(name))
	s.mu.Unlock()
	err := unix.Mkdirat(parent.fd, name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return translate(pathError("mkdir", parent.join(name), err), parent.Name())
}

// fsync is never repeated after an error: the second may succeed although the
// data is gone.
func (s *Store) fsync(f *os.File) error {
	if s.synced != nil {
		s.synced(f.Name())
	}
	if err := s.sys.fsync(f); err != nil {
		return fmt.Errorf("%w: %s: %w", storage.ErrSync, f.Name(), translate(err))
	}
	return nil
}
