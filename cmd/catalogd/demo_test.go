package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"catalogd/internal/demo"
)

// demoProgram builds catalogd and gives a command that runs its demo in a
// directory of its own, which is empty again when the demo has cleaned up.
func demoProgram(t *testing.T, args ...string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	if os.Getenv("CATALOGD_PROBE") == "" {
		t.Fatal("CATALOGD_PROBE is not set: run `make test`")
	}
	program := filepath.Join(t.TempDir(), "catalogd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	// Not t.TempDir, which PostgreSQL's user cannot pass through.
	temp, err := os.MkdirTemp("", "demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), program, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	return cmd, temp
}

func TestDemoCloses(t *testing.T) {
	cmd, temp := demoProgram(t, "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.Bytes())
	}
	var report demo.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	if report.Tiles != 64 || report.Run != 70 || report.Skipped != 70 || report.Superseded != 6 || report.Objects != 70 ||
		report.Kills.Server < 3 || report.Kills.PostgreSQL != 1 || report.Kills.Worker != 1 ||
		report.RolledForward < 3 || report.Redone != 1 || report.Attempts != 71 {
		t.Errorf("figures are %s", out)
	}
	nothingLeft(t, temp)
}

// However a demo ends, its processes end; and one that is told to end cleans up.
func TestDemoIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		tidy   bool
	}{{syscall.SIGINT, true}, {syscall.SIGKILL, false}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			cmd, temp := demoProgram(t)
			progress, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// The workers are at work.
			for deadline := time.Now().Add(time.Minute); len(staged(temp)) == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("nothing is staged in a minute")
				}
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			told, _ := io.ReadAll(progress)
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) {
				t.Errorf("ended with %v\n%s", err, told)
			}
			if c.tidy {
				nothingLeft(t, temp)
				return
			}
			for deadline := time.Now().Add(time.Minute); len(processes(t, temp)) > 0; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("still run: %q", processes(t, temp))
				}
			}
		})
	}
}

func staged(temp string) []string {
	names, _ := filepath.Glob(filepath.Join(temp, "*/data/store/.staging/*.tif"))
	return names
}

func nothingLeft(t *testing.T, temp string) {
	t.Helper()
	entries, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	if left := processes(t, temp); len(left) > 0 {
		t.Errorf("still run: %q", left)
	}
}

// processes are the command lines that name the directory.
func processes(t *testing.T, temp string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline")) // none of one that has ended
		if strings.Contains(string(line), temp) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
