package demo

import (
	"fmt"
	"io"
	"strings"
)

// Report is what a run did, in figures that close: see close.
type Report struct {
	// Scene describes what was cut.
	Scene string `json:"scene"`
	// Tiles of the grid, Columns wide; Bumped of them were wanted again in a second
	// version; Units is both together, and so what must be there at the end.
	Tiles   int `json:"tiles"`
	Columns int `json:"columns"`
	Bumped  int `json:"bumped"`
	Units   int `json:"units"`
	// Deliveries to workers: each unit twice, and again where the worker was killed. Run of
	// them ended with the worker's output as the unit's row, of which Redone were made
	// twice, since a worker was killed over them; Skipped found the row; Overtaken worked
	// for nothing.
	Deliveries int   `json:"deliveries"`
	Run        int   `json:"run"`
	Redone     int   `json:"redone"`
	Skipped    int   `json:"skipped"`
	Overtaken  int   `json:"overtaken"`
	Kills      Kills `json:"kills"`
	// Caught attempts were between intent and row when the server was killed, and
	// RolledForward are those that became rows afterwards, without work.
	Caught        int `json:"caught"`
	RolledForward int `json:"rolled_forward"`
	// Swept is how many files the last sweep removed from staging.
	Swept int `json:"swept"`
	// From the tables: Attempts begun, Rows, and those of them that are Superseded.
	Attempts   int `json:"attempts"`
	Rows       int `json:"rows"`
	Superseded int `json:"superseded"`
	// From the store: Objects and their Bytes. Uploaded tells whether workers sent them,
	// and did not write into the store.
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"`
	Uploaded bool  `json:"uploaded"`
	// Reached is how many stable names led over HTTP to what is current.
	Reached int     `json:"reached"`
	Seconds float64 `json:"seconds"`
	// Disagreements between any of these; none in a run that succeeds.
	Disagreements []string `json:"disagreements,omitempty"`
	// Kept is the directory, where it was kept, and Store where the outputs are then, if
	// not in there.
	Kept  string `json:"kept,omitempty"`
	Store string `json:"store,omitempty"`
}

// Kills are told apart by what was killed.
type Kills struct {
	Server     int `json:"server"`
	PostgreSQL int `json:"postgresql"`
	Worker     int `json:"worker"`
	// Uploading are those of the workers that were sending their output.
	Uploading int `json:"uploading,omitempty"`
}

// close takes in what was proved and checks that the figures add up.
func (r *Report) close(p proof) {
	r.Attempts, r.Rows, r.Superseded = p.attempts, len(p.outputs), len(p.outputs)-p.current
	r.Objects, r.Bytes = p.objects, p.bytes
	found := disagreements(p.disagreements)
	for _, sum := range []struct {
		name string
		got  int
		want int
	}{
		{"deliveries (each unit twice, and what a killed worker had)", r.Deliveries, 2*r.Units + r.Kills.Worker},
		{"run (each unit once)", r.Run, r.Units},
		{"skipped (each unit once)", r.Skipped, r.Units},
		{"run + skipped + overtaken + killed (all deliveries)", r.Run + r.Skipped + r.Overtaken + r.Kills.Worker, r.Deliveries},
		{"redone (one a killed worker)", r.Redone, r.Kills.Worker},
		{"attempts (one a unit, and one more of each redone: no other work twice)", r.Attempts, r.Units + r.Redone},
		{"attempts that became rows", p.done, r.Rows},
		{"attempts that were taken over (one a redone unit)", p.replaced, r.Redone},
		{"rows (one a unit)", r.Rows, r.Units},
		{"objects (one a row)", r.Objects, r.Rows},
		{"current outputs (one a tile)", p.current, r.Tiles},
		{"superseded (one a bumped tile)", r.Superseded, r.Bumped},
		{"reached (each tile by its stable name)", r.Reached, r.Tiles},
	} {
		if sum.got != sum.want {
			found.add("%s: %d, not %d", sum.name, sum.got, sum.want)
		}
	}
	// An upload takes milliseconds: whether one is caught is no claim of the demo's.
	for _, want := range []struct {
		name  string
		got   int
		least int
	}{
		{"kills of the server", r.Kills.Server, serverKills},
		{"kills of PostgreSQL", r.Kills.PostgreSQL, 1},
		{"kills of a worker that wrote", r.Kills.Worker - r.Kills.Uploading, 1},
		{"steps rolled forward", r.RolledForward, serverKills},
	} {
		if want.got < want.least {
			found.add("%s: %d, not %d or more", want.name, want.got, want.least)
		}
	}
	r.Disagreements = append(r.Disagreements, found...)
}

// Print writes the table of a run that came to its end, what disagrees, and how
// to go on with what was kept.
func (r Report) Print(w io.Writer) {
	if r.Seconds > 0 {
		r.table(w)
	}
	if len(r.Disagreements) > 0 {
		fmt.Fprintln(w, "\nDisagree:")
		for _, d := range r.Disagreements {
			fmt.Fprintln(w, "  -", d)
		}
	}
	if r.Kept == "" {
		return
	}
	outputs, store, remove := "data/store, ", "", ""
	if r.Store != "" {
		outputs, store, remove = "", " --store '"+r.Store+"'", ", and "+r.Store
	}
	fmt.Fprintf(w, `
Kept: %[1]s (server.log, workers.log, %[2]sdata/admin.token)
  serve it again   catalogd serve --dev --data %[1]s/data%[3]s
  and then look    psql "$(cat %[1]s/data/database.url)" -c 'SELECT tile_id, version, location FROM catalog.current_tiles'
  in the end       rm -r %[1]s%[4]s
`, r.Kept, outputs, store, remove)
}

func (r Report) table(w io.Writer) {
	equal, how := "= rows, by name, size and SHA-256; ", "a worker that was killed while it wrote"
	if r.Uploaded {
		equal, how = "= rows, by name, size, SHA-256 and the unit in their metadata; ", "workers that were killed while they wrote or uploaded"
	}
	if len(r.Disagreements) > 0 {
		equal = fmt.Sprintf("%s; ", count(r.Rows, "row"))
	}
	fmt.Fprintln(w)
	for _, line := range []struct{ name, figure, note string }{
		{"tiles", fmt.Sprint(r.Tiles), fmt.Sprintf("%d × %d windows of %s", r.Columns, r.Tiles/max(r.Columns, 1), r.Scene)},
		{"run", fmt.Sprint(r.Run), fmt.Sprintf("%d tiles, and %d of them again as %s; %s", r.Tiles, r.Bumped, versions[1].name, count(r.Attempts, "attempt"))},
		{"redone", fmt.Sprint(r.Redone), "taken over at once from " + how},
		{"rolled forward", fmt.Sprint(r.RolledForward), fmt.Sprintf("of %s between intent and row when the server was killed; no work twice", count(r.Caught, "step"))},
		{"skipped", fmt.Sprint(r.Skipped), "everything delivered again"},
		{"superseded", fmt.Sprint(r.Superseded), "by " + versions[1].name + "; they stay as history"},
		{"kills", fmt.Sprint(r.Kills.Server + r.Kills.PostgreSQL + r.Kills.Worker), fmt.Sprintf("server %d, PostgreSQL %d, worker %d", r.Kills.Server, r.Kills.PostgreSQL, r.Kills.Worker)},
		{"swept", fmt.Sprint(r.Swept), "left in staging by what was killed"},
		{"objects", fmt.Sprint(r.Objects), equal + size(r.Bytes)},
		{"reached", fmt.Sprint(r.Reached), "stable names, over HTTP, each with the bytes of what is current"},
		{"time", fmt.Sprintf("%.1f s", r.Seconds), ""},
	} {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-14s %8s   %s", line.name, line.figure, line.note), " "))
	}
}

// count says how many there are of something.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// size in the unit that suits it.
func size(bytes int64) string {
	value, unit := float64(bytes), "B"
	for _, larger := range []string{"kB", "MB", "GB"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, larger
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}
