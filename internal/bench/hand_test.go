package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/catalog"
	"catalogd/internal/writer"
)

// hand does by hand, in this process, what must be durable of a registration: the same
// file, the same fsyncs, rename, SHA-256 and look with GDAL, equal rows in the same
// tables by as many commits, and as many HTTP calls, of a handler that does nothing. It
// reads nothing, checks nothing and could not be repeated.
type hand struct {
	testing.TB
	db     *pgxpool.Pool
	root   string
	store  string
	url    string
	client *http.Client
	// look has GDAL look at a file; nil for nobody.
	look func(path string) error
	objects
}

// objects is where the hand's files are.
type objects interface {
	// write stages a file.
	write(staged string, content []byte) error
	// sum is a staged file's size and SHA-256.
	sum(staged string) (size int64, sha256 string, err error)
	// promote gives it its final name, durably.
	promote(staged, final string) error
}

func (s *site) byHand(database string) *hand {
	s.Helper()
	h := &hand{TB: s, db: s.connect(database), root: filepath.Join(s.dir, "hand"), store: "by-hand", client: newClient(), objects: files{}}
	for _, dir := range []string{"staging", collection} {
		ok(s, os.MkdirAll(filepath.Join(h.root, dir), 0o755))
	}
	for _, sql := range []string{
		`INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('by-hand', 'file:///', '/', '/')`,
		`INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ('landcover', 'by-hand', 'image/tiff')`,
		`INSERT INTO catalog.collection_versions (collection_id, version) VALUES ('landcover', 'v1')`,
	} {
		_, err := h.db.Exec(s.Context(), sql)
		ok(s, err)
	}
	reply := []byte(`{"attempt":"` + strings.Repeat("x", 1000) + `"}`)
	stub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(reply)
	}))
	s.Cleanup(stub.Close)
	s.Cleanup(h.client.CloseIdleConnections)
	h.url = stub.URL
	return h
}

// with is the same hand, with another look.
func (h *hand) with(look func(path string) error) *hand {
	other := *h
	other.look = look
	return &other
}

// row is what a registration writes, in parts.
type row struct {
	unit, attempt uuid.UUID
	of            unit
	staged, final string
}

func (h *hand) newRow(u unit) row {
	r := row{unit: uuid.New(), attempt: uuid.New(), of: u}
	r.staged = filepath.Join(h.root, "staging", r.attempt.String()+".tif")
	r.final = filepath.Join(h.root, collection, strings.ReplaceAll(u.TileID, "/", "-")+"."+r.attempt.String()+".tif")
	return r
}

const (
	handSlot    = `INSERT INTO catalog.slots (collection_id, tile_id) VALUES ($1, $2)`
	handUnit    = `INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) VALUES ($1, $2, $3, 'v1', $4)`
	handAttempt = `
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, intent, lease_until)
VALUES ($1, $2, $3, 'worker', 0, $4, 'by-hand', 'image/tiff', $5, $6, $7, now() + interval '60 s')`
	handLease  = `UPDATE catalog.attempts SET lease_until = now() + interval '60 s' WHERE attempt_id = $1`
	handIntent = `UPDATE catalog.attempts SET state = 'promoting', intent = $2, lease_until = now() + interval '120 s' WHERE attempt_id = $1`
	handTile   = `
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, footprint, crs,
                           transform, width, height, bands, attempt_id, registered_at, published_at)
VALUES ($1, $2, $3, 'by-hand', $4, $5, $6, '', 'image/tiff', 'GTiff', false, ST_GeomFromEWKT($7), 'EPSG:32633',
        '{500000,10,0,5800000,0,-10}', 512, 512, '[{"data_type": "Byte"}]', $8, now(), now())`
	handSlotTo  = `UPDATE catalog.slots SET unit_key = $3, updated_at = now() WHERE (collection_id, tile_id) = ($1, $2)`
	handHistory = `INSERT INTO catalog.slot_history (collection_id, tile_id, to_unit, moved_by, reason, moved_at) VALUES ($1, $2, $3, 'worker', 'registered', now())`
	handDone    = `UPDATE catalog.attempts SET state = 'done', intent = NULL, ended_at = now() WHERE attempt_id = $1`

	handOutline = `SRID=4326;MULTIPOLYGON(((15 52.35,15.0376 52.35,15.0752 52.35,15.0751 52.327,15.075 52.304,15.0374 52.304,15 52.304,15 52.327,15 52.35)))`
)

// commit is one transaction and one round trip.
func (h *hand) commit(queue func(*pgx.Batch)) {
	var batch pgx.Batch
	queue(&batch)
	if err := h.db.SendBatch(context.Background(), &batch).Close(); err != nil {
		h.Error(err)
	}
}

func (h *hand) hop(body any) {
	if err := ask(h.client, "POST", h.url, body, nil); err != nil {
		h.Error(err)
	}
}

func (h *hand) begin(b *pgx.Batch, r row, state string, intent *string) {
	u := r.of
	b.Queue(handSlot, u.Collection, u.TileID)
	b.Queue(handUnit, r.unit, u.Collection, u.TileID, string(u.Identity))
	b.Queue(handAttempt, r.attempt, r.unit, u.RequestID, state, r.staged, r.final, intent)
}

// task is begin, a file, complete: four commits, the second of them not waited for.
func (h *hand) task(u unit, content []byte) {
	r := h.newRow(u)
	h.hop(u)
	h.commit(func(b *pgx.Batch) { h.begin(b, r, "open", nil) })
	h.stage(r, content)
	h.hop(nil)
	h.commit(func(b *pgx.Batch) {
		b.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
		b.Queue(handLease, r.attempt)
	})
	intent := h.intent(r.staged)
	h.commit(func(b *pgx.Batch) { b.Queue(handIntent, r.attempt, string(intent.text)) })
	h.finish(r, intent)
}

// call is one call for a file that is there: two commits.
func (h *hand) call(u unit, content []byte) {
	r := h.newRow(u)
	h.stage(r, content)
	h.hop(u)
	intent := h.intent(r.staged)
	text := string(intent.text)
	h.commit(func(b *pgx.Batch) { h.begin(b, r, "promoting", &text) })
	h.finish(r, intent)
}

func (h *hand) stage(r row, content []byte) {
	if err := h.write(r.staged, content); err != nil {
		h.Error(err)
	}
}

// files are on the disk.
type files struct{}

func (files) write(path string, content []byte) error { return os.WriteFile(path, content, 0o644) }

func (files) sum(path string) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	digest := sha256.New()
	size, err = io.Copy(digest, f)
	return size, hex.EncodeToString(digest.Sum(nil)), err
}

func (files) promote(staged, final string) error {
	f, err := os.Open(staged)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(staged, final); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(final))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

type handIntended struct {
	size     int64
	checksum string
	text     []byte
}

// intent hashes the file and has GDAL look at it, at the same time.
func (h *hand) intent(path string) handIntended {
	looked := make(chan error, 1)
	go func() {
		var err error
		if h.look != nil {
			err = h.look(path)
		}
		looked <- err
	}()
	var in handIntended
	size, sum, err := h.sum(path)
	if err := errors.Join(err, <-looked); err != nil {
		h.Error(err)
	}
	in.size, in.checksum = size, "sha256:"+sum
	in.text, err = json.Marshal(catalog.Intent{
		SizeBytes: in.size, Checksum: in.checksum, Driver: "GTiff", MediaType: "image/tiff", CRS: "EPSG:32633",
		Transform: [6]float64{500000, 10, 0, 5800000, 0, -10}, Width: 512, Height: 512, Footprint: make([]byte, 170),
	})
	if err != nil {
		h.Error(err)
	}
	return in
}

// finish makes the file durable at its final name, then writes the row.
func (h *hand) finish(r row, in handIntended) {
	if err := h.promote(r.staged, r.final); err != nil {
		h.Error(err)
	}
	u := r.of
	h.commit(func(b *pgx.Batch) {
		b.Queue(handTile, r.unit, u.Collection, u.TileID, r.final, in.size, in.checksum, handOutline, r.attempt)
		b.Queue(handSlotTo, u.Collection, u.TileID, r.unit)
		b.Queue(handHistory, u.Collection, u.TileID, r.unit)
		b.Queue(handDone, r.attempt)
	})
}

// gdalinfo is what a warm process of GDAL in Python takes for what gdalinfo -json does,
// on each of its lines a file.
const gdalinfo = `
import sys
from osgeo import gdal
gdal.UseExceptions()
for line in sys.stdin:
    ds = gdal.Open(line.strip())
    info = gdal.Info(ds, format="json")
    ds = None
    print(info["size"][0], flush=True)
`

// warmGDAL keeps as many such processes as the server has probes.
func warmGDAL(b testing.TB, processes int) func(path string) error {
	b.Helper()
	type child struct {
		in  io.Writer
		out *bufio.Reader
	}
	idle := make(chan child, processes)
	for range processes {
		cmd := exec.Command("/usr/bin/python3", "-c", gdalinfo)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		in, err := cmd.StdinPipe()
		ok(b, err)
		out, err := cmd.StdoutPipe()
		ok(b, err)
		ok(b, cmd.Start())
		b.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				b.Errorf("%v\n%s", err, stderr.String())
			}
		})
		idle <- child{in, bufio.NewReader(out)}
	}
	return func(path string) error {
		c := <-idle
		defer func() { idle <- c }()
		if _, err := fmt.Fprintln(c.in, path); err != nil {
			return err
		}
		if line, err := c.out.ReadString('\n'); err != nil || line != "512\n" {
			return fmt.Errorf("gdalinfo said %q, %w", line, err)
		}
		return nil
	}
}

// pooledProbe looks as the server does.
func pooledProbe(b testing.TB, program string, processes int) func(path string) error {
	probe := pool(b, program, processes)
	return func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return probe(f, info.Size())
	}
}

func pool(b testing.TB, program string, processes int) func(src io.ReaderAt, size int64) error {
	pool := writer.NewPool(writer.Config{Program: program, Size: processes})
	b.Cleanup(func() { _ = pool.Close() })
	return func(src io.ReaderAt, size int64) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := pool.Probe(ctx, src, size, catalog.ProbeRequest{MediaType: "image/tiff"})
		return err
	}
}
