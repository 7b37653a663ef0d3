package demo

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// store is where the outputs are, as somebody reads it who knows nothing of catalogd.
type store interface {
	// url is what serve --store takes; "" for the store that serve makes by itself.
	url() string
	// staging is the directory that workers write into; "" where they send their outputs.
	staging() string
	// objects hashes every object that is not catalogd's own.
	objects(ctx context.Context) (map[string]object, error)
	// compare finds what disagrees that only this kind of store has, and what is left in
	// it of any attempt.
	compare(ctx context.Context, p *proof, objects map[string]object) error
	// gdal are the options with which GDAL opens an object at its location.
	gdal() []string
	// remove removes the store, with all that is in it.
	remove(ctx context.Context) error
}

// object is what a store holds at a name.
type object struct {
	size     int64
	checksum string
	// unit is the key of the unit that the store says the object is, where it can.
	unit string
}

// newStore gives a run a store of its own below root, which is a directory (file:///…) or
// s3://BUCKET/PREFIX with its settings, as serve takes them; "" for one within data.
func newStore(ctx context.Context, root, data string) (store, error) {
	if root == "" {
		return directory{path: filepath.Join(data, "store"), inData: true}, nil
	}
	u, err := url.Parse(root)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme == "s3":
		return newBucket(ctx, u)
	case u.Scheme != "file":
		return nil, fmt.Errorf("store %s: only file:///… and s3://… can be stores", root)
	}
	path, err := filepath.EvalSymlinks(u.Path) // as /proc shows it
	if err != nil {
		return nil, err
	}
	path, err = os.MkdirTemp(path, "demo-")
	return directory{path: path}, err
}

// directory is a store on a filesystem.
type directory struct {
	path   string
	inData bool
}

func (s directory) url() string {
	if s.inData {
		return ""
	}
	return s.path
}

func (s directory) staging() string { return filepath.Join(s.path, ".staging") }

func (s directory) gdal() []string { return nil }

func (s directory) remove(context.Context) error { return os.RemoveAll(s.path) }

func (s directory) objects(context.Context) (map[string]object, error) {
	objects := map[string]object{}
	err := filepath.WalkDir(s.path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(s.path, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && (name == ".catalogd" || name == ".staging" || name == "current"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			objects[name] = object{checksum: "no regular file"}
			return nil
		}
		size, checksum, err := hashFile(path)
		objects[name] = object{size: size, checksum: checksum}
		return err
	})
	return objects, err
}

func (s directory) compare(_ context.Context, p *proof, _ map[string]object) error {
	if err := s.compareLinks(p); err != nil {
		return err
	}
	return eachFile(s.staging(), func(name string) error {
		p.disagreements.add("left in staging: %s", name)
		return nil
	})
}

// compareLinks: the stable name of each slot leads to its current object, and
// there are no other stable names.
func (s directory) compareLinks(p *proof) error {
	store, err := filepath.EvalSymlinks(s.path)
	if err != nil {
		return err
	}
	want := p.stable()
	current := filepath.Join(store, "current")
	err = eachFile(current, func(name string) error {
		target, err := filepath.EvalSymlinks(filepath.Join(current, name))
		if err != nil {
			p.disagreements.add("the stable name %s leads nowhere: %v", name, err)
			delete(want, name)
			return nil
		}
		if object, _ := filepath.Rel(store, target); object != want[name].Object {
			p.disagreements.add("the stable name %s leads to %s, not to %q", name, object, want[name].Object)
		}
		delete(want, name)
		return nil
	})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		p.disagreements.add("there is no stable name %s", name)
	}
	return err
}

// eachFile calls do with the name of everything below root that is no directory.
func eachFile(root string, do func(name string) error) error {
	return fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return do(name)
	})
}
