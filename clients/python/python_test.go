// Package python holds no Go but this test, which runs those of the Python client.
package python

import (
	"context"
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/testdb"
	"catalogd/internal/writer/probetest"
)

// interpreter is the system's: its rasterio is what the tests ask for.
const interpreter = "/usr/bin/python3"

// The tests in tests/ pass, in two halves side by side, each against servers that it starts
// itself, on a directory and on S3. What follows -args names those to run: go test . -args sigterm.
func TestClient(t *testing.T) {
	program := filepath.Join(directory(t), "catalogd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "catalogd/cmd/catalogd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for name, files := range map[string]string{"batches": "test_[a-e]*.py", "units": "test_[!a-e]*.py"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testClient(t, program, files)
		})
	}
}

// directory is one that the servers' users pass through.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogd-python-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testClient(t *testing.T, program, files string) {
	t.Helper()
	dir := directory(t)
	g := gatewaytest.Start(t)
	bucket := gatewaytest.Bucket(t, g)
	gdal := map[string]string{}
	for _, setting := range g.Env() {
		name, value, _ := strings.Cut(setting, "=")
		gdal[name] = value
	}
	root := filepath.Join(dir, "store")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	database, other := testdb.New(t), testdb.New(t)
	none := map[string]string{}
	settings, err := json.Marshal(map[string]any{
		"dir": dir, "program": program, "probe": probetest.Path(t),
		"directory": map[string]any{"root": root, "args": []string{"--database-url", database, "--store", root}, "env": none, "gdal": none, "database": database},
		"s3": map[string]any{
			"root": "", "env": gdal, "gdal": gdal, "database": other, "endpoint": g.Endpoint,
			"args": []string{"--database-url", other, "--store", "s3://" + bucket + "/outputs?" + url.Values{"endpoint": {g.Endpoint}, "region": {s3gateway.Region}}.Encode()},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-W", "error::ResourceWarning", "-m", "unittest", "discover", "-v", "-s", "tests", "-t", ".", "-p", files}
	for _, name := range flag.Args() {
		args = append(args, "-k", name)
	}
	said, err := python(t, []string{"CATALOGD_TEST_SERVE=" + string(settings)}, args...)
	if err == nil && !strings.Contains(said, "skipped") && strings.Contains(said, "\nOK") {
		return
	}
	for _, kind := range []string{"directory", "s3"} {
		log, _ := os.ReadFile(filepath.Join(dir, kind+".log"))
		t.Logf("%s.log:\n%s", kind, log)
	}
	t.Fatalf("%v\n%s", err, said)
}

// The types hold, in the client and in what its users see of it.
func TestTypes(t *testing.T) {
	if said, err := python(t, nil, "-m", "mypy", "--strict", "--cache-dir", t.TempDir(), "catalogd.py"); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
}

// pip installs it, as the documentation says; here without a network.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"catalogd.py", "pyproject.toml", "README.md"} {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(dir, "site")
	if said, err := python(t, nil, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--target", target, dir); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	said, err := python(t, []string{"PYTHONPATH=" + target}, "-P", "-c", "import catalogd, importlib.metadata as m; print(catalogd.__file__, m.version('catalogd') == catalogd.__version__)")
	if want := filepath.Join(target, "catalogd.py") + " True\n"; err != nil || said != want {
		t.Fatalf("%v: %q, want %q", err, said, want)
	}
}

// python runs the interpreter, and ends with it all that it has started.
func python(t *testing.T, env []string, args ...string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, args...)
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return string(out), err
}
