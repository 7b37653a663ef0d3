// Package proof holds what the proofs of completeness of all formats share: how they
// fail, and how they read. Pure Go, standard library only.
package proof

import (
	"fmt"
	"io"
)

// TruncatedError: the file is not whole: something that it speaks of lies past its
// end, or what a writer writes last is missing.
type TruncatedError struct{ What string }

func (e *TruncatedError) Error() string { return e.What }

// MalformedError: the file contradicts itself, or is beyond all bounds.
type MalformedError struct{ What string }

func (e *MalformedError) Error() string { return e.What }

// DependentError: a part of the file is, or may be, in another one.
type DependentError struct{ What string }

func (e *DependentError) Error() string { return e.What }

// Truncated makes a TruncatedError.
func Truncated(format string, args ...any) error {
	return &TruncatedError{fmt.Sprintf(format, args...)}
}

// Malformed makes a MalformedError.
func Malformed(format string, args ...any) error {
	return &MalformedError{fmt.Sprintf(format, args...)}
}

// Read reads n bytes at offset, all of them or none. The caller has checked that they
// lie within the file.
func Read(r io.ReaderAt, offset, n int64) ([]byte, error) {
	p := make([]byte, n)
	if got, err := r.ReadAt(p, offset); int64(got) < n {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return p, nil
}
