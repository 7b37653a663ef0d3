// Package prooftest holds what the tests of all proofs share.
package prooftest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"

	"catalogd/internal/writer/proof"
)

// Fixture is testdata/NAME.gz, unpacked. GDAL 3.6 wrote it.
func Fixture(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Prover is a proof's Prove, without its report.
type Prover func(r io.ReaderAt, size int64) error

// Cut holds a proof to refusing a file that is cut off, anywhere, or to which a byte
// was added.
func Cut(t *testing.T, content []byte, prove Prover) {
	t.Helper()
	step := max(1, len(content)/3000)
	for n := len(content) - 1; n >= 0; n -= step {
		var other *proof.DependentError
		if err := prove(bytes.NewReader(content[:n]), int64(n)); err == nil || errors.As(err, &other) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(content), err)
		}
	}
	longer := append(bytes.Clone(content), 0)
	if err := prove(bytes.NewReader(longer), int64(len(longer))); err == nil {
		t.Error("a byte more was not seen")
	}
}

// Fuzz holds a proof to ending, without a panic, whatever it reads, and to reading
// nothing outside the file.
func Fuzz(f *testing.F, prove Prover, seeds ...[]byte) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_ = prove(inside{t, bytes.NewReader(raw)}, int64(len(raw)))
	})
}

type inside struct {
	t *testing.T
	*bytes.Reader
}

func (r inside) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > r.Size() || len(p) > int(r.Size())+64<<10 {
		r.t.Fatalf("%d bytes at %d of %d", len(p), off, r.Size())
	}
	return r.Reader.ReadAt(p, off)
}
