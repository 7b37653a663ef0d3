//go:build cgo

package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"catalogd/internal/catalog"
)

// python is Debian's, the one that has GDAL.
const python = "/usr/bin/python3"

// killSeed and CATALOGD_TEST_KILLS (by default 8) say when and how often each writer is
// killed; CATALOGD_TEST_SEED takes another seed.
const killSeed = "2026"

// Real writers, each killed at random moments: what they leave is never taken unless it
// decodes to the same as the finished file. A file beside it that the step would refuse
// (see upsert's sidecars) counts as a refusal, and is listed apart.
func TestKilledWriters(t *testing.T) {
	kills, seed := 8, killSeed
	if n, err := strconv.Atoi(os.Getenv("CATALOGD_TEST_KILLS")); err == nil {
		kills = n
	}
	if s := os.Getenv("CATALOGD_TEST_SEED"); s != "" {
		seed = s
	}
	out, err := exec.Command(python, "testdata/writers.py", "modes").Output()
	check(t, err)
	table := &strings.Builder{}
	fmt.Fprintf(table, "%d kills of each writer, seed %s\n\n| writer | whole | refused |\n|---|---|---|\n", kills, seed)
	for _, mode := range strings.Fields(string(out)) {
		t.Run(mode, func(t *testing.T) {
			whole, codes := killWriter(t, mode, seed, kills)
			var refusals []string
			for code, n := range codes {
				refusals = append(refusals, fmt.Sprintf("%s %d", code, n))
			}
			slices.Sort(refusals)
			fmt.Fprintf(table, "| %s | %d | %s |\n", mode, whole, strings.Join(refusals, ", "))
		})
	}
	t.Log("\n" + table.String())
}

func killWriter(t *testing.T, mode, seed string, kills int) (whole int, codes map[string]int) {
	cmd := exec.Command(python, "testdata/writers.py", "kill", mode, t.TempDir(), seed, strconv.Itoa(kills))
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	closeIn := sync.OnceFunc(func() { _ = in.Close() })
	t.Cleanup(func() {
		closeIn()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, stderr)
		}
	})
	req := catalog.ProbeRequest{Drivers: catalog.Drivers()}
	codes = map[string]int{}
	var finished []byte
	var finishedPath, digest string
	lines := bufio.NewScanner(stdout)
	for n := 0; n <= kills && lines.Scan(); n++ {
		state, path, _ := strings.Cut(lines.Text(), " ")
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			codes["no file"]++
			fmt.Fprintln(in)
			continue
		}
		check(t, err)
		v, _ := lookBytes(content, req)
		beside := ""
		for _, suffix := range []string{"-wal", "-journal"} {
			if info, err := os.Stat(path + suffix); err == nil && info.Size() > 0 {
				beside = suffix
			}
		}
		switch {
		case state == "whole":
			finished, finishedPath = content, path
			if strings.Contains(mode, "-wal.") {
				// A database that stays in WAL mode cannot tell by itself that it is whole.
				refused(t, v, catalog.CodeSidecar, "WAL")
				continue
			}
			facts(t, v)
			d, _ := lookBytes(content, catalog.ProbeRequest{Drivers: catalog.Drivers(), Decode: true})
			facts(t, d)
			continue
		case v.Refusal != nil:
			codes[string(v.Refusal.Code)]++
			if v.Refusal.Code == catalog.CodeNotARaster {
				t.Logf("%s: %s", path, v.Refusal.Message)
			}
			if state == "done" && v.Refusal.Code != catalog.CodeSidecar {
				t.Errorf("%s is finished, and refused: %+v", path, v.Refusal)
			}
		case beside != "":
			codes["beside it "+beside]++
		default:
			whole++
			if bytes.Equal(content, finished) {
				break
			}
			if digest == "" {
				digest = digestOf(t, finishedPath)
			}
			if got := digestOf(t, path); got != digest {
				t.Errorf("%s (%s) was taken, and is not whole: %s; the finished file %s", path, state, got, digest)
			}
		}
		if !t.Failed() {
			_ = os.Remove(path)
		}
		fmt.Fprintln(in)
	}
	return whole, codes
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(python, "testdata/writers.py", "digest", path).Output()
	if err != nil {
		return "not read: " + err.Error()
	}
	return strings.TrimSpace(string(out))
}
