package pgcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lock takes the directory dir, which must exist, for this process alone, by
// flock on dir/lock. The kernel frees it when the process ends, however it
// ends; release frees it earlier. The error names the process that holds it.
//
// The file stays when the lock is freed: removing it would let two processes
// hold two different files of the same name.
func Lock(dir string) (release func(), err error) {
	name := filepath.Join(dir, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w (does its filesystem support flock?)", name, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		pid := strings.TrimSpace(string(holder))
		if pid == "" {
			pid = "unknown"
		}
		return nil, fmt.Errorf("%s is in use by another catalogd (process %s): stop that one, or choose another directory", dir, pid)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
