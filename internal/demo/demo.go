// Package demo shows the step at work on a whole job, and proves the result.
//
// It plays everybody around catalogd: the pipeline that cuts a scene into tiles, a
// process of catalogd exec each; the accidents that kill the server between a step's
// intent and its row, PostgreSQL, and a worker in the middle of its output; the queue that
// delivers everything again; and the auditor who compares rows with objects. It reaches
// catalogd as they would, by its command line, SQL and HTTP, and the store by the filesystem
// or the AWS SDK: it imports none of the product's packages, so that no error of theirs can
// hide here.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says what to show. The zero Config is the whole demo, without a word.
type Config struct {
	// Executable is the catalogd to run; this program by default.
	Executable string
	// Input is the raster to cut; "" makes a scene.
	Input string
	// Store is where the outputs go, in a directory or prefix of the run's own: a directory,
	// file:///…, or s3://BUCKET/PREFIX with its settings, as serve takes them; "" for one
	// within the run's own directory.
	Store string
	// Tiles is how many tiles there are at least; 64.
	Tiles int
	// Workers is how many tasks run at once; 4.
	Workers int
	// Keep keeps the directory, and the outputs, of a run that succeeds; those of one that
	// fails are kept anyway.
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
	d := &demo{
		Config: cfg, dir: dir, report: &report, progress: newProgress(cfg.Progress, cfg.Terminal),
		running: map[*os.Process]delivery{}, endangered: map[string]bool{},
	}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // whatever that broke
		}
		if d.server == nil || ctx.Err() != nil || err == nil && !cfg.Keep {
			err = errors.Join(err, d.remove(ctx))
			return
		}
		report.Kept, report.Store = dir, d.store.url()
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // the server's PostgreSQL may run as another user
		return report, err
	}
	if err := os.Mkdir(d.private(), 0o755); err != nil {
		return report, err
	}
	if d.store, err = newStore(ctx, cfg.Store, filepath.Join(dir, "data")); err != nil {
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
	store    store
	server   *server
	token    string

	mu sync.Mutex
	// done counts those of the deliveries under way, running has their tasks.
	done    int
	running map[*os.Process]delivery
	// endangered are the units that were under way at a kill.
	endangered map[string]bool
}

// remove removes what the run has made, though ctx may have ended.
func (d *demo) remove(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if d.store != nil {
		if err = d.store.remove(ctx); err != nil {
			err = fmt.Errorf("remove %s: %w", d.store.url(), err)
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
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
	if d.server, err = newServer(d.Executable, d.dir, d.store.url()); err != nil {
		return err
	}
	d.progress.step("start catalogd with a PostgreSQL of its own%s", d.elsewhere())
	if err := d.server.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.server.stop()) }()
	if err := d.prepare(ctx); err != nil {
		return err
	}

	first := deliveries(d.scene, tiles, 0)
	again := deliveries(d.scene, tiles[:bumped], 1)
	*d.report = Report{
		Scene: d.scene.describe(), Tiles: len(tiles), Bumped: len(again), Units: len(first) + len(again),
		Columns: tiles[len(tiles)-1].Column + 1, Uploaded: d.store.staging() == "",
	}
	if err := d.work(ctx, first); err != nil {
		return err
	}
	if err := d.deliver(ctx, fmt.Sprintf("cut %d again as %s", len(again), versions[1].name), again); err != nil {
		return err
	}
	all := append(first, again...)
	if err := d.deliver(ctx, "deliver everything again", all); err != nil {
		return err
	}

	if err := d.sweep(ctx); err != nil {
		return err
	}
	d.progress.step("compare rows and objects from outside: SQL, and all bytes of the store")
	proof, err := prove(ctx, d.server.databaseURL, d.store, all)
	if err != nil {
		return err
	}
	reached, unreached, err := d.reach(ctx, proof)
	if err != nil {
		return err
	}
	disagreements, err := d.look(ctx, proof.outputs, all)
	if err != nil {
		return err
	}
	d.report.Reached = reached
	d.report.Disagreements = append(unreached, disagreements...)
	d.report.close(proof)
	d.report.Seconds = time.Since(began).Seconds()
	return nil
}

// elsewhere says where outputs go, if not into the run's own directory.
func (d *demo) elsewhere() string {
	if d.store.url() == "" {
		return ""
	}
	return ", and a store at " + d.store.url()
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
func (d *demo) prepare(ctx context.Context) error {
	create := []string{"collection", "create", collection, "--title", "Tiles of the demo"}
	if !d.scene.OnEarth {
		d.progress.step("%s has no place on the Earth: the demo's collection takes rasters without a footprint", d.scene.Name)
		create = append(create, "--footprint-optional")
	}
	if _, err := d.server.ask(ctx, create...); err != nil {
		return err
	}
	token, err := d.server.ask(ctx, "token", "create", "demo-worker", "--role", "write")
	d.token = strings.TrimSpace(string(token))
	return err
}

// work has the units delivered for the first time, with accidents meanwhile.
func (d *demo) work(ctx context.Context, first []delivery) error {
	over := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(over)
		return d.deliver(ctx, "cut", first)
	})
	group.Go(func() error { return d.accidents(ctx, len(first), over) })
	return group.Wait()
}

// sweep has what the killed left in staging removed.
func (d *demo) sweep(ctx context.Context) error {
	out, err := d.server.ask(ctx, "sweep", "--json")
	if err != nil {
		return err
	}
	var swept struct {
		Objects int
		Bytes   int64
	}
	err = json.Unmarshal(out, &swept)
	d.report.Swept = swept.Objects
	d.progress.step("sweep %s from staging: %s", count(swept.Objects, "file"), size(swept.Bytes))
	return err
}
