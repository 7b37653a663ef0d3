package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// owner is the user that the server runs as: oneself, or, since PostgreSQL
// refuses to run as root, postgres.
type owner struct {
	uid, gid int
	// credential is nil for oneself.
	credential *syscall.Credential
}

func findOwner() (owner, error) {
	if os.Getuid() != 0 {
		return owner{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return owner{}, fmt.Errorf("PostgreSQL does not run as root, and there is no user to run it as: %w; run as an ordinary user, or: useradd --system postgres", err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		return owner{}, err
	}
	ids := make([]int, 0, 2+len(groups))
	for _, text := range append([]string{u.Uid, u.Gid}, groups...) {
		id, err := strconv.Atoi(text)
		if err != nil {
			return owner{}, fmt.Errorf("ids of user postgres: %w", err)
		}
		ids = append(ids, id)
	}
	credential := &syscall.Credential{Uid: uint32(ids[0]), Gid: uint32(ids[1])}
	for _, id := range ids[2:] {
		credential.Groups = append(credential.Groups, uint32(id))
	}
	return owner{uid: ids[0], gid: ids[1], credential: credential}, nil
}

// mkdir makes dir for the owner alone. One that is there already must be such a
// directory, or what a crash left before it was handed over.
func (o owner) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || uid != o.uid && uid != os.Getuid() {
		return fmt.Errorf("%s is in the way: expected a directory of user %d with mode 0700, found %s of user %d", dir, o.uid, info.Mode(), uid)
	}
	return os.Lchown(dir, o.uid, o.gid)
}

// owns refuses a directory that another user made.
func (o owner) owns(dir string, info fs.FileInfo) error {
	if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != o.uid {
		return fmt.Errorf("%s belongs to user %d, but PostgreSQL would run as %d: start as the user who made it, or choose another directory", dir, uid, o.uid)
	}
	return nil
}

// canReach checks that the owner can pass through every directory down to dir,
// by trying as that user: mode bits do not tell of access lists.
func (o owner) canReach(ctx context.Context, dir string) error {
	if o.credential == nil {
		return nil
	}
	try := func(dir string) error {
		cmd := exec.CommandContext(ctx, "test", "-x", dir)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential}
		return cmd.Run()
	}
	if try(dir) == nil {
		return nil
	}
	ancestors := []string{dir}
	for dir != "/" {
		dir = filepath.Dir(dir)
		ancestors = append(ancestors, dir)
	}
	for _, dir := range slices.Backward(ancestors) {
		if err := try(dir); err != nil {
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				return fmt.Errorf("test -x %s as user postgres: %w", dir, err)
			}
			return fmt.Errorf("user postgres, which PostgreSQL runs as under root, may not pass through %s: chmod o+x %[1]s, or choose a directory elsewhere, such as /var/lib/catalogd", dir)
		}
	}
	return nil
}
