package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
	"catalogd/internal/writer/probetest"
)

// The tests of this package are end to end: this test binary, run again, is the
// program; what it does is seen through HTTP, SQL and the store's directory.
const (
	// envMain makes the test binary the program.
	envMain = "CATALOGD_TEST_MAIN"
	// envCrash is point[:n]: the program kills itself when it is there for the nth time.
	envCrash = "CATALOGD_TEST_CRASH"
	// envHold is point:dir: the program makes dir/held there and waits for dir/go.
	envHold = "CATALOGD_TEST_HOLD"
)

func TestMain(m *testing.M) {
	if os.Getenv(envMain) == "" {
		code := m.Run()
		endGateway()
		os.Exit(code)
	}
	switch {
	case os.Getenv(envCrash) != "":
		stepHook = crashAt(os.Getenv(envCrash))
	case os.Getenv(envHold) != "":
		stepHook = holdAt(os.Getenv(envHold))
	}
	ctx, stop := untilSignal(os.Args[1:])
	code := run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

type hook = func(context.Context, upsert.Point, uuid.UUID)

func crashAt(spec string) hook {
	point, times, _ := strings.Cut(spec, ":")
	left := atomic.Int64{}
	n, err := strconv.ParseInt(times, 10, 64)
	if err != nil {
		n = 1
	}
	left.Store(n)
	return func(_ context.Context, at upsert.Point, _ uuid.UUID) {
		if string(at) == point && left.Add(-1) == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

func holdAt(spec string) hook {
	point, dir, _ := strings.Cut(spec, ":")
	return func(_ context.Context, at upsert.Point, _ uuid.UUID) {
		if string(at) != point {
			return
		}
		_ = os.WriteFile(filepath.Join(dir, "held"), nil, 0o666)
		for {
			if _, err := os.Stat(filepath.Join(dir, "go")); err == nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// program is the command of a child that is catalogd. It dies with this process.
func program(t testing.TB, args, env []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envMain+"=1", "CATALOGD_PROBE="+probetest.Path(t))
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// site is a database and a store for servers of one test.
type site struct {
	*testing.T
	database string // as superuser
	store    string // what --store says: a directory, or a URL
	bucket   *bucket
	token    string
	sql      *pgxpool.Pool
	// env is that of its servers; stores, if set, are theirs in place of store.
	env, stores []string
	// listen is the address of its servers; "" for one of their own each.
	listen string
	// dress adjusts the command of each server.
	dress func(*exec.Cmd)
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, database: testdb.New(t), store: reachable(t), token: "catd_" + strings.Repeat("t", 43)}
	var err error
	s.sql, err = newPool(t.Context(), s.database)
	ok(t, err)
	t.Cleanup(s.sql.Close)
	return s
}

func newPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 1 // so that a temporary table is there for all
	return pgxpool.NewWithConfig(ctx, config)
}

// within is the site for a subtest.
func (s *site) within(t *testing.T) *site {
	sub := *s
	sub.T = t
	return &sub
}

// reachable is a temporary directory that every user may pass through.
func reachable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogd-test-")
	ok(t, err)
	ok(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll asks until it is so, and fails the test when that takes half a minute.
func poll(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// process is a running server.
type process struct {
	t      *testing.T
	token  string
	url    string
	cmd    *exec.Cmd
	client *http.Client
	exited chan struct{}
	err    error // of Wait, once exited is closed

	mu  sync.Mutex
	log bytes.Buffer
}

// start starts a server on the site and waits until it serves.
func (s *site) start(env ...string) *process {
	s.Helper()
	args := []string{
		"serve", "--database-url", withRole(s.database, "catalog_server"), "--listen", cmp.Or(s.listen, "127.0.0.1:0"),
		"--probes", "2", "--lease", "20s", "--recover-every", "1s",
	}
	if s.stores == nil {
		args = append(args, "--store", s.store)
	}
	args = append(args, storeArgs(s.stores)...)
	cmd := program(s, args, slices.Concat(s.env, env, []string{"CATALOGD_ADMIN_TOKEN=" + s.token}))
	if s.dress != nil {
		s.dress(cmd)
	}
	return launch(s.T, cmd, s.token)
}

// withoutToken follows a redirect to a store.
func withoutToken(req *http.Request, via []*http.Request) error {
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

var servingURL = regexp.MustCompile(`msg=serving url=(\S+)`)

func launch(t *testing.T, cmd *exec.Cmd, token string) *process {
	t.Helper()
	p := &process{t: t, token: token, cmd: cmd, exited: make(chan struct{})}
	p.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}, CheckRedirect: withoutToken}
	stderr, err := cmd.StderrPipe()
	ok(t, err)
	ok(t, cmd.Start())
	serving := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			fmt.Fprintln(&p.log, lines.Text())
			p.mu.Unlock()
			if m := servingURL.FindStringSubmatch(lines.Text()); m != nil {
				serving <- m[1]
			}
		}
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		p.client.CloseIdleConnections()
		if said := p.said(); strings.Contains(said, "DATA RACE") || strings.Contains(said, "panic") {
			t.Error("the server raced or panicked")
		}
		if t.Failed() {
			t.Logf("server %d (%v) said:\n%s", cmd.Process.Pid, p.err, p.said())
		}
	})
	select {
	case p.url = <-serving:
	case <-p.exited:
		t.Fatalf("the server ended at start: %v", p.err)
	case <-time.After(30 * time.Second):
		t.Fatal("the server does not serve")
	}
	return p
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// kill ends the server as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// crashed waits until the server has died of SIGKILL.
func (p *process) crashed() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		p.t.Fatal("the server lives")
	}
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the server ended by %v", p.err)
	}
}

// terminate asks the server to stop, and gives its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	ok(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
	case <-time.After(40 * time.Second):
		p.t.Fatal("the server does not stop")
	}
	return p.cmd.ProcessState.ExitCode()
}

// answer is what a server said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send is one request; body is nil, a reader, bytes of JSON, or what is made JSON.
// An error says that there was no answer.
func (p *process) send(method, path string, body any) (answer, error) {
	p.t.Helper()
	var reader io.Reader
	contentType := "application/json"
	switch b := body.(type) {
	case nil:
		contentType = ""
	case io.Reader:
		reader, contentType = b, "image/tiff"
	case []byte:
		reader = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		ok(p.t, err)
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, p.url+path, reader)
	ok(p.t, err)
	req.Header.Set("Authorization", "Bearer "+p.token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

// ask is send that must be answered.
func (p *process) ask(method, path string, body any) answer {
	p.t.Helper()
	a, err := p.send(method, path, body)
	ok(p.t, err)
	return a
}

// must is ask that must be answered with 2xx, and reads the answer.
func must[T any](p *process, method, path string, body any) T {
	p.t.Helper()
	return read[T](p.t, p.ask(method, path, body))
}

func read[T any](t testing.TB, a answer) (out T) {
	t.Helper()
	if a.status/100 != 2 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if len(a.body) > 0 {
		ok(t, json.Unmarshal(a.body, &out))
	}
	return out
}

// What the contract says, as far as a task reads it.
type (
	tile struct {
		UnitKey   uuid.UUID `json:"unit_key"`
		ObjectKey string    `json:"object_key"`
		SizeBytes int64     `json:"size_bytes"`
		Checksum  string    `json:"checksum"`
		CRS       *string   `json:"crs"`
		Width     int       `json:"width"`
		Height    int       `json:"height"`
		AttemptID uuid.UUID `json:"attempt_id"`
		Current   bool      `json:"current"`
	}
	attempt struct {
		ID          uuid.UUID `json:"attempt_id"`
		StagingKey  string    `json:"staging_key"`
		StagingPath string    `json:"staging_path"`
		StagingURI  string    `json:"staging_uri"`
		UploadURL   string    `json:"upload_url"`
		ObjectKey   string    `json:"object_key"`
	}
	decision struct {
		Verdict string    `json:"verdict"`
		UnitKey uuid.UUID `json:"unit_key"`
		Tile    *tile     `json:"tile"`
		Current bool      `json:"current"`
		Attempt *attempt  `json:"attempt"`
		Reason  string    `json:"reason"`
	}
	upload struct {
		ID       string `json:"upload_id"`
		PartSize int64  `json:"part_size"`
		Requests []struct {
			Method  string            `json:"method"`
			URL     string            `json:"url"`
			Headers map[string]string `json:"headers"`
			Offset  int64             `json:"offset"`
			Size    int64             `json:"size_bytes"`
		} `json:"requests"`
	}
	outcome struct {
		State     string    `json:"state"`
		AttemptID uuid.UUID `json:"attempt_id"`
		Tile      tile      `json:"tile"`
	}
	problem struct {
		Type     string `json:"type"`
		Title    string `json:"title"`
		Status   int    `json:"status"`
		Detail   string `json:"detail"`
		Instance string `json:"instance"`
		Code     string `json:"code"`
		Field    string `json:"field"`
	}
	recovered struct {
		RolledForward int `json:"rolled_forward"`
		Overtaken     int `json:"overtaken"`
		Failed        int `json:"failed"`
		Unfinished    int `json:"unfinished"`
		Published     int `json:"published"`
	}
)

// collection creates a collection; policy holds members of the contract's NewCollection.
func (p *process) collection(id string, policy map[string]any) {
	p.t.Helper()
	body := map[string]any{"id": id, "retry_base_seconds": 0} // what failed is due at once
	for name, value := range policy {
		body[name] = value
	}
	if a := p.ask("POST", "/v1/collections", body); a.status != http.StatusCreated {
		p.t.Fatalf("create collection: %d %s", a.status, a.body)
	}
}

// unit is what a task sends to begin.
type unit struct {
	Collection string         `json:"collection"`
	TileID     string         `json:"tile_id"`
	Identity   map[string]any `json:"identity"`
	Owner      string         `json:"owner"`
	Try        int            `json:"try"`
	RequestID  string         `json:"request_id"`
	Batch      string         `json:"batch,omitempty"`
}

func newUnit(collection, tileID, version string) unit {
	return unit{
		Collection: collection, TileID: tileID, Identity: map[string]any{"version": version, "scene": "S2"},
		Owner: "worker-" + tileID, RequestID: uuid.NewString(),
	}
}

// again is the same unit of a later try.
func (u unit) again() unit {
	u.Try++
	u.RequestID = uuid.NewString()
	return u
}

// from is the same unit, asked for by another owner.
func (u unit) from(owner string) unit {
	u.Owner, u.RequestID = owner, uuid.NewString()
	return u
}

func (p *process) begin(u unit) decision {
	p.t.Helper()
	return must[decision](p, "POST", "/v1/attempts", u)
}

// run is begin that must give an attempt.
func (p *process) run(u unit) attempt {
	p.t.Helper()
	d := p.begin(u)
	if d.Verdict != "run" {
		p.t.Fatalf("begin %s: %s %s, want run", u.TileID, d.Verdict, d.Reason)
	}
	return *d.Attempt
}

func (a attempt) path(verb string) string { return "/v1/attempts/" + a.ID.String() + "/" + verb }

func (p *process) complete(a attempt) outcome {
	p.t.Helper()
	return must[outcome](p, "POST", a.path("complete"), nil)
}

// do is a unit's whole life.
func (p *process) do(u unit, raster []byte) outcome {
	p.t.Helper()
	a := p.run(u)
	p.stage(a, raster)
	return p.complete(a)
}

// stage puts a raster where its attempt says, straight into the store.
func (p *process) stage(a attempt, raster []byte) {
	p.t.Helper()
	if a.StagingPath != "" {
		write(p.t, a.StagingPath, raster)
		return
	}
	up := must[upload](p, "POST", a.path("upload"), map[string]any{"size_bytes": len(raster), "checksum": checksum(raster), "replace": true})
	if etags := up.send(p.t, raster); len(etags) != 1 {
		p.t.Fatalf("%d requests, want one", len(etags))
	}
}

// send sends the requests of an upload, and gives the ETags of the answers.
func (u upload) send(t testing.TB, raster []byte) (etags []string) {
	t.Helper()
	for _, r := range u.Requests {
		req, err := http.NewRequest(r.Method, r.URL, bytes.NewReader(raster[r.Offset:r.Offset+r.Size]))
		ok(t, err)
		for name, value := range r.Headers {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s %s", r.Method, req.URL.Path, resp.Status, text)
		}
		etags = append(etags, resp.Header.Get("ETag"))
	}
	return etags
}

func write(t testing.TB, name string, content []byte) {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(name), 0o755))
	ok(t, os.WriteFile(name, content, 0o644))
}

// pixels are a raster's bytes, of their own for each seed.
func pixels(seed byte) []byte { return rastertest.Raster{Seed: seed}.Bytes() }

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (s *site) count(query string, args ...any) (n int) {
	s.Helper()
	if err := s.sql.QueryRow(s.Context(), query, args...).Scan(&n); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
	return n
}

func (s *site) text(query string, args ...any) (text string) {
	s.Helper()
	if err := s.sql.QueryRow(s.Context(), query, args...).Scan(&text); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
	return text
}

func (s *site) exec(query string, args ...any) {
	s.Helper()
	if _, err := s.sql.Exec(s.Context(), query, args...); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
}

// path of an object, where the store is a directory.
func (s *site) path(key string) string { return filepath.Join(s.store, key) }

// inode of a file of the store; 0 when it is not there.
func (s *site) inode(key string) uint64 {
	info, err := os.Lstat(s.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	ok(s, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// state of an object, which no other has, nor it after a change; "" when it is not
// there.
func (s *site) state(key string) string {
	s.Helper()
	if s.bucket != nil {
		return s.bucket.state(s, key)
	}
	if inode := s.inode(key); inode != 0 {
		return strconv.FormatUint(inode, 10)
	}
	return ""
}

// put writes an object behind the server's back, and remove removes it.
func (s *site) put(key string, content []byte) {
	s.Helper()
	if s.bucket != nil {
		s.bucket.put(s, key, content)
		return
	}
	write(s, s.path(key), content)
}

func (s *site) remove(key string) {
	s.Helper()
	if s.bucket != nil {
		s.bucket.remove(s, key)
		return
	}
	ok(s, os.Remove(s.path(key)))
}

// files below a directory of the store, which need not be there.
func (s *site) files(dir string) (names []string) {
	s.Helper()
	if s.bucket != nil {
		return s.bucket.files(s, dir)
	}
	err := filepath.WalkDir(s.path(dir), func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(name, s.store+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Fatal(err)
	}
	return names
}

// sound sweeps, and has all invariants hold.
func (s *site) sound(p *process) {
	s.Helper()
	must[struct{}](p, "POST", "/v1/sweep", nil)
	s.hold(invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// hold has the invariants hold.
func (s *site) hold(opts invariant.Options) {
	s.Helper()
	if s.bucket != nil {
		invariant.CheckStore(s, s.database, s.bucket.seen(), opts)
		return
	}
	invariant.Check(s, s.database, s.store, opts)
}

// done asserts that a unit is done exactly once, with these bytes, for every way to ask.
func (s *site) done(p *process, u unit, raster []byte) tile {
	s.Helper()
	attempts := s.count(`SELECT count(*) FROM catalog.attempts`)
	d := p.begin(u.again())
	if d.Verdict != "skip" || !d.Current {
		s.Fatalf("redelivered: %s %s, current %v; want skip, current", d.Verdict, d.Reason, d.Current)
	}
	got := must[tile](p, "GET", "/v1/units/"+d.UnitKey.String(), nil)
	if got.Checksum != checksum(raster) || got.SizeBytes != int64(len(raster)) {
		s.Errorf("the row is of %d bytes, %s; want %d, %s", got.SizeBytes, got.Checksum, len(raster), checksum(raster))
	}
	for _, name := range []string{got.ObjectKey, u.Collection + "/" + u.TileID + ".tif"} {
		if a := p.ask("GET", "/data/"+name, nil); a.status != http.StatusOK || !bytes.Equal(a.body, raster) {
			s.Errorf("GET /data/%s: %d, %d bytes; not those of the raster", name, a.status, len(a.body))
		}
	}
	if n := s.count(`SELECT count(*) FROM catalog.tiles WHERE unit_key = $1`, d.UnitKey); n != 1 {
		s.Errorf("%d rows", n)
	}
	if n := s.count(`SELECT count(*) FROM catalog.attempts WHERE unit_key = $1 AND state IN ('open', 'promoting')`, d.UnitKey); n != 0 {
		s.Errorf("%d attempts hold the unit", n)
	}
	if n := s.count(`SELECT count(*) FROM catalog.attempts`); n != attempts {
		s.Errorf("redelivery made %d attempts", n-attempts)
	}
	return got
}
