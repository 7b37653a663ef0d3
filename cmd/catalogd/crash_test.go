package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/uuid"

	"catalogd/internal/upsert"
)

// The crash table of docs/design.md: the server is killed at each point of the
// step, for a unit's first run, for a new version in a slot, and for the repair of
// a lost output; then the task goes on, either where it was or anew.
func TestCrash(t *testing.T) {
	for _, scene := range []string{"first", "bump", "repair"} {
		for _, point := range upsert.Points {
			for _, next := range []string{"same", "anew"} {
				t.Run(fmt.Sprintf("%s/%s/%s", scene, point, next), func(t *testing.T) {
					t.Parallel()
					crash(newSite(t), scene, point, next)
				})
			}
		}
	}
}

func crash(s *site, scene string, point upsert.Point, next string) {
	first, u, times := newUnit("landcover", "a/t1", "v1"), newUnit("landcover", "a/t1", "v1"), 2
	switch scene {
	case "first":
		times = 1
	case "bump":
		u = newUnit("landcover", "a/t1", "v2")
	}
	p := s.start(fmt.Sprintf("%s=%s:%d", envCrash, point, times))
	p.collection("landcover", nil)
	var before tile
	if scene != "first" {
		before = p.do(first, pixels(9)).Tile
	}
	if scene == "repair" {
		ok(s, os.Remove(s.path(before.ObjectKey)))
	}

	// The task, until the server is gone.
	raster := pixels(1)
	var a *attempt
	if got, err := p.send("POST", "/v1/attempts", u); err == nil {
		a = read[decision](s, got).Attempt
		write(s, a.StagingPath, raster)
		if got, err := p.send("POST", a.path("complete"), nil); err == nil {
			s.Fatalf("complete is answered: %d %s", got.status, got.body)
		}
	}
	p.crashed()
	left := s.leaves(point, before, u, scene)
	if a != nil && a.ID != left.attempt {
		s.Fatalf("attempt %s, the database has %s", a.ID, left.attempt)
	}

	p = s.start()
	intended := point == upsert.PointIntended || point == upsert.PointPromoted || point == upsert.PointUpserted || point == upsert.PointTidied
	if intended {
		// By itself: nobody has called.
		poll(s, "recovery at start", func() bool {
			return s.text(`SELECT state FROM catalog.attempts WHERE attempt_id = $1`, left.attempt) == "done"
		})
	}
	won := left.attempt
	switch {
	case next == "same" && a == nil:
		d := p.begin(u)
		if d.Verdict != "run" || d.Attempt.ID != left.attempt {
			s.Fatalf("the same begin again: %s %+v, want the attempt %s", d.Verdict, d.Attempt, left.attempt)
		}
		write(s, d.Attempt.StagingPath, raster)
		p.complete(*d.Attempt)
	case next == "same":
		if out := p.complete(*a); out.State != "done" || out.AttemptID != a.ID {
			s.Fatalf("the same complete again: %+v", out)
		}
	case intended:
		// done redelivers, and finds the unit done.
	default:
		raster = pixels(2) // outputs need not be reproducible
		out := p.do(u.again(), raster)
		if won = out.AttemptID; won == left.attempt || out.State != "done" {
			s.Fatalf("a later try: %+v", out)
		}
	}

	got := s.done(p, u, raster)
	if got.AttemptID != won {
		s.Errorf("the row is of attempt %s, want %s", got.AttemptID, won)
	}
	if won == left.attempt && left.inode != 0 && s.inode(got.ObjectKey) != left.inode {
		s.Errorf("the object is another file than the one that was staged")
	}
	wantMoves := 1
	if scene == "bump" {
		wantMoves = 2
		if old := p.begin(first.again()); old.Verdict != "skip" || old.Current {
			s.Errorf("the old version: %+v", old)
		}
	}
	if n := s.count(`SELECT count(*) FROM catalog.slot_history`); n != wantMoves {
		s.Errorf("the pointer moved %d times, want %d", n, wantMoves)
	}
	if scene == "repair" {
		if n := s.count(`SELECT count(*) FROM catalog.removals WHERE object_key = $1`, before.ObjectKey); n != 1 {
			s.Errorf("%d removals of the lost object", n)
		}
	}
	s.sound(p)
}

// leavings are what a crash left.
type leavings struct {
	attempt uuid.UUID
	inode   uint64 // of the output, wherever it is; 0 for none
}

// leaves asserts the column "leaves" of the crash table.
func (s *site) leaves(point upsert.Point, before tile, u unit, scene string) leavings {
	s.Helper()
	var left leavings
	var state, stagingKey, objectKey, replaces string
	err := s.sql.QueryRow(s.Context(), `
SELECT attempt_id, state, staging_key, object_key, coalesce(replaces::text, '') FROM catalog.attempts ORDER BY created_at DESC LIMIT 1`).
		Scan(&left.attempt, &state, &stagingKey, &objectKey, &replaces)
	ok(s, err)
	staged, final := s.inode(stagingKey), s.inode(objectKey)
	want := map[upsert.Point]struct {
		state               string
		staged, final, rows bool
	}{
		upsert.PointBegun:    {"open", false, false, false},
		upsert.PointStaged:   {"open", true, false, false},
		upsert.PointProbed:   {"open", true, false, false},
		upsert.PointIntended: {"promoting", true, false, false},
		upsert.PointPromoted: {"promoting", false, true, false},
		upsert.PointUpserted: {"done", false, true, true},
		upsert.PointTidied:   {"done", false, true, true},
	}[point]
	rows := s.count(`SELECT count(*) FROM catalog.tiles WHERE attempt_id = $1`, left.attempt)
	if state != want.state || (staged != 0) != want.staged || (final != 0) != want.final || (rows == 1) != want.rows {
		s.Fatalf("killed at %s: attempt %s, staged %v, final %v, %d rows; want %+v", point, state, staged != 0, final != 0, rows, want)
	}
	if scene == "repair" && replaces != before.AttemptID.String() {
		s.Fatalf("the attempt replaces %q, want %s", replaces, before.AttemptID)
	}
	left.inode = max(staged, final)
	return left
}
