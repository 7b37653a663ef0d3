// Package probetest finds catalogd-probe for tests.
package probetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Path is the path of a catalogd-probe program: the one that CATALOGD_PROBE names, as
// under make, else one that is built here, once per process, with cgo.
func Path(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("CATALOGD_PROBE"); path != "" {
		return path
	}
	path, err := build()
	if err != nil {
		t.Fatalf("build catalogd-probe: %v", err)
	}
	return path
}

// build puts the program where all test processes of this tree share it. Each moves its
// own there in one step, so that none runs another's half-written file.
var build = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", err
	}
	name := strings.Map(func(r rune) rune {
		if r == filepath.Separator {
			return '-'
		}
		return r
	}, strings.TrimSpace(string(root)))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("catalogd-probetest-%d%s", os.Getuid(), name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "catalogd-probe")
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-o", fresh, "catalogd/cmd/catalogd-probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, os.Rename(fresh, path)
})
