package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"catalogd/internal/upsert"
)

// The crash table of docs/design.md: the server is killed at each point of the
// step, for a unit's first run, for a new version in a slot, and for the repair of
// a lost output; then the task goes on, either where it was or anew.
func TestCrash(t *testing.T) {
	onEachStore(t, func(t *testing.T, newSite func(*testing.T) *site) {
		for _, scene := range []string{"first", "bump", "repair"} {
			for _, next := range []string{"same", "anew"} {
				t.Run(scene+"/"+next, func(t *testing.T) {
					t.Parallel()
					s := newSite(t)
					for _, point := range upsert.Points {
						t.Run(string(point), func(t *testing.T) { crash(s.within(t), scene, point, next) })
					}
				})
			}
		}
	})
}

func crash(s *site, scene string, point upsert.Point, next string) {
	slot := "a/" + string(point)
	first, u, times := newUnit("landcover", slot, "v1"), newUnit("landcover", slot, "v1"), 2
	switch scene {
	case "first":
		times = 1
	case "bump":
		u = newUnit("landcover", slot, "v2")
	}
	p := s.start(fmt.Sprintf("%s=%s:%d", envCrash, point, times))
	if point == upsert.Points[0] {
		p.collection("landcover", nil)
	}
	var before tile
	if scene != "first" {
		before = p.do(first, pixels(9)).Tile
	}
	if scene == "repair" {
		s.remove(before.ObjectKey)
	}
	stage := func(a attempt, raster []byte) {
		if s.bucket != nil && scene == "bump" {
			must[struct{}](p, "PUT", a.path("output"), bytes.NewReader(raster))
		} else {
			p.stage(a, raster)
		}
	}

	// The task, until the server is gone.
	raster := pixels(1)
	var a *attempt
	if got, err := p.send("POST", "/v1/attempts", u); err == nil {
		a = read[decision](s, got).Attempt
		stage(*a, raster)
		if got, err := p.send("POST", a.path("complete"), nil); err == nil {
			s.Fatalf("complete is answered: %d %s", got.status, got.body)
		}
	}
	p.crashed()
	left := s.leaves(point, before, scene)
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
		stage(*d.Attempt, raster)
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
	if now := s.state(got.ObjectKey); won == left.attempt && left.output != "" && now != left.output {
		s.Errorf("the object is %s, another than what the crash left, %s", now, left.output)
	}
	wantMoves := 1
	if scene == "bump" {
		wantMoves = 2
		if old := p.begin(first.again()); old.Verdict != "skip" || old.Current {
			s.Errorf("the old version: %+v", old)
		}
	}
	if n := s.count(`SELECT count(*) FROM catalog.slot_history WHERE tile_id = $1`, slot); n != wantMoves {
		s.Errorf("the pointer moved %d times, want %d", n, wantMoves)
	}
	if scene == "repair" {
		if n := s.count(`SELECT count(*) FROM catalog.removals WHERE object_key = $1`, before.ObjectKey); n != 1 {
			s.Errorf("%d removals of the lost object", n)
		}
	}
	s.sound(p)
	p.kill()
}

// leavings are what a crash left.
type leavings struct {
	attempt uuid.UUID
	output  string // the state of what must become the object; "" for none
}

// leaves asserts the column "leaves" of the crash table.
func (s *site) leaves(point upsert.Point, before tile, scene string) leavings {
	s.Helper()
	var left leavings
	var state, stagingKey, objectKey, replaces string
	err := s.sql.QueryRow(s.Context(), `
SELECT attempt_id, state, staging_key, object_key, coalesce(replaces::text, '') FROM catalog.attempts ORDER BY created_at DESC LIMIT 1`).
		Scan(&left.attempt, &state, &stagingKey, &objectKey, &replaces)
	ok(s, err)
	staged, final := s.state(stagingKey), s.state(objectKey)
	// A promotion in a directory renames. In a bucket it copies, and what was staged
	// goes when the step is over already.
	copied := s.bucket != nil
	want := map[upsert.Point]struct {
		state               string
		staged, final, rows bool
	}{
		upsert.PointBegun:    {"open", false, false, false},
		upsert.PointStaged:   {"open", true, false, false},
		upsert.PointProbed:   {"open", true, false, false},
		upsert.PointIntended: {"promoting", true, false, false},
		upsert.PointPromoted: {"promoting", copied, true, false},
		upsert.PointUpserted: {"done", copied, true, true},
		upsert.PointTidied:   {"done", false, true, true},
	}[point]
	rows := s.count(`SELECT count(*) FROM catalog.tiles WHERE attempt_id = $1`, left.attempt)
	going := copied && point == upsert.PointTidied
	if state != want.state || !going && (staged != "") != want.staged || (final != "") != want.final || (rows == 1) != want.rows {
		s.Fatalf("killed at %s: attempt %s, staged %v, final %v, %d rows; want %+v", point, state, staged != "", final != "", rows, want)
	}
	if scene == "repair" && replaces != before.AttemptID.String() {
		s.Fatalf("the attempt replaces %q, want %s", replaces, before.AttemptID)
	}
	if left.output = final; final == "" && !copied {
		left.output = staged
	}
	return left
}

// A server that is killed while an upload streams leaves a temporary, or an upload in
// parts, and the attempt: the task sends its bytes again.
func TestCrashInUpload(t *testing.T) { onEachStore(t, crashInUpload) }

func crashInUpload(t *testing.T, newSite func(*testing.T) *site) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	a := p.run(newUnit("landcover", "t1", "v1"))
	staged := func() int {
		n := len(s.files(".staging"))
		if s.bucket != nil {
			n += len(s.bucket.uploads(s))
		}
		return n
	}
	body, pipe := io.Pipe()
	broken := make(chan error, 1)
	go func() {
		_, err := p.send("PUT", a.path("output"), body)
		broken <- err
	}()
	_, err := pipe.Write(make([]byte, 10<<20))
	ok(t, err)
	poll(t, "an upload under way", func() bool { return staged() == 1 })
	p.kill()
	pipe.Close()
	if err := <-broken; err == nil {
		t.Fatal("the upload is answered")
	}
	if s.state(a.StagingKey) != "" {
		t.Fatal("half an upload has the staging name")
	}

	p = s.start()
	u, raster := newUnit("landcover", "t1", "v1"), pixels(3)
	must[struct{}](p, "PUT", a.path("output"), bytes.NewReader(raster))
	if n := staged(); n != 2 {
		t.Errorf("%d are staged, want the upload and the broken one, which its attempt still covers", n)
	}
	if out := p.complete(a); out.AttemptID != a.ID {
		t.Errorf("%+v", out)
	}
	s.done(p, u, raster)
	s.sound(p)
}

// POST /v1/outputs has no attempt before its intent. After it, the same request
// again finds its attempt.
func TestCrashInOutputs(t *testing.T) { onEachStore(t, crashInOutputs) }

func crashInOutputs(t *testing.T, newSite func(*testing.T) *site) {
	t.Parallel()
	s := newSite(t)
	for i, point := range upsert.Points[1:] {
		t.Run(string(point), func(t *testing.T) {
			s := s.within(t)
			p := s.start(envCrash + "=" + string(point))
			if i == 0 {
				p.collection("landcover", nil)
			}
			raster := pixels(byte(i))
			u := newUnit("landcover", string(point), "v1")
			s.put(".staging/in/run-7/"+u.TileID+".tif", raster)
			request := map[string]any{
				"collection": u.Collection, "tile_id": u.TileID, "identity": u.Identity, "owner": u.Owner, "request_id": u.RequestID,
				"staged": "run-7/" + u.TileID + ".tif", "size_bytes": len(raster), "checksum": checksum(raster),
			}
			if a, err := p.send("POST", "/v1/outputs", request); err == nil {
				t.Fatalf("answered: %d %s", a.status, a.body)
			}
			p.crashed()
			intended := i >= 2
			if n := s.count(`SELECT count(*) FROM catalog.attempts JOIN catalog.units USING (unit_key) WHERE tile_id = $1`, u.TileID); (n == 1) != intended {
				t.Fatalf("%d attempts after %s", n, point)
			}
			p = s.start()
			out := must[outcome](p, "POST", "/v1/outputs", request)
			if out.State != "done" && !(intended && out.State == "skipped") {
				t.Fatalf("the same request again: %+v", out)
			}
			if n := s.count(`SELECT count(*) FROM catalog.attempts JOIN catalog.units USING (unit_key) WHERE tile_id = $1`, u.TileID); n != 1 {
				t.Errorf("%d attempts, want 1", n)
			}
			s.done(p, u, raster)
			if out := must[outcome](p, "POST", "/v1/outputs", request); out.State != "skipped" {
				t.Errorf("redelivered: %+v", out)
			}
			if s.bucket != nil && (point == upsert.PointUpserted || point == upsert.PointTidied) {
				// A name of the task's own, which may be in use again: the sweep removes
				// it by its age only.
				s.remove(".staging/in/run-7/" + u.TileID + ".tif")
			}
			s.sound(p)
			p.kill()
		})
	}
}

// Where catalogd promotes a copy, the intent names the copy: recovery finds it
// and removes what it was copied from.
func TestCrashWithCopies(t *testing.T) { onEachStore(t, crashWithCopies) }

func crashWithCopies(t *testing.T, newSite func(*testing.T) *site) {
	t.Parallel()
	s := newSite(t)
	for i, point := range []upsert.Point{upsert.PointProbed, upsert.PointIntended, upsert.PointPromoted, upsert.PointUpserted} {
		t.Run(string(point), func(t *testing.T) {
			s := s.within(t)
			p := s.start(envCrash + "=" + string(point))
			if i == 0 {
				p.collection("copied", map[string]any{"staging_copied": true})
			}
			u, raster := newUnit("copied", string(point), "v1"), pixels(byte(i))
			a := p.run(u)
			p.stage(a, raster)
			// The writer writes after complete: with a descriptor that it kept, or anew.
			late := func() { s.put(a.StagingKey, []byte("spoilt")) }
			if s.bucket == nil {
				held, err := os.OpenFile(a.StagingPath, os.O_WRONLY, 0)
				ok(t, err)
				defer held.Close()
				late = func() {
					_, err = held.WriteAt([]byte("spoilt"), 0)
					ok(t, err)
				}
			}
			original := s.state(a.StagingKey)
			if _, err := p.send("POST", a.path("complete"), nil); err == nil {
				t.Fatal("complete is answered")
			}
			p.crashed()
			if s.state(a.StagingKey) != original {
				t.Fatal("the task's file is gone before the row is tidied")
			}
			if point != upsert.PointProbed {
				late()
			}
			p = s.start()
			out := p.complete(a)
			if own := s.bucket == nil && s.state(out.Tile.ObjectKey) == original; out.AttemptID != a.ID || own {
				t.Errorf("%+v, of the task's own file: %v", out, own)
			}
			s.done(p, u, raster)
			s.sound(p)
			p.kill()
		})
	}
}

// A crash of recovery itself costs another recovery, however often.
func TestCrashInRecovery(t *testing.T) {
	onEachStore(t, func(t *testing.T, newSite func(*testing.T) *site) {
		for name, points := range map[string][]upsert.Point{
			"promoted thrice": {upsert.PointPromoted, upsert.PointPromoted, upsert.PointPromoted},
			"one step a life": {upsert.PointIntended, upsert.PointPromoted, upsert.PointUpserted},
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); crashInRecovery(newSite(t), points) })
		}
	})
}

func crashInRecovery(s *site, points []upsert.Point) {
	p := s.start(envCrash + "=" + string(points[0]))
	p.collection("landcover", nil)
	u, raster := newUnit("landcover", "t1", "v1"), pixels(5)
	a := p.run(u)
	p.stage(a, raster)
	staged := s.state(a.StagingKey)
	if _, err := p.send("POST", a.path("complete"), nil); err == nil {
		s.Fatal("complete is answered")
	}
	p.crashed()
	output := s.state(a.ObjectKey)
	if s.bucket == nil {
		output = staged
	}
	for _, point := range points[1:] {
		p = s.start(envCrash + "=" + string(point))
		p.crashed() // of its own recovery
		if output == "" {
			output = s.state(a.ObjectKey)
		}
	}
	p = s.start()
	poll(s, "recovery at start", func() bool { return s.count(`SELECT count(*) FROM catalog.tiles`) == 1 })
	if got := s.done(p, u, raster); got.AttemptID != a.ID || s.state(got.ObjectKey) != output {
		s.Errorf("reworked: %+v", got)
	}
	s.sound(p)
}

// The same life of a task, with a server that dies at every point in turn.
func TestCrashAtEveryPointOfOneUnit(t *testing.T) { onEachStore(t, crashAtEveryPoint) }

func crashAtEveryPoint(t *testing.T, newSite func(*testing.T) *site) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	p.kill()
	u, raster := newUnit("landcover", "t1", "v1"), pixels(6)
	var a *attempt
	for _, point := range upsert.Points {
		p := s.start(envCrash + "=" + string(point))
		if a == nil {
			if got, err := p.send("POST", "/v1/attempts", u); err == nil {
				a = read[decision](t, got).Attempt
				p.stage(*a, raster)
			}
		}
		if a != nil {
			if got, err := p.send("POST", a.path("complete"), nil); err == nil && read[outcome](t, got).State != "done" {
				t.Fatalf("%s: %s", point, got.body)
			}
		}
		p.kill()
	}
	p = s.start()
	out := p.complete(*a)
	if got := s.done(p, u, raster); got.AttemptID != a.ID || out.AttemptID != a.ID {
		t.Errorf("the row is of attempt %s, want %s", got.AttemptID, a.ID)
	}
	if n := s.count(`SELECT count(*) FROM catalog.attempts`); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
	s.sound(p)
}

// A publication moves its slots a page at a time: what a killed server left is
// moved at the next start.
func TestCrashInPublish(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	// One slot through the step shows the rest, which SQL makes, what rows are like.
	one, raster := newUnit("landcover", "t0000", "v1"), pixels(0)
	p.do(one, raster)
	two := one.again()
	two.Identity = map[string]any{"version": "v2", "scene": "S2"}
	p.do(two, raster)
	const slots = 1200
	s.fill(slots, raster)

	failed := make(chan error, 1)
	go func() {
		_, err := p.send("POST", "/v1/publish", map[string]any{"collection": "landcover", "version": "v1", "why": "v2 has stripes"})
		failed <- err
	}()
	moved := func() int { return s.count(`SELECT count(*) FROM catalog.slot_history WHERE reason = 'published'`) }
	poll(t, "the first slots to move", func() bool { return moved() > 0 })
	p.kill()
	if err := <-failed; err == nil {
		t.Fatal("publish is answered")
	}
	if n := moved(); n == 0 || n >= slots {
		t.Fatalf("%d of %d slots moved before the crash, which shows nothing", n, slots)
	}
	if n := s.count(`SELECT count(*) FROM catalog.collection_versions WHERE publishing`); n != 1 {
		t.Fatalf("%d publications open", n)
	}
	p = s.start()
	poll(t, "the publication to end", func() bool {
		return s.count(`SELECT count(*) FROM catalog.collection_versions WHERE publishing`) == 0
	})
	if n := moved(); n != slots {
		t.Errorf("%d moves, want %d: each slot once", n, slots)
	}
	if n := s.count(`SELECT count(*) FROM catalog.slots JOIN catalog.units USING (unit_key) WHERE version = 'v1'`); n != slots {
		t.Errorf("%d slots point to v1, want %d", n, slots)
	}
	s.done(p, one, raster)
	s.sound(p)
}

// fill copies what slot t0000 has to further slots, n in all.
func (s *site) fill(n int, raster []byte) {
	s.Helper()
	s.exec(`
CREATE TEMPORARY TABLE made ON COMMIT PRESERVE ROWS AS
SELECT u.unit_key AS model, 't' || lpad(i::text, 4, '0') AS tile_id, gen_random_uuid() AS unit_key, gen_random_uuid() AS attempt_id, ''::text AS object_key
FROM catalog.units u, generate_series(1, $1 - 1) i`, n)
	for _, query := range []string{
		`UPDATE made SET object_key = 'landcover/' || tile_id || '.' || left(replace(unit_key::text, '-', ''), 12) || '.' || right(attempt_id::text, 12) || '.tif'`,
		`INSERT INTO catalog.units (unit_key, collection_id, tile_id, version, identity)
		 SELECT m.unit_key, u.collection_id, m.tile_id, u.version, u.identity
		 FROM made m JOIN catalog.units u ON u.unit_key = model ORDER BY u.version, m.tile_id`,
		`INSERT INTO catalog.attempts
		 SELECT (jsonb_populate_record(a, jsonb_build_object('attempt_id', m.attempt_id, 'unit_key', m.unit_key,
		     'staging_key', '.staging/' || m.attempt_id || '.tif', 'object_key', m.object_key))).*
		 FROM made m JOIN catalog.attempts a ON a.unit_key = model`,
		`INSERT INTO catalog.tiles
		 SELECT (jsonb_populate_record(t, jsonb_build_object('attempt_id', m.attempt_id, 'unit_key', m.unit_key, 'tile_id', m.tile_id,
		     'object_key', m.object_key))).*
		 FROM made m JOIN catalog.tiles t ON t.unit_key = model`,
		`INSERT INTO catalog.slots (collection_id, tile_id, unit_key)
		 SELECT 'landcover', m.tile_id, m.unit_key FROM made m JOIN catalog.units u ON u.unit_key = model WHERE u.version = 'v2'`,
		`INSERT INTO catalog.slot_history (collection_id, tile_id, to_unit, moved_by, reason, moved_at)
		 SELECT 'landcover', m.tile_id, m.unit_key, 'worker', 'registered', clock_timestamp()
		 FROM made m JOIN catalog.units u ON u.unit_key = model ORDER BY m.tile_id, u.version`,
		`UPDATE catalog.slot_history h SET from_unit = (SELECT max(b.to_unit::text)::uuid FROM catalog.slot_history b WHERE b.tile_id = h.tile_id AND b.id < h.id)`,
	} {
		s.exec(query)
	}
	rows, err := s.sql.Query(s.Context(), `SELECT object_key FROM catalog.tiles WHERE tile_id <> 't0000'`)
	ok(s, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(s, err)
	for _, key := range keys {
		write(s, s.path(key), raster)
	}
}

// Any number of servers work on one database and store. What one of them left,
// another finishes: when told to, by the clock, or because the task asks it.
func TestCrashOfAReplica(t *testing.T) {
	onEachStore(t, func(t *testing.T, newSite func(*testing.T) *site) {
		for _, how := range []string{"recover", "deadline", "complete"} {
			t.Run(how, func(t *testing.T) { t.Parallel(); crashOfAReplica(newSite(t), how) })
		}
	})
}

func crashOfAReplica(s *site, how string) {
	other := s.start()
	other.collection("landcover", nil)
	for i, point := range []upsert.Point{upsert.PointProbed, upsert.PointIntended, upsert.PointPromoted} {
		p := s.start(envCrash + "=" + string(point))
		u, raster := newUnit("landcover", string(point), "v1"), pixels(byte(i))
		a := p.run(u)
		p.stage(a, raster)
		if d := other.begin(newUnit("landcover", string(point), "v1")); d.Verdict != "wait" && d.Verdict != "run" {
			s.Fatalf("meanwhile: %+v", d)
		}
		if _, err := p.send("POST", a.path("complete"), nil); err == nil {
			s.Fatal("complete is answered")
		}
		p.crashed()
		if d := other.begin(newUnit("landcover", string(point), "v1").from("another worker")); d.Verdict != "wait" {
			s.Errorf("another worker after the crash: %s, want wait", d.Verdict)
		}
		intended := point != upsert.PointProbed
		switch how {
		case "recover":
			sum := must[recovered](other, "POST", "/v1/recover", nil)
			if want := (recovered{RolledForward: map[bool]int{true: 1}[intended]}); sum != want {
				s.Errorf("recovered %+v, want %+v", sum, want)
			}
		case "deadline":
			s.exec(`UPDATE catalog.attempts SET lease_until = clock_timestamp() - interval '1 second' WHERE attempt_id = $1`, a.ID)
			if intended {
				poll(s, "recovery by the clock", func() bool {
					return s.text(`SELECT state FROM catalog.attempts WHERE attempt_id = $1`, a.ID) == "done"
				})
			}
		}
		// Late or not, the attempt that nobody took over may complete.
		if out := other.complete(a); out.State != "done" || out.AttemptID != a.ID {
			s.Errorf("%+v", out)
		}
		s.done(other, u, raster)
	}
	s.sound(other)
}

// The first row of the table: the task dies while it stages. Its lease ends,
// somebody else does the unit, and what it staged is swept; if it was not dead
// after all, it is told that it lost. With nobody else, the sweep ends it.
func TestCrashOfATask(t *testing.T) { onEachStore(t, crashOfATask) }

func crashOfATask(t *testing.T, newSite func(*testing.T) *site) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	u := newUnit("landcover", "t1", "v1")
	dead, forgotten := p.run(u), p.run(newUnit("landcover", "t2", "v1"))
	for _, a := range []attempt{dead, forgotten} {
		p.stage(a, pixels(1)[:300])
	}
	if d := p.begin(u.from("another")); d.Verdict != "wait" {
		t.Errorf("under the lease: %+v", d)
	}
	s.exec(`UPDATE catalog.attempts SET lease_until = lease_until - interval '1 hour'`)
	must[struct{}](p, "POST", "/v1/sweep", nil)
	if left := s.files(".staging"); len(left) != 0 {
		t.Errorf("left in staging: %q", left)
	}
	out := p.do(u.from("another"), pixels(2))
	s.put(dead.StagingKey, pixels(1))
	wantProblem(t, p.ask("POST", dead.path("complete"), nil), "attempt_lost", "")
	wantProblem(t, p.ask("PUT", dead.path("output"), bytes.NewReader(pixels(1))), "attempt_lost", "")
	if got := s.done(p, u, pixels(2)); got.AttemptID != out.AttemptID {
		t.Errorf("the row is of attempt %s, want %s", got.AttemptID, out.AttemptID)
	}
	s.sound(p)
}
