package writer

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/hostile"
	"catalogd/internal/writer/probetest"
)

// confined are the system calls of a child that has said hello, apart from openat. They
// reach nothing outside.
var confined = strings.Fields(`
	read write pread64 readv writev lseek close fstat newfstatat statx fcntl fadvise64 getdents64 access faccessat faccessat2 readlink
	ioctl epoll_create1 epoll_ctl epoll_pwait eventfd2 poll ppoll
	brk mmap munmap mprotect mremap madvise
	futex clone clone3 set_robust_list rseq sched_yield sched_getaffinity restart_syscall exit exit_group
	rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill nanosleep clock_nanosleep
	getpid gettid getrusage prlimit64 getrandom sysinfo uname prctl`)

// A child that has said hello opens nothing but PROJ's and GDAL's own data, connects to
// nothing and starts no program, whatever it is given: its system calls are traced.
func TestTracedSystemCalls(t *testing.T) {
	valid, err := hostile.MakeValid(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Its datum shift is in a grid, which PROJ opens when it is first needed.
	grid := raster(t, "-outsize", "64", "64", "-a_srs", "EPSG:4267", "-a_ullr", "-100", "40", "-99", "39")
	tracer := &tracer{T: t, denied: map[string]int{}}
	for range 2 {
		f, err := tracer.probe(bytes.NewReader(grid), int64(len(grid)))
		if err != nil || f.Footprint.FlatCoords()[0] == -100 {
			t.Errorf("no grid: %v, %v", err, f.Footprint)
		}
	}
	for _, v := range valid {
		if !strings.HasPrefix(v.Name, "bomb") && !strings.Contains(v.Name, "loop") { // which take their time
			_, err := tracer.probe(bytes.NewReader(v.Content), int64(len(v.Content)))
			code := judged(t, err)
			if strings.HasPrefix(v.Name, "overviews") != (code == catalog.CodeSidecar) {
				t.Errorf("%s: %v", v.Name, err)
			}
		}
	}
	maker := hostile.NewMaker(2, valid)
	for i := range 20 * hostile.Kinds() {
		f := maker.File(i)
		switch f.Kind {
		case "reference", "text", "polyglot", "CRS with a path", "paths in tags", "GeoKeys", "tag value":
			_, err := tracer.probe(f, f.Size)
			judged(t, err)
		}
	}
	tracer.end()
	if !tracer.data || tracer.calls < 1000 {
		t.Errorf("the trace has %d calls, and PROJ's data: %v", tracer.calls, tracer.data)
	}
	t.Logf("%d system calls of %d children; denied: %v", tracer.calls, tracer.children, tracer.denied)
}

// tracer is a child under strace, started again when a file was its end.
type tracer struct {
	*testing.T
	child           *child
	trace           string
	calls, children int
	data            bool           // PROJ's was opened
	denied          map[string]int // what files asked for, and did not get
}

func (tr *tracer) probe(src io.ReaderAt, size int64) (catalog.Facts, error) {
	if tr.child == nil {
		tr.trace = filepath.Join(tr.TempDir(), "trace")
		tr.children++
		c, err := start(tr.Context(), Config{Program: "strace", Timeout: time.Minute,
			args: []string{"-f", "-qq", "-s", "16", "-o", tr.trace, probetest.Path(tr), "serve"}})
		if err != nil {
			tr.Fatal(err)
		}
		tr.child = c
	}
	f, sound, err := tr.child.probe(tr.Context(), src, size, catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: true, SparseAllowed: true}, time.Minute)
	if !sound { // another try, as the pool's
		again := tr.child.jobs > 1
		tr.end()
		if again {
			return tr.probe(src, size)
		}
	}
	return f, err
}

var (
	hello  = regexp.MustCompile(` write\(\d+, "H`)
	traced = regexp.MustCompile(`^(\d+) +(<\.\.\. )?(\w+)(?:\(| resumed>)(.*)`)
	opened = regexp.MustCompile(`^AT_FDCWD, "([^"]*)", ([A-Z_|]+).* = (-?\d+)`)
)

// ownFiles are what PROJ and GDAL open. glibc asks for the others, when it makes room and
// counts processors, and does without.
var (
	ownFiles = []string{"/usr/share/proj/", "/usr/share/gdal/"}
	glibc    = []string{"/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu/online", "/proc/stat"}
)

// end lets the child end by itself, and looks through its trace.
func (tr *tracer) end() {
	if tr.child == nil {
		return
	}
	_ = tr.child.in.Close()
	<-tr.child.done
	tr.child.out.Close()
	tr.child = nil
	trace, err := os.ReadFile(tr.trace)
	if err != nil {
		tr.Fatal(err)
	}
	start := hello.FindIndex(trace)
	if start == nil {
		tr.Fatalf("no hello in the trace:\n%.2000s", trace)
	}
	begun := map[string]string{} // by thread: a call that another's interrupts
	for line := range strings.Lines(string(trace[start[1]:])) {
		m := traced.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		thread, call, rest := m[1], m[3], m[4]
		if begin, cut := strings.CutSuffix(rest, " <unfinished ...>"); cut {
			begun[thread] = begin
			continue
		}
		if m[2] != "" {
			rest = begun[thread] + rest
		}
		tr.calls++
		switch {
		case call == "openat":
			tr.open(rest)
		case call == "clone" && !strings.Contains(rest, "CLONE_THREAD"), !slices.Contains(confined, call):
			tr.Errorf("called: %s", line)
		}
	}
}

func (tr *tracer) open(args string) {
	m := opened.FindStringSubmatch(args)
	if m == nil {
		tr.Errorf("open: %s", args)
		return
	}
	name, flags, failed := m[1], m[2], m[3] == "-1"
	under := func(dir string) bool { return strings.HasPrefix(name, dir) }
	switch {
	case strings.Contains(flags, "O_WRONLY") || strings.Contains(flags, "O_RDWR"):
		tr.Errorf("opened for writing: %s", args)
	case slices.ContainsFunc(ownFiles, under):
		tr.data = true
	case failed && (slices.Contains(glibc, name) || !strings.Contains(name, "/")): // a grid that is not installed
	case failed && slices.ContainsFunc(hostile.Targets, func(target string) bool { return strings.HasSuffix(name, target) }):
		tr.denied[name]++ // a file asked for it
	default:
		tr.Errorf("opened: %s", args)
	}
}

// From inside, on any thread: no file, no network, no other program or process, as far as
// the kernel has the means.
func TestSelfTest(t *testing.T) {
	out, err := exec.Command(probetest.Path(t), "self-test").CombinedOutput()
	t.Logf("%s", out)
	says := func(what string) bool { return strings.Contains(string(out), what) }
	if says("no Landlock") || says("no seccomp") {
		for line := range strings.Lines(string(out)) {
			file := strings.Contains(line, "open /") || strings.Contains(line, "list /")
			if strings.Contains(line, "NOT DENIED") && (file && !says("no Landlock") || !file && !says("no seccomp")) {
				t.Error(line)
			}
		}
		return
	}
	if err != nil || says("NOT DENIED") || strings.Count(string(out), ": denied: ") != 24 {
		t.Errorf("%v", err)
	}
}
