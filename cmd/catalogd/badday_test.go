package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"catalogd/internal/invariant"
)

// An operator's bad day, with the real program and three servers, by the commands of
// docs/operations.md: the volume goes while it is being reconciled; then 400 files are
// found deleted, 300 that nobody knows, 50 cut short, and a server is killed while it looks
// for them. All of it is found, planned, repaired, and the last reconciliation is clean.
func TestBadDay(t *testing.T) {
	t.Parallel()
	const outputs, deleted, strays, cut = 600, 400, 300, 50
	s := newSite(t)
	servers := map[string]*process{}
	start := func(name string) *process {
		one := *s
		one.database += "&application_name=" + name
		servers[name] = one.start("CATALOGD_COUNT_EVERY=1s", "CATALOGD_RECONCILE_SCHEDULE=off", "CATALOGD_SCRUB_SCHEDULE=off")
		return servers[name]
	}
	for i := range 3 {
		start(fmt.Sprintf("server%d", i))
	}
	p := servers["server0"]
	p.collection("landcover", nil)
	sh := &shell{site: s, p: p, url: p.url}
	register := func(from, to int) {
		var group sync.WaitGroup
		for w := range 4 {
			group.Go(func() {
				for i := from + w; i < to; i += 4 {
					d := sh.p.begin(newUnit("landcover", fmt.Sprintf("t%04d", i), "v1"))
					if d.Verdict == "skip" {
						continue
					}
					sh.p.stage(*d.Attempt, pixels(byte(i)))
					sh.p.complete(*d.Attempt)
				}
			})
		}
		group.Wait()
	}
	register(0, outputs)
	sh.want(sh.run("reconcile"), 0, "objects 600  rows 600  matched 600", "listing complete  sentinel ok", "clean")

	// 400 files are deleted by hand; while they are looked for, the volume goes.
	keys := strings.Fields(s.text(`SELECT string_agg(object_key, ' ' ORDER BY object_key) FROM catalog.tiles`))
	for _, key := range keys[:deleted] {
		s.remove(key)
	}
	looking := sh.begin("reconcile", "--settle", "3s")
	poll(s, "files to be missed", func() bool {
		return s.count(`SELECT count(*) FROM catalog.reconcile_parts p JOIN catalog.reconcile_runs r USING (run_id) WHERE r.state = 'running' AND p.state = 'running'`) > 0
	})
	time.Sleep(500 * time.Millisecond)
	ok(t, os.Rename(s.store, s.store+".away"))
	r := sh.end(looking)
	sh.want(r, exitLater, "incomplete", "sentinel")
	run := regexp.MustCompile(`run (\d+)`).FindStringSubmatch(r.out + r.err)[1]
	sh.want(sh.run("reconcile"), exitLater, "sentinel", "mounted")
	ok(t, os.Rename(s.store+".away", s.store))
	sh.want(sh.run("reconcile", "plan", run), exitError, "run_not_complete")

	// The rest of the bad day, and a server is killed while it looks.
	for i := range strays {
		s.put(fmt.Sprintf("landcover/old/copy-%03d.tif", i), pixels(9))
	}
	for _, key := range keys[deleted : deleted+cut] {
		ok(t, os.Chmod(filepath.Join(s.store, key), 0o644))
		ok(t, os.Truncate(filepath.Join(s.store, key), 200))
	}
	r = sh.run("reconcile", "--min-age", "0s", "--settle", "4s", "--no-wait")
	run = regexp.MustCompile(`run (\d+)`).FindStringSubmatch(r.out + r.err)[1]
	var at string
	poll(s, "a server to look", func() bool {
		at = s.text(`
SELECT coalesce(max(a.application_name), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('catalogd reconcile ' || $1 || '/0', 0)`, run)
		return at != ""
	})
	time.Sleep(time.Second)
	servers[at].kill()
	delete(servers, at)
	for _, p = range servers {
		break
	}
	sh.p, sh.url = p, p.url
	poll(s, "another server to have done it", func() bool {
		return s.count(`SELECT count(*) FROM catalog.reconcile_runs WHERE run_id = $1::bigint AND state = 'complete'`, run) == 1
	})
	sh.want(sh.run("reconcile", "show", run), exitJudged,
		"objects 500  rows 600  matched 150", "orphan", "lost", "mismatch", "nothing was changed.  next: catalogd reconcile plan "+run)
	if at := s.count(`SELECT count(*) FROM catalog.lost_outputs WHERE is_current`); at != deleted+cut {
		t.Errorf("lost_outputs has %d, want %d", at, deleted+cut)
	}
	if at := s.count(`SELECT count(*) FROM catalog.orphan_objects`); at != strays {
		t.Errorf("orphan_objects has %d, want %d", at, strays)
	}
	document := filepath.Join(reachable(t), "plan.ndjson")
	r = sh.run("reconcile", "plan", run, "-o", document)
	sh.want(r, 0, "redo", "450", "trash", "300")
	plan := regexp.MustCompile(`reconcile apply (\d+)`).FindStringSubmatch(r.out)[1]
	if content, err := os.ReadFile(document); err != nil || strings.Count(string(content), "\n") != 1+deleted+cut+strays {
		t.Errorf("the plan has %d lines, %v", strings.Count(string(content), "\n"), err)
	}
	// So much at once may be a volume that is not the right one: somebody has to say so.
	sh.want(sh.run("reconcile", "apply", plan), exitError, "too_much_change", "--max-change")
	if n := s.count(`SELECT count(*) FROM catalog.tile_health WHERE lost_since IS NOT NULL`); n != 0 {
		t.Fatalf("%d units are due by a plan that was refused", n)
	}
	sh.want(sh.run("reconcile", "apply", plan, "--max-change", "1", "--why", "disk replaced"), 0, "applied", "acts 750", "redo         0   450     0", "trash        0   300     0")
	sh.want(sh.run("reconcile", "apply", plan, "--max-change", "1", "--why", "again"), exitError, "plan_applied")
	register(0, outputs) // what is due is made again, the rest is skipped
	sh.want(sh.run("sweep"), 0)
	sh.want(sh.run("reconcile", "--min-age", "0s"), 0, "objects 600  rows 600  matched 600", "clean")
	sh.want(sh.run("trash", "ls"), 0, "landcover/old/copy-000.tif")
	sh.want(sh.run("trash", "empty", "--all", "--why", "looked at"), 0, "350")
	if n := s.count(`SELECT count(*) FROM catalog.audit WHERE why = 'disk replaced'`); n != 1 {
		t.Errorf("%d lines of audit", n)
	}
	for _, p := range servers {
		p.terminate()
	}
	s.hold(invariant.Options{})
}
