// Package listing reads listings of a store that were made elsewhere, and writes them
// as NDJSON. It imports catalog, storage and disksort.
//
// A listing is whole or an error: nothing is concluded from what it lacks unless it
// ended as its format says it does. What storage.List leaves out is left out here.
//
// Names that are not UTF-8 come with U+FFFD for what is not: JSON cannot say them, and
// rclone writes them so. No output has such a name.
package listing

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"catalogd/internal/catalog"
	"catalogd/internal/disksort"
	"catalogd/internal/storage"
)

// Format is how a listing is written.
type Format string

const (
	// NDJSON has one object a line: {"key", "size", "etag", "modified"}, of which key and
	// size must be there. A listing of nothing is one empty line.
	NDJSON Format = "ndjson"
	// Rclone is what `rclone lsjson -R --files-only` prints.
	Rclone Format = "rclone"
	// Inventory is an S3 Inventory report in CSV, by its manifest.json.
	Inventory Format = "inventory"
)

// Options say how to read. The zero value tells the format by the content.
type Options struct {
	Format Format
	// Sorted promises byte order of the key. The listing is then passed on as it is
	// read, and disorder is an error; otherwise it is sorted first, on disk.
	Sorted bool
	// Bucket and Prefix are the store's: an inventory is of the whole bucket. "" for
	// the manifest's bucket, and for no prefix.
	Bucket, Prefix string
}

// ErrIncomplete: the listing breaks off.
var ErrIncomplete = errors.New("listing is incomplete: it breaks off; make it again, and copy all of it")

// sortMemory is what sorting holds.
const sortMemory = 16 << 20

// Read yields the objects of a listing in byte order of the key. An error comes last,
// and says in which line or record. An inventory is several files: see Open.
func Read(ctx context.Context, r io.Reader, opts Options) iter.Seq2[catalog.Object, error] {
	return opts.objects(ctx, "listing", func() (source, error) { return opts.source(r, "") })
}

// Open is Read of a file.
func Open(ctx context.Context, name string, opts Options) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		f, err := os.Open(name)
		if err != nil {
			yield(catalog.Object{}, err)
			return
		}
		defer f.Close()
		opts.objects(ctx, name, func() (source, error) { return opts.source(f, name) })(yield)
	}
}

// source gives objects as they come, and errors with the place.
type source func(yield func(catalog.Object) error) error

// source is the reader of r's format. name is the file's, "" for a stream.
func (opts Options) source(r io.Reader, name string) (source, error) {
	br := bufio.NewReaderSize(r, maxLine)
	format, err := opts.Format, error(nil)
	if format == "" {
		if format, err = formatOf(br); err != nil {
			return nil, err
		}
	} else if _, err := br.Peek(1); errors.Is(err, io.EOF) {
		return nil, errEmpty
	}
	switch {
	case format == NDJSON:
		return func(yield func(catalog.Object) error) error { return readNDJSON(br, yield) }, nil
	case format == Rclone:
		return func(yield func(catalog.Object) error) error { return readRclone(br, yield) }, nil
	case format == Inventory && name == "":
		return nil, errors.New("this is the manifest of an inventory, whose objects are in files beside it: name the file")
	case format == Inventory:
		return opts.inventory(br, name)
	}
	return nil, fmt.Errorf("unknown format %q: name %s, %s or %s", format, NDJSON, Rclone, Inventory)
}

var errEmpty = errors.New("empty: is it the right file?")

// formatOf tells the format by how a listing begins.
func formatOf(br *bufio.Reader) (Format, error) {
	begin, err := br.Peek(4096)
	if len(begin) == 0 {
		if errors.Is(err, io.EOF) {
			err = errEmpty
		}
		return "", err
	}
	text := bytes.TrimLeftFunc(begin, unicode.IsSpace)
	switch {
	case len(text) == 0:
		return NDJSON, nil
	case text[0] == '[':
		return Rclone, nil
	case text[0] == '{' && bytes.Contains(text, []byte(`"sourceBucket"`)):
		return Inventory, nil
	case text[0] == '{':
		return NDJSON, nil
	}
	return "", fmt.Errorf("begins with %.16q, which is no listing: give NDJSON, what `rclone lsjson -R --files-only` prints, or the manifest.json of an S3 inventory", text)
}

// objects are those of a source, in order. name is what errors begin with.
func (opts Options) objects(ctx context.Context, name string, open func() (source, error)) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		next := ascending(func(o catalog.Object) error {
			if !yield(o, nil) {
				return errStopped
			}
			return nil
		})
		src, err := open()
		switch {
		case err != nil:
		case opts.Sorted:
			err = src(checked(ctx, next))
		default:
			err = sorted(ctx, src, next)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(catalog.Object{}, fmt.Errorf("%s: %w", name, err))
		}
	}
}

// errStopped: the consumer wants no more.
var errStopped = errors.New("stopped")

// sorted passes what src gives on in order, when src has ended well.
func sorted(ctx context.Context, src source, yield func(catalog.Object) error) error {
	sorter := disksort.New("", sortMemory)
	defer sorter.Close()
	var record []byte
	err := src(checked(ctx, func(o catalog.Object) error {
		record = appendRecord(record[:0], o)
		return sorter.Add(record)
	}))
	if err != nil {
		return err
	}
	for record, err := range sorter.Sorted() {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if err := yield(parseRecord(record)); err != nil {
			return err
		}
	}
	return nil
}

// checked passes on what can be an object of a store, but what storage.List leaves out.
func checked(ctx context.Context, yield func(catalog.Object) error) func(catalog.Object) error {
	return func(o catalog.Object) error {
		top, _, _ := strings.Cut(o.Key, "/")
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case o.Key == "":
			return errors.New("an object without a key")
		case o.SizeBytes < 0:
			return fmt.Errorf("%q has size %d: a size is 0 or more bytes", o.Key, o.SizeBytes)
		case ownTrees[top+"/"], strings.HasSuffix(o.Key, "/") && o.SizeBytes == 0:
			return nil
		}
		return yield(o)
	}
}

// ownTrees are catalogd's own, and those of filesystems.
var ownTrees = map[string]bool{
	storage.StagingPrefix: true, storage.TrashPrefix: true, storage.CurrentPrefix: true,
	path.Dir(storage.SentinelKey) + "/": true,
	"lost+found/":                       true, ".snapshot/": true,
}

// ascending passes on objects whose keys ascend.
func ascending(yield func(catalog.Object) error) func(catalog.Object) error {
	last, some := "", false
	return func(o catalog.Object) error {
		switch {
		case some && o.Key == last && strings.ContainsRune(o.Key, utf8.RuneError):
			return nil // two names that are not UTF-8 may look the same
		case some && o.Key == last:
			return fmt.Errorf("%q is there twice: is it a listing of versions, or two listings in one?", o.Key)
		case some && o.Key < last:
			return fmt.Errorf("%q comes after %q, which is not in byte order: let it be sorted", o.Key, last)
		}
		last, some = o.Key, true
		return yield(o)
	}
}

// appendRecord appends an object as a record that sorts as its key does. The key ends
// in 0 1, and a 0 in it is 0 2, so that a key comes before those that it begins.
func appendRecord(to []byte, o catalog.Object) []byte {
	for i := range len(o.Key) {
		if to = append(to, o.Key[i]); o.Key[i] == 0 {
			to = append(to, 2)
		}
	}
	to = append(to, 0, 1)
	to = binary.AppendVarint(to, o.SizeBytes)
	to = binary.AppendVarint(to, o.Modified.Unix())
	to = binary.AppendVarint(to, int64(o.Modified.Nanosecond()))
	return append(to, o.ETag...)
}

func parseRecord(record []byte) catalog.Object {
	key, rest, _ := bytes.Cut(record, []byte{0, 1})
	var numbers [3]int64
	for i := range numbers {
		var n int
		numbers[i], n = binary.Varint(rest)
		rest = rest[n:]
	}
	return catalog.Object{
		Key:       string(bytes.ReplaceAll(key, []byte{0, 2}, []byte{0})),
		SizeBytes: numbers[0],
		Modified:  time.Unix(numbers[1], numbers[2]).UTC(),
		ETag:      string(rest),
	}
}
