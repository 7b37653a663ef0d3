//go:build !linux

package posix

import "golang.org/x/sys/unix"

func renameat(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
	if !replace {
		return unix.ENOSYS
	}
	_, err := restart(func() (int, error) {
		return 0, unix.Renameat(fromDir.fd, from, toDir.fd, to)
	})
	return err
}
