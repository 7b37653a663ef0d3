package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"catalogd/internal/doctor"
)

type doctorCmd struct {
	databaseFlags
	storeFlags
	Listen     string        `env:"CATALOGD_LISTEN" default:"127.0.0.1:8080" help:"Address to serve on."`
	Probe      string        `env:"CATALOGD_PROBE" type:"path" help:"The catalogd-probe program; by default beside this one, or on PATH."`
	Lease      time.Duration `env:"CATALOGD_LEASE" default:"60s" help:"Lease of an attempt: clocks must not differ by a third of it."`
	SweepGrace time.Duration `env:"CATALOGD_SWEEP_GRACE" default:"10m" help:"How long an attempt outlives its lease: lifecycle rules must not remove what it works on."`

	URL       string `env:"CATALOGD_URL" help:"A server to ask. With this alone, it looks at what tasks need."`
	Token     string `env:"CATALOGD_TOKEN" help:"A token to try there; better in the environment, or in a file."`
	TokenFile string `env:"CATALOGD_TOKEN_FILE" type:"path" help:"A file that holds it."`

	InstallLifecycle bool `help:"Set the lifecycle rules of the stores on S3, which remove what nobody finished, beside those that the bucket has; print them where the server does not take them."`

	JSON bool `help:"Print an array of check, status (ok, warn, lacks), found, remedy."`
}

// Run prints a line for each thing that catalogd needs here: ok, or what to do.
func (c *doctorCmd) Run(ctx context.Context, std streams) error {
	config := doctor.Config{Listen: c.Listen, Probe: c.Probe, URL: c.URL, Lease: c.Lease, SweepGrace: c.SweepGrace, Version: version}
	var err error
	if config.DatabaseURL, err = secret(c.DatabaseURL, c.DatabaseURLFile); err != nil {
		return err
	}
	if c.URL != "" { // else nobody is asked
		if config.Token, err = secret(c.Token, c.TokenFile); err != nil {
			return err
		}
	}
	stores, err := c.settings()
	if err != nil && !errors.Is(err, errNoStore) {
		return err
	}
	for _, s := range stores {
		config.Stores = append(config.Stores, doctor.Store{Name: s.Name, URL: s.URL, Root: rootOf(s.URL)})
	}
	look := doctor.Examine
	if c.InstallLifecycle {
		if look = doctor.InstallLifecycle; !slices.ContainsFunc(config.Stores, doctor.Store.InBucket) {
			return usageError("--install-lifecycle is for stores on S3: set --store or CATALOGD_STORE to s3://BUCKET/PREFIX")
		}
	}
	findings := look(ctx, config)
	if c.JSON {
		enc := json.NewEncoder(std.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(findings); err != nil {
			return err
		}
	}
	lacking, width := 0, 14
	for _, f := range findings {
		width = max(width, len(f.Check))
	}
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
		fmt.Fprintf(std.out, "%-*s %-6s %s\n", width, f.Check, word, line)
	}
	if lacking > 0 {
		return judgedError(fmt.Sprintf("%d of %d checks found something lacking", lacking, len(findings)))
	}
	return nil
}
