package probe

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var (
	archCalls = []uint32{unix.SYS_NEWFSTATAT}
	archRules []rule
)
