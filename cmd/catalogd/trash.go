package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

type trashCmd struct {
	List    trashListCmd    `cmd:"" name:"ls" aliases:"list" help:"Objects in the trash, in the order in which they came there."`
	Restore trashRestoreCmd `cmd:"" help:"Put one back to where it was; takes the role admin."`
	Empty   trashEmptyCmd   `cmd:"" help:"Delete what has expired, or all; takes the role admin."`
}

const trashPath = "/v1/trash"

type trashListCmd struct {
	Store string `placeholder:"STORE" help:"Those of this store."`
	clientFlags
}

const trashRow = "%8s  %10s  %-20s  %-20s  %-16s  %s\n"

// Run prints page by page, whatever their number: with --json, one object a line.
func (c *trashListCmd) Run(ctx context.Context, std streams) (err error) {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(std.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	query := url.Values{}
	if c.Store != "" {
		query.Set("store", c.Store)
	}
	return eachPage(ctx, server, trashPath, "trash", "after", query, func(first bool, objects []json.RawMessage) error {
		if first && !c.JSON {
			fmt.Fprintf(out, trashRow, "ID", "SIZE", "MOVED", "EXPIRES", "BY", "OBJECT")
		}
		for _, raw := range objects {
			if c.JSON {
				if err := printLine(out, raw); err != nil {
					return err
				}
				continue
			}
			var t struct {
				ID        int64     `json:"trash_id"`
				ObjectKey string    `json:"object_key"`
				SizeBytes int64     `json:"size_bytes"`
				By        string    `json:"by"`
				At        time.Time `json:"at"`
				ExpiresAt time.Time `json:"expires_at"`
			}
			if err := json.Unmarshal(raw, &t); err != nil {
				return fmt.Errorf("read the server's answer: %w", err)
			}
			fmt.Fprintf(out, trashRow, count(t.ID), bytesOf(t.SizeBytes), at(&t.At), at(&t.ExpiresAt), printable(t.By), printable(t.ObjectKey))
		}
		return nil
	})
}

type trashRestoreCmd struct {
	ID  int64  `arg:"" help:"Id of the object, from catalogd trash ls."`
	Why string `help:"The reason, for the audit."`
	clientFlags
}

// Run puts an object back.
func (c *trashRestoreCmd) Run(ctx context.Context, std streams) error {
	return ask[struct{}](ctx, c.clientFlags, std, http.MethodPost, fmt.Sprintf("%s/%d/restore", trashPath, c.ID), reason(c.Why, nil), nil)
}

// reason is a body with the reason that was given.
func reason(why string, body map[string]any) map[string]any {
	if body == nil {
		body = map[string]any{}
	}
	if why != "" {
		body["why"] = why
	}
	return body
}

type trashEmptyCmd struct {
	Store string `placeholder:"STORE" help:"The trash of this store; of all by default."`
	All   bool   `help:"What has not expired, too."`
	Why   string `help:"The reason, for the audit."`
	clientFlags
}

// Run deletes from the trash, and prints how much.
func (c *trashEmptyCmd) Run(ctx context.Context, std streams) error {
	body := map[string]any{"all": c.All}
	if c.Store != "" {
		body["store"] = c.Store
	}
	return ask(ctx, c.clientFlags, std, http.MethodPost, trashPath+":empty", reason(c.Why, body), numbers("objects", "bytes", "left"))
}

type scrubCmd struct {
	Run    scrubRunCmd    `cmd:"" default:"withargs" help:"Have checksums read again of a share of a store's outputs; this is what scrub alone does. Takes the role admin."`
	Status scrubStatusCmd `cmd:"" help:"How far each store's checksums have been read again."`
}

const scrubPath = "/v1/scrub"

type scrubRunCmd struct {
	Store    string  `placeholder:"STORE" help:"Name, id or root of the store; the server's first by default."`
	Fraction float64 `default:"0.01" help:"Share of the outputs, above 0 to 1."`
	clientFlags
}

// Run queues a scrub.
func (c *scrubRunCmd) Run(ctx context.Context, std streams) error {
	body := map[string]any{"fraction": c.Fraction}
	if c.Store != "" {
		body["store"] = c.Store
	}
	if err := ask[struct{}](ctx, c.clientFlags, std, http.MethodPost, scrubPath, body, nil); err != nil {
		return err
	}
	fmt.Fprintln(std.err, "catalogd: it is queued; see catalogd scrub status")
	return nil
}

type scrubStatusCmd struct{ clientFlags }

// Run prints a line for each store; with --json, one object a line.
func (c *scrubStatusCmd) Run(ctx context.Context, std streams) error {
	return listThese(ctx, c.clientFlags, std, scrubPath, "scrubs", "",
		[]string{"STORE", "ROUND BEGAN", "ROUND ENDED", "LAST RAN", "READ OF ROUND", "OUTPUTS", "READ EVER", "BYTES EVER", "BAD EVER"}, func(raw json.RawMessage) ([]string, error) {
			var s struct {
				Store     string     `json:"store"`
				LapBegan  time.Time  `json:"lap_began_at"`
				LapEnded  *time.Time `json:"lap_ended_at"`
				RanAt     *time.Time `json:"ran_at"`
				Outputs   int64      `json:"outputs"`
				Remaining int64      `json:"remaining"`
				Verified  int64      `json:"verified"`
				Bytes     int64      `json:"bytes"`
				Bad       int64      `json:"bad"`
			}
			err := json.Unmarshal(raw, &s)
			return []string{
				s.Store, at(&s.LapBegan), at(s.LapEnded), at(s.RanAt), thousands(s.Outputs - s.Remaining), thousands(s.Outputs),
				thousands(s.Verified), bytesOf(s.Bytes), thousands(s.Bad),
			}, err
		})
}
