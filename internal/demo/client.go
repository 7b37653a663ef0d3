package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// client speaks to catalogd as a task should: an answer that did not come, or a
// 5xx, is an unknown outcome, and the same request is sent again.
type client struct {
	url, token string
	http       *http.Client
}

// patience bounds how long a client goes on sending one request.
const patience = 90 * time.Second

func newClient(url, token string) *client {
	return &client{url: url, token: token, http: &http.Client{Timeout: 30 * time.Second}}
}

// problem is an answer that sending the same again would not change.
type problem struct {
	Status int
	Code   string
	Detail string
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Detail) }

// isProblem tells whether err is a problem with one of these codes.
func isProblem(err error, codes ...string) bool {
	var p *problem
	if errors.As(err, &p) {
		for _, c := range codes {
			if p.Code == c {
				return true
			}
		}
	}
	return false
}

// call sends body as JSON and reads the answer, either of which may be nil. It
// backs off with jitter between tries. A definite refusal is a *problem.
func (c *client) call(ctx context.Context, method, path string, body, answer any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %s", patience))
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := c.once(ctx, method, path, content, answer)
		var p *problem
		if err == nil || errors.As(err, &p) && p.Status < 500 {
			return wrap(err, method, path)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return wrap(errors.Join(context.Cause(ctx), err), method, path)
		}
	}
}

func wrap(err error, method, path string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", method, path, err)
}

func (c *client) once(ctx context.Context, method, path string, content []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		p := &problem{Status: resp.StatusCode}
		if json.Unmarshal(got, p) != nil {
			p.Detail = string(got)
		}
		return p
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(got, answer)
}
