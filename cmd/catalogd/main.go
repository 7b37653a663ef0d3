// Command catalogd is the server and its command line. This package is wiring:
// what it wires is in internal/.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the build.
var version = "dev"

// Exit codes, as documented.
const (
	exitError  = 1
	exitUsage  = 2
	exitJudged = 3
)

type commands struct {
	Serve      serveCmd      `cmd:"" help:"Run the server."`
	Migrate    migrateCmd    `cmd:"" help:"Bring a database's schema up, down, or tell where it stands."`
	Demo       demoCmd       `cmd:"" help:"Cut a raster into tiles with workers, a killed server and redelivery; prove that nothing was lost."`
	DemoWorker demoWorkerCmd `cmd:"" hidden:""`
	Doctor     doctorCmd     `cmd:"" help:"Say what this machine lacks, and how to get it."`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// streams is where commands write.
type streams struct {
	out, err io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// run is main without the process, for tests that are the program.
func run(ctx context.Context, args []string, std streams) int {
	var cli commands
	exited := -1
	parser, err := kong.New(&cli,
		kong.Name("catalogd"),
		kong.Description("A catalogue of the rasters that batch pipelines write."),
		kong.UsageOnError(),
		kong.Vars{"version": version},
		kong.Writers(std.out, std.err),
		kong.Exit(func(code int) { exited = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std),
	)
	if err != nil {
		fmt.Fprintln(std.err, "catalogd:", err)
		return exitError
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		fmt.Fprintf(std.err, "catalogd: %v\nSee catalogd --help.\n", err)
		return exitUsage
	}
	if err := command.Run(); err != nil {
		fmt.Fprintln(std.err, "catalogd:", err)
		var usage usageError
		var judged judgedError
		switch {
		case errors.As(err, &usage):
			return exitUsage
		case errors.As(err, &judged):
			return exitJudged
		}
		return exitError
	}
	return 0
}

// usageError is a wrong combination of flags.
type usageError string

func (e usageError) Error() string { return string(e) }

// judgedError: what was asked about was looked at, and is not well.
type judgedError string

func (e judgedError) Error() string { return string(e) }

type versionCmd struct{}

func (versionCmd) Run(std streams) error {
	_, err := fmt.Fprintln(std.out, version)
	return err
}
