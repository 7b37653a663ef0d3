package jp2

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/proof/prooftest"
)

func prove(r io.ReaderAt, size int64) error { _, err := Prove(r, size); return err }

func TestWhole(t *testing.T) {
	content := prooftest.Fixture(t, "raster.jp2")
	report, err := Prove(bytes.NewReader(content), int64(len(content)))
	if err != nil || report != (Report{Tiles: 4}) {
		t.Fatalf("%+v, %v", report, err)
	}
	prooftest.Cut(t, content, prove)
}

// A tile whose part is another tile's is missing.
func TestMissingTile(t *testing.T) {
	content := prooftest.Fixture(t, "raster.jp2")
	at := bytes.LastIndex(content, []byte{0xff, 0x90, 0, 10})
	content[at+5] = 0
	report, err := Prove(bytes.NewReader(content), int64(len(content)))
	if err != nil || report.Missing != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestZeros(t *testing.T) {
	content := prooftest.Fixture(t, "raster.jp2")
	at := bytes.LastIndex(content, []byte{0xff, 0x90, 0, 10})
	clear(content[at:])
	var truncated *proof.TruncatedError
	if err := prove(bytes.NewReader(content), int64(len(content))); !errors.As(err, &truncated) {
		t.Errorf("%v", err)
	}
}

func TestNotJP2(t *testing.T) {
	for _, s := range []string{"", signature[:11], strings.Repeat("x", 20)} {
		if err := prove(strings.NewReader(s), int64(len(s))); !errors.Is(err, ErrNotJP2) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func FuzzProve(f *testing.F) {
	raw := prooftest.Fixture(f, "raster.jp2")
	prooftest.Fuzz(f, prove, raw, raw[:300], []byte(signature+"\x00\x00\x00\x01jp2c\xff\xff\xff\xff\xff\xff\xff\xff"))
}
