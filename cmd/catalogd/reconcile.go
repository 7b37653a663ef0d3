package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
	"catalogd/internal/listing"
)

type reconcileCmd struct {
	Run      reconcileRunCmd      `cmd:"" default:"withargs" help:"Compare a store with the catalogue; this is what reconcile alone does."`
	List     reconcileListCmd     `cmd:"" name:"ls" aliases:"list" help:"Runs, the latest first."`
	Show     reconcileShowCmd     `cmd:"" help:"How a run stands, or ended."`
	Cancel   reconcileCancelCmd   `cmd:"" help:"Have a run stop; what it has found stays. Takes the role admin."`
	Findings reconcileFindingsCmd `cmd:"" help:"What disagrees, one by one."`
	Plan     reconcilePlanCmd     `cmd:"" help:"Say what is to be done about a run's findings, without doing it."`
	Apply    reconcileApplyCmd    `cmd:"" help:"Do what a plan says, once; takes the role admin."`
}

// Help implements kong.HelpProvider.
func (*reconcileCmd) Help() string {
	return "The flags of reconcile alone: catalogd reconcile run --help."
}

const reconcilePath = "/v1/reconcile"

func runPath(run int64, of string) string {
	return strings.TrimSuffix(fmt.Sprintf("%s/%d/%s", reconcilePath, run, of), "/")
}

type reconcileRunCmd struct {
	Store     string         `placeholder:"STORE" help:"Name, id or root of the store; the server's first by default."`
	Prefix    string         `help:"Only objects whose keys begin with it, such as landcover/."`
	MinAge    *time.Duration `placeholder:"24h" help:"How long an object that is not catalogd's must have been seen before it is an orphan; by default the server's setting."`
	Settle    *time.Duration `placeholder:"5s" help:"How long after it was missing first an object is looked for again; by default the server's setting."`
	Listing   string         `xor:"listing" type:"existingfile" placeholder:"FILE" help:"Compare with this listing of the store: NDJSON of {\"key\", \"size\", \"etag\", \"modified\"}, or what rclone lsjson -R --files-only prints. - is standard input."`
	Inventory string         `xor:"listing" type:"existingfile" placeholder:"MANIFEST" help:"Compare with this S3 Inventory: its manifest.json, with its files beside it."`
	Wait      bool           `negatable:"" default:"true" help:"Wait for the end."`
	patientFlags
}

// Help implements kong.HelpProvider.
func (*reconcileRunCmd) Help() string {
	return `Changes no object and no row; stable names that are wrong are put right. A run goes on at the server when this command is interrupted.

Exit codes: 0 the two agree, or, with --no-wait, it runs · 1 an error, such as a listing that breaks off · 2 usage · 3 there are findings · 75 not all was seen, another run of the store is under way, or catalogd is away: nothing is concluded from what was not seen.`
}

// Run compares, and prints what was found.
func (c *reconcileRunCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	asked := map[string]any{}
	for name, text := range map[string]string{"store": c.Store, "prefix": c.Prefix} {
		if text != "" {
			asked[name] = text
		}
	}
	for name, d := range map[string]*time.Duration{"min_age_seconds": c.MinAge, "settle_seconds": c.Settle} {
		if d != nil {
			asked[name] = d.Seconds()
		}
	}
	var raw json.RawMessage
	if c.Listing != "" || c.Inventory != "" {
		raw, err = c.send(ctx, server, asked)
	} else {
		raw, err = c.start(ctx, server, std, asked)
	}
	if err != nil {
		return err
	}
	run, err := readRun(raw)
	if err != nil {
		return err
	}
	if run.State == string(catalog.RunRunning) && !c.JSON {
		_, err = fmt.Fprintf(std.out, "run %d has begun.  next: catalogd reconcile show %d\n", run.Run, run.Run)
		return err
	}
	return run.tell(std, raw, c.JSON)
}

// start asks for a run and, unless told otherwise, waits for its end.
func (c *reconcileRunCmd) start(ctx context.Context, server *client.Client, std streams, asked map[string]any) (raw json.RawMessage, err error) {
	// Once: sent again, it would meet its own run.
	once := *server
	once.Patience = 0
	if err := once.Call(ctx, http.MethodPost, reconcilePath, asked, &raw); err != nil {
		return nil, err
	}
	run, err := readRun(raw)
	if err != nil || !c.Wait {
		return raw, err
	}
	var bar *progressbar.ProgressBar
	if !c.JSON && showsBars(std.err) {
		bar = newBar(std.err, 1, "", progressbar.OptionClearOnFinish())
		server.Notice = func(line string) {
			_ = bar.Clear()
			fmt.Fprintln(std.err, "catalogd:", line)
		}
	}
	err = server.Follow(ctx, runPath(run.Run, ""), func(now json.RawMessage) (bool, error) {
		raw = now
		run, err := readRun(raw)
		ended := err != nil || run.State != string(catalog.RunRunning)
		if bar != nil && !ended {
			bar.ChangeMax64(max(run.Progress.ExpectedRows, run.Rows, 1))
			bar.Describe(fmt.Sprintf("run %d: %s objects, %s orphans, %s lost, %s mismatched", run.Run,
				thousands(run.Objects), thousands(run.Orphans), thousands(run.Lost), thousands(run.Mismatched)))
			_ = bar.Set64(min(run.Rows, bar.GetMax64()-1)) // a full one is over
		}
		return ended, err
	})
	if bar != nil {
		_ = bar.Clear()
	}
	if errors.Is(err, client.ErrInterrupted) {
		err = fmt.Errorf("%w: run %d goes on: catalogd reconcile show %d tells how it ended, catalogd reconcile cancel %d stops it", client.ErrInterrupted, run.Run, run.Run, run.Run)
	}
	return raw, err
}

// send has the store compared with a listing. What is wrong with that is told from here:
// the server sees only that it broke off.
func (c *reconcileRunCmd) send(ctx context.Context, server *client.Client, asked map[string]any) (raw json.RawMessage, err error) {
	opts, file := listing.Options{}, c.Listing
	if c.Inventory != "" {
		opts.Format, file = listing.Inventory, c.Inventory
		if opts.Bucket, opts.Prefix, err = bucketOf(ctx, server, c.Store); err != nil {
			return nil, err
		}
	}
	objects := listing.Read(ctx, os.Stdin, opts)
	if file != "-" {
		objects = listing.Open(ctx, file, opts)
	}
	// What cannot be read at all is told before the server is asked.
	first, stop, err := ahead(objects)
	if err != nil {
		return nil, err
	}
	defer stop()
	query := url.Values{}
	for name, value := range asked {
		query.Set(name, fmt.Sprint(value))
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := listing.Write(w, first)
		_ = w.CloseWithError(err)
		written <- err
	}()
	err = server.SendListing(ctx, query.Encode(), r, &raw)
	_ = r.CloseWithError(errNotTaken)
	if broken := <-written; broken != nil && !errors.Is(broken, errNotTaken) {
		return nil, broken
	}
	return raw, err
}

var errNotTaken = errors.New("the server took no more")

// ahead reads the first object, and gives all.
func ahead(objects iter.Seq2[catalog.Object, error]) (all iter.Seq2[catalog.Object, error], stop func(), err error) {
	next, stop := iter.Pull2(objects)
	o, err, some := next()
	if err != nil {
		stop()
		return nil, nil, err
	}
	return func(yield func(catalog.Object, error) bool) {
		for ; some && yield(o, err); o, err, some = next() {
		}
	}, stop, nil
}

// bucketOf are the bucket and prefix of a store.
func bucketOf(ctx context.Context, server *client.Client, name string) (bucket, prefix string, err error) {
	var list struct {
		Stores []struct {
			Name string `json:"name"`
			ID   string `json:"store_id"`
			Root string `json:"root"`
		} `json:"stores"`
	}
	if err := server.Call(ctx, http.MethodGet, "/v1/stores", nil, &list); err != nil {
		return "", "", err
	}
	for _, store := range list.Stores {
		if name != "" && name != store.Name && name != store.ID && strings.TrimRight(name, "/") != strings.TrimRight(store.Root, "/") {
			continue
		}
		root, err := url.Parse(store.Root)
		if err != nil || root.Scheme != "s3" {
			return "", "", usageError(fmt.Sprintf("store %s is %s: an inventory is of a bucket", store.Name, store.Root))
		}
		prefix := strings.Trim(root.Path, "/")
		if prefix != "" {
			prefix += "/"
		}
		return root.Host, prefix, nil
	}
	return "", "", &client.Problem{Status: http.StatusNotFound, Code: catalog.CodeUnknownStore, Detail: fmt.Sprintf("the server has no store %q", name)}
}

// reconciled is a run as the server tells it.
type reconciled struct {
	Run       int64     `json:"run"`
	Store     string    `json:"store"`
	Prefix    string    `json:"prefix"`
	Source    string    `json:"source"`
	State     string    `json:"state"`
	AskedBy   string    `json:"asked_by"`
	CreatedAt time.Time `json:"created_at"`
	Seconds   float64   `json:"seconds"`
	catalog.RunFigures
	Kinds    []catalog.KindCount `json:"kinds"`
	Progress struct {
		Parts        int    `json:"parts"`
		PartsEnded   int    `json:"parts_ended"`
		ExpectedRows int64  `json:"expected_rows"`
		AtKey        string `json:"at_key"`
	} `json:"progress"`
	Error *itemError `json:"error"`
}

func readRun(raw json.RawMessage) (run reconciled, err error) {
	if err = json.Unmarshal(raw, &run); err != nil {
		err = fmt.Errorf("read the server's answer: %w", err)
	}
	return run, err
}

func (r reconciled) open() (n, planned int64) {
	for _, k := range r.Kinds {
		n += k.Open
		if k.Kind != catalog.FindingStaging && k.Kind != catalog.FindingUpload {
			planned += k.Open
		}
	}
	return n, planned
}

// tell prints a run, and gives the error that its end is.
func (r reconciled) tell(std streams, raw json.RawMessage, asJSON bool) (err error) {
	if asJSON {
		err = printJSON(std.out, raw)
	} else {
		_, err = io.WriteString(std.out, r.text())
	}
	open, _ := r.open()
	switch {
	case err != nil:
		return err
	case r.State == string(catalog.RunCanceled):
		return unfinished("", fmt.Sprintf("run %d was canceled: what it did not see is not known; reconcile again", r.Run))
	case r.State == string(catalog.RunIncomplete):
		problem := itemError{Detail: "the server's log says why"}
		if r.Error != nil {
			problem = *r.Error
		}
		if problem.Code == catalog.CodeInvalidRequest {
			return &client.Problem{Code: problem.Code, Detail: fmt.Sprintf("run %d is incomplete: %s", r.Run, printable(problem.Detail))}
		}
		return unfinished(problem.Code, fmt.Sprintf("run %d is incomplete, and nothing is concluded from what was not seen: %s", r.Run, printable(problem.Detail)))
	case r.State == string(catalog.RunComplete) && open > 0:
		return judgedError(fmt.Sprintf("run %d leaves %s findings open", r.Run, thousands(open)))
	}
	return nil
}

// unfinished is worth another try.
func unfinished(code catalog.Code, detail string) error {
	return &client.UnavailableError{Err: &client.Problem{Status: http.StatusServiceUnavailable, Code: code, Detail: detail}}
}

// text for people.
func (r reconciled) text() string {
	var b strings.Builder
	head := []string{fmt.Sprintf("run %d", r.Run), took(r.Seconds)}
	switch r.State {
	case string(catalog.RunComplete):
		head = append(head, "listing complete", "sentinel ok")
	case string(catalog.RunRunning):
		head = append(head, fmt.Sprintf("running, %d of %d parts ended", r.Progress.PartsEnded, r.Progress.Parts))
	default:
		head = append(head, r.State)
	}
	if r.Store != firstStore {
		head = append(head, "store "+printable(r.Store))
	}
	if r.Prefix != "" {
		head = append(head, "prefix "+printable(r.Prefix))
	}
	fmt.Fprintln(&b, strings.Join(head, "  "))
	figures := []string{
		"objects " + thousands(r.Objects), "rows " + thousands(r.Rows), "matched " + thousands(r.Matched), "in flight " + thousands(r.InFlight+r.RowsInFlight), "unknown " + thousands(r.Unknown+r.RowsUnknown),
	}
	for _, more := range []struct {
		name string
		n    int64
	}{{"young", r.Young}, {"relinked", r.Relinked}} {
		if more.n > 0 {
			figures = append(figures, more.name+" "+thousands(more.n))
		}
	}
	fmt.Fprintln(&b, strings.Join(figures, "  "))
	if r.State == string(catalog.RunRunning) {
		return b.String()
	}
	rows := [][]string{{"KIND", "NEW", "OPEN", "RESOLVED", "BYTES", "EXAMPLE"}}
	for _, k := range r.Kinds {
		if k.New+k.Open+k.Resolved > 0 {
			rows = append(rows, []string{kindWord(k.Kind), thousands(k.New), thousands(k.Open), thousands(k.Resolved), bytesOf(k.Bytes), printable(shortKey(k.Example))})
		}
	}
	if len(rows) > 1 {
		printAligned(&b, rows, 1, 2, 3)
	}
	if r.State != string(catalog.RunComplete) {
		return b.String()
	}
	switch open, planned := r.open(); {
	case open == 0 && r.Objects+r.Rows == 0 && r.Prefix != "":
		fmt.Fprintf(&b, "nothing was compared: no object and no row is below %s\n", printable(r.Prefix))
	case open == 0:
		fmt.Fprintln(&b, "clean: nothing disagrees.")
	case planned == 0:
		fmt.Fprintln(&b, "nothing was changed.  next: catalogd sweep")
	default:
		fmt.Fprintf(&b, "nothing was changed.  next: catalogd reconcile plan %d\n", r.Run)
	}
	return b.String()
}

func kindWord(kind catalog.FindingKind) string { return strings.ReplaceAll(string(kind), "_", "-") }

// shortKey leaves out what tells attempts of a unit apart: of landcover/t0412.3f9c…, which
// is followed by what differs of a mismatch, the rest is enough to know it by.
func shortKey(example string) string {
	key, rest, _ := strings.Cut(example, " ")
	if rest != "" {
		rest = " " + rest
	}
	if n, ok := catalog.ParseFinalName(key); ok {
		key = n.Collection + "/" + n.TileID + "." + n.Unit[:4] + "…" + n.Ext
	}
	if letters := []rune(key); len(letters) > 64 {
		key = string(letters[:40]) + "…" + string(letters[len(letters)-20:])
	}
	return key + rest
}

// took is how long something took.
func took(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// thousands writes 2004118 as 2,004,118.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// bytesOf writes a size as people do: 1.2 GiB, 160 MiB, 7 B.
func bytesOf(n int64) string {
	size, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for ; size >= 1023.5 && i < len(units)-1; i++ {
		size /= 1024
	}
	if i > 0 && size < 9.95 {
		return fmt.Sprintf("%.1f %s", size, units[i])
	}
	return fmt.Sprintf("%.0f %s", size, units[i])
}

type reconcileListCmd struct {
	Store string `placeholder:"STORE" help:"Those of this store."`
	Limit int    `default:"20" help:"How many, up to 1000."`
	clientFlags
}

// Run prints the latest; with --json, one run a line.
func (c *reconcileListCmd) Run(ctx context.Context, std streams) error {
	return listThese(ctx, c.clientFlags, std, reconcilePath, "runs", given("store", c.Store, "limit", strconv.Itoa(c.Limit)),
		[]string{"RUN", "STORE", "PREFIX", "STATE", "BEGAN", "TOOK", "OPEN", "BY"}, func(raw json.RawMessage) ([]string, error) {
			r, err := readRun(raw)
			open, _ := r.open()
			return []string{count(r.Run), r.Store, r.Prefix, r.State, at(&r.CreatedAt), took(r.Seconds), thousands(open), r.AskedBy}, err
		})
}

// listThese prints one page of a list as a table or, with --json, an item a line.
func listThese(ctx context.Context, c clientFlags, std streams, path, items, query string, head []string, row func(json.RawMessage) ([]string, error)) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var page map[string]json.RawMessage
	if err := server.Call(ctx, http.MethodGet, path+"?"+query, nil, &page); err != nil {
		return err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(page[items], &list); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	rows := [][]string{head}
	for _, raw := range list {
		if c.JSON {
			if err := printLine(std.out, raw); err != nil {
				return err
			}
			continue
		}
		cells, err := row(raw)
		if err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		rows = append(rows, cells)
	}
	if c.JSON {
		return nil
	}
	return printTable(std.out, rows)
}

type reconcileShowCmd struct {
	Number int64 `arg:"" name:"run" help:"Number of the run."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (*reconcileShowCmd) Help() string {
	return "Exit codes: those of catalogd reconcile; 0 while it runs."
}

// Run prints a run as it stands.
func (c *reconcileShowCmd) Run(ctx context.Context, std streams) error {
	return tellRun(ctx, c.clientFlags, std, http.MethodGet, runPath(c.Number, ""))
}

func tellRun(ctx context.Context, c clientFlags, std streams, method, path string) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := server.Call(ctx, method, path, nil, &raw); err != nil {
		return err
	}
	run, err := readRun(raw)
	if err != nil {
		return err
	}
	return run.tell(std, raw, c.JSON)
}

type reconcileCancelCmd struct {
	Number int64 `arg:"" name:"run" help:"Number of the run."`
	clientFlags
}

// Run has a run stop.
func (c *reconcileCancelCmd) Run(ctx context.Context, std streams) error {
	return ask(ctx, c.clientFlags, std, http.MethodPost, runPath(c.Number, "cancel"), nil, func(r reconciled) [][]string {
		if r.State == string(catalog.RunRunning) {
			r.State = "stops"
		}
		return facts("run", count(r.Run), "state", r.State)
	})
}

type reconcileFindingsCmd struct {
	Number int64  `arg:"" optional:"" name:"run" help:"Those of this run's store, below its prefix; by default the latest run's."`
	Store  string `placeholder:"STORE" help:"Store of the latest run; any by default."`
	Kind   string `enum:",orphan,lost,mismatch,stale-staging,abandoned-upload" default:"" help:"Those of this kind: orphan, lost, mismatch, stale-staging, abandoned-upload."`
	State  string `enum:",young,open,resolved" default:"" help:"Those in this state: young, open, resolved; by default those not resolved."`
	Prefix string `help:"Those whose object keys begin with it."`
	clientFlags
}

const findingRow = "%-17s %-8s %10s  %-20s  %s\n"

// Run prints findings, whatever their number: with --json, one a line.
func (c *reconcileFindingsCmd) Run(ctx context.Context, std streams) (err error) {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	number := c.Number
	if number == 0 {
		var latest struct {
			Runs []reconciled `json:"runs"`
		}
		if err := server.Call(ctx, http.MethodGet, reconcilePath+"?"+given("limit", "1", "store", c.Store), nil, &latest); err != nil {
			return err
		}
		if len(latest.Runs) == 0 {
			return errors.New("there is no run yet: make one with catalogd reconcile")
		}
		number = latest.Runs[0].Run
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	if !c.JSON {
		fmt.Fprintf(out, findingRow, "KIND", "STATE", "SIZE", "FIRST SEEN", "OBJECT")
	}
	path := runPath(number, "findings") + "?" + given("kind", strings.ReplaceAll(c.Kind, "-", "_"), "state", c.State, "prefix", c.Prefix)
	return server.Lines(ctx, path, func(line []byte) error {
		if c.JSON {
			_, err := fmt.Fprintf(out, "%s\n", line)
			return err
		}
		var f struct {
			Kind      catalog.FindingKind `json:"kind"`
			State     string              `json:"state"`
			ObjectKey string              `json:"object_key"`
			Reason    string              `json:"reason"`
			SizeBytes int64               `json:"size_bytes"`
			FirstSeen time.Time           `json:"first_seen_at"`
		}
		if err := json.Unmarshal(line, &f); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		_, err := fmt.Fprintf(out, findingRow, kindWord(f.Kind), f.State, bytesOf(f.SizeBytes), at(&f.FirstSeen), strings.TrimSpace(printable(f.ObjectKey)+"  "+f.Reason))
		return err
	})
}

// given are pairs of names and values as a query, without those that have no value.
func given(pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query.Encode()
}
