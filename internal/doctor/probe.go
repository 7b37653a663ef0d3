package doctor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/writer"
	"catalogd/internal/writer/wire"
)

const probeDeadline = time.Minute

// sample is a raster of 16 × 16 pixels of 10 m, EPSG:32633, by gdal_create.
//
//go:embed sample.tif
var sample []byte

// probe starts a probe, and has it look at a raster whose footprint takes PROJ's
// database.
func (e *exam) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeDeadline)
	defer cancel()
	pool := writer.NewPool(writer.Config{Program: e.Probe, Size: 1, Log: slog.New(slog.DiscardHandler)})
	defer pool.Close()
	info, err := pool.Check(ctx)
	if err != nil {
		e.say("probe", Lacks, cause(err), "put catalogd-probe, of the same release, beside catalogd or on PATH, or name it in --probe; it needs GDAL (on Debian: libgdal32, or gdal-bin)")
		return
	}
	found := fmt.Sprintf("GDAL %s, PROJ %s, drivers %s; confined by %s", info.GDAL, info.PROJ, strings.Join(info.Drivers, " "), info.Confinement)
	e.say("probe", confined(info.Confinement), found, confinedBy(info.Confinement))
	var missing []string
	for _, driver := range catalog.Drivers() {
		if !strings.Contains(" "+strings.Join(info.Drivers, " ")+" ", " "+driver+" ") {
			missing = append(missing, driver)
		}
	}
	if len(missing) > 0 {
		e.say("drivers", Warn, "GDAL here lacks "+strings.Join(missing, ", "), "take a GDAL with them where collections do")
	}
	facts, err := pool.Probe(ctx, bytes.NewReader(sample), int64(len(sample)), catalog.ProbeRequest{Drivers: []string{"GTiff"}})
	const remedy = "install PROJ's data (on Debian: proj-data), or name its directory in PROJ_DATA (PROJ_LIB before PROJ 9.1)"
	switch {
	case err != nil:
		e.say("proj", Lacks, "a raster in EPSG:32633 is not understood: "+cause(err), remedy)
	case facts.Footprint == nil:
		e.say("proj", Lacks, "a raster in EPSG:32633 gets no footprint", remedy)
	default:
		e.ok("proj", "proj.db is found: a raster in EPSG:32633 has its footprint")
	}
}

// cause is what the server would log, without what it would tell a client.
func cause(err error) string {
	var known *catalog.Error
	if errors.As(err, &known) && known.Err != nil {
		return known.Err.Error()
	}
	return err.Error()
}

func confined(c wire.Confinement) Status {
	if confinedBy(c) != "" {
		return Warn
	}
	return OK
}

// confinedBy says what to do that the kernel confines probes.
func confinedBy(c wire.Confinement) string {
	switch {
	case c.Landlock == 0 && !c.Seccomp:
		return "let probes be confined: a kernel with Landlock (5.13, lsm=landlock,…) and seccomp, and a container's profile that allows both; until then run the server as a user that can read little else"
	case c.Landlock == 0:
		return "let probes be confined by Landlock too: Linux 5.13 with landlock in lsm=, and a container's profile that allows it; until then run the server as a user that can read little else"
	case !c.Seccomp:
		return "let probes be confined by seccomp too: amd64 or arm64, and a container's profile that allows it"
	}
	return ""
}
