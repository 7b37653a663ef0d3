//go:build linux

package posix

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

// Listing one directory of 300,000 names takes no more memory than listing one of 10,000
// as often as it takes to see as many; and they come in order.
func TestListingMemory(t *testing.T) {
	const most = 300_000
	peak := func(names int) float64 {
		root := t.TempDir()
		open(t, root)
		fill(t, root+"/flat", names)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "POSIX_TEST_LIST="+root, fmt.Sprint("POSIX_TEST_LIST_N=", most), "GOGC=100", "GOMEMLIMIT=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var got int
		var peak float64
		if _, err := fmt.Sscan(string(out), &got, &peak); err != nil || got != most {
			t.Fatalf("%q: %v", out, err)
		}
		return peak
	}
	few, many := peak(10_000), peak(most)
	t.Logf("%.1f MiB with 10,000 names, %.1f with 300,000", few/1024, many/1024)
	if many > 1.2*few {
		t.Errorf("%.1f MiB with 10,000 names, %.1f with 300,000", few/1024, many/1024)
	}
}

// fill makes a directory of that many files, which are few with many links: that is quicker.
func fill(t *testing.T, dir string, names int) {
	t.Helper()
	ok(t, os.MkdirAll(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	ok(t, err)
	defer unix.Close(fd)
	const links = 50_000
	first := ""
	for i := range names {
		name := fmt.Sprintf("t%07d.0123456789ab.cdef01234567.tif", (i*7919)%names)
		if i%links == 0 {
			first = name
			ok(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		} else {
			ok(t, unix.Linkat(fd, first, fd, name, 0))
		}
	}
}

// listAll is the child: it lists the store until it has seen so many objects, and prints
// how many, and the peak of its memory in KiB.
func listAll(root string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	s, err := Open(ctx, root, Options{})
	fail(err)
	most, err := strconv.Atoi(os.Getenv("POSIX_TEST_LIST_N"))
	fail(err)
	n := 0
	for n < most {
		before, last := n, ""
		for o, err := range s.List(ctx, storage.Under("")) {
			fail(err)
			if o.Key <= last {
				fail(fmt.Errorf("%s after %s", o.Key, last))
			}
			n, last = n+1, o.Key
		}
		if n == before {
			break
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	fail(err)
	fmt.Println(n, string(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)[1]))
}

// A temporary directory that is missing, or full, is not the store's, and no reason to
// take a directory for one that has vanished.
func TestListingWithoutTemporary(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s.Location("a/flat"), 20_000)
	t.Setenv("TMPDIR", "/nowhere")
	n := 0
	for _, err := range s.List(t.Context(), storage.Under("")) {
		if n++; err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Fatalf("listed without a place to sort: %v", err)
		}
	}
	if n != 1 {
		t.Fatalf("%d objects and errors", n)
	}
	// A range of few names needs none.
	n = 0
	for _, err := range s.List(t.Context(), storage.Range{From: "a/flat/t0000100", To: "a/flat/t0000200"}) {
		ok(t, err)
		n++
	}
	if n != 100 {
		t.Fatalf("%d objects", n)
	}
}

// What lies outside a range is not entered: it costs nothing, and may be unreadable.
func TestListingEntersItsRangeOnly(t *testing.T) {
	root := t.TempDir()
	ok(t, os.Chmod(filepath.Dir(root), 0o755))
	s := open(t, root)
	for _, key := range []string{"a/x", "b/a/x", "b/b/x", "b/b/y", "b/c/x", "c/x"} {
		storagetest.Put(t, s, key, "")
	}
	shut := []string{"a", "b/a", "b/c", "c"}
	for _, name := range shut {
		ok(t, os.Chmod(s.Location(name), 0))
		defer os.Chmod(s.Location(name), 0o755)
	}
	list := func(within storage.Range) (keys []string, err error) {
		err = asNobody(t, func() error {
			for o, err := range s.List(t.Context(), within) {
				if err != nil {
					return err
				}
				keys = append(keys, o.Key)
			}
			return nil
		})
		return keys, err
	}
	for _, within := range []storage.Range{
		{From: "b/b/", To: "b/c"}, {From: "b/b", To: "b/c/"}, {From: "b/a0", To: "b/b/z"}, {Prefix: "b/b"}, {Prefix: "b/", From: "b/b/x", To: "b/b0"},
	} {
		keys, err := list(within)
		ok(t, err)
		if got := strings.Join(keys, " "); got != "b/b/x b/b/y" {
			t.Errorf("%+v: %s", within, got)
		}
	}
	for _, within := range []storage.Range{{To: "a0"}, {From: "b/a/x", To: "b/b"}, {From: "b/c/y", To: "b/d"}, {From: "b0"}} {
		keys, err := list(within)
		is(t, err, storage.ErrPermission)
		if len(keys) > 0 {
			t.Errorf("%+v: %q", within, keys)
		}
	}
}
