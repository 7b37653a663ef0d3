package posix

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// List yields the regular files in a range, in byte order of the whole key, names that are not UTF-8 as they are. Directories, symbolic links,
// sockets and devices are no objects and are left out. So are catalogd's own
// trees and the filesystem's lost+found, unless prefix names one with its slash.
//
// What vanishes while it is listed is no error; a directory that may not be read
// is, and ends the listing. The names of one directory are in memory at a time,
// with those of the directories above it.
func (s *Store) List(ctx context.Context, within storage.Range) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		err := s.list(ctx, within, func(o catalog.Object) bool { return yield(o, nil) })
		if err != nil && !errors.Is(err, errStopped) {
			wrap(&err, "list %q", within.Prefix)
			yield(catalog.Object{}, err)
		}
	}
}

// errStopped: the consumer wants no more.
var errStopped = errors.New("stopped")

func (s *Store) list(ctx context.Context, within storage.Range, yield func(catalog.Object) bool) error {
	base, first := path.Split(within.Prefix)
	at := cmp.Or(strings.TrimSuffix(base, "/"), ".")
	if err := checkName(at); err != nil && base != "" {
		return err
	}
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()
	dirs, err := openDirs(top, at, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer dirs.close()
	l := lister{ctx, within, yield}
	return l.dir(dirs.last(), base, first)
}

// lister is one listing.
type lister struct {
	ctx    context.Context
	within storage.Range
	yield  func(catalog.Object) bool
}

// dir lists what is in d under names that begin with first. Keys in d begin with
// base: "" or "a/b/".
func (l *lister) dir(d *dir, base, first string) error {
	names, err := readNames(d, fs.FileMode.IsRegular)
	if err != nil {
		return translate(err, d.Name())
	}
	for _, name := range names {
		plain, isDir := strings.CutSuffix(name, "/")
		if !strings.HasPrefix(name, first) || base == "" && ownNames[plain] {
			continue
		}
		if l.before(base+name, isDir) {
			continue
		}
		if l.within.Compare(base+name) > 0 {
			return nil // and so is what follows
		}
		err := l.ctx.Err()
		switch {
		case err != nil:
		case isDir:
			err = l.sub(d, plain, base+name)
		default:
			err = l.file(d, name, base+name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// before tells whether a file, or all that can be in a directory, comes before the range.
func (l *lister) before(key string, isDir bool) bool {
	return l.within.Compare(key) < 0 && !(isDir && strings.HasPrefix(l.within.From, key))
}

func (l *lister) sub(d *dir, name, base string) error {
	sub, err := d.sub(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return l.dir(sub, base, "")
}

func (l *lister) file(d *dir, name, key string) error {
	st, err := d.stat(name)
	if err != nil {
		return err
	}
	if regular(st) && !l.yield(object(key, st)) {
		return errStopped
	}
	return nil
}

// readNames reads the names of files of a kind and of directories in d, in byte order. A
// directory's name ends in "/", as all keys below it go on: so "a-b" and "a.b"
// come before "a/b", and "a0" after it.
func readNames(d *dir, kind func(fs.FileMode) bool) ([]string, error) {
	var names []string
	for {
		entries, err := d.File().ReadDir(1024)
		for _, e := range entries {
			switch {
			case e.IsDir():
				names = append(names, e.Name()+"/")
			case kind(e.Type()):
				names = append(names, e.Name())
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}
