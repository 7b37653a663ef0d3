//go:build cgo

package probe

import (
	"os"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

func BenchmarkLookTmp(b *testing.B) {
	f, err := os.Open(os.Getenv("COG"))
	if err != nil {
		b.Fatal(err)
	}
	info, _ := f.Stat()
	for b.Loop() {
		v := Look(wire.Job{Size: info.Size(), Request: catalog.ProbeRequest{MediaType: catalog.MediaTypeCOG}}, wire.NewSource(info.Size(), func(off int64, p []byte) error {
			_, err := f.ReadAt(p, off)
			return err
		}))
		if v.Refusal != nil {
			b.Fatal(v.Refusal)
		}
	}
}
