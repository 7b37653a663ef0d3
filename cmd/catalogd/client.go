package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
)

// clientFlags are those of commands that speak to a server.
type clientFlags struct {
	URL       string `env:"CATALOGD_URL" default:"http://127.0.0.1:8080" help:"Where catalogd is."`
	Token     string `env:"CATALOGD_TOKEN" help:"A token; better in the environment, or in a file."`
	TokenFile string `env:"CATALOGD_TOKEN_FILE" type:"path" help:"A file that holds it."`
	JSON      bool   `name:"json" help:"Print the server's answer as JSON."`
}

// client for one request, or for the many of a task, which waits for a server that
// is away.
func (c clientFlags) client(std streams, patience time.Duration) (*client.Client, error) {
	server := &client.Client{
		URL: c.URL, Patience: patience, Version: version,
		Notice: func(line string) { fmt.Fprintln(std.err, "catalogd:", line) },
	}
	var err error
	if server.Token, err = secret(c.Token, c.TokenFile); err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	server.Renew = func() string {
		token, _ := secret(c.Token, c.TokenFile) // the one that was refused will do no better
		return token
	}
	return server, nil
}

// ask calls the server once, prints the answer as JSON if that is asked for, and else
// reads it for table to print.
func ask[T any](ctx context.Context, c clientFlags, std streams, method, path string, body any, table func(T) [][]string) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := server.Call(ctx, method, path, body, &raw); err != nil {
		return err
	}
	var answer T
	if len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if c.JSON {
		return printJSON(std.out, raw)
	}
	return printTable(std.out, table(answer))
}

// eachPage asks for page after page of a list, and gives the items of each. What a page
// says is next the following question sends as after.
func eachPage(ctx context.Context, server *client.Client, path, items, after string, query url.Values, show func(first bool, items []json.RawMessage) error) error {
	query.Set("limit", "1000")
	for first := true; ; first = false {
		var page map[string]json.RawMessage
		if err := server.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		var list []json.RawMessage
		next := strings.Trim(string(page["next"]), `"`) // a UUID, or a number
		if err := json.Unmarshal(page[items], &list); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		if err := show(first, list); err != nil {
			return err
		}
		if next == "" {
			return nil
		}
		query.Set(after, next)
	}
}

// printJSON prints one line, or indented for people.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if isTerminal(w) {
		encoder.SetIndent("", "  ")
	}
	return encoder.Encode(v)
}

// printTable aligns columns. Control characters of others' texts do not reach the
// terminal.
func printTable(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// facts prints names and values of one thing; without a value, nothing.
func facts(pairs ...string) [][]string {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i], pairs[i+1]})
		}
	}
	return rows
}

func at(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func yes(b *bool) string {
	if b != nil && *b {
		return "yes"
	}
	return ""
}

// advice says what to do on the command line about a problem; "" where the problem says
// enough.
func advice(err error) string {
	var failed *client.CommandError
	switch {
	case client.IsProblem(err, catalog.CodeUnauthenticated):
		return "set CATALOGD_TOKEN_FILE, or CATALOGD_TOKEN (a server started with --dev keeps one in DIR/admin.token)"
	case client.IsProblem(err, catalog.CodeForbidden):
		return "an administrator makes a token of that role: catalogd token create NAME --role ROLE"
	case client.IsProblem(err, catalog.CodeUnknownCollection):
		return "see catalogd collection list, or catalogd collection create ID"
	case client.IsProblem(err, catalog.CodeUnknownBatch):
		return "see catalogd batch ls, or catalogd batch create NAME COLLECTION"
	case client.IsProblem(err, catalog.CodeNotInBatch):
		return "add it with catalogd batch add NAME, or leave out --batch (and CATALOGD_BATCH)"
	case errors.Is(err, client.ErrQuarantined), client.IsProblem(err, catalog.CodeUnitQuarantined), errors.As(err, &failed) && failed.Then.Quarantined():
		return "see catalogd quarantine show; once the cause is mended: catalogd quarantine release --why TEXT"
	case client.IsProblem(err, catalog.CodeUnknownStore):
		return "--store takes a name, an id or a root; GET /v1/stores lists them"
	case client.IsProblem(err, catalog.CodeUnknownRun, catalog.CodeRunNotComplete):
		return "see catalogd reconcile ls"
	case client.IsProblem(err, catalog.CodeUnknownPlan):
		return "see catalogd reconcile plan ls, or make one with catalogd reconcile plan RUN"
	case client.IsProblem(err, catalog.CodeTooMuchChange):
		return "see catalogd reconcile plan show PLAN; once you know that it is right: --max-change SHARE"
	case client.IsProblem(err, catalog.CodeCollectionExists):
		return "see catalogd collection show ID; change it with catalogd collection edit ID"
	case client.IsProblem(err, catalog.CodeTokenExists):
		return "see catalogd token list; a revoked token's name stays taken"
	case client.IsProblem(err, catalog.CodeSidecar, catalog.CodeSparse, catalog.CodeNoCRS, catalog.CodeNoFootprint, catalog.CodeDriverRefused):
		return "what collections may take: catalogd collection edit --help"
	}
	return ""
}

// exitCode of an error, as documented.
func exitCode(err error) int {
	var usage usageError
	var judged judgedError
	var away *client.UnavailableError
	var failed *client.CommandError
	switch {
	case errors.As(err, &failed) && failed.Then.Quarantined():
		return exitQuarantined
	case errors.As(err, &failed) && failed.Failure.Class == "transient":
		return exitLater
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &judged):
		return exitJudged
	case errors.Is(err, client.ErrQuarantined), client.IsProblem(err, catalog.CodeUnitQuarantined):
		return exitQuarantined
	case errors.As(err, &away),
		errors.Is(err, client.ErrHeld), errors.Is(err, client.ErrLost), errors.Is(err, client.ErrStore), errors.Is(err, client.ErrInterrupted),
		client.IsProblem(err, catalog.CodeUnitHeld, catalog.CodeAttemptPromoting, catalog.CodeAttemptLost, catalog.CodeStoreFull, catalog.CodeRunUnderWay):
		return exitLater
	}
	return exitError
}
