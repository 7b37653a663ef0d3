package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
)

// bucketShell is a task at a command line whose server keeps its outputs in a bucket of
// a real gateway. The task reaches that over a line of its own.
type bucketShell struct {
	*shell
	*line
	gateway *s3gateway.Gateway
	bucket  string
}

// line is a proxy between a worker and the gateway, which a test disturbs.
type line struct {
	at string // URL of its near end

	mu     sync.Mutex
	seen   []*http.Request
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
	after  func(resp *http.Response) error // an error cuts the connection
}

func newLine(t *testing.T, endpoint string) *line {
	t.Helper()
	target, err := url.Parse(endpoint)
	ok(t, err)
	l := &line{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(resp *http.Response) error {
			l.mu.Lock()
			after := l.after
			l.mu.Unlock()
			if after == nil {
				return nil
			}
			return after(resp)
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.seen = append(l.seen, r.Clone(r.Context()))
		before := l.before
		l.mu.Unlock()
		if before == nil || !before(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	l.at = server.URL
	return l
}

// disturb sets what happens on the line from now on, and forgets what was.
func (l *line) disturb(before func(http.ResponseWriter, *http.Request) bool, after func(*http.Response) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen, l.before, l.after = nil, before, after
}

// puts are the requests since then: for each its query.
func (l *line) puts() (queries []url.Values) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.seen {
		if r.Method == http.MethodPut {
			queries = append(queries, r.URL.Query())
		}
	}
	return queries
}

// uploads are the ids of uploads in parts among them.
func (l *line) uploads() (ids []string) {
	for _, query := range l.puts() {
		if id := query.Get("uploadId"); id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// newBucketShell gives the workers another endpoint than the line's, where there is one.
func newBucketShell(t *testing.T, endpoint ...string) *bucketShell {
	t.Helper()
	g := gatewaytest.Start(t)
	b := &bucketShell{gateway: g, bucket: gatewaytest.Bucket(t, g), line: newLine(t, g.Endpoint)}
	s := newSite(t)
	s.listen = freeAddress(t)
	s.store = "s3://" + b.bucket + "/outputs?" + url.Values{
		"endpoint": {g.Endpoint}, "region": {s3gateway.Region}, "public_endpoint": append(endpoint, b.at)[:1],
	}.Encode()
	s.dress = func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID="+g.AccessKey, "AWS_SECRET_ACCESS_KEY="+g.SecretKey)
	}
	b.shell = &shell{site: s, p: s.start(), url: "http://" + s.listen, scene: filepath.Join(reachable(t), "scene.tif")}
	write(t, b.scene, large())
	b.p.collection("landcover", nil)
	return b
}

// large is a raster of four parts of 5 MiB, the last of which is shorter. It is made
// where it is asked for: this binary, run again, is every server and every task.
var large = sync.OnceValue(func() []byte { return rastertest.Raster{Width: 4096, Height: 4096}.Bytes() })

// inParts hands the large raster over.
func inParts(tile string, flags ...string) []string {
	return makeTile(tile, "true", append([]string{"--part-size", "5MiB"}, flags...)...)
}

// put is a command line that hands a file over as a unit's output.
func put(file, tile string, flags ...string) []string {
	return append([]string{"put", file, "landcover", tile, "version=v1", "scene=S2"}, flags...)
}

// tally sweeps, and holds rows and bucket against one another: rows are objects, of
// their size and bytes, and there is nothing else, staged or uploaded in parts.
func (b *bucketShell) tally() {
	b.Helper()
	must[struct{}](b.p, "POST", "/v1/sweep", nil)
	client, ctx := b.gateway.Client(), b.Context()
	objects := map[string]string{}
	listed, err := client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.bucket})
	ok(b, err)
	for _, o := range listed.Contents {
		key := strings.TrimPrefix(*o.Key, "outputs/")
		if key == ".catalogd/store.json" {
			continue
		}
		got, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.bucket, Key: o.Key})
		ok(b, err)
		content, err := io.ReadAll(got.Body)
		ok(b, err)
		objects[key] = fmt.Sprintf("%d %s", len(content), checksum(content))
	}
	rows, err := b.sql.Query(ctx, `SELECT object_key, size_bytes || ' ' || checksum FROM catalog.tiles`)
	ok(b, err)
	for rows.Next() {
		var key, row string
		ok(b, rows.Scan(&key, &row))
		if objects[key] != row {
			b.Errorf("%s: the row says %s, the object is %q", key, row, objects[key])
		}
		delete(objects, key)
	}
	ok(b, rows.Err())
	if len(objects) > 0 {
		b.Errorf("objects without rows: %v", objects)
	}
	uploads, err := client.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: &b.bucket})
	ok(b, err)
	if len(uploads.Uploads) > 0 {
		b.Errorf("%d uploads in parts are left", len(uploads.Uploads))
	}
	if n := b.count(`SELECT count(*) FROM catalog.attempts WHERE state IN ('open', 'promoting')`); n != 0 {
		b.Errorf("%d attempts are not ended", n)
	}
}

// stored asserts that the tile's row is that of these bytes.
func (b *bucketShell) stored(tile string, content []byte) {
	b.Helper()
	if got := b.text(`SELECT checksum FROM catalog.tiles WHERE tile_id = $1`, tile); got != checksum(content) {
		b.Errorf("%s: the row is of other bytes", tile)
	}
}

func answerError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>said</Message></Error>`, code)
}

// first tells, of the first n requests, that they are.
func first(n int64) func() bool {
	var seen atomic.Int64
	return func() bool { return seen.Add(1) <= n }
}

// Outputs go straight to the store, whole or in parts at once, and the token does not.
func TestUploadToStore(t *testing.T) {
	t.Parallel()
	b := newBucketShell(t)
	b.want(b.run(put(b.scene, "whole")...), 0, "done landcover/whole.")
	if puts := b.puts(); len(puts) != 1 || puts[0].Has("uploadId") {
		t.Errorf("sent as %v", puts)
	}
	b.stored("whole", large())

	// The first part is taken when there is another.
	two := make(chan struct{}, 4)
	b.disturb(func(http.ResponseWriter, *http.Request) bool {
		two <- struct{}{}
		for until := time.Now().Add(10 * time.Second); len(two) < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Error("one part at a time")
				break
			}
		}
		return false
	}, nil)
	temp := reachable(t)
	cmd := b.command(inParts("parts")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "done "+b.text(`SELECT object_key FROM catalog.tiles WHERE tile_id = 'parts'`)+"\n" {
		t.Errorf("%v: %s", err, out)
	}
	var parts []string
	for _, put := range b.puts() {
		parts = append(parts, put.Get("partNumber"))
	}
	if slices.Sort(parts); fmt.Sprint(parts) != "[1 2 3 4]" {
		t.Errorf("parts %v were sent", parts)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in TMPDIR: %v %v", left, err)
	}
	b.stored("parts", large())
	b.want(b.run(put("/nowhere", "parts")...), exitUsage)
	b.want(b.run(put(b.scene, "parts")...), 0, "skip")
	for _, r := range b.seen {
		if text := fmt.Sprint(r.URL, r.Header); r.Header.Get("Authorization") != "" || strings.Contains(text, b.token) {
			t.Errorf("the store was sent %s", text)
		}
	}

	b.disturb(nil, nil)
	b.want(b.run(put(b.scene, "through", "--upload")...), 0, "done")
	if n := len(b.puts()); n != 0 {
		t.Errorf("%d requests to the store for what goes through catalogd", n)
	}
	empty := filepath.Join(reachable(t), "empty.tif")
	write(t, empty, nil)
	b.want(b.run(put(empty, "empty")...), exitQuarantined, "empty_output")
	for _, size := range []string{"1MiB", "6GiB", "x", "5MB", "-1", "99999999999GiB"} {
		b.want(b.run(put(b.scene, "size", "--part-size", size)...), exitUsage, "--part-size")
	}
	b.tally()
}

// What goes wrong on the way to the store is tried again, and is never a row.
func TestUploadTroubles(t *testing.T) {
	t.Parallel()
	b := newBucketShell(t)
	lose := func(n int64) func(*http.Response) error {
		loses := first(n)
		return func(*http.Response) error {
			if loses() {
				return http.ErrAbortHandler
			}
			return nil
		}
	}
	answer := func(n int64, status int, code string) func(http.ResponseWriter, *http.Request) bool {
		answers := first(n)
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !answers() {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body)
			answerError(w, status, code)
			return true
		}
	}
	expire := func(n int64) func(http.ResponseWriter, *http.Request) bool {
		expires := first(n)
		return func(_ http.ResponseWriter, r *http.Request) bool {
			if expires() {
				r.URL.RawQuery = b.signedBefore(r)
			}
			return false
		}
	}
	alter := func(n int64) func(http.ResponseWriter, *http.Request) bool {
		alters := first(n)
		return func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("partNumber") != "1" && alters() { // what is in the last three is pixels
				r.Body = io.NopCloser(io.MultiReader(bytes.NewReader([]byte{1}), io.MultiReader(skip(r.Body, 1), r.Body)))
			}
			return false
		}
	}
	// The store forgets what it has taken, as one that is killed may, after n requests.
	forget := func(n int64) func(*http.Response) error {
		var seen atomic.Int64
		return func(resp *http.Response) (err error) {
			if seen.Add(1) != n {
				return nil
			}
			key := strings.TrimPrefix(resp.Request.URL.Path, "/"+b.bucket+"/")
			if id := resp.Request.URL.Query().Get("uploadId"); id != "" {
				_, err = b.gateway.Client().AbortMultipartUpload(b.Context(), &s3.AbortMultipartUploadInput{Bucket: &b.bucket, Key: &key, UploadId: &id})
			} else {
				_, err = b.gateway.Client().DeleteObject(b.Context(), &s3.DeleteObjectInput{Bucket: &b.bucket, Key: &key})
			}
			return err
		}
	}
	const always = 1 << 40
	for _, c := range []struct {
		tile    string
		before  func(http.ResponseWriter, *http.Request) bool
		after   func(*http.Response) error
		parts   bool
		puts    int // or more: what the gateway refuses before it was sent whole may be lost on the line
		uploads int
		says    string
	}{
		{"lost", nil, lose(1), false, 2, 0, ""}, // the second is told that it is there
		{"lost-parts", nil, lose(3), true, 7, 1, ""},
		{"slow-down", answer(2, 503, "SlowDown"), nil, false, 3, 0, ""},
		{"slow-down-parts", answer(6, 503, "SlowDown"), nil, true, 10, 1, ""},
		{"broken", answer(2, 500, "InternalError"), nil, true, 6, 1, ""},
		{"many", answer(1, 429, "TooManyRequests"), nil, false, 2, 0, ""},
		{"conflict", answer(1, 409, "ConditionalRequestConflict"), nil, false, 2, 0, ""},
		{"expired", expire(1), nil, false, 2, 0, ""},
		{"expired-parts", expire(4), nil, true, 8, 1, ""},
		{"altered", alter(1), nil, false, 2, 0, ""},
		{"altered-parts", alter(1), nil, true, 8, 2, ""},
		{"always-altered", alter(always), nil, false, 3, 0, "BadDigest"},
		{"denied", answer(always, 403, "AccessDenied"), nil, false, 3, 0, "AccessDenied (HTTP status 403): said; sending through catalogd"},
		{"forgotten", nil, forget(1), false, 2, 0, ""},
		{"forgotten-parts", nil, forget(4), true, 8, 2, ""},
		{"gone-parts", answer(1, 404, "NoSuchUpload"), nil, true, 1, 1, "sending through catalogd"},
	} {
		b.disturb(c.before, c.after)
		args := put(b.scene, c.tile)
		if c.parts {
			args = put(b.scene, c.tile, "--part-size", "5MiB")
		}
		r := b.run(args...)
		b.want(r, 0, "done landcover/"+c.tile+".", c.says)
		if c.says == "" && strings.Contains(r.err, "through catalogd") {
			t.Errorf("%s: %s", c.tile, r.err)
		}
		if puts, uploads := b.puts(), b.uploads(); len(puts) < c.puts || len(uploads) != c.uploads {
			t.Errorf("%s: %d requests, want %d or more; uploads in parts %v, want %d", c.tile, len(puts), c.puts, uploads, c.uploads)
		}
		b.stored(c.tile, large())
	}

	// Parts that always come as others are no output, nor a failure of the unit's.
	b.disturb(alter(always), nil)
	b.want(b.run(put(b.scene, "never", "--part-size", "5MiB")...), exitError, "sent 3 times and never came as it is")
	// A store that does not answer is waited for, and the unit is left to others.
	b.disturb(answer(always, 503, "SlowDown"), nil)
	b.want(b.run(put(b.scene, "never", "--part-size", "5MiB", "--patience", "2s")...), exitLater, "the store at "+b.at+" did not take the output in", "SlowDown")
	b.disturb(nil, nil)
	if n := b.count(`SELECT count(*) FROM catalog.failures`); n != 0 {
		t.Errorf("%d failures", n)
	}
	b.want(b.run(put(b.scene, "never", "--owner", "w2")...), 0, "done")
	b.tally()
}

// signedBefore is the query of a request as it would be if it had been signed long ago.
func (b *bucketShell) signedBefore(r *http.Request) string {
	query := r.URL.Query()
	headers := strings.Split(query.Get("X-Amz-SignedHeaders"), ";")
	for name := range query {
		if strings.HasPrefix(name, "X-Amz-") && name != "X-Amz-Expires" {
			query.Del(name)
		}
	}
	req, err := http.NewRequest(r.Method, "http://"+r.Host+r.URL.Path+"?"+query.Encode(), nil)
	ok(b, err)
	req.ContentLength = r.ContentLength
	for _, name := range headers {
		if value := r.Header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableHeaderHoisting, o.DisableURIPathEscaping = true, true })
	signed, _, err := signer.PresignHTTP(b.Context(), aws.Credentials{AccessKeyID: b.gateway.AccessKey, SecretAccessKey: b.gateway.SecretKey},
		req, "UNSIGNED-PAYLOAD", "s3", s3gateway.Region, time.Now().Add(-2*time.Hour))
	ok(b, err)
	_, before, _ := strings.Cut(signed, "?")
	return before
}

// skip reads n bytes away, and then nothing.
func skip(r io.Reader, n int64) io.Reader {
	_, _ = io.CopyN(io.Discard, r, n)
	return bytes.NewReader(nil)
}

// holdUp holds the requests of a line up, from the second on, until the test ends.
func (b *bucketShell) holdUp() (held func() bool) {
	var n atomic.Int64
	over := make(chan struct{})
	b.Cleanup(func() { close(over) })
	b.disturb(func(_ http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) > 1 {
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}
		return false
	}, nil)
	return func() bool { return n.Load() > 1 }
}

// An upload that is broken off leaves nothing, and the unit to the next.
func TestUploadBrokenOff(t *testing.T) {
	t.Parallel()
	b := newBucketShell(t)
	again := func(tile string, flags ...string) {
		t.Helper()
		b.disturb(nil, nil)
		b.want(b.run(inParts(tile, flags...)...), 0, "done")
		b.stored(tile, large())
		b.tally()
	}

	held := b.holdUp()
	running := b.begin(inParts("signal")...)
	poll(t, "an upload", held)
	ok(t, running.Process.Signal(syscall.SIGTERM))
	b.want(b.end(running), exitLater, "interrupted, and the attempt given up")
	if state := b.text(`SELECT string_agg(state, ' ') FROM catalog.attempts`); state != "abandoned" {
		t.Errorf("the attempts are %s", state)
	}
	again("signal")

	held = b.holdUp()
	running = b.begin(inParts("killed")...)
	poll(t, "an upload", held)
	ok(t, running.Process.Kill())
	b.end(running)
	again("killed", "--try", "1")

	held = b.holdUp()
	running = b.begin(inParts("overtaken")...)
	poll(t, "an upload", held)
	again("overtaken", "--try", "1")
	b.want(b.end(running), exitLater, "took the unit over")
	b.tally()

	changing := filepath.Join(reachable(t), "changing.tif")
	write(t, changing, large())
	var once sync.Once
	b.disturb(func(http.ResponseWriter, *http.Request) bool {
		once.Do(func() { ok(t, os.Chtimes(changing, time.Time{}, time.Unix(1, 0))) })
		return false
	}, nil)
	b.want(b.run(put(changing, "changed", "--part-size", "5MiB")...), exitError, "changed while it was read")
	again("changed")
}

// Where there is no way to the store, the bytes go through catalogd.
func TestUploadWithoutStore(t *testing.T) {
	t.Parallel()
	nobody := "http://" + freeAddress(t)
	b := newBucketShell(t, nobody)
	b.want(b.run(inParts("t1")...), 0, "waiting for the store at "+nobody, "connection refused; sending through catalogd, as --upload does at once", "done landcover/t1.")
	b.stored("t1", large())
	b.want(b.run(put(b.scene, "t2", "--patience", "1s")...), 0, "sending through catalogd", "done landcover/t2.")
	b.tally()
}

// terminal is a terminal that a program can be given, and what is written to it.
type terminal struct {
	tty  *os.File
	read func() string // until the program ends
}

func newTerminal(t *testing.T) terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	ok(t, err)
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	ok(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	ok(t, err)
	ok(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	ok(t, err)
	var all bytes.Buffer
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(&all, master) // ends with EIO, when nobody has the terminal
	}()
	return terminal{tty, func() string { tty.Close(); <-over; return all.String() }}
}

// slowly is a body that comes at 16 MiB a second.
type slowly struct{ io.ReadCloser }

func (s slowly) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	time.Sleep(time.Duration(n) * time.Second / (16 << 20))
	return n, err
}

// People at a terminal see how an output is sent; nobody else does.
func TestUploadProgress(t *testing.T) {
	t.Parallel()
	b := newBucketShell(t)
	slow := func(_ http.ResponseWriter, r *http.Request) bool { r.Body = slowly{r.Body}; return false }
	b.disturb(slow, nil)
	small := filepath.Join(reachable(t), "small.tif")
	write(t, small, pixels(1))
	at := func(args ...string) string {
		t.Helper()
		terminal := newTerminal(t)
		cmd := b.command(args...)
		cmd.Env = append(cmd.Env, "TERM=xterm")
		cmd.Stderr = terminal.tty
		out, err := cmd.Output()
		said := terminal.read()
		if err != nil || !strings.Contains(string(out), "done") {
			t.Errorf("%v: %v: %s%s", args, err, out, said)
		}
		return said
	}
	bar := regexp.MustCompile(`sending +\d+% \|.* \([\d.]+/16 MiB, [\d.]+ MiB/s\) \[\d+s:\d+s\]`)
	full := regexp.MustCompile(`sending 100% \|.* \(16/16 MiB, [\d.]+ MiB/s\)[^\n]*\n$`)
	for name, flags := range map[string][]string{"whole": nil, "parts": {"--part-size", "5MiB"}, "through": {"--upload"}} {
		// Four parts at once fit into the sockets between, and nothing is slow to catalogd.
		if said := at(put(b.scene, name, flags...)...); name == "whole" && !bar.MatchString(said) || !full.MatchString(said) {
			t.Errorf("%s: at the terminal: %q", name, said)
		}
	}
	for name, said := range map[string]string{
		"json": at(put(b.scene, "json", "--json")...), "small": at(put(small, "small")...), "pipe": b.run(put(b.scene, "pipe")...).err,
	} {
		if said != "" {
			t.Errorf("%s: %q", name, said)
		}
	}

	// What must be sent again is taken back, and lines for people stand alone.
	lost := first(1)
	b.disturb(slow, func(*http.Response) error {
		if lost() {
			return http.ErrAbortHandler
		}
		return nil
	})
	if said := at(put(b.scene, "lost")...); !full.MatchString(said) || strings.Count(said, "100%") != 1 {
		t.Errorf("at the terminal: %q", said)
	}
	b.disturb(func(w http.ResponseWriter, _ *http.Request) bool { answerError(w, 403, "AccessDenied"); return true }, nil)
	if said := at(put(b.scene, "denied")...); !full.MatchString(said) || !regexp.MustCompile(`(^|[\r\n])catalogd: the store takes nothing`).MatchString(said) {
		t.Errorf("at the terminal: %q", said)
	}
	b.tally()
}
