package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// staging is where a task writes: the attempt's own staging name, where the store's
// filesystem is here too, or a private file that is then sent.
type staging struct {
	path   string
	upload bool
	direct bool   // straight to the store
	dir    string // of the private file
}

// handed is what complete is told of an output.
type handed struct {
	size     int64
	checksum string         // of the bytes as they were sent, "" where they were not read
	upload   *uploadedParts // nil for none
	direct   bool           // nobody has compared the bytes yet
}

// stage finds out where to write. Only a store that reads as the attempt's own, by its
// sentinel, is written to.
func stage(a Attempt, upload bool, dir string) (staging, error) {
	if !upload && shared(a) {
		return staging{path: a.StagingPath}, nil
	}
	private, err := os.MkdirTemp(dir, "catalogd-")
	if err != nil {
		return staging{}, fmt.Errorf("make a directory for the output (set TMPDIR to one with room): %w", err)
	}
	return staging{
		path: filepath.Join(private, "out"+filepath.Ext(a.StagingKey)), upload: true, direct: !upload && a.StagingURI != "", dir: private,
	}, nil
}

// shared tells whether the attempt's store is mounted here, at the same path.
func shared(a Attempt) bool {
	root, ok := strings.CutSuffix(a.StagingPath, "/"+a.StagingKey)
	if !ok || a.StagingKey == "" {
		return false
	}
	text, err := os.ReadFile(filepath.Join(root, ".catalogd", "store.json"))
	if err != nil {
		return false
	}
	var sentinel struct {
		ID string `json:"id"`
	}
	return json.Unmarshal(text, &sentinel) == nil && sentinel.ID == a.StoreID && writable(filepath.Dir(a.StagingPath))
}

// hand gets the output to the server durably: sends it, or syncs it. again is for an
// output that came otherwise the time before.
func (s staging) hand(ctx context.Context, t *Task, a Attempt, again bool) (handed, error) {
	// An empty one no request takes; complete says what it is.
	if info, err := os.Stat(s.path); s.direct && (err != nil || info.Size() > 0) {
		h, err := t.uploadToStore(ctx, a, s.path, t.PartSize, again)
		if !errors.Is(err, errNotFromHere) {
			return h, err
		}
		if t.Notice != nil {
			t.Notice(fmt.Sprintf("%v; sending through catalogd, as --upload does at once", err))
		}
	}
	if s.upload {
		var staged struct {
			Checksum string `json:"checksum"`
		}
		for range maxSent {
			size, checksum, err := t.Upload(ctx, "/v1/attempts/"+a.ID+"/output", s.path, &staged)
			if err != nil || staged.Checksum == checksum {
				return handed{size: size, checksum: checksum}, err
			}
		}
		return handed{}, s.altered()
	}
	f, err := os.Open(s.path)
	if err != nil {
		return handed{}, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // NFS sends what it holds
		return handed{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return handed{}, err
	}
	return handed{size: info.Size()}, nil
}

func (s staging) altered() error {
	return fmt.Errorf("%s was sent %d times and never came as it is: what lies between changes it", s.path, maxSent)
}

// discard removes what will not be handed over, while the attempt is this task's.
func (s staging) discard() {
	if !s.upload {
		_ = os.Remove(s.path)
	}
}

// sound tells whether the place to write to is still there, and has room: else a
// command's failure says nothing of the unit.
func (s staging) sound(a Attempt) bool { return s.upload || shared(a) && room(filepath.Dir(s.path)) }

// clear removes what is private.
func (s staging) clear() {
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
