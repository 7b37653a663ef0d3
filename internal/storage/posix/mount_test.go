//go:build linux

package posix

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

// These tests use real filesystems where they may mount them, and make the
// system's calls fail in the same way where they may not.

// mount tells whether it could; what it mounted is gone when the test ends.
func mount(t *testing.T, source, target, fstype string, flags uintptr, data string) bool {
	t.Helper()
	err := unix.Mount(source, target, fstype, flags, data)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
		return false
	}
	ok(t, err)
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
	return true
}

func failRename(s *Store, errno unix.Errno) {
	s.sys.rename = func(*dir, string, *dir, string, bool) error { return errno }
}

func TestNoSpace(t *testing.T) {
	root := t.TempDir()
	mounted := mount(t, "catalogd", root, "tmpfs", 0, "size=1m,nr_inodes=8")
	s := open(t, root)
	if !mounted {
		s.sys.write = func(*os.File, []byte) (int, error) { return 0, unix.ENOSPC }
	}
	_, _, err := s.WriteStaged(t.Context(), staged, bytes.NewReader(make([]byte, 2<<20)), 1<<30)
	is(t, err, storage.ErrNoSpace)
	if got := storagetest.Keys(t, s, ".staging/"); len(got) != 0 {
		t.Fatalf("left behind: %q", got)
	}

	s.sys.write = (*os.File).Write
	print := storagetest.Stage(t, s, staged, "hello") // there is space again
	const deep = "a/b/c/d/e/f/g/h/i.tif"              // but not for so many directories
	if !mounted {
		failRename(s, unix.EDQUOT)
	}
	is(t, s.Promote(t.Context(), staged, deep, print), storage.ErrNoSpace)
	exists(t, s, staged, true)
	s.sys.rename = renameat
	ok(t, s.Promote(t.Context(), staged, "a/i.tif", print))
}

func TestReadOnly(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	ok(t, s.PrepareStaging(ctx, staged, final))
	storagetest.Put(t, s, final, "hello")
	print := storagetest.Stage(t, s, staged, "hello")
	ok(t, s.Link(ctx, "t.tif", final))

	mounted := mount(t, s.path, s.path, "", unix.MS_BIND, "")
	if mounted {
		ok(t, unix.Mount("", s.path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	} else {
		failRename(s, unix.EROFS)
	}
	is(t, s.PrepareStaging(ctx, staged, final), storage.ErrReadOnly)
	_, _, err := s.WriteStaged(ctx, staged, bytes.NewReader(nil), 1)
	is(t, err, storage.ErrReadOnly)
	is(t, s.Promote(ctx, staged, "landcover/33UXP/new.tif", print), storage.ErrReadOnly)
	is(t, s.Link(ctx, "t.tif", final+"2"), storage.ErrReadOnly)
	if mounted {
		is(t, s.Promote(ctx, staged, "new/t.tif", print), storage.ErrReadOnly)
		is(t, s.Delete(ctx, final), storage.ErrReadOnly)
		is(t, s.Unlink(ctx, "t.tif"), storage.ErrReadOnly)
	}
	// It can still be read.
	ok(t, s.Sentinel(ctx))
	if got := storagetest.Content(t, open(t, s.path), final); got != "hello" {
		t.Fatal(got)
	}
	if got := storagetest.Keys(t, s, ""); !slices.Equal(got, []string{final}) {
		t.Fatal(got)
	}
}

func TestCrossDevice(t *testing.T) {
	for _, test := range []struct {
		name  string
		mount func(t *testing.T, target string) bool
	}{
		{"another filesystem", func(t *testing.T, target string) bool {
			return mount(t, "catalogd", target, "tmpfs", 0, "size=1m")
		}},
		{"the same filesystem mounted again", func(t *testing.T, target string) bool {
			return mount(t, t.TempDir(), target, "", unix.MS_BIND, "")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			ok(t, os.Mkdir(s.Location("landcover"), 0o755))
			if !test.mount(t, s.Location("landcover")) {
				failRename(s, unix.EXDEV)
			}
			is(t, s.PrepareStaging(t.Context(), staged, final), storage.ErrCrossDevice, "/landcover")

			rename := s.sys.rename
			s.sys.rename = renameat
			print := storagetest.Stage(t, s, staged, "hello")
			s.sys.rename = rename
			is(t, s.Promote(t.Context(), staged, final, print), storage.ErrCrossDevice)
			exists(t, s, staged, true)
			exists(t, s, final, false)

			s.sys.rename = renameat
			ok(t, s.PrepareStaging(t.Context(), staged, "other/t.tif"))
			ok(t, s.Promote(t.Context(), staged, "other/t.tif", print))
		})
	}
}

// asNobody calls do without root's rights, on a thread that ends with it. Who is
// not root has none to give up.
func asNobody(t *testing.T, do func() error) error {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock
		if os.Geteuid() == 0 {
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
				if _, _, errno := unix.RawSyscall(call, 65534, 65534, 65534); errno != 0 {
					result <- errno
					return
				}
			}
		}
		result <- do()
	}()
	return <-result
}

func TestPermission(t *testing.T) {
	root := t.TempDir()
	ok(t, os.Chmod(filepath.Dir(root), 0o755))
	s := open(t, root)
	ctx := t.Context()
	ok(t, s.PrepareStaging(ctx, staged, final))
	storagetest.Put(t, s, final, "hello")
	print := storagetest.Stage(t, s, staged, "hello")
	server := "the server runs as uid 65534"
	if os.Geteuid() != 0 {
		server = "the server runs as uid "
	}

	ok(t, os.Chmod(s.Location(staged), 0o200))
	is(t, asNobody(t, func() error {
		_, err := s.OpenStaged(ctx, staged)
		return err
	}), storage.ErrPermission, staged+" is mode 0200 of uid", server, "umask 022, or chmod a+r")
	is(t, asNobody(t, func() error { return s.Promote(ctx, staged, "x/y", print) }), storage.ErrPermission, "chmod a+r")
	ok(t, os.Chmod(s.Location(staged), 0o644))

	ok(t, os.Chmod(s.Location("landcover/33UXP"), 0o555))
	defer os.Chmod(s.Location("landcover/33UXP"), 0o755)
	is(t, asNobody(t, func() error { return s.PrepareStaging(ctx, staged, final) }), storage.ErrPermission, "landcover/33UXP is mode 0555", server)
	is(t, asNobody(t, func() error { return s.Promote(ctx, staged, "landcover/33UXP/new.tif", print) }), storage.ErrPermission, "landcover/33UXP is mode 0555", server)
	is(t, asNobody(t, func() error { return s.Promote(ctx, staged, "landcover/33UXP/new/x.tif", print) }), storage.ErrPermission, "landcover/33UXP is mode 0555", server)
	is(t, asNobody(t, func() error { return s.Delete(ctx, final) }), storage.ErrPermission, server)

	// A directory that may not be read leaves the listing incomplete: an error.
	ok(t, os.Chmod(s.Location("landcover/33UXP"), 0))
	is(t, asNobody(t, func() error {
		for _, err := range s.List(ctx, storage.Range{}) {
			if err != nil {
				return err
			}
		}
		return nil
	}), storage.ErrPermission, "landcover/33UXP is mode 0000", server)
	is(t, asNobody(t, func() error { _, err := s.Stat(ctx, final); return err }), storage.ErrPermission)
}
