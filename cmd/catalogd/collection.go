package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

type collectionCmd struct {
	Create collectionCreateCmd `cmd:"" help:"Make a collection: a family of outputs with one policy."`
	List   collectionListCmd   `cmd:"" help:"All collections."`
	Show   collectionShowCmd   `cmd:"" help:"One collection and its policy."`
	Edit   collectionEditCmd   `cmd:"" help:"Change what is given, and leave the rest."`
	Delete collectionDeleteCmd `cmd:"" help:"Delete a collection in which nothing was ever begun."`
}

// policyFlags are what a collection says of itself and takes. A nil one is not given.
type policyFlags struct {
	Title             *string  `help:"For people."`
	Description       *string  `help:"What the collection holds."`
	License           *string  `help:"SPDX identifier, or other."`
	Store             *string  `help:"Store that new outputs go to, by the name that the server gives it, or by its id; the server's first by default."`
	MediaType         *string  `help:"Of outputs whose begin names none; the first driver's by default, else GeoTIFF."`
	Drivers           []string `name:"driver" help:"Formats that outputs may have: GTiff (COG too), GPKG, FlatGeobuf, GeoJSON, JP2OpenJPEG. Repeat, or separate by commas."`
	OrderBy           *string  `help:"What makes an output current: version (its version's rank), or acquired (its time). Settled with the first unit."`
	SparseAllowed     *bool    `negatable:"" help:"Take rasters with blocks that were never written."`
	FootprintOptional *bool    `negatable:"" help:"Take outputs without a WGS 84 footprint."`
	DecodeAlways      *bool    `negatable:"" help:"Decode everything as proof that an output is complete."`
	StagingCopied     *bool    `negatable:"" help:"Promote a copy of what was staged; for writers that are not trusted."`

	Publish    *string  `placeholder:"on_register|on_gate" help:"When an output can become current: as it is registered, or together with its batch, when that passes its gate."`
	OutageFrac *float64 `placeholder:"0.05" help:"Share of a batch above which units that fail for one transient reason spend no tries."`

	MaxRetries  *int           `placeholder:"N" help:"How often a unit is tried again after transient failures: 3. One more failure quarantines it."`
	RetryBase   *time.Duration `placeholder:"30s" help:"Bound of the pause after the first failure, doubled with each further one; the pause is drawn from 0 to that."`
	RetryCap    *time.Duration `placeholder:"1h" help:"No pause is longer."`
	MaxExpiries *int           `placeholder:"N" help:"How many attempts at a unit may end without a word: 10. One more quarantines it."`
	FailureRule []string       `sep:"none" placeholder:"REASON=CLASS" help:"Class of failures by their reason, in which * stands for any text: exit_3=deterministic. The first that matches counts. Repeat; they take the place of those before, and none is \"\"."`
}

// set puts what is given over what there is.
func (p policyFlags) set(c map[string]any) error {
	for name, text := range map[string]*string{
		"title": p.Title, "description": p.Description, "license": p.License, "store": p.Store,
		"media_type": p.MediaType, "order_by": p.OrderBy, "publish": p.Publish,
	} {
		if text != nil {
			c[name] = *text
		}
	}
	for name, flag := range map[string]*bool{
		"sparse_allowed": p.SparseAllowed, "footprint_optional": p.FootprintOptional,
		"decode_always": p.DecodeAlways, "staging_copied": p.StagingCopied,
	} {
		if flag != nil {
			c[name] = *flag
		}
	}
	if p.OutageFrac != nil {
		c["outage_frac"] = *p.OutageFrac
	}
	if p.Drivers != nil {
		c["drivers"] = p.Drivers
	}
	for name, number := range map[string]*int{"max_retries": p.MaxRetries, "max_expiries": p.MaxExpiries} {
		if number != nil {
			c[name] = *number
		}
	}
	for name, pause := range map[string]*time.Duration{"retry_base_seconds": p.RetryBase, "retry_cap_seconds": p.RetryCap} {
		if pause != nil {
			c[name] = pause.Seconds()
		}
	}
	if p.FailureRule != nil {
		rules := []failureRule{}
		for _, text := range p.FailureRule {
			if text == "" {
				continue
			}
			i := strings.LastIndexByte(text, '=')
			if i < 1 {
				return usageError(fmt.Sprintf("--failure-rule: %q is not REASON=transient or REASON=deterministic", text))
			}
			rules = append(rules, failureRule{Reason: text[:i], Class: text[i+1:]})
		}
		c["failure_rules"] = rules
	}
	return nil
}

type failureRule struct {
	Reason string `json:"reason"`
	Class  string `json:"class"`
}

// collection as the server tells it.
type collection struct {
	ID                string   `json:"id"`
	Title             string   `json:"title"`
	Description       string   `json:"description"`
	License           string   `json:"license"`
	Store             string   `json:"store"`
	StoreID           string   `json:"store_id"`
	MediaType         string   `json:"media_type"`
	Drivers           []string `json:"drivers"`
	OrderBy           string   `json:"order_by"`
	SparseAllowed     bool     `json:"sparse_allowed"`
	FootprintOptional bool     `json:"footprint_optional"`
	DecodeAlways      bool     `json:"decode_always"`
	StagingCopied     bool     `json:"staging_copied"`
	Publish           string   `json:"publish"`
	OutageFrac        float64  `json:"outage_frac"`

	MaxRetries   int           `json:"max_retries"`
	RetryBase    float64       `json:"retry_base_seconds"`
	RetryCap     float64       `json:"retry_cap_seconds"`
	MaxExpiries  int           `json:"max_expiries"`
	FailureRules []failureRule `json:"failure_rules"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

func (c collection) facts() [][]string {
	return facts("id", c.ID, "title", c.Title, "description", c.Description, "license", c.License,
		"store", c.Store, "store_id", c.StoreID, "media_type", c.MediaType, "drivers", strings.Join(c.Drivers, ", "),
		"order_by", c.OrderBy, "publish", c.Publish, "takes", c.takes(), "retries", c.retries(), "failure_rules", c.rules(), "created_at", at(&c.CreatedAt), "updated_at", at(&c.UpdatedAt))
}

// takes names the policies that are not the default.
func (c collection) takes() string {
	var on []string
	for _, policy := range []struct {
		on   bool
		name string
	}{
		{c.SparseAllowed, "sparse_allowed"}, {c.FootprintOptional, "footprint_optional"},
		{c.DecodeAlways, "decode_always"}, {c.StagingCopied, "staging_copied"},
	} {
		if policy.on {
			on = append(on, policy.name)
		}
	}
	return strings.Join(on, ", ")
}

// retries says when a unit that failed is tried again.
func (c collection) retries() string {
	pause := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	return fmt.Sprintf("%d, after up to %s, doubled each time up to %s; %d attempts may end without a word; none is spent while over %s of a batch fail for one transient reason",
		c.MaxRetries, pause(c.RetryBase), pause(c.RetryCap), c.MaxExpiries, share(c.OutageFrac))
}

func (c collection) rules() string {
	var rules []string
	for _, rule := range c.FailureRules {
		rules = append(rules, rule.Reason+"="+rule.Class)
	}
	return strings.Join(rules, ", ")
}

const collectionsPath = "/v1/collections"

type collectionCreateCmd struct {
	ID string `arg:"" help:"[a-z0-9][a-z0-9_-]*, at most 64."`
	policyFlags
	clientFlags
}

func (c *collectionCreateCmd) Run(ctx context.Context, std streams) error {
	body := map[string]any{"id": c.ID}
	if err := c.set(body); err != nil {
		return err
	}
	return ask(ctx, c.clientFlags, std, http.MethodPost, collectionsPath, body, collection.facts)
}

type collectionListCmd struct{ clientFlags }

func (c *collectionListCmd) Run(ctx context.Context, std streams) error {
	type list struct {
		Collections []collection `json:"collections"`
	}
	return ask(ctx, c.clientFlags, std, http.MethodGet, collectionsPath, nil, func(l list) [][]string {
		rows := [][]string{{"ID", "TITLE", "STORE", "DRIVERS", "ORDER_BY", "TAKES"}}
		for _, c := range l.Collections {
			rows = append(rows, []string{c.ID, c.Title, c.Store, strings.Join(c.Drivers, ","), c.OrderBy, c.takes()})
		}
		return rows
	})
}

type collectionShowCmd struct {
	ID string `arg:"" help:"Collection."`
	clientFlags
}

func (c *collectionShowCmd) Run(ctx context.Context, std streams) error {
	return ask(ctx, c.clientFlags, std, http.MethodGet, collectionsPath+"/"+url.PathEscape(c.ID), nil, collection.facts)
}

type collectionEditCmd struct {
	ID string `arg:"" help:"Collection."`
	policyFlags
	clientFlags
}

// Run replaces the collection by itself with the changes: what another changes at the same
// moment can be lost.
func (c *collectionEditCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	path := collectionsPath + "/" + url.PathEscape(c.ID)
	now := map[string]any{}
	if err := server.Call(ctx, http.MethodGet, path, nil, &now); err != nil {
		return err
	}
	changes := map[string]any{}
	if err := c.set(changes); err != nil {
		return err
	}
	if len(changes) == 0 {
		return usageError("say what to change: see catalogd collection edit --help")
	}
	for _, kept := range []string{"id", "store_id", "created_at", "updated_at"} {
		delete(now, kept)
	}
	maps.Copy(now, changes)
	return ask(ctx, c.clientFlags, std, http.MethodPut, path, now, collection.facts)
}

type collectionDeleteCmd struct {
	ID  string `arg:"" help:"Collection."`
	Why string `required:"" help:"The reason, for the audit."`
	clientFlags
}

func (c *collectionDeleteCmd) Run(ctx context.Context, std streams) error {
	server, err := c.client(std, 0)
	if err != nil {
		return err
	}
	path := collectionsPath + "/" + url.PathEscape(c.ID) + "?" + url.Values{"why": {c.Why}}.Encode()
	if err := server.Call(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, "deleted", c.ID)
	return err
}
