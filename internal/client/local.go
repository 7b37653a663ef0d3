package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"
)

// local is a file of this side's that is read once, to its end as it was when it was
// opened. Its errors are final.
type local struct {
	f    *os.File // not embedded: net would send it past Read
	info os.FileInfo
	size int64
	left int64
	hash hash.Hash
}

func openLocal(name string) (*local, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &local{f: f, info: info, size: info.Size(), left: info.Size(), hash: sha256.New()}, nil
}

// Read refuses a file that is another at its end than it was at its beginning: who
// writes it has not finished.
func (l *local) Read(p []byte) (int, error) {
	if l.left == 0 {
		if err := l.unchanged(); err != nil {
			return 0, final{err}
		}
		return 0, io.EOF
	}
	n, err := l.f.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	l.hash.Write(p[:n])
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s became shorter while it was read: hand it over when it is finished", l.f.Name())
	}
	if err != nil {
		err = final{err}
	}
	return n, err
}

// unchanged tells whether the file is still as it was when it was opened.
func (l *local) unchanged() error {
	now, err := l.f.Stat()
	if err == nil && (now.Size() != l.size || !now.ModTime().Equal(l.info.ModTime())) {
		err = fmt.Errorf("%s changed while it was read: hand it over when it is finished", l.f.Name())
	}
	return err
}

// readAll reads the file to its end, for its sum.
func (l *local) readAll(ctx context.Context) error {
	for buffer := make([]byte, 1<<20); ; {
		_, err := l.Read(buffer)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ended(ctx, errors.New("the output was not sent yet"))
		}
	}
}

// Close closes the file.
func (l *local) Close() error { return l.f.Close() }

// sum is that of what was read, as the contract writes it.
func (l *local) sum() string { return "sha256:" + hex.EncodeToString(l.hash.Sum(nil)) }

// copyFile copies a file to a staging name, and leaves nothing there when it fails.
func copyFile(ctx context.Context, to, from string) (err error) {
	in, err := openLocal(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o664)
	if err != nil {
		return err
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { in.Close() })()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// full tells whether an error says that there is no room, which may pass.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
