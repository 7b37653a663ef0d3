// Command withpg runs a command with a PostgreSQL cluster of its own, which
// lasts as long as the command, in memory if it can, and knows nothing of
// durability:
//
//	go run ./internal/testdb/withpg [-keep] -- go test ./...
//
// The command finds the cluster's URL in CATALOGD_TEST_DATABASE_URL. withpg
// exits with the command's exit code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"catalogd/internal/pgcluster"
	"catalogd/internal/testdb"
)

func main() {
	keep := flag.Bool("keep", false, "when the command fails, keep the cluster until ^C")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: withpg [-keep] -- command [argument …]")
		os.Exit(2)
	}
	code, err := run(*keep, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(keep bool, command []string) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	dir, err := os.MkdirTemp(parent(), "catalogd-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // postgres passes through
		return 1, err
	}
	install, err := pgcluster.Find(context.Background())
	if err != nil {
		return 1, err
	}
	config := pgcluster.Config{
		Dir:    dir + "/pg",
		Unsafe: true,
		Settings: map[string]string{
			"max_connections":          "300",
			"shared_preload_libraries": "pg_stat_statements",
		},
	}
	if install.Version >= 15 {
		// Sorts as production databases do, so that a forgotten COLLATE "C" shows.
		config.InitDB = []string{"--locale-provider=icu", "--icu-locale=en"}
	}
	cluster, err := pgcluster.Start(context.Background(), config)
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = errors.Join(err, cluster.Stop(ctx))
	}()

	code, err = runCommand(command, cluster.URL("postgres"), signals)
	if keep && code != 0 {
		fmt.Fprintf(os.Stderr, "withpg: the cluster stays until ^C: psql '%s'\n", cluster.URL("postgres"))
		<-signals
	}
	return code, err
}

// parent of the cluster's directory is memory where that has room: a database is
// hundreds of files, and each test makes one and drops it.
func parent() string {
	const memory = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || int64(fs.Bavail)*fs.Bsize < 4<<30 {
		return "" // the usual place
	}
	return memory
}

func runCommand(command []string, url string, signals <-chan os.Signal) (code int, err error) {
	runtime.LockOSThread() // Pdeathsig comes when the thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), testdb.Env+"="+url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
