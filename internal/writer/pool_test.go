package writer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// The test binary is its own child program: "child:serve" does what the file that it is
// given says, as far as a compromised probe could.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "child:") {
		os.Exit(fakeChild(strings.TrimPrefix(os.Args[1], "child:")))
	}
	goleak.VerifyTestMain(m)
}

func fakeChild(mode string) int {
	hello := wire.Hello{Protocol: wire.Version, GDAL: "0.0.0", PROJ: "0.0.0", Drivers: []string{"Fake"}}
	switch mode {
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "exit":
		fmt.Fprintln(os.Stderr, "no libgdal here")
		return 127
	case "old":
		hello.Protocol = 0
	}
	if err := wire.Serve(os.Stdin, os.Stdout, hello, fakeLook, func() { os.Exit(0) }); err != nil {
		return 1
	}
	return 0
}

func fakeFacts(tags map[string]string) wire.Verdict {
	return wire.Verdict{Facts: &wire.Facts{
		Driver: "Fake", MediaType: catalog.MediaTypeGeoTIFF, Width: 1, Height: 1,
		Bands: []catalog.Band{{DataType: "Byte"}}, Tags: tags,
		Footprint: [][][][2]float64{{{{0, 0}, {1, 0}, {1, 1}, {0, 0}}}},
	}}
}

func fakeLook(job wire.Job, src *wire.Source) wire.Verdict {
	content := make([]byte, job.Size)
	if _, err := src.ReadAt(content, 0); err != nil && err != io.EOF {
		os.Exit(9)
	}
	word, arg, _ := strings.Cut(string(content), " ")
	arg, _, _ = strings.Cut(arg, "\n")
	frame := func(kind byte, length uint32, payload []byte) {
		_, _ = os.Stdout.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, length), payload...))
	}
	verdict := func(s string) {
		frame('V', uint32(len(s)), []byte(s))
		select {}
	}
	switch word {
	case "crash":
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 100_000), "ouch")
		os.Exit(1)
	case "segv":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "hang":
		select {}
	case "spin":
		for { //nolint:staticcheck // that is the point
			runtime.Gosched()
		}
	case "burn":
		burn()
	case "garbage":
		_, _ = os.Stdout.Write(bytes.Repeat([]byte{0xff}, 100))
		select {}
	case "long":
		frame('V', 1<<32-1, nil)
		select {}
	case "outside":
		frame('R', 12, wire.EncodeRead(job.Size-1, 2))
		select {}
	case "negative":
		frame('R', 12, wire.EncodeRead(-1, 1))
		select {}
	case "huge":
		frame('R', 12, wire.EncodeRead(0, 1<<30))
		select {}
	case "flood": // asks for ever and reads the answers
		for {
			frame('R', 12, wire.EncodeRead(0, 1))
		}
	case "deaf": // asks for ever and the pipe back fills up: Serve's reader stops
		for {
			frame('R', 12, wire.EncodeRead(0, int(job.Size)))
		}
	case "hello":
		frame('H', 2, []byte("{}"))
		select {}
	case "verdict":
		verdict(arg)
	case "partial":
		frame('V', 100, []byte("{"))
		os.Exit(0)
	case "once": // dies the first time; then says who else runs
		if f, err := os.OpenFile(filepath.Join(arg, "died"), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
			os.Exit(1)
		}
		others, _ := filepath.Glob(filepath.Join(arg, "run-*"))
		return fakeFacts(map[string]string{"others": fmt.Sprint(len(others))})
	case "starved":
		if tried(arg) == 1 {
			select {}
		}
		return fakeFacts(map[string]string{"tries": "2"})
	case "unlucky": // computes, then is starved, then is done
		n := tried(arg)
		switch n {
		case 1:
			burn()
		case 2:
			select {}
		}
		return fakeFacts(map[string]string{"tries": fmt.Sprint(n)})
	case "sleep":
		mark := filepath.Join(arg, fmt.Sprintf("run-%d", os.Getpid()))
		_ = os.WriteFile(mark, nil, 0o600)
		time.Sleep(30 * time.Millisecond)
		_ = os.Remove(mark)
	case "refuse":
		return wire.Refuse(catalog.CodeSparse, "%s", arg)
	case "give-up":
		return wire.Refuse(catalog.CodeProbeFailed, "%d", os.Getpid())
	case "env":
		return fakeFacts(map[string]string{"env": strings.Join(os.Environ(), "\n")})
	}
	return fakeFacts(map[string]string{"pid": fmt.Sprint(os.Getpid()), "content": wire.Text(string(content), 100)})
}

// burn computes for ever on several threads, so that others' load does not hide it.
func burn() {
	for range 4 {
		go func() {
			for { //nolint:staticcheck // that is the point
				runtime.Gosched()
			}
		}()
	}
	runtime.GOMAXPROCS(4)
	select {}
}

// tried counts the tries of the file whose directory is dir.
func tried(dir string) int {
	f, err := os.CreateTemp(dir, "try-")
	if err != nil {
		os.Exit(9)
	}
	_ = f.Close()
	tries, _ := filepath.Glob(filepath.Join(dir, "try-*"))
	return len(tries)
}

func newTestPool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Program == "" {
		cfg.Program = self
	}
	if cfg.args == nil {
		cfg.args = []string{"child:serve"}
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	p := NewPool(cfg)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func probeText(ctx context.Context, p *Pool, text string) (catalog.Facts, error) {
	return p.Probe(ctx, strings.NewReader(text), int64(len(text)), catalog.ProbeRequest{})
}

func TestProbeFacts(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	for range 3 {
		f, err := probeText(t.Context(), p, "fine")
		if err != nil {
			t.Fatal(err)
		}
		if f.Driver != "Fake" || f.Tags["content"] != "fine" || f.Footprint.SRID() != 4326 || f.Footprint.NumPolygons() != 1 {
			t.Errorf("facts: %+v", f)
		}
	}
}

func TestProbeOfAnEmptyFile(t *testing.T) {
	if _, err := probeText(t.Context(), newTestPool(t, Config{}), ""); err != nil {
		t.Fatal(err)
	}
}

func TestProbeOfALargeFile(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	src := &countingSource{ReaderAt: bytes.NewReader(make([]byte, 20<<20))}
	if _, err := p.Probe(t.Context(), src, 20<<20, catalog.ProbeRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := src.reads.Load(); n != 20 {
		t.Errorf("%d reads for 20 MiB in one go, want 20", n)
	}
}

type countingSource struct {
	io.ReaderAt
	reads, bytes atomic.Int64
}

func (s *countingSource) ReadAt(p []byte, off int64) (int, error) {
	s.reads.Add(1)
	s.bytes.Add(int64(len(p)))
	return s.ReaderAt.ReadAt(p, off)
}

func TestChildrenAreReusedAndReplaced(t *testing.T) {
	p := newTestPool(t, Config{Size: 1, Recycle: 2})
	var pids []string
	for range 4 {
		f, err := probeText(t.Context(), p, "fine")
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, f.Tags["pid"])
	}
	if pids[0] != pids[1] || pids[1] == pids[2] || pids[2] != pids[3] {
		t.Errorf("pids %v: want two probes each", pids)
	}
}

func TestRefusalKeepsTheChild(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	before, err := probeText(t.Context(), p, "fine")
	if err != nil {
		t.Fatal(err)
	}
	_, err = probeText(t.Context(), p, "refuse 480 of 1,024")
	var e *catalog.Error
	if !errors.As(err, &e) || e.Code != catalog.CodeSparse || e.Message != "480 of 1,024" {
		t.Fatalf("error %v", err)
	}
	after, err := probeText(t.Context(), p, "fine")
	if err != nil || after.Tags["pid"] != before.Tags["pid"] {
		t.Errorf("another child after a refusal: %v", err)
	}
}

// What a child cannot do after other jobs, for want of memory say, a fresh one may.
func TestGivingUpIsAVerdictOfAFreshChild(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	before, err := probeText(t.Context(), p, "fine")
	if err != nil {
		t.Fatal(err)
	}
	_, err = probeText(t.Context(), p, "give-up")
	var e *catalog.Error
	if !errors.As(err, &e) || e.Code != catalog.CodeProbeFailed || e.Message == before.Tags["pid"] {
		t.Errorf("error %v, of the child %s", err, before.Tags["pid"])
	}
}

func TestHostileChildren(t *testing.T) {
	for _, content := range []string{
		"crash", "segv", "garbage", "long", "outside", "negative", "huge", "flood", "hello", "partial",
		"verdict {}", "verdict null", "verdict [", `verdict {"refusal":{"code":"internal","message":"x"}}`,
		`verdict {"refusal":{"code":"sparse","message":"x"},"facts":{}}`,
		`verdict {"facts":{"driver":"GTiff","media_type":"text/html"}}`,
	} {
		t.Run(content, func(t *testing.T) {
			t.Parallel()
			p := newTestPool(t, Config{Size: 2, Timeout: 20 * time.Second})
			_, err := probeText(t.Context(), p, content)
			if !catalog.IsCode(err, catalog.CodeProbeFailed) {
				t.Fatalf("error %v", err)
			}
			if _, err := probeText(t.Context(), p, "fine"); err != nil {
				t.Errorf("the pool did not recover: %v", err)
			}
		})
	}
}

func TestHangingChildren(t *testing.T) {
	for _, content := range []string{"hang", "spin", "deaf " + strings.Repeat("x", 200_000)} {
		t.Run(content[:4], func(t *testing.T) {
			t.Parallel()
			p := newTestPool(t, Config{Size: 1, Timeout: time.Second})
			_, err := probeText(t.Context(), p, content)
			if !catalog.IsCode(err, catalog.CodeProbeFailed) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestWhatAChildSaidIsKeptShort(t *testing.T) {
	_, err := probeText(t.Context(), newTestPool(t, Config{}), "crash")
	if err == nil || !strings.Contains(err.Error(), "ouch") || len(err.Error()) > 8<<10 {
		t.Errorf("error of %d bytes: %.100s", len(err.Error()), err.Error())
	}
	var e *catalog.Error
	if errors.As(err, &e) && strings.Contains(e.Message, "ouch") {
		t.Error("what a child says reaches the client")
	}
}

// A first death is no verdict: the file is tried again with no other probe running.
func TestSecondTryIsAlone(t *testing.T) {
	dir := t.TempDir()
	p := newTestPool(t, Config{Size: 4})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := probeText(ctx, p, "sleep "+dir); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	f, err := probeText(t.Context(), p, "once "+dir)
	stop()
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if f.Tags["others"] != "0" {
		t.Errorf("%s other probes ran beside the second try", f.Tags["others"])
	}
}

// A hang that computes is concluded beside others: they wait for a processor at most, not
// for their turn.
func TestHangLetsOthersGoOn(t *testing.T) {
	const timeout = 4 * time.Second
	var children atomic.Int64
	p := newTestPool(t, Config{Size: 2, Timeout: timeout, started: func(int) { children.Add(1) }})
	var hung sync.WaitGroup
	ended := make(chan struct{})
	hung.Go(func() {
		defer close(ended)
		_, err := probeText(t.Context(), p, "burn")
		if !catalog.IsCode(err, catalog.CodeProbeFailed) || !strings.Contains(err.Error(), "4s of CPU time") {
			t.Errorf("error %v", err)
		}
	})
	var slowest time.Duration
	for over := false; !over; {
		start := time.Now()
		if _, err := probeText(t.Context(), p, "fine"); err != nil {
			t.Error(err)
		}
		slowest = max(slowest, time.Since(start))
		select {
		case <-ended:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	hung.Wait()
	if slowest > timeout/2 {
		t.Errorf("another probe took %v", slowest)
	}
	if n := children.Load(); n < 3 {
		t.Errorf("%d children: the hang was not tried twice", n)
	}
}

// A hang that does not compute, for want of a processor say, is tried again alone.
func TestStarvedChildIsTriedAlone(t *testing.T) {
	dir := t.TempDir()
	p := newTestPool(t, Config{Size: 2, Timeout: time.Second})
	f, err := probeText(t.Context(), p, "starved "+dir)
	if err != nil || f.Tags["tries"] != "2" {
		t.Errorf("%v, %v", f.Tags, err)
	}
	// What computes twice and is starved the second time has a third try.
	f, err = probeText(t.Context(), p, "unlucky "+t.TempDir())
	if err != nil || f.Tags["tries"] != "3" {
		t.Errorf("%v, %v", f.Tags, err)
	}
}

func TestIOErrorIsNoVerdict(t *testing.T) {
	broken := errors.New("the store is away")
	p := newTestPool(t, Config{Size: 1})
	_, err := p.Probe(t.Context(), readerFunc(func([]byte, int64) (int, error) { return 0, broken }), 10, catalog.ProbeRequest{})
	var e *catalog.Error
	if !errors.Is(err, broken) || errors.As(err, &e) {
		t.Errorf("error %v", err)
	}
	// Shorter than it was said to be: somebody changed it meanwhile.
	_, err = p.Probe(t.Context(), strings.NewReader("short"), 10, catalog.ProbeRequest{})
	if !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &e) {
		t.Errorf("error %v", err)
	}
	if _, err := probeText(t.Context(), p, "fine"); err != nil {
		t.Error(err)
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// The time that a store takes to answer is not the child's.
func TestSlowSourceIsNotAHang(t *testing.T) {
	p := newTestPool(t, Config{Size: 1, Timeout: 2 * time.Second})
	content := strings.NewReader("fine")
	_, err := p.Probe(t.Context(), readerFunc(func(b []byte, off int64) (int, error) {
		time.Sleep(3 * time.Second)
		return content.ReadAt(b, off)
	}), 4, catalog.ProbeRequest{})
	if err != nil {
		t.Error(err)
	}
}

func TestCancelledProbe(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := probeText(ctx, p, "hang"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := probeText(t.Context(), p, "fine"); err != nil {
		t.Errorf("the pool did not recover: %v", err)
	}
	// While waiting for a turn.
	busy, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = probeText(busy, p, "hang") })
	time.Sleep(100 * time.Millisecond)
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := probeText(ctx, p, "fine"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	stop()
	wg.Wait()
}

func TestUnavailable(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no program":   {Program: "/nowhere/catalogd-probe"},
		"exits":        {args: []string{"child:exit"}},
		"silent":       {args: []string{"child:silent"}, Timeout: 200 * time.Millisecond},
		"old protocol": {args: []string{"child:old"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, cfg)
			_, err := probeText(t.Context(), p, "fine")
			if !catalog.IsCode(err, catalog.CodeProbeUnavailable) {
				t.Errorf("error %v", err)
			}
			if _, err := p.Check(t.Context()); !catalog.IsCode(err, catalog.CodeProbeUnavailable) {
				t.Errorf("check: %v", err)
			}
		})
	}
	p := newTestPool(t, Config{})
	_ = p.Close()
	if _, err := probeText(t.Context(), p, "fine"); !catalog.IsCode(err, catalog.CodeProbeUnavailable) {
		t.Errorf("closed pool: %v", err)
	}
}

func TestCheck(t *testing.T) {
	info, err := newTestPool(t, Config{}).Check(t.Context())
	if err != nil || info.GDAL != "0.0.0" || len(info.Drivers) != 1 {
		t.Errorf("%+v, %v", info, err)
	}
}

// A child that died while it was idle costs nobody anything.
func TestIdleChildThatDied(t *testing.T) {
	p := newTestPool(t, Config{Size: 1})
	f, err := probeText(t.Context(), p, "fine")
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	_, _ = fmt.Sscan(f.Tags["pid"], &pid)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-p.idle[0].done
	if _, err := probeText(t.Context(), p, "fine"); err != nil {
		t.Error(err)
	}
}

func TestChildGetsNoSecrets(t *testing.T) {
	t.Setenv("CATALOGD_DATABASE_URL", "postgres://secret")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("GTIFF_IGNORE_READ_ERRORS", "YES")
	t.Setenv("PROJ_LIB", "/usr/share/proj")
	f, err := probeText(t.Context(), newTestPool(t, Config{}), "env")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(f.Tags["env"]) {
		switch name, _, _ := strings.Cut(line, "="); name {
		case "PATH", "PROJ_LIB", "PROJ_DATA", "GDAL_DATA":
		default:
			t.Errorf("the child has %s", line)
		}
	}
}

func TestManyProbesAtOnce(t *testing.T) {
	p := newTestPool(t, Config{Size: 3, Recycle: 5})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			want := fmt.Sprint("fine ", i)
			f, err := probeText(t.Context(), p, want)
			if err != nil || f.Tags["content"] != want {
				t.Errorf("%v: %v", err, f.Tags)
			}
		})
	}
	wg.Wait()
}
