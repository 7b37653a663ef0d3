// Package posix keeps a store under a directory, local or NFS.
//
// It imports the standard library, x/sys/unix, catalog, disksort and storage only.
//
// # Names
//
// A name is checked as text, then walked from the root one segment at a time,
// each opened relative to the one before and none of them through a symbolic
// link. Since no segment is "..", no race between processes leads out of the
// root, and no kernel feature newer than openat is needed. The root itself may
// be a symbolic link: it is the operator's.
//
// The root is held as a path and opened anew by each call. When it is no longer
// the directory that it was (another device or inode), its sentinel is read
// before anything else: the same store mounted again is taken up, anything else
// is storage.ErrSentinel. So nothing is reported absent because a volume went
// away. Volumes mounted below the root are not covered by the sentinel; nor can
// outputs be promoted into them, since the rename would cross devices.
//
// # Reading and writing order
//
// Promote returns nil only after these, in this order:
//
//  1. fsync of the staged file: its bytes, size and inode are durable.
//  2. mkdir of what is missing above the final name.
//  3. rename: readers see nothing, then all of it.
//  4. fsync of each directory above that this process has not yet made durable,
//     and of the final name's own directory.
//
// A crash before 3 leaves the file staged. A crash between 3 and the end of 4
// leaves it at one of the two names, whole, for 1 came first. Directories that
// are already there are fsynced too, once in a process: whoever made them may
// have died between mkdir and fsync. The staging directory is not fsynced: on a
// filesystem with a journal the rename is one transaction, which the fsync of
// the destination commits; and should the old name come back all the same, then
// as a second name of a file that is already safe, which the next Promote
// recognises and a sweep removes.
//
// Directories are never removed, which would race with step 2. Files are
// created with mode 0644 and directories with 0755, less the umask; staging
// directories have a mode of their own (see Options).
//
// Calls into the filesystem do not end when the context does; a dead NFS server
// holds them.
package posix

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

var (
	_ storage.Store  = (*Store)(nil)
	_ storage.Linker = (*Store)(nil)
)

// Options says how to open a store. The zero value opens what exists.
type Options struct {
	// Create makes the root directory, not its parents, when it is not there.
	Create bool
	// Init writes a sentinel with a new id when there is none. Without it, a root
	// without a sentinel is refused: it is most likely a volume that is not mounted.
	Init bool
	// StagingMode is that of the staging directories that this store makes, whatever
	// the umask; those that exist are left alone. Tasks of any uid write there, so
	// that the default is 1777: the sticky bit keeps them off each other's files,
	// but not catalogd, which owns the directory.
	StagingMode fs.FileMode
	// Synced, if set, is told the path of each file and directory that is fsynced,
	// for tests that count them.
	Synced func(path string)
}

// Store is one root directory. It may be used by many goroutines, and the
// directory by many processes.
type Store struct {
	path        string // absolute
	id          string
	stagingMode fs.FileMode
	synced      func(path string)
	sys         system

	mu      sync.Mutex
	root    inode            // what path led to when the sentinel was last compared
	durable map[string]inode // directories whose entry in their parent is durable, by name
}

// system holds the calls whose failures tests inject.
type system struct {
	write  func(f *os.File, p []byte) (int, error)
	fsync  func(f *os.File) error
	rename func(fromDir *dir, from string, toDir *dir, to string, replace bool) error
}

// Open opens the store under root.
func Open(ctx context.Context, root string, opts Options) (s *Store, err error) {
	defer wrap(&err, "open store %s", root)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	s = &Store{
		path:        abs,
		stagingMode: opts.StagingMode,
		synced:      opts.Synced,
		sys:         system{write: (*os.File).Write, fsync: (*os.File).Sync, rename: renameat},
		durable:     map[string]inode{},
	}
	if s.stagingMode == 0 {
		s.stagingMode = fs.ModeSticky | 0o777
	}
	if opts.Create {
		if err := s.create(); err != nil {
			return nil, err
		}
	}
	top, err := openRoot(s.path)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	found, err := readSentinel(top)
	if errors.Is(err, storage.ErrSentinel) && opts.Init {
		if err := s.writeSentinel(top); err != nil {
			return nil, err
		}
		found, err = readSentinel(top)
	}
	if err != nil {
		return nil, err
	}
	s.id = found.ID
	if s.root, err = top.inode(); err != nil {
		return nil, err
	}

	// Who wrote the sentinel may have died before it was durable.
	dirs, err := openDirs(top, path.Dir(storage.SentinelKey), nil)
	if err != nil {
		return nil, err
	}
	defer dirs.close()
	return s, s.persist(dirs)
}

// create makes the root, durably.
func (s *Store) create() error {
	if err := os.Mkdir(s.path, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil // or is no directory, as openRoot will say
		}
		return translate(err, filepath.Dir(s.path))
	}
	parent, err := openRoot(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return s.fsync(parent.File())
}

// ID is that of the sentinel.
func (s *Store) ID() string { return s.id }

// Location is the absolute path of key; "" for a name that no object can have.
func (s *Store) Location(key string) string {
	if checkName(key) != nil {
		return ""
	}
	return s.path + "/" + key
}

// Sentinel reads the sentinel by its path: nil when it is this store's,
// storage.ErrSentinel when root or sentinel are not there or are another's.
func (s *Store) Sentinel(ctx context.Context) (err error) {
	defer wrap(&err, "sentinel of %s", s.path)
	if err := ctx.Err(); err != nil {
		return err
	}
	top, err := openRoot(s.path)
	if err != nil {
		return err
	}
	defer top.Close()
	return s.recognise(top)
}

// open opens the root for one call, and tells whether it is still this store's.
func (s *Store) open(ctx context.Context) (*dir, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	top, err := openRoot(s.path)
	if err != nil {
		return nil, err
	}
	is, err := top.inode()
	s.mu.Lock()
	same := is == s.root
	s.mu.Unlock()
	if err == nil && !same {
		err = s.recognise(top)
	}
	if err != nil {
		top.Close()
		return nil, err
	}
	return top, nil
}

// recognise takes top for the root if its sentinel is this store's.
func (s *Store) recognise(top *dir) error {
	found, err := readSentinel(top)
	if err != nil {
		return err
	}
	if found.ID != s.id {
		return fmt.Errorf("%w: %s/%s says %q, expected %q", storage.ErrSentinel, s.path, storage.SentinelKey, found.ID, s.id)
	}
	is, err := top.inode()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if is != s.root {
		s.root = is
		clear(s.durable)
	}
	return nil
}

// readSentinel reads the sentinel below top. ErrSentinel when there is none that
// has an id.
func readSentinel(top *dir) (found storage.Sentinel, err error) {
	f, err := openRegular(top, storage.SentinelKey)
	if errors.Is(err, fs.ErrNotExist) {
		// The cause is left out: nobody shall take this for an absent object.
		return found, fmt.Errorf("%w: there is no %s: is the volume mounted?", storage.ErrSentinel, top.join(storage.SentinelKey))
	}
	if err != nil {
		return found, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return found, err
	}
	if err := json.Unmarshal(text, &found); err != nil || found.ID == "" {
		return found, fmt.Errorf("%w: %s has no id", storage.ErrSentinel, top.join(storage.SentinelKey))
	}
	return found, nil
}

// writeSentinel gives the store below top an id, unless it has one. Of several
// processes that do so at once, the first to link its file wins.
func (s *Store) writeSentinel(top *dir) error {
	name := path.Base(storage.SentinelKey)
	dirs, err := openDirs(top, path.Dir(storage.SentinelKey), s.mkdir)
	if err != nil {
		return err
	}
	defer dirs.close()
	text, err := json.Marshal(storage.Sentinel{ID: newID(), CreatedAt: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	temp, err := createTemp(dirs.last(), name)
	if err != nil {
		return err
	}
	defer func() { _ = unlink(dirs.last(), path.Base(temp.Name())) }()
	defer temp.Close()
	if _, err := s.sys.write(temp, append(text, '\n')); err != nil {
		return translate(err)
	}
	if err := s.fsync(temp); err != nil {
		return err
	}
	err = unix.Linkat(dirs.last().fd, path.Base(temp.Name()), dirs.last().fd, name, 0)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return translate(pathError("link", dirs.last().join(name), err), dirs.last().Name())
	}
	return nil
}

// newID is a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// checkName refuses what could not be the name of an object.
func checkName(key string) error {
	if strings.IndexByte(key, 0) >= 0 {
		return fmt.Errorf("%w: %q holds a NUL", storage.ErrName, key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch segment {
		case "", ".", "..":
			return fmt.Errorf("%w: %q has the segment %q", storage.ErrName, key, segment)
		}
	}
	return nil
}

// checkStaged refuses what could not be a staged object.
func checkStaged(key string) error {
	if !strings.HasPrefix(key, storage.StagingPrefix) {
		return fmt.Errorf("%w: %q is not under %s", storage.ErrName, key, storage.StagingPrefix)
	}
	return checkName(key)
}

// checkFinal refuses what could not be an output.
func checkFinal(key string) error {
	if top, _, _ := strings.Cut(key, "/"); ownNames[top] {
		return fmt.Errorf("%w: %q is in a tree of catalogd's own", storage.ErrName, key)
	}
	return checkName(key)
}

// ownNames are the names in the root that hold no outputs: catalogd's own, and
// those that filesystems keep there.
var ownNames = map[string]bool{
	".catalogd": true, ".staging": true, ".trash": true, "current": true,
	"lost+found": true, ".snapshot": true,
}
