package pgcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spawn starts cmd from an OS thread that lives until cmd has ended: the kernel
// sends Pdeathsig when the thread that forked dies, not the process
// (go.dev/issue/27505). Pdeathsig outlasts a change of user because Go sets it
// after that, right before exec.
func spawn(cmd *exec.Cmd) (ended <-chan error, err error) {
	started, end := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			end <- cmd.Wait()
		}
	}()
	return end, <-started
}

// endLeftovers ends the processes of a cluster in dir that outlived the process
// that started them, and waits until they are gone. The caller holds the lock on
// dir, so nobody else can want them.
func endLeftovers(ctx context.Context, dir string) error {
	signal, patience := syscall.SIGQUIT, time.After(10*time.Second)
	for {
		pids, err := leftovers(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, signal)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-patience:
			signal = syscall.SIGKILL
		case <-ctx.Done():
			return fmt.Errorf("processes %v of an earlier server do not end: %w", pids, ctx.Err())
		}
	}
}

// leftovers finds PostgreSQL's processes by where they work: each has the data
// directory as its own.
func leftovers(dir string) ([]int, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		// Neither can be read of a process that has ended or is another user's.
		cwd, _ := os.Readlink(filepath.Join("/proc", p.Name(), "cwd"))
		if !strings.HasPrefix(cwd, dir+"/data") {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", p.Name(), "exe"))
		switch filepath.Base(strings.TrimSuffix(exe, " (deleted)")) {
		case "postgres", "initdb":
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
