//go:build linux

package posix

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

const (
	staged = ".staging/a1.tif"
	final  = "landcover/33UXP/t.0123456789ab.cdef01234567.tif"
)

func TestMain(m *testing.M) {
	if root := os.Getenv("POSIX_TEST_PROMOTE"); root != "" {
		promoteAll(root)
		return
	}
	if root := os.Getenv("POSIX_TEST_LIST"); root != "" {
		listAll(root)
		return
	}
	os.Exit(m.Run())
}

func TestStore(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, t.TempDir()) })
}

// Without renames that refuse to replace, as on NFS.
func TestStoreNFS(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return likeNFS(open(t, t.TempDir())) })
}

// open opens the store under root, and makes it one.
func open(t testing.TB, root string) *Store {
	t.Helper()
	s, err := Open(t.Context(), root, Options{Init: true})
	ok(t, err)
	return s
}

func likeNFS(s *Store) *Store {
	rename := s.sys.rename
	s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
		if !replace {
			return unix.EINVAL
		}
		return rename(fromDir, from, toDir, to, true)
	}
	return s
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is fails unless err is want and says all of words.
func is(t testing.TB, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, expected %v", err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("%q does not say %q", err, word)
		}
	}
}

func exists(t testing.TB, s *Store, key string, want bool) {
	t.Helper()
	if _, err := os.Lstat(s.Location(key)); (err == nil) != want {
		t.Fatalf("%s is there: %v, expected %v (%v)", key, err == nil, want, err)
	}
}

func mode(t testing.TB, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	ok(t, err)
	if got := info.Mode() &^ fs.ModeDir; got != want {
		t.Fatalf("%s has mode %v, expected %v", path, got, want)
	}
}

func TestOpen(t *testing.T) {
	ctx, root := t.Context(), filepath.Join(t.TempDir(), "store")

	_, err := Open(ctx, root, Options{Init: true})
	is(t, err, storage.ErrSentinel, root, "is the volume mounted?")
	_, err = Open(ctx, root, Options{Create: true})
	is(t, err, storage.ErrSentinel, root+"/.catalogd/store.json", "is the volume mounted?")
	if errors.Is(err, storage.ErrNotExist) {
		t.Fatal("a missing sentinel passes for a missing object")
	}
	_, err = os.Lstat(root + "/.catalogd")
	is(t, err, fs.ErrNotExist)

	first, err := Open(ctx, root, Options{Create: true, Init: true})
	ok(t, err)
	again, err := Open(ctx, root, Options{})
	ok(t, err)
	if first.ID() != again.ID() || len(first.ID()) != 36 || first.ID()[14] != '4' {
		t.Fatalf("ids %q and %q", first.ID(), again.ID())
	}
	if got := storagetest.Keys(t, first, ".catalogd/"); !slices.Equal(got, []string{storage.SentinelKey}) {
		t.Fatalf("left behind: %q", got)
	}

	ok(t, os.WriteFile(root+"/"+storage.SentinelKey, []byte("{"), 0o644))
	_, err = Open(ctx, root, Options{Init: true})
	is(t, err, storage.ErrSentinel, "has no id")
}

func TestOpenAtOnce(t *testing.T) {
	root := t.TempDir()
	var wg sync.WaitGroup
	var ids [16]string
	for i := range ids {
		wg.Go(func() {
			if s, err := Open(t.Context(), root, Options{Init: true}); err != nil {
				t.Error(err)
			} else {
				ids[i] = s.ID()
			}
		})
	}
	wg.Wait()
	if got := slices.Compact(ids[:]); len(got) != 1 {
		t.Fatalf("ids %q", got)
	}
}

// A volume that goes away takes no object with it: nothing is reported absent.
func TestUnmounted(t *testing.T) {
	root := t.TempDir()
	unmount := func() {
		ok(t, os.Rename(root, root+".away"))
		ok(t, os.Mkdir(root, 0o755))
	}
	remount := func() {
		ok(t, os.Remove(root))
		ok(t, os.Rename(root+".away", root))
	}
	if mount(t, "catalogd", root, "tmpfs", 0, "") {
		unmount = func() { ok(t, unix.Unmount(root, 0)) } // and nothing keeps it busy
		remount = nil
	}
	s := open(t, root)
	storagetest.Put(t, s, final, "hello")
	ok(t, s.Sentinel(t.Context()))

	gone := func() {
		t.Helper()
		is(t, s.Sentinel(t.Context()), storage.ErrSentinel)
		_, err := s.Stat(t.Context(), final)
		is(t, err, storage.ErrSentinel)
		if errors.Is(err, storage.ErrNotExist) {
			t.Fatal("an object on a volume that is not mounted is reported absent")
		}
		is(t, s.PrepareStaging(t.Context(), staged, final), storage.ErrSentinel)
		is(t, s.Delete(t.Context(), final), storage.ErrSentinel)
		for _, err := range s.List(t.Context(), storage.Range{}) {
			is(t, err, storage.ErrSentinel)
		}
	}
	unmount()
	gone()
	other := open(t, root) // another store in its place
	storagetest.Put(t, other, "other/x", "")
	gone()
	if remount != nil {
		ok(t, os.RemoveAll(root+"/other"))
		ok(t, os.RemoveAll(root+"/.catalogd"))
		ok(t, os.RemoveAll(root+"/.staging"))
		remount()
		ok(t, s.Sentinel(t.Context()))
	}
}

// The same store under another device or inode is taken up.
func TestMountedAnew(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	storagetest.Put(t, s, final, "hello")
	ok(t, os.Rename(root, root+".away"))
	_, err := s.Stat(t.Context(), final)
	is(t, err, storage.ErrSentinel)
	ok(t, os.CopyFS(root, os.DirFS(root+".away")))
	_, err = s.Stat(t.Context(), final)
	ok(t, err)
}

// syncs records what is fsynced, relative to the root.
func syncs(s *Store) *[]string {
	var names []string
	var mu sync.Mutex
	fsync := s.sys.fsync
	s.sys.fsync = func(f *os.File) error {
		mu.Lock()
		defer mu.Unlock()
		name, _ := filepath.Rel(s.path, f.Name())
		names = append(names, name)
		return fsync(f)
	}
	return &names
}

func TestFsyncs(t *testing.T) {
	root := t.TempDir()
	ok(t, os.MkdirAll(root+"/landcover/33UXP", 0o755)) // by somebody who may have died before fsync
	s := open(t, root)
	got := syncs(s)
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(*got, want) {
			t.Fatalf("%s: fsyncs of %q, expected %q", what, *got, want)
		}
		*got = nil
	}
	promote := func(key string) string {
		t.Helper()
		print := storagetest.Stage(t, s, staged, key)
		ok(t, s.Promote(t.Context(), staged, key, print))
		return print
	}
	print := promote("landcover/33UXP/1.tif")
	expect("first", staged, ".", "landcover", "landcover/33UXP")
	promote("landcover/33UXP/2.tif")
	expect("second", staged, "landcover/33UXP")
	promote("landcover/33UXQ/3.tif")
	expect("new sibling", staged, "landcover", "landcover/33UXQ")
	promote("4.tif")
	expect("root", staged, ".")

	ok(t, s.Promote(t.Context(), staged, "landcover/33UXP/1.tif", print))
	expect("again", "landcover/33UXP/1.tif", "landcover/33UXP")
	f, err := s.Settle(t.Context(), "landcover/33UXP/1.tif")
	ok(t, err)
	f.Close()
	expect("settle", "landcover/33UXP/1.tif", "landcover/33UXP")

	ok(t, os.RemoveAll(root+"/landcover/33UXQ"))
	promote("landcover/33UXQ/3.tif")
	expect("directory made anew", staged, "landcover", "landcover/33UXQ")

	ok(t, s.Delete(t.Context(), "landcover/33UXQ/3.tif"))
	expect("delete", "landcover/33UXQ")

	s = open(t, root)
	got = syncs(s)
	f, err = s.Settle(t.Context(), "landcover/33UXP/1.tif")
	ok(t, err)
	f.Close()
	expect("settle in another process", "landcover/33UXP/1.tif", ".", "landcover", "landcover/33UXP")
}

// Promote fails at each call in turn, as if it had crashed there. The file is at
// one of its names, whole, and another process finishes.
func TestCrashAtEveryStep(t *testing.T) {
	crash := errors.New("crash")
	for _, nfs := range []bool{false, true} {
		for step := 0; ; step++ {
			s := open(t, t.TempDir())
			if nfs {
				likeNFS(s)
			}
			print := storagetest.Stage(t, s, staged, "hello")
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
			err := s.Promote(t.Context(), staged, final, print)
			_, atStaged := os.Lstat(s.Location(staged))
			_, atFinal := os.Lstat(s.Location(final))
			if (atStaged == nil) == (atFinal == nil) {
				t.Fatalf("step %d: staged: %v, final: %v", step, atStaged, atFinal)
			}
			again := open(t, s.path)
			ok(t, again.Promote(t.Context(), staged, final, print))
			if got := storagetest.Content(t, again, final); got != "hello" {
				t.Fatalf("step %d: %q", step, got)
			}
			if err == nil && left > 0 {
				break
			}
		}
	}
}

func TestFsyncFails(t *testing.T) {
	for _, name := range []string{staged, ".", "landcover", "landcover/33UXP"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			print := storagetest.Stage(t, s, staged, "hello")
			fsync := s.sys.fsync
			s.sys.fsync = func(f *os.File) error {
				if f.Name() == filepath.Join(s.path, name) {
					return pathError("sync", f.Name(), unix.EIO)
				}
				return fsync(f)
			}
			for range 2 { // a directory that failed is not taken for durable
				err := s.Promote(t.Context(), staged, final, print)
				is(t, err, storage.ErrSync, name)
				is(t, err, unix.EIO)
			}
			exists(t, s, final, name != staged)
		})
	}
	s := open(t, t.TempDir())
	print := storagetest.Stage(t, s, staged, "hello")
	s.sys.fsync = func(*os.File) error { return unix.EDQUOT } // NFS
	err := s.Promote(t.Context(), staged, final, print)
	is(t, err, storage.ErrSync)
	is(t, err, storage.ErrNoSpace)
}

// A rename whose reply was lost is sent again by NFS, and then finds nothing.
func TestRenameReplyLost(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EEXIST, unix.ETIMEDOUT} {
		s := open(t, t.TempDir())
		print := storagetest.Stage(t, s, staged, "hello")
		rename := s.sys.rename
		s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
			ok(t, rename(fromDir, from, toDir, to, replace))
			return errno
		}
		ok(t, s.Promote(t.Context(), staged, final, print))
	}
}

// What vanished under the rename may be the directory, so it is not ErrNotExist.
func TestRenameVanishes(t *testing.T) {
	s := open(t, t.TempDir())
	print := storagetest.Stage(t, s, staged, "hello")
	rename := s.sys.rename
	s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
		ok(t, os.Remove(toDir.Name()))
		return rename(fromDir, from, toDir, to, replace)
	}
	err := s.Promote(t.Context(), staged, final, print)
	if err == nil || errors.Is(err, storage.ErrNotExist) {
		t.Fatalf("got error %v", err)
	}
	exists(t, s, staged, true)
}

// Errors that have no meaning of their own stay unknown.
func TestUnknownErrors(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ESTALE, unix.EIO, unix.ENXIO, unix.ETIMEDOUT} {
		s := open(t, t.TempDir())
		print := storagetest.Stage(t, s, staged, "hello")
		s.sys.rename = func(*dir, string, *dir, string, bool) error { return errno }
		err := s.Promote(t.Context(), staged, final, print)
		is(t, err, errno)
		for _, known := range []error{
			storage.ErrNotExist, storage.ErrExist, storage.ErrChanged, storage.ErrCrossDevice, storage.ErrNoSpace, storage.ErrReadOnly,
			storage.ErrPermission, storage.ErrSync, storage.ErrNotRegular, storage.ErrLinked, storage.ErrName, storage.ErrSentinel,
		} {
			if errors.Is(err, known) {
				t.Fatalf("%v passes for %v", err, known)
			}
		}
	}
}

func TestChangedMeanwhile(t *testing.T) {
	grow := func(path string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		ok(t, err)
		defer f.Close()
		_, err = f.WriteString("!")
		ok(t, err)
	}
	t.Run("touched", func(t *testing.T) {
		s := open(t, t.TempDir())
		print := storagetest.Stage(t, s, staged, "hello")
		ok(t, os.Chtimes(s.Location(staged), time.Time{}, time.Unix(1, 0)))
		is(t, s.Promote(t.Context(), staged, final, print), storage.ErrChanged)
		exists(t, s, final, false)
	})
	t.Run("while synced", func(t *testing.T) {
		s := open(t, t.TempDir())
		print := storagetest.Stage(t, s, staged, "hello")
		s.sys.fsync = func(*os.File) error { grow(s.Location(staged)); return nil }
		is(t, s.Promote(t.Context(), staged, final, print), storage.ErrChanged)
		exists(t, s, final, false)
	})
	t.Run("while renamed", func(t *testing.T) {
		s := open(t, t.TempDir())
		print := storagetest.Stage(t, s, staged, "hello")
		rename := s.sys.rename
		s.sys.rename = func(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
			grow(s.Location(staged))
			return rename(fromDir, from, toDir, to, replace)
		}
		is(t, s.Promote(t.Context(), staged, final, print), storage.ErrChanged, "at its final name already")
	})
}

const (
	processes = 4
	attempts  = 50
)

func attempt(i int) (staged, final string) {
	return fmt.Sprintf(".staging/%02d.tif", i), fmt.Sprintf("landcover/%d/%02d.tif", i%7, i)
}

// Several processes promote the same attempts at the same moment.
func TestPromoteManyProcesses(t *testing.T) {
	s := open(t, t.TempDir())
	var prints strings.Builder
	for i := range attempts {
		name, _ := attempt(i)
		fmt.Fprintln(&prints, storagetest.Stage(t, s, name, name))
	}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "POSIX_TEST_PROMOTE="+s.path)
			cmd.Stdin = strings.NewReader(prints.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if got := storagetest.Keys(t, s, "landcover/"); len(got) != attempts {
		t.Fatalf("%d objects: %q", len(got), got)
	}
	for i := range attempts {
		name, key := attempt(i)
		if got := storagetest.Content(t, s, key); got != name {
			t.Fatalf("%s holds %q", key, got)
		}
	}
}

// promoteAll is what each of the processes does.
func promoteAll(root string) {
	ctx := context.Background()
	s, err := Open(ctx, root, Options{})
	lines := bufio.NewScanner(os.Stdin)
	for i := 0; err == nil && lines.Scan(); i++ {
		staged, final := attempt(i)
		err = s.Promote(ctx, staged, final, lines.Text())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func TestStagedIsHostile(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	outside := filepath.Join(t.TempDir(), "secret")
	ok(t, os.WriteFile(outside, []byte("secret"), 0o644))
	storagetest.Put(t, s, final, "hello")
	at := func(name string) string { return s.Location(storage.StagingPrefix + name) }
	ok(t, os.Symlink(outside, at("symlink")))
	ok(t, os.Symlink(s.Location(final), at("inward")))
	ok(t, os.Symlink("nowhere", at("dangling")))
	ok(t, os.Symlink(filepath.Dir(outside), at("dirlink")))
	ok(t, unix.Mkfifo(at("fifo"), 0o644))
	ok(t, os.Mkdir(at("dir"), 0o755))
	socket, err := net.Listen("unix", socketPath(t, at("socket")))
	ok(t, err)
	defer socket.Close()
	ok(t, os.Link(s.Location(final), at("linked")))

	for name, want := range map[string]error{
		"symlink": storage.ErrNotRegular, "inward": storage.ErrNotRegular, "dangling": storage.ErrNotRegular,
		"fifo": storage.ErrNotRegular, "dir": storage.ErrNotRegular, "socket": storage.ErrNotRegular,
		"linked": storage.ErrLinked, "dirlink/secret": storage.ErrName, "linked/x": storage.ErrNotExist,
	} {
		key := storage.StagingPrefix + name
		_, err := s.OpenStaged(ctx, key)
		is(t, err, want)
		is(t, s.Promote(ctx, key, "landcover/new.tif", "x"), want)
	}
	exists(t, s, "landcover/new.tif", false)
	if got := storagetest.Keys(t, s, ".staging/"); !slices.Equal(got, []string{".staging/linked"}) {
		t.Fatalf("listed: %q", got)
	}

	// An upload replaces the name, and never writes through it.
	storagetest.Stage(t, s, ".staging/symlink", "upload")
	if got, err := os.ReadFile(outside); err != nil || string(got) != "secret" {
		t.Fatalf("%q %v", got, err)
	}
}

// socketPath makes path short, through a descriptor of its directory: sockets have
// names of at most 108 bytes.
func socketPath(t *testing.T, path string) string {
	t.Helper()
	d, err := os.Open(filepath.Dir(path))
	ok(t, err)
	t.Cleanup(func() { d.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(path))
}

func TestSymlinksInDataPaths(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	outside := t.TempDir()
	ok(t, os.WriteFile(outside+"/x.tif", nil, 0o644))
	ok(t, os.Symlink(outside, s.Location("out")))
	storagetest.Put(t, s, "a/x.tif", "hello")
	ok(t, os.Symlink("a", s.Location("in")))
	ok(t, os.Symlink("x.tif", s.Location("a/y.tif")))
	print := storagetest.Stage(t, s, staged, "hello")
	for _, d := range []string{"out", "in"} {
		_, err := s.Stat(ctx, d+"/x.tif")
		is(t, err, storage.ErrName, "symbolic link")
		_, _, err = s.Open(ctx, d+"/x.tif")
		is(t, err, storage.ErrName)
		_, err = s.Settle(ctx, d+"/x.tif")
		is(t, err, storage.ErrName)
		is(t, s.Delete(ctx, d+"/x.tif"), storage.ErrName)
		is(t, s.Promote(ctx, staged, d+"/new.tif", print), storage.ErrName)
		is(t, s.PrepareStaging(ctx, staged, d+"/new.tif"), storage.ErrName)
	}
	_, err := s.Stat(ctx, "a/y.tif")
	is(t, err, storage.ErrNotRegular)
	_, _, err = s.Open(ctx, "a/y.tif")
	is(t, err, storage.ErrNotRegular)
	if got := storagetest.Keys(t, s, ""); !slices.Equal(got, []string{"a/x.tif"}) {
		t.Fatalf("listed: %q", got)
	}
	// The root itself may be one.
	link := filepath.Join(t.TempDir(), "link")
	ok(t, os.Symlink(s.path, link))
	if open(t, link).ID() != s.ID() {
		t.Fatal("another store")
	}
}

func TestFileInPlaceOfDirectory(t *testing.T) {
	s := open(t, t.TempDir())
	storagetest.Put(t, s, "a", "")
	_, err := s.Stat(t.Context(), "a/x.tif")
	is(t, err, storage.ErrNotExist)
	ok(t, s.Delete(t.Context(), "a/x.tif"))
	print := storagetest.Stage(t, s, staged, "hello")
	is(t, s.Promote(t.Context(), staged, "a/x.tif", print), storage.ErrExist)
	exists(t, s, staged, true)
	is(t, s.Promote(t.Context(), staged, "b/"+strings.Repeat("x", 300), print), storage.ErrName)
}

func TestModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	root := t.TempDir()
	s := open(t, root)
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	storagetest.Put(t, s, final, "hello")
	mode(t, root+"/.staging", fs.ModeSticky|0o777)
	mode(t, root+"/.staging/in", fs.ModeSticky|0o777)
	mode(t, root+"/landcover", 0o750)
	mode(t, root+"/"+final, 0o440) // what is final is not for writing
	mode(t, root+"/"+storage.SentinelKey, 0o640)

	s, err := Open(t.Context(), t.TempDir(), Options{Init: true, StagingMode: fs.ModeSetgid | 0o770})
	ok(t, err)
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	mode(t, s.Location(".staging/in"), fs.ModeSetgid|0o770)
	ok(t, os.Chmod(s.Location(".staging/in"), 0o700))
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	mode(t, s.Location(".staging/in"), 0o700) // the operator's choice stands
}

func TestListing(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	var want []string
	for i := range 3000 { // more than one batch
		key := fmt.Sprintf("big/%04d.tif", i)
		want = append(want, key)
		ok(t, os.MkdirAll(s.Location("big"), 0o755))
		ok(t, os.WriteFile(s.Location(key), nil, 0o644))
	}
	ok(t, os.Mkdir(s.Location("lost+found"), 0o700))
	ok(t, os.WriteFile(s.Location("lost+found/x"), nil, 0o644))
	ok(t, os.Mkdir(s.Location(".trash"), 0o755))
	ok(t, os.WriteFile(s.Location(".trash/x"), nil, 0o644))
	ok(t, unix.Mkfifo(s.Location("fifo"), 0o644))
	ok(t, s.Link(ctx, "x.tif", want[0]))
	if got := storagetest.Keys(t, s, ""); !slices.Equal(got, want) {
		t.Fatalf("got %d: %.10q", len(got), got)
	}
	if got := storagetest.Keys(t, s, ".trash/"); !slices.Equal(got, []string{".trash/x"}) {
		t.Fatalf("got %q", got)
	}
	ok(t, s.Delete(ctx, ".trash/x"))

	// What vanishes meanwhile is no error.
	seen := 0
	for o, err := range s.List(ctx, storage.Range{}) {
		ok(t, err)
		if o.Key == want[0] {
			for _, key := range want[1:] {
				ok(t, os.Remove(s.Location(key)))
			}
		}
		seen++
	}
	if seen != 1 {
		t.Fatalf("%d objects", seen)
	}
}

func TestLinks(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	storagetest.Put(t, s, final, "hello")
	const stable = "landcover/33UXP/t.tif"
	ok(t, s.Link(ctx, stable, final))
	got, err := os.ReadFile(s.Location("current/" + stable))
	if err != nil || string(got) != "hello" {
		t.Fatalf("%q %v", got, err)
	}
	ok(t, s.Link(ctx, "t.tif", final))
	target, err := os.Readlink(s.Location("current/t.tif"))
	if err != nil || target != "../"+final {
		t.Fatalf("%q %v", target, err)
	}
	entries, err := os.ReadDir(s.Location("current"))
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v %v", entries, err)
	}

	// Not of catalogd's making: said, and replaced.
	for _, bad := range []string{"/etc/passwd", "../../../../etc/passwd", final, "../../../.catalogd/store.json"} {
		ok(t, os.Remove(s.Location("current/"+stable)))
		ok(t, os.Symlink(bad, s.Location("current/"+stable)))
		_, err := s.Linked(ctx, stable)
		is(t, err, storage.ErrName)
	}
	ok(t, s.Link(ctx, stable, final))
	ok(t, os.WriteFile(s.Location("current/file"), nil, 0o644))
	_, err = s.Linked(ctx, "file")
	is(t, err, storage.ErrName, "not a symbolic link")
	// A directory is not.
	if err := s.Link(ctx, "landcover", final); err == nil {
		t.Fatal("a link replaced a directory")
	}
	entries, err = os.ReadDir(s.Location("current"))
	if err != nil || len(entries) != 3 {
		t.Fatalf("left behind: %v %v", entries, err)
	}
}

// All that is a link is listed, where it leads only if that can be an output; what is not
// one, or is being renamed, is left out. What may not be read ends the listing.
func TestLinksAreListed(t *testing.T) {
	root := t.TempDir()
	ok(t, os.Chmod(filepath.Dir(root), 0o755))
	s := open(t, root)
	list := func() (links []string, err error) {
		for l, err := range s.Links(t.Context()) {
			if err != nil {
				return links, err
			}
			links = append(links, l.Stable+" "+l.Key)
		}
		return links, nil
	}
	links, err := list() // no tree yet
	ok(t, err)
	if len(links) > 0 {
		t.Fatalf("%q", links)
	}
	for _, stable := range []string{"a/x.tif", "a.tif", "a/\xff.tif", "b/c/x.tif"} {
		ok(t, s.Link(t.Context(), stable, final))
	}
	for name, target := range map[string]string{
		"absolute": "/etc/passwd", "out": "../../x", "own": "../.catalogd/store.json", "root": "../", "deep/x": "../" + final, tempLink + "x": "../" + final,
	} {
		ok(t, os.MkdirAll(filepath.Dir(s.Location("current/"+name)), 0o755))
		ok(t, os.Symlink(target, s.Location("current/"+name)))
	}
	ok(t, os.WriteFile(s.Location("current/file"), nil, 0o644))
	links, err = list()
	ok(t, err)
	want := []string{
		"a.tif " + final, "a/x.tif " + final, "a/\xff.tif " + final, "absolute ", "b/c/x.tif " + final, "deep/x ", "out ", "own ", "root ",
	}
	if !slices.Equal(links, want) {
		t.Fatalf("got %q, expected %q", links, want)
	}
	for l, err := range s.Links(t.Context()) { // as Linked says
		ok(t, err)
		if key, err := s.Linked(t.Context(), l.Stable); key != l.Key || (err == nil) != (key != "") {
			t.Errorf("%s leads to %q, listed %q: %v", l.Stable, key, l.Key, err)
		}
	}
	ok(t, os.Chmod(s.Location("current/b"), 0))
	defer os.Chmod(s.Location("current/b"), 0o755)
	is(t, asNobody(t, func() error { _, err := list(); return err }), storage.ErrPermission, "current/b is mode 0000")
}

func TestLocation(t *testing.T) {
	s := open(t, t.TempDir())
	if got := s.Location(final); got != s.path+"/"+final || !filepath.IsAbs(got) {
		t.Fatal(got)
	}
	if got := s.Location("../x"); got != "" {
		t.Fatal(got)
	}
}

// No call keeps a descriptor, nor the volume busy.
func TestDescriptors(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		ok(t, err)
		return len(entries)
	}
	s := open(t, t.TempDir())
	ctx := t.Context()
	all := func() {
		storagetest.Put(t, s, final, "hello")
		storagetest.Put(t, s, "a", "")
		s.Promote(ctx, staged, "a/x", "x")
		s.Promote(ctx, ".staging/none/x", "b", "x")
		print := storagetest.Stage(t, s, staged, "hello")
		s.Promote(ctx, staged, "a/x", print)
		s.Promote(ctx, staged, final, print)
		s.Promote(ctx, staged, final, "x")
		s.PrepareStaging(ctx, staged, "c/d/e")
		s.PrepareStaging(ctx, staged, "a/d/e")
		s.OpenStaged(ctx, ".staging")
		s.Settle(ctx, "none")
		s.Settle(ctx, "landcover")
		s.Open(ctx, "landcover")
		s.Link(ctx, "x/y", final)
		s.Linked(ctx, "x/y")
		s.Linked(ctx, "x/z")
		s.Linked(ctx, "x")
		s.Unlink(ctx, "x/y", "x/z", "y")
		s.Existing(ctx, []string{"a/x", "a/y"})
		storagetest.Keys(t, s, "")
		storagetest.Keys(t, s, "none/")
		for range s.List(ctx, storage.Under("landcover/")) {
			break
		}
		s.Sentinel(ctx)
		s.Delete(ctx, "a/x/y")
		s.Delete(ctx, final)
		s.Delete(ctx, "a")
		Open(ctx, s.path, Options{Init: true, Create: true})
	}
	all()
	before := count()
	all()
	if after := count(); after != before {
		t.Fatalf("%d descriptors, then %d", before, after)
	}
}

// What was moved into the store lately is new there, however old its content.
func TestModifiedIsWhenItCame(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	storagetest.Stage(t, s, staged, "hello")
	old := time.Now().Add(-72 * time.Hour)
	ok(t, os.Chtimes(root+"/"+staged, old, old))
	for o, err := range s.List(t.Context(), storage.Under(storage.StagingPrefix)) {
		ok(t, err)
		if time.Since(o.Modified) > time.Hour {
			t.Errorf("%s, staged just now, is from %v", o.Key, o.Modified)
		}
	}
}

// Few names are read, many asked for one by one: the answer is the same.
func TestExistingAmongFewAndMany(t *testing.T) {
	s := open(t, t.TempDir())
	ask := func() (found []string) {
		t.Helper()
		objects, err := s.Existing(t.Context(), []string{".staging/b", ".staging/absent", ".staging/a", ".staging/link"})
		ok(t, err)
		for _, o := range objects {
			found = append(found, o.Key)
		}
		return found
	}
	for i := range 600 {
		storagetest.Stage(t, s, fmt.Sprintf(".staging/%036d.tif", i), "")
		if i != 1 && i != 599 {
			continue
		}
		_ = os.Remove(s.Location(".staging/link"))
		ok(t, os.Symlink("a", s.Location(".staging/link")))
		storagetest.Stage(t, s, ".staging/a", "hello")
		storagetest.Stage(t, s, ".staging/b", "hello")
		if found := ask(); !slices.Equal(found, []string{".staging/b", ".staging/a"}) {
			t.Fatalf("of %d files, found %q", i+3, found)
		}
	}
}
