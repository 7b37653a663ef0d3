//go:build cgo

// catalogd-probe opens strangers' files with GDAL, so that catalogd does not have to.
// catalogd starts it and feeds it byte ranges over a pipe; see internal/writer.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/probe"
	"catalogd/internal/writer/wire"
)

const usage = `catalogd-probe looks at rasters and features for catalogd, which starts it by itself.

  catalogd-probe --version         versions of GDAL and PROJ, and the drivers it uses
  catalogd-probe [flags] FILE      what catalogd would find in FILE, as JSON
  catalogd-probe self-test         what the kernel keeps a probe from
  catalogd-probe serve             catalogd's own use: jobs over standard input and output

Judged is FILE by itself, as for a collection with all drivers and these flags. Not judged are
files beside it, which are refused as sidecars; whether a collection takes its driver; and whether
its tags CATALOGD_UNIT_KEY, CATALOGD_VERSION and CATALOGD_IDENTITY are those of the unit.

Exit codes: 0 done, 1 error, 2 usage, 3 FILE is refused, or something is not denied.

Flags:
`

func main() { os.Exit(run()) }

func run() int {
	// GDAL and PROJ keep state by thread.
	runtime.LockOSThread()

	flags := flag.NewFlagSet("catalogd-probe", flag.ContinueOnError)
	version := flags.Bool("version", false, "print versions and drivers")
	memory := flags.Uint64("memory", 256<<20, "serve: limit of memory in bytes (RLIMIT_DATA); 0 for none")
	var req catalog.ProbeRequest
	flags.BoolVar(&req.SparseAllowed, "sparse", false, "take blocks that were never written, as a collection with sparse_allowed")
	flags.BoolVar(&req.FootprintOptional, "no-footprint", false, "take outputs without a footprint, as a collection with footprint_optional")
	flags.BoolVar(&req.Decode, "decode", false, "decode every block, or read every feature, as proof; as a collection with decode_always")
	flags.StringVar(&req.MediaType, "media-type", "", "what FILE must be: a media type of collections")
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage); flags.PrintDefaults() }
	var names []string // flags may follow them
	for args := os.Args[1:]; ; args = flags.Args()[1:] {
		if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
			return 0
		} else if err != nil {
			return 2
		}
		if flags.NArg() == 0 {
			break
		}
		names = append(names, flags.Arg(0))
	}
	if len(names) != 1 && !*version {
		flags.Usage()
		return 2
	}
	if _, err := catalog.Extension(req.MediaType); req.MediaType != "" && err != nil {
		fmt.Fprintln(os.Stderr, "catalogd-probe: -media-type:", err)
		return 2
	}

	// Without a home, PROJ would look for its data in /tmp, which is everybody's.
	if err := os.Setenv("PROJ_SKIP_READ_USER_WRITABLE_DIRECTORY", "YES"); err != nil {
		return fail(err)
	}
	if err := probe.Setup(); err != nil {
		return fail(err)
	}
	if *version {
		h := probe.Hello()
		fmt.Printf("GDAL %s, PROJ %s, drivers: %s\n", h.GDAL, h.PROJ, strings.Join(h.Drivers, ", "))
		return 0
	}
	command := names[0]
	if command != "serve" && command != "self-test" {
		req.Drivers = catalog.Drivers()
		return show(command, req)
	}
	if info, err := os.Stdin.Stat(); command == "serve" && (err != nil || info.Mode()&os.ModeNamedPipe == 0) {
		fmt.Fprintln(os.Stderr, "catalogd-probe serve: standard input is no pipe: catalogd starts this by itself")
		return 2
	}
	in, out, err := pipes()
	if err != nil {
		return fail(err)
	}
	cpu := probe.NewCPULimit()
	if err := probe.Limit(*memory); err != nil {
		return fail(err)
	}
	confinement, err := probe.Confine()
	if err != nil {
		return fail(err)
	}
	if command == "self-test" {
		fmt.Fprintln(out, "in force:", confinement)
		return selfTest(out)
	}
	return serve(in, out, cpu, confinement)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "catalogd-probe:", err)
	return 1
}

// pipes moves standard input and output to where only this program looks for them: a
// file may have GDAL read /vsistdin/, and a library may print. In their places are
// nothing, and standard error.
func pipes() (in, out *os.File, err error) {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	defer nothing.Close()
	move := func(fd, replacement int) (moved int) {
		if err == nil {
			moved, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		}
		if err == nil {
			err = unix.Dup3(replacement, fd, 0)
		}
		return moved
	}
	from, to := move(0, int(nothing.Fd())), move(1, 2)
	if err != nil {
		return nil, nil, fmt.Errorf("move the pipes: %w", err)
	}
	return os.NewFile(uintptr(from), "from catalogd"), os.NewFile(uintptr(to), "to catalogd"), nil
}

// serve answers jobs until catalogd closes the pipe, or dies.
func serve(in, out *os.File, cpu probe.CPULimit, confinement wire.Confinement) int {
	// GDAL has one thread. Beside it a second processor is idle, and Go would look every
	// 20 µs whether that is still so: a sixth of what a probe took.
	runtime.GOMAXPROCS(1)
	hello := probe.Hello()
	hello.Confinement = confinement
	err := wire.Serve(in, out, hello, func(job wire.Job, src *wire.Source) wire.Verdict {
		if err := cpu.Allow(job.CPUSeconds); err != nil {
			fmt.Fprintln(os.Stderr, "catalogd-probe:", err)
			os.Exit(1)
		}
		return probe.Look(job, src)
	}, func() { os.Exit(0) })
	if err != nil {
		return fail(err)
	}
	return 0
}

// byHand names the flags that stand for settings of a collection.
var byHand = map[catalog.Code]string{
	catalog.CodeSparse:      " (here: -sparse)",
	catalog.CodeNoCRS:       " (here: -no-footprint)",
	catalog.CodeNoFootprint: " (here: -no-footprint)",
}

// show prints the facts of one local file, found the way they are for catalogd and
// as confined, but without its limits on memory and time.
func show(name string, req catalog.ProbeRequest) int {
	f, err := os.Open(name)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: name a file", name)
	}
	if err != nil {
		return fail(err)
	}
	if _, err := probe.Confine(); err != nil {
		return fail(err)
	}
	verdict := probe.Look(wire.Job{Size: info.Size(), Request: req}, wire.NewSource(info.Size(), func(offset int64, p []byte) error {
		n, err := f.ReadAt(p, offset)
		if n == len(p) {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}))
	if r := verdict.Refusal; r != nil {
		fmt.Fprintf(os.Stderr, "%s: %s%s\n", r.Code, r.Message, byHand[r.Code])
		return 3
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(verdict.Facts); err != nil {
		return fail(err)
	}
	return 0
}
