package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

type quarantineCmd struct {
	List    quarantineListCmd    `cmd:"" name:"ls" aliases:"list" help:"Quarantined units, by collection and place."`
	Show    quarantineShowCmd    `cmd:"" help:"One of them, with its last failures."`
	Release quarantineReleaseCmd `cmd:"" help:"Have units tried again, as if they had never failed; takes the role admin."`
}

const quarantinePath = "/v1/quarantine"

// pickFlags pick quarantined units.
type pickFlags struct {
	InCollection string `name:"collection" placeholder:"ID" help:"Those of this collection."`
	InBatch      string `name:"batch" placeholder:"NAME" help:"Those that this batch expects."`
	Class        string `enum:",transient,deterministic" default:"" help:"Those whose last failure is transient, or deterministic."`
	Reason       string `help:"Those whose last failure has this reason, in which * stands for any text and ? for a character."`
}

// given by their names in the contract.
func (f pickFlags) given() map[string]string {
	given := map[string]string{}
	for name, text := range map[string]string{"collection": f.InCollection, "batch": f.InBatch, "class": f.Class, "reason": f.Reason} {
		if text != "" {
			given[name] = text
		}
	}
	return given
}

// quarantined unit as the server tells it.
type quarantined struct {
	UnitKey       string    `json:"unit_key"`
	Collection    string    `json:"collection"`
	TileID        string    `json:"tile_id"`
	Version       string    `json:"version"`
	QuarantinedAs string    `json:"quarantined_as"`
	Class         string    `json:"class"`
	Reason        string    `json:"reason"`
	Message       string    `json:"message"`
	Tries         int       `json:"tries"`
	Expiries      int       `json:"expiries"`
	Worker        string    `json:"worker"`
	FirstFailedAt time.Time `json:"first_failed_at"`
	LastFailedAt  time.Time `json:"last_failed_at"`
	QuarantinedAt time.Time `json:"quarantined_at"`
}

type quarantineListCmd struct {
	pickFlags
	clientFlags
}

const quarantineRow = "%-16s %-16s %-10s %-13s %-24s %5s  %-20s  %s\n"

// Run prints page by page, whatever their number: with --json, one unit a line.
func (c *quarantineListCmd) Run(ctx context.Context, std streams) (err error) {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	query := url.Values{}
	for name, text := range c.given() {
		query.Set(name, text)
	}
	return eachPage(ctx, server, quarantinePath, "units", "after", query, func(first bool, units []json.RawMessage) error {
		if first && !c.JSON {
			fmt.Fprintf(out, quarantineRow, "COLLECTION", "TILE_ID", "VERSION", "AS", "REASON", "TRIES", "LAST", "UNIT_KEY")
		}
		for _, raw := range units {
			if c.JSON {
				if err := printLine(out, raw); err != nil {
					return err
				}
				continue
			}
			var u quarantined
			if err := json.Unmarshal(raw, &u); err != nil {
				return fmt.Errorf("read the server's answer: %w", err)
			}
			fmt.Fprintf(out, quarantineRow, u.Collection, u.TileID, printable(u.Version), u.QuarantinedAs, printable(u.Reason),
				strconv.Itoa(u.Tries+u.Expiries), at(&u.LastFailedAt), u.UnitKey)
		}
		return nil
	})
}

type quarantineShowCmd struct {
	What     string   `arg:"" name:"unit-key-or-collection" help:"Unit key; or collection, with a tile id and members."`
	TileID   string   `arg:"" optional:"" help:"Place in the collection."`
	Members  []string `arg:"" optional:"" name:"member" help:"Members of the identity, as KEY=TEXT or KEY:=JSON."`
	Identity string   `placeholder:"JSON" help:"The identity as JSON, or @FILE, in place of members."`
	clientFlags
}

// Run prints a quarantined unit and its last failures.
func (c *quarantineShowCmd) Run(ctx context.Context, std streams) error {
	key, err := unitKey(c.What, c.TileID, c.Members, c.Identity)
	if err != nil {
		return err
	}
	type detail struct {
		Unit     quarantined     `json:"unit"`
		Identity json.RawMessage `json:"identity"`
		Failures []struct {
			FailedAt  time.Time `json:"failed_at"`
			Class     string    `json:"class"`
			Reason    string    `json:"reason"`
			Worker    string    `json:"worker"`
			Spent     bool      `json:"spent"`
			AttemptID string    `json:"attempt_id"`
			Message   string    `json:"message"`
		} `json:"failures"`
	}
	return ask(ctx, c.clientFlags, std, http.MethodGet, quarantinePath+"/"+key, nil, func(d detail) [][]string {
		u := d.Unit
		rows := facts("unit_key", u.UnitKey, "collection", u.Collection, "tile_id", u.TileID, "identity", string(d.Identity),
			"quarantined_as", u.QuarantinedAs, "quarantined_at", at(&u.QuarantinedAt),
			"tries", strconv.Itoa(u.Tries), "expiries", strconv.Itoa(u.Expiries), "first_failed_at", at(&u.FirstFailedAt))
		for _, f := range d.Failures {
			tried := f.Class
			if !f.Spent {
				tried += ", no try spent"
			}
			rows = append(rows, []string{at(&f.FailedAt), fmt.Sprintf("%s (%s), %s, attempt %s", f.Reason, tried, f.Worker, f.AttemptID)})
			for line := range strings.Lines(f.Message) {
				rows = append(rows, []string{"", strings.TrimRight(line, "\r\n")})
			}
		}
		return rows
	})
}

// unitKey is one that is given, or that of a unit which is named.
func unitKey(what, tileID string, members []string, identity string) (string, error) {
	if tileID != "" {
		unit, err := unitArgs{what, tileID, members, identity}.unit()
		return unit.Key.String(), err
	}
	key, err := uuid.Parse(what)
	if err != nil {
		return "", usageError(fmt.Sprintf("%q is no unit key: give one, or a collection, a tile id and members", what))
	}
	return key.String(), nil
}

type quarantineReleaseCmd struct {
	What     string   `arg:"" optional:"" name:"unit-key-or-collection" help:"Unit key; or collection, with a tile id and members. Without, all that the flags pick."`
	TileID   string   `arg:"" optional:"" help:"Place in the collection."`
	Members  []string `arg:"" optional:"" name:"member" help:"Members of the identity, as KEY=TEXT or KEY:=JSON."`
	Identity string   `placeholder:"JSON" help:"The identity as JSON, or @FILE, in place of members."`
	Key      []string `sep:"none" placeholder:"UNIT_KEY" help:"More units by key. Repeat."`
	Why      string   `required:"" help:"The reason, for the audit."`
	pickFlags
	clientFlags
}

// Run releases units, and prints how many.
func (c *quarantineReleaseCmd) Run(ctx context.Context, std streams) error {
	body := map[string]any{"why": c.Why}
	for name, text := range c.given() {
		body[name] = text
	}
	var keys []string
	for _, text := range c.Key {
		key, err := unitKey(text, "", nil, "")
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if c.What != "" {
		key, err := unitKey(c.What, c.TileID, c.Members, c.Identity)
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if keys != nil {
		body["units"] = keys
	}
	if len(body) == 1 {
		return usageError("say what to release: a unit, or --collection, --batch, --class, --reason")
	}
	return ask(ctx, c.clientFlags, std, http.MethodPost, quarantinePath+":release", body, numbers("released"))
}
