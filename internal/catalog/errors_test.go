package catalog_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"catalogd/internal/catalog"
)

// declaredCodes reads the constants of type Code from the source, so that one
// without a status does not go unseen.
func declaredCodes(t *testing.T) []catalog.Code {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []catalog.Code
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		for _, value := range spec.Values {
			text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, catalog.Code(text))
		}
		return true
	})
	return codes
}

func TestEveryCodeHasAStatus(t *testing.T) {
	declared := declaredCodes(t)
	slices.Sort(declared)
	if listed := catalog.Codes(); !slices.Equal(declared, listed) {
		t.Errorf("codes declared: %v\ncodes with a status: %v", declared, listed)
	}
	snake := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, code := range declared {
		if !snake.MatchString(string(code)) {
			t.Errorf("code %q is not in snake case", code)
		}
		if s := code.Status(); s < 400 || http.StatusText(s) == "" {
			t.Errorf("code %s has status %d", code, s)
		}
	}
	if s := catalog.Code("no_such_code").Status(); s != http.StatusInternalServerError {
		t.Errorf("an unknown code has status %d", s)
	}
}

func TestErrorKeepsItsCauseFromTheMessage(t *testing.T) {
	cause := errors.New("password=secret")
	e := catalog.Errorf(catalog.CodeStoreUnavailable, "store %q does not answer", "s1").At("/store").Because(cause)
	if e.Message != `store "s1" does not answer` {
		t.Errorf("message is %q", e.Message)
	}
	// The whole error is for the log.
	if got, want := e.Error(), `store_unavailable at /store: store "s1" does not answer: password=secret`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(e, cause) {
		t.Error("the cause is not found")
	}
	if got := catalog.Errorf(catalog.CodeBusy, "wait").Error(); got != "busy: wait" {
		t.Errorf("without field and cause: %q", got)
	}
}

func TestCodeOf(t *testing.T) {
	wrapped := fmt.Errorf("promote landcover/t0001: %w", catalog.Errorf(catalog.CodeStoreFull, "no space left"))
	if got := catalog.CodeOf(wrapped); got != catalog.CodeStoreFull {
		t.Errorf("CodeOf(%v) = %s", wrapped, got)
	}
	if !catalog.IsCode(wrapped, catalog.CodeStoreFull) || catalog.IsCode(wrapped, catalog.CodeBusy) || catalog.IsCode(nil, catalog.CodeInternal) {
		t.Error("IsCode does not tell codes apart")
	}
	if got := catalog.CodeOf(errors.New("anything")); got != catalog.CodeInternal {
		t.Errorf("CodeOf an error of others = %s", got)
	}
}
