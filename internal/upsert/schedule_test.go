package upsert_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
	"catalogd/internal/upsert"
)

// schedule is one random run of two replicas over three slots of three versions.
type schedule struct {
	*world
	t        *rapid.T
	name     string
	replicas []*replica
	attempts []catalog.Attempt
	trying   int
}

// Whatever happens in whatever order, the invariants hold, what was promoting is
// rolled forward, and every unit can be completed.
func TestSchedules(t *testing.T) { onBoth(t, testSchedules) }

func testSchedules(t *testing.T, on place) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("15"); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, on)
	w.watch()
	impatient := func(c *upsert.Config) { c.SweepGrace = time.Millisecond }
	replicas := []*replica{w.another(impatient), w.another(impatient)}
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		s := &schedule{world: w, t: rt, name: fmt.Sprint("run", runs), replicas: replicas}
		w.collection(s.name, catalog.Policy{OrderBy: catalog.OrderVersion})
		rt.Repeat(map[string]func(*rapid.T){
			"begin": s.begin, "stage": s.stage, "complete": s.complete, "crash": s.crash, "expire": s.expire,
			"end": s.end, "recover": s.recover, "sweep": s.sweep, "publish": s.publish, "lose": s.lose, "register": s.register, "release": s.release,
		})
		s.converge()
		w.check(invariant.Options{Quiet: true, Linked: true})
	})
}

func (s *schedule) replica() *replica { return rapid.SampledFrom(s.replicas).Draw(s.t, "replica") }

func (s *schedule) unit() upsert.BeginRequest {
	s.trying++
	tile, version := rapid.IntRange(1, 3).Draw(s.t, "tile"), rapid.IntRange(1, 3).Draw(s.t, "version")
	return s.request(tile, version)
}

func (s *schedule) request(tile, version int) upsert.BeginRequest {
	req := request(fmt.Sprint("t", tile), fmt.Sprint("v", version))
	req.Unit.Collection, req.Try = s.name, s.trying
	return req
}

// attempt picks one of those that were begun, ended or not.
func (s *schedule) attempt() catalog.Attempt {
	if len(s.attempts) == 0 {
		s.t.Skip("nothing was begun")
	}
	return rapid.SampledFrom(s.attempts).Draw(s.t, "attempt")
}

// may fails unless err is one of these.
func (s *schedule) may(doing string, err error, codes ...catalog.Code) {
	for _, c := range codes {
		if catalog.IsCode(err, c) {
			return
		}
	}
	if err != nil {
		s.t.Fatalf("%s: %v", doing, err)
	}
}

func (s *schedule) begin(*rapid.T) {
	req := s.unit()
	d, err := s.replica().Begin(s.world.t.Context(), req)
	s.may("begin", err)
	switch d.Verdict {
	case upsert.VerdictRun:
		s.attempts = append(s.attempts, *d.Attempt)
	case upsert.VerdictSkip:
		if !s.exists(d.Tile.ObjectKey) {
			s.t.Fatalf("skip, but %s is not there", d.Tile.ObjectKey)
		}
	}
}

func (s *schedule) raster() rastertest.Raster {
	return rastertest.Raster{Seed: rapid.Byte().Draw(s.t, "seed")}
}

func (s *schedule) stage(*rapid.T) { s.world.stage(s.attempt(), s.raster()) }

var late = []catalog.Code{catalog.CodeAttemptLost, catalog.CodeAttemptEnded, catalog.CodeStagedMissing, catalog.CodeStagedChanged}

func (s *schedule) complete(*rapid.T) {
	_, err := s.replica().Complete(s.world.t.Context(), s.attempt().ID, upsert.CompleteRequest{})
	s.may("complete", err, late...)
}

// crash stops a step at one of its points for good.
func (s *schedule) crash(*rapid.T) {
	a, r := s.attempt(), s.replica()
	ctx, cancel := context.WithCancel(s.world.t.Context())
	defer cancel()
	at := rapid.SampledFrom(from(upsert.PointStaged)).Draw(s.t, "at")
	r.on(at, a.ID, func() {
		cancel()
		runtime.Goexit()
	})
	_, err := r.Complete(ctx, a.ID, upsert.CompleteRequest{})
	s.may("crash", err, append(late, catalog.CodeOutcomeUnknown)...)
	r.on(at, a.ID, func() {})
	r.call(ctx, at, a.ID)
}

func (s *schedule) expire(*rapid.T) { s.world.expire(s.attempt()) }

func (s *schedule) end(*rapid.T) {
	a, r := s.attempt(), s.replica()
	ended := []catalog.Code{catalog.CodeAttemptLost, catalog.CodeAttemptEnded, catalog.CodeAttemptPromoting}
	if rapid.Bool().Draw(s.t, "fail") {
		failure := catalog.Failure{Reason: "oom", Class: rapid.SampledFrom([]catalog.Class{"", "", catalog.ClassDeterministic}).Draw(s.t, "class")}
		_, err := r.Fail(s.world.t.Context(), a.ID, upsert.FailRequest{Failure: failure})
		s.may("fail", err, ended...)
	} else {
		s.may("abandon", r.Abandon(s.world.t.Context(), a.ID), ended...)
	}
}

func (s *schedule) recover(*rapid.T) {
	recovered, err := s.replica().Recover(s.world.t.Context())
	s.may("recover", err)
	if recovered.Unfinished != 0 {
		s.t.Fatalf("recover: %+v", recovered)
	}
}

func (s *schedule) sweep(*rapid.T) {
	if rapid.Bool().Draw(s.t, "late") {
		s.age()
	}
	_, err := s.replica().Sweep(s.world.t.Context())
	s.may("sweep", err)
}

func (s *schedule) publish(*rapid.T) {
	version := fmt.Sprint("v", rapid.IntRange(1, 3).Draw(s.t, "version"))
	_, err := s.replica().Publish(s.world.t.Context(), s.name, version, "me", "why")
	s.may("publish", err, catalog.CodeUnknownVersion)
}

// lose removes an output's object.
func (s *schedule) lose(*rapid.T) {
	keys := s.site.keys(s.world.t, s.name)
	if len(keys) == 0 {
		s.t.Skip("no objects")
	}
	s.remove(rapid.SampledFrom(keys).Draw(s.t, "object"))
}

func (s *schedule) register(*rapid.T) {
	name := uuid.NewString() + ".tif"
	s.incoming(name, s.raster())
	_, err := s.replica().Register(s.world.t.Context(), upsert.OutputRequest{Begin: s.unit(), Staged: name})
	s.may("register", err, catalog.CodeUnitHeld, catalog.CodeUnitQuarantined)
}

func (s *schedule) release(*rapid.T) {
	_, err := s.db.Release(s.world.t.Context(), catalog.QuarantineFilter{Collection: s.name}, "me", "why")
	s.may("release", err)
}

// converge recovers and sweeps, after which nothing is promoting, and then does
// every unit.
func (s *schedule) converge() {
	s.recover(s.t)
	if n := s.count(`SELECT count(*) FROM catalog.attempts WHERE state = 'promoting'`); n != 0 {
		s.t.Fatalf("%d attempts are promoting after recovery", n)
	}
	s.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 hour' WHERE state = 'open'`)
	s.age()
	if _, err := s.replicas[0].Sweep(s.world.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.release(s.t)
	for tile := 1; tile <= 3; tile++ {
		for version := 1; version <= 3; version++ {
			d, err := s.replicas[tile%2].Begin(s.world.t.Context(), s.request(tile, version))
			s.may("begin", err)
			switch d.Verdict {
			case upsert.VerdictRun:
				s.world.stage(*d.Attempt, rastertest.Raster{})
				out, err := s.replicas[version%2].Complete(s.world.t.Context(), d.Attempt.ID, upsert.CompleteRequest{})
				if err != nil || out.State != catalog.AttemptDone {
					s.t.Fatalf("complete: %+v %v", out, err)
				}
			case upsert.VerdictSkip:
			default:
				s.t.Fatalf("begin: %s (%s)", d.Verdict, d.Reason)
			}
		}
	}
}
