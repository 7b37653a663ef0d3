package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Pauses between looks at what goes on at the server, doubling.
const firstLook, lastLook = 100 * time.Millisecond, 2 * time.Second

// Follow reads what is at path again and again, until over says that it has ended.
func (c *Client) Follow(ctx context.Context, path string, over func(raw json.RawMessage) (bool, error)) error {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		var raw json.RawMessage
		if err := c.Call(ctx, http.MethodGet, path, nil, &raw); err != nil {
			return err
		}
		if ended, err := over(raw); ended || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ErrInterrupted
		}
	}
}

// Lines gives the items of a list as they come, one a line; a line is good until the next.
// An answer that was cut off is an error. So is what each says, which ends it.
func (c *Client) Lines(ctx context.Context, path string, each func(line []byte) error) error {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/x-ndjson, application/problem+json")
	answer, err := c.stream(req)
	if err != nil {
		return err
	}
	defer answer.Close()
	lines := bufio.NewScanner(answer)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Summary json.RawMessage `json:"summary"`
			Error   *Problem        `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		switch {
		case line.Summary != nil && line.Error != nil:
			return fmt.Errorf("these are not all: ask again: %w", line.Error)
		case line.Summary != nil:
			return nil
		}
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	return fmt.Errorf("the answer was cut off: ask again: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// SendListing has a store compared with a listing, one object a line, and reads the run
// that it was into answer.
func (c *Client) SendListing(ctx context.Context, query string, listing io.Reader, answer any) error {
	body, err := c.Stream(ctx, http.MethodPost, strings.TrimSuffix("/v1/reconcile:listing?"+query, "?"), "application/x-ndjson", listing)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}
