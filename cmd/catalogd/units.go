package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"github.com/google/uuid"

	"catalogd/internal/catalog"
	"catalogd/internal/client"
)

// unitArgs name a unit of work.
type unitArgs struct {
	Collection string   `arg:"" help:"Collection."`
	TileID     string   `arg:"" help:"Place in the collection: t0001, 33UXP/2026-08-04."`
	Members    []string `arg:"" optional:"" name:"member" help:"Members of the identity, as KEY=TEXT or KEY:=JSON; version is one."`
	Identity   string   `placeholder:"JSON" help:"The identity as JSON, or @FILE, in place of members."`
}

func (a unitArgs) unit() (catalog.Unit, error) {
	unit, err := client.NewUnit(a.Collection, a.TileID, a.Members, a.Identity)
	if err != nil {
		return unit, usageError(err.Error())
	}
	return unit, nil
}

type keyCmd struct {
	unitArgs
	JSON bool `name:"json" help:"Print the key with what it stands for, as JSON."`
}

// Run derives the key; no server is asked.
func (c *keyCmd) Run(std streams) error {
	unit, err := c.unit()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, map[string]any{
			"unit_key": unit.Key, "collection": unit.Collection, "tile_id": unit.TileID,
			"version": unit.Identity.Version(), "identity": unit.Identity,
		})
	}
	_, err = fmt.Fprintln(std.out, unit.Key)
	return err
}

type checkCmd struct {
	Collection string   `arg:"" optional:"" help:"Collection; without one, units are read from standard input, as NDJSON: {\"collection\", \"tile_id\", \"identity\"} or {\"unit_key\"} a line."`
	TileID     string   `arg:"" optional:"" help:"Place in the collection."`
	Members    []string `arg:"" optional:"" name:"member" help:"Members of the identity, as KEY=TEXT or KEY:=JSON; version is one."`
	Identity   string   `placeholder:"JSON" help:"The identity as JSON, or @FILE, in place of members."`
	Key        []string `sep:"none" placeholder:"UNIT_KEY" help:"Units by key, in place of all that."`
	Verify     bool     `help:"Look whether the objects are there too, and of their size."`
	Due        bool     `help:"Print only what is due, and what could not be understood."`
	clientFlags

	// away counts units that the server could not look at, for the reason of the last.
	away     int
	awayCode catalog.Code
}

// checked is one line of the answer: a unit's, or the last.
type checked struct {
	Line      int64      `json:"line,omitempty"`
	UnitKey   string     `json:"unit_key,omitempty"`
	Status    string     `json:"status,omitempty"`
	Due       *bool      `json:"due,omitempty"`
	Current   *bool      `json:"current,omitempty"`
	ObjectKey string     `json:"object_key,omitempty"`
	Error     *itemError `json:"error,omitempty"`
	Summary   totals     `json:"summary,omitempty"`
}

type itemError struct {
	Code   catalog.Code `json:"code"`
	Detail string       `json:"detail"`
	Field  string       `json:"field,omitempty"`
}

type totals map[string]int64

const checkRow = "%-8s %-12s %-4s %-8s %-36s %s\n"

const (
	// maxPiece and maxPieceBytes bound one request: proxies take a request whole before
	// they pass on an answer, or hold up both.
	maxPiece      = 10_000
	maxPieceBytes = 8 << 20
)

// pieces cuts a stream of units, one a line, into what one request takes.
type pieces struct {
	scanner *bufio.Scanner
	lines   int64 // read by now
	err     error // why what follows was not read
}

func newPieces(from io.Reader) *pieces {
	p := &pieces{scanner: bufio.NewScanner(from)}
	p.scanner.Buffer(nil, 1<<20)
	return p
}

// next piece, and whether there may be one more.
func (p *pieces) next() (piece []byte, more bool) {
	for before := p.lines; p.scanner.Scan(); {
		piece = append(append(piece, p.scanner.Bytes()...), '\n')
		if p.lines++; p.lines-before == maxPiece || len(piece) > maxPieceBytes {
			return piece, true
		}
	}
	switch p.err = p.scanner.Err(); {
	case errors.Is(p.err, bufio.ErrTooLong):
		p.err = fmt.Errorf("line %d is longer than a unit can be; what follows was not sent", p.lines+1)
	case p.err != nil:
		p.err = fmt.Errorf("read units, line %d: %w", p.lines+1, p.err)
	}
	return piece, false
}

// Run asks about units in pieces, and prints the answers as they come, whatever their
// number.
func (c *checkCmd) Run(ctx context.Context, std streams) (err error) {
	from, err := c.units()
	if err != nil {
		return err
	}
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	all := totals{}
	units := newPieces(from)
	for more := true; more; {
		var piece []byte
		before := units.lines
		piece, more = units.next()
		if len(piece) == 0 && before > 0 {
			break
		}
		some, err := c.ask(ctx, server, bytes.NewReader(piece), before, out)
		if err != nil {
			return err
		}
		for name, n := range some {
			all[name] += n
		}
	}
	if c.JSON {
		if err := printLine(out, checked{Summary: all}); err != nil {
			return err
		}
	} else {
		if err := out.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(std.err, "%d units: %d done, %d stale, %d new, %d running, %d quarantined, %d lost; %d due\n",
			all["total"], all["done"], all["stale"], all["new"], all["running"], all["quarantined"], all["lost"], all["due"])
	}
	if err := units.err; err != nil {
		return err
	}
	switch bad := all["errors"]; {
	case c.away > 0:
		return &client.UnavailableError{URL: c.URL, Err: &client.Problem{
			Status: http.StatusServiceUnavailable, Code: c.awayCode, Detail: fmt.Sprintf("%d of the units could not be looked at now: see their lines", c.away),
		}}
	case bad > 0:
		return fmt.Errorf("%d of the units could not be understood: see their lines", bad)
	}
	return nil
}

// ask asks about one piece, whose first unit stands on the line after before.
func (c *checkCmd) ask(ctx context.Context, server *client.Client, piece io.Reader, before int64, out io.Writer) (totals, error) {
	path := "/v1/units:check"
	if c.Verify {
		path += "?verify=head"
	}
	answer, err := server.Stream(ctx, http.MethodPost, path, "application/x-ndjson", piece)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	lines := bufio.NewScanner(answer)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var got checked
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			return nil, fmt.Errorf("read the server's answer: %w", err)
		}
		switch {
		case got.Summary != nil && got.Error != nil:
			return nil, &client.UnavailableError{URL: c.URL, Err: &client.Problem{Status: http.StatusServiceUnavailable, Code: got.Error.Code, Detail: got.Error.Detail}}
		case got.Summary != nil:
			return got.Summary, nil
		}
		if got.Line += before; got.Line == 1 && !c.JSON {
			fmt.Fprintf(out, checkRow, "LINE", "STATUS", "DUE", "CURRENT", "UNIT_KEY", "OBJECT_KEY")
		}
		if got.Error != nil && got.Error.Code.Status() == http.StatusServiceUnavailable {
			c.away, c.awayCode = c.away+1, got.Error.Code
		}
		line := strconv.FormatInt(got.Line, 10)
		switch {
		case c.Due && got.Error == nil && (got.Due == nil || !*got.Due):
		case c.JSON:
			err = printLine(out, got)
		case got.Error != nil:
			problem := client.Problem{Code: got.Error.Code, Detail: printable(got.Error.Detail), Field: got.Error.Field}
			_, err = fmt.Fprintf(out, "%-8s error: %v\n", line, &problem)
		default:
			_, err = fmt.Fprintf(out, checkRow, line, got.Status, yes(got.Due), yes(got.Current), got.UnitKey, got.ObjectKey)
		}
		if err != nil {
			return nil, err
		}
	}
	err = lines.Err()
	if err == nil {
		err = errors.New("the answer was cut off: ask again")
	}
	return nil, &client.UnavailableError{URL: c.URL, Err: err}
}

func printLine(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// units are what is asked about, as NDJSON.
func (c *checkCmd) units() (io.Reader, error) {
	var named []any
	switch {
	case len(c.Key) > 0 && c.Collection != "":
		return nil, usageError("name units by --key, or by collection and tile id, not both")
	case len(c.Key) > 0:
		for _, key := range c.Key {
			if _, err := uuid.Parse(key); err != nil {
				return nil, usageError(fmt.Sprintf("--key: %q is no unit key", key))
			}
			named = append(named, map[string]string{"unit_key": key})
		}
	case c.Collection != "" && c.TileID == "":
		return nil, usageError("name a unit by collection, tile id and members; or none, to have units read from standard input")
	case c.Collection != "":
		unit, err := unitArgs{c.Collection, c.TileID, c.Members, c.Identity}.unit()
		if err != nil {
			return nil, err
		}
		named = append(named, map[string]any{"collection": unit.Collection, "tile_id": unit.TileID, "identity": unit.Identity})
	default:
		return os.Stdin, nil
	}
	var text bytes.Buffer
	for _, unit := range named {
		if err := printLine(&text, unit); err != nil {
			return nil, err
		}
	}
	return &text, nil
}

type getCmd struct {
	What    string   `arg:"" name:"unit-key-or-collection" help:"Unit key; or collection, with a tile id."`
	TileID  string   `arg:"" optional:"" help:"Place in the collection. Without members: its current output."`
	Members []string `arg:"" optional:"" name:"member" help:"Members of the identity, as KEY=TEXT or KEY:=JSON."`

	Identity string `placeholder:"JSON" help:"The identity as JSON, or @FILE, in place of members."`
	Data     bool   `help:"Get the bytes, and check them against the row."`
	Output   string `short:"o" type:"path" placeholder:"FILE" help:"Where to write them; standard output by default."`
	clientFlags
}

// Run prints a row, or gets the bytes that it names.
func (c *getCmd) Run(ctx context.Context, std streams) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	if !c.Data && c.Output != "" {
		return usageError("-o is where --data goes: give both")
	}
	if !c.Data {
		return ask(ctx, c.clientFlags, std, http.MethodGet, path, nil, tileFacts)
	}
	if c.Output == "" && isTerminal(std.out) {
		return usageError("write the bytes to a file with -o FILE, not to the terminal")
	}
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	var tile client.Tile
	if err := server.Call(ctx, http.MethodGet, path, nil, &tile); err != nil {
		return err
	}
	return c.data(ctx, std, server, tile)
}

func (c *getCmd) path() (string, error) {
	if c.TileID == "" {
		key, err := uuid.Parse(c.What)
		if err != nil {
			return "", usageError(fmt.Sprintf("%q is no unit key: give one, or a collection and a tile id", c.What))
		}
		return "/v1/units/" + key.String(), nil
	}
	if len(c.Members) == 0 && c.Identity == "" {
		return slotPath("current", c.What, c.TileID), nil
	}
	unit, err := unitArgs{c.What, c.TileID, c.Members, c.Identity}.unit()
	return "/v1/units/" + unit.Key.String(), err
}

// data copies an output's bytes, and checks them.
func (c *getCmd) data(ctx context.Context, std streams, server *client.Client, tile client.Tile) error {
	body, err := server.Stream(ctx, http.MethodGet, (&url.URL{Path: "/data/" + tile.ObjectKey}).EscapedPath(), "", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	hash := sha256.New()
	check := func() error {
		if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != tile.Checksum {
			return fmt.Errorf("%s came as %s, but its row says %s: get it again, and look at the store if that does not help", tile.ObjectKey, got, tile.Checksum)
		}
		return nil
	}
	into, output := std.out, c.Output
	if info, err := os.Stat(output); output != "" && err == nil && !info.Mode().IsRegular() {
		// A pipe or a device is written to, not replaced.
		file, err := os.OpenFile(output, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		into, output = file, ""
	}
	if output == "" {
		if _, err := io.Copy(io.MultiWriter(into, hash), body); err != nil {
			return err
		}
		return check()
	}
	if target, err := filepath.EvalSymlinks(output); err == nil {
		output = target // and the link stays
	}
	file, err := renameio.NewPendingFile(output, renameio.WithPermissions(0o644), renameio.WithTempDir(filepath.Dir(output)))
	if err != nil {
		return err
	}
	defer func() { _ = file.Cleanup() }()
	if _, err := io.Copy(io.MultiWriter(file, hash), body); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return file.CloseAtomicallyReplace()
}

func tileFacts(t client.Tile) [][]string {
	size := ""
	if t.Width > 0 {
		size = fmt.Sprintf("%d × %d", t.Width, t.Height)
	}
	return facts("unit_key", t.UnitKey, "collection", t.Collection, "tile_id", t.TileID, "version", t.Version,
		"current", strconv.FormatBool(t.Current), "object_key", t.ObjectKey, "href", t.Href,
		"size_bytes", strconv.FormatInt(t.SizeBytes, 10), "checksum", t.Checksum, "media_type", t.MediaType,
		"crs", t.CRS, "pixels", size, "registered_at", at(&t.RegisteredAt))
}

type historyCmd struct {
	Collection string `arg:"" help:"Collection."`
	TileID     string `arg:"" help:"Place in the collection."`
	clientFlags
}

// Run prints what a place has shown, the latest first.
func (c *historyCmd) Run(ctx context.Context, std streams) error {
	type history struct {
		Moves []struct {
			UnitKey   string     `json:"unit_key"`
			Version   string     `json:"version"`
			ObjectKey string     `json:"object_key"`
			From      time.Time  `json:"valid_from"`
			To        *time.Time `json:"valid_to"`
			By        string     `json:"moved_by"`
			Reason    string     `json:"reason"`
		} `json:"history"`
	}
	return ask(ctx, c.clientFlags, std, http.MethodGet, slotPath("history", c.Collection, c.TileID), nil, func(h history) [][]string {
		rows := [][]string{{"VERSION", "VALID_FROM", "VALID_TO", "REASON", "MOVED_BY", "UNIT_KEY", "OBJECT_KEY"}}
		for _, m := range h.Moves {
			rows = append(rows, []string{m.Version, at(&m.From), at(m.To), m.Reason, m.By, m.UnitKey, m.ObjectKey})
		}
		return rows
	})
}

func slotPath(what, collection, tileID string) string {
	return "/v1/slots/" + what + "?" + url.Values{"collection": {collection}, "tile_id": {tileID}}.Encode()
}
