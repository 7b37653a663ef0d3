package posix

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

// inode tells a file from every other that exists at the same time.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), uint64(st.Ino)} }

// dir is an open directory. It has an os.File only once somebody needs one: most are
// opened for one call, and a File costs as many system calls again.
type dir struct {
	path string
	fd   int
	file *os.File
}

func (d *dir) Name() string            { return d.path }
func (d *dir) join(name string) string { return d.path + "/" + name }

// File has the descriptor from now on.
func (d *dir) File() *os.File {
	if d.file == nil {
		d.file = os.NewFile(uintptr(d.fd), d.path)
	}
	return d.file
}

func (d *dir) Close() {
	if d.file != nil {
		d.file.Close()
	} else {
		unix.Close(d.fd)
	}
}

func (d *dir) inode() (inode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return inode{}, pathError("fstat", d.path, err)
	}
	return inodeOf(&st), nil
}

// chain is the root and the directories below it, one in another, all open.
type chain []*dir

func (c chain) last() *dir { return c[len(c)-1] }

// close closes all but the root, which is the caller's.
func (c chain) close() {
	for _, d := range c[1:] {
		d.Close()
	}
}

// openRoot opens a root by its path. That it is not there is ErrSentinel and
// never ErrNotExist, which is for objects.
func openRoot(name string) (*dir, error) {
	d, err := openDir(unix.AT_FDCWD, name, name, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%w: there is no directory %s: is the volume mounted?", storage.ErrSentinel, name)
	case err != nil:
		return nil, translate(err, name)
	}
	return d, nil
}

func openDir(at int, name, full string, flags int) (*dir, error) {
	fd, err := restart(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, pathError("open", full, err)
	}
	return &dir{path: full, fd: fd}, nil
}

// sub opens a directory in d, not through a symbolic link (ErrName). Where a file
// is in its place, there is no directory: ErrNotExist, and ENOTDIR too.
func (d *dir) sub(name string) (*dir, error) {
	sub, err := openDir(d.fd, name, d.join(name), unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		st, serr := d.stat(name)
		switch {
		case serr != nil:
			return nil, serr
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return nil, fmt.Errorf("%w: %s is a symbolic link, which is not followed", storage.ErrName, d.join(name))
		}
		return nil, fmt.Errorf("%w: %w", storage.ErrNotExist, err)
	}
	return sub, translate(err, d.join(name), d.Name())
}

// openDirs opens the directories of name ("." for none) below top. Those that
// are missing are made with mkdir, ErrExist where a file is in their place; with
// nil for mkdir, ErrNotExist.
func openDirs(top *dir, name string, mkdir func(parent *dir, name string) error) (chain, error) {
	c := chain{top}
	if name == "." {
		return c, nil
	}
	for segment := range strings.SplitSeq(name, "/") {
		d, err := c.last().sub(segment)
		if mkdir != nil && errors.Is(err, fs.ErrNotExist) {
			d, err = c.last().made(segment, mkdir)
		}
		if err != nil {
			c.close()
			return nil, err
		}
		c = append(c, d)
	}
	return c, nil
}

func (d *dir) made(name string, mkdir func(parent *dir, name string) error) (*dir, error) {
	if err := mkdir(d, name); err != nil {
		return nil, err
	}
	sub, err := d.sub(name)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w: %v", storage.ErrExist, err)
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removed as soon as it was made: %v", err)
	}
	return sub, err
}

// file is an open regular file, as it was when it was opened.
type file struct {
	*os.File
	stat unix.Stat_t
}

func (f *file) Size() int64         { return f.stat.Size }
func (f *file) Fingerprint() string { return fingerprint(&f.stat) }

// check tells whether name in d leads to the file, and in the state, of the fingerprint.
func (d *dir) check(name, want string) error {
	st, err := d.stat(name)
	if err != nil {
		return err
	}
	if got := fingerprint(st); got != want {
		return fmt.Errorf("%w: %s is %s, expected %s", storage.ErrChanged, d.join(name), got, want)
	}
	return nil
}

// fingerprint is device, inode, size and modification time. Not the time of
// change, which a rename moves. A writer that keeps its descriptor can restore
// the modification time, or write within the clock's tick: collections of such
// writers have their files copied first.
func fingerprint(st *unix.Stat_t) string {
	return fmt.Sprintf("%x:%x:%d:%d.%09d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
}

// openRegular opens a regular file below top for reading. ErrNotExist,
// ErrNotRegular, ErrPermission. It does not hang on a FIFO.
func openRegular(top *dir, key string) (*file, error) {
	dirs, err := openDirs(top, path.Dir(key), nil)
	if err != nil {
		return nil, err
	}
	defer dirs.close()
	return dirs.last().openRegular(path.Base(key))
}

func (d *dir) openRegular(name string) (*file, error) {
	fd, err := restart(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		// A symbolic link gives ELOOP, a socket ENXIO.
		if st, serr := d.stat(name); serr == nil && !regular(st) {
			return nil, fmt.Errorf("%w: %s", storage.ErrNotRegular, d.join(name))
		}
		return nil, translate(pathError("open", d.join(name), err), d.join(name), d.Name())
	}
	f := &file{}
	err = unix.Fstat(fd, &f.stat)
	if err == nil && !regular(&f.stat) {
		err = storage.ErrNotRegular
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, pathError("open", d.join(name), err)
	}
	f.File = os.NewFile(uintptr(fd), d.join(name))
	return f, nil
}

func regular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// stat does not follow symbolic links.
func (d *dir) stat(name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	_, err := restart(func() (int, error) {
		return 0, unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, translate(pathError("stat", d.join(name), err), d.Name())
	}
	return &st, nil
}

// holds tells whether name leads to the file.
func (d *dir) holds(name string, f *file) (bool, error) {
	st, err := d.stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && inodeOf(st) == inodeOf(&f.stat), err
}

// createTemp makes a file in d that nobody else has: its name is random and
// begins with name, and only this uid can write to it.
func createTemp(d *dir, name string) (*os.File, error) {
	name += ".upload-" + rand.Text() + ".tmp"
	fd, err := restart(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	})
	if err != nil {
		return nil, translate(pathError("create", d.join(name), err), d.Name())
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// unlink removes a name in d; nil if it is not there.
func unlink(d *dir, name string) error {
	_, err := restart(func() (int, error) { return 0, unix.Unlinkat(d.fd, name, 0) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return translate(pathError("unlink", d.join(name), err), d.join(name), d.Name())
	}
	return nil
}

// restart repeats a call that a signal interrupted, as some filesystems (FUSE,
// NFS) let happen in spite of SA_RESTART.
func restart(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// pathError is nil where err is.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// translate gives an error of the system its name in package storage. ENOENT,
// EEXIST, EACCES and EPERM have theirs already. Where permission was denied, it
// says who owns the paths that decided.
func translate(err error, paths ...string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", storage.ErrNoSpace, err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", storage.ErrReadOnly, err)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: %w", storage.ErrCrossDevice, err)
	case errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%w: %w", storage.ErrNotRegular, err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return fmt.Errorf("%w: %w", storage.ErrName, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (%s)", err, owners(paths))
	}
	return err
}

func owners(paths []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the server runs as uid %d gid %d", os.Geteuid(), os.Getegid())
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			fmt.Fprintf(&b, "; %s cannot be looked at", p)
			continue
		}
		fmt.Fprintf(&b, "; %s is mode %04o of uid %d gid %d", p, st.Mode&0o7777, st.Uid, st.Gid)
	}
	return b.String()
}

// wrap says what was being done when err happened.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}
