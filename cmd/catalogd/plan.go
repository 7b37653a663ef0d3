package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
)

type reconcilePlanCmd struct {
	Make reconcilePlanMakeCmd `cmd:"" default:"withargs" help:"Make a plan of a complete run's findings; this is what plan RUN does. Takes the role admin."`
	Show reconcilePlanShowCmd `cmd:"" help:"A plan, and what came of it."`
	List reconcilePlanListCmd `cmd:"" name:"ls" aliases:"list" help:"Plans, the latest first."`
}

func planPath(plan int64, of string) string {
	return strings.TrimSuffix(fmt.Sprintf("/v1/plans/%d/%s", plan, of), "/")
}

type reconcilePlanMakeCmd struct {
	Number   int64  `arg:"" name:"run" help:"Number of the run."`
	Orphan   string `enum:"trash,adopt,leave" default:"trash" help:"What becomes of objects without a row: they are moved to the trash (trash), get a row (adopt), or stay (leave)."`
	Lost     string `enum:"redo,leave" default:"redo" help:"What becomes of rows without their objects: their units are made again (redo), or nothing (leave)."`
	Mismatch string `enum:"redo,leave" default:"redo" help:"What becomes of objects that are not what their rows say: they are moved to the trash and their units made again (redo), or nothing (leave)."`
	planFlags
}

// planFlags are those of commands that print a plan.
type planFlags struct {
	Output string `short:"o" type:"path" placeholder:"FILE" help:"Write the whole plan there, as NDJSON: the plan, then its acts. - is standard output."`
	clientFlags
}

// Run makes a plan, and prints what it would do.
func (c *reconcilePlanMakeCmd) Run(ctx context.Context, std streams) error {
	body := map[string]string{"orphan": c.Orphan, "lost": c.Lost, "mismatch": c.Mismatch}
	return c.tell(ctx, std, http.MethodPost, runPath(c.Number, "plan"), body)
}

type reconcilePlanShowCmd struct {
	Number int64 `arg:"" name:"plan" help:"Number of the plan."`
	planFlags
}

// Run prints a plan as it stands.
func (c *reconcilePlanShowCmd) Run(ctx context.Context, std streams) error {
	return c.tell(ctx, std, http.MethodGet, planPath(c.Number, ""), nil)
}

// tell asks for a plan, and prints or writes it.
func (c planFlags) tell(ctx context.Context, std streams, method, path string, body any) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := server.Call(ctx, method, path, body, &raw); err != nil {
		return err
	}
	p, err := readPlan(raw)
	if err != nil {
		return err
	}
	if c.Output != "" {
		if err := p.write(ctx, server, std, raw, c.Output); err != nil || c.Output == "-" {
			return err
		}
	}
	if c.JSON {
		return printJSON(std.out, raw)
	}
	text, err := p.text(ctx, server)
	if err == nil {
		_, err = io.WriteString(std.out, text)
	}
	return err
}

// planned is a plan as the server tells it.
type planned struct {
	Plan       int64              `json:"plan"`
	Run        int64              `json:"run"`
	Store      string             `json:"store"`
	State      string             `json:"state"`
	Acts       int64              `json:"acts"`
	Catalogued int64              `json:"catalogued"`
	Share      float64            `json:"share"`
	Counts     []catalog.ActCount `json:"counts"`
	PlannedBy  string             `json:"planned_by"`
	CreatedAt  time.Time          `json:"created_at"`
	StartedAt  time.Time          `json:"started_at"`
	EndedAt    time.Time          `json:"ended_at"`
	Error      *itemError         `json:"error"`
}

func readPlan(raw json.RawMessage) (p planned, err error) {
	if err = json.Unmarshal(raw, &p); err != nil {
		err = fmt.Errorf("read the server's answer: %w", err)
	}
	return p, err
}

// acts counts those in a state, of one kind or, with "", all.
func (p planned) acts(kind catalog.ActKind, state catalog.ActState) (n, bytes int64) {
	for _, c := range p.Counts {
		if c.State == state && (kind == "" || c.Act == kind) {
			n, bytes = n+c.Acts, bytes+c.Bytes
		}
	}
	return n, bytes
}

// plannedAct is an act as the server tells it.
type plannedAct struct {
	Act       catalog.ActKind     `json:"act"`
	State     catalog.ActState    `json:"state"`
	Kind      catalog.FindingKind `json:"kind"`
	ObjectKey string              `json:"object_key"`
	Outcome   string              `json:"outcome"`
}

// write writes the plan and its acts, one a line, to a file that is there once it is whole.
func (p planned) write(ctx context.Context, server *client.Client, std streams, raw json.RawMessage, name string) error {
	if name == "-" {
		return p.writeTo(ctx, server, raw, std.out)
	}
	f, err := os.Create(name + ".part")
	if err != nil {
		return err
	}
	err = errors.Join(p.writeTo(ctx, server, raw, f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func (p planned) writeTo(ctx context.Context, server *client.Client, raw json.RawMessage, w io.Writer) error {
	out := bufio.NewWriter(w)
	if err := printLine(out, raw); err != nil {
		return err
	}
	err := server.Lines(ctx, planPath(p.Plan, "acts"), func(line []byte) error {
		_, err := fmt.Fprintf(out, "%s\n", line)
		return err
	})
	return errors.Join(err, out.Flush())
}

// How many examples, and acts that were left, are printed for people.
const (
	shownExamples = 3
	shownLeft     = 20
)

var errEnough = errors.New("enough")

// text for people: what it would do, or has done.
func (p planned) text(ctx context.Context, server *client.Client) (string, error) {
	var b strings.Builder
	head := []string{fmt.Sprintf("plan %d of run %d", p.Plan, p.Run)}
	if p.State != string(catalog.PlanPlanned) {
		head = append(head, p.State)
		if !p.EndedAt.IsZero() {
			head = append(head, took(p.EndedAt.Sub(p.StartedAt).Seconds()))
		}
	}
	fmt.Fprintf(&b, "%s  acts %s  %s of %s outputs\n", strings.Join(head, "  "), thousands(p.Acts), share(p.Share), thousands(p.Catalogued))
	if p.Acts == 0 {
		fmt.Fprintln(&b, "there is nothing to do.")
		return b.String(), nil
	}
	if p.State != string(catalog.PlanPlanned) {
		return b.String() + p.outcome(), nil
	}
	examples := map[catalog.ActKind][]string{}
	lack := 0
	for _, c := range p.Counts {
		lack += int(min(c.Acts, shownExamples))
	}
	err := server.Lines(ctx, planPath(p.Plan, "acts"), func(line []byte) error {
		var a plannedAct
		if err := json.Unmarshal(line, &a); err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		if len(examples[a.Act]) < shownExamples {
			examples[a.Act] = append(examples[a.Act], shortKey(a.ObjectKey))
			lack--
		}
		if lack == 0 {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", err
	}
	rows := [][]string{{"ACT", "ACTS", "BYTES", "EXAMPLES"}}
	for _, c := range p.Counts {
		rows = append(rows, []string{string(c.Act), thousands(c.Acts), bytesOf(c.Bytes), printable(strings.Join(examples[c.Act], ", "))})
	}
	printAligned(&b, rows, 1)
	fmt.Fprintf(&b, "nothing was changed.  next: catalogd reconcile apply %d\n", p.Plan)
	return b.String(), nil
}

// outcome is a table of what became of acts.
func (p planned) outcome() string {
	rows := [][]string{{"ACT", "PLANNED", "DONE", "LEFT", "BYTES DONE"}}
	for _, kind := range []catalog.ActKind{catalog.ActRedo, catalog.ActAdopt, catalog.ActTrash} {
		planned, _ := p.acts(kind, catalog.ActPlanned)
		done, bytes := p.acts(kind, catalog.ActDone)
		left, _ := p.acts(kind, catalog.ActLeft)
		if planned+done+left > 0 {
			rows = append(rows, []string{string(kind), thousands(planned), thousands(done), thousands(left), bytesOf(bytes)})
		}
	}
	var b strings.Builder
	printAligned(&b, rows, 1, 2, 3)
	return b.String()
}

type reconcilePlanListCmd struct {
	Number int64 `arg:"" optional:"" name:"run" help:"Those of this run."`
	Limit  int   `default:"20" help:"How many, up to 1000."`
	clientFlags
}

// Run prints the latest; with --json, one plan a line.
func (c *reconcilePlanListCmd) Run(ctx context.Context, std streams) error {
	run := ""
	if c.Number != 0 {
		run = count(c.Number)
	}
	return listThese(ctx, c.clientFlags, std, "/v1/plans", "plans", given("run", run, "limit", strconv.Itoa(c.Limit)),
		[]string{"PLAN", "RUN", "STORE", "STATE", "ACTS", "DONE", "LEFT", "MADE", "BY"}, func(raw json.RawMessage) ([]string, error) {
			p, err := readPlan(raw)
			done, _ := p.acts("", catalog.ActDone)
			left, _ := p.acts("", catalog.ActLeft)
			return []string{count(p.Plan), count(p.Run), p.Store, p.State, thousands(p.Acts), thousands(done), thousands(left), at(&p.CreatedAt), p.PlannedBy}, err
		})
}

type reconcileApplyCmd struct {
	Number    int64   `arg:"" name:"plan" help:"Number of the plan."`
	MaxChange float64 `default:"0.05" placeholder:"SHARE" help:"Refuse a plan that would change more than this share of the store's outputs."`
	Why       string  `help:"The reason, for the audit."`
	Wait      bool    `negatable:"" default:"true" help:"Wait for the end."`
	patientFlags
}

// Help implements kong.HelpProvider.
func (*reconcileApplyCmd) Help() string {
	return `Each act is confirmed first: what is no longer so is left. A plan goes on at the server when this command is interrupted.

Exit codes: 0 all is done, or, with --no-wait, it is being applied · 1 an error, such as a plan that would change too much, or was applied before · 2 usage · 3 some acts were left · 75 the store or catalogd is away.`
}

// Run applies a plan, and prints what became of it.
func (c *reconcileApplyCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, c.Patience)
	if err != nil {
		return err
	}
	body := map[string]any{"max_change": c.MaxChange}
	if c.Why != "" {
		body["why"] = c.Why
	}
	// Once: sent again, it would meet a plan that is being applied.
	once := *server
	once.Patience = 0
	var raw json.RawMessage
	if err := once.Call(ctx, http.MethodPost, planPath(c.Number, "apply"), body, &raw); err != nil {
		return err
	}
	p, err := readPlan(raw)
	if err == nil && c.Wait {
		raw, p, err = c.wait(ctx, server, std)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(std.out, raw)
	} else {
		text := ""
		if text, err = p.text(ctx, server); err == nil {
			_, err = io.WriteString(std.out, text)
		}
	}
	if err != nil {
		return err
	}
	return c.end(ctx, server, std, p)
}

// wait follows a plan until it has ended.
func (c *reconcileApplyCmd) wait(ctx context.Context, server *client.Client, std streams) (raw json.RawMessage, p planned, err error) {
	var bar *progressbar.ProgressBar
	if !c.JSON && showsBars(std.err) {
		bar = newBar(std.err, 1, fmt.Sprintf("applying plan %d", c.Number), progressbar.OptionClearOnFinish())
	}
	err = server.Follow(ctx, planPath(c.Number, ""), func(now json.RawMessage) (bool, error) {
		raw = now
		if p, err = readPlan(raw); err != nil {
			return true, err
		}
		ended := p.State != string(catalog.PlanApplying)
		if bar != nil && !ended {
			waiting, _ := p.acts("", catalog.ActPlanned)
			bar.ChangeMax64(max(p.Acts, 1))
			_ = bar.Set64(min(p.Acts-waiting, bar.GetMax64()-1)) // a full one is over
		}
		return ended, nil
	})
	if bar != nil {
		_ = bar.Clear()
	}
	if errors.Is(err, client.ErrInterrupted) {
		err = fmt.Errorf("%w: plan %d goes on being applied: catalogd reconcile plan show %d", client.ErrInterrupted, c.Number, c.Number)
	}
	return raw, p, err
}

// end names acts that were left on standard error, and gives the error that its end is.
func (c *reconcileApplyCmd) end(ctx context.Context, server *client.Client, std streams, p planned) error {
	if p.State == string(catalog.PlanRefused) && p.Error != nil {
		detail := fmt.Sprintf("plan %d was refused: %s", p.Plan, printable(p.Error.Detail))
		if slices.Contains([]catalog.Code{catalog.CodeStoreUnavailable, catalog.CodeDatabaseUnavailable}, p.Error.Code) {
			return unfinished(p.Error.Code, detail)
		}
		return &client.Problem{Code: p.Error.Code, Detail: detail}
	}
	left, _ := p.acts("", catalog.ActLeft)
	if left == 0 {
		return nil
	}
	shown := int64(0)
	err := server.Lines(ctx, planPath(p.Plan, "acts"), func(line []byte) error {
		var a plannedAct
		if err := json.Unmarshal(line, &a); err != nil || a.State != catalog.ActLeft {
			return err
		}
		if shown++; shown > shownLeft {
			return errEnough
		}
		fmt.Fprintf(std.err, "left: %s %s %s: %s\n", a.Act, kindWord(a.Kind), printable(a.ObjectKey), printable(a.Outcome))
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		fmt.Fprintf(std.err, "and %s more: catalogd reconcile plan show %d -o FILE has all\n", thousands(left-shownLeft), p.Plan)
	case err != nil:
		return err
	}
	return judgedError(fmt.Sprintf("%s of the %s acts were left: reconcile again, and plan what is still so", thousands(left), thousands(p.Acts)))
}
