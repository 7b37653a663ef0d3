package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
)

// visit makes the checks of a store alone, and sees that it is left as it was.
func visit(t testing.TB, e *exam) []Finding {
	t.Helper()
	dir := strings.TrimPrefix(e.Stores[0].URL, "file://")
	before := tree(t, dir)
	e.directory(e.Stores[0])
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
	return e.findings
}

func tree(t testing.TB, root string) (names []string) {
	t.Helper()
	_ = filepath.WalkDir(root, func(path string, _ os.DirEntry, _ error) error {
		names = append(names, path)
		return nil
	})
	return names
}

func examOf(dir string) *exam {
	return newExam(Config{Stores: []Store{{URL: "file://" + dir, Root: "file://" + dir}}})
}

// made is a store as a server makes it, with a collection.
func made(t testing.TB) *posix.Store {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogd-doctor-")
	ok(t, err)
	ok(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return fill(t, dir)
}

func fill(t testing.TB, dir string) *posix.Store {
	t.Helper()
	s, err := posix.Open(t.Context(), dir, posix.Options{Init: true})
	ok(t, err)
	ok(t, s.PrepareStaging(t.Context(), storage.IncomingPrefix+"x", "landcover/x"))
	ok(t, os.Mkdir(filepath.Join(dir, "landcover"), 0o755))
	return s
}

func root1(s *posix.Store) string { return strings.TrimSuffix(s.Location("x"), "/x") }

// mounted mounts for the test; false where this user may not.
func mounted(t testing.TB, source, target, fsType string, flags uintptr, data string) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	ok(t, unix.Mount(source, target, fsType, flags, data))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	return true
}

func TestStore(t *testing.T) {
	s := made(t)
	e := examOf(root1(s))
	e.stores = map[string]string{s.ID(): e.Stores[0].Root}
	found := visit(t, e)
	for _, check := range []string{"store", "staging", "ownership", "names", "rename", "fsync", "symlinks"} {
		want(t, found, check, OK)
	}
	want(t, found, "sentinel", OK, "as in the catalogue")
	want(t, found, "staging", OK, "1 directories")

	// A root where no server was yet.
	e = examOf(t.TempDir())
	e.stores = map[string]string{}
	found = visit(t, e)
	want(t, found, "sentinel", OK, "none yet")
	want(t, found, "staging", OK)

	// No root.
	found = visit(t, examOf("/nowhere/at/all"))
	want(t, found, "store", Lacks, "mount the volume")
	if len(found) != 1 {
		t.Errorf("%+v", found)
	}
	name := filepath.Join(t.TempDir(), "file")
	ok(t, os.WriteFile(name, nil, 0o644))
	want(t, visit(t, examOf(name)), "store", Lacks, "no directory")
}

func TestSentinel(t *testing.T) {
	s := made(t)
	dir, bare := root1(s), t.TempDir()
	here := "file://" + dir
	for _, test := range []struct {
		root   string
		stores map[string]string
		status Status
		word   string
	}{
		{dir, nil, OK, s.ID()},
		{dir, map[string]string{s.ID(): "file:///elsewhere"}, OK, "it moves"},
		{dir, map[string]string{}, Warn, "adds it"},
		{dir, map[string]string{"other": here}, Lacks, "knows this root as store other"},
		{bare, nil, Warn, "--database-url"},
		{bare, map[string]string{"other": here}, Lacks, "--init-store"},
		{bare, map[string]string{"other": "file://" + bare}, Lacks, "mount the volume"},
	} {
		e := examOf(test.root)
		e.stores = test.stores
		want(t, visit(t, e), "sentinel", test.status, test.word)
	}
	ok(t, os.WriteFile(filepath.Join(dir, storage.SentinelKey), []byte("{}"), 0o644))
	want(t, visit(t, examOf(dir)), "sentinel", Lacks, "has no id")
}

// Small, read-only and second filesystems, real ones where this is root.
func TestMounts(t *testing.T) {
	for _, test := range []struct {
		data, check string
		status      Status
		words       []string
	}{
		{"size=20g,nr_inodes=1000000", "space", OK, nil},
		{"size=1g,nr_inodes=1000000", "space", Warn, []string{"1.0 GiB free"}},
		{"size=1m", "space", Lacks, []string{"store_full"}},
		{"size=20g,nr_inodes=500", "space", Lacks, []string{"inodes"}},
		{"size=20g", "mount", Warn, []string{"tmpfs", "in memory"}},
	} {
		dir := t.TempDir()
		if mounted(t, "catalogd", dir, "tmpfs", 0, test.data) {
			want(t, visit(t, examOf(dir)), test.check, test.status, test.words...)
		}
	}

	// A collection, and something deeper, on mounts of their own.
	for _, below := range []string{"landcover", "landcover/deep"} {
		s := made(t)
		target := s.Location(below)
		ok(t, os.MkdirAll(target, 0o755))
		if mounted(t, "catalogd", target, "tmpfs", 0, "") {
			want(t, visit(t, examOf(root1(s))), "staging", Lacks, "another mount", target)
		}
	}
	s := made(t)
	if mounted(t, t.TempDir(), s.Location("landcover"), "", unix.MS_BIND, "") { // one filesystem, two mounts
		want(t, visit(t, examOf(root1(s))), "staging", Lacks, "another mount")
	}

	s = made(t)
	if mounted(t, root1(s), root1(s), "", unix.MS_BIND, "") {
		ok(t, unix.Mount("", root1(s), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		found := visit(t, examOf(root1(s)))
		want(t, found, "mount", Lacks, "read-only")
		want(t, found, "store", Lacks, "cannot be written to")
		want(t, found, "staging", Lacks)
	}
}

// asNobody calls do without root's rights, on a thread that ends with it.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, 65534, 65534, 65534); errno != 0 {
				done <- errno
				return
			}
		}
		do()
		done <- nil
	}()
	ok(t, <-done)
}

// A store that another user made.
func TestAnothersStore(t *testing.T) {
	if os.Geteuid() != 0 {
		return // root alone can be others
	}
	s := made(t)
	var found []Finding
	examine := func() {
		e := examOf(root1(s))
		asNobody(t, func() { e.directory(e.Stores[0]) })
		found = e.findings
	}
	examine()
	want(t, found, "store", Lacks, "mode 0755 of uid 0; this is uid 65534", "chown 65534")
	want(t, found, "staging", Lacks, "sticky bit", "chown 65534")

	for _, dir := range []string{"", ".staging", ".staging/in"} {
		ok(t, os.Chown(filepath.Join(root1(s), dir), 65534, 65534))
	}
	examine()
	want(t, found, "store", OK)
	want(t, found, "staging", Lacks, "landcover cannot be written to")
	want(t, found, "ownership", OK, "uid 65534")

	ok(t, os.Chown(s.Location("landcover"), 65534, 65534))
	examine()
	want(t, found, "staging", OK)
	ok(t, os.Chmod(filepath.Join(root1(s), ".staging/in"), 0o755))
	examine()
	want(t, found, "staging", Warn, "chmod 1777")
	ok(t, os.Chmod(filepath.Join(root1(s), ".staging"), 0o555))
	examine()
	want(t, found, "staging", Lacks, "permission denied")
}

func TestUmask(t *testing.T) {
	s := made(t)
	old := unix.Umask(0o077)
	found := visit(t, examOf(root1(s)))
	unix.Umask(old)
	want(t, found, "ownership", Warn, "umask 022")
	if status, found, remedy := judgeOwner(0, 65534, 0o644); status != Lacks || !strings.Contains(found+remedy, "root_squash") {
		t.Errorf("squashed: %s %s %s", status, found, remedy)
	}
}

// What no filesystem at hand does wrong.
func TestFilesystemsOfAnotherKind(t *testing.T) {
	s := made(t)
	for check, test := range map[string]struct {
		spoil  func(*system)
		status Status
	}{
		"fsync":    {func(s *system) { s.fsync = func(*os.File) error { return unix.EIO } }, Lacks},
		"symlinks": {func(s *system) { s.symlink = func(_, _ string) error { return unix.EPERM } }, Warn},
		"rename":   {func(s *system) { s.rename = func(_, _ string, _ uint) error { return unix.EACCES } }, Lacks},
	} {
		e := examOf(root1(s))
		test.spoil(&e.sys)
		want(t, visit(t, e), check, test.status)
	}

	real := examOf("").sys.rename
	nfs := examOf(root1(s))
	nfs.sys.rename = func(from, to string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		return real(from, to, 0)
	}
	want(t, visit(t, nfs), "rename", OK, "as on NFS")
	careless := examOf(root1(s))
	careless.sys.rename = func(from, to string, _ uint) error { return real(from, to, 0) }
	want(t, visit(t, careless), "rename", Lacks, "has replaced")

	r := &root{exam: examOf("")}
	r.judgeNames([]string{"A.tif", "a.tif"}, []string{"a.tif"}, nil)
	want(t, r.findings, "names", Lacks, "upper case")
	r = &root{exam: examOf("")}
	r.judgeNames(nil, nil, errors.New("stale file handle"))
	want(t, r.findings, "names", Lacks, "stale")
}

// Lines as kernels write them.
const mountinfo = `26 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
60 26 0:50 / /mnt rw - tmpfs none rw
61 60 0:51 / /mnt/good rw,relatime shared:1 - nfs4 srv:/export/good rw,vers=4.2,rsize=1048576,hard,proto=tcp,timeo=600,lookupcache=pos,local_lock=none
62 60 0:52 / /mnt/soft rw,relatime - nfs srv:/soft rw,vers=3,soft,nolock,proto=tcp,local_lock=all
63 60 0:53 / /mnt/none rw - nfs4 srv:/none rw,hard,lookupcache=none
64 60 0:54 / /mnt/ro ro - nfs4 srv:/ro rw,hard,lookupcache=none
65 60 0:55 / /mnt/with\040blank rw - fuse.sshfs me@there: rw
66 61 0:56 / /mnt/good/landcover rw - ext4 /dev/vdb rw
67 26 0:57 / /mnt/covered rw - ext4 /dev/vdc rw
68 26 0:58 / /mnt/covered rw - xfs /dev/vdd rw
69 26 0:59 / /layer rw - overlay overlay rw
nonsense
`

func TestMountOptions(t *testing.T) {
	for _, test := range []struct {
		path   string
		status Status
		words  []string
	}{
		{"/srv/x", OK, []string{"ext4, /dev/vda on /"}},
		{"/mnt/good", OK, []string{"nfs4", "export says sync"}},
		{"/mnt/goodness", Warn, []string{"tmpfs"}},
		{"/mnt/soft/store", Warn, []string{"soft", "nolock", "hard,lock,lookupcache=positive"}},
		{"/mnt/none", OK, nil},
		{"/mnt/ro", Lacks, []string{"read-only"}},
		{"/mnt/with blank/store", Warn, []string{"fuse.sshfs", "not tested"}},
		{"/mnt/covered", OK, []string{"xfs"}},
		{"/layer/store", Warn, []string{"container"}},
	} {
		m, err := parseMounts(mountinfo, test.path)
		ok(t, err)
		found, status, remedy := m.of.judge()
		want(t, []Finding{{"mount", status, found, remedy}}, "mount", test.status, test.words...)
	}
	m, err := parseMounts(mountinfo, "/mnt/good")
	if err != nil || len(m.below) != 1 || m.below[0].point != "/mnt/good/landcover" {
		t.Errorf("below: %+v, %v", m.below, err)
	}
	if _, err := parseMounts("", "/x"); err == nil {
		t.Error("no mount, and no error")
	}
}

func TestListen(t *testing.T) {
	listen := func(address string) []Finding {
		e := &exam{Config: Config{Listen: address, now: time.Now}}
		e.listen(context.Background())
		return e.findings
	}
	want(t, listen("127.0.0.1:0"), "listen", OK, "is free")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	go func() {
		for {
			conn, err := taken.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer taken.Close()
	want(t, listen(taken.Addr().String()), "listen", Lacks, "not by a catalogd")
	want(t, listen("192.0.2.1:80"), "listen", Lacks, "--listen")
	want(t, listen("nonsense"), "listen", Lacks)
}
