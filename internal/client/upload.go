package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// parallel is how many requests are sent to a store at once.
	parallel = 4
	// unreachableAfter is how long a store is tried from where there is no way to it.
	unreachableAfter = 15 * time.Second
	// stalledAfter bounds how long a store may take nothing, or not answer.
	stalledAfter = 2 * time.Minute
	// lastStorePause is the longest pause between tries at a store.
	lastStorePause = 10 * time.Second
	// maxSent is how often the same bytes are sent that arrive as others.
	maxSent = 3
)

// errNotFromHere: the store cannot be reached from here, or takes nothing from here.
var errNotFromHere = errors.New("the store takes nothing from here")

// Meter is told how much of an output has been sent.
type Meter interface {
	// Add is told of n bytes more; below 0 of what must be sent again.
	Add(n int64)
	// Close is told that no more is sent, for good or ill.
	Close()
}

// upload sends an output straight to its store. Neither token nor anything else but the
// signed requests goes there.
type upload struct {
	*Client  // of the server, which signs
	path     string
	file     *local
	checksum string
	partSize int64
	replace  bool
	meter    Meter

	began time.Time
	met   atomic.Bool // the store was reached
	etags []string    // each written by the one that sends the part

	mu   sync.Mutex
	plan *plan
}

// plan are the requests to send, which may expire.
type plan struct {
	UploadID string `json:"upload_id"`
	Requests []part `json:"requests"`
}

// part is one of them. Its body is the file's bytes from Offset.
type part struct {
	Method    string            `json:"method"`
	URL       string            `json:"url"`
	Headers   map[string]string `json:"headers"`
	Offset    int64             `json:"offset"`
	SizeBytes int64             `json:"size_bytes"`
}

// uploadedParts is what complete is told of an upload in parts.
type uploadedParts struct {
	UploadID string   `json:"upload_id"`
	ETags    []string `json:"etags"`
}

// uploadToStore sends a file straight to the store of an attempt, as large as it is, in
// parts where the server says so. replace is for a second time. Errors of the file are
// final; errNotFromHere says that there is another way, by Upload.
func (c *Client) uploadToStore(ctx context.Context, a Attempt, file string, partSize int64, replace bool) (handed, error) {
	f, err := openLocal(file)
	if err != nil {
		return handed{}, err
	}
	defer f.Close()
	if err := f.readAll(ctx); err != nil {
		return handed{}, err
	}
	client := *c
	client.Notice = once(c.Notice)
	u := &upload{Client: &client, path: "/v1/attempts/" + a.ID + "/upload", file: f, checksum: f.sum(), partSize: partSize, replace: replace, began: time.Now()}
	if u.plan, err = u.start(ctx, ""); err != nil {
		return handed{}, err
	}
	u.meter = c.meter(f.size)
	defer u.meter.Close()
	u.etags = make([]string, len(u.plan.Requests))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range u.plan.Requests {
		group.Go(func() error { return u.send(groupCtx, i) })
	}
	if err := group.Wait(); err != nil {
		return handed{}, err
	}
	h := handed{size: f.size, checksum: u.checksum, direct: true}
	if u.plan.UploadID != "" {
		h.upload = &uploadedParts{UploadID: u.plan.UploadID, ETags: u.etags}
	}
	return h, nil
}

// start asks for the requests: new ones, or those of an upload in parts anew.
func (u *upload) start(ctx context.Context, id string) (*plan, error) {
	body := map[string]any{"size_bytes": u.file.size, "checksum": u.checksum}
	if u.partSize > 0 {
		body["part_size"] = u.partSize
	}
	if id != "" {
		body["upload_id"] = id
	}
	if u.replace {
		body["replace"] = true
	}
	p := &plan{}
	if err := u.Call(ctx, http.MethodPost, u.path, body, p); err != nil {
		return nil, err
	}
	end := int64(0)
	for _, r := range p.Requests {
		if r.Offset != end {
			return nil, fmt.Errorf("the server's requests leave out what is at %d", end)
		}
		end += r.SizeBytes
	}
	if end != u.file.size {
		return nil, fmt.Errorf("the server's requests take %d of %d bytes", end, u.file.size)
	}
	return p, nil
}

// current are the requests that were given last.
func (u *upload) current() *plan {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.plan
}

// renew asks for the requests anew, once for all that found the same ones expired.
func (u *upload) renew(ctx context.Context, expired *plan) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.plan != expired {
		return nil
	}
	p, err := u.start(ctx, expired.UploadID)
	if err == nil && len(p.Requests) != len(expired.Requests) {
		err = fmt.Errorf("the server cut the upload in %d parts, and now in %d", len(expired.Requests), len(p.Requests))
	}
	if err == nil {
		u.plan = p
	}
	return err
}

// send sends one request until the store has its bytes.
func (u *upload) send(ctx context.Context, i int) error {
	store, err := url.Parse(u.current().Requests[i].URL)
	if err != nil {
		return fmt.Errorf("the server's request: %w", cause(err))
	}
	at := store.Scheme + "://" + store.Host
	refused, altered := 0, 0
	err = u.patientlyAt(ctx, UnavailableError{URL: at, Store: true}, lastStorePause, func(ctx context.Context) error {
		p := u.current()
		etag, err := u.put(ctx, p.Requests[i])
		if changed := u.file.unchanged(); changed != nil {
			return final{changed}
		}
		var e *storeError
		switch answered := errors.As(err, &e); {
		case err == nil:
			u.etags[i] = etag
			return nil
		case !u.met.Load() && (time.Since(u.began) > unreachableAfter || errors.As(err, new(*tls.CertificateVerificationError))):
			// There is no way to it.
		case !answered, !u.met.Load() && e.foreign():
			return err
		case e.Status == http.StatusPreconditionFailed && p.UploadID == "":
			// It is there since a try whose answer was lost; complete compares.
			u.meter.Add(u.file.size)
			return nil
		case e.expired() && refused < 2:
			refused++
			if err := u.renew(ctx, p); err != nil {
				return final{err}
			}
			return errRenewed
		case e.Code == "BadDigest" && altered < maxSent-1:
			altered++
			return err
		case e.passes():
			return err
		}
		return final{fmt.Errorf("%w: %s: %w", errNotFromHere, at, err)}
	})
	if errors.As(err, new(*UnavailableError)) && !u.met.Load() { // patience was shorter
		err = fmt.Errorf("%w: %w", errNotFromHere, err)
	}
	return err
}

// put sends a request once, and gives its answer's ETag.
func (u *upload) put(ctx context.Context, p part) (etag string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stalledAfter, func() {
		cancel(fmt.Errorf("nothing was taken, or answered, for %s", stalledAfter))
	})
	defer stalled.Stop()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	body := &counted{r: io.NewSectionReader(u.file.f, p.Offset, p.SizeBytes), add: func(n int64) {
		stalled.Reset(stalledAfter)
		u.meter.Add(n)
	}}
	defer func() {
		if err != nil {
			body.takeBack()
			if why := context.Cause(ctx); why != nil {
				err = why
			}
		}
		var e *storeError
		if connected.Load() && !(errors.As(err, &e) && e.foreign()) {
			u.met.Store(true)
		}
	}()
	req, err := http.NewRequestWithContext(traced, p.Method, p.URL, body)
	if err != nil {
		return "", cause(err)
	}
	for name, value := range p.Headers {
		req.Header.Set(name, value)
	}
	req.ContentLength = p.SizeBytes
	// Who refuses says so before it has taken the bytes.
	req.Header.Set("Expect", "100-continue")
	req.Header.Set("User-Agent", "catalogd/"+u.Version)
	resp, err := stores.Do(req)
	if err != nil {
		return "", cause(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("read the store's answer: %w", cause(err))
	}
	if etag = resp.Header.Get("ETag"); resp.StatusCode/100 == 2 && etag != "" {
		return etag, nil
	}
	e := &storeError{Status: resp.StatusCode}
	_ = xml.Unmarshal(content, e) // else it is foreign
	return "", e
}

// stores is the client of all stores. It follows no redirect: what is signed is signed
// for one host.
var stores = &http.Client{
	Transport: func() http.RoundTripper {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
			return hearing{c}, err
		}
		t.MaxIdleConnsPerHost = parallel
		return t
	}(),
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// hearing is a connection that tells late that it could not be written to: a store that
// refuses a request answers, and then closes without reading on; what it answered is to
// be heard first.
type hearing struct{ net.Conn }

func (h hearing) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		time.Sleep(200 * time.Millisecond)
	}
	return n, err
}

// storeError is an answer of a store that says that it did not take the bytes.
type storeError struct {
	Status  int    `xml:"-"`
	Code    string `xml:"Code"`
	Message string `xml:"Message"`
}

func (e *storeError) Error() string {
	if e.foreign() {
		return fmt.Sprintf("HTTP status %d, and no answer of S3's: is there a proxy?", e.Status)
	}
	return fmt.Sprintf("%s (HTTP status %d): %s", e.Code, e.Status, e.Message)
}

// foreign tells whether it is none of an S3 server's: a proxy's, say.
func (e *storeError) foreign() bool { return e.Code == "" }

// expired tells whether what was signed may be so no more.
func (e *storeError) expired() bool {
	return e.Status == http.StatusForbidden || e.Code == "ExpiredToken"
}

// passes tells whether the same may be taken later.
func (e *storeError) passes() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return e.Status >= 500 || e.Code == "RequestTimeout" || e.Code == "IncompleteBody"
}

// counted is a body whose reads are told of.
type counted struct {
	r   io.Reader
	add func(n int64)

	mu   sync.Mutex
	sent int64
	over bool
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over { // net/http may read on after its answer
		c.sent += int64(n)
		c.add(int64(n))
	}
	return n, err
}

// takeBack says that none of it was sent.
func (c *counted) takeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.add(-c.sent)
}

// meter of an output of this size.
func (c *Client) meter(size int64) Meter {
	if c.Meter == nil {
		return noMeter{}
	}
	return cmp.Or[Meter](c.Meter(size), noMeter{})
}

type noMeter struct{}

func (noMeter) Add(int64) {}
func (noMeter) Close()    {}

// once passes on the first line only.
func once(notice func(string)) func(string) {
	if notice == nil {
		return nil
	}
	var told sync.Once
	return func(line string) { told.Do(func() { notice(line) }) }
}
