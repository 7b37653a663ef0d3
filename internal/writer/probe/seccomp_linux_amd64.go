package probe

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

var (
	archCalls = []uint32{unix.SYS_NEWFSTATAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_TIME}
	archRules = []rule{when(unix.SYS_OPEN, none(1, opensForWriting))}
)
