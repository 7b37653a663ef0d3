package listing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"catalogd/internal/catalog"
)

// readRclone reads one JSON array, element by element. rclone closes it only when it
// has listed everything. Directories are left out.
func readRclone(r io.Reader, yield func(catalog.Object) error) error {
	dec := json.NewDecoder(r)
	if open, err := dec.Token(); err != nil {
		return broken(err)
	} else if open != json.Delim('[') {
		return errors.New("is no JSON array: give what `rclone lsjson -R --files-only` prints")
	}
	for n := 1; dec.More(); n++ {
		o, err := decodeRclone(dec)
		if err == nil && !strings.HasSuffix(o.Key, "/") {
			err = yield(o)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return broken(err)
	}
	if _, err := dec.Token(); err == nil {
		return errors.New("goes on after its array: give one listing")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("goes on after its array: %w", err)
	}
	return nil
}

// decodeRclone reads an object; the key of a directory gets a slash.
func decodeRclone(dec *json.Decoder) (catalog.Object, error) {
	var e struct {
		Path, ModTime string
		Size          *int64
		IsDir         bool
	}
	if err := dec.Decode(&e); err != nil {
		return catalog.Object{}, plain(broken(err))
	}
	switch {
	case e.Path == "":
		return catalog.Object{}, errors.New(`has no "Path": give what "rclone lsjson -R --files-only" prints`)
	case e.IsDir:
		return catalog.Object{Key: e.Path + "/"}, nil
	case e.Size == nil || *e.Size == -1:
		return catalog.Object{}, fmt.Errorf("%q: size unknown: list the store itself, not through a remote that hides sizes", e.Path)
	}
	at, err := parseTime(e.ModTime) // "" with --no-modtime
	if err != nil {
		return catalog.Object{}, fmt.Errorf(`%q: "ModTime": %w`, e.Path, err)
	}
	return catalog.Object{Key: e.Path, SizeBytes: *e.Size, Modified: at}, nil
}
