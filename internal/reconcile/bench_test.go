package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/postgres"
	"catalogd/internal/reconcile"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/upsert"
)

// aloneEnv has the test binary be a process that does the parts of a run, for the
// database, the root and the run that it names, and tells its peak of memory.
const aloneEnv = "CATALOGD_TEST_RECONCILE"

func runAlone(at string) {
	parts := strings.Split(at, "\n")
	run, _ := strconv.ParseInt(parts[2], 10, 64)
	err := func() error {
		ctx := context.Background()
		db, err := postgres.Open(ctx, parts[0])
		if err != nil {
			return err
		}
		defer db.Close()
		store, err := posix.Open(ctx, parts[1], posix.Options{})
		if err != nil {
			return err
		}
		stores := upsert.Stores{store.ID(): store}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		rec := reconcile.New(reconcile.Config{Ledger: db, Stores: stores, Logger: log, Step: upsert.New(upsert.Config{Ledger: db, Stores: stores, Logger: log})})
		return rec.DoPart(ctx, run, 0)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	fmt.Println(strings.Fields(after)[0])
}

// large makes a world of n outputs, three tenths of them in one directory, whose rows and
// files are as they should be. The files have a size and no content.
func large(b *testing.B, n int) *world {
	b.Helper()
	w := newWorld(b)
	w.rec.PartRows = 1 << 40
	config, err := pgxpool.ParseConfig(w.url)
	must(b, err)
	config.ConnConfig.RuntimeParams["session_replication_role"] = "replica" // the references are good
	sql, err := pgxpool.NewWithConfig(b.Context(), config)
	must(b, err)
	defer sql.Close()
	_, err = sql.Exec(b.Context(), `
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, bands, attempt_id, registered_at, published_at)
SELECT unit, 'landcover', tile, $2, 'landcover/' || tile || '.' || left(replace(unit::text, '-', ''), 12) || '.' || right(attempt::text, 12) || '.tif',
       1000, 'sha256:' || repeat('0', 64), '', 'image/tiff', 'GTiff', false, '[]', attempt, now(), now()
FROM (SELECT gen_random_uuid() AS unit, gen_random_uuid() AS attempt,
             CASE WHEN i < $1::integer * 3 / 10 THEN 'flat/' ELSE (i / 1000)::text || '/' END || 't' || i AS tile
      FROM generate_series(1, $1::integer) i) made`, n, w.store.ID())
	must(b, err)
	_, err = sql.Exec(b.Context(), `VACUUM ANALYZE catalog.tiles`)
	must(b, err)
	made := map[string]bool{}
	for row, err := range w.db.Rows(b.Context(), w.store.ID(), storage.Range{}) {
		must(b, err)
		path := filepath.Join(w.root, row.ObjectKey)
		if dir := filepath.Dir(path); !made[dir] {
			must(b, os.MkdirAll(dir, 0o755))
			made[dir] = true
		}
		f, err := os.Create(path)
		must(b, err, f.Truncate(row.SizeBytes), f.Close())
	}
	return w
}

// alone has another process do a run, and gives its peak of memory in KiB.
func (w *world) alone() float64 {
	w.t.Helper()
	run, err := w.rec.Start(w.t.Context(), reconcile.Request{StoreID: w.store.ID(), Prefix: "landcover/"}, "test", 0)
	must(w.t, err)
	w.queue.parts = nil
	program, err := os.Executable()
	must(w.t, err)
	cmd := exec.CommandContext(w.t.Context(), program)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", aloneEnv, w.url, w.root, run.ID))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(w.t, err)
	run, err = w.rec.Run(w.t.Context(), run.ID)
	must(w.t, err)
	want(w.t, run, catalog.RunComplete, nil)
	peak, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	must(w.t, err)
	return peak
}

func seconds(do func()) float64 {
	begun := time.Now()
	do()
	return time.Since(begun).Seconds()
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// BenchmarkReconcile reconciles 1,000,000 objects with as many rows, 300,000 of them in
// one directory, in one part. Beside it, in turns: both sides read at the same time
// without being joined; the listing copied to PostgreSQL, and joined there. Then the peaks
// of memory of a process that does it, of 1,000,000 and of 10,000.
func BenchmarkReconcile(b *testing.B) {
	const n = 1_000_000
	w := large(b, n)
	ctx := b.Context()
	whole := storage.Range{Prefix: "landcover/"}
	ours := func() {
		run := w.start(reconcile.Request{Prefix: "landcover/"})
		want(b, run, catalog.RunComplete, nil)
		if run.Figures.Matched != n {
			b.Fatalf("%+v", run.Figures)
		}
	}
	floor := func() {
		var rows, objects int
		var group errgroup.Group
		group.Go(func() error {
			for _, err := range w.db.Rows(ctx, w.store.ID(), whole) {
				if err != nil {
					return err
				}
				rows++
			}
			return nil
		})
		group.Go(func() error {
			for _, err := range w.store.List(ctx, whole) {
				if err != nil {
					return err
				}
				objects++
			}
			return nil
		})
		must(b, group.Wait())
		if rows != n || objects != n {
			b.Fatalf("%d rows, %d objects", rows, objects)
		}
	}
	inSQL := func() {
		must(b, pgx.BeginFunc(ctx, w.sql, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `CREATE TEMP TABLE listed (key text COLLATE "C", size bigint) ON COMMIT DROP`); err != nil {
				return err
			}
			read, write := io.Pipe()
			go func() {
				for o, err := range w.store.List(ctx, whole) {
					if err == nil {
						_, err = fmt.Fprintf(write, "%s\t%d\n", o.Key, o.SizeBytes)
					}
					if err != nil {
						write.CloseWithError(err)
						return
					}
				}
				write.Close()
			}()
			if _, err := tx.Conn().PgConn().CopyFrom(ctx, read, `COPY listed FROM STDIN`); err != nil {
				return err
			}
			var differ int
			err := tx.QueryRow(ctx, `
SELECT count(*) FROM listed l FULL JOIN (SELECT object_key, size_bytes FROM catalog.tiles WHERE store_id = $1) t ON t.object_key = l.key
WHERE l.key IS NULL OR t.object_key IS NULL OR t.size_bytes <> l.size`, w.store.ID()).Scan(&differ)
			if err == nil && differ != 0 {
				err = fmt.Errorf("%d differ", differ)
			}
			return err
		}))
	}
	ours() // warm
	floor()
	var run, bare, sql []float64
	for b.Loop() {
		for range 3 {
			run, bare, sql = append(run, seconds(ours)), append(bare, seconds(floor)), append(sql, seconds(inSQL))
		}
	}
	peak := w.alone()
	small := large(b, 10_000).alone()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(run), "reconcile-s")
	b.ReportMetric(median(bare), "both-sides-s")
	b.ReportMetric(median(sql), "copy+join-s")
	b.ReportMetric(median(run)/median(bare), "ratio")
	b.ReportMetric(peak/1024, "peak-MiB")
	b.ReportMetric(small/1024, "peak-of-10000-MiB")
	b.ReportMetric(peak/small, "memory-ratio")
}
