// Package demo shows the step at work on a whole job, and proves the result.
//
// It plays everybody around catalogd: the pipeline that cuts a scene into tiles
// with worker processes which speak HTTP only, the accident that kills the
// server between a step's intent and its row, the queue that delivers everything
// again, and the auditor who compares rows with objects. It reaches catalogd as
// they would, by its command line, HTTP, SQL and the filesystem: it imports none
// of the product's packages, so that no error of theirs can hide here.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says what to show. The zero Config is the whole demo, without a word.
type Config struct {
	// Executable is the catalogd to run; this program by default.
	Executable string
	// Input is the raster to cut; "" makes a scene.
	Input string
	// Tiles is how many tiles there are at least; 64.
	Tiles int
	// Workers is the number of worker processes; 4.
	Workers int
	// Keep keeps the directory of a run that succeeds; one that fails is kept anyway.
	Keep bool
	// Progress is told what goes on; nil for nobody. On a terminal its last line
	// is written over.
	Progress io.Writer
	Terminal bool
}

// ErrDisagree is the error of a run whose figures, rows and objects do not all
// agree. The report lists what disagrees.
var ErrDisagree = errors.New("rows, objects and figures disagree")

const (
	collection = "demo"
	// bumped is how many tiles are wanted again in a second version.
	bumped = 6
	// maxKills bounds the search for a moment at which a step is under way.
	maxKills = 5
)

// The versions differ in the compression level, and so in their bytes but not in
// their pixels.
var versions = []struct {
	name   string
	zlevel int
}{{"v1", 6}, {"v2", 9}}

// Run runs the demo in a temporary directory and reports. When ctx ends it cleans
// up and returns; when anything else fails once catalogd has been started it keeps
// the directory, and Report.Kept says where. ErrDisagree comes with a complete
// report.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	for _, program := range []string{"gdal_translate", "gdalinfo"} {
		if _, err := exec.LookPath(program); err != nil {
			return report, fmt.Errorf("%w: the demo's workers are GDAL's programs; on Debian and Ubuntu: apt install gdal-bin", err)
		}
	}
	if cfg.Executable == "" {
		if cfg.Executable, err = os.Executable(); err != nil {
			return report, err
		}
	}
	if cfg.Tiles == 0 {
		cfg.Tiles = 64
	}
	if cfg.Workers == 0 {
		cfg.Workers = 4
	}
	dir, err := os.MkdirTemp("", "catalogd-demo-")
	if err != nil {
		return report, err
	}
	d := &demo{Config: cfg, dir: dir, report: &report, progress: newProgress(cfg.Progress, cfg.Terminal)}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // whatever that broke
		}
		if d.server == nil || ctx.Err() != nil || err == nil && !cfg.Keep {
			err = errors.Join(err, os.RemoveAll(dir))
			return
		}
		report.Kept = dir
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // the server's PostgreSQL may run as another user
		return report, err
	}
	defer d.progress.end()
	if err := d.run(ctx); err != nil {
		return report, err
	}
	if len(report.Disagreements) > 0 {
		return report, ErrDisagree
	}
	return report, nil
}

// demo is one run.
type demo struct {
	Config
	dir      string
	progress *progress
	report   *Report
	scene    scene
	server   *server
	caught   []caught
}

func (d *demo) run(ctx context.Context) (err error) {
	began := time.Now()
	if err := d.makeScene(ctx); err != nil {
		return err
	}
	tiles, err := cut(d.scene.Width, d.scene.Height, d.Tiles)
	if err != nil {
		return fmt.Errorf("cut %s: %w", d.scene.Name, err)
	}
	if d.server, err = newServer(d.Executable, d.dir); err != nil {
		return err
	}
	d.progress.step("start catalogd with a PostgreSQL of its own")
	if err := d.server.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.server.stop()) }()
	token, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	crew, err := hire(d.Workers, d.Executable, d.server.url(), token, d.scene.Path, filepath.Join(d.dir, "workers.log"))
	if err != nil {
		return err
	}
	defer crew.dismiss()

	first := deliveries(d.scene, tiles, 0)
	again := deliveries(d.scene, tiles[:bumped], 1)
	*d.report = Report{
		Scene: d.scene.describe(), Tiles: len(tiles), Bumped: len(again), Units: len(first) + len(again),
		Columns: tiles[len(tiles)-1].Column + 1,
	}
	if err := d.work(ctx, crew, first); err != nil {
		return err
	}
	if err := d.deliver(ctx, crew, fmt.Sprintf("cut %d again as %s", len(again), versions[1].name), again, nil); err != nil {
		return err
	}
	all := append(first, again...)
	if err := d.deliver(ctx, crew, "deliver everything again", all, nil); err != nil {
		return err
	}

	d.progress.step("compare rows and objects from outside: SQL, and a walk of the store")
	proof, err := prove(ctx, d.server.databaseURL, d.server.store(), all)
	if err != nil {
		return err
	}
	disagreements, err := d.look(ctx, proof.outputs, all)
	if err != nil {
		return err
	}
	d.report.Disagreements = disagreements
	d.report.close(proof)
	d.report.Seconds = time.Since(began).Seconds()
	return nil
}

func (d *demo) makeScene(ctx context.Context) (err error) {
	path := d.Input
	if path == "" {
		d.progress.step("make a scene")
		path = filepath.Join(d.dir, "scene.tif")
		if err := makeScene(ctx, path); err != nil {
			return fmt.Errorf("make a scene: %w", err)
		}
	}
	d.scene, err = openScene(ctx, path)
	return err
}

// prepare makes the collection, and a token with which workers can do their work
// and nothing else.
func (d *demo) prepare(ctx context.Context) (token string, err error) {
	admin, err := os.ReadFile(filepath.Join(d.server.dir, "admin.token"))
	if err != nil {
		return "", err
	}
	client := newClient(d.server.url(), strings.TrimSpace(string(admin)))
	if !d.scene.OnEarth {
		d.progress.step("%s has no place on the Earth: the demo's collection takes rasters without a footprint", d.scene.Name)
	}
	if err := client.call(ctx, http.MethodPost, "/v1/collections", map[string]any{
		"id": collection, "title": "Tiles of the demo", "footprint_optional": !d.scene.OnEarth,
	}, nil); err != nil {
		return "", err
	}
	var created struct{ Token string }
	err = client.call(ctx, http.MethodPost, "/v1/tokens", map[string]any{"name": "demo-worker", "role": "write"}, &created)
	return created.Token, err
}

// work has the units delivered for the first time and, when a third of them is
// done, kills the server while a step is under way.
func (d *demo) work(ctx context.Context, crew crew, first []delivery) error {
	third, over := make(chan struct{}), make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(over)
		return d.deliver(ctx, crew, "cut", first, func(done int) {
			if done == len(first)/3 {
				close(third)
			}
		})
	})
	group.Go(func() error {
		select {
		case <-third:
			return d.crash(ctx, over)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return group.Wait()
}

// crash kills the server, and starts it again, until that has left a step to roll
// forward.
func (d *demo) crash(ctx context.Context, over <-chan struct{}) error {
	for d.report.RolledForward == 0 && d.report.Kills < maxKills {
		caught, err := d.server.catch(ctx, over)
		if err != nil || len(caught.attempts) == 0 {
			return err
		}
		d.caught = append(d.caught, caught)
		d.report.Kills++
		d.report.Caught += len(caught.attempts)
		d.progress.step("kill the server, with %s between intent and row", count(len(caught.attempts), "step"))
		if err := d.server.start(ctx); err != nil {
			return fmt.Errorf("start again after a kill: %w", err)
		}
		back := time.Since(caught.at)
		rolledForward, err := d.server.settled(ctx, caught)
		if err != nil {
			return err
		}
		d.report.RolledForward += rolledForward
		d.progress.step("the server is back after %.1f s, and %s rolled forward", back.Seconds(), count(rolledForward, "step"))
	}
	return nil
}

// deliver gives deliveries to the workers and counts how they end.
func (d *demo) deliver(ctx context.Context, crew crew, doing string, deliveries []delivery, each func(done int)) error {
	done := 0
	d.progress.update(doing, done, len(deliveries))
	err := crew.work(ctx, deliveries, func(x delivery, r receipt) error {
		d.report.Deliveries++
		switch r.Outcome {
		case outcomeDone:
			d.report.Run++
		case outcomeSkipped:
			d.report.Skipped++
		case outcomeOvertaken:
			d.report.Overtaken++
		default:
			return fmt.Errorf("%s %s: %s", x.Tile, x.Identity.Version, r.Error)
		}
		done++
		d.progress.update(doing, done, len(deliveries))
		if each != nil {
			each(done)
		}
		return nil
	})
	if err == nil {
		d.progress.settle()
	}
	return err
}
