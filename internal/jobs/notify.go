package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"catalogd/internal/catalog"
)

const (
	// eventType is the CloudEvents type of a notification.
	eventType = "catalogd.batch.gated.v1"
	// requestTimeout is how long one request may take.
	requestTimeout = 10 * time.Second
	// minSecret is the least length of a key by the Standard Webhooks specification.
	minSecret = 24
	// toldOffenders is how many offenders a notification tells of.
	toldOffenders = 20
)

// Notifier tells a URL how batches were judged: a CloudEvent 1.0 in structured mode,
// signed as Standard Webhooks are.
type Notifier struct {
	url, source string
	data        func(catalog.Gate, catalog.Batch) any
	key         *standardwebhooks.Webhook
	client      *http.Client
}

// NewNotifier refuses a URL that nothing can be posted to, and a secret that is none:
// "whsec_" and base64, or any text. source tells events of this catalogue from another's;
// data is what an event says of a gate.
func NewNotifier(to, secret, source string, data func(catalog.Gate, catalog.Batch) any) (*Notifier, error) {
	u, err := url.Parse(to)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("is not the URL of a receiver: https://HOST/PATH, or http://…")
	}
	if secret == "" {
		return nil, errors.New("has no secret to sign with: give the receiver and catalogd the same, whsec_ and `openssl rand -base64 32`")
	}
	raw, encoded := []byte(secret), strings.HasPrefix(secret, "whsec_")
	n := &Notifier{url: to, source: source, data: data, client: &http.Client{
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if encoded {
		n.key, err = standardwebhooks.NewWebhook(secret)
		raw = make([]byte, (len(secret)-len("whsec_"))*3/4)
	} else {
		n.key, err = standardwebhooks.NewWebhookRaw(raw)
	}
	switch {
	case err != nil:
		return nil, errors.New("has a secret that starts with whsec_ and does not go on in base64")
	case len(raw) < minSecret:
		return nil, fmt.Errorf("has a secret shorter than %d bytes: make one with `openssl rand -base64 32`", minSecret)
	}
	return n, nil
}

// event is a CloudEvent, in the JSON format of the specification.
type event struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            any       `json:"data"`
}

// errRefused: the receiver wants no such event, now or later.
var errRefused = errors.New("the receiver refuses it")

// Send sends the event of a gate that has ended, once. errRefused, or any other error for
// one that is to be sent again.
func (n *Notifier) Send(ctx context.Context, gate catalog.Gate, batch catalog.Batch) error {
	gate.Offenders = gate.Offenders[:min(len(gate.Offenders), toldOffenders)]
	e := event{
		SpecVersion: "1.0", ID: gate.ID.String(), Source: n.source, Type: eventType, Subject: batch.Name,
		DataContentType: "application/json", Data: n.data(gate, batch),
	}
	if gate.EndedAt != nil {
		e.Time = gate.EndedAt.UTC()
	}
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	now := time.Now()
	signature, err := n.key.Sign(e.ID, now, body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/cloudevents+json")
	req.Header.Set("User-Agent", "catalogd")
	req.Header.Set(standardwebhooks.HeaderWebhookID, e.ID)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	resp, err := n.client.Do(req)
	if err != nil {
		return unquoted(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch status := resp.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooEarly && status != http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", errRefused, resp.Status)
	default:
		return fmt.Errorf("the receiver answered %s", resp.Status)
	}
}

// Close ends connections that are kept.
func (n *Notifier) Close() { n.client.CloseIdleConnections() }

// unquoted leaves the URL out of an error: it may hold a password.
func unquoted(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
