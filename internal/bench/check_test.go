package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/catalog"
)

// BenchmarkCheck asks for many units that are all done, as NDJSON both ways, and in turn
// does by hand, in this process and without HTTP, what that cannot do without: decode a
// line, derive its key, one SELECT for each thousand, encode an answer. The catalogue has
// a million outputs.
func BenchmarkCheck(b *testing.B) {
	const outputs = 1_000_000
	s := newSite(b)
	database := s.database("served")
	srv := s.start(database)
	db := s.connect(database)
	s.seed(db, srv.store, outputs, false)
	asked := filepath.Join(s.dir, "units.ndjson")
	s.ask(asked, outputs)

	for _, c := range []struct{ units, rounds int }{{6_000, 9}, {outputs, 2}} {
		b.Run(strconv.Itoa(c.units), func(b *testing.B) {
			size := prefix(b, asked, c.units)
			served := func() {
				if n := srv.check(asked, size); n != c.units {
					b.Errorf("%d units are done, want %d", n, c.units)
				}
			}
			byHand := func() {
				if n, err := checkByHand(db, asked, size); err != nil || n != c.units {
					b.Errorf("by hand %d units are done, want %d: %v", n, c.units, err)
				}
			}
			if c.units < outputs {
				served() // warm
				byHand()
			}
			srv.resetPeak()
			var ours, theirs []float64
			for b.Loop() {
				for range c.rounds {
					ours, theirs = append(ours, timed(served)), append(theirs, timed(byHand))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(c.units)/median(ours), "units/s")
			b.ReportMetric(float64(c.units)/median(theirs), "hand-units/s")
			b.ReportMetric(median(ours)/median(theirs), "ratio")
			b.ReportMetric(srv.peak(), "peak-MiB")
		})
	}
}

// ask writes n units, one a line.
func (s *site) ask(path string, n int) {
	s.Helper()
	f, err := os.Create(path)
	ok(s, err)
	defer f.Close()
	out := bufio.NewWriter(f)
	enc := json.NewEncoder(out)
	for i := range n {
		ok(s, enc.Encode(newUnit(tileName(i))))
	}
	ok(s, out.Flush())
}

// prefix is the size of a file's first n lines.
func prefix(b *testing.B, path string, n int) (size int64) {
	b.Helper()
	f, err := os.Open(path)
	ok(b, err)
	defer f.Close()
	in := bufio.NewReader(f)
	for range n {
		line, err := in.ReadSlice('\n')
		ok(b, err)
		size += int64(len(line))
	}
	return size
}

// check sends the file's first bytes and counts the units that are done.
func (srv *server) check(path string, size int64) (done int) {
	f, err := os.Open(path)
	if err != nil {
		srv.Error(err)
		return 0
	}
	defer f.Close()
	req, err := http.NewRequest("POST", srv.url+"/v1/units:check", io.LimitReader(f, size))
	if err != nil {
		srv.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := srv.client.Do(req)
	if err != nil {
		srv.Error(err)
		return 0
	}
	defer resp.Body.Close()
	for in := bufio.NewReaderSize(resp.Body, 64<<10); ; {
		line, err := in.ReadSlice('\n')
		switch {
		case bytes.Contains(line, []byte(`"status":"done"`)):
			done++
		case len(line) > 0 && !bytes.Contains(line, []byte(`"summary"`)):
			srv.Errorf("%s", line)
		}
		if err != nil {
			return done
		}
	}
}

func checkByHand(db *pgxpool.Pool, path string, size int64) (done int, err error) {
	type answer struct {
		Line      int       `json:"line"`
		UnitKey   uuid.UUID `json:"unit_key"`
		Status    string    `json:"status"`
		ObjectKey string    `json:"object_key,omitempty"`
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	out := bufio.NewWriterSize(io.Discard, 64<<10)
	enc := json.NewEncoder(out)
	line := 0
	var keys []uuid.UUID
	flush := func() error {
		rows, err := db.Query(context.Background(), `SELECT unit_key, object_key FROM catalog.tiles WHERE unit_key = ANY($1)`, keys)
		if err != nil {
			return err
		}
		found := make(map[uuid.UUID]string, len(keys))
		var key uuid.UUID
		var object string
		if _, err := pgx.ForEachRow(rows, []any{&key, &object}, func() error { found[key] = object; return nil }); err != nil {
			return err
		}
		for _, key := range keys {
			line++
			a := answer{line, key, "new", found[key]}
			if a.ObjectKey != "" {
				a.Status = "done"
				done++
			}
			if err := enc.Encode(a); err != nil {
				return err
			}
		}
		keys = keys[:0]
		return nil
	}
	in := bufio.NewScanner(io.LimitReader(f, size))
	for in.Scan() {
		var u unit
		if err := json.Unmarshal(in.Bytes(), &u); err != nil {
			return done, err
		}
		parsed, err := catalog.NewUnit(u.Collection, u.TileID, u.Identity, "")
		if err != nil {
			return done, err
		}
		if keys = append(keys, parsed.Key); len(keys) == 1000 {
			if err := flush(); err != nil {
				return done, err
			}
		}
	}
	if len(keys) > 0 {
		err = flush()
	}
	return done, err
}

// resetPeak has the kernel forget how large the server has been.
func (srv *server) resetPeak() {
	srv.Helper()
	ok(srv, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", srv.pid), []byte("5"), 0))
}

// peak of the server's resident memory since then, MiB.
func (srv *server) peak() float64 {
	srv.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", srv.pid))
	ok(srv, err)
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
	ok(srv, err)
	return kib / 1024
}
