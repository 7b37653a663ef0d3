package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
	"catalogd/internal/postgres"
)

const (
	claimers   = 16
	claimUnits = 100_000
	claimSize  = 50
)

// TestMain is a claimer where the environment says so: a process of its own, as tasks are.
func TestMain(m *testing.M) {
	if how := os.Getenv("CATALOGD_BENCH_CLAIMER"); how != "" {
		claims := map[string]func(url, owner string) func() ([]string, error){"served": claimServed, "bare": claimBare}
		if err := claimAll(claims[how](os.Getenv("CATALOGD_BENCH_URL"), os.Getenv("CATALOGD_BENCH_OWNER"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// claimAll says that it is ready, waits to be told, claims until there is nothing left, and
// then prints what it got.
func claimAll(claim func() ([]string, error)) error {
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	var all []string
	for {
		units, err := claim()
		if err != nil {
			return err
		}
		if len(units) == 0 {
			break
		}
		all = append(all, units...)
	}
	fmt.Println("done")
	out := bufio.NewWriter(os.Stdout)
	for _, unit := range all {
		fmt.Fprintln(out, unit)
	}
	return out.Flush()
}

func claimServed(url, owner string) func() ([]string, error) {
	client := newClient()
	return func() (units []string, err error) {
		var claimed struct {
			Units []struct {
				UnitKey string `json:"unit_key"`
			} `json:"units"`
		}
		err = ask(client, "POST", url+"/v1/batches/nightly/claim",
			map[string]any{"max": claimSize, "owner": owner, "request_id": uuid.NewString()}, &claimed)
		for _, u := range claimed.Units {
			units = append(units, u.UnitKey)
		}
		return units, err
	}
}

// claimBare takes units and makes the same attempts, with nothing asked and nothing
// answered: what a queue in PostgreSQL costs by itself.
func claimBare(url, owner string) func() ([]string, error) {
	ctx := context.Background()
	conn, connectErr := pgx.Connect(ctx, url)
	return func() (units []string, err error) {
		if connectErr != nil {
			return nil, connectErr
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback(ctx)
		rows, err := tx.Query(ctx, `
SELECT b.batch_id, u.unit_key, u.tile_id FROM catalog.batch_units b JOIN catalog.units u USING (unit_key)
WHERE b.batch_id = (SELECT batch_id FROM catalog.batches WHERE name = 'nightly') AND b.due_at <= now()
ORDER BY b.due_at LIMIT $1 FOR UPDATE OF b SKIP LOCKED`, claimSize)
		if err != nil {
			return nil, err
		}
		var batch, unit uuid.UUID
		var tile string
		var keys, ids []uuid.UUID
		var staging, objects []string
		if _, err := pgx.ForEachRow(rows, []any{&batch, &unit, &tile}, func() error {
			id, err := catalog.NewAttemptID()
			keys, ids, units = append(keys, unit), append(ids, id), append(units, unit.String())
			staging, objects = append(staging, catalog.StagingName(id, ".tif")), append(objects, catalog.FinalName(collection, tile, unit, id, ".tif"))
			return err
		}); err != nil || len(units) == 0 {
			return nil, err
		}
		write := &pgx.Batch{}
		write.Queue(`UPDATE catalog.batch_units SET due_at = now() + interval '1 minute' WHERE batch_id = $1 AND unit_key = ANY($2)`, batch, keys)
		write.Queue(`
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, batch_id, lease_until)
SELECT id, unit, $5, $6, 0, 'open', (SELECT store_id FROM catalog.stores), $7, staging, object, $8, now() + interval '1 minute'
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS n (id, unit, staging, object)`,
			ids, keys, staging, objects, uuid.NewString(), owner, catalog.MediaTypeGeoTIFF, batch)
		if err := tx.SendBatch(ctx, write).Close(); err != nil {
			return nil, err
		}
		return units, tx.Commit(ctx)
	}
}

// claimer is a process that claims.
type claimer struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	in  interface{ Write([]byte) (int, error) }
}

// race has claimers claim all at once, and gives the seconds that they took.
func (s *site) race(how, url string) float64 {
	s.Helper()
	all := make([]*claimer, claimers)
	for i := range all {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CATALOGD_BENCH_CLAIMER="+how, "CATALOGD_BENCH_URL="+url, fmt.Sprint("CATALOGD_BENCH_OWNER=worker-", i))
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		ok(s, err)
		in, err := cmd.StdinPipe()
		ok(s, err)
		ok(s, cmd.Start())
		all[i] = &claimer{cmd, bufio.NewScanner(out), in}
		if !all[i].out.Scan() || all[i].out.Text() != "ready" {
			s.Fatalf("%s claimer %d does not start", how, i)
		}
	}
	var took float64
	var mu sync.Mutex
	taken := map[string]int{}
	start := time.Now()
	for _, c := range all {
		_, err := c.in.Write([]byte("go\n"))
		ok(s, err)
	}
	var wait sync.WaitGroup
	for i, c := range all {
		wait.Go(func() {
			if !c.out.Scan() || c.out.Text() != "done" {
				s.Errorf("%s claimer %d: %s", how, i, c.out.Text())
			}
			mu.Lock()
			took = max(took, time.Since(start).Seconds())
			mu.Unlock()
			for c.out.Scan() {
				mu.Lock()
				taken[c.out.Text()]++
				mu.Unlock()
			}
			if err := c.cmd.Wait(); err != nil {
				s.Errorf("%s claimer %d: %v", how, i, err)
			}
		})
	}
	wait.Wait()
	for unit, times := range taken {
		if times != 1 {
			s.Errorf("%s: unit %s was handed out %d times", how, unit, times)
		}
	}
	if len(taken) != claimUnits {
		s.Errorf("%s: %d units were handed out", how, len(taken))
	}
	return took
}

// expectUnits opens a batch of so many units.
func (s *site) expectUnits(url string, n int) {
	s.Helper()
	db, err := postgres.Open(s.Context(), url)
	ok(s, err)
	defer db.Close()
	batch, _, err := db.OpenBatch(s.Context(), "nightly", collection, "bench")
	ok(s, err)
	for from := 0; from < n; from += 1000 {
		units := make([]catalog.ExpectedUnit, min(1000, n-from))
		for i := range units {
			u := newUnit(tileName(from + i))
			units[i].Unit, err = catalog.NewUnit(u.Collection, u.TileID, u.Identity, "")
			ok(s, err)
		}
		_, refused, err := db.AddUnits(s.Context(), batch, units)
		ok(s, err)
		if len(refused) > 0 {
			s.Fatal(refused)
		}
	}
}

// BenchmarkClaim has 16 processes claim 100,000 units of a batch, 50 at a time, over HTTP
// and by a bare SKIP LOCKED loop that makes the same attempts.
func BenchmarkClaim(b *testing.B) {
	s := newSite(b)
	served := s.database("served")
	store := filepath.Join(s.dir, "store")
	ok(b, os.MkdirAll(store, 0o755))
	// Nobody keeps the leases: units whose leases ended would be handed out again.
	srv := s.startOn(served, store, "CATALOGD_LEASE=1h")
	s.expectUnits(served, claimUnits)
	// The floor starts from the very same database, but for the server's connections.
	bare := s.database("bare")
	db := s.connect(bare)
	_, err := db.Exec(b.Context(), `INSERT INTO catalog.stores (store_id, root, location, href) VALUES ('bench', 'file:///bench', '/bench/', '/data/')`)
	ok(b, err)
	_, err = db.Exec(b.Context(), `INSERT INTO catalog.collections (collection_id, store_id, media_type) VALUES ($1, 'bench', $2)`, collection, catalog.MediaTypeGeoTIFF)
	ok(b, err)
	s.expectUnits(bare, claimUnits)
	again := func(url string) {
		pool := s.connect(url)
		for _, sql := range strings.Split(`DELETE FROM catalog.attempts;UPDATE catalog.batch_units SET due_at = now();VACUUM FULL ANALYZE catalog.batch_units;VACUUM FULL ANALYZE catalog.attempts;CHECKPOINT`, ";") {
			_, err := pool.Exec(b.Context(), sql)
			ok(b, err)
		}
	}
	var ours, theirs []float64
	for b.Loop() {
		for range 3 {
			again(served)
			ours = append(ours, s.race("served", srv.url))
			again(bare)
			theirs = append(theirs, s.race("bare", bare))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(claimUnits/median(ours), "units/s")
	b.ReportMetric(claimUnits/median(theirs), "bare-units/s")
	b.ReportMetric(median(theirs)/median(ours), "of-bare")
}
