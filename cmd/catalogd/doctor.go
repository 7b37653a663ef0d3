package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"catalogd/internal/pgcluster"
	"catalogd/internal/writer"
)

type doctorCmd struct {
	Probe string `env:"CATALOGD_PROBE" type:"path" help:"The catalogd-probe program; by default beside this one, or on PATH."`
}

// Run prints a line for each thing that catalogd needs here: ok, or what to do.
func (c *doctorCmd) Run(ctx context.Context, std streams) error {
	sick := 0
	for _, check := range []struct {
		name string
		look func(context.Context) (string, error)
	}{
		{"postgresql", lookPostgres},
		{"probe", c.lookProbe},
		{"gdal tools", lookGDAL},
	} {
		found, err := check.look(ctx)
		if err != nil {
			sick++
			fmt.Fprintf(std.out, "%-12s LACKS  %v\n", check.name, err)
			continue
		}
		fmt.Fprintf(std.out, "%-12s ok     %s\n", check.name, found)
	}
	if sick > 0 {
		return fmt.Errorf("%d of the above are needed for serve --dev, demo or test", sick)
	}
	return nil
}

func lookPostgres(ctx context.Context) (string, error) {
	found, err := pgcluster.Find(ctx)
	return fmt.Sprintf("PostgreSQL %d with PostGIS in %s", found.Version, found.BinDir), err
}

func (c *doctorCmd) lookProbe(ctx context.Context) (string, error) {
	pool := writer.NewPool(writer.Config{Program: c.Probe, Size: 1})
	defer pool.Close()
	info, err := pool.Check(ctx)
	return fmt.Sprintf("GDAL %s, PROJ %s, drivers %s; confined by %s", info.GDAL, info.PROJ, strings.Join(info.Drivers, " "), info.Confinement), err
}

func lookGDAL(ctx context.Context) (string, error) {
	path, err := exec.LookPath("gdal_translate")
	if errors.Is(err, exec.ErrNotFound) {
		err = errors.New("gdal_translate, which demo and tests cut rasters with: install gdal-bin (apt-get install gdal-bin)")
	}
	return path, err
}
