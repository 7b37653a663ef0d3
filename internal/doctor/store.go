package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"catalogd/internal/storage"
)

// root is a store in a directory that is looked at.
type root struct {
	*exam
	path    string
	known   string // what the catalogue calls it
	staging string // path of .staging
	// work is a directory of our own, on the filesystem of .staging/.
	work string
}

// directory makes every check of a root, and leaves it as it was.
func (e *exam) directory(s Store) {
	u, err := url.Parse(s.URL)
	if err != nil {
		e.say("store", Lacks, err.Error(), "write it as an absolute path in --store")
		return
	}
	r := &root{exam: e, path: u.Path, known: s.Root, staging: filepath.Join(u.Path, storage.StagingPrefix)}
	info, err := os.Stat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.say("store", Lacks, "there is no "+r.path, "mount the volume, or make the directory: nothing makes it, so that a volume which is not mounted is noticed")
		return
	case err != nil:
		e.say("store", Lacks, err.Error(), "let the server's user pass through the directories above")
		return
	case !info.IsDir():
		e.say("store", Lacks, r.path+" is no directory", "name a directory in --store")
		return
	}
	if err := writable(r.path); err != nil {
		e.say("store", Lacks, err.Error(), fmt.Sprintf("give it to the server's user: chown %d %s", os.Geteuid(), r.path))
	} else {
		e.ok("store", "%s is %s", r.path, owner(info))
	}
	r.sentinel()
	r.mount()
	r.space()
	if !r.makeWork() {
		return
	}
	defer os.RemoveAll(r.work)
	r.stagingArea()
	r.ownership()
	r.names()
	r.renames()
	r.syncs()
	r.symlinks()
}

// writable tells whether names can be made and removed in a directory.
func writable(dir string) error {
	err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil {
		return nil
	}
	if info, serr := os.Stat(dir); serr == nil {
		return fmt.Errorf("%s cannot be written to (%w): it is %s", dir, err, owner(info))
	}
	return fmt.Errorf("%s cannot be written to: %w", dir, err)
}

// owner says whose a file is, and who asks.
func owner(info fs.FileInfo) string {
	return fmt.Sprintf("mode %04o of uid %d; this is uid %d", mode(info), uid(info), os.Geteuid())
}

func uid(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

func mode(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Mode & 0o7777 }

// sentinel compares the store's id with what the catalogue knows.
func (r *root) sentinel() {
	name := filepath.Join(r.path, storage.SentinelKey)
	found, err := readSentinel(name)
	r.judgeSentinel(place{
		root: r.known, sentinel: name, doubt: "a volume that is not mounted", correct: "mount the volume",
	}, found, err)
}

// place is where a store should be.
type place struct {
	// root is by which the catalogue knows it.
	root string
	// sentinel is the sentinel's name.
	sentinel string
	// doubt is what it may be that has no sentinel, and correct what to do then.
	doubt, correct string
}

// judgeSentinel compares an id that was found, or fs.ErrNotExist, with what the
// catalogue knows.
func (e *exam) judgeSentinel(p place, found string, err error) {
	known := "" // id of the store that the catalogue has under this root
	for id, at := range e.stores {
		if at == p.root {
			known = id
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && known != "":
		e.say("sentinel", Lacks, fmt.Sprintf("there is no %s, and the catalogue knows this root as store %s", p.sentinel, known),
			p.correct+"; where it is the right one, put the file back: see docs/operations.md#sentinel")
	case errors.Is(err, fs.ErrNotExist) && len(e.stores) > 0:
		e.say("sentinel", Lacks, fmt.Sprintf("there is no %s, and the catalogue has a store elsewhere", p.sentinel),
			"correct --store, or "+p.correct+"; for one more store, start once with --init-store")
	case errors.Is(err, fs.ErrNotExist) && e.stores == nil:
		e.say("sentinel", Warn, fmt.Sprintf("there is no %s: a new store, or %s", p.sentinel, p.doubt), "with --database-url the catalogue tells which")
	case errors.Is(err, fs.ErrNotExist):
		e.ok("sentinel", "none yet: the first server writes it")
	case err != nil:
		e.say("sentinel", Lacks, err.Error(), "put the file back, readable for the server: see docs/operations.md#sentinel")
	case known != "" && known != found:
		e.say("sentinel", Lacks, fmt.Sprintf("this is store %s, and the catalogue knows this root as store %s", found, known),
			p.correct+", or give this one a path of its own")
	case e.stores == nil:
		e.ok("sentinel", "store %s", found)
	case known == found:
		e.ok("sentinel", "store %s, as in the catalogue", found)
	case e.stores[found] != "":
		e.ok("sentinel", "store %s, which the catalogue knows under %s: it moves with the next start", found, e.stores[found])
	default:
		e.say("sentinel", Warn, fmt.Sprintf("the catalogue does not know store %s: the next start adds it", found), "see that --store and --database-url belong together")
	}
}

// mount looks at what the root is mounted from.
func (r *root) mount() {
	mounts, err := mountsOf(r.path)
	if err != nil {
		r.say("mount", Warn, err.Error(), "look at the mount's options yourself: see docs/operations.md#nfs")
		return
	}
	found, status, remedy := mounts.of.judge()
	r.say("mount", status, found, remedy)
}

const (
	fewBytes, littleBytes   = 100 << 20, 10 << 30
	fewInodes, littleInodes = 1_000, 100_000
)

func (r *root) space() {
	var st unix.Statfs_t
	if err := unix.Statfs(r.path, &st); err != nil {
		r.say("space", Lacks, err.Error(), "see that the volume answers")
		return
	}
	bytes := st.Bavail * uint64(st.Bsize)
	found := fmt.Sprintf("%.1f GiB free", float64(bytes)/(1<<30))
	inodes := st.Ffree
	if st.Files == 0 { // made as they are needed
		inodes = littleInodes
	} else {
		found += fmt.Sprintf(", %d inodes", inodes)
	}
	switch {
	case bytes < fewBytes || inodes < fewInodes:
		r.say("space", Lacks, found, "free space, or grow the volume: tasks are answered with store_full")
	case bytes < littleBytes || inodes < littleInodes:
		r.say("space", Warn, found, "grow the volume before it is full")
	default:
		r.ok("space", "%s", found)
	}
}

// makeWork makes a directory of our own in .staging/; in the root where no server
// has made that yet, for it is to have the server's mode.
func (r *root) makeWork() bool {
	parent := r.staging
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		parent = r.path
	}
	var err error
	if r.work, err = os.MkdirTemp(parent, ".doctor-"); err != nil {
		r.say("staging", Lacks, err.Error(), "let the server's user write there: it makes .staging/ itself")
		return false
	}
	return true
}

// stagingArea looks at .staging/: whose it is, and whether outputs can be renamed from
// there to where they go.
func (r *root) stagingArea() {
	for _, dir := range []string{r.staging, filepath.Join(r.path, storage.IncomingPrefix)} {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.say("staging", Lacks, err.Error(), "let the server's user read it")
			return
		}
		if mode(info)&unix.S_ISVTX != 0 && uid(info) != os.Geteuid() && os.Geteuid() != 0 {
			r.say("staging", Lacks, fmt.Sprintf("%s is %s: with the sticky bit only its owner may rename what tasks stage", dir, owner(info)),
				fmt.Sprintf("chown %d %s", os.Geteuid(), dir))
			return
		}
		if mode(info)&0o022 == 0 {
			r.say("staging", Warn, fmt.Sprintf("%s is %s: tasks of other users cannot stage there", dir, owner(info)), "where there are such tasks: chmod 1777 "+dir)
			return
		}
	}
	dirs, err := r.destinations()
	if err != nil {
		r.say("staging", Lacks, err.Error(), "let the server's user read the root")
		return
	}
	var apart, closed []string
	for _, dir := range dirs {
		// The kernel finds that the mounts differ before it misses the name.
		err := unix.Rename(filepath.Join(r.work, "absent"), filepath.Join(dir, ".absent"))
		var from, to unix.Stat_t
		if errors.Is(err, unix.EXDEV) || unix.Stat(r.work, &from) == nil && unix.Stat(dir, &to) == nil && from.Dev != to.Dev {
			apart = append(apart, dir)
		} else if err := writable(dir); err != nil {
			closed = append(closed, err.Error())
		}
	}
	switch {
	case len(apart) > 0:
		r.say("staging", Lacks, "on another mount than .staging/: "+few(apart), "have all of the store on one filesystem and one mount: nothing can be renamed to there")
	case len(closed) > 0:
		r.say("staging", Lacks, few(closed), "give the collections' directories to the server's user")
	default:
		r.ok("staging", "one mount with the root and %d directories", len(dirs)-1)
	}
}

// destinations are where outputs go: the root, the collections' directories, and what
// is mounted below.
func (r *root) destinations() ([]string, error) {
	dirs := []string{r.path}
	entries, err := os.ReadDir(r.path)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() && !strings.HasPrefix(name, ".") && name != "lost+found" && name+"/" != storage.CurrentPrefix {
			dirs = append(dirs, filepath.Join(r.path, name))
		}
	}
	if mounts, err := mountsOf(r.path); err == nil {
		for _, m := range mounts.below {
			if rel, err := filepath.Rel(mounts.path, m.point); err == nil && !strings.HasPrefix(rel, ".") {
				dirs = append(dirs, filepath.Join(r.path, rel))
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// few names the first three.
func few(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// file makes a file in the working directory.
func (r *root) file(name, content string) (string, error) {
	name = filepath.Join(r.work, name)
	return name, os.WriteFile(name, []byte(content), 0o644)
}

// ownership looks at a file as uploads and copies make them.
func (r *root) ownership() {
	name, err := r.file("file", "catalogd")
	if err != nil {
		r.say("ownership", Lacks, err.Error(), "see that the volume can be written to")
		return
	}
	info, err := os.Stat(name)
	if err != nil {
		r.say("ownership", Lacks, err.Error(), "see that the volume answers")
		return
	}
	status, found, remedy := judgeOwner(os.Geteuid(), uid(info), mode(info))
	r.say("ownership", status, found, remedy)
}

func judgeOwner(want, uid int, mode uint32) (status Status, found, remedy string) {
	found = fmt.Sprintf("what uid %d makes is mode %04o of uid %d", want, mode, uid)
	switch {
	case uid != want:
		return Lacks, found, "the volume gives files to another user (NFS: root_squash, all_squash): run the server as an ordinary user whose uid is the same on the NFS server"
	case mode&0o044 != 0o044:
		return Warn, found, "run the server with umask 022, so that others can read outputs"
	case mode&0o600 != 0o600:
		return Lacks, found, "mount the volume so that files keep the mode they are made with"
	}
	return OK, found, ""
}

// names: that a listing is whole, in whatever order, and names are told apart by
// their bytes.
func (r *root) names() {
	want := []string{"A.tif", "a.tif", "\u00e9.tif", "e\u0301.tif", strings.Repeat("n", 255)}
	dir := filepath.Join(r.work, "names")
	err := os.Mkdir(dir, 0o755)
	for _, name := range want {
		if err == nil {
			_, err = r.file("names/"+name, name)
		}
	}
	if err != nil {
		r.say("names", Lacks, err.Error(), "put the store on a filesystem that takes names of 255 bytes of any kind")
		return
	}
	var got []string
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	r.judgeNames(want, got, err)
}

func (r *root) judgeNames(want, got []string, err error) {
	slices.Sort(want)
	slices.Sort(got)
	switch {
	case err != nil:
		r.say("names", Lacks, err.Error(), "see that the volume answers")
	case !slices.Equal(want, got):
		r.say("names", Lacks, fmt.Sprintf("of the names %.60q a listing gives %.60q", want, got),
			"put the store on a filesystem that tells names apart by their bytes, upper case from lower case too, and lists what is there")
	default:
		r.ok("names", "listed whole, and told apart by their bytes")
	}
}

func (r *root) renames() {
	const remedy = "put the store on a filesystem with rename(2)"
	one, err1 := r.file("one", "1")
	two, err2 := r.file("two", "2")
	if err := errors.Join(err1, err2); err != nil {
		r.say("rename", Lacks, err.Error(), remedy)
		return
	}
	refused := r.sys.rename(one, two, unix.RENAME_NOREPLACE)
	replaced := r.sys.rename(one, two, 0)
	content, err := os.ReadFile(two)
	switch {
	case refused == nil:
		r.say("rename", Lacks, "a rename that must not replace has replaced", remedy+" that keeps RENAME_NOREPLACE, or refuses it")
	case replaced != nil:
		r.say("rename", Lacks, "a file cannot be renamed over another: "+replaced.Error(), remedy)
	case err != nil || string(content) != "1":
		r.say("rename", Lacks, fmt.Sprintf("after a rename %s holds %.10q (%v)", two, content, err), remedy)
	case errors.Is(refused, fs.ErrExist):
		r.ok("rename", "replaces, and can be told not to")
	case errors.Is(refused, unix.EINVAL), errors.Is(refused, unix.ENOSYS), errors.Is(refused, unix.ENOTSUP):
		r.ok("rename", "cannot be told not to replace, as on NFS: catalogd looks first")
	default:
		r.say("rename", Lacks, "a rename that must not replace: "+refused.Error(), remedy)
	}
}

func (r *root) syncs() {
	name, err := r.file("synced", "catalogd")
	for _, path := range []string{name, r.work} {
		var f *os.File
		if err == nil {
			f, err = os.Open(path)
		}
		if err == nil {
			err = r.sys.fsync(f)
			f.Close()
		}
	}
	if err != nil {
		r.say("fsync", Lacks, err.Error(), "put the store on a filesystem where files and directories can be synced: a power cut would cost outputs")
		return
	}
	r.ok("fsync", "of a file and of a directory")
}

// symlinks as of the tree of stable names: made aside, and renamed into place.
func (r *root) symlinks() {
	const remedy = "put the store on a filesystem with symbolic links: without, there are no stable names under current/, and /data/ serves them all the same"
	name := filepath.Join(r.work, "stable")
	err := r.sys.symlink("../one", name)
	if err == nil {
		err = r.sys.symlink("../two", name+".tmp")
	}
	if err == nil {
		err = r.sys.rename(name+".tmp", name, 0)
	}
	target := ""
	if err == nil {
		target, err = os.Readlink(name)
	}
	switch {
	case err != nil:
		r.say("symlinks", Warn, err.Error(), remedy)
	case target != "../two":
		r.say("symlinks", Warn, fmt.Sprintf("a symbolic link that was replaced leads to %q", target), remedy)
	default:
		r.ok("symlinks", "can be made, and replaced by rename")
	}
}

// readSentinel gives the id in a sentinel; fs.ErrNotExist when there is none.
func readSentinel(name string) (id string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	var s storage.Sentinel
	if err := json.Unmarshal(text, &s); err != nil || s.ID == "" {
		return "", fmt.Errorf("%s has no id", name)
	}
	return s.ID, nil
}
