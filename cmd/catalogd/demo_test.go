package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/demo"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
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
	t.Run("posix", func(t *testing.T) {
		cmd, temp := demoProgram(t, "--json")
		demoCloses(t, cmd, 0)
		nothingLeft(t, temp)
	})
	t.Run("s3", func(t *testing.T) {
		gateway := gatewaytest.Start(t)
		bucket := gatewaytest.Bucket(t, gateway)
		cmd, temp := demoProgram(t, "--json", "--store", demoRoot(gateway, bucket))
		cmd.Env = append(cmd.Env, gateway.Env()...)
		demoCloses(t, cmd, 1)
		nothingLeft(t, temp)
		emptyBucket(t, gateway, bucket)
	})
}

// demoCloses runs a demo, which agrees with itself, with a worker killed while it writes
// and, where they upload and are caught at it, uploading more.
func demoCloses(t *testing.T, cmd *exec.Cmd, uploading int) {
	t.Helper()
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
	server, caught := report.Kills.Server, report.Kills.Uploading
	report.Kills.Server = 0
	kills := demo.Kills{PostgreSQL: 1, Worker: 1 + caught, Uploading: caught}
	if report.Tiles != 64 || report.Run != 70 || report.Skipped != 70 || report.Superseded != 6 || report.Objects != 70 || report.Reached != 64 ||
		report.Kills != kills || caught > uploading || server < 3 || report.RolledForward < 3 || report.Redone != kills.Worker || report.Attempts != 70+kills.Worker {
		t.Errorf("figures are %s", out)
	}
}

func demoRoot(gateway *s3gateway.Gateway, bucket string) string {
	return "s3://" + bucket + "?region=" + s3gateway.Region + "&endpoint=" + url.QueryEscape(gateway.Endpoint)
}

// emptyBucket: there is nothing in a bucket, and nothing on its way there.
func emptyBucket(t *testing.T, gateway *s3gateway.Gateway, bucket string) {
	t.Helper()
	objects, err := gateway.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects.Contents {
		t.Errorf("left behind: %s", *o.Key)
	}
	uploads, err := gateway.Client().ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uploads.Uploads {
		t.Errorf("left behind: an upload of %s", *u.Key)
	}
}

// However a demo ends, its processes end; and one that is told to end cleans up.
func TestDemoIsInterrupted(t *testing.T) {
	gateway := gatewaytest.Start(t)
	bucket := gatewaytest.Bucket(t, gateway)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		tidy   bool
		args   []string
	}{
		{"interrupt", syscall.SIGINT, true, nil},
		{"kill", syscall.SIGKILL, false, nil},
		{"interrupt on s3", syscall.SIGINT, true, []string{"--store", demoRoot(gateway, bucket)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, temp := demoProgram(t, c.args...)
			cmd.Env = append(cmd.Env, gateway.Env()...)
			progress, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// The workers are at work.
			for deadline := time.Now().Add(2 * time.Minute); len(staged(temp)) == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("nothing is written in two minutes")
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
				emptyBucket(t, gateway, bucket)
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

// staged are the outputs that workers are writing.
func staged(temp string) []string {
	names, _ := filepath.Glob(filepath.Join(temp, "*/data/store/.staging/*.tif"))
	sent, _ := filepath.Glob(filepath.Join(temp, "*/private/*/*.tif"))
	return append(names, sent...)
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
