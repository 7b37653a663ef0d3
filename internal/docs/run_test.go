package docs

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/pgcluster"
	"catalogd/internal/writer/probetest"
)

// The commands of the README, of docs/http.md and of docs/batches.md work as they are written, one after
// another, in a copy of the sources; only the port is another.
func TestFirstUse(t *testing.T) {
	dir := reachable(t)
	copySources(t, dir)

	_, first, found := strings.Cut(read(t, "README.md"), "## A first real use")
	if !found {
		t.Fatal("the README has no first use")
	}
	script := strings.Join(slices.Concat(blocks(first, "sh"), blocks(read(t, "docs/http.md"), "sh"), blocks(read(t, "docs/batches.md"), "sh")), "\n")
	address := freeAddress(t)
	script = "trap 'kill $server; wait $server' EXIT\n" + strings.ReplaceAll(script, "127.0.0.1:8080", address)
	said := bash(t, dir, []string{"CATALOGD_LISTEN=" + address, "CATALOGD_URL=http://" + address}, script)
	for _, want := range []string{
		"done landcover/t0001.", "skip landcover/t0001.", "moved       1", "published", "done landcover/t0002.",
		"new ", "(2 rows)", `ID["EPSG",3035]`, // of the first use
		"added     3", "done landcover/t0003.", "expected 3  done 3  quarantined 0", "next: catalogd batch gate nightly-0804", "state         passed",
		`"state":"done"`, `"verdict":"run"`, `"size_bytes"`, `"valid_to":null`, `"status":"stale"`, // by HTTP
		`"added":2`, `"staging_path"`, `"leases":[{`, `"running":2`, `"state":"failed"`,
		"on_gate", "added     6", "done forest/t0001.", "quarantined ", "expected 6  done 4  quarantined 1  lost 0  pending 1", "invalid_geometry", // of batches
		"too_many_missing", "released  1", "skip forest/t0001.", "state         passed", "published     6",
	} {
		i := strings.Index(said, want)
		if i < 0 {
			t.Errorf("nothing, or not in this order, says %q", want)
			continue
		}
		said = said[i:]
	}
}

// The commands of docs/operations.md work as they are written, on a PostgreSQL of their
// own; only names of machines, paths and ports are others.
func TestOperations(t *testing.T) {
	dir := reachable(t)
	program := filepath.Join(dir, "catalogd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/catalogd")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "outputs"), 0o755); err != nil {
		t.Fatal(err)
	}
	page := read(t, "docs/operations.md")
	shell := blocks(page, "sh")
	if len(shell) != 5 {
		t.Fatalf("%d blocks: say here what to do with each", len(shell))
	}
	dev, migrate, serve, dump, restore := shell[0], shell[1], shell[2], shell[3], shell[4]
	address := freeAddress(t)
	elsewhere := strings.NewReplacer("DIR", filepath.Join(dir, "dev"), "0.0.0.0:8080", address, "/mnt/outputs", filepath.Join(dir, "outputs"),
		"/etc/catalogd/admin.token", filepath.Join(dir, "admin.token"))
	// served starts a server, lets it be asked, and stops it.
	served := func(block string, env []string, then string) {
		t.Helper()
		bash(t, dir, env, strings.TrimSpace(elsewhere.Replace(block))+` & server=$!
			trap 'kill $server; wait $server' EXIT
			until curl -sf http://`+address+`/readyz; do kill -0 $server; sleep 0.2; done
			`+then)
	}
	probe := []string{"CATALOGD_PROBE=" + probetest.Path(t)}
	served(dev, append(probe, "CATALOGD_LISTEN="+address), "")

	start := func(name string) (url func(role, database string) string, env []string) {
		t.Helper()
		cluster, err := pgcluster.Start(t.Context(), pgcluster.Config{Dir: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cluster.Stop(context.Background()) })
		config, err := pgx.ParseConfig(cluster.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		url = func(role, database string) string {
			return strings.Replace(cluster.URL(database), "postgres://"+config.User, "postgres://"+role, 1)
		}
		return url, []string{"PGHOST=" + config.Host, "PGPORT=" + fmt.Sprint(config.Port), "PGUSER=" + config.User, "PGDATABASE=postgres"}
	}
	url, env := start("pg")
	bash(t, dir, env, "createdb catalog")
	bash(t, dir, env, strings.ReplaceAll(migrate, "postgres://owner@db/catalog", "'"+url("postgres", "catalog")+"'"))
	roles := blocks(page, "sql")[0]
	bash(t, dir, env, "psql -v ON_ERROR_STOP=1 -d catalog -c \"$ROLES\"", "ROLES="+roles)
	serve = strings.ReplaceAll(serve, "postgres://catalogd@db/catalog", "'"+url("catalogd", "catalog")+"'")
	task := `export CATALOGD_URL=http://` + address + ` CATALOGD_TOKEN_FILE=` + filepath.Join(dir, "admin.token") + `
		gdal_create -q -outsize 64 64 -bands 1 -a_srs EPSG:32633 -a_ullr 500000 5800000 500640 5799360 scene.tif
		catalogd collection create landcover || true
		catalogd put scene.tif landcover t1 version=v1`
	served(serve, append(env, probe...), task)
	bash(t, dir, env, dump)

	// Another machine: the store is back, and PostgreSQL is new.
	url, env = start("pg2")
	said := bash(t, dir, append(append(env, probe...), "CATALOGD_DATABASE_URL="+url("postgres", "catalog"), "CATALOGD_STORE="+filepath.Join(dir, "outputs"), "CATALOGD_LISTEN="+address), restore)
	if !strings.Contains(said, "schema") || strings.Contains(said, "LACKS") {
		t.Errorf("doctor says\n%s", said)
	}
	bash(t, dir, env, "psql -v ON_ERROR_STOP=1 -d catalog -c 'CREATE ROLE catalogd LOGIN' -c 'GRANT catalog_server TO catalogd'")
	serve = strings.ReplaceAll(shell[2], "postgres://catalogd@db/catalog", "'"+url("catalogd", "catalog")+"'")
	served(serve, append(env, probe...), task+` | grep -q ^skip`)
}

// The commands of docs/development.md find what they name.
func TestDevelopment(t *testing.T) {
	for _, line := range strings.Split(strings.TrimSpace(blocks(read(t, "docs/development.md"), "sh")[0]), "\n") {
		// What they run has its turn by itself.
		bash(t, root, nil, strings.Replace(line, "go test ", "go test -run ^$ ", 1))
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// reachable is a temporary directory that PostgreSQL's user can pass through.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogd-docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copySources copies what git knows, or would.
func copySources(t *testing.T, dir string) {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

// bash runs a script that stops at the first command that fails, and gives what it says.
// The caller's own catalogd and PostgreSQL are not its.
func bash(t *testing.T, dir string, env []string, script string, more ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	for _, setting := range os.Environ() {
		if name, value, _ := strings.Cut(setting, "="); name == "PATH" {
			cmd.Env = append(cmd.Env, "PATH="+dir+":"+value)
		} else if !strings.HasPrefix(name, "CATALOGD_") && !strings.HasPrefix(name, "PG") {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Env = append(append(append(cmd.Env, "PAGER=cat"), env...), more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "catalogd.log"))
		t.Fatalf("%s\n%v\n%s\n%s", script, err, out, log)
	}
	return string(out)
}
