package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"catalogd/internal/invariant"
)

// Many clients register many units in shared slots, each with a deadline for
// patience only, while their server is killed and started again; everything is
// delivered twice.
func TestCrowdSIGKILL(t *testing.T) {
	t.Parallel()
	const clients, units, slots, crashes = 32, 200, 40, 3
	s := newSite(t)
	s.listen = freeAddress(t)
	p := s.start()
	p.collection("landcover", nil)

	// Each unit comes twice, from two clients at once.
	jobs := make(chan int, 2*units)
	for i := range units {
		jobs <- i
		jobs <- i
	}
	close(jobs)
	finished := make(chan string, 2*units)
	failed := make(chan error, clients)
	for c := range clients {
		go func() {
			worker := p.worker(fmt.Sprintf("client-%d", c))
			for i := range jobs {
				verdict, err := worker.deliver(i, slots)
				if err != nil {
					failed <- fmt.Errorf("unit %d: %w", i, err)
					return
				}
				finished <- verdict
			}
		}()
	}
	verdicts := map[string]int{}
	for n := 1; n <= 2*units; n++ {
		select {
		case v := <-finished:
			verdicts[v]++
		case err := <-failed:
			t.Fatal(err)
		}
		if n%(2*units/(crashes+1)) == 0 && n < 2*units {
			p.kill()
			p = s.start()
		}
	}
	t.Logf("%v", verdicts)
	if n := s.count(`SELECT count(*) FROM catalog.tiles`); n != units {
		t.Errorf("%d rows, want %d", n, units)
	}
	if n := s.count(`SELECT count(*) FROM catalog.slots WHERE unit_key IS NOT NULL`); n != slots {
		t.Errorf("%d slots, want %d", n, slots)
	}
	poll(t, "the last intents to be recovered", func() bool {
		must[recovered](p, "POST", "/v1/recover", nil)
		return s.count(`SELECT count(*) FROM catalog.attempts WHERE state = 'promoting'`) == 0
	})
	for i := range units {
		if d := p.begin(crowdUnit(i, slots).again()); d.Verdict != "skip" {
			t.Errorf("unit %d at the end: %s %s", i, d.Verdict, d.Reason)
		}
	}
	must[struct{}](p, "POST", "/v1/sweep", nil)
	invariant.Check(t, s.database, s.store, invariant.Options{Quiet: true, Linked: true, StagingEmpty: true})
}

// freeAddress is one that servers can listen on one after another.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	return l.Addr().String()
}

// worker is a client as pipelines have them: it knows one address, and asks
// again when nobody answers.
type worker struct {
	*process
	name string
}

func (p *process) worker(name string) worker { return worker{p, name} }

// crowdUnit is one of several units that share a slot.
func crowdUnit(i, slots int) unit {
	u := newUnit("landcover", fmt.Sprintf("t%03d", i%slots), "v1")
	u.Identity["scene"] = fmt.Sprint(i / slots)
	return u
}

// deliver does what a task does for a unit, until it is done, and tells how its
// last begin or complete ended.
func (w worker) deliver(i, slots int) (string, error) {
	u := crowdUnit(i, slots).from(w.name)
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); {
		var d decision
		if again, err := w.patiently("POST", "/v1/attempts", u, &d); err != nil {
			return "", err
		} else if again {
			continue
		}
		switch d.Verdict {
		case "skip":
			return d.Verdict, nil
		case "wait":
			time.Sleep(50 * time.Millisecond)
			continue
		case "run":
		default:
			return "", fmt.Errorf("verdict %s", d.Verdict)
		}
		if err := os.WriteFile(d.Attempt.StagingPath, pixels(byte(i)), 0o644); err != nil {
			return "", err
		}
		var out outcome
		for {
			again, err := w.patiently("POST", d.Attempt.path("complete"), nil, &out)
			if err != nil {
				return "", err
			}
			if !again {
				break
			}
		}
		if out.State != "" {
			return out.State, nil
		}
		u = u.again() // the attempt is lost
	}
	return "", errors.New("not done in time")
}

// patiently asks, and tells whether to ask again: nobody answered, or not now. A
// conflict leaves out as it is.
func (w worker) patiently(method, path string, body, out any) (again bool, err error) {
	a, err := w.send(method, path, body)
	switch {
	case err != nil, a.status == http.StatusServiceUnavailable:
		time.Sleep(20 * time.Millisecond)
		return true, nil
	case a.status == http.StatusConflict:
		return false, nil
	case a.status != http.StatusOK:
		return false, fmt.Errorf("%s %s: %d %s", method, path, a.status, a.body)
	}
	return false, json.Unmarshal(a.body, out)
}
