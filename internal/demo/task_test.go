package demo

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// standIn is a demo whose catalogd is a shell script.
func standIn(t *testing.T, script string) *demo {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "catalogd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$@\" >>"+dir+"/asked\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &demo{
		Config: Config{Executable: program, Workers: 1}, dir: dir, report: &Report{}, progress: newProgress(nil, false),
		server: &server{dir: dir}, store: directory{path: filepath.Join(dir, "store")}, scene: scene{Path: "scene.tif"}, running: map[*os.Process]delivery{}, endangered: map[string]bool{},
	}
}

var one = []delivery{{Collection: "demo", Tile: "r00/c01", Identity: identity{Scene: "sha256:00", Window: window{8, 0, 8, 9}, ZLevel: 6, Version: "v1"}}}

// What a killed worker had comes to the same owner again, as a higher try.
func TestDeliverAgain(t *testing.T) {
	d := standIn(t, `case "$*" in *"--try 0 "*) kill -9 $$;; esac; echo '{"state": "done"}'`)
	if err := d.deliver(t.Context(), "", one); err != nil {
		t.Fatal(err)
	}
	if r := d.report; r.Deliveries != 2 || r.Run != 1 || r.Redone != 1 {
		t.Errorf("figures are %+v", d.report)
	}
	asked, err := os.ReadFile(filepath.Join(d.dir, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(asked)), "\n")
	const begin = "exec demo r00/c01 version=v1 scene=sha256:00 window:=[8,0,8,9] zlevel:=6 --owner worker-1 --try "
	if len(lines) != 2 || !strings.HasPrefix(lines[0], begin+"0 ") || !strings.HasPrefix(lines[1], begin+"1 ") || !strings.HasSuffix(lines[1], "-srcwin 8 0 8 9 {tags} scene.tif {out}") {
		t.Errorf("asked %q", lines)
	}
}

func TestDeliverTells(t *testing.T) {
	for script, want := range map[string]string{
		"exit 75": "demo/r00/c01 v1: catalogd exec: exit status 75; see ",
		"echo hm": `demo/r00/c01 v1: catalogd exec says "hm\n"`,
	} {
		if err := standIn(t, script).deliver(t.Context(), "", one); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
}

// A task ends with the demo.
func TestDeliverEnds(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	if err := standIn(t, "exec sleep 60").deliver(ctx, "", one); err == nil || !strings.HasSuffix(err.Error(), "enough") {
		t.Error(err)
	}
}

// A command that writes an output.
func TestWriting(t *testing.T) {
	for kind, s := range map[string]store{"posix": directory{path: t.TempDir()}, "s3": &bucket{}} {
		t.Run(kind, func(t *testing.T) {
			d := standIn(t, "")
			d.store = s
			output := filepath.Join(d.making(), "x", "out.tif")
			if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
				t.Fatal(err)
			}
			// A shell whose child has the file open.
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `sh -c 'exec 3>"$0"; printf half >&3; read _' "$0"; true`, output)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			seen, err := until(t.Context(), nil, time.Millisecond, func() (bool, error) {
				child, written := d.writing(cmd.Process.Pid)
				return child > 0 && written == 4, nil
			})
			if !seen || err != nil {
				t.Errorf("not seen: %v", err)
			}
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if child, written := d.writing(os.Getpid()); child != 0 || written != 0 {
				t.Errorf("%d writes %d bytes", child, written)
			}
		})
	}
}

// A task, which this test is, that sends its output.
func TestUploading(t *testing.T) {
	d := standIn(t, "")
	d.store = &bucket{}
	self := func() bool { pid, bytes := d.uploading(os.Getpid()); return pid == os.Getpid() && bytes == 4 }
	connect := func() (address string) {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(); listener.Close() })
		return listener.Addr().String()
	}
	output := filepath.Join(d.private(), "out.tif")
	if err := errors.Join(os.Mkdir(d.private(), 0o755), os.WriteFile(output, []byte("half"), 0o644)); err != nil {
		t.Fatal(err)
	}
	d.server.listen = connect()
	f, err := os.Open(output)
	if err != nil {
		t.Fatal(err)
	}
	if self() {
		t.Error("connected to the server only, it is uploading")
	}
	connect()
	if !self() {
		t.Error("connected to another, it is not uploading")
	}
	f.Close()
	if self() {
		t.Error("without its output, it is uploading")
	}
}
