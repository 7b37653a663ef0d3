package main

import (
	"context"
	"fmt"

	"catalogd/internal/postgres/migrate"
)

type migrateCmd struct {
	Up     migrateUp     `cmd:"" help:"Bring the schema up to date."`
	Down   migrateDown   `cmd:"" help:"Remove the schema and all that the catalogue knows. Objects stay."`
	Status migrateStatus `cmd:"" help:"Tell the schema's version."`
}

type databaseFlags struct {
	DatabaseURL     string `env:"CATALOGD_DATABASE_URL" help:"PostgreSQL with PostGIS, postgres://…"`
	DatabaseURLFile string `env:"CATALOGD_DATABASE_URL_FILE" type:"path" help:"A file that holds the URL, for its password."`
}

func (f databaseFlags) url() (string, error) {
	url, err := secret(f.DatabaseURL, f.DatabaseURLFile)
	if err == nil && url == "" {
		err = usageError("no database: set --database-url or CATALOGD_DATABASE_URL (or their _FILE twins)")
	}
	return url, err
}

type migrateUp struct{ databaseFlags }

func (c migrateUp) Run(ctx context.Context, std streams) error {
	url, err := c.url()
	if err != nil {
		return err
	}
	if err := migrate.Up(ctx, url); err != nil {
		return err
	}
	return printStatus(ctx, std, url, false)
}

type migrateDown struct {
	databaseFlags
	Yes bool `help:"Yes, forget every output."`
}

func (c migrateDown) Run(ctx context.Context, std streams) error {
	url, err := c.url()
	if err != nil {
		return err
	}
	if !c.Yes {
		return usageError("migrate down forgets every output; add --yes if that is what you want")
	}
	if err := migrate.Down(ctx, url); err != nil {
		return err
	}
	return printStatus(ctx, std, url, true)
}

type migrateStatus struct {
	databaseFlags
	JSON bool `name:"json" help:"Print versions as JSON."`
}

func (c migrateStatus) Run(ctx context.Context, std streams) error {
	url, err := c.url()
	if err != nil {
		return err
	}
	if !c.JSON {
		return printStatus(ctx, std, url, false)
	}
	current, latest, dirty, err := migrate.Status(ctx, url)
	if err == nil {
		err = printJSON(std.out, map[string]any{"current": current, "latest": latest, "dirty": dirty})
	}
	if err != nil {
		return err
	}
	return judge(current, latest, dirty, false)
}

func printStatus(ctx context.Context, std streams, url string, down bool) error {
	current, latest, dirty, err := migrate.Status(ctx, url)
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "schema %d of %d\n", current, latest)
	return judge(current, latest, dirty, down)
}

func judge(current, latest uint, dirty, down bool) error {
	switch {
	case dirty:
		return judgedError("the schema is dirty: another tool left a migration half done")
	case current < latest && !down:
		return judgedError("the schema is behind: run catalogd migrate up")
	case current > latest:
		return judgedError("the schema is ahead: run the newer catalogd")
	}
	return nil
}
