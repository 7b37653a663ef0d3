package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"catalogd/internal/doctor"
)

type doctorCmd struct {
	databaseFlags
	Store  string        `env:"CATALOGD_STORE" help:"Root of the outputs: a directory or file:///…"`
	Listen string        `env:"CATALOGD_LISTEN" default:"127.0.0.1:8080" help:"Address to serve on."`
	Probe  string        `env:"CATALOGD_PROBE" type:"path" help:"The catalogd-probe program; by default beside this one, or on PATH."`
	Lease  time.Duration `env:"CATALOGD_LEASE" default:"60s" help:"Lease of an attempt: clocks must not differ by a third of it."`

	URL       string `env:"CATALOGD_URL" help:"A server to ask. With this alone, it looks at what tasks need."`
	Token     string `env:"CATALOGD_TOKEN" help:"A token to try there; better in the environment, or in a file."`
	TokenFile string `env:"CATALOGD_TOKEN_FILE" type:"path" help:"A file that holds it."`

	JSON bool `help:"Print an array of check, status (ok, warn, lacks), found, remedy."`
}

// Run prints a line for each thing that catalogd needs here: ok, or what to do.
func (c *doctorCmd) Run(ctx context.Context, std streams) error {
	config := doctor.Config{Listen: c.Listen, Probe: c.Probe, URL: c.URL, Lease: c.Lease, Version: version}
	var err error
	if config.DatabaseURL, err = secret(c.DatabaseURL, c.DatabaseURLFile); err != nil {
		return err
	}
	if config.Token, err = secret(c.Token, c.TokenFile); err != nil {
		return err
	}
	if c.Store != "" {
		if config.Store, err = storeRoot(c.Store); err != nil {
			return err
		}
	}
	findings := doctor.Examine(ctx, config)
	if c.JSON {
		enc := json.NewEncoder(std.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(findings); err != nil {
			return err
		}
	}
	lacking := 0
	for _, f := range findings {
		if f.Status == doctor.Lacks {
			lacking++
		}
		if c.JSON {
			continue
		}
		word, line := string(f.Status), f.Found
		if f.Status == doctor.Lacks {
			word = "LACKS"
		}
		if f.Remedy != "" {
			line += ": " + f.Remedy
		}
		fmt.Fprintf(std.out, "%-14s %-6s %s\n", f.Check, word, line)
	}
	if lacking > 0 {
		return judgedError(fmt.Sprintf("%d of %d checks found something lacking", lacking, len(findings)))
	}
	return nil
}
