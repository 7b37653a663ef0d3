package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"catalogd/internal/catalog"
)

// Task is one unit of work and what the step is told of it.
type Task struct {
	*Client
	Unit   catalog.Unit
	Origin Origin
	// Batch that it is done for; "" for none.
	Batch string
	// MediaType of the output; "" for the collection's.
	MediaType string
	// Acquired, as the contract has it, and Properties; nil for none.
	Acquired   *Interval
	Properties json.RawMessage
	// PartSize is that of an upload in parts, in bytes; 0 for the server's choice.
	PartSize int64
	// Wait for other owners, rather than return ErrHeld.
	Wait bool
}

// Interval is a span of time; without End an instant. RFC 3339.
type Interval struct {
	Start string `json:"start"`
	End   string `json:"end,omitempty"`
}

// Errors of a task that has no outcome.
var (
	// ErrHeld: another owner works on the unit, its output is being promoted, or it failed
	// and is not due yet.
	ErrHeld = errors.New("not now")
	// ErrQuarantined: the unit is not to be tried.
	ErrQuarantined = errors.New("quarantined")
	// ErrLost: another attempt took the unit over.
	ErrLost = errors.New("another attempt took the unit over")
)

// Ended is how a task ended: State is skip, done or overtaken. Row is the unit's, as the
// server gave it.
type Ended struct {
	State string          `json:"state"`
	Row   json.RawMessage `json:"tile"`
	Tile  Tile            `json:"-"`
}

// Tile is what the client reads of a row.
type Tile struct {
	UnitKey      string    `json:"unit_key"`
	Collection   string    `json:"collection"`
	TileID       string    `json:"tile_id"`
	Version      string    `json:"version"`
	ObjectKey    string    `json:"object_key"`
	Href         string    `json:"href"`
	SizeBytes    int64     `json:"size_bytes"`
	Checksum     string    `json:"checksum"`
	MediaType    string    `json:"media_type"`
	CRS          string    `json:"crs"`
	Width        int       `json:"width"`
	Height       int       `json:"height"`
	RegisteredAt time.Time `json:"registered_at"`
	Current      bool      `json:"current"`
}

// Attempt is what the client reads of an attempt.
type Attempt struct {
	ID          string    `json:"attempt_id"`
	StoreID     string    `json:"store_id"`
	StagingKey  string    `json:"staging_key"`
	StagingPath string    `json:"staging_path"` // "" where the store is no filesystem
	StagingURI  string    `json:"staging_uri"`  // "" where it is one
	LeaseUntil  time.Time `json:"lease_until"`
}

type decision struct {
	Verdict    string            `json:"verdict"`
	Tile       json.RawMessage   `json:"tile"`
	Attempt    *Attempt          `json:"attempt"`
	Tags       map[string]string `json:"tags"`
	RetryAfter float64           `json:"retry_after"`
	Reason     string            `json:"reason"`
	Message    string            `json:"message"`
}

// begun is an attempt, or how the task ended without one.
type begun struct {
	attempt Attempt
	tags    map[string]string
	ended   *Ended
}

// begin asks until there is an attempt, or nothing to do.
func (t *Task) begin(ctx context.Context) (begun, error) {
	told := false
	for {
		var d decision
		// A new id for each question: the replays are Call's.
		question := t.question(rand.Text())
		err := t.Call(ctx, http.MethodPost, "/v1/attempts", question, &d)
		if errors.Is(err, ErrInterrupted) {
			t.retract(context.WithoutCancel(ctx), question)
		}
		if IsProblem(err, catalog.CodeAttemptEnded) {
			continue // begun, then lost while no answer came
		}
		if err != nil {
			return begun{}, err
		}
		switch d.Verdict {
		case "skip":
			ended, err := newEnded("skip", d.Tile)
			return begun{ended: ended}, err
		case "run":
			if d.Attempt == nil {
				return begun{}, errors.New("the server gave no attempt")
			}
			return begun{attempt: *d.Attempt, tags: d.Tags}, nil
		case "quarantined":
			return begun{}, fmt.Errorf("%w: %s", ErrQuarantined, strings.TrimSuffix(d.Reason+": "+lastLine(d.Message), ": "))
		case "wait":
			wait := time.Duration(d.RetryAfter * float64(time.Second))
			if !t.Wait {
				return begun{}, t.held(d.Reason, wait)
			}
			if !told && t.Notice != nil {
				t.Notice("waiting: " + d.Reason)
				told = true
			}
			select {
			// Sooner than the lease ends: the other may be done before.
			case <-time.After(min(max(wait, time.Second), 5*time.Second)):
			case <-ctx.Done():
				return begun{}, fmt.Errorf("%w while %s", ErrInterrupted, d.Reason)
			}
		default:
			return begun{}, fmt.Errorf("the server gave the verdict %q, which this version does not know", d.Verdict)
		}
	}
}

// held says who has the unit, and what to do.
func (t *Task) held(reason string, wait time.Duration) error {
	advice := fmt.Sprintf("try again in %s, or use --wait", wait.Round(time.Second))
	if strings.Contains(reason, fmt.Sprintf("held by owner %q", t.Origin.Owner)) {
		advice = fmt.Sprintf("if that is an earlier try of this one, which has ended, --try %d takes over at once; else %s", t.Origin.Try+1, advice)
	}
	return fmt.Errorf("%w: %s; %s", ErrHeld, reason, advice)
}

// retract gives up the attempt that a begin may have made whose answer was not waited
// for. What it cannot reach ends with its lease.
func (t *Task) retract(ctx context.Context, question map[string]any) {
	ctx, cancel := context.WithTimeout(ctx, leastWithin)
	defer cancel()
	quick := t.quick()
	var d decision
	if err := quick.Call(ctx, http.MethodPost, "/v1/attempts", question, &d); err == nil && d.Attempt != nil {
		_ = quick.Call(ctx, http.MethodPost, "/v1/attempts/"+d.Attempt.ID+"/abandon", nil, nil)
	}
}

// quick is the client without patience.
func (t *Task) quick() *Client {
	quick := *t.Client
	quick.Patience, quick.Notice = 0, nil
	return &quick
}

func (t *Task) question(requestID string) map[string]any {
	q := map[string]any{
		"collection": t.Unit.Collection, "tile_id": t.Unit.TileID, "identity": t.Unit.Identity.Canonical(),
		"owner": t.Origin.Owner, "try": t.Origin.Try, "request_id": requestID,
	}
	if t.Unit.ClientKey != "" {
		q["client_key"] = t.Unit.ClientKey
	}
	if t.Batch != "" {
		q["batch"] = t.Batch
	}
	if t.MediaType != "" {
		q["media_type"] = t.MediaType
	}
	if t.Acquired != nil {
		q["acquired"] = t.Acquired
	}
	if t.Properties != nil {
		q["properties"] = t.Properties
	}
	return q
}

// complete hands over what is staged.
func (t *Task) complete(ctx context.Context, a Attempt, h handed) (*Ended, error) {
	body := map[string]any{"size_bytes": h.size}
	if h.checksum != "" {
		body["checksum"] = h.checksum
	}
	if h.upload != nil {
		body["upload"] = h.upload
	}
	var outcome struct {
		State string          `json:"state"`
		Tile  json.RawMessage `json:"tile"`
	}
	err := t.call(ctx, stepWithin, http.MethodPost, "/v1/attempts/"+a.ID+"/complete", body, &outcome)
	if IsProblem(err, catalog.CodeAttemptLost, catalog.CodeAttemptEnded) {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err != nil {
		return nil, err
	}
	return newEnded(outcome.State, outcome.Tile)
}

func newEnded(state string, row json.RawMessage) (*Ended, error) {
	ended := &Ended{State: state, Row: row}
	if err := json.Unmarshal(row, &ended.Tile); err != nil {
		return nil, fmt.Errorf("read the row that the server gave: %w", err)
	}
	return ended, nil
}

// Failure is why a task's attempt ends without an output. One of Reason, HTTPStatus and
// Exception, which is a qualified name, is needed.
type Failure struct {
	Class      string `json:"class,omitempty"`
	Reason     string `json:"reason,omitempty"`
	HTTPStatus int    `json:"http_status,omitempty"`
	Exception  string `json:"exception,omitempty"`
	Message    string `json:"message,omitempty"`
}

// Failed is what becomes of a unit that failed: Next is retry, RetryAfter seconds from
// now, or quarantined.
type Failed struct {
	Next       string  `json:"next"`
	RetryAfter float64 `json:"retry_after"`
	Class      string  `json:"class"`
	Reason     string  `json:"reason"`
	Tries      int     `json:"tries"`
	Spent      bool    `json:"spent"`
}

// Quarantined tells whether the unit is not tried again until it is released.
func (f Failed) Quarantined() bool { return f.Next == "quarantined" }

func (f Failed) String() string {
	switch {
	case f.Next == "":
		return ""
	case f.Quarantined():
		return fmt.Sprintf("quarantined, tries spent: %d", f.Tries)
	case !f.Spent:
		return fmt.Sprintf("due again in %.0f s; no try was spent: the store is away, or much of the batch fails for this reason", f.RetryAfter)
	}
	return fmt.Sprintf("due again in %.0f s, tries spent: %d", f.RetryAfter, f.Tries)
}

// Fail reports that an attempt failed, and reads what becomes of its unit into answer.
func (c *Client) Fail(ctx context.Context, attempt string, f Failure, answer any) error {
	return c.Call(ctx, http.MethodPost, "/v1/attempts/"+attempt+"/fail", f, answer)
}

// abandon gives an attempt up, which counts for nothing. What has ended already is
// given up.
func (t *Task) abandon(ctx context.Context, a Attempt) error {
	err := t.Call(ctx, http.MethodPost, "/v1/attempts/"+a.ID+"/abandon", nil, nil)
	if IsProblem(err, catalog.CodeAttemptEnded, catalog.CodeAttemptLost) {
		return nil
	}
	return err
}

// keep renews the attempt's lease, thrice in its length, until stop; lost is closed when
// the attempt holds its unit no longer. A heartbeat that fails is made up for by the
// next.
func (t *Task) keep(ctx context.Context, a Attempt) (lost <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	done := make(chan struct{})
	every := max(min(time.Until(a.LeaseUntil)/3, 20*time.Second), time.Second)
	quick := t.quick()
	go func() {
		told := false
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			var answer struct {
				Leases []struct {
					State string `json:"state"`
				} `json:"leases"`
			}
			err := quick.Call(ctx, http.MethodPost, "/v1/heartbeats", map[string]any{"attempts": []string{a.ID}}, &answer)
			if IsProblem(err, catalog.CodeUnauthenticated, catalog.CodeForbidden) && !told && t.Notice != nil {
				t.Notice(fmt.Sprintf("the lease cannot be renewed: %v", err))
				told = true
			}
			if err == nil && len(answer.Leases) == 1 && answer.Leases[0].State != "open" && answer.Leases[0].State != "promoting" {
				close(gone)
				return
			}
		}
	}()
	return gone, func() { cancel(); <-done }
}
