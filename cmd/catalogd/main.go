// Command catalogd is the server and its command line. This package is wiring:
// what it wires is in internal/.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

// version is set by the build.
var version = "dev"

// Exit codes, as documented.
const (
	exitError       = 1
	exitUsage       = 2
	exitJudged      = 3
	exitQuarantined = 10
	exitLater       = 75 // EX_TEMPFAIL of sysexits.h
)

type commands struct {
	Serve   serveCmd   `cmd:"" help:"Run the server."`
	Migrate migrateCmd `cmd:"" help:"Bring a database's schema up, down, or tell where it stands."`
	Demo    demoCmd    `cmd:"" help:"Cut a raster into tiles, with a worker, the server and PostgreSQL killed and all redelivered; prove that nothing was lost."`
	Doctor  doctorCmd  `cmd:"" help:"Say what this machine lacks, and how to get it."`

	Collection collectionCmd `cmd:"" group:"client" help:"Families of outputs."`
	Key        keyCmd        `cmd:"" group:"client" help:"Derive a unit's key."`
	Check      checkCmd      `cmd:"" group:"client" help:"What is done, and what is due: of one unit, or of millions on standard input."`
	Get        getCmd        `cmd:"" group:"client" help:"The row of a unit, or of what a place shows; or the bytes."`
	History    historyCmd    `cmd:"" group:"client" help:"What a place has shown, and when."`
	Exec       execCmd       `cmd:"" group:"client" help:"Run a command that makes a unit's output, unless it is done, and hand the output over."`
	Put        putCmd        `cmd:"" group:"client" help:"Hand a finished file over."`
	Fail       failCmd       `cmd:"" group:"client" help:"Report that an attempt failed."`
	Batch      batchCmd      `cmd:"" group:"client" help:"Sets of expected units: what is due of them, how they stand, whether they pass."`
	Quarantine quarantineCmd `cmd:"" group:"client" help:"Units that are not tried again: list them, look at one, release them."`
	Publish    publishCmd    `cmd:"" group:"client" help:"Give a version the top rank: the way to go back."`
	Reconcile  reconcileCmd  `cmd:"" group:"client" help:"Compare the catalogue with what a store holds, plan what to do, and apply that."`
	Trash      trashCmd      `cmd:"" group:"client" help:"Objects that a plan moved away: list them, put one back, delete them."`
	Scrub      scrubCmd      `cmd:"" group:"client" help:"Read checksums of outputs again."`
	Recover    recoverCmd    `cmd:"" group:"client" help:"Finish steps that a crash left open, now."`
	Sweep      sweepCmd      `cmd:"" group:"client" help:"Remove what ended attempts left in staging, now."`
	Token      tokenCmd      `cmd:"" group:"client" help:"Who may do what."`

	Completion kongcompletion.Completion `cmd:"" help:"How to have bash, zsh or fish complete commands and flags; with -c, the code for that."`
	Version    versionCmd                `cmd:"" help:"Print the version."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// streams is where commands write.
type streams struct {
	out, err io.Writer
}

func main() {
	ctx, stop := untilSignal(os.Args[1:])
	code := run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// untilSignal is a context that ends with the first signal that asks the process to end.
// The second one ends the process, but for those that have others to end first.
func untilSignal(args []string) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	if len(args) == 0 || args[0] != "serve" && args[0] != "demo" {
		context.AfterFunc(ctx, stop)
	}
	return ctx, stop
}

// run is main without the process, for tests that are the program.
func run(ctx context.Context, args []string, std streams) int {
	var cli commands
	var trailing commandLine
	if i := slices.Index(args, "--"); i > 0 && args[0] == "exec" {
		args, trailing = args[:i], commandLine(args[i+1:])
	}
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			// encoding/json would make all such texts one.
			fmt.Fprintf(std.err, "catalogd: %q is not UTF-8: send it in another form\n", arg)
			return exitUsage
		}
	}
	exited := -1
	parser, err := kong.New(&cli,
		kong.Name("catalogd"),
		kong.Description("A catalogue of the rasters that batch pipelines write."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Vars{"version": version},
		kong.Writers(std.out, std.err),
		kong.Exit(func(code int) { exited = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, trailing),
		kong.ExplicitGroups([]kong.Group{{Key: "client", Title: "Commands for tasks and people, which speak to a server at CATALOGD_URL:"}}),
	)
	if err != nil {
		fmt.Fprintln(std.err, "catalogd:", err)
		return exitError
	}
	kongcompletion.Register(parser)
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
		if next := advice(err); next != "" {
			fmt.Fprintln(std.err, "catalogd:", next)
		}
		return exitCode(err)
	}
	return 0
}

// usageError is a wrong combination of flags.
type usageError string

func (e usageError) Error() string { return string(e) }

// judgedError: what was asked about was looked at, and is not well.
type judgedError string

func (e judgedError) Error() string { return string(e) }

type versionCmd struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

func (c versionCmd) Run(std streams) error {
	if c.JSON {
		return printJSON(std.out, map[string]string{"version": version})
	}
	_, err := fmt.Fprintln(std.out, version)
	return err
}
