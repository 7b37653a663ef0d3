package posix

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Options.Synced misses no fsync: the step's own packages have one place that calls it.
func TestEveryFsyncIsTold(t *testing.T) {
	durable := []string{"Sync", "Fsync", "Fdatasync", "Syncfs", "SyncFileRange", "Msync", "O_SYNC", "O_DSYNC", "RWF_SYNC", "RWF_DSYNC", "fsync"}
	found := map[string]int{}
	for _, pattern := range []string{"*.go", "../*.go", "../../upsert/*.go", "../../httpapi/*.go", "../../writer/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			ok(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				s, is := n.(*ast.SelectorExpr)
				if !is || !slices.Contains(durable, s.Sel.Name) {
					return true
				}
				if x, is := s.X.(*ast.Ident); is && x.Name == "s" && s.Sel.Name == "fsync" {
					return true // through the one place
				}
				found[name+" "+s.Sel.Name]++
				return true
			})
		}
	}
	// What Open gives the store to call, and where it calls that.
	if len(found) != 2 || found["store.go Sync"] != 1 || found["promote.go fsync"] != 1 {
		t.Fatalf("fsyncs that Synced is not told of: %v", found)
	}
}
