package flatgeobuf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"catalogd/internal/writer/proof"
	"catalogd/internal/writer/proof/prooftest"
)

func prove(r io.ReaderAt, size int64) error { _, err := Prove(r, size); return err }

func TestWhole(t *testing.T) {
	for _, name := range []string{"vector.fgb", "noindex.fgb"} {
		content := prooftest.Fixture(t, name)
		report, err := Prove(bytes.NewReader(content), int64(len(content)))
		if err != nil || report.Features != 40 {
			t.Fatalf("%s: %+v, %v", name, report, err)
		}
		prooftest.Cut(t, content, prove)
	}
}

// Without a count in its header, nothing shows that a file is whole.
func TestUncounted(t *testing.T) {
	content := prooftest.Fixture(t, "empty.fgb")
	var truncated *proof.TruncatedError
	if err := prove(bytes.NewReader(content), int64(len(content))); !errors.As(err, &truncated) || !strings.Contains(err.Error(), "does not say how many") {
		t.Errorf("%v", err)
	}
}

// Zeros where features should be, as a filesystem leaves them after a power cut.
func TestZeros(t *testing.T) {
	content := prooftest.Fixture(t, "vector.fgb")
	clear(content[len(content)-1000:])
	if prove(bytes.NewReader(content), int64(len(content))) == nil {
		t.Error("taken")
	}
}

func TestTags(t *testing.T) {
	if got, _ := tags(`{"CATALOGD_VERSION":"v1","n":1}`); len(got) != 1 || got["CATALOGD_VERSION"] != "v1" {
		t.Errorf("%v", got)
	}
	// What says whose the file is must be text, and say one thing.
	for metadata, want := range map[string]string{
		`{"CATALOGD_VERSION":"v1","catalogd_version":"v1"}`: "", `{"CATALOGD_VERSION":"v1","CATALOGD_VERSION":"v2"}`: "CATALOGD_VERSION",
		`{"CATALOGD_IDENTITY":{"version":"v1"}}`: "CATALOGD_IDENTITY", `{"CATALOGD_VERSION":1} `: "CATALOGD_VERSION", `{"CATALOGD_VERSION":1`: "", `[]`: "", ``: "",
	} {
		if _, odd := tags(metadata); odd != want {
			t.Errorf("%s: %q", metadata, odd)
		}
	}
}

func TestNotFlatGeobuf(t *testing.T) {
	for _, s := range []string{"", "fgb", "fgb\x02fgb\x00\x00\x00\x00\x00\x00"} {
		if err := prove(strings.NewReader(s), int64(len(s))); !errors.Is(err, ErrNotFlatGeobuf) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// One feature has a root above it, as GDAL writes it.
func TestOneFeature(t *testing.T) {
	for _, name := range []string{"one.fgb", "vector.fgb"} {
		content := prooftest.Fixture(t, name)
		report, err := Prove(bytes.NewReader(content), int64(len(content)))
		if want := map[string]uint64{"one.fgb": 1, "vector.fgb": 40}[name]; err != nil || report.Features != want {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		prooftest.Cut(t, content, prove)
	}
}

// Each node of the index is held against those below it, and each leaf against its feature.
func TestIndex(t *testing.T) {
	content := prooftest.Fixture(t, "vector.fgb")
	at := 12 + int(binary.LittleEndian.Uint32(content[8:]))
	const nodes = 1 + 3 + 40
	for n := range nodes {
		damaged := bytes.Clone(content)
		clear(damaged[at+n*nodeBytes : at+(n+1)*nodeBytes])
		var malformed *proof.MalformedError
		if err := prove(bytes.NewReader(damaged), int64(len(damaged))); !errors.As(err, &malformed) {
			t.Errorf("node %d: %v", n, err)
		}
	}
	// The header's extent is the root's.
	i := bytes.Index(content[:at], content[at:at+32])
	if i < 0 {
		t.Fatal("the extent is not found")
	}
	copy(content[i:], make([]byte, 8))
	if err := prove(bytes.NewReader(content), int64(len(content))); err == nil || !strings.Contains(err.Error(), "the header says") {
		t.Errorf("%v", err)
	}
}

// No size of index overflows.
func TestIndexSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		n, node := rng.Uint64()>>rng.IntN(64), rng.Uint64N(65536)
		if size, ok := indexSize(n, node); ok && node > 1 && n > 0 && size < min(n, 1<<48)*nodeBytes && size < 1<<62 {
			t.Fatalf("%d features in nodes of %d: %d bytes", n, node, size)
		}
	}
}

func FuzzProve(f *testing.F) {
	raw := prooftest.Fixture(f, "vector.fgb")
	huge := bytes.Clone(raw)
	binary.LittleEndian.PutUint32(huge[8:], 1<<31)
	prooftest.Fuzz(f, prove, raw, huge, raw[:200])
}
