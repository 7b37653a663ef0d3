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
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/catalog"
	"catalogd/internal/pgcluster"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/writer/probetest"
)

const (
	collection = "landcover"
	token      = "catd_bench_bench_bench_bench_bench_bench_bench"
)

func ok(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// site is a durable PostgreSQL cluster on the disk, whose vacuums come when they are
// asked for.
type site struct {
	testing.TB
	dir     string
	cluster *pgcluster.Cluster
}

func newSite(b testing.TB) *site {
	b.Helper()
	dir, err := os.MkdirTemp("", "catalogd-bench-")
	ok(b, err)
	b.Cleanup(func() { ok(b, os.RemoveAll(dir)) })
	ok(b, os.Chmod(dir, 0o711)) // postgres passes through
	cluster, err := pgcluster.Start(b.Context(), pgcluster.Config{Dir: filepath.Join(dir, "pg"), Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h",
	}})
	ok(b, err)
	b.Cleanup(func() { ok(b, cluster.Stop(context.Background())) })
	return &site{b, dir, cluster}
}

// database makes a migrated one, and gives its URL as superuser.
func (s *site) database(name string) string {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), s.cluster.URL("postgres"))
	ok(s, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(s.Context(), "CREATE DATABASE "+name)
	ok(s, err)
	url := s.cluster.URL(name)
	ok(s, migrate.Up(s.Context(), url))
	return url
}

func (s *site) connect(url string) *pgxpool.Pool {
	s.Helper()
	config, err := pgxpool.ParseConfig(url)
	ok(s, err)
	config.MaxConns = 20 // as the server
	pool, err := pgxpool.NewWithConfig(s.Context(), config)
	ok(s, err)
	s.Cleanup(pool.Close)
	return pool
}

// server is a catalogd, and the client's side of it.
type server struct {
	testing.TB
	url, store string
	pid        int
	client     *http.Client
}

var serving = regexp.MustCompile(`msg=serving url=(\S+)`)

// start starts bin/catalogd with its defaults, on an empty store on the disk.
func (s *site) start(database string) *server {
	s.Helper()
	store := filepath.Join(s.dir, "store")
	ok(s, os.MkdirAll(store, 0o755))
	return s.startOn(database, store)
}

// startOn starts it on a store with settings in its environment.
func (s *site) startOn(database, store string, environment ...string) *server {
	s.Helper()
	probe := probetest.Path(s)
	program := filepath.Join(filepath.Dir(probe), "catalogd")
	srv := &server{TB: s, store: store, client: newClient()}
	cmd := exec.Command(program, "serve", "--database-url", database+"&role=catalog_server", "--store", srv.store, "--listen", "127.0.0.1:0")
	cmd.Env = append(append(os.Environ(), "CATALOGD_ADMIN_TOKEN="+token, "CATALOGD_PROBE="+probe), environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	ok(s, err)
	ok(s, cmd.Start())
	srv.pid = cmd.Process.Pid
	lines := bufio.NewScanner(stderr)
	for srv.url == "" {
		if !lines.Scan() {
			s.Fatalf("%s ended: is it built? make build", program)
		}
		if m := serving.FindStringSubmatch(lines.Text()); m != nil {
			srv.url = m[1]
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "level=ERROR") {
				fmt.Fprintln(os.Stderr, lines.Text())
			}
		}
	}()
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-drained
		ok(s, cmd.Wait())
		srv.client.CloseIdleConnections()
	})
	srv.ask("POST", "/v1/collections", map[string]string{"id": collection}, nil)
	return srv
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// ask sends one request as a task does, and reads the answer into out.
func (srv *server) ask(method, path string, body, out any) {
	if err := ask(srv.client, method, srv.url+path, body, out); err != nil {
		srv.Error(err)
	}
}

func ask(client *http.Client, method, url string, body, out any) error {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, url, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", method, url, resp.StatusCode, text)
	}
	if out != nil {
		return json.Unmarshal(text, out)
	}
	return nil
}

// unit is what a task sends.
type unit struct {
	Collection string          `json:"collection"`
	TileID     string          `json:"tile_id"`
	Identity   json.RawMessage `json:"identity"`
	Owner      string          `json:"owner,omitempty"`
	RequestID  string          `json:"request_id,omitempty"`
	Staged     string          `json:"staged,omitempty"`
}

func newUnit(tile string) unit {
	identity := fmt.Sprintf(`{"version":"v1","scene":"S2A_MSIL2A_20260804T103021_N0511_R108_%s","inputs":["B02","B03","B04","B08"],"window":[0,0,512,512],"scale":0.0001}`, tile)
	return unit{Collection: collection, TileID: tile, Identity: json.RawMessage(identity)}
}

func (u unit) asked() unit {
	u.Owner, u.RequestID = "worker-7f9c", uuid.NewString()
	return u
}

// at calls do for each of n, from so many goroutines.
func at(clients, n int, do func(i int)) {
	var wait sync.WaitGroup
	jobs := make(chan int)
	for range clients {
		wait.Go(func() {
			for i := range jobs {
				do(i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	wait.Wait()
}

// cpu is the processor time of processes so far, in ms: of those whose id, or whose
// parent's, is pid.
func (s *site) cpu(pids ...int) (self, children float64) {
	s.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	ok(s, err)
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		var pid int
		_, err = fmt.Sscan(string(text), &pid)
		ok(s, err)
		_, rest, _ := strings.Cut(string(text), ") ")
		field := strings.Fields(rest) // from the third on
		ticks := 0.0
		for _, f := range field[11:13] {
			n, err := strconv.ParseFloat(f, 64)
			ok(s, err)
			ticks += n
		}
		parent, err := strconv.Atoi(field[1])
		ok(s, err)
		switch {
		case slices.Contains(pids, pid):
			self += 10 * ticks
		case slices.Contains(pids, parent):
			children += 10 * ticks
		}
	}
	return self, children
}

// backends are the sessions of a database.
func (s *site) backends(database string) (pids []int) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), s.cluster.URL("postgres"))
	ok(s, err)
	defer conn.Close(context.Background())
	rows, err := conn.Query(s.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = $1`, database)
	ok(s, err)
	pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
	ok(s, err)
	return pids
}

func timed(do func()) float64 {
	start := time.Now()
	do()
	return time.Since(start).Seconds()
}

func percentile(v []float64, p float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(float64(len(v)-1)*p)]
}

func median(v []float64) float64 { return percentile(v, 0.5) }

// seed fills a catalogue with n outputs of true keys, by SQL. Whole ones have their
// attempt, footprint and object too.
func (s *site) seed(db *pgxpool.Pool, store string, n int, whole bool) {
	s.Helper()
	ctx := s.Context()
	conn, err := db.Acquire(ctx)
	ok(s, err)
	defer conn.Release()
	exec := func(sql string, args ...any) {
		s.Helper()
		_, err := conn.Exec(ctx, sql, args...)
		ok(s, err)
	}
	exec(`CREATE TEMP TABLE seed (unit uuid, attempt uuid, tile text COLLATE "C", identity jsonb, key text COLLATE "C")`)
	content := []byte("what is skipped is not read\n")
	ok(s, os.MkdirAll(filepath.Join(store, collection, filepath.Dir(tileName(0))), 0o755))
	i := 0
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"seed"}, []string{"unit", "attempt", "tile", "identity", "key"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == n {
			return nil, nil
		}
		u := newUnit(tileName(i))
		i++
		parsed, err := catalog.NewUnit(u.Collection, u.TileID, u.Identity, "")
		if err != nil {
			return nil, err
		}
		attempt, err := catalog.NewAttemptID()
		if err != nil {
			return nil, err
		}
		key := catalog.FinalName(u.Collection, u.TileID, parsed.Key, attempt, ".tif")
		if whole {
			err = os.WriteFile(filepath.Join(store, key), content, 0o644)
		}
		return []any{parsed.Key, attempt, u.TileID, string(parsed.Identity.Canonical()), key}, err
	}))
	ok(s, err)
	exec(`SET session_replication_role = replica`) // the references are good
	exec(`INSERT INTO catalog.collection_versions (collection_id, version) VALUES ($1, 'v1')`, collection)
	exec(`INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity) SELECT unit, $1, tile, 'v1', identity FROM seed`, collection)
	exec(`INSERT INTO catalog.slots (collection_id, tile_id, unit_key) SELECT $1, tile, unit FROM seed`, collection)
	if whole {
		exec(`
INSERT INTO catalog.attempts (attempt_id, unit_key, request_id, owner, try, state, store_id, media_type, staging_key, object_key, lease_until, ended_at)
SELECT attempt, unit, attempt::text, 'worker', 0, 'done', store_id, 'image/tiff', '.staging/' || attempt, key, now(), now() FROM seed, catalog.stores`)
	}
	exec(`
INSERT INTO catalog.tiles (unit_key, collection_id, tile_id, store_id, object_key, size_bytes, checksum, etag, media_type, driver, is_cog, footprint, crs,
                           transform, width, height, bands, attempt_id, registered_at, published_at)
SELECT unit, $1, tile, store_id, key, $2, 'sha256:' || repeat('0', 64), '', 'image/tiff', 'GTiff', false,
       CASE WHEN $3 THEN ST_Multi(ST_MakeEnvelope(15, 52, 15.1, 52.1, 4326)) END, 'EPSG:32633',
       '{500000,10,0,5800000,0,-10}', 512, 512, '[{"data_type": "Byte"}]', attempt, now(), now()
FROM seed, catalog.stores`, collection, len(content), whole)
	exec(`SET session_replication_role = DEFAULT`)
	exec(`DROP TABLE seed`)
	exec(`VACUUM ANALYZE`)
}

func tileName(i int) string { return fmt.Sprintf("33UXP/t%07d", i) }
