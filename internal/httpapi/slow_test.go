package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/upsert"
)

// ⚗ net/http reads a body that was announced before it answers, and has no deadline of
// its own for it: a body that never comes held its connection for ever, token or none.
func TestBodiesThatNeverCome(t *testing.T) {
	was := unread
	t.Cleanup(func() { unread = was })
	unread = 300 * time.Millisecond
	url, _ := serve(t, newFake(), nil)
	upload := "PUT /v1/attempts/" + attemptID.String() + "/output"
	for _, c := range []struct {
		name, request, status string
	}{
		{"no body by the contract", "GET /healthz\nContent-Length: 100", "200"},
		{"in chunks", "GET /healthz\nTransfer-Encoding: chunked", "200"},
		{"HEAD", "HEAD /data/" + objectKey + "\nAuthorization: Bearer read\nContent-Length: 100", "200"},
		{"not in the contract", "POST /nowhere\nContent-Length: 100", "404"},
		{"no such method", "PATCH /v1/attempts\nContent-Length: 100", "405"},
		{"OPTIONS *", "OPTIONS *\nContent-Length: 100", "4"},
		{"no token", "POST /v1/attempts\nContent-Type: application/json\nContent-Length: 100", "401"},
		{"no token, a stream", upload + "\nContent-Length: 100", "401"},
		{"a role that may not", upload + "\nAuthorization: Bearer read\nContent-Length: 100", "403"},
		{"no body taken", "POST /v1/sweep\nAuthorization: Bearer admin\nContent-Length: 100", "200"},
		{"another media type", "POST /v1/attempts\nAuthorization: Bearer write\nContent-Type: text/csv\nContent-Length: 100", "415"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, url)
			line, header, _ := strings.Cut(c.request, "\n")
			start := time.Now()
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", line, strings.ReplaceAll(header, "\n", "\r\n"))
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+c.status) {
				t.Errorf("answered %q, %v; want %s", answer, err, c.status)
			}
			if took := time.Since(start); took > 10*unread {
				t.Errorf("the connection was held for %s", took)
			}
		})
	}
}

// What a stream leaves unread holds its connection no longer than any other body.
func TestStreamThatIsNotReadToItsEnd(t *testing.T) {
	defer func(was time.Duration) { unread = was }(unread)
	unread = 300 * time.Millisecond
	f := newFake()
	f.check = func([]upsert.UnitRef) ([]upsert.Checked, error) { return nil, io.ErrNoProgress }
	url, _ := serve(t, f, nil)
	conn := dial(t, url)
	body := strings.Repeat(oneUnit+"\n", checkChunk)
	fmt.Fprintf(conn, "POST /v1/units:check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer read\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", ndjson, len(body)+100, body)
	start := time.Now()
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 500") {
		t.Errorf("answered %q, %v", answer, err)
	}
	if took := time.Since(start); took > 10*unread {
		t.Errorf("the connection was held for %s", took)
	}
}

// The deadline is for bodies alone: what takes longer without one, or after it has come,
// is not cut short, and the connection serves the next request.
func TestUnreadDeadlineSparesSlowAnswers(t *testing.T) {
	defer func(was, stood time.Duration) { unread, idle = was, stood }(unread, idle)
	unread, idle = 50*time.Millisecond, 80*time.Millisecond
	f := newFake()
	url, _ := serve(t, f, func(c *Config) { c.Step = slowStep{f} })
	conn := dial(t, url)
	answers := bufio.NewReader(conn)
	byID := map[string]*operation{}
	for _, op := range operations(t) {
		byID[op.id] = op
	}
	for _, id := range []string{"recover", "beginAttempt", "uploadOutput", "checkUnits", "getHealth"} {
		s := samples[id]
		if id == "checkUnits" {
			s.contentType, s.body = ndjson, oneUnit
		}
		req, err := http.NewRequestWithContext(t.Context(), byID[id].route.Method, url+s.path, strings.NewReader(s.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", s.contentType)
		req.Header.Set("Authorization", "Bearer admin")
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(answers, req)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || strings.Contains(string(body), `"error"`) {
			t.Errorf("%s: %d %s, %v", id, res.StatusCode, body, err)
		}
	}
}

// slowStep takes longer than bodies may, and fails if its context ends.
type slowStep struct{ *fake }

func (s slowStep) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("the request was ended: %w", context.Cause(ctx))
	case <-time.After(250 * time.Millisecond):
		return nil
	}
}

func (s slowStep) Recover(ctx context.Context) (upsert.Recovered, error) {
	return upsert.Recovered{}, s.wait(ctx)
}

func (s slowStep) Begin(ctx context.Context, req upsert.BeginRequest) (upsert.Decision, error) {
	d, err := s.fake.Begin(ctx, req)
	return d, errors.Join(err, s.wait(ctx))
}

func (s slowStep) Stage(ctx context.Context, id uuid.UUID, r io.Reader) (int64, string, error) {
	n, sum, err := s.fake.Stage(ctx, id, r)
	return n, sum, errors.Join(err, s.wait(ctx))
}

func (s slowStep) Check(ctx context.Context, refs []upsert.UnitRef, verify bool) ([]upsert.Checked, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.fake.Check(ctx, refs, verify)
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}
