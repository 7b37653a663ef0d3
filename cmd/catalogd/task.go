package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
)

// taskFlags are what the step is told beside the unit.
type taskFlags struct {
	Batch     string   `env:"CATALOGD_BATCH" placeholder:"NAME" help:"The batch that it is done for, which expects the unit."`
	ClientKey string   `placeholder:"KEY" help:"The pipeline's own key for the unit, unique within the collection."`
	MediaType string   `help:"Of the output; the collection's by default."`
	Acquired  string   `placeholder:"TIME[/TIME]" help:"When it was acquired, as RFC 3339; by default what the file's tags say."`
	Property  []string `sep:"none" placeholder:"KEY=TEXT|KEY:=JSON" help:"What else to say of the output. Repeat."`

	Owner    string        `env:"CATALOGD_OWNER" help:"Who works on it; by default what Airflow, Dagster, Celery, Slurm or Kubernetes says in the environment, or user@host."`
	Try      *int          `env:"CATALOGD_TRY" help:"Which try of that owner: a higher one takes over its own attempt at once. By default from there too, or 0."`
	Wait     bool          `help:"Wait while another owner works on the unit."`
	Upload   bool          `help:"Send the output through catalogd, although the store may be mounted here, or reached from here."`
	PartSize byteSize      `placeholder:"SIZE" help:"Size of the parts in which an output goes to an object store, 4 at once: 16MiB. At least 5MiB; by default one part up to 256MiB, and else 16MiB."`
	Patience time.Duration `env:"CATALOGD_PATIENCE" default:"10m" help:"How long to wait for a catalogd that is away."`
	clientFlags
}

func (f taskFlags) task(std streams, unit catalog.Unit) (*client.Task, error) {
	server, err := f.client(std, f.Patience)
	if err != nil {
		return nil, err
	}
	if f.Try != nil && *f.Try < 0 {
		return nil, usageError("--try counts from 0 up")
	}
	if f.PartSize > 0 && (f.PartSize < minPart || f.PartSize > maxPart) {
		return nil, usageError("--part-size is from 5MiB to 5GiB")
	}
	g := &gauge{w: std.err}
	if server.Notice = g.notice; !f.JSON {
		server.Meter = g.start
	}
	unit.ClientKey = f.ClientKey
	t := &client.Task{Client: server, Unit: unit, Batch: f.Batch, Origin: client.FindOrigin(os.Getenv), MediaType: f.MediaType, PartSize: int64(f.PartSize), Wait: f.Wait}
	if f.Owner != "" {
		t.Origin = client.Origin{Owner: f.Owner}
	}
	if f.Try != nil {
		t.Origin.Try = *f.Try
	}
	if f.Acquired != "" {
		start, end, _ := strings.Cut(f.Acquired, "/")
		t.Acquired = &client.Interval{Start: start, End: end}
	}
	if len(f.Property) > 0 {
		if t.Properties, err = client.Members("--property", f.Property); err != nil {
			return nil, usageError(err.Error())
		}
	}
	return t, nil
}

// S3's bounds of a part, but of the last.
const minPart, maxPart = 5 << 20, 5 << 30

// byteSize is a number of bytes.
type byteSize int64

// UnmarshalText reads 16777216, 16MiB, 16M, 16KiB or 1GiB.
func (b *byteSize) UnmarshalText(text []byte) error {
	number, unit := strings.TrimRight(string(text), "KMGiB"), int64(1)
	switch strings.TrimSuffix(strings.TrimPrefix(string(text), number), "iB") {
	case "":
	case "K":
		unit = 1 << 10
	case "M":
		unit = 1 << 20
	case "G":
		unit = 1 << 30
	default:
		return fmt.Errorf("%q is no size such as 16MiB", text)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return fmt.Errorf("%q is no size such as 16MiB", text)
	}
	*b = byteSize(n * unit)
	return nil
}

// tell prints how a task ended.
func (f taskFlags) tell(std streams, ended *client.Ended) error {
	if f.JSON {
		return printJSON(std.out, ended)
	}
	_, err := fmt.Fprintln(std.out, ended.State, ended.Tile.ObjectKey)
	return err
}

type putCmd struct {
	File string `arg:"" type:"existingfile" help:"The finished file."`
	unitArgs
	taskFlags
}

// Run hands a file over, unless its unit is done.
func (c *putCmd) Run(ctx context.Context, std streams) error {
	unit, err := c.unit()
	if err != nil {
		return err
	}
	task, err := c.task(std, unit)
	if err != nil {
		return err
	}
	ended, err := task.Put(ctx, c.File, c.Upload)
	if err != nil {
		return about(unit, err)
	}
	return c.tell(std, ended)
}

func about(unit catalog.Unit, err error) error {
	return fmt.Errorf("%s/%s: %w", unit.Collection, unit.TileID, err)
}

// commandLine is what follows -- on the command line.
type commandLine []string

type execCmd struct {
	unitArgs
	Tag       bool          `help:"Have gdal_edit.py write unit key, version and identity into the output; a COG is none then. gdal_translate can write them itself: see {tags}."`
	PassToken bool          `help:"Leave CATALOGD_TOKEN and CATALOGD_TOKEN_FILE in the command's environment, for a command that calls catalogd."`
	Grace     time.Duration `default:"10s" help:"How long a command that must end has, from SIGTERM to SIGKILL."`
	taskFlags
}

// Help implements kong.HelpProvider.
func (*execCmd) Help() string {
	return `The command follows --. In its arguments {out} is where it must write, and the argument {tags} stands for -mo KEY=VALUE …, which gdal_translate takes. Its environment has CATALOGD_OUT, CATALOGD_UNIT_KEY, CATALOGD_VERSION and CATALOGD_IDENTITY.

  catalogd exec landcover t0001 version=v7 scene_id=S2_0804 -- gdalwarp -t_srs EPSG:32633 in.tif {out}

Prints skip, done or overtaken (another's output came first), and the object. Exit codes: 0 done or skipped · 1 the command failed, or its output was refused, which was reported · 2 usage · 10 quarantined, before or by that · 75 try later: another owner has the unit, it failed and is not due yet, catalogd is away, or a signal came.`
}

// Run has the command make the unit's output, unless it is done.
func (c *execCmd) Run(ctx context.Context, std streams, args commandLine) error {
	if len(args) == 0 {
		return usageError("say what to run, after --: catalogd exec COLLECTION TILE_ID version=V -- PROGRAM … {out}")
	}
	unit, err := c.unit()
	if err != nil {
		return err
	}
	task, err := c.task(std, unit)
	if err != nil {
		return err
	}
	stdout := std.out
	if c.JSON {
		stdout = std.err // standard output is JSON alone
	}
	ended, err := task.Exec(ctx, client.Command{Args: args, Stdout: stdout, Stderr: std.err, Tag: c.Tag, Upload: c.Upload, PassToken: c.PassToken, Grace: c.Grace})
	if err != nil {
		return about(unit, err)
	}
	return c.tell(std, ended)
}

type failCmd struct {
	Attempt    string `arg:"" help:"Attempt, from begin."`
	Reason     string `help:"Short and stable: an exception's name, http_503. By default made of --http-status, else --exception; one of the three is needed."`
	Class      string `enum:",transient,deterministic" default:"" help:"transient or deterministic, where it is known; else found by the collection's rules, the HTTP status or the exception."`
	HTTPStatus int    `name:"http-status" placeholder:"503" help:"Of the answer that made it fail."`
	Exception  string `placeholder:"NAME" help:"Qualified name: rasterio.errors.CRSError."`
	Message    string `help:"For people; - reads standard input."`
	clientFlags
}

// Run reports that an attempt failed, and prints what becomes of its unit.
func (c *failCmd) Run(ctx context.Context, std streams) error {
	if _, err := uuid.Parse(c.Attempt); err != nil {
		return usageError(fmt.Sprintf("%q is no attempt's id", c.Attempt))
	}
	if c.Reason == "" && c.HTTPStatus == 0 && c.Exception == "" {
		return usageError("say why: --reason, --http-status or --exception")
	}
	if c.Message == "-" {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, 8<<10))
		if err != nil {
			return err
		}
		c.Message = string(text)
	}
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var answer json.RawMessage
	failure := client.Failure{Class: c.Class, Reason: c.Reason, HTTPStatus: c.HTTPStatus, Exception: c.Exception, Message: c.Message}
	if err := server.Fail(ctx, c.Attempt, failure, &answer); err != nil {
		return err
	}
	var failed client.Failed
	if err := json.Unmarshal(answer, &failed); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if c.JSON {
		err = printJSON(std.out, answer)
	} else {
		_, err = fmt.Fprintln(std.out, failed.Next, c.Attempt)
	}
	switch {
	case err != nil:
		return err
	case failed.Quarantined():
		return fmt.Errorf("%w as %s (%s)", client.ErrQuarantined, failed.Class, failed.Reason)
	}
	fmt.Fprintln(std.err, "catalogd:", failed)
	return nil
}

type publishCmd struct {
	Collection string `arg:"" help:"Collection."`
	Version    string `arg:"" help:"Version to give the top rank."`
	Why        string `required:"" help:"The reason, for the audit."`
	clientFlags
}

// Run makes a version current, for what exists and for what comes.
func (c *publishCmd) Run(ctx context.Context, std streams) error {
	body := map[string]string{"collection": c.Collection, "version": c.Version, "why": c.Why}
	return ask(ctx, c.clientFlags, std, http.MethodPost, "/v1/publish", body, numbers("collection", "version", "rank", "moved", "slots"))
}

type recoverCmd struct{ clientFlags }

// Run rolls forward what a crash left open.
func (c *recoverCmd) Run(ctx context.Context, std streams) error {
	return ask(ctx, c.clientFlags, std, http.MethodPost, "/v1/recover", nil, numbers("rolled_forward", "overtaken", "failed", "unfinished", "published"))
}

type sweepCmd struct{ clientFlags }

// Run removes what ended attempts left in staging.
func (c *sweepCmd) Run(ctx context.Context, std streams) error {
	return ask(ctx, c.clientFlags, std, http.MethodPost, "/v1/sweep", nil, numbers("expired", "attempts", "objects", "bytes", "uploads", "relinked", "kept"))
}

// numbers prints members of an answer, in this order.
func numbers(names ...string) func(map[string]json.RawMessage) [][]string {
	return func(answer map[string]json.RawMessage) [][]string {
		var rows [][]string
		for _, name := range names {
			rows = append(rows, []string{name, strings.Trim(string(answer[name]), `"`)})
		}
		return rows
	}
}

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a token, and print its text this once."`
	List   tokenListCmd   `cmd:"" help:"All tokens, without their text."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a token; its name stays taken."`
}

type tokenCreateCmd struct {
	Name      string        `arg:"" help:"Who has it; written to the audit."`
	Role      string        `required:"" enum:"read,write,admin" help:"read, write or admin; each includes those before it."`
	ExpiresIn time.Duration `placeholder:"720h" help:"Never by default."`
	clientFlags
}

func (c *tokenCreateCmd) Run(ctx context.Context, std streams) error {
	body := map[string]any{"name": c.Name, "role": c.Role}
	switch {
	case c.ExpiresIn < 0:
		return usageError("--expires-in is a time to come")
	case c.ExpiresIn > 0:
		body["expires_at"] = time.Now().Add(c.ExpiresIn).UTC().Format(time.RFC3339)
	}
	type created struct {
		Token string `json:"token"`
	}
	return ask(ctx, c.clientFlags, std, http.MethodPost, "/v1/tokens", body, func(t created) [][]string { return [][]string{{t.Token}} })
}

type tokenListCmd struct{ clientFlags }

func (c *tokenListCmd) Run(ctx context.Context, std streams) error {
	type list struct {
		Tokens []struct {
			Name      string     `json:"name"`
			Role      string     `json:"role"`
			CreatedAt time.Time  `json:"created_at"`
			ExpiresAt *time.Time `json:"expires_at"`
			RevokedAt *time.Time `json:"revoked_at"`
		} `json:"tokens"`
	}
	return ask(ctx, c.clientFlags, std, http.MethodGet, "/v1/tokens", nil, func(l list) [][]string {
		rows := [][]string{{"NAME", "ROLE", "CREATED_AT", "EXPIRES_AT", "REVOKED_AT"}}
		for _, t := range l.Tokens {
			rows = append(rows, []string{t.Name, t.Role, at(&t.CreatedAt), at(t.ExpiresAt), at(t.RevokedAt)})
		}
		return rows
	})
}

type tokenRevokeCmd struct {
	Name string `arg:"" help:"Token."`
	clientFlags
}

func (c *tokenRevokeCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	if err := server.Call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(c.Name), nil, nil); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, "revoked", c.Name)
	return err
}
