package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"catalogd/internal/doctor"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/s3gateway/gatewaytest"
)

// examined runs doctor as a program and gives its findings by check, and its exit
// code.
func examined(t *testing.T, env []string, args ...string) (map[string]doctor.Finding, int) {
	t.Helper()
	cmd := program(t, append([]string{"doctor", "--json"}, args...), env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	var findings []doctor.Finding
	if err := json.Unmarshal(stdout.Bytes(), &findings); err != nil {
		t.Fatalf("%v: %s %s", err, &stdout, &stderr)
	}
	found := map[string]doctor.Finding{}
	lacking := false
	for _, f := range findings {
		found[f.Check] = f
		lacking = lacking || f.Status == doctor.Lacks
	}
	code := cmd.ProcessState.ExitCode()
	if code == exitJudged != lacking || code != 0 && code != exitJudged {
		t.Errorf("exit code %d, %s", code, &stdout)
	}
	return found, code
}

func wantFound(t *testing.T, found map[string]doctor.Finding, check string, status doctor.Status, words ...string) {
	t.Helper()
	f, there := found[check]
	if !there || f.Status != status {
		t.Errorf("%s: got %+v, want %s", check, f, status)
	}
	for _, word := range words {
		if !strings.Contains(f.Found+f.Remedy, word) {
			t.Errorf("%s: %+v does not say %q", check, f, word)
		}
	}
}

// Where nothing is set up, it is about serve --dev, demo and test.
func TestDoctorAlone(t *testing.T) {
	t.Parallel()
	found, code := examined(t, nil, "--listen", "127.0.0.1:0")
	for _, check := range []string{"postgresql", "probe", "proj", "listen", "gdal_translate", "gdal_create", "gdal_edit.py", "psql", "curl"} {
		wantFound(t, found, check, doctor.OK)
	}
	if code != 0 || len(found) != 9 {
		t.Errorf("exit code %d, found %+v", code, found)
	}

	cmd := program(t, []string{"doctor", "--listen", "127.0.0.1:0"}, []string{"CATALOGD_PROBE=/nowhere/catalogd-probe"})
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != exitJudged || !strings.Contains(string(out), "\nprobe          LACKS  start /nowhere/catalogd-probe: ") || !strings.Contains(string(out), "postgresql     ok     PostgreSQL") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// On a server, before it serves and while it does.
func TestDoctorOnServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.listen = "127.0.0.1:0"
	env := []string{"CATALOGD_DATABASE_URL=" + withRole(s.database, "catalog_server"), "CATALOGD_STORE=" + s.store}
	found, _ := examined(t, env, "--listen", "127.0.0.1:0")
	for _, check := range []string{"database", "postgis", "roles", "clock", "store", "sentinel", "staging", "ownership", "names", "rename", "fsync", "symlinks", "probe", "proj", "listen"} {
		wantFound(t, found, check, doctor.OK)
	}
	wantFound(t, found, "durability", doctor.Lacks, "fsync") // the tests' cluster
	wantFound(t, found, "sentinel", doctor.OK, "none yet")

	p := s.start()
	p.collection("landcover", nil)
	p.do(newUnit("landcover", "t1", "v1"), pixels(1))
	address := strings.TrimPrefix(p.url, "http://")
	found, _ = examined(t, env, "--listen", address)
	wantFound(t, found, "listen", doctor.OK, address+" is served by catalogd "+version)
	wantFound(t, found, "sentinel", doctor.OK, "as in the catalogue")
	wantFound(t, found, "staging", doctor.OK, "1 directories")

	p.kill()
	ok(t, migrate.Down(t.Context(), s.database))
	found, code := examined(t, env, "--listen", "127.0.0.1:0")
	wantFound(t, found, "schema", doctor.Lacks, "catalogd migrate up")
	if code != exitJudged {
		t.Errorf("exit code %d", code)
	}
}

// On a worker: a server, and a token of each role.
func TestDoctorOnWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	for _, role := range []string{"read", "write", "admin"} {
		made := must[struct{ Token string }](p, "POST", "/v1/tokens", map[string]any{"name": role + "er", "role": role})
		file := filepath.Join(t.TempDir(), "token")
		ok(t, os.WriteFile(file, []byte(made.Token+"\n"), 0o600))
		found, code := examined(t, []string{"CATALOGD_URL=" + p.url}, "--token-file", file)
		wantFound(t, found, "server", doctor.OK, version)
		wantFound(t, found, "server clock", doctor.OK)
		wantFound(t, found, "token", doctor.OK, "role "+role)
		wantFound(t, found, "gdal_edit.py", doctor.OK)
		if code != 0 || len(found) != 4 {
			t.Errorf("exit code %d, found %+v", code, found)
		}
	}
	found, _ := examined(t, []string{"CATALOGD_URL=" + p.url, "CATALOGD_TOKEN=catd_wrong"})
	wantFound(t, found, "token", doctor.Lacks, "ask an administrator")

	// A store that is away: the server is there, and not ready.
	ok(t, os.Rename(s.store, s.store+".away"))
	defer os.Rename(s.store+".away", s.store)
	found, _ = examined(t, []string{"CATALOGD_URL=" + p.url})
	wantFound(t, found, "server", doctor.Lacks, "not ready", "sentinel", "on the server")

	found, _ = examined(t, []string{"CATALOGD_URL=http://127.0.0.1:1"})
	wantFound(t, found, "server", doctor.Lacks, "connection refused")

	// Another server, and one in another time.
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	found, _ = examined(t, nil, "--url", other.URL)
	wantFound(t, found, "server", doctor.Lacks, "answers 404, and is no catalogd")
	late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		_, _ = w.Write([]byte(`{"status":"ok","version":"old"}`))
	}))
	defer late.Close()
	found, code := examined(t, nil, "--url", late.URL)
	wantFound(t, found, "server clock", doctor.Warn, "NTP")
	if code != 0 {
		t.Errorf("a warning: exit code %d", code)
	}
}

// With a store on S3, before it is one and when a server made it one.
func TestDoctorOnS3(t *testing.T) {
	t.Parallel()
	g := gatewaytest.Start(t)
	s := newSite(t)
	root := "s3://" + gatewaytest.Bucket(t, g) + "/outputs"
	s.store = root + "?endpoint=" + url.QueryEscape(g.Endpoint)
	keys := []string{"AWS_ACCESS_KEY_ID=" + g.AccessKey, "AWS_SECRET_ACCESS_KEY=" + g.SecretKey, "AWS_EC2_METADATA_DISABLED=true"}
	env := append(keys, "CATALOGD_DATABASE_URL="+withRole(s.database, "catalog_server"), "CATALOGD_STORE="+s.store)
	found, _ := examined(t, env, "--listen", "127.0.0.1:0")
	for _, check := range []string{"database", "endpoint", "credentials", "region", "store", "store clock", "permissions", "copy-source-if-match", "byte-order", "versioning", "probe"} {
		wantFound(t, found, check, doctor.OK)
	}
	wantFound(t, found, "sentinel", doctor.OK, "none yet")
	wantFound(t, found, "lifecycle", doctor.Warn, "--install-lifecycle")

	p := s.start(keys...)
	p.collection("landcover", nil)
	found, _ = examined(t, env, "--listen", "127.0.0.1:0")
	wantFound(t, found, "sentinel", doctor.OK, "as in the catalogue")

	// Several: each under its name.
	found, _ = examined(t, append(env, "CATALOGD_STORE_OLD="+reachable(t), "CATALOGD_STORE_GONE=s3://no-such-bucket?endpoint="+g.Endpoint), "--listen", "127.0.0.1:0")
	wantFound(t, found, "default sentinel", doctor.OK, "as in the catalogue")
	wantFound(t, found, "old sentinel", doctor.Lacks, "--init-store")
	wantFound(t, found, "gone store", doctor.Lacks, "no bucket no-such-bucket")

	// This server has no lifecycle rules: they are printed.
	found, code := examined(t, env, "--install-lifecycle")
	wantFound(t, found, "lifecycle", doctor.Lacks, "501", `"Prefix": "outputs/.staging/"`)
	if code != exitJudged || len(found) != 1 {
		t.Errorf("exit code %d, %+v", code, found)
	}
	out, _ := program(t, []string{"doctor", "--install-lifecycle"}, env).Output()
	_, document, _ := strings.Cut(string(out), "\n")
	if !json.Valid([]byte(document)) {
		t.Errorf("no document to set: %s", out)
	}

	// One that has them.
	l := gatewaytest.Between(t, g)
	l.KeepLifecycle("")
	env = append(env, "CATALOGD_STORE="+root+"?endpoint="+l.URL)
	found, code = examined(t, env, "--install-lifecycle")
	wantFound(t, found, "lifecycle", doctor.OK, "7 days")
	if code != 0 {
		t.Errorf("exit code %d, %+v", code, found)
	}
	found, _ = examined(t, env, "--listen", "127.0.0.1:0")
	wantFound(t, found, "lifecycle", doctor.OK, "7 days")
	found, _ = examined(t, env, "--lease", "168h", "--listen", "127.0.0.1:0")
	wantFound(t, found, "lifecycle", doctor.Lacks, "--lease")
	found, _ = examined(t, env, "--lease", "168h", "--install-lifecycle")
	wantFound(t, found, "lifecycle", doctor.Lacks, "--lease")
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--store", "gs://bucket"},
		{"--store", "s3://bucket?colour=red"},
		{"--store", "s3://bucket/a", "--store", "b=s3://bucket/a/b"},
		{"--install-lifecycle"},
		{"--install-lifecycle", "--store", "/tmp"},
	} {
		cmd := program(t, append([]string{"doctor"}, args...), nil)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != exitUsage {
			t.Errorf("%q: exit code %d: %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}
