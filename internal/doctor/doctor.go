// Package doctor looks at what catalogd needs: its database, store, probe and
// address on a server; a server and a token on a worker; all that serve --dev,
// demo and test start, on a machine where nothing is set up.
//
// It changes nothing: in the database it only reads, in a store it makes names
// of its own, below .staging/ in a directory and below .catalogd/probe/ in a
// bucket, and removes them again, of a server it asks what writes nothing. A
// crash leaves a directory .staging/.doctor-*, or .doctor-* in a root without
// .staging/; whoever finds one may remove it. In a bucket the next look removes
// what is an hour old. It may import all but cmd.
package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"catalogd/internal/pgcluster"
)

// Status of a finding.
type Status string

// Warn is advice: catalogd works. Lacks: it does not, or loses what it promised.
const (
	OK    Status = "ok"
	Warn  Status = "warn"
	Lacks Status = "lacks"
)

// Finding is one line.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Found is what was seen.
	Found string `json:"found"`
	// Remedy is what to do; "" where all is well.
	Remedy string `json:"remedy"`
}

// Config says what to look at: what is "" is not looked at.
type Config struct {
	DatabaseURL string
	Stores      []Store
	// Listen and Probe are those of a server. They are looked at unless URL alone
	// is given.
	Listen string
	Probe  string
	// URL of a server, and a token for it.
	URL, Token string
	// Lease and SweepGrace are serve's; 60 s and 10 min.
	Lease, SweepGrace time.Duration
	// Version of this program.
	Version string

	// For tests.
	now func() time.Time
	sys system
}

// Store is one that is configured.
type Store struct {
	// Name goes before its checks where there are several.
	Name string
	// URL is file:///… or s3://… with its settings; Root is by which the catalogue
	// knows it.
	URL, Root string
}

// system holds the calls whose failures no filesystem at hand can show.
type system struct {
	rename  func(from, to string, flags uint) error
	fsync   func(*os.File) error
	symlink func(target, name string) error
}

// exam is one run.
type exam struct {
	Config
	findings []Finding
	// of goes before the names of checks.
	of string
	// stores that the catalogue knows, by id their roots; nil when it was not asked.
	stores map[string]string
}

func (e *exam) say(check string, status Status, found, remedy string) {
	e.findings = append(e.findings, Finding{e.of + check, status, found, remedy})
}

func (e *exam) ok(check, format string, args ...any) {
	e.say(check, OK, fmt.Sprintf(format, args...), "")
}

// Examine makes every check that the config asks for, in order. It takes seconds;
// a dead NFS server holds it up for longer.
func Examine(ctx context.Context, config Config) []Finding {
	e := newExam(config)
	server := e.DatabaseURL != "" || len(e.Stores) > 0
	worker := e.URL != ""
	if e.DatabaseURL != "" {
		e.database(ctx)
	}
	if !server && !worker {
		e.postgresql(ctx)
	}
	e.eachStore(func(s Store) {
		if s.InBucket() {
			e.bucket(ctx, s)
		} else {
			e.directory(s)
		}
	})
	if server || !worker {
		e.probe(ctx)
		if e.Listen != "" {
			e.listen(ctx)
		}
	}
	if worker {
		e.server(ctx)
	}
	e.tools(server, worker)
	return e.findings
}

func newExam(config Config) *exam {
	e := &exam{Config: config}
	if e.Lease <= 0 {
		e.Lease = time.Minute
	}
	if e.SweepGrace <= 0 {
		e.SweepGrace = 10 * time.Minute
	}
	if e.now == nil {
		e.now = time.Now
	}
	if e.sys.rename == nil {
		e.sys.rename = func(from, to string, flags uint) error {
			return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
		}
	}
	if e.sys.fsync == nil {
		e.sys.fsync = (*os.File).Sync
	}
	if e.sys.symlink == nil {
		e.sys.symlink = os.Symlink
	}
	return e
}

// eachStore looks at every store, under its name where there are several.
func (e *exam) eachStore(look func(Store)) {
	for _, s := range e.Stores {
		if len(e.Stores) > 1 {
			e.of = s.Name + " "
		}
		look(s)
	}
	e.of = ""
}

// postgresql looks for what serve --dev and the tests start.
func (e *exam) postgresql(ctx context.Context) {
	found, err := pgcluster.Find(ctx)
	if err != nil {
		what, remedy, _ := strings.Cut(err.Error(), ": ")
		e.say("postgresql", Lacks, what, remedy)
		return
	}
	e.ok("postgresql", "PostgreSQL %d with PostGIS in %s", found.Version, found.BinDir)
}
