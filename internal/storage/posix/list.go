package posix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strings"

	"catalogd/internal/catalog"
	"catalogd/internal/disksort"
	"catalogd/internal/storage"
)

// List yields the regular files in a range, in byte order of the whole key; names that
// are not UTF-8 as they are. Directories, symbolic links, sockets and devices are no
// objects and are left out. So are catalogd's own trees and the filesystem's lost+found,
// unless prefix names one with its slash. What lies outside the range is not entered.
//
// What vanishes while it is listed is no error; a directory that may not be read
// is, and ends the listing. Memory does not grow with the number of names.
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
	wanted := func(name string, kind fs.FileMode) bool {
		own := base == "" && ownNames[strings.TrimSuffix(name, "/")]
		return (kind.IsRegular() || kind.IsDir()) && strings.HasPrefix(name, first) && !own && l.touches(base+name)
	}
	for name, err := range d.names(l.ctx, wanted) {
		if err != nil {
			return err
		}
		if plain, isDir := strings.CutSuffix(name, "/"); isDir {
			err = l.sub(d, plain, base+name)
		} else {
			err = l.file(d, name, base+name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// touches tells whether a file, or something that can be in a directory, is in the range.
func (l *lister) touches(key string) bool {
	at := l.within.Compare(key)
	return at == 0 || at < 0 && strings.HasSuffix(key, "/") && strings.HasPrefix(l.within.From, key)
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

// sortMemory is what sorting the names of one directory holds: 6,000 of 60 bytes. More
// are sorted on disk, in the system's directory for temporary files.
const sortMemory = 1 << 20

// names yields the names in d that are wanted, in byte order. A directory's
// name ends in "/", as all keys below it go on: so "a-b" and "a.b"
// come before "a/b", and "a0" after it.
func (d *dir) names(ctx context.Context, wanted func(name string, kind fs.FileMode) bool) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		sorter := disksort.New("", sortMemory)
		defer sorter.Close()
		if err := d.read(ctx, wanted, sorter); err != nil {
			yield("", err)
			return
		}
		for name, err := range sorter.Sorted() {
			if err != nil {
				yield("", sortError(err))
				return
			}
			if err := ctx.Err(); !yield(string(name), err) || err != nil {
				return
			}
		}
	}
}

// read adds the names that are wanted to sorter, as they come.
func (d *dir) read(ctx context.Context, wanted func(name string, kind fs.FileMode) bool, sorter *disksort.Sorter) error {
	for {
		entries, err := d.File().ReadDir(1024)
		for _, e := range entries {
			name := e.Name()
			if e.IsDir() {
				name += "/"
			}
			if !wanted(name, e.Type()) {
				continue
			}
			if err := sorter.Add([]byte(name)); err != nil {
				return sortError(err)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return translate(err, d.Name())
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// sortError hides what the error is of: the temporary directory's, and not the store's, in
// which something may lack or be full.
func sortError(err error) error { return fmt.Errorf("%v", err) }
