package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"catalogd/internal/writer/probetest"
	"catalogd/internal/writer/wire"
)

func probed(t *testing.T, program string) []Finding {
	t.Helper()
	e := &exam{Config: Config{Probe: program}}
	e.probe(t.Context())
	return e.findings
}

func TestProbe(t *testing.T) {
	found := probed(t, probetest.Path(t))
	want(t, found, "probe", OK, "GDAL", "GTiff", "confined by")
	want(t, found, "proj", OK, "EPSG:32633")

	want(t, probed(t, "/nowhere/catalogd-probe"), "probe", Lacks, "no such file", "--probe")
	liar := filepath.Join(t.TempDir(), "liar")
	ok(t, os.WriteFile(liar, []byte("#!/bin/sh\necho hello\n"), 0o755))
	want(t, probed(t, liar), "probe", Lacks, "hello")
}

func TestNoPROJ(t *testing.T) {
	t.Setenv("PROJ_LIB", t.TempDir())
	t.Setenv("PROJ_DATA", os.Getenv("PROJ_LIB"))
	for _, f := range probed(t, probetest.Path(t)) {
		if f.Status == Lacks && strings.Contains(f.Found+f.Remedy, "PROJ") {
			return
		}
		t.Logf("%+v", f)
	}
	t.Error("without proj.db, nothing is lacking")
}

func TestConfinement(t *testing.T) {
	for _, test := range []struct {
		c      wire.Confinement
		status Status
		word   string
	}{
		{wire.Confinement{Landlock: 4, Seccomp: true}, OK, ""},
		{wire.Confinement{Seccomp: true}, Warn, "Landlock"},
		{wire.Confinement{Landlock: 1}, Warn, "seccomp"},
		{wire.Confinement{}, Warn, "Landlock (5.13"},
	} {
		if got, remedy := confined(test.c), confinedBy(test.c); got != test.status || !strings.Contains(remedy, test.word) {
			t.Errorf("%+v: %s, %q", test.c, got, remedy)
		}
	}
}

func TestTools(t *testing.T) {
	look := func(server, worker bool) []Finding {
		e := &exam{}
		e.tools(server, worker)
		return e.findings
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	want(t, look(false, false), "gdal_translate", Lacks, "apt-get install gdal-bin")
	want(t, look(false, false), "curl", Warn)
	want(t, look(true, false), "psql", Warn)
	want(t, look(false, true), "gdal_edit.py", Warn, "exec --tag")
	for _, tool := range toolbox {
		ok(t, os.WriteFile(filepath.Join(bin, tool.name), []byte("#!/bin/sh\n"), 0o755))
	}
	for _, f := range look(false, false) {
		want(t, []Finding{f}, f.Check, OK, bin)
	}
	if got := len(look(false, false)); got != len(toolbox) {
		t.Errorf("%d of %d tools", got, len(toolbox))
	}
}

// Nothing set up: what serve --dev, demo and test need.
func TestPostgreSQL(t *testing.T) {
	look := func() []Finding {
		e := &exam{}
		e.postgresql(t.Context())
		return e.findings
	}
	want(t, look(), "postgresql", OK, "with PostGIS in")
}
