// Command testreport makes a short report of `go test -json` on its standard
// input: a line for each package, the output of what failed, and totals. It
// exits with 1 if anything failed or was skipped: a skipped test proves nothing.
//
//	go test -json ./... | go run ./internal/testreport
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is described by `go doc test2json`, and by `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
	// FailedBuild is the import path of what did not compile.
	FailedBuild string
}

type test struct{ pkg, name string }

func report(in io.Reader, out io.Writer) (ok bool, err error) {
	var passed, failed, skipped, packages, failedPackages int
	output := map[test]*strings.Builder{} // of what has not ended; a package's own has no test name
	write := func(key test, text string) {
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		output[key].WriteString(text)
	}
	take := func(key test) string {
		defer delete(output, key)
		if b := output[key]; b != nil {
			return b.String()
		}
		return ""
	}

	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return false, err
		}
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line) // from something else than go test
			}
			key := test{e.Package, e.Test}
			switch {
			case e.Action == "build-output":
				write(test{pkg: e.ImportPath}, e.Output)
			case e.Action == "output":
				write(key, e.Output)
			case e.Action == "pass" && e.Test != "":
				passed++
				delete(output, key)
			case e.Action == "fail" && e.Test != "":
				failed++
				fmt.Fprint(out, take(key))
			case e.Action == "skip" && e.Test != "":
				skipped++
				fmt.Fprint(out, take(key))
			case e.Action == "pass":
				packages++
				delete(output, key)
				fmt.Fprintf(out, "ok    %s %.1fs\n", e.Package, e.Elapsed)
			case e.Action == "fail":
				packages++
				failedPackages++
				// A test that was running when its process died has not ended.
				for key := range output {
					if key.pkg == e.Package && key.name != "" {
						fmt.Fprint(out, take(key))
					}
				}
				fmt.Fprint(out, take(test{pkg: e.FailedBuild}), take(key))
				fmt.Fprintf(out, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
			case e.Action == "skip": // a package without tests
				delete(output, key)
			}
		}
		if err == io.EOF {
			break
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped in %d packages, %d of which failed\n", passed, failed, skipped, packages, failedPackages)
	return failed == 0 && skipped == 0 && failedPackages == 0 && packages > 0, nil
}
