package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// serverKills is how many kills of the server must leave a step to roll forward.
const serverKills = 3

// accidents kills, in the course of the work: the server, PostgreSQL, a worker. What the
// work, which closes over, leaves no time for shows in the figures.
func (d *demo) accidents(ctx context.Context, of int, over <-chan struct{}) error {
	var kills []func(context.Context, <-chan struct{}) error
	for range serverKills {
		kills = append(kills, d.killServer)
	}
	kills = append(kills, d.killPostgres, d.killWorker)
	if d.store.staging() == "" {
		kills = append(kills, d.killUpload)
	}
	for i, kill := range kills {
		due, err := until(ctx, over, 5*time.Millisecond, func() (bool, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.done >= (i+1)*of/(len(kills)+2), nil
		})
		if err != nil || !due {
			return err
		}
		if err := kill(ctx, over); err != nil {
			return err
		}
	}
	return nil
}

// endanger remembers what is under way at a kill.
func (d *demo) endanger() (underWay int) {
	for _, x := range d.running {
		d.endangered[x.unit()] = true
	}
	return len(d.running)
}

// killServer kills the server, and starts it again, until that has left a step to roll
// forward.
func (d *demo) killServer(ctx context.Context, over <-chan struct{}) error {
	for range 3 { // a step may yet slip through
		at, attempts, err := d.catch(ctx, over)
		if err != nil || len(attempts) == 0 {
			return err
		}
		d.report.Kills.Server++
		d.report.Caught += len(attempts)
		d.progress.step("kill the server, with %s between intent and row", count(len(attempts), "step"))
		if err := d.server.start(ctx); err != nil {
			return fmt.Errorf("start again after a kill: %w", err)
		}
		back := time.Since(at)
		rolledForward, err := d.server.settled(ctx, at, attempts)
		if err != nil {
			return err
		}
		d.report.RolledForward += rolledForward
		d.progress.step("the server is back after %.1f s, and %s rolled forward", back.Seconds(), count(rolledForward, "step"))
		if rolledForward > 0 {
			break
		}
	}
	return nil
}

const (
	sqlPromoting = `SELECT attempt_id::text FROM catalog.attempts WHERE state = 'promoting'`
	sqlActive    = `SELECT pid::text FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()`
)

// catch kills the server while at least one step is between its intent and its
// row. That time is short, so a step that is seen there is looked at again with
// the server held still (SIGSTOP): if it has slipped through, the server goes
// on. It gives up, with nothing caught, when over is closed.
func (d *demo) catch(ctx context.Context, over <-chan struct{}) (at time.Time, attempts []string, err error) {
	conn, err := pgx.Connect(ctx, d.server.databaseURL)
	if err != nil {
		return at, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	server := d.server.cmd.Process
	_, err = until(ctx, over, 300*time.Microsecond, func() (_ bool, err error) {
		if attempts, err = query(ctx, conn, sqlPromoting); err != nil || len(attempts) == 0 {
			return false, err
		}
		if err := server.Signal(syscall.SIGSTOP); err != nil {
			return false, err
		}
		if err := still(ctx, conn); err != nil {
			return false, err
		}
		if attempts, err = query(ctx, conn, sqlPromoting); err != nil || len(attempts) == 0 {
			return false, errors.Join(err, server.Signal(syscall.SIGCONT))
		}
		d.mu.Lock()
		d.endanger()
		d.mu.Unlock()
		d.server.kill()
		return true, nil
	})
	return time.Now(), attempts, err
}

// still waits until PostgreSQL has carried out what a server that is held still had sent.
func still(ctx context.Context, conn *pgx.Conn) error {
	for range 100 {
		time.Sleep(10 * time.Millisecond)
		if active, err := query(ctx, conn, sqlActive); err != nil || len(active) == 0 {
			return err
		}
	}
	return nil
}

const (
	sqlUnsettled     = `SELECT attempt_id::text FROM catalog.attempts WHERE attempt_id = ANY ($1::text[]::uuid[]) AND state = 'promoting'`
	sqlRolledForward = `SELECT attempt_id::text FROM catalog.attempts WHERE attempt_id = ANY ($1::text[]::uuid[]) AND state = 'done' AND ended_at > $2`
)

// settled waits until no caught attempt is promoting any more, and counts those
// that have become rows since the kill.
func (s *server) settled(ctx context.Context, killed time.Time, attempts []string) (rolledForward int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("steps were not rolled forward in 30 s"))
	defer cancel()
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := until(ctx, nil, 10*time.Millisecond, func() (bool, error) {
		open, err := query(ctx, conn, sqlUnsettled, attempts)
		return len(open) == 0, err
	}); err != nil {
		return 0, err
	}
	done, err := query(ctx, conn, sqlRolledForward, attempts, killed)
	return len(done), err
}

// killPostgres has the private PostgreSQL end at once, as pg_ctl stop -m immediate does,
// by SIGQUIT: its next start recovers, as after a crash. The server starts it by itself.
func (d *demo) killPostgres(ctx context.Context, _ <-chan struct{}) error {
	content, err := os.ReadFile(filepath.Join(d.server.dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return fmt.Errorf("read the pid of PostgreSQL: %w", err)
	}
	d.mu.Lock()
	underWay := d.endanger()
	err = syscall.Kill(postmaster, syscall.SIGQUIT)
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	killed := time.Now()
	d.report.Kills.PostgreSQL++
	d.progress.step("kill PostgreSQL, with %s under way", count(underWay, "task"))
	if _, err := until(ctx, nil, 5*time.Millisecond, func() (bool, error) {
		return errors.Is(syscall.Kill(postmaster, 0), syscall.ESRCH), nil
	}); err != nil {
		return err
	}
	if err := d.server.ready(ctx); err != nil {
		return err
	}
	d.progress.step("PostgreSQL is back after %.1f s", time.Since(killed).Seconds())
	return nil
}

// killWorker kills a task, exec and the command below it, while the output is being
// written.
func (d *demo) killWorker(ctx context.Context, over <-chan struct{}) error {
	return d.catchWorker(ctx, over, d.writing, func(x delivery, written int64) {
		d.progress.step("kill a worker that has written %s of %s", size(written), x.unit())
	})
}

// killUpload kills a task while exec is sending the output.
func (d *demo) killUpload(ctx context.Context, over <-chan struct{}) error {
	return d.catchWorker(ctx, over, d.uploading, func(x delivery, bytes int64) {
		d.report.Kills.Uploading++
		d.progress.step("kill a worker that is uploading %s of %s", size(bytes), x.unit())
	})
}

// catchWorker kills a task in which look sees a process at work on the output, and that
// process. What is seen there is looked at again with exec held still: the pid of its
// command is then given to nobody else.
func (d *demo) catchWorker(ctx context.Context, over <-chan struct{}, look func(pid int) (at int, bytes int64), caught func(delivery, int64)) error {
	_, err := until(ctx, over, 300*time.Microsecond, func() (bool, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for worker, x := range d.running {
			if _, bytes := look(worker.Pid); bytes == 0 {
				continue
			}
			if worker.Signal(syscall.SIGSTOP) != nil {
				continue // ended
			}
			at, bytes := look(worker.Pid)
			if bytes == 0 {
				_ = worker.Signal(syscall.SIGCONT)
				continue
			}
			d.endangered[x.unit()] = true
			d.report.Kills.Worker++
			caught(x, bytes)
			var err error
			if at != worker.Pid {
				err = syscall.Kill(at, syscall.SIGKILL)
			}
			return true, errors.Join(err, worker.Kill())
		}
		return false, nil
	})
	return err
}

// writing finds the child of a process that has an output open, and the size of that;
// 0 for none.
func (d *demo) writing(parent int) (child int, written int64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, task := range tasks {
		children, _ := os.ReadFile(task) // none of a thread that has ended
		for _, text := range strings.Fields(string(children)) {
			child, _ = strconv.Atoi(text)
			if written, _ = d.opened(child); written > 0 {
				return child, written
			}
		}
	}
	return 0, 0
}

// uploading tells whether a process has an output open itself, and a connection to
// somebody besides the server; and the size of the output, 0 for none.
func (d *demo) uploading(pid int) (self int, bytes int64) {
	bytes, sockets := d.opened(pid)
	if bytes == 0 {
		return 0, 0
	}
	_, text, _ := strings.Cut(d.server.listen, ":")
	port, _ := strconv.Atoi(text)
	server := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"tcp", "tcp6"} {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(content)) {
			// proc_net_tcp(5): its number, local and remote address, state (01 is established), …, inode.
			field := strings.Fields(line)
			if len(field) > 9 && field[3] == "01" && sockets["socket:["+field[9]+"]"] && !strings.HasSuffix(field[2], server) {
				return pid, bytes
			}
		}
	}
	return 0, 0
}

// opened is what a process has open: an output of so many bytes, 0 for none, and sockets.
func (d *demo) opened(pid int) (bytes int64, sockets map[string]bool) {
	sockets = map[string]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		name, _ := os.Readlink(file)
		if strings.HasPrefix(name, "socket:") {
			sockets[name] = true
		}
		if !strings.HasPrefix(name, d.making()+"/") {
			continue
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			bytes = info.Size()
		}
	}
	return bytes, sockets
}

// private is where workers make what they then send.
func (d *demo) private() string { return filepath.Join(d.dir, "private") }

// making is the directory below which workers write.
func (d *demo) making() string { return cmp.Or(d.store.staging(), d.private()) }

// until looks every so often until it sees; or until over is closed, which is false, or
// ctx ends.
func until(ctx context.Context, over <-chan struct{}, every time.Duration, look func() (bool, error)) (bool, error) {
	for {
		if seen, err := look(); seen || err != nil {
			return seen, err
		}
		select {
		case <-time.After(every):
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// query reads one column of texts.
func query(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]string, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
