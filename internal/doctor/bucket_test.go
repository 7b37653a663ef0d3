package doctor

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/s3"
)

// credentials are what the SDK's chain finds in this test.
func credentials(t testing.TB, key, secret string) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
	} {
		t.Setenv(name, value)
	}
}

// gateway is one with a bucket, whose root's credentials the chain finds.
func gateway(t testing.TB) (g *s3gateway.Gateway, bucket string) {
	t.Helper()
	g = gatewaytest.Start(t)
	credentials(t, g.AccessKey, g.SecretKey)
	return g, gatewaytest.Bucket(t, g)
}

func storeAt(bucket, endpoint, more string) Store {
	root := "s3://" + bucket + "/some/prefix"
	return Store{URL: root + "?endpoint=" + url.QueryEscape(endpoint) + more, Root: root}
}

// lookAt makes the checks of a store on S3 alone.
func lookAt(t testing.TB, s Store, change ...func(*exam)) []Finding {
	t.Helper()
	e := newExam(Config{Stores: []Store{s}})
	for _, c := range change {
		c(e)
	}
	e.bucket(t.Context(), s)
	return e.findings
}

// content is all that is in a bucket.
func content(t testing.TB, g *s3gateway.Gateway, bucket string) (names []string) {
	t.Helper()
	objects, err := g.Client().ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket})
	ok(t, err)
	for _, o := range objects.Contents {
		names = append(names, *o.Key)
	}
	uploads, err := g.Client().ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &bucket})
	ok(t, err)
	for _, u := range uploads.Uploads {
		names = append(names, "upload to "+*u.Key)
	}
	return names
}

func TestBucket(t *testing.T) {
	g, bucket := gateway(t)
	here := storeAt(bucket, g.Endpoint, "")

	// A prefix where no server was yet: none is made a store.
	found := lookAt(t, here, func(e *exam) { e.stores = map[string]string{} })
	for _, check := range []string{"endpoint", "credentials", "region", "store", "store clock", "permissions", "sentinel", "put-if-none-match",
		"copy-if-none-match", "complete-if-none-match", "copy-source-if-match", "part-copy-source-if-match", "copy-metadata", "checksums", "byte-order", "versioning"} {
		want(t, found, check, OK)
	}
	want(t, found, "endpoint", OK, g.Endpoint, "on this machine")
	want(t, found, "credentials", OK, g.AccessKey, "EnvConfigCredentials")
	want(t, found, "region", OK, s3gateway.Region)
	want(t, found, "sentinel", OK, "none yet")
	want(t, found, "copy-if-none-match", OK, "looks first")
	want(t, found, "lifecycle", Warn, "501", "--install-lifecycle prints")
	if left := content(t, g, bucket); len(left) > 0 {
		t.Errorf("left %q", left)
	}

	cfg, err := s3.FromURL(here.URL)
	ok(t, err)
	cfg.Init = true
	made, err := s3.Open(t.Context(), cfg)
	ok(t, err)
	before := content(t, g, bucket)
	for _, test := range []struct {
		stores map[string]string
		status Status
		word   string
	}{
		{nil, OK, made.ID()},
		{map[string]string{made.ID(): here.Root}, OK, "as in the catalogue"},
		{map[string]string{made.ID(): "s3://elsewhere"}, OK, "it moves"},
		{map[string]string{}, Warn, "adds it"},
		{map[string]string{"other": here.Root}, Lacks, "correct bucket"},
	} {
		want(t, lookAt(t, here, func(e *exam) { e.stores = test.stores }), "sentinel", test.status, test.word)
	}
	if after := content(t, g, bucket); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}

	within := here
	within.URL = strings.Replace(here.URL, "prefix", "prefix/more", 1)
	want(t, lookAt(t, within), "sentinel", Lacks, "within another store: "+made.ID(), "prefix of its own")
	other := storeAt(bucket, g.Endpoint, "")
	other.URL, other.Root = strings.Replace(here.URL, "some/prefix", "other", 1), "s3://"+bucket+"/other"
	want(t, lookAt(t, other), "sentinel", Warn, "--database-url")
	want(t, lookAt(t, other, func(e *exam) { e.stores = map[string]string{"x": here.Root} }), "sentinel", Lacks, "--init-store")

	ok(t, g.Version(t.Context(), bucket))
	want(t, lookAt(t, here), "versioning", Warn, "noncurrent", "NoncurrentVersionExpiration")
}

// Each way in which a store is not reached: there is one line that lacks, and it says
// what to do.
func TestBucketNotReached(t *testing.T) {
	g, bucket := gateway(t)
	secure := httptest.NewTLSServer(gatewaytest.Between(t, g).Config.Handler)
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	ok(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o644))
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>It works</html>") }))
	defer page.Close()
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()

	want(t, lookAt(t, storeAt(bucket, secure.URL, "&ca_file="+ca)), "endpoint", OK, "TLS 1.3")
	want(t, lookAt(t, storeAt(bucket, secure.URL, "&insecure_tls=true")), "endpoint", Warn, "any certificate", "ca_file")

	for name, test := range map[string]struct {
		store       Store
		key, secret string
		check       string
		words       []string
	}{
		"no bucket":       {storeAt("no-such-bucket", g.Endpoint, ""), g.AccessKey, g.SecretKey, "store", []string{"no bucket no-such-bucket", "make it"}},
		"wrong region":    {storeAt(bucket, g.Endpoint, "&region=eu-west-1"), g.AccessKey, g.SecretKey, "region", []string{"is in us-east-1", "set to eu-west-1", "region=us-east-1"}},
		"wrong secret":    {storeAt(bucket, g.Endpoint, ""), g.AccessKey, "wrong", "credentials", []string{"SignatureDoesNotMatch", "renew"}},
		"unknown key":     {storeAt(bucket, g.Endpoint, ""), "nobody", "wrong", "credentials", []string{"nobody", "InvalidAccessKeyId"}},
		"no credentials":  {storeAt(bucket, g.Endpoint, ""), "", "", "credentials", []string{"finds none", "AWS_ACCESS_KEY_ID"}},
		"no profile":      {storeAt(bucket, g.Endpoint, "&profile=none"), "", "", "store", []string{"profile"}},
		"nobody listens":  {storeAt(bucket, "http://127.0.0.1:1", ""), g.AccessKey, g.SecretKey, "endpoint", []string{"refused", "start the S3 server"}},
		"a page":          {storeAt(bucket, page.URL, ""), g.AccessKey, g.SecretKey, "endpoint", []string{"does not answer as an S3 server", "endpoint="}},
		"404":             {storeAt(bucket, none.URL, ""), g.AccessKey, g.SecretKey, "endpoint", []string{"does not answer as an S3 server"}},
		"untrusted":       {storeAt(bucket, secure.URL, ""), g.AccessKey, g.SecretKey, "endpoint", []string{"not trusted", "ca_file="}},
		"another's name":  {storeAt(bucket, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1), "&ca_file="+ca), g.AccessKey, g.SecretKey, "endpoint", []string{"not trusted", "localhost"}},
		"no TLS":          {storeAt(bucket, strings.Replace(g.Endpoint, "http", "https", 1), ""), g.AccessKey, g.SecretKey, "endpoint", []string{"does not speak TLS"}},
		"TLS only":        {storeAt(bucket, strings.Replace(secure.URL, "https", "http", 1), ""), g.AccessKey, g.SecretKey, "endpoint", []string{"https://"}},
		"no CA":           {storeAt(bucket, secure.URL, "&ca_file=/nonexistent"), g.AccessKey, g.SecretKey, "store", []string{"CA file"}},
		"unknown setting": {storeAt(bucket, g.Endpoint, "&colour=red"), g.AccessKey, g.SecretKey, "store", []string{"colour"}},
	} {
		t.Run(name, func(t *testing.T) {
			credentials(t, test.key, test.secret)
			found := lookAt(t, test.store)
			want(t, found, test.check, Lacks, test.words...)
			for _, f := range found {
				if f.Status != OK && f.Check != test.check {
					t.Errorf("and %+v", f)
				}
			}
		})
	}
}

// Refusals, of one action after another.
func TestBucketDenied(t *testing.T) {
	g, bucket := gateway(t)
	secret, err := g.CreateUser(t.Context(), "worker")
	ok(t, err)
	credentials(t, "worker", secret)
	actions := []string{"s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"}
	allow := func(actions []string) []Finding {
		t.Helper()
		ok(t, g.SetPolicy(t.Context(), bucket, fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["worker"]},
			"Action":["%s"],"Resource":["arn:aws:s3:::%[2]s","arn:aws:s3:::%[2]s/*"]}]}`, strings.Join(actions, `","`), bucket)))
		found := lookAt(t, storeAt(bucket, g.Endpoint, ""))
		if left := content(t, g, bucket); len(left) > 0 {
			t.Errorf("left %q", left)
		}
		return found
	}
	found := allow(actions)
	want(t, found, "permissions", OK)
	want(t, found, "byte-order", OK)
	want(t, found, "versioning", OK)
	want(t, allow(actions[:6]), "versioning", Warn, "s3:GetBucketVersioning")
	for i, action := range actions[:6] {
		found := allow(slices.Delete(slices.Clone(actions), i, i+1))
		want(t, found, "credentials", OK, "worker")
		want(t, found, "permissions", Lacks, action+" denied", "allow these credentials", bucket+"/some/prefix/*")
		for _, f := range found {
			if f.Check == "byte-order" {
				t.Errorf("without %s: %+v", action, f)
			}
		}
	}
	found = allow([]string{"s3:GetObject", "s3:ListBucket"}) // read-only
	want(t, found, "permissions", Lacks, "s3:DeleteObject, s3:ListBucketMultipartUploads, s3:AbortMultipartUpload denied; writing was not tried")
	want(t, found, "sentinel", Warn, "there is no")
}

func TestBucketClock(t *testing.T) {
	g, bucket := gateway(t)
	l := gatewaytest.Between(t, g)
	here := storeAt(bucket, l.URL, "")
	for ahead, status := range map[time.Duration]Status{0: OK, -time.Minute: Warn, time.Hour: Lacks} {
		l.After(func(resp *http.Response) error {
			resp.Header.Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			return nil
		})
		want(t, lookAt(t, here), "store clock", status)
	}
	l.Before(func(w http.ResponseWriter, _ *http.Request) bool { w.Header()["Date"] = nil; return false }) // nor add one
	l.After(func(resp *http.Response) error { resp.Header.Del("Date"); return nil })
	want(t, lookAt(t, here), "store clock", Warn, "no date")
	l.Refuse(gatewaytest.Always, http.StatusForbidden, "RequestTimeTooSkewed", gatewaytest.Any)
	want(t, lookAt(t, here), "store clock", Lacks, "RequestTimeTooSkewed", "NTP")
}

// Where tasks are sent, if elsewhere: a proxy that changes Host breaks what is signed.
func TestPublicEndpoint(t *testing.T) {
	g, bucket := gateway(t)
	kept, target := gatewaytest.Between(t, g), &url.URL{Scheme: "http", Host: strings.TrimPrefix(g.Endpoint, "http://")}
	changed := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	defer changed.Close()
	public := func(endpoint string) []Finding {
		return lookAt(t, storeAt(bucket, g.Endpoint, "&public_endpoint="+url.QueryEscape(endpoint)))
	}
	want(t, public(kept.URL), "public endpoint", OK, kept.URL)
	want(t, public(changed.URL), "public endpoint", Lacks, "403", "SignatureDoesNotMatch", "Host")
	want(t, public("http://127.0.0.1:1"), "public endpoint", Warn, "refused", "see that tasks")
}

// What no server at hand lacks.
func TestServersOfAnotherKind(t *testing.T) {
	for _, c := range judgeCapabilities(s3.Capabilities{}) {
		if c.has || c.not == "" || c.ok == "" || c.status != OK && c.remedy == "" {
			t.Errorf("%+v", c)
		}
	}
}

// keeper is before a gateway, and has lifecycle rules.
func keeper(t testing.TB, g *s3gateway.Gateway, document string) *gatewaytest.Line {
	t.Helper()
	l := gatewaytest.Between(t, g)
	l.KeepLifecycle(document)
	return l
}

func install(t testing.TB, change func(*Config), stores ...Store) []Finding {
	t.Helper()
	config := Config{Stores: stores}
	change(&config)
	return InstallLifecycle(t.Context(), config)
}

func TestInstallLifecycle(t *testing.T) {
	g, bucket := gateway(t)
	as := func(*Config) {}
	// Where there are none.
	found := install(t, as, storeAt(bucket, g.Endpoint, ""))
	want(t, found, "lifecycle", Lacks, "501", "put-bucket-lifecycle-configuration --bucket "+bucket, `"Prefix": "some/prefix/.staging/"`, "a running catalogd sweeps")
	found = install(t, as, storeAt("no-such-bucket", g.Endpoint, ""))
	want(t, found, "store", Lacks, "no bucket")

	server := keeper(t, g, "")
	here := storeAt(bucket, server.URL, "")
	want(t, lookAt(t, here), "lifecycle", Warn, "after no time", "catalogd doctor --install-lifecycle")
	long := func(c *Config) { c.Lease = 7 * day }
	want(t, install(t, long, here), "lifecycle", Lacks, "168h10m", "7 days")
	want(t, lookAt(t, here), "lifecycle", Warn)
	for range 2 {
		found := install(t, as, here)
		want(t, found, "lifecycle", OK, "staged objects are removed after 7 days, uploads aborted after 7 days")
		if len(found) != 1 {
			t.Errorf("%+v", found)
		}
	}
	want(t, lookAt(t, here), "lifecycle", OK, "7 days")
	want(t, lookAt(t, here, func(e *exam) { e.SweepGrace = 8 * day }), "lifecycle", Lacks, "under it")
	if left := content(t, g, bucket); len(left) > 0 {
		t.Errorf("left %q", left)
	}

	// Beside the rules of others, also those in the form of old.
	server = keeper(t, g, `<LifecycleConfiguration>
		<Rule><ID>theirs</ID><Status>Enabled</Status><Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>30</Days></Expiration></Rule>
		<Rule><ID>old</ID><Status>Enabled</Status><Prefix>tmp/</Prefix><Expiration><Days>1</Days></Expiration></Rule>
		</LifecycleConfiguration>`)
	here = storeAt(bucket, server.URL, "")
	want(t, install(t, as, here), "lifecycle", OK)
	resp, err := http.Get(server.URL + "/" + bucket + "?lifecycle")
	ok(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	ok(t, err)
	for _, part := range []string{"<ID>theirs</ID>", "<Days>30</Days>", "<Filter><Prefix>tmp/</Prefix></Filter>", "<Filter><Prefix>some/prefix/" + storage.StagingPrefix + "</Prefix></Filter>"} {
		if strings.Count(string(text), part) != 1 {
			t.Errorf("%s: not once %s", text, part)
		}
	}
	if strings.Count(string(text), "<Rule>") != 4 {
		t.Errorf("not four rules: %s", text)
	}

	// They may not be set.
	server.Refuse(gatewaytest.Always, http.StatusForbidden, "AccessDenied", func(r *http.Request) bool { return r.URL.Query().Has("lifecycle") })
	want(t, lookAt(t, here), "lifecycle", Warn, "s3:GetLifecycleConfiguration")
	want(t, install(t, as, here), "lifecycle", Lacks, "s3:GetLifecycleConfiguration", `"DaysAfterInitiation": 7`)

	// A rule that removes outputs.
	server = keeper(t, g, `<LifecycleConfiguration><Rule><ID>all</ID><Status>Enabled</Status><Filter><Prefix></Prefix></Filter><Expiration><Days>90</Days></Expiration></Rule></LifecycleConfiguration>`)
	want(t, install(t, as, storeAt(bucket, server.URL, "")), "lifecycle", Lacks, `rule "all" removes outputs`)
}

// Several stores, each under its name.
func TestSeveralStores(t *testing.T) {
	g, bucket := gateway(t)
	s := made(t)
	dir := root1(s)
	e := newExam(Config{Stores: []Store{{"first", "file://" + dir, "file://" + dir}, storeAt(bucket, g.Endpoint, "")}})
	e.Stores[1].Name = "archive"
	found := Examine(t.Context(), e.Config)
	want(t, found, "first sentinel", OK, s.ID())
	want(t, found, "first rename", OK)
	want(t, found, "archive endpoint", OK)
	want(t, found, "archive permissions", OK)
	for _, f := range found {
		if f.Check == "first probe" || f.Check == "archive probe" || f.Check == "sentinel" {
			t.Errorf("%+v", f)
		}
	}
	found = install(t, func(*Config) {}, e.Stores...)
	want(t, found, "archive lifecycle", Lacks, "501")
	if len(found) != 1 {
		t.Errorf("%+v", found)
	}
}
