package writer

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/rastertest"
	"catalogd/internal/writer/hostile"
)

// The limits that docs/isolation.md states for one child, and for one file.
const (
	// hostileMemory is RLIMIT_DATA, and what the program and its libraries map
	// besides, shared by all children.
	hostileMemory  = 256<<20 + 128<<20
	hostileTimeout = 10 * time.Second
)

// setting is a number from the environment.
func setting(t testing.TB, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// peaks keeps the highest memory of each child.
type peaks struct {
	mu   sync.Mutex
	live map[int]bool
	most int64
	n    int
}

func (p *peaks) started(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[pid] = true
	p.n++
}

var hwm = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// look reads the kernel's own high-water marks.
func (p *peaks) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid := range p.live {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			delete(p.live, pid)
		} else if m := hwm.FindSubmatch(status); m != nil {
			kib, _ := strconv.ParseInt(string(m[1]), 10, 64)
			p.most = max(p.most, kib<<10)
		}
	}
}

// leak is what no client must see in a refusal.
var leak = regexp.MustCompile(`goroutine|panic|runtime error|strconv\.|json:|<nil>|%!|vsisubfile/[0-9_]+,/vsicatalogd|root:x:|\bEOF\b`)

// judged is the code of a hostile file's verdict. It fails the test where the verdict is
// none.
func judged(t testing.TB, err error) catalog.Code {
	var e *catalog.Error
	switch {
	case err == nil:
		return "taken"
	case !errors.As(err, &e):
		t.Errorf("no verdict: %v", err)
		return catalog.CodeInternal
	case !slices.Contains(catalog.Codes(), e.Code) || e.Code.Status() != 422:
		t.Errorf("code %q: %v", e.Code, err)
	case len(e.Message) < 20 || leak.MatchString(e.Message):
		t.Errorf("message: %q", e.Message)
	}
	return e.Code
}

// Whatever a file holds, it is taken or refused with a code and a reason, within the
// limits of memory and time; the pool outlives it, and the next good file is taken. Runs
// CATALOGD_HOSTILE files of seed CATALOGD_HOSTILE_SEED: see `make test-hostile`.
func TestHostile(t *testing.T) {
	n, seed := int(setting(t, "CATALOGD_HOSTILE", 3*uint64(hostile.Kinds()))), setting(t, "CATALOGD_HOSTILE_SEED", 1)
	valid, err := hostile.MakeValid(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	maker := hostile.NewMaker(seed, valid)
	memory := &peaks{live: map[int]bool{}}
	p := realPool(t, Config{Size: 2, Timeout: hostileTimeout, started: memory.started})

	sampling, stop := make(chan bool), sync.WaitGroup{}
	stop.Go(func() {
		for {
			memory.look()
			select {
			case <-sampling:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	var mu sync.Mutex
	codes, byKind := map[catalog.Code]int{}, map[string]map[catalog.Code]int{}
	var slowest time.Duration
	began := time.Now()
	next := make(chan int)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for i := range next {
				f := maker.File(i)
				// A decode may take longer by the size of the file.
				req := catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: i/hostile.Kinds()%3 == 1, SparseAllowed: i%2 == 0, FootprintOptional: i%5 > 0}
				start := time.Now()
				_, err := p.Probe(t.Context(), f, f.Size, req)
				took := time.Since(start)
				code := judged(t, err)
				// Two tries, and those of the other worker's file, which may be alone.
				if limit := 4 * (p.timeout(f.Size, req) + time.Second); took > limit {
					t.Errorf("took %v, of %v", took, limit)
				}
				mu.Lock()
				slowest = max(slowest, took)
				codes[code]++
				if byKind[f.Kind] == nil {
					byKind[f.Kind] = map[catalog.Code]int{}
				}
				byKind[f.Kind][code]++
				mu.Unlock()
				if t.Failed() || took > hostileTimeout/2 || code == catalog.CodeProbeFailed {
					t.Logf("file %d of seed %d, %s, %d bytes, decode %v: %v: %.300v", i, seed, f.Kind, f.Size, req.Decode, took.Round(time.Millisecond), err)
				}
			}
		})
	}
	for i := 0; i < n && !t.Failed(); i++ {
		next <- i
	}
	close(next)
	workers.Wait()
	took := time.Since(began)
	close(sampling)
	stop.Wait()

	good := rastertest.Raster{}.Bytes()
	if f, err := p.Probe(t.Context(), bytes.NewReader(good), int64(len(good)), catalog.ProbeRequest{}); err != nil || f.Footprint == nil {
		t.Errorf("a good file after all: %v", err)
	}
	if memory.most > hostileMemory || memory.most == 0 {
		t.Errorf("a child took %d MiB", memory.most>>20)
	}
	t.Logf("%d files of seed %d in %v: slowest %v, highest memory of a child %d MiB, %d children", n, seed,
		took.Round(time.Second), slowest.Round(time.Millisecond), memory.most>>20, memory.n)
	t.Log("all", sorted(codes))
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		t.Logf("%s %s", kind, sorted(byKind[kind]))
	}
}

func sorted(codes map[catalog.Code]int) string {
	var b strings.Builder
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		fmt.Fprintf(&b, " · %s %d", code, codes[code])
	}
	return b.String()
}
