package listing

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"catalogd/internal/catalog"
)

// line is one of an NDJSON listing.
type line struct {
	Key      string `json:"key"`
	Size     *int64 `json:"size"`
	ETag     string `json:"etag,omitempty"`
	Modified string `json:"modified,omitempty"` // RFC 3339
}

// maxLine bounds a line; a key has 1024 bytes at most.
const maxLine = 64 << 10

// Write writes objects as NDJSON. After an error what was written is no listing.
func Write(w io.Writer, objects iter.Seq2[catalog.Object, error]) error {
	bw := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(bw)
	enc.SetEscapeHTML(false)
	nothing := true
	for o, err := range objects {
		if err != nil {
			return err
		}
		l := line{Key: o.Key, Size: &o.SizeBytes, ETag: o.ETag}
		if !o.Modified.IsZero() {
			l.Modified = o.Modified.Format(time.RFC3339Nano)
		}
		if err := enc.Encode(l); err != nil {
			return fmt.Errorf("write %q: %w", o.Key, err)
		}
		nothing = false
	}
	if nothing {
		_ = bw.WriteByte('\n') // Flush gives its error
	}
	return bw.Flush()
}

// readNDJSON needs a buffer of maxLine. Empty lines are passed over.
func readNDJSON(br *bufio.Reader, yield func(catalog.Object) error) error {
	for n := 1; ; n++ {
		text, err := br.ReadSlice('\n')
		last := errors.Is(err, io.EOF)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("line %d is longer than %d bytes: is it NDJSON, one object a line?", n, maxLine)
		case err != nil && !last:
			return fmt.Errorf("line %d: %w", n, broken(err))
		}
		if len(bytes.TrimSpace(text)) > 0 {
			o, err := parseLine(text)
			if syntax := (*json.SyntaxError)(nil); last && errors.As(err, &syntax) {
				err = fmt.Errorf("%w (%v)", ErrIncomplete, err)
			}
			if err == nil {
				err = yield(o)
			}
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
		}
		if last {
			return nil
		}
	}
}

func parseLine(text []byte) (catalog.Object, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return catalog.Object{}, plain(err)
	}
	switch {
	case l.Key == "":
		return catalog.Object{}, errors.New(`has no "key": give each object its key and size`)
	case l.Size == nil:
		return catalog.Object{}, fmt.Errorf(`%q has no "size": give each object its key and size`, l.Key)
	}
	at, err := parseTime(l.Modified)
	if err != nil {
		return catalog.Object{}, fmt.Errorf(`%q: "modified": %w`, l.Key, err)
	}
	return catalog.Object{Key: l.Key, SizeBytes: *l.Size, ETag: l.ETag, Modified: at}, nil
}

// parseTime reads an RFC 3339 time; "" is none.
func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	return at.UTC(), err
}

// plain says what is wrong with a value without the names of Go.
func plain(err error) error {
	if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
		return fmt.Errorf("%q is a %s, which it may not be", kind.Field, kind.Value)
	}
	return err
}

// broken is err; the end of what is read is ErrIncomplete.
func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w (%w)", ErrIncomplete, err)
	}
	return err
}
