package posix

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

// Link makes current/{stable} a relative symbolic link to key, so that the store
// may be mounted elsewhere. Where there is another link, the new one is renamed over
// it: readers see one of the two. It is not synced: the tree is derived, and repaired. A crash
// leaves a dangling name or a ".link-…" beside it at most.
func (s *Store) Link(ctx context.Context, stable, key string) (err error) {
	defer wrap(&err, "link %s to %s", stable, key)
	if err := cmp.Or(checkName(stable), checkFinal(key)); err != nil {
		return err
	}
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()
	dirs, err := openDirs(top, path.Dir(storage.CurrentPrefix+stable), s.mkdir)
	if err != nil {
		return err
	}
	defer dirs.close()
	d, name, target := dirs.last(), path.Base(stable), up(stable)+key
	switch now, err := d.readlink(name); {
	case err == nil && now == target:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := unix.Symlinkat(target, d.fd, name); !errors.Is(err, fs.ErrExist) {
			return translate(pathError("symlink", d.join(name), err), d.Name())
		}
	}
	temp := tempLink + rand.Text()
	if err := unix.Symlinkat(target, d.fd, temp); err != nil {
		return translate(pathError("symlink", d.join(temp), err), d.Name())
	}
	if err := s.sys.rename(d, temp, d, name, true); err != nil {
		return errors.Join(translate(pathError("rename to", d.join(name), err), d.join(name), d.Name()), unlink(d, temp))
	}
	return nil
}

// Linked tells which key current/{stable} leads to. ErrNotExist; ErrName when it
// is something else than a link of catalogd's making.
func (s *Store) Linked(ctx context.Context, stable string) (key string, err error) {
	defer wrap(&err, "linked %s", stable)
	if err := checkName(stable); err != nil {
		return "", err
	}
	err = s.in(ctx, storage.CurrentPrefix+stable, func(dirs chain, name string) error {
		target, err := dirs.last().readlink(name)
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%w: %s is not a symbolic link", storage.ErrName, dirs.last().join(name))
		} else if err != nil {
			return err
		}
		var ours bool
		if key, ours = strings.CutPrefix(target, up(stable)); !ours || checkFinal(key) != nil {
			return fmt.Errorf("%w: %s leads to %s", storage.ErrName, dirs.last().join(name), target)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return key, nil
}

// Unlink removes current/{stable} for each of stables; nil for those that are not
// there. Neighbours are removed through one open of their directory.
func (s *Store) Unlink(ctx context.Context, stables ...string) (err error) {
	defer wrap(&err, "unlink %s", strings.Join(stables, ", "))
	for _, stable := range stables {
		if err := checkName(stable); err != nil {
			return err
		}
	}
	for len(stables) > 0 {
		n := 1
		for n < len(stables) && path.Dir(stables[n]) == path.Dir(stables[0]) {
			n++
		}
		err := s.in(ctx, storage.CurrentPrefix+stables[0], func(dirs chain, _ string) error {
			for _, stable := range stables[:n] {
				name := path.Base(stable)
				// Asked first: to look takes no lock of the directory's.
				if _, err := dirs.last().stat(name); errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err := unlink(dirs.last(), name); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		stables = stables[n:]
	}
	return nil
}

// up leads from the directory of current/{stable} to the root.
func up(stable string) string {
	return strings.Repeat("../", 1+strings.Count(stable, "/"))
}

func (d *dir) readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := restart(func() (int, error) { return unix.Readlinkat(d.fd, name, buf) })
	if err != nil {
		return "", translate(pathError("readlink", d.join(name), err), d.Name())
	}
	return string(buf[:n]), nil
}

// Links yields the symbolic links below current/, in byte order of their names, but for
// those that Link is about to rename.
func (s *Store) Links(ctx context.Context) iter.Seq2[storage.Link, error] {
	return func(yield func(storage.Link, error) bool) {
		err := s.in(ctx, storage.CurrentPrefix+"-", func(dirs chain, _ string) error {
			return links(ctx, dirs.last(), "", func(l storage.Link) bool { return yield(l, nil) })
		})
		if err != nil && !errors.Is(err, errStopped) && !errors.Is(err, fs.ErrNotExist) {
			wrap(&err, "list stable names")
			yield(storage.Link{}, err)
		}
	}
}

func links(ctx context.Context, d *dir, base string, yield func(storage.Link) bool) error {
	wanted := func(name string, kind fs.FileMode) bool {
		return kind.IsDir() || kind&fs.ModeSymlink != 0 && !strings.HasPrefix(name, tempLink)
	}
	for name, err := range d.names(ctx, wanted) {
		if err != nil {
			return err
		}
		plain, isDir := strings.CutSuffix(name, "/")
		if !isDir {
			if !yield(storage.Link{Stable: base + name, Key: d.leads(name, base+name)}) {
				return errStopped
			}
			continue
		}
		sub, err := d.sub(plain)
		if err == nil {
			err = links(ctx, sub, base+name, yield)
			sub.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// leads is the key that a link leads to; "" for none.
func (d *dir) leads(name, stable string) string {
	target, err := d.readlink(name)
	key, ours := strings.CutPrefix(target, up(stable))
	if err != nil || !ours || checkFinal(key) != nil {
		return ""
	}
	return key
}

// tempLink begins the name of a link that is about to be renamed.
const tempLink = ".link-"
