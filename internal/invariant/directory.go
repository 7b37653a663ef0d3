package invariant

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Directory is a store's root.
type Directory string

func (d Directory) path(key string) string { return filepath.Join(string(d), key) }

func (d Directory) sentinel(context.Context) ([]byte, error) {
	return os.ReadFile(d.path(".catalogd/store.json"))
}

func (d Directory) list(_ context.Context, c *checker) error {
	c.stable = map[string]string{}
	return filepath.WalkDir(string(d), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && path != string(d) {
				return nil // gone while we looked
			}
			return err
		}
		if e.IsDir() {
			return nil
		}
		key, err := filepath.Rel(string(d), path)
		if err != nil {
			return err
		}
		top, rest, _ := strings.Cut(key, "/")
		switch {
		case top == ".staging":
			c.staged = append(c.staged, key)
		case top == "current":
			target, err := os.Readlink(path)
			if err != nil {
				c.say("%s is no symbolic link: %v", key, err)
				return nil
			}
			led, err := filepath.Rel(string(d), filepath.Join(filepath.Dir(path), target))
			if err != nil || filepath.IsAbs(target) || strings.HasPrefix(led, "..") {
				c.say("%s leads out of the store, to %s", key, target)
			}
			c.stable[rest] = led
		case own[top]:
		case !e.Type().IsRegular():
			c.say("%s is no regular file", key)
		default:
			c.objects = append(c.objects, key)
		}
		return nil
	})
}

func (d Directory) read(_ context.Context, key string) (o object, err error) {
	info, err := os.Lstat(d.path(key))
	if err != nil {
		return o, err
	}
	if !info.Mode().IsRegular() {
		return o, fmt.Errorf("%s is %s", key, info.Mode())
	}
	f, err := os.Open(d.path(key))
	if err != nil {
		return o, err
	}
	defer f.Close()
	h := sha256.New()
	o.size, err = io.Copy(h, f)
	o.sha256 = hex.EncodeToString(h.Sum(nil))
	return o, err
}
