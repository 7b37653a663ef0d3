package probe

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Limit bounds what this process may use, from here on and for good: memory, in bytes
// (RLIMIT_DATA: Go aborts under RLIMIT_AS), no file of any length, few descriptors, no
// core dump. After Setup, which opens PROJ's database. 0 leaves memory unlimited.
func Limit(memory uint64) error {
	limits := []struct {
		name  string
		which int
		max   uint64
	}{
		{"RLIMIT_DATA", unix.RLIMIT_DATA, memory},
		{"RLIMIT_FSIZE", unix.RLIMIT_FSIZE, 0},
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0},
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 32},
	}
	for _, l := range limits {
		if l.which == unix.RLIMIT_DATA && memory == 0 {
			continue
		}
		if err := unix.Setrlimit(l.which, &unix.Rlimit{Cur: l.max, Max: l.max}); err != nil {
			return fmt.Errorf("set %s: %w", l.name, err)
		}
	}
	return nil
}

// CPULimit ends the process when a job takes more than its CPU time. Go passes over
// SIGXCPU, the soft limit's signal, unless somebody listens.
type CPULimit struct{}

// NewCPULimit listens for the limit's signal.
func NewCPULimit() CPULimit {
	over := make(chan os.Signal, 1)
	signal.Notify(over, unix.SIGXCPU)
	go func() {
		<-over
		fmt.Fprintln(os.Stderr, "CPU limit reached")
		os.Exit(3)
	}()
	return CPULimit{}
}

// Allow gives the process that many seconds of CPU time from now: RLIMIT_CPU counts
// from its start, through all jobs.
func (CPULimit) Allow(seconds int) error {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return fmt.Errorf("get CPU time: %w", err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_CPU, nil, &limit); err != nil {
		return fmt.Errorf("get RLIMIT_CPU: %w", err)
	}
	limit.Cur = uint64(used.Utime.Sec+used.Stime.Sec) + uint64(max(seconds, 1)) + 1
	if limit.Cur > limit.Max {
		limit.Cur = limit.Max
	}
	if err := unix.Prlimit(0, unix.RLIMIT_CPU, &limit, nil); err != nil {
		return fmt.Errorf("set RLIMIT_CPU: %w", err)
	}
	return nil
}
