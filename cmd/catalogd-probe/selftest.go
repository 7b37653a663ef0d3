//go:build cgo

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// attempts are what a probe that a file has taken over would try.
var attempts = []struct {
	name string
	try  func() error
}{
	{"open /etc/passwd", func() error { _, err := os.ReadFile("/etc/passwd"); return err }},
	{"open /proc/self/mem", func() error { _, err := os.Open("/proc/self/mem"); return err }},
	{"list /", func() error { _, err := os.ReadDir("/"); return err }},
	{"write a file", func() error { _, err := os.CreateTemp("", "catalogd-self-test"); return err }},
	{"connect to 127.0.0.1", func() error {
		_, err := net.Dial("tcp", "127.0.0.1:9")
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil // it got through
		}
		return err
	}},
	{"send to 127.0.0.1", func() error { _, err := net.Dial("udp", "127.0.0.1:9"); return err }},
	{"fork", func() error { _, err := syscall.ForkExec("/bin/true", nil, nil); return err }},
	{"execute", func() error { return unix.Exec("/nowhere", nil, nil) }},
	{"signal the parent", func() error { return unix.Kill(os.Getppid(), 0) }},
	{"trace the parent", func() error { return unix.PtraceAttach(os.Getppid()) }},
	{"make memory executable", func() error {
		_, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
		return err
	}},
	{"take more memory", func() error {
		return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	}},
}

// selfTest tries what a confined probe must not be able to do, on this thread and on a new
// one, and says how each ended. It gives 0 where all was denied, else 3.
func selfTest(out io.Writer) int {
	code := 0
	all := func(thread string) {
		for _, a := range attempts {
			err := a.try()
			ended := "denied: "
			if !errors.Is(err, fs.ErrPermission) {
				ended, code = "NOT DENIED: ", 3
			}
			fmt.Fprintf(out, "%s thread: %s: %s%v\n", thread, a.name, ended, err)
		}
	}
	all("first")
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		all("another")
	}()
	<-done
	return code
}
