package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"catalogd/internal/writer/hostile"
)

// A file of each hostile kind goes through the real server as a task's output: done, or
// refused with a code and a remedy; and then a good one goes through.
func TestHostileOutputs(t *testing.T) {
	valid, err := hostile.MakeValid(t.Context(), t.TempDir())
	ok(t, err)
	s := newSite(t)
	p := s.start()
	types := map[string]string{
		".tif": "image/tiff; application=geotiff", ".gpkg": "application/geopackage+sqlite3", ".fgb": "application/vnd.flatgeobuf",
		".geojson": "application/geo+json", ".jp2": "image/jp2",
	}
	for ext, mediaType := range types {
		p.collection(ext[1:], map[string]any{"media_type": mediaType, "sparse_allowed": true, "footprint_optional": true})
	}
	maker := hostile.NewMaker(3, valid)
	codes := map[string]int{}
	for i := range 2 * hostile.Kinds() {
		f := maker.File(i)
		collection := filepath.Ext(f.Name)
		if types[collection] == "" {
			collection = ".tif"
		}
		a := p.run(newUnit(collection[1:], fmt.Sprintf("t%04d", i), "1"))
		content, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size))
		ok(t, err)
		if i%2 == 0 {
			write(t, a.StagingPath, content)
		} else if put := p.ask("PUT", a.path("output"), bytes.NewReader(content)); put.status/100 != 2 {
			t.Fatalf("upload of file %d: %d %s", i, put.status, put.body)
		}
		switch answer := p.ask("POST", a.path("complete"), nil); answer.status {
		case http.StatusOK:
			codes["done"]++
		case http.StatusUnprocessableEntity:
			answer.status = http.StatusOK // so that read takes it
			problem := read[problem](t, answer)
			if problem.Code == "" || len(problem.Detail) < 20 {
				t.Errorf("file %d, %s: %s", i, f.Kind, answer.body)
			}
			codes[problem.Code]++
		default:
			t.Errorf("file %d, %s: %d %s", i, f.Kind, answer.status, answer.body)
		}
	}
	t.Log(codes)
	good := newUnit("tif", "good", "1")
	p.do(good, pixels(1))
	s.done(p, good, pixels(1))
}
