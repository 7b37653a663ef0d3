package jp2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
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

// Zeros are packets of no content to a decoder, which says nothing; there are only so many.
func TestHoles(t *testing.T) {
	content := prooftest.Fixture(t, "raster.jp2")
	holes := func(p []byte) error { return Holes(bytes.NewReader(p), int64(len(p))) }
	if err := holes(content); err != nil {
		t.Errorf("%v", err)
	}
	// Make the first part longer by as many.
	from := bytes.Index(content, []byte{0xff, 0x90, 0, 10})
	box := bytes.Index(content, []byte("jp2c")) - 4
	to := from + bytes.Index(content[from+1:], []byte{0xff, 0x90, 0, 10}) + 1
	content = slices.Insert(content, to, make([]byte, 4096)...)
	for _, at := range []int{from + 6, box} {
		if n := binary.BigEndian.Uint32(content[at:]); n > 0 {
			binary.BigEndian.PutUint32(content[at:], n+4096)
		}
	}
	var truncated *proof.TruncatedError
	if err := prove(bytes.NewReader(content), int64(len(content))); err != nil {
		t.Errorf("%v", err)
	}
	if err := holes(content); !errors.As(err, &truncated) {
		t.Errorf("%v", err)
	}
}

// A tile has as many packets as layers, components and precincts ask for, at the most.
func TestMostPackets(t *testing.T) {
	w := walker{components: 3, width: 256, height: 256}
	for want, cod := range map[uint64][]byte{
		2 * 3 * (2 * 2) * 2: {0, 0, 0, 2, 0, 1, 4, 4, 0, 1},
		0:                   {1, 0, 0, 1, 0, 1, 4, 4, 0, 1, 0x77},
		1 * 3 * (3*3 + 4*4): {1, 0, 0, 1, 0, 1, 4, 4, 0, 1, 0x77, 0x77},
	} {
		if cod[8] = 1; w.most(cod) != 0 {
			t.Error("bypassed code-blocks, which may hold zeros")
		}
		cod[8] = 0
		if got := w.most(cod); got != want {
			t.Errorf("% x: %d, want %d", cod, got, want)
		}
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
	prooftest.Fuzz(f, func(r io.ReaderAt, size int64) error { return errors.Join(prove(r, size), Holes(r, size)) }, raw, raw[:300], []byte(signature+"\x00\x00\x00\x01jp2c\xff\xff\xff\xff\xff\xff\xff\xff"))
}
