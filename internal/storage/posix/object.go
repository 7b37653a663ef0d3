package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// Stat asks for one object. ErrNotExist. On NFS, another client's file may be
// reported absent for as long as the mount caches lookups.
func (s *Store) Stat(ctx context.Context, key string) (o catalog.Object, err error) {
	defer wrap(&err, "stat %s", key)
	err = s.in(ctx, key, func(dirs chain, name string) error {
		st, err := dirs.last().stat(name)
		if err == nil && !regular(st) {
			err = pathError("stat", dirs.last().join(name), storage.ErrNotRegular)
		}
		if err == nil {
			o = object(key, st)
		}
		return err
	})
	return o, err
}

// Existing gives those of keys, all in one directory, that are objects.
func (s *Store) Existing(ctx context.Context, keys []string) (found []catalog.Object, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	within := path.Dir(keys[0])
	defer wrap(&err, "look for files in %s", within)
	err = s.in(ctx, keys[0], func(dirs chain, _ string) error {
		names, all := dirs.last().few()
		for _, key := range keys {
			if err := checkName(key); err != nil {
				return err
			}
			if path.Dir(key) != within {
				return fmt.Errorf("%w: %s is not in %s", storage.ErrName, key, within)
			}
			if all && !names[path.Base(key)] {
				continue
			}
			st, err := dirs.last().stat(path.Base(key))
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENAMETOOLONG):
			case err != nil:
				return err
			case regular(st):
				found = append(found, object(key, st))
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return found, err
}

// few reads the names in d in two system calls, where they are so few; all tells
// whether these are all. d was opened just now, and is at its beginning.
func (d *dir) few() (names map[string]bool, all bool) {
	names = map[string]bool{}
	for buf := make([]byte, 8<<10); ; {
		n, err := restart(func() (int, error) { return unix.ReadDirent(d.fd, buf) })
		if n <= 0 || err != nil || len(names) > 0 {
			return names, n == 0 && err == nil
		}
		_, _, list := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range list {
			names[name] = true
		}
	}
}

// Open opens an object for reading. ErrNotExist.
func (s *Store) Open(ctx context.Context, key string) (r storage.Reader, o catalog.Object, err error) {
	defer wrap(&err, "open %s", key)
	err = s.in(ctx, key, func(dirs chain, name string) error {
		f, err := dirs.last().openRegular(name)
		if err == nil {
			r, o = f, object(key, &f.stat)
		}
		return err
	})
	return r, o, err
}

// Delete removes the name key; nil if it is not there. Directories stay, empty
// or not. Below .staging/, where a file that comes back is swept again, the
// removal is not made durable; elsewhere it is.
func (s *Store) Delete(ctx context.Context, key string) (err error) {
	defer wrap(&err, "delete %s", key)
	staged := strings.HasPrefix(key, storage.StagingPrefix)
	if !staged && !strings.HasPrefix(key, storage.TrashPrefix) {
		if err := checkFinal(key); err != nil {
			return err
		}
	}
	err = s.in(ctx, key, func(dirs chain, name string) error {
		if err := unlink(dirs.last(), name); err != nil || staged {
			return err
		}
		return s.fsync(dirs.last().File())
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// in calls do with the directories above key and the name of key in the last.
func (s *Store) in(ctx context.Context, key string, do func(dirs chain, name string) error) error {
	if err := checkName(key); err != nil {
		return err
	}
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()
	dirs, err := openDirs(top, path.Dir(key), nil)
	if err != nil {
		return err
	}
	defer dirs.close()
	return do(dirs, path.Base(key))
}

// object has no ETag: inode and device, of which one could be made, change when
// a volume is restored or mounted elsewhere.
func object(key string, st *unix.Stat_t) catalog.Object {
	modified, changed := time.Unix(st.Mtim.Unix()), time.Unix(st.Ctim.Unix())
	if changed.After(modified) {
		modified = changed
	}
	return catalog.Object{Key: key, SizeBytes: st.Size, Modified: modified.UTC()}
}
