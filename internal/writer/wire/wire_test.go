package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"catalogd/internal/catalog"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	for _, payload := range []string{"", "x", strings.Repeat("y", MaxRead)} {
		if err := WriteFrame(&b, KindData, []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteFrame(&b, KindData, make([]byte, MaxRead+1)); !errors.Is(err, errTooLong) {
		t.Errorf("a frame too long was written: %v", err)
	}
	r := iotest.OneByteReader(&b)
	for _, want := range []int{0, 1, MaxRead} {
		kind, payload, err := ReadFrame(r, KindJob, KindData)
		if err != nil || kind != KindData || len(payload) != want {
			t.Errorf("%q %d %v", kind, len(payload), err)
		}
	}
	if _, _, err := ReadFrame(r, KindData); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadFrames(t *testing.T) {
	for name, raw := range map[string]string{
		"cut header":    "D\x00",
		"cut payload":   "D\x00\x00\x00\x02x",
		"no payload":    "D\x00\x00\x00\x02",
		"too long":      "D\xff\xff\xff\xff",
		"unknown kind":  "?\x00\x00\x00\x00",
		"unwanted kind": "V\x00\x00\x00\x00",
	} {
		if _, _, err := ReadFrame(strings.NewReader(raw), KindData); err == nil || err == io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadsStayInTheFile(t *testing.T) {
	for _, c := range []struct {
		offset int64
		n      int
		ok     bool
	}{
		{0, 1, true}, {99, 1, true}, {0, 100, true},
		{0, 0, false}, {100, 1, false}, {0, 101, false}, {99, 2, false}, {-1, 1, false}, {1 << 62, 1, false}, {0, MaxRead + 1, false},
	} {
		_, _, err := DecodeRead(EncodeRead(c.offset, c.n), 100)
		if (err == nil) != c.ok {
			t.Errorf("%d at %d: %v", c.n, c.offset, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("R\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Add([]byte(`V` + "\x00\x00\x00\x02" + `{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		for {
			kind, payload, err := ReadFrame(r, KindRead, KindVerdict)
			if err != nil {
				return
			}
			if kind == KindRead {
				if off, n, err := DecodeRead(payload, 1000); err == nil && (off < 0 || n < 1 || off+int64(n) > 1000) {
					t.Fatalf("%d at %d", n, off)
				}
			}
		}
	})
}

// Whatever the parent sends, the child's side ends, and asks for nothing outside the file.
func FuzzServe(f *testing.F) {
	job := func(size int64) []byte {
		var b bytes.Buffer
		if err := WriteJSON(&b, KindJob, Job{Size: size}); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add([]byte{})
	f.Add(append(job(0), job(3)...))
	f.Add(append(job(3), "D\x00\x00\x00\x03abc"...))
	f.Add(append(job(3), "D\x00\x00\x00\x02ab"...))
	f.Add(append(job(-1), "J\x00\x00\x00\x02{}"...))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		_ = Serve(bytes.NewReader(raw), io.Discard, Hello{}, func(job Job, src *Source) Verdict {
			p := make([]byte, 100_000)
			n, err := src.ReadAt(p, job.Size/2)
			if err == nil && n < len(p) || n > 0 && int64(n) > job.Size {
				panic(fmt.Sprintf("%d bytes of %d: %v", n, job.Size, err))
			}
			return Refuse(catalog.CodeSparse, "%s", p[:n])
		}, func() {})
	})
}

// What passes ParseVerdict can be stored and shown.
func FuzzVerdict(f *testing.F) {
	good, _ := json.Marshal(goodVerdict())
	f.Add(good)
	f.Add([]byte(`{"refusal":{"code":"sparse","message":"480 of 1,024"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		facts, refusal, err := ParseVerdict(raw)
		if err != nil || refusal != nil {
			return
		}
		raster := facts.Width > 0 && facts.Height > 0
		if raster != (len(facts.Bands) > 0) || !raster && len(facts.Layers) == 0 || facts.Driver == "" {
			t.Fatalf("%+v", facts)
		}
		if facts.Footprint != nil {
			for _, c := range facts.Footprint.FlatCoords() {
				if !(c >= -180 && c <= 180) {
					t.Fatalf("%v", facts.Footprint.FlatCoords())
				}
			}
		}
	})
}

func goodVerdict() Verdict {
	return Verdict{Facts: &Facts{
		Driver: "GTiff", MediaType: catalog.MediaTypeCOG, IsCOG: true, CRS: "EPSG:4326", Transform: [6]float64{0, 1, 0, 0, 0, -1},
		Width: 2, Height: 3, Bands: []catalog.Band{{DataType: "Byte"}}, Tags: map[string]string{"a": "b"},
		Footprint: [][][][2]float64{{{{0, 0}, {1, 0}, {1, 1}, {0, 0}}}},
	}}
}

func TestVerdicts(t *testing.T) {
	parse := func(change func(*Facts)) error {
		v := goodVerdict()
		change(v.Facts)
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = ParseVerdict(raw)
		return err
	}
	if err := parse(func(*Facts) {}); err != nil {
		t.Fatal(err)
	}
	if err := parse(func(f *Facts) {
		f.Bands, f.Width, f.Height = nil, 0, 0
		f.Layers = []catalog.Layer{{Name: "a", GeometryType: "Point", FeatureCount: 3}}
	}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Facts){
		"no driver":    func(f *Facts) { f.Driver = "" },
		"NUL":          func(f *Facts) { f.CRS = "a\x00" },
		"NUL in a tag": func(f *Facts) { f.Tags["a"] = "\x00" },
		"media type":   func(f *Facts) { f.MediaType = "text/html" },
		"width":        func(f *Facts) { f.Width = 0 },
		"height":       func(f *Facts) { f.Height = 1 << 31 },
		"no bands":     func(f *Facts) { f.Bands = nil },
		"many bands":   func(f *Facts) { f.Bands = make([]catalog.Band, MaxBands+1) },
		"no layers":    func(f *Facts) { f.Bands, f.Width, f.Height = nil, 0, 0 },
		"layer's name": func(f *Facts) { f.Layers = []catalog.Layer{{Name: "\x00", GeometryType: "Point"}} },
		"layer's fields": func(f *Facts) {
			f.Layers = []catalog.Layer{{GeometryType: "Point", Fields: make([]catalog.Field, MaxFields+1)}}
		},
		"layout":          func(f *Facts) { f.Layout.Overviews = [][2]int{{1, -1}} },
		"no data type":    func(f *Facts) { f.Bands[0].DataType = "" },
		"long CRS":        func(f *Facts) { f.CRS = strings.Repeat("x", MaxCRS+1) },
		"long tag":        func(f *Facts) { f.Tags["a"] = strings.Repeat("x", MaxTagBytes+1) },
		"open ring":       func(f *Facts) { f.Footprint[0][0][0][0] = 0.5 },
		"short ring":      func(f *Facts) { f.Footprint[0][0] = f.Footprint[0][0][:3] },
		"empty polygon":   func(f *Facts) { f.Footprint[0] = nil },
		"off the Earth":   func(f *Facts) { f.Footprint[0][0][1][0] = 181 },
		"beyond the pole": func(f *Facts) { f.Footprint[0][0][1][1] = -90.5 },
		"many points": func(f *Facts) {
			f.Footprint[0] = append(f.Footprint[0], make([][2]float64, MaxFootprintPoints))
		},
	} {
		if parse(change) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\x00b\x1bc\td": "abc\td", "\xff": "\uFFFD", "äääää": "äää…", "äääxyzz": "äää…",
	} {
		if got := Text(in, 9); got != want || len(got) > 9 {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestSource(t *testing.T) {
	content := make([]byte, 10<<20+12345)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	reads, longest := 0, 0
	s := NewSource(int64(len(content)), func(off int64, p []byte) error {
		reads++
		longest = max(longest, len(p))
		if off+int64(len(p)) > int64(len(content)) {
			t.Fatalf("%d at %d", len(p), off)
		}
		copy(p, content[off:])
		return nil
	})
	for range 300 {
		off := rng.Int64N(int64(len(content)) + 100)
		p := make([]byte, rng.IntN(3<<20))
		n, err := s.ReadAt(p, off)
		want := content[min(off, int64(len(content))):]
		want = want[:min(len(want), len(p))]
		if n != len(want) || !bytes.Equal(p[:n], want) || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
			if errors.Is(err, ErrBudget) {
				break
			}
			t.Fatalf("%d bytes at %d: %d, %v", len(p), off, n, err)
		}
	}
	if longest > MaxRead {
		t.Errorf("a read of %d bytes", longest)
	}
	if !errors.Is(s.Err(), ErrBudget) {
		t.Error("reading ten times over did not use up the budget")
	}
}

func TestSourceKeepsItsFirstError(t *testing.T) {
	broken := errors.New("broken")
	s := NewSource(100, func(int64, []byte) error { return broken })
	for range 2 {
		if _, err := s.ReadAt(make([]byte, 1), 0); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	}
	if _, err := s.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("negative offset")
	}
}

func TestServe(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	dead := make(chan bool, 1)
	served := make(chan error, 1)
	go func() {
		served <- Serve(inR, outW, Hello{Protocol: Version}, func(job Job, src *Source) Verdict {
			p := make([]byte, job.Size)
			if _, err := src.ReadAt(p, 0); err != nil && err != io.EOF {
				t.Error(err)
			}
			return Refuse(catalog.CodeSparse, "%s", p)
		}, func() { dead <- true })
	}()
	if _, _, err := ReadFrame(outR, KindHello); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteJSON(inW, KindJob, Job{Size: 5}); err != nil {
			t.Fatal(err)
		}
		_, payload, err := ReadFrame(outR, KindRead)
		if err != nil {
			t.Fatal(err)
		}
		if off, n, err := DecodeRead(payload, 5); off != 0 || n != 5 || err != nil {
			t.Errorf("%d at %d, %v", n, off, err)
		}
		if err := WriteFrame(inW, KindData, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, payload, err = ReadFrame(outR, KindVerdict); err != nil {
			t.Fatal(err)
		}
		if _, refusal, err := ParseVerdict(payload); err != nil || refusal.Message != "hello" {
			t.Errorf("%v, %v", refusal, err)
		}
	}
	_ = inW.Close()
	<-dead
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A refusal is one line, and names the member of the request that is at fault, if any is.
func TestRefusals(t *testing.T) {
	for code, field := range map[catalog.Code]string{catalog.CodeMediaType: "/media_type", catalog.CodeSparse: "", catalog.CodeIdentityMismatch: ""} {
		raw, err := json.Marshal(Verdict{Refusal: &Refusal{Code: code, Message: "one\n\ttwo\x00 three"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, refusal, err := ParseVerdict(raw); err != nil || refusal.Field != field || refusal.Message != "one two three" {
			t.Errorf("%s: %+v, %v", code, refusal, err)
		}
	}
}
