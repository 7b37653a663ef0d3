package main

import (
	"context"
	"encoding/json"
	"os"

	"catalogd/internal/client"
	"catalogd/internal/demo"
)

type demoCmd struct {
	Input   string `type:"existingfile" placeholder:"FILE" help:"Raster to cut; by default a scene that the demo makes."`
	Store   string `placeholder:"ROOT" help:"Where the outputs go, in a directory or prefix of their own: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=…; by default with everything else."`
	Tiles   int    `default:"64" help:"How many tiles there are at least."`
	Workers int    `default:"4" help:"Tasks at once."`
	Keep    bool   `help:"Keep the data and the outputs, and say how to go on with them."`
	JSON    bool   `name:"json" help:"Print the figures as JSON."`
}

// Run prints how the demo went. What disagrees is an error.
func (c *demoCmd) Run(ctx context.Context, std streams) error {
	if c.Store != "" {
		root, err := storeURL(c.Store)
		if err != nil {
			return err
		}
		c.Store = root
	}
	report, err := demo.Run(ctx, demo.Config{
		Input: c.Input, Store: c.Store, Tiles: c.Tiles, Workers: c.Workers, Keep: c.Keep,
		Progress: std.err, Terminal: isTerminal(std.err),
	})
	if !c.JSON {
		report.Print(std.out)
		return err
	}
	encoder := json.NewEncoder(std.out)
	encoder.SetIndent("", "  ")
	if printed := encoder.Encode(report); err == nil {
		err = printed
	}
	return err
}

// isTerminal tells whether lines can be written over there.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && client.IsTerminal(f)
}
