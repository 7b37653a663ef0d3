package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"catalogd/internal/catalog"
)

// BatchPath is where a batch is, or what is said of it: pending, claim, …
func BatchPath(name string, of ...string) string {
	return strings.Join(append([]string{"/v1/batches", url.PathEscape(name)}, of...), "/")
}

// Added is what became of units that a batch is to expect. Errors are of those refused, by
// their lines; the server tells of a hundred at most.
type Added struct {
	Total    int64         `json:"total"`
	Added    int64         `json:"added"`
	Present  int64         `json:"present"`
	Refused  int64         `json:"refused"`
	Expected int64         `json:"expected"`
	Errors   []RefusedUnit `json:"errors"`
}

// RefusedUnit is why the unit on a line, which counts from 1, was not added.
type RefusedUnit struct {
	Line   int64        `json:"line"`
	Code   catalog.Code `json:"code"`
	Detail string       `json:"detail"`
	Field  string       `json:"field,omitempty"`
}

// Error implements error.
func (r RefusedUnit) Error() string {
	return (&Problem{Code: r.Code, Detail: r.Detail, Field: r.Field}).Error()
}

// AddUnits adds units, one a line, to those that a batch expects. They are sent again
// while there is no answer: what was added by then counts as present.
func (c *Client) AddUnits(ctx context.Context, batch string, lines []byte) (Added, error) {
	var answer struct {
		Added
		Error *Problem `json:"error"`
	}
	err := c.patiently(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, stepWithin)
		defer cancel()
		req, err := c.request(ctx, http.MethodPost, BatchPath(batch, "units"), bytes.NewReader(lines))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		answer.Added, answer.Error = Added{}, nil
		if _, err := c.once(req, &answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return answer.Error
		}
		return nil
	})
	return answer.Added, err
}

// gateWait is how long the server is asked to wait for a verdict.
const gateWait = 20 * time.Second

// Gate has a batch judged, and gives the gate as the contract has it: with its verdict, or,
// where that is not waited for, as far as it is.
func (c *Client) Gate(ctx context.Context, batch string, limits any, wait bool) (json.RawMessage, error) {
	body, err := json.Marshal(limits)
	if err != nil {
		return nil, err
	}
	prefer := "wait=0"
	if wait {
		prefer = fmt.Sprintf("wait=%.0f", gateWait.Seconds())
	}
	path, pause := BatchPath(batch, "gate"), time.Second
	for method := http.MethodPost; ; method = http.MethodGet {
		var gate json.RawMessage
		err := c.patiently(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			req, err := c.request(ctx, method, path, bytes.NewReader(body))
			if err != nil {
				return err
			}
			if method == http.MethodPost {
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Prefer", prefer)
			}
			header, err := c.once(req, &gate)
			if at := header.Get("Location"); at != "" {
				// Its path: the server's own name of itself may not be known here.
				path, pause = at[max(strings.LastIndex(at, "/v1/batches/"), 0):], max(min(secondsOf(header), maxRetryAfter), pause)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		var state struct {
			State string `json:"state"`
		}
		if err := json.Unmarshal(gate, &state); err != nil {
			return nil, fmt.Errorf("read the server's answer: %w", err)
		}
		if !wait || state.State != "queued" && state.State != "running" {
			return gate, nil
		}
		if path == BatchPath(batch, "gate") {
			return nil, errors.New("the server does not say where to ask for the verdict: see catalogd batch status")
		}
		body = nil
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w while the batch is judged, which goes on: see catalogd batch status", ErrInterrupted)
		}
	}
}
