package upsert

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
)

// Config of a Step. Zero durations take the defaults of DESIGN.md.
type Config struct {
	Ledger Ledger
	Stores Stores
	Prober Prober
	Logger *slog.Logger

	// Lease of an open attempt; 60 s.
	Lease time.Duration
	// ProbeDeadline bounds copying, hashing and probing one staged object, beside
	// the time to read it; 5 min.
	ProbeDeadline time.Duration
	// PromoteDeadline bounds a step from its intent to its end, and a recovery
	// beside the time to read the object; 2 min.
	PromoteDeadline time.Duration
	// SweepGrace is how long an attempt outlives its lease before a sweep ends it; 10 min.
	SweepGrace time.Duration
	// StagingAge is how old a staged file that no attempt knows must be before a
	// sweep removes it; 24 h.
	StagingAge time.Duration
	// MaxOutputBytes bounds an upload and a copy; 1 TiB.
	MaxOutputBytes int64

	// Jitter draws the part of a pause's bound that the pause is, evenly from 0 to 1;
	// tests set it.
	Jitter func() float64
	// Hook, if set, is called at each Point of a step, for tests that drive
	// interleavings or kill the process.
	Hook func(ctx context.Context, at Point, attempt uuid.UUID)
}

// Point is a place in the step.
type Point string

// The places between which a crash, or another attempt, can come.
const (
	PointBegun    Point = "begun"
	PointStaged   Point = "staged"
	PointProbed   Point = "probed"
	PointIntended Point = "intended"
	PointPromoted Point = "promoted"
	PointUpserted Point = "upserted"
	PointTidied   Point = "tidied"
)

// Points in the order of a step.
var Points = []Point{PointBegun, PointStaged, PointProbed, PointIntended, PointPromoted, PointUpserted, PointTidied}

// Step does the step. It keeps no state but the steps under way in this
// process: any number of Steps may work on one database and store.
type Step struct {
	Config
	running  singleflight.Group
	underway sync.WaitGroup
	// reading has the staging keys of files that Register reads before an attempt
	// holds them.
	reading sync.Map
	outages outages
}

// New makes a Step.
func New(cfg Config) *Step {
	orDefault(&cfg.Lease, 60*time.Second)
	orDefault(&cfg.ProbeDeadline, 5*time.Minute)
	orDefault(&cfg.PromoteDeadline, 2*time.Minute)
	orDefault(&cfg.SweepGrace, 10*time.Minute)
	orDefault(&cfg.StagingAge, 24*time.Hour)
	if cfg.MaxOutputBytes == 0 {
		cfg.MaxOutputBytes = 1 << 40
	}
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Step{Config: cfg}
}

// reading is the time that deadlines allow for reading an object through: the
// slowest store is taken to give 10 MiB a second.
func reading(size int64) time.Duration {
	return time.Duration(size/(10<<20)) * time.Second
}

func orDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (s *Step) at(ctx context.Context, p Point, attempt uuid.UUID) {
	if s.Hook != nil {
		s.Hook(ctx, p, attempt)
	}
}
