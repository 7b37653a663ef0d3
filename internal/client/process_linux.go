package client

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup gives a command a process group of its own, so that all of it can be ended,
// and has it killed when this process dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// terminate asks all of a command to end, what is stopped too.
func terminate(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGTERM)
	_ = syscall.Kill(-p.Pid, syscall.SIGCONT)
}

// kill ends what is left of a command. The group's id is not given to others while a
// process is in it.
func kill(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// signalOf is the signal that ended a process, "" for none.
func signalOf(state *os.ProcessState) string {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return ""
}

// IsTerminal tells whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// room tells whether a directory's filesystem takes more than a little.
func room(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) > 1<<20
}

func writable(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }
