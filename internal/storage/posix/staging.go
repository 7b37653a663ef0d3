package posix

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

// PrepareStaging makes .staging/, .staging/in/ and what else is above stagedKey,
// and tells whether a promotion to finalKey could work: ErrCrossDevice,
// ErrReadOnly, ErrPermission. Nothing is remembered between calls, since disks
// fill, go read-only and away; it takes some twenty system calls.
//
// It cannot foresee that a rename is refused for an XFS project quota; Promote
// then says ErrCrossDevice.
func (s *Store) PrepareStaging(ctx context.Context, stagedKey, finalKey string) (err error) {
	defer wrap(&err, "prepare staging of %s", finalKey)
	if err := cmp.Or(checkStaged(stagedKey), checkFinal(finalKey)); err != nil {
		return err
	}
	top, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer top.Close()
	dirs, err := openDirs(top, path.Dir(storage.IncomingPrefix+"x"), s.mkdirStaging)
	if err != nil {
		return err
	}
	defer dirs.close()
	from := dirs[1]
	if within := path.Dir(stagedKey); within+"/" != storage.StagingPrefix {
		dirs, err := openDirs(top, within, s.mkdirStaging)
		if err != nil {
			return err
		}
		defer dirs.close()
		from = dirs.last()
	}
	to, err := deepest(top, path.Dir(finalKey))
	if err != nil {
		return err
	}
	defer to.close()
	return s.renamable(from, to.last())
}

// renamable tells whether files could be renamed from one directory into the
// other. Mounts are compared by the kernel, when asked to rename a name that does
// not exist: it finds EXDEV, for two mounts of one filesystem too, and EROFS,
// before it misses the name. Within a mount, subvolumes have devices of their own.
func (s *Store) renamable(from, to *dir) error {
	source, err := from.inode()
	if err != nil {
		return err
	}
	target, err := to.inode()
	if err != nil {
		return err
	}
	if source.dev != target.dev {
		return fmt.Errorf("%w: %s and %s", storage.ErrCrossDevice, from.Name(), to.Name())
	}
	err = s.sys.rename(from, ".absent-"+rand.Text(), to, ".absent", true)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return translate(pathError("rename into", to.Name(), err), from.Name(), to.Name())
	}
	for _, d := range []*dir{from, to} {
		if err := unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, 0); err != nil {
			return translate(pathError("write to", d.Name(), err), d.Name())
		}
	}
	return nil
}

// deepest opens the directories of name that exist.
func deepest(top *dir, name string) (chain, error) {
	for {
		c, err := openDirs(top, name, nil)
		if !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
		name = path.Dir(name)
	}
}

// mkdirStaging makes a staging directory with its own mode, which the umask does
// not touch. One that is there already is success, whatever its mode.
func (s *Store) mkdirStaging(parent *dir, name string) error {
	err := unix.Mkdirat(parent.fd, name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return translate(pathError("mkdir", parent.join(name), err), parent.Name())
	}
	d, err := parent.sub(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return translate(d.File().Chmod(s.stagingMode), d.Name())
}

// WriteStaged writes r, at most limit bytes, to a temporary beside key and renames
// that to key, replacing; on any error the temporary is removed. It is not
// synced: Promote does that, and a crash before it costs the attempt, not an
// output. The file is readable for all, less the umask, as the output will be.
// A reader that blocks is not interrupted when ctx ends.
func (s *Store) WriteStaged(ctx context.Context, key string, r io.Reader, limit int64) (size int64, sum string, err error) {
	defer wrap(&err, "write %s", key)
	if err := checkStaged(key); err != nil {
		return 0, "", err
	}
	top, err := s.open(ctx)
	if err != nil {
		return 0, "", err
	}
	defer top.Close()
	dirs, err := openDirs(top, path.Dir(key), s.mkdirStaging)
	if err != nil {
		return 0, "", err
	}
	defer dirs.close()
	d := dirs.last()
	temp, err := createTemp(d, path.Base(key))
	if err != nil {
		return 0, "", err
	}
	size, sum, err = s.copy(ctx, temp, r, limit)
	if closed := temp.Close(); err == nil {
		err = translate(closed) // where NFS says that there was no space
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = s.sys.rename(d, path.Base(temp.Name()), d, path.Base(key), true)
		err = translate(pathError("rename to", d.join(path.Base(key)), err), d.join(path.Base(key)), d.Name())
	}
	if err != nil {
		return 0, "", errors.Join(err, unlink(d, path.Base(temp.Name())))
	}
	return size, sum, nil
}

// copy writes r, at most limit bytes, to f, and returns size and SHA-256.
func (s *Store) copy(ctx context.Context, f *os.File, r io.Reader, limit int64) (size int64, sum string, err error) {
	hash := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return 0, "", err
		}
		n, rerr := r.Read(buf)
		if size += int64(n); size > limit {
			return 0, "", fmt.Errorf("%w: more than %d bytes", storage.ErrTooLarge, limit)
		}
		hash.Write(buf[:n])
		if _, err := s.sys.write(f, buf[:n]); err != nil {
			return 0, "", translate(err)
		}
		if rerr == io.EOF {
			return size, hex.EncodeToString(hash.Sum(nil)), nil
		} else if rerr != nil {
			return 0, "", fmt.Errorf("read the stream: %w", rerr)
		}
	}
}

// OpenStaged opens a staged file: regular, with one link, reached through no
// symbolic link. ErrNotExist, ErrNotRegular, ErrLinked, ErrPermission, ErrName.
func (s *Store) OpenStaged(ctx context.Context, key string) (_ storage.Staged, err error) {
	defer wrap(&err, "open %s", key)
	if err := checkStaged(key); err != nil {
		return nil, err
	}
	top, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	f, dirs, err := openStaged(top, key)
	if err != nil {
		return nil, err
	}
	dirs.close()
	return f, nil
}

// openStaged returns the open file and the directories it is in, or an error and
// neither.
func openStaged(top *dir, key string) (*file, chain, error) {
	dirs, err := openDirs(top, path.Dir(key), nil)
	if err != nil {
		return nil, nil, err
	}
	f, err := dirs.last().openRegular(path.Base(key))
	if err == nil && f.stat.Nlink != 1 {
		f.Close()
		err = fmt.Errorf("%w: %s has %d; write a file of its own, or move it", storage.ErrLinked, f.Name(), f.stat.Nlink)
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: make it readable for the server (umask 022, or chmod a+r), or run task and server in one group", err)
	}
	if err != nil {
		dirs.close()
		return nil, nil, err
	}
	return f, dirs, nil
}
