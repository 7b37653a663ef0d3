package disksort

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What slices.Sort gives is what comes out, whatever memory there is: in memory, from
// one run, from many, after passes.
func TestSortsAsSlicesDo(t *testing.T) {
	dir := t.TempDir()
	passes := 0
	rapid.Check(t, func(rt *rapid.T) {
		records := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 0, 200).Draw(rt, "records")
		s := New(dir, rapid.SampledFrom([]int{0, 1, 200, 2000, 1 << 20}).Draw(rt, "memory"))
		defer s.Close()
		buf := []byte(nil) // reused: what was added is a copy
		for _, r := range records {
			buf = append(buf[:0], r...)
			if err := s.Add(buf); err != nil {
				rt.Fatal(err)
			}
		}
		if s.out != nil && len(s.out.ends) > 3 {
			passes++
		}
		got := [][]byte{}
		for r, err := range s.Sorted() {
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, bytes.Clone(r))
		}
		slices.SortFunc(records, bytes.Compare)
		if !slices.EqualFunc(got, records, bytes.Equal) {
			rt.Fatalf("got %x, expected %x", got, records)
		}
	})
	if passes == 0 {
		t.Error("no example was merged in passes")
	}
}

// filled is a sorter whose records are on disk.
func filled(t *testing.T) *Sorter {
	t.Helper()
	s := New(t.TempDir(), 1000)
	t.Cleanup(func() { ok(t, s.Close()) })
	for i := range 1000 {
		ok(t, s.Add(fmt.Append(nil, i)))
	}
	return s
}

func TestStaysInMemory(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "nowhere"), 1<<20)
	defer s.Close()
	for i := range 1000 {
		ok(t, s.Add(fmt.Append(nil, i)))
	}
	n := 0
	for _, err := range s.Sorted() {
		ok(t, err)
		n++
	}
	if n != 1000 {
		t.Fatalf("%d records", n)
	}
}

func TestReadOnce(t *testing.T) {
	s := filled(t)
	for range s.Sorted() {
		break
	}
	for _, err := range s.Sorted() {
		if !errors.Is(err, errRead) {
			t.Fatalf("read again: %v", err)
		}
	}
	if err := s.Add(nil); !errors.Is(err, errRead) {
		t.Fatalf("added after reading: %v", err)
	}
}

// Files have no name while they are there, and none is open after Close, however far
// the sorter came.
func TestLeavesNothing(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		ok(t, err)
		return len(entries)
	}
	before := open()
	for _, read := range []int{0, 1, 1000} {
		s := New(t.TempDir(), 1000)
		for i := range 1000 {
			ok(t, s.Add(fmt.Append(nil, i)))
		}
		if open() != before+1 {
			t.Errorf("%d files are open", open()-before)
		}
		n := 0
		for _, err := range s.Sorted() {
			ok(t, err)
			if n++; n >= read {
				break
			}
		}
		if entries, err := os.ReadDir(s.dir); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v (%v)", entries, err)
		}
		ok(t, s.Close())
		ok(t, s.Close())
		if got := open(); got != before {
			t.Errorf("%d files are open after Close", got-before)
		}
		if err := s.Add(nil); err == nil {
			t.Error("a record was added after Close")
		}
	}
}

// /dev/full is a disk with no room.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	ok(t, err)
	s := New("", 1000)
	s.out = &runs{file: full}
	defer s.Close()
	for i := 0; err == nil && i < 1000; i++ {
		err = s.Add(fmt.Append(nil, i))
	}
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room in "+os.TempDir()) {
		t.Fatalf("no room: %v", err)
	}
	n := 0
	for _, again := range s.Sorted() {
		if n++; !errors.Is(again, syscall.ENOSPC) {
			t.Fatalf("a sorter without room gave a record, or %v", again)
		}
	}
	if n != 1 {
		t.Fatalf("%d times", n)
	}
}

func TestNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nowhere")
	s := New(dir, 0)
	defer s.Close()
	ok(t, s.Add([]byte("a")))
	if err := s.Add([]byte("b")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v", err)
	}
}

// A file that was cut is an error, not fewer records.
func TestFileCut(t *testing.T) {
	s := filled(t)
	s.spill()
	ok(t, s.out.file.Truncate(s.out.ends[0]))
	var last error
	for _, err := range s.Sorted() {
		last = err
	}
	if !errors.Is(last, io.ErrUnexpectedEOF) {
		t.Fatalf("records are missing: %v", last)
	}
}

// Sorting 40 MB holds no more than it may, and little else.
func TestMemory(t *testing.T) {
	const memory, records = 2 << 20, 400_000
	live := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before, most := live(), 0
	s := New(t.TempDir(), memory)
	defer s.Close()
	random := rand.New(rand.NewPCG(1, 2))
	record := make([]byte, 100)
	for i := range records {
		binary.BigEndian.PutUint64(record, random.Uint64())
		ok(t, s.Add(record))
		if i%50_000 == 49_999 {
			most = max(most, live()-before)
		}
	}
	n, last := 0, []byte(nil)
	for r, err := range s.Sorted() {
		ok(t, err)
		if bytes.Compare(r, last) < 0 {
			t.Fatalf("%x after %x", r, last)
		}
		last = append(last[:0], r...)
		if n++; n%50_000 == 0 {
			most = max(most, live()-before)
		}
	}
	if n != records {
		t.Fatalf("%d records of %d", n, records)
	}
	if most > memory+memory/4 {
		t.Fatalf("%d bytes are held, of %d", most, memory)
	}
	if !slices.IsSorted(s.out.ends) || len(s.out.ends) < 10 {
		t.Fatalf("too little to sort: %d runs", len(s.out.ends))
	}
}
