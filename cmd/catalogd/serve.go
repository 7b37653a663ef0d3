package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/batch"
	"catalogd/internal/catalog"
	"catalogd/internal/httpapi"
	"catalogd/internal/jobs"
	"catalogd/internal/pgcluster"
	"catalogd/internal/postgres"
	"catalogd/internal/postgres/migrate"
	"catalogd/internal/reconcile"
	"catalogd/internal/upsert"
	"catalogd/internal/writer"
)

type serveCmd struct {
	Dev  bool   `help:"Run everything on an embedded default under --data: a private PostgreSQL, a store, an admin token."`
	Data string `env:"CATALOGD_DATA" type:"path" help:"Directory of the embedded default."`

	databaseFlags
	storeFlags
	notifyFlags
	InitStore bool   `env:"CATALOGD_INIT_STORE" help:"Make new stores of roots that have no sentinel, though the catalogue has another."`
	Migrate   bool   `env:"CATALOGD_MIGRATE" help:"Bring the schema up to date before serving."`
	Listen    string `env:"CATALOGD_LISTEN" default:"127.0.0.1:8080" help:"Address to serve on."`
	PublicURL string `env:"CATALOGD_PUBLIC_URL" help:"URL that clients reach this server by; links follow it."`
	Anonymous string `env:"CATALOGD_ANONYMOUS" enum:"none,read" default:"none" help:"What callers without a token may do: none or read."`

	AdminToken     string `env:"CATALOGD_ADMIN_TOKEN" help:"Text of a token that is admitted as admin."`
	AdminTokenFile string `env:"CATALOGD_ADMIN_TOKEN_FILE" type:"path" help:"A file that holds it; written with a new token when it is not there."`

	Probe        string        `env:"CATALOGD_PROBE" type:"path" help:"The catalogd-probe program; by default beside this one, or on PATH."`
	Probes       int           `env:"CATALOGD_PROBES" help:"Probes at once; by default one a processor."`
	Lease        time.Duration `env:"CATALOGD_LEASE" default:"60s" help:"Lease of an attempt between heartbeats."`
	SweepGrace   time.Duration `env:"CATALOGD_SWEEP_GRACE" default:"10m" help:"How long an attempt outlives its lease before a sweep ends it."`
	StagingAge   time.Duration `env:"CATALOGD_STAGING_AGE" default:"24h" help:"Age at which a staged file that no attempt knows is removed."`
	RecoverEvery time.Duration `env:"CATALOGD_RECOVER_EVERY" default:"10s" help:"How often steps past their deadline are finished."`
	SweepEvery   time.Duration `env:"CATALOGD_SWEEP_EVERY" default:"5m" help:"How often leftovers are removed."`
	CountEvery   time.Duration `env:"CATALOGD_COUNT_EVERY" default:"15s" help:"How often batches are counted, for metrics."`

	ReconcileSchedule string        `env:"CATALOGD_RECONCILE_SCHEDULE" default:"@daily" help:"When each store is compared with the catalogue: five fields as cron has them, in UTC, @daily, @every 6h, or off."`
	MinAge            time.Duration `env:"CATALOGD_MIN_AGE" default:"24h" help:"How long an object that is not catalogd's must have been seen before it is called an orphan."`
	Settle            time.Duration `env:"CATALOGD_SETTLE" default:"5s" help:"How long after it was missing first an object is looked for again; on NFS longer than attributes are cached, 60s."`
	TrashKeep         time.Duration `env:"CATALOGD_TRASH_KEEP" default:"720h" help:"How long an object stays in the trash."`
	ScrubSchedule     string        `env:"CATALOGD_SCRUB_SCHEDULE" default:"@daily" help:"When checksums are read again of a share of each store's outputs; as for --reconcile-schedule."`
	ScrubFraction     float64       `env:"CATALOGD_SCRUB_FRACTION" default:"0.01" help:"That share."`
}

// schedules refuses settings of what is done by the clock.
func (c *serveCmd) schedules() (reconciles, scrubs jobs.Schedule, err error) {
	switch {
	case min(c.CountEvery, c.RecoverEvery, c.SweepEvery) < time.Second:
		return nil, nil, usageError("--count-every, --recover-every and --sweep-every are a second or longer")
	case min(c.MinAge, c.Settle) < 0:
		return nil, nil, usageError("--min-age and --settle are not negative")
	case c.TrashKeep <= 0:
		return nil, nil, usageError("--trash-keep is longer than nothing")
	}
	if err := jobs.CheckFraction(c.ScrubFraction); err != nil {
		return nil, nil, usageError("--scrub-fraction " + err.Error())
	}
	if reconciles, err = jobs.ParseSchedule(c.ReconcileSchedule); err != nil {
		return nil, nil, usageError("--reconcile-schedule " + err.Error())
	}
	if scrubs, err = jobs.ParseSchedule(c.ScrubSchedule); err != nil {
		return nil, nil, usageError("--scrub-schedule " + err.Error())
	}
	return reconciles, scrubs, nil
}

// stepHook is set by tests that kill the process in the middle of a step.
var stepHook func(ctx context.Context, at upsert.Point, attempt uuid.UUID)

// Run serves until ctx ends, then lets steps under way finish.
func (c *serveCmd) Run(ctx context.Context, std streams) (err error) {
	log := slog.New(slog.NewTextHandler(std.err, nil))
	slog.SetDefault(log)
	if os.Getenv("GOGC") == "" {
		// The heap is some 10 MB: by default Go would collect it several times a second.
		debug.SetGCPercent(400)
	}
	// What can be refused is refused before anything is made.
	if min(c.Lease, c.SweepGrace, c.StagingAge) <= 0 {
		return usageError("--lease, --sweep-grace and --staging-age are longer than nothing")
	}
	if _, _, err := c.schedules(); err != nil {
		return err
	}
	if _, err := c.notifier(""); err != nil {
		return err
	}
	if len(c.AdminToken) > 0 && len(c.AdminToken) < minAdminToken {
		return errShortToken
	}
	if !c.Dev || len(c.Store) > 0 {
		if _, err := c.settings(); err != nil {
			return err
		}
	}
	if c.Dev {
		release, err := c.takeData()
		if err != nil {
			return err
		}
		defer release()
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("%w: choose another address with --listen HOST:PORT", err)
	}
	defer listener.Close()
	if c.Dev {
		stop, err := c.embed(ctx, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	server, err := c.open(ctx, log)
	if err != nil {
		return err
	}
	defer server.close()
	return server.serve(ctx, listener)
}

// takeData takes the embedded default's directory for this process alone.
func (c *serveCmd) takeData() (release func(), err error) {
	if c.Data == "" {
		return nil, usageError("--dev needs --data DIR")
	}
	if c.DatabaseURL != "" {
		return nil, usageError("--dev brings its own database: leave --database-url out, or --dev")
	}
	if err := os.MkdirAll(c.Data, 0o755); err != nil {
		return nil, err
	}
	return pgcluster.Lock(c.Data)
}

// embed starts the private PostgreSQL and fills in the settings that --dev
// stands for.
func (c *serveCmd) embed(ctx context.Context, log *slog.Logger) (stop func() error, err error) {
	config := pgcluster.Config{Dir: filepath.Join(c.Data, "postgres")}
	cluster, err := pgcluster.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	stop = keepRunning(cluster, config, log)
	if err := c.prepareEmbedded(ctx, cluster); err != nil {
		return nil, errors.Join(err, stop())
	}
	log.Info("embedded PostgreSQL", "pid", cluster.PID(), "log", cluster.LogFile(), "psql", "psql '"+cluster.URL("catalogd")+"'")
	return stop, nil
}

// keepRunning starts the embedded PostgreSQL anew, in the same place, whenever it
// ends, until end is called, which stops it. Between the two the database is
// unavailable, and what clients ask meanwhile is refused and can be sent again.
func keepRunning(cluster *pgcluster.Cluster, config pgcluster.Config, log *slog.Logger) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for cluster != nil {
			select {
			case <-cluster.Exited():
				log.Error("the embedded PostgreSQL ended and is started again", "log", cluster.LogFile())
				_ = cluster.Kill() // it is gone; this frees its directory
				cluster = startAgain(ctx, config, log)
			case <-ctx.Done():
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				defer cancel()
				ended <- cluster.Stop(ctx)
				return
			}
		}
		ended <- nil
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// startAgain tries until it succeeds; nil when ctx ends before.
func startAgain(ctx context.Context, config pgcluster.Config, log *slog.Logger) *pgcluster.Cluster {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		cluster, err := pgcluster.Start(ctx, config)
		if err == nil {
			log.Info("embedded PostgreSQL", "pid", cluster.PID(), "log", cluster.LogFile())
			return cluster
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Error("the embedded PostgreSQL does not start", "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *serveCmd) prepareEmbedded(ctx context.Context, cluster *pgcluster.Cluster) error {
	owner := cluster.URL("catalogd")
	if err := createDatabase(ctx, cluster.URL("postgres"), "catalogd"); err != nil {
		return err
	}
	if err := migrate.Up(ctx, owner); err != nil {
		return err
	}
	if err := writePrivate(filepath.Join(c.Data, "database.url"), owner); err != nil {
		return err
	}
	if len(c.Store) == 0 {
		c.Store = []string{filepath.Join(c.Data, "store")}
		if err := os.MkdirAll(c.Store[0], 0o755); err != nil {
			return err
		}
	}
	// The server has no more rights here than it would have elsewhere.
	c.DatabaseURL = withRole(owner, "catalog_server")
	if c.AdminToken == "" && c.AdminTokenFile == "" {
		c.AdminTokenFile = filepath.Join(c.Data, "admin.token")
	}
	return nil
}

func createDatabase(ctx context.Context, admin, name string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return fmt.Errorf("connect to the embedded PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	return err
}

// withRole has every connection of a URL act as a role.
func withRole(databaseURL, role string) string {
	return databaseURL + separator(databaseURL) + "role=" + url.QueryEscape(role)
}

func separator(u string) string {
	if strings.Contains(u, "?") {
		return "&"
	}
	return "?"
}

// server is everything that serve holds open.
type server struct {
	log    *slog.Logger
	db     *postgres.DB
	probes *writer.Pool
	step   *upsert.Step
	jobs   *jobs.Jobs
	api    http.Handler
	// notifier is nil where nobody is to be told of gates.
	notifier *jobs.Notifier
}

func (s *server) close() {
	if s.notifier != nil {
		s.notifier.Close()
	}
	s.probes.Close()
	s.db.Close()
}

// open connects everything that serve needs, and closes it again on error.
func (c *serveCmd) open(ctx context.Context, log *slog.Logger) (_ *server, err error) {
	databaseURL, err := c.databaseFlags.url()
	if err != nil {
		return nil, err
	}
	if c.Migrate {
		if err := migrate.Up(ctx, databaseURL); err != nil {
			return nil, err
		}
	}
	s := &server{log: log}
	if s.db, err = postgres.Open(ctx, databaseURL); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.db.Close()
		}
	}()
	if s.notifier, err = c.notifier(c.PublicURL); err != nil {
		return nil, err
	}
	stores, err := c.openStores(ctx, s.db, log)
	if err != nil {
		return nil, err
	}
	if err := c.admit(ctx, s.db, log); err != nil {
		return nil, err
	}
	s.probes = writer.NewPool(writer.Config{Program: c.Probe, Size: c.Probes, Log: log})
	if info, err := s.probes.Check(ctx); err != nil {
		log.Error("no output can be handed over: the probe does not start; catalogd doctor says what is missing", "error", err)
	} else {
		log.Info("probe", "gdal", info.GDAL, "proj", info.PROJ, "drivers", strings.Join(info.Drivers, " "))
	}
	s.step = upsert.New(upsert.Config{
		Ledger: s.db, Stores: stores.byID, Prober: s.probes, Logger: log,
		Lease: c.Lease, SweepGrace: c.SweepGrace, StagingAge: c.StagingAge, Hook: stepHook,
	})
	judge := &batch.Judge{Ledger: s.db, Stores: stores.byID, Publisher: s.step}
	reconciler := reconcile.New(reconcile.Config{
		Ledger: s.db, Stores: stores.byID, Step: s.step, Logger: log,
		MinAge: c.MinAge, Settle: c.Settle, TrashKeep: c.TrashKeep,
	})
	if s.jobs, err = c.jobs(s, judge, reconciler, stores); err != nil {
		s.probes.Close()
		return nil, err
	}
	s.db.UseQueue(s.jobs)
	s.api = httpapi.New(httpapi.Config{
		Step: s.step, Gates: judge, Reconciler: reconciler, Scrubs: s.jobs, Catalogue: catalogue{s.db, stores}, Stores: stores,
		PublicURL: c.PublicURL, Anonymous: c.Anonymous, Logger: log, Version: version,
	})
	return s, nil
}

func (c *serveCmd) jobs(s *server, judge *batch.Judge, reconciler *reconcile.Reconciler, stores *stores) (*jobs.Jobs, error) {
	reconciles, scrubs, err := c.schedules()
	if err != nil {
		return nil, err
	}
	return jobs.New(jobs.Config{
		Pool: s.db.Pool(), Judge: judge, Step: s, Reconciler: reconciler, Ledger: s.db, Notifier: s.notifier, Logger: s.log,
		Stores:     slices.Sorted(maps.Keys(stores.byID)),
		CountEvery: c.CountEvery, RecoverEvery: c.RecoverEvery, SweepEvery: c.SweepEvery,
		Reconcile: reconciles, Scrub: scrubs, ScrubFraction: c.ScrubFraction,
	})
}

// catalogue is the database, ready when a store is there too.
type catalogue struct {
	*postgres.DB
	stores *stores
}

func (c catalogue) Ready(ctx context.Context) error {
	if err := c.DB.Ready(ctx); err != nil {
		return err
	}
	if err := c.stores.ready(ctx); err != nil {
		return catalog.Errorf(catalog.CodeStoreUnavailable, "the store's sentinel does not read: is the volume mounted, is the bucket there?").Because(err)
	}
	return nil
}

// minAdminToken is the length of a token's text that is not worth guessing.
const minAdminToken = 32

const errShortToken = usageError("the admin token is shorter than 32 characters: name a file that is not there in --admin-token-file, and one is made")

// warnOfNoAdmin tells when nobody could make a collection or a token.
func warnOfNoAdmin(ctx context.Context, db *postgres.DB, log *slog.Logger) error {
	tokens, err := db.Tokens(ctx)
	for _, token := range tokens {
		if token.Role == catalog.RoleAdmin && token.Valid(time.Now()) {
			return nil
		}
	}
	if err == nil {
		log.Warn("nobody is admin: there is no such token in the catalogue; start with --admin-token-file FILE to have one made")
	}
	return err
}

// admit makes the administrator's token valid. A token file that is not there
// is written with a new one.
func (c *serveCmd) admit(ctx context.Context, db *postgres.DB, log *slog.Logger) error {
	if c.AdminTokenFile != "" {
		if _, err := os.Stat(c.AdminTokenFile); errors.Is(err, os.ErrNotExist) {
			text, _ := catalog.NewToken()
			if err := writePrivate(c.AdminTokenFile, text); err != nil {
				return err
			}
			log.Info("wrote a new admin token", "file", c.AdminTokenFile)
		}
	}
	text, err := secret(c.AdminToken, c.AdminTokenFile)
	if err != nil {
		return err
	}
	if text == "" {
		return warnOfNoAdmin(ctx, db, log)
	}
	if len(text) < minAdminToken {
		return errShortToken
	}
	return db.AdmitToken(ctx, "admin", catalog.RoleAdmin, catalog.HashToken(text))
}

// serve answers requests and finishes what earlier processes left, until ctx
// ends; then it stops listening and lets steps under way end.
func (s *server) serve(ctx context.Context, listener net.Listener) (err error) {
	httpServer := httpapi.NewServer(s.api, s.log)
	background, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.jobs.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopJobs(ctx)) }()
	go s.tidy(background)
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	s.log.Info("serving", "url", "http://"+listener.Addr().String(), "version", version)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.log.Info("stopping: steps under way are finished first")
	grace, cancelGrace := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancelGrace()
	err = httpServer.Shutdown(grace)
	s.step.Drain(grace)
	return err
}

// stopJobs gives them a moment: what is cut off is done again, by another server or by
// the next.
func (s *server) stopJobs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return s.jobs.Stop(ctx)
}

// tidy looks at once for what a crash left. Later that comes by the clock, at one server
// or another.
func (s *server) tidy(ctx context.Context) {
	if err := s.recover(ctx, s.step.Recover); err != nil && ctx.Err() == nil {
		s.log.Warn("recover again later", "error", err)
	}
	if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("sweep again later", "error", err)
	}
	s.log.Info("what a crash left has been looked for")
}

// RecoverOverdue implements jobs.Step.
func (s *server) RecoverOverdue(ctx context.Context) error {
	return s.recover(ctx, s.step.RecoverOverdue)
}

func (s *server) recover(ctx context.Context, recover func(context.Context) (upsert.Recovered, error)) error {
	sum, err := recover(ctx)
	if err == nil && sum != (upsert.Recovered{}) {
		s.log.Info("recovered", "rolled_forward", sum.RolledForward, "overtaken", sum.Overtaken, "failed", sum.Failed,
			"unfinished", sum.Unfinished, "published", sum.Published)
	}
	return err
}

// Sweep implements jobs.Step.
func (s *server) Sweep(ctx context.Context) error {
	sum, err := s.step.Sweep(ctx)
	if err == nil && sum.Expired+sum.Attempts+sum.Objects+sum.Uploads+sum.Relinked > 0 {
		s.log.Info("swept", "expired", sum.Expired, "attempts", sum.Attempts, "objects", sum.Objects, "bytes", sum.Bytes, "uploads", sum.Uploads, "relinked", sum.Relinked)
	}
	return err
}

// maxSecret bounds a file that holds a setting: what is longer is another file.
const maxSecret = 4 << 10

// secret is a setting, or what its _FILE twin holds.
func secret(text, file string) (string, error) {
	if text != "" || file == "" {
		return text, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(b) > maxSecret {
		err = fmt.Errorf("%s is longer than %d bytes: is it the right file?", file, maxSecret)
	}
	return strings.TrimSpace(string(b)), err
}

// writePrivate writes a line that only its owner may read.
func writePrivate(name, line string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
