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
	Tiles   int    `default:"64" help:"How many tiles there are at least."`
	Workers int    `default:"4" help:"Tasks at once."`
	Keep    bool   `help:"Keep the data, and say how to go on with it."`
	JSON    bool   `name:"json" help:"Print the figures as JSON."`
}

// Run prints how the demo went. What disagrees is an error.
func (c *demoCmd) Run(ctx context.Context, std streams) error {
	report, err := demo.Run(ctx, demo.Config{
		Input: c.Input, Tiles: c.Tiles, Workers: c.Workers, Keep: c.Keep,
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
