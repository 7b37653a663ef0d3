//go:build amd64 || arm64

package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rule allows a system call where all conditions on its arguments hold. Of the rules for
// one call, one is enough.
type rule struct {
	call  uint32
	where []condition
}

// condition on an argument: (arg & mask) == value.
type condition struct {
	arg  int
	mask uint64
	is   uint32
}

func is(arg int, value uint32) condition    { return condition{arg, ^uint64(0), value} }
func none(arg int, bits uint32) condition   { return condition{arg, uint64(bits), 0} }
func all(arg int, bits uint32) condition    { return condition{arg, uint64(bits), bits} }
func when(call uint32, c ...condition) rule { return rule{call, c} }

// opensForWriting are the flags of an open that is not only for reading.
const opensForWriting = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC | unix.O_APPEND

// rules are the system calls of a probe that is set up. Those of one architecture alone
// are archCalls.
func rules() []rule {
	var rules []rule
	for _, call := range append([]uint32{
		// What is open. Paths may be asked for, which tells no more than whether
		// something is there.
		unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_LSEEK, unix.SYS_CLOSE,
		unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_FSTATFS, unix.SYS_FADVISE64, unix.SYS_GETDENTS64, unix.SYS_GETCWD,
		unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PPOLL,
		// Memory.
		unix.SYS_BRK, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_MEMBARRIER,
		// Threads, signals and time.
		unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		// What and where it is.
		unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID,
		unix.SYS_GETRUSAGE, unix.SYS_GETRANDOM, unix.SYS_UNAME, unix.SYS_SYSINFO,
	}, archCalls...) {
		rules = append(rules, when(call))
	}
	for _, command := range []uint32{
		unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL, unix.F_DUPFD_CLOEXEC, unix.F_GETLK, unix.F_SETLK,
	} {
		rules = append(rules, when(unix.SYS_FCNTL, is(1, command)))
	}
	return append(append(rules, archRules...),
		when(unix.SYS_OPENAT, none(2, opensForWriting)),
		when(unix.SYS_MMAP, none(2, unix.PROT_EXEC)),
		when(unix.SYS_MPROTECT, none(2, unix.PROT_EXEC)),
		when(unix.SYS_CLONE, all(0, unix.CLONE_THREAD|unix.CLONE_VM)),
		when(unix.SYS_TGKILL, is(0, uint32(os.Getpid()))),
		when(unix.SYS_PRCTL, is(0, unix.PR_SET_NAME)),
		when(unix.SYS_PRCTL, is(0, unix.PR_SET_VMA)),
		when(unix.SYS_PRLIMIT64, is(0, 0), is(2, 0)), // read any
		when(unix.SYS_PRLIMIT64, is(0, 0), is(1, unix.RLIMIT_CPU)),
	)
}

// lastCall is the newest system call that was there when rules was written.
const lastCall = unix.SYS_MSEAL

// program compiles the rules for the kernel's filter machine. Every other call fails:
// with ENOSYS where its caller then takes an older one (glibc for clone3, whose flags a
// filter cannot see), else with EPERM.
func program(rules []rule) []unix.SockFilter {
	// Offsets into struct seccomp_data; both architectures are little-endian.
	const offCall, offArch, offArgs = 0, 4, 16
	load := func(at int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(at)}
	}
	and := func(mask uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}
	}
	jump := func(op uint16, value uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: value, Jt: uint8(yes), Jf: uint8(no)}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	const allow, fail = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO

	out := []unix.SockFilter{load(offArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(unix.SECCOMP_RET_KILL_PROCESS), load(offCall)}
	for _, r := range rules {
		var body []unix.SockFilter
		for i, c := range r.where {
			for half, want := range [2]uint32{c.is, 0} {
				// Where it does not hold: past the rest and the return.
				rest := 3 * (2*(len(r.where)-i) - half - 1)
				body = append(body, load(offArgs+8*c.arg+4*half), and(uint32(c.mask>>(32*half))), jump(unix.BPF_JEQ, want, 0, rest+1))
			}
		}
		body = append(body, ret(allow))
		if len(r.where) > 0 {
			body = append(body, load(offCall)) // for the next rule
		}
		out = append(append(out, jump(unix.BPF_JEQ, r.call, 0, len(body))), body...)
	}
	return append(out,
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 1, 0),
		jump(unix.BPF_JGT, lastCall, 0, 1),
		ret(fail|uint32(unix.ENOSYS)),
		ret(fail|uint32(unix.EPERM)))
}

// filterSystemCalls puts all threads under the rules; false where the kernel, or what
// this runs in, has no filters to offer.
func filterSystemCalls() (bool, error) {
	code := program(rules())
	fprog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The kernel takes this over to the other threads.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return false, fmt.Errorf("set no_new_privs: %w", err)
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EINVAL), errors.Is(errno, unix.EPERM):
		return false, nil
	case errno != 0:
		return false, errno
	case thread != 0:
		return false, fmt.Errorf("thread %d cannot be brought under the filter", thread)
	}
	return true, nil
}
