package upsert_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/postgres"
	"catalogd/internal/rastertest"
	"catalogd/internal/storage"
	"catalogd/internal/upsert"
)

// What the step does while the store or the database is away, read-only, or
// answers when nobody listens any more.

// promoting leaves an attempt as a crash after its intent does.
func (w *world) promoting(req upsert.BeginRequest, raster rastertest.Raster) catalog.Attempt {
	w.t.Helper()
	r := w.another(func(c *upsert.Config) {
		c.Stores = w.with(&calls{promote: func() error { return errors.New("stuck") }}) // an outcome that nobody knows
	})
	a := w.run(req)
	w.stage(a, raster)
	_, err := r.Complete(w.t.Context(), a.ID, upsert.CompleteRequest{})
	wantCode(w.t, err, catalog.CodeStoreUnavailable)
	if s := w.state(a); s != catalog.AttemptPromoting {
		w.t.Fatal(s)
	}
	return a
}

// While the store is not the one that it was, nothing is lost, nothing is due and
// nothing is deleted: that it cannot be looked at says nothing of what is in it.
func TestStoreAway(t *testing.T) { onBoth(t, testStoreAway) }

func testStoreAway(t *testing.T, on place) {
	ctx := t.Context()
	w := newWorld(t, on)
	w.do(request("done", "v1"), rastertest.Raster{})
	w.lose(w.do(request("lost", "v1"), rastertest.Raster{}).Tile)
	repairing := w.run(request("lost", "v1"))
	late := w.run(request("late", "v1"))
	w.stage(late, rastertest.Raster{})
	w.expire(late)
	promoting := w.promoting(request("promoting", "v1"), rastertest.Raster{})
	failed := w.run(request("failed", "v1"))
	w.stage(failed, rastertest.Raster{})
	if err := w.failing(ctx, failed); err != nil {
		t.Fatal(err)
	}
	w.age()

	for _, away := range w.site.aways(t) {
		t.Run(away.name, func(t *testing.T) {
			before := w.dump()
			away.goes()
			another := strings.HasPrefix(away.name, "another")
			if another {
				w.put(failed.StagingKey, []byte("theirs"))
			}
			for name, do := range map[string]func() error{
				"begin of what is done": func() error { _, err := w.Begin(ctx, request("done", "v1")); return err },
				"begin of what is lost": func() error { _, err := w.Begin(ctx, owned("lost", "v1", "other")); return err },
				"begin of what is new":  func() error { _, err := w.Begin(ctx, request("new", "v1")); return err },
				"check that looks": func() error {
					checked, err := w.Check(ctx, []upsert.UnitRef{request("done", "v1").Unit}, true)
					return errors.Join(err, checked[0].Err)
				},
				"sweep":                  func() error { _, err := w.Sweep(ctx); return err },
				"complete":               func() error { _, err := w.Complete(ctx, repairing.ID, upsert.CompleteRequest{}); return err },
				"complete what promotes": func() error { _, err := w.Complete(ctx, promoting.ID, upsert.CompleteRequest{}); return err },
				"upload":                 func() error { _, _, err := w.Stage(ctx, repairing.ID, strings.NewReader("x")); return err },
				"register what is staged": func() error {
					_, err := w.Register(ctx, upsert.OutputRequest{Begin: request("in", "v1"), Staged: "x.tif"})
					return err
				},
			} {
				if slices.Contains(away.unseen, name) {
					continue
				}
				if err := do(); !catalog.IsCode(err, catalog.CodeStoreUnavailable) || !strings.Contains(err.Error(), "mounted") {
					t.Errorf("%s: %v", name, err)
				}
			}
			if r, err := w.Recover(ctx); err != nil || r.Unfinished != 1 || r.Failed != 0 {
				t.Errorf("recover: %+v %v", r, err)
			}
			if another && !w.exists(failed.StagingKey) {
				t.Error("the sweep deletes in another store")
			}
			away.comes()
			if after := w.dump(); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
		})
	}
	// The root is the one that it was, but its sentinel is gone or another's:
	// absence does not count, presence does.
	sentinel, err := w.site.get(t, storage.SentinelKey)
	must(t, err)
	for name, spoil := range map[string]func(){
		"gone":      func() { w.remove(storage.SentinelKey) },
		"another's": func() { w.put(storage.SentinelKey, []byte(`{"id":"another"}`)) },
		"garbage":   func() { w.put(storage.SentinelKey, []byte(`{`)) },
	} {
		spoil()
		if d, err := w.Begin(ctx, request("done", "v1")); err != nil || d.Verdict != upsert.VerdictSkip {
			t.Errorf("%s: %+v %v", name, d, err)
		}
		_, err := w.Begin(ctx, owned("lost", "v1", "other"))
		wantCode(t, err, catalog.CodeStoreUnavailable)
		_, err = w.Check(ctx, []upsert.UnitRef{request("lost", "v1").Unit}, true)
		if s, _ := w.Check(ctx, []upsert.UnitRef{request("lost", "v1").Unit}, false); err == nil && s[0].Status != upsert.StatusRunning {
			t.Errorf("%s: %+v", name, s)
		}
		_, err = w.Sweep(ctx)
		wantCode(t, err, catalog.CodeStoreUnavailable)
		w.put(storage.SentinelKey, sentinel)
	}

	if r, err := w.Recover(ctx); err != nil || r.RolledForward != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	w.sweep()
	w.stage(repairing, rastertest.Raster{Seed: 1})
	w.complete(repairing)
	w.check(settled)
}

// dump is the state of every attempt and every row, as text.
func (w *world) dump() (text string) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
    SELECT attempt_id || ' ' || state || ' ' || coalesce(swept_at::text, '') FROM catalog.attempts
    UNION ALL SELECT unit_key || ' ' || object_key FROM catalog.tiles
    UNION ALL SELECT object_key || ' ' || coalesce(confirmed_at::text, '') FROM catalog.removals) of (line)`).Scan(&text)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// A database that takes no writes answers what needs none, and refuses the rest
// by name.
func TestDatabaseReadOnly(t *testing.T) { onBoth(t, testDatabaseReadOnly) }

func testDatabaseReadOnly(t *testing.T, on place) {
	ctx := t.Context()
	w := newWorld(t, on)
	done := w.run(request("done", "v1"))
	w.stage(done, rastertest.Raster{})
	w.complete(done)
	open := w.run(request("open", "v1"))
	w.stage(open, rastertest.Raster{})
	w.incoming("x.tif", rastertest.Raster{})
	promoting := w.promoting(request("promoting", "v1"), rastertest.Raster{})
	standby := w.open(w.url + sep(w.url) + "default_transaction_read_only=on")
	// Nothing is to be recorded: the store is known.
	if err := standby.UseStore(ctx, postgres.Store{ID: w.store.ID()}); !catalog.IsCode(err, catalog.CodeDatabaseReadOnly) {
		t.Fatal(err)
	}
	ro := w.another(func(c *upsert.Config) { c.Ledger = standby })
	before := w.dump()
	for name, do := range map[string]func() error{
		"begin":                  func() error { _, err := ro.Begin(ctx, request("new", "v1")); return err },
		"upload":                 func() error { _, _, err := ro.Stage(ctx, open.ID, strings.NewReader("x")); return err },
		"complete":               func() error { _, err := ro.Complete(ctx, open.ID, upsert.CompleteRequest{}); return err },
		"complete what promotes": func() error { _, err := ro.Complete(ctx, promoting.ID, upsert.CompleteRequest{}); return err },
		"register": func() error {
			_, err := ro.Register(ctx, upsert.OutputRequest{Begin: request("in", "v1"), Staged: "x.tif"})
			return err
		},
		"fail":      func() error { return ro.failing(ctx, open) },
		"abandon":   func() error { return ro.Abandon(ctx, open.ID) },
		"heartbeat": func() error { _, err := ro.Heartbeat(ctx, []uuid.UUID{open.ID}); return err },
		"publish":   func() error { _, err := ro.Publish(ctx, "landcover", "v1", "me", "why"); return err },
		"sweep":     func() error { _, err := ro.Sweep(ctx); return err },
	} {
		if err := do(); !catalog.IsCode(err, catalog.CodeDatabaseReadOnly) || !strings.Contains(err.Error(), "primary") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := ro.Recover(ctx); err != nil || r.Unfinished != 1 {
		t.Errorf("recover: %+v %v", r, err)
	}
	if after := w.dump(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if d, err := ro.Begin(ctx, request("done", "v1")); err != nil || d.Verdict != upsert.VerdictSkip {
		t.Errorf("%+v %v", d, err)
	}
	if out, err := ro.Complete(ctx, done.ID, upsert.CompleteRequest{}); err != nil || out.State != catalog.AttemptDone {
		t.Errorf("%+v %v", out, err)
	}
	w.complete(open)
	if r, err := w.Recover(ctx); err != nil || r.RolledForward != 1 {
		t.Errorf("recover: %+v %v", r, err)
	}
	w.check(settled)
}

// hangUp ends every session of the server's.
func (w *world) hangUp() {
	w.t.Helper()
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'catalogd'`)
}

// The database hangs up on every session at each point of a step. The step goes
// on, or says that the database did not answer and is finished later.
func TestDatabaseHangsUp(t *testing.T) { onBoth(t, testDatabaseHangsUp) }

func testDatabaseHangsUp(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for _, at := range upsert.Points {
		t.Run(string(at), func(t *testing.T) {
			req := request(string(at), "v1")
			if at == upsert.PointBegun {
				w.on(at, uuid.Nil, w.hangUp)
			}
			a := w.run(req)
			w.stage(a, rastertest.Raster{})
			w.on(at, a.ID, w.hangUp)
			if _, err := w.Complete(t.Context(), a.ID, upsert.CompleteRequest{}); err != nil {
				wantCode(t, err, catalog.CodeDatabaseUnavailable)
				if !strings.Contains(err.Error(), "try again") {
					t.Error(err)
				}
			}
			w.finish(req, a)
		})
	}
	t.Run("while the row is written", func(t *testing.T) {
		a := w.run(request("conclude", "v1"))
		w.stage(a, rastertest.Raster{})
		end := w.lock(`SELECT FROM catalog.slots WHERE tile_id = 'conclude' FOR UPDATE`)
		done := w.completing(w.replica, a)
		w.blocked(1)
		w.hangUp()
		w.blocked(1) // and again
		end(false)
		if r := <-done; r.err != nil || r.value.State != catalog.AttemptDone {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("while the intent is written", func(t *testing.T) {
		a := w.run(request("intend", "v1"))
		w.stage(a, rastertest.Raster{})
		var end func(bool)
		w.on(upsert.PointProbed, a.ID, func() { end = w.lock(`SELECT FROM catalog.attempts WHERE attempt_id = $1 FOR UPDATE`, a.ID) })
		done := w.completing(w.replica, a)
		w.blocked(1)
		w.hangUp()
		wantCode(t, (<-done).err, catalog.CodeDatabaseUnavailable)
		end(false)
		w.complete(a)
	})
	t.Run("while a slot is published", func(t *testing.T) {
		w.do(request("publish", "v1"), rastertest.Raster{})
		w.do(request("publish", "v2"), rastertest.Raster{})
		end := w.lock(`SELECT FROM catalog.slots WHERE tile_id = 'publish' FOR UPDATE`)
		done := async(func() (upsert.Published, error) { return w.Publish(t.Context(), "landcover", "v1", "me", "back") })
		w.blocked(1)
		w.hangUp()
		wantCode(t, (<-done).err, catalog.CodeDatabaseUnavailable)
		end(false)
		if r, err := w.Recover(t.Context()); err != nil || r.Published != 1 {
			t.Fatalf("%+v %v", r, err)
		}
	})
	w.sweep() // a stable name may have been left to it
	w.check(settled)
}

// finish brings an attempt to its end, as its worker would after an error.
func (w *world) finish(req upsert.BeginRequest, a catalog.Attempt) {
	w.t.Helper()
	var err error
	for range 5 {
		if _, err = w.Complete(w.t.Context(), a.ID, upsert.CompleteRequest{}); err == nil {
			break
		}
		wantCode(w.t, err, catalog.CodeDatabaseUnavailable) // the pool's other sessions
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if d := w.begin(req); d.Verdict != upsert.VerdictSkip {
		w.t.Fatalf("%+v", d)
	}
}

// wire stands between the server and its database. It can swallow a reply and
// hang up: what was asked is done, and nobody hears of it.
type wire struct {
	net.Listener
	socket string
	// trips counts replies, but to the pool's ping of a connection that was idle.
	trips atomic.Int64

	mu       sync.Mutex
	swallow  []byte // the reply that has this in it
	swallows int
}

func (w *world) wire() *wire {
	w.t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	wire := &wire{Listener: l, socket: u.Query().Get("host") + "/.s.PGSQL." + u.Query().Get("port")}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go wire.carry(client)
		}
	}()
	return wire
}

// url of the database at the other end.
func (p *wire) url(database string) string {
	u, _ := url.Parse(database)
	u.Host = p.Addr().String()
	u.RawQuery = "sslmode=disable&pool_max_conns=2"
	return u.String()
}

func (p *wire) arm(tag string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = append([]byte(tag), 0)
}

func (p *wire) swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallows
}

func (p *wire) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", p.socket)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	// Replies go on when they are whole: up to ReadyForQuery, which comes after
	// the commit.
	var reply bytes.Buffer
	for {
		var head [5]byte
		if _, err := io.ReadFull(server, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		reply.Write(head[:])
		reply.Write(body)
		// 'R': the client answers questions about who it is.
		if head[0] != 'Z' && head[0] != 'R' {
			continue
		}
		if head[0] == 'Z' && reply.Bytes()[0] != 'I' { // EmptyQueryResponse
			p.trips.Add(1)
		}
		p.mu.Lock()
		swallow := p.swallow != nil && bytes.Contains(reply.Bytes(), p.swallow)
		if swallow {
			p.swallow = nil
			p.swallows++
		}
		p.mu.Unlock()
		if swallow {
			return
		}
		if _, err := client.Write(reply.Bytes()); err != nil {
			return
		}
		reply.Reset()
	}
}

// The reply to a commit is lost: its outcome is found by looking, never assumed,
// and what was done is not done again.
func TestLostCommitReply(t *testing.T) { onBoth(t, testLostCommitReply) }

func testLostCommitReply(t *testing.T, on place) {
	ctx := t.Context()
	w := newWorld(t, on)
	w.watch()
	wire := w.wire()
	far := w.another(func(c *upsert.Config) { c.Ledger = w.open(wire.url(w.url)) })
	swallowed := 0
	lost := func() {
		t.Helper()
		if swallowed++; wire.swallowed() != swallowed {
			t.Fatal("no reply was lost")
		}
	}

	// Of a begin: sent again, it finds the attempt that it made.
	req := request("begin", "v1")
	wire.arm("INSERT 0 1")
	_, err := far.Begin(ctx, req)
	lost()
	wantCode(t, err, catalog.CodeDatabaseUnavailable)
	d, err := far.Begin(ctx, req)
	if err != nil || d.Verdict != upsert.VerdictRun || w.count(`SELECT count(*) FROM catalog.attempts`) != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	a := *d.Attempt

	// Of an intent.
	w.stage(a, rastertest.Raster{})
	far.on(upsert.PointProbed, a.ID, func() { wire.arm("UPDATE 1") })
	out, err := far.Complete(ctx, a.ID, upsert.CompleteRequest{})
	lost()
	if err != nil || out.State != catalog.AttemptDone || out.Tile.AttemptID != a.ID {
		t.Fatalf("%+v %v", out, err)
	}

	// Of the row.
	a = w.run(request("row", "v1"))
	w.stage(a, rastertest.Raster{})
	far.on(upsert.PointPromoted, a.ID, func() { wire.arm("COMMIT") })
	out, err = far.Complete(ctx, a.ID, upsert.CompleteRequest{})
	lost()
	if err != nil || out.State != catalog.AttemptDone || out.Tile.AttemptID != a.ID {
		t.Fatalf("%+v %v", out, err)
	}

	// Of a registration's attempt and intent, which are one commit.
	w.incoming("x.tif", rastertest.Raster{})
	registration := upsert.OutputRequest{Begin: request("register", "v1"), Staged: "x.tif"}
	far.on(upsert.PointProbed, uuid.Nil, func() { wire.arm("INSERT 0 1") })
	registered, err := far.Register(ctx, registration)
	lost()
	if err != nil || registered.Outcome.State != catalog.AttemptDone {
		t.Fatalf("%+v %v", registered, err)
	}

	// Of a publication's rank: recovery moves the slots.
	w.do(request("row", "v2"), rastertest.Raster{})
	wire.arm("SELECT 1")
	_, err = far.Publish(ctx, "landcover", "v1", "me", "back")
	lost()
	wantCode(t, err, catalog.CodeDatabaseUnavailable)
	if r, err := w.Recover(ctx); err != nil || r.Published != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	w.check(settled)
	if n := w.count(`SELECT count(*) FROM catalog.attempts WHERE state <> 'done'`); n != 0 {
		t.Fatalf("%d attempts are not done", n)
	}
}

// deaf is a ledger that commits an intent and cannot say so, and then cannot
// look either.
type deaf struct {
	*postgres.DB
	intended bool
}

func (d *deaf) Intend(ctx context.Context, id uuid.UUID, intent catalog.Intent, deadline time.Duration) (bool, error) {
	if _, err := d.DB.Intend(ctx, id, intent, deadline); err != nil {
		return false, err
	}
	d.intended = true
	return false, catalog.Errorf(catalog.CodeDatabaseUnavailable, "no reply")
}

func (d *deaf) Attempt(ctx context.Context, id uuid.UUID) (catalog.Attempt, catalog.Collection, error) {
	if d.intended {
		return catalog.Attempt{}, catalog.Collection{}, catalog.Errorf(catalog.CodeDatabaseUnavailable, "no reply")
	}
	return d.DB.Attempt(ctx, id)
}

// An intent is committed, and the server never learns so: the attempt is
// promoting with its file still staged. A later complete, or recovery, rolls it
// forward.
func TestIntentNobodyHeardOf(t *testing.T) { onBoth(t, testIntentNobodyHeardOf) }

func testIntentNobodyHeardOf(t *testing.T, on place) {
	w := newWorld(t, on)
	w.watch()
	for _, by := range []string{"complete", "recovery"} {
		a := w.run(request(by, "v1"))
		w.stage(a, rastertest.Raster{})
		hard := w.another(func(c *upsert.Config) { c.Ledger = &deaf{DB: w.db} })
		_, err := hard.Complete(t.Context(), a.ID, upsert.CompleteRequest{})
		wantCode(t, err, catalog.CodeDatabaseUnavailable)
		if s := w.state(a); s != catalog.AttemptPromoting || !w.exists(a.StagingKey) || w.exists(a.ObjectKey) {
			t.Fatal(s)
		}
		w.check(invariant.Options{Linked: true})
		if d := w.begin(owned(by, "v1", "another")); d.Verdict != upsert.VerdictWait {
			t.Fatalf("%+v", d)
		}
		if by == "complete" {
			w.complete(a)
		} else if r, err := w.Recover(t.Context()); err != nil || r.RolledForward != 1 {
			t.Fatalf("%+v %v", r, err)
		}
		w.check(settled)
	}
}
