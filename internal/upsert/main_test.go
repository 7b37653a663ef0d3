package upsert_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"catalogd/internal/writer"
	"catalogd/internal/writer/probetest"
)

// probes is one pool for all tests of the package: it keeps no state.
var probes struct {
	sync.Once
	*writer.Pool
}

func pool(t testing.TB) *writer.Pool {
	t.Helper()
	path := probetest.Path(t)
	probes.Do(func() { probes.Pool = writer.NewPool(writer.Config{Program: path, Size: 4}) })
	return probes.Pool
}

func TestMain(m *testing.M) {
	code := m.Run()
	if probes.Pool != nil {
		probes.Close()
	}
	if err := stopGateway(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
