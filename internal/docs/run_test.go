package docs

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The commands of the README and of docs/http.md work as they are written, one after
// another, in a copy of the sources; only the port is another.
func TestFirstUse(t *testing.T) {
	// Not t.TempDir, which PostgreSQL's user cannot pass through.
	dir, err := os.MkdirTemp("", "catalogd-docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	copySources(t, dir)

	_, first, found := strings.Cut(read(t, "README.md"), "## A first real use")
	if !found {
		t.Fatal("the README has no first use")
	}
	script := strings.Join(append(blocks(first, "sh"), blocks(read(t, "docs/http.md"), "sh")...), "\n")
	said := run(t, dir, script)
	for _, want := range []string{
		"done landcover/t0001.", "skip landcover/t0001.", "v8 ", "moved       1", "done landcover/t0002.",
		"new ", "(2 rows)", `ID["EPSG",3035]`, // of the first use
		`"state":"done"`, `"verdict":"run"`, `"size_bytes"`, `"valid_to":null`, `"status":"stale"`, // by HTTP
	} {
		i := strings.Index(said, want)
		if i < 0 {
			t.Errorf("nothing, or not in this order, says %q", want)
			continue
		}
		said = said[i:]
	}
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

// run has bash run a script that stops at the first command that fails, and gives what
// it says. Whatever it started ends with it.
func run(t *testing.T, dir, script string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	script = "set -euo pipefail; trap 'kill $server; wait $server' EXIT\n" + strings.ReplaceAll(script, "127.0.0.1:8080", address)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = dir
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "CATALOGD_") && !strings.HasPrefix(setting, "PG") {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Env = append(cmd.Env, "CATALOGD_LISTEN="+address, "CATALOGD_URL=http://"+address, "PAGER=cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "catalogd.log"))
		t.Fatalf("%v\n%s\ncatalogd.log:\n%s", err, said.Bytes(), log)
	}
	return said.String()
}
