package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
)

type batchCmd struct {
	Create  batchCreateCmd  `cmd:"" help:"Open a batch, or find it open."`
	List    batchListCmd    `cmd:"" name:"ls" aliases:"list" help:"Batches, the latest first."`
	Add     batchAddCmd     `cmd:"" help:"Add expected units, one a line; what it has already is passed over."`
	Status  batchStatusCmd  `cmd:"" help:"How a batch stands, what fails, and what to do next."`
	Pending batchPendingCmd `cmd:"" help:"The units that are due now."`
	Claim   batchClaimCmd   `cmd:"" help:"Be handed units that are due, with an attempt begun at each."`
	Watch   batchWatchCmd   `cmd:"" help:"Follow a batch until nothing is left to do."`
	Gate    batchGateCmd    `cmd:"" help:"Judge a batch: exit code 0 passed, 3 failed."`
	Publish batchPublishCmd `cmd:"" help:"Make its outputs current together, whatever its gate says; takes the role admin."`
}

// batchName is a name that can be one.
type batchName string

// UnmarshalText refuses what could not be a batch's name.
func (n *batchName) UnmarshalText(text []byte) error {
	*n = batchName(text)
	return catalog.CheckBatchName(string(text), "")
}

// path of a batch, or of what is said of it.
func (n batchName) path(of ...string) string { return client.BatchPath(string(n), of...) }

// patientFlags are those of commands that wait for a server which is away.
type patientFlags struct {
	Patience time.Duration `env:"CATALOGD_PATIENCE" default:"10m" help:"How long to wait for a catalogd that is away."`
	clientFlags
}

// openedBatch is a batch as the server tells it.
type openedBatch struct {
	Name        string     `json:"name"`
	Collection  string     `json:"collection"`
	Versions    []string   `json:"versions"`
	Expected    int64      `json:"expected"`
	Publish     string     `json:"publish"`
	PublishedAt *time.Time `json:"published_at"`
	CreatedBy   string     `json:"created_by"`
	CreatedAt   time.Time  `json:"created_at"`
}

func (b openedBatch) facts() [][]string {
	return facts("name", b.Name, "collection", b.Collection, "versions", strings.Join(b.Versions, ", "), "expected", strconv.FormatInt(b.Expected, 10),
		"publish", b.Publish, "published_at", at(b.PublishedAt), "created_by", b.CreatedBy, "created_at", at(&b.CreatedAt))
}

type batchCreateCmd struct {
	Name       batchName `arg:"" help:"[A-Za-z0-9][A-Za-z0-9._:+@=-]*, at most 200."`
	Collection string    `arg:"" help:"Collection of its units."`
	clientFlags
}

func (c *batchCreateCmd) Run(ctx context.Context, std streams) error {
	body := map[string]string{"name": string(c.Name), "collection": c.Collection}
	return ask(ctx, c.clientFlags, std, http.MethodPost, "/v1/batches", body, openedBatch.facts)
}

type batchListCmd struct {
	InCollection string `name:"collection" placeholder:"ID" help:"Those of this collection."`
	clientFlags
}

const batchRow = "%-32s %-16s %-10s %9s  %-20s  %s\n"

// Run prints page by page, whatever their number: with --json, one batch a line.
func (c *batchListCmd) Run(ctx context.Context, std streams) (err error) {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	query := url.Values{}
	if c.InCollection != "" {
		query.Set("collection", c.InCollection)
	}
	return eachPage(ctx, server, "/v1/batches", "batches", "before", query, func(first bool, batches []json.RawMessage) error {
		if first && !c.JSON {
			fmt.Fprintf(out, batchRow, "NAME", "COLLECTION", "VERSION", "EXPECTED", "OPENED", "PUBLISHED")
		}
		for _, raw := range batches {
			if c.JSON {
				if err := printLine(out, raw); err != nil {
					return err
				}
				continue
			}
			var b openedBatch
			if err := json.Unmarshal(raw, &b); err != nil {
				return fmt.Errorf("read the server's answer: %w", err)
			}
			fmt.Fprintf(out, batchRow, b.Name, b.Collection, printable(strings.Join(b.Versions, ",")), strconv.FormatInt(b.Expected, 10), at(&b.CreatedAt), at(b.PublishedAt))
		}
		return nil
	})
}

type batchAddCmd struct {
	Name batchName `arg:"" help:"Batch."`
	File string    `arg:"" optional:"" type:"existingfile" help:"NDJSON: {\"tile_id\", \"identity\", \"client_key\", \"geometry\"} a line; the last two may be left out. Standard input by default, or as -."`
	patientFlags
}

// Run sends units in pieces, and prints how many were added. Those that were refused
// are named on standard error, and make it an error: the batch expects too few.
func (c *batchAddCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	from, size := os.Stdin, int64(-1)
	if c.File != "" && c.File != "-" {
		if from, err = os.Open(c.File); err != nil {
			return err
		}
		defer from.Close()
	}
	if info, err := from.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	shown := io.Discard
	if !c.JSON && showsBars(std.err) {
		shown = std.err
	}
	bar := newBar(shown, size, "adding", progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish())
	all, err := c.add(ctx, server, newPieces(from), bar, func(line string) {
		_ = bar.Clear()
		fmt.Fprintln(std.err, line)
	})
	_ = bar.Clear()
	switch {
	case err != nil && all.Total == 0: // nothing became of anything
	case c.JSON:
		err = errors.Join(printJSON(std.out, all), err)
	default:
		err = errors.Join(printTable(std.out, facts("added", count(all.Added), "present", count(all.Present), "refused", count(all.Refused), "expected", count(all.Expected))), err)
	}
	if err == nil && all.Refused > 0 {
		err = fmt.Errorf("%d of the units were refused: mend their lines, and add them again", all.Refused)
	}
	return err
}

// add sends piece after piece; tell is given a line for each unit that was refused.
func (c *batchAddCmd) add(ctx context.Context, server *client.Client, units *pieces, bar *progressbar.ProgressBar, tell func(string)) (client.Added, error) {
	all := client.Added{Errors: []client.RefusedUnit{}}
	for more := true; more; {
		var piece []byte
		before := units.lines
		piece, more = units.next()
		if len(piece) == 0 && before > 0 {
			break
		}
		some, err := server.AddUnits(ctx, string(c.Name), piece)
		all.Total, all.Added, all.Present, all.Refused = all.Total+some.Total, all.Added+some.Added, all.Present+some.Present, all.Refused+some.Refused
		all.Expected = max(all.Expected, some.Expected)
		for _, refused := range some.Errors {
			refused.Line += before
			if all.Errors = append(all.Errors, refused); !c.JSON {
				tell(fmt.Sprintf("line %d: %s", refused.Line, printable(refused.Error())))
			}
		}
		if hidden := some.Refused - int64(len(some.Errors)); hidden > 0 && !c.JSON {
			tell(fmt.Sprintf("and %d more of lines %d to %d", hidden, before+1, units.lines))
		}
		switch {
		case err != nil && all.Total == 0:
			return all, err
		case err != nil:
			return all, fmt.Errorf("not all are added: add all again, or the lines from %d on: %w", before+1, err)
		}
		_ = bar.Add(len(piece))
	}
	return all, units.err
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

// batchStatus is how a batch stands, as the server tells it.
type batchStatus struct {
	Batch    openedBatch         `json:"batch"`
	Counts   catalog.BatchCounts `json:"counts"`
	Failures []struct {
		Class   string    `json:"class"`
		Reason  string    `json:"reason"`
		Units   int64     `json:"units"`
		Tries   int64     `json:"tries"`
		Example string    `json:"example"`
		Last    time.Time `json:"last"`
	} `json:"failures"`
	Unpublished int64       `json:"unpublished"`
	Gate        *judgedGate `json:"gate"`
}

type batchStatusCmd struct {
	Name batchName `arg:"" help:"Batch."`
	clientFlags
}

// Run prints how a batch stands.
func (c *batchStatusCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	raw, status, err := readStatus(ctx, server, c.Name)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, raw)
	}
	_, err = io.WriteString(std.out, status.text(time.Now()))
	return err
}

func readStatus(ctx context.Context, server *client.Client, name batchName) (raw json.RawMessage, status batchStatus, err error) {
	if err = server.Call(ctx, http.MethodGet, name.path(), nil, &raw); err != nil {
		return nil, status, err
	}
	if err = json.Unmarshal(raw, &status); err != nil {
		err = fmt.Errorf("read the server's answer: %w", err)
	}
	return raw, status, err
}

// text for people, at a moment.
func (s batchStatus) text(now time.Time) string {
	var b strings.Builder
	head := []string{
		s.Batch.Name, strings.TrimSpace(s.Batch.Collection + " " + printable(strings.Join(s.Batch.Versions, ", "))),
		"opened " + clock(s.Batch.CreatedAt, now), span(now.Sub(s.Batch.CreatedAt)), "gate: " + s.Gate.verdict(now),
	}
	switch {
	case s.Batch.Publish != string(catalog.PublishOnGate):
	case s.Batch.PublishedAt == nil:
		head = append(head, "unpublished")
	default:
		head = append(head, "published "+clock(*s.Batch.PublishedAt, now)+waits(s.Unpublished))
	}
	fmt.Fprintln(&b, strings.Join(head, "  "))
	fmt.Fprintln(&b, countsLine(s.Counts))
	if len(s.Failures) > 0 {
		rows := [][]string{{"CLASS", "REASON", "UNITS", "TRIES", "EXAMPLE", "LAST"}}
		for _, f := range s.Failures {
			rows = append(rows, []string{f.Class, printable(f.Reason), count(f.Units), count(f.Tries), f.Example, clock(f.Last, now)})
		}
		printAligned(&b, rows, 2, 3)
	}
	if next := s.next(); next != "" {
		fmt.Fprintln(&b, "next:", next)
	}
	return b.String()
}

// next is the command that somebody who looks at the batch may want now.
func (s batchStatus) next() string {
	command := func(verb string) string { return "catalogd " + verb + " " + s.Batch.Name }
	passed := s.Gate != nil && s.Gate.State == string(catalog.GatePassed)
	switch n := s.Counts; {
	case n.Expected == 0:
		return command("batch add") + " FILE"
	case n.Pending+n.Lost > 0:
		return command("batch claim")
	case s.Gate.foundLost():
		// Claims do not know of them yet.
		return "catalogd exec what the gate found lost (" + command("batch status") + " --json names it), then " + command("batch gate")
	case passed && s.Unpublished > 0:
		return command("batch gate")
	case n.Quarantined > 0:
		return command("quarantine ls --batch")
	case n.Running+n.Retrying > 0:
		return command("batch watch")
	case !passed:
		return command("batch gate")
	}
	return ""
}

// waits says how many outputs are not current yet; nothing of none.
func waits(n int64) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 waits"
	}
	return fmt.Sprintf(", %d wait", n)
}

// countsLine names what is counted; what is not there as a rule, only where it is.
func countsLine(n catalog.BatchCounts) string {
	parts := []string{"expected " + count(n.Expected), "done " + count(n.Done)}
	if n.Running > 0 {
		parts = append(parts, "running "+count(n.Running))
	}
	if n.Retrying > 0 {
		parts = append(parts, "retrying "+count(n.Retrying))
	}
	return strings.Join(append(parts, "quarantined "+count(n.Quarantined), "lost "+count(n.Lost), "pending "+count(n.Pending)), "  ")
}

// printAligned prints columns, those of right to the right.
func printAligned(w io.Writer, rows [][]string, right ...int) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if slices.Contains(right, i) {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// clock shows a time of today by the clock, and another by its date.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format(time.DateOnly)
}

// span is a length of time, to the minute.
func span(d time.Duration) string {
	minutes := int64(max(d, 0) / time.Minute)
	if days := minutes / (24 * 60); days >= 2 {
		return fmt.Sprintf("%dd%dh", days, minutes/60%24)
	}
	if minutes < 60 {
		return fmt.Sprintf("%dm", minutes)
	}
	return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
}

// share is a fraction as per cent.
func share(frac float64) string { return strconv.FormatFloat(100*frac, 'g', 4, 64) + " %" }

type batchPendingCmd struct {
	Name batchName `arg:"" help:"Batch."`
	clientFlags
}

const pendingRow = "%-16s %-8s %-36s %s\n"

// Run prints what is due, whatever its number. An answer that was cut off is an error.
func (c *batchPendingCmd) Run(ctx context.Context, std streams) (err error) {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	if !c.JSON {
		fmt.Fprintf(out, pendingRow, "TILE_ID", "STATUS", "UNIT_KEY", "IDENTITY")
	}
	due := 0
	err = server.Lines(ctx, c.Name.path("pending"), func(line []byte) error {
		due++
		if c.JSON {
			_, err := fmt.Fprintf(out, "%s\n", line)
			return err
		}
		var u struct {
			TileID   string          `json:"tile_id"`
			Status   string          `json:"status"`
			UnitKey  string          `json:"unit_key"`
			Identity json.RawMessage `json:"identity"`
		}
		if err := json.Unmarshal(line, &u); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		_, err := fmt.Fprintf(out, pendingRow, u.TileID, u.Status, u.UnitKey, printable(string(u.Identity)))
		return err
	})
	if err == nil && !c.JSON {
		err = out.Flush()
		fmt.Fprintf(std.err, "%d units are due\n", due)
	}
	return err
}

type batchClaimCmd struct {
	Name      batchName `arg:"" help:"Batch."`
	Max       int       `default:"1" help:"How many units at most, up to 1000."`
	Owner     string    `env:"CATALOGD_OWNER" help:"Who works on them; by default what Airflow, Dagster, Celery, Slurm or Kubernetes says in the environment, or user@host."`
	MediaType string    `help:"Of the outputs; the collection's by default."`
	patientFlags
}

// Help implements kong.HelpProvider.
func (*batchClaimCmd) Help() string {
	return `Prints each unit with its attempt and where to write; with --json one unit a line, with all that a begin gives. Keep the leases, or the units go to others: POST /v1/heartbeats {"owner": …} keeps all of an owner's. Hand each output over with POST /v1/attempts/ATTEMPT/complete, or report it with catalogd fail ATTEMPT.

Exit codes: 0 units were handed out, or none is left to do · 75 none is due now, and some will be.`
}

// Run prints the units that were handed out.
func (c *batchClaimCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	owner := cmp.Or(c.Owner, client.FindOrigin(os.Getenv).Owner)
	// By its request_id a question that is sent again gets the same units.
	body := map[string]any{"max": c.Max, "owner": owner, "request_id": rand.Text()}
	if c.MediaType != "" {
		body["media_type"] = c.MediaType
	}
	var claimed struct {
		Units      []json.RawMessage `json:"units"`
		RetryAfter *float64          `json:"retry_after"`
	}
	if err := server.Call(ctx, http.MethodPost, c.Name.path("claim"), body, &claimed); err != nil {
		return err
	}
	if len(claimed.Units) == 0 && claimed.RetryAfter != nil {
		return fmt.Errorf("%w: no unit of batch %s is due; ask again in %.0f s", client.ErrHeld, c.Name, *claimed.RetryAfter)
	}
	if len(claimed.Units) == 0 {
		fmt.Fprintf(std.err, "catalogd: no unit of batch %s is left to do\n", c.Name)
		return nil
	}
	rows := [][]string{{"TILE_ID", "UNIT_KEY", "ATTEMPT", "STAGING"}}
	var until time.Time
	for _, raw := range claimed.Units {
		var unit struct {
			UnitKey string         `json:"unit_key"`
			TileID  string         `json:"tile_id"`
			Attempt client.Attempt `json:"attempt"`
		}
		if err := json.Unmarshal(raw, &unit); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		a := unit.Attempt
		rows = append(rows, []string{unit.TileID, unit.UnitKey, a.ID, cmp.Or(a.StagingPath, a.StagingURI, a.StagingKey)})
		if until.IsZero() || a.LeaseUntil.Before(until) {
			until = a.LeaseUntil
		}
	}
	if c.JSON {
		var lines bytes.Buffer
		for _, raw := range claimed.Units {
			if err := printLine(&lines, raw); err != nil {
				return err
			}
		}
		_, err = lines.WriteTo(std.out)
	} else {
		err = printTable(std.out, rows)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(std.err, "catalogd: %d units are %s's until %s: keep the leases by heartbeats, or they go to others\n", len(claimed.Units), owner, until.Local().Format(time.TimeOnly))
	return nil
}

type batchWatchCmd struct {
	Name  batchName     `arg:"" help:"Batch."`
	Every time.Duration `default:"2s" help:"How often to look; seldomer where counting takes long."`
	patientFlags
}

// Run shows how a batch stands whenever that changes, until nothing is left to do: what is
// quarantined or lost is not waited for. With --json, one status a line.
func (c *batchWatchCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	var bar *progressbar.ProgressBar
	if !c.JSON && showsBars(std.out) {
		bar = newBar(std.out, 1, string(c.Name), progressbar.OptionClearOnFinish())
		server.Notice = func(line string) {
			_ = bar.Clear()
			fmt.Fprintln(std.err, "catalogd:", line)
		}
	}
	before := catalog.BatchCounts{Expected: -1}
	for {
		began := time.Now()
		raw, status, err := readStatus(ctx, server, c.Name)
		if err != nil {
			return err
		}
		took := time.Since(began)
		n := status.Counts
		if n != before {
			switch {
			case c.JSON:
				err = printLine(std.out, raw)
			case bar != nil:
				bar.ChangeMax64(max(n.Expected, 1))
				bar.Describe(fmt.Sprintf("%s: %d quarantined, %d retrying, %d running", c.Name, n.Quarantined, n.Retrying, n.Running))
				_ = bar.Set64(min(n.Expected-n.Pending-n.Running-n.Retrying, bar.GetMax64()-1)) // a full one is over
			default:
				_, err = fmt.Fprintln(std.out, countsLine(n))
			}
			if err != nil {
				return err
			}
			before = n
		}
		if n.Pending+n.Running+n.Retrying == 0 {
			if bar != nil {
				_ = bar.Clear()
				_, err = io.WriteString(std.out, status.text(time.Now()))
			}
			return err
		}
		select {
		case <-time.After(max(c.Every, 4*took)):
		case <-ctx.Done():
			return fmt.Errorf("%w: the batch goes on", client.ErrInterrupted)
		}
	}
}

// judgedGate is a gate as the server tells it.
type judgedGate struct {
	ID             string    `json:"gate_id"`
	State          string    `json:"state"`
	Reasons        []string  `json:"reasons"`
	MaxMissingFrac float64   `json:"max_missing_frac"`
	MaxQuarantined *int64    `json:"max_quarantined"`
	Storage        string    `json:"storage"`
	CreatedAt      time.Time `json:"created_at"`
	EndedAt        time.Time `json:"ended_at"`
	Published      *int64    `json:"published"`
	Figures        *struct {
		catalog.BatchCounts
		Missing     int64   `json:"missing"`
		MissingFrac float64 `json:"missing_frac"`
		LookedAt    int64   `json:"looked_at"`
		Outputs     *int64  `json:"outputs"`
	} `json:"figures"`
	Error     *itemError `json:"error"`
	Offenders []struct {
		TileID  string `json:"tile_id"`
		Status  string `json:"status"`
		Reason  string `json:"reason"`
		UnitKey string `json:"unit_key"`
	} `json:"offenders"`
}

// foundLost tells whether it failed for outputs that it found missing.
func (g *judgedGate) foundLost() bool {
	return g != nil && g.Figures != nil && g.Figures.Lost > 0 && slices.Contains(g.Reasons, string(catalog.GateDisagreement))
}

// verdict in a few words.
func (g *judgedGate) verdict(now time.Time) string {
	if g == nil {
		return "not run"
	}
	words := g.State
	if !g.EndedAt.IsZero() {
		words += " " + clock(g.EndedAt, now)
	}
	switch {
	case len(g.Reasons) > 0:
		words += " (" + strings.Join(g.Reasons, ", ") + ")"
	case g.Error != nil:
		words += " (" + string(g.Error.Code) + ")"
	}
	return words
}

// shownOffenders is how many are printed for people.
const shownOffenders = 20

func (g *judgedGate) text() string {
	pairs := []string{"gate", g.ID, "state", g.State, "reasons", strings.Join(g.Reasons, ", ")}
	if f := g.Figures; f != nil {
		quarantined := count(f.Quarantined)
		if g.MaxQuarantined != nil {
			quarantined += "; tolerated: " + count(*g.MaxQuarantined)
		}
		looked := "not looked at"
		if f.Outputs != nil {
			looked = fmt.Sprintf("%d of %d that were looked for (%s)", *f.Outputs, f.LookedAt, g.Storage)
		}
		pairs = append(pairs, "expected", count(f.Expected), "done", count(f.Done),
			"missing", fmt.Sprintf("%d, or %s; tolerated: %s", f.Missing, share(f.MissingFrac), share(g.MaxMissingFrac)),
			"quarantined", quarantined, "lost", count(f.Lost), "in the store", looked)
	}
	if g.Published != nil {
		pairs = append(pairs, "published", count(*g.Published))
	}
	var b strings.Builder
	_ = printTable(&b, facts(pairs...))
	if len(g.Offenders) == 0 {
		return b.String()
	}
	rows := [][]string{{"TILE_ID", "STATUS", "REASON", "UNIT_KEY"}}
	for _, o := range g.Offenders[:min(len(g.Offenders), shownOffenders)] {
		rows = append(rows, []string{o.TileID, o.Status, o.Reason, o.UnitKey})
	}
	_ = printTable(&b, rows)
	if g.Figures != nil && g.Figures.Missing > shownOffenders {
		fmt.Fprintf(&b, "and %d more: --json has up to a thousand\n", g.Figures.Missing-shownOffenders)
	}
	return b.String()
}

type batchGateCmd struct {
	Name           batchName `arg:"" help:"Batch."`
	MaxMissingFrac float64   `default:"0" placeholder:"FRAC" help:"Share of the expected units that may be missing, quarantined ones included, such as 0.002; by default none may."`
	MaxQuarantined *int64    `placeholder:"N" help:"How many may be quarantined; by default as many as may be missing."`
	Storage        string    `enum:"list,sample,none" default:"list" help:"What is compared with the store: every output, by a listing (list); some, picked at random (sample); none."`
	SampleSize     *int64    `placeholder:"1000" help:"How many outputs --storage sample looks at."`
	Wait           bool      `negatable:"" default:"true" help:"Wait for the verdict."`
	patientFlags
}

// Help implements kong.HelpProvider.
func (*batchGateCmd) Help() string {
	return `Exit codes: 0 passed, or, with --no-wait, not judged yet: catalogd batch status NAME --json has the verdict in gate · 1 an error, such as no batch of that name · 2 usage · 3 failed · 75 it could not be judged, or catalogd is away: nothing is said of the batch.`
}

// Run prints the verdict.
func (c *batchGateCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	limits := map[string]any{"max_missing_frac": c.MaxMissingFrac, "storage": c.Storage}
	if c.MaxQuarantined != nil {
		limits["max_quarantined"] = *c.MaxQuarantined
	}
	if c.SampleSize != nil {
		limits["sample_size"] = *c.SampleSize
	}
	raw, err := server.Gate(ctx, string(c.Name), limits, c.Wait)
	if err != nil {
		return err
	}
	var g judgedGate
	if err := json.Unmarshal(raw, &g); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if c.JSON {
		err = printJSON(std.out, raw)
	} else {
		_, err = io.WriteString(std.out, g.text())
	}
	switch {
	case err != nil:
		return err
	case g.State == string(catalog.GateFailed):
		return judgedError(fmt.Sprintf("batch %s failed its gate: %s", c.Name, strings.Join(g.Reasons, ", ")))
	case g.Error != nil:
		return &client.UnavailableError{URL: c.URL, Err: &client.Problem{
			Status: http.StatusServiceUnavailable, Code: g.Error.Code, Detail: fmt.Sprintf("batch %s could not be judged: %s", c.Name, printable(g.Error.Detail)),
		}}
	}
	return nil
}

type batchPublishCmd struct {
	Name batchName `arg:"" help:"Batch."`
	Why  string    `required:"" help:"The reason, for the audit."`
	clientFlags
}

// Run makes a batch's outputs current.
func (c *batchPublishCmd) Run(ctx context.Context, std streams) error {
	return ask(ctx, c.clientFlags, std, http.MethodPost, c.Name.path("publish"), map[string]string{"why": c.Why}, numbers("batch", "published", "moved"))
}
