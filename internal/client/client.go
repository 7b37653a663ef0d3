package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"catalogd/internal/catalog"
)

// Client of one catalogd.
type Client struct {
	// URL of the server, and a token; "" where none is needed.
	URL, Token string
	// Renew gives a token when the server refuses this one, "" for none: a secret that is a
	// file may have been replaced. Nil for never.
	Renew func() string
	// Patience is how long one request is sent again while the server cannot be
	// reached, or says that it cannot answer now; 0 for one try.
	Patience time.Duration
	// Notice is told, in a line, why a request must be sent again; nil for nobody.
	Notice func(string)
	// Meter is told how an output of size bytes is sent; nil for nobody.
	Meter func(size int64) Meter
	// Version is told to the server.
	Version string
}

// Problem is a refusal, as RFC 9457 has it: what sending the same again would not
// change.
type Problem struct {
	Status int          `json:"status"`
	Code   catalog.Code `json:"code"`
	Detail string       `json:"detail"`
	Field  string       `json:"field"`
}

func (p *Problem) Error() string {
	switch {
	case p.Code == "":
		return p.Detail
	case p.Field == "":
		return p.Detail + " (" + string(p.Code) + ")"
	}
	return p.Detail + " (" + string(p.Code) + " at " + p.Field + ")"
}

// IsProblem tells whether err is a problem with one of these codes.
func IsProblem(err error, codes ...catalog.Code) bool {
	var p *Problem
	if !errors.As(err, &p) {
		return false
	}
	for _, code := range codes {
		if p.Code == code {
			return true
		}
	}
	return false
}

// UnavailableError: the server, or a store, did not answer, or could not, for as long as
// the client's patience went. Nothing is known to have failed.
type UnavailableError struct {
	URL   string
	Store bool          // whose URL it is
	After time.Duration // how long it was tried; 0 for once
	Err   error
}

func (e *UnavailableError) Error() string {
	var p *Problem
	if errors.As(e.Err, &p) {
		return p.Error() + e.tried()
	}
	if e.Store {
		return fmt.Sprintf("the store at %s did not take the output%s: %v", e.URL, e.tried(), e.Err)
	}
	return fmt.Sprintf("no answer from catalogd at %s%s: %v; is it running, and is CATALOGD_URL right?", e.URL, e.tried(), e.Err)
}

func (e *UnavailableError) tried() string {
	if e.After == 0 {
		return ""
	}
	return fmt.Sprintf(" in %s", e.After.Round(time.Second))
}

func (e *UnavailableError) whom() string {
	if e.Store {
		return "the store"
	}
	return "catalogd"
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const (
	// answerWithin bounds one try at what the server answers at once, leastWithin where
	// patience is shorter; a step takes as long as its file does.
	answerWithin = time.Minute
	leastWithin  = 5 * time.Second
	stepWithin   = 15 * time.Minute
	// pauses between tries, doubling.
	firstPause, lastPause = 100 * time.Millisecond, time.Second
	// maxRetryAfter bounds what a server may ask for; maxFailures how often running it must
	// say that it is broken.
	maxRetryAfter, maxFailures = 5 * time.Second, 3
	// maxAnswer bounds an answer that is read whole.
	maxAnswer = 64 << 20
)

// Call sends body as JSON, nothing for nil, and reads the answer into answer, which
// may be a *json.RawMessage, or nil. Errors: *Problem, *UnavailableError, and
// what ctx says.
func (c *Client) Call(ctx context.Context, method, path string, body, answer any) error {
	within := answerWithin
	if c.Patience > 0 {
		within = min(within, max(c.Patience, leastWithin))
	}
	return c.call(ctx, within, method, path, body, answer)
}

func (c *Client) call(ctx context.Context, within time.Duration, method, path string, body, answer any) error {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	return c.patiently(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		req, err := c.request(ctx, method, path, bytes.NewReader(content))
		if err != nil {
			return err
		}
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		_, err = c.once(req, answer)
		return err
	})
}

// Upload sends a file's bytes and reads the answer. It gives their number and SHA-256 as
// they were read here. Errors of the file are no *UnavailableError.
func (c *Client) Upload(ctx context.Context, path, file string, answer any) (size int64, sha256 string, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, "", err
	}
	meter := c.meter(info.Size())
	defer meter.Close()
	err = c.patiently(ctx, func(ctx context.Context) error {
		f, err := openLocal(file)
		if err != nil {
			return final{err}
		}
		defer f.Close()
		body := &counted{r: f, add: meter.Add}
		req, err := c.request(ctx, http.MethodPut, path, body)
		if err != nil {
			return err
		}
		req.ContentLength = f.size
		req.Header.Set("Content-Type", "application/octet-stream")
		if _, err = c.once(req, answer); err != nil {
			body.takeBack()
		}
		size, sha256 = f.size, f.sum()
		return err
	})
	return size, sha256, err
}

// Stream sends one request, once, and gives the answer to read and close. body may be
// nil; it is read while the answer comes.
func (c *Client) Stream(ctx context.Context, method, path, contentType string, body io.Reader) (io.ReadCloser, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return c.stream(req)
}

func (c *Client) stream(req *http.Request) (io.ReadCloser, error) {
	resp, err := web.Do(req)
	var at *url.Error
	if errors.As(err, &at) {
		if elsewhere, _ := url.Parse(at.URL); elsewhere != nil && elsewhere.Host != req.URL.Host {
			return nil, &UnavailableError{URL: c.URL, Err: &Problem{Detail: fmt.Sprintf("no answer from %s, where the output is: %v", elsewhere.Host, at.Err)}}
		}
	}
	if err != nil {
		return nil, &UnavailableError{URL: c.URL, Err: cause(err)}
	}
	if err := refusal(resp); err != nil {
		resp.Body.Close()
		var p *Problem
		if errors.As(err, &p) && passes(p) {
			return nil, &UnavailableError{URL: c.URL, Err: err}
		}
		return nil, err
	}
	return resp.Body, nil
}

// web follows redirects, to the stores that outputs are in for one. The token is for
// catalogd: net/http would send it to whatever is at another port of the same host too.
var web = &http.Client{CheckRedirect: func(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	return nil
}}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, final{fmt.Errorf("%q is no URL of a catalogd: set CATALOGD_URL, or --url, to http://HOST:PORT", c.URL)}
	}
	if strings.HasSuffix(strings.TrimRight(base.Path, "/"), "/v1") {
		return nil, final{fmt.Errorf("%q ends in /v1, which is added to it: leave that out of CATALOGD_URL", c.URL)}
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, body)
	if err != nil {
		return nil, final{err}
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	req.Header.Set("User-Agent", "catalogd/"+c.Version)
	return req, nil
}

// once sends a request once. It gives the answer's header, nil where there was none.
func (c *Client) once(req *http.Request, answer any) (http.Header, error) {
	resp, err := web.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		return nil, final{fmt.Errorf("%s speaks http, not https: set CATALOGD_URL to http://…", req.URL.Host)}
	}
	if err != nil {
		return nil, cause(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized && c.renewed() {
		return nil, errRenewed
	}
	if err := refusal(resp); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", cause(err))
	}
	if answer == nil || len(content) == 0 {
		return resp.Header, nil
	}
	if err := json.Unmarshal(content, answer); err != nil {
		return nil, final{fmt.Errorf("%s does not answer as catalogd does: is CATALOGD_URL right? %w", req.URL.Host, err)}
	}
	return resp.Header, nil
}

// errRenewed: the token was another by now.
var errRenewed = errors.New("the token was replaced")

// renewed takes a new token, if there is one.
func (c *Client) renewed() bool {
	if c.Renew == nil {
		return false
	}
	token := c.Renew()
	if token == "" || token == c.Token {
		return false
	}
	c.Token = token
	return true
}

// final is an error that trying again would not mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// patiently asks the server until there is an answer, or patience is at its end.
func (c *Client) patiently(ctx context.Context, try func(context.Context) error) error {
	return c.patientlyAt(ctx, UnavailableError{URL: c.URL}, lastPause, try)
}

// patientlyAt is patiently for whoever is asked, with pauses of up to longest.
func (c *Client) patientlyAt(ctx context.Context, asked UnavailableError, longest time.Duration, try func(context.Context) error) error {
	var began time.Time // the first failure: sending much may take longer than patience
	failures := 0
	for pause, told := firstPause, false; ; pause = min(2*pause, longest) {
		err := try(ctx)
		if began.IsZero() {
			began = time.Now()
		}
		var last final
		if errors.As(err, &last) {
			return last.error
		}
		var p *Problem
		if err == nil || errors.As(err, &p) && !passes(p) {
			return err
		}
		if errors.Is(err, errRenewed) {
			continue
		}
		if ctx.Err() != nil {
			return ended(ctx, err)
		}
		wait := pause/2 + rand.N(pause)
		if p == nil || p.Status != http.StatusInternalServerError {
			failures = 0
		} else if failures++; failures > maxFailures {
			return err
		}
		// The last try is at the end of patience.
		left := c.Patience - time.Since(began)
		if left <= 0 {
			if c.Patience > 0 {
				asked.After = time.Since(began)
			}
			asked.Err = err
			return &asked
		}
		wait = min(max(wait, min(retryAfter(err), maxRetryAfter)), left)
		if !told && c.Notice != nil && time.Since(began) > 500*time.Millisecond {
			c.Notice(fmt.Sprintf("waiting for %s at %s: %v", asked.whom(), asked.URL, err))
			told = true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ended(ctx, err)
		}
	}
}

// ended says that a request was given up, and over what.
func ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), ErrLost) {
		return fmt.Errorf("%w; the last answer: %w", ErrInterrupted, err)
	}
	return errors.Join(context.Cause(ctx), err)
}

// passes tells whether a problem says nothing of the request: it can be sent again.
func passes(p *Problem) bool {
	switch p.Status {
	case http.StatusInternalServerError:
		// These ended an attempt, and say what must change.
		return p.Code == catalog.CodeInternal || p.Code == ""
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return true
	}
	return false
}

// refusal is the problem that an answer is; nil for none.
func refusal(resp *http.Response) error {
	if resp.StatusCode < 300 {
		return nil
	}
	content, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	p := &Problem{}
	switch ours := json.Unmarshal(content, p) == nil && p.Code != ""; {
	case ours:
	case resp.Request != nil && resp.Request.Response != nil: // redirected
		*p = Problem{Detail: fmt.Sprintf("HTTP status %s of %s, where the output is: get it again, and look at the store if that does not help", resp.Status, resp.Request.URL.Host)}
	default:
		*p = Problem{Detail: fmt.Sprintf("HTTP status %s, and no problem of catalogd's: is there a proxy, and is CATALOGD_URL right?", resp.Status)}
	}
	p.Status = resp.StatusCode
	if after := secondsOf(resp.Header); after > 0 {
		return &retryError{p, after}
	}
	return p
}

// secondsOf Retry-After; 0 for none.
func secondsOf(header http.Header) time.Duration {
	seconds, _ := strconv.Atoi(header.Get("Retry-After"))
	return time.Duration(max(seconds, 0)) * time.Second
}

// retryError is a problem that says when to come again.
type retryError struct {
	*Problem
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.Problem }

func retryAfter(err error) time.Duration {
	var e *retryError
	if errors.As(err, &e) {
		return e.after
	}
	return 0
}

// cause takes method and URL out of net/http's error.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
