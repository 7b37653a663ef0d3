package posix

import "golang.org/x/sys/unix"

func renameat(fromDir *dir, from string, toDir *dir, to string, replace bool) error {
	_, err := restart(func() (int, error) {
		if replace {
			return 0, unix.Renameat(fromDir.fd, from, toDir.fd, to)
		}
		return 0, unix.Renameat2(fromDir.fd, from, toDir.fd, to, unix.RENAME_NOREPLACE)
	})
	return err
}
