package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

const requestDeadline = 10 * time.Second

// answer of a server.
type answer struct {
	status        int
	before, after time.Time
	date          string
	// Of the body, as far as it is JSON.
	Status, Version, Detail, Code string
}

// ask sends one request, with the token if there is one.
func (e *exam) ask(ctx context.Context, base, token, method, path, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	target, err := url.JoinPath(base, path)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	a := answer{before: e.now()}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a.after, a.status, a.date = e.now(), resp.StatusCode, resp.Header.Get("Date")
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return answer{}, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var said struct {
			// A number in a problem, a word in health.
			Status                json.RawMessage
			Version, Detail, Code string
		}
		if json.Unmarshal(text, &said) == nil {
			a.Status, a.Version, a.Detail, a.Code = strings.Trim(string(said.Status), `"`), said.Version, said.Detail, said.Code
		}
	}
	return a, nil
}

// isCatalogd tells whether a health answer is a catalogd's.
func (a answer) isCatalogd() bool {
	return a.status == http.StatusOK && a.Status == "ok" && a.Version != ""
}

// listen tells whether serve could listen, or does.
func (e *exam) listen(ctx context.Context) {
	listener, err := net.Listen("tcp", e.Listen)
	if err == nil {
		listener.Close()
		e.ok("listen", "%s is free", e.Listen)
		return
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		e.say("listen", Lacks, err.Error(), "choose another address with --listen HOST:PORT (ports below 1024 take a privilege)")
		return
	}
	host, port, _ := net.SplitHostPort(e.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	health, err := e.ask(ctx, "http://"+net.JoinHostPort(host, port), "", http.MethodGet, "healthz", "")
	if err != nil || !health.isCatalogd() {
		e.say("listen", Lacks, e.Listen+" is taken, and not by a catalogd", "choose another address with --listen HOST:PORT, or end what listens there")
		return
	}
	e.ok("listen", "%s is served by catalogd %s", e.Listen, health.Version)
}

// server asks a server who it is, and whom it takes the token for.
func (e *exam) server(ctx context.Context) {
	health, err := e.ask(ctx, e.URL, "", http.MethodGet, "healthz", "")
	switch {
	case err != nil:
		e.say("server", Lacks, err.Error(), "start the server, or correct --url; see that a proxy or firewall lets you through")
		return
	case !health.isCatalogd():
		e.say("server", Lacks, fmt.Sprintf("%s answers %d, and is no catalogd", e.URL, health.status), "correct --url; behind a proxy, its path too")
		return
	}
	ready, err := e.ask(ctx, e.URL, "", http.MethodGet, "readyz", "")
	switch {
	case err != nil:
		e.say("server", Lacks, err.Error(), "ask again; see that the server runs")
	case ready.status != http.StatusOK:
		e.say("server", Lacks, fmt.Sprintf("catalogd %s is not ready: %s", health.Version, cmp.Or(ready.Detail, ready.Code)), "run catalogd doctor on the server")
	default:
		e.ok("server", "catalogd %s at %s; this is %s", health.Version, e.URL, cmp.Or(e.Version, "of no version"))
	}
	e.serverClock(health)
	if e.Token != "" {
		e.token(ctx)
	}
}

// serverClock compares with the Date of an answer, which has no fractions.
func (e *exam) serverClock(a answer) {
	date, err := http.ParseTime(a.date)
	if err != nil {
		e.say("server clock", Warn, "the answer has no date", "see what proxy removes it")
		return
	}
	skew := apart(date, date.Add(time.Second), a.before, a.after)
	found := fmt.Sprintf("differs from this machine's by %v at least", skew.Round(time.Millisecond))
	if skew > time.Second {
		e.say("server clock", Warn, found, "keep both in step with NTP (timedatectl set-ntp true)")
		return
	}
	e.ok("server clock", "%s", found)
}

// token finds the role from what is refused: to list tokens takes admin, to renew a
// lease (of an attempt that is not there) takes write.
func (e *exam) token(ctx context.Context) {
	a, err := e.ask(ctx, e.URL, e.Token, http.MethodGet, "v1/tokens", "")
	role := "admin"
	if err == nil && a.status == http.StatusForbidden {
		a, err = e.ask(ctx, e.URL, e.Token, http.MethodPost, "v1/heartbeats", fmt.Sprintf(`{"attempts":[%q]}`, uuid.Nil))
		role = "write"
		if err == nil && a.status == http.StatusForbidden {
			a.status, role = http.StatusOK, "read"
		}
	}
	switch {
	case err != nil:
		e.say("token", Lacks, err.Error(), "ask again; see that the server runs")
	case a.status == http.StatusUnauthorized:
		e.say("token", Lacks, "the server does not take it: it is unknown, expired or revoked", "ask an administrator for a new one: catalogd token create NAME --role ROLE")
	case a.status != http.StatusOK:
		e.say("token", Lacks, fmt.Sprintf("the server answers %d %s", a.status, a.Detail), "see docs/problems.md, and the server's log")
	case role == "read":
		e.ok("token", "has the role read; tasks need write")
	default:
		e.ok("token", "has the role %s", role)
	}
}
