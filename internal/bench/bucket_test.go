package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/rastertest"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/writer/probetest"
)

// bucket is one of a real gateway, as whoever has credentials of his own sees it.
type bucket struct {
	*s3.Client
	name    string
	gateway *s3gateway.Gateway
	mu      sync.Mutex
	sums    map[string][]byte
}

func newBucket(b testing.TB) *bucket {
	g := gatewaytest.Start(b)
	return &bucket{
		Client: s3.New(s3.Options{
			Region: s3gateway.Region, BaseEndpoint: &g.Endpoint, UsePathStyle: true,
			Credentials:                credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
			RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
			ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
			HTTPClient:                 newClient(),
		}),
		name: gatewaytest.Bucket(b, g), gateway: g, sums: map[string][]byte{},
	}
}

// serve starts a server on a prefix of the bucket, which it reaches at endpoint. The
// gateway keeps keys as files, and refuses a PUT while it removes the emptied directory:
// none is to be emptied.
func (k *bucket) serve(s *site, database, endpoint string) *server {
	for _, dir := range []string{"", "in/"} {
		ok(s, k.write("served/.staging/"+dir+"keep", nil))
	}
	store := "s3://" + k.name + "/served?region=" + s3gateway.Region + "&endpoint=" + url.QueryEscape(endpoint)
	return s.startOn(database, store, "AWS_ACCESS_KEY_ID="+k.gateway.AccessKey, "AWS_SECRET_ACCESS_KEY="+k.gateway.SecretKey)
}

// write implements objects: one PUT, which the gateway checks by its SHA-256.
func (k *bucket) write(key string, content []byte) error {
	sum := sha256.Sum256(content)
	_, err := k.PutObject(context.Background(), &s3.PutObjectInput{
		Bucket: &k.name, Key: &key, Body: bytes.NewReader(content), ContentLength: aws.Int64(int64(len(content))),
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sums[key] = append(sum[:], fmt.Sprint(len(content))...)
	return err
}

// sum implements objects: the hand believes what it sent.
func (k *bucket) sum(key string) (size int64, sum string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.sums[key]
	_, err = fmt.Sscan(string(known[sha256.Size:]), &size)
	return size, hex.EncodeToString(known[:sha256.Size]), err
}

// promote implements objects.
func (k *bucket) promote(staged, final string) error {
	ctx := context.Background()
	if _, err := k.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &k.name, Key: &final, CopySource: aws.String(k.name + "/" + staged)}); err != nil {
		return err
	}
	_, err := k.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &k.name, Key: &final})
	return err
}

// ranges reads an object by ranges.
type ranges struct {
	*bucket
	key string
}

func (r ranges) ReadAt(p []byte, off int64) (int, error) {
	out, err := r.GetObject(context.Background(), &s3.GetObjectInput{
		Bucket: &r.name, Key: &r.key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1)),
	})
	if err != nil {
		return 0, err
	}
	defer out.Body.Close()
	return io.ReadFull(out.Body, p)
}

// BenchmarkBucketRegistration is BenchmarkRegistration on a real S3 gateway, in turn with
// PUT, COPY, HEAD and the same commits by hand: without a look at the raster, and with
// one of the same probe, which reads the object by ranges.
func BenchmarkBucketRegistration(b *testing.B) {
	s := newSite(b)
	k := newBucket(b)
	srv := k.serve(s, s.database("served"), k.gateway.Endpoint)
	byHand := s.byHand(s.database("by_hand"))
	byHand.root, byHand.objects = "hand", k
	probe := pool(b, probetest.Path(b), runtime.GOMAXPROCS(0))
	probing := byHand.with(func(key string) error {
		size, _, err := k.sum(key)
		if err != nil {
			return err
		}
		return probe(ranges{k, key}, size)
	})
	content := rastertest.Raster{Width: 512, Height: 512}.Bytes()
	tile := 0
	for _, way := range []struct {
		name   string
		served func(u unit)
		hand   func(h *hand, u unit)
	}{
		{"task", func(u unit) { srv.upload(u, content) }, func(h *hand, u unit) { h.task(u, content) }},
		{"call", func(u unit) { srv.put(k, u, content) }, func(h *hand, u unit) { h.call(u, content) }},
	} {
		all := []func(u unit){way.served, func(u unit) { way.hand(byHand, u) }, func(u unit) { way.hand(probing, u) }}
		b.Run(way.name, func(b *testing.B) {
			took := inTurn(b, all, &tile)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(took[0])*1e3, "p50-ms")
			b.ReportMetric(median(took[1])*1e3, "hand-p50-ms")
			b.ReportMetric(median(took[0])/median(took[1]), "ratio")
			b.ReportMetric(median(took[0])/median(took[2]), "ratio-with-probe")
		})
	}
}

// upload does what a pipeline's task does for a unit: the output goes straight to the
// store, which checks it.
func (srv *server) upload(u unit, content []byte) {
	var d struct {
		Verdict string
		Attempt struct {
			ID string `json:"attempt_id"`
		}
	}
	srv.ask("POST", "/v1/attempts", u, &d)
	if d.Verdict != "run" {
		srv.Errorf("begin: %s", d.Verdict)
		return
	}
	sum := sha256.Sum256(content)
	told := map[string]any{"size_bytes": len(content), "checksum": "sha256:" + hex.EncodeToString(sum[:])}
	var up struct {
		Requests []struct {
			URL     string
			Headers map[string]string
		}
	}
	srv.ask("POST", "/v1/attempts/"+d.Attempt.ID+"/upload", told, &up)
	req, err := http.NewRequest(http.MethodPut, up.Requests[0].URL, bytes.NewReader(content))
	if err != nil {
		srv.Error(err)
		return
	}
	for name, value := range up.Requests[0].Headers {
		req.Header.Set(name, value)
	}
	resp, err := srv.client.Do(req)
	if err != nil {
		srv.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		srv.Errorf("upload: %s", resp.Status)
	}
	srv.done("/v1/attempts/"+d.Attempt.ID+"/complete", told)
}

// put registers an object that its writer staged with credentials of its own.
func (srv *server) put(k *bucket, u unit, content []byte) {
	u.Staged = u.RequestID + ".tif"
	if err := k.write("served/.staging/in/"+u.Staged, content); err != nil {
		srv.Error(err)
	}
	srv.done("/v1/outputs", u)
}

// tally counts what passes through it to the gateway.
type tally struct {
	mu    sync.Mutex
	names []string
	read  int64
}

func (t *tally) RoundTrip(r *http.Request) (*http.Response, error) {
	name := r.Method
	switch {
	case r.Header.Get("X-Amz-Copy-Source") != "":
		name = "COPY"
	case r.URL.Query().Has("list-type"):
		name = "LIST"
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names = append(t.names, name)
	if name == http.MethodGet && err == nil {
		t.read += resp.ContentLength
	}
	return resp, err
}

func (t *tally) take() (names string, read int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names, read = strings.Join(t.names, " "), t.read
	t.names, t.read = nil, 0
	return names, read
}

// BenchmarkBucketRequests counts the requests and the bytes that a server takes of a
// store to register one output: of 256 KiB, and a COG of 100 MiB.
func BenchmarkBucketRequests(b *testing.B) {
	s := newSite(b)
	k := newBucket(b)
	target, err := url.Parse(k.gateway.Endpoint)
	ok(b, err)
	var t tally
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &t
	front := httptest.NewServer(proxy)
	b.Cleanup(front.Close)
	srv := k.serve(s, s.database("served"), front.URL)
	small := rastertest.Raster{Width: 512, Height: 512}.Bytes()
	for i, c := range []struct {
		name    string
		content []byte
		do      func(u unit, content []byte)
	}{
		{"256KiB/task", small, srv.upload},
		{"256KiB/call", small, func(u unit, content []byte) { srv.put(k, u, content) }},
		{"100MiB-COG/task", cog(b, s.dir), srv.upload},
	} {
		b.Run(c.name, func(b *testing.B) {
			var names string
			var read int64
			n := 0
			for b.Loop() {
				t.take()
				n++
				c.do(newUnit(tileName(1000*i+n)).asked(), c.content)
				names, read = t.take()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(len(strings.Fields(names))), "requests")
			b.ReportMetric(float64(read)/1024, "read-KiB")
			b.ReportMetric(float64(len(c.content))/(1<<20), "MiB")
			b.Log(names)
		})
	}
}

// cog is one of more than 100 MiB, of noise.
func cog(b *testing.B, dir string) []byte {
	b.Helper()
	name := filepath.Join(dir, "large.tif")
	cmd := exec.Command("/usr/bin/python3", "-c", `
import sys, numpy
from osgeo import gdal
gdal.UseExceptions()
ds = gdal.GetDriverByName("MEM").Create("", 9000, 9000, 1)
ds.SetProjection('EPSG:32633')
ds.SetGeoTransform((500000, 10, 0, 5800000, 0, -10))
ds.GetRasterBand(1).WriteArray(numpy.random.default_rng(1).integers(0, 255, (9000, 9000), dtype="u1"))
gdal.GetDriverByName("COG").CreateCopy(sys.argv[1], ds, options=["COMPRESS=NONE"])
`, name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(name)
	ok(b, err)
	return content
}

// BenchmarkMarkers asks which of 6,000 units are done: by one check and, as pipelines do
// that keep marker objects, by a GET of each with 32 threads.
func BenchmarkMarkers(b *testing.B) {
	const units, threads = 6000, 32
	s := newSite(b)
	k := newBucket(b)
	database := s.database("served")
	srv := k.serve(s, database, k.gateway.Endpoint)
	s.seed(s.connect(database), s.dir, units, false)
	asked := filepath.Join(s.dir, "units.ndjson")
	s.ask(asked, units)
	size := prefix(b, asked, units)
	at(threads, units, func(i int) {
		key := "markers/" + tileName(i)
		if _, err := k.PutObject(context.Background(), &s3.PutObjectInput{Bucket: &k.name, Key: &key}); err != nil {
			b.Error(err)
		}
	})
	served := func() {
		if n := srv.check(asked, size); n != units {
			b.Errorf("%d units are done", n)
		}
	}
	markers := func() {
		at(threads, units, func(i int) {
			key := "markers/" + tileName(i)
			out, err := k.GetObject(context.Background(), &s3.GetObjectInput{Bucket: &k.name, Key: &key})
			if err != nil {
				b.Error(err)
				return
			}
			out.Body.Close()
		})
	}
	served() // warm
	var ours, theirs []float64
	for b.Loop() {
		for range 5 {
			ours, theirs = append(ours, timed(served)), append(theirs, timed(markers))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours)*1e3, "check-ms")
	b.ReportMetric(median(theirs)*1e3, "markers-ms")
	b.ReportMetric(median(theirs)/median(ours), "ratio")
}
