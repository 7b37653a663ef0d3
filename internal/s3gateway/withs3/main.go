// Command withs3 runs a command with an S3 gateway of its own, which lasts as long as
// the command:
//
//	go run ./internal/s3gateway/withs3 [-keep] -- bin/catalogd demo --store {store}
//
// {store} in the command's arguments stands for the URL of a store in a bucket that is
// there, and empty; its environment has that as CATALOGD_STORE, and the gateway's
// settings and credentials for the AWS SDK and for GDAL. withs3 exits with the command's
// exit code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"catalogd/internal/s3gateway"
)

func main() {
	keep := flag.Bool("keep", false, "when the command has ended, keep the gateway until ^C")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: withs3 [-keep] -- command [argument …]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code, err := run(ctx, *keep, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "withs3:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

const bucket = "catalogd"

// run runs the command; when ctx ends that is told to end too, and waited for.
func run(ctx context.Context, keep bool, command []string) (code int, err error) {
	dir, err := os.MkdirTemp("", "catalogd-s3-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	gateway, err := start(ctx, dir)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, gateway.Stop()) }()
	if err := gateway.CreateBucket(ctx, bucket); err != nil {
		return 1, err
	}
	store := "s3://" + bucket + "?" + url.Values{"endpoint": {gateway.Endpoint}, "region": {s3gateway.Region}}.Encode()
	code, err = runCommand(ctx, command, store, gateway.Env())
	switch {
	case !keep && code != 0 && ctx.Err() == nil:
		fmt.Fprintln(os.Stderr, "withs3: what the command left on S3 goes with the gateway; -keep keeps both")
	case keep && err == nil && ctx.Err() == nil:
		fmt.Fprintf(os.Stderr, "withs3: the gateway stays until ^C:\n  export %s CATALOGD_STORE='%s'\n", strings.Join(gateway.Env(), " "), store)
		<-ctx.Done()
	}
	return code, err
}

// start starts a gateway, and tells when that takes long.
func start(ctx context.Context, dir string) (*s3gateway.Gateway, error) {
	building := time.AfterFunc(2*time.Second, func() {
		fmt.Fprintf(os.Stderr, "withs3: build %s %s, which takes some two minutes, once\n", s3gateway.Module, s3gateway.Version)
	})
	binary, err := s3gateway.Binary(ctx)
	building.Stop()
	if err != nil {
		return nil, err
	}
	return s3gateway.Start(ctx, s3gateway.Options{Dir: dir, Binary: binary})
}

func runCommand(ctx context.Context, command []string, store string, env []string) (code int, err error) {
	runtime.LockOSThread() // Pdeathsig comes when the thread ends
	defer runtime.UnlockOSThread()
	args := append([]string{}, command[1:]...)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{store}", store)
	}
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.Env = append(append(os.Environ(), env...), "CATALOGD_STORE="+store)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return 127, err
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
