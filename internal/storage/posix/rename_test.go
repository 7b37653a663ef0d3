//go:build linux

package posix

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

const trashed = storage.TrashPrefix + "1/" + final

// Rename fails at each call in turn, as if it had crashed there. The file is at one of
// its names, whole, and another process finishes.
func TestRenameCrashAtEveryStep(t *testing.T) {
	crash := errors.New("crash")
	for _, nfs := range []bool{false, true} {
		for step := 0; ; step++ {
			s := open(t, t.TempDir())
			if nfs {
				likeNFS(s)
			}
			storagetest.Put(t, s, final, "hello")
			left := step
			next := func() error {
				if left--; left < 0 {
					return crash
				}
				return nil
			}
			real := s.sys
			s.sys.fsync = func(f *os.File) error {
				if err := next(); err != nil {
					return err
				}
				return real.fsync(f)
			}
			s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
				if err := next(); err != nil {
					return err
				}
				if err := real.rename(fromDir, from, toDir, to, replace); err != nil {
					return err
				}
				return next() // done, but the reply was lost
			}
			err := s.Rename(t.Context(), final, trashed)
			_, atFrom := os.Lstat(s.Location(final))
			_, atTo := os.Lstat(s.Location(trashed))
			if (atFrom == nil) == (atTo == nil) {
				t.Fatalf("step %d: from: %v, to: %v", step, atFrom, atTo)
			}
			again := open(t, s.path)
			ok(t, again.Rename(t.Context(), final, trashed))
			exists(t, again, final, false)
			if got := storagetest.Content(t, again, trashed); got != "hello" {
				t.Fatalf("step %d: %q", step, got)
			}
			if err == nil && left > 0 {
				break
			}
		}
	}
}

// Both directories are synced, also by a repetition: who renamed may have died before.
func TestRenameFsyncs(t *testing.T) {
	s := open(t, t.TempDir())
	storagetest.Put(t, s, final, "hello")
	got := syncs(s)
	for _, want := range [][]string{
		{final, ".", ".trash", ".trash/1", ".trash/1/landcover", ".trash/1/landcover/33UXP", "landcover/33UXP"},
		{trashed, ".trash/1/landcover/33UXP", "landcover/33UXP"},
	} {
		ok(t, s.Rename(t.Context(), final, trashed))
		if !slices.Equal(*got, want) {
			t.Fatalf("fsyncs of %q, expected %q", *got, want)
		}
		*got = nil
	}
}

// A crash may bring the old name back, as a second one of the file: it is removed.
func TestRenameOldNameIsBack(t *testing.T) {
	for _, s := range []*Store{open(t, t.TempDir()), likeNFS(open(t, t.TempDir()))} {
		storagetest.Put(t, s, final, "hello")
		ok(t, s.Rename(t.Context(), final, trashed))
		ok(t, os.Link(s.Location(trashed), s.Location(final)))
		ok(t, s.Rename(t.Context(), final, trashed))
		exists(t, s, final, false)
		if got := storagetest.Content(t, s, trashed); got != "hello" {
			t.Fatal(got)
		}
		// The same bytes in another file are something else.
		storagetest.Put(t, s, final, "hello")
		is(t, s.Rename(t.Context(), final, trashed), storage.ErrExist)
		exists(t, s, final, true)
	}
}

// A rename whose reply was lost is sent again by NFS, and then finds nothing.
func TestRenameToTrashReplyLost(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EEXIST, unix.ETIMEDOUT} {
		s := open(t, t.TempDir())
		storagetest.Put(t, s, final, "hello")
		s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
			ok(t, renameat(fromDir, from, toDir, to, replace))
			return errno
		}
		ok(t, s.Rename(t.Context(), final, trashed))
		exists(t, s, trashed, true)
	}
}

// A trash on another filesystem is told as that, and nothing is moved; nor is anything
// where two names are one file because a directory is mounted twice.
func TestRenameCrossDevice(t *testing.T) {
	for _, bound := range []bool{false, true} {
		s := open(t, t.TempDir())
		storagetest.Put(t, s, final, "hello")
		to := s.Location(storage.TrashPrefix + "1/landcover/33UXP")
		ok(t, os.MkdirAll(to, 0o755))
		mounted := bound && mount(t, filepath.Dir(s.Location(final)), to, "", unix.MS_BIND, "") ||
			!bound && mount(t, "catalogd", to, "tmpfs", 0, "size=1m")
		if !mounted {
			failRename(s, unix.EXDEV)
		}
		if mounted && bound { // and where a look says that the name is taken
			is(t, likeNFS(open(t, s.path)).Rename(t.Context(), final, trashed), storage.ErrExist)
			exists(t, s, final, true)
		}
		ok(t, os.Link(s.Location(final), s.Location("another.tif")))
		is(t, s.Rename(t.Context(), final, trashed), storage.ErrCrossDevice)
		exists(t, s, final, true)
	}
}
